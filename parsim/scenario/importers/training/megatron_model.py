"""The transformer that options of Megatron-LM describe."""

from __future__ import annotations

from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key, Source
from parsim.scenario.placeholder import EXAMPLES
from parsim.units import is_digits

VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522, "BertWordPieceCase": 28996}
"""rows that a tokenizer has (openai-community/gpt2, meta-llama/Llama-2-7b-hf, google-bert/bert-large-uncased and -cased)"""
POSITIONS = {"learned_absolute": "learned", "rope": "rotary", "mrope": "rotary", "yarn": "rotary", "none": "none"}
PADDING = 128
"""--make-vocab-size-divisible-by, if not given"""
SIZES = (
    "num_layers", "encoder_num_layers", "decoder_num_layers", "hidden_size", "num_attention_heads", "group_query_attention",
    "num_query_groups", "ffn_hidden_size", "kv_channels", "swiglu", "squared_relu", "openai_gelu", "onnx_safe", "quick_geglu",
    "normalization", "position_embedding_type", "use_rotary_position_embeddings", "rotary_percent", "no_position_embedding",
    "max_position_embeddings", "untie_embeddings_and_output_weights", "disable_bias_linear", "add_qkv_bias", "qk_layernorm",
    "apply_layernorm_1p", "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by", "tokenizer_type", "num_experts",
    "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq", "moe_router_dtype",
    "moe_router_enable_expert_bias", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim",
)  # fmt: skip


def write_architecture(draft: Draft, source: Source, tensor: int) -> int | None:
    """The `model` section; the number of layers where it is known."""
    get = source.get
    layers = get("num_layers", "encoder_num_layers", "decoder_num_layers")
    if draft.given.model is not None:
        draft.write("model", draft.given.model, note="--model")
        count = draft.whole(layers, 1)
        for key in source.all(*SIZES):
            draft.harmless(key, f"replaced by --model {draft.given.model}")
        return count
    if layers is None and get("hidden_size") is None:
        draft.fill("model", f"{EXAMPLES['model']} (--model)")
        return None
    draft.write("model.family", "megatron-gpt", note="pretrain_gpt.py")
    for name, path in (("num_layers", "layers"), ("hidden_size", "hidden"), ("num_attention_heads", "heads")):
        size = layers if name == "num_layers" else get(name)
        value = draft.whole(size, 1)
        if size is None:
            draft.fill(f"model.{path}", f"--{name.replace('_', '-')}")
        elif value is not None:
            draft.write(f"model.{path}", value, size)
    _heads(draft, source)
    _mlp(draft, source)
    _norms_and_biases(draft, source)
    _positions(draft, source)
    _vocabulary(draft, source, tensor)
    _experts(draft, source)
    _latent(draft, source)
    count = draft.value("model.layers")
    return count if isinstance(count, int) else None


def _heads(draft: Draft, source: Source) -> None:
    grouped, groups = source.get("group_query_attention"), source.get("num_query_groups")
    if draft.flag(grouped) and groups is not None:
        value = draft.whole(groups, 1)
        if value is not None:
            draft.write("model.kv_heads", value, groups, grouped)
    elif draft.flag(grouped):
        draft.write("model.kv_heads", 1, grouped, note="--num-query-groups is 1 if not given")
    else:
        draft.harmless(groups, "it counts with --group-query-attention only")
        draft.harmless(grouped, "switched off")
    channels = source.get("kv_channels")
    if (value := draft.whole(channels, 1)) is not None:
        draft.write("model.head_dim", value, channels)


