"""`parsim validate steps`: percentiles of published logs of steps beside those of simulated steps."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from statistics import NormalDist

import pytest

from parsim.cli import execute
from parsim.validation.step_spread import StepSpread, spread, step_logs

SOURCES = """\
rules: {}
sources:
  own:
    title: "a small job"
    source: "nobody"
    family: own
    settings:
      model: {base: gpt3-125m, layers: 2}
      training: {sequence_length: 2048, global_batch: 8, micro_batch: 8}
      cluster: {topology: dgx-a100-80gb, gpus: 1}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "sources.yaml").write_text(SOURCES, encoding="utf-8")
    (tmp_path / "own.csv").write_text("id,table,step_time_s\nown-1,none,0.1\n", encoding="utf-8")
    (tmp_path / "step_times.csv").write_text(
        "id,logs,steps,p1_s,p5_s,p50_s,p95_s,p99_s,max_s\nown-1,1,500,0.098,0.099,0.1,0.102,0.11,0.2\n", encoding="utf-8"
    )
    return tmp_path


def test_every_log_belongs_to_a_published_run_whose_step_is_its_median() -> None:
    logs = step_logs()
    assert len(logs) == 12
    for log in logs:
        assert log.run.measured["step_time_s"] == log.seconds["p50"]
        assert list(log.seconds.values())[:4] == sorted(list(log.seconds.values())[:4])
    largest = next(log for log in logs if log.run.id == "mlperf-v5.0-eos-dfw-n1024")  # 8,192 GPUs
    assert (largest.seconds["p50"], largest.seconds["max"]) == (5.180, 8.307)


def test_steps_that_only_vary_as_a_whole_have_the_percentiles_of_their_distribution(own: Path) -> None:
    """Log-normal with relative standard deviation s: ln has variance ln(1 + s^2), and the median is exp(mean of ln)."""
    (log,) = step_logs(own)
    found = spread(log, {"jitter": {"step": 0.05}}, 2_000)
    sigma = 0.0499688  # sqrt(ln(1 + 0.05^2))
    for name, share in (("p5", 0.05), ("p95", 0.95)):
        assert found.spread(name) == pytest.approx(exp(sigma * NormalDist().inv_cdf(share)) - 1, abs=0.006)


def test_percentiles_are_left_open_where_steps_are_few(own: Path) -> None:
    (log,) = step_logs(own)
    few = StepSpread(log, tuple(1 + number / 1_000 for number in range(59)))
    assert [few.spread(name) for name in ("p1", "p5", "p95", "p99")] == [None] * 4
    some = StepSpread(log, (*few.simulated, 1.2))
    assert some.spread("p1") is None
    assert some.spread("p95") is not None
    assert few.measured("p99") == pytest.approx(0.1)


def test_the_command_prints_both(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", "steps", "--data", str(own), "--runs", "3", "--variability", "traced"]) == 0
    said = capsys.readouterr().out
    assert "own-1  measured     500  -2.00  -1.00  +2.00  +10.00  +100.00" in said
    assert execute(["validate", "steps", "--data", str(own), "--runs", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["simulated"]["p95"] is None
    assert execute(["validate", "steps", "--data", str(own), "--source", "own-2"]) == 2
    assert "known: own-1" in capsys.readouterr().err
