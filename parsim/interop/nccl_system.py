"""NCCL's topology XML (what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads), read into a tree of parts.

The format and its defaults are those of NVIDIA/nccl src/graph/xml.cc and topo.cc: a PCI element is what its class says, also
without children (files of cloud providers list bare elements that NCCL completes at run time); a link without speed is taken
for PCIe 3, one without width for x16.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from parsim.errors import Finding, TopologyError
from parsim.units import whole

Role = Literal["cpu", "pcie", "gpu", "nic", "card"]
LARGEST_TEXT = 10 * 10**6
LARGEST_NUMBER = 10**9
"""in an attribute; a NIC of 1 Pb/s has this many Mb/s"""
"""longest text that is read [characters]"""
DEEPEST = 60
"""nested elements, at most"""
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_SPEED = re.compile(r"\s*([0-9.]+)\s*GT/s\b.*")
_BUS = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F]+)")
_FLATTENED = ((0x1000C0101000A000, 0x1000C0101000A000), (0x1000C03010000000, 0x1000C03010001000))
"""Broadcom switches of generation 4 and 5 that show two levels although they are one: the upper and the lower one"""
_IGNORED = ("pcilink", "gin", "rma", "coll")


@dataclass(slots=True, eq=False)
class SystemPart:
    """A CPU, PCIe switch, GPU, network card or port of one, below its parent."""

    role: Role
    element: ET.Element
    parent: SystemPart | None = None
    speed: tuple[int, int] | None = None
    """generation and width of the link to the parent; None: as fast as memory"""
    children: list[SystemPart] = field(default_factory=list)
    also: list[SystemPart] = field(default_factory=list)
    """further parents of a NIC that the file lists several times"""
    net: ET.Element | None = None
    """of a port: its entry"""
    name: str = ""
    """vertex in the topology file"""

    @property
    def bus(self) -> str:
        """Bus id, empty if there is none."""
        return self.element.get("busid", "").lower()

    @property
    def cpu(self) -> SystemPart:
        part = self
        while part.parent is not None:
            part = part.parent
        return part

    def walk(self) -> Iterator[SystemPart]:
        """Itself and everything below, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()

    def top(self) -> SystemPart:
        """The part below the CPU that this one hangs on."""
        part = self
        while part.parent is not None and part.parent.role != "cpu":
            part = part.parent
        return part


@dataclass(slots=True)
class System:
    """The parts of one machine."""

    cpus: list[SystemPart]
    findings: list[Finding]
    links: list[tuple[str, str]] = field(default_factory=list)
    """bus ids of PCIe switches that are joined sideways"""

    def parts(self, role: Role) -> list[SystemPart]:
        """All parts of one role, in the order of the file."""
        return [part for cpu in self.cpus for part in cpu.walk() if part.role == role]


