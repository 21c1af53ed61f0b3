"""Transfers that are copies of each other: priced once, they are what each costs by itself."""

from __future__ import annotations

import pytest

from parsim.hardware.interconnect import Interconnect
from parsim.program.program import Collective
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of


def job(topology, nodes, **parallel):
    tree = {
        "model": {"base": "gpt3-1.3b", "layers": 4},
        "training": {"sequence_length": 512, "micro_batch": 1, "global_batch": 240},
        "parallel": {"data": {"strategy": "ddp"}, **parallel},
        "cluster": {"topology": topology, "nodes": nodes},
    }
    built = build(load(tree))
    plan = plan_of(built, clock_of(built))
    return plan, Interconnect(built.cluster, plan.gpus, built.collectives)


def groups_of(plan, axis):
    return list(dict.fromkeys(plan.mesh.group(rank, axis) for rank in range(plan.mesh.ranks)))


def sends_of(plan, source, target):
    return [(rank, plan.mesh.move(rank, "pipeline", target)) for rank in plan.mesh.at(pipeline=source)]


@pytest.mark.parametrize("topology", ["dgx-a100-80gb", "hgx-h100", "aws-p4d"])
@pytest.mark.parametrize(
    ("nodes", "parallel"), [(12, {"tensor": {"size": 4}, "pipeline": {"size": 2}}), (40, {"tensor": {"size": 8}, "pipeline": {"size": 4}})]
)
def test_copies_cost_what_they_cost_alone(topology, nodes, parallel):
    """Row by row: latency, volumes, rates, coefficients and links; fewer prices than groups."""
    plan, wires = job(topology, nodes, **parallel)
    asked = [
        (kind, groups_of(plan, axis), size) for kind, axis, size in (("all_gather", "tensor", 1 << 22), ("all_reduce", "data", 1 << 26))
    ]
    asked += [
        ("send", sends_of(plan, 0, 1), 1 << 20),
        ("send", sends_of(plan, 1, 0), 1 << 20),
        ("all_reduce", groups_of(plan, "tensor"), 64),
    ]
    for kind, groups, size in asked:
        found = wires.equal_transfers(kind, groups, size)
        assert sorted(place for batch in found for place in batch.places.tolist()) == list(range(len(groups)))
        for batch in found:
            for place, row in zip(batch.places.tolist(), batch.links.tolist(), strict=True):
                alone = wires.cost(Collective(kind, "any", groups[place], size))
                assert (alone.latency, alone.algorithm, alone.protocol) == (batch.cost.latency, batch.cost.algorithm, batch.cost.protocol)
                assert [(f.volume, f.cap, f.weight, [a for _, a in f.path]) for f in alone.flows] == [
                    (f.volume, f.cap, f.weight, [a for _, a in f.path]) for f in batch.cost.flows
                ]
                assert [link for flow in alone.flows for link, _ in flow.path] == row


def test_a_node_group_is_priced_once():
    plan, wires = job("dgx-a100-80gb", 40, tensor={"size": 8}, pipeline={"size": 4})
    assert len(wires.equal_transfers("all_gather", groups_of(plan, "tensor"), 1 << 22)) == 1
