"""The `variability` section, its named profiles, and what both say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from parsim.errors import Finding
from parsim.scenario.fault_sections import LATEST, FaultSection
from parsim.scenario.values import Choice, Flag, Number, Quantity, Section, Whole
from parsim.variability import MOST_NORMAL, SHAPES, Variability

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.scenario.scenario import Scenario
    from parsim.scenario.software import Assumption

AUTO = ("auto",)
"""what the profile says"""
PERFECT = {
    "jitter.kernel": 0.0, "jitter.collective": 0.0, "jitter.host": 0.0, "jitter.step": 0.0, "jitter.shape": "lognormal",
    "gpus.spread": 0.0, "gpus.node_share": 0.5, "gpus.slow_nodes.share": 0.0, "gpus.slow_nodes.speed": 0.909,
    "host.pause": "0 s", "host.every": 500.0, "host.aligned": False,
}  # fmt: skip
"""what is auto where the profile says nothing: key -> value"""
PROFILES = ("none", "bad", "slow-nodes", "traced", "typical")


class SlowSection(Section):
    """A slow rank, or all ranks of a slow node."""

    rank: Annotated[int | None, Whole(0, 10**7, optional=True)] = None
    """which rank"""
    node: Annotated[int | None, Whole(0, 10**7, optional=True)] = None
    """which node of the cluster, instead of a rank"""
    speed: Annotated[float, Number(0.0, 1.0)]
    """its compute speed relative to the others; 0, it stands still, only with from and to"""
    begin: Annotated[float | None, Quantity("time", LATEST, optional=True)] = Field(default=None, alias="from")
    """when it begins, from the begin of the step on; with from or to it acts on the disturbed step only"""
    end: Annotated[float | None, Quantity("time", LATEST, optional=True)] = Field(default=None, alias="to")
    """when it is over"""

    @property
    def lasting(self) -> bool:
        """Slow all the time: part of the undisturbed step."""
        return self.begin is None and self.end is None

    @model_validator(mode="after")
    def _one_place(self) -> SlowSection:
        if (self.rank is None) == (self.node is None):
            raise ValueError("either rank or node; for example {rank: 5, speed: 0.8}")
        if self.speed == 0 and (self.begin is None or self.end is None):
            raise ValueError("speed 0 stops the rank: give from and to, or write a fault, {rank: 5, at: 1 s, kind: hang}")
        if self.end is not None and self.end <= (self.begin or 0.0):
            raise ValueError(f"it is over (to, {self.end:g} s) before it begins (from, {self.begin or 0.0:g} s)")
        return self


class JitterSection(Section):
    """How much ops differ each time they run; a number alone is that of every kernel and every collective."""

    kernel: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """relative standard deviation of every kernel, of each rank by itself"""
    collective: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """of every collective, common to its ranks"""
    host: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """of the time that a host takes to launch a block"""
    step: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """of all kernels of a step together, common to all ranks"""
    shape: Annotated[str, Choice((*AUTO, *SHAPES))] = "auto"
    """lognormal | normal | exponential (above a shortest time); the mean of the factors is 1"""

    @model_validator(mode="after")
    def _positive(self) -> JitterSection:
        most = max([0.0, *(one for one in (self.kernel, self.collective, self.host, self.step) if one != "auto")])
        if self.shape == "normal" and most > MOST_NORMAL:
            raise ValueError(f"a standard deviation of {most:g} makes normal times negative; at most {MOST_NORMAL:g}, or shape lognormal")
        return self


class SlowNodesSection(Section):
    """Nodes that are slow for the whole run."""

    share: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """of the nodes, each by itself"""
    speed: Annotated[Any, Number(0.0, 1.0, above=True, words=AUTO)] = "auto"
    """compute speed of their GPUs relative to the others"""


class GpusSection(Section):
    """How GPUs differ among each other for the whole run."""

    spread: Annotated[Any, Number(0.0, 0.2, words=AUTO)] = "auto"
    """relative standard deviation of the time that a GPU takes: normal, cut at 4 of them"""
    node_share: Annotated[Any, Number(0.0, 1.0, words=AUTO)] = "auto"
    """share of that variance that the GPUs of a node have in common"""
    slow_nodes: SlowNodesSection = SlowNodesSection()
    """nodes that are slow for the whole run"""


class HostPauseSection(Section):
    """Pauses of the Python process: garbage collection, the operating system."""

    pause: Annotated[Any, Quantity("time", 3600.0, AUTO)] = "auto"
    """how long no kernel is launched"""
    every: Annotated[Any, Number(1.0, 1e9, words=AUTO)] = "auto"
    """mean steps from one pause of a rank to its next"""
    aligned: Annotated[Any, Flag(AUTO)] = "auto"
    """all ranks pause in the same steps, as with a planned collection"""


class VariabilitySection(Section):
    """What differs from a perfect machine; a name alone stands for ``{profile: ...}``."""

    profile: Annotated[str, Choice(PROFILES)] = "none"
    """whose values what is not written here has (parsim list variability); none: those of a perfect machine"""
    seed: Annotated[int, Whole(0, 2**63 - 1)] = 0
    """random seed"""
    runs: Annotated[int, Whole(1, 10**6)] = 1
    """how many steps, or clusters, are drawn; 1: the undisturbed step alone"""
    jitter: JitterSection = JitterSection()
    """how much ops differ each time they run: {kernel: 0.02, collective: 0.05}, or a number for both"""
    gpus: GpusSection = GpusSection()
    """how GPUs differ among each other for the whole run"""
    host: HostPauseSection = HostPauseSection()
    """pauses of the hosts"""
    hashing: Annotated[bool, Flag()] = False
    """every cluster that is drawn hashes its flows onto other paths; with cluster.fabric.routing: ecmp"""
    slow: tuple[SlowSection, ...] = ()
    """slow ranks and nodes: [{rank: 5, speed: 0.8}, {node: 3, speed: 0.9, from: 2 s, to: 10 s}]"""
    faults: tuple[FaultSection, ...] = ()
    """what breaks: [{link: leaf0-spine, at: 1 s, bandwidth: x0.5, until: 2 s}, {nic: node3/nic2, at: 1 s, down: true}, {rank: 17, at: 1 s,
    kind: crash}]"""


def slow_ranks(slow: Sequence[SlowSection], cluster: Cluster, gpus: Sequence[int]) -> tuple[dict[int, float], list[Finding]]:
    """Rank -> compute speed of those that are slow all the time, on slow nodes included; and nodes that no rank runs on."""
    speeds: dict[int, float] = {}
    findings = []
    for number, one in enumerate(slow):
        if not one.lasting:
            continue
        ranks = [one.rank] if one.rank is not None else [rank for rank, gpu in enumerate(gpus) if cluster.node_of(gpu) == one.node]
        if not ranks:
            used = sorted({cluster.node_of(gpu) for gpu in gpus})
            findings.append(
                Finding(f"no rank is on node {one.node} ({used[0]} to {used[-1]})", f"variability.slow.{number}.node", one.node)
            )
        for rank in ranks:
            speeds[rank] = one.speed if one.rank is not None else min(one.speed, speeds.get(rank, 1.0))
    return speeds, findings


def variability_of(scenario: Scenario, assumptions: list[Assumption]) -> Variability:
    """What is random, from the section and its profile; values that are taken from the profile are recorded."""
    section = _resolved(scenario, assumptions)
    jitter, gpus, host = section.jitter, section.gpus, section.host
    return Variability(
        seed=section.seed,
        runs=section.runs,
        kernel=jitter.kernel,
        collective=jitter.collective,
        host=jitter.host,
        step=jitter.step,
        shape=jitter.shape,
        spread=gpus.spread,
        node_share=gpus.node_share,
        slow_share=gpus.slow_nodes.share,
        slow_speed=gpus.slow_nodes.speed,
        pause=host.pause,
        every=host.every,
        aligned=host.aligned,
        hashing=section.hashing,
    )


def _resolved(scenario: Scenario, assumptions: list[Assumption]) -> VariabilitySection:
    """The section with values for what is auto."""
    from parsim.scenario import files
    from parsim.scenario.load import put
    from parsim.scenario.software import Assumption

    section = scenario.tree["variability"]
    own = {leaf: value for leaf, value in _leaves("", {key: section[key] for key in ("jitter", "gpus", "host")}) if value != "auto"}
    found = dict(PERFECT)
    if section["profile"] != "none":
        file = files.find("variability", section["profile"])
        for key, entry in files.read(file).tree.items():
            for leaf, value in _leaves(key, entry["value"]) if isinstance(entry, Mapping) else ():
                found[leaf] = value
                if leaf not in own:
                    assumptions.append(Assumption(f"variability_{leaf.replace('.', '_')}", str(value), entry["source"], files.shown(file)))
    tree: dict[str, Any] = {key: section[key] for key in ("profile", "seed", "runs", "hashing")}
    for leaf, value in (found | own).items():
        put(tree, leaf, value)
    return VariabilitySection.model_validate(tree)


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """Dotted keys and values below `path`."""
    if not isinstance(value, Mapping):
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{path}.{key}" if path else key, inner)]
