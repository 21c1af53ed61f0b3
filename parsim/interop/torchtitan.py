"""torchtitan's TOML as a scenario: flavour, batch, types, the degrees of its mesh, activation checkpointing and the compiler.

What the keys mean: pytorch/torchtitan, torchtitan/config/job_config.py (2025) and torchtitan/config_manager.py (2024); defaults are
those of 2025. FSDP keeps fp32 shards and gathers them in the type of mixed precision; with a pipeline, a local batch is cut into
micro-batches.
"""

from __future__ import annotations

from math import prod
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    Count,
    TransformerSizes,
    ask_for_images,
    sizes,
    write_cluster,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.interop.keys import Key, Source, of_document
from parsim.interop.recognise import Foreign
from parsim.interop.titan_outer import write_outer
from parsim.interop.titan_pipeline import write_pipeline
from parsim.parallel.training import KEPT
from parsim.scenario import files
from parsim.scenario.support import EXAMPLES

FLAVOURS = {
    "llama2": {"7B": "llama-2-7b", "13B": "llama-2-13b", "70B": "llama-2-70b"},
    "llama3": {"8B": "llama-3-8b", "70B": "llama-3-70b", "405B": "llama-3.1-405b"},
    "llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"},
    "deepseek_v3": {"16B": "deepseek-v2-lite", "236B": "deepseek-v2", "671B": "deepseek-v3"},
    "qwen3": {name: f"qwen3-{name.lower()}" for name in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
    "qwen3_vl": {name: f"qwen3-vl-{name.lower()}" for name in ("4B", "8B", "30B-A3B")},
}
"""model.name -> model.flavor -> the catalogue's model of the same sizes (torchtitan/models/*/__init__.py)"""
DEBUG: dict[str, dict[str, Any]] = {
    "llama3": {"family": "llama", "layers": 6, "hidden": 256, "heads": 16, "mlp": 768, "vocabulary": 2048, "maximum_sequence": 131072},
    "qwen3": {
        "family": "qwen3", "layers": 8, "hidden": 256, "heads": 16, "kv_heads": 8, "head_dim": 128, "mlp": 3072, "vocabulary": 2048,
        "tied_embeddings": True,
    },
    "deepseek_v3": {
        "base": "deepseek-v2-lite", "layers": 6, "hidden": 256, "mlp": 1024, "vocabulary": 2048,
        "experts": {"count": 8, "top_k": 3, "mlp": 256, "shared": 512},
    },
    "llama4": {
        "family": "llama4-text", "layers": 6, "hidden": 256, "heads": 16, "mlp": 768, "vocabulary": 2048, "query_key_norm": False,
        "experts": {"count": 8, "top_k": 1, "mlp": 512, "shared": 512, "every": 2, "router_bias": True},
    },
}  # fmt: skip
"""model.name -> the sizes of its flavour debugmodel (torchtitan v0.2, torchtitan/models/*/__init__.py)"""
IROPE = {"attention_chunk": 256, "layer_pattern": "*WWW", "rotary_in_windows": True}
"""what its debugmodel_irope has besides: every fourth layer from the first sees all keys and rotates nothing, the others see their chunk"""
NO_CHUNKS = {"attention_chunk": 0, "full_attention_every": 0, "no_rotary_every": 0, "query_key_norm": False}
"""in what a flavour of Llama 4 without _irope differs from the catalogue's model"""
VARIANTS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen", "_irope")
"""ends of flavours that have another attention mask"""
OTHER_MODELS = ("flux", "vlm", "llama3_ft", "siglip")


def flavour_of(model: str) -> tuple[str, str] | None:
    """``model.name`` and ``model.flavor`` of a model of the catalogue, by its name or an alias; None where torchtitan has none."""
    name = files.aliases("models").get(model, model)
    for family, flavours in FLAVOURS.items():
        for flavour, ours in flavours.items():
            if ours == name:
                return family, f"{flavour}_irope" if family == "llama4" else flavour
    return None


