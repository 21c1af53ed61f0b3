"""Study files: what they say, what is wrong with them and where, and what the command line changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.scenario import files
from parsim.scenario.json_schema import STUDY_FILE
from parsim.scenario.load import load
from parsim.study.sweep.metrics import ALIASES, METRICS
from parsim.study.sweep.space import Space
from parsim.study.sweep.study_file import FILE, definition_of, schema, text
from parsim.study.sweep.sweep import conditions

ROOT = Path(__file__).resolve().parents[2]
TINY: dict[str, Any] = {
    "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    "training": {"micro_batch": 1, "global_batch": 8},
    "parallel": {"pipeline": {"size": 4}},
}
STUDY = """\
scenario: pipeline-unit-gpipe
axes:
  training.gbs: {from: 8, to: 32, factor: 2}
  pipeline.schedule: [gpipe, 1f1b]
  parallel.zero: [0, 1]
lattice: {product: [tp, pp, dp], equals: gpus}
zip: {training.micro_batch: [1, 2], training.recompute: [none, full]}
where: [fits, tp <= gpus_per_node]
minimise: [step_time, peak_memory]
maximise: mfu
seeds: 2
top: 3
"""


def written(tmp_path: Path, content: str, name: str = "study.yaml") -> str:
    (tmp_path / name).write_text(content, encoding="utf-8")
    return str(tmp_path / name)


def test_everything_a_study_says(tmp_path: Path) -> None:
    found = definition_of(written(tmp_path, STUDY))
    assert (found.source, found.name, found.stem, found.top) == ("pipeline-unit-gpipe", "study", "study", 3)
    assert [axis.keys for axis in found.axes] == [
        ("training.global_batch",), ("parallel.pipeline.schedule",), ("parallel.data.strategy",),
        ("parallel.tensor.size", "parallel.pipeline.size", "parallel.data.size"), ("training.micro_batch", "training.recompute"),
        ("variability.seed",),
    ]  # fmt: skip
    assert [axis.document()["values"] for axis in found.axes if "values" in axis.document()] == [
        [[8], [16], [32]], [["gpipe"], ["1f1b"]], [["ddp"], ["zero1"]], [[1, "none"], [2, "full"]], [[0], [1]],
    ]  # fmt: skip
    assert [one.text for one in conditions(found)] == ["fits", "tp <= gpus_per_node"]
    assert [str(one) for one in found.objectives] == ["minimise step_time_s", "minimise peak_bytes", "maximise mfu"]


def test_a_study_in_a_scenario_is_about_it(tmp_path: Path) -> None:
    tree = {**TINY, "study": {"axes": {"training.global_batch": [4, 8]}, "minimise": "step_time"}}
    path = written(tmp_path, json.dumps(tree))
    for source in (path, tree):
        found = definition_of(source)
        assert [point["training.global_batch"] for point in Space(found).points()] == [4, 8]
    # nothing else reads it
    assert load(path).document() == {**load(TINY).document(), "name": "study"}
    assert load(path).hash() == load(TINY).hash()
    child = written(tmp_path, "extends: study.yaml\n", "child.yaml")
    assert definition_of(child).axes == (), "it is not inherited"


def test_zipped_values_may_be_short_and_ranges() -> None:
    tree = {
        **TINY,
        "study": {"zip": {"parallel.zero": [1, 3], "training.mbs": {"powers_of_two": [1, 2]}, "training.recompute": [True, False]}},
    }
    assert list(Space(definition_of(tree)).points()) == [
        {"parallel.data.strategy": "zero1", "training.micro_batch": 1, "training.recompute": "full"},
        {"parallel.data.strategy": "zero3", "training.micro_batch": 2, "training.recompute": "none"},
    ]


def test_a_study_of_a_scenario_beside_it(tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text(json.dumps(TINY), encoding="utf-8")
    (tmp_path / "studies").mkdir()
    found = definition_of(written(tmp_path / "studies", "scenario: ../scenarios/mine.yaml\naxes: {training.micro_batch: [1, 2]}\n"))
    assert Path(str(found.source)).resolve() == tmp_path / "scenarios" / "mine.yaml"


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    found = definition_of(written(tmp_path, STUDY)).changed(
        arguments=["training.global_batch=64", "parallel.pipeline.schedule=gpipe,naive", "training.data_loading=1 ms", "nodes=1"],
        where=["step_time < 1 min"], minimise=["gpus"], seeds=1, top=7,
    )  # fmt: skip
    assert found.arguments == ("training.global_batch=64", "training.data_loading=1 ms", "cluster.nodes=1")
    keys = [axis.keys[0] for axis in found.axes]
    assert keys == [
        "parallel.data.strategy",
        "parallel.tensor.size",
        "training.micro_batch",
        "parallel.pipeline.schedule",
        "variability.seed",
    ]
    assert [str(one) for one in found.objectives] == ["minimise gpus"]
    assert [one.text for one in found.where] == ["fits", "tp <= gpus_per_node", "step_time < 1 min"]
    assert found.top == 7


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("tp=1,2,4", [1, 2, 4]),
        ("parallel.tensor.size={powers_of_two: [1, 8]}", [1, 2, 4, 8]),
        ("training.mbs={from: 1, to: 5, step: 2}", [1, 3, 5]),
        ("training.recompute=none,{selective: [attention]}", ["none", {"selective": ["attention"]}]),
        ("parallel.zero=1,3", ["zero1", "zero3"]),
        ("training.recompute=true,false", ["full", "none"]),
        ("tp=1,2,2", [1, 2]),
    ],
)
def test_axes_of_the_command_line(argument: str, values: list[Any]) -> None:
    (axis,) = definition_of("gpt2-ddp-4x-a100").changed(arguments=[argument]).axes
    assert axis.document()["values"] == [[value] for value in values]


def test_divisors_and_lattices_of_the_command_line() -> None:
    words = ["tp={divisors_of: gpus}", "cluster.gpus=4,8"]
    found = Space(definition_of("gpt2-ddp-4x-a100").changed(arguments=words))
    assert [tuple(point.values()) for point in found.points()] == [(1, 4), (2, 4), (4, 4), (1, 8), (2, 8), (4, 8), (8, 8)]
    found = Space(definition_of("gpt2-ddp-4x-a100").changed(arguments=["lattice={product: [tp, dp], equals: training.global_batch}"]))
    assert [tuple(point.values()) for point in found.points()] == [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)]


BAD = """\
scenario: gpt2-ddp-4x-a10
axes:
  parallel.tensr.size: [1, 2]
  parallel.tensor.size: [1, two]
  training.micro_batch: {from: 4, to: 1}
  parallel.data.strategy: [ddp, zero9]
