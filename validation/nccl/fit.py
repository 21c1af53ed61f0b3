"""Fit the numbers of collectives between machines, and predict every system by a fit that has not seen it. Run by hand:

    python validation/nccl/fit.py            writes fit.yaml and left_out_predictions.csv beside this file (about a minute)
    python validation/nccl/fit.py --show     only prints what it finds

Fitted: per class of networks the time per message, the handshake and the share of the line rate (`parsim.hardware.fabric.networks`); for
all networks together the library's numbers (`parsim.hardware.nccl.between`). parsim ships the fit over all systems, rounded. For every
family of systems (same publisher and machines: `family` in systems.yaml) everything is fitted again without it, from the a priori
numbers, and its rows are predicted with that. A class that has no other family keeps its a priori numbers.

Loss: the mean over rows of log(1 + e^2), e = log(predicted / measured) in units of the band that is claimed for the row's size, a row of a
system with n rows weighing 1 / sqrt(n): a row far outside its band says that something else happened there, and little about these
numbers. A weak pull towards the a priori numbers decides what the rows say nothing about (large messages nothing about latency).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.networks import NETWORKS, network_class
from parsim.hardware.nccl.between import BETWEEN, Between, Crossing
from parsim.hardware.nccl.cost import collective_cost, collective_estimate, group_of, lanes_of
from parsim.hardware.nccl.inputs import COLLECTIVES
from parsim.hardware.nccl.lanes import Lanes, volume
from parsim.hardware.nccl.profiles import MEASURED, PROFILES
from parsim.terminal import say
from parsim.validation.predicted_collectives import host_time, settings_of
from parsim.validation.published_collectives import HOST, BenchmarkSystem, Measurements, PublishedCollective, measurements

HERE = Path(__file__).resolve().parent
BANDS = (0.40, 0.25, 0.25, 0.10)
"""by class of sizes: an error counts in units of what is claimed for its size"""
PULL = 0.1
"""weight of the pull towards the a priori numbers"""
_US, _GB = 1e-6, 1e9


class Number(NamedTuple):
    """A fitted number: what it is before any row is seen, how far from that is far, and its bounds."""

    prior: float
    scale: float
    low: float
    high: float


_HARDWARE, _SOFTWARE = (2 * _US, 0.95), (14 * _US, 0.95)
A_PRIORI = {
    "ib": (0.0, 0.95), "ib-hdr": (0.0, 0.95), "roce": _HARDWARE, "slingshot": _HARDWARE,
    "efa": _SOFTWARE, "tcpxo": _SOFTWARE, "tcpx": _SOFTWARE,
}  # fmt: skip
"""class of networks -> time per message, share: NCCL's own constants are InfiniBand's; other RDMA by hardware costs 1 to 3 us more,
libraries in software 14 us; headers and acknowledgements leave 95 %"""
PLUGINS = ("efa", "slingshot", "tcpxo")
"""classes whose plug-in agrees on large messages; they share the number. NET/IB asks for every message, whatever its size, which the
library's own constants have (NVIDIA/nccl src/transport/net_ib: ctsFifo)"""
LIBRARY = {
    "handshake": Number(0.0, 10 * _US, 0.0, 40 * _US),
    "tree_share": Number(0.9, 0.1, 0.6, 1.0),
    "fill.tree": Number(8.0, 4.0, 0.0, 40.0),
    "fill.ring": Number(1.0, 1.0, 0.0, 5.0),
    "fill.nvls_tree": Number(5.5, 3.0, 0.0, 15.0),
    "ramp": Number(2.5, 2.0, 0.5, 10.0),
    "head_step": Number(14 * _US, 5 * _US, 0.0, 40 * _US),
    "head": Number(57.7 * _GB, 5 * _GB, 40 * _GB, 70 * _GB),
    "block": Number(21.5 * _GB, 5 * _GB, 10 * _GB, 50 * _GB),
}
"""a priori: NCCL's tables for a head's cap, and for its step the tables of 2.18 to 2.27, which the rows with NVLS trees were measured
with; for the rest there is none, so the shipped numbers stand in"""

Numbers = dict[str, float]


def numbers_of(classes: Iterable[str]) -> dict[str, Number]:
    """Every number that is fitted, by name: ``efa.share``, ``fill.tree``."""
    known: dict[str, Number] = {}
    for name in classes:
        latency, share = A_PRIORI[name]
        known[f"{name}.message_latency"] = Number(latency, max(latency, 2 * _US), 0.0, 600 * _US)
        known[f"{name}.share"] = Number(share, 0.05, 0.3, 1.0)
    return known | LIBRARY


