"""Does a model fit for inference, and how fast can it decode at best?

Decoders: weights + key-value cache + the larger of one layer's working set and the logits + workspace, CUDA context and
communicators, per GPU. Everything is a closed form in batch and context length, so the largest that fits is found exactly.
Models that do not generate token by token (encoders, vision, plain layers): weights + the peak of one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.model.activations import ForwardPass, caches, forward_pass, forward_peak
from parsim.model.liveness import tape
from parsim.model.model import OUTER
from parsim.model.per_layer import PerLayerTable
from parsim.model.workload import Workload
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.units import format_bytes

if TYPE_CHECKING:
    from parsim.model.model import Parameter
    from parsim.scenario.built import Built

KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""cache types [B per element]"""
MAXIMA = ("batch", "context-length")
COMMUNICATOR = int(0.3 * 2**30)
"""NCCL buffers of a tensor-parallel group (NVIDIA/nccl issue 964; the same assumption as in training)"""
LOGIT_BYTES = 4
"""fp32 copy of the logits from which the next token is sampled"""
_LARGEST = {"batch": 1_048_576, "context-length": 134_217_728}


@dataclass(frozen=True)
class InferenceQuestion:
    """What the user asks; fields are the command line's options."""

    model: str
    on: str
    batch: int = 1
    """sequences that are decoded together, on one replica"""
    context_length: int | None = None
    """tokens of each, prompt and answer; None: what the model was made for"""
    paged_block: int = 1
    """tokens of a page of the cache (vLLM: 16); 1 = exactly the tokens there are"""
    beams: int = 1
    kv_dtype: str | None = None
    """None: that of the activations"""
    tensor: int = 1
    prefill_tokens: int | None = None
    """tokens of prompts in one forward pass; None: one whole context"""
    precision: str | None = None


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes on one GPU."""

    weights: int
    cache: int
    layer: int
    """working set of one layer, prefill or decode, whichever needs more; without a cache, the peak of one forward pass"""
    logits: int
    workspace: int
    context: int
    communicators: int
    outputs: int = 0
    """what a forward pass returns (part of `layer`); 0 for decoders"""

    @property
    def working_set(self) -> int:
        """The layer's memory is free again when the logits are made."""
        return max(self.layer, self.logits)

    @property
    def total(self) -> int:
        """Bytes that must fit into one GPU."""
        return self.weights + self.cache + self.working_set + self.workspace + self.context + self.communicators


@dataclass(frozen=True)
class Decode:
    """One token for every sequence, limited by HBM alone (no launch, no communication, no arithmetic)."""

    weight_bytes: float
    """weights that are read: of experts those that a batch of this size visits under even routing, of a table of per-layer inputs rows"""
    cache_bytes: int
    bandwidth: float
    """datasheet [B/s]"""

    @property
    def seconds(self) -> float:
        """Floor of a decode step [s]."""
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth


@dataclass(frozen=True)
class LargestThatFits:
    """The largest value that fits; one more does not, or the model allows no more."""

    what: str
    value: int
    bytes: int
    next_bytes: int | None
    limit: str = ""


@dataclass(frozen=True)
class InferenceAnswer:
    """The verdict on one question."""

    question: InferenceQuestion
    """with every None resolved"""
    memory: InferenceMemory
    decode: Decode | None
    """None for models that do not generate token by token"""
    capacity: int
    """of one GPU, as the driver reports it [B]"""
    bytes_per_token: int
    """cache of one token on one GPU [B]"""
    state_bytes: int
    """of one sequence on one GPU, however long it is: linear attention's [B]"""
    replicas: int
    parameters: int
    maximum: LargestThatFits | None = None
    alternatives: tuple[tuple[str, int], ...] = field(default=())
    """(change, bytes per GPU) of changes that fit"""

    @property
    def fits(self) -> bool:
        """Whether the question's own configuration fits."""
        return self.memory.total <= self.capacity

    @property
    def tokens_per_s(self) -> float | None:
        """Upper bound of one replica's generated tokens per second."""
        return None if self.decode is None else self.question.batch / self.decode.seconds


