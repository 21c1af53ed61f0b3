"""Fields of an architecture that contradict each other: sizes that do not divide, impossible experts, encoders and indexers."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from parsim.limits import LARGEST_SIZE, MOST_EXPERTS, MOST_LAYERS, beyond
from parsim.model.layer_kinds import ALONE, ATTENTION, MIXED, wrong_kinds

if TYPE_CHECKING:
    from parsim.model.architecture_records import Encoder, Experts
    from parsim.model.transformer import TransformerConfig


def contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why there is no such architecture: (field, message, suggestion) of each."""
    wrong: list[tuple[str, str, str]] = []
    for name in ("hidden", "layers", "heads", "vocabulary"):
        low = 0 if name == "vocabulary" and config.image is not None else 1
        if getattr(config, name) < low:
            wrong.append((name, f"must be at least {low}, is {getattr(config, name)}", ""))
    sizes = {field.name: value for field in fields(config) if isinstance(value := getattr(config, field.name), int)}
    wrong += [(name, f"at most {LARGEST_SIZE:,}, is {value:.4g}", "") for name, value in sizes.items() if value > LARGEST_SIZE]
    wrong += wrong_kinds(config)
    experts = config.experts
    wrong += [
        (name, finding.message, "")
        for name, count, most in (
            ("layers", config.layers, MOST_LAYERS),
            ("experts", experts.count if experts is not None else 0, MOST_EXPERTS),
        )
        for finding in beyond(count, most, name, name)
    ]
    if wrong:
        return wrong
    heads, kv_heads = config.heads, config.kv_heads or config.heads
    if not config.head_dim and config.latent is None and config.hidden % heads:
        wrong.append(("heads", f"hidden / heads = {config.hidden} / {heads} is not whole", "give head_dim"))
    if heads % kv_heads:
        wrong.append(("kv_heads", f"heads / kv_heads = {heads} / {kv_heads} is not whole", "use a divisor of heads"))
    if config.clamped_products and (
        config.latent or config.mixer or config.experts or config.encoder or config.channel_mixing or config.mtp
    ):
        wrong.append(("clamped_products", "products of attention and of dense MLPs alone are clamped", "leave it out"))
    wrong += _full_contradictions(config)
    wrong += _beside_stream_contradictions(config)
    wrong += _value_contradictions(config)
    image = config.image
    if image is not None and (not image.patch or image.size % image.patch):
        wrong.append(("image", f"size / patch = {image.size} / {image.patch} is not whole", ""))
    if (image is not None) != (config.task == "image-classification") and not (image is not None and config.task == "encoder"):
        wrong.append(("task", f"{config.task!r} {'does not take' if image else 'needs'} an image", "image goes with image-classification"))
    if config.position == "learned" and not config.maximum_sequence and image is None:
        wrong.append(("maximum_sequence", "learned positions need a maximum_sequence", ""))
    if (config.vision is None) != (config.projector is None):
        wrong.append(("vision", "a tower and its projector go together", "give both, or null for both"))
    if config.vision is not None:
        wrong += [("vision", f"{name}: {message}", hint) for name, message, hint in contradictions(config.vision)]
    if config.encoder is not None:
        wrong += _encoder_contradictions(config, config.encoder)
    if config.encoder is not None and config.task != "causal-lm":
        wrong.append(
            (
                "task",
                f"{config.task!r} of an encoder-decoder is not supported yet",
                "train it to write a target: task causal-lm, in a config the class ...ForConditionalGeneration",
            )
        )
    if config.attention_window and config.attention_chunk:
        wrong.append(("attention_chunk", "layers have a sliding window or chunks, not both", "leave one of them out"))
    wrong += _latent_contradictions(config)
    if config.mtp and (config.task != "causal-lm" or config.tied_embeddings or config.embedding_width not in (0, config.hidden)):
        wrong.append(("mtp", "predicts further words with the embedding and head of a language model that are not tied", "leave it out"))
    wrong += _prediction_contradictions(config)
    if not 0.0 <= config.dropout < 1.0:
        wrong.append(("dropout", f"a probability in [0, 1), is {config.dropout}", ""))
    if experts is not None:
        if not 1 <= experts.top_k <= experts.count:
            wrong.append(("experts", f"top_k {experts.top_k} must be between 1 and count {experts.count}", ""))
        if experts.every < 1 or not 0 <= experts.dense_layers <= config.layers:
            wrong.append(("experts", f"every {experts.every} >= 1 and 0 <= dense_layers {experts.dense_layers} <= {config.layers}", ""))
        wrong += _beside_contradictions(config, experts)
        wrong += _group_contradictions(experts)
        wrong += _count_contradictions(config, experts)
    return wrong


