"""What a plan cannot be: sizes that do not divide, strategies that do not go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from parsim.errors import Finding
from parsim.model.attention import AttentionCore
from parsim.model.disentangled import PositionTable
from parsim.model.kept_products import MATMULS
from parsim.model.mixture import GroupedLinear
from parsim.model.model import OUTER, Model
from parsim.model.regions import REGIONS, regions
from parsim.parallel import zero3_buckets, zero_plus_plus
from parsim.parallel.chosen_findings import chosen_findings
from parsim.parallel.context import context_findings
from parsim.parallel.expert_findings import expert_findings, permutation_findings
from parsim.parallel.groups import Groups, Mesh
from parsim.parallel.instances import instance_findings
from parsim.parallel.local_steps import outer_findings
from parsim.parallel.muon_findings import muon_findings
from parsim.parallel.objective import objective_findings
from parsim.parallel.offload import offload_findings
from parsim.parallel.paged_stash import paged_stash_findings
from parsim.parallel.runtime import Runtime
from parsim.parallel.schedules import BIDIRECTIONAL, ENDLESS, OVERLAPPING, V_SHAPED, ZERO_BUBBLE
from parsim.parallel.settings import Parallelism
from parsim.parallel.shares import share_findings
from parsim.parallel.tensor import placement_findings, tensor_findings
from parsim.parallel.tower_findings import tower_findings
from parsim.parallel.training import Training

if TYPE_CHECKING:
    from parsim.parallel.plan import Plan

WHOLE = ("none", "ddp", "zero1")
"""strategies under which Megatron-LM keeps the whole gradient of every weight until the step"""
_SCHEDULE = "parallel.pipeline.schedule"
_COPIED = ("none", "ddp", "zero1", "zero2")
"""strategies of stages that lie on two ranks"""
CENTRAL = ("torch-data-parallel", "parameter-server")


class GpuNodes(Protocol):
    """What a plan asks of a cluster."""

    @property
    def gpus(self) -> int: ...
    def node_of(self, gpu: int) -> int: ...


def findings_of(
    model: Model,
    machine: GpuNodes,
    training: Training,
    parallelism: Parallelism,
    runtime: Runtime,
    mesh: Mesh,
    gpus: tuple[int, ...],
    slow: Mapping[int, float],
) -> list[Finding]:
    """What is wrong with splitting `model` so over the ranks that run on `gpus`."""
    findings = []
    if mesh.ranks != len(gpus):
        product = " x ".join(str(size) for size in mesh.sizes)
        text = f"{' x '.join(mesh.order)} = {product} = {mesh.ranks} ranks, but {len(gpus)} GPUs are used"
        findings.append(Finding(text, "parallel", mesh.ranks, "change a size, cluster.nodes or cluster.gpus"))
    findings += tensor_findings(model, training, parallelism)
    findings += placement_findings(parallelism, Groups(mesh, mesh.replicas), gpus, machine.node_of)
    findings += context_findings(model, training, parallelism)
    findings += expert_findings(model, training, parallelism, mesh)
    findings += permutation_findings(model, parallelism, runtime)
    findings += paged_stash_findings(training, parallelism) if parallelism.expert.paged_stash else []
    findings += share_findings(model, training, parallelism)
    findings += _uneven_findings(model, training, parallelism)
    findings += offload_findings(training, parallelism, runtime)
    findings += _product_findings(model, training, parallelism)
    findings += _adapter_findings(training, parallelism)
    findings += _region_findings(model, training)
    findings += chosen_findings(model, training, parallelism)
    findings += _list_findings(training, parallelism, runtime)
    findings += tower_findings(model, training, parallelism)
    findings += _split_findings(model, parallelism)
    if model.maximum_sequence and training.sequence_length > model.maximum_sequence and model.facts.get("position") == "learned":
        text = f"{training.sequence_length} tokens, but {model.name} has {model.maximum_sequence} learned positions"
        findings.append(Finding(text, "training.sequence_length", training.sequence_length, f"use at most {model.maximum_sequence}"))
    strategy = parallelism.data.strategy
    replicas = mesh.replicas
    if strategy == "none" and replicas > 1:
        split = f" (data {parallelism.data.size} x context {parallelism.context.size})" if parallelism.context.size > 1 else ""
        text = f"{replicas} replicas of the parameters{split} need a strategy" if split else f"{replicas} replicas need a strategy"
        findings.append(Finding(text, "parallel.data.strategy", "none", "one of ddp, zero1, zero2, zero3, fsdp"))
    findings += _shard_findings(parallelism, replicas)
    findings += muon_findings(training, parallelism, runtime)
    findings += objective_findings(model, training, parallelism)
    findings += zero_plus_plus.findings(training, parallelism, runtime, replicas)
    findings += zero3_buckets.findings(parallelism.data, runtime)
    findings += instance_findings(training, parallelism, runtime, mesh)
    findings += outer_findings(training, parallelism, mesh)
    if strategy in CENTRAL and replicas > 1:
        if len({machine.node_of(gpu) for gpu in gpus}) > 1 and strategy == "torch-data-parallel":
            findings.append(Finding("DataParallel is one process on one node", "parallel.data.strategy", strategy, "use ddp across nodes"))
        if mesh.ranks != parallelism.data.size:
            text = f"{strategy} cannot be combined with tensor, context or pipeline parallelism"
            findings.append(Finding(text, "parallel.data.strategy", strategy, "use ddp"))
    findings += _overlap_findings(model, training, parallelism)
    findings += _direction_findings(training, parallelism)
    if parallelism.pipeline.size == 1 and parallelism.pipeline.virtual_stages > 1:
        text = f"{parallelism.pipeline.virtual_stages} virtual stages on 1 pipeline rank: there is nothing to interleave"
        repair = "use virtual_stages: 1"
        if parallelism.pipeline.schedule in V_SHAPED:
            repair = "use schedule 1f1b, or more pipeline ranks"
        elif parallelism.pipeline.schedule == "interleaved-zb":
            repair = "use schedule 1f1b and virtual_stages: 1, or more pipeline ranks"
        findings.append(Finding(text, "parallel.pipeline.virtual_stages", parallelism.pipeline.virtual_stages, repair))
    findings += _endless_findings(training, parallelism)
    for rank, speed in slow.items():
        if not 0 <= rank < mesh.ranks:
            findings.append(Finding(f"rank {rank} does not exist (0 to {mesh.ranks - 1})", "variability.slow", rank))
        if speed <= 0:
            findings.append(Finding(f"a speed must be > 0, got {speed}", "variability.slow", speed))
    return findings


def _split_findings(model: Model, parallelism: Parallelism) -> list[Finding]:
    """What a split of the pipeline says of embedding, head and prediction modules."""
    pipeline, findings = parallelism.pipeline, []
    if pipeline.size > 1 and any(isinstance(operator, PositionTable) for operator in model.distinct_operators):
        text = f"every layer of {model.name} reads one table of relative positions, which one stage has and no public stack sends"
        findings.append(Finding(text, "parallel.pipeline.size", pipeline.size, "use tensor or data parallelism"))
    held = int(str(model.facts.get("mtp", 0)))
    if pipeline.modules is not None and pipeline.modules != held:
        text = f"the layout has {pipeline.modules} prediction modules (m), the model {held}"
        findings.append(Finding(text, "parallel.pipeline.split", None, f"write m {held} times before L, or model.mtp: {pipeline.modules}"))
    path = "parallel.pipeline.account_for"
    if not pipeline.account_for:
        return findings
    if pipeline.split != "even":
        text = "what counts as a layer matters where layers are split evenly"
        findings.append(Finding(text, path, list(pipeline.account_for), "leave account_for out, or split"))
    elif pipeline.size == 1:
        findings.append(Finding("there is one stage", path, list(pipeline.account_for), "leave account_for out"))
    if len(set(pipeline.account_for)) < len(pipeline.account_for):
        findings.append(Finding("each counts as one layer at most", path, list(pipeline.account_for), "name it once"))
    outer = {"embedding": model.blocks[0].kind in OUTER, "loss": model.blocks[-1].kind in OUTER}
    findings += [
        Finding(f"{model.name} has no {'head' if name == 'loss' else name} of its own", path, name, "leave it out")
        for name in pipeline.account_for
        if not outer[name]
    ]
    return findings


def _endless_findings(training: Training, parallelism: Parallelism) -> list[Finding]:
    """What ranks do not go with that never wait for each other at the end of a step."""
    pipeline, data = parallelism.pipeline, parallelism.data
    findings: list[Finding] = []
    name = pipeline.schedule
    allowed: tuple[str, ...] = ("none", "ddp")
    if pipeline.post_validation:
        if name not in ZERO_BUBBLE:
            text = f"post-validation lets ranks of zero-bubble schedules start the next step early, and {name} is none"
            findings.append(Finding(text, "parallel.pipeline.post_validation", True, f"use schedule {', '.join(ZERO_BUBBLE)}"))
        name, allowed = f"{name} with post-validation", ("none", "ddp", "zero1")
    elif name not in ENDLESS:
        return findings
    if data.strategy not in allowed or data.custom is not None:
        text = f"{name} updates after every micro-batch and keeps whole weight versions"
        if name == "pipedream-2bw":
            text = (
                f"no public stack shards states under {name}: every rank keeps two whole versions of its weights and steps the newer one"
                f" while backward passes still read the older (arXiv 2006.09503, section 3.1), so {data.strategy} has no step to share"
            )
        elif name != "pipedream":
            text = f"not supported yet: {name} with {data.strategy}"
        findings.append(Finding(text, "parallel.data.strategy", data.strategy, f"use {' or '.join(allowed[1:])}"))
    if not training.backward:
        findings.append(Finding(f"{name} is a training schedule", "training.backward", False, "use gpipe"))
    if training.iteration == "first":
        text = f"{name} is measured in its steady state, long after the first micro-batch"
        findings.append(Finding(text, "training.iteration", "first", "use steady"))
    if training.last_micro_batch:
        text = f"{name} never ends a step, so it has no last micro-batch"
        findings.append(Finding(text, "training.partial_micro_batch", True, "use a global batch of whole micro-batches"))
    if pipeline.schedule == "pipedream-2bw" and pipeline.step and pipeline.step < pipeline.size:
        text = f"pipedream-2bw needs at least as many micro-batches as pipeline stages (m >= p), but {pipeline.step} < {pipeline.size}"
        findings.append(Finding(text, _SCHEDULE, pipeline.step, f"use at least {pipeline.size} micro-batches, or schedule 1f1b"))
    return findings


def _overlap_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What passes that share a slot do not go with."""
    pipeline = parallelism.pipeline
    if pipeline.schedule not in OVERLAPPING and not pipeline.overlapped:
        return []
    findings = []
    if not pipeline.overlap_sends:
        text = "not supported yet: blocking messages with slots that overlap a forward and a backward"
        findings.append(Finding(text, "parallel.pipeline.overlap_sends", False, "use true, or a schedule of single passes"))
    if not parallelism.expert.batch_overlap:
        return findings
    path = "parallel.expert.batch_overlap"
    if not parallelism.exchanges_tokens:
        text = "every rank holds all experts, so there is no exchange that another micro-batch's compute could hide"
        findings.append(Finding(text, path, True, "leave it out, or use expert parallelism (parallel.expert.size)"))
    if (modules := int(str(model.facts.get("mtp", 0)))) > 1:
        text = f"overlapped passes support at most one prediction module, not {modules} (Megatron-LM: transformer_config.py)"
        findings.append(Finding(text, "model.mtp", modules, "use 1, or leave batch_overlap out"))
    if training.recompute.mode not in ("none", "selective"):
        text = (
            f"overlapped passes cannot be combined with recomputed layers (mode {training.recompute.mode}; Megatron-LM refuses them, too)"
        )
        findings.append(Finding(text, "training.recompute", training.recompute.mode, "use none, or {selective: [attention]}"))
    return findings


