"""Stage times recorded on a real pipeline, whose first stage was slowed on purpose: the step in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from parsim.run import simulate

FORWARD, BACKWARD = ("219.6", "218.1", "217.5", "232.2"), ("386.6", "382.8", "381.7", "396.0")
SEND, SPEED, MICRO_BATCHES = Fraction("14.7"), Fraction("0.426"), 32
"""medians [ms] over four stages of a public trace of a job on 16 GPUs (ByteDance-Seed/StragglerAnalysis)"""


def test_a_slow_first_stage() -> None:
    """It never waits from its first backward on. Before it, it is idle from its four forwards to when the first micro-batch is back.

    32 (F0 + B0) / 0.426 + (F1 + F2 + F3 + B3 + B2 + B1 + 6 sends - 3 F0 / 0.426) = 45,906.171 ms: a micro-batch is sent three times on
    its way there and three times on its way back. The measured pipeline took 45,622 ms.
    """
    forward, backward = ([Fraction(time) for time in times] for times in (FORWARD, BACKWARD))
    first = (forward[0] + backward[0]) / SPEED
    back = sum(forward[1:]) + sum(backward[1:]) + 6 * SEND
    exact = MICRO_BATCHES * first + back - 3 * forward[0] / SPEED
    stages = [
        {"forward": f"{there} ms", "backward_input": f"{home} ms", "backward_weight": "0 ms", "send": f"{float(SEND)} ms"}
        for there, home in zip(FORWARD, BACKWARD, strict=True)
    ]
    job = {
        "model": {"stages": stages}, "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
        "training": {"micro_batch": 1, "gradient_accumulation": MICRO_BATCHES}, "parallel": {"pipeline": {"size": 4, "schedule": "1f1b"}},
    }  # fmt: skip
    slow = simulate(job, "variability.slow=[{rank: 0, speed: 0.426}]")
    assert slow.step_time == pytest.approx(float(exact) / 1000, rel=1e-12)
    assert round(float(exact), 3) == 45_906.171
    assert round(simulate(job).step_time, 4) == 22.0687
