"""Speeds and links that change for as long as the step lasts are those that never were otherwise; on equal GPUs and on several kinds."""

from __future__ import annotations

import pytest

from parsim.execution.faulted import FaultedStep
from parsim.execution.prepared import prepare
from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.load import load

EQUAL = {"topology": "dgx-a100-80gb", "nodes": 2}
MIXED = {
    "nodes": [{"use": "hgx-h100", "gpus": 4}, {"use": "dgx-a100-80gb", "gpus": 4, "region": "b"}],
    "regions": [{"between": ["a", "b"], "bandwidth": "100 Gb/s", "latency": "0 s"}],
}


def job(cluster, variability=None):
    training = {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 2}
    tree = {"name": "job", "model": {"base": "llama-7b", "layers": 2}, "cluster": cluster, "training": training}
    return build(load(tree | {"parallel": {"data": {"strategy": "zero1"}}, "variability": variability or {}}))


def disturbed(cluster, variability):
    prepared = prepare(job(cluster, variability))
    return FaultedStep(prepared, prepared.run().makespan).together.end


@pytest.mark.parametrize("cluster", [EQUAL, MIXED], ids=["equal", "mixed"])
@pytest.mark.parametrize("who", [{"rank": 6}, {"node": 1}], ids=["rank", "node"])
def test_a_slow_window_over_the_step_is_a_slow_gpu(cluster, who):
    """Kernels, launches and the copies into buckets, which run beside them and slow them."""
    window = {"slow": [{**who, "speed": 0.5, "from": "0 s", "to": "100 s"}]}
    assert disturbed(cluster, window) == pytest.approx(execute(job(cluster, {"slow": [{**who, "speed": 0.5}]})).makespan, rel=1e-9)


def test_half_a_link_between_regions_takes_twice_as_long():
    """The link is named by its regions. A ring cannot fill a link to its last percent; one that slows under way is full."""
    half = MIXED | {"regions": [MIXED["regions"][0] | {"bandwidth": "50 Gb/s"}]}
    found = disturbed(MIXED, {"faults": [{"link": "a-b", "at": "0 s", "bandwidth": "x0.5"}]})
    assert 0.99 <= found / execute(job(half)).makespan <= 1
