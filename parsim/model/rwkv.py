"""RWKV-4 (2305.13048): layers that mix each token with the one before it, and a recurrence of single channels in place of attention.

wkv_t = (sum over i < t of e^(-(t-1-i) w + k_i) v_i + e^(u + k_t) v_t) / (the same without v): element by element, in fp32, one pass over
the tokens. No matrix product is made of it, so that the FLOP of a layer are those of its projections, 2 x 13 h^2 per token (section 4.1
there, with an MLP of 4 h). Structure: huggingface/transformers ``models/rwkv``, whose CUDA kernel keeps keys, values and its output.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.elementwise import Activation
from parsim.model.layer_kinds import LinearMixer
from parsim.model.linear import Linear
from parsim.model.linear_attention import LinearAttention, OutputGate, ScanFlop
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.row import Row
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements

STATE = 3
"""numbers of a channel that are passed from token to token: numerator, denominator, and the largest exponent so far"""
_FLOP = 23.0
"""of a channel at one token (``kernels/rwkv/wkv_cuda.cu``, kernel_forward): 17 sums and products, 2 comparisons, 4 exponentials"""


@dataclass(frozen=True, slots=True)
class TokenShift(Layer):
    """A copy of a tensor in which every token has the row of the one before it."""

    features: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        size = elements(at, self.features) * at.element
        return Work((Memory(2 * size),), (Memory(2 * size),), output=size, input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class TokenMix(Layer):
    """x m + shifted (1 - m) with a weight m per feature; `inputs` is (x, shifted), which are kept for it."""

    features: int
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [features]."""
        return (Parameter(f"{self.name}.time_mix", (self.features,), trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways: two products and a sum, in one kernel where kernels are fused."""
        size = elements(at, self.features) * at.element
        forward, backward = (
            (Memory(3 * size), Memory(3 * size)) if at.fused else (Memory(7 * size, launches=3), Memory(4 * size, launches=2))
        )
        weight = (Memory(10 * size, launches=4),) if self.trainable else ()
        saves = tuple(Save(name, size, "weight") for name in self.inputs) if self.trainable else ()
        return Work((forward,), (backward,), weight, size, (size, size), saves)


@dataclass(frozen=True, slots=True)
class TimeMixing(LinearAttention):
    """The recurrence; `inputs` is (keys, values). heads: channels; key_dim: `STATE`; value_dim: 1."""

    def parameters(self) -> tuple[Parameter, ...]:
        """Decay (w) and bonus of the current token (u) of every channel."""
        return tuple(Parameter(f"{self.name}.{name}", (self.heads,), 0, trainable=self.trainable) for name in ("time_decay", "time_first"))

    def flop(self, at: Workload | None = None) -> ScanFlop:
        """No matrix products."""
        return ScanFlop(0.0, 0.0)

    def training_work(self, at: Workload) -> Work:
        """One kernel each way, which reads keys and values (and the output and its gradient) and writes as much as it makes."""
        count = elements(at, self.heads)
        size = count * at.element
        forward = Memory(3 * size, flop=_FLOP * count)
        # states are made again on the way there, gradients on the way back
        backward = Memory(6 * size, flop=3 * _FLOP * count)
        saves = (Save(self.inputs[0], size), Save(self.inputs[1], size), Save(self.name, size))
        return Work((forward,), (backward,), output=size, input_gradients=(size, size), saves=saves)


def add_time_mixing(config: TransformerConfig, mixer: LinearMixer, row: Row, source: str) -> None:
    """From the normed input `source` up to the projection that joins the residual stream."""
    width = mixer.heads
    key, value, receptance = (_mixed(config, row, source, f"mixer_{name}", width) for name in ("key", "value", "receptance"))
    core = row.add(TimeMixing("mixer_core", (key, value), "mixer_core", "rwkv", width, 1, STATE, 1, split="replicated"))
    gate = row.add(OutputGate("mixer_gate", (core, receptance), "mixer_gate", width, width, split="replicated"))
    row.add(Linear("mixer_out", (gate,), "mixer_out", width, (config.hidden,), bias=False))


def add_channel_mixing(config: TransformerConfig, row: Row, source: str) -> None:
    """The MLP: squared ReLU between two products, gated by a projection of its own."""
    up = _mixed(config, row, source, "mlp_up", config.mlp)
    activation = row.add(Activation("mlp_activation", (up,), "mlp_activation", config.mlp, config.activation, "replicated", "mlp"))
    receptance = _mixed(config, row, source, "mlp_receptance", config.hidden)
    down = row.add(Linear("mlp_down", (activation,), "mlp_down", config.mlp, (config.hidden,), bias=False))
    row.add(OutputGate("mlp_gate", (down, receptance), "mlp_gate", config.hidden, config.hidden, split="replicated"))


def _mixed(config: TransformerConfig, row: Row, source: str, name: str, width: int) -> str:
    """A projection of tokens that are mixed with those before them."""
    shifted = f"{name.partition('_')[0]}_shift"
    if not any(operator.name == shifted for operator in row.operators):
        row.add(TokenShift(shifted, (source,), shifted, config.hidden))
    mixed = row.add(TokenMix(f"{name}_mix", (source, shifted), f"{name}_mix", config.hidden))
    return row.add(Linear(name, (mixed,), name, config.hidden, (width,), bias=False))
