"""What the layers of one architecture may differ in: which of them attend, to which keys, and which carry a state instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from parsim.model.transformer import TransformerConfig

LETTERS = {
    "*": "attention to all keys", "W": "attention to a sliding window", "M": "the mixer", "-": "an MLP alone", "E": "experts alone",
    "H": "attention to all keys and the mixer side by side",
}  # fmt: skip
"""of `TransformerConfig.layer_pattern`; those of Megatron-LM's --hybrid-layer-pattern, W, and H (Falcon-H1, 2507.22448)"""
ATTENTION = "*WH"
MIXED = "MH"
"""layers that carry a state"""
ALONE = "-E"
"""layers without attention or mixer, where every layer is one sublayer"""


class LayerKind(NamedTuple):
    """In what the layers of one architecture differ; equal kinds are one block."""

    mixture: bool
    window: int
    """sliding window in tokens; 0 = all keys"""
    chunk: int
    """tokens of a chunk that sees itself only; 0 = all keys"""
    rotates: bool
    """queries and keys are rotated, where the architecture does that"""
    letter: str
    """of the architecture's pattern; '' without one"""
    relative: bool = False
    """has the table of relative positions"""
    normed: bool = True
    """has the norm before attention, where the architecture has one"""
    experts: int = 0
    """of a mixture"""
    chooses: bool = True
    """has an indexer, where the architecture has them"""
    keys: Literal["own", "shown", "read"] = "own"
    """keys and values: its own; its own, which layers behind read, too; those of a layer before it"""


@dataclass(frozen=True, slots=True)
class LinearMixer:
    """A state of fixed size per head in place of keys and values (`parsim.model.linear_attention`); zeros mean "derived"."""

    kind: Literal["retention", "gla", "mamba", "mamba2", "gated-delta", "kda", "rwkv", "convolution"]
    """RetNet 2307.08621; GLA 2312.06635; Mamba 2312.00752 (`parsim.model.selective_scan`); Mamba-2 2405.21060;
    Gated DeltaNet 2412.06464; Kimi Delta Attention 2510.26692; RWKV-4 2305.13048 (`parsim.model.rwkv`); a gated short convolution alone
    (LFM2, 2511.23404; `parsim.model.gated_convolution`)"""
    heads: int = 0
    """of values; 0 = the attention's heads"""
    key_heads: int = 0
    """of queries and keys (Mamba-2: groups of B and C); 0 = heads"""
    key_dim: int = 0
    """elements of a query or key (Mamba-2: the state size); 0 = head_dim"""
    value_dim: int = 0
    """elements of a value; 0 = key_dim"""
    chunk: int = 64
    """tokens of a chunk: 64 in flash-linear-attention, 128 to 256 in Mamba-2"""
    convolution: int = 0
    """taps of the short convolution over queries, keys and values; 0 = none"""
    convolution_bias: bool = False
    step_rank: int = 0
    """mamba: width of the compressed step"""
    step_norms: Literal["", "weighted", "plain"] = ""
    """mamba: norms of step, B and C (Jamba), or such norms without weights (Falcon Mamba)"""
    gate: bool = True
    """the output is normed and multiplied by the SiLU of a projection of the layer's input"""
    gate_norm: bool = True
    """with gate: it is normed, too (not Falcon-H1's)"""
    gate_bias: bool = True
    """kda: the product that makes the gate has a bias (not transformers' Kimi Linear)"""

    def resolved(self, heads: int, head_dim: int) -> LinearMixer:
        """With every derived size filled in."""
        heads, key_dim = self.heads or heads, self.key_dim or head_dim
        return replace(self, heads=heads, key_heads=self.key_heads or heads, key_dim=key_dim, value_dim=self.value_dim or key_dim)

    @property
    def convolved(self) -> int:
        """Features of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def values(self) -> int:
        """Features of the values, of the gate and of the output."""
        return self.heads * self.value_dim


def wrong_kinds(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Field, message and suggestion of every contradiction in the kinds of layers."""
    pattern, name = config.layer_pattern, "layer_pattern"
    wrong = _wrong_mixer(config)
    if config.attention_gate and config.latent is not None:
        wrong.append(("attention_gate", "latent attention has no output gate", "leave one of them out"))
    if config.one_sublayer and not pattern:
        wrong.append(("one_sublayer", "layers of one sublayer each need a layer_pattern", "for example layer_pattern: M-M*"))
    if not pattern:
        if config.mixer is not None:
            wrong.append((name, f"nothing says which layers have the {config.mixer.kind} mixer", "M: all of them; MMM*: three of four"))
        return wrong
    if strange := sorted(set(pattern) - set(LETTERS)):
        known = ", ".join(f"{letter} ({meaning})" for letter, meaning in LETTERS.items())
        return [*wrong, (name, f"{' '.join(strange)}: no kind of layer; known: {known}", "")]
    needs = [
        ("W", config.attention_window > 0 or config.attention_chunk > 0, "attention_window", "give attention_window, for example 4096"),
        ("M", config.mixer is not None, "mixer", "give mixer, for example {kind: gated-delta}"),
        ("H", config.mixer is not None, "mixer", "give mixer, for example {kind: mamba2, heads: 24, value_dim: 64}"),
        ("E", config.experts is not None, "experts", "give experts, for example {count: 8, top_k: 2}"),
    ]
    wrong += [
        (name, f"{letter} layers ({LETTERS[letter]}) need {what}", hint)
        for letter, given, what, hint in needs
        if letter in pattern and not given
    ]
    if len(pattern) > config.layers:
        wrong.append((name, f"{len(pattern)} letters for {config.layers} layers", "write one letter per layer, or what repeats"))
    if config.full_attention_every:
        wrong.append((name, f"says the same as full_attention_every {config.full_attention_every} in another way", "give one of them"))
    if not config.one_sublayer and set(pattern) & set(ALONE):
        wrong.append((name, "layers of an MLP or of experts alone stand where every layer is one sublayer", "add one_sublayer: true"))
    if config.one_sublayer and "H" in pattern:
        wrong.append((name, "attention and mixer side by side are two sublayers, and every layer is one", "leave one_sublayer out"))
    if set(pattern) & set(MIXED) and (config.norm_placement == "post" or config.parallel_residual or not config.causal):
        wrong.append((name, "mixers stand in causal layers whose norms come first and whose sublayers follow each other", ""))
    return wrong


