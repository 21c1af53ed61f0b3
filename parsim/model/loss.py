"""Losses: the last operator of a model; its output is one fp32 number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parsim.kernel import Kernel, Memory
from parsim.model.linear import chunked, parts
from parsim.model.model import Layer, Save, Split, Work, Workload, elements, rows


@dataclass(frozen=True, slots=True)
class Softcap(Layer):
    """cap * tanh(logits / cap), spelled out in Python (Gemma 2, 2408.00118): three kernels each way, the tanh is kept."""

    classes: int
    split: Split = "vocab"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; one of the workload's `loss_chunks` parts exists at a time."""
        count = elements(at, self.classes, self.split)
        part, traffic = -(-count // parts(at)) * at.element, count * at.element
        if chunked(at):
            return Work((Memory(13 * traffic, launches=6 * parts(at)),), output=part, input_gradients=(0,), forward_temporary=part)
        if at.fused:
            return Work((), (Memory(traffic),), output=0, input_gradients=(part,))
        return Work(
            (Memory(6 * traffic, launches=3),),
            (Memory(7 * traffic, launches=3),),
            output=part,
            input_gradients=(part,),
            saves=(Save(f"{self.name}.tanh", part),),
        )


@dataclass(frozen=True, slots=True)
class Loss(Layer):
    """cross_entropy | mse | sum over `classes` outputs per token (or per sample).

    The kernel of cross-entropy is the workload's `loss_kernel`:
    eager, PyTorch's: the log-softmax is kept, in fp32 where logits are `upcast`; the script holds the logits it was returned;
    fused: one kernel that keeps the logits and the fp32 log-sum-exp of each row (flash-attention's cross entropy);
    vocab-parallel: Megatron-LM's, which turns the logits into fp32 exponentials in place and keeps them, 1/t per rank.
    Compiled, PyTorch's keeps the logits and two fp32 numbers per row. With `loss_chunks` the gradient of each part of the
    logits is made before the next part (`parsim.model.linear`): all kernels run in forward, nothing is kept or returned.
    """

    classes: int
    """outputs per token or sample (V)"""
    kind: Literal["cross_entropy", "mse", "sum"] = "cross_entropy"
    per_sample: bool = False
    split: Split = "vocab"
    upcast: bool = True
    """eager cross-entropy: 16-bit logits are cast to fp32 first (Hugging Face's ``ForCausalLMLoss``; its masked-LM and
    classification heads call cross_entropy on the logits as they are, and then the log-softmax has their type)"""
    shifted: bool = False
    """targets are the ids moved by one: PyTorch keeps the padded copy of s + 1 ids where a slice of it is contiguous (b = 1)"""
    hold_output: bool = True
    """the training script holds the model's output until the micro-batch is done (eager kernel only)"""
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        if self.kind == "cross_entropy":
            kernels = {"eager": self._eager, "fused": self._fused, "vocab-parallel": self._vocab_parallel}
            if at.compiled:
                kernels["eager"] = self._compiled
            work = kernels[at.loss_kernel](at)
            if self.split == "vocab" and chunked(at):
                work = self._in_parts(at, work)
        else:
            work = self._simple(at)
        return work

    def _count(self, at: Workload) -> int:
        return elements(at, self.classes, self.split, self.per_sample)

    def _part(self, at: Workload) -> int:
        """Elements that exist at a time."""
        count = parts(at) if self.split == "vocab" else 1
        return -(-self._rows(at) // count) * (self._count(at) // self._rows(at))

    def _in_parts(self, at: Workload, whole: Work) -> Work:
        """`whole` (with the memory of one part) as it runs part by part: backward's kernels follow forward's at once."""
        kept_in_part = sum(save.bytes for save in whole.saves if save.tensor not in (*self.inputs, self.output))
        in_place = at.loss_kernel == "fused" or at.compiled  # the gradient takes the place of the logits
        gradient = 0 if in_place else whole.input_gradients[0]
        passes = [kernel for kernel in (*whole.forward, *whole.backward_input) if isinstance(kernel, Memory)]
        count = parts(at)
        return Work(
            tuple(Memory(kernel.bytes / count, launches=kernel.launches) for kernel in passes) * count,
            output=4,
            input_gradients=(0,),
            saves=(Save(self.output, 4, "pass"),),
            forward_temporary=kept_in_part + max(whole.forward_temporary, whole.backward_temporary + gradient),
        )

    def _rows(self, at: Workload) -> int:
        return rows(at, self.split, self.per_sample)

    def _targets(self, at: Workload) -> Save:
        return Save(f"{self.name}.targets", 8 * (self._rows(at) + (self.shifted and at.batch == 1)))

    def _held(self, size: int, at: Workload) -> tuple[Save, ...]:
        loss = Save(self.output, 4, "pass")
        whole = self.hold_output and (at.loss_chunks == 1 or self.split != "vocab")
        return (Save(self.inputs[0], size, "pass"), loss) if whole else (loss,)

    def _eager(self, at: Workload) -> Work:
        count, part = self._count(at), self._part(at)
        size, upcast = part * at.element, (self.upcast or at.autocast) and at.element < 4
        wide = 4 if upcast else at.element
        forward = 3 * wide + (at.element + wide if upcast else 0)
        backward = 4 * wide + (wide + at.element if upcast else 0)
        return Work(
            (Memory(forward * count, launches=3 if upcast else 2),),
            (Memory(backward * count, launches=4 if upcast else 3),),
            output=4,
            input_gradients=(size,),
            saves=(
                Save(f"{self.name}.log_softmax", wide * part),
                self._targets(at),
                Save(f"{self.name}.total_weight", wide),
                *self._held(size, at),
            ),
            forward_temporary=wide * part if upcast else 0,
            # two gradients (of the picked entries, then of all); the result's own buffer counts against them
            backward_temporary=2 * wide * part - size,
        )

    def _compiled(self, at: Workload) -> Work:
        """Inductor's: the maximum, then the sum of exponentials; backward makes the gradient from logits and both."""
        fused = self._fused(at)
        size = self._part(at) * at.element
        extra = (Save(f"{self.name}.maximum", 4 * self._rows(at)), *self._held(size, at))
        return fused._replace(forward=(Memory(2 * self._count(at) * at.element, launches=2),), saves=(*fused.saves[:-1], *extra))

    def _fused(self, at: Workload) -> Work:
        size, traffic = self._part(at) * at.element, self._count(at) * at.element
        return Work(
            (Memory(traffic),),
            (Memory(2 * traffic),),
            output=4,
            input_gradients=(size,),
            saves=(
                Save(self.inputs[0], size),
                Save(f"{self.name}.log_sum_exp", 4 * self._rows(at)),
                self._targets(at),
                Save(self.output, 4, "pass"),
            ),
        )

    def _vocab_parallel(self, at: Workload) -> Work:
        count, part, tokens = self._count(at), self._part(at), self._rows(at)
        return Work(
            (Memory(12 * count, launches=4),),
            (Memory(10 * count, launches=3),),
            output=4,
            input_gradients=(part * at.element,),
            saves=(
                Save(f"{self.name}.exponentials", 4 * part),
                Save(f"{self.name}.target_mask", tokens),
                self._targets(at),
                Save(self.output, 4, "pass"),
            ),
        )

    def _simple(self, at: Workload) -> Work:
        size = self._count(at) * at.element
        forward: tuple[Kernel, ...] = (Memory(size),)
        backward: tuple[Kernel, ...] = (Memory(size),)
        saves = self._held(size, at)
        if self.kind == "mse":
            forward, backward = (Memory(2 * size),), (Memory(3 * size),)
            saves = (Save(self.inputs[0], size), Save(f"{self.name}.targets", size), *saves)
        return Work(forward, backward, output=4, input_gradients=(size,), saves=saves)
