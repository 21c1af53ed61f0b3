"""Types of weights, products, gradients and states as options of Megatron-LM: read from them, and written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parsim.interop.export_draft import ExportDraft, preset_name
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.model.low_precision import DEEPSEEK
from parsim.parallel.training import KEPT

PRECISIONS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16": ("bf16", "gradients.bf16"),
    "bf16-fp32grad": ("bf16",),
    "fp16": ("fp16",),
    "fp16-fp32grad": ("fp16", "gradients.fp32"),
    "fp8": ("bf16", "fp8"),
    "nvfp4": ("bf16", "fp4"),
}
"""preset -> rows below training.precision; --bf16 alone accumulates gradients in fp32"""
FP8_PARTS = ("head", "attention")
"""parts that have an option to be computed in fp8"""
FSDP = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")


def read_precision(draft: ImportDraft, source: Source) -> None:
    """--bf16 accumulates gradients in fp32 unless they are reduced in bf16; --fp16 does so on demand."""
    bf16, fp16, fp8, fp4 = (source.of(f"training.precision.{name}") for name in ("bf16", "fp16", "fp8", "fp4"))
    low, high, main = (*(source.of(f"training.precision.gradients.{name}") for name in ("bf16", "fp32")), source.get("main_grads_dtype"))
    halving = [low] if draft.flag(low) else []
    halving += [main] if main is not None and main.text in ("bf16", "fp16") else []
    if main is not None and main.text == "fp16" and not draft.flag(fp16):
        draft.refuse(main, "fp16 gradients beside weights of another type", "write fp32 or bf16")
    changes: dict[str, Any] = {}
    used: list[Key | None] = []
    narrow = fp4 if fp4 is not None and fp4.value is not False else fp8
    if narrow is not None and narrow.value is not False:
        preset, used = "fp8", [narrow, bf16, *halving]
        if draft.flag(fp16):
            draft.refuse(fp16, f"{narrow.written} beside fp16 weights", "parsim has it beside bf16: --bf16")
        changes |= {"gradients": "bf16"} if halving else {}
        _read_kept(draft, source, changes, used)
        _read_recipe(draft, source, changes, used, fp4=narrow is fp4)
        _read_kept_layers(draft, source, changes, used)
        _read_gather(draft, source, changes, used)
    elif draft.flag(bf16):
        preset, used = "bf16" if halving else "bf16-fp32grad", [bf16, *halving]
    elif draft.flag(fp16):
        whole = draft.flag(high)
        preset, used = "fp16-fp32grad" if whole else "fp16", [fp16, high if whole else None]
    else:
        preset = "fp32"
    _read_states(draft, source, changes, used)
    value: Any = {"preset": preset, **changes} if changes else preset
    draft.write("training.precision", value, *used, note="" if any(used) else "neither --bf16 nor --fp16")
    for key in (bf16, fp16, low, high, main):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "switched off" if key in (bf16, fp16) else "the gradients have that type anyway")
    for name in (*(f"keep.{part}" for part in FP8_PARTS), "keep_layers", "keep_layers.first", "keep_layers.last", "gather"):
        key = source.of(f"training.precision.{name}")
        if key is not None and not draft.settled(key):
            draft.harmless(key, "it counts with --fp8-format only" if preset != "fp8" else "switched off")


def _read_recipe(draft: ImportDraft, source: Source, changes: dict[str, Any], used: list[Key | None], *, fp4: bool) -> None:
    """How operands are quantised, where that is said; Megatron-LM refuses --fp4-format beside --fp8-format."""
    key, four = source.of("training.precision.recipe"), source.get("fp4_recipe")
    if fp4:
        changes["recipe"] = "nvfp4"
        draft.only_if(four, ("nvfp4",), "parsim has NVFP4 alone", "that is so anyway")
        draft.harmless(key, "--fp4-format counts")
        return
    draft.harmless(four, "it counts with --fp4-format only")
    if key is None:
        return
    recipe = source.table.rows["training.precision.recipe"].ours(key.text)
    if recipe is None:
        draft.unmodelled(key, "parsim has the recipes of --fp8-recipe but custom")
        return
    changes["recipe"] = recipe
    used.append(key)


def _read_gather(draft: ImportDraft, source: Source, changes: dict[str, Any], used: list[Key | None]) -> None:
    """Weights that are stored and gathered in fp8 alone."""
    key, sharded = source.of("training.precision.gather"), source.of("parallel.data.strategy.zero1")
    if not draft.flag(key):
        return
    recipe, optimizer = changes.get("recipe", "delayed"), source.of("training.optimizer.name")
    if recipe not in ("delayed", "current", "blockwise", "mxfp8") or (optimizer is not None and "muon" in optimizer.text):
        draft.unmodelled(key, f"parsim stores no weights in fp8 alone with {recipe}, nor under Muon")
    elif sharded is None or not draft.flag(sharded) or any(draft.flag(fsdp) for fsdp in source.all(*FSDP)):
        draft.unmodelled(key, "parsim stores weights in fp8 alone under --use-distributed-optimizer")
    else:
        changes["gather"] = "fp8"
        used.append(key)


def _read_kept_layers(draft: ImportDraft, source: Source, changes: dict[str, Any], used: list[Key | None]) -> None:
    """First and last layers that stay bf16: one each, unless more is said."""
    switch, *ends = (source.of(f"training.precision.keep_layers{end}") for end in ("", ".first", ".last"))
    if draft.flag(switch):
        first, last = (1 if (count := draft.whole(key, 0)) is None else count for key in ends)
        changes["keep_layers"] = first if first == last else [first, last]
        used += [switch, *ends]


def _read_kept(draft: ImportDraft, source: Source, changes: dict[str, Any], used: list[Key | None]) -> None:
    """Parts that are computed in fp8 although stacks keep them in bf16 by themselves."""
    options = {part: source.of(f"training.precision.keep.{part}") for part in FP8_PARTS}
    switched = {part: key for part, key in options.items() if draft.flag(key)}
    if switched:
        changes["keep"] = [part for part in KEPT if part not in switched]
        used += switched.values()


def _read_states(draft: ImportDraft, source: Source, changes: dict[str, Any], used: list[Key | None]) -> None:
    """--use-precision-aware-optimizer: types of master weights and moments."""
    master, first, second = source.get("main_params_dtype"), source.get("exp_avg_dtype"), source.get("exp_avg_sq_dtype")
    aware = source.get("use_precision_aware_optimizer")
    if not draft.flag(aware):
        for key in (master, first, second, aware):
            draft.harmless(key, "it counts with --use-precision-aware-optimizer only")
        return
    options = (source.of(f"training.precision.{name}") for name in ("fp8", "fp4"))
    narrow, offload = any(key is not None and key.value is not False for key in options), source.get("optimizer_cpu_offload")
    managed = (not narrow or changes.get("recipe", "delayed") == "delayed") and not draft.flag(offload)
    if master is not None and master.value == "fp16":
        changes["master"] = "fp16"
        used.append(master)
    elif managed and draft.flag(source.of("training.precision.bf16")):
        # store_param_remainders: an fp32 master is the bf16 weight and 16 bits more (megatron/core/optimizer/optimizer_config.py)
        changes["master"] = "bf16"
        used.append(aware)
        draft.only_if(master, ("fp32",), "parsim has fp32 and fp16 masters", "the 16 bits beyond the bf16 weight are kept")
    else:
        draft.harmless(aware, "its types are given one by one")
        draft.only_if(master, ("fp32",), "parsim has fp32 and fp16 masters", "that is so anyway")
    if first is not None and second is not None and first.value == second.value and first.value in ("bf16", "fp16", "fp8"):
        changes["optimizer"] = first.value
        used += [first, second]
    else:
        for moment in (first, second):
            draft.only_if(moment, ("fp32",), "the two moments have one type in parsim", "that is so anyway")


def precision_arguments(draft: ExportDraft) -> list[str]:
    """The options that make what is simulated."""
    path, wanted = "training.precision", draft.job.weights
    states = _states(draft)
    if states:
        wanted = replace(wanted, master=4, optimizer_element=4)
    in_fp8 = [part for part in FP8_PARTS if wanted.narrow and part not in wanted.keep]
    name = preset_name(replace(wanted, keep=tuple(part for part in KEPT if part in wanted.keep or part in in_fp8)))
    if name == "fp8" and wanted.quantisation is not None and wanted.quantisation.recipe == "nvfp4":
        name = "nvfp4"
    if name in PRECISIONS:
        rows = [*PRECISIONS[name], *(f"keep.{part}" for part in in_fp8)]
        gather = [draft.written(f"{path}.gather")] if wanted.stores_narrow else []
        gather += ["--reuse-grad-buf-for-mxfp8-param-ag"] if wanted.stores_narrow and not wanted.gathers_narrow else []
        said = [*(draft.written(f"{path}.{row}") for row in rows), *_recipe(draft), *gather, *_kept_layers(draft), *states]
        draft.says(path, " ".join(said) or "the default, fp32")
        return said
    if name.startswith("amp"):
        text, hint = "weights are in half precision with an fp32 master there, not autocast", "use bf16-fp32grad, or --to deepspeed or fsdp"
    elif name == "pure-bf16":
        text, hint = "half-precision weights have an fp32 master there", "use bf16, or --to deepspeed or fsdp"
    else:
        text, hint = f"no arguments store {draft.job.stored}", f"use one of {', '.join(PRECISIONS)}"
    draft.refuses(path, text, hint)
    return []


def _states(draft: ExportDraft) -> list[str]:
    """Masters of two bytes and moments narrower than fp32: ``--use-precision-aware-optimizer``; nothing where they are neither."""
    job, path = draft.job.built, "training.precision"
    wanted = job.training.precision
    recipe = wanted.quantisation.recipe if wanted.quantisation is not None else "delayed"
    narrow = wanted.optimizer_element < 4 or wanted.master == 2
    if not narrow or not wanted.master or wanted.activations > 2 or wanted.matmul == "fp16":
        return []
    if job.parallelism.data.strategy != "zero1" or job.training.optimizer.name not in ("adam", "adamw"):
        text = "--use-precision-aware-optimizer needs --use-distributed-optimizer (parallel.data.strategy: zero1) and adam"
        draft.refuses(path, text, "use zero1 and adamw, or fp32 masters and moments")
    if recipe == "delayed" and wanted.master == 4:
        draft.remarks(path, "Megatron-LM keeps the 16 bits of fp32 masters that the bf16 weights lack: master: bf16 here")
    moment = {1: "fp8", 2: "bf16"}.get(wanted.optimizer_element)
    said = [] if job.training.offload.optimizer == "cpu" else ["--use-precision-aware-optimizer"]
    said += ["--main-params-dtype fp16"] if recipe != "delayed" and wanted.master == 2 else []
    return said + ([f"--exp-avg-dtype {moment} --exp-avg-sq-dtype {moment}"] if moment else [])


def _kept_layers(draft: ExportDraft) -> list[str]:
    """``--first-last-layers-bf16``; Megatron-LM takes no more of either than a stage has layers on average."""
    path, job = "training.precision.keep_layers", draft.job.built
    ends = job.training.precision.keep_layers
    if not any(ends):
        return []
    stage = job.model.layers // job.parallelism.pipeline.size
    if max(ends) > stage:
        text = f"at most {job.model.layers} layers / {job.parallelism.pipeline.size} stages = {stage} first or last layers stay bf16 there"
        draft.refuses("training.precision", text, f"use keep_layers: {stage}")
    sides = zip(("first", "last"), ends, strict=True)
    return [draft.written(path), *(draft.written(f"{path}.{side}", count) for side, count in sides)]


def _recipe(draft: ExportDraft) -> list[str]:
    """``--fp8-recipe``."""
    quantisation = draft.job.built.training.precision.quantisation
    path = "training.precision.recipe"
    if quantisation is None or quantisation.recipe == "nvfp4":  # which --fp4-format says
        return []
    if quantisation.recipe not in draft.table.rows[path].words:
        whose = "DeepSeek's" if quantisation.library == DEEPSEEK else "torchao's"
        text = f"{quantisation.recipe} products are {whose}, not Transformer Engine's"
        draft.refuses("training.precision", text, "use recipe: delayed, current, blockwise or mxfp8, or --to fsdp")
        return []
    return [draft.written(path, quantisation.recipe)]
