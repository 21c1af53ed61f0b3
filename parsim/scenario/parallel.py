"""The `parallel` section: how the model and the batch are split over ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from parsim import units
from parsim.parallel.groups import AXES
from parsim.scenario.stage_layout import PATTERN, is_layout, stage_layout
from parsim.scenario.values import Choice, Flag, JsonSchema, Kind, ListOf, Number, Quantity, Section, Silent, Text, Whole, shown

STRATEGIES = ("none", "torch-data-parallel", "parameter-server", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")
OWN_STRATEGY = r".+\.py:[A-Za-z_][A-Za-z0-9_]*"
LARGEST = 10**6
_WHICH = "say which one: ddp (one process per GPU), torch-data-parallel (one process, torch.nn.DataParallel), zero1, zero2, zero3 or fsdp"
_STRATEGY_HINTS = {
    "dp": _WHICH,
    "data-parallel": _WHICH,
    "data_parallel": _WHICH,
    "dataparallel": "write torch-data-parallel",
    "zero": "write zero1, zero2 or zero3",
    "deepspeed": "write zero1, zero2 or zero3",
    "full_shard": "write fsdp",
    "shard_grad_op": "write fsdp, with reshard_after_forward: false",
    "hybrid_shard": "write hsdp",
    "no_shard": "write ddp",
    "fsdp2": "write fsdp",
    "distributed-optimizer": "write zero1",
    "ps": "write parameter-server",
    **dict.fromkeys(("tp", "tensor"), "an axis of its own: write parallel: {tp: 2}"),
    **dict.fromkeys(("pp", "pipeline"), "an axis of its own: write parallel: {pp: 2}"),
    **dict.fromkeys(("cp", "context"), "an axis of its own: write parallel: {cp: 2}"),
    **dict.fromkeys(("ep", "expert"), "an axis of its own: write parallel: {ep: 2}"),
    "zero-1": "write zero1",
    "zero-2": "write zero2",
    "zero-3": "write zero3",
}


@dataclass(frozen=True)
class StageSplit(ListOf):
    """A list of layers per stage, a word, or Megatron-LM's text of stages, which is kept as it is written."""

    def check(self, value: Any) -> Any:
        if is_layout(value):
            stage_layout(value)
            return value
        return super().check(value)

    def json_schema(self) -> JsonSchema:
        plain = super().json_schema()
        return {"anyOf": [*plain["anyOf"], {"type": "string", "pattern": PATTERN}]}


@dataclass(frozen=True)
class BucketKind(Kind):
    """``25 MiB`` or ``5e8 elements``, or auto: a pair (value, "bytes" or "elements")."""

    def check(self, value: Any) -> Any:
        if value == "auto":
            return value
        is_count = isinstance(value, str) and "element" in value
        dimension: Literal["bytes", "elements"] = "elements" if is_count else "bytes"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError(f'{shown(value)} has no unit; write for example "25 MiB" or "{value:g} elements"')
        number = units.parse(value, dimension)
        if number < 1:
            raise ValueError(f"{shown(value)}: a bucket must hold something")
        return number, dimension

    def json_schema(self) -> JsonSchema:
        return {"anyOf": [{"const": "auto"}, {"type": "string", "examples": ["25 MiB", "5e8 elements"]}]}


@dataclass(frozen=True)
class ImbalanceKind(Kind):
    """A factor from 1, ``{zipf: s}`` or ``{histogram: FILE}``: a number, or a pair (word, value)."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return Number(1.0, 1000.0).check(value)
        if set(value) == {"zipf"}:
            return "zipf", Number(0.0, 10.0).check(value["zipf"])
        if set(value) == {"histogram"} and isinstance(value["histogram"], str) and value["histogram"].strip():
            return "histogram", value["histogram"]
        raise ValueError(f"{shown(dict(value))} is neither a number from 1, nor {{zipf: 0.5}}, nor {{histogram: FILE.csv}}")

    def json_schema(self) -> JsonSchema:
        word = {"type": "string", "minLength": 1}
        ways: dict[str, JsonSchema] = {"zipf": Number(0.0, 10.0).json_schema(), "histogram": word}
        one = [
            {"type": "object", "properties": {name: kind}, "required": [name], "additionalProperties": False} for name, kind in ways.items()
        ]
        return {"anyOf": [Number(1.0, 1000.0).json_schema(), *one]}


@dataclass(frozen=True)
class OrderKind(Kind):
    """The four axes, each once."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or sorted(map(str, value)) != sorted(AXES):
            raise ValueError(f"{shown(value)} is not an order of {', '.join(AXES)}: each of them once, fastest varying first")
        return tuple(value)

    def json_schema(self) -> JsonSchema:
        return {"type": "array", "items": {"enum": list(AXES)}, "minItems": len(AXES), "maxItems": len(AXES), "uniqueItems": True}