def law(values: Mapping[str, float]) -> Between:
    """The law with these numbers of the library."""
    return BETWEEN._replace(
        tree_share=values["tree_share"],
        fill={"tree": values["fill.tree"], "ring": values["fill.ring"], "nvls_tree": values["fill.nvls_tree"]},
        ramp=values["ramp"],
        head_step=values["head_step"],
        heads={"hopper": values["head"]},
        blocks={"hopper": values["block"]},
    )


def shipped(classes: Iterable[str]) -> Numbers:
    """What parsim has."""
    values = {f"{name}.{key}": getattr(NETWORKS[name], key) for name in classes for key in ("message_latency", "share")}
    return values | {
        "handshake": NETWORKS[PLUGINS[0]].handshake,
        "tree_share": BETWEEN.tree_share, "ramp": BETWEEN.ramp, "head_step": BETWEEN.head_step,
        "head": BETWEEN.heads["hopper"], "block": BETWEEN.blocks["hopper"],
        **{f"fill.{name}": h for name, h in BETWEEN.fill.items()},
    }  # fmt: skip


# the rows, taken apart once: what does not depend on the numbers


@dataclass(frozen=True)
class Row:
    """A measurement between machines, and what the library chose."""

    point: PublishedCollective
    family: str
    network: str
    crossing: Crossing
    bandwidth: float
    nic: float
    """seconds that the busiest NIC needs per byte of the size at its line rate [s/B]"""
    inside: float
    """the same of any other link"""
    measured: float
    """without what the host adds [s]"""
    band: float
    """what is claimed for its size"""
    weight: float

    def loss(self, values: Numbers, between: Between) -> float:
        """How wrong the numbers are here."""
        inputs = replace(
            self.crossing.inputs,
            network_latency=values[f"{self.network}.message_latency"],
            handshake=values["handshake"] if self.network in PLUGINS else 0.0,
        )
        asked = self.crossing._replace(inputs=inputs)
        busiest = max(self.nic / values[f"{self.network}.share"], self.inside)
        time = between.latency(asked) + between.transfer(asked, busiest, self.bandwidth)
        return self.weight * math.log1p((math.log(time / self.measured) / self.band) ** 2)


def rows_of(measured: Measurements) -> list[Row]:
    """The rows that the numbers are fitted to: several machines, tuned collectives, a claimed band."""
    wanted = [point for point in measured.points if fitted(measured.systems[point.system], point)]
    counts: dict[str, int] = {}
    for point in wanted:
        counts[point.system] = counts.get(point.system, 0) + 1
    clusters: dict[tuple[str, int], Cluster] = {}
    made = []
    for point in wanted:
        system = measured.systems[point.system]
        cluster = clusters.setdefault((point.system, point.nodes), system.cluster(point.nodes))
        group = members(cluster, point)
        one = collective_estimate(cluster, group, point.kind, point.bytes, settings_of(system, point, "measured"))
        choice = one.choice
        about = group_of(cluster, group)
        nic, inside = _busiest(cluster, lanes_of(cluster, about, choice.algorithm, point.kind))
        per_byte = volume(choice.algorithm, point.kind, point.gpus, 1.0)
        made.append(
            Row(
                point,
                system.family,
                network_class(cluster.network.link_kind.name).name,
                Crossing(about.inputs, point.kind, choice.algorithm, choice.protocol, point.bytes),
                choice.bandwidth,
                nic * per_byte,
                inside * per_byte,
                max(point.time - HOST[system.driven_from].gap, 1e-6),
                BANDS[measured.size_class(point.bytes)],
                1 / math.sqrt(counts[point.system]),
            )
        )
    return made


def fitted(system: BenchmarkSystem, point: PublishedCollective) -> bool:
    """Whether a row is one of those that the numbers are fitted to."""
    return point.nodes > 1 and point.kind in COLLECTIVES and system.band == "network"


def members(cluster: Cluster, point: PublishedCollective) -> tuple[int, ...]:
    """The GPUs of a measurement."""
    each = point.gpus // point.nodes
    return tuple(cluster.gpu(node, local) for node in range(point.nodes) for local in range(each))


def _busiest(cluster: Cluster, over: Lanes) -> tuple[float, float]:
    """Seconds per byte of volume on the busiest NIC at its line rate, and on any other link."""
    load: dict[int, float] = {}
    for lane in over.lanes:
        for link, coefficient in lane.path:
            load[link] = load.get(link, 0.0) + coefficient * lane.share
    kind = cluster.network.link_kind
    nic = max((amount / kind.planning for link, amount in load.items() if link >= cluster.first_fabric_link), default=0.0)
    inside = max((amount / cluster.capacity(link) for link, amount in load.items() if link < cluster.first_fabric_link), default=0.0)
    return nic, max([inside, *(lane.share / lane.cap for lane in over.lanes)])


# the fit: one number after the other, in shrinking steps


