"""What the economics section means on a cluster: prices in one currency, watts, failures; and what was assumed for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from math import fsum
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding
from parsim.scenario.batch import steps_to_train
from parsim.scenario.economics import YEAR, EconomicsSection, Money
from parsim.scenario.failures import JobFacts, reliability
from parsim.scenario.provenance import today
from parsim.scenario.software import Assumption

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.fabric.node import Node
    from parsim.hardware.fabric.topology import GpuPrice
    from parsim.model.model import Model
    from parsim.parallel.settings import Parallelism
    from parsim.parallel.training import Training
    from parsim.scenario.schema import ScenarioSchema
    from parsim.simulation.interrupted import InterruptedTraining

STALE = 90
"""days after which an example price is called old"""
SHARES = {"computing": 0.9, "communicating": 0.5, "waiting": 0.3}
_SHARE_SOURCES = {
    "computing": "an 8 x H100 node that trains language models draws 76 % of its rated 10.2 kW (arXiv 2506.14551)",
    "communicating": "assumption: between computing and waiting; training power dips at every synchronisation (arXiv 2308.12908)",
    "waiting": "assumption: above idle, since a waiting GPU spins in a kernel of NCCL at full clock",
}
BESIDE = 0.5
"""power of a machine beside its GPUs over the TDP of these"""
_BESIDE_SOURCE = "at most 8.4 kW measured on a node with 8 x 700 W of GPUs: 2.8 kW for the rest (arXiv 2412.08602)"


@dataclass
class Pricing:
    """The facts that `parsim.report.economics.Economics` is made of, None where nobody asked; and what to tell the user."""

    facts: dict[str, Any] | None = None
    weeks: InterruptedTraining | None = None
    """the training with its failures, where a horizon is given"""
    assumptions: list[Assumption] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def pricing(
    settings: ScenarioSchema, cluster: Cluster, gpus: tuple[int, ...], model: Model, training: Training, split: Parallelism
) -> Pricing:
    """The economics of a job on `gpus`, divided as `split` says; asked for by a length of the training, or by any key of the section."""
    section, result, steps = settings.economics, Pricing(), _steps(settings, training)
    if steps is None and section == EconomicsSection():
        return result
    reasons: dict[str, str] = {}
    if steps is None:
        reasons["cost_to_train"] = "the length of the training is not given; set training.tokens or training.examples"
    facts: dict[str, Any] = {
        "used_gpus": len(gpus),
        "billed_gpus": cluster.installed_gpus + section.recovery.spares * cluster.gpus_per_node,
        "nodes": cluster.nodes,
        "steps": steps,
        "samples_per_step": float(training.samples),
        "tokens_per_step": float(training.global_batch * training.mean_length) if model.sequence else None,
        "currency": section.currency,
        "carbon": section.carbon_intensity,
        "reasons": reasons,
    }
    if idle := cluster.installed_gpus - len(gpus):
        text = f"{idle:,} of {cluster.installed_gpus:,} GPUs are idle but billed: machines are billed as a whole"
        result.warnings.append(Finding(text, "cluster.gpus", len(gpus), _busier(cluster, gpus, training, split.data.size)))
    facts |= _prices(section, cluster, result, reasons)
    facts["power"] = _power(section, cluster, gpus, result, reasons)
    job = JobFacts(section, cluster, gpus, model, training, split.data, split.context.size, settings.variability.seed)
    found = reliability(job)
    if found.reason:
        reasons["goodput"] = found.reason
    result.assumptions += found.assumptions
    result.warnings += found.warnings
    result.findings += found.findings
    facts["failures"], result.weeks = found.failures, found.training
    result.facts = facts
    return result


def _steps(settings: ScenarioSchema, training: Training) -> float | None:
    """Optimizer steps of the whole training; None: nobody says how long it is."""
    tokens = settings.training.tokens
    if tokens is None:
        return steps_to_train(settings, training)
    return tokens / (training.global_batch * training.mean_length)


def _busier(cluster: Cluster, gpus: tuple[int, ...], training: Training, replicas: int) -> str:
    """The largest number of the installed GPUs among which the batch can be divided."""
    replica, samples = len(gpus) // replicas, training.global_batch // training.micro_batch
    most = next((count for count in range(cluster.installed_gpus // replica, replicas, -1) if samples % count == 0), 0)
    return f"with cluster.gpus {most * replica} fewer are" if most else "no larger number divides the batch; change the batch"


# prices ----------------------------------------------------------------------------------------------------------


def _written_prices(section: EconomicsSection) -> Iterator[tuple[str, Money]]:
    """Path and price of every price in the section."""
    bought = section.purchase
    keys = {
        "economics.gpu_hour": section.gpu_hour,
        "economics.power_price": section.power_price,
        "economics.purchase.node": bought.node if bought is not None else None,
        "economics.purchase.gpu": bought.gpu if bought is not None else None,
    }
    yield from ((path, value) for path, value in keys.items() if isinstance(value, Money))


def _prices(section: EconomicsSection, cluster: Cluster, result: Pricing, reasons: dict[str, str]) -> dict[str, Any]:
    for path, price in _written_prices(section):
        if price.currency not in ("", section.currency):
            text = f"this price is in {price.currency}, but economics.currency is {section.currency}; rates are not converted"
            result.findings.append(
                Finding(text, path, f"{price.amount:g} {price.currency}", "write all prices in one currency, and its name")
            )
    rent = section.gpu_hour.amount if isinstance(section.gpu_hour, Money) else None
    where: dict[str, Any] = {"origin": "economics", "date": None, "source": None, "example": False}
    if section.gpu_hour == "example" or (section.gpu_hour is None and section.purchase is None and section.power_price is None):
        example = _example(section, cluster, result, reasons)
        if example is not None:
            rent = example.gpu_hour
            where = {"origin": cluster.name, "date": example.date, "source": example.source, "example": True}
    hardware = _hardware(section, cluster, result, rented=section.gpu_hour is not None)
    power = section.power_price
    return {"rent": rent, "hardware": hardware, "power_price": power.amount if power is not None else None, "price": where}


def _example(section: EconomicsSection, cluster: Cluster, result: Pricing, reasons: dict[str, str]) -> GpuPrice | None:
    """The topology's dated example price; old ones are called old."""
    price, hint = cluster.price, "write economics.gpu_hour (rent) or economics.purchase"
    if price is None:
        reasons["cost"] = f"there is no price: {hint}; the topology {cluster.name} has no example"
        if section.gpu_hour == "example":
            result.findings.append(Finding(f"the topology {cluster.name} has no example price", "economics.gpu_hour", "example", hint))
        return None
    amount = f"{price.gpu_hour:g} {price.currency}"
    if price.currency != section.currency:
        text = f"the example price of {cluster.name} is {amount} per GPU-hour, but economics.currency is {section.currency}"
        path = "economics.gpu_hour" if section.gpu_hour == "example" else "economics.currency"
        result.findings.append(Finding(text, path, section.currency, f"{hint}, in {section.currency}; rates are not converted"))
        return None
    source = f"example price of {price.date}: {price.source}" if price.source else f"example price of {price.date}"
    result.assumptions.append(Assumption("gpu_hour", amount, source, f"topology {cluster.name}"))
    if (old := _age(price.date)) is None or old > STALE:
        state = "has no readable date" if old is None else f"is of {price.date}, more than {STALE} days ago"
        text = f"the example price of {cluster.name}, {amount} per GPU-hour, {state}"
        result.warnings.append(Finding(text, "economics.gpu_hour", None, "set `economics.gpu_hour` to a current price"))
    return price


