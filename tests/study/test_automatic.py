"""``parallel: auto``: the step is that of the best strategy, what is written is kept, what cannot be kept is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import parsim
from parsim.cli import application
from parsim.errors import ScenarioError
from parsim.scenario.load import load
from parsim.study import best_strategy
from parsim.study.automatic import decided
from parsim.study.best_strategy import search
from parsim.study.runner_up import why_slower

AUTO = {
    "name": "small",
    "model": {"base": "gpt2", "layers": 2},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2, "memory_reserve": "1 GiB"},
    "training": {"global_batch": 2, "sequence_length": 128},
    "parallel": "auto",
}
PLAIN = {**AUTO, "parallel": {}, "training": {**AUTO["training"], "micro_batch": 1}}


@pytest.fixture(scope="module")
def report():
    return parsim.simulate(AUTO)


def test_the_step_is_the_best_of_all_strategies(report) -> None:
    """`test_best_strategy` holds that against simulating everything."""
    best = search(load(PLAIN))
    found = report.document()["plan"]
    assert best.best is not None
    assert best.runner_up is not None
    assert report.step_time == best.best.row["step_time_s"]
    assert found["runner_up"]["step_time_s"] == best.runner_up.row["step_time_s"]
    assert found["proven"]
    assert found["points"] == 56 == found["simulated"] + found["ruled_out"]


def test_the_scenario_of_the_report_is_the_found_one(report) -> None:
    document = report.document()
    assert (document["scenario"]["name"], document["scenario"]["parallel"]["tensor"]["size"]) == ("small", 2)
    again = parsim.simulate(document["scenario"]).document()
    assert again["plan"] is None
    assert again["step_time_s"] == document["step_time_s"]
    assert "search" not in document["scenario"]["parallel"]


def test_two_searches_find_the_same(report) -> None:
    def timeless(one) -> dict:
        return {key: value for key, value in one.document()["plan"].items() if key != "wall_s"}

    assert timeless(parsim.simulate(AUTO)) == timeless(report)


def test_what_is_written_is_kept() -> None:
    written = {**AUTO, "training": {**AUTO["training"], "micro_batch": 1, "recompute": "full"}}
    found = decided(load(written, "parallel.pp=2", "parallel.pipeline.schedule=gpipe"))
    assert found.tree["parallel"]["pipeline"]["schedule"] == "gpipe"
    assert (found.tree["parallel"]["pipeline"]["size"], found.tree["parallel"]["data"]["size"]) == (2, 1)
    assert (found.tree["training"]["micro_batch"], found.tree["training"]["recompute"]) == (1, "full")
    assert found.found is not None
    assert found.found["points"] == 1


def test_auto_takes_the_place_of_a_written_strategy_and_not_of_what_follows() -> None:
    plain = load({**AUTO, "parallel": {"tensor": {"size": 2}}}, "parallel=auto")
    assert plain.written["parallel"] == {"search": "auto"}
    assert load(AUTO, "parallel.tp=2").written["parallel"] == {"search": "auto", "tensor": {"size": 2}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.gradient_accumulation=2", "training.gradient_accumulation  follows from the strategy"),
        ("training.global_batch=null", "training.global_batch  required with parallel: auto"),
        ("parallel.cp=2", "not supported yet: a search with context parallelism"),
        ("parallel.data.shard_size=2", "not supported yet: a search with shards"),
        ("cluster.memory_reserve=79 GiB", "no strategy fits into memory"),
    ],
)
def test_what_cannot_be_searched_is_refused(override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        decided(load(AUTO, override))


def test_a_step_without_a_search_is_refused() -> None:
    with pytest.raises(ScenarioError, match="the strategy is still to be found"):
        parsim.run.simulate(AUTO)


def test_a_batch_that_not_all_gpus_share_equally_has_a_strategy() -> None:
    """7 samples on 2 GPUs: no data parallelism, which the scenario alone would mean."""
    found = decided(load(AUTO, "training.global_batch=7"))
    assert found.tree["parallel"]["data"]["size"] == 1


def test_an_ended_search_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(best_strategy, "monotonic", lambda: clock[0])
    report = parsim.run.simulate(decided(load(AUTO), improved=lambda _: clock.__setitem__(0, 1000.0)))
    assert any("ended after 1000 s without a proof" in finding.message for finding in report.warnings)
    assert report.document()["plan"]["runner_up"] is None


def test_compare_puts_found_strategies_beside_written_ones() -> None:
    comparison = parsim.compare(AUTO, PLAIN, labels=("found", "plain"))
    assert comparison.documents[0]["plan"]["proven"]
    assert comparison.documents[1]["plan"] is None


def test_the_commands_search_first(tmp_path: Path) -> None:
    file = tmp_path / "auto.yaml"
    file.write_text(json.dumps(AUTO))
    words = ["run", str(file), "--json", "--workers", "1"]
    said = CliRunner().invoke(application(["run"]), words)
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["plan"]["launch"]["megatron"]["file"] == "megatron.sh"
    said = CliRunner().invoke(application(["check"]), ["check", str(file)])
    assert "strategy found: tensor 2" in said.stdout


def test_why_the_next_one_loses_in_numbers() -> None:
    zero = dict.fromkeys(("compute", "recompute", "tensor_comm", "data_comm", "pipeline_comm", "context_comm", "expert_comm"), 0.0)
    zero |= dict.fromkeys(("optimizer", "offload", "launch", "bubble", "other"), 0.0)
    best = {"step_time_s": 10.0, "breakdown_s": {**zero, "compute": 8.0, "bubble": 2.0}, "memory": {"peak_bytes": 2**30}}
    other = {"step_time_s": 11.0, "breakdown_s": {**zero, "compute": 9.5, "bubble": 1.5}, "memory": {"peak_bytes": 2**31}}
    text = "Its simulated step takes 11 s, 10 % longer: 1.5 s more compute, and only 500 ms less bubble."
    assert why_slower(best, other) == f"{text} Its peak is 2.00 GiB instead of 1.00 GiB."
