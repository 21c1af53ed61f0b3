"""The architecture as options of Megatron-LM: read from them, and written."""

from __future__ import annotations

from itertools import groupby

from parsim.interop.command import Invocation
from parsim.interop.export_draft import ExportDraft
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Source
from parsim.interop.megatron.encoder_decoder import is_encoder_decoder, write_encoder_decoder
from parsim.interop.megatron.expert_layers import listed, read_expert_layers
from parsim.interop.megatron.fork_model import read_fork
from parsim.interop.megatron.linear_layers import SPARSE, foreign_mixer, linear_arguments, read_linear_attention
from parsim.interop.megatron.multimodal import is_multimodal
from parsim.interop.megatron.other_models import is_encoder, is_hybrid, write_encoder, write_hybrid
from parsim.interop.megatron.vocabulary import SAID, read_vocabulary
from parsim.model.architecture_records import Experts, LatentAttention
from parsim.model.families.family import shortest
from parsim.model.transformer import TransformerConfig
from parsim.scenario.support import EXAMPLES
from parsim.units import is_digits

SWITCHES = ("group_query_attention", "squared_relu", "openai_gelu", "onnx_safe", "quick_geglu", "use_rotary_position_embeddings",
            "no_position_embedding", *SAID)  # fmt: skip
"""options that say something of the model beside those of the table"""
LATENT_DEFAULTS = {"key_rank": 32, "query_rank": None, "plain_dim": 128, "rotary_dim": 64, "value_dim": 128}
CHOSEN = ("chosen", "index_heads", "index_dim")
"""keys of attention to chosen keys"""
YOUR_CODE = "use --to deepspeed or --to fsdp, where the model's code is yours"
BIASES = ((True, True, True), (False, False, False), (True, False, False))
"""biases of (q, k and v), attention output, MLP that have arguments"""


def read_model(draft: ImportDraft, source: Source, tensor: int, call: Invocation | None = None) -> int | None:
    """The `model` section; the number of layers where it is known. `call` says which program trains it."""
    layers = source.of("model.layers")
    if draft.given.model is not None:
        draft.write("model", draft.given.model, note="--model")
        count = draft.whole(layers, 1)
        names = [name for row in source.table.below("model.") for name in row.names if row.path != "model.attention_dropout"]
        given = source.all(*names, *SWITCHES)
        for key in source.keys:
            if key in given:
                draft.harmless(key, f"replaced by --model {draft.given.model}")
        return count
    if layers is None and source.of("model.hidden") is None and not is_encoder_decoder(call, source):
        draft.fill("model", f"{EXAMPLES['model']} (--model)")
        names = [name for row in source.table.below("model.") for name in row.names if row.path != "model.attention_dropout"]
        for key in source.all(*names, *SWITCHES):
            draft.harmless(key, "of the model, which is to be filled in")
        return None
    _write_family(draft, source, call)
    for path in ("model.layers", "model.hidden", "model.heads"):
        if path in draft.lines:
            continue
        if source.of(path) is None:
            draft.fill(path, f"--{source.table.rows[path].name.replace('_', '-')}")
        draft.take(source, path)
    _read_heads(draft, source)
    _read_mlp(draft, source)
    _read_norms_and_biases(draft, source)
    _read_positions(draft, source)
    read_vocabulary(draft, source, tensor, call.program if call is not None else "")
    if source.table.tool == "Megatron-DeepSpeed":
        read_fork(draft, source)
    else:
        _read_experts(draft, source)
        _read_latent(draft, source)
    read_linear_attention(draft, source)
    count = draft.value("model.layers")
    return count if isinstance(count, int) else None


def _write_family(draft: ImportDraft, source: Source, call: Invocation | None) -> None:
    if is_encoder(call, source):
        write_encoder(draft, source, call)
    elif call is not None and is_hybrid(call, source):
        write_hybrid(draft, source)
    elif is_encoder_decoder(call, source):
        write_encoder_decoder(draft, source)
    else:
        program = call.program.rpartition("/")[2] if call is not None and is_multimodal(call) else "pretrain_gpt.py"
        draft.write("model.family", "megatron-gpt", note=program)


