"""Closed forms of the literature for the schedules of the laboratory, where their conditions hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim import theory
from parsim.study.schedule_inputs import LabSchedule, PassTimes

_GPIPE = "Huang et al. 2019, arXiv 1811.06965"
_MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473"
_PIPEDREAM = "Narayanan et al., PipeDream, SOSP 2019"
_ZERO_BUBBLE = "Qi et al. 2023, arXiv 2401.10241"


@dataclass(frozen=True)
class ClosedForm:
    """What a paper's formula says; values in the unit of the times, None where it says nothing."""

    citation: str
    makespan: float | None = None
    makespan_formula: str = ""
    period: float | None = None
    period_formula: str = ""
    bubble_formula: str = ""
    """share of a rank's time, of the makespan where there is one, else of the period"""
    bubble: float | None = None
    over_ideal_formula: str = ""
    """bubble over the time in which slots run"""
    over_ideal: float | None = None


def closed_form(entry: LabSchedule, times: PassTimes) -> ClosedForm | None:
    """The formula for this schedule; None where the literature has none or its conditions do not hold.

    All hold for equal stages with messages that hold up no compute; those of interleaved and of the zero-bubble schedules for
    free messages only, and the latter for tF >= tW, tI >= tW and enough micro-batches.
    """
    communication = set(times.communication)
    if not times.equal or len(communication) != 1 or not times.overlap:
        return None
    factor, c = times.factors[0], times.communication[0]
    f, i, w = (values[0] * factor for values in (times.forward, times.inputs, times.weights))
    p, m, v = entry.ranks, entry.micro_batches, entry.virtual
    if not f + i + w:
        return None
    match entry.name:
        case "naive" | "gpipe" | "1f1b" | "interleaved" | "pipedream":
            return _whole(entry.name, (p, m, v), (f, i + w, c))
        case "zb-h1" | "zb-h2" | "zb-v" if not c and f >= w and i >= w:
            return _split(entry.name, (p, m), (f, i, w))
    return None


def _whole(name: str, sizes: tuple[int, int, int], times: tuple[float, float, float]) -> ClosedForm | None:
    """Schedules with one backward pass."""
    p, m, v = sizes
    f, b, c = times
    latency = bool(c)
    match name:
        case "naive":
            makespan, formula = theory.naive_makespan(p, m, f, b, c), "m (p (F + B) + 2 (p - 1) c)"
            bubble, ratio, source = "(p - 1)/p", "p - 1", f"{_GPIPE}, fig. 2b"
        case "gpipe":
            makespan, formula = theory.gpipe_makespan(p, m, f, b, c), "(m + p - 1)(F + B) + 2 (p - 1) c"
            bubble, ratio, source = "(p - 1)/(m + p - 1)", "(p - 1)/m", f"{_GPIPE}, section 2.3"
        case "interleaved":
            if latency:
                return None
            makespan, formula = theory.interleaved_makespan(p, m, v, f, b), "(m + (p - 1)/v)(F + B)"
            bubble, ratio, source = "(p - 1)/(v m + p - 1)", "(p - 1)/(v m)", f"{_MEGATRON}, section 2.2.2"
        case _:
            makespan = theory.one_f_one_b_makespan(p, m, f, b, c)
            formula = "(m + p - 1)(F + B)" + " + 2 c (p - 1 + floor((m - 1)(p - 1)/p))" * latency
            bubble, ratio = "(p - 1)/(m + p - 1)", "(p - 1)/m"
            source = f"{_MEGATRON}, section 2.2.1" + "; its communication term derived in parsim" * latency
    work = m * (f + b)
    if latency:
        bubble, ratio = "1 - m (F + B)/makespan", "makespan/(m (F + B)) - 1"
    form = ClosedForm(
        source,
        makespan,
        formula,
        bubble_formula=bubble,
        bubble=1 - work / makespan,
        over_ideal_formula=ratio,
        over_ideal=makespan / work - 1,
    )
    if name != "pipedream":
        return form
    steady = m * theory.one_f_one_b_period(p, f, b, c)
    return replace(form, citation=_PIPEDREAM, period=steady, period_formula="m (F + B" + " + 2 (p - 1) c/p" * latency + ")")


def _split(name: str, sizes: tuple[int, int], times: tuple[float, float, float]) -> ClosedForm | None:
    """Schedules with I and W."""
    p, m = sizes
    f, i, w = times
    work = m * (f + i + w)
    if name == "zb-h1" and m >= p:
        makespan = theory.zb_h1_makespan(p, m, f, i, w)
        formula = "m (F + I + W) + (p - 1)(F + I - W)"
        return ClosedForm(_ZERO_BUBBLE, makespan, formula, bubble_formula="1 - m (F + I + W)/makespan", bubble=1 - work / makespan)
    if name == "zb-h2" and m >= 2 * p - 1:
        span = theory.zb_h2_span(p, m, f, i, w)
        formula = "m (F + I + W) + (p - 1) max(0, F + I - 2W)"
        return ClosedForm(
            _ZERO_BUBBLE, period=span, period_formula=formula, bubble_formula="1 - m (F + I + W)/period", bubble=1 - work / span
        )
    if name == "zb-v" and m >= 2 * p - 1 and f == i == w:
        return ClosedForm(f"{_ZERO_BUBBLE}, section 6", period=work, period_formula="m (F + I + W)", bubble_formula="0", bubble=0.0)
    return None
