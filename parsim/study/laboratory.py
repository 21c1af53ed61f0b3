"""schedule(): the schedule laboratory from Python, one call and an object that shows itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, PlanError, attempt
from parsim.report.schedule_scene import Labels, Scene
from parsim.report.selection import inches
from parsim.study import schedule_text as words
from parsim.study.schedule import LabResult, simulate
from parsim.study.schedule_inputs import PassTimes, activation_bytes, entries
from parsim.study.schedule_inputs import times as read_times

if TYPE_CHECKING:
    from parsim.report.plots.figure import Drawing

Passes = str | Mapping[str, float | str | Sequence[float | str]]
"""``"F=1,B=2"``, or {"F": 1, "B": 2}, values with units as texts, one value or one per rank"""


class Schedules:
    """Pipeline schedules side by side; a sequence of `LabResult`, whose times are in `unit`. Shows itself in a notebook."""

    def __init__(self, results: Sequence[LabResult], times: PassTimes) -> None:
        self.results = tuple(results)
        self.times = times

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[LabResult]:
        return iter(self.results)

    def __getitem__(self, which: str | int) -> LabResult:
        """By place or by label ("1f1b", "interleaved v=2"). Raises `KeyError` for a label that none has."""
        if isinstance(which, int):
            return self.results[which]
        for result in self.results:
            if result.entry.label == which:
                return result
        raise KeyError(f"no schedule is called {which!r}; there are {', '.join(self.labels)}")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the schedules are called."""
        return tuple(result.entry.label for result in self.results)

    @property
    def unit(self) -> str:
        """Of all times: "s" if they were given with a unit, else "units of time"."""
        return self.times.unit or "units of time"

    def document(self) -> dict[str, Any]:
        """Everything as ``parsim schedule --json`` prints it, with the start and end of every slot."""
        return words.document(self.results, self.times)

    def figure(
        self, *, width: str | float = "7in", title: str = "", labels: Labels = "number", captions: bool = True, first: int = 0
    ) -> Drawing:
        """All schedules under each other on one time axis, as papers draw them.

        `width` is inches or "3.5in", "89mm"; `labels` in the boxes: number | pass | none; `first`: the number of the first rank and
        micro-batch. Raises `InputError` for a width that is none.
        """
        from parsim.report.plots.schedule import schedule_figure

        return schedule_figure(self._scene(inches(width), title, labels, captions=captions, first=first))

    def _scene(self, width: float, title: str = "", labels: Labels = "number", *, captions: bool = True, first: int = 0) -> Scene:
        return words.figure(self.results, self.times, width=width, title=title, labels=labels, captions=captions, first=first)

    def __repr__(self) -> str:
        return words.text(self.results, self.times)

    def _repr_html_(self) -> str:
        unit = words.unit_of(self.results, self.times)
        table = words.table(self.results, unit).notebook()
        return f"<div><p>{escape(words.asked(self.results, self.times, unit))}</p>{table}{self._svg()}</div>"

    def _svg(self) -> str:
        """The figure with ids of its own: many may stand in one notebook."""
        import hashlib

        from parsim.report.notebook import on_paper
        from parsim.report.plots.schedule import save_schedule

        svg = save_schedule(self._scene(9.5), "svg")
        return on_paper(svg, f"parsim-{hashlib.sha256(svg).hexdigest()[:12]}", f"Schedules {', '.join(self.labels)}")


def schedule(  # noqa: PLR0913 - one keyword per option of the command
    *names: str,
    p: int | None = None,
    m: int | None = None,
    v: int | Sequence[int] = 1,
    times: Passes = "F=1,I=1,W=1",
    stage_times: Sequence[float] = (1.0,),
    comm: float | str | Sequence[float | str] = 0.0,
    overlap_sends: bool = True,
    activation: int | str | None = None,
    trust_code: bool = False,
) -> Schedules:
    """Run pipeline schedules without a model or a cluster.

    `names`: naive, gpipe, looped-bfs, 1f1b, interleaved, pipedream, zb-h1, zb-h2, zb-v, v-half, v-min, interleaved-zb,
    combined-1f1b, dualpipev, dualpipe, chimera, pipedream-2bw, or your own table ("mine.csv") or function ("mine.py:rows"). `p` ranks, `m`
    micro-batches, `v` chunks per rank of interleaved, interleaved-zb, looped-bfs and combined-1f1b. `times` of one micro-batch on
    one rank, all its chunks together: numbers, or all with a unit ({"F": "1.2 ms", "B": "2.4 ms"}), FB of a forward beside a backward;
    `stage_times` are factors on them, one per rank. `comm`: a message's time; `overlap_sends` False: messages hold up compute on both
    ranks. `activation`: bytes that a micro-batch keeps on a rank. `trust_code` lets the Python file run that a function is in.

    >>> schedule("1f1b", p=4, m=8, times={"F": 1, "B": 2})[0].makespan
    33.0

    Raises:
        PlanError: times, sizes or names that do not go together; with everything that is wrong.
        DeadlockError: a schedule waits for itself.
    """
    findings: list[Finding] = []
    passes = times if isinstance(times, str) else ",".join(f"{key}={_list(value)}" for key, value in times.items())
    factors = None if tuple(stage_times) == (1.0,) else _list(stage_times)
    seconds = attempt(lambda: read_times(passes, communication=_list(comm), stage_times=factors, overlap=overlap_sends), findings)
    size = attempt(lambda: activation_bytes(activation), findings)
    chunks = (v,) if isinstance(v, int) else tuple(v)
    if names:
        schedules = attempt(lambda: entries(names, p, m, chunks, trust_code=trust_code), findings)
    else:
        findings.append(Finding("no schedule is named", "names", suggestion='for example schedule("1f1b", "gpipe", p=4, m=8)'))
    if findings or schedules is None or seconds is None:
        raise PlanError(map(_as_argument, findings))
    try:
        return Schedules(simulate(schedules, seconds, size), seconds)
    except PlanError as error:
        raise PlanError(map(_as_argument, error.findings)) from None


def _list(values: float | str | Sequence[float | str]) -> str:
    return str(values) if isinstance(values, (str, int, float)) else ":".join(map(str, values))


def _as_argument(finding: Finding) -> Finding:
    """Options of the command line are arguments here: ``-p 4`` is p=4."""

    def spelled(text: str) -> str:
        return re.sub(
            r"(?<![\w-])--?([a-z][a-z-]*)(?: ([0-9]+))?",
            lambda option: option[1].replace("-", "_") + (f"={option[2]}" if option[2] else ""),
            text,
        )

    return replace(finding, message=spelled(finding.message), path=spelled(finding.path), suggestion=spelled(finding.suggestion))