def _read_heads(draft: ImportDraft, source: Source) -> None:
    grouped, groups = source.get("group_query_attention"), source.of("model.kv_heads")
    if source.table.tool == "Megatron-DeepSpeed":
        draft.take(source, "model.kv_heads")
    elif draft.flag(grouped) and groups is not None:
        draft.take(source, "model.kv_heads", grouped)
    elif draft.flag(grouped):
        draft.write("model.kv_heads", 1, grouped, note="--num-query-groups is 1 if not given")
    else:
        draft.harmless(groups, "it counts with --group-query-attention only")
        draft.harmless(grouped, "switched off")
    draft.take(source, "model.head_dim")


def _read_mlp(draft: ImportDraft, source: Source) -> None:
    width, swiglu = source.of("model.mlp"), source.of("model.activation")
    if gated := draft.switch(source, "model.activation"):
        draft.write("model.activation", "silu", swiglu)
        draft.write("model.gated", True, swiglu)
        draft.write("model.fused_gate_up", True, swiglu, note="one linear layer makes both")
    if draft.flag(double := source.get("geglu")):  # NeMo's T5
        draft.write("model.gated", True, double)
        draft.write("model.fused_gate_up", True, double, note="one linear layer makes both")
    if draft.flag(quick := source.get("quick_geglu")) and not gated:
        draft.write("model.activation", "quick-gelu", quick)
        draft.write("model.gated", True, quick)
        draft.write("model.fused_gate_up", True, quick, note="one linear layer makes both")
    else:
        draft.harmless(quick, "--swiglu counts" if gated else "switched off")
    for name, activation in (("squared_relu", "relu"), ("openai_gelu", "gelu-tanh"), ("onnx_safe", "gelu")):
        key = source.get(name)
        if key is None:
            continue
        if not draft.flag(key) or gated:
            draft.harmless(key, "switched off" if not gated else "--swiglu counts")
        else:
            note = "its square is taken in the same kernel" if name == "squared_relu" else ""
            draft.write("model.activation", activation, key, note=note)
    draft.take(source, "model.mlp")
    if width is None and gated and isinstance(hidden := draft.value("model.hidden"), int):
        value = int(4 * hidden * 2 / 3 / 64) * 64
        draft.write("model.mlp", value, note=f"Megatron's default with --swiglu: 2/3 x 4 x {hidden}, a multiple of 64")


def _read_norms_and_biases(draft: ImportDraft, source: Source) -> None:
    norm = source.of("model.normalisation")
    if draft.take(source, "model.normalisation") is None and norm is not None:
        known = " nor ".join(map(str, source.table.rows["model.normalisation"].words.values()))
        draft.errors.append(norm.finding(f"{norm.value!r} is neither {known}", norm.hint))
    bias, added = source.of("model.mlp_bias"), source.of("model.query_key_value_bias")
    if draft.flag(bias):
        for name in ("query_key_value_bias", "output_bias", "mlp_bias"):
            if name != "query_key_value_bias" or not draft.flag(added):
                draft.write(f"model.{name}", False, bias)
        if draft.flag(added):
            draft.write("model.query_key_value_bias", True, added)
    else:
        draft.harmless(bias, "switched off")
        draft.harmless(added, "all linear layers have biases")
    draft.take(source, "model.query_key_norm")
    if draft.switch(source, "model.attention_gate"):
        draft.write("model.attention_gate", True, source.of("model.attention_gate"))
    if draft.value("model.normalisation") == "rmsnorm":
        draft.take(source, "model.norm_offset")
    else:
        draft.harmless(source.of("model.norm_offset"), "1 + weight is made inside the norm's kernel")
    draft.take(source, "model.tied_embeddings")
    draft.take(source, "model.mtp")
    draft.take(source, "model.mtp_repeated")
    if (kind := source.of("model.attention_sinks")) is not None and kind.value == "learnable":
        draft.write("model.attention_sinks", True, kind)
    else:
        draft.only_if(kind, ("vanilla",), "parsim has learned scores per head (learnable)", "that is so anyway")


