"""The parallel strategy as Megatron-LM arguments."""

from __future__ import annotations

from itertools import groupby

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.launcher import order

ORDERS: dict[tuple[str, ...], str] = {
    ("tensor", "context", "data", "pipeline"): "",
    ("tensor", "context", "pipeline", "data"): "--use-tp-pp-dp-mapping",
}
CONTEXT = {"ring": "p2p", "ulysses": "a2a", "all-gather": "allgather"}
SHARDED = "Megatron-LM's distributed optimizer shards optimizer states only (zero1)"


def mesh_arguments(draft: Draft) -> list[str]:
    """Tensor, context and expert parallelism, and the order of ranks."""
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    tensor, context = parallelism.tensor, parallelism.context
    arguments = [draft.says("parallel.tensor.size", f"--tensor-model-parallel-size {tensor.size}")]
    if tensor.sequence_parallel:
        arguments.append(draft.says("parallel.tensor.sequence_parallel", "--sequence-parallel"))
    else:
        draft.says("parallel.tensor.sequence_parallel", "the default, off")
    overlap = "parallel.tensor.overlap"
    if tensor.overlap == "full":
        arguments.append(draft.says(overlap, "--tp-comm-overlap"))
    elif tensor.overlap == "none":
        draft.lacks(overlap, "the gradient's all-reduce always runs under the weight gradient")
    else:
        draft.says(overlap, "always")
    context_size = draft.says("parallel.context.size", f"--context-parallel-size {context.size}")
    if context.size > 1:
        arguments.append(context_size)
        arguments.append(draft.says("parallel.context.method", f"--cp-comm-type {CONTEXT[context.method]}"))
    else:
        draft.says("parallel.context.method", "nothing to exchange")
    draft.says("parallel.expert.size", f"--expert-model-parallel-size {section.expert.size}")
    if section.expert.size > 1:
        arguments.append(f"--expert-model-parallel-size {section.expert.size}")
    draft.says("parallel.expert.capacity_factor", "the default, none")
    if section.expert.capacity_factor is not None:
        text = f"--moe-expert-capacity-factor {section.expert.capacity_factor:g}"
        arguments.append(draft.says("parallel.expert.capacity_factor", text))
    mapping = order(draft, ORDERS, "no tool has another order")
    return [*arguments, *([mapping] if mapping else [])]


def pipeline_arguments(draft: Draft) -> list[str]:
    """Stages, their layers and their schedule."""
    pipeline = draft.job.built.parallelism.pipeline
    arguments = [draft.says("parallel.pipeline.size", f"--pipeline-model-parallel-size {pipeline.size}")]
    _schedule(draft)
    layout = _layout(draft)
    interleaved = pipeline.virtual_stages > 1
    if interleaved and not layout:
        text = f"--num-virtual-stages-per-pipeline-rank {pipeline.virtual_stages}"
        arguments.append(draft.says("parallel.pipeline.virtual_stages", text))
    else:
        draft.says("parallel.pipeline.virtual_stages", layout[0] if layout else "the default, 1")
    sends = "parallel.pipeline.overlap_sends"
    if interleaved and not pipeline.overlap_sends:
        layout.append(draft.says(sends, "--no-overlap-p2p-communication"))
    else:
        draft.says(sends, "always" if interleaved else "never: sends are overlapped in the interleaved schedule only")
        if pipeline.overlap_sends and pipeline.size > 1 and not interleaved:
            draft.remarks(sends, "sends wait for each other there, they are overlapped in the interleaved schedule only")
    scatter, tensor = "parallel.pipeline.scatter_sends", draft.job.built.parallelism.tensor
    if pipeline.scatter_sends and pipeline.size > 1 and tensor.size > 1 and not tensor.sequence_parallel:
        draft.lacks(scatter, "not scattered")
        draft.remarks(scatter, "sends are scattered over the tensor-parallel ranks in Megatron-LM of 2021 to 2023, not in Megatron-Core")
    else:
        draft.says(scatter, "always with --sequence-parallel, never without")
    return arguments + layout


def _schedule(draft: Draft) -> None:
    path, pipeline = "parallel.pipeline.schedule", draft.job.built.parallelism.pipeline
    if pipeline.size == 1 or pipeline.schedule in ("1f1b", "interleaved"):
        draft.says(path, "the default, 1F1B" if pipeline.virtual_stages == 1 else "interleaved 1F1B")
        return
    what = "a schedule of your own" if pipeline.schedule == "custom" else pipeline.schedule
    hint = "use 1f1b or interleaved"
    draft.refuses(path, f"{what} is not among Megatron-LM's schedules, and in no other tool's configuration", hint)


def _layout(draft: Draft) -> list[str]:
    """What says the layers of the stages where they are not equally many."""
    path, layers = "parallel.pipeline.split", draft.job.layers
    if len(set(layers)) == 1:
        draft.says(path, f"{layers[0]} layers on every stage")
        return []
    virtual, middle = draft.job.built.parallelism.pipeline.virtual_stages, set(layers[1:-1])
    if virtual == 1 and len(middle) <= 1:
        usual = next(iter(middle), 0)
        ends = [("first", layers[0]), ("last", layers[-1])][: len(layers) - 1]  # of two stages the first decides
        said = [f"--decoder-{end}-pipeline-num-layers {count}" for end, count in ends if count != usual]
        draft.says(path, " ".join(said))
        return said
    stages = ["t" * count for count in layers]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return [draft.says(path, f"--pipeline-model-parallel-layout '{_compressed(stages)}'")]


