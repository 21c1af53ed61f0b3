"""The words of `cluster.collectives` as settings of NCCL's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.scenario.machine import CollectivesSection

if TYPE_CHECKING:
    from parsim.hardware.nccl.inputs import Settings

APPLIES = {
    "ring": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    "tree": ("all_reduce",),
    "nvls": ("all_reduce", "all_gather", "reduce_scatter"),
    "nvls_tree": ("all_reduce",),
    "collnet_direct": ("all_reduce", "all_gather", "reduce_scatter"),
    "collnet_chain": ("all_reduce",),
    "pat": ("all_gather", "reduce_scatter"),
}
"""algorithm -> the collectives that know it; the others keep choosing (NVIDIA/nccl src/graph/tuning.cc)"""


def collective_settings(section: CollectivesSection) -> Settings | None:
    """None for the profile `ring`."""
    if section.profile == "ring":
        return None
    from parsim.hardware.nccl.inputs import Settings

    algorithm = "auto" if section.algorithm == "auto" else dict.fromkeys(APPLIES[section.algorithm], section.algorithm)
    return Settings(profile=section.profile, algorithm=algorithm, protocol=section.protocol)
