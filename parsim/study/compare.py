"""compare(): several scenarios side by side, what differs between them, and who wins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parsim.errors import DeadlockError, Finding, ParsimError, ScenarioError
from parsim.report.lanes import TimelineData, timeline_data
from parsim.report.report import Report
from parsim.report.selection import choose
from parsim.scenario import files
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.values import did_you_mean
from parsim.study.compare_text import text
from parsim.study.compare_variants import variants
from parsim.study.comparison import ComparisonData, Run
from parsim.study.variants import Outcome, Source, outcomes, whole

if TYPE_CHECKING:
    from parsim.report.plots.figure import Drawing

_LANES = 24
"""rows of ranks in the figure of all timelines"""
_FEWEST, _MOST = 1, 8
"""rows of one variant"""
_NOT_GIVEN = -1
"""processes: nobody wrote the former name"""
Watch = Callable[[Iterable[Run], int], Iterable[Run]]


class Comparison(ComparisonData):
    """Variants side by side, in order, which print, draw and write themselves; numbers are SI (s, B, FLOP/s), texts name their units."""

    def figure(self, name: str = "breakdown", *, width: float = 7.0) -> Drawing:
        """One of the figures, `width` inches wide: breakdown | memory | timelines | collectives | pareto.

        Raises:
            InputError: there is no figure of that name, or nothing that it could show.
        """
        from parsim.study.compare_files import figure

        return figure(self, name, width)

    def write(self, directory: str | Path, formats: Iterable[str] = ("svg",), *, width: float = 7.0) -> list[Path]:
        """Write comparison.json, comparison.csv, comparison.md and the figures in `formats` (svg, png, pdf; none: no figures).

        Raises:
            InputError: unknown format, or the disk refuses a file; then none is written.
        """
        from parsim.study.compare_files import write

        return write(self, directory, formats, width)

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        return f"<Comparison {self.title}: {', '.join(self.labels)}>"

    def _repr_html_(self) -> str:
        from parsim.study.compare_files import html

        return html(self)


def compare(  # noqa: PLR0913 - one keyword per option of the command, and who listens
    *sources: Source,
    vary: Mapping[str, Sequence[Any]] | None = None,
    labels: Sequence[str] = (),
    named: Sequence[str] = (),
    baseline: str | None = None,
    workers: int | None = 1,
    watch: Watch | None = None,
    trust_code: bool = False,
    slow_gpu: float | None = None,
    jobs: int | None = _NOT_GIVEN,
) -> Comparison:
    """Simulate scenarios and put them side by side.

    `sources` are scenarios (names, paths, NAME+OVERRIDE, mappings, `Scenario` objects), comparison files, and
    ``key=value`` texts that win over all of them; a text with several values (``parallel.data.strategy=ddp,zero1``)
    multiplies the variants, as does `vary`: {key: [values]}. `labels` replace the labels, `named` overrides hold for
    every file, `baseline` is the label that differences are relative to (default: the first). `workers` processes simulate
    (None: one per CPU; `jobs` is its former name); with one the reports are kept, else `Run.report` simulates again. `watch` is given the
    runs as they come and how many there will be, and passes them on. `trust_code` lets the Python files run that the scenarios name.
    `slow_gpu` asks of each variant what one GPU at this share of its speed costs.

    A variant that cannot be simulated or does not fit stands in the comparison with its reason.

    Raises:
        ScenarioError: fewer than two variants or too many, an unreadable comparison file, an unknown baseline.
    """
    if jobs != _NOT_GIVEN:
        warnings.warn("compare(jobs=...) is now called compare(workers=...)", DeprecationWarning, stacklevel=2)
        workers = jobs
    arguments = [source for source in sources if isinstance(source, str) and is_argument(source)]
    rest = [source for source in sources if not (isinstance(source, str) and is_argument(source))]
    for key, values in (vary or {}).items():
        arguments.append(f"{key}={','.join(flow(value) for value in values)}")
    asked = variants(rest, arguments, named=named, labels=labels)
    against = baseline if baseline is not None else None if labels else asked.baseline
    names = [variant.label for variant in asked.all]
    if against is not None and against not in names:
        hint = did_you_mean(against, names) or f"known: {'; '.join(names)}"
        raise ScenarioError(Finding(f"no variant is called {against!r}", "--baseline", against, hint))
    trusted = [replace(variant, trust_code=trust_code) for variant in asked.all]
    processes = min(workers or cpu_count() or 1, len(trusted))
    look = partial(_look, lanes=max(_FEWEST, min(_MOST, _LANES // len(trusted))), keep=processes == 1, slow_gpu=slow_gpu)
    came = map(partial(_run, slow_gpu=slow_gpu), names, outcomes(trusted, look, jobs=processes, with_scenarios=True))
    return Comparison(asked.title, list(came if watch is None else watch(came, len(names))), against, stem=asked.stem)


def is_argument(word: str) -> bool:
    """Whether a word is ``key=value`` and not the name of a file that is there."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not files.exists(word)


class Simulated(NamedTuple):
    """What a comparison keeps of a simulation."""

    document: dict[str, Any]
    lanes: TimelineData
    report: Report | None
    """where it need not be sent between processes: its trace is too much for that"""


def _look(scenario: Scenario, *, lanes: int, keep: bool, slow_gpu: float | None) -> tuple[Simulated, str]:
    """Simulate a scenario, and keep the timelines of so many ranks."""
    report, lacking = whole(scenario, slow_gpu=slow_gpu)
    kept = Simulated(report.document(), timeline_data(report, choose(report, lanes)), report if keep else None)
    return kept, lacking


def _run(label: str, came: Outcome[Simulated], *, slow_gpu: float | None) -> Run:
    document, lanes, report = came.answer or (None, None, None)
    return Run(label, came.scenario, came.status, document, lanes, came.reason, came.findings, report, slow_gpu)


def nothing_simulated(comparison: Comparison) -> ParsimError | None:
    """The error of a comparison in which every variant failed; None if any has a report."""
    if comparison.simulated:
        return None
    if all(run.status == "deadlock" for run in comparison.runs):
        return DeadlockError("\n\n".join(f"{run.label}\n{run.findings[0]}" for run in comparison.runs))
    if all(run.status == "failed" for run in comparison.runs):
        return ParsimError("\n".join(f"{run.label}: {run.reason}" for run in comparison.runs))
    return ScenarioError(list(dict.fromkeys(_hashable(finding) for run in comparison.runs for finding in run.findings)))


def _hashable(finding: Finding) -> Finding:
    """Findings are told apart by what they say; a value may be a list."""
    return replace(finding, value=finding.value if isinstance(finding.value, (str, int, float, bool, type(None))) else flow(finding.value))