lattice: {product: [tp], equals: gpus}
zip: {training.dropout: [0, 0.1], training.attention: [eager]}
where: [stp_time < 2 s, step_time < 2 GiB]
minimize: step_time
maximise: mfuu
seeds: -1
top: none
strategy: all
"""


def test_every_mistake_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, BAD)
    with pytest.raises(ScenarioError) as error:
        definition_of(path)
    found = [(one.line, one.column, one.message, one.suggestion) for one in error.value.findings]
    said = {(line, column): (message, hint) for line, column, message, hint in found}
    assert {one.file for one in error.value.findings} == {path}
    assert said[1, 1] == (
        "unknown scenario 'gpt2-ddp-4x-a10'",
        "did you mean 'gpt2-ddp-4x-a100' or 'gpt3-175b-64x-a100' or 'gpt2-xl-gpipe-4x-v100'?",
    )
    assert said[3, 3] == ("unknown key 'parallel.tensr.size'", "did you mean 'parallel.tensor.size'?")
    assert said[4, 3][0] == "'two' is not a whole number from 1 to 1,000,000"
    assert said[5, 3][0] == "a range from 4 to 1 is empty"
    assert "'zero9' is not one of" in said[6, 3][0]
    assert "is not a lattice" in said[7, 1][0]
    assert said[8, 1][0].startswith("keys that go together need equally many values: training.dropout has 2, training.attention has 1")
    assert said[9, 9] == ("unknown word 'stp_time'", "did you mean 'step_time'?")
    assert said[9, 25][0] == "'step_time < 2 GiB' compares a time with an amount of memory"
    assert said[10, 1] == ("unknown key of a study", "write minimise")
    assert said[11, 1] == ("there is no figure 'mfuu' to maximise", "did you mean 'mfu'?")
    assert said[12, 1][0] == "seeds are a count or a list of whole numbers"
    assert said[13, 1][0] == "'none' is not a whole number from 1 to 10,000"
    assert said[14, 1][0] == "'all' is not auto"
    assert len(found) == 14


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("axes: {training.micro_batch: [1, 2]}\n", "which scenario?"),
        ("scenario: gpt2-ddp-4x-a100\naxes: {tp: [1, 2], parallel.tensor.size: [4]}\n", "parallel.tensor.size is varied twice"),
        ("scenario: gpt2-ddp-4x-a100\naxes:\n", "is empty"),
        ("scenario: gpt2-ddp-4x-a100\naxes: [1, 2]\n", "[1, 2] is not a mapping of keys to values"),
        ("scenario: gpt2-ddp-4x-a100\nminimise: micro_batches\n", "micro_batches is neither better small nor large"),
        ("model: gpt2\ncluster: dgx-a100-80gb\nstudy: [tp]\n", "['tp'] is not a study"),
        ("model: gpt2\ncluster: dgx-a100-80gb\nstudy: {scenario: x}\n", "a study in a scenario is about that scenario"),
    ],
)
def test_other_mistakes(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        definition_of(written(tmp_path, content))
    assert message in [one.message for one in error.value.findings]
    assert all(one.line or one.path == "scenario" for one in error.value.findings)


def test_arguments_that_are_refused() -> None:
    base = definition_of("gpt2-ddp-4x-a100")
    with pytest.raises(ScenarioError) as error:
        base.changed(arguments=["tp=1,,2", "tp=1,2", "tpp=1,2"], where=["mfu"], minimise=["speed"], seeds=0)
    assert [one.message for one in error.value.findings] == [
        "a value between commas is empty", "takes several values twice", "unknown key 'tpp'",
        "'mfu' is a plain number, not something that holds or not", "there is no figure 'speed' to minimise",
        "seeds are a count or a list of whole numbers",
    ]  # fmt: skip


def test_a_key_is_stable_and_tells_work_apart() -> None:
    """The same work has the same key however it is written; a name is no work."""

    def keys(tree: Any, *words: str) -> list[str]:
        space = Space(definition_of(tree).changed(arguments=words))
        return [place.candidate.key if place.candidate is not None else "" for place in space.places(())]

    plain = keys(TINY, "training.global_batch=4,8,16")
    assert len(set(plain)) == 3
    assert plain == keys({**TINY, "name": "another"}, "training.gbs=4,8,16")
    assert plain == keys({**TINY, "training": {"micro_batch": 1, "global_batch": 2}}, "training.global_batch=4,8,16")
    assert keys(TINY, "training.data_loading=1 ms,2 ms")[0] not in plain
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in plain)


def test_equal_candidates_are_one() -> None:
    space = Space(definition_of({**TINY, "study": {"zip": {"training.gbs": [8, 8, 4], "training.mbs": [1, 1, 1]}}}))
    found = list(space.places(()))
    assert [bool(place.same_as) for place in found] == [False, True, False]
    assert found[0].candidate is not None
    assert found[1].same_as == found[0].candidate.key


def test_what_only_needs_the_scenario_is_asked_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(definition_of(TINY).changed(arguments=["tp=1,2,4"], where=["tp <= 1"]))
    monkeypatch.setattr(type(space.base), "with_overrides", lambda *_: pytest.fail("loaded"))
    found = space.places(space.definition.where)
    with pytest.raises(pytest.fail.Exception):
        next(found)
    rest = [place.excluded for place in Space(definition_of(TINY).changed(arguments=["tp=2,4"])).places(space.definition.where)]
    assert rest == ["tp <= 1: parallel.tensor.size is 2", "tp <= 1: parallel.tensor.size is 4"]


def test_facts_are_asked_before_anything_is_simulated() -> None:
    words = ["cluster.gpus=all", "cluster.nodes=1,2", "tp=4,8,16", "pp=1", "training.global_batch=16"]
    definition = definition_of(TINY).changed(arguments=words, where=["tp <= gpus_per_node", "micro_batches >= 8", "nodes == 2"])
    places = Space(definition).places(definition.where)
    found = [(place.settings["cluster.nodes"], place.settings["parallel.tensor.size"], place.excluded) for place in places]
    assert [one[:2] for one in found if not one[2]] == [(2, 8)]
    reasons = {one[:2]: one[2] for one in found}
    assert reasons[2, 16] == "tp <= gpus_per_node: parallel.tensor.size is 16, gpus_per_node is 8"
    assert reasons[2, 4] == "micro_batches >= 8: micro_batches is 4"
    assert reasons[1, 8] == "nodes == 2: nodes is 1"


def test_the_committed_schema_is_up_to_date() -> None:
    assert FILE == STUDY_FILE
    assert (ROOT / FILE).read_text(encoding="utf-8") == text(), f"write {FILE} anew: parsim schema --study > {FILE}"


@pytest.mark.parametrize("name", files.names("studies"))
def test_shipped_studies_keep_the_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema())
    path = files.home("studies") / f"{name}.yaml"
    assert list(jsonschema.Draft7Validator(schema()).iter_errors(files.read(path).tree)) == []
    assert path.read_text(encoding="utf-8").startswith(f"# yaml-language-server: $schema=../{FILE}\n# ")


def test_the_schema_knows_what_the_reader_knows(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft7Validator(schema())
    assert list(validator.iter_errors(files.read(written(tmp_path, STUDY)).tree)) == []
    errors = list(validator.iter_errors(files.read(written(tmp_path, BAD)).tree))
    wrong = {next(iter(error.absolute_path)) for error in errors if error.absolute_path}
    assert {"lattice", "maximise", "seeds", "top", "strategy"} <= wrong


def test_every_figure_has_a_definition() -> None:
    assert all(metric.text and metric.title for metric in METRICS)
    assert len({metric.name for metric in METRICS} | set(ALIASES)) == len(METRICS) + len(ALIASES)