def fit(question: InferenceQuestion, *, maximum: str | None = None) -> InferenceAnswer:
    """The answer, by closed forms.

    `maximum` (batch or context-length) also solves the inverse. Raises `InputError`, with every finding about the options at once.
    """
    decoder = Replica(question)
    asked = decoder.question
    memory = decoder.memory(asked)
    largest = None if maximum is None else decoder.maximum(maximum)
    fits = memory.total <= decoder.capacity
    others = () if fits else tuple(decoder.alternatives())
    return InferenceAnswer(
        asked,
        memory,
        decoder.decode(asked) if decoder.generates else None,
        decoder.capacity,
        decoder.bytes_per_token,
        decoder.state_bytes,
        decoder.gpus // asked.tensor,
        decoder.parameters,
        largest,
        others,
    )


def built_for(question: InferenceQuestion) -> Built:
    """The scenario of a forward pass on one replica."""
    training: dict[str, Any] = {"micro_batch": question.batch, "gradient_accumulation": 1, "backward": False}
    if question.precision is not None:
        training["precision"] = question.precision
    parallel = {"tensor": {"size": question.tensor}, "data": {"strategy": "ddp"}}
    tree = {"model": question.model, "training": training, "parallel": parallel, "cluster": {"topology": question.on}}
    try:
        return build(load({**tree, "training": {**training, "sequence_length": question.context_length or 1}}))
    except InputError as error:
        if not any("without sequences" in finding.message for finding in error.findings):
            raise
        return build(load(tree))


