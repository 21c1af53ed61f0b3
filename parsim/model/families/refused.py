"""Architectures that are known and not built: Hugging Face ``model_type`` -> what of them has no operator here."""

from __future__ import annotations

from collections.abc import Mapping

_RECURRENT = "its layers carry a state that no operator here has"
_LEARNED = "its matrix products have weights of one or two bits"

REFUSED: Mapping[str, str] = {
    "bitnet": _LEARNED,
    "rwkv5": f"{_RECURRENT} (time mixing of RWKV from version 5 on, with a state per head)",
    "rwkv6": f"{_RECURRENT} (time mixing of RWKV from version 5 on, with a state per head)",
    "rwkv7": f"{_RECURRENT} (time mixing of RWKV from version 5 on, with a state per head)",
    "recurrent_gemma": f"{_RECURRENT} (the real-gated linear recurrent unit)",
    "xlstm": f"{_RECURRENT} (matrix memory with exponential gates)",
    **dict.fromkeys(
        (
            "delta_net",
            "gsa",
            "hgrn",
            "hgrn2",
            "abc",
            "bitnet_fla",
            "linear_attn",
            "lightnet",
            "samba",
            "sba",
            "nsa",
        ),
        "of flash-linear-attention's models RetNet, GLA, Gated DeltaNet and softmax attention alone are read",
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "gated short convolutions in place of attention"),
    "zamba": "attention layers share their weights and read the embedding a second time",
    "zamba2": "attention layers share their weights and read the embedding a second time",
    "hymba": "attention and a state-space mixer stand side by side in one layer",
    "minimax": "its linear attention has a gate and residual weights that no operator here has",
    "minimax_text_01": "its linear attention has a gate and residual weights that no operator here has",
    "gemma3n": "alternating updates of several residual streams, learned augmented residuals and sparse activations",
    "gemma3n_text": "alternating updates of several residual streams, learned augmented residuals and sparse activations",
    "deepseek_v4": "compressed sparse attention and hyper-connections",
    "longcat_flash": "experts that compute nothing, and two attentions in a layer",
    "diffllama": "differential attention: the difference of two softmaxes",
    "deci": "layers of different widths and kinds (a block configuration per layer)",
    "nemotron-nas": "layers of different widths and kinds (a block configuration per layer)",
    "openelm": "layers of different widths",
    "phi3small": "block-sparse attention",
    "xlnet": "two streams of attention over permuted tokens",
    "transfo-xl": "a memory of earlier segments and an adaptive softmax",
    "reformer": "hashed attention and reversible layers",
    "chatglm2": "write chatglm, as the model's own file does",
    "mimo_v2_flash": "values narrower than keys and heads of two kinds",
    "jetmoe": "experts of attention heads",
    "olmo_hybrid": f"{_RECURRENT} (gated delta rule with its own projections)",
}
