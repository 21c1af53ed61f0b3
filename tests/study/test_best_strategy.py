"""`parsim plan`: the best strategy is that of simulating everything, soon, proved, and with the reason why the next one loses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import parsim
from parsim.cli import application
from parsim.errors import ScenarioError
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.automatic import STACK, starting_point
from parsim.study.best_strategy import StrategyQuestion, described, nearby, scenario_of, search
from parsim.study.best_strategy_text import answer, question_text, training_lines
from parsim.study.planner.best import best_strategy
from parsim.study.search.lattice import Lattice

SMALL = {
    "name": "small",
    "model": {"base": "gpt2", "layers": 2},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2, "memory_reserve": "1 GiB"},
    "training": {"global_batch": 2, "micro_batch": 1, "sequence_length": 128},
}
STACKED = {**SMALL, "software": {"profile": STACK}}
"""the same with the software that a search takes"""


@pytest.fixture(scope="module")
def plan():
    heard = []
    found = search(load(SMALL), improved=heard.append)
    assert heard == found.improvements
    return found


def test_the_best_and_the_next_are_those_of_simulating_everything(plan) -> None:
    everything = parsim.sweep({**STACKED, "study": {"strategy": "auto"}}, exhaustive=True, workers=1)
    first, second = (entry.rows[0]["step_time_s"] for entry in everything.entries[:2])
    assert (plan.best.row["step_time_s"], plan.runner_up.row["step_time_s"]) == (first, second)
    assert plan.proven
    assert [one.row["step_time_s"] for one in plan.improvements] == sorted(
        (one.row["step_time_s"] for one in plan.improvements), reverse=True
    )


def test_the_written_scenario_is_the_one_that_was_found(plan) -> None:
    assert simulate(load(plan.tree())).step_time == plan.best.row["step_time_s"]


def test_a_search_that_runs_out_of_time_keeps_its_best_and_says_that_nothing_is_proved() -> None:
    found = search(load(SMALL), within=0.0)
    assert not found.proven
    assert found.runner_up is None


def test_what_the_machines_and_the_batch_are() -> None:
    base, assumed = scenario_of(StrategyQuestion("gpt2", "dgx-a100-80gb", gpus=12))
    assert (base.tree["cluster"]["nodes"], base.tree["cluster"]["gpus"]) == (2, 12)
    assert {one.name for one in assumed} == {"sequence length", "global batch"}
    asked = StrategyQuestion("gpt2", "dgx-a100-80gb", sequence_length=128, global_batch=8, precision="fp16", tokens=1e9, headroom="0 GiB")
    training = scenario_of(asked)[0].tree["training"]
    assert [training[key] for key in ("sequence_length", "global_batch", "tokens", "precision")] == [128, 8, 1e9, "fp16"]
    with pytest.raises(ScenarioError, match="2 x dgx-a100-80gb = 16 GPUs, not 17"):
        scenario_of(StrategyQuestion("gpt2", "dgx-a100-80gb", gpus=17, nodes=2))


def test_the_command_writes_what_starts_the_job(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SMALL))
    said = CliRunner().invoke(application(["plan"]), ["plan", str(file), "--workers", "1", "--out", str(tmp_path / "out"), "--quiet"])
    assert said.exit_code == 0, said.output
    assert "Proved the fastest of 56 strategies: " in said.output
    assert "Runner-up: " in said.output
    assert "DeepSpeed: not possible" in said.output
    assert "Software: megatron-core\nFits: " in said.output
    assert re.search(r"\n\[(validated|interpolated|unvalidated)\] ", said.output)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"scenario.yaml", "megatron.sh"}
    written = yaml.safe_load((tmp_path / "out" / "scenario.yaml").read_text())
    assert written["software"] == {"profile": "megatron-core"}
    assert written["cluster"] == SMALL["cluster"]
    refused = CliRunner().invoke(application(["plan"]), ["plan", str(file), "--gpus", "4"])
    assert isinstance(refused.exception, ScenarioError)


def test_a_scenario_may_fix_a_part_of_the_strategy(tmp_path: Path) -> None:
    """Of a file with ``parallel: auto`` what is written is kept; without a micro-batch it has none before the search."""
    training = {"global_batch": 2, "sequence_length": 128}
    file = tmp_path / "auto.yaml"
    file.write_text(json.dumps({**SMALL, "training": training, "parallel": {"search": "auto", "pipeline": {"size": 2}}}))
    said = CliRunner().invoke(application(["plan"]), ["plan", str(file), "--workers", "1", "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert "Best: pipeline 2, " in said.output
    assert load(tmp_path / "out" / "scenario.yaml").tree["parallel"]["pipeline"]["size"] == 2


def test_ctrl_c_keeps_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SMALL))
    monkeypatch.setattr("parsim.study.best_strategy_text.improvement", interrupt)
    said = CliRunner().invoke(application(["plan"]), ["plan", str(file), "--workers", "1", "--out", str(tmp_path / "out")])
    assert said.exit_code == 130
    assert "Not proved to be the fastest: the search ended after" in said.output
    assert (tmp_path / "out" / "scenario.yaml").exists()


def test_a_sweep_of_many_has_a_row_before_all_are_bounded(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample costs a row at most, and does not change what is best."""
    monkeypatch.setattr("parsim.study.sweep.sweep.FEW", 10)
    heard: list[str] = []

    def watch(doing, results, total, remark):
        heard.append(doing)
        return results

    study = parsim.sweep({**STACKED, "study": {"strategy": "auto"}}, top=1, watch=watch, improved=lambda *_: heard.append("better"))
    assert heard[:2] == ["better", "Proving bounds"]
    assert study.best.rows[0]["step_time_s"] == plan.best.row["step_time_s"]
    assert study.left == 0


