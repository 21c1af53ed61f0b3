"""What every importer of a machine's description does: what it leaves open, what was read out of it, what is handed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device, device_from_tree
from parsim.hardware.fabric.links import STANDARD, LinkKind, standard_kind
from parsim.hardware.fabric.node import Node
from parsim.hardware.tree import closest
from parsim.interop.drawing import Drawing
from parsim.scenario import files
from parsim.scenario.references import lookup

Wiring = Literal["none", "bridges", "mesh", "nvswitch", "mixed"]


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What was read out of the description, before it became vertices and edges.

    GPUs and NICs are numbered in the order of the description; vertices carry the names of the topology file (gpu0, nic0, ...).
    """

    gpus: tuple[str, ...]
    """names in the description"""
    nics: tuple[str, ...]
    """interface names where the description gives them (mlx5_0), else its own (NIC0)"""
    nvlink: Wiring
    nvlink_edges: tuple[tuple[int, int, int], ...]
    """GPU, GPU and number of links of every direct connection"""
    nvlinks: tuple[int, ...]
    """NVLinks in use per GPU, towards a switch or other GPUs"""
    cpus: tuple[tuple[int, ...], ...]
    """GPUs of each CPU vertex"""
    complexes: tuple[tuple[str, ...], ...]
    """GPUs and NICs behind each PCIe switch (or tree of switches) that holds a GPU"""
    root_ports: tuple[str, ...]
    """GPUs that are plugged into a CPU directly"""
    host_bridges: tuple[tuple[str, ...], ...]
    """those of them that share a host bridge with another one"""
    cards: tuple[tuple[int, ...], ...]
    """NICs by network card: a card with two ports is two NICs"""
    excluded: tuple[int, ...]
    """NICs that are taken for storage or management and stay out of the fabric"""
    unassigned: tuple[int, ...]
    """NICs that no GPU uses because it is unknown where they are"""
    nics_of: tuple[tuple[int, ...], ...]
    """NICs of each GPU"""


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology made of a foreign description: the tree, the same as commented YAML, and what to check."""

    tree: dict[str, Any]
    yaml: str
    warnings: tuple[Finding, ...]
    facts: MachineFacts


MOST_NVLINKS = 18
"""NVLinks of one GPU, H100 and later; the limit where the GPU is unknown"""
_USUAL = ("h100-sxm-80gb", "a100-sxm-80gb", "v100-sxm2-32gb", "a100-pcie-80gb")
"""the first to take where several fit"""
_EXPORT_NVLINKS = 8
"""links of A800 and H800, and of parts of other machines: nothing is the usual one"""
_SOCKETS = {"amd": "socket-amd", "intel": "socket-sapphire-rapids", "ibm": "socket-power9", "arm": "socket-arm"}
_WIRED = {"nvswitch": ("nvswitch",), "mesh": ("nvlink-mesh",), "bridges": ("nvlink-pairs", "pcie")}


PCI_DEVICES = {
    0x10DE1DB1: "v100-sxm2-16gb", 0x10DE1DB5: "v100-sxm2-32gb", 0x10DE1DB4: "v100-pcie-16gb", 0x10DE1DB6: "v100-pcie-32gb",
    0x10DE1E02: "titan-rtx-24gb", 0x10DE1EB8: "t4-16gb", 0x10DE20B0: "a100-sxm-40gb", 0x10DE20B2: "a100-sxm-80gb",
    0x10DE20F1: "a100-pcie-40gb", 0x10DE20B5: "a100-pcie-80gb", 0x10DE2237: "a10g-24gb", 0x10DE2204: "rtx-3090-24gb",
    0x10DE2684: "rtx-4090-24gb", 0x10DE26B9: "l40s-48gb", 0x10DE2330: "h100-sxm-80gb", 0x10DE2331: "h100-pcie-80gb",
    0x10DE2335: "h200-sxm-141gb", 0x10DE2901: "b200-sxm-180gb", 0x10DE2941: "gb200-186gb", 0x100274A1: "mi300x-192gb",
    0x10DE20F3: "a800-sxm-80gb", 0x10DE2324: "h800-sxm-80gb", 0x10DE2329: "h20-sxm-96gb", 0x10DE3182: "b300-sxm-288gb",
    0x10DE31C2: "gb300-288gb", 0x100274A5: "mi325x-256gb", 0x100275A3: "mi355x-288gb",
    0x10DE2B85: "rtx-5090-32gb", 0x10DE2BB1: "rtx-pro-6000-96gb", 0x10DE2BB5: "rtx-pro-6000-96gb", 0x10DE26B1: "rtx-6000-ada-48gb",
    0x10DE27B8: "l4-24gb", 0x10DE2236: "a10-24gb", 0x10DE20B7: "a30-24gb", 0x10DE2235: "a40-48gb", 0x10DE15F8: "p100-pcie-16gb",
    0x10DE2206: "rtx-3080-10gb", 0x10DE1E04: "rtx-2080-ti-11gb", 0x10DE1E07: "rtx-2080-ti-11gb",
    0x10DE2342: "gh200-96gb", 0x10DE2321: "h100-nvl-94gb",
}  # fmt: skip
"""PCI vendor and device to catalogue name (pci-ids.ucw.cz)"""


@dataclass(frozen=True, slots=True)
class ChosenGpu:
    """A device of the catalogue, or the user's own."""

    name: str
    """as a topology file writes it"""
    device: Device


