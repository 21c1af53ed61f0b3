"""One pass of one stage while it is being written: over the tapes of its blocks, operator by operator.

The data-parallel strategy (`Sharding`) is called in this order:

    pass_begins, per unit: before_forward, operators, after_forward; pass_ends
    pass_begins, per unit (reversed): before_backward, recomputation, operators, after_backward; pass_ends

and around every weight step before_gradient and gradient. The axes' hooks (`OperatorHooks`) stand around every step of an operator.

Boundary tensors are x<b> (input of block b) and dx<b> (its gradient).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

from parsim.model.loss import Loss
from parsim.model.tape import Step, Tape
from parsim.parallel.groups import TENSOR
from parsim.parallel.hooks import Sharding, Unit, Weight
from parsim.parallel.plan import Chunk
from parsim.parallel.schedules.slot import SlotKind
from parsim.parallel.stages import CheckpointGroup
from parsim.program.block_templates import BlockTensors, DeferredOperators
from parsim.program.checkpoint_offload import CheckpointOffload
from parsim.program.host import Floor, LaunchFloor
from parsim.program.pass_builder import Item, PassBuilder
from parsim.program.pipeline_rank import PipelineRank, between_weights
from parsim.program.program import COMPUTE

HOST = "host"
"""lane of the data loader"""
_BOUNDARY = {"input": ("x", 0), "output": ("x", 1), "grad_input": ("dx", 0), "grad_output": ("dx", 1)}
"""tensor that a block shares with a neighbour -> what its name begins with, and blocks further on"""


class StagePassWriter:
    """One pass while it is being written."""

    def __init__(
        self,
        home: PipelineRank,
        stage: int,
        *,
        first: bool,
        last: bool,
        split: bool,
        partial: bool = False,
        beside: bool = False,
        at: PassBuilder | None = None,
    ) -> None:
        """`beside`: the pass shares its slot with another; gradients of weights then hold up no message. `at`: it goes on with that one."""
        self.home = home
        self.plan = home.plan
        self.stage = stage
        self.partial = partial
        self._mark = home.mark(partial)
        self.chunk: Chunk = home.chunks[stage]
        self._continues = at is not None
        self.at = home.builder(stage, first=first, last=last) if at is None else at
        self.sharding: Sharding = home.sharding[stage]
        self.units = home.units[stage]
        self.hooks = self.plan.operator_hooks(partial=partial, split=split)
        other_tokens = any(block.tokens for block in self.plan.model.blocks)
        self._mixed = any(self.plan.training.precision.keep_layers) or bool(self.plan.loads) or other_tokens
        """of the axes that have something to say between operators, in the order in which they are asked"""
        self.groups = home.groups(stage)
        self._group_of = {block: group for group in self.groups for block in group.blocks}
        self._unit_of = {block: unit for unit in self.units for block in unit.blocks}
        self.host = LaunchFloor(self.plan.runtime.host, home.clock, self.at, home.floors, waits=self.plan.parallelism.waits_for_counts)
        self._opened: set[str] = set()
        self._left: dict[str, int] = {}
        again = [group.blocks[-1] for group in self.groups if group.checkpoint and split]
        self._again = frozenset(block for block in again if block + 1 < len(self.plan.model.blocks))
        """blocks whose recomputed output is a second tensor, because weight gradients or the engine still hold the first"""
        self._written: set[str] = set()
        self._split = split
        self._beside = beside
        offloads = self.plan.training.backward and self.plan.training.offload.activations != "none"
        kept = {group: self._name(group.blocks[0], "input") for group in self.groups if offloads and self._owns_input(group)}
        self.offload = CheckpointOffload(self.at, kept, home.moved)

    @property
    def _is_first(self) -> bool:
        return self.chunk.blocks[0] == 0

    @property
    def _is_last(self) -> bool:
        return self.chunk.blocks[-1] == len(self.plan.model.blocks) - 1

    @property
    def _root_gradient(self) -> str:
        """The gradient of the loss, which the caller of ``backward()`` holds until it returns."""
        return f"{self._mark}dx{len(self.plan.model.blocks)}"

    @property
    def _result(self) -> str:
        """The output of the model, which the script holds until the micro-batch is done."""
        return f"{self._mark}x{len(self.plan.model.blocks)}"

    # -- tensors --------------------------------------------------------------------------------------------------

    def _name(self, block: int, tensor: str) -> str:
        if (boundary := _BOUNDARY.get(tensor)) is not None:
            again = " again" if tensor == "output" and block in self._again else ""
            return f"{self._mark}{boundary[0]}{block + boundary[1]}{again}"
        return f"{self._mark}{self.plan.model.block_names[block]}.{tensor}"

    def tape(self, block: int) -> Tape:
        """The tape of a block in this pass."""
        return self.home.tape(block, self.partial)

    def _declare(self, block: int) -> None:
        key = (block, self.partial, block in self._again)
        if key in self.home.declared:
            return
        categories = {"activations": "activations", "gradients": "temporaries", "temporaries": "temporaries"}
        numbers = []
        for name, row in self.tape(block).tensors.items():
            full = self.at.full(self._name(block, name))
            numbers.append(self.home.table.declare(full, row.bytes, categories[row.category], per_micro_batch=True))
        self.home.declared[key] = BlockTensors(self.plan.model.block_names[block], tuple(numbers))

    def _add(self, block: int, what: Hashable, write: Callable[[], None]) -> None:
        """Write operators of the block, or repeat what equal ones wrote; `what`: all that they depend on besides tape and pass."""
        if self.at.deferred is None:
            own = self.home.declared[block, self.partial, block in self._again]
            pending = [hooks.pending for hooks in self.hooks]
            self._deferred = DeferredOperators(
                self.at, self.home.block_templates, (self.tape(block), self._split, self._beside), own, pending
            )
        self._deferred.add(what, partial(self._write_inside, block, write) if self._mixed else write)

    def _write_inside(self, block: int, write: Callable[[], None]) -> None:
        """Write operators of a block that may have products of another type, or another load of experts, than the block before."""
        for hooks in self.hooks:
            hooks.inside(block, self.plan.model.blocks[block])
        write()

    def _names(self, block: int, tensors: Sequence[str]) -> list[str]:
        return [self._name(block, tensor) for tensor in tensors]

    def _batch(self) -> list[str]:
        """What the script holds for a micro-batch on this stage: the input on the first, the labels on the last."""
        held: list[str] = []
        if self._continues:  # the samples of the pass before
            return held
        if self._is_first:
            held.append(self.at.tensor(f"{self._mark}x0", self.plan.input_bytes(self.partial), "activations", per_micro_batch=True))
        loss = [operator for operator in self.plan.model.blocks[-1].operators if isinstance(operator, Loss)]
        if self._is_last and any(operator.shifted for operator in loss):
            size = 8 * self.plan.sized(self.partial).tokens
            held.append(self.at.tensor(f"{self._mark}labels", size, "activations", per_micro_batch=True))
        return [name for name in held if self.home.table.rows[self.at.number(name)].bytes]

    # -- forward --------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """All blocks of the chunk in order."""
        at, plan = self.at, self.plan
        for block in self.chunk.blocks:
            self._declare(block)
        at.label(f"F{self.stage} {self.home.title}{plan.model.block_names[self.chunk.blocks[0]]}", COMPUTE)
        if self._is_first and plan.training.data_loading:
            at.items.append(Item("data loading", "launch", (HOST,), plan.training.data_loading))
            at.wait(len(at.items) - 1)
        self._receive("x", self.chunk.blocks[0])
        at.compute("", COMPUTE, (), allocates=self._batch())
        self._allocate_workspace("forward")
        self.sharding.pass_begins(self.units, at, backward=False)
        if self._host_binds(backward=False):
            at.anchor()
        for group in self.groups:
            for block in group.blocks:
                self.host.begin_block(self._floor(block, backward=False))
                self._enter(block, backward=False)
                at.label(f"F{self.stage} {self.home.title}{plan.model.block_names[block]}", COMPUTE)
                saved = plan.training.backward and not group.checkpoint
                keep = group.checkpoint and block == group.blocks[0] and plan.training.backward
                self._forward_block(block, saved=saved, keep_input=keep)
                self._leave(block, backward=False)
                self.host.end_block()
            self.offload.after_forward(group)
        self.sharding.pass_ends(at, backward=False)
        if not plan.training.backward:
            self._drop_pass()

    def _forward_block(self, block: int, *, saved: bool, keep_input: bool, recomputes: bool = False) -> None:
        """Run a block's forward. `keep_input`: a checkpoint holds the input for recomputation."""
        taped = self.tape(block)
        steps = taped.forward if saved else taped.forward_unsaved
        kept = saved and (taped.input_saved or self._kept_by_producer(block))
        free_input = not (keep_input or kept or self._external(block))
        has_output = recomputes and self._ends(block)
        if not recomputes and (casts := self.home.weight_casts(block)) and self.at.first:
            self.at.compute("", COMPUTE, casts)

        def write() -> None:
            for index, step in enumerate(steps):
                frees = self._names(block, step.frees)
                if free_input and index == taped.input_last_forward:
                    frees.append(self._name(block, "input"))
                for hooks in self.hooks:
                    hooks.before_forward(step.operator, self.at)
                allocates = [name for name in step.allocates if not (has_output and name == "output")]
                self._run(step, "recompute" if recomputes else COMPUTE, self._names(block, allocates), frees)
                for hooks in self.hooks:
                    hooks.after_forward(step.operator, self.at)

        self._add(block, ("forward", saved, free_input, has_output, recomputes), write)

    def _ends(self, block: int) -> bool:
        """It is the model's last: the script holds its output and the output's gradient."""
        return block == len(self.plan.model.blocks) - 1

    def _run(self, step: Step, kind: str, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """The kernels of a step, by the axis whose messages stand between them, if there is one."""
        for hooks in self.hooks:
            if step.phase != "weight" and hooks.runs(step.operator):
                hooks.run(step, kind, self.at, allocates, frees)
                return
        self.at.compute("", kind, step.kernels, allocates, frees)

    def _owns_input(self, group: CheckpointGroup) -> bool:
        """The input of a checkpointed group is the group's: not the script's, nor that of a layer before that keeps its own output."""
        first = group.blocks[0]
        return group.checkpoint and first > 0 and not self._kept_by_producer(first)

    def _kept_by_producer(self, block: int) -> bool:
        """The block before keeps its own output (a ReLU) and will free it, later in backward than this block could."""
        first = block == self.chunk.blocks[0]
        if not self.plan.training.backward or (first and not self._stays(block)) or not self.tape(block - 1).output_saved:
            return False
        group = self.home.groups(self.stage - 1)[-1] if first else self._group_of[block - 1]
        return not group.checkpoint or block in group.blocks

    def _stays(self, boundary: int) -> bool:
        """The stages on both sides of this end of the chunk are on this rank."""
        return self.plan.stays(self.stage - 1 if boundary == self.chunk.blocks[0] else self.stage)

    def _external(self, block: int) -> bool:
        """The block's input is the micro-batch itself, which the script holds."""
        return block == 0

    def _receive(self, prefix: str, boundary: int) -> None:
        """Buffer for what another stage sends, and the gather of a scattered message; a stage on this rank hands over its own."""
        if boundary in (0, len(self.plan.model.blocks)) or self._stays(boundary):
            return
        size = self.tape(boundary - 1).tensors["output"].bytes
        category = "activations" if prefix == "x" else "temporaries"
        name = self.at.tensor(f"{self._mark}{prefix}{boundary}", size, category, per_micro_batch=True)
        if self.home.message(size) == size:
            self.at.compute("", COMPUTE, (), allocates=[name])
        else:
            self.at.collective("all_gather", TENSOR, self.home.moved(size), f"received {prefix}", blocking=True, allocates=[name])

    def _allocate_workspace(self, way: str) -> None:
        if (number := self.home.first_use(way)) is not None:
            self.at.allocate(number)
            self.at.depends_on |= {"first", "last"}

    # -- backward -------------------------------------------------------------------------------------------------

    def backward(self, *, inputs: bool, weights: bool) -> None:
        """All blocks in reverse: input steps, weight steps or both."""
        at, plan = self.at, self.plan
        if self.home.holds_output(self.chunk) and self.groups[-1].checkpoint:
            self._again |= {self.chunk.blocks[-1]}
        for block in self.chunk.blocks:
            self._declare(block)
        label = SlotKind.FULL_BACKWARD if inputs and weights else SlotKind.BACKWARD_INPUT if inputs else SlotKind.BACKWARD_WEIGHT
        at.label(f"{label}{self.stage} {plan.model.block_names[self.chunk.blocks[-1]]}", COMPUTE)
        if inputs:
            self._begin_backward()
        if self._host_binds(backward=True):
            at.anchor()
        for group in reversed(self.groups):
            if group.checkpoint and inputs:
                self.offload.before_recompute(group)
                self._recompute(group.blocks)
            for block in reversed(group.blocks):
                differentiated = self.home.differentiated(block)
                self.host.begin_block(self._floor(block, backward=True, inputs=inputs, weights=weights) if differentiated else None)
                if not group.checkpoint and inputs:
                    self._enter(block, backward=True)
                at.label(f"{label}{self.stage} {plan.model.block_names[block]}", COMPUTE)
                self._backward_block(block, inputs=inputs, weights=weights)
                if inputs and "grad_input" in self.tape(block).tensors and self._unwanted(block):
                    at.compute("", COMPUTE, (), frees=[self._name(block, "grad_input")])
                if weights:
                    self._leave(block, backward=True)
                self.host.end_block()
        if inputs and self.home.holds_output(self.chunk):
            last = self.chunk.blocks[-1]
            size = self.tape(last).tensors["output"].bytes
            at.compute("", COMPUTE, (), frees=[at.tensor(f"{self._mark}x{last + 1}", size, "activations", per_micro_batch=True)])
        if weights:
            self.sharding.pass_ends(at, backward=True)
            if self._is_last and plan.runtime.train_metrics:
                self._metrics()
            self._drop_pass()

    def _metrics(self) -> None:
        """The trainer's metrics of the logits."""
        kernels, size = self.home.metrics(self.partial)
        tensor = self.at.tensor(f"{self._mark}metric", size, "temporaries", per_micro_batch=True)
        self.at.label(f"metrics{self.stage}", COMPUTE)
        self.at.compute("", COMPUTE, kernels, allocates=[tensor], frees=[tensor])

    def _unwanted(self, block: int) -> bool:
        """Nobody takes the gradient of the block's input: there is no block before it, or that one wants none."""
        return block == 0 or "grad_output" not in self.tape(block - 1).tensors

    def _begin_backward(self) -> None:
        at = self.at
        last = self.chunk.blocks[-1]
        if self._is_last:
            size = self.tape(last).tensors["output"].bytes
            at.compute("", COMPUTE, (), allocates=[at.tensor(self._root_gradient, size, "temporaries", per_micro_batch=True)])
        elif "grad_output" in self.tape(last).tensors:
            self._receive("dx", last + 1)
        self._allocate_workspace("backward")
        self.offload.begin_backward()
        self.sharding.pass_begins([unit for unit in reversed(self.units) if self._differentiated(unit)], at, backward=True)

    def _differentiated(self, unit: Unit) -> bool:
        """Backward passes through the unit."""
        return any(map(self.home.differentiated, unit.blocks))

    def _recompute(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.host.begin_block(self._floor(block, backward=False))
            self._enter(block, backward=True)
            self.at.label(f"R{self.stage} {self.plan.model.block_names[block]}", "recompute")
            self._forward_block(block, saved=True, keep_input=False, recomputes=True)
            self.host.end_block()
        # what blocks behind have read of the first forward pass has served them: backward comes from there
        if shown := [name for block in blocks for name in self._names(block, self.tape(block).shown)]:
            self.at.compute("", "recompute", (), frees=shown)
        output = self._name(blocks[-1], "output")
        if output != self._result and not self.tape(blocks[-1]).output_saved:
            self.at.compute("", "recompute", (), frees=[output])

    def _backward_block(self, block: int, *, inputs: bool, weights: bool) -> None:
        """Run a block's backward. The strategy is asked around every weight step; what lies between is one template."""
        taped = self.tape(block)
        mine = taped.input_saved and not (self._external(block) or self._kept_by_producer(block))
        used = ("backward", inputs, weights, mine, self._ends(block))
        last: Step | None = None
        for steps, place in between_weights(taped, inputs=inputs, weights=weights):
            coming = None if place is None else taped.backward[place]
            if steps or self.hooks:
                self._add(block, (used, "before", place), partial(self._between, block, last, steps, coming, mine))
            if coming is not None and place is not None:
                written = self._before_gradient(block, coming)
                self._add(block, (used, "weight", place), partial(self._run_backward, block, place, mine))
                self._after_gradient(block, written)
            last = coming

    def _between(self, block: int, last: Step | None, places: Sequence[int], coming: Step | None, mine: bool) -> None:
        """What stands between the gradients of two operators' weights: communication of both, input steps."""
        if last is not None:
            for hooks in self.hooks:
                hooks.after_weight(last.operator, self.at)
        for place in places:
            step = self.tape(block).backward[place]
            asked = self.hooks if step.phase == "input" else ()
            again = self.hooks if step.communicates else ()
            for hooks in again:
                hooks.before_forward(step.operator, self.at)
            for hooks in asked:
                hooks.before_input(step.operator, self.at)
            self._run_backward(block, place, mine)
            for hooks in asked:
                hooks.after_input(step.operator, self.at)
            for hooks in again:
                hooks.after_forward(step.operator, self.at)
        if coming is not None:
            for hooks in self.hooks:
                hooks.before_weight(coming.operator, self.at)

    def _run_backward(self, block: int, place: int, mine: bool) -> None:
        """A step of the backward tape; `mine`: the block's input is freed behind its last use."""
        taped = self.tape(block)
        step = taped.backward[place]
        frees = [name for name in step.frees if not (name == "grad_output" and self._ends(block))]
        if mine and place == taped.input_last_backward:
            frees.append("input")
        if taped.output_saved and place == taped.output_last_backward:
            frees.append("output")
        kind = "recompute" if step.phase == "recompute" else COMPUTE
        with self.at.aside() if self._beside and step.phase == "weight" else nullcontext():
            self._run(step, kind, self._names(block, step.allocates), self._names(block, frees))

    def _before_gradient(self, block: int, step: Step) -> Sequence[Weight]:
        """Announce the gradients that a weight step writes first.

        Returns those that the pass has then written: of the block's own weights, and of a weight that another chunk of the rank has.
        """
        own, shared = self.home.trained(block, step.operator.name)
        fresh = [weight for weight in (*own, *shared) if weight.name not in self._written]
        self._written.update(weight.name for weight in fresh)
        by_unit: dict[str, list[Weight]] = {}
        for weight in fresh:
            if weight.name in self.home.tied:
                with self._tied(weight) as (sharding, unit):
                    sharding.before_gradient(unit, [weight], self.at)
            else:
                by_unit.setdefault(self._unit_of[weight.block].name, []).append(weight)
        for weights in by_unit.values():
            self.sharding.before_gradient(self._unit_of[weights[0].block], weights, self.at)
        return (*own, *(weight for weight in fresh if weight.block not in self._unit_of))

    def _after_gradient(self, block: int, weights: Sequence[Weight]) -> None:
        """These gradients have been written by this pass."""
        alone = [weight for weight in weights if weight.name not in self.home.tied]
        if alone:
            self.sharding.gradient(self._unit_of[block], alone, self.at)
        for weight in weights:
            if weight.name in self.home.tied:
                with self._tied(weight) as (sharding, unit):
                    sharding.gradient(unit, [weight], self.at)

    @contextmanager
    def _tied(self, weight: Weight) -> Iterator[tuple[Sharding, Unit]]:
        """Whom to ask about a weight that several chunks of the rank share: the strategy and the unit of the chunk that has it.

        Meanwhile `first` and `last` are those of the gradient, which passes of other stages write before and after this one.
        """
        tied = self.home.tied[weight.name]
        unit = next(unit for unit in self.home.units[tied.owner] if weight.block in unit.blocks)
        with self.at.one_of_several(first=self.stage == tied.first, last=self.stage == tied.last):
            yield self.home.sharding[tied.owner], unit

    def _drop_pass(self) -> None:
        """The script's variables of this micro-batch go out of scope."""
        names = [self._root_gradient] if self.plan.training.backward and self._is_last else []
        names += self._batch()
        for block in self.chunk.blocks:
            taped = self.tape(block)
            names += self._names(block, taped.held if self.plan.training.backward else taped.shown)
        if self._is_last:
            names.append(self._name(self.chunk.blocks[-1], "output"))
        self.at.compute("", COMPUTE, (), frees=names)

    # -- the host -------------------------------------------------------------------------------------------------

    def _floor(self, block: int, *, backward: bool, inputs: bool = True, weights: bool = True) -> Floor | None:
        return self.host.floor(self.plan.model.blocks[block].kind, self.tape(block), backward=backward, inputs=inputs, weights=weights)

    def _host_binds(self, *, backward: bool) -> bool:
        """Whether launching may take longer than the kernels of the first block to run: floors begin when its data are there."""
        block = self.chunk.blocks[-1 if backward else 0]
        recomputes = backward and self._group_of[block].checkpoint
        floors = [self._floor(block, backward=way) for way in ((False, True) if recomputes else (backward,))]
        return any(floor is not None and self.host.may_bind(floor) for floor in floors)

    # -- units ----------------------------------------------------------------------------------------------------

    def _enter(self, block: int, *, backward: bool) -> None:
        unit = self._unit_of[block]
        if unit.name in self._opened or not unit.weights or (backward and not self._differentiated(unit)):
            return
        self._opened.add(unit.name)
        hook = self.sharding.before_backward if backward else self.sharding.before_forward
        hook(unit, self.at)

    def _leave(self, block: int, *, backward: bool) -> None:
        unit: Unit = self._unit_of[block]
        left = self._left[unit.name] = self._left.get(unit.name, len(unit.blocks)) - 1
        if left or not unit.weights or (backward and not self._differentiated(unit)):
            return
        hook = self.sharding.after_backward if backward else self.sharding.after_forward
        hook(unit, self.at)
