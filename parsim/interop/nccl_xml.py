"""A topology file out of NCCL's topology XML."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.links import LinkKind, network_kind, standard_kind
from parsim.hardware.fabric.node import Node
from parsim.interop.description import PCI_DEVICES, Choices, ChosenGpu, Imported, MachineFacts, finish, gpu_named, kind_of, nics_used
from parsim.interop.drawing import NVLINK_HEADINGS, SOURCES, Drawing, DrawnWire, between_cpus
from parsim.interop.nccl_links import XmlNvlinks, read_nvlinks
from parsim.interop.nccl_system import Role, System, SystemPart, bus_order, hexadecimal, number, read_system, where
from parsim.interop.topo_matrix import LARGEST

ORIGIN = "an NCCL topology XML"
_LANE = 0.75e9 / 60
"""bytes per second of one lane per unit of NCCL's speed table: width x speed / 80 GB/s"""
_SLOW = 3e9
"""uplinks of a PCIe switch below this [B/s] are doubtful: PCIe 3 x4"""
_LOCAL = "local"
_INNER: dict[Role, str] = {"cpu": "cpu", "pcie": "pcie", "card": "pcie-card"}
_RDMA = ("mlx", "roce", "bnxt", "irdma", "rxe")


@dataclass(slots=True)
class _Machine:
    """Everything that was found out, with the names that the topology file uses."""

    system: System
    gpus: list[SystemPart]
    nics: list[SystemPart]
    choices: Choices
    models: list[ChosenGpu] = field(default_factory=list)
    own_kinds: dict[str, tuple[LinkKind, str]] = field(default_factory=dict)


def import_nccl_xml(text: str, *, device: str | None, nic: str | None, pcie: str | None, cpu: str | None, name: str) -> Imported:
    """A topology called `name` from the XML that NCCL_TOPO_DUMP_FILE writes, or that is given to it with NCCL_TOPO_FILE.

    Args:
        text: the XML.
        device: the GPU (catalogue name, alias or file); None goes by PCI device, NVLinks or compute capability.
        nic: link kind of the NICs, e.g. ib-hdr; None goes by the speed in the file.
        pcie: link kind of PCIe links whose speed the file does not state; None takes PCIe 3 like NCCL, and warns.
        cpu: amd | intel | ibm | arm, or a link kind between sockets; None goes by the file.
        name: of the topology.

    Raises:
        TopologyError: no such XML, several machines, unknown parts, options that do not exist.
        ScenarioError: no such device.
    """
    choices = Choices(device, nic, pcie, cpu)
    system = read_system(text)
    choices.findings += system.findings
    machine = _Machine(system, _by_number(system.parts("gpu"), "gpu"), _by_number(system.parts("nic"), "nic"), choices)
    if len(machine.gpus) + len(machine.nics) > LARGEST:
        raise TopologyError(Finding(f"{len(machine.gpus) + len(machine.nics)} GPUs and NICs in one machine; at most {LARGEST} are read"))
    _give_names(machine)
    links = read_nvlinks(machine.gpus, choices.findings)
    machine.models = _models(machine, links)
    links.check([model.device for model in machine.models], machine.gpus)
    links.assume([model.device for model in machine.models], choices)
    excluded = _left_out(machine)
    usable = [number for number in range(len(machine.nics)) if number not in excluded]
    socket, maker = _socket(machine)
    drawing = _draw(machine, links, socket, name)
    drawing.cpu, drawing.ports = maker, [f"nic{number}" for number in usable]
    drawing.network = nic or _network(machine, usable)
    return finish(drawing, choices, lambda node: _facts(machine, links, excluded, node))


def _by_number(parts: list[SystemPart], tag: str) -> list[SystemPart]:
    """Parts by their number in the file (dev); without such numbers by bus id, as nvidia-smi counts."""
    problems: list[Finding] = []
    entries = [part.element.find("gpu") if tag == "gpu" else part.net for part in parts]
    numbers = [
        number(entry, "dev", -1, where(part), problems) if entry is not None else -1 for entry, part in zip(entries, parts, strict=True)
    ]
    if problems:
        raise TopologyError(problems)
    if len(set(numbers)) < len(numbers) or -1 in numbers:
        return sorted(parts, key=bus_order)
    return [part for _, part in sorted(zip(numbers, parts, strict=True), key=lambda pair: pair[0])]


def _give_names(machine: _Machine) -> None:
    for role, prefix in _INNER.items():
        for position, part in enumerate(machine.system.parts(role)):
            part.name = f"{prefix}{position}"
    for parts, prefix in ((machine.gpus, "gpu"), (machine.nics, "nic")):
        for position, part in enumerate(parts):
            part.name = f"{prefix}{position}"


