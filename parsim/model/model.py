"""The model as data: operators in blocks, blocks in a row.

An *operator* is one layer in the textbook sense (Linear, LayerNorm, attention core, dropout, ...). A *block* is
a straight-line program of operators over named tensors, ``input`` to ``output`` (a transformer layer, the
embedding, the head with its loss). Equal layers share one `Block` object, so their arithmetic is done once.

Symbols: b micro-batch, s sequence, T = b*s tokens, h hidden, f MLP width, a heads, k KV heads, d head dim,
V vocabulary, t tensor-parallel size, e bytes per activation element.

The arithmetic that all operators share, and how many parameters a model has, stand here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple, Protocol

from parsim.kernel import Kernel
from parsim.model.low_precision import NARROW, Quantisation

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
    dispatcher: str = "alltoall"
    """how tokens reach the ranks of their experts: alltoall | allgather | deepep | hybridep"""
    dispatch_fp8: bool = False
    """tokens and gradients travel to the experts in fp8"""
    combine_fp8: bool = False
    """they come back so"""
    fused_experts: bool = False
    """activation, biases and casts of experts are part of their products, which are one kernel for all experts"""
    backward: bool = True
    """False: nothing is saved for backward"""
    context: int = 1
    """context-parallel size (c): ranks that share the tokens of a sample"""
    document: int = 0
    """tokens of each document packed into a sample, whose queries meet the keys of their own document only (cumulative lengths of
    FlashAttention's varlen kernels, Transformer Engine's thd); 0 = a sample is one"""
    context_method: str = "ring"
    """how keys and values reach the queries of other ranks: ring | all-gather | ulysses"""

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
        """Type of the matrix products of a part that has a choice under fp8: router or attention."""
        return "bf16" if self.narrow and part in self.kept else self.dtype

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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor (or buffer), in PyTorch's registration order within its block."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    """the dimension tensor parallelism shards; None = replicated"""
    tied: str = ""
    """full name of the parameter this one is tied to (counted once, stored where it is used)"""
    trainable: bool = True
    expert: bool = False
    """dimension 0 counts experts: expert parallelism shards it"""
    buffer: bool = False
    """not a parameter: BatchNorm statistics, position ids"""
    element: int = 0
    """bytes per element where the precision does not decide (buffers); 0 = the precision's"""
    storage: str = ""
    """nf4 | nf4-dq | int8: frozen and quantised (`parsim.model.adapters`); '' = the precision's bytes"""
    partial: bool = False
    """replicated over tensor ranks, each of which computes a part of the gradient (an adapter's half): summed at the step"""

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def dimensions(self) -> int:
        """Of one expert's part where there are several experts: a bias of experts [experts, width] has one."""
        return len(self.shape) - self.expert

    def local_count(self, tensor: int) -> int:
        """Elements on one tensor-parallel rank; the sharded dimension is divided by `tensor`, rounded up."""
        if self.split is None or tensor == 1:
            return self.count
        return self.count // self.shape[self.split] * -(-self.shape[self.split] // tensor)

    def rank_count(self, at: Workload) -> int:
        """Elements on one rank: of experts, those that it holds."""
        if not self.expert:
            return self.local_count(at.tensor)
        if self.split == 0:  # no experts, but rows of a layer that replicas share (`parsim.model.fully_connected`)
            return self.local_count(at.expert_width)
        return self.local_count(at.expert_width) // self.shape[0] * -(-self.shape[0] // at.expert)


class Save(NamedTuple):
    """A tensor kept for backward. `tensor` is a name in the block (shared, counted once) or a private extra."""

    tensor: str
    bytes: int
    until: Literal["input", "weight", "pass"] = "input"
    """released after the operator's backward-input, after its backward-weight, or held by the training script
    until the micro-batch's backward has ended (a Python variable such as the model's output)"""


