"""Boxes such as ``64x h100``: refused where no machine is sold that large, with the clusters that are.

A device file says how many of it the largest machine holds (``sold``). The short form invents the wiring of a machine, so it is held
to that; an explicit mapping ``{gpu: h100, count: 64}`` is taken at its word, with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files

_CARD = "ethernet-100g"
"""network card of the machines that are suggested where no shipped topology has the device"""


def oversold(box: Mapping[str, Any], relative_to: str | None, option: str = "--on ") -> Finding | None:
    """What is wrong with a box that is larger than any machine sold with its GPU; None if nothing is, or if nobody knows.

    `option` is what the command line writes before the name of a topology.
    """
    name, device = box.get("gpu"), _device(box.get("gpu"), relative_to)
    count, most = box.get("count"), _sold(device).get("most_gpus")
    if not isinstance(count, int) or not isinstance(most, int) or not 0 < most < count:
        return None
    message = f"no machine with {count:,} {name} is sold: the largest has {most}"
    return Finding(message, "cluster.topology", f"{count}x {name}", _nearest(str(name), device, count, option))


def oversold_warning(box: object, relative_to: str | None) -> list[Finding]:
    """The same about an explicit mapping, which is simulated all the same."""
    problem = oversold(box, relative_to) if isinstance(box, Mapping) and "node" not in box else None
    if problem is None:
        return []
    return [Finding(f"{problem.message}; the machine is taken as written", problem.path, None, problem.suggestion)]


def one_machine(box: Mapping[str, Any], relative_to: str | None) -> str:
    """A real machine with the GPU of a box that is too large, as ``--on`` takes it."""
    device = _device(box.get("gpu"), relative_to)
    machines = _machines(device)
    return f"--on {machines[0][0]}" if machines else f'--on "{_boxed(device)}x {box.get("gpu")}"'


def _device(gpu: object, relative_to: str | None) -> Mapping[str, Any]:
    """The device's file; empty where there is none, which building the cluster says."""
    try:
        return files.read(files.find("devices", gpu, relative_to)).tree if isinstance(gpu, str) else {}
    except ScenarioError:
        return {}


def _sold(device: Mapping[str, Any]) -> Mapping[str, Any]:
    sold = device.get("sold")
    return sold if isinstance(sold, Mapping) else {}


def _machines(device: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The shipped topologies with the device, the most common first, and the GPUs of one machine."""
    named = _sold(device).get("topologies")
    shipped = set(files.names("topologies"))
    known = [name for name in named if name in shipped] if isinstance(named, list) else []
    return [(name, files.read(files.find("topologies", name)).tree["node"]["gpus"]) for name in known]


def _boxed(device: Mapping[str, Any]) -> int:
    """GPUs of the largest machine that the short form can wire: NVLinks without a switch must reach every other GPU."""
    links, count = device.get("links"), int(_sold(device)["most_gpus"])
    ports = links.get("nvlinks") if isinstance(links, Mapping) and links.get("interconnect") == "nvlink-mesh" else None
    while isinstance(ports, int) and ports < count - 1:
        count //= 2
    return count


def _nearest(name: str, device: Mapping[str, Any], count: int, option: str) -> str:
    """The nearest clusters of real machines, as the command line and as a scenario write them."""
    for topology, each in _machines(device):
        nodes = -(-count // each)
        together = "" if nodes * each == count else f" ({nodes * each:,} GPUs)"
        keys = f"cluster: {{topology: {topology}, nodes: {nodes}}}"
        return f"{nodes:,} nodes of {topology}{together}: {option}{topology} --nodes {nodes}, in a scenario {keys}"
    each = _boxed(device)
    keys = f"cluster: {{topology: {{gpu: {name}, count: {each}, nic: {_CARD}}}, nodes: {-(-count // each)}}}"
    return f'one machine: {option}"{each}x {name}"; several need a network card, in a scenario {keys}'
