"""software.train_metrics: what a trainer computes from the logits behind every backward."""

from __future__ import annotations

from typing import Any

import pytest

from parsim import load
from parsim.errors import PlanError, ScenarioError
from parsim.hardware.kernels import memory_time
from parsim.kernel import Memory
from parsim.run import execute, step_of
from parsim.scenario.build import build

TOKENS, VOCABULARY, MICRO_BATCHES = 2 * 512, 50368, 3


def tree(**software: Any) -> dict[str, Any]:
    return {
        "model": {"base": "gpt2", "vocabulary": VOCABULARY},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 1},
        "training": {"sequence_length": 512, "micro_batch": 2, "global_batch": 2 * MICRO_BATCHES, "precision": "bf16"},
        "software": {"profile": "pytorch-2", "host": {"graphs": True}, "effects": "none", **software},
    }


def test_a_metric_is_a_cross_entropy_in_fp32_per_micro_batch() -> None:
    """Per logit: a cast (2 + 4 B, or 197 FLOP), a log-softmax that reads three times and writes once (16 B) in two launches."""
    device = build(load(tree())).cluster.device(0)
    count = TOKENS * VOCABULARY
    one = memory_time(device, Memory(6 * count, vector=197.0 * count)) + memory_time(device, Memory(16 * count, launches=2))
    steps = [step_of(build(load(tree(train_metrics=count)))).step_time for count in (0, 1, 2)]
    assert steps[1] - steps[0] == pytest.approx(MICRO_BATCHES * one, rel=1e-9)
    assert steps[2] - steps[0] == pytest.approx(MICRO_BATCHES * 2 * one, rel=1e-9)


def test_fp32_logits_are_not_cast() -> None:
    single = {**tree(), "training": {**tree()["training"], "precision": "fp32"}}
    with_one = {**single, "software": tree(train_metrics=1)["software"]}
    device = build(load(single)).cluster.device(0)
    found = step_of(build(load(with_one))).step_time - step_of(build(load(single))).step_time
    assert found == pytest.approx(MICRO_BATCHES * memory_time(device, Memory(16 * TOKENS * VOCABULARY, launches=2)), rel=1e-9)


def test_llm_foundry_computes_two_and_others_none() -> None:
    assert build(load(tree(profile="llm-foundry-2023"))).runtime.train_metrics == 2
    others = ("pytorch-2", "deepspeed", "megatron-2021", "megatron-2022", "megatron-core")
    assert {build(load(tree(profile=name))).runtime.train_metrics for name in others} == {0}


def test_they_are_computed_by_the_last_stage_only() -> None:
    """The last of two stages is later by its metrics; nothing of the first stage moves."""
    piped = {**tree(profile="llm-foundry-2023"), "cluster": {"topology": "dgx-a100-80gb", "gpus": 2}}
    piped["parallel"] = {"pipeline": {"size": 2}}
    ops = execute(build(load(piped))).trace.program.ops
    names = {op.name: {lane.rank for lane in op.lanes} for op in ops if op.name.startswith("metrics")}
    assert names == {"metrics1": {1}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"training": {"loss": {"chunks": 2}}}, "in 2 parts"),
        ({"training": {"backward": False}}, "no backward"),
        ({"cluster": {"gpus": 2}, "parallel": {"tensor": {"size": 2}}}, "split over 2"),
    ],
)
def test_where_no_logits_are_left_metrics_are_refused(changes: dict[str, Any], why: str) -> None:
    base = tree(train_metrics=1)
    asked = {**base, **{section: {**base.get(section, {}), **values} for section, values in changes.items()}}
    with pytest.raises((PlanError, ScenarioError), match=why):
        build(load(asked))
    automatic = {**asked, "software": {**asked["software"], "train_metrics": "auto", "profile": "llm-foundry-2023"}}
    assert build(load(automatic)).runtime.train_metrics == 0
