"""What each machine's price is: its kind and date, so that unlike prices are not ranked against each other without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.hardware.fabric.topology import GpuPrice
from parsim.study.size.question import Machine

BOUGHT, OWN, EXAMPLE = "bought", "yours", "example"
"""kinds beside those of `parsim.hardware.fabric.topology.PRICE_KINDS`; example: the topology's file does not name a kind"""
_WORDS = {BOUGHT: "bought hardware", OWN: "prices you gave", EXAMPLE: "example prices"}


@dataclass(frozen=True, slots=True)
class PriceTag:
    """The price of a machine."""

    machine: str
    kind: str
    amount: str
    """with its unit"""
    date: str = ""
    """empty: not dated, because it is the user's own"""

    def __str__(self) -> str:
        """``hgx-h100 3.2 USD per GPU-hour (on-demand, 2026-01-15)``."""
        said = ", ".join(filter(None, (self.kind, self.date)))
        return f"{self.machine} {self.amount} ({said})"

    def document(self) -> dict[str, str | None]:
        """As JSON has it."""
        return {"machine": self.machine, "kind": self.kind, "amount": self.amount, "date": self.date or None}


def price_tag(machine: Machine, example: GpuPrice | None) -> PriceTag | None:
    """The price that counts for a machine; `example` is that of its topology. None: it has none."""
    if machine.purchase is not None:
        return PriceTag(machine.label, BOUGHT, f"{machine.purchase.price} per {'GPU' if machine.purchase.per == 'gpu' else 'machine'}")
    if machine.gpu_hour is not None:
        return PriceTag(machine.label, OWN, f"{machine.gpu_hour} per GPU-hour")
    if example is None:
        return None
    return PriceTag(machine.label, example.kind or EXAMPLE, f"{example.gpu_hour:g} {example.currency} per GPU-hour", example.date)


def basis(tags: Sequence[PriceTag]) -> str:
    """Kind and dates of the prices in a few words; empty without prices.

    >>> basis([PriceTag("a", "on-demand", "3 USD", "2026-01-15"), PriceTag("b", "on-demand", "6 USD", "2026-03-17")])
    'on-demand prices of different dates: a 2026-01-15, b 2026-03-17'
    """
    if not tags:
        return ""
    kinds = list(dict.fromkeys(tag.kind for tag in tags))
    named = " and ".join(_WORDS.get(kind, f"{kind} prices") for kind in kinds)
    dates = sorted({tag.date for tag in tags if tag.date})
    each = ", ".join(f"{tag.machine} {tag.date}" for tag in tags if tag.date)
    when = f" of {dates[0]}" if len(dates) == 1 else f" of different dates: {each}" if dates else ""
    return f"{named}{when}"


def unlike(tags: Sequence[PriceTag]) -> str:
    """A warning where prices of several kinds are ranked against each other; empty else."""
    kinds: dict[str, list[str]] = {}
    for tag in tags:
        kinds.setdefault(tag.kind, []).append(tag.machine)
    if len(kinds) < 2:
        return ""
    each = "; ".join(f"{', '.join(machines)}: {_WORDS.get(kind, kind)}" for kind, machines in kinds.items())
    return f"the prices are of different kinds: {each}. Give --gpu-hour NAME=PRICE for every machine to compare like with like"
