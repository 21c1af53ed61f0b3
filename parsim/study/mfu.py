"""What share of the peak a measured run reaches: every convention side by side, and published runs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, ScenarioError, attempt
from parsim.model.flops import Recompute
from parsim.study.counting import (
    RECOMPUTE,
    Counted,
    Subject,
    conventions,
    counted_document,
    device_of,
    dtype_for,
    fraction,
    quantity,
    stop,
    subject,
    usual,
)
from parsim.validation.published_utilisation import PublishedUtilisation, nearest

if TYPE_CHECKING:
    from parsim.hardware.device import Device

CLOSE = 0.02
"""relative distance at which a claimed number counts as explained"""
_RATES = ("--tokens-per-s", "--samples-per-s", "--step-time", "--tflops")


@dataclass(frozen=True)
class MfuQuestion:
    """What the user asks; fields are the command line's options."""

    model: str
    gpu: str
    gpus: int = 1
    tokens_per_s: float | None = None
    """of the whole job"""
    samples_per_s: float | None = None
    step_time: str | None = None
    global_batch: str | None = None
    tflops: float | None = None
    """what a log prints per GPU [TFLOP/s]"""
    sequence_length: int | None = None
    recompute: str = "none"
    dtype: str | None = None
    tokens: str | None = None
    """of the whole training"""
    claimed: str | None = None
    """an MFU somebody states of this run"""
    paper_tokens_per_s: float | None = None
    """per GPU, of a published run of the same model"""
    paper_mfu: str | None = None


@dataclass(frozen=True)
class Utilised:
    """What the run reaches under one FLOP convention."""

    counted: Counted
    units_per_s: float
    """tokens (samples) of the whole job per second; under --tflops what they would have to be"""
    gpus: int
    peak: float
    """dense, of one GPU [FLOP/s]"""

    @property
    def model_flops(self) -> float:
        """Model FLOP per second and GPU [FLOP/s]."""
        return self.units_per_s * self.counted.flop / self.gpus

    @property
    def hardware_flops(self) -> float:
        """The same with what recomputation repeats [FLOP/s]."""
        return self.units_per_s * (self.counted.flop + self.counted.repeated) / self.gpus

    @property
    def mfu(self) -> float:
        """Fraction of the dense peak."""
        return self.model_flops / self.peak

    @property
    def hfu(self) -> float:
        """Fraction of the dense peak, recomputation counted."""
        return self.hardware_flops / self.peak


