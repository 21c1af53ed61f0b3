"""The longest chain through a step of one line of ranks, lane by lane: what a simulation finds where nobody is in the way.

A pass moves the ends of its rank's lanes: each is then the latest of what it was and of chains through the pass from the lanes' ends
before it and from the arrival of the message that it waits for. Chains only add and lanes only take the maximum, so a pass is a
matrix of max-plus algebra, written once and applied for every micro-batch (Baccelli et al., Synchronization and Linearity, 1992).
Nothing is left out that a rank does by itself: gathers wait for the units before them, reductions queue behind them on their lane and
may outlast the pass. Left out is what others do to it: shared links, slower kernels beside transfers, members that are late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.hooks import Sharding
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE
from parsim.program.stage_passes import StagePasses
from parsim.study.search.chains import Price, Walked, longest
from parsim.study.search.cost_cache import CandidateCosts
from parsim.study.search.costs import JOINS, strategies_in, up_to

ARRIVAL = "arrival"
"""source besides the lanes: the message that a pass waits for"""
Moves = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
"""(lane, ((lane before the pass or `ARRIVAL`, seconds of the chain from its end), ...)), of the lanes that move"""
State = tuple[Hashable, ...]
"""what a pass finds gathered, by the places of units in their chunk"""


def moves(items: Sequence[Item], price: Price, speed: float) -> Moves:
    """A pass as a matrix."""
    lanes = list(dict.fromkeys([COMPUTE, *(lane for item in items for lane in (*item.lanes, *item.tails))]))
    chains: dict[str, list[tuple[str, float]]] = {}
    for source in (*lanes, ARRIVAL):
        if source == ARRIVAL:
            ends = longest(items, price, {}, speed=speed, arrival=0.0).lanes
        else:
            ends = longest(items, price, {source: 0.0}, speed=speed).lanes
        for lane, seconds in ends.items():
            if seconds > -inf:
                chains.setdefault(lane, []).append((source, seconds))
    return tuple((lane, tuple(sources)) for lane, sources in chains.items() if sources != [(lane, 0.0)])


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one rank's step, from the ends of its lanes."""

    met: Mapping[str, float]
    """lane -> seconds to where all stages meet; empty: they do not"""
    whole: Mapping[str, float]
    """lane -> seconds to its last op"""


class LaneCosts:
    """The passes of one candidate as matrices; neighbours share them."""

    def __init__(self, costs: CandidateCosts) -> None:
        self.costs, self.plan, self.prices = costs, costs.plan, costs.prices
        self._passes: dict[int, StagePasses] = {}
        self._keys: dict[int, int] = {}

    def _key(self, stage: int) -> int:
        if stage not in self._keys:
            self._keys[stage] = self.costs.lanes_key(self.plan.chunks[stage])
        return self._keys[stage]

    def passes(self, p: int) -> StagePasses:
        """Those of a pipeline rank, written when they are asked for."""
        if p not in self._passes:
            self._passes[p] = StagePasses(self.plan, p, self.plan.role(self.prices.ranks[p]).central, self.costs.clock)
        return self._passes[p]

    def _price(self, p: int) -> Price:
        return lambda kind, axis, size: self.prices.at(p, kind, axis, size)

    def begin(self, p: int) -> tuple[Moves, tuple[State, ...]]:
        """What precedes the first pass of a rank, and the states of its chunks behind it."""

        def make() -> tuple[Moves, tuple[State, ...]]:
            passes = self.passes(p)
            begun = moves(passes.begin(), self._price(p), self.prices.speed(p))
            return begun, tuple(_state(sharding) for sharding in passes.sharding.values())

        return self.costs.cache.known(("begin", self.costs.stage_key(p)), make)

    def moved(self, kind: str, stage: int, first: bool, last: bool, state: State) -> tuple[Moves, State]:
        """A pass of a global stage that finds `state`, and the state that it leaves."""
        p = self.plan.chunks[stage].pipeline_rank

        def make() -> tuple[Moves, State]:
            passes = self.passes(p)
            sharding = passes.sharding[stage]
            _restore(sharding, state)
            items = passes.template(kind, stage, first, last)
            return moves(items, self._price(p), self.prices.speed(p)), _state(sharding)

        return self.costs.cache.known(("moves", self._key(stage), kind, first, last, state), make)

    def ending(self, p: int) -> Ending:
        """What follows the last pass of a rank."""

        def make() -> Ending:
            items = self.passes(p).end()
            price, speed = self._price(p), self.prices.speed(p)
            place = next((at for at, item in enumerate(items) if item.collective is not None and item.collective[1] in JOINS), None)
            lanes = list(dict.fromkeys([COMPUTE, *(lane for item in items for lane in (*item.lanes, *item.tails))]))
            met, whole = {}, {}
            for lane in lanes:
                if place is not None:
                    met[lane] = longest(up_to(items, place), price, {lane: 0.0}, speed=speed).compute
                whole[lane] = max(0.0, longest(items, price, {lane: 0.0}, speed=speed).whole)
            return Ending(met, whole)

        return self.costs.cache.known(("ending", self.costs.stage_key(p)), make)