def _encoder_contradictions(config: TransformerConfig, encoder: Encoder) -> list[tuple[str, str, str]]:
    """Why there is no such encoder."""
    wrong = [("encoder", finding.message, "") for finding in beyond(encoder.layers, MOST_LAYERS, "layers", "encoder.layers")]
    if not encoder.layers:
        wrong.append(("encoder", "needs layers: at least 1", ""))
    if encoder.heads and not config.head_dim and config.hidden % encoder.heads:
        wrong.append(("encoder", f"hidden / heads = {config.hidden} / {encoder.heads} is not whole", "give head_dim"))
    if encoder.audio_channels and not encoder.tokens:
        wrong.append(("encoder", "a spectrogram has a fixed number of tokens", "give encoder.tokens, for Whisper 1500"))
    sizes = (encoder.mlp, encoder.tokens, encoder.audio_channels)
    return wrong + [("encoder", f"at most {LARGEST_SIZE:,}, is {size:.4g}", "") for size in sizes if size > LARGEST_SIZE]


def _prediction_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why modules that predict further words cannot have such layers, or such weights."""
    wrong = []
    pattern, letters = config.mtp_pattern, set(config.layer_pattern)
    if pattern and not config.one_sublayer:
        wrong.append(
            ("mtp_pattern", "names sublayers where every layer is one; a module has a layer like the last one here", "leave it out")
        )
    elif config.mtp and config.one_sublayer and not pattern:
        wrong.append(("mtp", "nothing says which sublayers a module has, where every layer is one", 'say mtp_pattern, for example "*E"'))
    elif strange := sorted(set(pattern) - letters):
        wrong.append(("mtp_pattern", f"{' '.join(strange)}: no layer of layer_pattern, which has {' '.join(sorted(letters))}", ""))
    elif any(sum(letter in some for letter in pattern) > 1 for some in (ATTENTION, MIXED, ALONE)):
        wrong.append(("mtp_pattern", "a module has one attention, one mixer and one MLP or mixture at most", 'for example "*E"'))
    return wrong


def _full_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why layers that see all keys cannot have such heads, or values such norms."""
    wrong = []
    if config.value_norm and config.latent is not None:
        wrong.append(("value_norm", "latent attention has no norm over each value head", "leave it out"))
    full = config.full_attention
    if full is None:
        return wrong
    if config.latent is not None or config.encoder is not None or config.mixer is not None or config.mtp:
        text = "heads of two sizes stand in decoders alone, without latent attention, mixers or modules that predict further words"
        wrong.append(("full_attention", text, "leave it out"))
    heads, kv_heads = full.heads or config.heads, full.kv_heads or config.kv_heads or config.heads
    if heads % kv_heads:
        wrong.append(("full_attention", f"heads / kv_heads = {heads} / {kv_heads} is not whole", "use a divisor of heads"))
    if full.heads and not config.head_dim:
        wrong.append(("full_attention", "layers with other heads need the width of a head", "give head_dim"))
    if not 0.0 <= full.rotary_fraction <= 1.0:
        wrong.append(("full_attention", f"rotary_fraction is a share of each head, is {full.rotary_fraction}", "0 = as in windows"))
    sizes = (heads, kv_heads, full.head_dim)
    wrong += [("full_attention", f"at most {LARGEST_SIZE:,}, is {size:.4g}", "") for size in sizes if size > LARGEST_SIZE]
    if full.values_from_keys and (not config.value_norm or config.fused_query_key_value or config.attention_gate):
        text = "values made of the keys' product need a norm of their own, and products that are not fused with others"
        wrong.append(("full_attention", text, "say value_norm: true and fused_query_key_value: false"))
    return wrong


def _beside_stream_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why layers cannot read keys and values of earlier ones, or per-layer inputs."""
    wrong = []
    second, shared = config.per_layer_inputs, config.shared_key_values
    other = config.latent or config.encoder or config.mixer or config.image or config.mtp or config.one_sublayer or config.parallel_residual
    if second is not None and (other or not second.width or config.embedding_width not in (0, config.hidden)):
        text = "per-layer inputs have a width and stand in texts whose layers have attention and an MLP one behind the other"
        wrong.append(("per_layer_inputs", text, "leave them out: null"))
    sizes = (second.width, second.vocabulary, config.layers * second.width) if second is not None else ()
    wrong += [("per_layer_inputs", f"at most {LARGEST_SIZE:,}, is {size:.4g}", "") for size in sizes if size > LARGEST_SIZE]
    if config.shared_key_value_mlp and (not shared or (config.experts is not None and not config.experts.beside)):
        text = "is the width of the dense MLP in layers that read keys and values of earlier ones"
        wrong.append(("shared_key_value_mlp", text, "give shared_key_values, or leave it out"))
    if not shared:
        return wrong
    if (
        other
        or config.fused_query_key_value
        or config.attention_gate
        or config.head_gate != "none"
        or config.relative_buckets
        or config.clip_query_key_value
        or config.value_dim
        or config.scale_values
    ):
        text = "layers share keys and values in decoders whose queries, keys and values are products apart, of one width, without gates"
        wrong.append(("shared_key_values", text, "say fused_query_key_value: false, or shared_key_values: 0"))
    elif shared >= config.layers or config.lonely_readers:
        text = f"the last {shared} of {config.layers} layers read keys and values of a layer before them that sees as much"
        wrong.append(("shared_key_values", text, "share among fewer layers"))
    return wrong


def _value_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why values cannot have a width, a constant or a gate of their own."""
    own = [name for name in ("value_dim", "scale_values") if getattr(config, name)]
    if not own and config.head_gate == "none":
        return []
    wrong = []
    if config.latent is not None or config.encoder is not None or config.disentangled is not None:
        names = [*own, *(["head_gate"] if config.head_gate != "none" else [])]
        text = "values of their own width or constant and gates of heads stand in decoders alone, without latent attention"
        wrong += [(name, text, "leave it out") for name in names]
    if config.value_dim and config.fused_query_key_value:
        wrong.append(("value_dim", "one product of queries, keys and values has heads of one width", "say fused_query_key_value: false"))
    if config.value_dim and config.value_norm:
        wrong.append(("value_dim", "values that are normed are as wide as keys", "leave it out"))
    if config.head_gate != "none" and config.attention_gate:
        wrong.append(("head_gate", "a gate of heads and one of features exclude each other", "leave one of them out"))
    return wrong


