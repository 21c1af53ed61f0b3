"""A configuration file of accelerate (``accelerate config``) as a scenario, alone or beside the arguments of a Trainer.

What the keys mean: huggingface/accelerate, src/accelerate/commands/launch.py and src/accelerate/utils/dataclasses.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parsim.scenario import files
from parsim.scenario.importers.training import deepspeed
from parsim.scenario.importers.training.deepspeed_tables import TABLES as DEEPSPEED
from parsim.scenario.importers.training.draft import Draft, Tables
from parsim.scenario.importers.training.fsdp import write_fsdp
from parsim.scenario.importers.training.keys import Key, Source, of_document
from parsim.scenario.importers.training.machine import counted, write_cluster
from parsim.scenario.importers.training.models import (
    Sizes,
    missing_file,
    neighbour,
    write_accumulation,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.scenario.placeholder import EXAMPLES
from parsim.scenario.support import unsupported

SCHEDULER = (
    "job_name partition account time exclusive mem output error export mpi cpus_per_task qos constraint mail_type mail_user reservation "
    "dependency signal requeue open_mode container_image container_mounts container_name container_workdir l p A J t o e c D"
)
"""options of sbatch and srun that say nothing about a step"""
HARMLESS = {
    "how the job starts": (
        "compute_environment machine_rank main_process_ip main_process_port main_training_function rdzv_backend rdzv_conf "
        "same_network gpu_ids base_job_name ec2_instance_type iam_role_name image_uri profile py_version pytorch_version region "
        "sagemaker_inputs_file sagemaker_metrics_file transformers_version additional_args.* command_file commands "
        "num_cpu_threads_per_process max_restarts monitor_interval module no_python config_file role log_dir tee use_fsdp "
        "use_deepspeed multi_gpu use_megatron_lm debug mpirun_config.* deepspeed_config.deepspeed_multinode_launcher "
        "deepspeed_config.deepspeed_hostfile deepspeed_config.deepspeed_inclusion_filter "
        "deepspeed_config.deepspeed_exclusion_filter deepspeed_config.zero3_init_flag "
        "deepspeed_config.deepspeed_moe_layer_cls_names aws_access_key_id aws_secret_access_key"
    ),
    "checkpoints": "deepspeed_config.zero3_save_16bit_model",
    "where the drive is mounted": "deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path",
    "accelerate says how many processes there are": "nodes ntasks ntasks_per_node gpus_per_node gres gpus nnodes nproc_per_node",
    "options of the job scheduler": SCHEDULER,
    "only of TPUs": "tpu_env tpu_vm tpu_name tpu_zone tpu_use_cluster tpu_use_sudo tpu_cluster downcast_bf16 tpu_env.* tpu_commands",
    "only of Intel's machines": "ipex_config.* ipex_config",
}
UNMODELLED = {
    "processes bound to CPUs": "enable_cpu_affinity",
    "8-bit formats beyond Transformer Engine's usual recipe": "fp8_config.*",
    "details of compiling": (
        "dynamo_config.dynamo_mode dynamo_config.dynamo_use_dynamic dynamo_config.dynamo_use_fullgraph "
        "dynamo_config.dynamo_use_regional_compilation"
    ),
    "details of how sequences are split": "parallelism_config.*",
    "details of Megatron-LM": "megatron_lm_config.*",
}
TABLES = Tables(HARMLESS, UNMODELLED)
SECTIONS = {
    "fsdp_": "fsdp_config", "zero": "deepspeed_config", "offload_": "deepspeed_config", "gradient_": "deepspeed_config",
    "deepspeed_": "deepspeed_config", "megatron_lm_": "megatron_lm_config", "parallelism_config_": "parallelism_config",
    "dynamo_": "dynamo_config", "fp8_": "fp8_config",
}  # fmt: skip
"""begin of an option of ``accelerate launch`` -> the section of the file that it belongs to"""
PRECISIONS = {"no": "fp32", "fp16": "amp-fp16", "bf16": "amp-bf16", "fp8": "fp8"}
KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")


def read_accelerate(draft: Draft, document: files.Document) -> None:
    """Write the scenario of an accelerate configuration; what the training script says is left to fill in."""
    source = of_document(document)
    sizes = write_model(draft, None)
    write_processes(draft, source)
    write_sequence_length(draft, None)
    steps = source.get("deepspeed_config.gradient_accumulation_steps", "megatron_lm_config.megatron_lm_num_micro_batches")
    beside = deepspeed_of(draft, source)
    if beside is not None:
        deepspeed.write_batch(draft, beside)
        draft.harmless(steps, "the DeepSpeed file says it")
    else:
        write_micro_batch(draft, None)
        write_accumulation(draft, steps)
    half = precision_of(source)
    write_strategy(draft, source, sizes, beside, half)
    if draft.value("training.optimizer.name") is None:
        draft.write("training.optimizer.name", "adamw", note="the training script's is taken for AdamW")
    clip = source.get("deepspeed_config.gradient_clipping", "megatron_lm_config.megatron_lm_gradient_clipping")
    clip = clip or (beside.get("gradient_clipping") if beside is not None else None)
    limit = draft.number(clip) if clip is not None and clip.value not in ("auto", "none", "None") else None
    if limit is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip)
    else:
        draft.harmless(clip, "the training script says it")
    if beside is not None:
        draft.close(beside, DEEPSPEED)
    draft.close(source, TABLES)


def write_processes(draft: Draft, source: Source) -> None:
    """Machines and processes."""
    machines, processes = source.get("num_machines"), source.get("num_processes")
    write_cluster(draft, nodes=counted(draft, machines, replaced=draft.given.nodes is not None), total=counted(draft, processes))


def precision_of(source: Source) -> tuple[str, Key] | None:
    """``mixed_precision`` as the half type (or fp32), and its key."""
    key = source.get("mixed_precision")
    if key is None:
        return None
    return "no" if key.value is False else key.text, key


def deepspeed_of(draft: Draft, source: Source) -> Source | None:
    """The DeepSpeed file that ``deepspeed_config`` names."""
    key = source.get("deepspeed_config.deepspeed_config_file", "deepspeed_config_file")
    if key is None:
        return None
    path = neighbour(str(key.value), draft.file)
    if path is None:
        draft.remarks.append(missing_file(key))
        draft.fill("parallel.data.strategy", EXAMPLES["parallel.data.strategy"], key)
        return None
    draft.harmless(key, "it is read too")
    return of_document(files.read(Path(path)))


def write_strategy(
    draft: Draft, source: Source, sizes: Sizes | None, beside: Source | None, half: tuple[str, Key] | None, *, whole: bool = True
) -> None:
    """What is sharded. `whole`: the types and the compiler too, which nothing else says."""
    kind = source.get("distributed_type")
    word = _guessed(source) if kind is None else "NO" if kind.value is False else kind.text.upper()  # YAML 1.1 reads NO as false
    if word not in KINDS and kind is not None:
        draft.errors.append(kind.finding(f"{word} is no job on GPUs", f"parsim knows {', '.join(KINDS)}"))
    if word == "DEEPSPEED":
        _deepspeed(draft, source, sizes, beside, half)
        draft.write("software.profile", "deepspeed", kind)
    else:
        if whole:
            _precision(draft, half)
        if word == "FSDP":
            write_fsdp(draft, source, "fsdp_config.fsdp_", None)
            draft.write("software.profile", "pytorch-2", kind)
        elif word == "MEGATRON_LM":
            _megatron(draft, source, kind)
        else:
            draft.write("parallel.data.strategy", "none" if word == "NO" else "ddp", kind)
            draft.write("software.profile", "pytorch-2")
    _mesh(draft, source)
    if word in ("FSDP", "MULTI_GPU"):
        write_reduction(draft)
    backend = source.get("dynamo_config.dynamo_backend", "dynamo_backend")
    if backend is not None and str(backend.value).lower() not in ("no", "false", "eager"):
        draft.write("software.fusion", "compiled", backend)
    else:
        draft.harmless(backend, "nothing is compiled")
    for section, ours in (("fsdp_config.", "FSDP"), ("deepspeed_config.", "DEEPSPEED"), ("megatron_lm_config.", "MEGATRON_LM")):
        for key in source.keys if word != ours else ():
            if key.name.startswith(section) and not draft.settled(key) and key.value is not None:
                draft.harmless(key, f"it counts with distributed_type {ours} only")
    cpu = source.get("use_cpu", "cpu")
    draft.only_if(cpu, (False,), "parsim knows GPUs", "on GPUs")


def write_reduction(draft: Draft) -> None:
    """Accelerate, hence Trainer, keeps DDP and FSDP from reducing all but the last micro-batch of a step."""
    strategy, steps = draft.value("parallel.data.strategy"), draft.value("training.gradient_accumulation")
    if strategy in ("ddp", "fsdp", "hsdp") and steps is not None and steps != 1:
        text = "Accelerator.accumulate is inside no_sync unless GradientAccumulationPlugin(sync_each_batch=True)"
        draft.write("parallel.data.accumulate", "no_sync", note=text)


def _precision(draft: Draft, half: tuple[str, Key] | None) -> None:
    """Autocast on fp32 weights, also of FSDP, whose shards are fp32 and are gathered in the half type."""
    if half is None:
        draft.write("training.precision", "fp32", note="mixed_precision is no if not given")
    elif half[0] in PRECISIONS:
        draft.write("training.precision", PRECISIONS[half[0]], half[1])
    else:
        draft.errors.append(half[1].finding(f"{half[0]!r} is none of {', '.join(PRECISIONS)}"))


def _guessed(source: Source) -> str:
    names = [key.name for key in source.keys]
    if any(name.startswith("fsdp_config.") for name in names) or "use_fsdp" in names:
        return "FSDP"
    if any(name.startswith(("deepspeed_config", "zero_stage")) for name in names) or "use_deepspeed" in names:
        return "DEEPSPEED"
    if any(name.startswith("megatron_lm_config.") for name in names):
        return "MEGATRON_LM"
    count = source.get("num_processes")
    return "NO" if count is not None and str(count.value) == "1" else "MULTI_GPU"


def _deepspeed(draft: Draft, source: Source, sizes: Sizes | None, beside: Source | None, half: tuple[str, Key] | None) -> None:
    """ZeRO from the file that is named, else from the keys of accelerate's own."""
    own = source.below("deepspeed_config.")
    type_ = None if half is None else ({"no": ""}.get(half[0], half[0]), half[1])
    if beside is not None:
        deepspeed.write_optimizer(draft, beside, known="training.optimizer.name" in draft.lines)
        deepspeed.write_precision(draft, beside, type_)
        deepspeed.write_states(draft, beside, sizes)
        for key in own.keys:
            if not draft.settled(key) and key.value is not None:
                draft.harmless(key, "the DeepSpeed file counts")
    elif "parallel.data.strategy" in draft.lines:  # left to fill in: the file is not there
        if type_ is not None:
            draft.write("training.precision", type_[0] or "fp32", type_[1])
    else:
        deepspeed.write_precision(draft, own, type_)
        deepspeed.write_states(draft, own, sizes)
        source.asked |= {f"deepspeed_config.{name}": None for name in own.asked}