def _age(written: str) -> int | None:
    """Days since a date; None where it cannot be read."""
    try:
        return (today() - date.fromisoformat(written.strip()[:10])).days
    except ValueError:
        return None


def _hardware(section: EconomicsSection, cluster: Cluster, result: Pricing, *, rented: bool) -> float | None:
    """Money per hour of training for machines that were bought."""
    bought = section.purchase
    if bought is None:
        return None
    if rented:
        text = "both gpu_hour and purchase are given: machines are either rented or bought"
        result.findings.append(Finding(text, "economics.purchase", None, "leave one of them out"))
    if (bought.node is None) == (bought.gpu is None):
        text = "a purchase needs one price, of a node or of a gpu"
        result.findings.append(Finding(text, "economics.purchase", None, "write for example purchase: {node: 300_000 USD, years: 4}"))
        return None
    spares = section.recovery.spares
    price = bought.node.amount * (cluster.nodes + spares) if bought.node is not None else 0.0
    price += bought.gpu.amount * (cluster.installed_gpus + spares * cluster.gpus_per_node) if bought.gpu is not None else 0.0
    return price * (1.0 / bought.years + bought.upkeep) / (YEAR * bought.utilisation)


# power -----------------------------------------------------------------------------------------------------------


def _power(
    section: EconomicsSection, cluster: Cluster, gpus: tuple[int, ...], result: Pricing, reasons: dict[str, str]
) -> dict[str, Any] | None:
    devices = [cluster.device(gpu) for gpu in gpus]
    device = devices[0]
    shares = {key: getattr(section.gpu_power, key) for key in SHARES}
    for key, value in shares.items():
        if value == "auto":
            shares[key] = SHARES[key]
            result.assumptions.append(Assumption(f"power_{key}", f"{SHARES[key]:g} from idle to TDP", _SHARE_SOURCES[key], "default"))
    if not shares["waiting"] <= shares["communicating"] <= shares["computing"]:
        text = "expected waiting <= communicating <= computing, not " + ", ".join(f"{key} {value:g}" for key, value in shares.items())
        result.findings.append(Finding(text, "economics.gpu_power", None, "write all three"))
    device = next((one for one in devices if one.tdp <= 0), device)
    if device.tdp <= 0:
        reasons["energy"] = f"the device file of {device.name} does not say its TDP (power: {{tdp: 400 W, idle: 60 W}})"
        if section.power_price is not None:
            result.findings.append(Finding(reasons["energy"], "economics.power_price", None, "leave it out, or complete the device file"))
        return None
    idle, tdp = min(device.idle_power, device.tdp), device.tdp
    if len(set(devices)) > 1:  # all GPUs together draw what as many of the mean would
        idle, tdp = (
            fsum(values) / len(gpus) for values in ([min(one.idle_power, one.tdp) for one in devices], [one.tdp for one in devices])
        )
    return {"idle": idle, "tdp": tdp, "beside": _beside(section, cluster, result), "pue": section.pue, **shares}


def _beside(section: EconomicsSection, cluster: Cluster, result: Pricing) -> float:
    """All machines beside their GPUs [W]."""
    if section.node_power != "auto":
        return float(section.node_power) * cluster.nodes
    total = fsum(block.count * _beside_node(block.node) for block in cluster.blocks)
    guessed = [block.node for block in cluster.blocks if block.node.overhead_power is None]
    if guessed:
        value = f"{_beside_node(guessed[0]):g} W = {BESIDE:g} x TDP of its GPUs"
        result.assumptions.append(Assumption("node_power", value, _BESIDE_SOURCE, "default"))
    return float(total)


def _beside_node(node: Node) -> float:
    return BESIDE * fsum(device.tdp for device in node.devices) if node.overhead_power is None else node.overhead_power