@dataclass(frozen=True)
class MfuAnswer:
    """The utilisation of a run under every convention, beside published runs."""

    question: MfuQuestion
    of: Subject
    device: Device
    dtype: str
    arithmetic: str
    """how the rate follows from what was given"""
    rows: tuple[Utilised, ...]
    sparse_peak: float | None
    """with 2:4 sparsity, which training does not have [FLOP/s]; None: the GPU has no such peak"""
    published: tuple[PublishedUtilisation, ...]
    tokens: float | None
    claimed: float | None
    paper_mfu: float | None

    def row(self, name: str) -> Utilised | None:
        """The run under the convention `name`; None where it does not describe the model."""
        return next((row for row in self.rows if row.counted.name == name), None)

    @property
    def usual(self) -> Utilised:
        """The run under the default convention."""
        return next(row for row in self.rows if row.counted.name == usual(self.of))

    @property
    def time_to_train(self) -> float | None:
        """[s]; None where no tokens are given, or no rate."""
        return None if self.tokens is None else self.tokens / self.usual.units_per_s

    @property
    def share_of_paper(self) -> float | None:
        """Method 1: own over published tokens/s per GPU."""
        paper = self.question.paper_tokens_per_s
        return None if paper is None else self.usual.units_per_s / self.question.gpus / paper

    def paper_utilisation(self, row: Utilised) -> float:
        """MFU of the published run, if it is the same model on the same GPU."""
        return (self.question.paper_tokens_per_s or 0.0) * row.counted.flop / row.peak

    def explanations(self) -> tuple[tuple[float, str, str], ...]:
        """(relative error, what is counted, over which peak) of every way to reach the claimed number, best first."""
        if self.claimed is None:
            return ()
        peaks = [("the dense peak", 1.0)]
        if self.sparse_peak is not None:
            peaks.append(("the peak with sparsity", self.usual.peak / self.sparse_peak))
        ways = []
        for row in self.rows:
            kinds = [("MFU", row.mfu)] + ([("HFU", row.hfu)] if row.counted.repeated else [])
            ways += [
                (abs(value * factor / self.claimed - 1), f"{kind} by {row.counted.name}", peak)
                for kind, value in kinds
                for peak, factor in peaks
            ]
        return tuple(sorted(ways))

    def yours(self, row: PublishedUtilisation) -> float | None:
        """This run counted as a published one counts."""
        if row.hardware:
            own = self.row("megatron")
            return own.hfu if own is not None else None
        own = self.row(row.compared) if row.compared else None
        return own.mfu if own is not None else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about figures that are impossible or look like a mixed-up option."""
        row, texts = self.usual, []
        if row.hfu > 1:
            text = f"{100 * row.hfu:.1f} % of the dense peak is impossible"
            wider = "a narrower type than " + self.dtype if row.hfu <= 2 else "a rate of more GPUs than --gpus"
            texts.append(f"{text}: check the rate, --gpus and --dtype ({wider}?)")
        per_gpu = row.mfu * self.question.gpus
        if self.question.gpus > 1 and row.mfu < 0.05 and 0.1 < per_gpu <= 0.8 and self.question.tokens_per_s is not None:
            texts.append(f"--tokens-per-s is of the whole job; if it is per GPU, the MFU is {100 * per_gpu:.2f} %")
        return tuple(texts)


def mfu(question: MfuQuestion) -> MfuAnswer:
    """Count. Raises `InputError` with everything that is wrong in the question."""
    findings: list[Finding] = []
    of = attempt(lambda: subject(question.model, question.sequence_length), findings)
    device = attempt(lambda: device_of(question.gpu), findings)
    dtype, wrong = dtype_for(device, question.dtype)
    findings += wrong
    if question.recompute not in RECOMPUTE:
        findings.append(Finding("unknown recomputation", "--recompute", question.recompute, f"one of {', '.join(RECOMPUTE)}"))
    given = _given(question, of, findings)
    tokens = quantity(question.tokens, "count", "--tokens", findings)
    if of is not None and not of.model.sequence and question.tokens is not None:
        findings.append(Finding(f"{of.model.name} has samples without tokens", "--tokens", question.tokens, "leave it out"))
    claimed = None if question.claimed is None else fraction(question.claimed, "--claimed", findings)
    paper = None if question.paper_mfu is None else fraction(question.paper_mfu, "--paper-mfu", findings)
    if question.paper_tokens_per_s is None and question.paper_mfu is not None:
        findings.append(Finding("needs --paper-tokens-per-s", "--paper-mfu", question.paper_mfu, "give both, or leave it out"))
    stop(findings)
    if of is None or device is None or given is None:
        raise ScenarioError("nothing to count")  # unreachable: what is None has left a finding
    units_per_s, arithmetic = given
    peak = device.peak[dtype]
    rows = []
    for counted in conventions(of, _recompute(question)):
        rate = units_per_s
        if question.tflops is not None:
            rate = question.tflops * 1e12 * question.gpus / counted.flop
        rows.append(Utilised(counted, rate, question.gpus, peak))
    beside: tuple[PublishedUtilisation, ...] = ()
    if of.model.sequence:
        beside = nearest(_stem(question.gpu), of.parameters, question.gpus, of.sequence, dtype)
    sparse = 2 * peak if "tf32" in device.peak and dtype != "fp32" else None
    return MfuAnswer(question, of, device, dtype, arithmetic, tuple(rows), sparse, beside, tokens, claimed, paper)


def _recompute(question: MfuQuestion) -> Recompute:
    return {"full": "full", "selective": "selective"}.get(question.recompute, "none")  # type: ignore[return-value]


def _stem(gpu: str) -> str:
    from parsim.scenario.files import find

    return find("devices", gpu).stem


def _given(question: MfuQuestion, of: Subject | None, findings: list[Finding]) -> tuple[float, str] | None:
    """Tokens (samples) per second of the whole job, and how they follow; (0, "") under --tflops."""
    values = (question.tokens_per_s, question.samples_per_s, question.step_time, question.tflops)
    stated = [option for option, value in zip(_RATES, values, strict=True) if value is not None]
    if len(stated) != 1:
        text = "how fast is the run?" if not stated else f"{' and '.join(stated)} say the same thing twice"
        findings.append(Finding(text, "", None, f"give one of {', '.join(_RATES)}"))
    if question.step_time is not None and question.global_batch is None:
        findings.append(Finding("needs --global-batch", "--step-time", question.step_time, "samples of one optimizer step, whole job"))
    if question.global_batch is not None and question.step_time is None:
        findings.append(Finding("goes with --step-time", "--global-batch", question.global_batch, "give both, or leave it out"))
    for option, value in ((_RATES[0], question.tokens_per_s), (_RATES[1], question.samples_per_s), (_RATES[3], question.tflops),
                          ("--paper-tokens-per-s", question.paper_tokens_per_s)):  # fmt: skip
        if value is not None and not 0 < value < 1e30:
            findings.append(Finding(f"{value:g} is no rate", option, value, "a number above 0"))
    seconds = quantity(question.step_time, "time", "--step-time", findings)
    samples = _batch(question, of, findings)
    if of is None or len(stated) != 1:
        return None
    if question.tokens_per_s is not None:
        if not of.model.sequence:
            findings.append(Finding(f"{of.model.name} has no tokens", "--tokens-per-s", question.tokens_per_s, "give --samples-per-s"))
        return question.tokens_per_s, f"{question.tokens_per_s:,.10g} tokens/s"
    each = f" x {of.sequence:,} tokens" if of.model.sequence else ""
    if question.samples_per_s is not None:
        rate = question.samples_per_s * of.sequence
        return rate, f"{question.samples_per_s:,.10g} samples/s{each} = {rate:,.10g} {of.unit}s/s"
    if seconds is not None and samples is not None:
        rate = samples * of.sequence / seconds
        return rate, f"{samples:,.10g} samples{each} / {seconds:.10g} s = {rate:,.6f} {of.unit}s/s"
    return 0.0, f"{question.tflops or 0:,.10g} TFLOP/s per GPU, as printed"


def _batch(question: MfuQuestion, of: Subject | None, findings: list[Finding]) -> float | None:
    """Samples per step, also where written in tokens."""
    if question.global_batch is None:
        return None
    from parsim.units import parse_counted

    try:
        count, noun = parse_counted(question.global_batch)
    except ValueError as error:
        message, _, suggestion = str(error).partition("; ")
        findings.append(Finding(message, "--global-batch", question.global_batch, suggestion))
        return None
    if count <= 0 or noun not in ("", "token", "sample", "sequence"):
        text = f"{question.global_batch!r} is not a number of samples above 0"
        findings.append(Finding(text, "--global-batch", question.global_batch, 'for example 1536 or "4M tokens"'))
        return None
    return count / of.sequence if noun == "token" and of is not None else float(count)


def document(answer: MfuAnswer) -> dict[str, Any]:
    """The answer as JSON: FLOP, FLOP/s, s, fractions of the dense peak."""
    question, of, row = answer.question, answer.of, answer.usual
    best = answer.explanations()
    return {
        "parsim": 1,
        "model": of.model.name,
        "parameters": of.parameters,
        "sequence_length": of.sequence if of.model.sequence else None,
        "gpu": answer.device.name,
        "gpus": question.gpus,
        "dtype": answer.dtype,
        "peak_flops": row.peak,
        "sparse_peak_flops": answer.sparse_peak,
        "recompute": question.recompute,
        "unit": of.unit,
        "units_per_s": None if question.tflops is not None else row.units_per_s,
        "convention": row.counted.name,
        "mfu": row.mfu,
        "hfu": row.hfu,
        "conventions": [_row_document(utilised, answer) for utilised in answer.rows],
        "time_to_train_s": answer.time_to_train,
        "gpu_hours": None if answer.time_to_train is None else answer.time_to_train * question.gpus / 3600.0,
        "claimed": None
        if answer.claimed is None
        else {
            "value": answer.claimed,
            "explained": best[0][0] <= CLOSE,
            "ways": [{"error": error, "counted": what, "peak": peak} for error, what, peak in best],
        },
        "share_of_paper": answer.share_of_paper,
        "paper_mfu": answer.paper_mfu,
        "published": [_published_document(answer, published) for published in answer.published],
        "warnings": list(answer.warnings),
    }


def _row_document(row: Utilised, answer: MfuAnswer) -> dict[str, Any]:
    dense = row.peak / answer.sparse_peak if answer.sparse_peak is not None else None
    share = answer.share_of_paper
    return {
        **counted_document(row.counted),
        "units_per_s": row.units_per_s,
        "model_tflops_per_gpu": row.model_flops / 1e12,
        "hardware_tflops_per_gpu": row.hardware_flops / 1e12,
        "mfu": row.mfu,
        "hfu": row.hfu,
        "mfu_of_sparse_peak": row.mfu * dense if dense is not None else None,
        "paper_mfu": answer.paper_utilisation(row) if share is not None else None,
    }


def _published_document(answer: MfuAnswer, row: PublishedUtilisation) -> dict[str, Any]:
    value, how = row.utilisation
    return {
        "source": row.source, "table": row.table, "model": row.model, "parameters": row.parameters, "device": row.device,
        "gpus": row.gpus, "sequence_length": row.sequence, "global_batch": row.global_batch, "precision": row.precision,
        "recompute": row.recompute or None, "tokens_per_s_per_gpu": row.tokens_per_s_per_gpu, "utilisation": value, "from": how,
        "convention": row.compared or None, "yours": answer.yours(row), "note": row.note,
    }  # fmt: skip
