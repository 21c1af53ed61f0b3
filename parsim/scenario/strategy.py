"""The parallel section as settings: the data size derived, the schedule file read, the product checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from parsim.errors import Finding, PlanError
from parsim.model.fully_connected import share_outputs
from parsim.parallel.custom_strategy import load_strategy
from parsim.parallel.groups import DATA, Groups, Mesh
from parsim.parallel.schedules import ALIASES, NAMES, check, chunks, homes, schedule
from parsim.parallel.schedules.custom import SlotTable, from_function, load_function, read_table
from parsim.parallel.settings import (
    ContextParallel,
    CustomStrategy,
    DataParallel,
    Dispatcher,
    ExpertParallel,
    OuterLoop,
    Overlap,
    Parallelism,
    PipelineParallel,
    TensorParallel,
)
from parsim.parallel.training import Offload
from parsim.scenario import files
from parsim.scenario.expert_load import imbalance
from parsim.scenario.parallel import DataSection, ExpertSection, ParallelSection, PipelineSection, TensorSection
from parsim.scenario.references import folder, is_table, python_file, schedule_file
from parsim.scenario.software import Assumption, SoftwareProfile
from parsim.scenario.stage_layout import is_layout, stage_layout
from parsim.scenario.trust import SCHEDULE, STRATEGY, code_file, refusal

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.model.model import Model
    from parsim.scenario.scenario import Scenario

VIRTUAL = "parallel.pipeline.virtual_stages"
BLACKWELL = 10.0
"""compute capability"""


def parallelism(scenario: Scenario, cluster: Cluster, gpus: tuple[int, ...]) -> Parallelism:
    """The strategy on `gpus` (one per rank).

    Raises `PlanError` where tensor x pipeline x context x data is not the number of GPUs, with the product.
    """
    section = scenario.settings.parallel
    size = data_size(section, cluster, len(gpus))
    split = Parallelism(
        order=section.order,
        tensor=_tensor(section.tensor),
        context=ContextParallel(section.context.size, cast(Literal["ring", "all-gather", "ulysses"], section.context.method)),
        expert=_expert(section.expert, scenario) if section.fully_connected == 1 else ExpertParallel(tensor=section.fully_connected),
        pipeline=_combined(_pipeline(section.pipeline, scenario))
        if section.expert.batch_overlap
        else _pipeline(section.pipeline, scenario),
        data=_data(section.data, size),
    )
    mesh = Mesh.of(split.order, split.sizes)
    shard_size, local = _shard_size(section, mesh, cluster, gpus), 0
    if section.data.quantised_gradients:
        local = _on_node(mesh, cluster, gpus)[1]
    return replace(split, data=replace(split.data, shard_size=shard_size, local_ranks=local, custom=_custom(section, scenario)))


def accumulation(
    split: Parallelism, offload: Offload, micro_batches: int, profile: SoftwareProfile
) -> tuple[Literal["no_sync", "every"], Assumption | None]:
    """When gradients are reduced where the scenario leaves it to the stack; and the record of it where it matters."""
    data = split.data
    strategy = "ddp" if data.custom is not None else data.strategy
    if strategy not in profile.accumulate or data.size * split.context.size == 1 or micro_batches == 1:
        return "no_sync", None
    if strategy in ("fsdp", "hsdp") and offload.parameters != "none":
        text = "with CPU offloading FSDP takes the newest reduced gradient instead of adding it (PyTorch documentation,"
        source = f"{text} FullyShardedDataParallel, notes on cpu_offload), so gradients accumulate inside no_sync"
        return "no_sync", Assumption("gradient_reduction", "no_sync", source, "training.offload.parameters")
    key = "pipeline" if split.pipeline.size > 1 and "pipeline" in profile.accumulate else strategy
    when = cast(Literal["no_sync", "every"], profile.accumulate[key])
    return when, profile.assumption("gradient_reduction", when, f"accumulate.{key}")


def tensor_overlap(section: TensorSection, matmul: str, *, blocking: bool, profile: SoftwareProfile) -> tuple[Overlap, Assumption | None]:
    """What runs beside tensor parallelism's collectives where the scenario leaves it to the stack; and the record of it.

    User buffers need sequence parallelism, without which Megatron-Bridge switches them off (``training/comm_overlap.py``), and products
    (`matmul`) of at least eight bits.
    """
    if section.overlap != "auto":
        return cast(Overlap, section.overlap), None
    mode = profile.tensor_overlap
    if mode in ("full", "async") and not section.sequence_parallel:
        mode = "backward" if mode == "full" else "none"
    if mode == "full" and matmul == "fp4":
        mode = "backward"
    if blocking:
        mode = "none"
    record = profile.assumption("tensor_overlap", mode, "tensor.overlap") if section.size > 1 else None
    return cast(Overlap, mode), record


def parameter_gather(
    section: DataSection, split: Parallelism, *, blocking: bool, profile: SoftwareProfile
) -> tuple[bool, Assumption | None]:
    """Whether stepped parameters are gathered under the next forward, and the record of it where the stack decides.

    Megatron-Core takes --overlap-param-gather with --overlap-grad-reduce only (``megatron/training/arguments.py``).
    """
    data = split.data
    if section.overlap_gather != "auto":
        return bool(section.overlap_gather), None
    if data.strategy not in ("zero1", "zero2") or data.size * split.context.size == 1:
        return False, None
    found = profile.overlap_gather and data.overlap_reduce and not blocking
    return found, profile.assumption("parameter_gather", str(found).lower(), "accumulate.overlap_gather")


def expert_width(section: ExpertSection, split: Parallelism, profile: SoftwareProfile) -> tuple[int, Assumption | None]:
    """Ranks that share the width of an expert where the scenario leaves it to the stack (0: the tensor-parallel ones); the record of it.

    Experts that every rank holds are split as all other layers.
    """
    if section.tensor != "auto" or section.size == 1 or split.tensor.size == 1:
        return split.expert.tensor, None
    width = split.tensor.size if profile.wide_experts else 1
    return 0 if profile.wide_experts else 1, profile.assumption("expert_tensor", width, "experts.width")


def _tensor(section: TensorSection) -> TensorParallel:
    """Tensor parallelism as written; `tensor_overlap` says what auto is."""
    overlap = cast(Overlap, "backward" if section.overlap == "auto" else section.overlap)
    return TensorParallel(section.size, section.sequence_parallel, overlap, section.overlap_splits, section.overlap_sms)


def fsdp_version(split: Parallelism, profile: SoftwareProfile) -> tuple[Literal[1, 2], Assumption | None]:
    """Which FSDP runs where the scenario leaves it to the stack; and the record of it where there is one."""
    sharded = split.data.strategy in ("fsdp", "hsdp") and split.data.size * split.context.size > 1
    record = profile.assumption("fsdp_version", profile.fsdp_version, "fsdp.version") if sharded else None
    return profile.fsdp_version, record


def overlap_warnings(split: Parallelism, devices: Iterable[Device]) -> list[Finding]:
    """A warning where two things are hidden that ask the driver for opposite settings.

    Before Blackwell, tensor parallelism's collectives run beside backward's products if CUDA_DEVICE_MAX_CONNECTIONS=1, gathers
    beside computation if it is larger; Megatron-LM says not to combine them (NVIDIA/Megatron-LM, megatron/training/arguments.py).
    """
    tensor, strategy = split.tensor, split.data.strategy
    old = next((device for device in devices if 0 < device.compute_capability < BLACKWELL), None)
    if tensor.size == 1 or tensor.overlap == "none" or strategy not in ("zero3", "fsdp", "hsdp") or old is None:
        return []
    message = (
        f"hidden together with the gathers of {strategy}, though on {old.name} the one asks for CUDA_DEVICE_MAX_CONNECTIONS=1 and the"
        " other for more (Megatron-LM warns of the combination): an optimistic step"
    )
    return [Finding(message, "parallel.tensor.overlap", tensor.overlap, "none shows the step without it")]


def _custom(section: ParallelSection, scenario: Scenario) -> CustomStrategy | None:
    """The class that ``FILE.py:CLASS`` names. Raises `PlanError`."""
    name = section.data.strategy
    if ".py:" not in name:
        return None
    if not scenario.trust_code:
        raise PlanError(refusal(name, STRATEGY))
    code = python_file(name, folder(scenario.origins, STRATEGY, scenario.source))
    if code is None:
        raise PlanError(Finding(f"there is no file {name.rpartition(':')[0]!r}", STRATEGY, name))
    return load_strategy(code[0], code[1][1:])


def _shard_size(section: ParallelSection, mesh: Mesh, cluster: Cluster, gpus: tuple[int, ...]) -> int:
    """Ranks of a shard group; auto: those replicas of rank 0's parameters that sit on its node.

    For a strategy of the user's own all replicas (0) where that is no equal part of them.
    """
    if section.data.shard_size != "auto":
        return int(section.data.shard_size)
    own = ".py:" in section.data.strategy
    if section.data.strategy != "hsdp" and not own:
        return 0
    replicas, on_node = _on_node(mesh, cluster, gpus)
    return 0 if own and replicas % on_node else on_node


def _on_node(mesh: Mesh, cluster: Cluster, gpus: tuple[int, ...]) -> tuple[int, int]:
    """Replicas of rank 0's parameters, and those of them that sit on its node."""
    replicas = Groups(mesh, mesh.replicas).members(DATA, 0)
    return len(replicas), sum(cluster.node_of(gpus[rank]) == cluster.node_of(gpus[0]) for rank in replicas)


