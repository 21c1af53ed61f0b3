"""What a comparison found: variants side by side, what differs between them, and who wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from parsim.errors import Finding
from parsim.report.lanes import TimelineData
from parsim.report.report import Report
from parsim.report.variability import Spread, means, paired, runs_of
from parsim.run import simulate
from parsim.scenario.provenance import provenance
from parsim.scenario.scenario import Scenario
from parsim.study.differences import (
    CATEGORIES,
    ESTIMATES,
    METRICS,
    PARTS,
    TIME_AND_ENERGY,
    Compared,
    Input,
    costs,
    has_band,
    inputs,
    results,
    work,
)
from parsim.study.variants import Status
from parsim.study.winner import Winner, thriftiest, winner
from parsim.version import CONTRACT_VERSION, __version__


@dataclass(frozen=True)
class Run:
    """One variant: its report, or the reason why there is none."""

    label: str
    scenario: Scenario | None
    """None where it could not be loaded"""
    status: Status
    document: Mapping[str, Any] | None
    """the report as JSON has it; None where nothing could be simulated"""
    lanes: TimelineData | None
    """what the timeline figure draws"""
    reason: str = ""
    """why it does not fit, or why there is no report"""
    findings: tuple[Finding, ...] = ()
    """what is wrong with the scenario"""
    kept: Report | None = None
    """the whole report, where it was simulated in this process"""
    slow_gpu: float | None = None
    """speed of the slow GPU whose cost is asked for"""

    @cached_property
    def report(self) -> Report | None:
        """The whole report with its trace; simulated again where it was simulated in another process."""
        if self.kept is not None or self.document is None or self.scenario is None:
            return self.kept
        return simulate(self.scenario, slow_gpu=self.slow_gpu)


class ComparisonData:
    """Variants side by side, in order; numbers are SI (s, B, FLOP/s), texts name their units."""

    def __init__(self, title: str, runs: Sequence[Run], baseline: str | None = None, *, stem: str = "comparison") -> None:
        self.title = title
        self.runs = tuple(runs)
        self.stem = stem
        """what its directory is called after"""
        self.command: str | None = None
        self._asked = baseline

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, label: str | int) -> Run:
        return self.runs[label] if isinstance(label, int) else self.runs[self.labels.index(label)]

    @property
    def labels(self) -> tuple[str, ...]:
        """What the variants are called."""
        return tuple(run.label for run in self.runs)

    @property
    def documents(self) -> tuple[Mapping[str, Any] | None, ...]:
        """Their reports as JSON has them; None where there is none."""
        return tuple(run.document for run in self.runs)

    @property
    def reports(self) -> tuple[tuple[str, Report | str], ...]:
        """Label and report, or label and the reason why there is none."""
        return tuple((run.label, run.report or run.reason) for run in self.runs)

    @property
    def simulated(self) -> tuple[Run, ...]:
        """Those that have a report."""
        return tuple(run for run in self.runs if run.document is not None)

    @property
    def asked(self) -> int:
        """The place of the variant that differences should be relative to."""
        return 0 if self._asked is None else self.labels.index(self._asked)

    @cached_property
    def baseline(self) -> int:
        """The place of the variant that differences are relative to: the one asked for, else the first that has a report."""
        place = self.asked
        if self.runs[place].document is not None:
            return place
        return next((number for number, run in enumerate(self.runs) if run.document is not None), place)

    @cached_property
    def inputs(self) -> list[Input]:
        """What differs in the resolved scenarios."""
        return inputs([run.scenario for run in self.runs], self.documents)

    @cached_property
    def results(self) -> list[Compared]:
        """The figures of the reports."""
        estimates = ESTIMATES if any(map(has_band, self.documents)) else ()
        return results(self.documents, self.baseline, (*estimates, *METRICS, *TIME_AND_ENERGY, *costs(self.documents)))

    @cached_property
    def paired(self) -> tuple[Spread | None, ...]:
        """Step time less the baseline's, run by run with the same draws [s]; None where there are none."""
        varied = [runs_of(document) for document in self.documents]
        base = varied[self.baseline]
        return tuple(None if place == self.baseline else paired(base, other) for place, other in enumerate(varied))

    @cached_property
    def parts(self) -> list[Compared]:
        """Where the step goes, class by class."""
        return results(self.documents, self.baseline, PARTS)

    @cached_property
    def categories(self) -> list[Compared]:
        """What the peak of the fullest device is made of."""
        return results(self.documents, self.baseline, CATEGORIES)

    @cached_property
    def winner(self) -> Winner | None:
        """The fastest that fits, and why; None where nothing could be simulated."""
        return winner(self.labels, self.documents, self.baseline)

    @cached_property
    def times(self) -> tuple[float | None, ...]:
        """What is ranked: estimated times, per step or, where steps do unequal work, per token or sample [s]; None where there is none."""
        each = self.winner is not None and self.winner.criterion != "estimate.step_time_s"
        known = [(one, (work(one)[0] or 1.0) if each else 1.0) if one is not None else None for one in self.documents]
        return tuple(None if one is None else float(one[0]["estimate"]["step_time_s"]) / one[1] for one in known)

    @property
    def verdict(self) -> str:
        """Who wins and why, and who needs least memory."""
        if self.winner is None:
            return "Nothing could be simulated."
        least = thriftiest(self.labels, self.documents)
        return self.winner.why if least is None else f"{self.winner.why}\n{least[1]}"

    def document(self) -> dict[str, Any]:
        """The comparison as one JSON document; numbers per variant in the order of ``variants``."""
        won = self.winner
        code = [file for run in self.runs if run.scenario is not None for file in run.scenario.trusted_code]
        return {
            "parsim": CONTRACT_VERSION,
            "version": __version__,
            "provenance": {**provenance(code), "command": self.command},
            "comparison": self.title,
            "labels": list(self.labels),
            "baseline": self.labels[self.baseline],
            "winner": None if won is None or won.place is None else self.labels[won.place],
            "tie": None if won is None or won.tie is None else self.labels[won.tie],
            "criterion": None if won is None else won.criterion,
            "verdict": self.verdict,
            "explained_by": None
            if won is None or won.against is None
            else {"against": self.labels[won.against], "difference_s": dict(won.parts_s or {})},
            "inputs": [{"key": row.key, "values": list(row.values), "origins": list(row.origins)} for row in self.inputs],
            "results": [
                {
                    "key": row.metric.key, "values": list(row.values), "differences": list(row.differences),
                    "relative": list(row.relative),
                }
                for row in (*self.results, *self.parts, *self.categories)
            ],
            "paired_differences": [
                None if spread is None else {"runs": len(spread.values), **means(spread)} for spread in self.paired
            ],
            "variants": [
                {
                    "label": run.label, "status": run.status, "reason": run.reason or None,
                    "errors": [finding.as_dict() for finding in run.findings], "report": run.document,
                }
                for run in self.runs
            ],
        }  # fmt: skip
