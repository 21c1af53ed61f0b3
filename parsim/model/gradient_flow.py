"""How one block's tensors depend on each other: which share memory, how large they are, and the gradients between its operators.

A storage is the memory behind one or several named tensors (views and in-place results share it). Gradients follow the chain rule
over named tensors. What is kept for backward, and the finished tape, is in `parsim.model.liveness`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from parsim.errors import Finding, ModelError
from parsim.kernel import Kernel, Memory
from parsim.model.model import Block, Operator, Work
from parsim.model.tape import Step, TapeTensor
from parsim.model.workload import Workload

Phase = Literal["forward", "recompute", "input", "weight"]


@dataclass(eq=False)
class Draft:
    """A step under construction."""

    operator: Operator
    phase: Phase
    kernels: tuple[Kernel, ...] = ()
    allocates: list[str] = field(default_factory=list)
    frees: list[str] = field(default_factory=list)
    needed: bool = False
    communicates: bool = False

    def step(self) -> Step:
        return Step(self.operator, self.phase, self.kernels, tuple(self.allocates), tuple(self.frees), self.communicates)

    def transient(self, name: str) -> None:
        """A tensor that lives during this step only."""
        self.allocates.append(name)
        self.frees.append(name)


class GradientFlow:
    """One block under one workload, up to the gradients of its tensors."""

    def __init__(self, block: Block, at: Workload, input_gradient: bool, frozen: tuple[str, ...] = ()) -> None:
        self.block, self.at = block, at.inside(block)
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
        self.requires = self._requires(input_gradient, frozen)
        self.scratch_steps: dict[int, Draft] = {}
        self.input_steps: dict[int, Draft] = {}
        self.weight_steps: dict[int, Draft] = {}
        self.recompute_steps: dict[int, list[Draft]] = {}
        # backward, last operator first: a gradient is made by the first of its contributions and used by the rest
        self.active = self._gradients() if at.backward else []

    # --- storages and sizes -------------------------------------------------------------------------------------

    def _storages(self) -> dict[str, str]:
        """Tensor name -> storage name, where the boundary names win."""
        storage = {"input": "input", **{name: name for name in self.block.beside}}
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

    def _requires(self, input_gradient: bool, frozen: tuple[str, ...]) -> dict[str, bool]:
        """Tensor name -> whether autograd records it."""
        recorded = {"input": input_gradient, **{name: name not in frozen for name in self.block.beside}}
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
            draft = Draft(operator, "input", work.backward_input if wanted or not work.backward_weight else ())
            self.input_steps[index] = draft
            if draft.kernels:
                self._use(incoming, index, "input")
            if work.backward_weight or any(parameter.trainable for parameter in operator.parameters()):
                self.weight_steps[index] = Draft(operator, "weight", work.backward_weight, needed=True)
            if work.backward_weight:
                self._use(incoming, index, "weight")
            if work.ready_gradient:
                incoming = self._tensor(work.ready_gradient, next(s.bytes for s in work.saves if s.tensor == work.ready_gradient))
                self.ready.add(incoming)
            for name, size in wanted:
                gradients[name] = self._contribute(index, draft, name, size, incoming, gradients.get(name))
            if work.backward_scratch and draft.kernels:
                made = [self._tensor(f"{operator.name}.scratch{i}", size, "temporaries") for i, size in enumerate(work.backward_scratch)]
                self.scratch_steps[index] = Draft(operator, "input", allocates=made, frees=made[:-1], needed=True)
                draft.frees.append(made[-1])
            if work.backward_temporary:
                self._tensor(f"{operator.name}.backward", work.backward_temporary, "temporaries")
                (draft if draft.kernels else self.weight_steps.get(index, draft)).transient(f"{operator.name}.backward")
        for name in self.block.beside:  # what the layers have summed up so far is there until the block before goes on with it
            if f"grad:{name}" in self.tensors:
                self._use(gradients[name], active[-1], "input")
        if active:
            self._boundary_gradients(active, gradients.get("input"))
        return active

    def _contribute(self, index: int, draft: Draft, name: str, size: int, incoming: str, earlier: str | None) -> str:
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
