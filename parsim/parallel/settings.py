"""What the user decided about parallelism, with every `auto` resolved where no model is needed.

The scenario's `parallel` section as domain objects: field names are the YAML keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parsim.parallel.expert_load import Imbalance
from parsim.parallel.groups import AXES, CONTEXT, DATA, PIPELINE, TENSOR
from parsim.parallel.hooks import Sharding
from parsim.parallel.schedules.slot import APART, Overlapped, Schedule

Overlap = Literal["none", "backward", "full", "async"]


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """The `parallel.tensor` section."""

    size: int = 1
    sequence_parallel: bool = False
    overlap: Overlap = "backward"
    """what runs beside the collectives: nothing | weight gradients | also the products before and behind them"""
    overlap_splits: int = 4
    """full: parts in which results are computed and scattered"""
    overlap_sms: int = 16
    """full: multiprocessors that scattering takes from the products beside it"""


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """The `parallel.context` section."""

    size: int = 1
    method: Literal["ring", "all-gather", "ulysses"] = "ring"


@dataclass(frozen=True, slots=True)
class PipelineParallel:
    """The `parallel.pipeline` section."""

    size: int = 1
    schedule: str = "1f1b"
    """a name of `parsim.parallel.schedules`, or "custom" with `slots`"""
    slots: Schedule = ()
    """custom schedule: per rank, its slots in order"""
    overlapped: Overlapped = APART
    """custom schedule: slots that run a forward and a backward at once"""
    virtual_stages: int = 1
    split: Literal["even", "balanced"] | tuple[int, ...] = "even"
    modules: int | None = None
    """modules of multi-token prediction that the split names; None: it does not say"""
    account_for: tuple[str, ...] = ()
    """embedding, loss: what counts as a layer where `split` is even"""
    post_validation: bool = False
    """a rank steps when its own gradients are done, and goes on with the next step"""
    step: int = 0
    """micro-batches of a step where several are simulated behind each other; 0: all are one step"""
    overlap_sends: bool = True
    scatter_sends: bool = True


Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
EXCHANGE_SMS = {"deepep": 20, "hybridep": 32}
"""multiprocessors of the kernels that move tokens themselves: moe_deepep_num_sms (NVIDIA/Megatron-LM, megatron/core/transformer/
transformer_config.py), and moe_hybridep_num_sms of NVIDIA/Megatron-Bridge's recipes (scripts/performance)"""


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """The `parallel.expert` section."""

    size: int = 1
    tensor: int = 0
    """ranks that share the width of every expert; 0: as many as `tensor.size` of the tensor section"""
    imbalance: Imbalance = 1.0
    """tokens of the busiest rank over the mean, or where that comes from"""
    capacity_factor: float | None = None
    """rows that an expert may get of a rank, over the mean; None: all"""
    pad_to_capacity: bool = False
    """every expert gets so many"""
    in_turn: bool = False
    """tokens go to the experts in turn, not where a router sends them"""
    dispatcher: Dispatcher = "alltoall"
    dispatch_dtype: Literal["bf16", "fp8"] = "bf16"
    """type of tokens on their way to the experts; bf16: that of activations"""
    combine_dtype: Literal["bf16", "fp8"] = "bf16"
    """and on their way back"""
    sms: int = 0
    """multiprocessors of a kernel that moves tokens itself; 0: as many as its library takes"""
    shared_overlap: bool = False
    """the expert that every token visits runs beside dispatch and combine"""
    batch_overlap: bool = False
    """each forward runs beside a backward of another micro-batch; the pipeline's schedule says so too"""
    fused_mlp: bool = False
    """activation, biases and casts of experts are part of their products"""
    single_kernel: bool = False
    """a product of experts is one kernel for all of a rank under every stack"""
    permute_fusion: bool = True
    """fused kernels put tokens in order of their experts; False: PyTorch's operations"""
    paged_stash: bool = False
    """what experts keep for backward is copied into pages, and back out of them"""

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of a kernel that moves tokens itself; 0: the library's collectives move them."""
        return self.sms or EXCHANGE_SMS.get(self.dispatcher, 0)