def data_size(section: ParallelSection, cluster: Cluster, used: int) -> int:
    """Replicas: as written, or what the other sizes leave of the `used` GPUs. Raises `PlanError`."""
    tensor, pipeline, context = section.tensor.size, section.pipeline.size, section.context.size
    model_ranks = tensor * pipeline * context
    inner = f"tensor {tensor} x pipeline {pipeline} x context {context}"
    where = f"{used} GPUs are used ({cluster.name}, {cluster.nodes} node{'s' * (cluster.nodes != 1)} with {cluster.installed_gpus} GPUs)"
    if section.data.size == "auto":
        if used % model_ranks == 0 and used >= model_ranks:
            return used // model_ranks
        text = f"{inner} = {model_ranks} does not divide the GPUs: {where}, {used} / {model_ranks} = {used / model_ranks:.4g}"
        raise PlanError(Finding(text, _largest(section), model_ranks, _counts_that_work(model_ranks, used, cluster)))
    product = model_ranks * section.data.size
    if product != used:
        text = f"{inner} x data {section.data.size} = {product}, but {where}"
        hints = [f"data.size {used // model_ranks}"] if used % model_ranks == 0 and used >= model_ranks else []
        hints += [f"cluster.gpus {product}"] if product <= cluster.installed_gpus else []
        hint = f"use {' or '.join(hints)}" if hints else f"change a size or the cluster so that the product is {used}"
        raise PlanError(Finding(text, "parallel.data.size", section.data.size, hint))
    return int(section.data.size)


