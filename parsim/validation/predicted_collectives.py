"""Predicted against published times of collectives, by system and size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.inputs import Settings
from parsim.hardware.nccl.profiles import PROFILES
from parsim.hardware.nccl.tables import DEFAULT_VERSION
from parsim.report.table import Column, Content, Table
from parsim.units import format_bytes
from parsim.validation.bandwidth_bound import least_time
from parsim.validation.left_out_collectives import graded, table
from parsim.validation.published_collectives import HOST, BenchmarkSystem, Measurements, PublishedCollective
from parsim.validation.score import Errors, errors, relative_error

SIZES = ("< 1 MiB", "1-128 MiB", "128-512 MiB", ">= 512 MiB")
"""the classes of sizes, as printed; their edges are data"""
_KEYS = {"points": "rows", "mean_error": "bias", "median_absolute_error": "median", "p90_absolute_error": "p90"}
"""key of the JSON document -> field of `Errors`"""


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """The prediction of one published collective with one profile."""

    point: PublishedCollective
    profile: str
    time: float
    """[s]"""
    algorithm: str
    protocol: str
    least: float
    """what the wires need at least [s]"""
    size_class: int
    inside: bool | None
    """whether the error is inside the band; None where nothing is claimed"""

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return relative_error(self.time, self.point.time)

    @property
    def impossible(self) -> bool:
        """Whether the prediction beats the wires."""
        return self.time < self.least

    @property
    def busbw(self) -> float:
        """Predicted bus bandwidth [B/s]."""
        return self.point.busbw * self.point.time / self.time


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of some predictions, and how many are inside the band that is claimed for them."""

    errors: Errors
    inside: int
    claimed: int
    """points for which a band is claimed"""

    def document(self) -> dict[str, Any]:
        """The summary as JSON has it."""
        return {**self.errors.document(_KEYS), "inside": self.inside, "claimed": self.claimed}