def _models(machine: _Machine, links: XmlNvlinks) -> list[ChosenGpu]:
    """The device of every GPU: the user's word, the PCI device, the NVLinks, the compute capability."""
    choices = machine.choices
    if choices.device is not None:
        return [gpu_named(choices.device)] * len(machine.gpus)
    known = [PCI_DEVICES.get(hexadecimal(part.element, "vendor") << 16 | hexadecimal(part.element, "device"), "") for part in machine.gpus]
    if not all(known):
        problems: list[Finding] = []
        part = machine.gpus[known.index("")]
        entry = part.element.find("gpu")
        capability = number(entry, "sm", 0, where(part), problems) if entry is not None else 0
        if problems:
            raise TopologyError(problems)
        guess = choices.gpu(links.wiring, max(links.per_gpu), capability).name
        known = [name or guess for name in known]
    gpus = {name: gpu_named(name) for name in known}
    return [gpus[name] for name in known]


def _left_out(machine: _Machine) -> tuple[int, ...]:
    """NICs for storage or management: on no GPU's switch where another is, or on a CPU without GPUs where another is not."""
    behind = {part.top() for part in machine.gpus if part.top().role == "pcie"}
    sides = {part.cpu for part in machine.gpus}
    everyone = range(len(machine.nics))
    near = [nic for nic in everyone if machine.nics[nic].top() in behind]
    near = near or [nic for nic in everyone if any(cpu in sides for cpu in (machine.nics[nic].cpu, *machine.nics[nic].also))]
    excluded = tuple(nic for nic in everyone if nic not in (near or everyone))
    if excluded:
        names = ", ".join(f"nic{nic} ({_interface(machine.nics[nic])})" for nic in excluded)
        problem = f"left out of the fabric, being on no GPU's switch: {names}"
        machine.choices.assume(problem, "fabric.nics", "add them to fabric.nics if they carry training traffic")
    distant = [machine.nics[nic].name for nic in everyone if nic not in excluded and _without_gdr(machine.nics[nic])]
    if distant:
        names = ", ".join(distant)
        machine.choices.assume(f"{names} cannot read GPU memory (gdr=0); the copies through host memory are not modelled", "fabric.nics")
    return excluded


def _without_gdr(nic: SystemPart) -> bool:
    return nic.net is not None and nic.net.get("gdr") == "0"


def _interface(nic: SystemPart) -> str:
    return (nic.net.get("name", "") if nic.net is not None else "") or nic.bus or "unnamed"


def _socket(machine: _Machine) -> tuple[str, str]:
    """Link kind between the CPUs (empty for one) and their maker where no such link tells it."""
    cpus, choices = machine.system.cpus, machine.choices
    if choices.cpu is not None:
        return choices.socket(len(cpus))
    kinds = [_socket_kind(cpu) for cpu in cpus]
    if len(set(kinds)) > 1:
        choices.assume(f"the CPUs differ ({', '.join(kind or 'unknown' for kind in dict.fromkeys(kinds))}); the first is taken", "cpu")
    if not kinds[0]:
        return choices.socket(len(cpus))
    if kinds[0].startswith("socket-zhaoxin"):
        rate = 9e9 if kinds[0].endswith("yongfeng") else 6e9
        machine.own_kinds[kinds[0]] = (LinkKind(kinds[0], "socket", rate, 0.5e-6), SOURCES["socket"])
        return (kinds[0] if len(cpus) > 1 else "", "")
    return (kinds[0], "") if len(cpus) > 1 else ("", kind_of(kinds[0]).vendor)


def _socket_kind(cpu: SystemPart) -> str:
    """The inter-socket link of a CPU by architecture, maker and model (NVIDIA/nccl src/graph/topo.cc); empty if unknown."""
    element, problems = cpu.element, list[Finding]()
    by_arch = {"ppc64": "socket-power9", "arm64": "socket-arm"}
    if element.get("arch") in by_arch:
        return by_arch[element.get("arch", "")]
    family, model = (number(element, key, 0, where(cpu), problems) for key in ("familyid", "modelid"))
    vendor = element.get("vendor", "").strip()
    if vendor == "AuthenticAMD":
        return "socket-amd"
    if vendor in ("CentaurHauls", "Shanghai"):
        return "socket-zhaoxin-yongfeng" if (family, model) == (7, 0x5B) else "socket-zhaoxin"
    if vendor != "GenuineIntel":
        return ""
    if family == 6 and (model >= 0xCF or model in (0xAD, 0xAE, 0xAF)):
        return "socket-emerald-rapids"
    if family == 6 and model >= 0x8F:
        return "socket-sapphire-rapids"
    return "socket-skylake" if family == 6 and model >= 0x55 else "socket-broadwell"


