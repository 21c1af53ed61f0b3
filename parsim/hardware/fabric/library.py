"""What a machine's image sets for the collective library: the environment variables that change what it chooses.

A provider ships these with its machines (a plug-in that sets them, a script that its guides tell users to source), so they stand in the
topology file, where they can be read and changed (``cluster.set.collectives``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from parsim.hardware.tree import Tree, closest

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
DEFAULT_BUFFER = 4 * 2**20
"""NCCL_BUFFSIZE [B]"""


@dataclass(frozen=True, slots=True)
class Library:
    """Settings of the library; the defaults are its own."""

    algorithms: tuple[str, ...] = ()
    """allowed ones (NCCL_ALGO); empty: all"""
    protocols: tuple[str, ...] = ()
    """allowed ones (NCCL_PROTO); empty: all"""
    nvls: bool = True
    """reductions in the NVSwitch (NCCL_NVLS_ENABLE)"""
    cross_nic: bool = True
    """a ring may leave a machine by another NIC than it came by (NCCL_CROSS_NIC; its default 2 allows it)"""
    min_channels: int = 0
    """NCCL_MIN_CTAS, NCCL_MIN_NCHANNELS; 0: none"""
    max_channels: int = 0
    """NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS; 0: none"""
    buffer: int = DEFAULT_BUFFER
    """NCCL_BUFFSIZE [B]"""

    def changed(self) -> dict[str, tuple[str, ...] | bool | int]:
        """What differs from the library's own settings, by key."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}


DEFAULTS = Library()
"""what NCCL does where nobody sets anything"""


def read_library(top: Tree) -> Library:
    """The ``collectives`` section of a topology tree."""
    tree = top.child("collectives")
    library = Library(
        algorithms=_known(tree, "algorithms", ALGORITHMS),
        protocols=_known(tree, "protocols", PROTOCOLS),
        nvls=tree.flag("nvls", True),
        cross_nic=tree.flag("cross_nic", True),
        min_channels=tree.whole("min_channels", 0, low=0, high=64),
        max_channels=tree.whole("max_channels", 0, low=0, high=64),
        buffer=int(tree.quantity("buffer", "memory", float(DEFAULT_BUFFER))),
    )
    if library.max_channels and library.min_channels > library.max_channels:
        tree.fail("min_channels", f"{library.min_channels} channels at least and {library.max_channels} at most")
    tree.close()
    return library


def _known(tree: Tree, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.replace("-", "_") for name in tree.names(key))
    for name in names:
        if name not in known:
            tree.fail(key, f"unknown name {name!r}", closest(name, known))
    return names
