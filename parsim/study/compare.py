"""compare(): several scenarios side by side, what differs between them, and who wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parsim.errors import DeadlockError, Finding, InputError, ParsimError, ScenarioError
from parsim.report.lanes import TimelineData, timeline_data
from parsim.report.report import Report
from parsim.report.selection import choose
from parsim.run import simulate
from parsim.scenario import files
from parsim.scenario.provenance import provenance
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.values import did_you_mean
from parsim.study.differences import CATEGORIES, ESTIMATES, METRICS, PARTS, TIME_AND_ENERGY, Input, Result, costs, has_band, inputs, results
from parsim.study.variants import Source, Variant, variants
from parsim.study.winner import Winner, thriftiest, winner
from parsim.version import CONTRACT_VERSION, __version__

if TYPE_CHECKING:
    from parsim.report.plots.figure import Drawing

Status = Literal["fits", "does not fit", "deadlock", "refused"]
_LANES = 24
"""rows of ranks in the figure of all timelines"""
_FEWEST, _MOST = 1, 8
"""rows of one variant"""


@dataclass(frozen=True)
class Run:
    """One variant: its report, or the reason why there is none."""

    label: str
    scenario: Scenario | None
    """None where it could not be loaded"""
    document: Mapping[str, Any] | None
    """the report as JSON has it; None where nothing could be simulated"""
    lanes: TimelineData | None
    """what the timeline figure draws"""
    reason: str = ""
    """why it does not fit, or why there is no report"""
    findings: tuple[Finding, ...] = ()
    """what is wrong with the scenario"""
    stopped: bool = False
    """the program waits for itself"""

    @property
    def status(self) -> Status:
        """In two words."""
        if self.document is None:
            return "deadlock" if self.stopped else "refused"
        return "fits" if self.document["memory"]["fits"] else "does not fit"

    @cached_property
    def report(self) -> Report | None:
        """The whole report with its trace; simulated again where it was simulated in another process."""
        return None if self.document is None or self.scenario is None else simulate(self.scenario)


Watch = Callable[[Iterable[Run], int], Iterable[Run]]


class Comparison:
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
    def results(self) -> list[Result]:
        """The figures of the reports."""
        estimates = ESTIMATES if any(map(has_band, self.documents)) else ()
        return results(self.documents, self.baseline, (*estimates, *METRICS, *TIME_AND_ENERGY, *costs(self.documents)))

    @cached_property
    def parts(self) -> list[Result]:
        """Where the step goes, class by class."""
        return results(self.documents, self.baseline, PARTS)

    @cached_property
    def categories(self) -> list[Result]:
        """What the peak of the fullest device is made of."""
        return results(self.documents, self.baseline, CATEGORIES)

    @cached_property
    def winner(self) -> Winner | None:
        """The fastest that fits, and why; None where nothing could be simulated."""
        return winner(self.labels, self.documents, self.baseline)

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
            "variants": [
                {
                    "label": run.label, "status": run.status, "reason": run.reason or None,
                    "errors": [finding.as_dict() for finding in run.findings], "report": run.document,
                }
                for run in self.runs
            ],
        }  # fmt: skip

    def figure(self, name: str = "breakdown", *, width: float = 7.0) -> Drawing:
        """One of the figures, `width` inches wide: breakdown | memory | timelines | collectives | pareto.

        Raises:
            InputError: there is no figure of that name, or nothing that it could show.
        """
        from parsim.study.compare_figures import figure

        return figure(self, name, width)

    def write(self, directory: str | Path, formats: Iterable[str] = ("svg",), *, width: float = 7.0) -> list[Path]:
        """Write comparison.json, comparison.csv, comparison.md and the figures in `formats` (svg, png, pdf; none: no figures).

        Raises:
            InputError: unknown format, or the disk refuses a file; then none is written.
        """
        from parsim.study.compare_files import write

        return write(self, directory, formats, width)

    def __str__(self) -> str:
        from parsim.study.compare_text import text

        return text(self)

    def __repr__(self) -> str:
        return f"<Comparison {self.title}: {', '.join(self.labels)}>"

    def _repr_html_(self) -> str:
        from parsim.study.compare_html import html

        return html(self)


def compare(
    *sources: Source,
    vary: Mapping[str, Sequence[Any]] | None = None,
    labels: Sequence[str] = (),
    named: Sequence[str] = (),
    baseline: str | None = None,
    jobs: int | None = 1,
    watch: Watch | None = None,
    trust_code: bool = False,
) -> Comparison:
    """Simulate scenarios and put them side by side.

    `sources` are scenarios (names, paths, NAME+OVERRIDE, mappings, `Scenario` objects), comparison files, and
    ``key=value`` texts that win over all of them; a text with several values (``parallel.data.strategy=ddp,zero1``)
    multiplies the variants, as does `vary`: {key: [values]}. `labels` replace the labels, `named` overrides hold for
    every file, `baseline` is the label that differences are relative to (default: the first). `jobs` processes simulate
    (None: one per CPU); with one the reports are kept, else `Run.report` simulates again. `watch` is given the runs as they
    come and how many there will be, and passes them on. `trust_code` lets the Python files run that the scenarios name.

    A variant that cannot be simulated or does not fit stands in the comparison with its reason.

    Raises:
        ScenarioError: fewer than two variants or too many, an unreadable comparison file, an unknown baseline.
    """
    arguments = [source for source in sources if isinstance(source, str) and is_argument(source)]
    rest = [source for source in sources if not (isinstance(source, str) and is_argument(source))]
    for key, values in (vary or {}).items():
        arguments.append(f"{key}={','.join(flow(value) for value in values)}")
    found = variants(rest, arguments, named=named, labels=labels)
    asked = baseline if baseline is not None else None if labels else found.baseline
    names = [variant.label for variant in found.all]
    if asked is not None and asked not in names:
        hint = did_you_mean(asked, names) or f"known: {'; '.join(names)}"
        raise ScenarioError(Finding(f"no variant is called {asked!r}", "--baseline", asked, hint))
    lanes = max(_FEWEST, min(_MOST, _LANES // len(found.all)))
    trusted = [replace(variant, trust_code=trust_code) for variant in found.all]
    return Comparison(found.title, _runs(trusted, lanes, jobs, watch), asked, stem=found.stem)


def is_argument(word: str) -> bool:
    """Whether a word is ``key=value`` and not the name of a file that is there."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not files.exists(word)


