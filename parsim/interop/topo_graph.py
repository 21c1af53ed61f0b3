"""From pairwise relations back to the tree that they were printed from: NVLinks, PCIe switches, CPUs, network cards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from parsim.errors import Finding, TopologyError
from parsim.interop.description import Wiring
from parsim.interop.topo_matrix import Distance, TopologyMatrix

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Nvlinks:
    """How the GPUs are joined by NVLink."""

    wiring: Wiring
    edges: tuple[tuple[int, int, int], ...]
    """direct connections: GPU, GPU, links"""
    switched: tuple[tuple[tuple[int, ...], int], ...]
    """GPUs behind one fabric of NVSwitches, and the links of each"""
    per_gpu: tuple[int, ...]


@dataclass(slots=True)
class PcieTree:
    """GPUs and NICs (numbered as in the matrix) on PCIe."""

    cpus: list[tuple[int, ...]]
    """devices below each CPU vertex"""
    switches: list[tuple[int, ...]]
    """devices behind one uplink: classes of PXB or closer that hold more than a single card"""
    leaves: list[tuple[int, ...]]
    """classes of PIX inside a larger switch that hold a GPU"""
    cards: list[tuple[int, ...]]
    """NICs by network card"""
    bridges: list[tuple[int, ...]]
    """devices behind one host bridge, where it has several root ports"""
    far: dict[Pair, Distance]
    """every pair"""
    findings: list[Finding] = field(default_factory=list)


def nvlinks(matrix: TopologyMatrix, limit: int, device: str = "") -> Nvlinks:
    """Bridges, a mesh, or NVSwitches, by what a GPU with `limit` NVLinks can have.

    A cell shows the links that two GPUs can use together. Behind switches every pair shows all the links of a GPU, so the sum
    over its partners exceeds what it has; wired directly, the sum is what it has.

    Raises:
        TopologyError: a sum exceeds `limit` and the cells differ.
    """
    links = matrix.nvlinks
    edges: list[tuple[int, int, int]] = []
    switched: list[tuple[tuple[int, ...], int]] = []
    kinds: dict[Wiring, None] = {}
    per_gpu = [0] * len(matrix.gpus)
    for group in classes(range(len(matrix.gpus)), links):
        if len(group) == 1:
            continue
        counts = {links.get(pair, 0) for pair in combinations(group, 2)}
        sums = {gpu: sum(count for pair, count in links.items() if gpu in pair) for gpu in group}
        most = max(counts)
        if most <= limit and len(group) > 2 and len(counts) == 1 and max(sums.values()) > limit:
            switched.append((group, most))
            kinds["nvswitch"] = None
            per_gpu = [most if gpu in group else count for gpu, count in enumerate(per_gpu)]
            continue
        worst = max(group, key=lambda gpu: sums[gpu])
        if sums[worst] > limit:
            raise TopologyError(_too_many(matrix, worst, limit, device, counts))
        edges += [(*pair, links[pair]) for pair in combinations(group, 2) if pair in links]
        kinds["bridges" if len(group) == 2 else "mesh"] = None
        per_gpu = [sums.get(gpu, count) for gpu, count in enumerate(per_gpu)]
    wiring: Wiring = "none" if not kinds else next(iter(kinds)) if len(kinds) == 1 else "mixed"
    return Nvlinks(wiring, tuple(edges), tuple(switched), tuple(per_gpu))


def _too_many(matrix: TopologyMatrix, gpu: int, limit: int, device: str, counts: set[int]) -> Finding:
    """The arithmetic of a GPU that shows more NVLinks than it can have."""
    shown = {next(other for other in pair if other != gpu): count for pair, count in sorted(matrix.nvlinks.items()) if gpu in pair}
    terms = " + ".join(f"{count} ({matrix.gpus[other]})" for other, count in shown.items())
    owner = device or "any GPU"
    repair = "is it another GPU? say which: --gpu NAME" if device else "is the matrix complete?"
    problem = f"NVLinks {terms} = {sum(shown.values())}, more than the {limit} of {owner}"
    if len(counts) > 1:
        problem += f"; behind switches all pairs would show the same, not {' and '.join(map(str, sorted(counts)))}"
    return Finding(problem, matrix.gpus[gpu], suggestion=repair)


def pcie_tree(matrix: TopologyMatrix) -> PcieTree:
    """Nested classes of devices: same switch, same tree of switches, same host bridge, same NUMA node."""
    findings: list[Finding] = []
    far = complete(matrix, findings)
    _ultrametric(matrix, far, findings)
    everyone = range(len(matrix.names))
    gpus = range(len(matrix.gpus))

    def within(distance: Distance) -> list[tuple[int, ...]]:
        return classes(everyone, [pair for pair, found in far.items() if found <= distance])

    pix = within(Distance.PIX)
    cards = [group for group in pix if group[0] not in gpus]
    cards += [(device,) for group in pix if group[0] in gpus for device in group if device not in gpus]
    cards.sort()
    trees = within(Distance.PXB)
    switches = [tree for tree in trees if len(tree) > 1 and tree not in cards]
    leaves = [group for group in pix if len(group) > 1 and group[0] in gpus and group not in switches]
    bridges = [group for group in within(Distance.PHB) if group not in trees]
    tree = PcieTree(within(Distance.NODE), switches, leaves, cards, bridges, far, findings)
    _judge(matrix, tree)
    return tree


def complete(matrix: TopologyMatrix, findings: list[Finding]) -> dict[Pair, Distance]:
    """The PCIe distance of every pair, also where NVLink or a missing row hides it.

    A third device that is unequally far from the two tells it exactly: the larger distance. Where all third devices are equally
    far, the smallest of these distances is an upper bound; at NODE and beyond, the affinity columns decide between NODE and SYS.
    """
    known = dict(matrix.distances)
    hidden = [pair for pair in combinations(range(len(matrix.names)), 2) if pair not in known]
    distances: dict[Pair, Distance] = {}
    unsure: list[Pair] = []
    for i, j in hidden:
        seen = [
            (known[_pair(i, other)], known[_pair(j, other)])
            for other in range(len(matrix.names))
            if other not in (i, j) and _pair(i, other) in known and _pair(j, other) in known
        ]
        exact = [max(pair) for pair in seen if pair[0] != pair[1]]
        bound = min((first for first, _ in seen), default=Distance.SYS)
        if exact:
            distances[i, j] = max(exact)
        elif bound <= Distance.PHB:
            distances[i, j] = bound
        elif bound == Distance.NODE:
            distances[i, j] = Distance.NODE
        else:
            same = _same_node(matrix, i, j)
            if same is None and j < len(matrix.gpus):
                unsure.append((i, j))
            distances[i, j] = Distance.SYS if same is False or (same is None and j >= len(matrix.gpus)) else Distance.NODE
    if unsure:
        names = ", ".join(f"{matrix.names[i]}-{matrix.names[j]}" for i, j in unsure[:6]) + (" ..." if len(unsure) > 6 else "")
        problem = f"NVLink hides how far {names} are apart over PCIe, and no column tells; one CPU is assumed"
        findings.append(Finding(problem, suggestion="paste the matrix with its affinity columns"))
    return known | distances


def _same_node(matrix: TopologyMatrix, i: int, j: int) -> bool | None:
    """Whether the affinity columns put two GPUs on one NUMA node; None where they say nothing."""
    if j >= len(matrix.gpus):
        return None
    a, b = matrix.affinities[i], matrix.affinities[j]
    if a.cpus and b.cpus:
        return a.cpus == b.cpus
    return a.numa == b.numa if a.numa and b.numa else None


def _ultrametric(matrix: TopologyMatrix, far: dict[Pair, Distance], findings: list[Finding]) -> None:
    """A tree lets no device be nearer to two others than these are to each other."""
    names = matrix.names
    wrong: list[str] = []
    for i, j, k in combinations(range(len(names)), 3):
        largest, middle, _ = sorted(((far[i, j], (i, j)), (far[i, k], (i, k)), (far[j, k], (j, k))), reverse=True)
        if largest[0] > middle[0]:
            a, b = largest[1]
            wrong.append(
                f"{names[a]}-{names[b]} is {largest[0].name}, but both are {middle[0].name} or closer to {names[sum((i, j, k)) - a - b]}"
            )
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        problem = f"the relations fit no tree: {wrong[0]}{more}; the closer relations are kept"
        findings.append(Finding(problem, suggestion="typical of virtual machines: compare with the machine's manual"))


def _judge(matrix: TopologyMatrix, tree: PcieTree) -> None:
    """Findings about what is legal but doubtful."""
    ranks = set(matrix.distances.values())
    if len(matrix.distances) >= 3 and len(ranks) == 1 and ranks <= {Distance.PHB, Distance.SYS}:
        rank = next(iter(ranks)).name
        problem = f"relations unknown: every one is {rank}, as in virtual machines that hide the PCIe tree"
        tree.findings.append(Finding(problem, suggestion="compare with the machine's manual, or start from a shipped topology"))
    numbers = [row.numa for row in matrix.affinities if row.numa]
    holding = [group for group in tree.cpus if group[0] < len(matrix.gpus)]
    if numbers and len(set(numbers)) < len(holding):
        problem = f"the NUMA column names {len(set(numbers))} node, the relations show {len(holding)}; the relations are taken"
        tree.findings.append(Finding(problem, "NUMA Affinity"))
    masks = {row.cpus for row in matrix.affinities if row.cpus}
    if not numbers and masks and len(masks) < len(holding):
        problem = f"{len(masks)} CPU list for GPUs on {len(holding)} sides of SYS relations; the relations are taken"
        tree.findings.append(Finding(problem, "CPU Affinity"))


def left_out(matrix: TopologyMatrix, far: dict[Pair, Distance]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """NICs (from 0) that are left out as storage or management, and those whose place is unknown.

    A NIC without a PCIe switch in common with a GPU is left out where another NIC has one; so is one on a CPU without GPUs
    where another is not. Where every relation is PHB, GPU k gets NIC k and the surplus none.
    """
    gpus, nics = len(matrix.gpus), range(len(matrix.nics))
    nearest = {nic: min(far[gpu, gpus + nic] for gpu in range(gpus)) for nic in nics}
    near = [nic for nic in nics if nearest[nic] <= Distance.PXB] or [nic for nic in nics if nearest[nic] < Distance.SYS] or list(nics)
    excluded = tuple(nic for nic in nics if nic not in near)
    every = {far[gpu, gpus + nic] for gpu in range(gpus) for nic in nics}
    if every == {Distance.PHB} and len(nics) > gpus:
        return excluded, tuple(nic for nic in nics if nic >= gpus)
    return excluded, ()


def nics_of(gpus: int, usable: Iterable[int], far: dict[Pair, Distance]) -> tuple[tuple[int, ...], ...]:
    """NICs of each GPU: the nearest ones. Of t GPUs with the same m nearest NICs, the q-th has NICs q, q + t, ... (q mod m if m < t)."""
    usable = tuple(usable)
    nearest: list[tuple[int, ...]] = []
    for gpu in range(gpus):
        best = min((far[gpu, gpus + nic] for nic in usable), default=Distance.SYS)
        nearest.append(tuple(nic for nic in usable if far[gpu, gpus + nic] == best))
    owned: list[tuple[int, ...]] = []
    for gpu, tied in enumerate(nearest):
        rivals = [other for other, theirs in enumerate(nearest) if theirs == tied]
        place, count = rivals.index(gpu), len(rivals)
        owned.append(tied[place::count] if len(tied) >= count else (tied[place % len(tied)],) if tied else ())
    return tuple(owned)


def classes(members: Iterable[int], pairs: Iterable[Pair]) -> list[tuple[int, ...]]:
    """Connected components in order of their smallest member, each sorted."""
    parent = {member: member for member in members}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for member in parent:
        groups.setdefault(root(member), []).append(member)
    return [tuple(sorted(group)) for _, group in sorted(groups.items())]


def _pair(i: int, j: int) -> Pair:
    return (i, j) if i < j else (j, i)