def test_the_whole_training_has_days_and_a_price() -> None:
    training = {**SMALL["training"], "tokens": "1B"}
    lines = training_lines(simulate(load({**SMALL, "training": training})))
    assert len(lines) == 1
    assert "USD at 2 USD per GPU-hour (example price of " in lines[0]
    priced = simulate(load({**SMALL, "training": training, "economics": {"gpu_hour": 3}}))
    assert f"{priced.estimate.document()['cost_to_train']:,.0f} USD; nothing fails" in training_lines(priced)[0]


def test_the_command_line_and_the_page_find_the_same() -> None:
    """The same software, precision and memory to spare: a question without any of them has one answer."""
    plan = search(scenario_of(StrategyQuestion("gpt2", "dgx-a100-80gb", gpus=2, sequence_length=128, global_batch=2))[0])
    state = {"model": "gpt2", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 1, "cluster.gpus": 2}
    heard: list[dict] = []
    best_strategy(
        {**state, "training.sequence_length": 128, "training.global_batch": 2, "software.profile": None},
        lambda line: heard.append(dict(line)),
    )
    last = [line for line in heard if line["kind"] == "better"][-1]
    assert plan.best is not None
    assert last["step_time_s"] == plan.best.row["step_time_s"]
    assert heard[-1]["points"] == plan.study.counts()["points"]
    assert last["state"]["cluster.memory_reserve"] == plan.tree()["cluster"]["memory_reserve"]
    assert plan.tree()["software"] == {"profile": "megatron-core"}


def test_another_software_stack_may_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SMALL))
    words = ["plan", str(file), "--software", "torchtitan", "--workers", "1", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(application(["plan"]), words)
    assert "Software: torchtitan for all strategies" in said.output
    assert load(tmp_path / "out" / "scenario.yaml").settings.software.profile == "torchtitan"
    assert scenario_of(StrategyQuestion("gpt2", "dgx-a100-80gb", software="nemo"))[0].settings.software.profile == "nemo"
    assert "Software: megatron-core for all strategies" in question_text(load(SMALL), ())


def test_no_two_strategies_are_described_alike() -> None:
    lattice = Lattice(build(starting_point(load(SMALL), {})))
    texts = [described(settings, {"data_size": settings["parallel.data.size"]}) for settings in lattice]
    assert len(texts) == 56 == len(set(texts))


def test_of_a_number_of_gpus_that_divides_badly_better_ones_are_named() -> None:
    asked = StrategyQuestion("gpt2", "dgx-a100-80gb", gpus=11, sequence_length=1024, global_batch=64)
    plan = search(scenario_of(asked)[0])
    plan.nearby = nearby(asked, plan)
    assert [gpus for gpus, _ in plan.nearby] == [8, 16]
    assert "11 GPUs divide badly: the step takes " in answer(plan)
    assert nearby(StrategyQuestion("gpt2", "dgx-a100-80gb", gpus=12), plan) == ()


def test_what_fits_nowhere_is_said() -> None:
    found = search(load({**SMALL, "cluster": {"topology": "dgx-a100-80gb", "gpus": 2, "memory_reserve": "79 GiB"}}))
    assert found.best is None
    assert found.proven
    with pytest.raises(ScenarioError, match="no strategy fits"):
        found.scenario  # noqa: B018 - it raises