class Replica:
    """One copy of a model on one kind of GPU; what a question's numbers come to."""

    def __init__(self, question: InferenceQuestion) -> None:
        _check(question)
        self.built = built_for(question)
        model = self.built.model
        device = self.built.cluster.device(self.built.gpus[0])
        self.capacity, self.bandwidth = device.visible_memory, device.bandwidth
        self.gpus = len(self.built.gpus)
        self.parameters = sum(p.count for p in _parameters(self.built) if not p.buffer)
        self._tensor = question.tensor
        self._caches = caches(model, question.tensor)
        self._peaks: dict[tuple[int, int], int] = {}
        if model.facts.get("encoder") or model.facts.get("vision"):
            text = f"not supported yet: inference of {model.name}, a model of several stacks"
            raise ScenarioError(Finding(text, "MODEL", model.name, "use a model of one stack"))
        self._layers = tuple(dict.fromkeys(block for block in model.blocks if block.kind not in OUTER))
        self._shows = tuple(block for block in model.blocks if block.kind in OUTER and block.shows)
        if model.heads and model.heads % question.tensor:
            legal = [size for size in range(1, model.heads + 1) if model.heads % size == 0]
            nearest = sorted(legal, key=lambda size: (abs(size - question.tensor), size))[:2]
            text = f"{model.heads} heads / tensor size {question.tensor} = {model.heads / question.tensor:g} is not whole"
            raise ScenarioError(Finding(text, "--tp", question.tensor, f"use {' or '.join(map(str, sorted(nearest)))}"))
        if not self.generates and (findings := _only_decoders(question, model.name, sequence=model.sequence)):
            raise ScenarioError(findings)
        length = question.context_length or model.maximum_sequence or (4096 if model.sequence else 1)
        element = self.built.training.precision.activations
        stated = question.kv_dtype or {4: "fp32", 2: "bf16"}.get(element, "bf16")
        self._kv = KV_BYTES[stated]
        self.question = replace(
            question,
            context_length=length,
            kv_dtype=stated,
            precision=self.built.training.precision.name,
        )
        if problem := self._too_long(length):
            raise ScenarioError(Finding(problem, "--context-length", length, f"use at most {model.maximum_sequence}"))

    @property
    def generates(self) -> bool:
        """Whether the model decodes token by token."""
        return bool(self._caches)

    @property
    def bytes_per_token(self) -> int:
        """Cache of one token on one GPU while every layer keeps it [B]."""
        return self._kv * sum(cache.elements for cache in self._caches)

    @property
    def state_bytes(self) -> int:
        """What one sequence keeps on one GPU however long it is [B]."""
        return self._kv * sum(cache.state for cache in self._caches)

    def _too_long(self, length: int) -> str:
        model = self.built.model
        if model.facts.get("position") == "learned" and length > model.maximum_sequence:
            return f"{length} tokens, but {model.name} has {model.maximum_sequence} learned positions"
        return ""

    def memory(self, question: InferenceQuestion) -> InferenceMemory:
        """Bytes on one GPU."""
        training, runtime, model = self.built.training, self.built.runtime, self.built.model
        weights = sum(p.local_count(question.tensor) * self._element(p) for p in _parameters(self.built))
        fixed = (runtime.workspace, runtime.context + runtime.overhead, COMMUNICATOR if question.tensor > 1 else 0)
        if not self.generates:
            forward = self._pass(question)
            return InferenceMemory(weights, 0, forward.peak, 0, *fixed, forward.outputs)
        sequences, length = question.batch * question.beams, question.context_length or 1
        kv = KV_BYTES[question.kv_dtype or "bf16"]
        kept = sum(cache.elements * cache.tokens(length, question.paged_block) + cache.state for cache in self._caches)
        logits = sequences * model.vocabulary_padded * (training.precision.activations + LOGIT_BYTES)
        layer = max(self._layer(1, question.prefill_tokens or length), self._layer(sequences, 1))
        return InferenceMemory(weights, sequences * kept * kv, layer, logits, *fixed)

    def _element(self, parameter: Parameter) -> int:
        return parameter.element or (4 if parameter.buffer else self.built.training.precision.parameters)

    def _layer(self, batch: int, sequence: int) -> int:
        key = (batch, sequence)
        if key not in self._peaks:
            at = self._workload(batch, sequence)
            made = [tape(block, at) for block in self._shows]  # per-layer inputs: there while the layers run
            shown = sum(one.tensors[name].bytes for one in made for name in one.shown)
            peaks = (*(shown + forward_peak(block, at) for block in self._layers), *(forward_peak(block, at) for block in self._shows))
            self._peaks[key] = max(peaks)
        return self._peaks[key]

    def _workload(self, batch: int, sequence: int) -> Workload:
        training = self.built.training
        return Workload(
            batch=batch,
            sequence=sequence,
            tensor=self._tensor,
            element=training.precision.activations,
            dtype=training.precision.matmul,
            attention=training.attention,
            fused=self.built.runtime.fused,
            backward=False,
        )

    def _pass(self, question: InferenceQuestion) -> ForwardPass:
        """One forward pass of a model without a cache."""
        model, length = self.built.model, question.context_length or 1
        at = self._workload(question.batch, length)
        inputs = prod(int(n) for n in _shape(model.facts.get("input_shape"))) or int(str(model.facts.get("input_elements") or 0))
        given = 8 * question.batch * length if model.vocabulary else question.batch * inputs * at.element
        return forward_pass(model, at, given)

    def decode(self, question: InferenceQuestion) -> Decode:
        """The floor of one decode step with full contexts, on the GPU that has most to read."""
        memory = self.memory(question)
        facts = self.built.model.facts
        experts, top_k = int(str(facts.get("experts") or 0)), int(str(facts.get("top_k") or 0))
        tokens = question.batch * question.beams
        visited = 1 - (1 - top_k / experts) ** tokens if experts else 1.0
        idle = sum(p.local_count(question.tensor) * self._element(p) for p in _parameters(self.built) if p.expert) * (1 - visited)
        tables = [one for block in self._shows for one in block.operators if isinstance(one, PerLayerTable)]
        for weight in (weight for table in tables for weight in table.parameters()):
            rows = weight.local_count(question.tensor) // weight.shape[1]
            idle += max(0, rows - tokens) * weight.shape[1] * self._element(weight)
        return Decode(memory.weights - idle, memory.cache, self.bandwidth)

    # -- the inverse ----------------------------------------------------------------------------------------------

    def maximum(self, what: str) -> LargestThatFits:
        """The largest batch or context length that fits: memory grows with both, so bisection is exact."""
        if what not in MAXIMA:
            raise ScenarioError(Finding(f"cannot maximise {what!r} of inference", "--max", what, f"one of {', '.join(MAXIMA)}"))
        if what == "context-length" and not self.built.model.sequence:
            raise ScenarioError(Finding(f"{self.built.model.name} has samples without sequences", "--max", what, "use --max batch"))
        of = self._of(what)
        if self._need(of(1)) > self.capacity:
            text = f"not even 1 fits: {format_bytes(self._need(of(1)))} of {format_bytes(self.capacity)} per GPU"
            raise ScenarioError(Finding(text, "--max", what, "use more tensor-parallel GPUs, a smaller cache type, or larger GPUs"))
        most = _LARGEST[what]
        if what == "context-length" and self.built.model.facts.get("position") == "learned":
            most = self.built.model.maximum_sequence
        low, high = 1, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._need(of(middle)) <= self.capacity else (low, middle)
        if low == most:
            return LargestThatFits(what, low, self._need(of(low)), None, self._too_long(low + 1) or f"the search ends at {most}")
        return LargestThatFits(what, low, self._need(of(low)), self._need(of(low + 1)))

    def _of(self, what: str) -> Callable[[int], InferenceQuestion]:
        if what == "batch":
            return lambda value: replace(self.question, batch=value)
        return lambda value: replace(self.question, context_length=value)

    def _need(self, question: InferenceQuestion) -> int:
        return self.memory(question).total

    def alternatives(self) -> Iterator[tuple[str, int]]:
        """Changes that fit: smaller types, fewer tokens, more GPUs."""
        asked = self.question
        changes: list[tuple[str, InferenceQuestion]] = []
        if self.generates and self._kv > 1:
            changes.append(("--kv-dtype fp8", replace(asked, kv_dtype="fp8")))
        for what in MAXIMA if self.built.model.sequence else MAXIMA[:1]:
            if self._need(self._of(what)(1)) <= self.capacity:
                most = self.maximum(what).value
                changes.append((f"--{what} {most} (the largest that fits)", self._of(what)(most)))
        for change, question in changes:
            if (need := self._need(question)) <= self.capacity:
                yield change, need
        for tensor in (2, 4, 8):
            if tensor > asked.tensor and tensor <= self.gpus:
                try:
                    other = Replica(replace(asked, tensor=tensor))
                except InputError:
                    continue
                if (need := other.memory(other.question).total) <= other.capacity:
                    yield f"--tp {tensor}", need
                    return


