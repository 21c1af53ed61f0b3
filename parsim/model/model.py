"""The model as data: operators in blocks, blocks in a row.

An *operator* is one layer in the textbook sense (Linear, LayerNorm, attention core, dropout, ...). A *block* is
a straight-line program of operators over named tensors, ``input`` to ``output`` (a transformer layer, the
embedding, the head with its loss). Equal layers share one `Block` object, so their arithmetic is done once.

Symbols: b micro-batch, s sequence, T = b*s tokens, h hidden, f MLP width, a heads, k KV heads, d head dim,
V vocabulary, t tensor-parallel size, e bytes per activation element.

How much work there is for an operator is in `parsim.model.workload`, how many parameters a model has in `parsim.model.parameter_counts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple, Protocol

from parsim.kernel import Kernel
from parsim.model.workload import Split, Workload


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
    """nf4 | nf4-dq | int8 | fp8 | nvfp4: frozen and quantised (`parsim.model.adapters`); '' = the precision's bytes"""
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
    until: Literal["input", "weight", "pass", "shown"] = "input"
    """released after the operator's backward-input, after its backward-weight, or held by the training script
    until the micro-batch's backward has ended (a Python variable such as the model's output). shown: blocks behind read it, so that a
    forward pass which keeps nothing keeps this, until the block's backward or the end of the pass; where a forward pass keeps what
    backward needs, another entry says so"""


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
    shows: tuple[str, ...] = ()
    """those that it makes for blocks behind it to read so"""
    repeats: str = ""
    """name of the equal block whose parameters are its own, too; empty: it has parameters"""

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
        own = {operator.name: operator.parameters() for operator in self.operators}
        if not self.repeats:
            return own
        return {name: tuple(replace(p, tied=p.tied or f"{self.repeats}.{p.name}") for p in some) for name, some in own.items()}


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
    full_heads: tuple[int, int, int] = (0, 0, 0)
    """key-value heads, head dim and heads of the layers that see all keys, where these have others; zeros = as the fields above"""
    vocabulary: int = 0
    vocabulary_padded: int = 0
    maximum_sequence: int = 0
    """positions the model has parameters for; 0 = no limit"""
    active_fraction_blocks: Mapping[int, float] = field(default_factory=dict)
    """number of a block -> share of its parameters that a token uses (mixtures, tables of per-layer inputs); others use all"""
    facts: Mapping[str, object] = field(default_factory=dict)
    """family-specific facts for reports and FLOP conventions (mlp width, experts, top-k, ...)"""

    @property
    def key_value_heads(self) -> Mapping[str, int]:
        """Numbers of key-value heads, each with what to call it; beside them what layers that see all keys have, where it is another."""
        full, _, queries = self.full_heads
        further = {"key-value heads of layers that see all keys": full} if full not in (0, self.kv_heads) else {}
        if queries not in (0, self.heads):
            further["heads of layers that see all keys"] = queries
        return {"key-value heads": self.kv_heads, **further}

    @property
    def largest_head_dim(self) -> int:
        """Of any layer."""
        return max(self.head_dim, self.full_heads[1])

    @cached_property
    def distinct_blocks(self) -> tuple[Block, ...]:
        """The blocks, equal ones once."""
        return tuple(dict.fromkeys(self.blocks))

    @cached_property
    def distinct_operators(self) -> tuple[Operator, ...]:
        """The operators of the distinct blocks: what a question about the kinds of layers looks at."""
        return tuple(operator for block in self.distinct_blocks for operator in block.operators)

    @cached_property
    def ties(self) -> tuple[tuple[int, int, str], ...]:
        """Parameters that two blocks share: number of the block that has it, of the one that is tied to it, its whole name."""
        named = [(name, number) for number, name in enumerate(self.block_names)]
        tied = [(number, p.tied) for _, number in named for p in self.blocks[number].parameters() if p.tied]
        homes = {f"{name}.{p.name}": number for name, number in named for p in self.blocks[number].parameters()} if tied else {}
        return tuple((homes[name], number, name) for number, name in tied if name in homes)


# sizes on one tensor-parallel rank, and what evaluation does to saved tensors


def kept(at: Workload, work: Work, named: tuple[str, ...]) -> Work:
    """`work` as it is when nothing is kept for backward: by-products that are no tensors of the block become temporaries."""
    if at.backward:
        return work
    shown = tuple(save for save in work.saves if save.until == "shown")
    by_products = sum(save.bytes for save in work.saves if save.tensor not in named and save not in shown)
    return work._replace(
        backward_input=(),
        backward_weight=(),
        saves=shown,
        forward_temporary=work.forward_temporary + by_products,
        backward_temporary=0,
    )