def _compressed(stages: list[str]) -> str:
    """Stages behind each other, equal ones as ``(tt|)*3``: the last one has no bar."""
    runs = [(stage, len(list(run))) for stage, run in groupby(stages[:-1])]
    return "".join(f"({stage}|)*{count}" if count > 1 else f"{stage}|" for stage, count in runs) + stages[-1]


def data_arguments(draft: Draft) -> list[str]:
    """Data parallelism and what it shards."""
    data = draft.job.built.parallelism.data
    path = "parallel.data.strategy"
    if data.strategy in ("zero2", "zero3", "hsdp"):
        tools = {"zero2": "--to deepspeed", "zero3": "--to deepspeed or --to fsdp", "hsdp": "--to fsdp"}[data.strategy]
        draft.refuses(path, SHARDED, f"use {tools}, or zero1 here")
        return []
    for key, why in {
        "first_bucket": "all buckets have one size",
        "bucket_view": "gradients are always views of one buffer",
        "accumulate": "gradients are always reduced after the last micro-batch",
        "unit": "PyTorch's FSDP wraps transformer layers there",
        "prefetch": "PyTorch's FSDP gathers one unit ahead there",
        "limit_gathers": "PyTorch's FSDP holds two gathered units there",
        "queues": "PyTorch decides it",
        "shard_size": "there are no shard groups",
    }.items():
        draft.lacks(f"parallel.data.{key}", why)
    if data.strategy == "fsdp":
        return _torch_fsdp(draft)
    draft.says(path, "--use-distributed-optimizer" if data.strategy == "zero1" else "the default, ddp")
    draft.lacks("parallel.data.reshard_after_forward", "parameters are whole on every rank")
    return _reduction(draft)


def _reduction(draft: Draft) -> list[str]:
    data, job = draft.job.built.parallelism.data, draft.job
    zero1 = data.strategy == "zero1"
    arguments = ["--use-distributed-optimizer"] if zero1 else []
    overlap, gather = "parallel.data.overlap_reduce", "parallel.data.overlap_gather"
    draft.says(overlap, "--overlap-grad-reduce" if data.overlap_reduce else "the default, off")
    if data.overlap_reduce and job.replicas > 1:
        arguments.append("--overlap-grad-reduce")
    draft.says(gather, "--overlap-param-gather" if data.overlap_gather else "the default, off")
    if data.overlap_gather and zero1 and not data.overlap_reduce:
        draft.refuses(gather, "--overlap-param-gather needs --overlap-grad-reduce", "write overlap_reduce: true")
    elif data.overlap_gather and zero1 and job.replicas > 1:
        arguments.append("--overlap-param-gather")
    bucket = "parallel.data.bucket"
    if data.bucket is None:
        draft.says(bucket, "the default, max(40e6, 1e6 x data) elements")
        return arguments
    amount, unit = data.bucket
    elements = round(amount if unit == "elements" else amount / job.built.training.precision.reduce)
    return [*arguments, draft.says(bucket, f"--ddp-bucket-size {elements}")]


def _torch_fsdp(draft: Draft) -> list[str]:
    """``--use-torch-fsdp2`` with what its checks ask for (``validate_args``)."""
    job, data = draft.job, draft.job.built.parallelism.data
    path = "parallel.data.strategy"
    draft.says(path, "--use-torch-fsdp2")
    for key in ("bucket", "overlap_gather"):
        draft.lacks(f"parallel.data.{key}", "FSDP's buckets are its units, gathered ahead")
    draft.says("parallel.data.overlap_reduce", "always")
    if job.built.parallelism.pipeline.size > 1:
        draft.refuses("parallel.pipeline.size", "--use-torch-fsdp2 goes without pipeline parallelism", "use zero1")
    if job.architecture is not None and job.architecture.tied_embeddings:
        draft.refuses("model.tied_embeddings", "--use-torch-fsdp2 needs untied embeddings", "use zero1, or --to fsdp")
    if job.built.training.precision.matmul == "fp16":
        draft.refuses("training.precision", "--use-torch-fsdp2 goes without fp16", "use bf16-fp32grad, or --to fsdp")
    arguments = ["--use-torch-fsdp2", "--ckpt-format torch_dist"]
    if job.built.runtime.gradient_accumulation_fusion:
        arguments.append(draft.says("software.gradient_accumulation_fusion", "--no-gradient-accumulation-fusion"))
        draft.remarks("software.gradient_accumulation_fusion", "--use-torch-fsdp2 goes without it")
    reshard = "parallel.data.reshard_after_forward"
    if not data.reshard_after_forward:
        return [*arguments, draft.says(reshard, "--torch-fsdp2-no-reshard-after-forward")]
    draft.says(reshard, "the default, on")
    return arguments
