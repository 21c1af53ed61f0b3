"""What is asked, typed: flags of the command line and a file's ``size:`` give the same `Question`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parsim.study.size.money import Money

OBJECTIVES = ("cost", "gpus", "energy", "time")
"""what may be minimised"""
RECOMPUTE = ("auto", "none", "full")
"""auto: none, and full where nothing fits without it"""
SHARDING = ("auto", "zero1", "fsdp")
"""auto: ZeRO-1, and FSDP without tensor or pipeline parallelism; fsdp: also with tensor parallelism, which no published run here has"""
SCHEDULES = ("1f1b", "interleaved")
TOP = 3
"""configurations of a machine that are shown"""


@dataclass(frozen=True)
class Purchase:
    """Hardware that is bought, as ``economics.purchase`` of a scenario has it."""

    price: Money
    per: str = "gpu"
    """gpu | node"""


@dataclass(frozen=True)
class Machine:
    """A kind of machine that may be rented or bought."""

    label: str
    topology: str
    """name, alias or path of a topology, or a box such as ``8x h100-sxm``"""
    settings: tuple[tuple[str, Any], ...] = ()
    """scenario keys and their values: cluster.set.node.nics, cluster.fabric.oversubscription, ..."""
    gpu_hour: Money | None = None
    """rent of one GPU for one hour; None: the topology's dated example price, if it has one"""
    purchase: Purchase | None = None
    gpus: tuple[int, ...] = ()
    """counts to look at; empty: as many as it takes"""

    def document(self) -> Mapping[str, Any]:
        """What was asked about the machine, as JSON has it."""
        return {
            "machine": self.label, "topology": self.topology, "set": dict(self.settings), "gpus": list(self.gpus) or None,
            "gpu_hour": None if self.gpu_hour is None else str(self.gpu_hour),
            "buy": None if self.purchase is None else f"{self.purchase.price}/{self.purchase.per}",
        }  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A training, what it may take, and on what it may run."""

    model: str
    tokens: float
    machines: tuple[Machine, ...]
    sequence_length: int | None = None
    global_batch: int | str | None = None
    """samples, or a text such as "4M tokens"; None: a published batch or a rule"""
    micro_batches: tuple[int, ...] = (1, 2)
    precision: str | None = None
    software: str = "megatron-core"
    recompute: tuple[str, ...] = ("auto",)
    schedules: tuple[str, ...] = ("1f1b",)
    sharding: tuple[str, ...] = ("auto",)
    max_gpus: int | None = None
    deadline: float | None = None
    """[s]"""
    budget: Money | None = None
    power_price: Money | None = None
    """of one kWh"""
    pue: float | None = None
    mtbf: float | None = None
    """mean time between failures of one GPU [s]; None: published"""
    checkpoint_time: float | None = None
    """[s]"""
    restart_time: float | None = None
    """[s]"""
    goodput: float | None = None
    """useful time over all time, fixed; None: from failures and checkpoints"""
    years: float | None = None
    """after which bought hardware is worth nothing"""
    minimise: str = ""
    """one of `OBJECTIVES`; empty: time where only a budget is given, else cost, or gpus where nothing has a price"""
    top: int = TOP
    exhaustive: bool = False
    """simulate every candidate instead of bounding them away"""
    currency: str = "USD"
    trust_code: bool = False
    """whether Python files that its keys name may run"""

    def document(self) -> Mapping[str, Any]:
        """What was asked, as JSON has it: keys as in a file, but for machines, which say what is theirs."""
        found: dict[str, Any] = {"model": self.model, "tokens": self.tokens, "on": [machine.document() for machine in self.machines]}
        if self.deadline is not None:
            found["days"] = self.deadline / 86400.0
        if self.budget is not None:
            found["budget"] = str(self.budget)
        for key in ("sequence_length", "global_batch", "precision", "max_gpus", "pue", "goodput", "years"):
            if (value := getattr(self, key)) is not None:
                found[key] = value
        for key, value in (("mtbf", self.mtbf), ("checkpoint_time", self.checkpoint_time), ("restart_time", self.restart_time)):
            if value is not None:
                found[key] = f"{value:.15g} s"
        if self.power_price is not None:
            found["power_price"] = str(self.power_price)
        found |= {
            "micro_batch": list(self.micro_batches), "software": self.software, "recompute": list(self.recompute),
            "schedule": list(self.schedules), "sharding": list(self.sharding), "minimise": self.minimise, "currency": self.currency,
        }  # fmt: skip
        return found
