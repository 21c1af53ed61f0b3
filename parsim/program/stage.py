"""The passes of one pipeline rank: forward, backward, the step's begin and end, as items with memory effects.

Walks the tapes of the stage's blocks and calls the strategies' hooks in this order:

    pass_begins, per unit: before_forward, per operator: tensor before, kernels, tensor after; after_forward, pass_ends
    pass_begins, per unit (reversed): before_backward, recomputation, per operator: input step, weight step with
    before_gradient and gradient; after_backward, pass_ends
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf

from parsim.kernel import Attention, Gemm, Kernel
from parsim.model.linear import Embedding
from parsim.model.loss import Loss
from parsim.model.model import Operator
from parsim.model.tape import Step, Tape, tape
from parsim.parallel.hooks import Unit, Weight
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.recompute import checkpoint_groups
from parsim.parallel.replicated import Replicated
from parsim.parallel.tensor import TensorParallelHooks
from parsim.program.passes import Item, PassBuilder, TensorTable
from parsim.program.program import COMPUTE, Effect

HOST = "host"


class StagePasses:
    """Passes of the ranks of one pipeline rank and role. Templates are built on first use, in schedule order."""

    def __init__(self, plan: Plan, pipeline_rank: int, role: str, clock: Callable[[Kernel], float]) -> None:
        self.plan = plan
        self.clock = clock
        self.chunks = {chunk.stage: chunk for chunk in plan.of_rank(pipeline_rank)}
        self.table = TensorTable()
        self._pipeline_rank = pipeline_rank
        self._sharding = {stage: plan.sharding(chunk, role) for stage, chunk in self.chunks.items()}
        self._units = {stage: plan.units(chunk) for stage, chunk in self.chunks.items()}
        self._weights = {w.name: w for chunk in self.chunks.values() for w in plan.weights(chunk)}
        self._templates: dict[tuple[str, int, bool, bool, Hashable], tuple[list[Item], Hashable]] = {}
        self._tapes: dict[int, Tape] = {}
        self._versions = _Versions()
        self.resident = self._declare_resident()

    # -- memory that stays ----------------------------------------------------------------------------------------

    def _builder(self, stage: int, *, first: bool = True, last: bool = True) -> PassBuilder:
        prefix = f"chunk {stage} " if len(self.chunks) > 1 else ""
        return PassBuilder(self.clock, self.table, first=first, last=last, prefix=prefix)

    def _declare_resident(self) -> tuple[int, ...]:
        numbers = []
        for stage, sharding in self._sharding.items():
            at = self._builder(stage)
            numbers += [self.table.index[at.prefix + name] for name in sharding.resident(at)]
        if self.plan.training.iteration == "steady":
            numbers += [self._workspace(way) for way in self._workspaces()]
        return tuple(numbers)

    def _workspaces(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.plan.training.backward else ("forward",)

    def _workspace(self, way: str) -> int:
        return self.table.declare(f"cublas workspace {way}", self.plan.runtime.workspace, "workspace", False)

    # -- begin and end of the step --------------------------------------------------------------------------------

    def begin(self) -> list[Item]:
        """What happens before the first forward: gathers of the previous step's weights, the first input."""
        items: list[Item] = []
        for stage, sharding in self._sharding.items():
            at = self._builder(stage)
            at.label("step begins", COMPUTE)
            sharding.step_begins(at)
            _extend(items, at.finish())
        return items

    def end(self) -> list[Item]:
        """Finish gradients, clip, step, distribute."""
        at = self._builder(next(iter(self.chunks)))
        items: list[Item] = []
        self._finish(items)
        training = self.plan.training
        clips = training.optimizer.clip_gradients and not self.plan.asynchronous
        if training.step and training.backward and clips and self._trains():
            at.label("gradient norm", "optimizer")
            sharded = self.plan.parallelism.data.strategy in ("zero1", "zero2", "zero3", "fsdp")
            at.collective("all_reduce", "world" if sharded else "model", 4, "gradient norm", lane=self._last_lane, blocking=True)
            _extend(items, at.finish())
        for name in ("step", "distribute"):
            for stage, sharding in self._sharding.items():
                at = self._builder(stage)
                at.label("optimizer", "optimizer")
                getattr(sharding, name)(at)
                _extend(items, at.finish())
        self._constants(items)
        return items

    @property
    def _last_lane(self) -> str:
        """Queue of the collectives that end a step: behind the tensor-parallel ones, with which they share links."""
        return "tensor" if self.plan.mesh.size("tensor") > 1 else ""

    def _trains(self) -> bool:
        weights = (p for block in self.plan.model.blocks for p in block.parameters())
        return any(p.trainable and not p.buffer for p in weights)

    def _finish(self, items: list[Item]) -> None:
        for stage, sharding in self._sharding.items():
            at = self._builder(stage)
            at.label("finish gradients", COMPUTE)
            sharding.finish_gradients(at)
            if self.plan.mesh.size("tensor") > 1 and self.plan.training.backward:
                self._tensor_hooks(stage).at_step(at)
            _extend(items, at.finish())
        if not self.plan.training.backward or self.plan.asynchronous:
            return
        at = self._builder(next(iter(self.chunks)))
        for owner, copy, count in self.plan.tied_across_stages():
            if self._pipeline_rank in (owner, copy):
                size = count * self.plan.training.precision.gradients
                at.collective("all_reduce", f"tied-{owner}-{copy}", size, "tied embedding", lane=self._last_lane, blocking=True)
        _extend(items, at.finish())

    def _constants(self, items: list[Item]) -> None:
        runtime = self.plan.runtime
        local = sum(w.count for w in self._weights.values())
        if self.plan.training.step and runtime.boundary:
            items.append(Item("step boundary", "optimizer", (COMPUTE,), runtime.boundary * local / 1e9))
        if runtime.step_constant:
            items.append(Item("step constant", "launch", (COMPUTE,), runtime.step_constant))

    # -- passes ---------------------------------------------------------------------------------------------------

    def template(self, kind: str, stage: int, first: bool, last: bool) -> list[Item]:
        """Items of one slot kind on a global stage for the first, a middle or the last micro-batch."""
        sharding = self._sharding[stage]
        key = (kind, stage, first, last, sharding.state())
        if key not in self._templates:
            walk = _Walk(self, stage, first=first, last=last, split=kind in "IW")
            if kind == "F":
                walk.forward()
            else:
                walk.backward(inputs=kind in "BI", weights=kind in "BW")
            items = walk.finish()
            if self.plan.asynchronous and kind == "B":
                _extend(items, self.end())
            self._templates[key] = (items, sharding.state())
        items, state = self._templates[key]
        sharding.restore(state)
        return items

    def tape(self, block: int) -> Tape:
        """The tape of a block under the plan's workload."""
        if block not in self._tapes:
            recompute = self.plan.training.recompute
            drop = recompute.selective if recompute.mode == "selective" else ()
            below = any(p.trainable and not p.buffer for b in self.plan.model.blocks[:block] for p in b.parameters())
            self._tapes[block] = tape(self.plan.model.blocks[block], self.plan.workload, drop, input_gradient=below or self._profiled)
        return self._tapes[block]

    @property
    def _profiled(self) -> bool:
        return self.plan.model.facts.get("family") == "stages"

    def _tensor_hooks(self, stage: int) -> TensorParallelHooks:
        precision = self.plan.training.precision
        replicated = [w for w in self.plan.weights(self.chunks[stage]) if w.parameter.split is None and w.parameter.trainable]
        tables = self._tables(stage)
        size = sum(w.count for w in replicated if not w.parameter.buffer and w.name not in tables) * precision.gradients
        return TensorParallelHooks(self.plan.workload, self.plan.parallelism.tensor.overlap, size)

    def _tables(self, stage: int) -> set[str]:
        """Embedding tables: their gradients are made from the gathered tokens, hence whole on every tensor rank."""
        names = self.plan.model.block_names
        operators = [(block, operator) for block in self.chunks[stage].blocks for operator in self.plan.model.blocks[block].operators]
        return {f"{names[b]}.{p.name}" for b, operator in operators if isinstance(operator, Embedding) for p in operator.parameters()}

    def sends(self, kind: str, stage: int) -> tuple[int | None, tuple[Effect, ...], float]:
        """What a slot hands on: bytes (None: a measured duration instead), effects on the sender, duration [s]."""
        at = self._builder(stage)
        chunk = self.chunks[stage]
        name = f"x{chunk.blocks[-1] + 1}" if kind == "F" else f"dx{chunk.blocks[0]}"
        number = self.table.index.get(at.prefix + name)
        if number is None:
            return (0, (), 0.0)
        size = self.table.rows[number].bytes
        held = (Effect(inf, number, allocate=False),)
        if self._profiled:
            operator = self.plan.model.blocks[chunk.blocks[0]].operators[0]
            if (measured := getattr(operator, "send", 0.0)) or not getattr(operator, "output_bytes", 0):
                return (None, held, measured)
        return (self.message(size), held, 0.0)

    def message(self, size: int) -> int:
        """Bytes of one pipeline message of a `size`-byte activation: scattered over the tensor ranks unless already sharded."""
        tensor = self.plan.parallelism.tensor
        scattered = self.plan.parallelism.pipeline.scatter_sends and tensor.size > 1 and not tensor.sequence_parallel
        return -(-size // tensor.size) if scattered else size

    # -- what reports ask -----------------------------------------------------------------------------------------

    def seconds(self, stage: int) -> dict[str, float]:
        """Compute time of one micro-batch on a stage: forward, backward_input (with recomputation), backward_weight [s]."""
        total = {"forward": 0.0, "backward_input": 0.0, "backward_weight": 0.0}
        groups = checkpoint_groups(self.plan.training.recompute, self.plan.model, self.chunks[stage].blocks)
        for group in groups:
            for block in group.blocks:
                taped = self.tape(block)
                forward = self._sum(taped.forward)
                total["forward"] += forward
                total["backward_input"] += forward if group.checkpoint else 0.0
                for step in taped.backward:
                    total["backward_weight" if step.phase == "weight" else "backward_input"] += self._sum((step,))
        return total if self.plan.training.backward else {**dict.fromkeys(total, 0.0), "forward": total["forward"]}

    def _sum(self, steps: Sequence[Step]) -> float:
        return sum(self.clock(kernel) for step in steps for kernel in step.kernels)

    def recomputed_flop(self) -> float:
        """Matrix-product FLOP that one micro-batch computes a second time on one rank."""
        total = 0.0
        for chunk in self.chunks.values():
            for group in checkpoint_groups(self.plan.training.recompute, self.plan.model, chunk.blocks):
                for block in group.blocks:
                    taped = self.tape(block)
                    again = [step for step in taped.backward if step.phase == "recompute"]
                    steps = [*taped.forward, *again] if group.checkpoint else again
                    total += sum(k.flop for step in steps for k in step.kernels if isinstance(k, Gemm | Attention))
        return total

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
        versions, most = _Versions(), 0
        for slot in self.plan.slots[self._pipeline_rank]:
            for _ in versions.step(slot.kind, slot.micro_batch):
                most = max(most, versions.stashed)
        return 1 + most

    def stash(self, kind: str, micro_batch: int) -> list[tuple[int, tuple[Effect, ...]]]:
        """PipeDream: (weight version, effects) of the version kept or dropped around a slot."""
        size = sum(w.count for w in self._weights.values() if not w.parameter.buffer) * self.plan.training.precision.parameters
        number = self.table.declare("weight version", size, "parameters", True)
        return [(version, (Effect(0.0, number, allocate),)) for version, allocate in self._versions.step(kind, micro_batch)]


class _Versions:
    """Which weight versions a PipeDream stage keeps besides the latest: those that micro-batches in flight still need."""

    def __init__(self) -> None:
        self._latest = 0
        self._used: dict[int, int] = {}
        self._stashed: set[int] = set()

    @property
    def stashed(self) -> int:
        """Old versions kept now."""
        return len(self._stashed)

    def step(self, kind: str, micro_batch: int) -> Iterator[tuple[int, bool]]:
        """(version, True) when it becomes old but needed, (version, False) when nobody needs it any more."""
        if kind == "F":
            self._used[micro_batch] = self._latest
            return
        if kind not in "BW":
            return
        mine = self._used.pop(micro_batch)
        old, self._latest = self._latest, self._latest + 1
        if old in self._used.values():
            self._stashed.add(old)
            yield old, True
        if mine in self._stashed and mine not in self._used.values():
            self._stashed.discard(mine)
            yield mine, False


def _extend(items: list[Item], more: Sequence[Item]) -> None:
    """Append items whose `needs` count from their own beginning."""
    shift = len(items)
    for item in more:
        item.needs = [need + shift for need in item.needs]
    items.extend(more)


class _Walk:
    """One pass while it is being written."""

    def __init__(self, passes: StagePasses, stage: int, *, first: bool, last: bool, split: bool) -> None:
        self.passes = passes
        self.plan = passes.plan
        self.stage = stage
        self.chunk: Chunk = passes.chunks[stage]
        self.at = passes._builder(stage, first=first, last=last)
        self.sharding: Replicated = passes._sharding[stage]
        self.units = passes._units[stage]
        self.tensor = passes._tensor_hooks(stage) if self.plan.mesh.size("tensor") > 1 else None
        if self.tensor is not None:
            self.tensor.split = split
        self.groups = checkpoint_groups(self.plan.training.recompute, self.plan.model, self.chunk.blocks)
        self._group_of = {block: group for group in self.groups for block in group.blocks}
        self._unit_of = {block: unit for unit in self.units for block in unit.blocks}
        self._opened: set[str] = set()
        self._left: dict[str, int] = {}
        self._written: set[str] = set()

    def finish(self) -> list[Item]:
        """The items of the pass."""
        return self.at.finish()

    @property
    def _is_first(self) -> bool:
        return self.chunk.blocks[0] == 0

    @property
    def _is_last(self) -> bool:
        return self.chunk.blocks[-1] == len(self.plan.model.blocks) - 1

    @property
    def _root_gradient(self) -> str:
        """The gradient of the loss, which the caller of ``backward()`` holds until it returns."""
        return f"dx{len(self.plan.model.blocks)}"

    # -- tensors --------------------------------------------------------------------------------------------------

    def _name(self, block: int, tensor: str) -> str:
        boundary = {"input": f"x{block}", "output": f"x{block + 1}", "grad_input": f"dx{block}", "grad_output": f"dx{block + 1}"}
        return boundary.get(tensor) or f"{self.plan.model.block_names[block]}.{tensor}"

    def _declare(self, block: int) -> None:
        categories = {"activations": "activations", "gradients": "temporaries", "temporaries": "temporaries"}
        for name, row in self.passes.tape(block).tensors.items():
            self.at.tensor(self._name(block, name), row.bytes, categories[row.category], per_micro_batch=True)

    def _names(self, block: int, tensors: Sequence[str]) -> list[str]:
        return [self._name(block, tensor) for tensor in tensors]

    def _batch(self) -> list[str]:
        """What the script holds for a micro-batch on this stage: the input on the first, the labels on the last."""
        held = []
        if self._is_first:
            held.append(self.at.tensor("x0", self.plan.input_bytes, "activations", per_micro_batch=True))
        loss = [operator for operator in self.plan.model.blocks[-1].operators if isinstance(operator, Loss)]
        if self._is_last and any(operator.shifted for operator in loss):
            held.append(self.at.tensor("labels", 8 * self.plan.workload.tokens, "activations", per_micro_batch=True))
        return [name for name in held if self.passes.table.rows[self.at._number(name)].bytes]

    # -- forward --------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """All blocks of the chunk in order."""
        at, plan = self.at, self.plan
        for block in self.chunk.blocks:
            self._declare(block)
        at.label(f"F{self.stage} {plan.model.block_names[self.chunk.blocks[0]]}", COMPUTE)
        if self._is_first and plan.training.data_loading:
            at.items.append(Item("data loading", "launch", (HOST,), plan.training.data_loading))
            at.wait(len(at.items) - 1)
        self._receive("x", self.chunk.blocks[0])
        at.compute("", COMPUTE, (), allocates=self._batch())
        if plan.training.iteration == "first" and at.first:
            self._allocate_workspace("forward")
        self.sharding.pass_begins(self.units, at, backward=False)
        for group in self.groups:
            for block in group.blocks:
                self._enter(block, backward=False)
                at.label(f"F{self.stage} {plan.model.block_names[block]}", COMPUTE)
                saved = plan.training.backward and not group.checkpoint
                keep = group.checkpoint and block == group.blocks[0] and plan.training.backward
                self._forward_block(block, saved=saved, keep_input=keep)
                self._leave(block, backward=False)
        self.sharding.pass_ends(at, backward=False)
        if not plan.training.backward:
            self._drop_pass()

    def _forward_block(self, block: int, *, saved: bool, keep_input: bool, recomputes: bool = False) -> None:
        """Run a block's forward. `keep_input`: a checkpoint holds the input for recomputation."""
        taped = self.passes.tape(block)
        steps = taped.forward if saved else taped.forward_unsaved
        kept = saved and (taped.input_saved or self._kept_by_producer(block))
        free_input = not (keep_input or kept or self._external(block))
        for index, step in enumerate(steps):
            frees = self._names(block, step.frees)
            if free_input and index == taped.input_last_forward:
                frees.append(self._name(block, "input"))
            if self.tensor is not None:
                self.tensor.before_forward(step.operator, self.at)
            self.at.compute("", "recompute" if recomputes else COMPUTE, step.kernels, self._names(block, step.allocates), frees)
            if self.tensor is not None:
                self.tensor.after_forward(step.operator, self.at)

    def _kept_by_producer(self, block: int) -> bool:
        """The block before keeps its own output (a ReLU) and will free it, later in backward than this block could."""
        if not self.plan.training.backward or block == self.chunk.blocks[0] or not self.passes.tape(block - 1).output_saved:
            return False
        return not self._group_of[block - 1].checkpoint or block in self._group_of[block - 1].blocks

    def _external(self, block: int) -> bool:
        """The block's input is the micro-batch itself, which the script holds."""
        return block == 0

    def _receive(self, prefix: str, boundary: int) -> None:
        """Buffer for what another stage sends, and the gather of a scattered message."""
        if boundary in (0, len(self.plan.model.blocks)):
            return
        size = self.passes.tape(boundary - 1).tensors["output"].bytes
        name = self.at.tensor(f"{prefix}{boundary}", size, "activations" if prefix == "x" else "temporaries", per_micro_batch=True)
        if self.passes.message(size) == size:
            self.at.compute("", COMPUTE, (), allocates=[name])
        else:
            self.at.collective("all_gather", "tensor", size, f"received {prefix}", blocking=True, allocates=[name])

    def _allocate_workspace(self, way: str) -> None:
        number = self.passes._workspace(way)
        self.at.compute("", COMPUTE, ())
        segment = self.at._segment
        if segment is not None:
            segment.effects.append(Effect(segment.duration, number, allocate=True))

    # -- backward -------------------------------------------------------------------------------------------------

    def backward(self, *, inputs: bool, weights: bool) -> None:
        """All blocks in reverse: input steps, weight steps or both."""
        at, plan = self.at, self.plan
        label = "B" if inputs and weights else "I" if inputs else "W"
        at.label(f"{label}{self.stage} {plan.model.block_names[self.chunk.blocks[-1]]}", COMPUTE)
        if inputs:
            self._begin_backward()
        for group in reversed(self.groups):
            if group.checkpoint and inputs:
                self._recompute(group.blocks)
            for block in reversed(group.blocks):
                if not group.checkpoint and inputs:
                    self._enter(block, backward=True)
                at.label(f"{label}{self.stage} {plan.model.block_names[block]}", COMPUTE)
                self._backward_block(block, inputs=inputs, weights=weights)
                if weights:
                    self._leave(block, backward=True)
        if weights:
            self.sharding.pass_ends(at, backward=True)
            self._drop_pass()

    def _begin_backward(self) -> None:
        at = self.at
        last = self.chunk.blocks[-1]
        if self._is_last:
            size = self.passes.tape(last).tensors["output"].bytes
            at.compute("", COMPUTE, (), allocates=[at.tensor(f"dx{last + 1}", size, "temporaries", per_micro_batch=True)])
        else:
            self._receive("dx", last + 1)
        if self.plan.training.iteration == "first" and at.first:
            self._allocate_workspace("backward")
        order = [unit for unit in reversed(self.units)]
        self.sharding.pass_begins(order, at, backward=True)

    def _recompute(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._enter(block, backward=True)
            self.at.label(f"R{self.stage} {self.plan.model.block_names[block]}", "recompute")
            self._forward_block(block, saved=True, keep_input=False, recomputes=True)
        last = blocks[-1]
        if not self.passes.tape(last).output_saved:
            self.at.compute("", "recompute", (), frees=[self._name(last, "output")])

    def _backward_block(self, block: int, *, inputs: bool, weights: bool) -> None:
        taped = self.passes.tape(block)
        for index, step in enumerate(taped.backward):
            weight_step = step.phase == "weight"
            if not (weights if weight_step else inputs):
                continue
            frees = [name for name in self._names(block, step.frees) if name != self._root_gradient]
            mine = taped.input_saved and not (self._external(block) or self._kept_by_producer(block))
            if mine and index == taped.input_last_backward:
                frees.append(self._name(block, "input"))
            if taped.output_saved and index == taped.output_last_backward:
                frees.append(self._name(block, "output"))
            if weight_step:
                self._weight_step(block, step, frees)
            else:
                self._input_step(block, step, frees)

    def _input_step(self, block: int, step: Step, frees: Sequence[str]) -> None:
        kind = "recompute" if step.phase == "recompute" else COMPUTE
        if self.tensor is not None and kind == COMPUTE:
            self.tensor.before_input(step.operator, self.at)
        self.at.compute("", kind, step.kernels, self._names(block, step.allocates), frees)
        if self.tensor is not None and kind == COMPUTE:
            self.tensor.after_input(step.operator, self.at)

    def _weight_step(self, block: int, step: Step, frees: Sequence[str]) -> None:
        at, unit = self.at, self._unit_of[block]
        if self.tensor is not None:
            self.tensor.before_weight(step.operator, at)
        own, shared = self._trained(block, step.operator)
        fresh = [w for w in (*own, *shared) if w.name not in self._written]
        self._written.update(w.name for w in fresh)
        if fresh:
            self.sharding.before_gradient(unit, fresh, at)
        at.compute("", COMPUTE, step.kernels, self._names(block, step.allocates), frees)
        if own:
            self.sharding.gradient(unit, own, at)
        if self.tensor is not None:
            self.tensor.after_weight(step.operator, at)

    def _trained(self, block: int, operator: Operator) -> tuple[list[Weight], list[Weight]]:
        """Trainable weights of an operator that live here: its own, and those it shares with an earlier owner."""
        own, shared = [], []
        known = self.passes._weights
        for parameter in operator.parameters():
            if not parameter.trainable or parameter.buffer:
                continue
            name = f"{self.plan.model.block_names[block]}.{parameter.name}"
            if name in known:
                own.append(known[name])
            elif parameter.tied in known:
                shared.append(known[parameter.tied])
        return own, shared

    def _drop_pass(self) -> None:
        """The script's variables of this micro-batch go out of scope."""
        names = self._batch()
        for block in self.chunk.blocks:
            taped = self.passes.tape(block)
            if self.plan.training.backward:
                names += self._names(block, taped.held)
        if self.plan.training.backward and self._is_last:
            names.append(self._root_gradient)
        if self._is_last:
            names.append(self._name(self.chunk.blocks[-1], "output"))
        self.at.compute("", COMPUTE, (), frees=names)

    # -- units ----------------------------------------------------------------------------------------------------

    def _enter(self, block: int, *, backward: bool) -> None:
        unit = self._unit_of[block]
        if unit.name in self._opened or not unit.weights:
            return
        self._opened.add(unit.name)
        if backward:
            self.sharding.before_backward(unit, self.at)
        else:
            self.sharding.before_forward(unit, self.at)

    def _leave(self, block: int, *, backward: bool) -> None:
        unit: Unit = self._unit_of[block]
        left = self._left[unit.name] = self._left.get(unit.name, len(unit.blocks)) - 1
        if left or not unit.weights:
            return
        if backward:
            self.sharding.after_backward(unit, self.at)
        else:
            self.sharding.after_forward(unit, self.at)
