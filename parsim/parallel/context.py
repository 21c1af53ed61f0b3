"""Context parallelism: the tokens of a sample are spread over c ranks, and only attention has to look at all of them.

===========  =======================================================  ====================================================
method       forward, per layer and micro-batch                       backward
===========  =======================================================  ====================================================
ring         c - 1 sendrecv of K, V to the next rank, each beside     c sendrecv, each beside a block: K, V in all but the
             the block that the rank computes meanwhile               last, dK, dV in all but the first
all-gather   all-gather of K and of V before the core                 the same again, then reduce-scatter of dK and of dV
ulysses      all-to-all of Q, of K, of V, then of the output          all-to-all of its gradient, then of dQ, dK, dV
torchtitan   one sendrecv or all-gather as above, beside blocks       the same, and c sendrecv of dK, dV in fp32, each beside
                                                                      the next block but the last
chosen keys  all-gather of the indexer's keys and of the core's       reduce-scatter of the gradients of the latter
===========  =======================================================  ====================================================

Ring: Liu et al. 2023 (2310.01889); all-gather: Llama 3 (2407.21783 §3.3.2); ulysses: Jacobs et al. 2023 (2309.14509). The
order of messages and the type of dK, dV on the wire (the activations') are those of Transformer Engine's
``context_parallel.py``. A rank's K, V are 2 b (s/c) k d elements, its Q b (s/c) a d. Everything outside attention works on
s/c tokens; parameters are replicated over the c ranks, so gradients are reduced (and model states sharded) over data x context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from parsim.errors import Finding
from parsim.kernel import Kernel
from parsim.model.attention import AttentionCore
from parsim.model.linear_attention import LinearAttention, ShortConvolution
from parsim.model.model import Model, Operator
from parsim.model.sparse_attention import LightningIndexer, SparseCore
from parsim.model.tape import Step
from parsim.model.torch_ring import WIDE
from parsim.model.workload import Workload
from parsim.parallel.groups import CONTEXT
from parsim.parallel.hooks import Emitter, SilentHooks
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

METHODS = ("ring", "all-gather", "ulysses")
_SIZE, _METHOD = "parallel.context.size", "parallel.context.method"
_TOKENWISE = ("causal-lm", "masked-lm", "token-classification")
"""tasks whose heads look at one token at a time"""


@dataclass
class ContextParallelHooks(SilentHooks):
    """Runs the attention cores of one rank, with the messages that they need."""

    workload: Workload

    def runs(self, operator: Operator) -> bool:
        """Whether the operator needs tokens of other ranks."""
        return isinstance(operator, AttentionCore | LightningIndexer)

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """The kernels of a forward, recompute or input step of an attention core; `allocates` first, `frees` last."""
        core = step.operator
        at.compute("", kind, (), allocates=allocates)
        backward = step.phase == "input"
        if isinstance(core, LightningIndexer):
            self._choose(core, step.kernels, kind, at)
        elif isinstance(core, SparseCore):
            self._chosen(core, step.kernels, kind, at, backward=backward)
        elif not isinstance(core, AttentionCore):
            message = f"{core.name} is no attention core"
            raise TypeError(message)
        elif self.workload.context_method == "ulysses":
            self._by_heads(core, step.kernels, kind, at, backward=backward)
        else:
            self._spread(core, step.kernels, kind, at, backward=backward)
        at.compute("", kind, (), frees=frees)

    def _choose(self, indexer: LightningIndexer, kernels: Sequence[Kernel], kind: str, at: Emitter) -> None:
        """The indexer's keys are gathered as soon as they are made; scores and choice need all of them."""
        *made, scores, choice = kernels
        at.compute("", kind, made)
        self._blocking("all_gather", indexer, at, [("keys", self._gathered_keys(indexer.width))])
        at.compute("", kind, (scores, choice))

    def _chosen(self, core: SparseCore, kernels: Sequence[Kernel], kind: str, at: Emitter, *, backward: bool) -> None:
        """One key of all heads is gathered, with the value in it, and kept for backward."""
        keys = [("keys", self._gathered_keys(core.head_dim))]
        if not backward:
            self._blocking("all_gather", core, at, keys)
        at.compute("", kind, kernels)
        if backward:
            self._blocking("reduce_scatter", core, at, keys)

    def _gathered_keys(self, width: int) -> int:
        return self.workload.context * self.workload.tokens * width * self.workload.element

    def _spread(self, core: AttentionCore, kernels: Sequence[Kernel], kind: str, at: Emitter, *, backward: bool) -> None:
        """Ring or all-gather. What the step has beside the core's own kernels (copies, sums of gradients) stands outside of them."""
        part = core.spread(self.workload)
        others = len(kernels) - len(part.kernels(backward=backward))
        before, after = (kernels[:0], kernels[len(kernels) - others :]) if backward else (kernels[:others], kernels[:0])
        at.compute("", kind, before)
        if self.workload.torch_context:
            self._torch(core, kind, at, backward)
        else:
            (self._ring if self.workload.context_method == "ring" else self._gathered)(core, kind, at, backward)
        at.compute("", kind, after)

    def _ring(self, core: AttentionCore, kind: str, at: Emitter, backward: bool) -> None:
        part, size = core.spread(self.workload), core.sizes(self.workload).key_value
        blocks = part.backward if backward else part.forward
        for step, block in enumerate(blocks):
            last = step == len(blocks) - 1
            passed = (not last) + (backward and step > 0)
            arrival = [at.collective("sendrecv", CONTEXT, passed * size, f"{core.name} ring")] if passed else []
            at.compute("", kind, block.kernels)
            at.wait(*arrival)
            at.compute("", kind, block.then)

    def _torch(self, core: AttentionCore, kind: str, at: Emitter, backward: bool) -> None:
        """Keys and values travel beside the block before theirs, their gradients, in fp32, beside the block behind theirs."""
        part, size, c = core.spread(self.workload), core.sizes(self.workload).key_value, self.workload.context
        sent: list[int] = []
        for step, block in enumerate(part.backward if backward else part.forward):
            arrival: list[int] = []
            if self.workload.context_method == "all-gather" and not step:
                arrival = [at.collective("all_gather", CONTEXT, c * size, f"{core.name} keys and values")]
            elif self.workload.context_method == "ring" and step < c - 1:
                arrival = [at.collective("sendrecv", CONTEXT, size, f"{core.name} ring")]
            at.compute("", kind, block.kernels)
            at.wait(*sent)
            at.compute("", kind, block.then)
            if backward and step < c:
                sent = [at.collective("sendrecv", CONTEXT, WIDE * size // self.workload.element, f"{core.name} gradients")]
            at.wait(*arrival)

    def _gathered(self, core: AttentionCore, kind: str, at: Emitter, backward: bool) -> None:
        part, sizes = core.spread(self.workload), core.sizes(self.workload)
        tensors = (("keys", sizes.key), ("values", sizes.value))
        self._blocking("all_gather", core, at, [(name, self.workload.context * size) for name, size in tensors])
        for block in part.backward if backward else part.forward:
            at.compute("", kind, block.kernels)
        if backward:
            self._blocking("reduce_scatter", core, at, [(name, self.workload.context * size) for name, size in tensors])

    def _by_heads(self, core: AttentionCore, kernels: Sequence[Kernel], kind: str, at: Emitter, *, backward: bool) -> None:
        query, key, value = (width * self.workload.tokens * self.workload.element for width in core.widths(self.workload))
        operands = [("queries", query), ("keys", key), ("values", value)]
        output = [("output", core.sizes(self.workload).output)]
        self._blocking("all_to_all", core, at, output if backward else operands)
        at.compute("", kind, kernels)
        self._blocking("all_to_all", core, at, operands if backward else output)

    def _blocking(self, kind: str, core: Operator, at: Emitter, tensors: Sequence[tuple[str, int]]) -> None:
        for name, size in tensors:
            at.collective(kind, CONTEXT, size, f"{core.name} {name}", blocking=True)


def context_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why the tokens of this model's samples cannot be split this way; with the arithmetic."""
    size, method = parallelism.context.size, parallelism.context.method
    if size == 1:
        return []
    if not (model.sequence and model.heads):
        text = f"{model.name} has no sequences whose tokens {size} ranks could share"
        return [Finding(text, _SIZE, size, "use data or pipeline parallelism")]
    task = str(model.facts.get("task", ""))
    if task not in _TOKENWISE:
        text = f"not supported yet: context parallelism with the task {task}, whose head needs one token of the whole sample"
        return [Finding(text, _SIZE, size, f"use context.size 1, or a model with one of the tasks {', '.join(_TOKENWISE)}")]
    if scan := next((one for one in model.distinct_operators if isinstance(one, LinearAttention)), None):
        text = (
            f"not supported yet: context parallelism with linear attention ({scan.kind}), whose layers pass a state of"
            f" {scan.heads} x {scan.key_dim} x {scan.value_dim} x 4 B = {4 * scan.state / 2**20:.4g} MiB per sample from rank to rank"
        )
        return [Finding(text, _SIZE, size, "use context.size 1: memory and work of these layers grow with the tokens alone")]
    if row := next((one for one in model.distinct_operators if isinstance(one, ShortConvolution)), None):
        text = f"not supported yet: context parallelism with a convolution over {row.taps} tokens, the first of which another rank has"
        return [Finding(text, _SIZE, size, "use context.size 1: memory and work of these layers grow with the tokens alone")]
    findings = _length_findings(model, training.sequence_length, "sequence_length", parallelism)
    if training.mean_sequence_length:
        findings += _length_findings(model, training.mean_sequence_length, "mean_sequence_length", parallelism)
    if method == "ulysses":
        return findings + _head_findings(model, parallelism)
    return findings + _core_findings(model, training, method)


def _length_findings(model: Model, tokens: int, key: str, parallelism: Parallelism) -> list[Finding]:
    size = parallelism.context.size
    causal = bool(model.facts.get("causal", True)) and parallelism.context.method != "ulysses"
    parts = 2 * size if causal else size
    sharded = parallelism.tensor.size if parallelism.tensor.sequence_parallel else 1
    unit = lcm(parts, size * sharded)
    if tokens % unit == 0:
        return []
    factors = ["2"] * causal + [f"context {size}"]
    reason = "; with causal attention every rank holds two chunks, so that all have equal work" if causal else ""
    if tokens % parts == 0:
        factors = [f"context {size}", f"tensor {sharded} (sequence parallel)"]
        parts, reason = size * sharded, ""
    product = f"({' x '.join(factors)}) = {tokens} / {parts}" if len(factors) > 1 else factors[0]
    text = f"{tokens} tokens / {product} = {tokens / parts:.6g} is not whole{reason}"
    nearest = [n * unit for n in (tokens // unit, tokens // unit + 1) if n]
    return [Finding(text, _SIZE, size, f"use {key} {' or '.join(map(str, nearest))}, or another context.size")]


def _head_findings(model: Model, parallelism: Parallelism) -> list[Finding]:
    size, tensor = parallelism.context.size, parallelism.tensor.size
    findings = []
    for name, heads in (("heads", model.heads), *model.key_value_heads.items()):
        if heads % (size * tensor):
            parts = f"{heads} {name} / (context {size} x tensor {tensor}) = {heads} / {size * tensor} = {heads / (size * tensor):.4g}"
            legal = [str(c) for c in range(1, heads // tensor + 1) if heads % (c * tensor) == 0] if heads % tensor == 0 else []
            hint = f"use context.size {' or '.join(legal)}, or method ring or all-gather" if legal else "use method ring or all-gather"
            findings.append(Finding(f"{parts} is not whole: ulysses gives every rank whole heads", _SIZE, size, hint))
    return findings[:1] if len(findings) == 2 and model.heads == model.kv_heads else findings


def _core_findings(model: Model, training: Training, method: str) -> list[Finding]:
    """What ring and all-gather cannot do, for they compute attention in blocks."""
    window, tokens = int(str(model.facts.get("attention_window", 0) or 0)), training.sequence_length
    reasons = []
    if training.attention == "eager":
        reasons.append("eager attention, which stores no log-sum-exp of its rows for merging blocks")
    if 0 < window < tokens:
        reasons.append(f"a sliding window of {window} of {tokens} tokens, whose blocks are uneven")
    chunk = int(str(model.facts.get("attention_chunk", 0) or 0))
    if 0 < chunk < tokens:
        reasons.append(f"attention in chunks of {chunk} of {tokens} tokens, which some ranks have and others not")
    if model.facts.get("position") == "alibi":
        reasons.append("ALiBi, whose bias depends on the position of a block in the sample")
    hint = "use context.method ulysses, where every rank sees whole samples"
    if training.attention == "eager":
        hint = f"use a fused training.attention such as flash2, or {hint[4:]}"
    return [Finding(f"not supported yet: {method} with {why}", _METHOD, method, hint) for why in reasons]
