"""What LLaMA-Factory adds to the arguments of a Trainer: hiyouga/LLaMA-Factory, src/llamafactory/hparams."""

from __future__ import annotations

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import TransformerSizes, write_experts
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.peft import EIGHT_BITS, write_dora, write_quantised_experts, write_saved, write_targets
from parsim.interop.towers import FrozenParts, write_frozen_parts
from parsim.units import is_digits

TOOL = "LLaMA-Factory"
"""whose defaults are no keys of a file"""
FROZEN = FrozenParts("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model", adapted_projector=False)
SEQUENCE_MODES = {"zigzag-ring": "ring", "llama3": "all-gather", "ulysses": "ulysses"}
"""of Qihoo360/360-LLaMA-Factory, src/llamafactory/hparams/model_args.py"""
MEGATRON_TYPES = {"amp-bf16": "bf16-fp32grad", "pure-bf16": "bf16-fp32grad", "amp-fp16": "fp16"}
"""a Trainer's types -> those of the Megatron engine, whose weights are half"""
AXES = ("parallel.tensor.size", "parallel.pipeline.size", "parallel.context.size")
"""which its Megatron engine calls as Megatron-LM does"""


def type_of_the_model(source: Source) -> list[Key]:
    """Without ``bf16`` and ``fp16`` frozen weights keep the model's own type, without autocast; trained ones are cast to fp32.

    src/llamafactory/model/patcher.py (`patch_config`) and adapter.py (`init_adapter`).
    """
    method, switches = source.get("finetuning_type"), source.all("bf16", "fp16", "pure_bf16", "deepspeed", "fp8")
    if (method is not None and method.text != "lora") or any(not key.off for key in switches):
        return []
    return [Key("torch_dtype", "the model's own type, taken as bfloat16 (neither bf16 nor fp16 is set)", "bfloat16", TOOL)]


def write_factory(draft: ImportDraft, source: Source, sizes: TransformerSizes | None) -> None:
    """Write method, checkpointing and quantisation."""
    _checkpointing(draft, source)
    kind = source.get("finetuning_type")
    method = "lora" if kind is None else str(kind.value)
    if method == "full":
        draft.harmless(kind, "everything is trained, as without training.finetune")
    elif method == "freeze":
        _freeze(draft, source, kind, sizes)
    elif method == "lora":
        _lora(draft, source, kind)
    else:
        draft.refuse(kind, f"the method {method}", "parsim has full, freeze and lora")
    for name in ("lora_rank", "lora_target", "lora_dropout", "additional_target", "quantization_bit", "double_quantization",
                 "quantization_type", "freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"):  # fmt: skip
        key = source.get(name)
        if key is not None and name == "quantization_bit" and not key.off and method in ("full", "freeze"):
            draft.errors.append(
                key.finding("a quantised model is trained with adapters only", "write finetuning_type: lora, or leave it out")
            )
        if key is not None and not draft.settled(key):
            draft.harmless(key, f"it does not count with finetuning_type {method}")
    _optimizer(draft, source)
    write_frozen_parts(draft, source, sizes, FROZEN)
    _megatron(draft, source)
    _sequence_ranks(draft, source)


def _optimizer(draft: ImportDraft, source: Source) -> None:
    """``use_adam_mini`` counts before ``optim`` (train/trainer_utils.py, create_custom_optimizer); its step is a loop over tensors."""
    mini = source.get("use_adam_mini")
    if mini is not None and draft.flag(mini):
        draft.write("training.optimizer.name", "adam-mini", mini)
        draft.write("training.optimizer.implementation", "loop", mini, note="zyushun/Adam-mini steps one tensor after another")
        if (named := source.of("training.optimizer")) is not None:
            draft.fates.pop(named, None)
        draft.harmless(named, "use_adam_mini counts")
    else:
        draft.harmless(mini, "switched off")


def _sequence_ranks(draft: ImportDraft, source: Source) -> None:
    """``sequence_parallel_size``: ranks that share a sample, by a zigzag ring unless told otherwise."""
    ranks, mode = source.get("sequence_parallel_size"), source.get("sequence_parallel_mode")
    size = draft.whole(ranks, 1)
    if size is None or size == 1:
        draft.harmless(ranks, "every rank has whole samples")
        draft.harmless(mode, "every rank has whole samples")
        return
    if "parallel.context.size" in draft.lines and ranks is not None:
        draft.errors.append(ranks.finding("context_parallel_size says it, too, for another engine", "leave one of them out"))
        return
    draft.write("parallel.context.size", size, ranks)
    word = "zigzag-ring" if mode is None else mode.text
    if word in SEQUENCE_MODES:
        note = "" if mode else "sequence_parallel_mode is zigzag-ring if not given"
        draft.write("parallel.context.method", SEQUENCE_MODES[word], mode, note=note)
    else:
        draft.refuse(mode, f"sequences that are split by {word}", f"parsim has {', '.join(SEQUENCE_MODES)}")
    for name in ("sequence_parallel_ulysses_degree", "sequence_parallel_ring_degree"):
        draft.harmless(source.get(name), "it counts with sequence_parallel_mode usp only")


