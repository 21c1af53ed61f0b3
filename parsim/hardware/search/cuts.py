"""How many rings can at most run: what leaves and enters parts of the group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy

from parsim.hardware.routes import TIER_NEIGHBOUR
from parsim.hardware.search.candidates import Candidate
from parsim.hardware.search.orders import LARGEST_TABLE
from parsim.hardware.search.speeds import times
from parsim.hardware.search.task import Task


class Bounds:
    """Upper bounds on the number of rings over a set of candidate routes: every ring enters and leaves every part of the group."""

    def __init__(self, task: Task, candidates: Sequence[Candidate], members: int) -> None:
        self.planned = task.planned
        self.members = members
        self.pairs = [(candidate.source, candidate.target) for candidate in candidates]
        self.tiers = [candidate.route.tier for candidate in candidates]
        steps = [list(zip(candidate.route.links, candidate.route.coefficients, strict=True)) for candidate in candidates]
        self.first = [route[0] for route in steps]
        self.last = [route[-1] for route in steps]
        self.narrowest = [min(route, key=lambda step: self.planned[step[0]] / step[1]) for route in steps]
        self.single = [len(route) == 1 for route in steps]
        outside = task.wiring.outside
        self.crossing = [
            next(((link, load) for link, load in route if link < outside and task.wiring.medium[link] == "socket"), None) for route in steps
        ]
        sockets: dict[str, int] = {}
        for member, gpu in enumerate(task.group):
            name = task.wiring.socket(gpu)
            sockets[name] = sockets.get(name, 0) | 1 << member
        self.sockets = list(sockets.values()) if len(sockets) > 1 else []

    def most(self, usable: list[int], speed: float) -> int:
        """No more rings than this fit at `speed`; 0 if the routes do not connect all members both ways."""
        if not self._connected(usable):
            return 0
        if all(self.single[number] for number in usable) and self.members <= LARGEST_TABLE:
            return self._bipartitions(usable, speed)
        bound = min(self._around(1 << member, usable, speed) for member in range(self.members))
        for island in self._islands(usable):
            bound = min(bound, self._around(island, usable, speed))
        for socket in self.sockets:
            bound = min(bound, self._around(socket, usable, speed))
        return bound

    def _connected(self, usable: list[int]) -> bool:
        near = [0] * self.members
        far = [0] * self.members
        for number in usable:
            a, b = self.pairs[number]
            near[a] |= 1 << b
            far[b] |= 1 << a
        return all(_reached(steps) == (1 << self.members) - 1 for steps in (near, far))

    def _bipartitions(self, usable: list[int], speed: float) -> int:
        """The narrowest of all cuts, both ways, where every pair has an edge of its own."""
        fits = numpy.zeros((self.members, self.members), dtype=numpy.int64)
        for number in usable:
            link, load = self.first[number]
            fits[self.pairs[number]] = times(self.planned[link], speed * load)
        inside = (numpy.arange(1, 2**self.members - 1)[:, None] >> numpy.arange(self.members)) & 1
        return int(((inside @ fits) * (1 - inside)).sum(axis=1).min())

    def _around(self, part: int, usable: list[int], speed: float) -> int:
        """What leaves and what enters the members of the bit mask `part`."""
        leaving: list[int] = []
        entering: list[int] = []
        for number in usable:
            a, b = self.pairs[number]
            starts, ends = part >> a & 1, part >> b & 1
            if starts != ends:
                (leaving if starts else entering).append(number)
        # any choice of one link per route is a cut
        cuts = [(leaving, self.first), (entering, self.last), (leaving, self.narrowest), (entering, self.narrowest)]
        bound = min(self._sum((steps[number] for number in routes), speed) for routes, steps in cuts)
        if part in self.sockets:
            for routes in (leaving, entering):
                bound = min(bound, self._sum((self.crossing[number] or self.first[number] for number in routes), speed))
        return bound

    def _sum(self, steps: Iterable[tuple[int, float]], speed: float) -> int:
        cut: dict[int, float] = {}
        for link, load in steps:
            cut[link] = min(load, cut.get(link, load))
        return sum(times(self.planned[link], speed * load) for link, load in cut.items())

    def _islands(self, usable: Iterable[int]) -> list[int]:
        """Members joined by NVLink, as bit masks; none if that is everyone or nobody."""
        near = [0] * self.members
        for number in usable:
            if self.tiers[number] <= TIER_NEIGHBOUR:
                a, b = self.pairs[number]
                near[a] |= 1 << b
                near[b] |= 1 << a
        found: list[int] = []
        for member in range(self.members):
            if near[member] and not any(island >> member & 1 for island in found):
                found.append(_reached(near, member))
        return [island for island in found if island != (1 << self.members) - 1]


def _reached(near: list[int], start: int = 0) -> int:
    """Bit mask of the members that can be reached from `start`."""
    seen, fresh = 1 << start, [start]
    while fresh:
        new = near[fresh.pop()] & ~seen
        seen |= new
        fresh += [member for member in range(len(near)) if new >> member & 1]
    return seen
