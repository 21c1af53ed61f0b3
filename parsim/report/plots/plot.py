"""``report.plot``: every figure of a report by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsim.errors import Finding, InputError
from parsim.report.communication import busiest
from parsim.report.lanes import MOST_RANKS, timeline_data
from parsim.report.selection import FEW_LANES, Window, choose, first_of_stages, inches, named, read_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from parsim.report.lanes import TimelineData
    from parsim.report.metrics import Metrics
    from parsim.report.training_run import TrainingWeeks

PAGE = "7in"
"""width of a figure unless another is given: the text of a page"""


class Plot:
    """Figures of one report, in one style: the same colour means the same thing in each.

    ``width`` is inches, or a length such as "3.5in" or "89mm" (a column of a journal). Every method returns a matplotlib
    Figure, which shows itself in a notebook; its ``savefig("figure.pdf")`` embeds the fonts and gives the same bytes every time.
    All raise `InputError` for a width, a window or a rank that is none.
    """

    def __init__(self, report: Metrics) -> None:
        self._report = report

    def __repr__(self) -> str:
        names = "timeline, memory, breakdown, collectives, links, variability, training, goodput_interval, goodput_size"
        return f"<figures of {self._report.measured.name}: {names}>"

    def timeline(
        self,
        *,
        width: str | float = PAGE,
        window: Window | None = None,
        ranks: Sequence[int] | str | None = None,
        stages: bool = False,
        memory: bool = True,
        title: str | None = None,
    ) -> Figure:
        """The step as lanes, and the memory of the fullest of these ranks beneath.

        `window` is "0.2s:0.5s", "40%:60%" or (begin, end) in seconds; `ranks` such as [0, 8] or "0,8-11", `stages` one rank per
        pipeline stage, else some that stand for the others. `title`: the scenario's name by default, "" for none.
        """
        from dataclasses import replace

        from parsim.report.plots.sheet import timeline_figure

        inch = inches(width)
        data = self.timeline_data(width=inch, window=window, ranks=ranks, stages=stages, memory=memory)
        return timeline_figure(data if title is None else replace(data, title=title), inch)

    def timeline_data(
        self,
        *,
        width: str | float = PAGE,
        window: Window | None = None,
        ranks: Sequence[int] | str | None = None,
        stages: bool = False,
        memory: bool = True,
    ) -> TimelineData:
        """What `timeline` draws: lanes with begins and ends in seconds."""
        report = self._report
        most = FEW_LANES if inches(width) < 9.0 else MOST_RANKS
        chosen = read_ranks(ranks) if isinstance(ranks, str) else ranks
        if chosen is None and stages:
            chosen = first_of_stages(report)
        return timeline_data(report, chosen, window, most=most, memory=memory)

    def memory(self, *, width: str | float = PAGE, rank: int | None = None, title: str | None = None) -> Figure:
        """Memory over the step on `rank` (default: the one with the least left), and at its peak on every class of ranks."""
        from parsim.report.plots.memory import peaks_figure

        report = self._report
        worst = report.worst_device
        shown = None if worst is None else worst.rank
        if rank is not None:
            shown = named(report, [rank])[0].simulated
        return peaks_figure(report, shown, title=report.measured.name if title is None else title, width=inches(width))

    def breakdown(self, *, width: str | float = PAGE, ranks: Sequence[int] | str | None = None, title: str | None = None) -> Figure:
        """Where the step goes on ranks that stand for the others: seconds per class of time."""
        from parsim.report.plots.communication import breakdown_figure

        report, inch = self._report, inches(width)
        chosen = read_ranks(ranks) if isinstance(ranks, str) else ranks
        members = {member: group.rank for group in report.measured.classes for member in group.members}
        shown = named(report, choose(report, FEW_LANES) if chosen is None else chosen)
        rows = [(who.name if inch < 5.0 else who.label, report.breakdowns[members[who.rank]]) for who in shown if who.rank in members]
        return breakdown_figure(rows, inch, title=report.measured.name if title is None else title)

    def collectives(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """The collectives of a step on the rank that ends last: time exposed, and hidden under compute."""
        from parsim.report.plots.communication import collectives_figure

        report = self._report
        name = f"{report.measured.name}: collectives of rank {report.breakdown_rank}"
        return collectives_figure(report.collectives, inches(width), title=name if title is None else title)

    def links(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """How much of what each class of links could carry it carried, the busiest first."""
        from parsim.report.plots.communication import links_figure

        report = self._report
        name = f"{report.measured.name}: links"
        return links_figure(busiest(report.links), inches(width), title=name if title is None else title)

    def variability(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """How the step spreads over its runs, and what each cause does; raises `InputError` where there is one run."""
        from parsim.report.plots.variability import variability_figure

        report = self._report
        if (varied := report.measured.variability) is None:
            raise InputError(Finding("one run does not spread", "variability.runs", 1, "simulate several: variability.runs=200"))
        return variability_figure(varied, report.measured.name if title is None else title, inches(width))

    def workers(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """What each stage of each replica costs alone, as a heat map; raises `InputError` where nothing tells them apart."""
        from parsim.report.plots.workers import workers_figure

        report = self._report
        if (workers := report.workers) is None:
            hint = "name slow ranks (variability.slow), or simulate several runs: variability.profile=typical variability.runs=200"
            raise InputError(Finding("all workers are alike", "variability", None, hint))
        return workers_figure(workers, f"{report.measured.name}: stragglers" if title is None else title, inches(width))

    def training(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """The training over weeks: where its time goes, and a tick for every failure; raises `InputError` without a horizon."""
        from parsim.report.plots.training import training_figure

        return self._over_weeks(training_figure, "training with its failures", width, title)

    def goodput_interval(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """Goodput against the time between checkpoints; raises `InputError` without a horizon."""
        from parsim.report.plots.training import interval_figure

        return self._over_weeks(interval_figure, "goodput against the checkpoint interval", width, title)

    def goodput_size(self, *, width: str | float = PAGE, title: str | None = None) -> Figure:
        """Goodput against the number of GPUs; raises `InputError` without a horizon."""
        from parsim.report.plots.training import size_figure

        return self._over_weeks(size_figure, "goodput against the size of the job", width, title)

    def _over_weeks(self, drawn: Callable[[TrainingWeeks, str, float], Figure], what: str, width: str | float, title: str | None) -> Figure:
        report = self._report
        if (weeks := report.training_run) is None:
            hint = "give the times between failures and a horizon: economics.horizon=30d"
            raise InputError(Finding("no training over weeks was simulated", "economics.horizon", None, hint))
        return drawn(weeks, f"{report.measured.name}: {what}" if title is None else title, inches(width))
