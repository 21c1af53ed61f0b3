"""What the user decided about training and parallelism, with every `auto` resolved where no model is needed.

These are the scenario's `training` and `parallel` sections as domain objects: field names are the YAML keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parsim.model.finetune import Finetune
from parsim.model.low_precision import NARROW, Quantisation
from parsim.parallel.expert_load import Imbalance
from parsim.parallel.groups import AXES, CONTEXT, DATA, PIPELINE, TENSOR
from parsim.parallel.hooks import Sharding
from parsim.parallel.objective import Objective
from parsim.parallel.schedules.slot import APART, Overlapped, Schedule

KEPT = ("embedding", "head", "router", "norm", "attention")
"""parts of a model that no known stack runs in fp8 unless told to; attention is scores and values, not the projections"""
KEPT_LAYER = "layer"
"""`Weight.part` of a layer that stays bf16 altogether"""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per parameter of each model state, and the types the kernels use."""

    name: str = "bf16"
    parameters: int = 2
    """bytes of the weight that the layers read"""
    cached_casts: int = 0
    """bytes of cached low-precision copies of linear weights during forward and backward (torch AMP: 2; fp8: 1)"""
    gradients: int = 2
    master: int = 4
    """bytes of the fp32 master copy (0: none); reported under optimizer"""
    optimizer_element: int = 4
    """bytes of one optimizer-state element (fp32 4; pure-bf16 2)"""
    activations: int = 2
    matmul: str = "bf16"
    """dtype of the matmuls: fp32 | tf32 | fp16 | bf16 | fp8 | fp4 | int8"""
    reduce: int = 2
    """bytes per element of the gradient reduction on the wire"""
    keep: tuple[str, ...] = ()
    """parts whose products stay bf16 where `matmul` is narrower: see `KEPT`"""
    keep_layers: tuple[int, int] = (0, 0)
    """first and last layers that stay bf16 altogether"""
    quantisation: Quantisation | None = None
    """how narrow products get their operands; None: they are there"""
    gathers_narrow: bool = False
    """sharded strategies gather the weights of fp8 products in fp8 (`parsim.parallel.narrow_weights`)"""

    @property
    def narrow(self) -> bool:
        """Products are narrower than 16 bits."""
        return self.matmul in NARROW

    @property
    def weight_copies(self) -> float:
        """Bytes per element of the low-precision copies of a weight that stay through the step."""
        return self.cached_casts if self.quantisation is None else self.quantisation.weight_copies

    @property
    def gathered(self) -> int:
        """Bytes per element of a weight on the wire of sharded strategies, which cast fp32 shards to what layers read.

        Copies in fp8 are made behind the gather (torchao: unless enable_fsdp_float8_all_gather).
        """
        if self.parameters != 4 or not self.cached_casts:
            return self.parameters
        return self.activations if self.narrow else self.cached_casts


@dataclass(frozen=True, slots=True)
class Optimizer:
    """`states` per parameter come from the algorithm; see `parsim.parallel.optimizer`."""

    name: str = "adamw"
    """sgd | momentum | adam | adamw | adam-8bit | adafactor | lion | muon | soap | shampoo"""
    implementation: Literal["fused", "foreach", "loop"] = "foreach"
    clip_gradients: bool = True
    newton_schulz_steps: int = 5
    """muon: iterations that orthogonalise a matrix"""
    tensor_mode: Literal["blockwise", "duplicated", "distributed"] = "blockwise"
    """muon: what tensor-parallel ranks do that share a matrix"""
    split_query_key_value: bool = True
    """muon: they are orthogonalised one by one where they are stored as one tensor"""
    split_gate_up: bool = False
    padded_parts: bool = False
    """muon, zero1: gradients are reduce-scattered in parts as long as the longest, not all-reduced"""
    precondition_frequency: int = 0
    """soap, shampoo: steps from one renewal of eigenvectors or roots to the next; 0: as the stack does"""
    max_preconditioner_dim: int = 0
    """soap: longest side that has a factor; shampoo: of a block; 0: as the stack has it"""


@dataclass(frozen=True, slots=True)
class Recompute:
    """Which activations are recomputed in the backward pass."""

    mode: Literal["none", "full", "every", "one_in", "blocks", "selective"] = "none"
    every: int = 1
    """mode every: checkpoint the input of each group of this many layers"""
    one_in: int = 1
    """mode one_in: of every this many layers of a stage chunk the last is checkpointed, the others keep everything (torchtitan)"""
    blocks: int = 0
    """mode blocks: the first this many layers of each stage chunk are checkpointed one by one"""
    selective: tuple[str, ...] = ("attention",)


@dataclass(frozen=True, slots=True)
class Offload:
    """Where model states and stored activations live: none (the device) | cpu (host memory) | nvme (drives, through host memory)."""

    parameters: str = "none"
    gradients: str = "none"
    """where the optimizer is, if that is off the device: they are what it reads"""
    optimizer: str = "none"
    activations: str = "none"

    @property
    def states(self) -> bool:
        """Some model state is off the device."""
        return (self.parameters, self.gradients, self.optimizer) != ("none", "none", "none")