@dataclass(frozen=True)
class StrategyKind(Choice):
    """One of the names, or ``FILE.py:CLASS``."""

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(OWN_STRATEGY, value):
            return value
        if isinstance(value, str) and value.partition(":")[0].endswith(".py"):
            raise ValueError(f"{shown(value)} is a Python file; say which class: {value.partition(':')[0]}:NAME")
        return super().check(value)

    def json_schema(self) -> JsonSchema:
        own: JsonSchema = {"type": "string", "pattern": f"^{OWN_STRATEGY}$", "examples": ["mine.py:MyStrategy"]}
        return {"anyOf": [super().json_schema(), own]}


class TensorSection(Section):
    """Tensor parallelism: every layer is split over `size` ranks."""

    size: Annotated[int, Whole(1, LARGEST)] = 1
    """ranks (t)"""
    sequence_parallel: Annotated[bool, Flag()] = False
    """norms and dropout work on a shard of the tokens (Korthikanti et al. 2022)"""
    overlap: Annotated[str, Choice(("auto", "none", "backward", "full", "async"))] = "auto"
    """none | backward: the input gradient's collective runs under the weight gradient | full: products and collectives of a layer run in
    pieces beside each other (Transformer Engine's user buffers) | async: so does PyTorch's asynchronous tensor parallelism; auto = what
    the software profile's stack does"""
    overlap_splits: Annotated[int, Whole(1, 64)] = 4
    """full: parts in which a result is computed and scattered (num_splits)"""
    overlap_sms: Annotated[int, Whole(0, 128)] = 16
    """full: multiprocessors that scattering takes from the product beside it (num_sm)"""


class PipelineSection(Section):
    """Pipeline parallelism: consecutive layers form stages."""

    size: Annotated[int, Whole(1, LARGEST)] = 1
    """stages (p)"""
    schedule: Annotated[str, Text("1f1b")] = "1f1b"
    """naive | gpipe | looped-bfs | 1f1b | interleaved | pipedream | zb-h1 | zb-h2 | zb-v | v-half | v-min | interleaved-zb |
    dualpipev | dualpipe | chimera | pipedream-2bw, or a schedule file's path"""
    virtual_stages: Annotated[int, Whole(1, 1000)] = 1
    """model chunks per rank (v), for interleaved, interleaved-zb, looped-bfs and own schedules; zb-v, v-half, v-min and dualpipev
    always have 2"""
    split: Annotated[Any, StageSplit(Whole(0, 100_000), ("even", "balanced"), filled=True)] = "even"
    """even | balanced | [layers per stage] | Megatron-LM's text of stages, such as Et|(tt|)*30mL (--pipeline-model-parallel-layout)"""
    account_for: Annotated[Any, ListOf(Choice(("embedding", "loss"))), Silent()] = ()
    """embedding, loss: each counts as a layer when layers are split evenly (--account-for-embedding-in-pipeline-split,
    --account-for-loss-in-pipeline-split)"""
    post_validation: Annotated[bool, Flag()] = False
    """zero-bubble schedules: a rank steps when its own weight gradients are done and goes on with the next step; the norm of all gradients
    is checked afterwards (--enable-optimizer-post-validation)"""
    overlap_sends: Annotated[bool, Flag()] = True
    """sends occupy no compute"""
    scatter_sends: Annotated[bool, Flag()] = True
    """a send is scattered over the tensor-parallel ranks and gathered at the other end (Megatron)"""


class ContextSection(Section):
    """Context parallelism: the tokens of a sample are split."""

    size: Annotated[int, Whole(1, LARGEST)] = 1
    """ranks (c)"""
    method: Annotated[str, Choice(("ring", "all-gather", "ulysses"))] = "ring"
    """how keys and values travel"""


