"""How the step spreads, in words and as tables: the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parsim.report.measured import Measured
from parsim.report.quantities import NONE, percent, seconds, time_unit
from parsim.report.table import Column, Content, Table
from parsim.report.variability import FEWEST_P95, RunStatistics, Spread

CAUSES = {
    "gpus": "GPUs that differ",
    "slow_nodes": "slow nodes",
    "kernel": "jitter of kernels",
    "collective": "jitter of collectives",
    "host": "jitter of launches",
    "step": "jitter of whole steps",
    "pause": "pauses of hosts",
    "hashing": "hashed paths",
}
"""cause -> what it is called; others are called by their own name"""
LEFT_OUT = "Times below are of the undisturbed step, without variability."
_ROWS = (("p5", 0.05), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def step_words(varied: RunStatistics, undisturbed: float) -> str:
    """``13.1 ms in the mean (undisturbed 12.3 ms; 200 steps: p50 13 ms, p95 13.9 ms)``."""
    said = [f"undisturbed {seconds(undisturbed)}"]
    for one in (varied, varied.steps):
        if one is not None:
            known = [f"{name} {seconds(value)}" for name, share in _ROWS[1:3] if (value := one.step_times.quantile(share)) is not None]
            said.append(f"{one.runs:,} {one.over}: {', '.join(known)}")
    return f"{seconds(varied.expected)} in the mean ({'; '.join(said)})"


def left_out(measured: Measured) -> list[str]:
    """A line for answers that look at the undisturbed step, where something varies."""
    once = any(finding.path == "variability.runs" for finding in measured.warnings)
    return [LEFT_OUT] if once or measured.variability is not None else []


def spreads(varied: RunStatistics) -> Table:
    """Mean and quantiles over clusters, and over steps, each with the interval that holds the true one in 95 % of cases."""
    known = [one for one in (varied, varied.steps) if one is not None]
    unit = time_unit(max(one.step_times.ordered[-1] for one in known))
    rows: list[list[Content]] = [[name] for name in ("Undisturbed", "Mean", "sd", *(name for name, _ in _ROWS))]
    columns = [Column("Step time", align="left")]
    for one in known:
        times = one.step_times
        columns += [Column(f"{one.runs:,} {one.over}", unit.name), Column("95 % interval")]
        values = [times.nominal, times.mean, times.deviation, *(times.quantile(share) for _, share in _ROWS)]
        intervals = ["", _ends(times.mean_interval, unit.cell), "", "", "", _ends(times.p95_interval, unit.cell), ""]
        for row, value, interval in zip(rows, values, intervals, strict=True):
            row += [NONE if value is None else unit.cell(value), interval]
    return Table(columns, rows)


def _ends(interval: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    return NONE if interval is None else f"{write(interval[0])} to {write(interval[1])}"


def causes(varied: RunStatistics) -> Table | None:
    """What each cause does; None where there is one only."""
    if len(varied.causes) < 2:
        return None
    nominal = varied.step_times.nominal
    unit = time_unit(max(one.alone_s for one in varied.causes))
    rows: list[list[Content]] = [
        [
            CAUSES.get(one.cause, one.cause), unit.cell(one.alone_s), share(one.alone_s - nominal, nominal), unit.cell(one.removed_s),
            share(-one.exposed_s, nominal),
        ]
        for one in varied.causes
    ]  # fmt: skip
    columns = [Column("Cause", align="left"), Column("alone", unit.name), Column("", "%"), Column("removed", unit.name), Column("", "%")]
    return Table(columns, rows)


def share(part: float, whole: float) -> str:
    """A signed part of the undisturbed step in percent."""
    return NONE if whole <= 0 else f"{100 * part / whole:+.2f}"


def notes(varied: RunStatistics) -> Iterator[str]:
    """What to know of these numbers."""
    if varied.causes:
        words = "Alone: with only this cause; removed: with all other causes; in % of the undisturbed step."
        yield f"{words} Means over the same {varied.cause_runs} runs with the same random numbers."
    if varied.together is not None:
        kinds = "Runs over clusters leave out step-to-step jitter; runs over steps use the undisturbed cluster. The two are never pooled."
        yield f"{kinds} Averaged over clusters and steps, a training takes {seconds(varied.expected)} per step."
    if varied.runs < FEWEST_P95:
        yield f"Fewer than {FEWEST_P95} runs are too few for p5 and p95."
    if len(varied.slowest) > 1:
        named = ", ".join(f"rank{'s' * ('-' in one.ranks or ',' in one.ranks)} {one.ranks} {percent(one.share)}" for one in varied.slowest)
        yield f"Slowest of a run: {named}."
    yield (
        "The spread describes the cluster, not the error of the model. Published runs were predicted without variability, so the estimate"
        " is the mean of the runs, without the correction and the band from published runs."
    )


def difference(spread: Spread, against: float) -> str:
    """``+1.2 % (+1.1 to +1.3)``: a mean of differences run by run, as a share of `against` [s]."""
    if against <= 0:
        return NONE
    ends = spread.mean_interval
    low, high = ("", "") if ends is None else (f"{100 * end / against:+.2f}" for end in ends)
    return f"{100 * spread.mean / against:+.2f} %" + (f" ({low} to {high})" if ends is not None else "")


def beyond(far: list[float], write: Callable[[float], str] = seconds) -> str:
    """``2 more up to 290 ms``: runs that a histogram leaves out; empty for none."""
    return f"{len(far):,} more, {write(far[0])} to {write(far[-1])}" if len(far) > 1 else f"1 more, {write(far[0])}" if far else ""
