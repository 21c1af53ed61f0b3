"""From `variability.faults` and `variability.slow` to links, ranks and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from parsim.errors import Finding, InputError, ScenarioError
from parsim.faults import Capacities, Fault, LinkFault, RankFault, SlowWindow
from parsim.scenario.fault_sections import FaultSection
from parsim.scenario.software import Assumption
from parsim.units import format_time

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.fabric.named_links import NamedLinks
    from parsim.scenario.variability import SlowSection

RETRY_TIMER = 4.096e-6 * 2**20
"""how long an InfiniBand queue pair waits for an acknowledgement [s]: 4.096 us x 2^NCCL_IB_TIMEOUT, 20 by default"""
RETRIES = 7
"""NCCL_IB_RETRY_CNT: of the hardware, with no more than 3 bits"""
GIVE_UP = RETRIES * RETRY_TIMER
"""[s]"""
NOTICED = 10.0
"""from the crash of a process to somebody's knowing it [s]"""
_RETRYING = ("ib", "ib-hdr", "roce")
"""classes of networks with queue pairs that retry"""


class Broken(NamedTuple):
    """A fault, and the key that asks for it."""

    path: str
    fault: Fault


def faults_of(
    faults: Sequence[FaultSection], slow: Sequence[SlowSection], cluster: Cluster, gpus: Sequence[int], *, watchdog: float
) -> tuple[Broken, ...]:
    """Every fault, then everything that is slow for a while. Raises `ScenarioError` with all that is unknown or contradicts itself.

    `watchdog`: how long a collective waits for a member before the job is given up [s].
    """
    if not faults and all(section.lasting for section in slow):
        return ()
    from parsim.hardware.fabric.named_links import NamedLinks

    findings: list[Finding] = []
    known = NamedLinks(cluster)
    found: list[Broken] = []
    for number, section in enumerate(faults):
        path = f"variability.faults.{number}"
        try:
            if section.subject in ("link", "nic"):
                fault: Fault | None = _link_fault(section, cluster, known, watchdog)
            else:
                fault = _rank_fault(section, path, cluster, gpus, findings, watchdog)
        except InputError as error:
            findings += [replace(finding, path=finding.path or f"{path}.{section.subject}") for finding in error.findings]
            continue
        if fault is not None:
            found.append(Broken(path, fault))
    for number, one in enumerate(slow):
        path = f"variability.slow.{number}"
        if not one.lasting and (ranks := _ranks(one, path, cluster, gpus, findings)):
            found.append(Broken(path, _window(one, ranks)))
    findings += _contradictions(found)
    if findings:
        raise ScenarioError(findings)
    return tuple(found)


def _ranks(
    section: SlowSection | FaultSection, path: str, cluster: Cluster, gpus: Sequence[int], findings: list[Finding]
) -> tuple[int, ...]:
    """The ranks of an entry; what does not exist goes to `findings`."""
    if section.rank is not None:
        if section.rank < len(gpus):
            return (section.rank,)
        text = f"rank {section.rank} does not exist (0 to {len(gpus) - 1})"
        findings.append(Finding(text, f"{path}.rank", section.rank, f"use 0 to {len(gpus) - 1}"))
        return ()
    if section.node is None or section.node >= cluster.nodes:
        text = f"node {section.node} does not exist (0 to {cluster.nodes - 1})"
        findings.append(Finding(text, f"{path}.node", section.node, f"use 0 to {cluster.nodes - 1}"))
        return ()
    ranks = tuple(rank for rank, gpu in enumerate(gpus) if cluster.node_of(gpu) == section.node)
    if not ranks:
        findings.append(Finding(f"node {section.node} has no rank of the job", f"{path}.node", section.node))
    return ranks


def _who(section: SlowSection | FaultSection) -> str:
    return f"rank {section.rank}" if section.rank is not None else f"node {section.node}"


def _window(section: SlowSection, ranks: tuple[int, ...]) -> SlowWindow:
    begin, end = section.begin or 0.0, inf if section.end is None else section.end
    until = "" if section.end is None else f" to {format_time(section.end)}"
    return SlowWindow(f"{_who(section)} at speed {section.speed:g} from {format_time(begin)}{until}", ranks, section.speed, begin, end)


def _rank_fault(
    section: FaultSection, path: str, cluster: Cluster, gpus: Sequence[int], findings: list[Finding], watchdog: float
) -> RankFault | None:
    ranks = _ranks(section, path, cluster, gpus, findings)
    if not ranks:
        return None
    notice = section.detect
    if notice == "auto":
        notice = NOTICED if section.kind == "crash" else watchdog
    name = f"{_who(section)} {'crashes' if section.kind == 'crash' else 'hangs'} at {format_time(section.at)}"
    return RankFault(name, ranks, "crash" if section.kind == "crash" else "hang", section.at, notice)