def fit(rows: list[Row], known: Mapping[str, Number], sweeps: int = 12) -> Numbers:
    """The numbers of least loss, from the a priori ones."""
    values = {name: number.prior for name, number in known.items()}
    by_network: dict[str, list[Row]] = {}
    for row in rows:
        by_network.setdefault(row.network, []).append(row)
    total = sum(row.weight for row in rows)
    steps = {name: number.scale for name, number in known.items()}

    def loss(name: str) -> float:
        between = law(values)
        mine = by_network.get(name.partition(".")[0], []) if name not in LIBRARY else rows
        pull = math.log1p(((values[name] - known[name].prior) / known[name].scale) ** 2)
        return sum(row.loss(values, between) for row in mine) / total + PULL * pull / len(known)

    for _ in range(sweeps):
        for name, number in known.items():
            best, at = loss(name), values[name]
            for step in (steps[name], -steps[name]):
                trial = min(max(at + step, number.low), number.high)
                values[name] = trial
                if trial != at and (new := loss(name)) < best - 1e-12:
                    best, at = new, trial
                    steps[name] *= 2
                    break
            else:
                steps[name] /= 2
            values[name] = at
    return values


# predictions with numbers of one's own, through parsim itself


def predict(measured: Measurements, points: Iterable[PublishedCollective], values: Numbers) -> list[float]:
    """Times of points of several machines with these numbers [s]."""
    PROFILES["fit"] = MEASURED._replace(between=law(values))  # type: ignore[assignment]
    clusters: dict[tuple[str, int], Cluster] = {}
    times = []
    try:
        for point in points:
            system = measured.systems[point.system]
            key = (point.system, point.nodes)
            if key not in clusters:
                kind = system.cluster(point.nodes).network.link_kind
                name = network_class(kind.name).name
                link = {
                    "efficiency": values[f"{name}.share"],
                    "message_latency": f"{values[f'{name}.message_latency']!r} s",
                    "handshake": f"{values['handshake'] if name in PLUGINS else 0.0!r} s",
                }
                clusters[key] = system.cluster(point.nodes, {kind.name: link})
            one = collective_cost(clusters[key], members(clusters[key], point), point.kind, point.bytes, settings_of(system, point, "fit"))
            times.append(host_time(system, point.kind, one.time))
    finally:
        del PROFILES["fit"]
    return times


# what is written


def main() -> None:
    """Fit, predict every family without itself, and write or print."""
    measured = measurements(HERE)
    rows = rows_of(measured)
    classes = [name for name in NETWORKS if any(row.network == name for row in rows)]
    known = numbers_of(classes)
    everything = fit(rows, known)
    prior = {name: number.prior for name, number in known.items()} | {
        name: value for name, value in shipped(classes).items() if name in LIBRARY
    }
    between = [point for point in measured.points if point.nodes > 1 and measured.systems[point.system].band == "network"]
    found = {point: [time] for point, time in zip(between, predict(measured, between, prior), strict=True)}
    without: dict[str, Numbers] = {}
    for family in dict.fromkeys(measured.systems[point.system].family for point in between):
        seen = [row for row in rows if row.family != family]
        fitted_here = everything if len(seen) == len(rows) else fit(seen, known)
        values = without[family] = {name: _rounded(value) for name, value in fitted_here.items()}
        mine = [point for point in between if measured.systems[point.system].family == family]
        for point, time in zip(mine, predict(measured, mine, values), strict=True):
            found[point].append(time)
        say(f"{family}: {len(mine)} rows")
    document = {
        name: {
            "a_priori": _rounded(number.prior), "shipped": _rounded(shipped(classes)[name]), "all": _rounded(everything[name]),
            "left_out": [_rounded(min(v[name] for v in without.values())), _rounded(max(v[name] for v in without.values()))],
        }
        for name, number in known.items()
    }  # fmt: skip
    if "--show" in sys.argv:
        say(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=140))
    else:
        _write(document, without, found)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _write(document: Mapping[str, Any], without: Mapping[str, Numbers], found: Mapping[PublishedCollective, list[float]]) -> None:
    text = yaml.safe_dump({"numbers": dict(document), "without": dict(without)}, sort_keys=False, default_flow_style=None, width=140)
    (HERE / "fit.yaml").write_text(f"# Written by fit.py. SI units: s, B/s. left_out: least and most of the fits without a family.\n{text}")
    with (HERE / "left_out_predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["system", "collective", "gpus", "nodes", "bytes", "algorithm", "a_priori_us", "left_out_us"])
        for point, times in found.items():
            micro = [f"{time / _US:.6g}" for time in times]
            writer.writerow([point.system, point.kind, point.gpus, point.nodes, point.bytes, point.algorithm, *micro])


if __name__ == "__main__":
    main()
