"""Megatron tensor parallelism (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al. 2022).

Column-parallel linears shard their outputs, row-parallel ones their inputs; a column-row pair costs one all-reduce
forward (after the row) and one backward (of the column's input gradient). Sequence parallelism replaces each
all-reduce by a reduce-scatter and an all-gather around the region where tokens are sharded, and gathers the saved
input of a column linear once more for its weight gradient.

=================  ==========================  ======================================
where              plain                       sequence parallel
=================  ==========================  ======================================
before a column    -                           forward all-gather, b*s*h
after a row        forward all-reduce, b*s*h   forward reduce-scatter, b*s*h
embedding          forward all-reduce, b*s*h   forward reduce-scatter, b*s*h
before a row's I   -                           backward all-gather of the output gradient
whole rows again   forward all-gather, b*s*h   forward and backward all-gather, b*s*h (multi-token prediction)
column's W         -                           all-gather of the saved input, beside I (unless the gathered one is kept)
after a column's I backward all-reduce beside W  backward reduce-scatter beside W
chosen keys        -                           forward all-gather of the indexer's inputs, b*s*(h + r_q), and of the
                                               core's keys, b*s*d_r and b*s*r_kv; backward reduce-scatter of the latter
vocabulary loss    three all-reduces of T*4 B  the same
step               adapters' gradients         all-reduce of the norms' and adapters' gradients
=================  ==========================  ======================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parsim.errors import Finding
from parsim.kernel import Memory
from parsim.model.linear import Embedding, Linear
from parsim.model.linear_attention import LinearAttention, ShortConvolution
from parsim.model.loss import Loss
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Block, Model, Operator
from parsim.model.prediction import GatherColumns
from parsim.model.sparse_attention import LightningIndexer, SparseCore
from parsim.model.tape import Step
from parsim.model.workload import Workload
from parsim.parallel.groups import TENSOR, Groups
from parsim.parallel.hooks import Emitter, SilentHooks, Weight
from parsim.parallel.settings import Parallelism, TensorParallel
from parsim.parallel.tensor_overlap import OverlappedProducts
from parsim.parallel.training import Training


@dataclass
class TensorParallelHooks(SilentHooks):
    """Collectives between operators of one rank; `width` of an operator is the feature dimension it reads or writes.

    `pending` are collectives beside the weight gradient that comes next.
    """

    workload: Workload
    settings: TensorParallel
    gradient: int
    """bytes of a gradient's element"""
    split: bool = False
    """input and weight gradients run in different passes (I and W slots)"""

    def __post_init__(self) -> None:
        self._whole = self.workload
        self.products = OverlappedProducts(self.workload, self.settings)
        self.hidden = self.settings.overlap in ("backward", "full")
        """collectives of a column's input gradient run beside products"""

    def inside(self, number: int, block: Block) -> None:
        """What is gathered of a layer that stays bf16 is not quantised."""
        if (workload := self._whole.inside(block)) != self.workload:
            self.workload = workload
            self.products = OverlappedProducts(workload, self.settings)

    def _size(self, operator: Operator, side: str) -> int:
        return self._tokens(operator) * _features(operator, side) * self.workload.element

    def _tokens(self, operator: Operator) -> int:
        """Of the operator's input: a product may work on those of an encoder."""
        own = operator.tokens if isinstance(operator, Linear) else 0
        return self.workload.batch * own if own else self.workload.tokens

    def _gathered(self, operator: Operator, side: str) -> int:
        """Bytes of a gathered input, or output gradient, which fp8 products may take over the wire as they multiply it."""
        casts = self.workload.casts
        quantised = casts is not None and isinstance(operator, Linear) and operator.split in ("column", "row")
        element = casts.sent(backward=side == "output") if casts is not None and quantised else 0.0
        return round(self._tokens(operator) * _features(operator, side) * element) if element else self._size(operator, side)

    def _enters(self, operator: Operator) -> bool:
        """Reads the full hidden state and writes a shard: column-parallel linear or experts, vocabulary-parallel head."""
        return isinstance(operator, self._sharded) and operator.split in ("column", "vocab")

    def _leaves(self, operator: Operator) -> bool:
        """Writes partial sums of the full hidden state: row-parallel linear or experts, vocabulary-sharded embedding."""
        if isinstance(operator, Embedding):
            return operator.split == "vocab"
        return isinstance(operator, self._sharded) and operator.split == "row"

    @property
    def _sharded(self) -> tuple[type[Linear], ...] | tuple[type[Linear], type[GroupedLinear]]:
        """Products that tensor ranks share; experts on a grid of their own are `ExpertParallelHooks`' business."""
        return (Linear,) if self.workload.exchanges_tokens else (Linear, GroupedLinear)

    def _regathers(self, operator: Operator) -> bool:
        """The weight's gradient needs tokens that were not kept."""
        if not (self._enters(operator) and _trains(operator)):
            return False
        return not isinstance(operator, Linear) or (self.workload.gathers_again and not operator.apart)

    def _scatters_later(self, operator: Operator) -> bool:
        """The gradient of its input is scattered behind that of its weight: by a call of its own, which autograd makes later."""
        apart = isinstance(operator, Linear) and operator.apart and self.workload.sequence_parallel
        return apart and self._enters(operator) and _trains(operator) and not self.split

    def _agree(self, operator: Operator, at: Emitter) -> None:
        """The ranks that quantise a tensor with one scale agree on it (Transformer Engine: set_quantizer_amax_reduction_group)."""
        casts = self.workload.casts
        if casts is not None and casts.agreed and isinstance(operator, Linear) and operator.split in ("column", "row"):
            at.collective("all_reduce", TENSOR, casts.agreed, f"{operator.name} scale", blocking=True)

    def _gather(self, operator: Operator, side: str, name: str, at: Emitter) -> None:
        """Gather the tokens of an operator's input or of its output's gradient, before what reads them."""
        size = self._gathered(operator, side)
        at.collective("all_gather", TENSOR, size, name, blocking=True)
        self._reorder(size, at)

    def _reduce(self, operator: Operator, side: str, name: str, at: Emitter, *, blocking: bool) -> int:
        """Sum what the ranks have of an operator's output or of its input's gradient; under sequence parallelism each keeps its tokens."""
        scatters, size = self.workload.sequence_parallel, self._size(operator, side)
        if scatters:
            self._reorder(size, at)
        return at.collective("reduce_scatter" if scatters else "all_reduce", TENSOR, size, name, blocking=blocking)

    def _reorder(self, size: int, at: Emitter) -> None:
        """NCCL joins and cuts whole blocks of memory. Where tokens are not the first dimension, their blocks are put together behind a
        gather, and taken apart before a scatter, by a copy of all of it (torch/distributed/_functional_collectives.py:
        all_gather_tensor and reduce_scatter_tensor, torch.cat of torch.chunk).
        """
        if self.workload.inner_sequence:
            at.compute("", "", (Memory(2.0 * size),))

    def runs(self, operator: Operator) -> bool:
        """Whether a product of the operator runs in pieces, with those of its collective beside them."""
        return self.products.covers(operator, phase="forward")

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """A forward or input step in pieces where its collective is overlapped; else as it is."""
        if self.products.covers(step.operator, phase=step.phase):
            side = "output" if step.operator.split == "row" else "input"
            gathers = (side == "input") == (step.phase == "forward")
            size = self._gathered(step.operator, side) if gathers else self._size(step.operator, side)
            self.products.run(step, size, kind, at, allocates, frees)
        else:
            at.compute("", kind, step.kernels, allocates, frees)

    def before_forward(self, operator: Operator, at: Emitter) -> None:
        """Sequence parallel: gather the tokens a column-parallel operator reads. Either way: gather columns that become whole rows."""
        if isinstance(operator, GatherColumns):
            at.collective("all_gather", TENSOR, self._size(operator, "input"), operator.name, blocking=True)
        for name, size in self._whole_tokens(operator):
            at.collective("all_gather", TENSOR, size, f"{operator.name} {name}", blocking=True)
        if not (self.workload.sequence_parallel and self._enters(operator)):
            return
        self._agree(operator, at)
        if not self.products.covers(operator, phase="forward"):
            self._gather(operator, "input", operator.name, at)

    def _whole_tokens(self, operator: Operator) -> list[tuple[str, int]]:
        """Tensors that attention to chosen keys reads of all tokens, of which a rank has a part."""
        if not self.workload.sequence_parallel:
            return []
        if isinstance(operator, LightningIndexer):
            widths = {"input": operator.hidden, "queries": operator.query_rank}
        elif isinstance(operator, SparseCore):
            widths = {"rotary keys": operator.head_dim - operator.value_dim, "keys": operator.value_dim}
        else:
            return []
        return [(name, self.workload.tokens * width * self.workload.element) for name, width in widths.items()]

    def after_forward(self, operator: Operator, at: Emitter) -> None:
        """Combine the partial sums of a row-parallel operator, the embedding or the vocabulary-parallel loss."""
        if isinstance(operator, Loss) and operator.split == "vocab":
            for what in ("max", "target logit", "sum"):
                at.collective("all_reduce", TENSOR, 4 * self.workload.tokens, f"loss {what}", blocking=True)
        elif self._leaves(operator) and not self.products.covers(operator, phase="forward"):
            self._reduce(operator, "output", operator.name, at, blocking=True)

    def before_input(self, operator: Operator, at: Emitter) -> None:
        """Sequence parallel: gather a row's output gradient; start gathering a column's saved input for its W."""
        if not self.workload.sequence_parallel:
            return
        if isinstance(operator, GatherColumns):
            at.collective("all_gather", TENSOR, self._size(operator, "input"), f"{operator.name} grad", blocking=True)
        elif self._leaves(operator) and operator.split == "row":
            self._agree(operator, at)
            if not self.products.covers(operator, phase="input"):
                self._gather(operator, "output", f"{operator.name} grad", at)
        elif self._regathers(operator) and not self.split:
            handle = at.collective(
                "all_gather", TENSOR, self._gathered(operator, "input"), f"{operator.name} saved input", blocking=not self.hidden
            )
            self.pending.append(handle)

    def after_input(self, operator: Operator, at: Emitter) -> None:
        """Sum a column's partial input gradients, beside its weight gradient unless overlap is none; those of keys that were gathered."""
        if isinstance(operator, SparseCore):
            for name, size in self._whole_tokens(operator):
                at.collective("reduce_scatter", TENSOR, size, f"{operator.name} {name} grad", blocking=True)
        if self._enters(operator) and not self._scatters_later(operator):
            saved = self.pending[:]
            self.pending.clear()
            if not self.products.covers(operator, phase="input"):
                self.pending.append(self._reduce(operator, "input", f"{operator.name} grad", at, blocking=not self.hidden))
            if self.hidden:
                at.wait(*saved)
            if self.split or not _trains(operator):
                at.wait(*self.pending)
                self.pending.clear()

    def before_weight(self, operator: Operator, at: Emitter) -> None:
        """Embedding under sequence parallelism: gather the output gradient before the scatter-add."""
        if self.workload.sequence_parallel and self._leaves(operator) and operator.split == "vocab":
            self._gather(operator, "output", f"{operator.name} grad", at)
        elif self.workload.sequence_parallel and self.split and self._regathers(operator):
            at.collective("all_gather", TENSOR, self._gathered(operator, "input"), f"{operator.name} saved input", blocking=True)

    def after_weight(self, operator: Operator, at: Emitter) -> None:
        """The compute that follows needs the summed input gradient."""
        if self._scatters_later(operator):
            self._reduce(operator, "input", f"{operator.name} grad", at, blocking=True)
        elif self._enters(operator):
            at.wait(*self.pending)
            self.pending.clear()

    def at_step(self, weights: Sequence[Weight], at: Emitter) -> None:
        """Sum gradients of which each rank has a part: adapters' replicated halves; under sequence parallelism, where each rank has
        1/t of the tokens, those of all replicated parameters (norms, row biases) but tables, whose gradients are made from the
        gathered tokens.
        """
        replicated = [weight for weight in weights if weight.parameter.split is None and weight.trains]
        partial = sum(weight.count for weight in replicated if weight.parameter.partial)
        whole = sum(weight.count for weight in replicated if not (weight.parameter.partial or weight.table))
        if size := self.gradient * (partial + self.workload.sequence_parallel * whole):
            name = "adapter gradients" if partial else "norm gradients"
            at.collective("all_reduce", TENSOR, size, name, blocking=True)


