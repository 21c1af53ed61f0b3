"""What theory says about a schedule: closed forms of the literature, where their conditions hold, and the period as an eigenvalue.

A step is a max-plus linear map of the times at which the ranks are free; its eigenvalue, the largest mean weight of a circuit of
ranks, is the period (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, ch. 3; Karp 1978 for the algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from parsim import theory
from parsim.parallel.schedules import ENDLESS
from parsim.program.program import COMPUTE, Program
from parsim.study.schedule_inputs import LabSchedule, PassTimes

_GPIPE = "Huang et al. 2019, arXiv 1811.06965"
_MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473"
_DOUBLE_BUFFERED = "Narayanan et al. 2021, arXiv 2006.09503"
_LOOPED = "Lamy-Poirier 2022, arXiv 2211.05953"
_PIPEDREAM = "Narayanan et al., PipeDream, SOSP 2019"
_DUALPIPE = "DeepSeek-V3, arXiv 2412.19437"
_CHIMERA = "Li and Hoefler 2021, arXiv 2107.06925"
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
    if not times.equal or len(set(times.pairs)) > 1 or len(communication) != 1 or not times.overlap:
        return None
    factor, c = times.factors[0], times.communication[0]
    f, i, w = (values[0] * factor for values in (times.forward, times.inputs, times.weights))
    p, m, v = entry.ranks, entry.micro_batches, entry.virtual
    if not f + i + w:
        return None
    match entry.name:
        case "naive" | "gpipe" | "1f1b" | "interleaved" | "looped-bfs" | "pipedream" | "pipedream-2bw":
            return _whole(entry.name, (p, m, v), (f, i + w, c))
        case "dualpipe" | "dualpipev" | "combined-1f1b" | "chimera" if not c:
            pair = times.pairs[0] * factor if times.pairs else f + i + w
            return _both_ways(entry.name, (p, m, v), (f, i, w), pair)
        case "zb-h1" | "zb-h2" | "zb-v" | "interleaved-zb" if not c and f >= w and i >= w:
            return _split(entry.name, (p, m, v), (f, i, w))
    return None


def _whole(name: str, sizes: tuple[int, int, int], times: tuple[float, float, float]) -> ClosedForm | None:
    """The closed form of a schedule with one backward pass."""
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
        case "looped-bfs":
            if latency:
                return None
            makespan, formula = theory.looped_bfs_makespan(p, m, v, f, b), "((v - 1) max(m, p) + m + p - 1)(F + B)/v"
            bubble, ratio = "1 - m (F + B)/makespan", "makespan/(m (F + B)) - 1"
            source = f"{_LOOPED}; for m < p derived in parsim"
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
    if name not in ENDLESS:
        return form
    steady = m * theory.one_f_one_b_period(p, f, b, c)
    return replace(
        form,
        citation=_PIPEDREAM if name == "pipedream" else _DOUBLE_BUFFERED,
        period=steady,
        period_formula="m (F + B" + " + 2 (p - 1) c/p" * latency + ")",
    )


def _split(name: str, sizes: tuple[int, int, int], times: tuple[float, float, float]) -> ClosedForm | None:
    """The closed form of a schedule whose backward is split into I and W."""
    p, m, v = sizes
    f, i, w = times
    work = m * (f + i + w)
    if name == "zb-h1" and m >= p:
        makespan = theory.zb_h1_makespan(p, m, f, i, w)
        formula = "m (F + I + W) + (p - 1)(F + I - W)"
        return ClosedForm(_ZERO_BUBBLE, makespan, formula, bubble_formula="1 - m (F + I + W)/makespan", bubble=1 - work / makespan)
    if name == "interleaved-zb" and m >= p:
        makespan = theory.interleaved_zb_makespan(p, m, v, f, i, w)
        formula, source = "m (F + I + W) + (p - 1)/v (F + I - W)", f"{_ZERO_BUBBLE}, of ZB-H1; its division by v derived in parsim"
        return ClosedForm(source, makespan, formula, bubble_formula="1 - m (F + I + W)/makespan", bubble=1 - work / makespan)
    if name == "zb-h2" and m >= 2 * p - 1:
        span = theory.zb_h2_span(p, m, f, i, w)
        formula = "m (F + I + W) + (p - 1) max(0, F + I - 2W)"
        return ClosedForm(
            _ZERO_BUBBLE, period=span, period_formula=formula, bubble_formula="1 - m (F + I + W)/period", bubble=1 - work / span
        )
    if name == "zb-v" and m >= 2 * p - 1 and f == i == w:
        return ClosedForm(f"{_ZERO_BUBBLE}, section 6", period=work, period_formula="m (F + I + W)", bubble_formula="0", bubble=0.0)
    return None


def _both_ways(name: str, sizes: tuple[int, int, int], times: tuple[float, float, float], pair: float) -> ClosedForm | None:
    """The closed form of a schedule with passes side by side, or from both ends of the pipeline; `pair`: time of an overlapped slot."""
    p, m, v = sizes
    f, i, w = times
    b = i + w
    if name == "chimera":
        if m % p:
            return None
        makespan = theory.chimera_makespan(p, m, f, b)
        formula = "p min(F, B) + (2p - 2) max(F, B)" if m == p else "(p + 2 (m/p - 1)) min(F, B) + m/p (2p - 2) max(F, B)"
        source = f"{_CHIMERA}; derived in parsim"
    elif not max(f, b) <= pair <= f + b:
        return None
    elif name == "combined-1f1b":
        makespan = theory.combined_makespan(p, m, v, f, b, pair)
        formula, source = "(m + (p - 1)/v)(F + B) - (m - ((v - 1) p + 1)/v)(F + B - FB)", "derived in parsim"
    elif not f == i == w:
        return None
    elif name == "dualpipe":
        makespan = theory.dualpipe_makespan(p, m, f, b, w, pair)
        formula = "m (F + B) + (p/2 - 1)(F + 2B - 3W) - (m - p/2 - 2)(F + B - FB)"
        source = f"{_DUALPIPE}; its last term derived in parsim"
    else:
        makespan = theory.dualpipev_makespan(p, m, f, b, w, pair)
        formula, source = "m (F + B) + (p - 1) F - (m - p/2 - 1)(F + B - FB)", "derived in parsim"
    form = ClosedForm(source, makespan, formula)
    if pair != f + b and name != "chimera":
        return form
    return replace(form, bubble_formula="1 - m (F + B)/makespan", bubble=1 - m * (f + b) / makespan)


def period(program: Program, ranks: int) -> float:
    """Seconds between two steps of `program` in steady state, without a barrier between them.

    A rank begins its next step when the last op of its compute lane has ended; messages take their time. At least the span of any
    rank's own list, at most the makespan.
    """
    return largest_cycle_mean(step_matrix(program, ranks))


def step_matrix(program: Program, ranks: int) -> list[list[float]]:
    """[r][q]: seconds from rank q's being free to the end of rank r's list, -inf where r never waits for q."""
    order = _in_order(program)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index in order:
        for lane in program.ops[index].lanes:
            if lane.name == COMPUTE:
                first.setdefault(lane.rank, index)
                last[lane.rank] = index
    matrix = [[-inf] * ranks for _ in range(ranks)]
    for source in range(ranks):
        if source not in first:
            continue
        start = [-inf] * len(program.ops)
        start[first[source]] = 0.0
        end = [-inf] * len(program.ops)
        for index in order:
            op = program.ops[index]
            end[index] = finish = start[index] + op.duration
            for other in op.after:
                start[other.index] = max(start[other.index], finish)
        for rank, index in last.items():
            matrix[rank][source] = end[index]
    return matrix


def largest_cycle_mean(matrix: Sequence[Sequence[float]]) -> float:
    """Largest mean weight of a circuit, by Karp's algorithm; -inf where there is no circuit.

    >>> largest_cycle_mean([[1.0, 5.0], [4.0, 2.0]])
    4.5
    """
    size = len(matrix)
    rows = [[0.0] * size]
    for _ in range(size):
        before = rows[-1]
        rows.append([max(before[q] + weight for q, weight in enumerate(row)) for row in matrix])
    final = rows[-1]
    reached = [r for r, end in enumerate(final) if end > -inf]
    means = [min((final[r] - row[r]) / (size - k) for k, row in enumerate(rows[:-1]) if row[r] > -inf) for r in reached]
    return max(means, default=-inf)


def _in_order(program: Program) -> list[int]:
    """Ops so that blockers come first, lanes in their order."""
    left = list(program.blockers)
    ready = [op.index for op in program.ops if not left[op.index]]
    for index in ready:
        for other in program.ops[index].after:
            left[other.index] -= 1
            if not left[other.index]:
                ready.append(other.index)
    return ready
