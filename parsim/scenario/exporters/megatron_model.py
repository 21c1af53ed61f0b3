"""The architecture as Megatron-LM arguments."""

from __future__ import annotations

from itertools import groupby

from parsim.model.transformer import Experts, LatentAttention, TransformerConfig
from parsim.scenario.exporters.draft import Draft

YOUR_CODE = "use --to deepspeed or --to fsdp, where the model's code is yours"
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
BIASES = ((True, True, True), (False, False, False), (True, False, False))
"""biases of (q, k and v), attention output, MLP that have arguments"""
NORMALISATIONS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


def model_arguments(draft: Draft) -> list[str]:
    """Shape and structure of the model; what Megatron-LM's GPT has not is refused."""
    config = draft.job.architecture
    if config is None:
        draft.refuses("model", "pretrain_gpt.py trains transformers", YOUR_CODE)
        return []
    _refusals(draft, config)
    training = draft.job.settings.training
    arguments = [
        draft.says("model.layers", f"--num-layers {config.layers}"),
        draft.says("model.hidden", f"--hidden-size {config.hidden}"),
        draft.says("model.mlp", f"--ffn-hidden-size {config.mlp}"),
        draft.says("model.heads", f"--num-attention-heads {config.heads}"),
    ]
    if config.kv_heads != config.heads and config.latent is None:
        arguments += ["--group-query-attention", draft.says("model.kv_heads", f"--num-query-groups {config.kv_heads}")]
    if config.latent is None and config.head_dim * config.heads != config.hidden:
        arguments.append(draft.says("model.head_dim", f"--kv-channels {config.head_dim}"))
    arguments += [
        draft.says("training.sequence_length", f"--seq-length {training.sequence_length}"),
        draft.says("model.maximum_sequence", f"--max-position-embeddings {config.maximum_sequence or training.sequence_length}"),
        draft.says("model.vocabulary", f"--vocab-size {config.vocabulary}"),
        draft.says("model.vocab_divisible_by", f"--make-vocab-size-divisible-by {config.vocab_divisible_by}"),
    ]
    return arguments + _structure(draft, config) + _experts(draft, config) + _latent(draft, config.latent)


def _structure(draft: Draft, config: TransformerConfig) -> list[str]:
    arguments = [
        draft.says("model.position", f"--position-embedding-type {POSITIONS.get(config.position, config.position)}"),
        draft.says("model.normalisation", f"--normalization {NORMALISATIONS[config.normalisation]}"),
    ]
    if config.position == "rotary" and config.rotary_fraction != 1.0 and config.latent is None:
        arguments.append(draft.says("model.rotary_fraction", f"--rotary-percent {config.rotary_fraction:g}"))
    if config.gated and config.activation == "silu":
        arguments.append(draft.says("model.activation", "--swiglu"))
    if not config.mlp_bias:
        arguments.append(draft.says("model.mlp_bias", "--disable-bias-linear"))
        if config.query_key_value_bias:
            arguments.append(draft.says("model.query_key_value_bias", "--add-qkv-bias"))
    if config.norm_offset:
        arguments.append(draft.says("model.norm_offset", "--apply-layernorm-1p"))
    if config.query_key_norm:
        arguments.append(draft.says("model.query_key_norm", "--qk-layernorm"))
    if config.attention_window:
        arguments.append(draft.says("model.attention_window", f"--window-size {config.attention_window - 1},0"))
        if config.full_attention_every:
            arguments.append(draft.says("model.full_attention_every", f"--window-attn-skip-freq {config.full_attention_every}"))
    if not config.tied_embeddings:
        arguments.append(draft.says("model.tied_embeddings", "--untie-embeddings-and-output-weights"))
    if config.normalisation == "layernorm" and not config.norm_bias:
        draft.remarks("model.norm_bias", "layer norms have biases there")
    if config.position_offset:
        draft.remarks("model.position_offset", f"no {config.position_offset} extra rows in the position table there")
    if config.head_bias:
        draft.remarks("model.head_bias", "the language-model head has no bias there")
    return arguments