def _megatron(draft: Draft, source: Source, kind: Key | None) -> None:
    get = source.get
    prefix = "megatron_lm_config.megatron_lm_"
    for name, path in (
        ("tp_degree", "parallel.tensor.size"),
        ("pp_degree", "parallel.pipeline.size"),
        ("context_parallel_size", "parallel.context.size"),
    ):
        if (value := draft.whole(get(f"{prefix}{name}"), 1)) is not None:
            draft.write(path, value, get(f"{prefix}{name}"))
    sequence = get(f"{prefix}sequence_parallelism")
    if sequence is not None and draft.value("parallel.tensor.size") not in (None, 1):
        draft.write("parallel.tensor.sequence_parallel", draft.flag(sequence), sequence)
    else:
        draft.harmless(sequence, "there is one tensor rank")
    sharded = get(f"{prefix}use_distributed_optimizer")
    draft.write("parallel.data.strategy", "zero1" if draft.flag(sharded) else "ddp", sharded)
    draft.write("software.profile", "megatron-core", kind)
    again = get(f"{prefix}recompute_activations")
    if again is not None and draft.flag(again):
        draft.write("training.recompute", {"selective": ["attention"]}, again)
    else:
        draft.harmless(again, "switched off")
    ranks = get(f"{prefix}expert_model_parallel_size")
    if ranks is not None and (count := draft.whole(ranks, 1)) is not None:
        if unsupported({"parallel": {"expert": {"size": count}}}):
            draft.unmodelled(ranks, "every rank holds all experts")
        else:
            draft.write("parallel.expert.size", count, ranks)


