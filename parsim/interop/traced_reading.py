"""A trace read into lines: the tables of operators, and what the reader knows at each call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from parsim.interop.traced_nodes import TracedNode
from parsim.interop.traced_sizes import Traces

# what the derivative of an elementwise function needs (PyTorch, tools/autograd/derivatives.yaml)
PASSES = frozenset({"add", "sub", "rsub", "to", "_to_copy", "clone", "contiguous", "reshape", "flatten"})
NOTHING = PASSES | frozenset({
    "neg", "sum", "mean", "cat", "stack", "pad", "constant_pad_nd", "cumsum", "roll", "flip", "repeat", "repeat_interleave", "tril", "triu",
    "pixel_shuffle", "pixel_unshuffle", "expand", "upsample_nearest2d", "upsample_bilinear2d", "scatter", "scatter_add", "index_add",
    "copy", "zeros_like", "ones_like", "full_like", "lift_fresh_copy", "im2col", "col2im", "unfold", "floor", "round", "sign",
    "adaptive_avg_pool2d",
})  # fmt: skip
INPUT = frozenset({
    "pow", "sin", "cos", "log", "log1p", "log2", "abs", "clamp", "clamp_min", "clamp_max", "hardtanh", "leaky_relu", "elu", "softplus",
    "mish", "hardswish", "hardsigmoid", "square", "gelu", "silu", "prelu", "var", "std", "prod", "erf", "layer_norm", "rms_norm",
    "group_norm",
    "batch_norm", "instance_norm", "celu", "relu6", "logit", "log_sigmoid", "logsigmoid", "glu", "avg_pool2d", "max_pool1d", "avg_pool1d",
    "maximum", "minimum", "atan", "tan", "smooth_l1_loss", "binary_cross_entropy_with_logits", "l1_loss", "huber_loss", "kl_div",
})  # fmt: skip
OUTPUT = frozenset(
    {"exp", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "softmax", "_softmax", "log_softmax", "_log_softmax", "reciprocal", "exp2"}
)
BOTH = frozenset({"mul", "div", "lerp", "addcmul", "addcdiv", "norm", "linalg_vector_norm", "logsumexp", "cosine_similarity", "cumprod"})
CHOICES = frozenset({
    "where", "masked_fill", "index", "index_select", "gather", "max", "min", "amax", "amin", "topk", "sort", "nll_loss", "index_put",
    "nll_loss_nd", "masked_select", "take_along_dim", "aminmax",
})  # fmt: skip
KNOWN = NOTHING | INPUT | OUTPUT | BOTH | CHOICES
"""memory-bound operators whose derivative is known here; choices keep masks or indices"""
PRODUCTS = frozenset({
    "linear", "addmm", "matmul", "mm", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d", "einsum",
    "scaled_dot_product_attention", "bilinear", "lstm", "gru", "rnn_tanh", "_grouped_mm", "_scaled_mm", "conv_transpose1d",
    "conv_transpose3d", "conv_tbc", "addbmm", "dot", "mv", "addmv", "inner", "outer", "chain_matmul", "linalg_multi_dot", "cdist",
})  # fmt: skip
"""operators with matrix products: a line for one of them that is a kernel is refused"""


@dataclass(slots=True)
class OperatorLine:
    """One operator of the model in the making."""

    op: str
    of: list[str]
    """tensors that training differentiates; `RAW` is what the module was given"""
    settings: dict[str, Any]
    name: str
    """of its result in the trace"""
    module: str
    parameters: list[str] = field(default_factory=list)
    """tensors of the trace"""
    grad: bool = True
    aten: str = ""
    shape: tuple[int, ...] = ()
    label: str = ""
    """what to call it"""
    piece: bool = False
    """its weight is a slice of a parameter, whose other slices others use"""

    @property
    def heavy(self) -> bool:
        """It multiplies or looks up."""
        return self.op in ("linear", "conv2d", "embedding", "attention", "product")


RAW = "input"


@dataclass(slots=True)
class TraceWalk:
    """The state of the walk over a trace."""

    traces: Traces
    root: dict[str, str] = field(default_factory=dict)
    """tensor -> the tensor whose memory it is"""
    grad: dict[str, bool] = field(default_factory=dict)
    lines: list[OperatorLine] = field(default_factory=list)
    unmapped: list[OperatorLine] = field(default_factory=list)
    readers: Counter[str] = field(default_factory=Counter)
    """how many operators read a tensor"""

    def rooted(self, name: str) -> str:
        return self.root.get(name, name)

    def parameter(self, name: str) -> str | None:
        """The parameter behind a tensor, if it is one."""
        root = self.rooted(name)
        return root if root in self.traces.small.parameters else None

    def differentiated(self, *names: str) -> list[str]:
        """Roots of those tensors that training differentiates and that are no parameters."""
        return [self.rooted(name) for name in names if self.grad.get(name) and self.parameter(name) is None]

    def raw(self, name: str) -> bool:
        """Whether a tensor was given to the module."""
        return self.rooted(name) in self.traces.small.inputs

    def line(self, node: TracedNode, op: str, of: list[str], settings: dict[str, Any], *parameters: str) -> OperatorLine:
        shape = node.tensor.shape if node.tensor is not None else ()
        return OperatorLine(op, of, settings, node.name, node.module, list(parameters), aten=node.op, shape=shape)