def _read_positions(draft: ImportDraft, source: Source) -> None:
    row = source.table.rows["model.position"]
    kind, old, none = source.of("model.position"), source.get("use_rotary_position_embeddings"), source.get("no_position_embedding")
    if draft.take(source, "model.position") is not None and kind is not None:
        if kind.text == "yarn":
            draft.write("model.rotary_scaled", True, kind, note="unless --mscale is --mscale-all-dim")
        draft.harmless(old, f"{kind.written} counts")
        draft.harmless(none, f"{kind.written} counts")
    elif kind is not None:
        draft.unmodelled(kind, f"parsim has {', '.join(row.known)} positions and alibi")
    elif draft.flag(old):
        draft.write("model.position", "rotary", old)
        draft.harmless(none, "rotary positions are made in attention")
    elif draft.flag(none):
        draft.write("model.position", "none", none)
    percent, skipped = source.of("model.rotary_fraction"), source.of("model.no_rotary_every")
    if skipped is not None and is_digits(skipped.text):
        draft.take(source, "model.no_rotary_every")
    else:
        draft.unmodelled(skipped, "parsim leaves rotary positions out of every n-th layer")
    if draft.value("model.position") == "rotary":
        draft.take(source, "model.rotary_fraction")
    elif draft.number(percent) is not None:
        draft.harmless(percent, "positions are not rotary")
    draft.take(source, "model.maximum_sequence")
    _read_window(draft, source)


def _read_window(draft: ImportDraft, source: Source) -> None:
    """``--window-size N,0``: N tokens before a token and itself; where layers take turns, every n-th one sees everything."""
    window, skipped = source.of("model.attention_window"), source.of("model.full_attention_every")
    if window is None:
        draft.harmless(skipped, "there is no window")
        return
    before, _, after = window.text.strip("()").replace(" ", ",").partition(",")
    if not is_digits(before) or after.strip(",") != "0":
        draft.unmodelled(window, "parsim's windows reach back from a token, as N,0 does")
        return
    draft.write("model.attention_window", int(before) + 1, window)
    if skipped is not None and is_digits(skipped.text):
        draft.take(source, "model.full_attention_every")
    elif skipped is not None and (layers := listed(skipped.text)):
        draft.write("model.layer_pattern", shortest("".join("*W"[kind == "1"] for kind in layers)), skipped)
    else:
        draft.unmodelled(skipped, "parsim reads a number, or a sum of lists such as ([0]*3+[1]*5)")


def _read_experts(draft: ImportDraft, source: Source) -> None:
    if draft.whole(source.of("model.experts.count"), 1) is None:
        for row in source.table.below("model.experts."):
            draft.harmless(source.of(row.path), "there are no experts")
        return
    draft.take(source, "model.experts.count")
    if source.of("model.experts.top_k") is None:
        draft.write("model.experts.top_k", 2, note="--moe-router-topk is 2 if not given")
    for path in ("top_k", "mlp", "shared"):
        draft.take(source, f"model.experts.{path}")
    read_expert_layers(draft, source.of("model.experts.every"))
    if (kind := source.of("model.experts.router_dtype")) is not None:
        draft.write("model.experts.router_dtype", "fp32" if kind.value == "fp32" else "activations", kind)
    if draft.value("model.mlp_bias") is not False:
        draft.write("model.experts.bias", True, note="no --disable-bias-linear")
    for path in ("router_bias", "shared_gate", "renormalise", "groups", "groups_kept"):
        draft.take(source, f"model.experts.{path}")
    if draft.number(limit := source.of("model.experts.clamp")) is not None:
        draft.write("model.experts.clamp", True, limit)


