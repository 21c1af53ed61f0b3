"""Commands of ms-swift: its own names for the arguments of a Trainer and of adapters, its defaults, and the DeepSpeed files it brings.

modelscope/ms-swift, docs/source_en/Instruction/Command-line-parameters.md; swift/llm/ds_config.
"""

from __future__ import annotations

from dataclasses import replace

from parsim.interop.command import Invocation
from parsim.interop.config_option import with_config
from parsim.interop.deepspeed_zero import AUTO
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.swift_command import read_megatron_swift
from parsim.interop.objective import POLICY
from parsim.interop.peft import write_adapter_dtype
from parsim.interop.policy import PolicyRules
from parsim.interop.towers import FrozenParts
from parsim.interop.trainer import Dialect, read_trainer
from parsim.scenario import files
from parsim.scenario.support import EXAMPLES

NAMES = {
    "model": "model_name_or_path",
    "model_id_or_path": "model_name_or_path",
    "attn_impl": "attn_implementation",
    "lora_rank": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "rlhf_type": "stage",
    "quantization_bit": "quant_bits",
    "sft_type": "tuner_type",
    "train_type": "tuner_type",
}
"""its name of a key -> the Trainer's, or the newest of its own"""
ZERO = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}
"""DeepSpeed files that it brings -> their stage"""
TOOL = "ms-swift"
"""whose defaults are no keys of a file"""
FROZEN = FrozenParts("freeze_vit", "freeze_aligner", "freeze_llm")
OWN = ("tuner_type", "quant_bits", "lora_dtype", "sequence_parallel_size", "gradient_checkpointing")
"""keys that are read here, not as a Trainer's"""
POLICIES = PolicyRules(
    TOOL,
    ("max_length",),
    ("response_length", "max_new_tokens", "max_completion_length"),
    always_since="3.11",
    defaults={
        "beta": 0.04, "max_completion_length": 512, "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.9, "use_liger_loss": True,
    },
)  # fmt: skip
"""swift/arguments/rlhf_args.py and swift/rlhf_trainers/grpo_trainer.py (_prepare_batch_inputs)"""
NEWER = ("--tuner_type", "--rollout_importance_sampling_mode", "--off_policy_sequence_mask_delta")
"""options that only versions know in which the policy always reads the answers before the update"""
RANK = 8
LARGE_ENOUGH = 16
"""samples of a step that accumulation is chosen for"""


def of_file(document: files.Document) -> Invocation:
    """``swift sft --config FILE`` by its file."""
    keys = of_document(document, "swift").keys
    word = "rlhf" if any(key.name == "rlhf_type" for key in keys) else "sft"
    return Invocation(word, "", (), keys, (), (), (), frozenset())