def _megatron(draft: ImportDraft, source: Source) -> None:
    """Keys of the Megatron engine (USE_MCA=1): they stand beside the others."""
    rows = key_table("megatron").rows
    sizes = {path: key for path in AXES if (key := source.get(*rows[path].names)) is not None}
    paths = ("parallel.tensor.sequence_parallel", "parallel.data.strategy.zero1", "parallel.data.overlap_gather",
             "parallel.data.overlap_reduce", "parallel.expert.size", "parallel.expert.tensor", "training.recompute")  # fmt: skip
    sequence, sharded, gather, reduce, spread, width, granularity = (source.get(rows[path].name) for path in paths)
    dispatcher = source.get("moe_token_dispatcher_type")
    if not sizes:
        for key in (sequence, sharded, gather, reduce, spread, width, dispatcher, granularity):
            draft.harmless(key, "Megatron's engine only")
        return
    for path, key in sizes.items():
        if (size := draft.whole(key, 1)) is not None:
            draft.write(path, size, key)
    if sequence is not None and draft.value("parallel.tensor.size") not in (None, 1):
        draft.write("parallel.tensor.sequence_parallel", draft.flag(sequence), sequence)
    else:
        draft.harmless(sequence, "there is one tensor rank")
    draft.write("parallel.data.strategy", "zero1" if draft.flag(sharded) else "ddp", sharded)
    draft.write("parallel.data.overlap_reduce", draft.flag(reduce), reduce, note="" if reduce else "off without overlap_grad_reduce")
    if gather is not None:
        draft.write("parallel.data.overlap_gather", draft.flag(gather), gather)
    if granularity is not None:
        parts = {"selective": ["attention"]} if granularity.value == "selective" else "full"
        draft.write("training.recompute", parts, granularity)
    write_experts(draft, spread, width, dispatcher)
    recipe = source.get("mixed_precision")
    if recipe is not None and str(recipe.value).replace("-", "_") not in ("bf16_mixed", "no", "None"):
        draft.refuse(recipe, f"Megatron-Bridge's types by the recipe {recipe.value}", "parsim reads bf16_mixed")
    draft.harmless(recipe, "the types of the arguments, with gradients in fp32")
    types = draft.lines["training.precision"]
    draft.write("training.precision", MEGATRON_TYPES.get(str(types.value), types.value), *types.keys)
    draft.write("software.profile", "megatron-core")


def _checkpointing(draft: ImportDraft, source: Source) -> None:
    """LLaMA-Factory checkpoints every layer unless it is told not to."""
    off = source.get("disable_gradient_checkpointing")
    if off is not None and draft.flag(off):
        draft.harmless(off, "no recomputation, as the scenario has it")
    elif "training.recompute" not in draft.lines:
        draft.write("training.recompute", "full", off, note="disable_gradient_checkpointing is false if not given" if off is None else "")
    else:
        draft.harmless(off, "checkpointing is on")


def _lora(draft: ImportDraft, source: Source, kind: Key | None) -> None:
    bits, method = source.get("quantization_bit"), source.get("quantization_method")
    quantised = bits is not None and str(bits.value) == "4"
    double, form = source.get("double_quantization"), source.get("quantization_type")
    draft.write("training.finetune.method", "qlora" if quantised else "lora", kind, bits if quantised else None)
    rank, targets = source.get("lora_rank"), source.get("lora_target")
    draft.write("training.finetune.rank", draft.whole(rank, 1) or 8, rank, note="" if rank else "8 if not given")
    write_targets(draft, targets, "" if targets else "all if not given")
    share = source.get("lora_dropout")
    if (value := draft.number(share)) is not None:
        draft.write("training.finetune.dropout", value, share)
    write_dora(draft, source.get("use_dora"))
    more = source.get("additional_target")
    write_saved(draft, more)
    if quantised:
        note = "double_quantization is true if not given" if double is None else ""
        draft.write("training.finetune.base", "nf4-dq" if draft.flag(double, default=True) else "nf4", double, note=note)
        draft.only_if(form, ("nf4",), "another code of the same four bits")
        write_quantised_experts(draft)
        if method is not None and str(method.value).lower() not in ("bnb", "bitsandbytes"):
            draft.refuse(method, f"the four bits of {method.value}", "parsim has those of bitsandbytes (NF4)")
        draft.harmless(method, "NF4, as parsim has it")
    elif bits is not None and str(bits.value) == "8":
        draft.write("training.finetune.base", EIGHT_BITS, bits)
    elif bits is not None and not bits.off:
        draft.refuse(bits, f"frozen weights in {bits.value} bits", "parsim has four (nf4, nf4-dq), eight (int8) and sixteen")
    if not quantised:
        draft.harmless(method, "it counts with four bits")


def _freeze(draft: ImportDraft, source: Source, kind: Key | None, sizes: TransformerSizes | None) -> None:
    """The last n layers are trained; parsim freezes the embedding and the first ones, and trains the head beside them."""
    draft.write("training.finetune.method", "freeze", kind)
    key, modules, extra = (source.get(name) for name in ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"))
    text = str(2 if key is None else key.value)
    count = int(text) if is_digits(text.removeprefix("-")) else 0
    pro = source.get("use_llama_pro")
    if pro is not None and draft.flag(pro) and count > 0:
        note = "" if key else "freeze_trainable_layers is 2 if not given"
        draft.write("training.finetune.freeze", {"spread": count}, key, pro, note=note)
    elif sizes is None:
        draft.fill("training.finetune.freeze", "{layers: n}, with n = layers - freeze_trainable_layers", key)
    elif count > 0:
        note = f"{sizes.layers} layers - {count}; the head, which LLaMA-Factory freezes, is trained too"
        draft.write("training.finetune.freeze", {"layers": max(0, sizes.layers - count)}, key, note=note)
        draft.remark(
            "parsim trains the head and the last norm beside the last layers; LLaMA-Factory freezes them", "training.finetune.freeze"
        )
    else:
        draft.unmodelled(key, "parsim freezes the first layers, not the last ones")
    draft.only_if(modules, ("all",), "parts of the trained layers")
    draft.unmodelled(extra, "more parts beside the last layers")
