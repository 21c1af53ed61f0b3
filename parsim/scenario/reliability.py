"""Sections about what breaks and what is done about it: checkpoints, recovery, failures, the storage they need."""

from __future__ import annotations

from typing import Annotated, Any

from parsim.scenario.values import Choice, Flag, Quantity, Section, Text, Whole

POLICIES = ("restart", "elastic", "replica", "hot_spare")
_LONGEST = 1e9
"""[s]"""


class CheckpointSection(Section):
    """What training goes on from after a failure, and what it costs to write."""

    mode: Annotated[str, Choice(("sync", "async", "memory"))] = "sync"
    """sync: training stands still until the checkpoint is written; async: until it is copied to host memory; memory: the same, and the
    copy survives failures in the memory of another machine"""
    bytes: Annotated[Any, Quantity("bytes", 1e18, ("auto",))] = "auto"
    """of a checkpoint of the whole job; auto = trained weights, their fp32 masters and optimizer states (14 B per parameter with bf16
    and Adam)"""
    bandwidth: Annotated[float | None, Quantity("rate", optional=True)] = None
    """rate at which the whole job writes one; null = what cluster.storage and the machines' network allow"""
    stall: Annotated[float | None, Quantity("time", optional=True)] = None
    """time for which training stands still; null: sync = bytes / bandwidth, else the time to copy a GPU's share to host memory"""
    lag: Annotated[Any, Quantity("time", 1e7, ("auto",))] = "auto"
    """async and memory: from the end of the stall until the checkpoint is in storage; auto = bytes / bandwidth"""
    interval: Annotated[Any, Quantity("time", _LONGEST, ("auto",))] = "auto"
    """training time between two checkpoints; auto = Daly's optimum"""


class RecoverySection(Section):
    """What happens after a failure."""

    policy: Annotated[str, Choice(POLICIES)] = "restart"
    """restart: all stop and go on from the last checkpoint; hot_spare: the same on machines that stand by; elastic: without the broken
    replica until it is repaired; replica: only the broken replica leaves, the others lose nothing (fault tolerant HSDP)"""
    restart_time: Annotated[Any, Quantity("time", 1e7, ("auto",))] = "auto"
    """from when a failure is noticed until training goes on; auto = 5 min; hot_spare 2 min, replica 3 min"""
    spares: Annotated[int, Whole(0, 10**6)] = 0
    """spare machines; the job waits while all are in repair. 0: no pool is simulated, another machine is part of restart_time"""
    repair: Annotated[float, Quantity("time", _LONGEST)] = "48 h"  # type: ignore[assignment]
    """for which a machine that failed is away"""
    hang_timeout: Annotated[float, Quantity("time", 1e7)] = "10 min"  # type: ignore[assignment]
    """after which a collective that hangs is given up: the detection time of causes with `detect: hang`"""


class FailureSection(Section):
    """One cause of failures that stop the job."""

    cause: Annotated[str, Text("hbm")]
    """its name"""
    per_gpu: Annotated[float, Quantity("time")]
    """mean time between failures by this cause, of one GPU with its share of the rest"""
    detect: Annotated[Any, Quantity("time", 1e7, ("hang",))] = "0 s"
    """from a failure until it is noticed; hang = recovery.hang_timeout"""
    restart_time: Annotated[Any, Quantity("time", 1e7, ("auto",))] = "auto"
    """after failures by this cause; auto = that of recovery"""
    repair: Annotated[Any, Quantity("time", _LONGEST, ("auto",))] = "auto"
    """for which the machine is away; auto = that of recovery; 0 s: no machine is exchanged"""
    recovery: Annotated[str, Choice(("auto", "memory", "storage"))] = "auto"
    """whether a copy in memory survives; auto = memory with checkpoint.mode memory"""
    silent: Annotated[bool, Flag()] = False
    """the job trains on until it is noticed, for nothing (silent data corruption)"""


class StorageSection(Section):
    """Where checkpoints go; ``storage: default`` leaves it to the topology."""

    bandwidth: Annotated[Any, Quantity("rate", words=("default",))] = "default"
    """what all machines together write"""
    per_node: Annotated[Any, Quantity("rate", words=("default",))] = "default"
    """what one machine writes; default = its links to the network"""
    latency: Annotated[Any, Quantity("time", 3600.0, ("default",))] = "default"
    """until the first byte is written; default = 0 s"""
