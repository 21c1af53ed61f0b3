"""What docs/size.md says of tensor parallelism with sharded states, and of the runs that are nearest to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.effects import catalogue
from parsim.scenario.load import load
from parsim.study.size.reading import read_question
from parsim.study.size.size import size
from parsim.study.size.text import text

META: dict[str, Any] = {
    "model": "llama-2-70b",
    "training": {"sequence_length": 4096, "global_batch": 1024, "micro_batch": 2, "tokens": "2T"},
    "parallel": {"tensor": {"size": 4, "sequence_parallel": True}, "data": {"strategy": "fsdp"}},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 256, "fabric": {"leaf_ports": 32}},
    "software": {"profile": "megatron-core"},
}
"""the best of `parsim size --strategy zero1,fsdp`; equal leaves give the same step in a tenth of the time"""
NETWORK = "cluster.set.links.ib-hdr.efficiency"


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ((), 4.7721),
        (("parallel.tensor.overlap=none",), 4.9061),
        ((f"{NETWORK}=0.77",), 4.8090),
        ((f"{NETWORK}=0.67",), 5.2020),
        (("software.profile=pytorch-2", "training.precision=bf16-fp32grad", "parallel.tensor.overlap=none"), 5.2847),
    ],
)
def test_step_of_llama_2_70b_with_tensor_parallelism_and_fsdp(overrides: tuple[str, ...], seconds: float) -> None:
    report = simulate(load(META, *overrides))
    assert report.step_time == pytest.approx(seconds, abs=6e-4)
    if overrides:
        return
    assert report.step_time / (1024 * 4096) * 2e12 * 2048 / 3600 == pytest.approx(1_294_507, abs=1)
    assert report.mfu == pytest.approx(0.6136, abs=5e-4)
    data = [row for row in report.collectives if row.axis == "data"]
    tensor = [row for row in report.collectives if row.axis == "tensor"]
    assert sum(row.busy_s for row in data) == pytest.approx(3.478, abs=1e-3)
    assert sum(row.exposed_s for row in data) == pytest.approx(0.0516, abs=1e-3)
    assert sum(row.busy_s for row in tensor) == pytest.approx(0.443, abs=1e-3)
    assert sum(row.exposed_s for row in tensor) == pytest.approx(0.266, abs=1e-3)
    (warning,) = [one for one in report.warnings if one.path == "parallel.tensor.overlap"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in warning.message
    assert report.measured.confidence.status == "interpolated"
    assert "no published run on A100 SXM 80GB with sharded states and tensor or pipeline parallelism" in str(
        report.measured.confidence.basis
    )
    low, high = report.estimate.step_time_band_s
    assert low < report.step_time < high


@pytest.mark.parametrize(
    ("overrides", "warns"),
    [
        ((), True),
        (("parallel.data.strategy=zero3",), True),
        (("parallel.tensor.overlap=none",), False),
        (("parallel.data.strategy=zero1",), False),
        (("parallel.tensor.size=1",), False),
        (("cluster.topology=hgx-h100",), True),
        (("cluster.topology=hgx-b200",), False),  # from Blackwell on the two ask for nothing opposite
    ],
)
def test_two_overlaps_that_ask_for_opposite_settings(overrides: tuple[str, ...], warns: bool) -> None:
    small: dict[str, Any] = {
        "model": "gpt2",
        "cluster": {"topology": "dgx-a100-80gb"},
        "training": {"sequence_length": 1024, "global_batch": 64, "micro_batch": 1},
    }
    small["parallel"] = {"tensor": {"size": 2}, "data": {"strategy": "fsdp"}}
    small["software"] = {"profile": "megatron-core"}
    assert ("parallel.tensor.overlap" in [one.path for one in build(load(small, *overrides)).warnings]) == warns


def test_text_says_why_there_is_no_band() -> None:
    question = {"model": "gpt2", "tokens": "10B", "on": "dgx-a100-80gb", "gpus": "8", "sequence_length": 1024, "global_batch": 64}
    answer = size(read_question(None, question), workers=1)
    (sized,) = answer.machines
    assert "no published run" not in text(answer)
    for basis, said in (("why", "–: why"), (None, "–: no published run on such a GPU with such a strategy")):
        bare = replace(sized, possible=tuple(replace(one, band=None, basis=basis) for one in sized.possible))
        assert said in text(replace(answer, machines=(bare,)))


def fsdp(model: str, nodes: int, micro_batch: int, sequence: int, recompute: str, **others: Any) -> dict[str, Any]:
    """One micro-batch per replica on A100."""
    tensor = others.pop("tensor", 1)
    training = {"sequence_length": sequence, "global_batch": nodes * 8 // tensor * micro_batch, "micro_batch": micro_batch}
    return {
        "model": model,
        "training": {**training, "recompute": recompute, **others},
        "parallel": {"tensor": {"size": tensor, "overlap": "none"}, "data": {"strategy": "fsdp"}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": nodes},
        "software": {"profile": "pytorch-2" if tensor == 1 else "megatron-2021"},
    }


BF16 = {"preset": "bf16-fp32grad", "reduce": "bf16"}
OPT_FLOP = 96 * 992 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 50272 / (16 * 96 * 12288))
"""of a step with recomputation, Narayanan et al. 2021, formula 3"""


@pytest.mark.parametrize(
    ("tree", "seconds", "measured", "error"),
    [
        # 380 tokens/s on each of 128 A100: foundation-model-stack/fms-fsdp, README
        (fsdp("llama-2-70b", 16, 6, 4096, "full", precision=BF16), 70.735, 6 * 4096 / 380, 0.094),
        # 2,162 tokens/s on each of 64 A100: pytorch/torchtitan, docs/performance.md of 2024
        (fsdp("llama-2-13b", 8, 2, 4096, "none"), 3.9564, 2 * 4096 / 2162, 0.044),
        # up to 147 TFLOP/s on each of 992 A100: Zhang et al. 2022, arXiv 2205.01068; micro-batch and recomputation are assumed
        (fsdp("opt-175b", 124, 8, 2048, "full", tensor=8, precision="fp16", attention="eager"), 16.984, OPT_FLOP / 992 / 147e12, -0.150),
    ],
)
def test_the_published_runs_that_are_nearest(tree: dict[str, Any], seconds: float, measured: float, error: float) -> None:
    report = simulate(load(tree))
    assert report.step_time == pytest.approx(seconds, rel=1e-3)
    assert report.step_time / measured - 1 == pytest.approx(error, abs=1e-3)
    low, high = report.estimate.step_time_band_s
    assert low < measured < high
    # more than half of a step is at the clock that training finds, which makes it longer by at most what it is lower
    unfitted = simulate(load(tree, "software.effects=none")).step_time
    (clock,) = (effect.value for effect in catalogue() if effect.name == "clock-ampere")
    assert 1 + 0.5 * (1 / clock - 1) < report.step_time / unfitted < 1 / clock