def _trains(operator: Operator) -> bool:
    """Has a weight gradient, beside which its collectives may run."""
    return any(parameter.trainable for parameter in operator.parameters())


def _features(operator: Operator, side: str) -> int:
    if isinstance(operator, Embedding):
        return operator.width
    if isinstance(operator, GatherColumns):
        return operator.features
    if not isinstance(operator, Linear | GroupedLinear):
        message = f"{operator.name} has no features"
        raise TypeError(message)
    if side == "input":
        return operator.in_features
    return operator.out_features if isinstance(operator, GroupedLinear) else sum(operator.out_features)


def tensor_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why this model cannot be split so; with the arithmetic."""
    size = parallelism.tensor.size
    if size == 1:
        return []
    path = "parallel.tensor.size"
    if not model.heads:
        return [Finding(f"{model.name} has no attention heads to split", path, size, "use data or pipeline parallelism")]
    findings = []
    rules = [("heads", model.heads), *model.key_value_heads.items(), ("MLP width", int(str(model.facts.get("mlp", 0) or 0)))]
    if mixer := next((one for one in model.distinct_operators if isinstance(one, LinearAttention)), None):
        if mixer.kind == "mamba":
            text = "not supported yet: tensor parallelism with Mamba's selective scan, whose step sizes depend on all channels"
            return [Finding(text, path, size, "use data or pipeline parallelism")]
        if mixer.kind == "rwkv":
            text = "not supported yet: tensor parallelism with RWKV, whose projections are gated by others of the same width"
            return [Finding(text, path, size, "use data or pipeline parallelism")]
        rules += [("heads of linear attention", mixer.heads), ("key heads or groups of linear attention", mixer.key_heads)]
    elif row := next((one for one in model.distinct_operators if isinstance(one, ShortConvolution)), None):
        rules.append(("channels of the convolutions", row.features))
    for name, count in rules:
        if count % size:
            legal = [d for d in range(1, count + 1) if count % d == 0 and d <= 64]
            nearest = sorted(legal, key=lambda d: abs(d - size))[:2]
            text = f"{count} {name} / tensor size {size} = {count / size:g} is not whole"
            findings.append(Finding(text, path, size, f"use {' or '.join(map(str, sorted(nearest)))}"))
    findings += _overlap_findings(parallelism.tensor, training.precision.matmul)
    if parallelism.tensor.sequence_parallel and parallelism.context.size == 1 and training.sequence_length % size:
        tokens = training.sequence_length
        text = f"sequence parallelism shards {tokens} tokens over {size} ranks = {tokens / size:g} is not whole"
        findings.append(Finding(text, "parallel.tensor.sequence_parallel", True, "pad the sequence length"))
    return findings


def _overlap_findings(tensor: TensorParallel, matmul: str) -> list[Finding]:
    """Why collectives cannot run beside products in this way."""
    findings = []
    path = "parallel.tensor.overlap"
    if tensor.overlap == "full" and matmul == "fp4":  # pytorch/module/base.py, fill_userbuffers_buffer_for_all_gather
        text = "user buffers take operands in fp8 and wider: Transformer Engine has none for NVFP4"
        findings.append(Finding(text, path, tensor.overlap, "use overlap: backward"))
    if tensor.overlap in ("full", "async") and not tensor.sequence_parallel:
        what = (
            "user buffers gather and scatter tokens"
            if tensor.overlap == "full"
            else "only gathers and scatters of tokens are cut in pieces"
        )
        findings.append(Finding(f"{what}, which needs sequence parallelism", path, tensor.overlap, "add sequence_parallel: true"))
    for name in ("overlap_splits", "overlap_sms"):
        value, default = getattr(tensor, name), TensorParallel.__dataclass_fields__[name].default
        if tensor.overlap != "full" and value != default:
            text = f"it applies to user buffers, but the overlap is {tensor.overlap}"
            findings.append(Finding(text, f"parallel.tensor.{name}", value, "leave it out, or use overlap: full"))
    return findings


def placement_findings(parallelism: Parallelism, groups: Groups, gpus: Sequence[int], node_of: Callable[[int], int]) -> list[Finding]:
    """User buffers and symmetric memory are mapped into the processes of one machine (of one NVLink rack)."""
    tensor = parallelism.tensor
    if tensor.size == 1 or tensor.overlap not in ("full", "async") or groups.mesh.ranks != len(gpus):
        return []
    for rank in range(groups.mesh.ranks):
        members = groups.members(TENSOR, rank)
        if rank == members[0] and len({node_of(gpus[member]) for member in members}) > 1:
            text = f"the tensor-parallel ranks {members[0]} to {members[-1]} are on several machines; they exchange pieces over NVLink only"
            return [Finding(text, "parallel.tensor.overlap", tensor.overlap, "use overlap: backward")]
    return []