def _network(machine: _Machine, usable: list[int]) -> str:
    """Link kind of the NICs by family and speed; empty where the file states none."""
    kinds = [_network_kind(machine, machine.nics[nic]) for nic in usable]
    known = list(dict.fromkeys(kind for kind in kinds if kind))
    if not known:
        return ""
    best = max(known, key=kinds.count)
    if len(known) > 1:
        machine.choices.assume(f"the NICs differ ({', '.join(known)}); the fabric has one kind, {best}", "fabric.link")
    return best


def _network_kind(machine: _Machine, nic: SystemPart) -> str:
    if nic.net is None:
        return ""
    problems: list[Finding] = []
    speed = number(nic.net, "speed", 0, where(nic), problems)
    if problems:
        raise TopologyError(problems)
    if speed <= 0:
        speed = 10_000  # what NCCL takes for NICs that state none
    interface = _interface(nic).lower()
    if nic.element.get("class", "").startswith("0x0207") or _ip_over_ib(interface):
        family = "ib"
    elif interface.startswith(("rdmap", "efa")) or hexadecimal(nic.element, "vendor") == 0x1D0F:
        family = "efa"
    else:
        family = "roce" if interface.startswith(_RDMA) else "ethernet"
    generations = {100: "edr", 200: "hdr", 400: "ndr", 800: "xdr"}
    rate = speed / 1000
    name = f"ib-{generations[int(rate)]}" if family == "ib" and rate in generations else f"{family}-{rate:g}g"
    if standard_kind(name) is None:
        name = name.replace(".", "-")
        machine.own_kinds[name] = (network_kind(name, speed * 1e6 / 8), "")
    return name


def _ip_over_ib(interface: str) -> bool:
    """Whether an interface is IP over InfiniBand by its name (ib0, ibp12s0)."""
    return interface.startswith("ib") and any(letter.isdigit() for letter in interface)


def _draw(machine: _Machine, links: XmlNvlinks, socket: str, name: str) -> Drawing:
    """Vertices and edges, from NVLink down to the CPUs."""
    system = machine.system
    vertices = ["nvswitch"] if any(links.switched) else []
    for role in _INNER:
        vertices += [part.name for part in system.parts(role)]
    vertices += [part.name for part in machine.nics]
    wires = [(NVLINK_HEADINGS[links.wiring], links.wires([model.device.nvlink for model in machine.models]))]
    direct = _host_links(machine, links)
    unstated = [part for part in _all_parts(system) if part.speed is not None and not part.speed[0]]
    if unstated:
        taken = machine.choices.pcie or "PCIe 3 is taken, as NCCL does"
        problem = f"{len(unstated)} PCIe links state no speed: {taken}"
        machine.choices.assume(problem, "pcie", "" if machine.choices.pcie else "say which: --pcie pcie4-x16")
    for cpu in system.cpus:
        below = [wire for part in cpu.walk() for wire in _below(machine, part, direct)]
        wires.append((_heading(cpu), below))
    wires.append(("beside PCIe", list(direct.values())))
    wires.append(("between PCIe switches", _sideways(machine)))
    wires.append(("between CPUs", between_cpus(len(system.cpus), socket)))
    models = tuple(model.name for model in machine.models)
    devices = models[:1] if len(set(models)) == 1 else models
    return Drawing(name, ORIGIN, len(machine.gpus), devices, vertices, wires, own_kinds=machine.own_kinds)


def _all_parts(system: System) -> list[SystemPart]:
    return [part for cpu in system.cpus for part in cpu.walk()]


def _heading(cpu: SystemPart) -> str:
    names = [f"{part.name} = {_interface(part)}" for part in cpu.walk() if part.role == "nic"]
    vendor = cpu.element.get("vendor", "") or cpu.element.get("arch", "")
    listed = f"; {', '.join(names)}" if names else ""
    return f"{cpu.name}: NUMA {cpu.element.get('numaid', '?')} {vendor}{listed}"


def _below(machine: _Machine, parent: SystemPart, direct: dict[tuple[str, str], DrawnWire]) -> list[DrawnWire]:
    """Edges from what is plugged into `parent`: GPUs first, then NICs, then cards and switches."""
    order = {"gpu": 0, "nic": 1, "card": 2, "pcie": 3}
    children = sorted(parent.children, key=lambda part: order[part.role])
    wires = [DrawnWire((part.name,), parent.name, _kind(machine, part)) for part in children if (part.name, parent.name) not in direct]
    return wires + [DrawnWire((nic.name,), parent.name, _kind(machine, nic)) for nic in machine.nics if parent in nic.also]


