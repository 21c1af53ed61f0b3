"""Writing a topology file that people can read and edit: vertices, edges, fabric and link kinds, with comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parsim.hardware.fabric.links import LinkKind, standard_kind
from parsim.hardware.fabric.networks import network_class

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
_NUMBERED = re.compile(r"(.*?)([0-9]+)")
_WIDTH = 132
SOURCES = {
    "nvlink": "NVIDIA/nccl src/graph/topo.h (effective rate per link)",
    "pcie": "NVIDIA/nccl src/graph/topo.cc: width x speed / 80",
    "socket": "NVIDIA/nccl src/graph/topo.h (link between sockets)",
    "memory": "assumption: 0.6 x STREAM",
}
"""where the rates of `parsim.hardware.fabric.links` come from, by medium"""
_SOURCE_OF = {
    "nvlink2": "measured per link on a V100 cube mesh (VIA-Research/vTrain); NCCL plans with 20",
    "xgmi3": "ROCm/rccl issue 1210 (effective rate per link)",
    "nvlink-c2c": "0.8 x the 450 GB/s of the datasheet",
}


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """Links of one kind between every vertex of `sources` and `target`."""

    sources: tuple[str, ...]
    target: str
    kind: str
    count: int = 1
    remark: str = ""


@dataclass(slots=True)
class Drawing:
    """One machine, ready to be written."""

    name: str
    origin: str
    """what it was made of"""
    gpus: int
    devices: tuple[str, ...]
    """one name, or one per GPU"""
    vertices: list[str]
    wires: list[tuple[str, list[DrawnWire]]]
    """edges under a heading each"""
    ports: list[str] = field(default_factory=list)
    network: str = ""
    """link kind between machines; empty if unknown"""
    cpu: str = ""
    """maker of the CPUs where no socket link tells it"""
    own_kinds: dict[str, tuple[LinkKind, str]] = field(default_factory=dict)
    """link kinds that parsim does not know, with their source"""
    remarks: list[str] = field(default_factory=list)
    """what the reader should check, at the top of the file"""
    notes: list[str] = field(default_factory=list)
    """what the description says nothing about"""

    def yaml(self) -> str:
        """The topology file."""
        parts = [f"# Made from {comment(self.origin)}. Every line may be edited."]
        parts += [f"# check: {comment(remark)}" for remark in self.remarks]
        parts += [
            f"name: {scalar(self.name)}",
            f"source: {quoted(self.origin)}",
            *self._node(),
            *self._fabric(),
            *self._links(),
        ]
        return "\n".join(parts) + "\n"

    def _node(self) -> list[str]:
        devices = scalar(self.devices[0]) if len(self.devices) == 1 else f"[{', '.join(map(scalar, self.devices))}]"
        lines = ["node:", f"  gpus: {self.gpus}", f"  device: {devices}"]
        if self.cpu:
            lines.append(f"  cpu: {self.cpu}")
        if self.vertices:
            lines.append(f"  vertices: [{', '.join(map(scalar, ranges(self.vertices)))}]")
        lines += [f"  # {comment(note)}" for note in self.notes]
        if any(wires for _, wires in self.wires):
            lines.append("  edges:")
        for heading, wires in self.wires:
            if wires:
                lines += [f"    # {comment(heading)}", *(f"    - {_edge(wire)}" for wire in merged(wires))]
        return lines

    def _fabric(self) -> list[str]:
        if not self.ports:
            return []
        link = f", link: {scalar(self.network)}" if self.network else ""
        lines = ["# The description ends at the NICs; one non-blocking switch joins the machines unless you say otherwise."]
        if not self.network:
            lines.append("# The speed of the NICs is unknown: add link, for example link: ib-hdr, before using several machines.")
        return [*lines, f"fabric: {{kind: single-switch, nics: [{', '.join(map(scalar, ranges(self.ports)))}]{link}}}"]

    def _links(self) -> list[str]:
        names = dict.fromkeys(wire.kind for _, wires in self.wires for wire in wires)
        if self.network and self.ports:
            names[self.network] = None
        lines = [f"  {name}: {self._kind(name)}" for name in names]
        return ["links:  # effective, per direction; latency per hop", *lines] if lines else []

    def _kind(self, name: str) -> str:
        own = self.own_kinds.get(name)
        kind = own[0] if own else standard_kind(name)
        if kind is None:
            raise ValueError(f"no link kind {name!r}")
        keys = [f"medium: {kind.medium}"] if own else []
        if kind.medium == "network":
            source = network_class(name).source
            share = kind.capacity / kind.planning
            keys += [f"line_rate: {kind.planning * 8 / 1e9:.10g} Gb/s", f"efficiency: {share:.6g}"]
        else:
            source = own[1] if own else _SOURCE_OF.get(name, SOURCES[kind.medium])
            keys.append(f"per_direction: {kind.capacity / 1e9:.10g} GB/s")
        keys.append(f"latency: {kind.latency * 1e6:.6g} us")
        for key, seconds in (("message_latency", kind.message_latency), ("handshake", kind.handshake)):
            if seconds:
                keys.append(f"{key}: {seconds * 1e6:.6g} us")
        return f"{{{', '.join(keys)}, source: {quoted(source)}}}"


NVLINK_HEADINGS = {
    "none": "no NVLink",
    "bridges": "NVLink bridges",
    "mesh": "NVLink from GPU to GPU",
    "nvswitch": "NVLink through NVSwitches; parallel chips are one vertex",
    "mixed": "NVLink",
}


def between_cpus(count: int, kind: str) -> list[DrawnWire]:
    """Every CPU linked with every other one."""
    if count < 2:
        return []
    return [DrawnWire(("cpu0",), "cpu1", kind)] if count == 2 else [DrawnWire(("cpu*",), "cpu*", kind)]


def merged(wires: Iterable[DrawnWire]) -> list[DrawnWire]:
    """The wires with neighbours of one kind to one target joined into one line."""
    lines: list[DrawnWire] = []
    for wire in wires:
        last = lines[-1] if lines else None
        if last and (last.target, last.kind, last.count, last.remark) == (wire.target, wire.kind, wire.count, wire.remark):
            lines[-1] = DrawnWire(last.sources + wire.sources, wire.target, wire.kind, wire.count, wire.remark)
        else:
            lines.append(wire)
    return lines


def ranges(names: Sequence[str]) -> list[str]:
    """Names with runs of consecutive numbers joined: gpu0, gpu1, nic3 as gpu0..1, nic3."""
    runs: list[tuple[str, int, int] | str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            runs.append(name)
            continue
        last = runs[-1] if runs else None
        if isinstance(last, tuple) and last[0] == match[1] and last[2] + 1 == int(match[2]):
            runs[-1] = (last[0], last[1], last[2] + 1)
        else:
            runs.append((match[1], int(match[2]), int(match[2])))
    return [run if isinstance(run, str) else f"{run[0]}{run[1]}" + (f"..{run[2]}" if run[2] > run[1] else "") for run in runs]


def scalar(text: str) -> str:
    """A text as YAML reads it back, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return quoted(text)


def quoted(text: str) -> str:
    """A text in double quotes, on one line."""
    return json.dumps(comment(text), ensure_ascii=False)


def comment(text: str) -> str:
    """A text fit for one line of comment: no control characters, no line ends, not endless."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= 4 * _WIDTH else f"{line[: 4 * _WIDTH]} ..."


def _edge(wire: DrawnWire) -> str:
    sources = ranges(wire.sources)
    near = scalar(sources[0]) if len(sources) == 1 else f"[{', '.join(map(scalar, sources))}]"
    count = f", count: {wire.count}" if wire.count != 1 else ""
    remark = f"  # {comment(wire.remark)}" if wire.remark else ""
    return f"{{from: {near}, to: {scalar(wire.target)}, kind: {scalar(wire.kind)}{count}}}{remark}"