def _read_latent(draft: ImportDraft, source: Source) -> None:
    switch, variant = source.of("model.latent"), source.of("model.mixer.kind")
    sparse = variant if variant is not None and variant.text == SPARSE else None
    if not draft.flag(switch):
        if sparse is not None:
            draft.refuse(sparse, "sparse attention without --multi-latent-attention", "give both, or the model with --model")
        for row in source.table.below("model.latent"):
            draft.harmless(source.of(row.path), "there is no multi-head latent attention")
        return
    for name in CHOSEN:
        path = f"model.latent.{name}"
        if sparse is None:
            draft.harmless(source.of(path), f"--experimental-attention-variant is not {SPARSE}")
        elif draft.take(source, path, sparse) is None:
            draft.fill(path, f"--{source.table.rows[path].name.replace('_', '-')}")
    if sparse is not None:
        draft.only_some(source, *(name for name in source.table.only if name.startswith("dsa_")))
    for name, default in LATENT_DEFAULTS.items():
        if draft.take(source, f"model.latent.{name}", switch) is None and default is not None:
            draft.write(f"model.latent.{name}", default, switch, note="Megatron's default")


def model_arguments(draft: ExportDraft) -> list[str]:
    """Shape and structure of the model; what Megatron-LM's GPT has not is refused."""
    config = draft.job.architecture
    if config is None:
        draft.refuses("model", "pretrain_gpt.py trains transformers", YOUR_CODE)
        return []
    _refusals(draft, config)
    length = draft.job.settings.training.sequence_length
    arguments = [draft.option(f"model.{name}", getattr(config, name)) for name in ("layers", "hidden", "mlp", "heads")]
    if config.kv_heads != config.heads and config.latent is None:
        arguments += ["--group-query-attention", draft.option("model.kv_heads", config.kv_heads)]
    if config.latent is None and config.head_dim * config.heads != config.hidden:
        arguments.append(draft.option("model.head_dim", config.head_dim))
    arguments += [
        draft.option("training.sequence_length", length),
        draft.option("model.maximum_sequence", config.maximum_sequence or length),
        draft.option("model.vocabulary", config.vocabulary),
        draft.option("model.vocab_divisible_by", draft.job.built.model.facts["vocab_divisible_by"] or 1),
    ]
    return [
        *arguments,
        *_structure(draft, config),
        *_experts(draft, config),
        *_latent(draft, config.latent),
        *linear_arguments(draft, config),
    ]


def _structure(draft: ExportDraft, config: TransformerConfig) -> list[str]:
    arguments = [
        draft.says("model.position", f"{draft.written('model.position', config.position).rpartition(' ')[0]} yarn")
        if config.rotary_scaled
        else draft.option("model.position", config.position),
        draft.option("model.normalisation", config.normalisation),
    ]
    if config.position == "rotary" and config.rotary_fraction != 1.0 and config.latent is None:
        arguments.append(draft.option("model.rotary_fraction", f"{config.rotary_fraction:g}"))
    if config.gated and config.activation == "silu":
        arguments.append(draft.option("model.activation", "silu"))
    if not config.mlp_bias:
        arguments.append(draft.option("model.mlp_bias"))
        if config.query_key_value_bias:
            arguments.append(draft.option("model.query_key_value_bias"))
    if config.norm_offset:
        arguments.append(draft.option("model.norm_offset"))
    if config.query_key_norm:
        arguments.append(draft.option("model.query_key_norm"))
        if not config.query_key_norm_weights:
            draft.remarks("model.query_key_norm_weights", "the norm of queries and keys has weights there")
    if config.attention_gate:
        arguments.append(draft.option("model.attention_gate"))
    if config.mtp:
        arguments.append(draft.option("model.mtp", config.mtp))
        arguments += [draft.option("model.mtp_repeated")] if config.mtp_repeated else []
    if config.attention_sinks:
        arguments.append(draft.option("model.attention_sinks"))
    if config.no_rotary_every:
        arguments.append(draft.option("model.no_rotary_every", config.no_rotary_every))
    if config.attention_window:
        arguments.append(draft.option("model.attention_window", f"{config.attention_window - 1},0"))
        if config.layer_pattern:
            slides = [int(config.kind(layer).window > 0) for layer in range(config.layers)]
            arguments.append(draft.option("model.full_attention_every", f"'({_runs(slides)})'"))
        elif config.full_attention_every:
            arguments.append(draft.option("model.full_attention_every", config.full_attention_every))
    if not config.tied_embeddings:
        arguments.append(draft.option("model.tied_embeddings"))
    if config.normalisation == "layernorm" and not config.norm_bias:
        draft.remarks("model.norm_bias", "layer norms have biases there")
    if config.position_offset:
        draft.remarks("model.position_offset", f"no {config.position_offset} extra rows in the position table there")
    if config.head_bias:
        draft.remarks("model.head_bias", "the language-model head has no bias there")
    return arguments