def read_swift(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of ``swift sft``, ``swift pt`` and ``swift rlhf``."""
    word = call.positional[0].text if call.positional else call.program
    call = with_config(draft, call, "swift")
    if call.program == "swift.megatron":
        read_megatron_swift(draft, call)
        return
    source = Source((replace(key, name=NAMES.get(key.name, key.name)) for key in call.options), key_table("swift"))
    _refuse(draft, source)
    keys = [key for key in source.keys if key.name not in OWN]
    keys = [_fsdp(draft, key) for key in keys if not (key.name == "model_name" and "model_name_or_path" in source)]
    keys += [*_types(draft, source), *_adapters(source)]
    if word == "rlhf" and source.get("stage") is None:
        keys.append(Key("stage", "rlhf (dpo if not given)", "dpo", TOOL))
    policy = (kind := source.get("stage")) is not None and str(kind.value) == POLICY
    keys += _batch_of_answers(source) if policy else []
    named = next((key for key in source.keys if key.name == "model_name" and "model_name_or_path" in source), None)
    draft.harmless(named, "a name in the data set")
    job = replace(call, options=tuple(keys))
    newer = any(f"--{key.written.lstrip('-')}" in NEWER for key in call.options)
    rules = replace(POLICIES, own_pass=True) if newer else POLICIES
    read_trainer(draft, None, job, factory=False, dialect=Dialect("swift", _brought, FROZEN, rules))
    if call.positional and "cluster.gpus" not in draft.lines:
        draft.write("cluster.gpus", 1, note="one process without NPROC_PER_NODE")
    _defaults(draft, source, policy=policy)
    tuner, bits = source.get("tuner_type"), source.get("quant_bits")
    if tuner is not None and str(tuner.value) == "full":
        draft.harmless(tuner, "everything is trained, as without training.finetune")
    if bits is not None and str(bits.value) not in ("4", "8"):
        draft.harmless(bits, "nothing is quantised")
    said = {fate.key.written for fate in draft.fates.values()}
    draft.close(Source((key for key in source.keys if key.written not in said), source.table))


def _refuse(draft: ImportDraft, source: Source) -> None:
    tuner, task, backend = source.get("tuner_type"), source.get("task_type"), source.get("tuner_backend")
    if tuner is not None and str(tuner.value) not in ("lora", "full"):
        draft.refuse(tuner, f"the tuner {tuner.value}", "parsim has lora and full")
    if task is not None and str(task.value) != "causal_lm":
        draft.refuse(task, f"the task {task.value}")
    draft.harmless(task, "next tokens")
    if backend is not None and str(backend.value) != "peft":
        draft.unmodelled(backend, "kernels of unsloth")
    draft.harmless(backend, "PEFT, as parsim has it")
    bits, method = source.get("quant_bits"), source.get("quant_method")
    if bits is not None and str(bits.value) not in ("4", "8", "0"):
        draft.refuse(bits, f"frozen weights in {bits.value} bits", "parsim has four (nf4, nf4-dq), eight (int8) and sixteen")
    if method is not None and str(method.value) != "bnb":
        draft.refuse(method, f"weights quantised by {method.value}", "parsim has the four bits of bitsandbytes (NF4)")
    draft.harmless(method, "bitsandbytes, as parsim has it")


def _types(draft: ImportDraft, source: Source) -> list[Key]:
    """Weights of a half type are trained under autocast of the same type; weights in fp32 under autocast in fp16.

    A type that is not said is the model's own (swift/arguments/base_args/model_args.py, _init_mixed_precision).
    """
    loaded = source.get("torch_dtype", "dtype")
    known = loaded is not None and isinstance(loaded.value, str)
    if known and loaded is not None:
        word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}.get(loaded.text)
        return [replace(loaded, name=word, value=True, original=loaded.value)] if word and word not in source else []
    draft.remark("a model's weights are taken as bfloat16, as almost all are", "training.precision", "say --torch_dtype")
    own = Key("torch_dtype", "--torch_dtype (the model's own if not given)", "bfloat16", TOOL)
    return [own, *([] if source.all("bf16", "fp16") else [replace(own, name="bf16", value=True, original="bfloat16")])]


def _adapters(source: Source) -> list[Key]:
    """LoRA unless everything is trained; its base in four bits where they are asked for."""
    tuner, bits = source.get("tuner_type"), source.get("quant_bits")
    if tuner is not None and str(tuner.value) == "full":
        return (
            [replace(bits, name="load_in_4bit", value=True, original=bits.value)]
            if bits is not None and str(bits.value) in ("4", "8")
            else []
        )
    named = Key("use_peft", "--tuner_type (lora if not given)", True, TOOL)
    made = [named if tuner is None else replace(tuner, name="use_peft", value=True, original=tuner.value)]
    if bits is not None and str(bits.value) in ("4", "8"):
        made.append(replace(bits, name=f"load_in_{bits.value}bit", value=True, original=bits.value))
    if bits is not None and str(bits.value) == "4" and source.get("bnb_4bit_use_double_quant") is None:
        made.append(Key("bnb_4bit_use_double_quant", "--bnb_4bit_use_double_quant (true if not given)", True, TOOL))
    return made


def _batch_of_answers(source: Source) -> list[Key]:
    """What ``--rlhf_type grpo`` takes for a batch that is not said."""
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    return [Key(name, f"--{name} (1 if not given)", 1, TOOL) for name in names if source.get(name) is None]


def _fsdp(draft: ImportDraft, key: Key) -> Key:
    """``--fsdp`` names a file, or settings that ms-swift brings: what they say is left to the reader."""
    if key.name == "fsdp" and (str(key.value).endswith(".json") or str(key.value) == "fsdp2"):
        draft.fill("parallel.data.strategy", EXAMPLES["parallel.data.strategy"], key)
        return replace(key, name="fsdp_config.of_a_file", value=None)
    return key


def _brought(name: str) -> dict[str, object] | None:
    """The DeepSpeed file that ms-swift brings under a name."""
    if name not in ZERO:
        return None
    place = {"device": "cpu" if name.endswith("offload") else "none"}
    zero: dict[str, object] = {"stage": ZERO[name], "overlap_comm": not name.endswith("offload") or ZERO[name] < 3}
    if ZERO[name] >= 2:
        zero["offload_optimizer"] = place
    if ZERO[name] == 3:
        zero |= {"offload_param": place, "reduce_bucket_size": AUTO, "stage3_prefetch_bucket_size": AUTO}
        zero |= {"stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9}
    elif ZERO[name]:
        zero["reduce_bucket_size"] = 2e8
    batch = dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"), AUTO)
    return {"fp16": {"enabled": AUTO}, "bf16": {"enabled": AUTO}, "zero_optimization": zero, **batch}


def _defaults(draft: ImportDraft, source: Source, *, policy: bool) -> None:
    """What ms-swift takes where the Trainer or TRL takes something else."""
    if source.get("per_device_train_batch_size") is None and draft.given.micro_batch is None and not policy:
        draft.write("training.micro_batch", 1, note="per_device_train_batch_size is 1 if not given")
    if source.get("gradient_accumulation_steps") is None and draft.given.gradient_accumulation is None and not policy:
        how = f"as many as make {LARGE_ENOUGH} samples of a step on all GPUs (--gradient-accumulation)"
        draft.fill("training.gradient_accumulation", how)
    again = source.get("gradient_checkpointing")
    if again is None or draft.flag(again):
        draft.write("training.recompute", "full", again, note="" if again else "gradient_checkpointing is true if not given")
    draft.harmless(again, "switched off")
    if draft.value("training.finetune.method") in ("lora", "qlora") and source.get("lora_r") is None:
        draft.write("training.finetune.rank", RANK, note=f"{RANK} if not given")
    kind = source.get("lora_dtype")
    write_adapter_dtype(draft, kind, fp32=kind is None or str(kind.value) not in ("bfloat16", "float16", "bf16", "fp16"))
    ranks = source.get("sequence_parallel_size")
    if (size := draft.whole(ranks, 1)) is not None and size > 1:
        draft.write("parallel.context.size", size, ranks)
        draft.write("parallel.context.method", "ulysses", ranks)
    draft.harmless(ranks, "every rank has whole samples")
