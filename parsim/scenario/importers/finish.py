"""From a drawing to what an importer hands back."""

from __future__ import annotations

from collections.abc import Callable

from parsim.errors import Finding
from parsim.hardware.fabric.node import Node
from parsim.scenario import files
from parsim.scenario.importers.choices import Choices, device_lookup
from parsim.scenario.importers.drawing import Drawing
from parsim.scenario.importers.imported import Facts, Imported


def finish(drawing: Drawing, choices: Choices, facts_of: Callable[[Node], Facts]) -> Imported:
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