def read_torchtitan(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a configuration."""
    if foreign.document is None:
        return
    source = of_document(foreign.document, "torchtitan")
    found = _model(draft, source)
    degrees = _degrees(draft, source)
    shards = source.of("parallel.data.shards")
    groups = write_outer(draft, source)
    total = prod(degrees.values()) * groups if degrees["shards"] > 0 and groups is not None else None
    write_cluster(draft, total=Count(total, shards) if total is not None and shards is not None else None)
    length = source.of("training.sequence_length")
    if length is None and draft.given.sequence_length is None:
        draft.write("training.sequence_length", 2048, note="seq_len is 2048 if not given")
    else:
        write_sequence_length(draft, length)
    _mesh(draft, source, degrees)
    local = _local_batch(draft, source)
    write_pipeline(draft, source, degrees["pipeline"], found.layers if found is not None else None, local)
    _batch(draft, source, degrees, local, groups)
    _precision(draft, source, degrees)
    _optimizer(draft, source)
    _recompute(draft, source)
    _software(draft, source)
    draft.only_some(source, *source.table.only)
    draft.close(source)


def _model(draft: ImportDraft, source: Source) -> TransformerSizes | None:
    """The model of the catalogue that has the flavour's sizes."""
    name, flavour = source.get("model.name"), source.get("model.flavor")
    family = "llama3" if name is None else str(name.value).rpartition(".")[2]
    if family in OTHER_MODELS and draft.given.model is None and name is not None:
        draft.errors.append(name.finding(f"not supported yet: {family} is no decoder of text alone", "give a model with --model"))
    table = source.table
    known_names = {"model.converters", *table.only, *(word for row in table.rows.values() for word in row.names)}
    strange = [
        key
        for key in source.keys
        if key.name.startswith("model.")
        and key.name not in known_names
        and not any(table.reason(reasons, key.name) for reasons in (table.harmless, table.unmodelled, table.refused))
    ]
    if name is None and flavour is None and strange and draft.given.model is None:
        text = "not supported yet: a model of this key, and none of torchtitan's by name and flavor"
        draft.errors.append(strange[0].finding(text, "give a model with --model"))
    size = "" if flavour is None else str(flavour.value)
    plain = next((size.removesuffix(end) for end in VARIANTS if size.endswith(end)), size)
    known: dict[str, Any] = {key.lower(): ours for key, ours in FLAVOURS.get(family, {}).items()}
    if family in DEBUG:
        known["debugmodel"] = _debug_model(draft, source, DEBUG[family] | (IROPE if size.endswith("_irope") else {}))
    ours = known.get(plain.lower() or "debugmodel")
    if draft.given.model is not None or ours is None:
        if draft.given.model is None:
            what = f"flavour {size or 'debugmodel'} of {family} is not in the catalogue"
            draft.fill("model", f"{what}: {EXAMPLES['model']} (--model)", name, flavour)
            return None
        found = write_model(draft, None)
        draft.harmless(name, f"replaced by --model {draft.given.model}")
        draft.harmless(flavour, f"replaced by --model {draft.given.model}")
        return found
    if family == "llama4" and isinstance(ours, str) and not size.endswith("_irope"):
        ours = {"base": ours, **NO_CHUNKS}
    rows = source.get("training.vocab_size", "model.vocab_size")
    if rows is not None and (words := draft.given.vocabulary or draft.whole(rows, 1)) is not None:
        ours = {**(ours if isinstance(ours, dict) else {"base": ours}), "vocabulary": words}
    said = f"--vocabulary {draft.given.vocabulary}; " if isinstance(ours, dict) and draft.given.vocabulary is not None else ""
    draft.write("model", ours, name, flavour, rows, note=f"{said}{family} {size or 'debugmodel, if not given'}")
    if plain != size and not size.endswith("_irope"):
        draft.remark(f"flavour {size} masks attention between documents; parsim takes it over whole samples", "model")
    found = sizes(ours, None)
    if found is not None and found.towers:
        ask_for_images(draft)
    return found


def _debug_model(draft: ImportDraft, source: Source, sizes: dict[str, Any]) -> dict[str, Any]:
    """The flavour's sizes; until 2025 its words were those of the tokenizer, which only the user can say."""
    old = source.get("model.tokenizer_path")
    if draft.given.vocabulary is not None:
        return {**sizes, "vocabulary": draft.given.vocabulary}
    if old is not None:
        draft.remark(
            "debugmodel has 2048 words from torchtitan 0.2 on; before, as many as its tokenizer (--vocabulary)", "model.vocabulary"
        )
    return sizes


def _degrees(draft: ImportDraft, source: Source) -> dict[str, int]:
    """Ranks along each axis of the mesh; -1 shards: as many as are left."""
    found = {}
    for axis, path in (("copies", "data.copies"), ("tensor", "tensor.size"), ("context", "context.size"), ("pipeline", "pipeline.size")):
        found[axis] = draft.whole(source.of(f"parallel.{path}"), 1) or 1
    shards = source.of("parallel.data.shards")
    found["shards"] = -1 if shards is None or str(shards.value) == "-1" else draft.whole(shards, 1) or 1
    return found


def _mesh(draft: ImportDraft, source: Source, degrees: dict[str, int]) -> None:
    copies, shards = source.of("parallel.data.copies"), source.of("parallel.data.shards")
    _data(draft, source, degrees, copies, shards)
    kind = source.get("training.data_parallel_type")
    if kind is not None and str(kind.value) == "ddp":
        draft.write("parallel.data.strategy", "ddp", kind)
    if draft.take(source, "parallel.tensor.size") not in (None, 1):
        draft.write("parallel.tensor.sequence_parallel", True, source.of("parallel.tensor.size"))
        if draft.switch(source, "parallel.tensor.overlap"):
            draft.write("parallel.tensor.overlap", "async", source.of("parallel.tensor.overlap"))
    else:
        draft.harmless(source.of("parallel.tensor.overlap"), "there is one tensor rank")
    method = source.of("parallel.context.method")
    if (draft.take(source, "parallel.context.size") or 1) > 1:
        if method is None:
            draft.write("parallel.context.method", "all-gather", note="context_parallel_rotate_method is allgather if not given")
        else:
            draft.take(source, "parallel.context.method")
    else:
        draft.harmless(method, "there is one context rank")
    draft.take(source, "parallel.expert.size")
    draft.take(source, "parallel.expert.tensor")


def _data(draft: ImportDraft, source: Source, degrees: dict[str, int], copies: Key | None, shards: Key | None) -> None:
    """DDP, FSDP, or shards inside replicas; context ranks share the shards."""
    path, wide = "parallel.data.strategy", degrees["shards"] != 1 or degrees["context"] > 1
    note = "" if shards is not None else "data_parallel_shard_degree is -1 if not given: all ranks that the other axes leave"
    if degrees["copies"] > 1 and wide:
        draft.write(path, "hsdp", copies, shards)
        if degrees["shards"] > 0:
            size, context = degrees["shards"], degrees["context"]
            draft.write("parallel.data.shard_size", size * context, shards, note=f"{size} x {context} context ranks" if context > 1 else "")
        else:
            draft.fill("parallel.data.shard_size", f"GPUs / {degrees['copies']} replicas, tensor and pipeline ranks", copies, shards)
    elif wide:
        draft.write(path, "fsdp", shards, note=note)
        draft.harmless(copies, "one replica")
    else:
        draft.write(path, "ddp", copies, shards, note="one shard")
    reshard, row = source.of("parallel.data.reshard_after_forward"), source.table.rows["parallel.data.reshard_after_forward"]
    if not wide:
        draft.harmless(reshard, "nothing is sharded")
    elif reshard is not None and (word := row.ours(str(reshard.value))) is not None:
        kept = word == "false" or (str(reshard.value) == "default" and degrees["pipeline"] > 1)
        draft.write("parallel.data.reshard_after_forward", not kept, reshard, note="default: never under a pipeline" if kept else "")
    elif degrees["pipeline"] > 1:
        draft.write("parallel.data.reshard_after_forward", False, note="fsdp_reshard_after_forward: default is never under a pipeline")


def _local_batch(draft: ImportDraft, source: Source) -> int:
    return draft.whole(source.of("training.micro_batch"), 1) or 8


def _batch(draft: ImportDraft, source: Source, degrees: dict[str, int], local: int, groups: int | None) -> None:
    """Samples per rank and step; a global batch is made of several local ones, and is that of one of the `groups` that step alone."""
    key, total = source.of("training.micro_batch"), source.of("training.global_batch")
    if degrees["pipeline"] == 1:
        write_micro_batch(draft, key, 8, "local_batch_size is 8 if not given")
    whole = None if total is None or str(total.value) == "-1" else draft.whole(total, 1)
    if draft.given.gradient_accumulation is not None:
        draft.write("training.gradient_accumulation", draft.given.gradient_accumulation, note="--gradient-accumulation")
        draft.harmless(total, "replaced by --gradient-accumulation")
    elif whole is not None and groups is None:
        draft.fill("training.gradient_accumulation", f"{whole} / (local batch x data-parallel ranks of one job)", total)
    elif whole is not None and groups is not None:
        draft.write("training.global_batch", whole * groups, total, note=f"{whole} x {groups} groups" if groups > 1 else "")
        replicas = degrees["copies"] * degrees["shards"]
        if degrees["pipeline"] > 1 and whole != local * replicas:
            draft.remark("torchtitan runs a schedule for each local batch, one behind the other; parsim one for the whole step")
    else:
        micro = draft.value("training.micro_batch")
        count = local // micro if degrees["pipeline"] > 1 and isinstance(micro, int) and micro else 1
        draft.write(
            "training.gradient_accumulation", count, total, note=f"local batch {local} / {micro}" if count > 1 else "one local batch"
        )
    draft.harmless(total, "one local batch per rank")
    if degrees["pipeline"] > 1:
        draft.harmless(key, "it is one micro-batch")


def _precision(draft: ImportDraft, source: Source, degrees: dict[str, int]) -> None:
    """fp32 shards that are gathered in bf16, or autocast under DDP; tensor and pipeline ranks alone have neither."""
    half, stored = source.of("training.precision.half"), source.of("training.precision.stored")
    rows = source.table.rows
    kind = "amp-bf16" if half is None else rows["training.precision.half"].ours(str(half.value))
    if kind is None and half is not None:
        draft.errors.append(half.finding(f"{half.value!r} is neither bfloat16 nor float32"))
        return
    replicated = degrees["shards"] != 1 or degrees["context"] > 1 or degrees["copies"] > 1
    alone = not replicated and max(degrees["tensor"], degrees["pipeline"]) > 1
    preset: Any = "fp32" if alone else kind
    note = "" if half is not None else "mixed_precision_param is bfloat16 if not given"
    if alone and kind == "amp-bf16":
        note = "torchtitan's mixed precision needs data or context parallelism beside tensor and pipeline parallelism"
    used = [half]
    if stored is not None and str(stored.value) == "bfloat16":
        preset, used, note = "pure-bf16", [half, stored], ""
    else:
        draft.harmless(stored, "fp32, as it is taken")
    narrow = _narrow(draft, source)
    if narrow:
        keys = narrow.pop("keys")
        if preset == "fp32":
            draft.errors.append(keys[0].finding("float8 products of fp32 weights that are not cast", "parsim has them in bf16 training"))
        preset = {"preset": preset, "matmul": "fp8", **narrow}
        used += keys
    draft.write("training.precision", preset, *used, note=note)


def _narrow(draft: ImportDraft, source: Source) -> dict[str, Any]:
    """fp8 products: what the precision says beside its preset, and the keys that ask for them; empty where there are none."""
    converters, old = source.get("model.converters"), source.get("float8.enable_float8_linear")
    names = (
        [] if converters is None else [str(name) for name in converters.value] if isinstance(converters.value, list) else [converters.text]
    )
    kinds = [name.rpartition(".")[2] for name in names]
    on = "float8" in kinds or "quantize.linear.float8" in names or (old is not None and draft.flag(old))
    eight = "mx" in kinds
    keys = [source.of(f"training.precision.{name}") for name in ("recipe", "gather", "keep")]
    if not on and not eight:
        others = [name for name in names if name]
        if others and converters is not None:
            draft.unmodelled(converters, "parsim knows float8 and mx")
        for key in (converters, old, *keys):
            draft.harmless(key, "nothing is quantised: there is no float8 among model.converters")
        return {}
    used: list[Key] = [key for key in (converters, old) if key is not None and (key is not old or draft.flag(old))]
    if eight:
        return {"recipe": "mxfp8", "keys": used}
    recipe, gather, skipped = keys
    name = "tensorwise" if recipe is None else source.table.rows["training.precision.recipe"].ours(recipe.text)
    if name is None:
        draft.errors.append(
            (recipe or used[0]).finding("not supported yet: weight gradients in bf16 beside rowwise products", "use rowwise")
        )
    changes: dict[str, Any] = {"recipe": name or "rowwise"}
    used += [recipe] if recipe is not None else []
    if gather is not None and draft.flag(gather):
        changes["gather"] = "fp8"
        used.append(gather)
    else:
        draft.harmless(gather, "gathers in bf16")
    names = [str(item) for item in skipped.value] if skipped is not None and isinstance(skipped.value, list) else []
    if "output" not in names:
        changes["keep"] = [part for part in KEPT if part != "head"]
    if skipped is not None and set(names) - {"output", "router.gate", "auto_filter_small_kn"}:
        draft.unmodelled(skipped, "parsim keeps the head in bf16, or not; not single layers")
    elif skipped is not None:
        used.append(skipped)
    return {**changes, "keys": used}


def _optimizer(draft: ImportDraft, source: Source) -> None:
    kind, fused = source.of("training.optimizer.name"), source.of("training.optimizer.fused")
    if kind is None:
        draft.write("training.optimizer.name", "adamw", note="AdamW if not given")
    elif draft.take(source, "training.optimizer.name") is None:
        draft.errors.append(kind.finding(f"not supported yet: {kind.value}", "parsim reads AdamW and Adam"))
    if draft.take(source, "training.optimizer.implementation") is None:
        on = fused is None or draft.flag(fused)
        draft.write("training.optimizer.implementation", "fused" if on else "foreach", fused, note="" if fused else "fused if not given")
    draft.harmless(fused, "optimizer.implementation counts")
    clip = source.of("training.optimizer.clip_gradients")
    limit = draft.number(clip)
    note = "" if clip else "max_norm is 1.0 if not given"
    draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, clip, note=note)
    if draft.switch(source, "training.offload"):
        for part in ("parameters", "gradients", "optimizer"):
            draft.write(f"training.offload.{part}", "cpu", source.of("training.offload"))