def _state(sharding: Sharding) -> State:
    """What is gathered, without the units' names: places among all units of the chunk's strategies."""
    return tuple(place for place, (part, unit) in enumerate(_units(sharding)) if unit in _live(part))


def _restore(sharding: Sharding, state: State) -> None:
    units = _units(sharding)
    for part in strategies_in(sharding):
        if isinstance(part, FullyShardedDataParallel):
            part.restore(frozenset(unit for place, (own, unit) in enumerate(units) if own is part and place in state))


def _units(sharding: Sharding) -> list[tuple[FullyShardedDataParallel, str]]:
    sharded = [part for part in strategies_in(sharding) if isinstance(part, FullyShardedDataParallel)]
    return [(part, unit.name) for part in sharded for unit in part.units]


def _live(part: FullyShardedDataParallel) -> frozenset[str]:
    live = part.state()
    return live if isinstance(live, frozenset) else frozenset()


def chained(costs: CandidateCosts, order: Walked) -> float:
    """When the last op of a step ends at least [s], its slots in an order in which every slot comes after what it needs."""
    plan = costs.plan
    lane_costs = LaneCosts(costs)
    lanes: list[dict[str, float]] = []
    states: dict[int, State] = {}
    for p in range(len(plan.slots)):
        begun, gathered = lane_costs.begin(p)
        lanes.append(after({COMPUTE: 0.0}, begun, -inf))
        states |= dict(zip((chunk.stage for chunk in plan.of_rank(p)), gathered, strict=True))
    travel = {("F", stage + 1): seconds for (way, stage), seconds in costs.sends.items() if way == "F"}
    travel |= {("B", stage - 1): seconds for (way, stage), seconds in costs.sends.items() if way == "B"}
    written: dict[Hashable, tuple[Moves, State]] = {}
    counts: Counter[tuple[str, int]] = Counter()
    done: list[float] = []
    for p, number, source in zip(order.ranks, order.keys, order.sources, strict=True):
        kind, stage, first = order.names[number]
        counts[kind, stage] += 1
        last = counts[kind, stage] == plan.training.micro_batches
        key = (number, last, states[stage])
        if (pair := written.get(key)) is None:
            pair = written[key] = lane_costs.moved(kind, stage, first, last, states[stage])
        states[stage] = pair[1]
        arrival = -inf if source < 0 else done[source] + travel.get(("F" if kind == "F" else "B", stage), 0.0)
        lanes[p] = after(lanes[p], pair[0], arrival)
        done.append(lanes[p][COMPUTE])
    return _ended(costs, lane_costs, lanes)


def after(lanes: dict[str, float], pass_moves: Moves, arrival: float) -> dict[str, float]:
    """The ends of a rank's lanes behind a pass."""
    ends = dict(lanes)
    for lane, sources in pass_moves:
        end = -inf
        for source, seconds in sources:
            at = arrival if source == ARRIVAL else lanes.get(source, -inf)
            end = max(end, at + seconds)
        if end > ends.get(lane, -inf):
            ends[lane] = end
    return ends


def _ended(costs: CandidateCosts, lane_costs: LaneCosts, lanes: Sequence[Mapping[str, float]]) -> float:
    """The end of the step, from the ends of all lanes."""
    endings = [lane_costs.ending(p) for p in range(len(lanes))]
    least = max(max(ends.values()) for ends in lanes)
    if all(ending.met for ending in endings):
        met = max(_latest(ends, ending.met) for ends, ending in zip(lanes, endings, strict=True))
        return max(least, met + max(stage.after for stage in costs.times))
    return max(least, *(_latest(ends, ending.whole) for ends, ending in zip(lanes, endings, strict=True)))


def _latest(ends: Mapping[str, float], chains: Mapping[str, float]) -> float:
    return max((ends[lane] + seconds for lane, seconds in chains.items() if lane in ends), default=-inf)
