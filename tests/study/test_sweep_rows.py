"""What comes out of a study: rows, their order, why one is not the best, and the files that keep them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parsim
from parsim.errors import DeadlockError, InputError, ParsimError, ScenarioError
from parsim.run import simulate
from parsim.study.search.search import dominates, ranked
from parsim.study.sweep.choice import BoundedQueue, Everything
from parsim.study.sweep.metrics import METRICS, NAMED, figures
from parsim.study.sweep.prover import QUESTIONS, CallersBounds, Least
from parsim.study.sweep.rows import Row, StudyJournal, objective
from parsim.study.sweep.rows import row as result
from parsim.study.sweep.space import Place, Space, evaluate, evaluate_all
from parsim.study.sweep.study_file import definition_of
from parsim.study.variants import Outcome, Runner
from parsim.study.workers import Crew, ForeignWorkerError, at_work

TINY: dict[str, Any] = {
    "model": {"stages": [{"forward": "1 s", "backward": "2 s", "activation": "1 GiB"}]},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    "training": {"micro_batch": 1, "global_batch": 8},
    "parallel": {"pipeline": {"size": 4, "schedule": "gpipe"}},
}
every = partial(parsim.sweep, exhaustive=True)
"""without bounds"""
WORDS = ("training.global_batch=4,8,128", "parallel.pipeline.schedule=gpipe,1f1b")


def times(study: parsim.study.sweep.study.Study) -> list[float]:
    return [row["step_time_s"] for row in study.rows]


# ranking


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_layers_are_those_of_peeling_fronts(scores: list[tuple[int, int]]) -> None:
    floats = [(float(a), float(b)) for a, b in scores]
    left, layer, expected = set(range(len(floats))), 0, {}
    while left:
        layer += 1
        front = {one for one in left if not any(dominates(floats[other], floats[one]) for other in left)}
        expected |= dict.fromkeys(front, layer)
        left -= front
    found = ranked(floats)
    assert {one.place: one.layer for one in found} == expected
    assert [(one.layer, floats[one.place]) for one in found] == sorted((one.layer, floats[one.place]) for one in found)


@given(st.lists(st.integers(0, 5)))
def test_one_objective_is_a_stable_sort(scores: list[int]) -> None:
    found = [one.place for one in ranked([(float(score),) for score in scores])]
    assert found == sorted(range(len(scores)), key=lambda place: scores[place])


# figures


def test_figures_are_those_of_the_report() -> None:
    document = simulate("gpt2-ddp-4x-a100", "training.tokens=1e9").document()
    found = figures(document)
    assert set(found) == set(NAMED)
    for name in ("step_time_s", "mfu", "tokens_per_s", "time_to_train_s", "gpu_hours", "bubble_fraction"):
        assert found[name] == document[name]
    assert found["peak_bytes"] == document["memory"]["peak_bytes"]
    assert found["samples_per_step"] == 32
    assert found["data_size"] == found["gpus"] == 4
    assert found["gpu_hours_per_million_tokens"] == pytest.approx(document["gpu_hours"] / 1e9 * 1e6, rel=1e-12)
    assert sum(float(found[metric.name] or 0.0) for metric in METRICS if metric.name.startswith("breakdown_s.")) == pytest.approx(
        document["step_time_s"], rel=1e-9
    )


# a study


def test_rows_of_closed_form() -> None:
    """(m + p - 1)(tF + tB) for four stages of 1 s and 2 s; GPipe keeps m activations of 1 GiB, 1F1B at most 4."""
    study = every(TINY, *WORDS, where="fits", minimise="step_time")
    assert [list(row.items())[2:4] for row in study.rows] == [
        [("training.global_batch", batch), ("parallel.pipeline.schedule", name)] for batch in (4, 8, 128) for name in ("gpipe", "1f1b")
    ]
    assert times(study) == pytest.approx([21, 21, 33, 33, 393, 393])
    assert [row["status"] for row in study.rows] == ["fits"] * 4 + ["does not fit", "fits"]
    assert [entry.place.number for entry in study.entries] == [0, 1, 2, 3, 5]
    assert study.counts() == {
        "points": 6, "excluded": 0, "equal": 0, "passed": 0, "judged": 0, "simulated": 6,
        "refused": 0, "deadlock": 0, "failed": 0, "kept": 5,
    }  # fmt: skip
    assert study.document()["ranking"][0]["step_time_s"] == pytest.approx(21.0)
    json.dumps(study.document(), allow_nan=False)


def test_why_a_row_is_not_the_best() -> None:
    study = every(TINY, *WORDS, "training.micro_batch=1,3", where=["step_time < 30 s", "gbs != 128"])
    reasons = {label: reason for _, label, reason in study.why_not()}
    assert reasons["gbs=4 schedule=gpipe mbs=1"] == "the best"
    assert reasons["gbs=4 schedule=1f1b mbs=1"] == "number 2: step time 21 s, as good as the best"
    assert reasons["gbs=8 schedule=gpipe mbs=1"] == "breaks step_time < 30 s: step_time_s is 33 s"
    assert reasons["gbs=128 schedule=gpipe mbs=1"] == "not simulated: breaks gbs != 128: training.global_batch is 128"
    assert reasons["gbs=8 schedule=gpipe mbs=3"].startswith(
        "refused: training.global_batch: global_batch 8 / (micro_batch 3 x data 1) = 8 / 3"
    )
    assert [label for _, label, _ in study.why_not("gbs=8,mbs=3")] == ["gbs=8 schedule=gpipe mbs=3", "gbs=8 schedule=1f1b mbs=3"]
    assert study.why_not(study.best.key[:8] if study.best else "")[0][2] == "the best"
    with pytest.raises(InputError, match="no point of the study is called 'tp=9'"):
        study.why_not("tp=9")


def test_what_does_not_fit_is_not_ranked_unless_a_constraint_speaks_of_it() -> None:
    words = ("training.global_batch=8,128",)
    assert [entry.place.number for entry in every(TINY, *words).entries] == [0]
    study = every(TINY, *words, where="step_time < 1 h")
    assert [entry.place.number for entry in study.entries] == [0]
    assert study.why_not()[1][2].startswith("does not fit: memory: ")
    study = every(TINY, *words, where="fits or not fits")
    assert [entry.place.number for entry in study.entries] == [0, 1]


def test_two_objectives_have_a_front() -> None:
    """1F1B keeps four activations whatever the batch, so its largest batch is nowhere worse; GPipe pays for 8 with memory."""
    study = every(TINY, *WORDS, maximise="samples_per_s", minimise="peak_memory")
    assert [(entry.place.number, entry.layer) for entry in study.entries] == [(5, 1), (3, 2), (0, 3), (1, 3), (2, 3)]
    assert [str(one) for one in study.objectives] == ["minimise peak_bytes", "maximise samples_per_s"]
    for entry in study.front:
        assert not any(dominates(other.scores, entry.scores) for other in study.entries)


def test_seeds_are_one_line_of_the_table() -> None:
    study = every(TINY, "training.global_batch=4,8", seeds=3)
    assert [len(entry.rows) for entry in study.entries] == [3, 3]
    assert [row["variability.seed"] for row in study.rows] == [0, 1, 2, 0, 1, 2]
    assert study.entries[0].mean("step_time_s") == pytest.approx(21.0)
    assert study.entries[0].spread("step_time_s") == (21.0, 21.0)


@pytest.mark.parametrize("name", ["time_to_train", "cost_to_train_usd", "gpu_hours", "goodput"])
def test_an_objective_without_a_number_says_what_turns_it_on(name: str) -> None:
    with pytest.raises(ScenarioError) as error:
        every(TINY, "training.global_batch=4,8", minimise=name)
    metric = next(one for one in METRICS if name in (one.name, *one.aliases))
    assert error.value.findings[0].message == f"{metric.name} is null for this scenario: nothing can be ranked by it"
    assert error.value.findings[0].suggestion == f"it needs {metric.needs}"


def test_money_is_not_converted() -> None:
    with pytest.raises(ScenarioError, match=r"'cost < 3 EUR' is in EUR, the scenario in USD"):
        every(TINY, "training.global_batch=4,8", where="cost < 3 EUR")


def test_a_table_for_pandas() -> None:
    pytest.importorskip("pandas")
    frame = every(TINY, *WORDS).to_frame()
    assert list(frame["rank"].fillna(0)) == [1, 2, 3, 4, 0, 5]
    assert list(frame["step_time_s"]) == pytest.approx([21, 21, 33, 33, 393, 393])


def test_pandas_and_duckdb_read_the_file_as_it_is(tmp_path: Path) -> None:
    """Numbers, texts, refused rows with findings and keys that hold mappings."""
    pandas, duckdb = pytest.importorskip("pandas"), pytest.importorskip("duckdb")
    study = every(TINY, "training.global_batch=4,8", "training.micro_batch=1,3", "training.recompute=none,{every: 1}", out=tmp_path)
    path = tmp_path / "results.jsonl"
    times = [(row["key"], row["step_time_s"]) for row in study.rows if row["status"] == "fits"]
    assert len(study.rows) == 8
    assert len(times) < 8
    frame = pandas.read_json(path, lines=True)
    assert list(frame[frame["status"] == "fits"][["key", "step_time_s"]].itertuples(index=False, name=None)) == times
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT key, step_time_s FROM '{path}' WHERE fits").fetchall() == times
        assert connection.execute(f"SELECT count(*) FROM '{path}' WHERE findings[1].path = 'training.global_batch'").fetchone() == (4,)


def test_any_executor_gives_the_same_rows() -> None:
    here = every(TINY, *WORDS)
    with ThreadPoolExecutor(2) as pool:
        there = every(TINY, *WORDS, executor=pool)
        assert pool.submit(int, "1").result() == 1, "it is not shut down"
    assert there.rows == here.rows


def test_axes_as_python_has_them() -> None:
    study = every(TINY, axes={"training.global_batch": {"from": 4, "to": 8, "factor": 2}, "parallel.pipeline.schedule": ["gpipe"]})
    assert times(study) == pytest.approx([21.0, 33.0])


def test_a_study_without_points_of_its_own_is_its_scenario() -> None:
    study = every(TINY)
    assert times(study) == pytest.approx([33.0])
    assert "33" in str(study)


# evaluation


def place(tree: Any, *words: str) -> Place:
    return next(iter(Space(definition_of(tree).changed(arguments=words)).places(())))


def test_a_row_says_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    one = place(TINY)
    assert one.candidate is not None
    assert evaluate(one.candidate, one.settings)["status"] == "fits"
    monkeypatch.setattr("parsim.study.variants.simulate", lambda *_, **__: 1 / 0)
    row = evaluate(one.candidate, one.settings)
    assert (row["status"], row["reason"]) == ("failed", "internal error: ZeroDivisionError: division by zero")
    assert set(row) >= set(NAMED)
    assert row["step_time_s"] is None


def test_a_deadlock_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    one = place(TINY)

    def stuck(*_: Any, **__: Any) -> None:
        raise DeadlockError("the program waits for itself\nrank 0 | F0.0")

    monkeypatch.setattr("parsim.study.variants.simulate", stuck)
    assert one.candidate is not None
    row = evaluate(one.candidate, one.settings)
    assert (row["status"], row["reason"]) == ("deadlock", "the program waits for itself")
    assert row["findings"][0]["message"].endswith("F0.0")


def test_a_worker_with_another_parsim_is_not_believed() -> None:
    one = place(TINY)
    with pytest.raises(ForeignWorkerError, match=r"a worker has parsim version .*, not 9\.9"):
        at_work(("9.9", "abc"), evaluate_all, [(one.candidate, one.settings)])


# journal


def journal(path: Path, **other: Any) -> StudyJournal:
    asked = {"version": "1", "catalogue_sha256": "c", "scenario_sha256": "s", "axes": [1], "where": ["fits"], **other}
    return StudyJournal(path, asked, points=lambda: [{}])


def row(key: str) -> Row:
    return {**result(key, {}, Outcome("fits")), "step_time_s": 1.0, "fits": True}


@given(cut=st.integers(1, 1500))
def test_a_torn_last_line_is_cut_off(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn")
    with journal(path) as one:
        one.append([row("a"), row("b")])
        one.append([row("b"), row("c")])
    whole = (path / "results.jsonl").read_bytes()
    assert whole.count(b"\n") == 3, "a key is written once"
    os.truncate(path / "results.jsonl", len(whole) - cut)
    left = (len(whole) - cut) // (len(whole) // 3)
    with journal(path) as two:
        assert list(two.rows) == ["a", "b", "c"][:left]
        two.append([row("a"), row("b"), row("c")])
    assert (path / "results.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": "2"}, "it was made by parsim 1"),
        ({"axes": [2]}, "its range is different"),
        ({"scenario_sha256": "t"}, "its scenario is different"),
        ({"catalogue_sha256": "d", "axes": []}, "devices or models have changed since; its range is different"),
    ],
)
def test_another_study_does_not_go_on(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with journal(tmp_path) as one:
        one.append([row("a")])
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(ScenarioError) as error:
        journal(tmp_path, **changed)
    assert error.value.findings[0].message == f"holds another study: {why}"
    assert "--restart" in error.value.findings[0].suggestion
    assert (tmp_path / "results.jsonl").read_bytes() == before
    with journal(tmp_path, where=["mfu > 3 %"]) as two:
        assert list(two.rows) == ["a"], "another question to the same rows"


LINES = {
    "no JSON": ("nonsense", "is no JSON: Expecting value"),
    "a list": ("[]", "is no mapping"),
    "no figures": ('{"key": "b", "status": "fits"}', "has no step_time_s, estimated_step_time_s, p95_step_time_s and "),
    "a text": (json.dumps(row("b") | {"step_time_s": "abc"}), "step_time_s is no number"),
    "infinite": (json.dumps(row("b") | {"mfu": float("inf")}), "mfu is no number"),
    "large": (json.dumps(row("b") | {"gpus": 10**400}), "gpus is no number"),
    "digits": ('{"key": ' + "9" * 5000 + "}", "has a number of too many digits"),
    "deep": ("[" * 100_000, "is nested too deeply"),
    "contradiction": (json.dumps(row("b") | {"status": "refused"}), "its status and its step_time_s contradict each other: refused"),
    "findings": (json.dumps(row("b") | {"findings": [1]}), "findings is no list of findings"),
    "bytes": ("\udcff", "is not UTF-8"),
    "other": (json.dumps(row("b") | {"training.micro_batch": 7}), "is a row of another study"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_is_no_row_is_set_aside(tmp_path: Path, case: str) -> None:
    text, problem = LINES[case]
    with journal(tmp_path) as one:
        one.append([row("a"), row("b"), row("c")])
    path = tmp_path / "results.jsonl"
    first, _, last = path.read_bytes().splitlines(keepends=True)
    damaged = text.encode(errors="surrogateescape") + b"\n"
    path.write_bytes(first + damaged + last)
    with journal(tmp_path) as two:
        assert list(two.rows) == ["a", "c"]
        (finding,) = two.damaged
        assert (finding.file, finding.line) == (str(path), 2)
        assert finding.message.startswith(problem)
        assert "set aside in results.damaged.jsonl" in finding.message
        two.append([row("b")])
    assert (tmp_path / "results.damaged.jsonl").read_bytes() == damaged
    with journal(tmp_path) as three:
        assert (list(three.rows), three.damaged) == (["a", "c", "b"], [])


@pytest.mark.parametrize("text", ["[]", "{", '"text"', "[" * 100_000, "{}", "\udcff"])
def test_a_study_file_that_says_nothing_is_a_finding(tmp_path: Path, text: str) -> None:
    with journal(tmp_path) as one:
        one.append([row("a")])
    (tmp_path / "study.json").write_bytes(text.encode(errors="surrogateescape"))
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(ScenarioError) as error:
        journal(tmp_path)
    (finding,) = error.value.findings
    assert "study.json" in finding.file or "another study" in finding.message
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_a_study_goes_on_without_its_damaged_rows(tmp_path: Path) -> None:
    whole = every(TINY, *WORDS, out=tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    broken = [line.replace('"step_time_s":', '"step_time_s":"abc","other":') if number == 1 else line for number, line in enumerate(lines)]
    path.write_text("\n".join(broken) + "\n", encoding="utf-8")
    again = every(TINY, *WORDS, out=tmp_path)
    assert [(one.line, one.message.partition(";")[0]) for one in again.damaged] == [(2, "step_time_s is no number")]
    assert (again.rows, again.before) == (whole.rows, len(lines) - 1)
    assert sorted(path.read_text(encoding="utf-8").splitlines()) == sorted(lines)


def test_a_full_disk_keeps_the_rows_before(tmp_path: Path, full_disk: Any) -> None:
    with journal(tmp_path) as one:
        one.append([row("a")])
        before = (tmp_path / "results.jsonl").read_bytes()
        with full_disk(len(before) + 100), pytest.raises(InputError) as error:
            one.append([row("b")])
        assert error.value.findings[0].message.startswith("cannot be written: ")
        assert "the 1 rows before are kept" in error.value.findings[0].suggestion
        assert (tmp_path / "results.jsonl").read_bytes() == before
        one.append([row("b")])
    with journal(tmp_path) as two:
        assert list(two.rows) == ["a", "b"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with journal(tmp_path), pytest.raises(ScenarioError, match="another parsim sweep writes here"):
        journal(tmp_path)
    with journal(tmp_path):
        pass


def test_rows_without_a_study_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"has results\.jsonl but no study\.json"):
        journal(tmp_path)


def test_a_second_question_simulates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = every(TINY, *WORDS, out=tmp_path)
    monkeypatch.setattr("parsim.study.variants.simulate", lambda *_, **__: pytest.fail("simulated again"))
    second = every(TINY, *WORDS, out=tmp_path, where="gbs > 4", maximise="samples_per_s")
    assert second.rows == first.rows[2:]
    assert second.best is not None
    assert second.best.place.number == 5


def test_a_restart_begins_anew(tmp_path: Path) -> None:
    every(TINY, "training.global_batch=4", out=tmp_path)
    with pytest.raises(ScenarioError, match="holds another study"):
        every(TINY, "training.global_batch=4,8", out=tmp_path)
    assert len(every(TINY, "training.global_batch=4,8", out=tmp_path, restart=True).rows) == 2
    assert (tmp_path / "results.jsonl").read_bytes().count(b"\n") == 2


# what is passed over


def test_a_study_with_bounds_simulates_less_and_ranks_the_same(tmp_path: Path) -> None:
    words = ("training.global_batch=4,8,16,32",)

    def bound(place: Place) -> Least:
        return Least(3.0 * place.settings["training.global_batch"], samples=place.settings["training.global_batch"])

    everything = parsim.sweep(TINY, *words, top=1, exhaustive=True)
    less = parsim.sweep(TINY, *words, top=1, bound=bound)
    assert len(everything.rows) == 4
    assert [row["step_time_s"] for row in less.rows] == [21.0]
    assert less.best is not None
    assert everything.best is not None
    assert less.best.key == everything.best.key
    assert less.why_not()[3][2] == "proved worse: step time is at least 96 s, the best has 21 s"
    assert len(parsim.sweep(TINY, *words, top=1, bound=bound, exhaustive=True).rows) == 4
    # what was simulated before counts as found
    parsim.sweep(TINY, *words, top=1, bound=bound, out=tmp_path)
    again = parsim.sweep(TINY, *words, top=1, bound=bound, out=tmp_path)
    assert [row["step_time_s"] for row in again.rows] == [21.0]
    # bounds say nothing of memory here; of samples/s they say at most 1/3 everywhere
    assert len(parsim.sweep(TINY, *words, top=1, bound=bound, maximise="samples_per_s").rows) == 4


@pytest.mark.parametrize(("name", "kept"), [("time_to_train", 2), ("gpu_hours", 2), ("gpus", 2), ("cost_to_train", 2)])
def test_bounds_of_the_bill_and_of_sizes(name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What never falls where the step takes longer is bounded by the bill of the shortest step."""
    costs = {4: 1.0, 8: 2.0, 16: 3.0, 32: 4.0}
    metric = objective(name).metric

    def bound(place: Place) -> Least:
        least = 0.75 * costs[place.settings["training.global_batch"]]
        return Least(0.0, gpus=least, bill={metric.name: least})

    places = list(Space(definition_of(TINY).changed(arguments=["training.global_batch=4,8,16,32"])).places(()))
    choice = BoundedQueue(
        places, CallersBounds(bound), [objective(name)], lambda place, _: (costs[place.settings["training.global_batch"]],), 2
    )
    simulated = []
    while found := choice.take(dict.fromkeys(QUESTIONS, 1)):
        simulated += [job.place for job in found]
        choice.tell([(found[0], {})])
    assert len(simulated) == kept
    assert [place.settings["training.global_batch"] for place in simulated] == [4, 8]
    assert len(choice.passed) == 2