def _refusals(draft: ExportDraft, config: TransformerConfig) -> None:
    linear = (config.query_key_value_bias, config.output_bias, config.mlp_bias)
    positions, mixer = draft.table.rows["model.position"].words, foreign_mixer(config)
    rules = [
        ("task", config.task != "causal-lm", f"pretrain_gpt.py trains decoders with a language-model head, not {config.task}"),
        ("position", config.position not in positions, f"GPT has no {config.position} positions there"),
        ("norm_placement", config.norm_placement != "pre", f"norms stand before every sublayer there, not {config.norm_placement}"),
        ("final_norm", not config.final_norm, "the last layer is always followed by a norm there"),
        ("parallel_residual", config.parallel_residual, "attention and MLP follow each other there"),
        ("embedding_norm", config.embedding_norm, "there is no norm behind the embedding"),
        ("embedding_width", config.embedding_width != config.hidden, "the embedding is as wide as the layers there"),
        ("activation", _foreign_activation(config), f"no option makes the MLP {_mlp(config)}"),
        ("mlp_bias", linear not in BIASES, "biases of q, k and v, of the attention's output and of the MLP cannot be chosen one by one"),
        ("experts.bias", _unlike_biases(config), "router and experts have biases where the dense layers have them"),
        ("experts.beside", config.experts is not None and config.experts.beside, "experts stand in the place of the dense MLP there"),
        (
            "experts.scaled",
            config.experts is not None and config.experts.scaled,
            "no number per expert multiplies the router's weights there",
        ),
        ("full_attention", config.full_attention is not None, "all layers have heads of one size there"),
        ("clamped_products", config.clamped_products, "what products read and make is not clamped there"),
        ("per_layer_inputs", config.per_layer_inputs is not None, "layers read the residual stream alone there"),
        ("shared_key_values", bool(config.shared_key_values), "every layer has keys and values of its own there"),
        ("value_dim", bool(config.value_dim), "values are as wide as keys there"),
        ("clamp_mlp", config.clamp_mlp, "what an activation makes of the gate is not bounded there"),
        ("scale_values", config.scale_values, "values are not multiplied by a constant there"),
        ("head_gate", config.head_gate != "none", "a gate has a number for every feature there, not for every head"),
        ("sinks_in_windows", config.attention_sinks and config.sinks_in_windows, "all layers have sinks there, or none"),
        ("experts.output_norm", config.experts is not None and config.experts.output_norm, "what experts make is not normed there"),
        ("latent.indexers", config.latent is not None and "S" in config.latent.indexers, "every layer has an indexer there"),
        ("value_norm", config.value_norm, "values are not normed there"),
        ("scale_layer", config.scale_layer, "nor is what leaves a layer"),
        ("experts.counts", config.experts is not None and bool(config.experts.counts), "every layer has as many experts there"),
        ("attention_chunk", bool(config.attention_chunk), "attention in chunks has no option there"),
        ("mixer", bool(mixer), mixer),
        ("one_sublayer", config.one_sublayer and config.mixer is None, "a layer is attention and an MLP there"),
        ("latent.chosen", _sparse(config) and any(linear), "attention to chosen keys has no biases there"),
        ("softcap_attention", config.softcap_attention or config.softcap_logits, "scores and logits are not capped there"),
        ("scale_logits", config.scale_logits, "logits are not multiplied by a constant there"),
        ("scale_residual", config.scale_residual, "nor are the outputs of sublayers"),
        ("clip_query_key_value", config.clip_query_key_value, "queries, keys and values are not clamped there"),
        ("norm_weights", not config.norm_weights, "norms have weights there"),
        ("query_key_norm_over", config.query_key_norm and not _usual_norm(config), "queries and keys are normed head by head, by RMSNorm"),
        ("rotary_in_windows", config.rotary_in_windows, "all layers have rotary positions there, or every n-th has none"),
    ]
    for name, applies, why in rules:
        if applies:
            draft.refuses(f"model.{name}", why, YOUR_CODE)


