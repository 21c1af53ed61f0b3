"""A DeepSpeed configuration as a scenario, alone or beside the arguments of a Hugging Face Trainer.

What the keys mean and what is taken where they are left out: DeepSpeed documentation, configuration JSON; deepspeed/runtime/zero/config.py.
What ``auto`` becomes: huggingface/transformers, src/transformers/integrations/deepspeed.py.
"""

from __future__ import annotations

from typing import Any

from parsim.scenario import files
from parsim.scenario.importers.training.deepspeed_tables import TABLES
from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key, Source, of_document
from parsim.scenario.importers.training.machine import write_cluster
from parsim.scenario.importers.training.models import Sizes, write_accumulation, write_micro_batch, write_model, write_sequence_length
from parsim.scenario.shortforms import ZERO

ZERO_SECTION = "zero_optimization"
AUTO = "auto"
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "fusedadam": "adamw", "lion": "lion", "sgd": "sgd"}
PLACES = ("none", "cpu", "nvme")
TYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}
SUB_GROUP = 1_000_000_000
"""elements that parsim steps on drives at a time"""
SMALL_BUCKET = 10_000_000
"""elements from which on the size of a gather no longer matters"""
FOLLOWS = "auto: follows the training arguments"


def read_deepspeed(draft: Draft, document: files.Document) -> None:
    """Write the scenario of a configuration that stands alone; ``auto`` is left to fill in."""
    source = of_document(document)
    sizes = write_model(draft, None)
    write_cluster(draft)
    write_sequence_length(draft, None)
    write_batch(draft, source)
    write_precision(draft, source, None)
    write_optimizer(draft, source, known=False)
    clip = source.get("gradient_clipping")
    if clip is None or clip.value == AUTO:
        note = "DeepSpeed's default" if clip is None else "auto is transformers' max_grad_norm, 1.0 if not given"
        draft.write("training.optimizer.clip_gradients", clip is not None, clip, note=note)
    elif (limit := draft.number(clip)) is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip)
    write_states(draft, source, sizes)
    draft.close(source, TABLES)


def write_batch(draft: Draft, source: Source) -> None:
    """Two of the three numbers, all three where they are given; auto is what the other two leave, or is left to fill in."""
    micro, steps, total = (
        source.get(name) for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    )
    said = {key.name: value for key in (micro, steps, total) if key is not None and key.value != AUTO and (value := draft.whole(key, 1))}
    follows = "auto: follows from the other two"
    if len(said) == 3:
        micro_batch, accumulation = said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"]
        ranks = said["train_batch_size"] / (micro_batch * accumulation)
        note = f"{micro_batch} x {accumulation} on {ranks:g} data-parallel ranks"
        draft.write("training.global_batch", said["train_batch_size"], total, note=note)
    elif "train_batch_size" in said:
        draft.write("training.global_batch", said["train_batch_size"], total)
    else:
        draft.harmless(total, follows)
    left = micro is None or micro.value == AUTO
    if left and draft.given.micro_batch is None and {"train_batch_size", "gradient_accumulation_steps"} <= set(said):
        draft.harmless(micro, follows)
        write_accumulation(draft, steps)
        return
    write_micro_batch(draft, micro)
    known = "train_batch_size" in said and draft.value("training.micro_batch") is not None
    if steps is not None and steps.value == AUTO and known:
        draft.harmless(steps, follows)
    elif steps is not None or not known:
        write_accumulation(draft, steps, 1 if total is None else None, "DeepSpeed's default")