@dataclass(frozen=True, slots=True)
class CollectiveValidation:
    """All predictions of all profiles."""

    measured: Measurements
    predictions: tuple[PredictedCollective, ...]

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles, in order."""
        return tuple(dict.fromkeys(one.profile for one in self.predictions))

    def of(
        self, profile: str, *, system: str | None = None, band: str | None = None, size_class: int | None = None
    ) -> list[PredictedCollective]:
        """The predictions of a profile, of a system, of the systems that claim a band, of a class of sizes."""
        return [
            one
            for one in self.predictions
            if one.profile == profile
            and system in (None, one.point.system)
            and band in (None, self.measured.systems[one.point.system].band)
            and size_class in (None, one.size_class)
        ]

    @property
    def misses(self) -> tuple[PredictedCollective, ...]:
        """Every prediction outside its band."""
        return tuple(one for one in self.predictions if one.inside is False)

    @property
    def impossible(self) -> tuple[PredictedCollective, ...]:
        """Predictions that beat the wires; there must be none."""
        return tuple(one for one in self.predictions if one.impossible)


def validate(measured: Measurements, profiles: Iterable[str] = tuple(PROFILES)) -> CollectiveValidation:
    """Predict every point with every profile.

    Raises:
        TopologyError: a system's description does not hold what its points need.
    """
    clusters: dict[tuple[str, int], Cluster] = {}
    predictions = []
    for name in profiles:
        for point in measured.points:
            key = (point.system, point.nodes)
            if key not in clusters:
                clusters[key] = measured.systems[point.system].cluster(point.nodes)
            cluster = clusters[key]
            if point.gpus > cluster.gpus_per_node * point.nodes:
                machines = f"{point.nodes:,} of its machines with {cluster.gpus_per_node}"
                text = f"a measurement of {point.system} has {point.gpus:,} GPUs on {machines}"
                raise TopologyError(Finding(text, f"systems.{point.system}.topology", point.gpus))
            predictions.append(_predict(measured, point, name, cluster))
    return CollectiveValidation(measured, tuple(predictions))


def _predict(measured: Measurements, point: PublishedCollective, profile: str, cluster: Cluster) -> PredictedCollective:
    system = measured.systems[point.system]
    each = point.gpus // point.nodes
    group = tuple(cluster.gpu(node, local) for node in range(point.nodes) for local in range(each))
    one = collective_cost(cluster, group, point.kind, point.bytes, settings_of(system, point, profile))
    time = host_time(system, point.kind, one.time) if profile == "measured" else one.time
    number = measured.size_class(point.bytes)
    return PredictedCollective(
        point,
        profile,
        time,
        one.algorithm,
        one.protocol,
        least_time(cluster, group, point.kind, point.bytes, measured.wire),
        number,
        measured.bands[system.band].holds(number, relative_error(time, point.time), point.nodes),
    )


def settings_of(system: BenchmarkSystem, point: PublishedCollective, profile: str) -> Settings:
    """How a point was measured: its algorithm, and the version of the library where the source prints it."""
    return Settings(profile=profile, version=system.nccl or DEFAULT_VERSION, algorithm=point.algorithm)


def host_time(system: BenchmarkSystem, kind: str, time: float) -> float:
    """Time of a collective with what the host of a system adds to it [s]."""
    host, exchange = HOST[system.driven_from], kind == "all_to_all"
    floor = max(host.floor, system.issue.get("exchange" if exchange else "collective", 0.0))
    return max(floor, time + host.gap + host.exchange * exchange)


def summary(predictions: Sequence[PredictedCollective]) -> Summary | None:
    """The summary of predictions; None if there are none."""
    errors_ = errors(one.error for one in predictions)
    claimed = [one for one in predictions if one.inside is not None]
    return None if errors_ is None else Summary(errors_, sum(bool(one.inside) for one in claimed), len(claimed))


def _summaries(validation: CollectiveValidation, number: int, *, system: str | None = None, band: str | None = None) -> dict[str, Summary]:
    """Profile -> summary of a class of sizes, of a system or of all systems that claim a band, where there are points."""
    summaries = {one: summary(validation.of(one, system=system, band=band, size_class=number)) for one in validation.profiles}
    return {profile: one for profile, one in summaries.items() if one is not None}


def _by_system(validation: CollectiveValidation) -> Iterator[tuple[BenchmarkSystem, int, dict[str, Summary]]]:
    """(system, class of sizes, summary by profile), where there are points."""
    for system in validation.measured.systems.values():
        for number in range(len(SIZES)):
            if summaries := _summaries(validation, number, system=system.name):
                yield system, number, summaries


def _by_band(validation: CollectiveValidation) -> Iterator[tuple[str, int, dict[str, Summary]]]:
    """(band, class of sizes, summary by profile) over all systems that claim a band."""
    for band in validation.measured.bands:
        for number in range(len(SIZES)):
            if summaries := _summaries(validation, number, band=band):
                yield band, number, summaries


def document(validation: CollectiveValidation) -> dict[str, Any]:
    """The whole comparison as one JSON document."""
    measured = validation.measured
    return {
        "parsim": 1,
        "points": len(measured.points),
        "systems": [
            {"system": system.name, "title": system.title, "class": system.band, "inferred": system.inferred,
             "sizes": SIZES[number], **{profile: one.document() for profile, one in summaries.items()}}
            for system, number, summaries in _by_system(validation)
        ],
        "classes": [
            {"class": band, "what": measured.bands[band].what, "sizes": SIZES[number], "band": _limits(measured, band, number),
             **{profile: one.document() for profile, one in summaries.items()}}
            for band, number, summaries in _by_band(validation)
        ],
        "left_out": {"rows": dict(measured.left_out), "classes": [one.document() for one in graded(measured, validation.of("measured"))]},
        "misses": [{**_row(one), "reason": measured.systems[one.point.system].reason(one.point, one.profile)} for one in validation.misses],
        "beats_the_wires": [_row(one) for one in validation.impossible],
        "rows": [_row(one) for one in validation.predictions],
    }  # fmt: skip


def _limits(measured: Measurements, name: str, number: int) -> list[float] | None:
    band = measured.bands[name]
    return None if band.low is None or band.high is None else [band.low[number], band.high[number]]


def _row(one: PredictedCollective) -> dict[str, Any]:
    point = one.point
    return {
        "system": point.system, "collective": point.kind, "gpus": point.gpus, "nodes": point.nodes, "bytes": point.bytes,
        "profile": one.profile, "algorithm": one.algorithm, "protocol": one.protocol, "measured_s": point.time, "predicted_s": one.time,
        "least_s": one.least, "error": one.error, "inside": one.inside, "source": point.source,
    }  # fmt: skip


def text(validation: CollectiveValidation) -> str:
    """The whole comparison as text."""
    measured = validation.measured
    lines = [
        f"{len(measured.points)} published measurements of {len(measured.systems)} systems. Error: predicted over measured time, less one,",
        "in percent, as mean / median of the size / 90th percentile of the size.",
        "",
        _system_table(validation).text(),
        "",
        _band_table(validation).text(),
    ]
    if classes := graded(measured, validation.of("measured")):
        lines += ["", table(classes).text()]
    if measured.left_out:
        lines += ["", "left out by rules that look at no prediction (README.md): "]
        lines[-1] += ", ".join(f"{count} {rule}" for rule, count in measured.left_out.items())
    lines += ["", *_misses(validation)]
    beaten = len(validation.impossible)
    lines += ["", f"{beaten} of {len(validation.predictions)} predictions are faster than the wires allow."]
    lines += [f"  {_words(one)}: at least {one.least * 1e6:.1f} us" for one in validation.impossible]
    inferred = [f"  {system.title}: {system.inferred}" for system in measured.systems.values() if system.inferred]
    return "\n".join([*lines, "", "inferred, because not printed", *inferred])


def _system_table(validation: CollectiveValidation) -> Table:
    """Errors by system and class of sizes."""
    columns = [Column("system", align="left"), Column("size", align="left"), Column("points")]
    columns += map(Column, validation.profiles)
    rows: list[tuple[Content, ...]] = []
    before = ""
    for system, number, summaries in _by_system(validation):
        points = next(iter(summaries.values())).errors.rows
        title = "" if system.name == before else system.title[:58]
        rows.append((title, SIZES[number], points, *(_percentages(summaries[profile].errors) for profile in validation.profiles)))
        before = system.name
    return Table(columns, rows)


def _band_table(validation: CollectiveValidation) -> Table:
    """How many points are inside the band that is claimed for them."""
    columns = [Column("inside the band", align="left"), Column("band", align="left"), *map(Column, validation.profiles)]
    rows: list[tuple[Content, ...]] = []
    for band, number, summaries in _by_band(validation):
        limits = _limits(validation.measured, band, number)
        claimed = "none claimed" if limits is None else f"±{100 * limits[1]:.0f} %" if -limits[0] == limits[1] else "factor 2"
        what = f"  {validation.measured.bands[band].what}, {SIZES[number]}"
        rows.append((what, claimed, *(_share(summaries[profile]) for profile in validation.profiles)))
    return Table(columns, rows)


def _misses(validation: CollectiveValidation) -> list[str]:
    lines = []
    for profile in validation.profiles:
        missed = [one for one in validation.misses if one.profile == profile]
        lines.append(f"outside the band, profile {profile}: {len(missed)}")
        reasons: dict[tuple[str, str], list[PredictedCollective]] = {}
        for one in missed:
            system = validation.measured.systems[one.point.system]
            reasons.setdefault((system.title, system.reason(one.point, one.profile)), []).append(one)
        for (title, reason), ones in reasons.items():
            lines.append(f"  {title}: {reason}")
            lines += [f"    {_words(one)}" for one in ones]
    return lines


def _words(one: PredictedCollective) -> str:
    point = one.point
    where = f"{point.kind} {format_bytes(point.bytes, digits=3)}, {point.gpus} GPUs" + (
        f" on {point.nodes} nodes" if point.nodes > 1 else ""
    )
    how = f"{one.algorithm} {one.protocol}"
    return f"{where}: measured {point.time * 1e6:.1f} us, predicted {one.time * 1e6:.1f} us ({how}), {100 * one.error:+.1f} %"


def _percentages(one: Errors) -> str:
    return f"{100 * one.bias:+.1f} / {100 * one.median:.1f} / {100 * one.p90:.1f}"


def _share(one: Summary) -> str:
    return f"{one.inside} of {one.claimed}" if one.claimed else "-"
