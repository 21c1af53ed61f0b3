"""When a block's tensors come and go: liveness analysis of its forward and backward, as compilers do it for registers.

A storage is the memory behind one or several named tensors (views and in-place results share it). Backward uses of a
storage are pairs (operator index, phase). Since weight steps may run right after their input steps or be postponed past
all of them, a storage used by both kinds is freed by a weight step at or below the lowest index that uses it: that step
comes last under either order (it may hold no kernel at all).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from parsim.errors import Finding, ModelError
from parsim.kernel import Kernel, Memory
from parsim.model.model import Block, Operator, Work, Workload
from parsim.model.tape import Step, Tape, TapeTensor

Phase = Literal["forward", "recompute", "input", "weight"]
_KEPT_OUTPUT = "attention"


def tape(block: Block, at: Workload, drop: tuple[str, ...] = (), input_gradient: bool = True) -> Tape:
    """The tape of `block` under `at`.

    `drop` names what selective recomputation does not keep (`Operator.selective`): by-products and outputs of these
    operators, except an attention core's output, which the projection behind it needs for its weight (2205.05198 §5).
    `input_gradient=False`: nothing before the block is trained.

    Gradients follow the chain rule over named tensors: residual adds and views pass their gradient on without a copy,
    a tensor with several consumers sums into the newest contribution. Tensors of one storage (`Work.output` = 0) live
    and die together. Tapes are kept per block.

    Errors: ModelError when an operator reads a tensor that no operator before it wrote, or when the block's output is
    a view of its input.
    """
    return _kept_tape(block, at, tuple(sorted(drop)), input_gradient)


@lru_cache(maxsize=4096)
def _kept_tape(block: Block, at: Workload, drop: tuple[str, ...], input_gradient: bool) -> Tape:
    return Liveness(block, at, drop, input_gradient).tape()


@dataclass(eq=False)
class _Draft:
    """A step under construction."""

    operator: Operator
    phase: Phase
    kernels: tuple[Kernel, ...] = ()
    allocates: list[str] = field(default_factory=list)
    frees: list[str] = field(default_factory=list)
    needed: bool = False

    def step(self) -> Step:
        return Step(self.operator, self.phase, self.kernels, tuple(self.allocates), tuple(self.frees))

    def transient(self, name: str) -> None:
        """A tensor that lives during this step only."""
        self.allocates.append(name)
        self.frees.append(name)


class Liveness:
    """One block under one workload; `tape()` is the result."""

    def __init__(self, block: Block, at: Workload, drop: tuple[str, ...], input_gradient: bool) -> None:
        self.block, self.at, self.drop = block, at.inside(block.kind), drop
        self.operators = block.operators
        self.works: tuple[Work, ...] = tuple(operator.work(self.at) for operator in block.operators)
        self.tensors: dict[str, TapeTensor] = {}
        self.uses: dict[str, list[tuple[int, Phase]]] = {}
        """storage -> its uses in backward"""
        self.held: list[str] = []
        self.ready: set[str] = set()
        """gradients that forward made"""
        # forward: which names share memory, how large it is, who reads it last, and through whom gradients flow
        self.storage = self._storages()
        self._measure()
        self.last_read = self._last_read()
        self.requires = self._requires(input_gradient)
        self.input_steps: dict[int, _Draft] = {}
        self.weight_steps: dict[int, _Draft] = {}
        self.recompute_steps: dict[int, list[_Draft]] = {}
        # backward, last operator first: a gradient is made by the first of its contributions and used by the rest
        self.active = self._gradients() if at.backward else []
        # what lives from forward into backward, and what selective recomputation makes again instead
        self._collect_saves()
        self.dropped = self._dropped()
        self._recompute()

    # --- storages and sizes -------------------------------------------------------------------------------------

    def _storages(self) -> dict[str, str]:
        """Tensor name -> storage name, where the boundary names win."""
        storage = {"input": "input"}
        self.producer: dict[str, int] = {}
        for index, (operator, work) in enumerate(zip(self.operators, self.works, strict=True)):
            for name in operator.inputs:
                if name not in storage:
                    raise ModelError(Finding(f"operator {operator.name} reads {name}, which no operator before it writes", operator.name))
            storage[operator.output] = operator.output if work.output else storage[operator.inputs[0]]
            if work.output:
                self.producer[operator.output] = index
        if "output" not in storage:
            raise ModelError(Finding(f"no operator of block {self.block.kind} writes the tensor output", self.block.kind))
        last = storage["output"]
        if last == "input":
            message = f"the output of block {self.block.kind} is a view of its input"
            raise ModelError(Finding(message, self.block.kind, suggestion="join it with the block before"))
        if last != "output":
            self.producer["output"] = self.producer.pop(last)
        return {name: "output" if root == last else root for name, root in storage.items()}

    def _measure(self) -> None:
        """Sizes of the storages that forward makes."""
        for name, index in self.producer.items():
            self._tensor(name, self.works[index].output)
        self._tensor("input", self._input_bytes())

    def _input_bytes(self) -> int:
        """Bytes of the block's input, as its readers see it."""
        largest = 0
        for operator in self.operators:
            if not any(self.storage[name] == "input" for name in operator.inputs):
                continue
            work = operator.work(replace(self.at, backward=True))
            largest = max([largest, *(save.bytes for save in work.saves if self.storage.get(save.tensor) == "input")])
            for name, gradient in zip(operator.inputs, work.input_gradients, strict=True):
                if self.storage[name] == "input":
                    largest = max(largest, gradient or work.output)
        return largest

    def _tensor(self, name: str, size: int, category: Literal["activations", "gradients", "temporaries"] = "activations") -> str:
        self.tensors[name] = TapeTensor(name, size, category)
        return name

    def _last_read(self) -> dict[str, int]:
        """Storage -> index of the last operator that reads or writes it."""
        last: dict[str, int] = {}
        for index, operator in enumerate(self.operators):
            for name in (*operator.inputs, operator.output):
                last[self.storage[name]] = index
        return last

    def _requires(self, input_gradient: bool) -> dict[str, bool]:
        """Tensor name -> whether autograd records it."""
        recorded = {"input": input_gradient}
        for operator, work in zip(self.operators, self.works, strict=True):
            flows = any(recorded[name] and gradient >= 0 for name, gradient in zip(operator.inputs, work.input_gradients, strict=True))
            recorded[operator.output] = flows or any(parameter.trainable for parameter in operator.parameters())
        return recorded

    # --- gradients ----------------------------------------------------------------------------------------------

    def _use(self, storage: str, index: int, phase: Phase) -> None:
        self.uses.setdefault(storage, []).append((index, phase))

    def _gradients(self) -> list[int]:
        """Drafts all backward steps and the gradients between them; returns the operators that take part, last first."""
        if not self.requires["output"]:
            return []
        self._tensor("grad_output", self.tensors["output"].bytes, "gradients")
        gradients = {"output": "grad_output"}
        active = []
        for index in reversed(range(len(self.operators))):
            operator, work = self.operators[index], self.works[index]
            if not self.requires[operator.output] or operator.output not in gradients:
                continue
            active.append(index)
            incoming = gradients[operator.output]
            wanted = [
                (name, size) for name, size in zip(operator.inputs, work.input_gradients, strict=True) if size >= 0 and self.requires[name]
            ]
            draft = _Draft(operator, "input", work.backward_input if wanted or not work.backward_weight else ())
            self.input_steps[index] = draft
            if draft.kernels:
                self._use(incoming, index, "input")
            if work.backward_weight or any(parameter.trainable for parameter in operator.parameters()):
                self.weight_steps[index] = _Draft(operator, "weight", work.backward_weight, needed=True)
            if work.backward_weight:
                self._use(incoming, index, "weight")
            if work.ready_gradient:
                incoming = self._tensor(work.ready_gradient, next(s.bytes for s in work.saves if s.tensor == work.ready_gradient))
                self.ready.add(incoming)
            for name, size in wanted:
                gradients[name] = self._contribute(index, draft, name, size, incoming, gradients.get(name))
            if work.backward_temporary:
                self._tensor(f"{operator.name}.backward", work.backward_temporary, "temporaries")
                (draft if draft.kernels else self.weight_steps.get(index, draft)).transient(f"{operator.name}.backward")
        if active:
            self._boundary_gradients(active, gradients.get("input"))
        return active

    def _contribute(self, index: int, draft: _Draft, name: str, size: int, incoming: str, earlier: str | None) -> str:
        """The storage of the gradient of tensor `name` after operator `index` has added its part of `size` bytes."""
        if not size and earlier is None:
            return incoming
        if not size:
            size = self.tensors[incoming].bytes
            self._use(incoming, index, "input")
        if earlier is not None and size != self.tensors[earlier].bytes:  # gradients of two slices of one tensor
            size = max(size, self.tensors[self.storage[name]].bytes)
        fresh = f"grad:{name}" if f"grad:{name}" not in self.tensors else f"grad:{name}@{self.operators[index].name}"
        while fresh in self.tensors:
            fresh += "+"
        draft.allocates.append(self._tensor(fresh, size, "gradients"))
        if earlier is not None:
            self._use(earlier, index, "input")
            draft.kernels += (Memory(3.0 * size),)
        self.uses.setdefault(fresh, [])
        return fresh

    def _boundary_gradients(self, active: list[int], final: str | None) -> None:
        """Names the gradient of the input, and gives every gradient a last use."""
        lowest = active[-1]
        if final == "grad_output" or final in self.ready:  # passed on, or made in forward: the block before needs a tensor of its own
            passed, final = final, f"grad:input@{self.block.kind}"
            self.input_steps[lowest].allocates.append(self._tensor(final, self.tensors[passed].bytes, "gradients"))
            self._use(passed, lowest, "input")
        if final is not None:
            self.tensors["grad_input"] = TapeTensor("grad_input", self.tensors.pop(final).bytes, "gradients")
            self.uses.pop(final, None)
            for draft in self.input_steps.values():
                draft.allocates = ["grad_input" if name == final else name for name in draft.allocates]
        loss = any(save.until == "pass" and self.storage.get(save.tensor) == "output" for work in self.works for save in work.saves)
        if loss or not self.uses.get("grad_output"):  # whoever calls backward() on a loss holds the loss's gradient
            self._use("grad_output", lowest if loss else active[0], "weight" if loss else "input")
        for draft in self.input_steps.values():
            for name in draft.allocates:
                if name != "grad_input" and self.tensors[name].category == "gradients" and not self.uses[name]:
                    draft.frees.append(name)

    # --- saved tensors and recomputation ------------------------------------------------------------------------

    def _collect_saves(self) -> None:
        """Registers what the active operators keep, each storage once."""
        self.private: dict[int, list[str]] = {index: [] for index in range(len(self.operators))}
        self.owner: dict[str, int] = dict(self.producer)
        active = set(self.active)
        for index, work in enumerate(self.works):
            for save in work.saves:
                storage = self.storage.get(save.tensor)
                if storage is None:
                    storage = self._tensor(save.tensor, save.bytes)
                    self.private[index].append(storage)
                    self.owner[storage] = index
                if index not in active:
                    continue
                if save.until == "pass":
                    if storage not in ("output", *self.held):
                        self.held.append(storage)
                else:
                    by_weight = save.until == "weight" and bool(work.backward_weight)
                    self._use(storage, index, "weight" if by_weight else "input")

    def _droppable(self, index: int) -> bool:
        return bool(self.operators[index].selective in self.drop and self.works[index].output and index in self.active)

    def _dropped(self) -> set[str]:
        """Storages that backward needs but forward does not keep."""
        dropped = set()
        for storage, index in self.owner.items():
            if storage == "output" or storage in self.held or not self._droppable(index):
                continue
            is_output = storage in self.producer
            if is_output and self.operators[index].selective == _KEPT_OUTPUT:
                continue
            dropped.add(storage)
        return dropped

    def _recompute(self) -> None:
        """Inserts recompute steps before the first backward use of each dropped storage."""
        done: set[int] = set()
        for index in self.active:
            lost = [name for name, uses in self.uses.items() if name in self.dropped and any(user == index for user, _ in uses)]
            wanted: set[int] = set()
            for name in lost:
                self._trace(name, index, wanted, done)
            for step in sorted(wanted):
                self.recompute_steps.setdefault(index, []).append(self._again(step))
            done |= wanted

    def _trace(self, storage: str, before: int, wanted: set[int], done: set[int]) -> None:
        """Adds to `wanted` the operators that make `storage` again before the backward of operator `before`."""
        made = self.owner[storage]
        makers = [made, *(i for i, operator in enumerate(self.operators) if i > made and self._rewrites(i, operator, storage))]
        for maker in makers:
            if maker in wanted or maker in done:
                continue
            wanted.add(maker)
            for name in self.operators[maker].inputs:
                source = self.storage[name]
                if source == storage:
                    continue
                self._use(source, before, "recompute")
                if source in self.dropped:
                    self._trace(source, before, wanted, done)

    def _rewrites(self, index: int, operator: Operator, storage: str) -> bool:
        """Whether the operator works in place on the storage."""
        return not self.works[index].output and self.storage[operator.output] == storage and storage in self.producer

    def _again(self, index: int) -> _Draft:
        """The recompute step of one operator."""
        operator, work = self.operators[index], self.works[index]
        draft = _Draft(operator, "recompute", work.forward)
        output = self.storage[operator.output]
        if work.output and output in self.dropped:
            draft.allocates.append(output)
            if not self.uses.get(output):
                draft.frees.append(output)
        elif work.output:
            draft.transient(self._tensor(f"{operator.name}.recomputed", work.output, "temporaries"))
        for name in self.private[index]:
            if name in self.dropped and self.uses.get(name):
                draft.allocates.append(name)
            elif name not in self.uses:
                draft.transient(name)
        if work.forward_temporary:
            draft.transient(self._temporary(index))
        return draft

    # --- steps --------------------------------------------------------------------------------------------------

    def _temporary(self, index: int) -> str:
        return self._tensor(f"{self.operators[index].name}.forward", self.works[index].forward_temporary, "temporaries")

    def _kept(self) -> list[str]:
        """Storages other than the boundary that forward keeps for backward."""
        inner = [name for name, uses in self.uses.items() if uses and name in self.owner and name != "output"]
        return [name for name in inner if name not in self.dropped]

    def _forward(self, saved: bool) -> list[_Draft]:
        """Forward steps; `saved` False keeps nothing."""
        kept = {"input", "output"}.union(self._kept(), self.held) if saved else {"input", "output"}
        drafts = [_Draft(operator, "forward", work.forward) for operator, work in zip(self.operators, self.works, strict=True)]
        for index, draft in enumerate(drafts):
            if self.works[index].output:
                draft.allocates.append(self.storage[self.operators[index].output])
            for name in self.private[index]:
                draft.allocates.append(name)
                if name not in kept:
                    draft.frees.append(name)
            if self.works[index].forward_temporary:
                draft.transient(self._temporary(index))
        for name in self.producer:
            if name not in kept:
                drafts[self.last_read[name]].frees.append(name)
        return drafts

    def _last_use(self, storage: str) -> _Draft | None:
        """The backward step after which nothing uses the storage, under either order of weight steps; None = no use."""
        uses = self.uses.get(storage)
        if not uses:
            return None
        lowest = min(index for index, _ in uses)
        phases = {"weight" if phase == "weight" else "input" for _, phase in uses}
        if phases == {"input"}:
            return self.input_steps[lowest]
        return self.weight_steps.setdefault(lowest, _Draft(self.operators[lowest], "weight"))

    def tape(self) -> Tape:
        """The finished tape."""
        forward, unsaved = self._forward(True), self._forward(False)
        # a storage dies behind its last use in backward; boundary tensors belong to the neighbours, who are told when
        boundary: dict[str, _Draft | None] = {"input": None, "output": None}
        for storage in self.uses:
            draft = self._last_use(storage)
            if draft is None or storage in self.held or storage == "grad_input":
                continue
            if storage in boundary:
                boundary[storage] = draft
                draft.needed = True
            elif storage in self.tensors:
                draft.frees.append(storage)
        backward = []
        for index in self.active:
            backward += self.recompute_steps.get(index, [])
            backward += [steps[index] for steps in (self.input_steps, self.weight_steps) if index in steps]
        backward = [draft for draft in backward if draft.kernels or draft.allocates or draft.frees or draft.needed]
        places = {draft: place for place, draft in enumerate(backward)}
        last = {name: -1 if draft is None else places[draft] for name, draft in boundary.items()}
        return Tape(
            tensors=self.tensors,
            forward=tuple(draft.step() for draft in forward),
            forward_unsaved=tuple(draft.step() for draft in unsaved),
            backward=tuple(draft.step() for draft in backward),
            input_saved=last["input"] >= 0 or "input" in self.held,
            input_last_forward=self.last_read["input"],
            input_last_backward=last["input"],
            output_saved=last["output"] >= 0,
            output_last_backward=last["output"],
            held=tuple(self.held),
            saved=tuple(self._kept()),
        )
