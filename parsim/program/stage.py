"""The passes of one pipeline rank: forward, backward, the step's begin and end, as items with memory effects.

Forward and backward are written by `parsim.program.walk`; here stand what stays resident, the step's begin and end, the
templates and what reports ask about a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import fsum, inf

from parsim.kernel import Attention, Gemm, Kernel
from parsim.model.attention import AttentionCore
from parsim.model.flops import Again
from parsim.model.linear import Embedding
from parsim.model.tape import Step, Tape, tape
from parsim.parallel.groups import MODEL, TENSOR, WORLD, tied_group
from parsim.parallel.hooks import Weight
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.recompute import Group, checkpoint_groups
from parsim.parallel.storage import trains
from parsim.parallel.tensor import TensorParallelHooks
from parsim.program.host import Floor
from parsim.program.lengths import at_mean_length
from parsim.program.passes import Item, PassBuilder, Stretches, TensorTable
from parsim.program.program import COMPUTE, Effect
from parsim.program.stretches import Own
from parsim.program.versions import Versions
from parsim.program.walk import Walk

_Template = tuple[str, int, bool, bool, bool, Hashable]
"""kind, stage, first, last, smaller micro-batch, state of the sharding before it"""


class StagePasses:
    """Passes of the ranks of one pipeline rank and role. Templates are built on first use, in schedule order."""

    def __init__(
        self, plan: Plan, pipeline_rank: int, role: str, clock: Callable[[Kernel], float], stretches: Stretches | None = None
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.stretches: Stretches = {} if stretches is None else stretches
        """what equal blocks add to passes (`parsim.program.stretches`); passes of one plan under one clock may share it"""
        self.chunks = {chunk.stage: chunk for chunk in plan.of_rank(pipeline_rank)}
        self.table = TensorTable()
        self._pipeline_rank = pipeline_rank
        self.sharding = {stage: plan.sharding(chunk, role) for stage, chunk in self.chunks.items()}
        self.units = {stage: plan.units(chunk) for stage, chunk in self.chunks.items()}
        self.weights = {w.name: w for chunk in self.chunks.values() for w in plan.weights(chunk)}
        self._ending: list[Item] = []
        self._templates: dict[_Template, tuple[list[Item], Hashable]] = {}
        self._written: dict[tuple[str, int, bool], list[tuple[_Template, set[str]]]] = {}
        """kind, stage, smaller micro-batch -> templates and what their writers asked (`PassBuilder.asked`)"""
        self.declared: dict[tuple[int, bool, bool], Own] = {}
        """blocks whose tensors are in the table: index, of a smaller micro-batch, with an output that is recomputed beside the first"""
        self.floors: dict[Hashable, Floor] = {}
        """of blocks with the same tape, by way and by what of backward is run"""
        self._tapes: dict[tuple[int, bool], Tape] = {}
        self._groups: dict[int, tuple[Group, ...]] = {}
        self._of_operator: dict[tuple[int, str], tuple[tuple[Weight, ...], tuple[Weight, ...]]] = {}
        self._versions = Versions()
        self._used_workspaces: set[str] = set()
        self.resident = self._declare_resident()

    # -- memory that stays ----------------------------------------------------------------------------------------

    def builder(self, stage: int, *, first: bool = True, last: bool = True) -> PassBuilder:
        prefix = f"chunk {stage} " if len(self.chunks) > 1 else ""
        return PassBuilder(self.clock, self.table, first=first, last=last, prefix=prefix, handed=self._handed(stage))

    def _handed(self, stage: int) -> frozenset[str]:
        """Boundary tensors that the stage gives to, or has from, another one on this rank: both have the same."""
        plan, blocks = self.plan, self.chunks[stage].blocks
        boundaries = [blocks[0]] * plan.stays(stage - 1) + [blocks[-1] + 1] * plan.stays(stage)
        return frozenset(f"{mark}{way}{b}" for b in boundaries for mark in (self.mark(False), self.mark(True)) for way in ("x", "dx"))

    def _declare_resident(self) -> tuple[int, ...]:
        numbers = []
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            numbers += [self.table.index[at.prefix + name] for name in sharding.resident(at)]
        if self.plan.training.iteration == "steady":
            numbers += [self.workspace(way) for way in self._workspaces()]
        return tuple(numbers)

    def _workspaces(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.plan.training.backward else ("forward",)

    def first_use(self, way: str) -> int | None:
        """Number of a workspace that the first pass of this way allocates; None if it exists already."""
        if self.plan.training.iteration == "steady" or way in self._used_workspaces:
            return None
        self._used_workspaces.add(way)
        return self.workspace(way)

    def workspace(self, way: str) -> int:
        """Number of the workspace tensor of the forward or the autograd thread's cuBLAS handle."""
        return self.table.declare(f"cublas workspace {way}", self.plan.runtime.workspace, "workspace", per_micro_batch=False)

    # -- begin and end of the step --------------------------------------------------------------------------------

    def begin(self) -> list[Item]:
        """What happens before the first forward: gathers of the previous step's weights, the first input."""
        items: list[Item] = []
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            at.label("step begins", COMPUTE)
            sharding.step_begins(at)
            _extend(items, at.finish())
        return items

    def end(self) -> list[Item]:
        """Finish gradients, clip, step, distribute."""
        at = self.builder(next(iter(self.chunks)))
        items: list[Item] = []
        self._finish(items)
        training = self.plan.training
        clips = training.optimizer.clip_gradients and not self.plan.asynchronous
        if training.step and training.backward and clips and self._trains():
            at.label("gradient norm", "optimizer")
            data = self.plan.parallelism.data
            sharded = data.own.kind.shares_gradients if data.own else data.strategy in ("zero1", "zero2", "zero3", "fsdp", "hsdp")
            at.collective("all_reduce", WORLD if sharded else MODEL, 4, "gradient norm", lane=self._last_lane, blocking=True)
            _extend(items, at.finish())
        for name in ("step", "distribute"):
            for stage, sharding in self.sharding.items():
                at = self.builder(stage)
                at.label("optimizer", "optimizer")
                getattr(sharding, name)(at)
                _extend(items, at.finish())
        self._constants(items)
        self._ending = items
        return items

    @property
    def _last_lane(self) -> str:
        """Queue of the collectives that end a step: behind the tensor-parallel ones, with which they share links."""
        return TENSOR if self.plan.mesh.size(TENSOR) > 1 else ""

    def _trains(self) -> bool:
        weights = (p for block in self.plan.model.blocks for p in block.parameters())
        return any(p.trainable and not p.buffer for p in weights)

    def _finish(self, items: list[Item]) -> None:
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            at.label("finish gradients", COMPUTE)
            sharding.finish_gradients(at)
            if self.plan.mesh.size(TENSOR) > 1 and self.plan.training.backward:
                self._sum_over_tensor_ranks(stage, at)
            _extend(items, at.finish())
        if not self.plan.training.backward or self.plan.asynchronous:
            return
        at = self.builder(next(iter(self.chunks)))
        for owner, copy, count in self.plan.tied_across_stages():
            if self._pipeline_rank in (owner, copy):
                size = count * self.plan.training.precision.gradients
                at.collective("all_reduce", tied_group(owner, copy), size, "tied embedding", lane=self._last_lane, blocking=True)
        _extend(items, at.finish())

    def _constants(self, items: list[Item]) -> None:
        runtime = self.plan.runtime
        local = sum(w.count for w in self.weights.values() if trains(w) or w.parameter.buffer)
        if self.plan.training.step and runtime.boundary:
            items.append(Item("step boundary", "optimizer", (COMPUTE,), runtime.boundary * local / 1e9))
        if runtime.step_constant:
            items.append(Item("step constant", "launch", (COMPUTE,), runtime.step_constant))

    # -- passes ---------------------------------------------------------------------------------------------------

    @property
    def fixed(self) -> bool:
        """The same question about a template has the same answer throughout the step."""
        return not self.plan.sharded and self.plan.parallelism.data.own is None

    def mark(self, partial: bool) -> str:
        """What the names of a smaller last micro-batch's tensors begin with."""
        return "smaller " if partial else ""

    def template(self, kind: str, stage: int, first: bool, last: bool, partial: bool = False) -> list[Item]:
        """Items of one slot kind on a global stage for the first, a middle or the last micro-batch, or a smaller one."""
        sharding = self.sharding[stage]
        key = (kind, stage, first, last, partial, sharding.state())
        if key not in self._templates and (written := self._equal(key)) is not None:
            self._templates[key] = self._templates[written]
        if key not in self._templates:
            walk = Walk(self, stage, first=first, last=last, split=kind in "IW", partial=partial)
            if kind == "F":
                walk.forward()
            else:
                walk.backward(inputs=kind in "BI", weights=kind in "BW")
            items = walk.finish()
            if self.plan.asynchronous and kind == "B":
                _extend(items, self.end())
            self._templates[key] = (items, sharding.state())
            self._written.setdefault((kind, stage, partial), []).append((key, walk.asked))
        items, state = self._templates[key]
        sharding.restore(state)
        return items

    def _equal(self, key: _Template) -> _Template | None:
        """A template that is written and is the same: nobody asked for what tells them apart."""
        if not self.fixed or self.plan.asynchronous:
            return None
        kind, stage, first, last, partial, _ = key
        for other, asked in self._written.get((kind, stage, partial), ()):
            if (other[2] == first or "first" not in asked) and (other[3] == last or "last" not in asked):
                return other
        return None

    def tape(self, block: int, partial: bool = False) -> Tape:
        """The tape of a block under the plan's workload, or that of its smaller last micro-batch."""
        key = (block, partial)
        if key not in self._tapes:
            recompute = self.plan.training.recompute
            drop = recompute.selective if recompute.mode == "selective" else ()
            below = any(p.trainable and not p.buffer for b in self.plan.model.blocks[:block] for p in b.parameters())
            wanted = below or self._profiled or (self._inputs_require_gradients and block > 0)
            sized, timed = self.plan.sized(partial), self.plan.timed(partial)
            found = tape(self.plan.model.blocks[block], sized, drop, input_gradient=wanted)
            if timed != sized:
                found = at_mean_length(found, tape(self.plan.model.blocks[block], timed, drop, input_gradient=wanted))
            self._tapes[key] = found
        return self._tapes[key]

    @property
    def _inputs_require_gradients(self) -> bool:
        """Adapters behind checkpoints: the embedding's output is made to want a gradient (PEFT, enable_input_require_grads)."""
        recipe = self.plan.training.finetune
        checkpoints = self.plan.training.recompute.mode not in ("none", "selective")
        return recipe is not None and recipe.method != "freeze" and checkpoints

    def differentiated(self, block: int) -> bool:
        """Some gradient flows through the block or into its weights."""
        return self._profiled or not self.plan.training.backward or bool(self.tape(block).backward)

    def groups(self, stage: int) -> tuple[Group, ...]:
        """The stage's blocks as they are checkpointed; where no gradient flows there is nothing to recompute."""
        if stage not in self._groups:
            groups = checkpoint_groups(self.plan.training.recompute, self.plan.model, self.chunks[stage].blocks)
            checked = (Group(g.blocks, g.checkpoint and any(map(self.differentiated, g.blocks))) for g in groups)
            self._groups[stage] = tuple(checked)
        return self._groups[stage]

    def trained(self, block: int, operator: str) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
        """Trainable weights of an operator that live here: its own, and those it shares with an earlier owner."""
        key = (block, operator)
        if key not in self._of_operator:
            own, shared = [], []
            for parameter in self.plan.model.blocks[block].by_operator[operator]:
                if not parameter.trainable or parameter.buffer:
                    continue
                name = f"{self.plan.model.block_names[block]}.{parameter.name}"
                if name in self.weights:
                    own.append(self.weights[name])
                elif parameter.tied in self.weights:
                    shared.append(self.weights[parameter.tied])
            self._of_operator[key] = (tuple(own), tuple(shared))
        return self._of_operator[key]

    @property
    def _profiled(self) -> bool:
        return self.plan.model.facts.get("family") == "stages"

    def tensor_hooks(self, partial: bool = False) -> TensorParallelHooks:
        """The hooks of one pass."""
        return TensorParallelHooks(self.plan.timed(partial), self.plan.parallelism.tensor.overlap)

    def _sum_over_tensor_ranks(self, stage: int, at: PassBuilder) -> None:
        """Gradients of which every tensor rank has a part."""
        precision = self.plan.training.precision
        replicated = [w for w in self.plan.weights(self.chunks[stage]) if w.parameter.split is None and trains(w)]
        tables = self._tables(stage)
        hooks = self.tensor_hooks()
        whole = sum(w.count for w in replicated if not w.parameter.partial and w.name not in tables)
        hooks.replicated_gradient_bytes = whole * precision.gradients
        hooks.partial_gradient_bytes = sum(w.count for w in replicated if w.parameter.partial) * precision.gradients
        hooks.at_step(at)

    def _tables(self, stage: int) -> set[str]:
        """Embedding tables: their gradients are made from the gathered tokens, hence whole on every tensor rank."""
        names = self.plan.model.block_names
        operators = [(block, operator) for block in self.chunks[stage].blocks for operator in self.plan.model.blocks[block].operators]
        return {f"{names[b]}.{p.name}" for b, operator in operators if isinstance(operator, Embedding) for p in operator.parameters()}

    def sends(self, kind: str, stage: int, partial: bool = False) -> tuple[int | None, tuple[Effect, ...], float]:
        """What a slot hands on: bytes (None: a measured duration instead), effects on the sender, duration [s]."""
        at = self.builder(stage)
        chunk = self.chunks[stage]
        name = self.mark(partial) + (f"x{chunk.blocks[-1] + 1}" if kind == "F" else f"dx{chunk.blocks[0]}")
        number = self.table.index.get(at.prefix + name)
        if number is None:
            return (0, (), 0.0)
        size = self.table.rows[number].bytes
        released = () if kind == "F" and self._keeps_output(chunk) else (number,)
        if self._profiled:
            operator = self.plan.model.blocks[chunk.blocks[0]].operators[0]
            if (measured := getattr(operator, "send", 0.0)) or not getattr(operator, "output_bytes", 0):
                return (None, tuple(Effect(measured, n, allocate=False) for n in released), measured)
        return (self.message(self.moved(size)), tuple(Effect(inf, n, allocate=False) for n in released), 0.0)

    def moved(self, size: int) -> int:
        """Bytes of a `size`-byte activation that are copied or sent on average: tensors are made for the longest sample."""
        longest, mean = self.plan.training.sequence_length, self.plan.training.mean_length
        return size if mean == longest else -(-size * mean // longest)

    def _keeps_output(self, chunk: Chunk) -> bool:
        """The chunk's last operator needs its own output in backward (a ReLU), so sending does not release it."""
        groups = self.groups(chunk.stage)
        return self.plan.training.backward and not groups[-1].checkpoint and self.tape(chunk.blocks[-1]).output_saved

    def message(self, size: int) -> int:
        """Bytes of one pipeline message of a `size`-byte activation: scattered over the tensor ranks unless already sharded."""
        tensor = self.plan.parallelism.tensor
        scattered = self.plan.parallelism.pipeline.scatter_sends and tensor.size > 1 and not tensor.sequence_parallel
        return -(-size // tensor.size) if scattered else size

    def memory_bound(self) -> dict[str, float]:
        """Op name -> share of its time in memory-bound kernels, over the templates written so far."""
        whole: dict[str, float] = {}
        bound: dict[str, float] = {}
        for items, _ in self._templates.values():
            for item in items:
                if item.collective is None and item.duration:
                    whole[item.name] = whole.get(item.name, 0.0) + item.duration
                    bound[item.name] = bound.get(item.name, 0.0) + item.memory_time
        return {name: bound[name] / seconds for name, seconds in whole.items() if bound[name]}

    def work(self) -> dict[tuple[str, float], tuple[float, float]]:
        """(Op name, duration [s]) -> what its kernels compute [FLOP] and move in device memory [B], over the templates so far."""
        written = [items for items, _ in self._templates.values()] + [self._ending]
        items = (item for items in written for item in items if item.duration and (item.flop or item.moved))
        return {(item.name, item.duration): (item.flop, item.moved) for item in items}

    # -- what reports ask -----------------------------------------------------------------------------------------

    def seconds(self, stage: int) -> dict[str, float]:
        """Compute time of one micro-batch on a stage: forward, backward_input (with recomputation), backward_weight [s]."""
        total = {"forward": 0.0, "backward_input": 0.0, "backward_weight": 0.0}
        for group in self.groups(stage):
            for block in group.blocks:
                taped = self.tape(block)
                forward = self._sum(taped.forward)
                total["forward"] += forward
                total["backward_input"] += forward if group.checkpoint else 0.0
                for step in taped.backward:
                    total["backward_weight" if step.phase == "weight" else "backward_input"] += self._sum((step,))
        return total if self.plan.training.backward else {**dict.fromkeys(total, 0.0), "forward": total["forward"]}

    def _sum(self, steps: Sequence[Step]) -> float:
        return fsum(self.clock(kernel) for step in steps for kernel in step.kernels)

    def recomputed(self) -> Again:
        """Matrix-product FLOP that one micro-batch computes a second time on one rank."""
        products = core = square = layers = 0.0
        for chunk in self.chunks.values():
            layers += fsum(fsum(_product_flop(self.tape(b).forward)[:2]) for b in chunk.blocks if self._is_layer(b))
            for group in self.groups(chunk.stage):
                for block in group.blocks:
                    taped = self.tape(block)
                    again = [step for step in taped.backward if step.phase == "recompute"]
                    steps = [*taped.forward, *again] if group.checkpoint else again
                    found = _product_flop(steps)
                    products, core, square = products + found[0], core + found[1], square + found[2]
        return Again(products, core, square, layers)

    def _is_layer(self, block: int) -> bool:
        return self.plan.model.blocks[block].kind not in ("embedding", "head")

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel of one micro-batch, forward and backward."""
        for chunk in self.chunks.values():
            for block in chunk.blocks:
                taped = self.tape(block)
                for step in (*taped.forward, *(taped.backward if self.plan.training.backward else ())):
                    yield from step.kernels

    def weight_versions(self) -> int:
        """Most weight versions held at once: 1, or more under PipeDream."""
        if not self.plan.asynchronous:
            return 1
        versions, most = Versions(), 0
        for slot in self.plan.slots[self._pipeline_rank]:
            for _ in versions.step(slot.kind, slot.micro_batch):
                most = max(most, versions.stashed)
        return 1 + most

    def stash(self, kind: str, micro_batch: int) -> list[tuple[int, tuple[Effect, ...]]]:
        """PipeDream: (weight version, effects) of the version kept or dropped around a slot."""
        size = sum(w.count for w in self.weights.values() if trains(w)) * self.plan.training.precision.parameters
        number = self.table.declare("weight version", size, "parameters", per_micro_batch=True)
        return [(version, (Effect(0.0, number, allocate),)) for version, allocate in self._versions.step(kind, micro_batch)]


def _product_flop(steps: Sequence[Step]) -> tuple[float, float, float]:
    """FLOP of weights' products, of attention cores as executed, and of attention cores with all pairs of positions."""
    products = core = square = 0.0
    for step in steps:
        attention = isinstance(step.operator, AttentionCore)
        for kernel in step.kernels:
            if isinstance(kernel, Attention):
                core, square = core + kernel.flop, square + replace(kernel, causal=False).flop
            elif isinstance(kernel, Gemm) and attention:  # eager attention computes all pairs
                core, square = core + kernel.flop, square + kernel.flop
            elif isinstance(kernel, Gemm):
                products += kernel.flop
    return products, core, square


def _extend(items: list[Item], more: Sequence[Item]) -> None:
    """Append items whose `needs` count from their own beginning, and whose start is the end of what compute did before them."""
    shift = len(items)
    computed = next((place for place in reversed(range(shift)) if items[place].lanes[0] == COMPUTE), None)
    for item in more:
        item.needs = [need + shift for need in item.needs]
        if computed is not None and COMPUTE in item.tails:
            item.tails.remove(COMPUTE)
            item.needs.append(computed)
    items.extend(more)