def _direction_findings(training: Training, parallelism: Parallelism) -> list[Finding]:
    """What stages that lie on two ranks do not go with."""
    name, strategy = parallelism.pipeline.schedule, parallelism.data.strategy
    if name not in BIDIRECTIONAL:
        return []
    findings = []
    if strategy not in _COPIED:
        text = (
            f"no public stack runs stages that lie on two ranks ({name}) with {strategy}: both ranks hold their weights whole, and"
            " FSDP wraps stages of one rank (torch.distributed.pipelining has DualPipeV)"
        )
        also = ", or schedule dualpipev" if name == "dualpipe" else ""
        findings.append(Finding(text, "parallel.data.strategy", strategy, f"use {' or '.join(_COPIED[1:])}{also}"))
    if not parallelism.pipeline.overlap_sends and name not in OVERLAPPING:
        text = f"{name} sends both ways at once: not supported yet with blocking messages"
        findings.append(Finding(text, "parallel.pipeline.overlap_sends", False, "use true"))
    if not training.backward:
        findings.append(Finding(f"{name} is a training schedule", "training.backward", False, "use gpipe"))
    if training.offload.states:
        findings.append(Finding(f"not supported yet: offloaded states with {name}", "training.offload", None, "leave it out"))
    return findings


def _uneven_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What unequal samples or micro-batches do not go with."""
    findings = []
    mean, longest = training.mean_sequence_length, training.sequence_length
    if mean > longest:
        text = f"the mean of {mean} tokens is longer than the longest sample, {longest}"
        findings.append(Finding(text, "training.mean_sequence_length", mean, f"use at most {longest}"))
    findings += _document_findings(model, training, parallelism)
    uneven = [("training.mean_sequence_length", mean), ("training.partial_micro_batch", bool(training.last_micro_batch))]
    for path, value in uneven:
        if value and parallelism.data.strategy == "torch-data-parallel":
            findings.append(Finding("DataParallel scatters equal parts", path, value, "use ddp"))
    if training.last_micro_batch and model.facts.get("family") == "stages":
        text = "measured stage times are those of a whole micro-batch"
        findings.append(Finding(text, "training.partial_micro_batch", True, "use a global batch of whole micro-batches"))
    return findings


def _document_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What documents packed into samples do not go with."""
    length, path = training.document_length, "training.document_length"
    if not length:
        return []
    if length > training.sequence_length:
        text = f"documents of {length} tokens are longer than the samples that they are packed into, {training.sequence_length}"
        return [Finding(text, path, length, f"use at most {training.sequence_length}")]
    cores = {type(operator) for operator in model.distinct_operators if isinstance(operator, AttentionCore)}
    if cores != {AttentionCore}:
        return [Finding(f"not supported yet: packed documents with the attention of {model.name}", path, length, "leave it out")]
    if training.attention == "eager":
        text = "eager attention works on all pairs of a sample, masked or not"
        return [Finding(text, path, length, "leave it out, or use flash2, flash3 or cudnn for training.attention")]
    if parallelism.context.size > 1:
        text = "not supported yet: packed documents with context parallelism, whose ranks each hold a part of every document"
        return [Finding(text, path, length, "leave it out, or use context.size 1")]
    return []


