"""The examples of docs/adding.md and docs/write-a-strategy.md, by their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doc_pages import steps

from parsim.run import simulate
from parsim.scenario import load


def files_of(page: str, folder: Path) -> dict[str, str]:
    """The files of a page, written into a folder."""
    found = {step.name: step.text for step in steps(page) if step.what == "file"}
    for name, text in found.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return found


@pytest.fixture
def adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of adding.md in the working directory."""
    files_of("adding", tmp_path)
    monkeypatch.chdir(tmp_path)


def document(file: str, *overrides: str) -> dict[str, Any]:
    return simulate(file, *overrides, trust_code=True).document()


@pytest.mark.usefixtures("adding")
def test_the_card_has_the_peak_and_the_memory_of_its_file() -> None:
    report = document("job.yaml")
    assert report["model_tflops_per_gpu"] / report["mfu"] == pytest.approx(181.0, rel=1e-12)
    assert report["memory"]["capacity_bytes"] == 47.5 * 2**30
    assert report["ranks"]["total"] == 4


@pytest.mark.usefixtures("adding")
def test_the_pod_is_bound_by_its_one_nic() -> None:
    report = document("job.yaml", "cluster.topology=./pod.yaml", "cluster.nodes=2")
    assert report["ranks"]["total"] == 8
    link = next(row for row in report["links"] if row["kind"] == "ethernet-100g")
    assert link["capacity_Bps"] == 7.5e9  # 100 Gb/s x 0.6
    assert all(row["busbw_Bps"] <= 7.5e9 for row in report["collectives"] if row["kind"] == "all_reduce")


@pytest.mark.usefixtures("adding")
def test_both_spellings_of_the_model_are_one() -> None:
    config, own = (document("job.yaml", f"model={name}") for name in ("./hf", "./small.yaml"))
    assert config["model"]["parameters"] == own["model"]["parameters"] == 1_100_048_384
    assert config["step_time_s"] == own["step_time_s"]
    shipped = document("job.yaml", "model=tinyllama-1.1b")
    assert shipped["step_time_s"] == own["step_time_s"]


@pytest.mark.usefixtures("adding")
def test_the_stack_chooses_the_precision() -> None:
    report = document("job.yaml", "software.profile=./stack.yaml")
    assert report["memory"]["bytes_per_parameter"] == "4+4+8 = 16 B/parameter (+2 cached)"
    assert report["memory"]["devices"][0]["at_peak"]["context"] == round(0.8 * 2**30)


@pytest.mark.usefixtures("adding")
def test_the_table_is_gpipe() -> None:
    assert document("piped.yaml")["step_time_s"] == document("piped.yaml", "parallel.pipeline.schedule=gpipe")["step_time_s"]


def test_the_strategy_has_forty_lines(tmp_path: Path) -> None:
    assert len(files_of("write-a-strategy", tmp_path)["mine.py"].splitlines()) <= 40


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_strategy_shares_states_and_traffic(tmp_path: Path, ranks: int) -> None:
    files_of("write-a-strategy", tmp_path)
    job = str(tmp_path / "job.yaml")
    exact = "software.memory.allocator=exact"
    own = document(job, f"parallel.data.shard_size={ranks}", exact)
    plain = document(job, "parallel.data.strategy=ddp", exact)
    parameters = own["model"]["parameters"]
    share, whole = (report["memory"]["devices"][0]["resident_bytes"]["optimizer"] for report in (own, plain))
    one = 4 * -(-parameters // ranks)
    assert share == 3 * 512 * -(-one // 512)  # fp32 master and two moments, each a tensor in blocks of 512 B
    assert 12 * parameters <= whole < 12 * parameters * 1.0001
    moved = {
        kind: sum(row["bytes"] * row["count"] for row in own["collectives"] if row["kind"] == kind and row["group_size"] == size)
        for kind, size in (("reduce_scatter", ranks), ("all_reduce", 32 // ranks), ("all_gather", ranks))
    }
    assert moved == {"reduce_scatter": 2 * parameters, "all_reduce": 2 * parameters // ranks, "all_gather": 2 * parameters}
    assert own["step_time_s"] < plain["step_time_s"]


@pytest.mark.parametrize("sizes", [("parallel.tp=2",), ("parallel.pp=2", "training.micro_batch=2"), ("parallel.cp=2",)])
def test_the_strategy_goes_with_other_parallelism(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    files_of("write-a-strategy", tmp_path)
    scenario = load(str(tmp_path / "job.yaml"), "model=gpt2", "cluster.nodes=2", *sizes, trust_code=True)
    folded, whole = simulate(scenario).document(), simulate(scenario, unfolded=True).document()
    assert folded["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)
    inside = {row["group_size"] for row in folded["collectives"] if row["kind"] == "all_gather" and row["axis"] == "data"}
    assert inside == {8 if "parallel.cp=2" in sizes else 4 if "parallel.tp=2" in sizes else 8}