class ExpertSection(Section):
    """Expert parallelism: divides tensor x context x data, adds no ranks."""

    size: Annotated[int, Whole(1, LARGEST)] = 1
    """ranks over which the experts of a layer are spread (ep)"""
    tensor: Annotated[Any, Whole(1, LARGEST, ("auto",))] = "auto"
    """ranks that share the width of every expert (etp); auto = as many as tensor.size where every rank holds all experts, else what the
    software profile's stack does: so many (Megatron-LM), or 1"""
    imbalance: Annotated[Any, ImbalanceKind()] = 1.0
    """tokens of the busiest rank over the mean, in every layer; or {zipf: s}: expert number i gets tokens in proportion to i^-s; or
    {histogram: FILE.csv}: counted tokens, rows of layer, expert, tokens"""
    routing: Annotated[str, Choice(("router", "round-robin"), {"even": "write round-robin"})] = "router"
    """round-robin: token t goes to experts t k to t k + k - 1 modulo their number, so that it visits few ranks, whatever the router says (a
    benchmark's forced balance: Primus with DeepEP, moe_router_force_load_balancing)"""
    capacity_factor: Annotated[float | None, Number(0.0, 1000.0, above=True, optional=True)] = None
    """token copies of a rank beyond this multiple of the mean are dropped, expert by expert; none = nothing is dropped"""
    pad_to_capacity: Annotated[bool, Flag()] = False
    """every expert gets as many rows as it may, with zeros where there are fewer tokens"""
    dispatcher: Annotated[str, Choice(("auto", "alltoall", "allgather", "deepep", "hybridep"))] = "auto"
    """how tokens reach their experts; auto = alltoall"""
    dispatch_dtype: Annotated[str, Choice(("bf16", "fp8"))] = "bf16"
    """type of tokens on their way to the experts; bf16 = as activations are"""
    combine_dtype: Annotated[str, Choice(("bf16", "fp8"))] = "bf16"
    """type of results on their way back; bf16 = as activations are"""
    sms: Annotated[Any, Whole(1, 1000, ("auto",))] = "auto"
    """deepep, hybridep: multiprocessors of their kernels; auto = 20 and 32"""
    shared_overlap: Annotated[bool, Flag()] = False
    """the expert that every token visits runs while tokens travel to the others and back (Megatron-LM: --moe-shared-expert-overlap)"""
    batch_overlap: Annotated[bool, Flag()] = False
    """tokens of one micro-batch travel while another computes: each forward runs beside a backward, layer by layer (Megatron-LM:
    --overlap-moe-expert-parallel-comm with --delay-wgrad-compute)"""
    fused_mlp: Annotated[bool, Flag()] = False
    """activation, biases and casts of experts are part of their mxfp8 products, each one kernel for all experts of a rank (Megatron-LM:
    --use-transformer-engine-op-fuser)"""
    permute_fusion: Annotated[Any, Flag(("auto",))] = "auto"
    """one kernel puts tokens in order of their experts, and one sums what comes back (Megatron-LM: --moe-permute-fusion); false: PyTorch's
    operations, some of which the host waits for; auto = true"""
    paged_stash: Annotated[bool, Flag()] = False
    """what fused experts keep for backward is copied into pages behind their forward and out of them before their backward, beside other
    work (Megatron-LM: --moe-paged-stash)"""
    grouped_gemm: Annotated[Any, Flag(("single",)), Silent()] = True
    """the experts of a rank compute in one grouped product (Megatron-LM: --moe-grouped-gemm), for which Transformer Engine launches a
    kernel for every expert and other stacks one for all; single = one under every stack (Primus-Turbo); false is not supported yet"""


class OuterSection(Section):
    """Local SGD, DiLoCo: groups of replicas take steps of their own, then all exchange what they learned."""

    size: Annotated[int, Whole(1, LARGEST)] = 1
    """groups, equal parts of the replicas; 1 = all replicas step together"""
    local_steps: Annotated[int, Whole(1, LARGEST)] = 1
    """steps between two exchanges (H)"""
    fragments: Annotated[int, Whole(1, LARGEST)] = 1
    """equal parts of the parameters that are exchanged in turn (P); 1 = all at once"""
    overlap_steps: Annotated[int, Whole(0, LARGEST)] = 0
    """steps that are taken before a part's exchange has to be over; 0 = all wait for it"""
    dtype: Annotated[str, Choice(("fp32", "bf16", "int8"))] = "fp32"
    """type of what is exchanged"""