def _list_findings(training: Training, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """What is not known of ZeRO-3 through lists of tensors."""
    if parallelism.data.strategy != "zero3" or not runtime.lists_weights:
        return []
    asked = (("training.finetune", training.finetune is not None), ("training.offload", training.offload.states))
    text = f"not supported yet with the lists of tensors of {runtime.profile}'s ZeRO-3"
    return [Finding(text, path, None, "use software.profile deepspeed") for path, applies in asked if applies]


def _product_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What recomputation of every second product does not go with: collectives would have to run again."""
    path, recompute = "training.recompute", training.recompute
    if recompute.mode != "selective" or MATMULS not in recompute.selective:
        return []
    findings = []
    if parallelism.tensor.size > 1 and not parallelism.tensor.sequence_parallel:
        text = f"{MATMULS} under tensor parallelism keeps the results of reduce-scatters, which exist only with sequence parallelism"
        findings.append(Finding(text, path, MATMULS, "use parallel.tensor.sequence_parallel: true, or recompute: full"))
    if any(isinstance(operator, GroupedLinear) for operator in model.distinct_operators):
        text = f"{MATMULS} counts the products of dense layers; those of experts are not supported"
        findings.append(Finding(text, path, MATMULS, "use recompute: full, or {selective: [attention]}"))
    if training.finetune is not None and training.finetune.method != "freeze":
        text = f"{MATMULS} counts the products of trained layers; those of adapters are not supported"
        findings.append(Finding(text, path, MATMULS, "use recompute: full"))
    return findings


def _adapter_findings(training: Training, parallelism: Parallelism) -> list[Finding]:
    """Adapters that do not go over several ranks."""
    recipe, path, findings = training.finetune, "parallel.tensor.size", []
    sizes = {"tensor": parallelism.tensor.size, "expert": parallelism.expert.size}
    if recipe is not None and recipe.dora and sizes["tensor"] > 1:
        text = "not supported yet: DoRA over tensor ranks, each of which has a part of the rows that are normed"
        findings.append(Finding(text, path, sizes["tensor"], "use 1, with zero3 or fsdp where memory is short"))
    if recipe is not None and recipe.linear_experts:
        text = "not supported yet: experts as linear layers over several ranks (transformers 4 has no such axis)"
        findings += [Finding(text, f"parallel.{axis}.size", size, "use 1, or experts: fused") for axis, size in sizes.items() if size > 1]
    return findings


def _region_findings(model: Model, training: Training) -> list[Finding]:
    """Parts that selective recomputation names and the model has not, or whose results its fp8 recipe keeps copies of."""
    path, recompute, casts = "training.recompute", training.recompute, training.precision.quantisation
    if recompute.mode != "selective":
        return []
    blocks, operators = model.distinct_blocks, model.distinct_operators
    mixture = any(isinstance(operator, GroupedLinear) for operator in operators)
    absent = [word for word in recompute.selective if word in REGIONS and not any(regions(block.operators, (word,)) for block in blocks)]
    if mixture and "mlp" in recompute.selective and not any(operator.selective == "mlp" for operator in operators):
        absent.append("mlp")
    shown = list(recompute.selective)
    hint = "use moe, moe_act or shared_experts" if mixture else "leave it out"
    findings = [Finding(f"{model.name} has no part {word} to recompute", path, shown, hint) for word in absent]
    dropped = [word for word in recompute.selective if word in ("layernorm", "moe_act")]
    if training.precision.matmul == "fp8" and casts is not None and casts.recipe == "delayed" and dropped:
        text = f"with delayed scaling, products keep fp8 copies of what {' and '.join(dropped)} would drop (as Megatron-LM states)"
        findings.append(Finding(text, path, shown, "use precision.recipe current, blockwise or mxfp8, or leave it out"))
    return findings


def _shard_findings(parallelism: Parallelism, replicas: int) -> list[Finding]:
    """Shard groups of hybrid sharding: equal parts of the replicas."""
    shard, strategy, path = parallelism.data.shard_size, parallelism.data.strategy, "parallel.data.shard_size"
    if not shard or replicas == 1:
        return []
    if parallelism.data.custom is not None and replicas % shard == 0:
        return []
    if strategy != "hsdp" and parallelism.data.custom is None:
        return [Finding(f"{strategy} has no shard groups", path, shard, "leave it out, or use strategy hsdp")]
    legal = [str(n) for n in range(2, replicas + 1) if replicas % n == 0]
    if replicas % shard:
        text = f"{replicas} replicas (data x context) / shard_size {shard} = {replicas / shard:.4g} is not whole"
        return [Finding(text, path, shard, f"use {' or '.join(legal)}")]
    if shard == 1:
        return [Finding("a shard group of 1 rank has no effect", path, shard, f"use strategy ddp, or shard_size {' or '.join(legal)}")]
    return []


def tied_findings(plan: Plan) -> list[Finding]:
    """Parameters that two chunks of one rank share: one gradient that is written in two places of the schedule.

    Megatron-LM keeps one whole gradient per weight in a buffer, to which every backward adds, and reduces it once per step. Sharded
    strategies reduce and drop gradients chunk by chunk, and what other stacks do with such a gradient is not known.
    """
    if plan.asynchronous and plan.parallelism.pipeline.schedule != "pipedream" and (plan.ties.across_stages or plan.ties.chunks):
        user = "further prediction modules" if plan.model.facts.get("mtp") else "the head"
        text = f"not supported yet: ranks that step independently, with an embedding tied to {user}"
        return [Finding(text, "parallel.pipeline.schedule", plan.parallelism.pipeline.schedule, _untied(plan.model))]
    data = plan.parallelism.data
    whole = data.custom is None and data.strategy in WHOLE and data.accumulate == "no_sync"
    if any(block.repeats for block in plan.model.distinct_blocks) and not (plan.runtime.megatron and whole):
        text = "not supported yet: one gradient of several prediction modules needs Megatron-LM's buffers of whole gradients"
        hint = "use software.profile: megatron-core with parallel.data: {strategy: zero1, accumulate: no_sync}, or false"
        return [Finding(text, "model.mtp_repeated", True, hint)]
    if not plan.ties.chunks or (plan.runtime.megatron and whole):
        return []
    rank, name = next(iter(plan.ties.chunks))
    block = next(block for _, block, tied in plan.model.ties if tied == name)
    where = f"in another chunk of pipeline rank {rank}: one gradient of two chunks needs Megatron-LM's buffers of whole gradients"
    text = f"not supported yet: {plan.model.block_names[block]} is tied to {name}, {where}"
    megatron = "software.profile: megatron-core with parallel.data: {strategy: zero1, accumulate: no_sync}"
    hint = f"{_untied(plan.model)}, use schedule zb-h1, or {megatron}"
    return [Finding(text, "parallel.pipeline.schedule", plan.parallelism.pipeline.schedule, hint)]


def _untied(model: Model) -> str:
    """How to have no parameters that two blocks share."""
    return "leave model.mtp out" if model.facts.get("mtp") else "untie them (model.tied_embeddings: false)"