@dataclass(frozen=True, slots=True)
class Training:
    """The training recipe, batch arithmetic done: global_batch = micro_batch x micro_batches x data size."""

    sequence_length: int = 1
    """tokens of the longest sample: what memory is made for"""
    mean_sequence_length: int = 0
    """tokens of a sample on average: what takes time; 0 = all are equally long"""
    document_length: int = 0
    """tokens of each document packed into a sample, which attend to no other document; 0 = a sample is one"""
    micro_batch: int = 1
    micro_batches: int = 1
    """m: micro-batches per optimizer step and model replica (= gradient accumulation)"""
    global_batch: int = 1
    last_micro_batch: int = 0
    """size of a smaller last micro-batch; 0 = all equal"""
    shares: tuple[int, ...] = ()
    """micro-batches of every replica, the largest of them `micro_batches`; empty = all the same"""
    backward: bool = True
    step: bool = True
    iteration: Literal["steady", "first"] = "steady"
    precision: Precision = field(default_factory=Precision)
    optimizer: Optimizer = field(default_factory=Optimizer)
    loss: str = "auto"
    loss_kernel: str = "eager"
    holds_logits: bool = True
    """the training script holds the logits until the micro-batch is done"""
    loss_chunks: int = 1
    dropout: float = 0.0
    attention: str = "flash2"
    recompute: Recompute = field(default_factory=Recompute)
    data_loading: float = 0.0
    """seconds per micro-batch"""
    offload: Offload = field(default_factory=Offload)
    objective: Objective = field(default_factory=Objective)
    """what it trains for; `micro_batch` and `global_batch` count its sequences"""
    finetune: Finetune | None = None
    """what is trained where that is not everything (the model is built accordingly)"""

    @property
    def samples(self) -> int:
        """Samples of a step, of one sequence each or, where answers are compared, of two."""
        return self.global_batch // self.objective.sequences

    @property
    def mean_length(self) -> int:
        """Tokens of a sample on average."""
        return self.mean_sequence_length or self.sequence_length


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
        return self.exchanges_tokens and not self.expert.pad_to_capacity


COPY_TO_HOST = 10e-6
"""of a few bytes, until the thread that waits for them goes on [s]; a cudaMemcpyAsync takes 8 to 12 us end to end (assumption)"""


@dataclass(frozen=True, slots=True)
class Host:
    """The CPU thread that launches kernels: a block's pass takes no less than launching it."""

    per_layer_forward: float = 0.0
    """floor under one layer's forward, and under its recomputation [s]"""
    per_layer_backward: float = 0.0
    """floor under one layer's backward [s]"""
    per_collective: float = 0.0
    """added to the floor for each collective between a block's operators [s]"""
    per_kernel_forward: float = 0.0
    """added for each kernel of any block's forward: interpreter, dispatcher and launch [s]"""
    per_kernel_backward: float = 0.0
    """the same in backward, which autograd issues without the interpreter [s]"""
    launches_per_product: float = 1.0
    """kernels in whose time the thread launches one matrix product"""
    per_list_entry: float = 0.0
    """for each tensor of a list that a collective works on: a view, a copy and their bookkeeping [s]"""
    blocking: bool = False
    """the thread waits for every kernel (CUDA_LAUNCH_BLOCKING=1): launches take time besides the kernels"""
    graphs: tuple[str, ...] = ()
    """parts of a layer that are CUDA graphs, one launch each: attention, mlp, router, experts"""

    @property
    def answer(self) -> float:
        """From a number on the device to the kernel that the thread launches once it knows it [s]; 0 for a thread that is never seen."""
        known = self.per_kernel_forward + self.per_collective + self.per_layer_forward
        return COPY_TO_HOST + self.per_kernel_forward + self.per_collective if known else 0.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """The `software` section that costs memory or time outside kernels."""

    profile: str = "pytorch-2"
    context: int = 512 * 2**20
    """CUDA context and kernels [B]"""
    communicators: int | None = None
    """NCCL buffers [B]; None: 0.3 GiB for the first communicator of a rank and 0.2 GiB for each further one"""
    overhead: int = 0
    """named extra memory [B]"""
    workspace: int = 8_519_680
    """cuBLAS workspace per handle [B]; one in the forward thread, one in the autograd thread"""
    allocator: Literal["segments", "expandable", "exact"] = "segments"
    gradient_accumulation_fusion: bool = True
    gathers_again: bool = True
    """sequence parallelism gathers a column's saved input again for its weight gradient (Megatron-LM, Transformer Engine)"""
    fused: bool = False
    """fused norm and activation kernels (software.fusion)"""
    compiled: bool = False
    """with `fused`: by torch.compile"""
    host: Host = field(default_factory=Host)
    """launch floor; all zero with CUDA graphs"""
    two_pass_norm: bool | None = None
    """norm kernels read a row twice (software.norm); None: as eager PyTorch's do, and fused ones do not"""
    train_metrics: int = 0
    """cross entropies of the logits that the trainer reports, each of them computed once more behind every backward"""
    step_constant: float = 0.0
    """seconds added to every step"""
    boundary: float = 0.0
    """seconds per 1e9 local parameters at the optimizer step"""

    @property
    def transformer_engine(self) -> bool:
        """Layers are Transformer Engine's."""
        return self.profile in ("megatron-core", "nemo")

    @property
    def deepspeed(self) -> bool:
        """The engine is DeepSpeed's."""
        return self.profile.startswith("deepspeed")

    @property
    def lists_weights(self) -> bool:
        """ZeRO-3 communicates every weight by itself, through lists of tensors (DeepSpeed before v0.5.9)."""
        return self.profile == "deepspeed-2021"

    @property
    def sends_alone(self) -> bool:
        """Pipeline messages are single sends and receives, not batches of them."""
        return self.deepspeed

    @property
    def holds_stage_outputs(self) -> bool:
        """A stage keeps what it has sent until its backward has run: DeepSpeed (runtime/pipe/engine.py, pipe_buffers["outputs"]), PyTorch
        (torch/distributed/pipelining/stage.py, fwd_cache) and Megatron-LM before deallocate_output_tensor (Korthikanti et al. 2022,
        2205.05198, appendix B), which frees it behind the send.
        """
        return not self.megatron or self.profile == "megatron-2021"

    @property
    def megatron(self) -> bool:
        """Gradients and buckets are Megatron-LM's."""
        return self.profile.startswith("megatron") or self.profile == "nemo"