def _mlp(draft: Draft, source: Source) -> None:
    get = source.get
    width, swiglu = get("ffn_hidden_size"), get("swiglu")
    gated = draft.flag(swiglu)
    if gated:
        draft.write("model.activation", "silu", swiglu)
        draft.write("model.gated", True, swiglu)
        draft.write("model.fused_gate_up", True, swiglu, note="one linear layer makes both")
    else:
        draft.harmless(swiglu, "switched off")
    for name, activation in (("squared_relu", "relu"), ("openai_gelu", "gelu-tanh"), ("onnx_safe", "gelu")):
        key = get(name)
        if key is None:
            continue
        if not draft.flag(key) or gated:
            draft.harmless(key, "switched off" if not gated else "--swiglu counts")
        else:
            draft.write(
                "model.activation", activation, key, note="its square is taken in the same kernel" if name == "squared_relu" else ""
            )
    if (value := draft.whole(width, 1)) is not None:
        draft.write("model.mlp", value, width)
    elif width is None and gated and isinstance(hidden := draft.value("model.hidden"), int):
        value = int(4 * hidden * 2 / 3 / 64) * 64
        draft.write("model.mlp", value, note=f"Megatron's default with --swiglu: 2/3 x 4 x {hidden}, a multiple of 64")


def _norms_and_biases(draft: Draft, source: Source) -> None:
    get = source.get
    norm = get("normalization")
    if norm is not None:
        kinds = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
        if norm.text in kinds:
            draft.write("model.normalisation", kinds[norm.text], norm)
        else:
            draft.errors.append(norm.finding(f"{norm.value!r} is neither LayerNorm nor RMSNorm", norm.hint))
    bias = get("disable_bias_linear")
    added = get("add_qkv_bias")
    if draft.flag(bias):
        for name in ("query_key_value_bias", "output_bias", "mlp_bias"):
            if name != "query_key_value_bias" or not draft.flag(added):
                draft.write(f"model.{name}", False, bias)
        if draft.flag(added):
            draft.write("model.query_key_value_bias", True, added)
    else:
        draft.harmless(bias, "switched off")
        draft.harmless(added, "all linear layers have biases")
    for name, path in (("qk_layernorm", "query_key_norm"), ("apply_layernorm_1p", "norm_offset")):
        key = get(name)
        if name == "apply_layernorm_1p" and draft.value("model.normalisation") != "rmsnorm":
            draft.harmless(key, "1 + weight is made inside the norm's kernel")
        elif key is not None:
            draft.write(f"model.{path}", draft.flag(key), key)
    tied = get("untie_embeddings_and_output_weights")
    if tied is not None:
        draft.write("model.tied_embeddings", not draft.flag(tied), tied)


def _positions(draft: Draft, source: Source) -> None:
    get = source.get
    kind, old, none = get("position_embedding_type"), get("use_rotary_position_embeddings"), get("no_position_embedding")
    if kind is not None and kind.text in POSITIONS:
        draft.write("model.position", POSITIONS[kind.text], kind)
        draft.harmless(old, f"{kind.written} counts")
        draft.harmless(none, f"{kind.written} counts")
    elif kind is not None:
        draft.unmodelled(kind, f"parsim has {', '.join(dict.fromkeys(POSITIONS.values()))} positions and alibi")
    elif draft.flag(old):
        draft.write("model.position", "rotary", old)
        draft.harmless(none, "rotary positions are made in attention")
    elif draft.flag(none):
        draft.write("model.position", "none", none)
    percent = get("rotary_percent")
    if (share := draft.number(percent)) is not None:
        if draft.value("model.position") == "rotary":
            draft.write("model.rotary_fraction", share, percent)
        else:
            draft.harmless(percent, "positions are not rotary")
    longest = get("max_position_embeddings")
    if (value := draft.whole(longest, 1)) is not None:
        draft.write("model.maximum_sequence", value, longest)