class DataSection(Section):
    """Data parallelism and what it shards."""

    size: Annotated[Any, Whole(1, LARGEST, ("auto",))] = "auto"
    """replicas (d); auto = used GPUs / (tensor x pipeline x context)"""
    strategy: Annotated[str, StrategyKind(STRATEGIES, _STRATEGY_HINTS)] = "ddp"
    """none | torch-data-parallel | parameter-server | ddp | zero1 | zero2 | zero3 | fsdp | hsdp, or a class of your own: FILE.py:CLASS"""
    shard_size: Annotated[Any, Whole(1, LARGEST, ("auto",))] = "auto"
    """hsdp and strategies of your own: ranks per shard group; auto = the GPUs of a node"""
    bucket: Annotated[Any, BucketKind()] = "auto"
    """size of a gradient bucket: "25 MiB" or "5e8 elements"; auto = the software's rule (zero3: units)"""
    first_bucket: Annotated[Any, Quantity("bytes", words=("auto",))] = "auto"
    """size of DDP's first bucket; auto = 1 MiB"""
    bucket_view: Annotated[bool, Flag()] = False
    """gradients are views of the buckets (gradient_as_bucket_view)"""
    overlap_reduce: Annotated[bool, Flag()] = True
    """gradients are reduced while the backward runs"""
    overlap_gather: Annotated[Any, Flag(("auto",))] = "auto"
    """parameters are gathered under the next forward (sharded optimizers); auto = as the software profile's stack does"""
    accumulate: Annotated[str, Choice(("auto", "no_sync", "every"))] = "auto"
    """gradients are reduced after the last micro-batch (no_sync), or after every one (zero2 and zero3 always do); auto = what the
    software profile's stack does under the strategy"""
    batch_split: Annotated[Any, ListOf(Whole(1, LARGEST), ("even", "balanced"), filled=True)] = "even"
    """samples of each replica: even | balanced (by the speed of its GPUs) | [samples per replica]"""
    unit: Annotated[str, Choice(("layer", "block", "model"))] = "layer"
    """wrap unit of fsdp and zero3"""
    prefetch: Annotated[int, Whole(0, 100)] = 1
    """units gathered ahead of the one that computes"""
    limit_gathers: Annotated[int, Whole(1, 100)] = 2
    """gathered units that may exist at once"""
    reshard_after_forward: Annotated[bool, Flag()] = True
    """gathered parameters are dropped after the forward"""
    queues: Annotated[str, Choice(("shared", "separate"))] = "shared"
    """fsdp: all-gathers and reduce-scatters wait in one communicator's queue, or in two"""
    optimizer_instances: Annotated[int, Whole(1, LARGEST)] = 1
    """zero1: equal parts of the replicas, each of which shards the optimizer states; gradients are reduced inside, then across"""
    quantised_weights: Annotated[bool, Flag()] = False
    """zero3 of DeepSpeed: weights are gathered in int8 (ZeRO++'s qwZ)"""
    quantised_gradients: Annotated[bool, Flag()] = False
    """zero3 of DeepSpeed: gradients are exchanged in int4, inside machines and then between them (qgZ)"""
    secondary_partition: Annotated[int, Whole(1, LARGEST)] = 1
    """zero3 of DeepSpeed: ranks that share a second copy of the weights, from which backward gathers (hpZ); 1 = none"""
    fsdp_version: Annotated[Any, Whole(1, 2, ("auto",))] = "auto"
    """fsdp and hsdp: 1 = FullyShardedDataParallel with flat parameters, 2 = fully_shard; auto = what the software profile's stack uses"""
    outer: OuterSection = OuterSection()
    """local steps between groups of replicas (local SGD, DiLoCo)"""


class ParallelSection(Section):
    """The parallel strategy. tensor x pipeline x context x data = used GPUs."""

    search: Annotated[str, Choice(("none", "auto")), Silent()] = "none"
    """auto: the fastest strategy that fits is searched for before the step; what is written beside it is kept (short: parallel: auto)"""
    order: Annotated[tuple[str, ...], OrderKind()] = AXES
    """axes of the rank grid, fastest varying first; decides which ranks share a node"""
    tensor: TensorSection = TensorSection()
    """tensor parallelism"""
    pipeline: PipelineSection = PipelineSection()
    """pipeline parallelism"""
    context: ContextSection = ContextSection()
    """context parallelism"""
    expert: ExpertSection = ExpertSection()
    """expert parallelism"""
    fully_connected: Annotated[int, Whole(1, LARGEST)] = 1
    """convolutional networks: replicas that share the outputs of every fully connected layer (Krizhevsky's one weird trick); 1 = none do"""
    data: DataSection = DataSection()
    """data parallelism"""