class Work(NamedTuple):
    """One operator's work for one micro-batch on one rank."""

    forward: tuple[Kernel, ...] = ()
    backward_input: tuple[Kernel, ...] = ()
    backward_weight: tuple[Kernel, ...] = ()
    output: int = 0
    """bytes of the output tensor on this rank; 0 when the output is a view of the input (in-place, reshape)"""
    input_gradients: tuple[int, ...] = ()
    """bytes of the gradient buffer made for each input: 0 = none, the output's gradient is passed on (residual add,
    view); -1 = the input has no gradient (ids, targets)"""
    saves: tuple[Save, ...] = ()
    forward_temporary: int = 0
    """bytes live only while the forward runs (beyond inputs, output and saves)"""
    backward_temporary: int = 0
    """bytes live only while the backward runs (beyond grad of output, grad of inputs, saves)"""
    backward_scratch: tuple[int, ...] = ()
    """bytes of tensors that backward makes one after another before the gradients of the inputs: all are there together, then only
    the last, until the gradients are made"""
    ready_gradient: str = ""
    """a tensor of `saves` that forward has made and that is the gradient of the one input (its entry in `input_gradients` is 0)"""


class Operator(Protocol):
    """What every operator offers. Implementations are small frozen dataclasses, a file per kind of layer.

    Rules of backward shared by all (Zero Bubble, 2401.10241): linear operators split into a gradient of the input and a
    gradient of the weight; norms, activations and attention cores work wholly with the input gradient; an embedding has
    only a weight gradient. Saved tensors are those of PyTorch's autograd (``tools/autograd/derivatives.yaml``);
    `Workload.fused` selects what the fused kernels of Megatron-LM and Transformer Engine keep instead.
    """

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def output(self) -> str: ...
    @property
    def split(self) -> Split: ...
    @property
    def selective(self) -> str:
        """The word under which selective recomputation drops this operator's saves: attention | mlp | norm, one of
        `parsim.model.regions`, or ''.
        """
        ...

    def parameters(self) -> tuple[Parameter, ...]: ...
    def work(self, at: Workload) -> Work: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """What the operators of networks have in common; each says what it does in training."""

    name: str
    inputs: tuple[str, ...]
    output: str

    def parameters(self) -> tuple[Parameter, ...]:
        """None, unless the operator says otherwise."""
        return ()

    def work(self, at: Workload) -> Work:
        """As in training where there is a backward pass; without one nothing is kept."""
        return kept(at, self.training_work(at), (*self.inputs, self.output))

    def training_work(self, at: Workload) -> Work:
        """The work of a micro-batch whose backward pass follows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Block:
    """Operators in execution order, from the tensor named ``input`` to the one named ``output``.

    Equal layers share one block, so blocks are compared and hashed by identity.
    """

    kind: str
    """embedding | layer | head | ... (what a schedule or a wrap unit may call it)"""
    operators: tuple[Operator, ...]
    registration: tuple[str, ...] = ()
    """operator names in parameter-registration order where it differs from execution order"""
    kept: bool = False
    """its products stay bf16 under a recipe of narrow ones (`parsim.model.kept_layers`)"""
    tokens: int = 0
    """tokens of its samples, where they are not the model's: of a decoder's target, of an image; 0 = the workload's"""
    samples: int = 1
    """with `tokens`: its samples for one of the model's (images of a text)"""
    beside: tuple[str, ...] = ()
    """tensors that it reads beside ``input`` and that an earlier block keeps (an encoder's output)"""

    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters and buffers, in registration order."""
        return self._parameters

    @cached_property
    def _parameters(self) -> tuple[Parameter, ...]:
        order = self.registration or tuple(self.by_operator)
        return tuple(p for name in order for p in self.by_operator[name])

    @cached_property
    def by_operator(self) -> Mapping[str, tuple[Parameter, ...]]:
        """Operator -> its parameters and buffers."""
        return {operator.name: operator.parameters() for operator in self.operators}


OUTER = ("embedding", "mtp", "head")
"""kinds of blocks beside the layers, which stay with the first or the last of them"""


@dataclass(frozen=True)
class Model:
    """Blocks in execution order, with what reports need to know about the architecture."""

    name: str
    blocks: tuple[Block, ...]
    """embedding, L layers, head: consecutive; equal layers are the same object"""
    block_names: tuple[str, ...]
    """one per block, e.g. ``layer 17``"""
    sequence: bool = True
    """False: samples have no tokens (MLP, CNN)"""
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    vocabulary: int = 0
    vocabulary_padded: int = 0
    maximum_sequence: int = 0
    """positions the model has parameters for; 0 = no limit"""
    active_fraction_blocks: Mapping[int, float] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    """family-specific facts for reports and FLOP conventions (mlp width, experts, top-k, ...)"""

    @cached_property
    def ties(self) -> tuple[tuple[int, int, str], ...]:
        """Parameters that two blocks share: number of the block that has it, of the one that is tied to it, its whole name."""
        named = [(name, number) for number, name in enumerate(self.block_names)]
        tied = [(number, p.tied) for _, number in named for p in self.blocks[number].parameters() if p.tied]
        homes = {f"{name}.{p.name}": number for name, number in named for p in self.blocks[number].parameters()} if tied else {}
        return tuple((homes[name], number, name) for number, name in tied if name in homes)


# sizes on one tensor-parallel rank, and what evaluation does to saved tensors


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


def kept(at: Workload, work: Work, named: tuple[str, ...]) -> Work:
    """`work` as it is when nothing is kept for backward: by-products that are no tensors of the block become temporaries."""
    if at.backward:
        return work
    by_products = sum(save.bytes for save in work.saves if save.tensor not in named)
    return work._replace(
        backward_input=(),
        backward_weight=(),
        saves=(),
        forward_temporary=work.forward_temporary + by_products,
        backward_temporary=0,
    )


# how many parameters a model has: tied ones once, buffers never; all in elements


def parameter_count(model: Model) -> int:
    """Parameters of the model as published, without vocabulary padding (PyTorch's ``sum(p.numel() for p in parameters())``)."""
    return sum(_block_count(model, block, padded=False) for block in model.blocks)


def padded_parameter_count(model: Model) -> int:
    """Parameters as built: with the rows that vocabulary padding adds."""
    return sum(_block_count(model, block, padded=True) for block in model.blocks)


def trainable_parameter_count(model: Model) -> int:
    """Parameters that get gradients, without vocabulary padding."""
    total = 0
    for block in model.blocks:
        for operator in block.operators:
            total += sum(_counted_size(model, operator, p, padded=False) for p in _counted(operator) if p.trainable)
    return total


def active_parameter_count(model: Model) -> int:
    """Parameters that take part in one token's forward pass: of the experts only those a token visits."""
    total = 0
    for index, block in enumerate(model.blocks):
        count = _block_count(model, block, padded=False)
        total += round(count * model.active_fraction_blocks.get(index, 1.0))
    return total


def layer_parameter_count(model: Model) -> int:
    """Parameters outside embedding, head and positions, final norm included (Kaplan et al. 2001.08361's N)."""
    total = 0
    for block in model.blocks:
        if block.kind == "embedding":
            continue
        for operator in block.operators:
            if block.kind != "head" or operator.split != "vocab":
                total += sum(p.count for p in _counted(operator))
    return total


def operator_parameter_count(model: Model, operator: Operator) -> int:
    """Parameters of one operator, without vocabulary padding."""
    return sum(_counted_size(model, operator, p, padded=False) for p in _counted(operator))


def _block_count(model: Model, block: Block, *, padded: bool) -> int:
    return sum(_counted_size(model, operator, p, padded=padded) for operator in block.operators for p in _counted(operator))


def _counted(operator: Operator) -> Iterator[Parameter]:
    return (p for p in operator.parameters() if not p.buffer and not p.tied)


def _counted_size(model: Model, operator: Operator, parameter: Parameter, *, padded: bool) -> int:
    if padded or operator.split != "vocab" or parameter.split is None:
        return parameter.count
    rows = parameter.shape[parameter.split]
    if rows != model.vocabulary_padded:
        return parameter.count
    return parameter.count // rows * model.vocabulary