def _recompute(draft: ImportDraft, source: Source) -> None:
    """None, every layer, one layer in n, or every second matrix product."""
    path = "training.recompute"
    mode, option = source.of(path), source.of(f"{path}.selective")
    word = "selective" if mode is None else str(mode.value)
    if word in ("none", "full"):
        draft.write(path, word, mode)
        draft.harmless(option, f"it does not count with mode {word}")
        return
    if word != "selective":
        if mode is not None:
            draft.errors.append(mode.finding(f"not supported yet: activation checkpointing by {word}", "none, selective or full"))
        return
    text = "2" if option is None else str(option.value)
    note = "" if option is not None else "selective_ac_option is 2 if not given"
    if text == "op":
        draft.write(path, {"selective": ["matmuls"]}, mode, option)
    elif text.isdigit() and int(text) > 0:
        draft.write(path, "full" if text == "1" else {"one_in": int(text)}, mode, option, note=note)
    elif option is not None:
        draft.errors.append(option.finding(f"{text!r} is neither op nor a number of layers"))


def _software(draft: ImportDraft, source: Source) -> None:
    draft.write("software.profile", "torchtitan", note="")
    parts = source.get("compile.components")
    names = parts.value if parts is not None and isinstance(parts.value, list) else ["model", "loss"]
    if draft.switch(source, "software.fusion"):
        if "model" in names:
            draft.write("software.fusion", "compiled", source.of("software.fusion"), parts)
        if ("model" in names) != ("loss" in names):
            kernel = "compiled" if "loss" in names else "eager"
            draft.write("training.loss.kernel", kernel, source.of("software.fusion"), parts)
    draft.harmless(parts, "the model and the loss, as it is taken" if draft.value("software.fusion") else "nothing is compiled")
