"""The storage as a vertex behind the fabric: what machines write at once, against the closed form and against cuts worked out by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.storage import VERTEX, Storage, storage_link, writing
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.simulation.checkpoint_write import time_of

TB = 1e12


def cluster(nodes: int, topology: str = "hgx-h100", **fabric: object) -> Cluster:
    return build(
        load(
            {
                "model": {"base": "gpt2", "layers": 1}, "cluster": {"topology": topology, "nodes": nodes, "fabric": fabric},
                "training": {"sequence_length": 64, "micro_batch": 1, "gradient_accumulation": 1},
            }
        )
    ).cluster  # fmt: skip


def seconds(made: Cluster, storage: Storage, volumes: dict[int, float]) -> float:
    into = storage_link(made)
    flows = writing(made, storage, volumes).flows
    return time_of(flows, lambda link: storage.bandwidth if link == into else made.capacity(link))


WIDE = cluster(16)


@given(
    machines=st.integers(1, 16), bandwidth=st.sampled_from([50e9, 500e9, 2e12, inf]), per_node=st.sampled_from([5e9, 100e9, inf]),
)  # fmt: skip
def test_equal_machines_on_a_network_that_does_not_block_meet_the_closed_form(machines: int, bandwidth: float, per_node: float) -> None:
    storage = Storage(bandwidth, per_node)
    volumes = dict.fromkeys(range(machines), TB / machines)
    assert seconds(WIDE, storage, volumes) == pytest.approx(TB / storage.rate(WIDE, machines), rel=1e-9)


def test_leaves_that_are_too_thin_hold_machines_up() -> None:
    """Leaves of 4 machines with 8 cables each, trunks a quarter as wide as their cables: 6 machines, so 4 under one trunk."""
    thin = cluster(6, kind="fat-tree", leaf_ports=32, oversubscription=4)
    cable = thin.capacity(thin.first_fabric_link)
    volumes = dict.fromkeys(range(6), TB)
    assert seconds(thin, Storage(inf), volumes) == pytest.approx(4 * TB / (8 * cable), rel=1e-9)
    assert seconds(thin, Storage(8 * cable), volumes) == pytest.approx(6 * TB / (8 * cable), rel=1e-9), "the storage is what all wait for"
    # the two behind the wide half get half of 12 cables' worth until they are done: 2 TB at 6 cables, then 4 at up to 8
    assert seconds(thin, Storage(12 * cable), volumes) == pytest.approx(4 * TB / (8 * cable), rel=1e-9)


def test_unequal_shares_end_one_after_the_other() -> None:
    """1 and 3 TB into 100 GB/s: 2 TB together in 20 s, then the rest alone at 100 GB/s; a machine alone at 60 GB/s takes 50 s."""
    assert seconds(WIDE, Storage(100e9), {0: TB, 1: 3 * TB}) == pytest.approx(40.0)
    assert seconds(WIDE, Storage(100e9, 60e9), {0: TB, 1: 3 * TB}) == pytest.approx(20.0 + 2 * TB / 60e9)


def test_the_graph_has_it() -> None:
    """As a vertex at the core: its one link is behind all others, and not one of the fabric."""
    made = cluster(16)
    assert VERTEX not in made.graph()
    made.storage = Storage(TB)
    graph = made.graph()
    edges = {(a, b): data for a, b, data in graph.edges(data=True) if VERTEX in (a, b)}
    assert {data["id"] for data in edges.values()} == {made.link_count}
    assert {data["link"].capacity for data in edges.values()} == {TB}
    assert {a for a, b in edges if b == VERTEX} == {"spine"}
    assert VERTEX not in made.fabric_graph()
