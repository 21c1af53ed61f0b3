"""The report of one simulated step: its metrics in every form, and its JSON document with every key of the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding
from parsim.report import verdict as words
from parsim.report.communication import unused_links
from parsim.report.economics import METRICS
from parsim.report.measured import AT_PEAK, DeviceMemory
from parsim.report.metrics import Metrics
from parsim.report.steady import first_makespan
from parsim.version import CONTRACT_VERSION, __version__

if TYPE_CHECKING:
    from parsim.report.plots.plot import Plot

UNDEFINED_IN_A_DEADLOCK = (
    "ranks", "experts", "model", "step_time_s", "makespan_s", "period_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu",
    "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "hfu", "bubble_fraction", "bubble_over_ideal",
    "bubble_fraction_theory", "estimate", "variability", "slow_gpu", "breakdown_rank", "bottleneck_rank", "breakdown_s", "critical_path_s",
    "limiter_kind", "limiter",
    "memory", "schedule", "collectives", "links", "unused_links", "confidence", "cost", *METRICS, "economics",
    "training_run", "plan",
    "assumptions", "warnings", "simulation",
)  # fmt: skip
"""keys of the document that a step which never ends has no value for"""


class Report(Metrics):
    """Metrics of one optimizer step. Numbers are SI (s, B, FLOP/s); `definitions` says what each one means."""

    def document(self) -> dict[str, Any]:
        """The JSON document, every key of the contract, None where undefined."""
        return document(self)

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The document's tables as lists of flat rows, ready for a data frame."""
        memory = []
        for device in memory_document(self)["devices"]:
            flat = {key: value for key, value in device.items() if not isinstance(value, Mapping)}
            for group in ("resident_bytes", "at_peak"):
                flat |= {f"{group}_{category}": volume for category, volume in device[group].items()}
            memory.append(flat)
        return {
            "breakdown": [
                {"key": key, "breakdown_s": value, "critical_path_s": self.critical[key]} for key, value in self.breakdown.items()
            ],
            "memory": memory,
            "collectives": [asdict(row) for row in self.collectives],
            "links": [asdict(row) for row in self.links],
            "assumptions": [asdict(assumption) for assumption in self.measured.assumptions],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """The document as text; floats with full precision, NaN is refused (ValueError)."""
        return json.dumps(self.document(), indent=indent, allow_nan=False, ensure_ascii=False)

    @property
    def plot(self) -> Plot:
        """Figures: ``report.plot.timeline()``, ``.memory()``, ``.breakdown()``, ``.collectives()``, ``.links()``."""
        from parsim.report.plots.plot import Plot

        return Plot(self)

    def __repr__(self) -> str:
        return f"{self.measured.name}: {self.verdict}"

    def _repr_html_(self) -> str:
        from parsim.report.notebook import summary

        return summary(self)


def document(report: Metrics) -> dict[str, Any]:
    """The JSON document, every key of the contract, None where undefined."""
    measured = report.measured
    window = measured.window
    micro_batches = measured.ranks.micro_batches
    tokens, model = measured.model.tokens_per_step, measured.model
    return {
        "parsim": CONTRACT_VERSION,
        "version": __version__,
        "provenance": {"catalogue_sha256": None, "command": None, "trusted_code": [], "python": None, **measured.provenance},
        "scenario": dict(measured.scenario),
        "ranks": asdict(measured.ranks),
        "experts": None if measured.experts is None else asdict(measured.experts),
        "model": {
            "parameters": model.parameters,
            "parameters_padded": model.parameters_padded,
            "parameters_active": model.parameters_active,
            "parameters_trainable": model.parameters_trainable,
            "flop_per_step": model.flop_per_step,
            "flop_convention": model.flop_convention,
        },
        "step_time_s": report.step_time,
        "makespan_s": report.end if window is None else first_makespan(report.timeline, micro_batches),
        "estimate": report.estimate.document(),
        "variability": _variability(report),
        "slow_gpu": None if measured.slow_gpu is None else measured.slow_gpu.document(),
        "period_s": measured.local_steps.period if measured.local_steps else None if window is None else window.period,
        **({"local_steps": measured.local_steps.document()} if measured.local_steps else {}),
        "samples_per_s": report.samples_per_s,
        "tokens_per_s": report.tokens_per_s,
        "tokens_per_s_per_gpu": report.per_gpu(tokens),
        "model_tflops_per_gpu": _tera(report.per_gpu(model.flop_per_step)),
        "hardware_tflops_per_gpu": _tera(report.per_gpu(model.hardware_flop_per_step)),
        "mfu": report.mfu,
        "hfu": report.hfu,
        "bubble_fraction": report.bubble,
        "bubble_over_ideal": report.bubble_over_ideal,
        "bubble_fraction_theory": measured.schedule.bubble_fraction_theory,
        "breakdown_rank": report.breakdown_rank,
        "bottleneck_rank": report.bottleneck_rank,
        "breakdown_s": dict(report.breakdown),
        "critical_path_s": dict(report.critical),
        "limiter_kind": report.limiter_kind,
        "limiter": report.limiter,
        "memory": memory_document(report),
        "schedule": {
            "name": measured.schedule.name,
            "stages": measured.schedule.stages,
            "virtual_stages": measured.schedule.virtual_stages,
            "layers_per_stage": list(measured.schedule.layers_per_stage),
            "stage_time_s": [dict(stage) for stage in measured.schedule.stage_time_s],
        },
        "collectives": [asdict(row) for row in report.collectives],
        "links": [{**asdict(row), "bytes": round(row.bytes)} for row in report.links],
        "unused_links": measured.idle_links + unused_links(measured.trace.links, measured.links),
        "confidence": measured.confidence.document(report.step_time, report.peak_memory if measured.memory.devices else None),
        **_money(report),
        "training_run": None if report.training_run is None else report.training_run.document(),
        "plan": None if measured.plan is None else dict(measured.plan),
        "assumptions": [asdict(assumption) for assumption in measured.assumptions],
        "warnings": [{"path": finding.path, "message": _message(finding)} for finding in report.warnings],
        "simulation": {
            "folded": measured.folded,
            "ranks": measured.ranks.total,
            "ranks_simulated": len(report.timeline.ranks),
            "ops": len(report.timeline.program.ops),
            "events": measured.trace.events,
            "wall_s": measured.wall_s,
            "seed": measured.seed,
        },
    }


def _variability(report: Metrics) -> dict[str, Any] | None:
    """What many runs of the step say, what breaks in it, and what each worker costs; None where there is nothing of that."""
    runs, faults, workers = report.measured.variability, report.measured.faults, report.workers
    said = {} if runs is None else runs.document(report.measured.model.tokens_per_step)
    said |= {} if faults is None else faults.document()
    said |= {} if workers is None else {"by_worker": workers.document()}
    return said or None


def _money(report: Metrics) -> dict[str, Any]:
    known = {"time_to_train_s": report.time_to_train, "gpu_hours": report.gpu_hours}
    if report.bill is None:
        return {"cost": None, **dict.fromkeys(METRICS), **known, "economics": None}
    return {"cost": report.bill.cost(), **report.bill.metrics(), **known, "economics": report.bill.document()}


def memory_document(report: Metrics) -> dict[str, Any]:
    """The `memory` section of the JSON document."""
    memory = report.measured.memory
    devices = memory.devices
    return {
        "capacity_bytes": memory.capacity_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "fits": report.fits,
        "headroom_bytes": report.headroom,
        "peak_allocated_bytes": max((device.allocated_bytes for device in devices), default=0),
        "peak_reserved_bytes": max((device.reserved_bytes for device in devices), default=0),
        "peak_device_used_bytes": report.peak_memory,
        "peak_bytes": report.peak_memory,
        "host_bytes": memory.host_bytes,
        "at_save_bytes": memory.at_save_bytes,
        "bytes_per_parameter": memory.bytes_per_parameter,
        "host": None if memory.host is None else memory.host.document(),
        "devices": [_device(report, device) for device in devices],
    }


def _device(report: Metrics, device: DeviceMemory) -> dict[str, Any]:
    group = words.rank_class(report.measured, device.rank)
    mixed = any(other.capacity_bytes is not None for other in report.measured.memory.devices)
    return {
        "rank": device.rank,
        "ranks": group.ranks,
        "count": group.count,
        "stage": group.stage,
        "peak_bytes": device.device_used_bytes,
        "allocated_bytes": device.allocated_bytes,
        "reserved_bytes": device.reserved_bytes,
        "device_used_bytes": device.device_used_bytes,
        "method": device.method,
        "peak_time_s": device.peak_time_s,
        "peak_op": device.peak_op,
        "resident_bytes": dict(device.resident_bytes),
        "at_peak": ordered(device.at_peak),
        "in_flight_micro_batches": device.in_flight_micro_batches,
        "weight_versions": device.weight_versions,
        **({"capacity_bytes": report.capacity(device) + report.measured.memory.reserve_bytes} if mixed else {}),
    }


def ordered(categories: Mapping[str, int]) -> dict[str, int]:
    """All memory categories in the order of the report, 0 where absent; unknown ones follow."""
    return {name: int(categories.get(name, 0)) for name in AT_PEAK} | {
        name: int(volume) for name, volume in categories.items() if name not in AT_PEAK
    }


def _tera(value: float | None) -> float | None:
    return None if value is None else value / 1e12


def _message(finding: Finding) -> str:
    return f"{finding.message}; {finding.suggestion}" if finding.suggestion else finding.message


def deadlock_document(scenario: Mapping[str, Any], text: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a program that stopped: every key of the contract, most of them null, and ``deadlock``."""
    known = {
        "parsim": CONTRACT_VERSION,
        "version": __version__,
        "provenance": dict(provenance),
        "scenario": dict(scenario),
    }
    return {**known, **dict.fromkeys(UNDEFINED_IN_A_DEADLOCK), "deadlock": text}
