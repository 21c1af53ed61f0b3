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
column's W         -                           all-gather of the saved input, beside I
after a column's I backward all-reduce beside W  backward reduce-scatter beside W
vocabulary loss    three all-reduces of T*4 B  the same
step               adapters' gradients         all-reduce of the norms' and adapters' gradients
=================  ==========================  ======================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.errors import Finding
from parsim.model.linear import Embedding, Linear
from parsim.model.loss import Loss
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Model, Operator, Workload
from parsim.parallel.groups import TENSOR
from parsim.parallel.hooks import Emitter, SilentHooks, Weight
from parsim.parallel.settings import Parallelism, Training


@dataclass
class TensorParallelHooks(SilentHooks):
    """Collectives between operators of one rank; `width` of an operator is the feature dimension it reads or writes.

    `pending` are collectives beside the weight gradient that comes next.
    """

    workload: Workload
    overlap: str
    """none | backward: the input gradient's collective runs beside the weight gradient"""
    gradient: int
    """bytes of a gradient's element"""
    split: bool = False
    """input and weight gradients run in different passes (I and W slots)"""

    def _size(self, operator: Operator, side: str) -> int:
        return self.workload.tokens * _features(operator, side) * self.workload.element

    def before_forward(self, operator: Operator, at: Emitter) -> None:
        """Sequence parallel: gather the tokens a column-parallel operator reads."""
        if self.workload.sequence_parallel and _enters(operator):
            self._gather(operator, at)

    def after_forward(self, operator: Operator, at: Emitter) -> None:
        """Combine the partial sums of a row-parallel operator, the embedding or the vocabulary-parallel loss."""
        if isinstance(operator, Loss) and operator.split == "vocab":
            for what in ("max", "target logit", "sum"):
                at.collective("all_reduce", TENSOR, 4 * self.workload.tokens, f"loss {what}", blocking=True)
        elif _leaves(operator):
            kind = "reduce_scatter" if self.workload.sequence_parallel else "all_reduce"
            at.collective(kind, TENSOR, self._size(operator, "output"), operator.name, blocking=True)

    def before_input(self, operator: Operator, at: Emitter) -> None:
        """Sequence parallel: gather a row's output gradient; start gathering a column's saved input for its W."""
        if not self.workload.sequence_parallel:
            return
        if _leaves(operator) and operator.split == "row":
            at.collective("all_gather", TENSOR, self._size(operator, "output"), f"{operator.name} grad", blocking=True)
        elif _enters(operator) and _trains(operator) and not self.split:
            handle = at.collective(
                "all_gather", TENSOR, self._size(operator, "input"), f"{operator.name} saved input", blocking=self.overlap == "none"
            )
            self.pending.append(handle)

    def after_input(self, operator: Operator, at: Emitter) -> None:
        """Sum a column's partial input gradients, beside its weight gradient unless overlap is none."""
        if _enters(operator):
            saved = self.pending[:]
            self.pending.clear()
            kind = "reduce_scatter" if self.workload.sequence_parallel else "all_reduce"
            handle = at.collective(kind, TENSOR, self._size(operator, "input"), f"{operator.name} grad", blocking=self.overlap == "none")
            self.pending.append(handle)
            if self.overlap != "none":
                at.wait(*saved)
            if self.split or not _trains(operator):
                at.wait(*self.pending)
                self.pending.clear()

    def before_weight(self, operator: Operator, at: Emitter) -> None:
        """Embedding under sequence parallelism: gather the output gradient before the scatter-add."""
        if self.workload.sequence_parallel and _leaves(operator) and operator.split == "vocab":
            at.collective("all_gather", TENSOR, self._size(operator, "output"), f"{operator.name} grad", blocking=True)
        elif self.workload.sequence_parallel and self.split and _enters(operator):
            at.collective("all_gather", TENSOR, self._size(operator, "input"), f"{operator.name} saved input", blocking=True)

    def after_weight(self, operator: Operator, at: Emitter) -> None:
        """The compute that follows needs the summed input gradient."""
        if _enters(operator):
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

    def _gather(self, operator: Operator, at: Emitter) -> None:
        at.collective("all_gather", TENSOR, self._size(operator, "input"), operator.name, blocking=True)


def _enters(operator: Operator) -> bool:
    """Reads the full hidden state and writes a shard: column-parallel linear or experts, vocabulary-parallel head."""
    return isinstance(operator, Linear | GroupedLinear) and operator.split in ("column", "vocab")


def _trains(operator: Operator) -> bool:
    """Has a weight gradient, beside which its collectives may run."""
    return any(parameter.trainable for parameter in operator.parameters())


def _leaves(operator: Operator) -> bool:
    """Writes partial sums of the full hidden state: row-parallel linear or experts, vocabulary-sharded embedding."""
    if isinstance(operator, Embedding):
        return operator.split == "vocab"
    return isinstance(operator, Linear | GroupedLinear) and operator.split == "row"


def _features(operator: Operator, side: str) -> int:
    if isinstance(operator, Embedding):
        return operator.width
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
    rules = [("heads", model.heads), ("key-value heads", model.kv_heads), ("MLP width", int(str(model.facts.get("mlp", 0) or 0)))]
    for name, count in rules:
        if count % size:
            legal = [d for d in range(1, count + 1) if count % d == 0 and d <= 64]
            nearest = sorted(legal, key=lambda d: abs(d - size))[:2]
            text = f"{count} {name} / tensor size {size} = {count / size:g} is not whole"
            findings.append(Finding(text, path, size, f"use {' or '.join(map(str, sorted(nearest)))}"))
    if parallelism.tensor.sequence_parallel and parallelism.context.size == 1 and training.sequence_length % size:
        tokens = training.sequence_length
        text = f"sequence parallelism shards {tokens} tokens over {size} ranks = {tokens / size:g} is not whole"
        findings.append(Finding(text, "parallel.tensor.sequence_parallel", True, "pad the sequence length"))
    return findings
