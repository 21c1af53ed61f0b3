"""What an importer of machine descriptions hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from parsim.errors import Finding

Wiring = Literal["none", "bridges", "mesh", "nvswitch", "mixed"]


@dataclass(frozen=True, slots=True)
class Facts:
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
    facts: Facts
