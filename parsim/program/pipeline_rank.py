"""One pipeline rank: its blocks as tapes, its tensors, what stays resident, and what reports ask about its compute.

Its passes are in `parsim.program.stage_passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import fsum

from parsim.kernel import Attention, ChunkScan, Gemm, Kernel, Memory, SparseAttention
from parsim.model.attention import AttentionCore
from parsim.model.flops import Again
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Block
from parsim.model.tape import Step, Tape
from parsim.model.weight_casts import weight_casts
from parsim.parallel.hooks import Sharding, Weight
from parsim.parallel.local_steps import outer_tensors
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.replicated import gradient_names
from parsim.parallel.schedules.classic import weight_versions
from parsim.parallel.stages import CheckpointGroup, checkpoint_groups, selected
from parsim.program.block_templates import BlockTemplates, BlockTensors
from parsim.program.host import Floor
from parsim.program.pass_builder import PassBuilder, TensorTable


class PipelineRank:
    """The ranks of one pipeline rank and role, which all do the same."""

    def __init__(
        self,
        plan: Plan,
        pipeline_rank: int,
        role: str,
        clock: Callable[[Kernel], float],
        templates: BlockTemplates | None = None,
        table: TensorTable | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.pipeline_rank = pipeline_rank
        self.block_templates: BlockTemplates = {} if templates is None else templates
        """what equal blocks add to passes (`parsim.program.block_templates`); stages of one plan under one clock may share it"""
        self.chunks = {chunk.stage: chunk for chunk in plan.of_rank(pipeline_rank)}
        self.tied = plan.ties.on(pipeline_rank)
        """weights that several chunks of the rank share"""
        self.table = TensorTable() if table is None else table
        self.sharding = self.shardings(role)
        self.units = {stage: plan.units(chunk) for stage, chunk in self.chunks.items()}
        self.weights = {w.name: w for chunk in self.chunks.values() for w in plan.weights(chunk)}
        self.declared: dict[tuple[int, bool, bool], BlockTensors] = {}
        """blocks whose tensors are in the table: index, of a smaller micro-batch, with an output that is recomputed beside the first"""
        self.floors: dict[Hashable, Floor] = {}
        """of blocks with the same tape, by way and by what of backward is run"""
        self._tapes: dict[tuple[int, bool], Tape] = {}
        self._weight_casts: dict[Block, tuple[Kernel, ...]] = {}
        self._groups: dict[int, tuple[CheckpointGroup, ...]] = {}
        self._of_operator: dict[tuple[int, str], tuple[tuple[Weight, ...], tuple[Weight, ...]]] = {}
        self._used_workspaces: set[str] = set()
        self.resident = self._declare_resident()

    @property
    def title(self) -> str:
        """What the names of its blocks begin with in the step's compute."""
        return ""

    def shardings(self, role: str) -> dict[int, Sharding]:
        """The data-parallel strategy of every stage."""
        return {stage: self.plan.sharding(chunk, role) for stage, chunk in self.chunks.items()}

    # -- memory that stays ----------------------------------------------------------------------------------------

    def builder(self, stage: int, *, first: bool = True, last: bool = True) -> PassBuilder:
        prefix = f"chunk {stage} " if len(self.chunks) > 1 else ""
        return PassBuilder(self.clock, self.table, first=first, last=last, prefix=prefix, handed=self.handed(stage))

    def handed(self, stage: int) -> frozenset[str]:
        """Tensors that several stages of this rank have in common: at a boundary between two, and gradients of tied weights."""
        plan, blocks = self.plan, self.chunks[stage].blocks
        boundaries = [blocks[0]] * plan.stays(stage - 1) + [blocks[-1] + 1] * plan.stays(stage)
        names = {f"{mark}{way}{b}" for b in boundaries for mark in (self.mark(False), self.mark(True)) for way in ("x", "dx")}
        return frozenset(names.union(*map(gradient_names, self.tied)))

    def _declare_resident(self) -> tuple[int, ...]:
        numbers = []
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            numbers += [self.table.index[at.prefix + name] for name in sharding.resident(at)]
        if self.plan.double_buffered:
            size = sum(w.count for w in self.weights.values() if w.trains) * self.plan.training.precision.parameters
            numbers.append(self.table.declare("weights of the step before", size, "parameters", per_micro_batch=False))
        for name, size, category in outer_tensors(self.plan, self.trained_here):
            numbers.append(self.table.declare(name, size, category, per_micro_batch=False))
        if self.plan.training.iteration == "steady":
            numbers += [self.workspace(way) for way in self._workspaces()]
        return tuple(numbers)

    @property
    def trained_here(self) -> int:
        """Trained elements that a rank holds all the time, of all of its stages."""
        count = sum(weight.count for weight in self.weights.values() if weight.trains)
        return -(-count // self.plan.shard_size) if self.plan.sharded else count

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

    def mark(self, partial: bool) -> str:
        """What the names of a smaller last micro-batch's tensors begin with."""
        return "smaller " if partial else ""

    # -- blocks ---------------------------------------------------------------------------------------------------

    def tape(self, block: int, partial: bool = False) -> Tape:
        """The tape of a block under the plan's workload, or that of its smaller last micro-batch."""
        key = (block, partial)
        if key not in self._tapes:
            drop = selected(self.plan.training.recompute, self.plan.model.blocks[block])
            below = any(p.trainable and not p.buffer for b in self.plan.model.blocks[:block] for p in b.parameters())
            wanted = below or self.profiled or (self._inputs_require_gradients and block > 0)
            sized, timed = (self.plan.in_block(block, at) for at in (self.plan.sized(partial), self.plan.timed(partial)))
            frozen = self._frozen_beside(block)
            longest = tape(self.plan.model.blocks[block], sized, drop, wanted, frozen)
            if timed != sized:
                longest = _at_mean_length(longest, tape(self.plan.model.blocks[block], timed, drop, wanted, frozen))
            self._tapes[key] = longest
        return self._tapes[key]

    def _frozen_beside(self, block: int) -> tuple[str, ...]:
        """Tensors beside the block's input that want no gradient: nothing up to the block that makes them is trained."""
        blocks = self.plan.model.blocks
        if not blocks[block].beside or self._inputs_require_gradients:
            return ()
        made = {name: number for number, each in enumerate(blocks[:block]) for name in each.shows}
        return tuple(
            name
            for name in blocks[block].beside
            if name in made and not any(p.trainable and not p.buffer for each in blocks[: made[name] + 1] for p in each.parameters())
        )

    def weight_casts(self, block: int) -> tuple[Kernel, ...]:
        """What the step's first micro-batch does to the block's weights."""
        described = self.plan.model.blocks[block]
        if described not in self._weight_casts:
            self._weight_casts[described] = () if self.profiled else weight_casts(described, self.plan.workload)
        return self._weight_casts[described]

    @property
    def _inputs_require_gradients(self) -> bool:
        """Adapters behind checkpoints: the embedding's output is made to want a gradient (PEFT, enable_input_require_grads)."""
        recipe = self.plan.training.finetune
        checkpoints = self.plan.training.recompute.mode not in ("none", "selective")
        return recipe is not None and recipe.method != "freeze" and checkpoints

    def differentiated(self, block: int) -> bool:
        """Some gradient flows through the block or into its weights."""
        return self.profiled or not self.plan.training.backward or bool(self.tape(block).backward)

    def groups(self, stage: int) -> tuple[CheckpointGroup, ...]:
        """The stage's blocks as they are checkpointed; where no gradient flows there is nothing to recompute."""
        if stage not in self._groups:
            groups = checkpoint_groups(self.plan.training.recompute, self.plan.model, self.chunks[stage].blocks)
            checked = (CheckpointGroup(g.blocks, g.checkpoint and any(map(self.differentiated, g.blocks))) for g in groups)
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
                elif parameter.tied and (storage := self.plan.ties.storage(parameter.tied, self.pipeline_rank)) in self.weights:
                    shared.append(self.weights[storage])
            self._of_operator[key] = (tuple(own), tuple(shared))
        return self._of_operator[key]

    @property
    def profiled(self) -> bool:
        """Whether the model is measured stage times instead of operators."""
        return self.plan.model.facts.get("family") == "stages"

    def moved(self, size: int) -> int:
        """Bytes of a `size`-byte activation that are copied or sent on average: tensors are made for the longest sample."""
        longest, mean = self.plan.training.sequence_length, self.plan.training.mean_length
        return size if mean == longest else -(-size * mean // longest)

    def keeps_output(self, chunk: Chunk) -> bool:
        """The chunk's last operator needs its own output in backward (a ReLU), so sending does not release it."""
        groups = self.groups(chunk.stage)
        return self.plan.training.backward and not groups[-1].checkpoint and self.tape(chunk.blocks[-1]).output_saved

    def metrics(self, partial: bool) -> tuple[list[Memory], int]:
        """What the trainer computes from the logits behind a backward, and the largest tensors of it that live at once [B]."""
        losses = [operator for operator in self.plan.model.blocks[-1].operators if isinstance(operator, Loss) and operator.split == "vocab"]
        count, timed, sized = self.plan.runtime.train_metrics, self.plan.timed(partial), self.plan.sized(partial)
        return [kernel for loss in losses for kernel in loss.metric(timed)[0]] * count, max(
            (loss.metric(sized)[1] for loss in losses), default=0
        )

    def holds_output(self, chunk: Chunk) -> bool:
        """The pipeline engine, not backward, keeps what the chunk has sent, until its backward has run."""
        sent = chunk.blocks[-1] + 1 < len(self.plan.model.blocks) and not self.plan.stays(chunk.stage)
        engine = self.plan.runtime.holds_stage_outputs and self.plan.training.backward and not self.profiled
        return sent and engine and not self.keeps_output(chunk)

    def message(self, size: int) -> int:
        """Bytes of one pipeline message of a `size`-byte activation: scattered over the tensor ranks unless already sharded."""
        tensor = self.plan.parallelism.tensor
        scattered = self.plan.parallelism.pipeline.scatter_sends and tensor.size > 1 and not tensor.sequence_parallel
        return -(-size // tensor.size) if scattered else size

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
                    flop = _product_flop(steps)
                    products, core, square = products + flop[0], core + flop[1], square + flop[2]
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
        if self.plan.double_buffered:
            return 2
        return weight_versions(self.plan.slots[self.pipeline_rank]) if self.plan.parallelism.pipeline.schedule == "pipedream" else 1


@lru_cache(maxsize=4096)
def between_weights(taped: Tape, *, inputs: bool, weights: bool) -> tuple[tuple[tuple[int, ...], int | None], ...]:
    """Places in the backward tape of steps that follow each other, and of the weight step behind them (None: the end)."""
    cut: list[tuple[tuple[int, ...], int | None]] = []
    steps: list[int] = []
    for place, step in enumerate(taped.backward):
        if step.phase != "weight":
            steps += [place] * inputs
        elif weights:
            cut.append((tuple(steps), place))
            steps = []
    return (*cut, (tuple(steps), None))


@lru_cache(maxsize=4096)
def _at_mean_length(longest: Tape, mean: Tape) -> Tape:
    """The tape of the longest sample with the kernels of one of mean length.

    Tensors are made for the longest sample: an allocator keeps what that once needed, so memory is that of `sequence_length`. The time
    of a step is the mean over many, and kernels at the mean length stand for it. What attention does with the square of the length
    is underestimated by the variance of the lengths over their squared mean, of the attention core's share of the time.
    """

    def timed(steps: Sequence[Step], others: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(replace(step, kernels=other.kernels) for step, other in zip(steps, others, strict=True))

    return replace(
        longest,
        forward=timed(longest.forward, mean.forward),
        forward_unsaved=timed(longest.forward_unsaved, mean.forward_unsaved),
        backward=timed(longest.backward, mean.backward),
    )


def _product_flop(steps: Sequence[Step]) -> tuple[float, float, float]:
    """FLOP of weights' products, of attention cores as executed, and of attention cores with all pairs of positions."""
    products = core = square = 0.0
    for step in steps:
        attention = isinstance(step.operator, AttentionCore)
        for kernel in step.kernels:
            if isinstance(kernel, Attention):
                core, square = core + kernel.flop, square + replace(kernel, causal=False).flop
            elif isinstance(kernel, SparseAttention) or (isinstance(kernel, Gemm) and attention):
                core, square = core + kernel.flop, square + kernel.flop
            elif isinstance(kernel, Gemm | ChunkScan):
                products += kernel.flop
    return products, core, square