def _wrong_mixer(config: TransformerConfig) -> list[tuple[str, str, str]]:
    if config.mixer is None:
        return []
    mixer = config.mixer.resolved(config.heads, config.head_dim or config.hidden // config.heads)
    wrong = []
    if mixer.heads % mixer.key_heads:
        shares = f"heads / key_heads = {mixer.heads} / {mixer.key_heads} is not whole"
        wrong.append(("mixer", shares, "use a divisor of the mixer's heads"))
    if mixer.kind in ("retention", "gla") and mixer.heads != mixer.key_heads:
        wrong.append(
            ("mixer", f"{mixer.kind} has as many key_heads as heads, not {mixer.key_heads} and {mixer.heads}", "leave key_heads out")
        )
    if mixer.kind == "mamba" and not (mixer.step_rank and mixer.convolution and mixer.value_dim == 1 and mixer.key_heads == 1):
        text = "mamba has channels (heads) of value_dim 1, key_heads 1, a state of key_dim, a convolution and a step_rank"
        wrong.append(
            (
                "mixer",
                text,
                "for example {kind: mamba, heads: 5120, key_heads: 1, key_dim: 16, value_dim: 1, convolution: 4, step_rank: 160}",
            )
        )
    if mixer.kind == "rwkv" and (mixer.key_heads, mixer.key_dim, mixer.value_dim) != (1, 3, 1):
        text = "rwkv has channels (heads) with key_heads 1, three numbers of state (key_dim 3) and value_dim 1"
        wrong.append(("mixer", text, "for example {kind: rwkv, heads: 4096, key_heads: 1, key_dim: 3, value_dim: 1}"))
    if mixer.kind == "convolution" and not (
        mixer.convolution and not mixer.gate and mixer.key_heads == mixer.key_dim == mixer.value_dim == 1
    ):
        text = (
            "convolution has channels (heads) with key_heads 1, key_dim 1, value_dim 1, a convolution, and gates of its own (gate: false)"
        )
        hint = "for example {kind: convolution, heads: 2048, key_heads: 1, key_dim: 1, value_dim: 1, convolution: 3, gate: false}"
        wrong.append(("mixer", text, hint))
    if not mixer.chunk:
        wrong.append(("mixer", "a chunk has at least one token", "leave chunk out: 64"))
    if mixer.kind != "retention" and config.position == "rotary" and config.layer_pattern.strip("M") == "" and config.layer_pattern:
        wrong.append(("position", f"{mixer.kind} rotates nothing, and no layer attends", "use position: none"))
    return wrong
