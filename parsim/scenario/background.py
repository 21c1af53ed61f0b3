"""The list `cluster.background` as traffic on the links of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from parsim.errors import Finding, TopologyError
from parsim.scenario.machine import BackgroundSection

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.transfers import Background


def background_traffic(cluster: Cluster, sections: Sequence[BackgroundSection]) -> tuple[Background, ...]:
    """One stream, or row of transfers, per entry.

    Raises:
        TopologyError: GPUs that the cluster does not have, or that are not connected.
    """
    from parsim.hardware.transfers import background

    found: list[Background] = []
    findings: list[Finding] = []
    for number, section in enumerate(sections):
        path = f"cluster.background.{number}"
        outside = [
            Finding(f"gpu{gpu} is not in gpu0 ... gpu{cluster.installed_gpus - 1}", f"{path}.{key}", f"gpu{gpu}")
            for key, gpu in (("from", section.source), ("to", section.target))
            if gpu >= cluster.installed_gpus
        ]
        findings += outside
        if outside:
            continue
        try:
            one = background(
                cluster,
                section.source,
                section.target,
                rate=inf if section.rate is None else section.rate,
                volume=inf if section.bytes is None else section.bytes,
                begin=section.at or 0.0,
                every=section.every or 0.0,
            )
        except TopologyError as error:
            findings += [replace(finding, path=path) for finding in error.findings]
            continue
        found.append(one)
    if findings:
        raise TopologyError(findings)
    return tuple(found)
