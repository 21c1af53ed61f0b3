"""One transformer family: what all its members share, and how its Hugging Face config spells the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Fields = dict[str, Any]
"""values of `TransformerConfig` fields; nested records as mappings"""


def words(text: str) -> frozenset[str]:
    """The words of `text`: how long sets of keys are written here."""
    return frozenset(text.split())


Adjust = Callable[[Fields, Mapping[str, Any]], set[str]]
"""reads what a table cannot say: changes the fields in place, returns the config keys it has read"""


class Family(NamedTuple):
    """The facts that a family's catalogue files and Hugging Face configs need not repeat."""

    name: str
    structure: Mapping[str, Any]
    """`TransformerConfig` fields in which the family differs from the defaults there"""
    registration: tuple[str, ...] = ()
    """layer operators in the order in which Hugging Face registers their parameters; () = order of execution"""
    model_type: str = ""
    """the config's ``model_type``; empty where Hugging Face has no such model"""
    keys: Mapping[str, str] = {}
    """config key -> field (``experts.count`` for nested ones; several separated by a space). A null value, like an
    absent key, leaves the family's default"""
    stated: Mapping[str, tuple[Any, ...]] = {}
    """config key -> values that say what `structure` already says; any other value cannot be used"""
    elsewhere: Mapping[str, str] = {}
    """config keys of other programs' classes under the same ``model_type`` -> what those classes have that this family has not"""
    harmless: frozenset[str] = frozenset()
    """further config keys that change neither parameters, work nor memory"""
    adjust: Adjust | None = None
    also: tuple[str, ...] = ()
    """further values of ``model_type`` that name the same structure in the same words"""
    classes: Mapping[str, str] = {}
    """classes of ``architectures`` whose names do not say the head -> task"""


def shortest(letters: str) -> str:
    """The shortest beginning of `letters` that, repeated, gives all of them (the last repetition may be cut)."""
    size = next(n for n in range(1, len(letters) + 1) if all(letter == letters[i % n] for i, letter in enumerate(letters)))
    return letters[:size]


SIZES = {
    "hidden_size": "hidden",
    "intermediate_size": "mlp",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "maximum_sequence",
    "tie_word_embeddings": "tied_embeddings",
}
"""the spelling most configs share"""

GROUPED = {**SIZES, "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "hidden_act": "activation"}
"""the spelling of the Llama line"""
