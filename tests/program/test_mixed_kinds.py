"""GPUs of several kinds in one job: each rank's own times and memory, uneven batches, and folded = unfolded."""

from __future__ import annotations

import pytest

from parsim.hardware.kernels import kernel_time
from parsim.kernel import Clocks
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.study.search.bounds import Bounder
from parsim.study.what_if import changes

QUIET = {"software": {"host": {"per_layer_forward": "0 s", "per_layer_backward": "0 s"}, "effects": "none"}}
MIXED = {"nodes": [{"use": "hgx-h100"}, {"use": "dgx-a100-80gb"}]}
UNIT = {"stages": [{"forward": "0.5 s", "backward_input": "0.5 s", "backward_weight": "0 s", "send": "0 s", "activation": "1 MiB"}]}
HALF_SLOW = [{"rank": rank, "speed": 0.45} for rank in range(8, 16)]


def tree_of(cluster, parallel, model="gpt2", **training):
    batch = {"sequence_length": 256, "micro_batch": 2, **training}
    return {"model": model, "training": batch, "parallel": parallel, "cluster": cluster}


def unit_batch(split):
    data = {"size": 16, "batch_split": split, "accumulate": "no_sync"}
    tree = {"model": UNIT, "training": {"micro_batch": 1, "global_batch": 512}, "parallel": {"data": data}, **QUIET}
    return simulate({**tree, "cluster": {"topology": "hgx-h100", "nodes": 2}, "variability": {"slow": HALF_SLOW}})


