"""Operators of a traced module: those of other models on a stated number of rows per sample, and two that no textbook names.

A trace knows shapes, not what their axes mean. Each operator so has its own rows per sample (tokens, windows, pixels), and a
sample has no sequence of its own. `once` is work that does not grow with the batch, such as a table of positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.attention import AttentionCore
from parsim.model.convolution import BatchNorm, Conv2d, Pool
from parsim.model.elementwise import Activation, Dropout, ResidualAdd
from parsim.model.linear import Embedding, Linear
from parsim.model.loss import Loss
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.workload import Split, Workload


def _sized(at: Workload, rows: int, *, once: bool = False) -> Workload:
    """The workload that an operator with `rows` rows per sample sees."""
    return replace(at, batch=1 if once else at.batch, sequence=rows)


def _fed(operator: Layer) -> tuple[str, ...]:
    """The tensors of an operator; one that reads only what training does not differentiate keeps a tensor of its own."""
    return operator.inputs or (f"{operator.name}.given",)


def _alone(operator: Layer, work: Work) -> Work:
    """`work` without a gradient where nothing before it is trained."""
    return work if operator.inputs else work._replace(input_gradients=())


@dataclass(frozen=True, slots=True)
class TracedLinear(Linear):
    """A product with a weight on `rows` rows per sample."""

    rows: int = 1
    once: bool = False

    def training_work(self, at: Workload) -> Work:
        """As `Linear`."""
        return _alone(self, Linear.training_work(replace(self, inputs=_fed(self)), _sized(at, self.rows, once=self.once)))


@dataclass(frozen=True, slots=True)
class TracedEmbedding(Embedding):
    """A look-up of `rows` rows per sample."""

    rows: int = 1
    once: bool = False

    def training_work(self, at: Workload) -> Work:
        """As `Embedding`."""
        return _alone(self, Embedding.training_work(replace(self, inputs=_fed(self)), _sized(at, self.rows, once=self.once)))


@dataclass(frozen=True, slots=True)
class TracedLayerNorm(LayerNorm):
    """A layer norm of `rows` rows per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `LayerNorm`."""
        return LayerNorm.training_work(self, _sized(at, self.rows))


@dataclass(frozen=True, slots=True)
class TracedRMSNorm(RMSNorm):
    """PyTorch's own RMSNorm of `rows` rows per sample: one kernel, in eager mode too."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As a fused `RMSNorm` that reads its input twice where other norms do."""
        return RMSNorm.training_work(self, replace(_sized(at, self.rows), fused=True, two_pass_norm=at.norm_reads_twice))


@dataclass(frozen=True, slots=True)
class TracedActivation(Activation):
    """An elementwise function of `rows` rows per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `Activation`."""
        return Activation.training_work(self, _sized(at, self.rows))


@dataclass(frozen=True, slots=True)
class TracedDropout(Dropout):
    """Dropout of `rows` rows per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `Dropout`."""
        return Dropout.training_work(self, _sized(at, self.rows))


@dataclass(frozen=True, slots=True)
class TracedSum(ResidualAdd):
    """A sum of tensors of equal shape, `rows` rows per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `ResidualAdd`."""
        return ResidualAdd.training_work(self, _sized(at, self.rows))


