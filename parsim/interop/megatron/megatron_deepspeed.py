"""Megatron-DeepSpeed's options as a scenario: Megatron-LM's layers under DeepSpeed's engine, with other names and defaults.

What they mean: deepspeedai/Megatron-DeepSpeed, megatron/arguments.py, megatron/model/transformer.py (get_num_experts_per_layer) and
gpt_model.py (GPTModelPipe); bigscience-workshop/Megatron-DeepSpeed, megatron/arguments.py; deepspeedai/DeepSpeed, runtime/engine.py.
"""

from __future__ import annotations

from typing import Any

from parsim.interop.command import Invocation, read_environment, remark_open
from parsim.interop.deepspeed import write_precision
from parsim.interop.deepspeed_zero import write_states
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import sizes, write_sequence_length
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.megatron.deepspeed_file import deepspeed_file
from parsim.interop.megatron.model import read_model
from parsim.interop.megatron.other_models import refused_model
from parsim.interop.megatron.parallel import read_pipeline, read_tensor
from parsim.interop.megatron.training import read_attention, read_batch, read_dropout, read_optimizer, read_recompute
from parsim.interop.processes import write_launched
from parsim.scenario.shortforms import ZERO
from parsim.scenario.support import PLACEHOLDER

MARKS = (
    "deepspeed", "deepspeed_config", "zero_stage", "ds_sequence_parallel_size", "no_pipeline_parallel", "moe_expert_parallel_size",
    "expert_interval", "mlp_type", "deepspeed_activation_checkpointing", "glu_activation", "embed_layernorm", "pp_partition_method",
)  # fmt: skip
"""options that Megatron-LM has not"""
OF_2023 = (
    "normalization", "num_key_value_heads", "use_flash_attn", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder",
    "swiglu", "use_rotary_position_embeddings", "ds_sequence_parallel_size", "recompute_granularity", "recompute_activations",
    "sequence_parallel", "use_distributed_optimizer", "disable_bias_linear", "untie_embeddings_and_output_weights", "hidden_act",
)  # fmt: skip
"""options that it has since it was rebased on Megatron-LM of 2023"""
REFUSED = {
    "kd": "a teacher that runs beside the model",
    "mos": "a teacher that runs beside the model",
    "ds_sequence_parallel_fpdt": "sequences in chunks that wait in host memory (FPDT)",
    "num_experts_switch": "Megatron-LM's early Switch layers",
    "compression_training": "compression",
}


