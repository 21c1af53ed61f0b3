"""Parts of a layer that are made again in backward, as ``--recompute-modules`` of Megatron-LM names them.

==============  ==============================================================  =========  ==================================
word            operators                                                       kept       made again before the backward of
==============  ==============================================================  =========  ==================================
layernorm       the norms before attention and before the MLP                   inputs     attention's output product; the
                                                                                           MLP's last operator
mla_up_proj     the products that decompress queries, keys and values, rotary   inputs     the attention core
moe_act         the experts' activation                                         inputs     the experts' second product
moe             router, dispatch, experts, combine, shared experts              inputs,    the last of them
                                                                                result
shared_experts  the MLP that every token visits                                 inputs,    the last of them
                                                                                result
==============  ==============================================================  =========  ==================================

The first three lose their outputs (``CheckpointWithoutOutput``), which are made again when the gradient of a tensor behind their readers
is there; fp8 products that read them keep no copy of their own then (``save_original_input``). The others are checkpoints: what they
return stays, and all of them runs again, messages included. Sources: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_layer.py,
multi_latent_attention.py, moe/experts.py, moe/moe_layer.py, megatron/core/tensor_parallel/random.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parsim.model.attention import AttentionCore
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Operator

REGIONS = ("layernorm", "mla_up_proj", "moe_act", "moe", "shared_experts")
"""the words of `training.recompute.selective` for them"""
_NORMS = {"attention_norm": ("attention_output",), "mlp_norm": ("mlp_down", "mixture.")}
"""norm -> how the operators begin whose last one ends what reads it"""


class Region(NamedTuple):
    """Operators of a block that run again together."""

    operators: tuple[int, ...]
    """places in the block"""
    before: int
    """place of the operator before whose backward they run"""
    outputs: bool
    """what they return is not kept"""


def regions(operators: Sequence[Operator], words: Sequence[str]) -> tuple[Region, ...]:
    """The regions that `words` name in a block of `operators`; words of other kinds name none."""
    return tuple(region for word in REGIONS if word in words for region in _found(operators, word))


def _found(operators: Sequence[Operator], word: str) -> Iterator[Region]:
    if word == "layernorm":
        for place, norm in enumerate(operators):
            readers = [i for i, other in enumerate(operators) if i > place and other.name.startswith(_NORMS.get(norm.name, ()))]
            if readers:
                yield Region((place,), readers[-1], outputs=True)
        return
    names = ("moe", "moe_act", "shared_experts") if word == "moe" else (word,)
    places = tuple(place for place, operator in enumerate(operators) if operator.selective in names)
    if not places:
        return
    kind = {"mla_up_proj": AttentionCore, "moe_act": GroupedLinear}.get(word)
    if kind is None:
        yield Region(places, places[-1], outputs=False)
    else:
        reader = next(i for i, operator in enumerate(operators) if i > places[-1] and isinstance(operator, kind))
        yield Region(places, reader, outputs=True)
