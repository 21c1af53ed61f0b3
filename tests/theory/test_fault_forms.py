"""What faults cost, in closed forms: NICs that are lost, ranks that hang, GPUs that are slow."""

import pytest

import parsim
from parsim import theory


def test_seven_nics_do_the_work_of_eight():
    assert theory.respread_slowdown(8) == pytest.approx(1.142857, abs=5e-7)
    assert theory.neighbour_slowdown() == 2.0


def test_everybody_waits_for_a_rank_that_hangs():
    """Ten minutes until the watchdog, of 16,384 GPUs."""
    assert theory.waiting_gpu_hours(16_384, 600) == pytest.approx(2730.67, abs=5e-3)


def test_one_slow_gpu_idles_the_others():
    """One of 16,384 that is 10 % slower costs as much as 1,489 idle ones: N (f - 1) / f."""
    assert theory.idle_devices(16_384, 1.10) == pytest.approx(1489.45, abs=5e-3)
    assert theory.straggler_cost(16_384, 1.10, 2.0) == pytest.approx(2978.91, abs=5e-3)


@pytest.mark.parametrize(("replicas", "factor"), [(8, 1.1), (16, 1.25)])
def test_a_simulated_step_idles_as_many(replicas, factor):
    """Replicas that wait at the end: the share of the GPUs whose work is lost with one slow one."""
    tree = {
        "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": replicas, "nodes": replicas // 8},
        "training": {"micro_batch": 1, "global_batch": replicas},
        "parallel": {"data": {"size": replicas}},
    }
    alone = parsim.simulate(tree).step_time
    slowed = parsim.simulate(tree | {"variability": {"slow": [{"rank": 3, "speed": 1 / factor}]}}).step_time
    assert replicas * (1 - alone / slowed) == pytest.approx(theory.idle_devices(replicas, factor), rel=1e-9)