def _link_fault(section: FaultSection, cluster: Cluster, known: NamedLinks, watchdog: float) -> LinkFault:
    """Raises `TopologyError` for what the cluster does not have."""
    fallback: Capacities = ()
    if section.nic is None:
        links, name = known.between(section.link), f"link {section.link}"
    else:
        links, name, fallback = _nic(section, cluster, known)
    capacities = tuple((link, _left(section, cluster.capacity(link))) for link in links)
    over = [link for link, capacity in capacities if capacity > cluster.capacity(link)]
    if over:
        text = f"{section.bandwidth.text} is more than {cluster.link(over[0]).name} has ({cluster.capacity(over[0]) / 1e9:g} GB/s)"
        raise ScenarioError(Finding(text, value=section.bandwidth.text, suggestion="write what is left, for example x0.5"))
    left = "down" if section.down else f"at {section.bandwidth.text}"
    until = "" if section.until is None else f" to {format_time(section.until)}"
    name += f" {left} from {format_time(section.at)}{until}"
    give_up = section.give_up
    if give_up == "auto":
        give_up = 0.0 if fallback else GIVE_UP if all(_retries(cluster, link) for link in links) else watchdog
    end = inf if section.until is None else section.until
    retry = section.retry
    if retry == "auto":
        retry = RETRY_TIMER if all(_retries(cluster, link) for link in links) else 0.0
    return LinkFault(name, capacities, section.at, end, give_up, fallback, retry, _machine(section, cluster, known, links))


def _machine(section: FaultSection, cluster: Cluster, known: NamedLinks, links: Sequence[int]) -> int:
    """The machine with which a NIC or a link goes; -1: none."""
    if section.nic is not None:
        return known.nic(section.nic).node
    nodes = {cluster.machine_of_link(link) for link in links}
    return nodes.pop() if len(nodes) == 1 else -1


def _left(section: FaultSection, capacity: float) -> float:
    """What a link still carries [B/s]."""
    if section.down:
        return 0.0
    share: float | None = section.bandwidth.share
    return float(section.bandwidth.rate) if share is None else share * capacity


def _retries(cluster: Cluster, link: int) -> bool:
    """Whether queue pairs of InfiniBand or RoCE send over a link."""
    from parsim.hardware.fabric.networks import network_class

    kind = cluster.link(link).kind.removesuffix("-trunk").removesuffix("-uplink")
    return link >= cluster.first_fabric_link and network_class(kind).name in _RETRYING


def _nic(section: FaultSection, cluster: Cluster, known: NamedLinks) -> tuple[tuple[int, ...], str, Capacities]:
    """Links of a NIC, its name, and what links carry while others do its work."""
    nic = known.nic(section.nic)
    ports = cluster.machine(nic.node).ports
    links, name = known.cables(nic), f"NIC {nic.name}"
    if not links:
        raise ScenarioError(Finding(f"{nic.name} is not connected: there is only one machine", value=section.nic))
    if section.fallback == "none":
        return links, name, ()
    if len(ports) < 2:
        raise ScenarioError(
            Finding(f"node{nic.node} has no other NIC that could take over", value=section.fallback, suggestion="use fallback: none")
        )
    beside = nic.port ^ 1 if nic.port ^ 1 < len(ports) else nic.port - 1
    users, share = (range(len(ports)), (len(ports) - 1) / len(ports)) if section.fallback == "respread" else ((nic.port, beside), 0.5)
    cables = [link for port in users for link in known.cables(nic._replace(name=f"node{nic.node}/{ports[port]}", port=port))]
    fallback = tuple((link, share * cluster.capacity(link)) for link in cables)
    name += f" (over {ports[beside]})" if section.fallback == "neighbour" else f" (over the other {len(ports) - 1})"
    return links, name, fallback


def _contradictions(found: Sequence[Broken]) -> list[Finding]:
    """Two faults that say of one link at one time what it carries."""
    findings = []
    wires = [(path, fault) for path, fault in found if isinstance(fault, LinkFault)]
    for (path, one), (other_path, other) in combinations(wires, 2):
        if set(one.links) & set(other.links) and max(one.begin, other.begin) < min(one.end, other.end):
            text = f"at {format_time(max(one.begin, other.begin))} this ({other.name}) and {path} ({one.name}) both set a link's bandwidth"
            findings.append(Finding(text, other_path, suggestion="give the first an `until` before the second's `at`"))
    return findings


def fault_assumptions(faults: Sequence[FaultSection], found: Sequence[Broken]) -> list[Assumption]:
    """What nobody wrote and the outcome rests on."""
    made: dict[str, Any] = {}
    for section, (_, fault) in zip(faults, found, strict=False):
        if section.subject in ("link", "nic"):
            nothing = section.down or section.bandwidth.share == 0
            if section.give_up == "auto" and nothing and fault.give_up == GIVE_UP:  # type: ignore[union-attr]
                source = "4.096 us x 2^20 x 7 retries: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT of NVIDIA/nccl 2.30, src/transport/net_ib"
                made["infiniband_give_up"] = (format_time(GIVE_UP), source)
        elif section.detect == "auto" and section.kind == "crash":
            made["crash_detection"] = (format_time(NOTICED), "estimate: launchers poll their processes every few seconds; 5 to 60 s")
        elif section.detect == "auto":
            notice = fault.notice  # type: ignore[union-attr]
            made["hang_detection"] = (format_time(notice), "PyTorch's watchdog of NCCL collectives, 10 min unless set otherwise")
    return [Assumption(name, value, source, "default") for name, (value, source) in made.items()]