def test_what_surely_does_not_fit_is_passed_over() -> None:
    def bound(place: Place) -> Least:
        return Least(0.0, full="it needs at least 128 GiB of 79.25 GiB" if place.settings["training.global_batch"] == 128 else "")

    study = parsim.sweep(TINY, "training.global_batch=4,128", bound=bound)
    assert [reason for _, _, reason in study.why_not()] == ["the best", "does not fit: it needs at least 128 GiB of 79.25 GiB"]
    assert len(parsim.sweep(TINY, "training.global_batch=4,128", bound=bound, where="fits or not fits").rows) == 2


def test_a_bound_that_a_simulation_contradicts_is_an_error_and_no_answer() -> None:
    with pytest.raises(ParsimError, match=r"takes 21\.0 s, but was proved to take at least 22\.0 s"):
        parsim.sweep(TINY, "training.global_batch=4", bound=lambda _: Least(22.0))


def test_a_runner_tells_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    places = list(Space(definition_of(TINY).changed(arguments=WORDS)).places(()))
    told: list[int] = []
    queue = Everything(iter(places))
    monkeypatch.setattr(queue, "tell", lambda answered: told.extend(job.place.number for job, _ in answered), raising=True)
    came = [job.place.number for answered in Runner(queue, Crew()).run() for job, _ in answered]
    assert came == told == list(range(6))
