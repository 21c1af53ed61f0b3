"""What adapters may stand beside, under the names that people write: parsim's, Hugging Face's, PEFT's, torchtune's, litgpt's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.model.linear import Linear
from parsim.model.model import Model

ALL_LINEAR = "all-linear"
"""every linear layer except the language-model head (PEFT's word)"""
_QUERY = ("query", "q", "q_proj", "wq")
_KEY = ("key", "k", "k_proj", "wk")
_VALUE = ("value", "v", "v_proj", "wv")
_FUSED = ("query_key_value", "qkv", "qkv_proj", "c_attn", "Wqkv", "in_proj")
_OUTPUT = ("attention_output", "o", "o_proj", "out_proj", "output_proj", "projection", "c_proj", "wo")
_GATE = ("gate", "gate_proj", "w1", "mlp")
_UP = ("up", "up_proj", "w3", "mlp")
_SINGLE_UP = ("mlp_up", "up", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "mlp")
_DOWN = ("mlp_down", "down", "down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "mlp")
_HEAD = ("lm_head", "head", "output")


@dataclass(frozen=True, slots=True)
class Target:
    """A weight, or a slice of a fused one, that can have an adapter."""

    name: str
    """the weight's parameter name, or NAME.query for a slice"""
    words: tuple[str, ...]
    """what it may be called; the first two are shown in messages"""
    out_features: int
    whole: bool = True
    """not a slice of a fused weight"""
    linear: bool = True
    """all-linear means it too"""


def targets_of(linear: Linear, model: Model) -> tuple[Target, ...]:
    """Everything in one operator that an adapter can stand beside.

    A fused query-key-value weight is one target, or (as in loralib's MergedLinear and litgpt) three slices.
    """
    outputs = linear.out_features
    names = linear.parameter_names or ((linear.name,) if len(outputs) == 1 else tuple(f"{linear.name}.{i}" for i in range(len(outputs))))
    words = _words(linear)
    whole = tuple(
        Target(name, tuple(dict.fromkeys((*word, name))), out, linear=linear.split != "vocab")
        for name, word, out in zip(names, words, outputs, strict=True)
    )
    if linear.name != "query_key_value" or len(outputs) > 1:
        return whole
    widths = (model.heads * model.head_dim, *(model.kv_heads * model.head_dim,) * 2)
    slices = (
        Target(f"{linear.name}.{word[0]}", word, width, whole=False) for word, width in zip((_QUERY, _KEY, _VALUE), widths, strict=True)
    )
    return (*whole, *slices)


def _words(linear: Linear) -> tuple[tuple[str, ...], ...]:
    """Other names of each weight of an operator."""
    several = len(linear.out_features) > 1
    if linear.name == "query_key_value":
        return tuple((*word, *_FUSED[:2]) for word in (_QUERY, _KEY, _VALUE)) if several else (_FUSED,)
    if linear.name == "mlp_up":
        return ((*_GATE, "mlp_up"), (*_UP, "mlp_up")) if several else (_SINGLE_UP,)
    known = {"attention_output": _OUTPUT, "mlp_down": _DOWN, "lm_head": _HEAD}
    return (known.get(linear.name, ()),) if not several else ((linear.name,),) * len(linear.out_features)


def matching(word: str, targets: Sequence[Target]) -> list[Target]:
    """The targets that `word` names."""
    if word == ALL_LINEAR:
        return [target for target in targets if target.whole and target.linear]
    return [target for target in targets if word in target.words]


def known_names(targets: Sequence[Target]) -> list[str]:
    """What may be written, each target once."""
    return list(dict.fromkeys((ALL_LINEAR, *(target.words[0] for target in targets))))
