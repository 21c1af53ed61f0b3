"""Megatron-LM's T5, as pretrain_t5.py and NeMo train it: GPT's layers in two stacks, of which the second attends to the first.

NVIDIA/Megatron-LM, pretrain_t5.py and megatron/core/models/T5/t5_model.py; NVIDIA/NeMo,
nemo/collections/nlp/modules/common/megatron/token_level_encoder_decoder.py. Norms with biases stand before every sublayer and behind the
last, one table holds the words of both stacks and of the head, which has a bias.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

STRUCTURE: dict[str, Any] = {
    "normalisation": "layernorm", "norm_keeps_input": False, "activation": "gelu", "fused_query_key_value": True,
    "query_key_value_bias": True, "output_bias": True, "mlp_bias": True, "activation_dropout": False, "final_dropout": False,
    "head_bias": True,
}  # fmt: skip
"""in what it is not Hugging Face's T5"""
STACKS = ("model.encoder.", "model.decoder.")
"""sections of NeMo"""
_NEMO_ONLY = {
    "arch": ("transformer",), "transformer_block_type": ("pre_ln",), "headscale": (False,),
    "relative_position_bias_self_attention_only": (True,),
}  # fmt: skip
"""keys of a stack, and what they are in T5"""


def is_encoder_decoder(call: Invocation | None, source: Source) -> bool:
    """Whether a T5 is trained."""
    return "decoder_num_layers" in source or (call is not None and call.program.rpartition("/")[2].startswith("pretrain_t5"))


def write_encoder_decoder(draft: ImportDraft, source: Source) -> None:
    """Write family, structure and the layers of both stacks."""
    first, second = source.get("encoder_num_layers", "num_layers"), source.get("decoder_num_layers")
    encoder = draft.whole(first, 1)
    decoder = draft.whole(second, 1) or encoder
    draft.write("model.family", "t5", note="Megatron's T5")
    if encoder is not None:
        draft.write("model.encoder", {"layers": encoder}, first)
    if decoder is not None:
        draft.write("model.layers", decoder, second or first, note="" if second else "as many as in the encoder")
    for name, value in STRUCTURE.items():
        draft.write(f"model.{name}", value, note="Megatron's T5" if name == "normalisation" else "")
    _write_positions(draft, source)
    stages = source.of("parallel.pipeline.size")
    if stages is not None and str(stages.value) not in ("1", "None"):
        draft.errors.append(stages.finding("not supported yet: stages of an encoder and of a decoder", "one stage, and more tensor ranks"))
    draft.harmless(source.get("pipeline_model_parallel_split_rank"), "one stage has both stacks")


def _write_positions(draft: ImportDraft, source: Source) -> None:
    kind, buckets = source.of("model.position"), source.get("relative_attention_num_buckets")
    if kind is not None and str(kind.value) == "relative":
        draft.write("model.position", "none", kind)
        draft.write("model.relative_buckets", draft.whole(buckets, 1) or 32, kind, buckets)
    else:
        draft.write("model.position", "learned", kind)
        draft.write("model.relative_buckets", 0, note="positions are learned")
        draft.harmless(buckets, "positions are learned")
        text = (
            "both stacks read one table of positions there; the decoder has its own here: max_position_embeddings x hidden more parameters"
        )
        draft.remark(text, "model.position")
    draft.harmless(source.get("relative_attention_max_distance"), "how distances are sorted into buckets")


def of_stacks(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """NeMo's sections ``model.encoder`` and ``model.decoder`` as the options of one model; both must be alike but for their layers."""
    if not all(any(key.name == f"{stack}num_layers" for key in keys) for stack in STACKS):
        return keys
    said = {key.name: key for key in keys}
    found: list[Key] = []
    for key in keys:
        stack = next((stack for stack in STACKS if key.name.startswith(stack)), "")
        name = key.name.removeprefix(stack)
        twin = said.get(f"{STACKS[0]}{name}") if stack == STACKS[1] else None
        if not stack:
            found.append(_of_neither(draft, key))
        elif name == "num_layers":
            found.append(replace(key, name=f"model.{stack.split('.')[1]}_num_layers"))
        elif name in _NEMO_ONLY:
            if key.value not in (None, *_NEMO_ONLY[name]):
                draft.refuse(key, f"an encoder-decoder with {key.value}", f"parsim has {_NEMO_ONLY[name][0]}")
            draft.harmless(key, "as in T5")
        elif twin is not None and str(twin.value) == str(key.value):
            draft.harmless(key, "given again: the encoder's is the same")
        elif twin is not None and twin.value is not None and key.value is not None:
            draft.refuse(key, f"a decoder whose {name} is not the encoder's {twin.value}", "write the same for both stacks")
        else:
            found.append(replace(key, name=f"model.{name}"))
    return found


def _of_neither(draft: ImportDraft, key: Key) -> Key:
    """What stands beside the stacks."""
    name = key.name.removeprefix("model.")
    if name in ("share_token_embeddings", "share_decoder_tokens_head_embeddings", "tokens_head_bias"):
        if key.value is False:
            draft.refuse(key, f"an encoder-decoder with {name}: false", "parsim has Megatron's T5, with one table and a bias")
        draft.harmless(key, "as in T5")
    if name == "data.seq_length_dec":
        return replace(key, name="model.decoder_seq_length")
    return key


def write_target(draft: ImportDraft, source: Source) -> None:
    """Tokens of the decoder's samples."""
    key = source.get("decoder_seq_length")
    if (length := draft.whole(key, 1)) is not None:
        draft.write("training.target_sequence_length", length, key)
