"""A topology file out of ``nvidia-smi topo -m``."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.links import standard_kind
from parsim.interop.description import MOST_NVLINKS, Choices, ChosenGpu, Imported, MachineFacts, finish
from parsim.interop.drawing import NVLINK_HEADINGS, Drawing, DrawnWire, between_cpus
from parsim.interop.product_names import Named, named
from parsim.interop.rocm_matrix import is_rocm, read_rocm
from parsim.interop.topo_graph import Nvlinks, PcieTree, left_out, nics_of, nvlinks, pcie_tree
from parsim.interop.topo_matrix import TopologyMatrix, read_matrix
from parsim.scenario import files

ORIGIN = "nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class _Machine:
    """Everything that was found out, under the names that the topology file uses."""

    matrix: TopologyMatrix
    links: Nvlinks
    tree: PcieTree
    gpu: ChosenGpu
    pcie: str
    socket: str

    def vertex(self, device: int) -> str:
        """Name of a GPU or NIC by its number in the matrix."""
        gpus = len(self.matrix.gpus)
        return f"gpu{device}" if device < gpus else f"nic{device - gpus}"

    def vertices(self, devices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(map(self.vertex, devices))


def import_topo(text: str, *, device: str | None, nic: str | None, pcie: str | None, cpu: str | None, name: str) -> Imported:
    """A topology called `name` from the matrix in `text`.

    Args:
        text: the output of ``nvidia-smi topo -m``, also pasted among other text or as a markdown table.
        device: the GPU (catalogue name, alias or file); None takes the usual one with that many NVLinks, and warns.
        nic: link kind of the NICs, e.g. ib-hdr; None leaves it open.
        pcie: link kind of all PCIe links, e.g. pcie4-x16; None takes the GPU's.
        cpu: amd | intel | ibm | arm, or a link kind between sockets; None takes AMD's, and warns if there are several CPUs.
        name: of the topology.

    Raises:
        TopologyError: no usable matrix, unknown words, options that do not exist, a GPU that nothing tells.
        ScenarioError: no such device.
    """
    said = named(text)
    matrix = _matrix(text, said)
    choices = Choices(device or _device(said), nic, pcie or _slot(said), cpu)
    choices.findings += matrix.warnings
    _check_named(said, device, len(matrix.gpus), choices)
    pcie = choices.pcie
    if choices.device is None and is_rocm(text):
        repair = f"name it: --gpu NAME, for example {', '.join(name for name in files.names('devices') if name.startswith('mi'))}"
        raise TopologyError(Finding("the tables of rocm-smi do not name the GPU", "device", suggestion=repair))
    if choices.device is None:
        shown_links = nvlinks(matrix, MOST_NVLINKS)
        gpu = choices.gpu(shown_links.wiring, max(shown_links.per_gpu))
    else:
        gpu = choices.gpu("none", 0)
    links = nvlinks(matrix, gpu.device.nvlinks, gpu.device.name)
    if links.wiring != "none" and max(links.per_gpu) < gpu.device.nvlinks and choices.device is not None:
        shown = max(links.per_gpu)
        problem = f"{gpu.device.name} has {gpu.device.nvlinks} NVLinks, the matrix shows {shown}"
        choices.assume(problem, "device", "is it another GPU, or are some not visible?")
    tree = pcie_tree(matrix)
    choices.findings += tree.findings
    kind, maker = choices.socket(len(tree.cpus))
    machine = _Machine(matrix, links, tree, gpu, pcie or gpu.device.pcie, kind)
    excluded, unassigned = left_out(matrix, tree.far)
    _explain(machine, excluded, unassigned, choices)
    usable = [number for number in range(len(matrix.nics)) if number not in excluded + unassigned]
    facts = _facts(machine, excluded, unassigned, nics_of(len(matrix.gpus), usable, tree.far))
    drawing = _draw(machine, name)
    drawing.ports = [f"nic{number}" for number in usable]
    drawing.network, drawing.cpu = nic or "", maker
    return finish(drawing, choices, lambda _: facts)


def _matrix(text: str, said: Named) -> TopologyMatrix:
    """The matrix of nvidia-smi or of rocm-smi; of other lists, what they are and what they lack."""
    if is_rocm(text):
        return read_rocm(text)
    try:
        return read_matrix(text)
    except TopologyError as error:
        if not said.source or "no topology matrix" not in error.findings[0].message:
            raise
        count = f"{said.count} x " if len(said.products) == 1 else f"{said.count} devices: "
        problem = f"is the list of {said.source} ({count}{said.listed}), which does not say how the GPUs are joined"
        tool = "rocm-smi --showtopo" if said.source == "rocm-smi" else "nvidia-smi topo -m"
        known = f"; or without a topology: cluster: {said.count}x {said.devices[0]}" if len(said.devices) == 1 else ""
        raise TopologyError(Finding(problem, suggestion=f"add the output of {tool} to it{known}")) from None


def _device(said: Named) -> str | None:
    """The one device that the text names and the catalogue has."""
    known = [name for name in said.devices if name in files.names("devices")]
    return known[0] if len(known) == 1 == len(said.products) else None


def _slot(said: Named) -> str | None:
    """The PCIe link kind that the text names, if it is one that parsim knows."""
    kind = standard_kind(said.pcie) if said.pcie else None
    return said.pcie if kind is not None and kind.medium == "pcie" else None


def _check_named(said: Named, device: str | None, gpus: int, choices: Choices) -> None:
    """Say where the text and the user differ, and where a list has other GPUs than the matrix."""
    if device is None and not said.source and _device(said):
        choices.assume(f"{said.devices[0]} is what the words beside the matrix name", "device", "if it is another: --gpu NAME")
    if said.source and said.count != gpus:
        choices.assume(f"{said.source} lists {said.count} GPUs, the matrix has {gpus}", "node.gpus", "are all of them of one machine?")
    if device is None and said.source and _device(said) is None:
        problem = f"{said.source} names {said.listed}"
        problem += ": which of them?" if len(said.products) > 1 else ", which the catalogue does not have"
        raise TopologyError(Finding(problem, "device", suggestion="say which: --gpu NAME, or --gpu FILE for a device file of your own"))
    if device is not None and said.devices and _device(said) not in (None, files.find("devices", device).stem):
        choices.assume(f"{device} was asked for, the text names {said.listed}", "device")


def _explain(machine: _Machine, excluded: tuple[int, ...], unassigned: tuple[int, ...], choices: Choices) -> None:
    """Say which NICs do not take part."""

    def listed(numbers: tuple[int, ...]) -> str:
        return ", ".join(_both_names(machine.matrix, number) for number in numbers)

    if excluded:
        problem = f"left out of the fabric, being on no GPU's switch: {listed(excluded)}"
        choices.assume(problem, "fabric.nics", "add them to fabric.nics if they carry training traffic")
    if unassigned:
        problem = f"where the NICs are is unknown; GPU k is given NIC k, and {listed(unassigned)} stay unused"
        choices.assume(problem, "fabric.nics", "correct the edges and fabric.nics")
    several = [machine.vertices(tree) for tree in machine.tree.switches if sum(set(leaf) <= set(tree) for leaf in machine.tree.leaves) > 1]
    for tree in several:
        problem = f"PXB joins several switches ({', '.join(tree)}); one x16 uplink to the CPU and x16 between them are assumed"
        choices.assume(problem, tree[0])


def _both_names(matrix: TopologyMatrix, nic: int) -> str:
    own, interface = matrix.nics[nic], matrix.interfaces[nic]
    return own if own == interface else f"{own} ({interface})"


def _facts(machine: _Machine, excluded: tuple[int, ...], unassigned: tuple[int, ...], owned: tuple[tuple[int, ...], ...]) -> MachineFacts:
    matrix, tree = machine.matrix, machine.tree
    gpus = len(matrix.gpus)
    behind = [device for switch in tree.switches for device in switch]
    return MachineFacts(
        gpus=matrix.gpus,
        nics=matrix.interfaces,
        nvlink=machine.links.wiring,
        nvlink_edges=machine.links.edges,
        nvlinks=machine.links.per_gpu,
        cpus=tuple(tuple(device for device in group if device < gpus) for group in tree.cpus),
        complexes=tuple(machine.vertices(switch) for switch in tree.switches if switch[0] < gpus),
        root_ports=tuple(f"gpu{gpu}" for gpu in range(gpus) if gpu not in behind),
        host_bridges=tuple(map(machine.vertices, tree.bridges)),
        cards=tuple(tuple(device - gpus for device in card) for card in tree.cards),
        excluded=excluded,
        unassigned=unassigned,
        nics_of=owned,
    )


def _draw(machine: _Machine, name: str) -> Drawing:
    """Vertices and edges, from NVLink down to the CPUs."""
    vertices: list[str] = []
    wires: list[tuple[str, list[DrawnWire]]] = []
    gpus = len(machine.matrix.gpus)
    switches, direct = _nvlink_wires(machine)
    vertices += switches
    wires.append((NVLINK_HEADINGS[machine.links.wiring], direct))
    parent, above = _parents(machine)
    vertices += [*(f"cpu{number}" for number in range(len(machine.tree.cpus))), *above]
    vertices += [f"nic{number}" for number in range(len(machine.matrix.nics))]
    kind = machine.pcie if machine.pcie.startswith("pcie") else "pcie5-x16"
    for number, group in enumerate(machine.tree.cpus):
        cells = [machine.matrix.affinities[device] for device in group if device < gpus]
        place = f"NUMA {cells[0].numa}" if cells and cells[0].numa else "no GPU" if not cells else "PCIe"
        below: list[DrawnWire] = []
        devices = [*machine.vertices(group), *(vertex for vertex in above if _top(vertex, parent) == f"cpu{number}")]
        for vertex in sorted(devices, key=lambda vertex: vertices.index(parent[vertex])):
            wire = DrawnWire((vertex,), parent[vertex], machine.pcie if vertex.startswith("gpu") else kind)
            below.append(wire)
        wires.append((f"cpu{number}: {place}{_interfaces(machine, group)}", below))
    wires.append(("between CPUs", between_cpus(len(machine.tree.cpus), machine.socket)))
    notes = ["PCIe generation and width are those of the GPU's socket, also for switches and NICs: the matrix does not show them."]
    return Drawing(name, ORIGIN, gpus, (machine.gpu.name,), vertices, wires, notes=notes if machine.pcie == machine.gpu.device.pcie else [])


def _interfaces(machine: _Machine, group: tuple[int, ...]) -> str:
    """Which network interface each NIC of a CPU is."""
    gpus = len(machine.matrix.gpus)
    names = [f"{machine.vertex(device)} = {machine.matrix.interfaces[device - gpus]}" for device in group if device >= gpus]
    return f"; {', '.join(names)}" if names else ""


def _nvlink_wires(machine: _Machine) -> tuple[list[str], list[DrawnWire]]:
    """NVSwitch vertices (parallel chips are one vertex) and all NVLink edges."""
    kind, links = machine.gpu.device.nvlink, machine.links
    everyone = tuple(range(len(machine.matrix.gpus)))
    names = ["nvswitch"] if len(links.switched) == 1 else [f"nvswitch{number}" for number in range(len(links.switched))]
    wires: list[DrawnWire] = []
    for name, (group, count) in zip(names, links.switched, strict=True):
        wires.append(DrawnWire(("gpu*",) if group == everyone else machine.vertices(group), name, kind, count))
    pairs = len(everyone) * (len(everyone) - 1) // 2
    if len(everyone) > 2 and len(links.edges) == pairs and len({count for _, _, count in links.edges}) == 1:
        return names, [DrawnWire(("gpu*",), "gpu*", kind, links.edges[0][2])]
    return names, wires + [DrawnWire((f"gpu{a}",), f"gpu{b}", kind, count) for a, b, count in links.edges]


def _parents(machine: _Machine) -> tuple[dict[str, str], list[str]]:
    """What each GPU, NIC, card and switch is plugged into; and the switch and card vertices, the upper ones first."""
    tree, gpus = machine.tree, len(machine.matrix.gpus)
    parent: dict[str, str] = {}
    for number, cpu in enumerate(tree.cpus):
        parent |= dict.fromkeys(machine.vertices(cpu), f"cpu{number}")
    above: list[str] = []

    def plug(name: str, group: tuple[int, ...]) -> None:
        parent[name] = parent[machine.vertex(group[0])]
        parent.update(dict.fromkeys(machine.vertices(group), name))
        above.append(name)

    for number, switch in enumerate(tree.switches):
        plug(f"pcie{number}", switch)
    for number, leaf in enumerate(tree.leaves):
        plug(f"pcie-leaf{number}", leaf)
    ports = [card for card in tree.cards if len(card) > 1 and card[0] >= gpus]
    for number, card in enumerate(ports):
        plug(f"pcie-card{number}", card)
    return parent, above


def _top(vertex: str, parent: dict[str, str]) -> str:
    """The CPU above a vertex."""
    while vertex in parent:
        vertex = parent[vertex]
    return vertex
