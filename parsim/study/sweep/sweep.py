"""sweep(): many scenarios of one, simulated wherever there is room, kept as they come, ranked."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.provenance import catalogue_sha256
from parsim.scenario.scenario import flow
from parsim.study.search.search import Values
from parsim.study.sweep.choice import BoundedQueue, CandidateQueue, Everything
from parsim.study.sweep.constraint import Constraint, constraint
from parsim.study.sweep.definition import SEED, Source, StudyDefinition
from parsim.study.sweep.prover import Bound, CallersBounds, ProvenBounds, Prover, bounds_help, least_of
from parsim.study.sweep.rows import Row, SearchObjective, StudyJournal, objective, scores
from parsim.study.sweep.space import Place, Space, evaluate_all, without_seed
from parsim.study.sweep.study import StudyData
from parsim.study.sweep.study_file import definition_of
from parsim.study.sweep.text import text, write
from parsim.study.variants import Answered, Runner
from parsim.study.workers import Crew, at_work, crew, stamp
from parsim.version import CONTRACT_VERSION, __version__

Watch = Callable[[str, Iterable[Any], int | None, Callable[[], str]], Iterable[Any]]
"""is given what is being done, the results as they come, how many there will be (None: nobody knows), and a function that says the best
so far; passes the results on"""
Improved = Callable[[Place, Row, str], None]
"""hears of a place, its row, and what it scores in words"""
_ALWAYS = "fits"
"""holds in every study unless a constraint speaks of it"""


FEW = 100
"""points that are bounded within seconds; of more a sample is looked at first"""
_SAMPLE = 24
_TRIED = 3
"""rows of the sample, until one keeps all constraints"""


class SweepInterrupted(KeyboardInterrupt):
    """The user ended a sweep; `study` has what was found until then."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self.study = study


class Study(StudyData):
    """Rows of one scenario with keys changed, which print and write themselves."""

    def write(self, directory: str | Path) -> list[Path]:
        """Write what the table says: best.json, and pareto.svg where there are two objectives. Raises OutputError if the disk says no."""
        return write(self, Path(directory))

    def __str__(self) -> str:
        return text(self)


def sweep(  # noqa: PLR0913 - one keyword per word of a study, and who simulates it
    source: Source,
    *arguments: str,
    axes: Mapping[str, Any] | None = None,
    where: str | Sequence[str] = (),
    minimise: str | Sequence[str] = (),
    maximise: str | Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    named: Sequence[str] = (),
    top: int | None = None,
    out: str | Path | None = None,
    restart: bool = False,
    exhaustive: bool = False,
    workers: int | None = 1,
    executor: Executor | None = None,
    dask: str | None = None,
    bound: Bound | None = None,
    watch: Watch | None = None,
    improved: Improved | None = None,
    trust_code: bool = False,
) -> Study:
    """Simulate a scenario, or what a study file asks, over a range of keys, and rank what comes out.

    `source` is a study file, a scenario (name, path, mapping, `Scenario`) with or without a ``study:`` block, or the name of a shipped
    one. `arguments` are ``key=value`` texts for all candidates; with several values (``parallel.tensor.size=1,2,4``) they are axes, as
    are `axes`: {key: [values]} or the forms of study files. `where` constrains, `minimise` and `maximise` name figures.

    `workers` processes simulate (None: one per CPU; 1: this process), or any `executor`, or the Dask scheduler at address `dask`.
    Rows are appended to results.jsonl in the directory `out` as they come; the same study goes on where it was ended, unless `restart`.
    Candidates are passed over whose lower bound (`bound`, else that of `parsim.study.search`) or simulated step proves that they are not
    among the best `top`, or with several objectives not on their front, unless the study is `exhaustive`. `improved` hears of every row
    that is better than all before. `trust_code` lets the Python files run that the scenarios name, here and on the workers.

    Raises:
        SweepInterrupted: a KeyboardInterrupt that has the study so far.
        ScenarioError: the study or its scenario is wrong, or an objective is null in the rows.
        ParsimError: the workers cannot work.
    """
    for key, values in (axes or {}).items():
        arguments = (*arguments, f"{key}={flow(values) if isinstance(values, Mapping) else ','.join(flow(value) for value in values)}")
    definition = definition_of(source).changed(
        arguments=arguments, named=named, where=_texts(where), minimise=_texts(minimise), maximise=_texts(maximise), seeds=seeds, top=top
    )
    return run(
        replace(definition, trust_code=trust_code),
        out=None if out is None else Path(out),
        restart=restart,
        hands=lambda work: crew(workers, executor, dask, work),
        exhaustive=exhaustive,
        bound=bound,
        watch=watch,
        improved=improved,
    )