def _sparse(config: TransformerConfig) -> bool:
    return config.latent is not None and config.latent.chosen > 0


def _usual_norm(config: TransformerConfig) -> bool:
    """Of queries and keys: what --qk-layernorm makes."""
    return config.query_key_norm_over == "head" and config.query_key_normalisation == "rmsnorm"


def _unlike_biases(config: TransformerConfig) -> bool:
    return config.experts is not None and config.experts.bias and not config.mlp_bias


def _foreign_activation(config: TransformerConfig) -> bool:
    return config.activation != "silu" if config.gated else not config.activation.startswith("gelu")


def _mlp(config: TransformerConfig) -> str:
    return f"gated with {config.activation}" if config.gated else config.activation


def _experts(draft: ExportDraft, config: TransformerConfig) -> list[str]:
    experts = config.experts
    if experts is None:
        return []
    arguments = [
        *(draft.option(f"model.experts.{name}", getattr(experts, name)) for name in ("count", "top_k", "mlp")),
        "--moe-grouped-gemm",
    ]
    mixture = [int(config.is_mixture(layer)) for layer in range(config.layers)]
    if not all(mixture):
        arguments.append(draft.option("model.experts.every", f"'({_runs(mixture)})'"))
    return arguments + _router(draft, experts)


def _runs(kinds: list[int]) -> str:
    """A list of zeros and ones as Megatron's options take it."""
    return "+".join(f"[{kind}]*{len(list(run))}" for kind, run in groupby(kinds))


def _router(draft: ExportDraft, experts: Experts) -> list[str]:
    arguments = []
    if experts.shared:
        arguments.append(draft.option("model.experts.shared", experts.shared))
    if experts.shared_gate:
        arguments.append(draft.option("model.experts.shared_gate"))
    if experts.router_bias:
        text = f"--moe-router-score-function sigmoid {draft.option('model.experts.router_bias')}"
        arguments.append(draft.says("model.experts.router_bias", text))
    elif not experts.renormalise:
        arguments.append(draft.option("model.experts.renormalise"))
    if experts.router_dtype == "fp32":
        arguments.append(draft.option("model.experts.router_dtype", "fp32"))
    if experts.clamp:
        arguments.append(draft.option("model.experts.clamp", "7.0"))
        draft.remarks("model.experts.clamp", "parsim knows no limit: 7.0 is GPT-OSS's")
    if experts.groups:
        arguments += [draft.option(f"model.experts.{name}", getattr(experts, name)) for name in ("groups", "groups_kept")]
    return arguments


def _latent(draft: ExportDraft, latent: LatentAttention | None) -> list[str]:
    if latent is None:
        return []
    arguments = [draft.option("model.latent")]
    if latent.query_rank:
        arguments.append(draft.option("model.latent.query_rank", latent.query_rank))
    if latent.chosen:
        arguments.append(f"--experimental-attention-variant {SPARSE}")
        arguments += [draft.option(f"model.latent.{name}", getattr(latent, name)) for name in CHOSEN]
        arguments.append("--dsa-kernel-backend tilelang")
    return [
        *arguments,
        *(draft.option(f"model.latent.{name}", getattr(latent, name)) for name in ("key_rank", "plain_dim", "rotary_dim", "value_dim")),
    ]
