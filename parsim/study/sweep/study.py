"""A study that has run: its rows in the order of the range, ranked, each with the reason why it is not the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.scenario.files import shown
from parsim.scenario.provenance import provenance
from parsim.scenario.scenario import flow
from parsim.scenario.shortforms import long_key
from parsim.scenario.trust import code_file, code_named
from parsim.study.axes import short_keys
from parsim.study.search.search import Values, ranked
from parsim.study.sweep.constraint import Constraint
from parsim.study.sweep.rows import Row, SearchObjective, scores, ties_of
from parsim.study.sweep.space import Place, Space, without_seed
from parsim.version import CONTRACT_VERSION, __version__

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


@dataclass(frozen=True)
class RankedRow:
    """A line of the table: a row, or the rows of several seeds."""

    place: Place
    rows: tuple[Row, ...]
    scores: Values
    """mean over the seeds, small is better"""
    layer: int
    """1: on the front of the objectives"""

    @property
    def key(self) -> str:
        """Of its first row."""
        return str(self.rows[0]["key"])

    def mean(self, name: str) -> float | None:
        """A figure, over the seeds."""
        values = [float(row[name]) for row in self.rows if row[name] is not None]
        return math.fsum(values) / len(values) if values else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """The least and the most of a figure, where there are several seeds."""
        values = [float(row[name]) for row in self.rows if row[name] is not None]
        return (min(values), max(values)) if len(values) > 1 else None


class StudyData:
    """Rows of one scenario with keys changed; numbers are SI unless a column says otherwise."""

    def __init__(
        self,
        space: Space,
        where: Sequence[Constraint],
        objectives: Sequence[SearchObjective],
        places: Sequence[Place],
        rows: Mapping[str, Row],
        passed: Mapping[int, str],
        judged: Collection[int] = (),
    ) -> None:
        self.space = space
        self.definition = space.definition
        self.name = space.definition.name
        self.where, self.objectives = tuple(where), tuple(objectives)
        self.places = tuple(places)
        self.passed = dict(passed)
        self.judged = frozenset(judged)
        """those of them whose step was simulated"""
        self._rows = rows
        self.directory: Path | None = None
        """where its files are"""
        self.damaged: tuple[Finding, ...] = ()
        """lines of its rows that were set aside"""
        self.command: str | None = None
        self.interrupted = False
        """whether the user ended it before everything was known"""
        self.before = 0
        """rows that were there before"""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def row(self, place: Place) -> Row | None:
        """What came of a place; None where it was never simulated."""
        if place.refused is not None:
            return place.refused
        return None if place.candidate is None else self._rows.get(place.candidate.key)

    @cached_property
    def rows(self) -> list[Row]:
        """One row per distinct candidate, in the order of the range."""
        return [row for place in self.places if (row := self.row(place)) is not None]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys that take several values."""
        values: dict[str, list[Any]] = {}
        for place in self.places:
            for key, value in place.settings.items():
                if value not in values.setdefault(key, []):
                    values[key].append(value)
        return tuple(key for key, several in values.items() if len(several) > 1)

    @cached_property
    def names(self) -> dict[str, str]:
        """Those keys, and what they are called in the table."""
        return short_keys(self.keys)

    def broken(self, place: Place, row: Row) -> str:
        """The constraint that a row does not keep, and why; empty where it keeps all."""
        known = self.space.known(place.settings, place.facts, row)
        return next((one.why(known) for one in self.where if one.holds(known) is not True), "")

    @cached_property
    def entries(self) -> list[RankedRow]:
        """What keeps all constraints, the best first."""
        groups: dict[str, list[tuple[Place, Row]]] = {}
        for place in self.places:
            if (row := self.row(place)) is not None:
                groups.setdefault(without_seed(place), []).append((place, row))
        kept: list[tuple[Place, tuple[Row, ...], Values]] = []
        steps: list[Values] = []
        for group in groups.values():
            values = [one for _, row in group if (one := scores(self.objectives, row)) is not None]
            if len(values) < len(group) or any(self.broken(place, row) for place, row in group):
                continue
            means = tuple(math.fsum(column) / len(column) for column in zip(*values, strict=True))
            kept.append((group[0][0], tuple(row for _, row in group), means))
            ties = [ties_of(self.objectives, row) for _, row in group]
            steps.append(tuple(math.fsum(column) / len(column) for column in zip(*ties, strict=True)))
        return [RankedRow(*kept[one.place], one.layer) for one in ranked([means for _, _, means in kept], steps)]

    @property
    def best(self) -> RankedRow | None:
        """The first of the table; with several objectives the one on the front that is best in the first."""
        return self.entries[0] if self.entries else None

    @property
    def front(self) -> list[RankedRow]:
        """Those that nothing beats in all objectives."""
        return [entry for entry in self.entries if entry.layer == 1]

    @property
    def shown(self) -> list[RankedRow]:
        """The table: at most `top` rows whose order is that of simulating everything. What was passed over may belong behind a front."""
        partial = len(self.objectives) > 1 and self.passed
        return (self.front if partial else self.entries)[: self.definition.top]

    def label(self, settings: Mapping[str, Any]) -> str:
        """``tp=4 pp=2``: what varies, in short."""
        return " ".join(f"{self.names[key]}={flow(value)}" for key, value in settings.items() if key in self.names) or "the scenario itself"

    def counts(self) -> dict[str, int]:
        """How many points there were and what became of them."""
        statuses = [str(row["status"]) for row in self.rows]
        simulated = [status for status in statuses if status in ("fits", "does not fit")]
        unseen = {place.number for place in self.places if self.row(place) is None}  # one that was simulated may be beaten by its bound too
        return {
            "points": len(self.places),
            "excluded": sum(bool(place.excluded) for place in self.places),
            "equal": sum(bool(place.same_as) for place in self.places),
            "passed": len(unseen & self.passed.keys() - self.judged),
            "judged": len(unseen & self.judged),
            "simulated": len(simulated),
            **{status: statuses.count(status) for status in ("refused", "deadlock", "failed")},
            "kept": sum(len(entry.rows) for entry in self.entries),
        }

    @property
    def left(self) -> int:
        """Points of which nothing is known yet."""
        known = (place.excluded or place.same_as or place.number in self.passed or self.row(place) is not None for place in self.places)
        return len(self.places) - sum(map(bool, known))

    def why(self, place: Place) -> str:
        """Why this point is not the best, or that it is."""
        if place.excluded:
            return f"not simulated: breaks {place.excluded}"
        if place.same_as:
            return f"the same scenario as {place.same_as}"
        if place.number in self.passed:
            return self.passed[place.number]
        row = self.row(place)
        if row is None:
            return "not simulated yet"
        if row["status"] not in ("fits", "does not fit"):
            return f"{row['status']}: {row['reason']}"
        if broken := self.broken(place, row):
            fitting = row["status"] == "fits"
            return f"breaks {broken}" if fitting else f"does not fit: {row['reason']}"
        missing = next((objective.metric for objective in self.objectives if objective.score(row) is None), None)
        if missing is not None:
            return f"{missing.name} is null" + (f"; it needs {missing.needs}" if missing.needs else "")
        return self._behind(row)

    def _behind(self, row: Row) -> str:
        number, entry = next((number, entry) for number, entry in enumerate(self.entries, 1) if any(one is row for one in entry.rows))
        best = self.entries[0]
        if entry is best:
            return "the best"
        if entry.layer == 1 and len(self.objectives) > 1:
            return f"number {number}, on the front: nothing is better in {' and '.join(one.metric.title for one in self.objectives)}"
        metric = self.objectives[0].metric
        mine, its = entry.mean(metric.name), best.mean(metric.name)
        apart = "" if not mine or not its else "as good as the best" if mine == its else f"{100 * (mine / its - 1):+.3g} % against the best"
        return ", ".join(filter(None, (f"number {number}: {metric.title} {metric.shown(mine)}", apart)))

    def why_not(self, which: str = "all") -> list[tuple[str, str, str]]:
        """Key, label and reason of the points that `which` names: all, (the beginning of) a key, or settings such as ``tp=4,pp=2``.

        Raises:
            InputError: it names none.
        """
        chosen = [place for place in self.places if which == "all" or self._named(place, which)]
        if not chosen:
            hint = "a key as results.jsonl has it, settings such as tp=4,pp=2, or all"
            raise InputError(Finding(f"no point of the study is called {which!r}", "--why-not", which, hint))
        return [(self.key(place), self.label(place.settings), self.why(place)) for place in chosen]

    @staticmethod
    def key(place: Place) -> str:
        """The key of a place; empty where there is none because it was excluded."""
        return place.candidate.key if place.candidate is not None else str(place.refused["key"]) if place.refused else place.same_as

    def _named(self, place: Place, which: str) -> bool:
        if "=" not in which:
            return len(which) >= 4 and self.key(place).startswith(which)
        wanted = [word.partition("=") for word in which.replace(",", " ").split()]
        said = {name: flow(place.settings.get(key)) for key, name in self.names.items()}
        said |= {key: flow(value) for key, value in place.settings.items()}
        return all((said.get(name) or said.get(long_key(name))) == value for name, _, value in wanted)

    def to_frame(self) -> pandas.DataFrame:
        """All rows as a pandas table, in the order of the range, with their ``rank`` (missing where a constraint is not kept).

        Raises:
            ScenarioError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ScenarioError(Finding("a table needs pandas", suggestion="pip install pandas; or read results.jsonl")) from None
        ranks = {row["key"]: number for number, entry in enumerate(self.entries, 1) for row in entry.rows}
        frame = pd.DataFrame([{name: value for name, value in row.items() if name != "findings"} for row in self.rows])
        if len(frame):
            frame.insert(0, "rank", pd.array([ranks.get(key) for key in frame["key"]], dtype="Int64"))
        return frame

    def _trusted_code(self) -> Iterator[str]:
        """The Python files that the candidates name, as reports print paths."""
        for place in self.places:
            if place.candidate is not None and place.candidate.trust_code:
                for name in code_named(place.candidate.scenario).values():
                    yield shown(code_file(name) or name)

    def document(self) -> dict[str, Any]:
        """The study as one JSON document."""
        best = self.best
        return {
            "parsim": CONTRACT_VERSION,
            "version": __version__,
            "provenance": {**provenance(self._trusted_code()), "command": self.command},
            "study": self.name,
            "where": [one.text for one in self.where],
            "objectives": [{"word": one.word, "metric": one.metric.name, "unit": one.metric.unit} for one in self.objectives],
            "varied": list(self.keys),
            "counts": self.counts(),
            "best": None if best is None else best.key,
            "ranking": [
                {
                    "rank": number, "key": entry.key, "layer": entry.layer, "label": self.label(entry.place.settings),
                    "overrides": list(entry.place.candidate.overrides) if entry.place.candidate is not None else [],
                    **{one.metric.name: entry.mean(one.metric.name) for one in self.objectives},
                }
                for number, entry in enumerate(self.shown, 1)
            ],
            "results": self.rows,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Study {self.name}: {len(self.rows)} rows>"