def _vocabulary(draft: Draft, source: Source, tensor: int) -> None:
    """Rows of the word table. Megatron pads them also on one tensor rank, where the scenario has to say it."""
    padded, size, tokenizer = source.get("padded_vocab_size"), source.get("vocab_size"), source.get("tokenizer_type")
    multiple = source.get("make_vocab_size_divisible_by")
    step = draft.whole(multiple, 1) or PADDING
    if (rows := draft.whole(padded, 1)) is not None:
        draft.write("model.vocabulary", rows, padded)
        for other in (size, tokenizer, multiple):
            draft.harmless(other, f"{padded.written if padded else ''} counts")
        return
    key: Key | None = size
    rows = draft.whole(size, 1)
    note = ""
    if rows is None and tokenizer is not None and tokenizer.text in VOCABULARIES:
        rows, key, note = VOCABULARIES[tokenizer.text], tokenizer, "its vocabulary"
    elif rows is None and tokenizer is None and (merge := source.get("merge_file")) is not None:
        rows, key, note = VOCABULARIES["GPT2BPETokenizer"], merge, "merges are GPT-2's tokenizer's, taken for its own vocabulary"
    elif rows is not None:
        draft.harmless(tokenizer, "--vocab-size says how many rows there are")
    if rows is None:
        draft.fill("model.vocabulary", f"{EXAMPLES['model.vocabulary']}; the script says it in a tokenizer only", tokenizer)
        draft.harmless(size, "not a number")
    else:
        whole = -(-rows // step) * step if tensor == 1 else rows
        text = f"{rows} padded to a multiple of {step}" if whole != rows else ""
        draft.write("model.vocabulary", whole, key, note="; ".join(part for part in (note, text) if part))
    if multiple is not None:
        draft.write("model.vocab_divisible_by", step, multiple)


def _experts(draft: Draft, source: Source) -> None:
    get = source.get
    number = get("num_experts")
    count = draft.whole(number, 1)
    rest = ("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq", "moe_router_dtype",
            "moe_router_enable_expert_bias")  # fmt: skip
    if count is None:
        for key in source.all(*rest):
            draft.harmless(key, "there are no experts")
        return
    draft.write("model.experts.count", count, number)
    top = get("moe_router_topk")
    if top is None:
        draft.write("model.experts.top_k", 2, note="--moe-router-topk is 2 if not given")
    elif (value := draft.whole(top, 1)) is not None:
        draft.write("model.experts.top_k", value, top)
    for name, path in (("moe_ffn_hidden_size", "mlp"), ("moe_shared_expert_intermediate_size", "shared")):
        if (value := draft.whole(get(name), 1)) is not None:
            draft.write(f"model.experts.{path}", value, get(name))
    _expert_layers(draft, get("moe_layer_freq"))
    if (kind := get("moe_router_dtype")) is not None:
        draft.write("model.experts.router_fp32", kind.value == "fp32", kind)
    if (bias := get("moe_router_enable_expert_bias")) is not None:
        draft.write("model.experts.router_bias", draft.flag(bias), bias)


def _expert_layers(draft: Draft, key: Key | None) -> None:
    """``--moe-layer-freq``: a number, or a pattern such as ``([0]*3+[1]*58)``."""
    if key is None:
        return
    text = str(key.value).replace(" ", "").strip("()")
    if is_digits(text):
        draft.write("model.experts.every", int(text), key)
        return
    pieces = [piece.partition("*") for piece in text.split("+")]
    if len(pieces) == 2 and [piece[0] for piece in pieces] == ["[0]", "[1]"] and is_digits(pieces[0][2]):
        draft.write("model.experts.dense_layers", int(pieces[0][2]), key)
    else:
        draft.unmodelled(key, "parsim has experts in every n-th layer, or in all but the first n")


def _latent(draft: Draft, source: Source) -> None:
    names = {"kv_lora_rank": ("key_rank", 32), "q_lora_rank": ("query_rank", None), "qk_head_dim": ("plain_dim", 128),
             "qk_pos_emb_head_dim": ("rotary_dim", 64), "v_head_dim": ("value_dim", 128)}  # fmt: skip
    switch = source.get("multi_latent_attention")
    if not draft.flag(switch):
        for other in [*source.all(*names), *([switch] if switch else [])]:
            draft.harmless(other, "there is no multi-head latent attention")
        return
    for name, (path, default) in names.items():
        key = source.get(name)
        value = draft.whole(key, 1)
        if value is not None:
            draft.write(f"model.latent.{path}", value, key, switch)
        elif default is not None:
            draft.write(f"model.latent.{path}", default, switch, note="Megatron's default")