def _kind(machine: _Machine, part: SystemPart) -> str:
    """Link kind between a part and what it is plugged into; new ones are noted."""
    if part.speed is None:
        return _local(machine)
    generation, width = part.speed
    if not generation and machine.choices.pcie:
        return machine.choices.pcie
    name = f"pcie{generation or 3}-x{width}"
    kind = standard_kind(name)
    if kind is None:
        speed = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}[generation or 3]
        kind = LinkKind(name, "pcie", width * speed * _LANE, 0.4e-6)
        machine.own_kinds[name] = (kind, SOURCES["pcie"])
    if part.role == "pcie" and kind.capacity < _SLOW:
        rate = f"{kind.capacity / 1e9:g} GB/s"
        problem = f"the uplink of {part.name} ({where(part)}) is {name}, {rate}: probably a virtual bridge that states nonsense"
        machine.choices.assume(problem, part.name, "correct its kind")
    return name


def _local(machine: _Machine) -> str:
    machine.own_kinds[_LOCAL] = (LinkKind(_LOCAL, "pcie", 5000e9), "NVIDIA/nccl src/graph/topo.h: inside one device")
    return _LOCAL


def _host_links(machine: _Machine, links: XmlNvlinks) -> dict[tuple[str, str], DrawnWire]:
    """Links from GPUs to their CPU that are not PCIe: C2C of Grace, NVLink of POWER9."""
    wires: dict[tuple[str, str], DrawnWire] = {}
    problems: list[Finding] = []
    for position, part in enumerate(machine.gpus):
        pair = (part.name, part.cpu.name)
        entry = part.element.find("gpu/c2c")
        if entry is not None:
            megabytes = number(entry, "bw", 0, where(part), problems) * number(entry, "count", 1, where(part), problems)
            if megabytes > 0:
                kind = LinkKind("c2c", "pcie", megabytes * 1e6, kind_of("nvlink-c2c").latency)
                machine.own_kinds.setdefault("c2c", (kind, "bw x count of the XML, as NVIDIA/nccl src/graph/topo.cc counts"))
                wires[pair] = DrawnWire((part.name,), part.cpu.name, "c2c")
        elif links.to_cpu[position]:
            base = kind_of(machine.models[position].device.nvlink)
            own = f"host-{base.name}"
            machine.own_kinds[own] = (replace(base, name=own, medium="pcie", planned=0.0), SOURCES["nvlink"])
            wires[pair] = DrawnWire((part.name,), part.cpu.name, own, links.to_cpu[position])
    if problems:
        raise TopologyError(problems)
    return wires


def _sideways(machine: _Machine) -> list[DrawnWire]:
    """Halves of a PCIe switch that are joined inside."""
    names = {part.bus: part.name for part in machine.system.parts("pcie")}
    wires: dict[frozenset[str], DrawnWire] = {}
    for source, target in machine.system.links:
        if source in names and target in names and source != target:
            wires.setdefault(frozenset((source, target)), DrawnWire((names[source],), names[target], _local(machine)))
        else:
            machine.choices.assume(
                f"the link between PCIe switches {source} and {target or '?'} is left out: one of them is not there", source
            )
    return list(wires.values())


def _facts(machine: _Machine, links: XmlNvlinks, excluded: tuple[int, ...], node: Node) -> MachineFacts:
    """The summary; which NIC a GPU uses is read off the graph."""
    place = {part: position for parts in (machine.gpus, machine.nics) for position, part in enumerate(parts)}
    trees = [part for cpu in machine.system.cpus for part in cpu.children if part.role == "pcie"]
    complexes = [[leaf for leaf in tree.walk() if leaf.role in ("gpu", "nic")] for tree in trees]
    cards = [[place[port] for port in part.children] for part in machine.system.parts("card")]
    cards += [[place[nic]] for nic in machine.nics if nic.parent is None or nic.parent.role != "card"]
    return MachineFacts(
        gpus=tuple(where(part) for part in machine.gpus),
        nics=tuple(map(_interface, machine.nics)),
        nvlink=links.wiring,
        nvlink_edges=tuple((a, b, count) for (a, b), count in sorted(links.direct.items())),
        nvlinks=tuple(links.per_gpu),
        cpus=tuple(tuple(sorted(place[part] for part in cpu.walk() if part.role == "gpu")) for cpu in machine.system.cpus),
        complexes=tuple(
            tuple(leaf.name for leaf in sorted(tree, key=lambda leaf: (leaf.role, place[leaf])))
            for tree in complexes
            if any(leaf.role == "gpu" for leaf in tree)
        ),
        root_ports=tuple(part.name for part in machine.gpus if part.parent is not None and part.parent.role == "cpu"),
        host_bridges=(),
        cards=tuple(map(tuple, sorted(cards))),
        excluded=excluded,
        unassigned=(),
        nics_of=nics_used(node),
    )