def run(  # noqa: PLR0913 - one keyword per word of a study, who simulates it, and who listens
    definition: StudyDefinition,
    *,
    out: Path | None = None,
    restart: bool = False,
    exhaustive: bool = False,
    hands: Callable[[int], Any],
    bound: Bound | None = None,
    watch: Watch | None = None,
    known: Mapping[str, Row] | None = None,
    improved: Improved | None = None,
) -> Study:
    """Run a definition; `hands` gives the crew for so many candidates.

    `known` are rows of the same scenario by their keys, which need not be simulated again; `improved` hears of every row that is
    better than all before.
    """
    space = Space(definition)
    where = conditions(definition)
    _check_currencies(where, space)
    objectives = definition.objectives or (objective("step_time_s"),)
    if out is None:
        return _Run(space, where, objectives, None, known, improved).study(hands, bound, watch, exhaustive=exhaustive)
    with StudyJournal(out, asked(definition, space), restart=restart, points=space.points) as journal:
        return _Run(space, where, objectives, journal, known, improved).study(hands, bound, watch, exhaustive=exhaustive)


def conditions(definition: StudyDefinition) -> tuple[Constraint, ...]:
    """The constraints of a definition; that a candidate fits is one unless any speaks of it."""
    spoken = any(word.name == _ALWAYS for one in definition.where for word in one.words)
    return definition.where if spoken else (constraint(_ALWAYS), *definition.where)


def asked(definition: StudyDefinition, space: Space) -> dict[str, Any]:
    """What study.json says: all that decides which rows there are, and what was looked for."""
    axes: list[Any] = [axis.document() for axis in definition.axes]
    if definition.strategies:
        axes.append({"strategy": "auto"})
    return {
        "parsim": CONTRACT_VERSION,
        "version": __version__,
        "catalogue_sha256": catalogue_sha256(),
        "study": definition.name,
        "scenario_sha256": space.base.hash(),
        "axes": json.loads(json.dumps(axes, default=str)),
        "where": [one.text for one in definition.where],
        "objectives": [str(one) for one in definition.objectives],
    }


