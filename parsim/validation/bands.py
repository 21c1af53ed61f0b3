"""Whether the bands of reports hold: every published run against the band that the other families give it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from parsim.report.table import Column, Table
from parsim.scenario.confidence import SHARE, KnownRun, band
from parsim.validation.score import percent


@dataclass(frozen=True, slots=True)
class BandScore:
    """How the bands of one source, or of all, held."""

    source: str
    rows: int
    inside: float
    """share of the rows whose measurement lay in its band"""
    half_width: float
    """median of half the band's width, as a share of the prediction"""
    interval_score: float
    """mean of the width plus 2/(1 - SHARE) times the way by which the measurement missed it (Gneiting and Raftery 2007), in log"""


def band_scores(runs: Sequence[KnownRun]) -> list[BandScore]:
    """By source, then ``all`` with every family counting the same; each run's band comes from runs of other families alone."""
    found: dict[str, list[tuple[bool, float, float]]] = {}
    families: dict[str, str] = {}
    timed = [run for run in runs if run.step_error is not None]
    for run in timed:
        others = [other for other in timed if other.family != run.family]
        errors = [other.step_error or 0.0 for other in others]
        limits = band(run.features, others, errors, errors)
        if limits is None or run.step_error is None:
            continue
        truth, low, high = -math.log1p(run.step_error), math.log(limits.low), math.log(limits.high)
        missed = max(low - truth, truth - high, 0.0)
        row = (missed == 0.0, (limits.high - limits.low) / 2, high - low + 2 / (1 - SHARE) * missed)
        found.setdefault(run.source, []).append(row)
        families[run.source] = run.family
    scores = [_score(source, rows) for source, rows in found.items()]
    grouped: dict[str, list[tuple[bool, float, float]]] = {}
    for source, rows in found.items():
        grouped.setdefault(families[source], []).extend(rows)
    if scores:
        each = [_score(family, rows) for family, rows in grouped.items()]
        widths = [row[1] for rows in found.values() for row in rows]
        scores.append(
            BandScore("all", len(widths), fmean(one.inside for one in each), median(widths), fmean(one.interval_score for one in each))
        )
    return scores


def _score(source: str, rows: Sequence[tuple[bool, float, float]]) -> BandScore:
    inside, widths, scores = zip(*rows, strict=True)
    return BandScore(source, len(rows), fmean(inside), median(widths), fmean(scores))


def table(scores: Sequence[BandScore]) -> Table:
    """A row per source; the last is of all, families counting the same."""
    columns = [
        Column("source", align="left"), Column("rows", key="rows"), Column("inside", unit="%", write=percent, key="inside"),
        Column("half width", unit="%", write=percent, key="half_width"),
        Column("interval score", write=lambda score: f"{score:.2f}", key="interval_score"),
    ]  # fmt: skip
    rows = [(one.source, one.rows, one.inside, one.half_width, one.interval_score) for one in scores]
    return Table(columns, rows, f"Bands that should hold {100 * SHARE:.0f} % of runs, each from the other families alone")