def _counts_that_work(model_ranks: int, used: int, cluster: Cluster) -> str:
    """The numbers of GPUs nearest to `used` that whole replicas fill: fewer, more of those installed, or of whole machines."""
    below, machines, each = used // model_ranks * model_ranks, 0, cluster.gpus_per_node
    above = below + model_ranks
    counts = [f"cluster.gpus {' or '.join(str(count) for count in (below, above) if 0 < count <= cluster.installed_gpus)}"]
    if below == 0 and above > cluster.installed_gpus:
        counts = []
    if above > cluster.installed_gpus and len(cluster.blocks) == 1:
        step = model_ranks // gcd(model_ranks, each)
        machines = (used // each // step + 1) * step
        counts.append(f"cluster.nodes {machines} ({machines * each} GPUs)")
    sizes = f"sizes whose product divides {used}" if below else f"sizes whose product is at most {used}"
    return f"use {', '.join([*counts, f'or {sizes}' if counts else sizes])}"


def _largest(section: ParallelSection) -> str:
    """The size that is most likely meant when the product does not fit."""
    sizes = {"tensor": section.tensor.size, "pipeline": section.pipeline.size, "context": section.context.size}
    return f"parallel.{max(sizes, key=lambda axis: sizes[axis])}.size"


def schedule_name(name: str) -> str:
    """The name of a built-in schedule as the parallel room spells it. Raises `PlanError` for anything else."""
    word = name.strip().lower().replace("_", "-")
    word = ALIASES.get(word, word)
    if word == "combined-1f1b":
        text = "combined-1f1b is what parallel.expert.batch_overlap makes of interleaved 1F1B"
        raise PlanError(Finding(text, SCHEDULE, name, "write schedule: interleaved and parallel.expert.batch_overlap: true"))
    if word in NAMES:
        return word
    if "/" in name or "." in name:
        raise PlanError(Finding("there is no such schedule file", SCHEDULE, name, f"write {', '.join(NAMES)}, or the path of a file"))
    schedule(word, 1, 1)
    raise PlanError(Finding(f"there is no schedule {name!r}", SCHEDULE, name, f"write {', '.join(NAMES)}"))


def with_schedule(split: Parallelism, scenario: Scenario, micro_batches: int) -> Parallelism:
    """`split` with the slots of the user's own schedule file, where there is one.

    A table has one line per rank (``F0.0 F0.1 B0.0 B0.1``); ``file.py:function`` is called with stages, micro-batches and
    virtual stages. Raises `PlanError` with every slot that is wrong.
    """
    section = scenario.settings.parallel.pipeline
    source = schedule_file(section.schedule, folder(scenario.origins, SCHEDULE, scenario.source))
    if source is None and not is_table(section.schedule):
        return split
    if code_file(section.schedule) is not None and not scenario.trust_code:
        raise PlanError(refusal(section.schedule, SCHEDULE))
    table = _table(section, source, micro_batches)
    rows = table.rows
    if table.left_out:
        text = f"a lowered table of torch: its {table.left_out} messages and collectives are not supported yet in a scenario"
        raise PlanError(Finding(text, SCHEDULE, section.schedule, "keep the passes: parsim schedule FILE --csv NEW.csv"))
    if len(rows) != section.size:
        text = f"the schedule has {len(rows)} rows, but parallel.pipeline.size is {section.size}"
        raise PlanError(Finding(text, SCHEDULE, len(rows), "write one row per pipeline rank"))
    problems = check(rows, None, micro_batches, table.overlapped)
    if problems and not all("deadlock" in problem.message for problem in problems):
        raise PlanError(problems)
    held = Counter(homes(rows))
    if uneven := [rank for rank in range(section.size) if held[rank] != section.virtual_stages]:
        text = f"row {uneven[0] + 1} of the schedule has {held[uneven[0]]} stages, but virtual_stages is {section.virtual_stages}"
        raise PlanError(Finding(text, VIRTUAL, section.virtual_stages, "give every rank as many stages, and say how many"))
    return replace(split, pipeline=replace(split.pipeline, slots=rows, overlapped=table.overlapped))


def _table(section: PipelineSection, found: tuple[Path, str] | None, micro_batches: int) -> SlotTable:
    if found is None:
        return read_table(section.schedule)
    path, function = found
    if path.suffix != ".py":
        return read_table(files.read_text(path), str(path))
    if not function:
        raise PlanError(Finding(f"{path.name} is Python: which function?", SCHEDULE, section.schedule, f"write {section.schedule}:NAME"))
    return from_function(load_function(f"{path}{function}"), section.size, micro_batches, section.virtual_stages)


def with_shared_outputs(model: Model, section: ParallelSection) -> Model:
    """The model with fully connected layers that replicas share, where the scenario says so. Raises `PlanError` where it has none."""
    ranks, path = section.fully_connected, "parallel.fully_connected"
    if ranks == 1:
        return model
    shared = share_outputs(model)
    if model.sequence or shared.blocks == model.blocks:
        what = "a transformer, whose layers tensor parallelism splits" if model.sequence else "a network without fully connected layers"
        raise PlanError(Finding(f"{model.name} is {what}", path, ranks, "leave it out"))
    if section.expert != ExpertSection():
        raise PlanError(Finding("parallel.expert needs experts, and this network has none", path, ranks, "leave parallel.expert out"))
    return shared


def _expert(section: ExpertSection, scenario: Scenario) -> ExpertParallel:
    width = 0 if section.tensor == "auto" else section.tensor
    return ExpertParallel(
        section.size,
        width,
        imbalance(section.imbalance, scenario),
        section.capacity_factor,
        section.pad_to_capacity,
        in_turn=section.routing == "round-robin",
        dispatcher="alltoall" if section.dispatcher == "auto" else cast(Dispatcher, section.dispatcher),
        dispatch_dtype="fp8" if section.dispatch_dtype == "fp8" else "bf16",
        combine_dtype="fp8" if section.combine_dtype == "fp8" else "bf16",
        sms=0 if section.sms == "auto" else section.sms,
        shared_overlap=section.shared_overlap,
        batch_overlap=section.batch_overlap,
        fused_mlp=section.fused_mlp,
        single_kernel=section.grouped_gemm == "single",
        permute_fusion=section.permute_fusion is not False,
        paged_stash=section.paged_stash,
    )


def _combined(pipeline: PipelineParallel) -> PipelineParallel:
    """The schedule in which each forward runs beside a backward. Raises `PlanError` for one of which that is not known."""
    plain = "interleaved" if pipeline.size > 1 else "1f1b"
    if pipeline.schedule not in (plain, "interleaved"):
        text = f"parallel.expert.batch_overlap runs the passes of schedule {plain} side by side, not those of {pipeline.schedule}"
        hint = f"use schedule {plain}" + (
            " with virtual_stages: 2 or more, or dualpipev without batch_overlap" if pipeline.size > 1 else ""
        )
        raise PlanError(Finding(text, SCHEDULE, pipeline.schedule, hint))
    return replace(pipeline, schedule="combined-1f1b")


def outer_assumptions(outer: OuterLoop) -> list[Assumption]:
    """What is taken for granted where groups of replicas step alone."""
    if outer.size == 1:
        return []
    text = "the effect of local steps on the loss is not known" + (
        "; an exchange does not slow the steps that it overlaps with" * (outer.overlap_steps > 0)
    )
    return [Assumption("outer_exchange", "time only", text, "default")]


def expert_assumptions(parallel: ParallelSection, split: Parallelism) -> list[Assumption]:
    """What is taken for granted where experts are spread and the scenario does not say it."""
    if not split.exchanges_tokens or parallel.fully_connected > 1:
        return []
    section, found = parallel.expert, []
    if split.expert.imbalance == 1.0:
        source = "as with a converged balancing loss or bias; measured loads differ from layer to layer"
        found.append(Assumption("expert_load", "even", source, "default"))
    if section.dispatcher == "auto":
        source = "of NCCL, as most recipes of Megatron-LM set it (--moe-token-dispatcher-type alltoall)"
        found.append(Assumption("expert_dispatcher", split.expert.dispatcher, source, "default"))
    if section.sms == "auto" and split.expert.multiprocessors:
        source = "moe_deepep_num_sms of Megatron-LM's transformer_config.py; moe_hybridep_num_sms of Megatron-Bridge's recipes"
        found.append(Assumption("expert_sms", str(split.expert.multiprocessors), source, "default"))
    return found


def _pipeline(section: PipelineSection, scenario: Scenario) -> PipelineParallel:
    own = schedule_file(section.schedule, folder(scenario.origins, SCHEDULE, scenario.source)) is not None or is_table(section.schedule)
    name = "custom" if own else schedule_name(section.schedule)
    split, modules = section.split, None
    if is_layout(split):
        split, modules = stage_layout(split)
    elif not isinstance(split, str):
        split = tuple(split)
    return PipelineParallel(
        size=section.size,
        schedule=name,
        virtual_stages=max(section.virtual_stages, chunks(name)),
        split=split,
        modules=modules,
        account_for=tuple(section.account_for),
        post_validation=section.post_validation,
        overlap_sends=section.overlap_sends,
        scatter_sends=section.scatter_sends,
    )


def _data(section: DataSection, size: int) -> DataParallel:
    return DataParallel(
        size=size,
        strategy=section.strategy,
        bucket=None if section.bucket == "auto" else section.bucket,
        first_bucket=None if section.first_bucket == "auto" else section.first_bucket,
        bucket_view=section.bucket_view,
        overlap_reduce=section.overlap_reduce,
        overlap_gather=section.overlap_gather is True,
        fsdp_version=1 if section.fsdp_version == 1 else 2,
        accumulate="every" if section.accumulate == "every" else "no_sync",  # auto: see `accumulation`
        unit=cast(Literal["layer", "block", "model"], section.unit),
        prefetch=section.prefetch,
        limit_gathers=section.limit_gathers,
        reshard_after_forward=section.reshard_after_forward,
        queues=cast(Literal["shared", "separate"], section.queues),
        optimizer_instances=section.optimizer_instances,
        outer=OuterLoop(**section.outer.model_dump()),
        quantised_weights=section.quantised_weights,
        quantised_gradients=section.quantised_gradients,
        secondary_partition=section.secondary_partition,
    )