@dataclass(frozen=True, slots=True)
class TracedAttention(AttentionCore):
    """scaled_dot_product_attention over `rows` positions per sample, `groups` times (windows, frames)."""

    rows: int = 1
    groups: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `AttentionCore`."""
        return AttentionCore.training_work(self, replace(at, batch=at.batch * self.groups, sequence=self.rows))


@dataclass(frozen=True, slots=True)
class TracedConv2d(Conv2d):
    """A convolution of `rows` images per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `Conv2d`."""
        return _alone(self, Conv2d.training_work(replace(self, inputs=_fed(self)), replace(at, batch=at.batch * self.rows)))


@dataclass(frozen=True, slots=True)
class TracedBatchNorm(BatchNorm):
    """A batch norm of `rows` images per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `BatchNorm`."""
        return BatchNorm.training_work(self, replace(at, batch=at.batch * self.rows))


@dataclass(frozen=True, slots=True)
class TracedPool(Pool):
    """Pooling of `rows` images per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `Pool`."""
        return Pool.training_work(self, replace(at, batch=at.batch * self.rows))


@dataclass(frozen=True, slots=True)
class TracedLoss(Loss):
    """A loss over `rows` rows per sample."""

    rows: int = 1

    def training_work(self, at: Workload) -> Work:
        """As `Loss`."""
        return Loss.training_work(self, _sized(at, self.rows))


class Size(NamedTuple):
    """A tensor of one sample."""

    elements: int = 0
    """of the type of activations"""
    bytes: int = 0
    """of tensors whose type the precision does not decide: masks, indices, what a 16-bit module computes in fp32"""

    once: int = 0
    """elements that all samples share"""
    once_bytes: int = 0

    def at(self, workload: Workload) -> int:
        """Bytes for a micro-batch."""
        return workload.batch * (self.elements * workload.element + self.bytes) + self.once * workload.element + self.once_bytes


NOTHING = Size()


@dataclass(frozen=True, slots=True)
class Product(Layer):
    """A product of two activations, `count` times per sample: [m, k] x [k, n]. Keeps both; each gradient is a product more.

    `inputs` are those of the two that training differentiates.
    """

    m: int
    n: int
    k: int
    count: int = 1
    left: bool = True
    """the one input that training differentiates is [m, k]"""
    once: bool = False
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """2 m n k operations forward, and again for the gradient of each input."""
        times = self.count * (1 if self.once else at.batch)
        first, second, result = (times * size * at.element for size in (self.m * self.k, self.k * self.n, self.m * self.n))

        def product(m: int, n: int, k: int, layout: str = "TN") -> Gemm:
            return Gemm(m, n, k, times, at.dtype, at.element, layout=layout)

        gradients = (product(self.m, self.k, self.n, "NN"), first), (product(self.k, self.n, self.m, "NT"), second)
        asked = gradients if len(self.inputs) == 2 else gradients[:1] if self.left else gradients[1:]
        sizes = tuple(size for _, size in asked)[: len(self.inputs)]
        return Work(
            (product(self.m, self.n, self.k),),
            tuple(kernel for kernel, _ in asked) if self.inputs else (),
            output=result,
            input_gradients=sizes,
            # the gradient of one needs the other: a constant other is there anyway
            saves=tuple(Save(name, size) for name, size in zip(self.inputs, sizes, strict=True)) if len(self.inputs) == 2 else (),
        )


@dataclass(frozen=True, slots=True)
class TracedKernel(Layer):
    """One memory-bound kernel of eager PyTorch: it reads its inputs, writes its result, and keeps what its derivative needs.

    What is kept is that of PyTorch's ``tools/autograd/derivatives.yaml``. Backward reads the gradient and what is kept, and writes a
    gradient per input; inputs of `passes` get the gradient as it is.
    """

    reads: tuple[Size, ...]
    """of each of `inputs`"""
    writes: Size
    keeps: tuple[str, ...] = ()
    """of inputs and output"""
    kept: Size = NOTHING
    """what it keeps beside them: a mask, indices"""
    passes: bool = False
    """a sum: an input as large as the result gets the result's gradient"""
    also: Size = NOTHING
    """what it reads beside its inputs and parameters"""
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """its parameters: name, shape"""
    tied: str = ""
    launches: int = 1
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Operands that are learned (scales, position tables)."""
        return tuple(Parameter(name, shape, tied=self.tied, trainable=self.trainable) for name, shape in self.tensors)

    def training_work(self, at: Workload) -> Work:
        """Operands once each way."""
        reads, output = [size.at(at) for size in self.reads], self.writes.at(at)
        learned = sum(parameter.count for parameter in self.parameters()) * at.weight_element
        sizes = dict(zip(self.inputs, reads, strict=True)) | {self.output: output}
        gradients = tuple(0 if self.passes and size == output else size for size in reads)
        kept = tuple(Save(name, sizes[name]) for name in self.keeps)
        if own := self.kept.at(at):
            kept += (Save(f"{self.name}.kept", own),)
        made = sum(gradients) + (learned if self.trainable else 0)
        backward: tuple[Kernel, ...] = ()
        if made:
            backward = (Memory(output + sum(save.bytes for save in kept) + made, launches=self.launches),)
        return Work(
            (Memory(sum(reads) + output + learned + self.also.at(at), launches=self.launches),),
            backward,
            output=output,
            input_gradients=gradients,
            saves=kept,
        )
