"""Pictures of topologies and collectives: everything is there, nothing lies on anything else, the same bytes every time."""

import itertools

import pytest
from matplotlib.patches import FancyBboxPatch, Rectangle

from parsim.report.plots.collective import MeasuredSize, PredictedSize, collective_figure
from parsim.report.plots.figure import save
from parsim.report.plots.machine import lay_out
from parsim.report.plots.style import BLUE
from parsim.report.plots.topology import blocks, topology_figure
from parsim.scenario.files import names
from parsim.scenario.machines import machines

GRAPH = {
    "name": "two-leaves",
    "device": "a100-pcie-80gb",
    "vertices": ["gpu0..7", "cpu0..3", "nic0..3", "leaf0..1", "spine0"],
    "edges": [
        *({"from": f"gpu{2 * cpu}..{2 * cpu + 1}", "to": f"cpu{cpu}", "kind": "pcie4-x16"} for cpu in range(4)),
        {"from": "nic*", "to": "cpu*", "kind": "pcie4-x16", "pair": "one-to-one"},
        {"from": "nic0..1", "to": "leaf0", "kind": "ib-hdr"},
        {"from": "nic2..3", "to": "leaf1", "kind": "ib-hdr"},
        {"from": "leaf*", "to": "spine0", "kind": "ib-hdr"},
    ],
}


def boxes(ax, kind):
    return [patch.get_window_extent() for patch in ax.patches if isinstance(patch, kind)]


def overlapping(extents):
    return [
        (a, b) for a, b in itertools.combinations(extents, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]  # fmt: skip


MACHINES = (
    "4x-p100-pcie", "4x-v100-sxm2", "8x-l40s-pcie", "8x-rtx-5090-pcie", "aws-g5", "aws-p5", "dgx-1-v100", "dgx-2", "dgx-a100-80gb",
    "gb200-nvl72", "gcp-a3-mega", "hgx-b300", "hgx-h100", "mi300x-8", "single-a100", "workstation-2x-rtx-3090",
)  # fmt: skip
"""one of each form; the others differ in names and rates"""


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one in MACHINES else pytest.mark.slow) for one in names("topologies")])
def test_boxes_of_a_machine_do_not_overlap(name):
    machine = machines(name).machine(0)
    figure = topology_figure(machines(name))
    figure.draw_without_rendering()
    (ax,) = figure.axes
    layout = lay_out(machine)
    found = boxes(ax, FancyBboxPatch)
    assert len(found) == len(layout.place)
    assert not overlapping(found)
    if not layout.gaps:
        assert set(layout.place) == set(machine.graph.nodes)
    for box, text in zip([b for b in ax.patches if isinstance(b, FancyBboxPatch)], ax.texts, strict=False):
        assert text.get_window_extent().width <= box.get_window_extent().width + 1.0, text.get_text()


def test_equal_trays_are_left_out():
    layout = lay_out(machines("gb200-nvl72").machine(0))
    assert [count for _, count in layout.gaps] == [15]
    assert {"gpu0", "gpu7", "gpu68", "gpu71", "nvswitch"} <= set(layout.place)
    assert "gpu8" not in layout.place


def test_128_machines_are_all_there():
    cluster = machines("dgx-a100-80gb", 128)
    figure = topology_figure(cluster)
    figure.draw_without_rendering()
    above, below = figure.axes
    squares = [patch for patch in above.patches if isinstance(patch, Rectangle) and patch.get_facecolor()[:3] == pytest.approx(_rgb(BLUE))]
    assert len(squares) == 128
    assert not overlapping([patch.get_window_extent() for patch in squares])
    labels = [text for text in above.texts if text.get_text().startswith("machines") or "-" in text.get_text()]
    assert [text.get_text() for text in labels][:2] == ["machines 0-19", "machines 20-39"]
    assert not overlapping([text.get_window_extent() for text in labels])
    assert len(boxes(below, FancyBboxPatch)) == len(lay_out(cluster.machine(0)).place)


def _rgb(colour):
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def test_machines_by_leaves():
    groups = blocks(machines("dgx-a100-80gb", 50))
    assert [(group.machines[0], len(group.machines), len(group.leaves), group.cables) for group in groups] == [
        (0, 20, 8, 1),
        (20, 20, 8, 1),
        (40, 10, 8, 1),
    ]
    (group,) = blocks(machines("8x-rtx-4090-pcie", 3))
    assert (len(group.machines), group.leaves) == (3, (0,))


@pytest.mark.parametrize(
    ("topology", "nodes", "fabric"),
    [
        ("dgx-a100-80gb", 2048, None),
        ("dgx-1-v100", 32, None),
        ("hgx-h100", 3, {"kind": "full-mesh"}),
        ("8x-rtx-4090-pcie", 16, {"kind": "torus", "dims": [4, 2, 2]}),
        (GRAPH, 1, None),
    ],
)
def test_every_kind_of_fabric_is_drawn(topology, nodes, fabric):
    cluster = machines(topology, nodes, fabric=fabric)
    picture = save(topology_figure(cluster))
    assert picture == save(topology_figure(cluster))
    assert len(picture) < 3e6


DOTS = [
    PredictedSize(2**power, 1e-5 + 2**power / 1e11, 1.0 + 2**power, "ring" if power > 20 else "tree", "simple" if power > 22 else "ll")
    for power in range(10, 30)
]


def test_a_collective_names_its_algorithms():
    figure = collective_figure(DOTS, [MeasuredSize(2**20, 2e-5, 1e9), MeasuredSize(2**20, 2e-5, 1e9, in_place=True)], title="all-reduce")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "tree ll",
        "ring ll",
        "ring simple",
        "measured, out of place",
        "measured, in place",
    ]
    above, below = figure.axes
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    figure.draw_without_rendering()
    for labels in (below.get_xticklabels(), below.get_yticklabels(), above.get_yticklabels()):
        assert not overlapping([label.get_window_extent() for label in labels if label.get_text()])
    assert save(figure) == save(figure)


def test_odd_cases_of_a_collective():
    for dots in ([], DOTS[:1], [PredictedSize(0, 1e-5, 0.0, "ring", "ll"), PredictedSize(8, 1e-5, 8e5, "unheard-of", "x")]):
        assert save(collective_figure(dots, title="全归约"))
