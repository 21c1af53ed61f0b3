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
    "lfm3": "short convolutions and attention side by side with weights of their own",
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
    **dict.fromkeys(
        ("minimax_m3", "minimax_m3_vl_text", "minimax_m3_vl"),
        "attention to blocks of keys that an indexer chooses for every group of heads",
    ),
    "step3p7": "a tower of images with convolutions behind it; its text alone can be trained: write its text_config as a config of its own",
    **dict.fromkeys(
        ("qwen4_exp", "qwen4_exp_text"),
        "embeddings of several words, per-layer embeddings, gated residuals and keys that an indexer chooses",
    ),
    **dict.fromkeys(
        ("glm5_next", "glm5_next_text"), "hyper-connections around layers of Kimi Delta Attention and of keys that an indexer chooses"
    ),
    "hy_v4": "hyper-connections around attention to keys that an indexer chooses",
    **dict.fromkeys(
        ("inkling_mm_model", "inkling_text"), "biases of relative positions made of every query, and short convolutions beside attention"
    ),
    **dict.fromkeys(
        ("inkling2", "inkling2_text"),
        "biases of relative positions made of every query, convolutions whose taps a token makes, and attention over residuals",
    ),
    **dict.fromkeys(
        ("mistral_large4", "mistral_large4_text"), "layers that attend to the compressed keys of earlier ones, chosen by a shared indexer"
    ),
    "gpt_neox_japanese": "a bias behind the attention of the last layer alone",
    "jetmoe": "experts of attention heads",
    "olmo_hybrid": f"{_RECURRENT} (gated delta rule with its own projections)",
}