def _shape(value: object) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (0,)


def _only_decoders(question: InferenceQuestion, name: str, *, sequence: bool) -> list[Finding]:
    """Options that mean nothing for a model without a cache."""
    length = question.context_length
    stated: list[tuple[str, bool, int | str | None]] = [
        ("--paged-block", question.paged_block != 1, question.paged_block),
        ("--beams", question.beams != 1, question.beams),
        ("--kv-dtype", question.kv_dtype is not None, question.kv_dtype),
        ("--prefill-tokens", question.prefill_tokens is not None, question.prefill_tokens),
        ("--context-length", length is not None and not sequence, length),
    ]
    text = f"{name} does not generate token by token: it has no key-value cache"
    return [Finding(text, option, value, "leave it out") for option, given, value in stated if given]


def _parameters(built: Built) -> Iterator[Parameter]:
    """Parameters and buffers, tied ones once."""
    return (p for block in built.model.blocks for p in block.parameters() if not p.tied)


def _check(question: InferenceQuestion) -> None:
    """Raise `ScenarioError` with a finding per option that is out of its range."""
    findings = []
    for name in ("batch", "context_length", "paged_block", "beams", "tensor", "prefill_tokens"):
        value = getattr(question, name)
        option = {"tensor": "--tp"}.get(name, f"--{name.replace('_', '-')}")
        if value is not None and value < 1:
            findings.append(Finding(f"{option} must be at least 1, got {value}", option, value))
    if question.kv_dtype is not None and question.kv_dtype not in KV_BYTES:
        findings.append(
            Finding(f"unknown type of the cache {question.kv_dtype!r}", "--kv-dtype", question.kv_dtype, f"one of {', '.join(KV_BYTES)}")
        )
    if findings:
        raise ScenarioError(findings)