def read_megatron_deepspeed(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of a Megatron-DeepSpeed command into `draft`."""
    table = key_table("megatron-deepspeed")
    source, launch = (Source(keys, table) for keys in (call.options, call.launch))
    refused_model(draft, call, source)
    for name, what in REFUSED.items():
        if (key := source.get(name)) is not None and key.value not in (False, "0", "false"):
            draft.errors.append(key.finding(f"{what} is not supported yet", "leave the option out to simulate the training without it"))
            draft.unmodelled(key, what)
    config = deepspeed_file(draft, call, source.get("deepspeed_config"))
    tensor = draft.take(source, "parallel.tensor.size") or 1
    layers = read_model(draft, source, tensor, call)
    write_launched(draft, launch, call.launcher, call.variables, call.used)
    length = write_sequence_length(draft, source.of("training.sequence_length"))
    read_batch(draft, source, length)
    _read_precision(draft, source, config)
    read_optimizer(draft, source)
    read_dropout(draft, source)
    _read_attention(draft, source)
    read_recompute(draft, source)
    read_tensor(draft, source)
    read_pipeline(draft, source, layers)
    _read_cut(draft, source, layers)
    if (draft.take(source, "parallel.context.size") or 1) > 1:
        draft.write("parallel.context.method", "ulysses", source.of("parallel.context.size"))
    _read_experts(draft, source, tensor)
    _write_software(draft, source)
    _read_states(draft, source, config)
    read_environment(draft, call.environment)
    remark_open(draft, call, source)
    draft.close(source)
    draft.close(launch)
    if config is not None:
        draft.close(config)


def _read_precision(draft: ImportDraft, source: Source, config: Source | None) -> None:
    """DeepSpeed's engine decides by its file; without one the options say what it would be."""
    on = [(name, key) for name in ("bf16", "fp16") if draft.flag(key := source.of(f"training.precision.{name}"))]
    said = on[0] if on else ("fp32", None)
    for name in ("gradients.fp32", "gradients.bf16"):
        draft.harmless(source.of(f"training.precision.{name}"), "DeepSpeed's engine keeps gradients its own way")
    for narrow in ("fp8", "fp4"):
        if (key := source.of(f"training.precision.{narrow}")) is not None and key.value is not False:
            draft.errors.append(key.finding("Transformer Engine's fp8 under DeepSpeed is not supported yet", "leave it out"))
    write_precision(draft, config if config is not None else Source((), key_table("deepspeed")), said)
    if config is not None:
        for name in ("bf16", "fp16"):
            key = config.of(f"training.precision.{name}")
            if key is not None and said[1] is not None and key.value is (name != said[0]):
                text = f"{key.quoted(draft.file)} and {said[1].quoted(draft.file)} contradict each other"
                draft.errors.append(key.finding(text, "correct one of the two lines"))
    for name in ("bf16", "fp16"):
        key = source.of(f"training.precision.{name}")
        if key is not None and not draft.settled(key):
            draft.harmless(key, "DeepSpeed's own type counts" if draft.flag(key) else "switched off")


def _read_attention(draft: ImportDraft, source: Source) -> None:
    """FlashAttention by one of four switches; otherwise two batched products around a fused softmax (ParallelAttention)."""
    flash = [key for key in source.all("use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder") if draft.flag(key)]
    if flash:
        draft.write("training.attention", "flash2", *flash)
        draft.harmless(source.get("use_flash_attn", "use_flash_attn_v1"), "a later version is switched on, too")
        return
    read_attention(draft, source)
    if draft.value("training.attention") is None:
        draft.write("training.attention", "eager", note="no --use-flash-attn")


def _read_cut(draft: ImportDraft, source: Source, layers: int | None) -> None:
    """``--pp-partition-method 'type:transformer|embedding'``: the embeddings at both ends count as layers."""
    row = source.table.rows["parallel.pipeline.cut"]
    key, stages = source.of(row.path), draft.value("parallel.pipeline.size") or 1
    kind = None if key is None else row.ours(key.text.strip("'\""))
    if draft.switch(source, "parallel.pipeline.zero_bubble"):
        draft.write("parallel.pipeline.schedule", "zb-h1", source.of("parallel.pipeline.zero_bubble"))
    if key is None:
        return
    if kind == "layers" or stages == 1:
        draft.harmless(key, "layers are spread evenly")
    elif kind == "embeddings" and layers is not None and (layers + 2) % stages == 0 and (layers + 2) // stages > 1:
        each = (layers + 2) // stages
        split = [each - (stage == 0) - (stage == stages - 1) for stage in range(stages)]
        draft.write("parallel.pipeline.split", split, key, note=f"({layers} layers + 2 embeddings) / {stages} stages = {each}")
    else:
        text = (
            f"{layers} layers and 2 embeddings are not a multiple of {stages} stages" if kind == "embeddings" else "parsim reads type:..."
        )
        draft.errors.append(key.finding(f"how the layers are cut is not known: {text}", "write parallel.pipeline.split yourself"))


def _read_experts(draft: ImportDraft, source: Source, tensor: int) -> None:
    """DeepSpeed's mixture of experts: tokens beyond the capacity are dropped, all-to-all between ranks."""
    rows = ("size", "tensor", "capacity_factor", "drops")
    if draft.value("model.experts.count") is None:
        for row in rows:
            draft.harmless(source.of(f"parallel.expert.{row}"), "there are no experts")
        return
    if draft.take(source, "parallel.expert.size") is None:
        draft.write("parallel.expert.size", 1, note="--moe-expert-parallel-size is 1 if not given")
    counts, ranks = draft.value("model.experts.counts") or [], draft.value("parallel.expert.size")
    few = next((count for count in counts if isinstance(ranks, int) and count % ranks), None)
    if few is not None and (size := source.of("parallel.expert.size")) is not None:
        text = f"not supported yet: {few} experts over fewer ranks than the {max(counts)} of other layers"
        draft.errors.append(size.finding(text, "a number of ranks that divides every layer's experts"))
    draft.write("parallel.expert.dispatcher", "alltoall", note="DeepSpeed's")
    if draft.switch(source, "parallel.expert.tensor"):
        draft.write("parallel.expert.tensor", tensor, source.of("parallel.expert.tensor"))
    drops = source.of("parallel.expert.drops")
    if drops is not None and draft.flag(drops):
        draft.harmless(drops, "no token is dropped, as parsim has it")
        draft.harmless(source.of("parallel.expert.capacity_factor"), "no token is dropped")
        return
    draft.harmless(drops, "switched off")
    if draft.take(source, "parallel.expert.capacity_factor") is None:
        draft.write("parallel.expert.capacity_factor", 1.0, note="--moe-train-capacity-factor is 1.0 if not given")
    draft.write("parallel.expert.pad_to_capacity", True, note="every expert gets as many rows as its capacity")


def _write_software(draft: ImportDraft, source: Source) -> None:
    """The layers are Megatron-LM's: fused, with a vocabulary-parallel cross entropy and padded words."""
    new = [name for name in OF_2023 if name in source]
    if not new:
        draft.write("software.profile", "deepspeed-2021", note="no option of later versions")
        return
    written = next(key.written for key in source.keys if key.name == new[0])
    draft.write("software.profile", "deepspeed", note=f"{written} is an option of the versions from 2023 on")
    draft.write("software.fusion", "fused", note="Megatron-LM's kernels")
    if draft.value("model.family") is not None:
        draft.write("training.loss.kernel", "vocab-parallel", note="Megatron-LM's cross entropy")
        if draft.value("model.vocab_divisible_by") is None:
            draft.write("model.vocab_divisible_by", 128, note="--make-vocab-size-divisible-by is 128 if not given")


def _read_states(draft: ImportDraft, source: Source, config: Source | None) -> None:
    """ZeRO's stage and offload: DeepSpeed's file decides, without it ``--zero-stage``."""
    stage_key = source.of("parallel.data.strategy")
    cpu, remote = source.of("training.offload.optimizer"), source.of("training.offload.parameters")
    if config is None:
        _without_file(draft, stage_key, cpu, remote)
        return
    tree: dict[str, Any] = {}
    for path, line in draft.lines.items():
        if path.startswith("model.") and line.value != PLACEHOLDER:
            holder = tree
            *above, last = path.split(".")[1:]
            for part in above:
                holder = holder.setdefault(part, {})
            holder[last] = line.value
    known = (
        sizes(draft.given.model or tree, None) if draft.given.model or {"layers", "hidden", "heads", "vocabulary"} <= set(tree) else None
    )
    write_states(draft, config, known)
    _check_stage(draft, config, stage_key)
    if (clip := config.of("training.optimizer.clip_gradients")) is not None and (limit := draft.number(clip)) is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip, note="DeepSpeed's engine clips, --clip-grad does not count")
    for path in ("training.micro_batch", "training.global_batch"):
        _compare(draft, config.of(path), source.of(path), path)
    draft.harmless(config.of("training.gradient_accumulation"), "global batch / (micro-batch x data-parallel ranks)")
    for other in config.keys:
        if other.name.startswith(("optimizer.", "scheduler.")):
            draft.harmless(other, "Megatron-LM's own optimizer counts")
    for key, path in ((cpu, "optimizer"), (remote, "parameters")):
        draft.harmless(
            key, f"zero_optimization.offload_{path[:5]} says it" if draft.value(f"training.offload.{path}") else "nothing is offloaded"
        )
    if source.of("training.offload.activations") is not None and draft.flag(source.of("training.offload.activations")):
        draft.write("training.offload.activations", "cpu", source.of("training.offload.activations"))
    overlap = config.of("parallel.data.overlap_reduce")
    if draft.value("parallel.data.strategy") in ("ddp", "none") and overlap is None:
        draft.write("parallel.data.overlap_reduce", False, note="DeepSpeed reduces behind the backward pass")


