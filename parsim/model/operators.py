"""All operators by name.

Rules of backward shared by all (Zero Bubble, 2401.10241): linear operators split into a gradient of the input and a
gradient of the weight; norms, activations and attention cores work wholly with the input gradient; an embedding has
only a weight gradient. Saved tensors are those of PyTorch's autograd (``tools/autograd/derivatives.yaml``);
`Workload.fused` selects what the fused kernels of Megatron-LM and Transformer Engine keep instead.
"""

from __future__ import annotations

from parsim.model.attention import AttentionCore, QKNorm, Rotary, RotaryTables
from parsim.model.convolution import BatchNorm, Conv2d, Pool
from parsim.model.elementwise import (
    ACTIVATIONS,
    Activation,
    Concatenate,
    Dropout,
    Flatten,
    GatedActivation,
    Prefix,
    ResidualAdd,
    SelectToken,
    SharedGate,
)
from parsim.model.linear import Embedding, Linear
from parsim.model.loss import Loss, Softcap
from parsim.model.mixture import Combine, Dispatch, GroupedLinear, Router, mixture_of_experts
from parsim.model.norms import LayerNorm, RMSNorm

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "AttentionCore",
    "BatchNorm",
    "Combine",
    "Concatenate",
    "Conv2d",
    "Dispatch",
    "Dropout",
    "Embedding",
    "Flatten",
    "GatedActivation",
    "GroupedLinear",
    "LayerNorm",
    "Linear",
    "Loss",
    "Pool",
    "Prefix",
    "QKNorm",
    "RMSNorm",
    "ResidualAdd",
    "Rotary",
    "RotaryTables",
    "Router",
    "SelectToken",
    "SharedGate",
    "Softcap",
    "mixture_of_experts",
]
