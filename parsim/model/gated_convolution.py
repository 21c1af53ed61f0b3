"""Gated short convolutions in place of attention (LFM2, 2511.23404).

One product of the layer's input makes three tensors as wide as the mixer: a gate before the convolution, one behind it, and what both gate.
A causal depthwise convolution over a few tokens stands between the two products element by element, and a product leads back.
Structure: huggingface/transformers ``models/lfm2/modeling_lfm2.py``, Lfm2ShortConv.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.layer_kinds import LinearMixer
from parsim.model.linear import Linear
from parsim.model.linear_attention import ShortConvolution
from parsim.model.model import Layer, Save, Work
from parsim.model.row import Row
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements


@dataclass(frozen=True, slots=True)
class GateProduct(Layer):
    """The product of `features` elements with as many of a tensor `held` wide.

    `inputs` is (tensor that holds both), or (tensor that holds one, the other). Both factors are kept.
    """

    features: int
    held: int
    split: Split = "column"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways: two factors read, one product written; in backward a product for each factor."""
        size, held = (elements(at, width, self.split) * at.element for width in (self.features, self.held))
        saves = (Save(self.inputs[0], held), *(Save(name, size) for name in self.inputs[1:]))
        gradients = (held, *(size for _ in self.inputs[1:]))
        return Work((Memory(3 * size),), (Memory(6 * size, launches=2),), output=size, input_gradients=gradients, saves=saves)


def add_gated_convolution(config: TransformerConfig, mixer: LinearMixer, row: Row, source: str, *, alone: bool) -> None:
    """Adds the operators from the normed input `source` up to the projection that joins the residual stream."""
    width, bias = mixer.values, mixer.convolution_bias
    projected = row.add(Linear("mixer_in", (source,), "mixer_in", config.hidden, (3 * width,), bias, "column", after_norm=alone))
    row.add(GateProduct("mixer_gate_in", (projected,), "mixer_gate_in", width, 3 * width))
    row.add(ShortConvolution("mixer_convolution", (row.last,), "mixer_convolution", width, mixer.convolution, bias))
    row.add(GateProduct("mixer_gate_out", (projected, row.last), "mixer_gate_out", width, 3 * width))
    row.add(Linear("mixer_out", (row.last,), "mixer_out", width, (config.hidden,), bias, "row"))
