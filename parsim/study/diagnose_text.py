"""The answer of `parsim diagnose` in words, as a document, and as a scenario file."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from parsim.report.quantities import seconds
from parsim.report.table import Column, Content, Table
from parsim.report.variability_text import left_out
from parsim.scenario.scenario import flow
from parsim.study.diagnose import Diagnosis, TriedCause
from parsim.study.diagnose_causes import Cause, Setting, UncertainParameter
from parsim.study.diagnose_trace import Attribution, Evidence
from parsim.study.diagnose_wires import NcclEvidence
from parsim.units import format_bytes, format_rate, format_time

WIDTH = 118
_NO_SETTING = "No other setting changes it."
NOTHING = 1e-6
"""classes of less than this part of the step are not shown"""
MEMORY = (
    "To decide: torch.cuda.memory_stats (reserved less allocated is fragmentation); what nvidia-smi shows less reserved is context and "
    "communicators."
)
UNDECIDED = (
    "A step time alone cannot distinguish these causes: each gives the same step time. They are ordered by how far each value lies from "
    "those seen in validation, not by probability. To decide, use a trace (--profile) or the command next to a cause."
)


def text(diagnosis: Diagnosis, evidence: Evidence | None = None, wires: NcclEvidence | None = None) -> str:
    """What `parsim diagnose` prints."""
    head = [diagnosis.question.scenario.name, *_another_job(evidence)]
    lines = [*head, *_gap(diagnosis, evidence), *left_out(diagnosis.report.measured), ""]
    if evidence is not None:
        lines += [*_classes(evidence), "", *_attributed(evidence), ""]
    if wires is not None:
        lines += [*_wires(diagnosis, wires), ""]
    if diagnosis.question.step_time is not None and evidence is None:
        lines += [*_alone(diagnosis), ""]
    if diagnosis.question.peak_memory is not None:
        lines += [*_memory(diagnosis), ""]
    return "\n".join(lines).rstrip() + "\n"


def _another_job(evidence: Evidence | None) -> list[str]:
    """What says that the trace is of another job, before anything is concluded from it."""
    if evidence is None or not evidence.another_job:
        return []
    lines = wrapped("! The trace seems to come from a different job than the scenario. If so, the rest of this answer is meaningless:")
    return [*lines, *(line for reason in evidence.another_job for line in wrapped(f"- {reason}", hang="  "))]


def _gap(diagnosis: Diagnosis, evidence: Evidence | None) -> list[str]:
    measured, predicted = diagnosis.question.step_time, diagnosis.report.step_time
    lines = []
    if measured is not None:
        share = diagnosis.gap / predicted
        lines.append(f"measured {seconds(measured)}, predicted {seconds(predicted)}: {signed(diagnosis.gap)} ({share:+.1%})")
        band = diagnosis.report.measured.confidence.step_band(predicted)
        if diagnosis.expected and evidence is None and band is not None:
            known = f"80 % of similar published runs lie between {seconds(band[0])} and {seconds(band[1])}"
            lines += wrapped(
                f"No explanation is needed: {known}. The rest of this answer lists what would explain the remaining difference."
            )
    if diagnosis.question.peak_memory is not None:
        peak = diagnosis.report.peak_memory
        lines.append(f"measured {format_bytes(diagnosis.question.peak_memory)} at the peak, predicted {format_bytes(peak)}")
    return lines


# -- a time alone ------------------------------------------------------------------------------------------------------


def _alone(diagnosis: Diagnosis) -> list[str]:
    explaining = [one for one in diagnosis.explanations if one.explains]
    failing = [one for one in diagnosis.explanations if not one.explains]
    lines = []
    if explaining:
        tried = [(str(number), *_row(one), one.step) for number, one in enumerate(explaining, 1)]
        title = "Possible causes, each sufficient alone, most plausible first"
        lines.append(_table(("", "cause", "now", "would have to be", "plausible", "step"), tried, title))
    else:
        lines.append("No single cause that was tried explains it.")
    if failing:
        tried = [("", *_row(one), one.step) for one in failing]
        lines += ["", _table(("", "cause", "now", "at its bound", "plausible", "step"), tried, "What cannot explain it alone")]
    lines += ["", *wrapped(UNDECIDED), *_commands([one.cause for one in explaining], "To decide")]
    ranges = [(number, one.cause.range) for number, one in enumerate(explaining, 1) if isinstance(one.cause, UncertainParameter)]
    if ranges:
        lines += ["", "Where the plausible values come from"]
        lines += [line for number, span in ranges for line in wrapped(f"{number} {span.basis}: {span.source}", hang="   ")]
    return lines


def _commands(causes: Sequence[Cause], heading: str) -> list[str]:
    """What would decide, with the numbers of the causes that it is for."""
    numbers: dict[str, list[str]] = {}
    for number, cause in enumerate(causes, 1):
        numbers.setdefault(cause.command, []).append(str(number))
    lines = ["", heading] if numbers else []
    return lines + [line for command, those in numbers.items() for line in wrapped(f"{', '.join(those)}: {command}", hang="   ")]


def _row(one: TriedCause) -> tuple[str, str, str, str]:
    cause = one.cause
    if isinstance(cause, Setting):
        return _title(cause), flow(cause.now), flow(cause.value), "another setting"
    value = cause.now if one.value is None else one.value
    inside = "" if one.beyond == 0 else " !" if one.beyond < 2 else " !!"
    return _title(cause), shown(cause, cause.now), shown(cause, value), between(cause) + inside


def _title(cause: Cause) -> str:
    return cause.key if isinstance(cause, Setting) else cause.title


def between(cause: UncertainParameter) -> str:
    """The plausible range of a parameter with its basis."""
    return f"{shown(cause, cause.range.low)} to {shown(cause, cause.range.high)}, {cause.range.basis}"


def shown(cause: UncertainParameter, value: float) -> str:
    """A value with its unit."""
    if cause.unit == "s":
        return format_time(value, digits=3)
    if cause.unit == "B/s":
        return format_rate(value, digits=3)
    return f"{value:.3g}"


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(diagnosis: Diagnosis) -> list[str]:
    measured = diagnosis.question.peak_memory or 0
    title = f"Memory peak with other settings (measured {format_bytes(measured)})"
    rows: list[tuple[Content, ...]] = [
        (*cause.overrides(), flow(cause.now), format_bytes(one.peak), f"{one.peak / measured:.0%}", one.step)
        for one in diagnosis.memory[:8]
        if isinstance(cause := one.cause, Setting)
    ]
    lines = [_table(("setting", "instead of", "peak", "of the measured", "step"), rows, title)] if rows else [title, _NO_SETTING]
    if diagnosis.overhead is not None:
        text_ = (
            f"software.memory.overhead={format_bytes(diagnosis.overhead)} alone would explain it: buffers outside the model, "
            "other processes, fragmentation."
        )
    else:
        text_ = "The run used less memory than predicted, which no overhead can explain; check recomputation, precision and the loss."
    return [
        *lines,
        *wrapped(text_),
        *wrapped(MEMORY),
    ]


# -- a trace -----------------------------------------------------------------------------------------------------------


def _classes(evidence: Evidence) -> list[str]:
    rows = []
    for rank, name, seen, expected, explained in evidence.rows():
        if max(seen, expected, explained) < NOTHING * evidence.predicted.step_time:
            continue
        number = name.startswith("#")
        values = [f"{value:,.0f}" if number else seconds(value) for value in (seen, expected, explained)]
        ratio = f"{seen / expected:.2f}" if expected > NOTHING * evidence.predicted.step_time else "-"
        rows.append((str(rank), f"kernels: {name[1:]}" if number else name, values[0], values[1], ratio, values[2]))
    headings = ("rank", "class", "recorded", "predicted", "ratio", "with the causes")
    table = _table(headings, rows, f"Time by class and step, {evidence.recorded.source}")
    return [table, *(f"note: {note}" for note in evidence.recorded.notes)]


def _attributed(evidence: Evidence) -> list[str]:
    if not evidence.best:
        return wrapped(f"No class stands out: all are within the usual prediction error (chi2 {evidence.before:.1f}). No cause is needed.")
    rows = [(str(number), *_fitted(one), one.step or "-") for number, one in enumerate(evidence.ranking[:6], 1)]
    table = _table(
        ("", "cause", "now", "fitted", "plausible", "step with it alone"), rows, "Causes, by how well they explain the kernel classes"
    )
    both = " and ".join(_named(evidence, name) for name in evidence.best)
    left = f"It leaves chi2 {evidence.after:.1f} of {evidence.before:.1f}."
    lines = [table, *wrapped(f"Best: {both}. {left}")]
    if not evidence.described:
        lines += wrapped(
            "! Much remains unexplained: the scenario may not describe this run. Compare ranks of collectives, kernel counts and the batch."
        )
    lines += _commands([one.cause for one in evidence.ranking[:3]], "To confirm")
    unseen = [cause for cause in evidence.unseen if isinstance(cause, UncertainParameter)]
    if unseen:
        names = ", ".join(dict.fromkeys(cause.title for cause in unseen))
        lines += wrapped(f"Not visible on these ranks, so undetermined: {names}.")
    return lines


def _named(evidence: Evidence, name: str) -> str:
    one = next((entry for entry in evidence.ranking if entry.cause.name == name), None)
    return name if one is None else f"{one.cause.title} {_fitted(one)[2]}"


def _fitted(one: Attribution) -> tuple[str, str, str, str]:
    cause = one.cause
    if isinstance(cause, Setting):
        return _title(cause), flow(cause.now), flow(cause.value), "another setting"
    value = cause.now if one.value is None else one.value
    spread = f" ± {shown(cause, one.error)}" if one.error else ""
    return cause.title, shown(cause, cause.now), f"{shown(cause, value)}{spread}", between(cause)


# -- wires -------------------------------------------------------------------------------------------------------------


def _wires(diagnosis: Diagnosis, wires: NcclEvidence) -> list[str]:
    lines = [f"What {wires.file} says"]
    if (one := wires.wire) is not None:
        verdict = "as assumed: the links are not the cause" if one.as_assumed else f"{one.factor:.2f} of what is assumed"
        lines += wrapped(
            f"{one.kind} on {one.ranks} GPUs of {one.nodes} machine{'s' * (one.nodes > 1)}, {one.sizes} sizes from 64 MiB on: {verdict}"
        )
        if diagnosis.wire_step is not None:
            lines += wrapped(f"With it the step takes {seconds(diagnosis.wire_step)} instead of {seconds(diagnosis.report.step_time)}.")
    if wires.paths is not None:
        used = ", ".join(f"{name} {count}" for name, count in wires.paths.transports)
        channels = f"; {wires.paths.channels} channels" if wires.paths.channels else ""
        lines += wrapped(f"network {wires.paths.network or 'not named'}; connections: {used or 'none named'}{channels}")
    lines += [line for _, remark in wires.remarks for line in wrapped(f"! {remark}", hang="  ")]
    return lines


# -- document -------------------------------------------------------------------------------------------------


def document(diagnosis: Diagnosis, evidence: Evidence | None = None, wires: NcclEvidence | None = None) -> dict[str, Any]:
    """The JSON document."""
    question, report = diagnosis.question, diagnosis.report
    return {
        "parsim": 1,
        "scenario": question.scenario.name,
        "measured": {"step_time_s": question.step_time, "peak_bytes": question.peak_memory},
        "predicted": {"step_time_s": report.step_time, "peak_bytes": report.peak_memory},
        "within_published_band": diagnosis.expected,
        "decided": evidence is not None and bool(evidence.best),
        "note": None if evidence is not None or question.step_time is None else UNDECIDED,
        "causes": [_cause_document(one) for one in diagnosis.explanations],
        "memory": None if question.peak_memory is None else _memory_document(diagnosis),
        "trace": None if evidence is None else _evidence_document(evidence),
        "nccl": None if wires is None else _wires_document(diagnosis, wires),
    }


def _cause_document(one: TriedCause) -> dict[str, Any]:
    return {
        **_common(one.cause),
        "value": _value(one),
        "step_time_s": one.step,
        "peak_bytes": one.peak,
        "explains_alone": one.explains,
        "beyond_plausible": one.beyond,
        "overrides": list(one.arguments),
    }


def _value(one: TriedCause | Attribution) -> Any:
    """The value that explains: a parameter's fitted one, a setting's other one."""
    return one.value if isinstance(one.cause, UncertainParameter) else one.cause.value


def _common(cause: Cause) -> dict[str, Any]:
    row: dict[str, Any] = {"cause": cause.name, "title": cause.title, "now": cause.now, "decide": cause.command}
    if isinstance(cause, UncertainParameter):
        span = cause.range
        row |= {"unit": cause.unit or "1", "plausible": {"low": span.low, "high": span.high, "basis": span.basis, "source": span.source}}
    return row


def _memory_document(diagnosis: Diagnosis) -> dict[str, Any]:
    rows = [_cause_document(one) for one in diagnosis.memory]
    return {"overhead_bytes": diagnosis.overhead, "settings": rows}


def _evidence_document(evidence: Evidence) -> dict[str, Any]:
    classes = [
        {
            "rank": rank,
            "class": name,
            "recorded": seen,
            "predicted": expected,
            "explained": explained,
            "unit": "1" if name[0] == "#" else "s",
        }
        for rank, name, seen, expected, explained in evidence.rows()
    ]
    ranking = [
        {**_common(one.cause), "value": _value(one), "standard_error": one.error, "score": one.score, "beside": list(one.beside),
         "step_time_s": one.step or None, "overrides": list(one.arguments)}
        for one in evidence.ranking
    ]  # fmt: skip
    return {
        "another_job": list(evidence.another_job),
        "source": evidence.recorded.source, "step_time_s": evidence.recorded.step_time, "notes": list(evidence.recorded.notes),
        "chi2": {"before": evidence.before, "after": evidence.after}, "best": list(evidence.best), "ranking": ranking,
        "unseen": [cause.name for cause in evidence.unseen], "classes": classes,
    }  # fmt: skip


def _wires_document(diagnosis: Diagnosis, wires: NcclEvidence) -> dict[str, Any]:
    one, paths = wires.wire, wires.paths
    return {
        "file": wires.file,
        "collective": None if one is None else {
            "kind": one.kind, "ranks": one.ranks, "nodes": one.nodes, "cause": one.cause, "factor": one.factor, "sizes": one.sizes,
            "as_assumed": one.as_assumed, "step_time_s": diagnosis.wire_step,
        },
        "paths": None if paths is None else {
            "network": paths.network or None, "transports": dict(paths.transports), "channels": paths.channels,
            "environment": dict(paths.environment), "version": paths.version or None,
        },
        "remarks": [{"cause": cause, "text": remark} for cause, remark in wires.remarks],
    }  # fmt: skip


# -- words -------------------------------------------------------------------------------------------------------------


def signed(value: float) -> str:
    """A difference of times."""
    return f"{'+' if value >= 0 else '-'}{format_time(abs(value), digits=3)}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[Content]], title: str) -> str:
    """A table of words under a line."""
    return Table([Column(heading, align="left", write=seconds) for heading in headings], rows, title).text(rule=True)


def wrapped(words: str, hang: str = "") -> list[str]:
    """Lines of at most `WIDTH` letters."""
    return fill(words, WIDTH, subsequent_indent=hang, break_on_hyphens=False, break_long_words=False).split("\n")