def _beside_contradictions(config: TransformerConfig, experts: Experts) -> list[tuple[str, str, str]]:
    """Why experts cannot stand beside the dense MLP."""
    if not experts.beside:
        return []
    if config.norm_placement != "sandwich" or config.normalisation != "rmsnorm" or config.parallel_residual or config.one_sublayer:
        text = "a dense MLP beside the experts stands between norms: norm_placement sandwich, normalisation rmsnorm"
        return [("experts", text, "leave beside out")]
    if experts.shared or experts.latent:
        return [("experts", "a dense MLP beside the experts takes the place of shared ones and of a latent width", "leave beside out")]
    return []


def _latent_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why tokens cannot choose their keys so."""
    latent = config.latent
    if latent is None:
        return []
    if not latent.chosen:
        return [("latent", "layers share an indexer, but none chooses keys", "give chosen")] if latent.indexers else []
    wrong = []
    if latent.indexers and (set(latent.indexers) - {"F", "S"} or not latent.has_indexer(0) or len(latent.indexers) > config.layers):
        text = f"indexers {latent.indexers!r}: F for a layer with an indexer, the first one among them, S for one without"
        wrong.append(("latent", text, "one letter per layer, or what repeats: FSSS"))
    if not latent.query_rank:
        wrong.append(("latent", "an indexer reads the compressed query, but query_rank is 0", "give query_rank, or leave chosen out"))
    if not latent.index_heads or not latent.index_dim:
        wrong.append(("latent", "an indexer needs index_heads and index_dim", "leave them out for 64 heads of 128"))
    if not config.causal or config.attention_window or config.attention_chunk or config.attention_sinks:
        wrong.append(("latent", "chosen keys are among all before a token: causal, without window, chunks or sinks", "leave chosen out"))
    if latent.index_dim and latent.index_dim < latent.rotary_dim:
        text = f"index_dim {latent.index_dim} is narrower than its rotary part, rotary_dim {latent.rotary_dim}"
        wrong.append(("latent", text, "give more"))
    return wrong


def _count_contradictions(config: TransformerConfig, experts: Experts) -> list[tuple[str, str, str]]:
    """Why layers cannot have as many experts as `counts` says."""
    counts = experts.counts
    if not counts or experts.every < 1:
        return []
    layers = sum(map(config.is_mixture, range(config.layers)))
    if len(counts) == layers and max(counts) == experts.count and min(counts) >= experts.top_k:
        return []
    text = f"counts are those of {layers} layers with experts, each at least top_k {experts.top_k}, the most of them count {experts.count}"
    return [("experts", text, "write one for every such layer, and the largest as count")]


def _group_contradictions(experts: Experts) -> list[tuple[str, str, str]]:
    """Why a token cannot choose among groups of experts so."""
    groups, kept = experts.groups, experts.groups_kept
    if not groups and not kept:
        return []
    if not 1 <= kept <= groups:
        return [("experts", f"1 <= groups_kept {kept} <= groups {groups} must hold", "give both, or neither")]
    if experts.count % groups:
        return [
            (
                "experts",
                f"count / groups = {experts.count} / {groups} is not whole",
                "use a divisor of count, or say groups: 0 and groups_kept: 0",
            )
        ]
    if (room := kept * experts.count // groups) < experts.top_k:
        return [
            (
                "experts",
                f"{kept} groups of {experts.count // groups} = {room} experts, fewer than top_k {experts.top_k}",
                "keep more, or say groups: 0 and groups_kept: 0",
            )
        ]
    return []
