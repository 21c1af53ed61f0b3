"""`parallel.data.outer`: groups that step alone, by the closed forms and against jobs of one group."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.parallel.groups import DATA, OUTER, WORLD, Groups, Mesh
from parsim.run import simulate
from parsim.theory import local_steps as theory


def trained(outer: dict[str, Any] | None = None, *, nodes: int = 2, strategy: str = "ddp", **more: Any) -> dict[str, Any]:
    """GPT-2 on machines of two GPUs behind a slow link."""
    return {
        "model": "gpt2",
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 2},
        "parallel": {"data": {"strategy": strategy} | ({"outer": outer} if outer else {})} | more,
        "cluster": {
            "topology": "hgx-h100",
            "nodes": nodes,
            "gpus_per_node": 2,
            "collectives": {"profile": "ring"},
            "fabric": {"link": "ethernet-10g"},
        },
    }


def across(bandwidth: str, **outer: Any) -> dict[str, Any]:
    """2.5 B parameters in fp32 on 14 machines; a step is 22.8 s of given passes, and the optimizer."""
    return {
        "model": {"stages": [{"forward": "7.6 s", "backward": "15.2 s", "parameters": "2.5B"}]},
        "training": {"global_batch": 14, "micro_batch": 1, "optimizer": "sgd"},
        "parallel": {"data": {"strategy": "ddp", "outer": {"size": 14, "local_steps": 100} | outer}},
        "cluster": {
            "topology": "hgx-h100", "nodes": 14, "gpus_per_node": 1, "collectives": {"profile": "ring"},
            "set": {"links": {"ib-ndr": {"line_rate": bandwidth, "efficiency": 1, "latency": "0 s"}}},
        },
    }  # fmt: skip


@pytest.mark.parametrize(("bandwidth", "utilisation"), [("0.065163 Gb/s", 0.5), ("0.586466 Gb/s", 0.9), ("1.238095 Gb/s", 0.95)])
def test_a_network_gives_the_utilisation_of_the_closed_form(bandwidth: str, utilisation: float) -> None:
    local = simulate(across(bandwidth)).document()["local_steps"]
    step, seconds = local["local_step_s"], local["exchange_s"]
    assert local["exchange_bytes"] == 10**10
    assert seconds == pytest.approx(theory.outer_all_reduce(14, 10e9, float(bandwidth.removesuffix(" Gb/s")) * 1e9 / 8), rel=1e-4)
    assert local["compute_utilisation"] == pytest.approx(theory.compute_utilisation(100, step, seconds), rel=1e-12)
    assert local["compute_utilisation"] == pytest.approx(utilisation, abs=1e-3)  # of 22.8 s: the optimizer takes 53 ms more


def test_intellect_1_worldwide() -> None:
    """The 469 s that it needed worldwide are 317 Mb/s; in ten parts that are needed one or two steps later."""
    rate = f"{8e-9 * theory.bandwidth_for_utilisation(14, 10e9, 2280, 2280 / (2280 + 469)):.9f} Gb/s"
    for more, utilisation in (
        ({}, 0.829393),
        ({"fragments": 10, "overlap_steps": 1}, 0.904403),
        ({"fragments": 10, "overlap_steps": 2}, 0.994331),
    ):
        document = simulate(across(rate, **more)).document()
        local = document["local_steps"]
        assert local["exchange_s"] == pytest.approx(469, rel=1e-3)
        assert local["compute_utilisation"] == pytest.approx(utilisation, abs=1e-3)
        assert document["step_time_s"] == pytest.approx(local["period_s"] / 100, rel=1e-9)
        assert document["period_s"] == local["period_s"]


def test_int8_divides_the_exchange_by_four() -> None:
    fp32, int8 = (simulate(across("1 Gb/s", dtype=dtype)).document()["local_steps"] for dtype in ("fp32", "int8"))
    assert int8["exchange_bytes"] * 4 == fp32["exchange_bytes"]
    assert int8["exchange_s"] == pytest.approx(fp32["exchange_s"] / 4, rel=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_a_local_step_is_a_step_of_one_group(strategy: str) -> None:
    """Two machines that step alone take the step of one; every replica or shard is exchanged; folded is unfolded."""
    scenario = trained({"size": 2, "local_steps": 10}, strategy=strategy)
    report = simulate(scenario)
    document = report.document()
    local = document["local_steps"]
    assert local["local_step_s"] == pytest.approx(simulate(trained(nodes=1, strategy=strategy)).step_time, rel=1e-9)
    assert document["step_time_s"] == pytest.approx(local["local_step_s"] + local["exchange_s"] / 10, rel=1e-9)
    assert document["breakdown_s"]["data_comm"] >= local["exposed_s"] / 10
    assert sum(document["breakdown_s"].values()) == pytest.approx(document["step_time_s"], rel=1e-9)
    assert document["ranks"]["outer"] == 2
    assert document["confidence"]["status"] == "unvalidated"
    assert [one["value"] for one in document["assumptions"] if one["name"] == "outer_exchange"] == ["time only"]
    assert local["exchange_bytes"] == pytest.approx(4 * 124_439_808 / (2 if strategy in ("zero3", "fsdp") else 1), rel=1e-6)
    assert simulate(scenario, unfolded=True).step_time == pytest.approx(report.step_time, rel=1e-9)


def test_what_the_outer_optimizer_keeps() -> None:
    """Parameters of the last exchange and momentum in fp32, and the differences of one part on the wire."""
    alone = simulate(trained(nodes=1)).document()["memory"]["devices"][0]["resident_bytes"]
    for fragments, dtype, size in ((1, "fp32", 4), (5, "bf16", 2)):
        outer = {"size": 2, "local_steps": 10, "fragments": fragments, "dtype": dtype}
        resident = simulate(trained(outer)).document()["memory"]["devices"][0]["resident_bytes"]
        more = {category: resident[category] - alone.get(category, 0) for category in resident}
        assert more["optimizer"] == pytest.approx(8 * 124_439_808, rel=1e-5)
        assert more["buffers"] == pytest.approx(size / fragments * 124_439_808, abs=2**20)  # the allocator rounds
        assert all(size == 0 for category, size in more.items() if category not in ("optimizer", "buffers"))


def test_pipelines_exchange_stage_by_stage() -> None:
    outer = {"size": 2, "local_steps": 4}
    local = simulate(trained(outer, pipeline={"size": 2})).document()["local_steps"]
    assert 0.5 * 4 * 124_439_808 < local["exchange_bytes"] < 0.75 * 4 * 163_000_000
    assert "local_steps" not in simulate(trained(pipeline={"size": 2})).document()


def test_a_slow_rank_slows_its_steps_and_not_the_exchange() -> None:
    scenario = trained({"size": 2, "local_steps": 4})
    slow = simulate(scenario | {"variability": {"slow": [{"rank": 0, "speed": 0.5}]}}).document()
    local, even = slow["local_steps"], simulate(scenario).document()["local_steps"]
    assert local["exchange_s"] == pytest.approx(even["exchange_s"], rel=1e-9)
    assert local["local_step_s"] > 1.2 * even["local_step_s"]
    assert slow["step_time_s"] == pytest.approx(local["local_step_s"] + local["exchange_s"] / 4, rel=1e-9)


def test_groups_end_where_replicas_step_alone() -> None:
    groups = Groups(Mesh(("tensor", "context", "data", "pipeline"), (2, 1, 4, 1)), 2, outer=2)
    assert groups.members(DATA, 0) == (0, 2)
    assert groups.members(DATA, 7) == (5, 7)
    assert groups.members(OUTER, 0) == (0, 4)
    assert groups.members(OUTER, 3) == (3, 7)
    assert groups.members(WORLD, 1) == (0, 1, 2, 3)
    assert groups.members("shard", 4) == (4, 6)
    assert groups.members("replica", 4) == (4,)


@pytest.mark.parametrize(
    ("outer", "more", "words"),
    [
        ({"size": 3}, {}, "4 replicas / 3 groups = 1.333 is not whole"),
        ({"size": 2, "local_steps": 10, "fragments": 3}, {}, "10 local steps / 3 fragments = 3.333 is not whole"),
        ({"size": 2, "local_steps": 10, "fragments": 5, "overlap_steps": 3}, {}, "begins every 10 / 5 = 2 steps, but each may take 3"),
        ({"local_steps": 10}, {}, "local_steps 10 are of groups of replicas that step alone, and there is one"),
        ({"size": 2}, {"strategy": "hsdp"}, "not supported yet: local steps with hsdp"),
        ({"size": 2}, {"pipeline": {"size": 2, "schedule": "pipedream"}}, "with ranks that update without waiting"),
    ],
)
def test_what_does_not_fit_is_named(outer: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(trained(outer, **more))
    assert words in str(caught.value)
    assert "parallel.data.outer" in str(caught.value)