@dataclass(slots=True)
class Choices:
    """What the user said, checked, and what had to be assumed."""

    device: str | None = None
    nic: str | None = None
    pcie: str | None = None
    cpu: str | None = None
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        problems = [*_wrong("nic", self.nic, "network"), *_wrong("pcie", self.pcie, "pcie")]
        if self.cpu is not None and self.cpu not in _SOCKETS:
            problems += _wrong("cpu", self.cpu, "socket", tuple(_SOCKETS))
        if problems:
            raise TopologyError(problems)

    def assume(self, message: str, path: str = "", suggestion: str = "") -> None:
        """Note something that the reader should check."""
        self.findings.append(Finding(message, path, suggestion=suggestion))

    def gpu(self, wiring: Wiring, nvlinks: int, capability: int = 0) -> ChosenGpu:
        """The GPU: the user's, else the usual one with that many NVLinks, wired like that, of that compute capability (90 for 9.0).

        Raises:
            TopologyError: nothing tells which GPU it is.
        """
        if self.device is not None:
            return gpu_named(self.device)
        fitting = _fitting(wiring, nvlinks) if nvlinks else _capable(capability) if capability else ()
        if capability:
            fitting = tuple(name for name in fitting if name in _capable(capability))
        seen = [f"{nvlinks} NVLinks ({wiring})" if nvlinks else "no NVLink", *([f"sm {capability}"] if capability else [])]
        evidence = " and ".join(seen)
        if not fitting:
            repair = f"name it: --gpu NAME, one of {', '.join(files.names('devices'))}, or a device file"
            raise TopologyError(Finding(f"the description shows GPUs with {evidence}, not which they are", "device", suggestion=repair))
        if nvlinks == _EXPORT_NVLINKS:
            repair = f"say which: --gpu {' or '.join(fitting)}"
            raise TopologyError(Finding(f"GPUs with {evidence} are several: {', '.join(fitting)}", "device", suggestion=repair))
        others = f"; {', '.join(fitting[1:])} would look the same" if len(fitting) > 1 else ""
        self.assume(f"{fitting[0]} is assumed from {evidence}{others}", "device", "say which it is: --gpu NAME")
        return gpu_named(fitting[0])

    def socket(self, cpus: int) -> tuple[str, str]:
        """Link kind between CPUs (empty for one) and the maker of the CPUs where no such link tells it."""
        if self.cpu is None:
            if cpus > 1:
                self.assume("the CPUs are unknown; their link is taken for an AMD one (16 GB/s)", "cpu", "say which: --cpu amd or intel")
                return "socket-amd", ""
            return "", ""
        kind = _SOCKETS.get(self.cpu, self.cpu)
        return (kind, "") if cpus > 1 else ("", STANDARD[kind].vendor)


