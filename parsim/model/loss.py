"""Losses: the last operator of a model; its output is one fp32 number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from parsim.kernel import WIDENED, Kernel, Memory
from parsim.model.linear import chunked, parts
from parsim.model.model import Layer, Save, Work
from parsim.model.workload import Split, Workload, elements, rows


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
class ScaledLogits(Layer):
    """Logits times a constant (Cohere's ``logit_scale``, Granite's ``logits_scaling``): a kernel each way, nothing is kept."""

    classes: int
    split: Split = "vocab"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways, where it does not join the loss; one of the workload's `loss_chunks` parts exists at a time."""
        count = elements(at, self.classes, self.split)
        part, traffic = -(-count // parts(at)) * at.element, count * at.element
        if chunked(at):
            return Work((Memory(4 * traffic, launches=2 * parts(at)),), output=part, input_gradients=(0,), forward_temporary=part)
        if at.fused:
            return Work(input_gradients=(0,))
        return Work((Memory(2 * traffic),), (Memory(2 * traffic),), output=part, input_gradients=(part,))


_CACHED_ROW = 2**16
"""bytes of logits of one token that a log-softmax reads from memory only once, because the rows at hand stay in the L2 cache"""


def _log_softmax(count: int, row: int, element: int, *, cast: bool) -> tuple[Memory, ...]:
    """PyTorch's forward over `count` logits of `element` bytes, `row` of them per token: a `cast` to fp32, a log-softmax, and the pick.

    The log-softmax reads for the maximum, for the sum and for the result (aten/src/ATen/native/cuda/SoftMax.cu, cunn_SoftMaxForward).
    Published: 16384 rows of 131072, 65536 and 16384 fp32 logits take 20.7, 10.6 and 2.0 ms on an A100 (linkedin/Liger-Kernel,
    benchmark/data/all_benchmark_data.csv): four passes over them, four, and two.
    """
    wide = 4 if cast else element
    passes = 4 if row * wide > _CACHED_ROW else 2
    kernels = (Memory(passes * wide * count, launches=2),)
    return (Memory((element + wide) * count, vector=WIDENED * count), *kernels) if cast else kernels


def _last(work: Work) -> int:
    """What is left of backward's scratch when it makes its result."""
    return work.backward_scratch[-1] if work.backward_scratch else 0


@dataclass(frozen=True, slots=True)
class Loss(Layer):
    """cross_entropy | mse | sum over `classes` outputs per token (or per sample).

    The kernel of cross-entropy is the workload's `loss_kernel`:
    eager, PyTorch's: the log-softmax is kept, in fp32 where logits are `upcast`; the script holds the logits it was returned; of
    sharded logits DTensor's loss_parallel;
    eager-chunks, PyTorch's on chunks of tokens: fp32 logits and log-softmax of all are kept, gradients are those of one chunk (litgpt's
    chunked_cross_entropy in litgpt/utils.py; Lightning's precision plugins return fp32: convert_output);
    compiled, PyTorch's under torch.compile: keeps the logits and two fp32 numbers per row;
    fused: one kernel that keeps the logits and the fp32 log-sum-exp of each row (apex's and flash-attention's cross entropy, which
    read the logits for the maximum and for the sum: cunn_SoftMaxXEntropyForward in csrc/xentropy);
    vocab-parallel: Megatron-LM's, which turns the logits into fp32 exponentials in place and keeps them, 1/t per rank;
    vocab-parallel-fused: the same with its elementwise steps joined (--cross-entropy-loss-fusion);
    te: Transformer Engine's, which writes the gradient over the logits in forward (--cross-entropy-fusion-impl te).
    With `loss_chunks` the gradient of each part of the logits is made before the next part (`parsim.model.linear`): all kernels run
    in forward, nothing is kept or returned.
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
            kernels = {"eager": self._eager, "compiled": self._compiled, "fused": self._fused, "vocab-parallel": self._vocab_parallel}
            kernels |= {"vocab-parallel-fused": self._vocab_parallel, "eager-chunks": self._eager_chunks, "te": self._te}
            work = kernels[at.loss_kernel](at)
            if self.split == "vocab" and chunked(at):
                work = self._in_parts(at, work)
        else:
            work = self._simple(at)
        return work

    def metric(self, at: Workload) -> tuple[tuple[Memory, ...], int]:
        """A metric of the logits that a trainer computes behind backward: PyTorch's cross entropy in fp32 without a gradient.

        Returns its kernels (cast, log-softmax, pick) and the bytes of what they make [B]. The metrics of MosaicML's Composer are
        ``torch.nn.CrossEntropyLoss`` under autocast (composer/metrics/nlp.py, LanguageCrossEntropy; composer/trainer/trainer.py,
        _eval_train_metrics).
        """
        count, cast = self._count(at), at.element < 4
        return _log_softmax(count, count // self._rows(at), at.element, cast=cast), (8 if cast else 4) * count

    def _count(self, at: Workload) -> int:
        return elements(at, self.classes, self.split, self.per_sample)

    def _part(self, at: Workload) -> int:
        """Elements that exist at a time."""
        count = parts(at) if self.split == "vocab" else 1
        return -(-self._rows(at) // count) * (self._count(at) // self._rows(at))

    def _in_parts(self, at: Workload, whole: Work) -> Work:
        """`whole` (with the memory of one part) as it runs part by part: backward's kernels follow forward's at once."""
        kept_in_part = sum(save.bytes for save in whole.saves if save.tensor not in (*self.inputs, self.output))
        in_place = at.loss_kernel in ("fused", "compiled", "te")  # the gradient takes the place of the logits
        gradient = 0 if in_place else whole.input_gradients[0]
        passes = [kernel for kernel in (*whole.forward, *whole.backward_input) if isinstance(kernel, Memory)]
        count = parts(at)
        return Work(
            tuple(replace(kernel, bytes=kernel.bytes / count, vector=kernel.vector / count) for kernel in passes) * count,
            output=4,
            input_gradients=(0,),
            saves=(Save(self.output, 4, "pass"),),
            forward_temporary=kept_in_part + max(whole.forward_temporary, sum(whole.backward_scratch), _last(whole) + gradient),
        )

    def _rows(self, at: Workload) -> int:
        return rows(at, self.split, self.per_sample)

    def _targets(self, at: Workload) -> Save:
        return Save(f"{self.name}.targets", 8 * (self._rows(at) + (self.shifted and at.batch == 1)))

    def _held(self, size: int, at: Workload) -> tuple[Save, ...]:
        loss = Save(self.output, 4, "pass")
        whole = self.hold_output and at.holds_logits and (at.loss_chunks == 1 or self.split != "vocab")
        return (Save(self.inputs[0], size, "pass"), loss) if whole else (loss,)

    def _eager(self, at: Workload) -> Work:
        count, part = self._count(at), self._part(at)
        size, upcast = part * at.element, (self.upcast or at.autocast) and at.element < 4
        wide = 4 if upcast else at.element
        # DTensor's loss_parallel subtracts the maximum first, and makes backward's exponentials a tensor of their own: see _log_softmax
        # and _nll_loss_and_log_softmax_backward of PyTorch's tensor parallelism, file loss
        sharded = at.tensor > 1 and self.split == "vocab"
        # zeros, the picked entries among them; the sum of a row's gradients; gradients and log-softmax read, the result written
        backward = 5 * wide + (wide + at.element if upcast else 0)
        return Work(
            _log_softmax(count, count // self._rows(at), at.element, cast=upcast),
            (Memory(backward * count, launches=4 if upcast else 3),),
            output=4,
            input_gradients=(size,),
            saves=(
                Save(f"{self.name}.log_softmax", wide * part),
                self._targets(at),
                Save(f"{self.name}.total_weight", wide),
                *self._held(size, at),
            ),
            forward_temporary=(upcast + sharded) * wide * part,
            # two gradients, of the picked entries, then of all; the latter is the result where nothing is cast
            backward_scratch=(wide * part,) * (1 + upcast + sharded),
        )

    def _eager_chunks(self, at: Workload) -> Work:
        """Forward keeps what all chunks need; backward ends with one before it begins the next, so that its tensors are small."""
        whole, part = self._eager(at), self._part(at)
        wider = (4 - at.element) * part  # the fp32 logits take the place of the 16-bit ones before the log-softmax is there
        logits = (Save(self.inputs[0], at.element * part, "pass"), *((Save(f"{self.name}.wider", wider, "pass"),) if wider else ()))
        kept = (Save(f"{self.name}.log_softmax", 4 * part), self._targets(at), *logits, Save(self.output, 4, "pass"))
        return whole._replace(input_gradients=(0,), saves=kept, forward_temporary=0, backward_scratch=())

    def _compiled(self, at: Workload) -> Work:
        """Inductor's: the maximum, then the sum of exponentials; backward makes the gradient from logits and both."""
        fused = self._fused(at)
        size = self._part(at) * at.element
        extra = (Save(f"{self.name}.maximum", 4 * self._rows(at)), *self._held(size, at))
        return fused._replace(forward=(Memory(2 * self._count(at) * at.element, launches=2),), saves=(*fused.saves[:-1], *extra))

    def _fused(self, at: Workload) -> Work:
        size, traffic = self._part(at) * at.element, self._count(at) * at.element
        return Work(
            (Memory(2 * traffic),),
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
        """Megatron-LM's, step by step in fp32 (megatron/core/tensor_parallel/cross_entropy.py).

        Forward casts, finds the maximum (4 B a logit), subtracts it, takes exponentials (8 B each, or together), sums (4 B) and divides
        (8 B); backward multiplies (8 B) and casts back. Published for 8192 x 131072 bf16 logits on an H100 (linkedin/Liger-Kernel,
        benchmark/data/all_benchmark_data.csv, megatron_cross_entropy): 15.8 and 5.4 ms, fused 11.8 and 6.4 ms.
        """
        count, part, tokens = self._count(at), self._part(at), self._rows(at)
        fused = at.loss_kernel == "vocab-parallel-fused"
        cast = 4 + at.element if at.element < 4 else 0
        return Work(
            (Memory((24 if fused else 32) * count + cast * count, launches=8 if fused else 12),),
            (Memory((8 + cast) * count, launches=4),),
            output=4,
            input_gradients=(part * at.element,),
            saves=(
                Save(f"{self.name}.exponentials", 4 * part),
                Save(f"{self.name}.target_mask", tokens),
                self._targets(at),
                Save(self.output, 4, "pass"),
            ),
        )

    def _te(self, at: Workload) -> Work:
        """Transformer Engine's: logits read for maximum and sum, then read and overwritten by their gradient; backward scales that.

        Three numbers a row lie beside it (transformer_engine/common/triton/cross_entropy.py: online_softmax_kernel,
        cross_entropy_kernel, element_mul_kernel).
        """
        fused, traffic = self._fused(at), self._count(at) * at.element
        rows = Save(f"{self.name}.row_sums", 12 * self._rows(at))
        saves = (fused.saves[0], rows, *fused.saves[2:])
        return fused._replace(forward=(Memory(3 * traffic, launches=2),), saves=saves)

    def _simple(self, at: Workload) -> Work:
        size = self._count(at) * at.element
        forward: tuple[Kernel, ...] = (Memory(size),)
        backward: tuple[Kernel, ...] = (Memory(size),)
        saves = self._held(size, at)
        if self.kind == "mse":
            forward, backward = (Memory(2 * size),), (Memory(3 * size),)
            saves = (Save(self.inputs[0], size), Save(f"{self.name}.targets", size), *saves)
        return Work(forward, backward, output=4, input_gradients=(size,), saves=saves)