class _Careful(ET.TreeBuilder):
    """Refuses document types (and so entities) and endless nesting while the text is read."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        repair = "lstopo's XML is not supported yet: dump NCCL's with NCCL_TOPO_DUMP_FILE" if name == "topology" else "remove it"
        raise TopologyError(Finding("a document type (<!DOCTYPE>) is refused", name, name, repair))

    def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TopologyError(Finding(f"elements are nested more than {DEEPEST} deep", tag))
        return super().start(tag, attrs)

    def end(self, tag: str) -> ET.Element:
        self.depth -= 1
        return super().end(tag)


def read_system(text: str) -> System:
    """The machine that `text` describes.

    Raises:
        TopologyError: no XML, a document type, another kind of file, several machines, PCI elements that nothing identifies.
    """
    root = _root(text)
    problems: list[Finding] = []
    findings: list[Finding] = []
    if root.get("version") not in (None, "1", "2"):
        findings.append(Finding(f"version {root.get('version')} of the format is unknown; read like version 2", "system.version"))
    hosts = {cpu.get("host_hash") for cpu in root.iter("cpu")}
    if len(hosts) > 1:
        repair = "dump the topology on one machine, with MNNVL off (NCCL_MNNVL_ENABLE=0)"
        raise TopologyError(Finding(f"the file describes {len(hosts)} machines; only one is supported yet", "system", None, repair))
    system = System([], findings)
    for element in root:
        if element.tag != "cpu":
            problems.append(Finding(f"unexpected element <{element.tag}> in <system>", "system", element.tag))
            continue
        cpu = SystemPart("cpu", element)
        for child in element:
            _attach(child, cpu, system, problems)
        system.cpus.append(cpu)
    buses = [part.bus for part in system.parts("gpu")]
    problems += [Finding("two GPUs have this bus id, or none", bus or "gpu") for bus in dict.fromkeys(buses) if buses.count(bus) > 1]
    if problems:
        raise TopologyError(problems)
    _same_nic_twice(system)
    for cpu in system.cpus:
        _trim(cpu)
        _flatten(cpu)
        _cards(cpu)
    system.cpus = [cpu for cpu in system.cpus if cpu.children or _is_parent(cpu, system)]
    if not system.parts("gpu"):
        raise TopologyError(
            Finding("there is no GPU in the file", "system", suggestion="a GPU is a pci element of class 0x0302.. or 0x0300..")
        )
    return system


def _root(text: str) -> ET.Element:
    if len(text) > LARGEST_TEXT:
        raise TopologyError(Finding(f"the text has {len(text):,} characters; at most {LARGEST_TEXT:,} are read"))
    parser = ET.XMLParser(target=_Careful())  # noqa: S314 - see _Careful
    try:
        parser.feed(text.lstrip("\ufeff \t\r\n"))
        root = parser.close()
    except ET.ParseError as error:
        line, column = error.position
        raise TopologyError(Finding(f"not XML: {error.msg}", line=line, column=column + 1)) from None
    if root.tag != "system":
        known = {"graphs": "that is NCCL_GRAPH_DUMP_FILE, which is not supported yet", "topology": "that is lstopo's format, not NCCL's"}
        repair = f"{known[root.tag]}; " if root.tag in known else ""
        problem = f"the top element is <{root.tag}>, expected <system>"
        raise TopologyError(Finding(problem, root.tag, suggestion=f"{repair}use what NCCL_TOPO_DUMP_FILE writes"))
    return root


def _attach(element: ET.Element, parent: SystemPart, system: System, problems: list[Finding]) -> None:
    """Put an element and all below it under `parent`."""
    if element.tag == "nic":
        _ports(SystemPart("card", element, parent), [element])
    elif element.tag == "pci":
        _attach_pci(element, parent, system, problems)
    elif element.tag == "pcilink" and parent.role == "pcie":
        system.links.append((parent.bus, element.get("target", "").lower()))
    elif element.tag not in _IGNORED:
        problems.append(Finding(f"unexpected element <{element.tag}> in <{parent.element.tag}>", where(parent), element.tag))


def _attach_pci(element: ET.Element, parent: SystemPart, system: System, problems: list[Finding]) -> None:
    part = SystemPart("pcie", element, parent)
    role = _role(element)
    if role is None:
        problem = "neither class nor children tell what this PCI element is"
        repair = "NCCL completes such files at run time: dump the result with NCCL_TOPO_DUMP_FILE"
        problems.append(Finding(problem, where(part), suggestion=repair))
        return
    if role == "nvswitch":
        return
    part.role = role
    part.speed = _speed(part, system, problems)
    if role == "card":
        _ports(part, element.findall("nic"))
        return
    if role == "gpu":
        gpus = element.findall("gpu")
        if len(gpus) > 1:
            problem = f"{len(gpus)} <gpu> elements share one PCI device; shared or partitioned GPUs are not supported yet"
            problems.append(Finding(problem, where(part)))
        parent.children.append(part)
        return
    parent.children.append(part)
    for child in element:
        _attach(child, part, system, problems)


def _role(element: ET.Element) -> Role | Literal["nvswitch"] | None:
    """What a PCI element is: by its children, else by its class; an unknown class is a bridge, as for NCCL."""
    if element.find("gpu") is not None:
        return "gpu"
    if element.find("nic") is not None:
        return "card"
    code = element.get("class", "").lower()
    if not code:
        return "pcie" if element.find("pci") is not None else None
    if code.startswith("0x068000"):
        return "nvswitch"
    if code.startswith(("0x03", "0x1200")):
        return "gpu"
    return "card" if code.startswith("0x02") else "pcie"


def _ports(card: SystemPart, nics: list[ET.Element]) -> None:
    """The ports of a network card; a single port stands for the card."""
    parent = card.parent
    if parent is None:
        return
    nets = [net for nic in nics for net in nic.findall("net") if net.get("net") != "0"]
    if len(nets) > 1:
        parent.children.append(card)
        card.children += [SystemPart("nic", card.element, card, card.speed, net=net) for net in nets]
    elif nets or not any(len(nic) for nic in nics):
        card.role, card.net = "nic", nets[0] if nets else None
        parent.children.append(card)


def _speed(part: SystemPart, system: System, problems: list[Finding]) -> tuple[int, int]:
    """Generation and width of the link above a PCI element; generation 0 where the file does not say."""
    written = part.element.get("link_speed", "")
    match = _SPEED.fullmatch(written)
    generation = 0
    try:
        generation = _GENERATION.get(float(match[1]), 0) if match else 0
    except ValueError:
        generation = 0
    if match and not generation:
        system.findings.append(Finding(f"unknown link speed {written!r}; taken for PCIe 3, as NCCL does", where(part), written))
    width = number(part.element, "link_width", 0, where(part), problems)
    if not 0 <= width <= 32:
        problems.append(Finding("a PCIe link has 1 to 32 lanes", where(part), width))
    return generation, width or 16


def number(element: ET.Element, key: str, default: int, place: str, problems: list[Finding]) -> int:
    """A whole number out of an attribute; what is no number is a problem."""
    written = element.get(key)
    if written is None:
        return default
    try:
        value = whole(written) if written.strip() else default
    except ValueError:
        problems.append(Finding(f"{key} is no whole number", place, written))
        return default
    if abs(value) > LARGEST_NUMBER:
        problems.append(Finding(f"{key} is more than {LARGEST_NUMBER:,}", place, written))
        return default
    return value


def hexadecimal(element: ET.Element, key: str) -> int:
    """A PCI identifier such as 0x10de; 0 where there is none."""
    try:
        return int(element.get(key, "0"), 0)
    except ValueError:
        return 0


def where(part: SystemPart) -> str:
    """A part as findings name it."""
    return part.bus or part.element.get("name") or f"{part.element.tag} {part.element.get('numaid', '')}".strip()


def bus_order(part: SystemPart) -> tuple[int, ...]:
    """Sorts parts like nvidia-smi does: by bus id."""
    match = _BUS.fullmatch(part.bus)
    return tuple(int(digits, 16) for digits in match.groups()) if match else (1 << 64,)


def _same_nic_twice(system: System) -> None:
    """A virtual NIC may be listed under every CPU: keep the first, with links to all."""
    seen: dict[tuple[str, str, str], SystemPart] = {}
    for part in system.parts("nic"):
        if part.net is None or part.parent is None:
            continue
        key = (part.net.get("name", ""), part.net.get("dev", ""), part.net.get("guid", ""))
        first = seen.setdefault(key, part)
        if first is not part and key[0]:
            part.parent.children.remove(part)
            first.also.append(part.parent)


def _is_parent(cpu: SystemPart, system: System) -> bool:
    return any(cpu in part.also for part in system.parts("nic"))


def _trim(part: SystemPart) -> None:
    """Drop switches and cards without anything below."""
    for child in list(part.children):
        _trim(child)
        if child.role in ("pcie", "card") and not child.children:
            part.children.remove(child)


def _flatten(part: SystemPart) -> None:
    """Show two-level Broadcom switches as the one switch they are."""
    for child in list(part.children):
        if any((_identity(part), _identity(child)) == levels for levels in _FLATTENED) and child.role == "pcie":
            place = part.children.index(child)
            part.children[place : place + 1] = child.children
            for grandchild in child.children:
                grandchild.parent = part
    for child in part.children:
        _flatten(child)


def _identity(part: SystemPart) -> int:
    """Vendor, device and subsystem in one number, without the variant in the last digits."""
    keys = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    whole = 0
    for key in keys:
        whole = whole << 16 | hexadecimal(part.element, key) & 0xFFFF
    return whole & ~0xFFF


def _cards(part: SystemPart) -> None:
    """PCI functions of one device, or NICs with one guid, are the ports of one card."""
    groups: dict[str, list[SystemPart]] = {}
    for child in part.children:
        if child.role == "nic" and child.speed is not None:
            guid = child.net.get("guid", "") if child.net is not None else ""
            real = guid if guid.lower() not in ("", "0", "0x0") else child.bus.rpartition(".")[0]
            groups.setdefault(real or child.bus, []).append(child)
    for ports in groups.values():
        if len(ports) > 1:
            card = SystemPart("card", ports[0].element, part, ports[0].speed, list(ports))
            part.children[part.children.index(ports[0])] = card
            for port in ports:
                port.parent = card
            part.children = [child for child in part.children if child not in ports]
    for child in part.children:
        if child.role == "pcie":
            _cards(child)