def write_precision(draft: Draft, source: Source, arguments: tuple[str, Key | None] | None) -> None:
    """Types of weights, gradients and master. `arguments` say what auto means."""
    bf16, fp16, autocast = source.get("bf16.enabled", "bfloat16.enabled"), source.get("fp16.enabled"), source.get("torch_autocast.enabled")
    autos = [key for key in (bf16, fp16) if key is not None and key.value == AUTO]
    stated = {"bf16": bf16, "fp16": fp16}
    on = next((name for name, key in stated.items() if key is not None and key not in autos and draft.flag(key)), "")
    for key in (bf16, fp16):
        if key is not None and key is not stated.get(on) and key not in autos:
            draft.harmless(key, "switched off")
    used: list[Key | None] = [stated[on]] if on else []
    if not on and arguments is not None:
        on = arguments[0]
        used = [arguments[1]]
    elif not on and autos:
        draft.fill("training.precision", "bf16, fp16 or fp32: auto follows the training arguments (--hf)", *autos)
        return
    elif arguments is not None:
        draft.harmless(arguments[1], "DeepSpeed's own type counts")
    for key in autos:
        draft.harmless(key, FOLLOWS)
    preset: Any = on or "fp32"
    if autocast is not None and draft.flag(autocast):
        kind = source.get("torch_autocast.dtype")
        preset = "amp-fp16" if kind is not None and kind.text in ("fp16", "float16", "torch.float16") else "amp-bf16"
        used += [autocast, kind]
    else:
        draft.harmless(autocast, "switched off")
        preset = _types(draft, source, preset, used)
    draft.write("training.precision", preset, *used, note="" if any(used) else "neither bf16 nor fp16")


def _types(draft: Draft, source: Source, preset: str, used: list[Key | None]) -> Any:
    """``data_types.grad_accum_dtype`` and ``communication_data_type`` beside a preset."""
    accumulated, sent = source.get("data_types.grad_accum_dtype"), source.get("communication_data_type")
    value: Any = preset
    if accumulated is not None and accumulated.value == "fp32" and preset in ("bf16", "fp16"):
        value = f"{preset}-fp32grad"
        used.append(accumulated)
    elif accumulated is not None:
        draft.only_if(accumulated, (preset, AUTO), "parsim accumulates in the weights' type or in fp32", "that is so anyway")
    if sent is not None and TYPES.get(str(sent.value)) is not None:
        value = {"preset": value, "reduce": TYPES[str(sent.value)]}
        used.append(sent)
    elif sent is not None:
        draft.unmodelled(sent, f"parsim reduces in {', '.join(dict.fromkeys(TYPES.values()))}")
    return value


def write_optimizer(draft: Draft, source: Source, *, known: bool) -> bool:
    """The optimizer of the configuration; whether there is one. `known`: the arguments say it otherwise."""
    kind = source.get("optimizer.type")
    if kind is None:
        if not known:
            draft.write("training.optimizer.name", "adamw", note="no optimizer here: the training script's is taken for AdamW")
        return False
    name = str(kind.value).lower().replace("_", "")
    if name in OPTIMIZERS:
        draft.write("training.optimizer.name", OPTIMIZERS[name], kind)
    else:
        draft.unmodelled(kind, f"adamw stands in for it; parsim has {', '.join(dict.fromkeys(OPTIMIZERS.values()))}")
    torch = source.get("optimizer.params.torch_adam")
    if torch is not None and draft.flag(torch):
        draft.write("training.optimizer.implementation", "foreach", torch)
    return True


