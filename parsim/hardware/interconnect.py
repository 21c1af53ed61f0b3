"""Communication as a program sees it: ranks instead of GPUs, and many equal transfers priced once.

In a cluster of equal machines a group costs the same some machines further on, over the links of those machines and of their
leaf switches, if its machines share leaves there in the same way. Such groups are found here, with the links of each as
a row of an array. The last group of every such class is priced by itself too; if that does not give what was computed from the
first, nobody is taken for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.flows import CollectiveCost, CollectiveFacts
from parsim.hardware.nccl.cost import collective_cost as nccl_cost
from parsim.hardware.nccl.cost import collective_estimate
from parsim.hardware.nccl.inputs import COLLECTIVES, Settings
from parsim.hardware.nccl.token_exchange import TokenExchange, token_exchange_cost
from parsim.hardware.transfers import COPIES, host_cost

TINY = 16 * 1024
"""Messages of up to this many bytes are latency and occupy no link: a scalar all-reduce over a tree would otherwise make every
node of the tree a class of its own, for a load that nobody can measure."""


class Interconnect:
    """Costs of collectives among ranks that sit on the GPUs of `placement`; equal questions are answered once."""

    def __init__(
        self, cluster: Cluster, placement: Sequence[int], settings: Settings | None = None, tokens: TokenExchange | None = None
    ) -> None:
        self.cluster = cluster
        self.placement = tuple(placement)
        self.settings = settings
        """profile, algorithm and protocol of NCCL's model; None: rings and trees on the graph's capacities"""
        self.tokens = tokens
        """how kernels that send a token once to each place move tokens; None: none do"""
        self._costs: dict[tuple[str, tuple[int, ...], int], CollectiveCost] = {}
        """by kind, GPUs and bytes"""
        self._known: dict[tuple[str, tuple[int, ...], int], CollectiveCost] = {}
        """the same by ranks"""
        self._examples: dict[bytes, tuple[int, ...]] = {}
        """how a group lies on the machines -> the first such group"""

    def cost(self, collective: CollectiveFacts) -> CollectiveCost:
        """Latency and flows of `collective`.

        Raises:
            TopologyError: members that cannot reach each other.
        """
        key = (collective.kind, collective.group, collective.bytes)
        if (known := self._known.get(key)) is None:
            group = tuple(map(self.placement.__getitem__, collective.group))
            known = self._known[key] = self._of(group, collective.kind, collective.bytes)
        return known

    def equal_transfers(self, kind: str, groups: Numbers, size: int) -> list[EqualTransfers]:
        """What many transfers of `size` bytes cost (a row of ranks each), those together that cost the same on other links."""
        placed = np.array(self.placement)[groups]
        return equal_transfers(self.cluster, placed, lambda group: self._of(group, kind, size))

    def examples(self, groups: Numbers) -> list[tuple[int, ...]]:
        """One group for every way in which groups (a row of ranks each) lie on the machines: what holds for one holds for its likes."""
        placed = np.array(self.placement)[groups]
        firsts = [int(alike[0]) for alike in shapes(self.cluster, placed)]
        rows = signatures(self.cluster, placed[firsts])
        return [self._examples.setdefault(row.tobytes(), tuple(groups[first].tolist())) for first, row in zip(firsts, rows, strict=True)]

    def _of(self, group: tuple[int, ...], kind: str, size: int) -> CollectiveCost:
        """What a transfer among GPUs costs."""
        key = (kind, group, size)
        if (known := self._costs.get(key)) is None:
            known = self._costs[key] = self._price(group, kind, size)
        return known

    def _price(self, group: tuple[int, ...], kind: str, size: int) -> CollectiveCost:
        if kind in COPIES:
            return host_cost(self.cluster, group[0], kind, size)
        if self.tokens is not None and kind == "token_exchange":
            return token_exchange_cost(self.cluster, group, size, self.tokens)
        if self.settings is None:
            from parsim.hardware.collectives import collective_cost as ring_cost

            return ring_cost(self.cluster, group, kind, size)
        if size > TINY:
            return nccl_cost(self.cluster, group, kind, size, self.settings)
        if kind in COLLECTIVES and len(group) > 1:
            one = collective_estimate(self.cluster, group, kind, size, self.settings)
            return CollectiveCost(one.time, (), one.choice.algorithm, one.choice.protocol)
        timed = nccl_cost(self.cluster, group, kind, size, self.settings)
        return CollectiveCost(timed.time, (), timed.algorithm, timed.protocol)

    def capacity(self, link: int) -> float:
        """Effective bandwidth of a link [B/s]."""
        return self.cluster.capacity(link)

    def capacities(self, links: Numbers) -> NDArray[np.float64]:
        """Effective bandwidths of many links [B/s]."""
        return self.cluster.capacities(links)

    def slack(self, links: Numbers) -> Numbers:
        """Links that can never be full before others on every path through them are: 1 up, 2 down; 0: any other."""
        return self.cluster.slack(links)


# groups that are copies of each other


Numbers = NDArray[np.int64]
Price = Callable[[tuple[int, ...]], CollectiveCost]
_FEW = 16
"""kinds of groups that are looked for one by one; more are sorted"""


@dataclass(frozen=True)
class EqualTransfers:
    """Transfers that cost the same on other links."""

    places: Numbers
    """which of the groups asked for"""
    cost: CollectiveCost
    """of the first"""
    links: Numbers
    """per group a row: the links of its flows' paths, one flow after the other"""


