"""The NVLinks of NCCL's topology XML: to NVSwitches, to other GPUs, to the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.interop.description import Choices, Wiring
from parsim.interop.drawing import DrawnWire
from parsim.interop.nccl_system import SystemPart, number, where


@dataclass(slots=True)
class XmlNvlinks:
    """NVLinks by GPU number (xGMI links of AMD are read alike)."""

    switched: list[int]
    """links of each GPU to NVSwitches, whichever chip: they are one vertex"""
    to_cpu: list[int]
    direct: dict[tuple[int, int], int] = field(default_factory=dict)
    """links between two GPUs, the smaller number first"""

    @property
    def per_gpu(self) -> list[int]:
        """Links of each GPU to other GPUs, directly or through switches."""
        return [count + sum(links for pair, links in self.direct.items() if gpu in pair) for gpu, count in enumerate(self.switched)]

    @property
    def any(self) -> bool:
        """Whether the file lists any."""
        return any(self.switched) or any(self.to_cpu) or bool(self.direct)

    @property
    def wiring(self) -> Wiring:
        if any(self.switched):
            return "mixed" if self.direct else "nvswitch"
        if not self.direct:
            return "none"
        partners = [sum(gpu in pair for pair in self.direct) for gpu in range(len(self.switched))]
        return "bridges" if max(partners) == 1 else "mesh"

    def check(self, devices: list[Device], gpus: list[SystemPart]) -> None:
        """No GPU may have more links than its kind has.

        Raises:
            TopologyError: with the arithmetic.
        """
        problems = []
        for device, part, links, host in zip(devices, gpus, self.per_gpu, self.to_cpu, strict=True):
            if links + host > device.nvlinks:
                terms = f"{links} NVLinks to GPUs and switches" + (f" + {host} to the CPU" if host else "")
                problem = f"{part.name} has {terms}, more than the {device.nvlinks} of {device.name}"
                problems.append(Finding(problem, where(part), suggestion="is it another GPU? say which: --gpu NAME"))
        if problems:
            raise TopologyError(problems)

    def assume(self, devices: list[Device], choices: Choices) -> None:
        """Say where GPUs show no or fewer links than they have; GPUs that come on NVSwitch boards get them where the file lists none."""
        if len(devices) < 2:
            return
        if not self.any:
            wired = [device for device in devices if device.interconnect == "nvswitch"]
            if len(wired) == len(devices):
                self.switched = [device.nvlinks for device in devices]
                problem = f"the file lists no NVLinks (NCCL adds them at run time); {self.switched[0]} per GPU to NVSwitches are assumed"
                choices.assume(problem, "nvlink", "if there are none, delete the edges to nvswitch")
            elif any(device.interconnect == "nvlink-mesh" for device in devices):
                problem = "the file lists no NVLinks (NCCL adds them at run time), and how these GPUs are meshed is unknown"
                choices.assume(problem, "nvlink", "add the edges between GPUs, or import nvidia-smi topo -m")
            return
        bare = [f"gpu{gpu}" for gpu, links in enumerate(self.per_gpu) if not links and not self.to_cpu[gpu]]
        if bare:
            choices.assume(f"no NVLink at {', '.join(bare)}, though other GPUs have some", bare[0], "is the fabric manager running?")

    def wires(self, kinds: list[str]) -> list[DrawnWire]:
        """Edges, with the link kind of each GPU."""
        counts = set(self.switched)
        if len(counts) == 1 and len(set(kinds)) == 1 and self.switched[0]:
            switch_wires = [DrawnWire(("gpu*",), "nvswitch", kinds[0], self.switched[0])]
        else:
            switch_wires = [DrawnWire((f"gpu{gpu}",), "nvswitch", kinds[gpu], count) for gpu, count in enumerate(self.switched) if count]
        return switch_wires + [DrawnWire((f"gpu{a}",), f"gpu{b}", kinds[a], count) for (a, b), count in sorted(self.direct.items())]


def read_nvlinks(gpus: list[SystemPart], findings: list[Finding]) -> XmlNvlinks:
    """The nvlink elements of all GPUs; targets that make no sense are left out with a finding.

    Raises:
        TopologyError: a count that is no positive number.
    """
    place = {part.bus: position for position, part in enumerate(gpus)}
    links = XmlNvlinks([0] * len(gpus), [0] * len(gpus))
    seen: dict[tuple[int, int], int] = {}
    problems: list[Finding] = []
    selfish: list[str] = []
    for position, part in enumerate(gpus):
        for entry in (*part.element.findall("gpu/nvlink"), *part.element.findall("gpu/xgmi")):
            count = number(entry, "count", 1, where(part), problems)
            if count < 1:
                problems.append(Finding("an NVLink count is at least 1", where(part), count))
            target, code = entry.get("target", "").lower(), entry.get("tclass", "").lower()
            if target == part.bus:
                selfish.append(part.name)
            elif code.startswith("0x068001"):
                links.to_cpu[position] += count
            elif target in place:
                seen[position, place[target]] = seen.get((position, place[target]), 0) + count
            elif code.startswith("0x0680"):
                links.switched[position] += count
            else:
                problem = f"{count} NVLinks from {part.name} to {target or '?'}, which is no GPU of the file, are left out"
                findings.append(Finding(problem, where(part)))
    if problems:
        raise TopologyError(problems)
    if selfish:
        problem = f"NVLinks of {', '.join(dict.fromkeys(selfish))} lead to the GPU itself, as in virtual machines, and are left out"
        findings.append(Finding(problem, "nvlink", suggestion="nvidia-smi topo -m shows the real ones"))
    for (a, b), count in seen.items():
        back = seen.get((b, a), 0)
        if a < b or not back:
            links.direct[min(a, b), max(a, b)] = max(count, back)
            if count != back:
                problem = f"gpu{a} lists {count} NVLinks to gpu{b}, gpu{b} lists {back} to gpu{a}; {max(count, back)} are taken"
                findings.append(Finding(problem, where(gpus[a])))
    return links
