"""Money and time of a training as lines for people, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parsim.report.economics import HOUR, KWH, Bill
from parsim.report.estimate import Estimate
from parsim.report.quantities import number, percent, points, seconds


@dataclass(frozen=True)
class BillLine:
    """One number with its unit, and what is to be said about it."""

    title: str
    text: str
    key: str
    """in the JSON document"""
    note: str = ""


def money(amount: float, currency: str) -> str:
    """``3,440,640 USD``, ``1.72 USD``."""
    return f"{number(amount)} {currency}"


def energy(joules: float) -> str:
    """``812 MWh``, ``3.1 kWh``, ``27.3 kJ``, ``0.667 J``."""
    for size, unit in ((1e3 * KWH, "MWh"), (KWH, "kWh"), (1e3, "kJ")):
        if joules >= size:
            return f"{number(joules / size)} {unit}"
    return f"{number(joules)} J"


def statement(bill: Bill, estimate: Estimate | None = None, *, varied: bool = False) -> Iterator[BillLine]:
    """What is known, in the order of the question: how long, how much, and on what it rests; first what published runs make of it, or
    the mean of its runs where the step varies.
    """
    if estimate is not None and (estimate.of == "bands" or varied):
        yield from _estimated(bill, estimate, varied=varied)
    yield from _time(bill)
    yield from _cost(bill)
    yield from _energy(bill)


def _estimated(bill: Bill, estimate: Estimate, *, varied: bool) -> Iterator[BillLine]:
    note = "at the mean of the runs; all below is undisturbed" if varied else "as published runs like it took; all below is simulated"
    if estimate.time_to_train_s is not None:
        yield BillLine("Time to train, estimated", seconds(estimate.time_to_train_s), "estimate.time_to_train_s", note)
        note = ""
    if estimate.cost_to_train is not None:
        amount = money(estimate.cost_to_train, bill.economics.currency)
        yield BillLine("Cost to train, estimated", amount, "estimate.cost_to_train", note)


def _time(bill: Bill) -> Iterator[BillLine]:
    economics, failures = bill.economics, bill.economics.failures
    if bill.time_to_train is not None:
        yield BillLine("Steps to train", f"{bill.steps:,}", "steps_to_train")
        whole = "checkpoints, lost work and restarts included" if failures else "without interruptions"
        yield BillLine("Time to train", seconds(bill.time_to_train), "time_to_train_s", whole)
        yield BillLine("GPU-hours", number(bill.gpu_hours), "gpu_hours", f"{economics.used_gpus:,} GPUs in use")
        if idle := economics.billed_gpus - economics.used_gpus:
            paid = f"{economics.billed_gpus:,} GPUs, {idle:,} of them idle: nodes are paid whole"
            yield BillLine("GPU-hours billed", number(bill.gpu_hours_billed), "gpu_hours_billed", paid)
    if failures is not None and bill.goodput is not None:
        fails = f"a failure every {seconds(failures.mtbf)}, a checkpoint every {seconds(failures.interval)} of training"
        yield BillLine("Goodput", f"{points(bill.goodput)} %", "goodput", fails)


def _cost(bill: Bill) -> Iterator[BillLine]:
    economics, whole = bill.economics, bill.cost_per_step
    if whole is None:
        return
    parts = ", ".join(f"{key} {percent(value / whole if whole else 0.0)}" for key, value in bill.parts_per_step.items())
    if len(bill.parts_per_step) == 1:
        (parts,) = bill.parts_per_step
    example = f"; example price of {economics.price.get('date')}" if economics.price.get("example") else ""
    per_hour = money(whole / (bill.time_per_step * economics.billed_gpus / HOUR), economics.currency) if bill.time_per_step else ""
    rate = f"{parts}: {per_hour} per GPU-hour{example}"
    if bill.cost_to_train is not None:
        yield BillLine("Cost to train", money(bill.cost_to_train, economics.currency), "cost_to_train", rate)
        rate = ""
    if bill.cost_per_million_tokens is not None:
        yield BillLine("Cost per million tokens", money(bill.cost_per_million_tokens, economics.currency), "cost_per_million_tokens", rate)
    elif bill.cost_per_million_samples is not None:
        yield BillLine(
            "Cost per million samples", money(bill.cost_per_million_samples, economics.currency), "cost_per_million_samples", rate
        )
    yield BillLine("Cost per step", money(whole, economics.currency), "cost_per_step")


def _energy(bill: Bill) -> Iterator[BillLine]:
    power = bill.economics.power
    if power is None or bill.energy_per_step is None or bill.power is None or bill.gpu_power is None:
        return
    mean = f"{number(bill.power / 1e3)} kW at PUE {power.pue:g}, {number(bill.gpu_power)} W per GPU of {power.tdp:g} W"
    if bill.energy_to_train is not None:
        yield BillLine("Energy to train", energy(bill.energy_to_train), "energy_J", mean)
        mean = ""
    yield BillLine("Energy per step", energy(bill.energy_per_step), "energy_per_step_J", mean)
    if bill.energy_per_token is not None:
        yield BillLine("Energy per token", energy(bill.energy_per_token), "energy_per_token_J")
    if bill.carbon_to_train is not None:
        yield BillLine("CO2 to train", f"{number(bill.carbon_to_train / 1e3)} t", "co2_kg", f"{bill.economics.carbon:g} kg per kWh")