class _Run:
    """One run of a study: rows of before, rows to come, and what the bar says."""

    def __init__(
        self,
        space: Space,
        where: Sequence[Constraint],
        objectives: Sequence[SearchObjective],
        journal: StudyJournal | None,
        known: Mapping[str, Row] | None,
        improved: Improved | None,
    ) -> None:
        self.space, self.where, self.objectives, self.journal, self.improved = space, where, objectives, journal, improved
        self.rows: dict[str, Row] = dict(known or {}) | (dict(journal.rows) if journal is not None else {})
        self.before = len(self.rows)
        self.places: list[Place] = []
        self.best: float | None = None
        self._checked = False

    def study(self, hands: Callable[[int], Any], bound: Bound | None, watch: Watch | None, *, exhaustive: bool) -> Study:
        points = sum(1 for _ in self.space.points())
        if not points:
            raise ScenarioError(Finding("the study has no point at all", suggestion="give a key several values"))
        crew = hands(points)
        watch = watch or (lambda _, results, __, ___: results)
        choice: CandidateQueue = Everything(self._opened())
        total: int | None = max(1, points - len(self.rows))
        try:
            if not exhaustive and all(map(bounds_help, self.objectives)):
                choice, total = self._bounded(crew, bound, watch), None
            with closing(self._told(Runner(choice, crew).run())) as came:
                for _ in watch("Simulating candidates", came, total, lambda: self.remark(choice)):
                    pass
        except KeyboardInterrupt:
            self.places += list(self.space.written(self.where))[len(self.places) :]
            study = self._so_far(choice)
            study.interrupted = True
            raise SweepInterrupted(study) from None
        return self._so_far(choice)

    def _so_far(self, choice: CandidateQueue) -> Study:
        """What the rows that are there say."""
        study = Study(self.space, self.where, self.objectives, self.places, self.rows, choice.passed, choice.judged)
        study.before = self.before
        if self.journal is not None:
            study.directory, study.damaged = self.journal.directory, tuple(self.journal.damaged)
        return study

    def _opened(self) -> Iterator[Place]:
        """What has to be simulated, in order, looked at while the workers work; the rest is known when it is its turn."""
        for place in self.space.written(self.where):
            self.places.append(place)
            if not place.excluded and (looked := self._look(place)) is not None and looked[1] is None:
                yield looked[0]

    def _look(self, place: Place) -> tuple[Place, Row | None] | None:
        """A place with its candidate, and with its row if that is there already; None: there is nothing to simulate."""
        place = self.places[place.number] = self.space.loaded(place, self.where)
        if place.refused is not None:
            self._record([place.refused])
        if place.candidate is None:
            return None
        if (row := self.rows.get(place.candidate.key)) is not None:
            self._heard(place, row)
        return place, row

    def _bounded(self, crew: Crew, bound: Bound | None, watch: Watch) -> BoundedQueue:
        self.places = list(self.space.written(self.where))
        must_fit = any(one.text == _ALWAYS for one in self.where)
        prover = ProvenBounds(self.space.base, crew, must_fit=must_fit) if bound is None else CallersBounds(bound)
        asked = [place for place in self.places if not place.excluded]
        choice = BoundedQueue(
            asked,
            prover,
            self.objectives,
            self._values,
            self.space.definition.top,
            look=self._look,
            must_fit=must_fit,
            seeds_of=without_seed if any(SEED in axis.keys for axis in self.space.axes) else lambda place: place.number,
        )
        done = False
        try:
            if len(asked) > FEW:
                self._first_look(crew, prover, asked)
            choice.prove(lambda bounds, count: watch("Proving bounds", bounds, count, lambda: self.remark(choice)))
            done = True
        finally:
            if not done:
                crew.close(now=True)
        return choice

    def _first_look(self, crew: Crew, prover: Prover, places: Sequence[Place]) -> None:
        """A row within seconds, where bounding everything takes long: the most promising of a sample, evenly spread."""
        sample = places[:: -(-len(places) // _SAMPLE)]
        bounds = [(place, least) for place, least in prover.bounds(sample) if least is not None and not least.full]
        for place, _ in sorted(bounds, key=lambda one: least_of(self.objectives[0], one[1]))[:_TRIED]:
            looked = self._look(place)
            if looked is not None and looked[1] is None:
                candidate = looked[0].candidate
                try:
                    rows = crew.submit(at_work, stamp(), evaluate_all, [(candidate, place.settings)]).result()
                except Exception as error:
                    if not crew.died(error):
                        raise
                    crew.renew()
                    continue
                self._record(rows)
                self._heard(looked[0], rows[0])
            if self.best is not None:
                return

    def _record(self, rows: list[Row]) -> None:
        if self.journal is not None:
            self.journal.append(rows)
        for row in rows:
            self.rows.setdefault(row["key"], row)

    def _told(self, came: Iterator[list[Answered[Place]]]) -> Generator[Place, None, None]:
        """The places that were simulated, as they come; their rows are kept first."""
        for answered in came:
            self._record([answer for _, answer in answered if isinstance(answer, dict)])
            for job, answer in answered:
                if isinstance(answer, dict):
                    self._heard(job.place, answer)
                if job.question in ("step", "row"):
                    yield job.place

    def _heard(self, place: Place, row: Row) -> None:
        """Keep the best so far; an objective that no row can have ends the study at its first row."""
        if row["step_time_s"] is not None and not self._checked:
            self._checked = True
            if null := [one for one in self.objectives if row[one.metric.name] is None]:
                raise ScenarioError([_null(one) for one in null])
        values = self._values(place, row)
        if values is not None and (self.best is None or values[0] < self.best):
            self.best = values[0]
            if self.improved is not None:
                self.improved(place, row, self.objectives[0].shown(values[0]))

    def _values(self, place: Place, row: Row) -> Values | None:
        """The scores of a row that keeps all constraints."""
        values = scores(self.objectives, row)
        if values is None:
            return None
        known = self.space.known(place.settings, place.facts, row)
        return values if all(one.holds(known) is True for one in self.where) else None

    def remark(self, choice: CandidateQueue) -> str:
        """The best so far."""
        scores = [score for score in (choice.likely, self.best) if score is not None]
        return f"best: {self.objectives[0].shown(min(scores))}" if scores else ""


def _null(one: SearchObjective) -> Finding:
    needs = one.metric.needs
    hint = f"it needs {needs}" if needs else "parsim explain says when it is defined"
    return Finding(
        f"{one.metric.name} is null for this scenario: nothing can be ranked by it", one.word, one.metric.name, hint, *one.origin
    )


def _check_currencies(where: Sequence[Constraint], space: Space) -> None:
    """Amounts of money are not converted."""
    own = str(space.base.tree["economics"]["currency"])
    wrong = [(one, code) for one in where for code in one.currencies if code != own]
    if wrong:
        raise ScenarioError(
            [
                Finding(f"{one.text!r} is in {code}, the scenario in {own}", "where", one.text, f"write {own}", *one.origin)
                for one, code in wrong
            ]
        )


def _texts(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