def test_eight_fast_and_eight_slow_replicas():
    even, best, written = (unit_batch(split) for split in ("even", "balanced", [44] * 8 + [20] * 8))
    assert even.step_time == pytest.approx(32 / 0.45, rel=1e-12)
    assert best.step_time == written.step_time == pytest.approx(20 / 0.45, rel=1e-12)
    assert best.samples_per_s == pytest.approx(512 / (20 / 0.45), rel=1e-12)


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": {"size": 16, "strategy": "ddp"}},
        {"data": {"size": 16, "strategy": "fsdp"}},
        {"data": {"size": 16, "strategy": "zero1", "batch_split": [12] * 8 + [4] * 8}},
        {"pipeline": {"size": 2}, "data": {"size": 8}},
        {"pipeline": {"size": 2}, "data": {"size": 8, "batch_split": [6, 10] * 4}, "order": ["tensor", "pipeline", "context", "data"]},
        {"pipeline": {"size": 2, "schedule": "interleaved", "virtual_stages": 2}, "data": {"size": 8, "batch_split": [4] * 4 + [12] * 4}},
        {"tensor": {"size": 4}, "pipeline": {"size": 2, "overlap_sends": False}, "data": {"size": 2}},
    ],
    ids=["ddp", "fsdp", "uneven", "stages", "uneven-stages", "uneven-interleaved", "blocking"],
)
def test_folded_is_unfolded(parallel):
    tree = tree_of(MIXED, parallel, global_batch=16 * parallel["data"]["size"] // 2)
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.headroom == whole.headroom
    assert len(folded.measured.classes) < 16


def test_a_list_of_equal_machines_is_a_number_of_them():
    def step(cluster):
        document = simulate(tree_of(cluster, {"data": {"size": 16}}, global_batch=64)).document()
        return document["step_time_s"], document["memory"], document["breakdown_s"]

    one = step({"topology": "hgx-h100", "nodes": 2})
    assert one == step({"nodes": [{"use": "hgx-h100", "count": 2}]}) == step({"nodes": [{"use": "hgx-h100"}, {"use": "hgx-h100"}]})


def test_every_rank_takes_the_time_of_its_gpu():
    built = build(load(tree_of(MIXED, {"data": {"size": 16}}, global_batch=32) | QUIET))
    clock = clock_of(built)
    assert isinstance(clock, Clocks)
    assert clock.of_ranks == (0,) * 8 + (1,) * 8
    job = plan_of(built, clock)
    kernel = next(k for block in job.model.blocks for operator in block.operators for k in operator.work(job.workload).forward)
    assert [one(kernel) for one in clock.each] == [kernel_time(device, kernel) for device in built.kinds]
    assert clock(kernel) == clock.each[0](kernel)
    assert clock.fastest(kernel) == min(one(kernel) for one in clock.each)


def test_the_slowest_gpu_sets_the_step_and_the_peak_is_the_mean():
    parallel, batch = {"data": {"size": 16}}, {"global_batch": 256, "micro_batch": 16}
    mixed = simulate(tree_of(MIXED, parallel, **batch))
    slow, fast = (simulate(tree_of({"topology": name, "nodes": 2}, parallel, **batch)) for name in ("dgx-a100-80gb", "hgx-h100"))
    assert fast.step_time < mixed.step_time
    assert mixed.step_time == pytest.approx(slow.step_time, rel=0.1)
    peaks = [report.measured.model.peak_flop_per_gpu for report in (fast, slow)]
    assert mixed.measured.model.peak_flop_per_gpu == sum(peaks) / 2
    assert mixed.mfu * mixed.step_time == pytest.approx(fast.mfu * fast.step_time * peaks[0] / (sum(peaks) / 2), rel=1e-9)


def test_each_gpu_fits_by_its_own_memory():
    nodes = [{"use": "single-a100"}, {"use": "single-a100", "set": {"device": {"memory": "3 GiB"}}}]
    report = simulate(tree_of({"nodes": nodes}, {"data": {"size": 2}}, global_batch=4, micro_batch=2))
    large, small = report.document()["memory"]["devices"]
    assert large["capacity_bytes"] > small["capacity_bytes"]
    assert report.document()["memory"]["headroom_bytes"] == small["capacity_bytes"] - small["peak_bytes"]
    stages = simulate(tree_of({"nodes": nodes[::-1]}, {"pipeline": {"size": 2}}, global_batch=8, micro_batch=8))
    first, second = stages.document()["memory"]["devices"]
    assert second["peak_bytes"] > first["capacity_bytes"] > first["peak_bytes"]  # logits lie on the large one
    assert stages.fits


def test_balanced_stages_know_their_gpus():
    nodes = [{"use": "hgx-h100", "gpus": 2}, {"use": "dgx-a100-80gb", "gpus": 2}]
    model = {"base": "llama-2-7b", "layers": 32}

    def step(split):
        return simulate(tree_of({"nodes": nodes}, {"pipeline": {"size": 4, "split": split}}, model, global_batch=8, micro_batch=1))

    even, balanced = step("even"), step("balanced")
    layers = balanced.measured.schedule.layers_per_stage
    assert sum(layers) == 32
    assert layers[1] > 1.5 * layers[2]
    assert balanced.step_time < 0.9 * even.step_time


def test_bounds_stay_below():
    for parallel in (
        {"data": {"size": 16}},
        {"pipeline": {"size": 2}, "data": {"size": 8}},
        {"data": {"size": 16, "batch_split": "balanced"}},
    ):
        tree = tree_of(MIXED, parallel, global_batch=128)
        built, report = build(load(tree)), simulate(tree)
        assert Bounder().tight(built) <= report.step_time * (1 + 1e-9)
        assert Bounder().chained(built) <= report.step_time * (1 + 1e-9)


def test_what_if_asks_for_parts_by_speed():
    cluster = {"nodes": [MIXED["nodes"][0], {**MIXED["nodes"][1], "region": "b"}]}
    cluster["regions"] = [{"between": ["a", "b"], "bandwidth": "100 Gb/s"}]
    tree = tree_of(cluster, {"pipeline": {"size": 2}, "data": {"size": 8}}, global_batch=128)
    scenario = load(tree | {"software": {"host": {"launches_per_product": 1}, "effects": "none"}})  # so that GPUs, not their hosts, differ
    report = simulate(scenario)
    asked = {change.name: change.overrides for change in changes(scenario, report)}
    assert asked["links between regions x2"] == ("cluster.regions=[{between: [a, b], bandwidth: 25000000000 B/s}]",)
    assert simulate(scenario, *asked["stages balanced by the speed of their GPUs"]).step_time < report.step_time
    assert simulate(scenario, *asked["GPU FLOP/s x2"]).step_time < report.step_time
    assert "a batch balanced by the speed of the GPUs" in asked
