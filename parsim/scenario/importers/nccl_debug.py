"""What a log of NCCL_DEBUG=INFO says about the paths that NCCL took: network, transports, channels, settings.

Lines as NCCL prints them (NVIDIA/nccl src/transport, src/graph, src/init.cc): ``Using network IB``, ``Channel 00/0 : 0[0] -> 1[1]
via P2P/CUMEM``, ``[send] via NET/IB/0/GDRDMA``, ``24 coll channels, ... p2p channels``, ``NCCL_ALGO set by environment to Ring``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_NETWORK = re.compile(r"Using network ([A-Za-z0-9_ ./-]+)")
_CHANNEL = re.compile(r"Channel [0-9]+(?:/[0-9]+)? : .* via (\S+)")
_COUNT = re.compile(r"([0-9]+) coll channels")
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (\S+?)\.?$")
_VERSION = re.compile(r"NCCL version ([0-9]+\.[0-9]+[0-9.]*)")
_INFO = re.compile(r"NCCL (?:INFO|WARN|version)")


@dataclass(frozen=True)
class Paths:
    """What NCCL said it uses."""

    network: str = ""
    """IB | Socket | AWS Libfabric | ...; empty: it did not say"""
    transports: tuple[tuple[str, int], ...] = ()
    """(P2P | SHM | NET/IB/GDRDMA | NET/IB | NET/Socket | ..., connections), most first"""
    channels: int | None = None
    """of collectives"""
    environment: tuple[tuple[str, str], ...] = ()
    version: str = ""

    def count(self, start: str) -> int:
        """Connections whose transport begins so."""
        return sum(number for name, number in self.transports if name.startswith(start))


def parse_debug(text: str) -> Paths | None:
    """The paths in a log; None where nothing in it comes from NCCL_DEBUG."""
    if not _INFO.search(text):
        return None
    network, channels, version = "", None, ""
    transports: Counter[str] = Counter()
    environment: dict[str, str] = {}
    for line in map(str.rstrip, text.splitlines()):
        if match := _CHANNEL.search(line):
            transports[_transport(match[1])] += 1
        elif match := _NETWORK.search(line):
            network = match[1].strip()
        elif match := _COUNT.search(line):
            channels = int(match[1])
        elif match := _SET.search(line):
            environment[match[1]] = match[2]
        if match := _VERSION.search(line):
            version = match[1].rstrip(".")
    return Paths(network, tuple(transports.most_common()), channels, tuple(environment.items()), version)


def _transport(words: str) -> str:
    """``NET/IB/3/GDRDMA`` -> ``NET/IB/GDRDMA``, ``P2P/CUMEM`` -> ``P2P``: what the path is, not which card it is."""
    parts = [part for part in words.split("/") if not part.isdigit()]
    if parts[0] == "NET":
        kept = [re.sub(r"ext_v[0-9]+$", "", part) for part in parts[:2]]
        return "/".join([*kept, *(["GDRDMA"] if any("GDRDMA" in part for part in parts[2:]) else [])])
    return parts[0]