def gpu_named(name: str) -> ChosenGpu:
    """A device of the catalogue by name or alias, or the user's own file.

    Raises:
        ScenarioError: no such device.
    """
    path = files.find("devices", name)
    written = path.stem if files.is_shipped(path) else str(path.resolve())
    return ChosenGpu(written, device_from_tree(files.read(path).tree, f"device {name}"))


def device_lookup() -> Callable[[str], Mapping[str, Any]]:
    """From the name of a device to its tree, for building a cluster."""
    return lookup("devices", None)


def _wrong(option: str, value: str | None, medium: str, more: Sequence[str] = ()) -> list[Finding]:
    """A finding if `value` is no link kind of `medium`."""
    if value is None:
        return []
    kind = standard_kind(value)
    if kind is not None and kind.medium == medium:
        return []
    known = [*more, *(name for name, entry in STANDARD.items() if entry.medium == medium)]
    if medium == "pcie":
        known += [f"pcie{generation}-x16" for generation in (3, 4, 5, 6)]
    return [Finding(f"{value!r} is no {medium} link that parsim knows", option, value, closest(value, known))]


@cache
def _fitting(wiring: Wiring, nvlinks: int) -> tuple[str, ...]:
    """Shipped devices with `nvlinks` links that are usually wired like that, the most usual first."""
    if not nvlinks or wiring not in _WIRED:
        return ()
    devices = {name: gpu_named(name).device for name in files.names("devices")}
    same = {name: device for name, device in devices.items() if device.nvlinks == nvlinks and device.nvlink.startswith("nvlink")}
    fitting = [name for name, device in same.items() if device.interconnect.startswith(_WIRED[wiring])]
    if wiring == "bridges":  # two GPUs of a machine with NVSwitches look the same
        fitting = fitting or list(same)
    return tuple(sorted(fitting, key=_usual))


@cache
def _capable(capability: int) -> tuple[str, ...]:
    """Shipped devices of a compute capability, the most usual first."""
    capable = [name for name in files.names("devices") if round(10 * gpu_named(name).device.compute_capability) == capability]
    return tuple(sorted(capable, key=_usual))


def _usual(name: str) -> tuple[int, str]:
    return (_USUAL.index(name) if name in _USUAL else len(_USUAL), name)


def kind_of(name: str) -> LinkKind:
    """A link kind that is known to exist."""
    kind = standard_kind(name)
    if kind is None:
        raise ValueError(f"no link kind {name!r}")
    return kind


def finish(drawing: Drawing, choices: Choices, facts_of: Callable[[Node], MachineFacts]) -> Imported:
    """The drawing as text and as tree, built once to see that it holds together.

    `facts_of` gets the machine as built. Where its GPUs use other NICs than the facts say, a warning tells.
    """
    from parsim.hardware.fabric.builder import build_cluster

    if drawing.ports and not drawing.network:
        choices.assume("the speed of the NICs is unknown; several machines need it", "nic", "say which: --nic ib-hdr, or add fabric.link")
    machine = build_cluster(_parsed(drawing), device_lookup=device_lookup()).machine(0)
    facts = facts_of(machine)
    for gpu, (wanted, used) in enumerate(zip(facts.nics_of, nics_used(machine), strict=True)):
        if wanted != used:
            theirs = [", ".join(f"nic{nic}" for nic in nics) or "none" for nics in (wanted, used)]
            choices.assume(f"the nearest NICs of gpu{gpu} are {theirs[0]}; on this graph it uses {theirs[1]}", f"gpu{gpu}")
    drawing.remarks = [_remark(finding) for finding in choices.findings]
    return Imported(_parsed(drawing), drawing.yaml(), tuple(choices.findings), facts)


def nics_used(machine: Node) -> tuple[tuple[int, ...], ...]:
    """NICs of each GPU on the graph, as numbers."""
    return tuple(tuple(int(machine.ports[port].removeprefix("nic")) for port in ports) for ports in machine.owned_ports)


def _parsed(drawing: Drawing) -> dict[str, object]:
    return files.parse_text(drawing.yaml(), drawing.name).tree


def _remark(finding: Finding) -> str:
    return "; ".join(part for part in (finding.message, finding.suggestion) if part)
