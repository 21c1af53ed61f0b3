"""Batch arithmetic (global_batch = micro_batch x gradient_accumulation x data size, any two given), and how long a training is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsim.errors import Finding, PlanError
from parsim.scenario.training import Tokens, TrainingSection

if TYPE_CHECKING:
    from parsim.model.model import Model
    from parsim.parallel.training import Training
    from parsim.scenario.schema import ScenarioSchema


SUSPICIOUS = 100_000
"""more sequences per step than this are probably meant as tokens"""
ROUNDING = 0.05
"""a batch in tokens may be this far from a legal number of sequences"""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """A batch with all three numbers, and how the missing one came about."""

    global_batch: int
    micro_batch: int
    micro_batches: int
    arithmetic: str
    warnings: tuple[Finding, ...] = ()
    last_micro_batch: int = 0
    """samples of a smaller last micro-batch; 0: all are equal"""
    shares: tuple[int, ...] = ()
    """micro-batches of every replica, where these differ"""


def resolve_batch(training: TrainingSection, data_size: int, *, sequence: bool) -> BatchSizes:
    """The batch on `data_size` replicas; `sequence`: samples have tokens.

    A batch in tokens is a round number ("4M tokens"): the nearest legal number of sequences is taken, with a warning.
    Raises `PlanError` with the arithmetic and the two nearest legal values.
    """
    micro = training.micro_batch
    accumulation = None if training.gradient_accumulation == "auto" else int(training.gradient_accumulation)
    unit = (micro or accumulation or 1) * data_size
    partial = training.partial_micro_batch and micro is not None
    total, note, warnings = samples_of(training, data_size if partial else unit, sequence=sequence)
    if partial and total is not None and micro is not None and total % unit:
        return _partial(total, micro, accumulation, data_size, note, warnings)
    if total is not None and micro is not None:
        expression = f"global_batch {total} / (micro_batch {micro} x data {data_size})"
        count = _divide(total, unit, expression, "training.global_batch", _replicas(total, micro, data_size))
        if accumulation is not None and accumulation != count:
            text = f"micro_batch {micro} x gradient_accumulation {accumulation} x data {data_size} = {micro * accumulation * data_size}"
            hint = f"leave one of the three out; gradient_accumulation {count} fits"
            raise PlanError(Finding(f"{text}, but global_batch is {total}", "training.gradient_accumulation", accumulation, hint))
        text = f"gradient_accumulation = {total} / ({micro} x {data_size}) = {count}"
        return BatchSizes(total, micro, count, note + text, warnings)
    if total is not None and accumulation is not None:
        expression = f"global_batch {total} / (gradient_accumulation {accumulation} x data {data_size})"
        size = _divide(total, unit, expression, "training.global_batch")
        text = f"micro_batch = {total} / ({accumulation} x {data_size}) = {size}"
        return BatchSizes(total, size, accumulation, note + text, warnings)
    if micro is not None and accumulation is not None:
        product = micro * accumulation * data_size
        return BatchSizes(product, micro, accumulation, f"global_batch = {micro} x {accumulation} x {data_size} = {product}", warnings)
    given = [
        key
        for key, value in (("global_batch", total), ("micro_batch", micro), ("gradient_accumulation", accumulation))
        if value is not None
    ]
    only = f"only {given[0]} is given" if given else "none is given"
    text = f"two of global_batch, micro_batch and gradient_accumulation are needed ({only})"
    missing = "global_batch: 32" if given == ["micro_batch"] else "micro_batch: 1"
    raise PlanError(Finding(text, "training", None, f"add for example {missing}"))


def _partial(total: int, micro: int, accumulation: int | None, data_size: int, note: str, warnings: tuple[Finding, ...]) -> BatchSizes:
    """A batch whose last micro-batch is smaller: every replica has global_batch / data samples, micro_batch of them at a time."""
    each = _divide(total, data_size, f"global_batch {total} / data {data_size}", "training.global_batch")
    count, rest = divmod(each, micro)
    if accumulation not in (None, count + 1):
        text = f"{each} samples per replica in micro-batches of {micro} are {count} whole ones and one of {rest}"
        raise PlanError(Finding(text, "training.gradient_accumulation", accumulation, f"leave it out, or write {count + 1}"))
    text = f"gradient_accumulation = {total} / {data_size} = {each} samples per replica = {count} x {micro} + {rest}: {count + 1}"
    return BatchSizes(total, micro, count + 1, note + text, warnings, rest)


def samples_of(training: TrainingSection, unit: int, *, sequence: bool) -> tuple[int | None, str, tuple[Finding, ...]]:
    """The global batch in samples, how it follows from tokens, and what is odd about it."""
    wanted, length, path = training.global_batch, training.sequence_length, "training.global_batch"
    if not isinstance(wanted, Tokens):
        if not sequence or wanted is None or wanted <= SUSPICIOUS:
            return wanted, "", ()
        text = f"global_batch is {wanted:,} sequences per step: are these tokens?"
        return wanted, "", (Finding(text, path, wanted, f'write "{wanted} tokens"'),)
    if length is None:
        hint = "add sequence_length, or write a number of samples"
        raise PlanError(Finding(f"{wanted.count} tokens are a batch only with a sequence_length", path, f"{wanted.count} tokens", hint))
    exact = wanted.count / length
    samples = max(1, round(exact / unit)) * unit
    arithmetic = f"{wanted.count} tokens / {length} tokens per sequence = {exact:.10g} sequences"
    if samples == exact:
        return samples, f"{arithmetic}; ", ()
    if abs(samples / exact - 1) > ROUNDING:
        low = max(1, int(exact // unit)) * unit
        hint = f'use "{low * length} tokens" or "{(low + unit) * length} tokens"'
        raise PlanError(Finding(f"{arithmetic}, not a multiple of {unit}", path, f"{wanted.count} tokens", hint))
    text = f"{arithmetic}; the nearest multiple of {unit} is used: {samples} sequences = {samples * length} tokens"
    return samples, f"{arithmetic}, rounded to {samples}; ", (Finding(text, path, f"{wanted.count} tokens"),)


def _replicas(total: int, micro: int, data_size: int) -> str:
    """The numbers of replicas nearest to `data_size` among which the batch can be divided."""
    if total % micro:
        return ""
    whole = total // micro
    below = next((count for count in range(min(data_size, whole + 1) - 1, 0, -1) if whole % count == 0), 0)
    above = next((count for count in range(data_size + 1, min(whole, 2 * data_size) + 1) if whole % count == 0), 0)
    return f", or data {' or '.join(str(count) for count in (below, above) if count)}"


def _divide(total: int, unit: int, expression: str, path: str, otherwise: str = "") -> int:
    count, rest = divmod(total, unit)
    if rest == 0:
        return count
    legal = (count * unit, (count + 1) * unit) if count else (unit, 2 * unit)
    text = f"{expression} = {total} / {unit} = {total / unit:.4g} is not whole"
    raise PlanError(Finding(text, path, total, f"use {legal[0]} or {legal[1]}{otherwise}"))


def counting_findings(settings: ScenarioSchema, model: Model) -> list[Finding]:
    """What the report is to count must be there to be counted, and once."""
    from parsim.model.flops import CONVENTIONS, COUNTED

    findings = []
    convention, training = settings.report.flop_convention, settings.training
    if convention != "palm" and not CONVENTIONS[convention].applies(model):
        text = f"{CONVENTIONS[convention].meaning} does not describe {model.name}"
        hint = "use palm or exact" if model.sequence else "use exact"
        findings.append(Finding(text, "report.flop_convention", convention, hint))
    elif training.finetune is not None and convention not in COUNTED:
        text = f"{CONVENTIONS[convention].meaning} counts full training, and a part of {model.name} is frozen"
        findings.append(Finding(text, "report.flop_convention", convention, f"use {' or '.join(COUNTED)}"))
    if training.tokens is not None and not model.sequence:
        hint = "leave it out; the time follows from samples_per_s"
        findings.append(Finding(f"{model.name} has samples without tokens", "training.tokens", training.tokens, hint))
    if training.tokens is not None and training.examples is not None:
        text = f"the training is {training.examples:,} examples long; tokens would set its length a second time"
        findings.append(Finding(text, "training.tokens", training.tokens, "leave out tokens, or examples and epochs"))
    return findings


def steps_to_train(settings: ScenarioSchema, training: Training) -> int | None:
    """Optimizer steps of the whole training, where the scenario counts examples."""
    section = settings.training
    if section.examples is None:
        return None
    return math.ceil(section.examples * (1.0 if section.epochs is None else section.epochs) / training.samples)
