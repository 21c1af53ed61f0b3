"""From a scenario to its machine: the cluster, the GPU of each rank, and what breaks there."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from parsim.errors import Finding, InputError, ScenarioError, TopologyError
from parsim.limits import MOST_USED_GPUS
from parsim.scenario.cluster import machine_findings
from parsim.scenario.faults import Broken, fault_assumptions, faults_of
from parsim.scenario.references import beside, folder, lookup, topology_document
from parsim.scenario.scenario import Scenario
from parsim.scenario.software import Assumption
from parsim.scenario.sold import oversold_warning

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.scenario.files import Document

T = TypeVar("T")
HOST_LINKS = (
    ("host-memory", "host_memory_bandwidth", "0.6 x STREAM of eight DDR4-3200 channels, reads and writes together"),
    ("nvme-read", "drive_read_bandwidth", "one PCIe 4.0 x4 data-centre drive (Samsung PM9A3 datasheet)"),
    ("nvme-write", "drive_write_bandwidth", "one PCIe 4.0 x4 data-centre drive (Samsung PM9A3 datasheet)"),
)
"""kind of link, name of the assumption, source"""


def machine(scenario: Scenario) -> tuple[Cluster, tuple[int, ...]]:
    """The cluster of `scenario` and the GPU of each rank, without the rest. Raises `TopologyError`, with places."""
    try:
        return MachineBuilder(scenario).machine()
    except InputError as error:
        raise type(error)(scenario.findings_at(error.findings)) from None


class MachineBuilder:
    """One build: what fails is collected as long as the rest can still be looked at."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.findings: list[Finding] = []
        self.kind: type[InputError] | None = None
        self.warnings: list[Finding] = []
        self.assumptions: list[Assumption] = []
        self.devices: dict[str, Document] = {}
        """device files that were read, by the name that asked for them"""

    def machine(self) -> tuple[Cluster, tuple[int, ...]]:
        cluster = self._cluster()
        return cluster, self._gpus(cluster)

    # collecting

    def _try(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except InputError as error:
            self._fail(type(error), error.findings)
            return None

    def _fail(self, kind: type[InputError], findings: tuple[Finding, ...] | list[Finding]) -> None:
        self.findings += findings
        self.kind = kind if self.kind in (None, kind) else ScenarioError

    def _stop(self) -> None:
        """Raise what was collected, with places."""
        if self.findings:
            raise (self.kind or ScenarioError)(self.scenario.findings_at(self.findings))

    def _assume(self, name: str, value: object, source: str, origin: str) -> None:
        self.assumptions.append(Assumption(name, str(value), source, origin))

    # the machine

    def _cluster(self) -> Cluster:
        from parsim.hardware.fabric.builder import build_cluster

        section = self.settings.cluster
        if isinstance(section.nodes, list):
            return self._cluster_of_groups()
        relative = folder(self.scenario.origins, "cluster.topology", self.scenario.source)
        document = topology_document(section.topology, relative)
        tree = document.tree
        own = tree.pop("devices", None) or {}
        devices = self.devices
        find = lookup("devices", beside(document, relative), devices)
        fabric = {key: list(value) if isinstance(value, tuple) else value for key, value in section.fabric if value != "default"}
        try:
            with python_warnings.catch_warnings(record=True) as caught:
                python_warnings.simplefilter("always")
                cluster = build_cluster(
                    tree,
                    device_lookup=lambda name: own[name] if name in own else find(name),
                    nodes=section.nodes,
                    gpus=section.gpus,
                    per_node=section.gpus_per_node,
                    placement=section.placement,
                    fabric=fabric or None,
                    overrides=section.set or None,
                    seed=self.settings.variability.seed,
                    host=self._beyond_devices(),
                )
        except (TopologyError, ScenarioError) as error:  # the latter for an unknown device
            raise TopologyError(machine_findings(error.findings, section, tree, devices)) from None
        self.warnings += [Finding(str(warning.message), "cluster.topology") for warning in caught]
        if isinstance(section.topology, Mapping):
            self.warnings += oversold_warning(section.topology, relative)
        self._host_links(cluster, {**(tree.get("links") or {}), **(section.set.get("links") or {})})
        return self._with_storage(cluster)

    def _with_storage(self, cluster: Cluster) -> Cluster:
        """The cluster with the storage of the topology under what the scenario states of it."""
        from parsim.hardware.fabric.storage import stated_storage

        stated = {key: value for key, value in self.settings.cluster.storage if value != "default"}
        cluster.storage = stated_storage(cluster.storage, stated)
        return cluster

    def _cluster_of_groups(self) -> Cluster:
        """Machines of several kinds."""
        from parsim.scenario.node_groups import cluster_of_groups

        section = self.settings.cluster
        relative = folder(self.scenario.origins, "cluster.nodes", self.scenario.source)
        fabric = {key: value for key, value in section.fabric if value != "default"}
        try:
            with python_warnings.catch_warnings(record=True) as caught:
                python_warnings.simplefilter("always")
                cluster = cluster_of_groups(
                    section, relative, self.devices, seed=self.settings.variability.seed, host=self._beyond_devices(), fabric=fabric or None
                )
        except (TopologyError, ScenarioError) as error:
            raise TopologyError(machine_findings(error.findings, section, {}, self.devices)) from None
        self.warnings += [Finding(str(warning.message), "cluster.nodes") for warning in caught]
        self._host_links(cluster, section.set.get("links") or {})
        return self._with_storage(cluster)

    def _host_links(self, cluster: Cluster, stated: Mapping[str, Any]) -> None:
        """Record the standard speeds of host memory and drives where something is offloaded to them and nobody stated any."""
        if not self._beyond_devices():
            return
        for kind, name, source in HOST_LINKS:
            link = next((link for link in cluster.machine(0).links if link.kind == kind), None)
            if link is not None and kind not in stated:
                self._assume(name, f"{link.capacity / 1e9:g} GB/s per socket", source, "default")

    def _kinds(self, cluster: Cluster, gpus: Sequence[int]) -> list[Device]:
        """The different devices of the job."""
        return list(dict.fromkeys(cluster.device(gpu) for gpu in gpus))

    def _gpus(self, cluster: Cluster) -> tuple[int, ...]:
        """GPU of each rank."""
        if cluster.gpus > MOST_USED_GPUS:
            text = f"{cluster.gpus:,} GPUs; at most {MOST_USED_GPUS:,} can be simulated"
            raise TopologyError(
                Finding(text, "cluster.nodes", self.settings.cluster.nodes, "use fewer nodes, or the first GPUs with cluster.gpus")
            )
        placement = self.settings.cluster.placement
        if isinstance(placement, str):
            return cluster.placement(cluster.gpus)
        wanted = self.settings.cluster.gpus
        if self.settings.cluster.gpus_per_node != "all":
            text = "the placement already names the GPU of every rank"
            raise TopologyError(Finding(text, "cluster.gpus_per_node", self.settings.cluster.gpus_per_node, "leave it out"))
        if wanted != "all" and wanted != len(placement):
            text = f"the placement names {len(placement)} GPUs, but cluster.gpus is {wanted}"
            raise TopologyError(Finding(text, "cluster.placement", list(placement), "leave cluster.gpus out"))
        return cluster.placement(len(placement))

    def _faults(self, cluster: Cluster, gpus: Sequence[int]) -> tuple[Broken, ...]:
        """What breaks, and what is slow for a while."""
        uneven, economics = self.settings.variability, self.settings.economics
        watchdog = economics.recovery.hang_timeout
        found = self._try(lambda: faults_of(uneven.faults, uneven.slow, cluster, gpus, watchdog=watchdog)) or ()
        if found:
            self.assumptions += fault_assumptions(uneven.faults, found)
        return found

    def _beyond_devices(self) -> Literal["", "memory", "nvme"]:
        """What of the machine beyond its GPUs the job works with."""
        section = self.settings.training.offload
        places = (section.parameters, section.gradients, section.optimizer, section.activations)
        return "nvme" if "nvme" in places else "memory" if "cpu" in places else ""