def write_states(draft: Draft, source: Source, sizes: Sizes | None) -> None:
    """What is sharded, what is offloaded and how it travels."""
    get = source.get
    key = get(f"{ZERO_SECTION}.stage", "zero_stage")
    stage = draft.whole(key)
    if key is not None and stage is not None and stage not in ZERO:
        draft.errors.append(key.finding(f"{stage} is no ZeRO stage", "0, 1, 2 or 3"))
        stage = 0
    stage = stage or 0
    draft.write("parallel.data.strategy", ZERO[stage], key, note="" if key else "no zero_optimization.stage")
    if "software.profile" not in draft.lines:
        draft.write("software.profile", "deepspeed")
    for name, path in (("tensor_parallel.autotp_size", "tensor"), ("sequence_parallel_size", "context")):
        if (size := draft.whole(get(name), 1)) is not None:
            draft.write(f"parallel.{path}.size", size, get(name))
            if path == "context" and size > 1:
                draft.write("parallel.context.method", "ulysses", get(name))
    _communication(draft, source, stage, sizes)
    _prefetch(draft, source, stage, sizes)
    _offload(draft, source, stage)
    _checkpointing(draft, source, sizes)
    for name, off, why in (
        ("zero_hpz_partition_size", (1,), "ZeRO++ (write a strategy of your own: docs/write-a-strategy.md)"),
        ("mics_shard_size", (-1,), "MiCS (write a strategy of your own: docs/write-a-strategy.md)"),
        ("contiguous_gradients", (True, AUTO), "gradients that are reduced where they are, without a buffer"),
        ("reduce_scatter", (True, AUTO), "an all-reduce in place of a reduce-scatter"),
        ("allgather_partitions", (True, AUTO), "broadcasts in place of an all-gather"),
        ("round_robin_gradients", (False,), "gradients spread over ranks for faster copies to the host"),
        ("legacy_stage1", (False,), "an older ZeRO-1"),
    ):
        draft.only_if(get(f"{ZERO_SECTION}.{name}"), off, why)


def _communication(draft: Draft, source: Source, stage: int, sizes: Sizes | None) -> None:
    overlap, bucket = source.get(f"{ZERO_SECTION}.overlap_comm"), source.get(f"{ZERO_SECTION}.reduce_bucket_size")
    gather = source.get(f"{ZERO_SECTION}.allgather_bucket_size")
    if overlap is not None and overlap.value != AUTO:
        draft.write("parallel.data.overlap_reduce", draft.flag(overlap), overlap)
    else:
        draft.write("parallel.data.overlap_reduce", stage == 3, overlap, note=f"DeepSpeed's default of ZeRO-{stage}")
    if bucket is not None and stage in (1, 2):
        if bucket.value != AUTO:
            if (elements := draft.whole(bucket, 1)) is not None:
                draft.write("parallel.data.bucket", f"{elements} elements", bucket)
        elif sizes is not None:
            note = f"hidden x hidden = {sizes.hidden} x {sizes.hidden}"
            draft.write("parallel.data.bucket", f"{sizes.hidden**2} elements", bucket, note=note)
        else:
            draft.unmodelled(bucket, "auto is hidden x hidden elements of a model that is not known here; DeepSpeed's default is taken")
    elif bucket is not None and stage == 3:
        draft.unmodelled(bucket, "parsim reduces the gradients of ZeRO-3 layer by layer")
    else:
        draft.harmless(bucket, "without ZeRO there is no such bucket")
    elements = None if gather is None or gather.value == AUTO else draft.whole(gather, 1)
    if elements is not None and elements < SMALL_BUCKET:
        draft.unmodelled(gather, "parameters gathered in so small pieces")
    else:
        draft.harmless(gather, "pieces of this size travel as fast as the whole")