def _runs(found: Sequence[Variant], lanes: int, jobs: int | None, watch: Watch | None) -> list[Run]:
    processes = min(jobs or cpu_count() or 1, len(found))
    if processes == 1:
        came: Iterable[Run] = map(partial(run, lanes=lanes), found)
        return list(came if watch is None else watch(came, len(found)))
    with ProcessPoolExecutor(processes) as pool:
        came = pool.map(_far, found, repeat(lanes))
        return list(came if watch is None else watch(came, len(found)))


def _far(variant: Variant, lanes: int) -> Run:
    """The same without its report, whose trace is too much to send home."""
    found = run(variant, lanes)
    found.__dict__.pop("report", None)
    return found


def run(variant: Variant, lanes: int = _MOST) -> Run:
    """Simulate one variant; what is wrong with it becomes its reason. `lanes`: ranks whose timelines are kept."""
    scenario = None
    try:
        scenario = variant.scenario()
        report = simulate(scenario)
    except InputError as error:
        findings = tuple(error.findings if scenario is None else scenario.findings_at(error.findings))
        return Run(variant.label, scenario, None, None, "; ".join(map(_reason, findings)), findings)
    except DeadlockError as error:
        first = next(iter(str(error).splitlines()), "the program waits for itself")
        return Run(variant.label, scenario, None, None, first, (Finding(str(error)),), stopped=True)
    found = Run(
        variant.label, scenario, report.document(), timeline_data(report, choose(report, lanes)), "" if report.fits else report.limiter
    )
    found.__dict__["report"] = report
    return found


def _reason(finding: Finding) -> str:
    """A finding without its place: the table names the variant."""
    return ": ".join(filter(None, (finding.path, finding.message)))


def nothing_simulated(comparison: Comparison) -> ParsimError | None:
    """The error of a comparison in which every variant failed; None if any has a report."""
    if comparison.simulated:
        return None
    if all(run.stopped for run in comparison.runs):
        return DeadlockError("\n\n".join(f"{run.label}\n{run.findings[0]}" for run in comparison.runs))
    return ScenarioError(list(dict.fromkeys(_hashable(finding) for run in comparison.runs for finding in run.findings)))


def _hashable(finding: Finding) -> Finding:
    """Findings are told apart by what they say; a value may be a list."""
    return replace(finding, value=finding.value if isinstance(finding.value, (str, int, float, bool, type(None))) else flow(finding.value))
