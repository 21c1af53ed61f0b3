"""Machines of several kinds in a scenario: what is built, and what every mistake is told."""

from __future__ import annotations

import pytest

from parsim.errors import InputError
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of

PAIR = [{"use": "hgx-h100"}, {"use": "dgx-a100-80gb", "region": "b"}]
LINK = {"between": ["a", "b"], "bandwidth": "1 Gb/s", "latency": "30 ms"}


def job(cluster, data=None, training=None, **parallel):
    batch = {"sequence_length": 128, "micro_batch": 2, "global_batch": 64, **(training or {})}
    parallel = {"data": data or {"size": 16}, **parallel}
    return build(load({"model": "gpt2", "training": batch, "parallel": parallel, "cluster": cluster}))


def planned(*arguments, **more):
    built = job(*arguments, **more)
    return plan_of(built, clock_of(built))


def refused(*arguments, **more):
    with pytest.raises(InputError) as caught:
        planned(*arguments, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"topology": "hgx-h100", "nodes": PAIR, "regions": [LINK]}, "cluster.topology  the list of nodes names the topologies"),
        ({"nodes": 2}, "cluster.topology  required; write for example topology: dgx-a100-80gb"),
        ({"topology": "hgx-h100", "nodes": 2, "regions": [LINK]}, "cluster.regions  regions join machines of a list"),
        ({"nodes": []}, "there are no machines in the list"),
        ({"nodes": [{"count": 2}]}, "entry 0: use is missing"),
        ({"nodes": [{"use": "hgx-h100", "cont": 2}]}, "entry 0: unknown key 'cont'; did you mean 'count'?"),
        ({"nodes": [{"use": "hgx-h100", "count": 0}]}, "entry 0: count 0 is not a whole number from 1"),
        ({"nodes": [{"use": "hgx-h10"}, {"use": "hgx-h200"}]}, "cluster.nodes.0.use  unknown topology 'hgx-h10'; did you mean 'hgx-h100'"),
        ({"nodes": [{"use": "hgx-h100", "gpus": 9}, {"use": "hgx-h200"}]}, "9 GPUs of every machine requested, hgx-h100 has 8 in each"),
        ({"nodes": [{"use": "hgx-h100", "nics": 9}, {"use": "hgx-h200"}]}, "the machine has 8 NICs, not 9"),
        ({"nodes": PAIR}, "region b is not joined to another region; add regions: [{between: [a, b]"),
        ({"nodes": PAIR, "regions": [{**LINK, "between": ["a", "c"]}]}, "no machines are in region c (regions of cluster.nodes: a, b)"),
        ({"nodes": PAIR, "regions": [{**LINK, "between": ["a", "a"]}]}, "between names ['a', 'a'], not two regions"),
        ({"nodes": PAIR, "regions": [LINK, LINK]}, "cluster.regions.1.between  regions a and b are joined twice"),
        ({"nodes": [*PAIR, {"use": "hgx-h100", "region": "c"}], "regions": [LINK, {**LINK, "between": ["a", "c"]}]}, "no link joins them"),
        ({"nodes": [{"use": "hgx-h100"}, {"use": "mi300x-8"}]}, "have no communication library in common (NCCL, RCCL)"),
        ({"nodes": PAIR, "regions": [LINK], "fabric": {"kind": "full-mesh"}}, "not supported yet: a full-mesh network joined with others"),
        ({"nodes": PAIR, "regions": [LINK], "fabric": {"kind": "fat-tree", "routing": "ecmp"}}, "not supported yet: hashed routing (ecmp)"),
    ],
)
def test_mistakes(cluster, said):
    assert said in refused(cluster)


def test_a_list_comes_back_from_its_document():
    built = job({"nodes": PAIR, "regions": [LINK]})
    again = build(load(built.scenario.document()))
    assert again.cluster.name == built.cluster.name == "1 x hgx-h100 + 1 x dgx-a100-80gb"
    assert again.scenario.document() == built.scenario.document()


def test_the_price_is_that_of_all_gpus_together():
    mixed = job({"nodes": [{"use": "hgx-h100"}, {"use": "dgx-a100-80gb"}]}).cluster
    prices = [job({"topology": name, "nodes": 2}).cluster.price.gpu_hour for name in ("hgx-h100", "dgx-a100-80gb")]
    assert mixed.price.gpu_hour == sum(prices) / 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"strategy": "fsdp", "batch_split": [2] * 8 + [6] * 8},
            "under fsdp they synchronise in each; some would never arrive",
        ),
        ({"batch_split": [2] * 15}, "15 numbers of samples for 16 replicas; write 16 numbers"),
        ({"batch_split": [3] * 16}, "3 samples are 3 / 2 = 1.5 micro-batches; whole ones are needed"),
        ({"batch_split": [2] * 16}, "= 32 samples, but global_batch is 64; write global_batch 32"),
        ({"batch_split": [2] * 8 + [6] * 8, "accumulate": "every"}, "reduced after every micro-batch"),
        ({"batch_split": "fair"}, "even"),
    ],
)
def test_uneven_batches_that_cannot_be(data, said):
    assert said in refused({"nodes": [{"use": "hgx-h100"}, {"use": "dgx-a100-80gb"}]}, data={"size": 16, **data})


def test_uneven_batches_and_pipelines():
    cluster = {"topology": "hgx-h100", "nodes": 2}
    split = {"size": 8, "batch_split": [4] * 4 + [12] * 4}
    for schedule, said in (("pipedream", "not supported yet: replicas with different numbers"), ("dualpipe", "not supported yet")):
        pipeline = {"size": 2, "schedule": schedule}
        assert said in refused(cluster, data=split, pipeline=pipeline)
    assert "blocking messages" in refused(cluster, data=split, pipeline={"size": 2, "overlap_sends": False})
    assert job(cluster, data=split, pipeline={"size": 2}).training.shares == (2,) * 4 + (6,) * 4
