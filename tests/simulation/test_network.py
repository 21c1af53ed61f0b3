"""The fluid network: hand-solved cases, laws, and a plain exact solver as the second way to compute.

Most hand-solved cases are classics (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2; the parking lot);
capacities are in GB/s and volumes in GB where a case does not say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isclose

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import ParsimError
from parsim.hardware.flows import Flow
from parsim.simulation.network import Network
from parsim.simulation.sharing import fair_rates

FREE = 1000
"""a cap that never binds"""


@dataclass(frozen=True)
class Start:
    """A flow that starts at a time."""

    at: object
    flow: Flow


class Counting(Network):
    """A network that remembers when it solved."""

    def __init__(self, *args):
        super().__init__(*args)
        self.settles = []

    def _settle(self, event):
        self.settles.append(self.env.now)
        super()._settle(event)


def flow(number, links, volume=1, cap=FREE, weight=1):
    """A flow over links (a list of ids, or a dict id -> coefficient) in the given kind of number."""
    path = links.items() if isinstance(links, dict) else [(link, 1) for link in links]
    return Flow(tuple((link, number(coefficient)) for link, coefficient in path), number(volume), number(cap), number(weight))


def carry(starts, capacity, changes=()):
    """Finishing times of flows, and the network that carried them."""
    env = simpy.Environment()
    network = Counting(env, lambda link: capacity[link])
    ends = [None] * len(starts)

    def end(index):
        ends[index] = env.now

    def begin(event):
        one = starts[event.value].flow
        network.start(network.bundle(one.path, one.cap, one.weight), one.volume, end, event.value)

    for index, start in enumerate(starts):
        env.timeout(start.at, index).callbacks.append(begin)
    for at, link, value in changes:
        env.timeout(at, (link, value)).callbacks.append(lambda event: network.set_capacity(*event.value))
    env.run()
    return ends, network


def plain_rates(flows, capacity):
    """Exact progressive filling as it is defined: all rates grow together, one object per flow."""
    rates = [Fraction(0)] * len(flows)
    room = {link: Fraction(value) for link, value in capacity.items()}
    growing = list(range(len(flows)))
    while growing:
        load = dict.fromkeys(room, Fraction(0))
        for index in growing:
            for link, coefficient in flows[index].path:
                load[link] += Fraction(coefficient) * Fraction(flows[index].weight)
        steps = [room[link] / load[link] for link in room if load[link]]
        steps += [(Fraction(flows[index].cap) - rates[index]) / Fraction(flows[index].weight) for index in growing]
        step = min(steps)
        for index in growing:
            rates[index] += step * Fraction(flows[index].weight)
        for link in room:
            room[link] -= step * load[link]
        growing = [
            index for index in growing if rates[index] < Fraction(flows[index].cap) and all(room[link] > 0 for link, _ in flows[index].path)
        ]
    return rates


def plain_ends(starts, capacity):
    """Exact finishing times: everything is solved again at every start and finish."""
    left = {index: Fraction(start.flow.volume) for index, start in enumerate(starts)}
    waiting = sorted(range(len(starts)), key=lambda index: Fraction(starts[index].at))
    ends, under_way, now = [None] * len(starts), [], Fraction(0)
    while waiting or under_way:
        rates = plain_rates([starts[index].flow for index in under_way], capacity)
        times = [now + left[index] / rate for index, rate in zip(under_way, rates, strict=True) if rate]
        if waiting:
            times.append(Fraction(starts[waiting[0]].at))
        then = min(times)
        for index, rate in zip(under_way, rates, strict=True):
            left[index] -= rate * (then - now)
            if not left[index]:
                ends[index] = then
        now = then
        under_way = [index for index in under_way if ends[index] is None]
        while waiting and Fraction(starts[waiting[0]].at) == now:
            under_way.append(waiting.pop(0))
    return ends


NUMBERS = pytest.mark.parametrize("number", [float, Fraction])


def same(number, found, expected):
    """Equal where numbers are exact, to the last bits where they are not."""
    if number is Fraction:
        return list(found) == [Fraction(value) for value in expected]
    return found == pytest.approx([float(value) for value in expected], rel=1e-15, abs=0)


RATES = {
    # three flows, links 10 and 4: the one on both is held by the second link
    "two links": ({0: 10, 1: 4}, [[0], [0, 1], [1]], [8, 2, 2]),
    "parking lot": ({1: 9, 2: 9, 3: 9}, [[1, 2, 3], [1], [2], [2], [3]], [3, 6, 3, 3, 6]),
    "full network cards, 2:1 trunk": ({**dict.fromkeys(range(8), 25), 8: 100}, [[rail, 8] for rail in range(8)], [Fraction(25, 2)] * 8),
    "one card per two devices": (dict.fromkeys(range(4), 25), [[rail // 2] for rail in range(8)], [Fraction(25, 2)] * 8),
    "hashed 3 + 1": ({0: 50, 1: 50}, [[0], [0], [0], [1]], [Fraction(50, 3)] * 3 + [50]),
    "hashed 2 + 2": ({0: 50, 1: 50}, [[0], [0], [1], [1]], [25] * 4),
    "half-duplex bus crossed twice": ({0: 24}, [{0: 2}, [0]], [8, 8]),
    # two devices send to one card while both receive host data through one upstream port
    "PCIe switch": ({0: 24, 1: 24, 2: 25, 3: 24, 4: 24, 5: 24}, [[0, 2], [1, 2], [5, 3], [5, 4]], [12.5, 12.5, 12, 12]),
    "32 flows on a sprayed trunk": ({**dict.fromkeys(range(32), 50), 32: 1000}, [[node, 32] for node in range(32)], [31.25] * 32),
    "32 flows on a wide trunk": ({**dict.fromkeys(range(32), 50), 32: 2000}, [[node, 32] for node in range(32)], [50] * 32),
}


@NUMBERS
@pytest.mark.parametrize("case", RATES)
def test_hand_solved_rates(case, number):
    capacity, paths, expected = RATES[case]
    capacity = {link: number(value) for link, value in capacity.items()}
    assert same(number, fair_rates([flow(number, path) for path in paths], capacity.get), expected)


def leaf_ring(order, nodes_per_leaf=2):
    """Links of a ring over nodes of two leaves: 0-3 egress, 10-13 ingress, 20/21 leaf uplinks, 30/31 downlinks."""
    links: dict[int, int] = {}
    for one, other in zip(order, order[1:] + order[:1], strict=True):
        crossed = [one, 10 + other]
        if one // nodes_per_leaf != other // nodes_per_leaf:
            crossed += [20 + one // nodes_per_leaf, 30 + other // nodes_per_leaf]
        for link in crossed:
            links[link] = links.get(link, 0) + 1
    return links


@NUMBERS
def test_a_ring_crosses_each_uplink_as_often_as_its_order_says(number):
    capacity = {link: number(25) for link in (*range(4), *range(10, 14), 20, 21, 30, 31)}
    good, bad = flow(number, leaf_ring([0, 1, 2, 3])), flow(number, leaf_ring([0, 2, 1, 3]))
    assert same(number, fair_rates([good], capacity.get), [25])
    assert same(number, fair_rates([bad], capacity.get), [12.5])
    assert same(number, fair_rates([good, good], capacity.get), [12.5, 12.5])


def box_ring(order):
    """Links of a ring over 8 devices of two sockets: 0-7 up, 10-17 down, 20 and 21 between the sockets."""
    links: dict[int, int] = {}
    for one, other in zip(order, order[1:] + order[:1], strict=True):
        for link in (one, 10 + other, *([20 + one // 4] if one // 4 != other // 4 else [])):
            links[link] = links.get(link, 0) + 1
    return links


@NUMBERS
def test_two_socket_box(number):
    capacity = {**{link: number(24) for link in (*range(8), *range(10, 18))}, 20: number(10), 21: number(10)}
    volume = number(Fraction(7, 4))  # an all-reduce of 1 GB sends 2 * 7/8 GB over each edge
    for order, rate, time in (([*range(8)], 10, Fraction(175, 1000)), ([0, 4, 1, 5, 2, 6, 3, 7], 2.5, Fraction(700, 1000))):
        ring = flow(number, box_ring(order), volume)
        assert same(number, fair_rates([ring], capacity.get), [rate])
        assert same(number, carry([Start(0, ring)], capacity)[0], [time])
    groups = [flow(number, box_ring([0, 1, 4, 5])), flow(number, box_ring([2, 3, 6, 7]))]
    assert same(number, fair_rates(groups, capacity.get), [5, 5])


@NUMBERS
def test_a_cap_leaves_the_rest_to_others(number):
    flows = [flow(number, [0], cap=30), flow(number, [0])]
    assert same(number, fair_rates(flows, {0: number(100)}.get), [30, 70])


MS = Fraction(1, 1000)
TIMES = {
    "1 and 2 GB together": ({0: 10}, [(0, [0], 1, 1), (0, [0], 2, 1)], [200 * MS, 300 * MS]),
    "the second 50 ms later": ({0: 10}, [(0, [0], 1, 1), (50 * MS, [0], 1, 1)], [150 * MS, 200 * MS]),
    "ring and send on one card": ({0: 25}, [(0, [0], 1.5, 1), (0, [0], 0.5, 1)], [80 * MS, 40 * MS]),
    "the ring with weight 2": ({0: 25}, [(0, [0], 1.5, 2), (0, [0], 0.5, 1)], [80 * MS, 60 * MS]),
    "three sends into a ring": (
        {0: 25},
        [(0, [0], 2, 1), *((at * MS, [0], Fraction(1, 10), 1) for at in (10, 50, 90))],
        [88 * MS, 18 * MS, 58 * MS, 94 * MS],
    ),
    "a card for each group": (dict.fromkeys(range(8), 25), [(0, [rail], 1, 1) for rail in range(8)], [40 * MS] * 8),
    "a card for two groups": (dict.fromkeys(range(4), 25), [(0, [rail // 2], 1, 1) for rail in range(8)], [80 * MS] * 8),
    "2:1 trunk": ({**dict.fromkeys(range(8), 25), 8: 100}, [(0, [rail, 8], 1, 1) for rail in range(8)], [80 * MS] * 8),
    "2:1 trunk folded": ({0: 25, 8: 100}, [(0, {0: 1, 8: 8}, 1, 1)], [80 * MS]),
    "hashed 3 + 1": ({0: 50, 1: 50}, [(0, [link], 1, 1) for link in (0, 0, 0, 1)], [60 * MS] * 3 + [20 * MS]),
    "hashed 2 + 2": ({0: 50, 1: 50}, [(0, [link], 1, 1) for link in (0, 0, 1, 1)], [40 * MS] * 4),
    # ring 0-1-2-3 with 3 GB per edge... of which 2 GB at full rate after the send has gone
    "ring and send share egress and uplink": (
        dict.fromkeys((*range(4), *range(10, 14), 20, 21, 30, 31), 25),
        [(0, leaf_ring([0, 1, 2, 3]), 3, 1), (0, [0, 20, 30, 12], 1, 1)],
        [160 * MS, 80 * MS],
    ),
    "full duplex": ({0: 25, 1: 25}, [(0, [0], 1, 1), (0, [1], 1, 1)], [40 * MS] * 2),
    "half duplex": ({0: 25}, [(0, [0], 1, 1), (0, [0], 1, 1)], [80 * MS] * 2),
}


@NUMBERS
@pytest.mark.parametrize("case", TIMES)
def test_hand_solved_times(case, number):
    capacity, starts, expected = TIMES[case]
    capacity = {link: number(value) for link, value in capacity.items()}
    starts = [Start(number(at), flow(number, links, volume, weight=weight)) for at, links, volume, weight in starts]
    ends, network = carry(starts, capacity)
    assert same(number, ends, expected)
    for link, use in network.use().items():
        total = sum(start.flow.volume * dict(start.flow.path).get(link, 0) for start in starts)
        assert use.bytes == pytest.approx(float(total), rel=1e-15)


def test_a_folded_class_takes_exactly_as_long():
    capacity = {**dict.fromkeys(range(8), 24e9), 8: 93e9}
    apart, _ = carry([Start(0.0, flow(float, [rail, 8], 1.1e9, 25e9)) for rail in range(8)], capacity)
    folded, _ = carry([Start(0.0, flow(float, {0: 1, 8: 8}, 1.1e9, 25e9))], capacity)
    assert set(apart) == set(folded)


@NUMBERS
def test_capacity_halved_under_way(number):
    starts = [Start(number(0), flow(number, [0], 8))]
    ends, _ = carry(starts, {0: number(10)}, [(number(Fraction(4, 10)), 0, number(5))])
    assert same(number, ends, [Fraction(12, 10)])


@NUMBERS
def test_a_link_that_fails_and_returns(number):
    starts = [Start(number(0), flow(number, [0], 8, cap=10))]
    ends, _ = carry(starts, {0: number(10)}, [(number(Fraction(4, 10)), 0, number(0)), (number(1), 0, number(20))])
    assert same(number, ends, [Fraction(14, 10)])


@NUMBERS
def test_more_capacity_frees_flows_that_were_held(number):
    starts = [Start(number(0), flow(number, [0], 2, cap=4)), Start(number(0), flow(number, [0], 2, cap=4))]
    ends, _ = carry(starts, {0: number(4)}, [(number(Fraction(1, 2)), 0, number(100))])
    assert same(number, ends, [Fraction(3, 4)] * 2)


def test_nothing_to_carry_ends_at_once():
    ends, network = carry([Start(3.0, flow(float, [0], volume=0))], {0: 10.0})
    assert ends == [3.0]
    assert network.events == 0
    assert network.use() == {}


def test_an_empty_path_runs_at_its_cap():
    assert carry([Start(1.0, flow(float, [], volume=8, cap=4))], {})[0] == [3.0]


def test_no_capacity_is_no_progress():
    ends, network = carry([Start(0.0, flow(float, [0, 1])), Start(0.0, flow(float, [1]))], {0: 0.0, 1: 10.0})
    assert ends == [None, 0.1]
    [(bundle, arguments)] = network.stuck()
    assert arguments == [0]
    assert [link.identity for link, _ in bundle.path if not link.capacity] == [0]
    assert network.use()[0].saturated == 0


@pytest.mark.parametrize(
    ("path", "cap", "weight", "message"),
    [
        (((0, 1.0),), float("inf"), 1.0, "cap of a flow (=inf)"),
        (((0, 1.0),), -1.0, 1.0, "cap of a flow (=-1.0)"),
        (((0, 1.0),), 1.0, 0.0, "weight (=0.0)"),
        (((0, -1.0),), 1.0, 1.0, "coefficients"),
        (((1, 1.0),), 1.0, 1.0, "capacity of link 1 (=nan)"),
    ],
)
def test_numbers_that_no_flow_can_have(path, cap, weight, message):
    network = Network(simpy.Environment(), {0: 1.0, 1: float("nan")}.__getitem__)
    with pytest.raises(ParsimError) as failure:
        network.bundle(path, cap, weight)
    assert message in str(failure.value)


def test_paths_that_differ_in_order_only_are_one_bundle():
    network = Network(simpy.Environment(), lambda _: 1.0)
    assert network.bundle(((0, 1.0), (1, 2.0), (0, 1.0)), 1.0) is network.bundle(((1, 2.0), (0, 2.0)), 1.0)


def test_one_settle_for_all_that_happens_at_one_time():
    env = simpy.Environment()
    network = Counting(env, {0: 10.0}.get)
    ends = []

    def start(argument):
        ends.append((env.now, argument))
        if argument < 4:  # a finish starts two more at the same time
            for number in (1, 2):
                network.start(bundle if number == 1 else other, 1.0, start, argument * 2 + number)

    bundle, other = network.bundle(((0, 1.0),), 100.0), network.bundle(((0, 1.0),), 99.0)
    for argument in (0, 0, 0):
        network.start(bundle, 1.0, start, argument)
    env.run()
    assert len(ends) == 3 + 6 + 12 + 6
    assert network.settles == sorted({0, *(time for time, _ in ends)})


def test_equal_flows_counted_equal_equal_flows_started():
    def run(*, counted):
        env = simpy.Environment()
        network = Network(env, {0: 10.0, 1: 7.0}.get)
        ends = []
        many, one = network.bundle(((0, 1.0),), 3.0), network.bundle(((0, 1.0), (1, 1.0)), 8.0)
        for _ in range(1 if counted else 4):
            network.start(many, 5.0, lambda _: ends.append(env.now), members=4 if counted else 1)
        network.start(one, 5.0, lambda _: ends.append(env.now))
        env.run()
        return sorted(set(ends)), network.use()

    assert run(counted=True) == run(counted=False)


def test_saturated_time_of_a_link_that_one_flow_fills_exactly():
    _, network = carry([Start(0.5, flow(float, [0, 1], 1e9, cap=25e9))], {0: 25e9, 1: 30e9})
    assert network.use()[0].saturated == pytest.approx(0.04, rel=1e-12)
    assert network.use()[1].saturated == 0
    assert network.use()[1].bytes == 1e9


def test_saturated_time_while_enough_flows_share():
    starts = [Start(0.0, flow(float, [0], 1.0, cap=5)), Start(0.1, flow(float, [0], 1.0, cap=5)), Start(0.15, flow(float, [0], 0.1, cap=1))]
    _, network = carry(starts, {0: 10.0})
    # two at 5 from 0.1 s on; with the third 4.5 + 4.5 + 1; the first ends when 1.0 = 0.5 + 0.25 + ... is done
    assert network.use()[0].saturated == pytest.approx(network_saturated(starts, 10.0), rel=1e-9)


def network_saturated(starts, capacity):
    """Saturated time by exact rates between all starts and ends."""
    ends = plain_ends(starts, {0: capacity})
    times = sorted({Fraction(start.at) for start in starts} | set(ends))
    total = Fraction(0)
    for begin, end in pairwise(times):
        active = [start.flow for start, over in zip(starts, ends, strict=True) if Fraction(start.at) <= begin and over >= end]
        if sum(plain_rates(active, {0: capacity})) >= Fraction(999, 1000) * Fraction(capacity):
            total += end - begin
    return float(total)


def test_saturation_ends_when_a_neighbour_is_held_elsewhere():
    # link 0 is filled by two flows at cap 5, but not while a third holds one of them on link 1, from 0.5 to 0.9 s
    starts = [
        Start(0.0, flow(float, [0], 5.0, cap=5)),
        Start(0.0, flow(float, [0, 1], 5.0, cap=5)),
        Start(0.5, flow(float, [1], 1.0, cap=5)),
    ]
    _, network = carry(starts, {0: 10.0, 1: 5.0})
    assert network.use()[0].saturated == pytest.approx(0.6)
    assert network.use()[1].saturated == pytest.approx(1.2)  # always: 6 GB at 5 GB/s
    assert network.use()[1].bytes == 6.0


LINKS = 5
paths = st.dictionaries(st.integers(0, LINKS - 1), st.sampled_from([1.0, 2.0]), max_size=4)
flows = st.builds(
    lambda links, volume, cap, weight: flow(float, links, volume, cap, weight),
    paths,
    st.floats(0.01, 10.0),
    st.floats(0.5, 20.0),
    st.sampled_from([1.0, 2.0, 3.5]),
)
capacities = st.fixed_dictionaries({link: st.floats(1.0, 30.0) for link in range(LINKS)})
starts = st.lists(st.builds(Start, st.floats(0.0, 3.0), flows), min_size=1, max_size=12)


@given(st.lists(flows, min_size=1, max_size=14), capacities)
@settings(max_examples=150, deadline=None)
def test_rates_equal_the_exact_ones(some, capacity):
    exact = plain_rates(some, capacity)
    assert all(isclose(found, value, rel_tol=1e-12) for found, value in zip(fair_rates(some, capacity.get), exact, strict=True))
    rational = [
        Flow(tuple((link, Fraction(a)) for link, a in one.path), Fraction(one.volume), Fraction(one.cap), Fraction(one.weight))
        for one in some
    ]
    assert fair_rates(rational, {link: Fraction(value) for link, value in capacity.items()}.get, tolerance=0) == exact


@given(st.lists(flows, min_size=1, max_size=14), capacities)
@settings(max_examples=100, deadline=None)
def test_rates_are_weighted_max_min(some, capacity):
    rates = fair_rates(some, capacity.get)
    load = dict.fromkeys(capacity, 0.0)
    for one, rate in zip(some, rates, strict=True):
        for link, coefficient in one.path:
            load[link] += coefficient * rate
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for one, rate in zip(some, rates, strict=True):
        level = rate / one.weight
        bottlenecks = [
            link
            for link, _ in one.path
            if load[link] >= capacity[link] * (1 - 1e-9)
            and all(other / that.weight <= level * (1 + 1e-9) for that, other in zip(some, rates, strict=True) if link in dict(that.path))
        ]
        assert rate >= one.cap * (1 - 1e-12) or bottlenecks


@given(starts, capacities)
@settings(max_examples=150, deadline=None)
def test_incremental_equals_solving_everything(some, capacity):
    exact = plain_ends(some, capacity)
    ends, network = carry(some, capacity)
    assert all(isclose(found, value, rel_tol=1e-11) for found, value in zip(ends, exact, strict=True))
    assert not network.stuck()


@given(st.lists(st.builds(Start, st.floats(0.0, 2.0), flows), min_size=1, max_size=4), st.integers(2, 4), capacities)
@settings(max_examples=60, deadline=None)
def test_bundles_equal_one_object_per_flow(some, copies, capacity):
    many = [start for start in some for _ in range(copies)]
    exact = plain_ends(many, capacity)
    ends, _ = carry(many, capacity)
    assert all(isclose(found, value, rel_tol=1e-11) for found, value in zip(ends, exact, strict=True))


@given(starts, capacities)
@settings(max_examples=40, deadline=None)
def test_in_rationals_time_is_exact(some, capacity):
    rational = [
        Start(
            Fraction(start.at),
            Flow(
                tuple((link, Fraction(a)) for link, a in start.flow.path),
                Fraction(start.flow.volume),
                Fraction(start.flow.cap),
                Fraction(start.flow.weight),
            ),
        )
        for start in some
    ]
    ends, _ = carry(rational, {link: Fraction(value) for link, value in capacity.items()})
    # flows that end within 1e-12 of each other end together, else nothing is rounded
    assert all(isclose(found, value, rel_tol=1e-11) for found, value in zip(ends, plain_ends(some, capacity), strict=True))


@given(starts, capacities)
@settings(max_examples=60, deadline=None)
def test_links_carry_what_flows_bring(some, capacity):
    _, network = carry(some, capacity)
    use = network.use()
    for link, value in capacity.items():
        total = sum(start.flow.volume * dict(start.flow.path).get(link, 0.0) for start in some)
        assert (use[link].bytes if link in use else 0.0) == pytest.approx(total)
        if link in use:
            assert 0 <= use[link].saturated * value * 0.999 <= total * (1 + 1e-9)
