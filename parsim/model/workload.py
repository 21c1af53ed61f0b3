"""How much work there is for one micro-batch on one rank, and what of a tensor a rank holds.

Symbols as in `parsim.model.model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from parsim.model.low_precision import NARROW, Quantisation

if TYPE_CHECKING:
    from parsim.model.model import Block


Split = Literal["replicated", "column", "row", "vocab", "heads"]
"""What tensor parallelism does to an operator: column and vocab (head) shard outputs, row shards inputs,
heads splits attention heads, vocab (embedding) shards rows of the table; replicated does the same work on
every rank (on 1/t of the tokens under sequence parallel)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything outside the model that decides how much work an operator is, for one micro-batch on one rank."""

    batch: int
    """samples per micro-batch (b)"""
    sequence: int = 1
    """tokens of a sample on this rank (s / c); 1 for models without sequences"""
    tensor: int = 1
    """tensor-parallel size (t)"""
    sequence_parallel: bool = False
    gathers_again: bool = True
    """a column-parallel product keeps its shard of the tokens and gathers the others again for its weight's gradient; False: it keeps
    all of them, as autograd does behind DTensor's redistribution"""
    inner_sequence: bool = False
    """activations are [b, s, h], not [s, b, h]: what is gathered or scattered along the tokens is copied as a whole"""
    interleaved: bool = False
    """queries, keys and values come from one product, side by side for every group of heads (Megatron-LM)"""
    repeats_kv: bool = False
    """keys and values are copied to all query heads before the attention kernel"""
    element: int = 2
    """bytes per activation element (e)"""
    dtype: str = "bf16"
    """matmul type: fp32 | tf32 | fp16 | bf16 | fp8 | fp4 | int8"""
    kept: tuple[str, ...] = ()
    """parts whose products stay bf16 where `dtype` is narrower: embedding and head (blocks), router, attention (scores and values)"""
    quantisation: Quantisation | None = None
    """how narrow products get their operands; None: they are there"""
    weight_element: int = 2
    """bytes per weight element as the matmuls read it"""
    attention: str = "flash2"
    """eager | mem-efficient | triton-fa1 | flash2 | flash3 | cudnn"""
    dropout: float = 0.0
    """probability; 0 = off (also evaluation mode)"""
    fused: bool = False
    """fused norm / activation kernels (Megatron, TE, torch.compile) instead of eager PyTorch"""
    compiled: bool = False
    """with `fused`: the kernels are torch.compile's. Sums join the kernel behind them, and cross-entropy keeps the logits
    and two fp32 numbers per row. What backward keeps is otherwise what fused kernels keep: Inductor's min-cut partitioner
    recomputes inside a chain of elementwise operations, but keeps every operand of a matrix product and every dropout mask
    (``torch/_functorch/partitioners.py``: ban_recompute_materialized_backward, random operations; PyTorch 2.13)"""
    two_pass_norm: bool | None = None
    """norm kernels read a row for its statistics and once more to scale it; None: those of eager PyTorch do, fused ones do not"""
    autocast: bool = False
    """weights are cast in every product (torch.autocast): losses work in fp32"""
    wide_stream: bool = False
    """autocast around modules of fp32 weights in eager PyTorch: embeddings and norms make fp32 tensors, so that the residual stream is
    fp32, and every product casts its input and its weight for itself"""
    loss_kernel: str = "eager"
    """eager | eager-chunks | compiled | fused | vocab-parallel | vocab-parallel-fused | te"""
    holds_logits: bool = True
    """the training script holds the logits, if a loss kernel makes some, until the micro-batch is done"""
    loss_chunks: int = 1
    """parts in which logits and loss are computed one after another (chunked cross-entropy)"""
    expert: int = 1
    """expert-parallel size: experts held by one rank = experts / expert"""
    expert_imbalance: float = 1.0
    """rows of the busiest expert rank over the token copies of a rank on average"""
    expert_sent: float = 1.0
    """rows that a rank sends over its token copies: less where some are dropped, more where experts' rows are filled up"""
    expert_tensor: int = 0
    """ranks that share the width of every expert; 0: as many as `tensor`"""
    experts_in_turn: bool = False
    """token t visits experts t k to t k + k - 1 (`parsim.routing.Routing.in_turn`)"""
    dispatcher: str = "alltoall"
    """how tokens reach the ranks of their experts: alltoall | allgather | deepep | hybridep"""
    dispatch_fp8: bool = False
    """tokens and gradients travel to the experts in fp8"""
    combine_fp8: bool = False
    """they come back so"""
    fused_experts: bool = False
    """activation, biases and casts of experts are part of their products, which are one kernel for all experts"""
    single_grouped: bool = False
    """a product of experts, its casts and its biases are one kernel for all of a rank, whatever the library"""
    permute_fusion: bool = True
    """tokens are put in order of their experts by fused kernels; False: by PyTorch's operations, as Megatron-LM without them does"""
    paged_stash: bool = False
    """what experts keep for backward is copied into pages, and back out of them"""
    backward: bool = True
    """False: nothing is saved for backward"""
    context: int = 1
    """context-parallel size (c): ranks that share the tokens of a sample"""
    document: int = 0
    """tokens of each document packed into a sample, whose queries meet the keys of their own document only (cumulative lengths of
    FlashAttention's varlen kernels, Transformer Engine's thd); 0 = a sample is one"""
    context_method: str = "ring"
    """how keys and values reach the queries of other ranks: ring | all-gather | ulysses"""
    torch_context: bool = False
    """ring and all-gather are PyTorch's `context_parallel`"""

    @property
    def expert_width(self) -> int:
        """Ranks that share the width of every expert (etp)."""
        return self.expert_tensor or self.tensor

    @property
    def exchanges_tokens(self) -> bool:
        """Tokens travel to the ranks of their experts, which are not those that share a layer's other products."""
        return self.expert > 1 or self.expert_width != self.tensor

    @property
    def narrow(self) -> bool:
        """Products are narrower than 16 bits."""
        return self.dtype in NARROW

    @property
    def operand(self) -> float:
        """Bytes of an element that the matrix products of layers read."""
        return NARROW.get(self.dtype, self.element)

    @property
    def casts(self) -> Quantisation | None:
        """How this block's products get narrow operands; None where they need none."""
        return self.quantisation if self.narrow else None

    def inside(self, block: Block) -> Workload:
        """The workload of a block: one that keeps bf16 products under a recipe is a bf16 block; see `tokens_in` too."""
        at = self.tokens_in(block)
        return replace(at, dtype="bf16") if self.narrow and (block.kept or block.kind in self.kept) else at

    def tokens_in(self, block: Block) -> Workload:
        """The workload with the samples and tokens of a block that works on others than the model's."""
        if not block.tokens:
            return self
        return replace(self, batch=self.batch * block.samples, sequence=block.tokens)

    def product_type(self, part: str) -> str:
        """Type of the matrix products of a part that has a choice under fp8: router or attention (beside fp4 products in fp8)."""
        if self.narrow and part in self.kept:
            return "bf16"
        return "fp8" if part == "attention" and self.dtype == "fp4" else self.dtype

    @property
    def norm_reads_twice(self) -> bool:
        """Whether norm kernels read their input twice (`two_pass_norm`)."""
        return not self.fused if self.two_pass_norm is None else self.two_pass_norm

    @property
    def library(self) -> bool:
        """Whether fused kernels replace the modules' own code (Megatron-LM, Transformer Engine) instead of being compiled from it."""
        return self.fused and not self.compiled

    @property
    def tokens(self) -> int:
        """T = b*s/c: the tokens of this rank, before sequence parallelism."""
        return self.batch * self.sequence

    @property
    def local_tokens(self) -> int:
        """Tokens of the tensors that sequence parallelism shards (residual stream, norms)."""
        return -(-self.tokens // self.tensor) if self.sequence_parallel else self.tokens


def shard(width: int, at: Workload) -> int:
    """A sharded dimension on one rank, rounded up."""
    return -(-width // at.tensor)


def expert_shard(width: int, at: Workload) -> int:
    """A sharded dimension of an expert on one rank, rounded up."""
    return -(-width // at.expert_width)


def rows(at: Workload, split: Split = "replicated", per_sample: bool = False, copies: int = 0) -> int:
    """Rows of a tensor: tokens, of which a replicated operator holds 1/t under sequence parallelism; samples for
    pooled tensors; `copies` per token behind a mixture-of-experts router, the busiest expert rank counted.
    """
    if per_sample:
        return at.batch
    if copies:
        return dispatched(at, copies)
    return at.local_tokens if split == "replicated" else at.tokens


def dispatched(at: Workload, top_k: int) -> int:
    """Rows that the experts of one rank work on: ranks that share an expert's width gather theirs; even up to the imbalance."""
    return round(at.tokens * at.expert_width / at.tensor * top_k * at.expert_imbalance)


def elements(at: Workload, width: int, split: Split = "replicated", per_sample: bool = False, copies: int = 0) -> int:
    """Elements of an activation tensor of `width` features on one rank."""
    if split != "replicated":
        width = expert_shard(width, at) if copies else shard(width, at)
    return rows(at, split, per_sample, copies) * width
