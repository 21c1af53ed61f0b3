"""The head under a chunked loss: logits, loss and their gradients, one part of the tokens after the other.

Fused linear cross-entropy (Liger Kernel, 2410.10989, section 3.2; Cut Cross-Entropy, 2411.09009): for each part the
logits are made, turned into their gradient, and multiplied at once into the gradients of the hidden states and of the
weight. All three products so run in the forward pass; between forward and backward stay the gradient of the hidden states
(T h e) and of the weight (V h e), no logits. Backward has nothing left to do but to hand them on.
"""

from __future__ import annotations

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.model import Save, Work, Workload


def parts(at: Workload) -> int:
    """Parts in which the tokens of a micro-batch pass through head and loss."""
    return min(at.loss_chunks, at.tokens)


def chunked(at: Workload) -> bool:
    """Whether head and loss work in parts that make their own gradients; without backward only the logits are split."""
    return at.loss_chunks > 1 and at.backward


def head_work(name: str, at: Workload, classes: int, width: int, bias: int, *, trainable: bool) -> Work:
    """The product of a language model's head under a chunked loss, with both its gradients, on `classes` outputs per token."""
    count = parts(at)
    rows, operand = -(-at.tokens // count), 1 if at.dtype == "fp8" else at.element
    hidden, weight = at.tokens * width * at.element, classes * width * at.element
    kernels: tuple[Kernel, ...] = (
        Gemm(rows, classes, width, dtype=at.dtype, element=operand),
        Gemm(rows, width, classes, dtype=at.dtype, element=operand, layout="NN"),
    )
    saves: tuple[Save, ...] = (Save(f"{name}.hidden_gradient", hidden),)
    if trainable:
        # the product adds to what the parts before have made: one more read of it
        product = Gemm(classes, width, rows, dtype=at.dtype, element=operand, weight_gradient=True, layout="NT")
        kernels += (product, Memory(weight, launches=0))
        saves += (Save(f"{name}.weight_gradient", weight),)
        if bias:
            kernels += (Memory(rows * bias * at.element),)
    return Work(
        forward=kernels * count,
        output=rows * classes * at.element,
        input_gradients=(0,),
        saves=saves,
        ready_gradient=saves[0].tensor,
    )