def equal_transfers(cluster: Cluster, groups: Numbers, price: Price) -> list[EqualTransfers]:
    """All groups (a row of GPUs each) in classes of equal cost; `price` says what one group costs."""
    classes: list[EqualTransfers] = []
    for places in shapes(cluster, groups):
        if len(places) == 1:
            classes += _alone(groups, places.tolist(), price)
            continue
        cost = price(tuple(groups[places[0]].tolist()))
        machines, switches = (column[places, 0] - column[places[0], 0] for column in _places(cluster, groups))
        rows = _shifted(cluster, _links(cost), machines, switches)
        if _is(price(tuple(groups[places[-1]].tolist())), cost, rows[-1]):
            classes.append(EqualTransfers(places, cost, rows))
        else:
            classes += _alone(groups, places.tolist(), price)
    return classes


def shapes(cluster: Cluster, groups: Numbers) -> list[Numbers]:
    """Which groups lie alike on machines and leaves, and may be copies of each other."""
    return list(np.arange(len(groups))[:, None]) if len(groups) < 3 else _equal_rows(signatures(cluster, groups))


def signatures(cluster: Cluster, groups: Numbers) -> Numbers:
    """Rows that are equal for groups that lie alike on machines and leaves."""
    if len(cluster.blocks) > 1 or not _per_leaf(cluster):
        return groups
    nodes, leaves = _places(cluster, groups)
    each = cluster.blocks[0].node.gpus
    return np.asarray(((nodes - nodes[:, :1]) * each + groups % each) * (2 * cluster.nodes) + leaves - leaves[:, :1])


def _per_leaf(cluster: Cluster) -> int:
    return cluster.fabric.machines_per_leaf if cluster.fabric is not None else cluster.nodes


def _places(cluster: Cluster, groups: Numbers) -> tuple[Numbers, Numbers]:
    """Machine and leaf of every GPU."""
    nodes = groups // cluster.blocks[0].node.gpus
    return nodes, nodes // _per_leaf(cluster)


def _equal_rows(rows: Numbers) -> list[Numbers]:
    """Places of equal rows together, the first _FEW kinds in order of their first."""
    left = np.arange(len(rows))
    alike: list[Numbers] = []
    while len(left):
        same = (rows[left] == rows[left[0]]).all(axis=1)
        alike.append(left[same])
        left = left[~same]
        if len(alike) == _FEW and len(left):
            _, kind = np.unique(rows[left], axis=0, return_inverse=True)
            order = np.argsort(kind.ravel(), kind="stable")
            return alike + [left[part] for part in np.split(order, np.cumsum(np.bincount(kind.ravel()))[:-1])]
    return alike


def _shifted(cluster: Cluster, links: Numbers, machines: Numbers, leaves: Numbers) -> Numbers:
    """Links so many machines and leaves further on: a row for each."""
    within: Numbers = machines * len(cluster.blocks[0].node.links)
    rows = links[None, :] + within[:, None]
    if cluster.fabric is not None and len(links) and links.max() >= cluster.first_fabric_link:
        outside = cluster.fabric.shifted(links - cluster.first_fabric_link, machines, leaves) + cluster.first_fabric_link
        rows = np.where(links[None, :] < cluster.first_fabric_link, rows, outside)
    return rows


def _is(other: CollectiveCost, cost: CollectiveCost, links: Numbers) -> bool:
    """Whether a transfer costs the same over these links."""
    return _without_links(other) == _without_links(cost) and np.array_equal(_links(other), links)


def _alone(groups: Numbers, places: Iterable[int], price: Price) -> list[EqualTransfers]:
    """Every group by itself."""
    costs = [(place, price(tuple(groups[place].tolist()))) for place in places]
    return [EqualTransfers(np.array([place]), cost, _links(cost)[None, :]) for place, cost in costs]


def _links(cost: CollectiveCost) -> Numbers:
    return np.array([link for flow in cost.flows for link, _ in flow.path], dtype=np.int64)


def _without_links(cost: CollectiveCost) -> CollectiveCost:
    flows = tuple(flow._replace(path=tuple((0, coefficient) for _, coefficient in flow.path)) for flow in cost.flows)
    return cost._replace(flows=flows)
