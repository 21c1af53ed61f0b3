"""What the user decided about training, with every `auto` resolved where no model is needed.

The scenario's `training` section as domain objects: field names are the YAML keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parsim.model.finetune import Finetune
from parsim.model.low_precision import NARROW, Quantisation
from parsim.parallel.objective import Objective

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
    stores_narrow: bool = False
    """those weights are stored in fp8 alone, without a 16-bit copy"""

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
    """sgd | momentum | adam | adamw | adam-8bit | adam-4bit | adam-mini | adafactor | lamb | lion | muon | soap | shampoo"""
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