@dataclass(frozen=True, slots=True)
class CustomStrategy:
    """A data-parallel strategy that the user wrote."""

    kind: type[Sharding]
    file: str


OuterType = Literal["fp32", "bf16", "int8"]
OUTER_BYTES: dict[OuterType, int] = {"fp32": 4, "bf16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class OuterLoop:
    """The `parallel.data.outer` section: groups of replicas that take steps of their own and then exchange what they learned."""

    size: int = 1
    """groups; 1: all replicas step together"""
    local_steps: int = 1
    """steps of a group between two exchanges (H)"""
    fragments: int = 1
    """equal parts of the parameters, exchanged in turn (P)"""
    overlap_steps: int = 0
    """steps after which what a part's exchange brings is needed"""
    dtype: OuterType = "fp32"
    """of what is exchanged"""

    @property
    def bytes(self) -> int:
        """Of one element on the wire."""
        return OUTER_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class DataParallel:
    """The `parallel.data` section."""

    size: int = 1
    strategy: str = "ddp"
    """none | torch-data-parallel | parameter-server | ddp | zero1 | zero2 | zero3 | fsdp | hsdp | FILE.py:CLASS"""
    custom: CustomStrategy | None = None
    """that class"""
    shard_size: int = 0
    """hsdp and a custom strategy: ranks of a shard group; 0: all replicas"""
    bucket: tuple[float, Literal["bytes", "elements"]] | None = None
    """None: the strategy's own rule (DDP 25 MiB; DeepSpeed 5e8 elements)"""
    first_bucket: int | None = None
    """bytes; None: 1 MiB for DDP"""
    bucket_view: bool = False
    overlap_reduce: bool = True
    overlap_gather: bool = False
    accumulate: Literal["no_sync", "every"] = "no_sync"
    unit: Literal["layer", "block", "model"] = "layer"
    prefetch: int = 1
    limit_gathers: int = 2
    reshard_after_forward: bool = True
    queues: Literal["shared", "separate"] = "shared"
    """whether FSDP's all-gathers and reduce-scatters wait in one communicator's queue or in two"""
    optimizer_instances: int = 1
    """zero1: equal parts of the replicas, in each of which the optimizer state is sharded"""
    quantised_weights: bool = False
    """zero3: gathered in int8"""
    quantised_gradients: bool = False
    """zero3: exchanged in int4, inside machines and between them"""
    secondary_partition: int = 1
    """zero3: ranks that share a second copy of the weights, from which backward gathers"""
    local_ranks: int = 0
    """replicas of one parameter on a machine, where gradients are quantised; 0 elsewhere"""
    fsdp_version: Literal[1, 2] = 2
    """PyTorch's FullyShardedDataParallel with flat parameters (1), or fully_shard (2)"""
    outer: OuterLoop = field(default_factory=OuterLoop)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The `parallel` section. `order` is fastest varying first and decides which ranks share a node."""

    order: tuple[str, ...] = AXES
    tensor: TensorParallel = field(default_factory=TensorParallel)
    context: ContextParallel = field(default_factory=ContextParallel)
    expert: ExpertParallel = field(default_factory=ExpertParallel)
    pipeline: PipelineParallel = field(default_factory=PipelineParallel)
    data: DataParallel = field(default_factory=DataParallel)

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> ranks along it."""
        return {TENSOR: self.tensor.size, CONTEXT: self.context.size, DATA: self.data.size, PIPELINE: self.pipeline.size}

    @property
    def stage_ranks(self) -> int:
        """Ranks of a pipeline stage, over which experts lie on a grid of their own."""
        return self.tensor.size * self.context.size * self.data.size

    @property
    def expert_width(self) -> int:
        """Ranks that share the width of every expert (etp)."""
        return self.expert.tensor or self.tensor.size

    @property
    def exchanges_tokens(self) -> bool:
        """Experts lie on a grid of ranks of their own."""
        return self.expert.size > 1 or self.expert_width != self.tensor.size

    @property
    def waits_for_counts(self) -> bool:
        """The host cannot launch a layer's experts before it knows how many tokens come: their numbers are copied to it."""
        return (self.exchanges_tokens or not self.expert.permute_fusion) and not self.expert.pad_to_capacity