def _without_file(draft: ImportDraft, stage: Key | None, cpu: Key | None, remote: Key | None) -> None:
    if (number := draft.whole(stage)) is not None and number in ZERO:
        draft.write("parallel.data.strategy", ZERO[number], stage, note="DeepSpeed's file is not known, and is taken to say the same")
    else:
        draft.fill("parallel.data.strategy", "ddp, zero1, zero2 or zero3: it stands in DeepSpeed's file", stage)
    if draft.flag(cpu):
        draft.write("training.offload.optimizer", "cpu", cpu)
    if remote is not None and remote.text in ("cpu", "nvme"):
        draft.write("training.offload.parameters", remote.text, remote)


def _check_stage(draft: ImportDraft, config: Source, option: Key | None) -> None:
    """bf16 without ZeRO has an optimizer of its own; stages that shard gradients go without a pipeline."""
    path, precision = "parallel.data.strategy", "training.precision"
    key = config.of(path)
    stage = 0 if key is None else draft.whole(key) or 0
    if option is not None and (number := draft.whole(option)) is not None and number != stage:
        draft.remark(f"{option.quoted(draft.file)} is another stage than DeepSpeed's file has ({stage}), which counts", path)
    draft.harmless(option, "DeepSpeed's file counts")
    if stage >= 2 and (draft.value("parallel.pipeline.size") or 1) > 1 and key is not None:
        text = f"ZeRO-{stage} with {draft.value('parallel.pipeline.size')} pipeline stages: DeepSpeed's pipeline engine refuses it"
        draft.errors.append(key.finding(text, "use stage 0 or 1"))
    if stage == 0 and draft.value(precision) == "bf16":
        note = "bf16 without ZeRO: DeepSpeed's BF16_Optimizer shards fp32 states and accumulates gradients in fp32"
        keys = draft.lines[precision].keys
        draft.write(path, "zero1", key, note=note)
        draft.write(precision, "bf16-fp32grad", *keys, note="its gradients are fp32")


def _compare(draft: ImportDraft, engine: Key | None, option: Key | None, path: str) -> None:
    """A number that DeepSpeed's file and Megatron's options both say.

    Before every step Megatron tells DeepSpeed its own global batch (training.py, train: set_train_batch_size).
    """
    if engine is None:
        return
    theirs, ours = draft.number(engine) if engine.value != "auto" else None, draft.value(path)
    if theirs is not None and option is not None and isinstance(ours, int) and theirs != ours and draft.given.micro_batch is None:
        text = f"{engine.quoted(draft.file)} and {option.quoted(draft.file)} contradict each other"
        if path == "training.global_batch":
            draft.remark(f"{text}: the latter counts, of which DeepSpeed is told before every step", path)
        else:
            draft.errors.append(engine.finding(text, "correct one of the two lines"))
    draft.harmless(engine, "Megatron's options say it, too")