def _mesh(draft: Draft, source: Source) -> None:
    """``parallelism_config``: sizes of a device mesh beside FSDP."""
    get = source.get
    prefix = "parallelism_config.parallelism_config_"
    for name, axis in (("tp_size", "tensor"), ("cp_size", "context"), ("sp_size", "context")):
        key = get(f"{prefix}{name}", name)
        size = draft.whole(key, 1)
        if key is None or size is None:
            continue
        if size > 1 or f"parallel.{axis}.size" not in draft.lines:
            draft.write(f"parallel.{axis}.size", size, key)
        else:
            draft.harmless(key, "one rank")
        if name == "sp_size" and size > 1:
            draft.write("parallel.context.method", "ulysses", key)
    strategy = get(f"{prefix}cp_comm_strategy")
    if strategy is not None and strategy.value in ("allgather", "alltoall"):
        draft.write("parallel.context.method", "all-gather" if strategy.value == "allgather" else "ring", strategy)
    copies, shards = get(f"{prefix}dp_replicate_size"), get(f"{prefix}dp_shard_size")
    number, size = draft.whole(copies, 1) or 1, draft.whole(shards, 1)
    value: Any = draft.value("parallel.data.strategy")
    if number > 1 and size is not None and size > 1 and value in ("fsdp", "hsdp"):
        draft.write("parallel.data.strategy", "hsdp", *draft.lines["parallel.data.strategy"].keys, copies)
        draft.write("parallel.data.shard_size", size, shards)
        return
    if number > 1 and (size or 1) == 1:
        draft.write("parallel.data.strategy", "ddp", *draft.lines["parallel.data.strategy"].keys, copies)
    for key in (copies, shards):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "the other sizes leave as many ranks")
