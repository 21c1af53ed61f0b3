"""Decoders with a recurrence of single channels in some layers or all: Mamba, Falcon Mamba, Jamba, RWKV-4.

Structure and key names: huggingface/transformers ``models/mamba``, ``models/falcon_mamba``, ``models/jamba``, ``models/rwkv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import GROUPED, Family, Fields, shortest, words
from parsim.model.families.hybrids import TIME_STEPS
from parsim.model.families.llama import HARMLESS, ROUTER, STRUCTURE


def _mamba(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Channels from ``intermediate_size`` or ``expand``; the step's width is a sixteenth of the hidden size, rounded up, unless said."""
    hidden, width, rank = int(fields["hidden"]), tree.get("intermediate_size"), tree.get("time_step_rank")
    mixer = fields.setdefault("mixer", {})
    mixer["heads"] = int((tree.get("expand") or 2) * hidden) if width is None else width
    mixer["step_rank"] = -(-hidden // 16) if rank in (None, "auto") else rank
    return {"expand", "time_step_rank", "intermediate_size"}


_SCAN = {"kind": "mamba", "key_heads": 1, "key_dim": 16, "value_dim": 1, "convolution": 4, "convolution_bias": True}
MAMBA = Family(
    name="mamba",
    model_type="mamba",
    structure={
        **STRUCTURE, "position": "none", "layer_pattern": "M", "one_sublayer": True, "heads": 1, "tied_embeddings": True, "mixer": _SCAN,
    },
    registration=("mixer_norm", "mixer_core", "mixer_in", "mixer_out"),
    keys={
        "hidden_size": "hidden", "num_hidden_layers": "layers", "vocab_size": "vocabulary", "tie_word_embeddings": "tied_embeddings",
        "state_size": "mixer.key_dim", "conv_kernel": "mixer.convolution", "use_conv_bias": "mixer.convolution_bias",
    },
    stated={"use_bias": (False,), "hidden_act": ("silu",), "rms_norm": (True,)},
    harmless=TIME_STEPS | words(
        "time_step_scale time_step_init_scheme use_mambapy use_associative_scan d_inner d_model n_layer fused_add_norm "
        "pad_vocab_size_multiple layer_types"
    ),
    adjust=_mamba,
)  # fmt: skip
FALCON_MAMBA = MAMBA._replace(
    name="falcon-mamba",
    model_type="falcon_mamba",
    structure={**MAMBA.structure, "mixer": {**_SCAN, "step_norms": "plain"}},
    harmless=MAMBA.harmless | words("mixer_rms_eps"),
)


def _rwkv(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """As many channels of time mixing as features unless said otherwise, and an MLP of four times as many."""
    hidden = int(fields["hidden"])
    fields.setdefault("mixer", {})["heads"] = tree.get("attention_hidden_size") or hidden
    fields["mlp"] = tree.get("intermediate_size") or 4 * hidden
    return {"attention_hidden_size", "intermediate_size"}


RWKV = Family(
    name="rwkv",
    model_type="rwkv",
    structure={
        "position": "none", "layer_pattern": "M", "heads": 1, "channel_mixing": True, "activation": "relu2", "embedding_norm": True,
        "embedding_dropout": False, "query_key_value_bias": False, "output_bias": False, "mlp_bias": False, "maximum_sequence": 1024,
        "mixer": {"kind": "rwkv", "key_heads": 1, "key_dim": 3, "value_dim": 1},
    },
    registration=(
        "mixer_norm", "mlp_norm", "mixer_core", "mixer_key_mix", "mixer_value_mix", "mixer_receptance_mix", "mixer_key", "mixer_value",
        "mixer_receptance", "mixer_out", "mlp_up_mix", "mlp_receptance_mix", "mlp_up", "mlp_receptance", "mlp_down",
    ),
    keys={
        "hidden_size": "hidden", "num_hidden_layers": "layers", "vocab_size": "vocabulary", "tie_word_embeddings": "tied_embeddings",
        "context_length": "maximum_sequence", "max_position_embeddings": "maximum_sequence",
    },
    harmless=words("rescale_every"),
    adjust=_rwkv,
)  # fmt: skip


def _jamba(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Attention in one of several layers, Mamba in the others; experts in every n-th."""
    hidden, layers, rank = int(fields["hidden"]), int(fields["layers"]), tree.get("mamba_dt_rank")
    period, offset = int(tree.get("attn_layer_period") or 8), tree.get("attn_layer_offset")
    letters = ["*" if layer % period == (4 if offset is None else offset) else "M" for layer in range(layers)]
    fields["layer_pattern"] = shortest("".join(letters))
    fields.setdefault("mixer", {}).update(
        {"heads": int((tree.get("mamba_expand") or 2) * hidden), "step_rank": -(-hidden // 16) if rank in (None, "auto") else rank}
    )
    step, first = int(tree.get("expert_layer_period") or 2), tree.get("expert_layer_offset")
    if tree.get("num_experts") == 1:
        fields["experts"] = None
    elif (1 if first is None else first) != step - 1:
        message = f"experts in other layers than every {step}th are not supported yet"
        raise ModelError(Finding(message, "expert_layer_offset", first, f"use {step - 1}"))
    else:
        fields.setdefault("experts", {})["every"] = step
    return set(words(
        "attn_layer_period attn_layer_offset mamba_dt_rank mamba_expand expert_layer_period expert_layer_offset layer_types "
        "layers_block_type layers_num_experts"
    ))  # fmt: skip


JAMBA = Family(
    name="jamba",
    model_type="jamba",
    structure={
        **STRUCTURE, "position": "none", "mixer": {**_SCAN, "step_norms": "weighted"}, "experts": {"count": 16, "top_k": 2, "every": 2},
        "kv_heads": 8,
    },
    registration=(
        "mixer_core", "mixer_in", "mixer_out", "mixture.router", "mixture.experts", "mlp_up", "mlp_down", "mixer_norm",
        "query_key_value", "attention_output", "attention_norm", "mlp_norm",
    ),
    keys={
        **GROUPED, "num_experts": "experts.count", "num_experts_per_tok": "experts.top_k", "mamba_d_state": "mixer.key_dim",
        "mamba_d_conv": "mixer.convolution", "mamba_conv_bias": "mixer.convolution_bias",
    },
    stated={"mamba_proj_bias": (False,), "sliding_window": (), "mamba_inner_layernorms": (True,)},
    harmless=HARMLESS | ROUTER | words(
        "use_mamba_kernels num_logits_to_keep calc_logits_for_entire_prompt use_mambapy use_associative_scan"
    ),
    adjust=_jamba,
)  # fmt: skip

FAMILIES = (RWKV, MAMBA, FALCON_MAMBA, JAMBA)