def _prefetch(draft: Draft, source: Source, stage: int, sizes: Sizes | None) -> None:
    """Elements of DeepSpeed as units of parsim: whole layers."""
    prefetch = source.get(f"{ZERO_SECTION}.stage3_prefetch_bucket_size", f"{ZERO_SECTION}.prefetch_bucket_size")
    live = source.get(f"{ZERO_SECTION}.stage3_max_live_parameters", f"{ZERO_SECTION}.max_live_parameters")
    if stage < 3:
        for key in (prefetch, live, source.get(f"{ZERO_SECTION}.sub_group_size")):
            draft.harmless(key, "ZeRO-3 only")
        return
    for key, path, least in ((prefetch, "prefetch", 0), (live, "limit_gathers", 1)):
        if key is None:
            continue
        amount = None if key.value == AUTO else draft.number(key)
        if key is prefetch and (amount is None or sizes is None or amount < sizes.layer_parameters):
            ahead = int(amount is None or amount > 0)
            draft.write(f"parallel.data.{path}", ahead, key, note="in layers: part of the next one" if ahead else "")
        elif amount is not None and sizes is not None:
            layers = max(least, min(100, int(amount // sizes.layer_parameters)))
            draft.write(f"parallel.data.{path}", layers, key, note=f"in layers of {sizes.layer_parameters / 1e6:.4g}M parameters")
        else:
            draft.unmodelled(key, "parsim counts in layers, of a model that is not known here; its default is taken")


def _offload(draft: Draft, source: Source, stage: int) -> None:
    get = source.get
    for name, path, old in (
        ("offload_optimizer", "optimizer", ("cpu_offload",)),
        ("offload_param", "parameters", ("cpu_offload_params", "cpu_offload_param")),
    ):
        device = get(f"{ZERO_SECTION}.{name}.device", f"{name}_device")
        legacy = get(*(f"{ZERO_SECTION}.{word}" for word in old))
        if device is not None and device.text in PLACES and (path == "optimizer" or stage == 3):
            draft.write(f"training.offload.{path}", device.text, device)
        elif device is not None and device.text in PLACES:
            draft.only_if(device, ("none",), "parameters are offloaded with ZeRO-3 only", "nothing is offloaded")
        elif device is not None:
            draft.errors.append(device.finding(f"{device.value!r} is none of {', '.join(PLACES)}"))
        if legacy is not None and draft.flag(legacy):
            draft.write(f"training.offload.{path}", "cpu", legacy)
        else:
            draft.harmless(legacy, "switched off")
        draft.only_if(get(f"{ZERO_SECTION}.{name}.pin_memory"), (True, AUTO), "copies from memory that is not pinned are slower")
    ratio = get(f"{ZERO_SECTION}.offload_optimizer.ratio")
    draft.only_if(ratio, (1, 1.0), "a part of the optimizer's work stays on the device")
    group = get(f"{ZERO_SECTION}.sub_group_size")
    if group is not None and not draft.settled(group):
        size = draft.number(group)
        nvme = draft.value("training.offload.optimizer") == "nvme"
        if nvme and size != SUB_GROUP:
            draft.unmodelled(group, f"parsim steps {SUB_GROUP:,} elements on drives at a time")
        else:
            draft.harmless(group, "the step takes as long in pieces")


def _checkpointing(draft: Draft, source: Source, sizes: Sizes | None) -> None:
    """The section only says how; that the model uses it is taken from switches that are on, and from a number of checkpoints."""
    cpu, spread = source.get("activation_checkpointing.cpu_checkpointing"), source.get("activation_checkpointing.partition_activations")
    number = source.get("activation_checkpointing.number_checkpoints")
    count = draft.whole(number) or 0
    on = [key for key in (cpu, spread) if key is not None and draft.flag(key)]
    if (on or count) and "training.recompute" not in draft.lines:
        every = sizes.layers // count if sizes is not None and count and sizes.layers % count == 0 else 1
        note = "the model's code decides; its layers are taken"
        draft.write("training.recompute", "full" if every == 1 else {"every": every}, cpu if cpu in on else None, number, note=note)
    if number is not None and not draft.settled(number):
        draft.harmless(number, "training.recompute says how many there are")
    if cpu is not None and cpu in on:
        draft.write("training.offload.activations", "cpu", cpu)
    else:
        draft.harmless(cpu, "switched off")
    if spread is not None and spread in on:
        draft.unmodelled(spread, "every tensor rank keeps its checkpoints whole")
    else:
        draft.harmless(spread, "switched off")


def merged_batch(draft: Draft, source: Source, arguments: dict[str, Key | None]) -> None:
    """Batch keys beside a Trainer's: they follow (auto), or agree; transformers refuses anything else."""
    for name, other in arguments.items():
        key = source.get(name)
        if key is None:
            continue
        if key.value == AUTO:
            draft.harmless(key, FOLLOWS)
            continue
        value, wanted = draft.number(key), draft.number(other) if other is not None else None
        if value is not None and wanted is not None and value != wanted:
            text = f"{key.value} here and {other.written}: {other.value}" if other else ""
            draft.errors.append(key.finding(text, "transformers refuses this: write auto"))
        else:
            draft.harmless(key, "the training arguments say it")
