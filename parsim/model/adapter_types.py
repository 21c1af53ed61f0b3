"""What stands between a 16-bit layer and its adapter: casts, scaling and the sum, by the type of the adapter's parameters.

PEFT makes adapters of 16-bit models fp32 parameters unless told not to (huggingface/peft, tuners/tuners_utils.py, cast_adapter_dtype:
autocast_adapter_dtype=True). Its linear layer then casts what it reads to their type, multiplies, and adds what comes out to the base's
output; the sum of both types is fp32 and cast back (tuners/lora/layer.py, Linear.forward):

    x = x.to(fp32);  result = result + lora_B(lora_A(dropout(x))) * scaling;  result.to(16 bits)

Without autocast both products are fp32 ones, on CUDA cores (PyTorch: torch.backends.cuda.matmul.allow_tf32 is False). A keeps its fp32
input, and every layer makes its own: those of queries, keys and values share nothing. Under torch.autocast the products cast their
operands back to 16 bits, so that each A keeps a 16-bit copy of its own. Backward, casts are cast back, and the sum hands on a cast
gradient to its 16-bit side.

Beside bitsandbytes' layers (tuners/lora/bnb.py) nothing is cast under autocast; without it the scaled output is cast before the sum.

torch.compile leaves one cast of a layer's input, joins the sum with what is around it, and takes casts out that undo each other.
Other stacks' adapters have the type of the model, and nothing is cast (torchtune, litgpt, Megatron-Bridge, NeMo).
"""

from __future__ import annotations

from typing import NamedTuple

from parsim.kernel import MIXED, WIDENED, Kernel, Memory
from parsim.model.workload import Workload

FP32 = 4
"""bytes"""


class Beside(NamedTuple):
    """The kernels of one adapter but its six products, and what they keep."""

    dtype: str
    """of the products"""
    element: int
    """bytes of an element of what they read"""
    own_input: bool
    """A keeps a copy of the input, not the input"""
    entering: tuple[Kernel, ...]
    """before A"""
    leaving: tuple[Kernel, ...]
    """behind B"""
    gradient: tuple[Kernel, ...]
    """before the gradient of B's input"""
    returning: tuple[Kernel, ...]
    """behind the gradient of A's input"""
    forward_held: int
    """bytes of temporary tensors beside the layer's output"""
    backward_held: int
    """and beside the gradients of output and input"""


def widened(count: float, element: int) -> Memory:
    """A cast of `count` elements to fp32."""
    return Memory((element + FP32) * count, vector=WIDENED * count)


def narrowed(count: float, element: int) -> Memory:
    """A cast of `count` fp32 elements to 16 bits."""
    return Memory((element + FP32) * count)


def dropped(count: float, element: int) -> Memory:
    """Dropout, forward or backward: a read, a write and a mask of a byte."""
    return Memory((2 * element + 1) * count)


class AdapterSizes(NamedTuple):
    """Elements of one adapter's tensors on a rank."""

    entering: int
    """of the input as the rank keeps it"""
    read: int
    """of the input as A multiplies it"""
    out: int


def beside(at: Workload, sizes: AdapterSizes, *, fp32: bool, quantised: bool, dropout: bool) -> Beside:
    """What surrounds the products of an adapter with fp32 parameters, or with the model's; `quantised`: beside bitsandbytes' weights."""
    if not fp32 or (at.autocast and (quantised or at.compiled)):
        return _plain(at, sizes, dropout=dropout)
    if at.autocast:
        return _autocast(at, sizes, dropout=dropout)
    if at.compiled:
        return _compiled(at, sizes, dropout=dropout)
    (entering, read, out), e = sizes, at.element
    drop = (dropped(entering, FP32),) if dropout else ()
    scale = Memory(2.0 * FP32 * out)
    tail = (narrowed(out, e), Memory(3.0 * out * e)) if quantised else (_mixed_sum(out, e), narrowed(out, e))
    return Beside(
        "fp32",
        FP32,
        own_input=True,
        entering=(widened(entering, e), *drop),
        leaving=(scale, *tail),
        gradient=(widened(out, e), scale) if quantised else (widened(out, e), narrowed(out, e), scale),
        returning=(*drop, narrowed(read, e), Memory(3.0 * read * e)),
        # B A x before and after it is scaled, or that and the fp32 sum; the cast input, where what is left of it is kept
        forward_held=2 * FP32 * out + FP32 * entering * dropout,
        backward_held=max(2 * FP32 * out, (1 + dropout) * FP32 * read),
    )


def _plain(at: Workload, sizes: AdapterSizes, *, dropout: bool) -> Beside:
    """Everything has the type of the activations."""
    (entering, read, out), e = sizes, at.element
    drop = (dropped(entering, e),) if dropout else ()
    scale = Memory(0, launches=0) if at.fused else Memory(2.0 * out * e)
    return Beside(
        "bf16" if at.narrow else at.dtype,
        e,
        own_input=False,
        entering=drop,
        leaving=(scale, Memory(3.0 * out * e)),
        gradient=(scale,),
        returning=(*drop, Memory(3.0 * read * e)),
        # B A x before and after it is scaled, beside the result; backward the scaled gradient, then the input's second part
        forward_held=(1 if at.fused else 2) * out * e,
        backward_held=max(out, read) * e,
    )


def _autocast(at: Workload, sizes: AdapterSizes, *, dropout: bool) -> Beside:
    """The input is cast to fp32 by the layer, and back to 16 bits by its product; the fp32 one is there until the layer has returned."""
    (entering, read, out), e = sizes, at.element
    drop = (dropped(entering, FP32),) if dropout else ()
    scale = Memory(2.0 * out * e)
    return Beside(
        at.dtype,
        e,
        own_input=True,
        entering=(widened(entering, e), *drop, narrowed(entering, e)),
        leaving=(scale, Memory(3.0 * out * e)),
        gradient=(scale,),
        returning=(widened(read, e), *drop, narrowed(read, e), Memory(3.0 * read * e)),
        forward_held=FP32 * entering + max(2 * out * e, FP32 * entering * dropout),
        backward_held=max(out * e, (1 + dropout) * FP32 * read),
    )


def _compiled(at: Workload, sizes: AdapterSizes, *, dropout: bool) -> Beside:
    """fp32 products of a compiled layer: scaling, sum and cast are one kernel."""
    (entering, read, out), e = sizes, at.element
    return Beside(
        "fp32",
        FP32,
        own_input=True,
        entering=(Memory((e + FP32 + dropout) * entering),),
        leaving=(Memory((FP32 + 2.0 * e) * out),),
        gradient=(Memory((FP32 + e) * out),),
        returning=(Memory((FP32 + 2.0 * e + dropout) * read),),
        forward_held=FP32 * out,
        backward_held=FP32 * max(out, read),
    )


def _mixed_sum(count: float, element: int) -> Memory:
    return Memory((element + 2.0 * FP32) * count, vector=MIXED * count)