def _refusals(draft: Draft, config: TransformerConfig) -> None:
    linear = (config.query_key_value_bias, config.output_bias, config.mlp_bias)
    rules = [
        ("task", config.task != "causal-lm", f"pretrain_gpt.py trains decoders with a language-model head, not {config.task}"),
        ("position", config.position not in POSITIONS, f"GPT has no {config.position} positions there"),
        ("norm_placement", config.norm_placement != "pre", f"norms stand before every sublayer there, not {config.norm_placement}"),
        ("final_norm", not config.final_norm, "the last layer is always followed by a norm there"),
        ("parallel_residual", config.parallel_residual, "attention and MLP follow each other there"),
        ("embedding_norm", config.embedding_norm, "there is no norm behind the embedding"),
        ("embedding_width", config.embedding_width != config.hidden, "the embedding is as wide as the layers there"),
        ("activation", _foreign_activation(config), f"no option makes the MLP {_mlp(config)}"),
        ("mlp_bias", linear not in BIASES, "biases of q, k and v, of the attention's output and of the MLP cannot be chosen one by one"),
        ("softcap_attention", config.softcap_attention or config.softcap_logits, "scores and logits are not capped there"),
    ]
    for name, applies, why in rules:
        if applies:
            draft.refuses(f"model.{name}", why, YOUR_CODE)


def _foreign_activation(config: TransformerConfig) -> bool:
    return config.activation != "silu" if config.gated else not config.activation.startswith("gelu")


def _mlp(config: TransformerConfig) -> str:
    return f"gated with {config.activation}" if config.gated else config.activation


def _experts(draft: Draft, config: TransformerConfig) -> list[str]:
    experts = config.experts
    if experts is None:
        return []
    arguments = [
        draft.says("model.experts.count", f"--num-experts {experts.count}"),
        draft.says("model.experts.top_k", f"--moe-router-topk {experts.top_k}"),
        draft.says("model.experts.mlp", f"--moe-ffn-hidden-size {experts.mlp}"),
        "--moe-grouped-gemm",
        "--moe-token-dispatcher-type alltoall",
    ]
    mixture = [int(config.is_mixture(layer)) for layer in range(config.layers)]
    if not all(mixture):
        runs = "+".join(f"[{kind}]*{len(list(run))}" for kind, run in groupby(mixture))
        arguments.append(draft.says("model.experts.every", f"--moe-layer-freq '({runs})'"))
    return arguments + _router(draft, experts)


def _router(draft: Draft, experts: Experts) -> list[str]:
    arguments = []
    if experts.shared:
        arguments.append(draft.says("model.experts.shared", f"--moe-shared-expert-intermediate-size {experts.shared}"))
    if experts.shared_gate:
        arguments.append(draft.says("model.experts.shared_gate", "--moe-shared-expert-gate"))
    if experts.router_bias:
        text = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
        arguments.append(draft.says("model.experts.router_bias", text))
    elif not experts.renormalise:
        arguments.append(draft.says("model.experts.renormalise", "--moe-router-pre-softmax"))
    if experts.router_fp32:
        arguments.append(draft.says("model.experts.router_fp32", "--moe-router-dtype fp32"))
    return arguments


def _latent(draft: Draft, latent: LatentAttention | None) -> list[str]:
    if latent is None:
        return []
    arguments = [draft.says("model.latent", "--multi-latent-attention")]
    if latent.query_rank:
        arguments.append(draft.says("model.latent.query_rank", f"--q-lora-rank {latent.query_rank}"))
    return [
        *arguments,
        draft.says("model.latent.key_rank", f"--kv-lora-rank {latent.key_rank}"),
        draft.says("model.latent.plain_dim", f"--qk-head-dim {latent.plain_dim}"),
        draft.says("model.latent.rotary_dim", f"--qk-pos-emb-head-dim {latent.rotary_dim}"),
        draft.says("model.latent.value_dim", f"--v-head-dim {latent.value_dim}"),
    ]
