"""What assumptions are worth: each is replaced by what else it might be, and the step simulated anew.

A choice is replaced by the other choices, a number by the ends of the range in which it is published or measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from parsim.hardware.device import Device
from parsim.report import Report
from parsim.report.measured import AssumptionEffect, ReportedAssumption
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.files import names
from parsim.scenario.precision import PRESETS
from parsim.scenario.scenario import Scenario
from parsim.study.variants import Figures, Outcome
from parsim.study.what_if import DIGITS, Overrides, Watch, levelled, scaled, tried

CHOICES = {
    "dropout": ("0", "0.1"),
    "optimizer_kernels": ("fused", "foreach", "loop"),
    "loss_kernel": ("eager", "fused"),
    "gradient_reduction": ("no_sync", "every"),
    "kernel_fusion": ("eager", "fused", "compiled"),
    "gradient_accumulation_fusion": ("true", "false"),
    "finetune_base": ("bf16", "nf4", "nf4-dq", "int8"),
    "adapter_dtype": ("fp32", "model"),
    "context_memory": ("0.3 GiB", "1.8 GiB"),
    "communicator_memory": ("0.1 GiB", "1.5 GiB"),
    "workspace_memory": ("0 B", "64 MiB"),
    "host_per_kernel_forward": ("5 us", "20 us"),
    "host_per_kernel_backward": ("4 us", "15 us"),
    "host_per_list_entry": ("5 us", "20 us"),
    "training_effects": ("none",),
    "host_memory_bandwidth": ("x0.6", "x1.6"),
    "drive_read_bandwidth": ("x0.5", "x2"),
    "drive_write_bandwidth": ("x0.5", "x2"),
}
"""name -> what else it might be. Contexts: 0.3 GiB with lazy loading to 1.8 GiB without (stas00/ml-engineering); communicators: NVIDIA/nccl
issues 964 and 1685; launching: 5-20 us per kernel (PyTorch CPU profiles); host memory: two to sixteen DDR4 or DDR5 channels; drives:
SATA to PCIe 5.0"""
_LINKS = {
    "host_memory_bandwidth": "host-memory",
    "drive_read_bandwidth": "nvme-read",
    "drive_write_bandwidth": "nvme-write",
}
_GEMM = ("0.93", "1.07")
"""as far apart as effects of training that were fitted without one family of sources or another (validation/runs/fits.yaml)"""
_MEMORY = ("0.85", "1.12")
"""large copies reach 0.7 to 0.92 of the datasheet's bandwidth (stas00/ml-engineering; BabelStream)"""
_ATTENTION = ("0.85", "1.15")
_LATENCY = ("0.5", "2")


@dataclass(frozen=True, slots=True)
class AssumptionAlternative:
    """An assumption, what else it might be, and the overrides that say so."""

    assumption: ReportedAssumption
    other: str
    overrides: Overrides


def with_effects(scenario: Scenario, report: Report, *, jobs: int | None = None, watch: Watch | None = None) -> Report:
    """The report with its assumptions sorted by what they can do to the step or the memory, the largest first.

    Efficiencies of the device that decide the step are among them, whoever states them: they differ between runs.
    """
    asked = alternatives(scenario, report)
    came = tried(scenario, [(), *(one.overrides for one in asked)], jobs=jobs, watch=watch)
    return sorted_by_effect(report, asked, levelled(report, came))


def alternatives(scenario: Scenario, report: Report) -> list[AssumptionAlternative]:
    """What else the assumptions of a report might be, one by one."""
    built = build(scenario)
    return [*_stated(report, built), *_efficiencies(scenario, built)]


def sorted_by_effect(report: Report, asked: Sequence[AssumptionAlternative], came: Sequence[Outcome[Figures]]) -> Report:
    """The report with what came of each alternative."""
    groups: dict[ReportedAssumption, list[tuple[str, Outcome[Figures]]]] = {assumption: [] for assumption in report.measured.assumptions}
    for one, outcome in zip(asked, came, strict=True):
        groups.setdefault(one.assumption, []).append((one.other, outcome))
    assumptions = [replace(assumption, effect=_effect(others, report)) for assumption, others in groups.items()]
    assumptions.sort(key=lambda one: -(round(_size(one.effect, report), DIGITS) if one.effect is not None else -1.0))
    return Report(replace(report.measured, assumptions=tuple(assumptions)))


def _stated(report: Report, built: Built) -> Iterator[AssumptionAlternative]:
    device = built.cluster.device(built.gpus[0])
    for assumption in report.measured.assumptions:
        for other in _others(assumption, device):
            if assumption.name in _LINKS and other.startswith("x"):
                key = f"cluster.set.links.{_LINKS[assumption.name]}.per_direction"
                yield AssumptionAlternative(assumption, other, (f"{key}={other}",))
            elif other != assumption.value:
                yield AssumptionAlternative(assumption, other, (f"assumptions.{assumption.name}={other}",))


def _others(assumption: ReportedAssumption, device: Device) -> Sequence[str]:
    match assumption.name:
        case "software_profile":
            return names("software")
        case "precision":
            size = PRESETS[assumption.value].activations
            same = {"fp16", "bf16"} & {PRESETS[assumption.value].matmul} or {PRESETS[assumption.value].matmul}
            return [name for name, preset in PRESETS.items() if preset.activations == size and preset.matmul in same]
        case "attention":
            return [*device.attention_kernels, "eager"]
    return CHOICES.get(assumption.name, ())


def _efficiencies(scenario: Scenario, built: Built) -> Iterator[AssumptionAlternative]:
    """Efficiencies of the device: of products, memory, the attention kernel in use, and latency where it is a guess."""
    device, kernel = built.cluster.device(built.gpus[0]), built.training.attention
    guesses = set(device.assumptions)
    rows: list[tuple[str, float, tuple[str, str]]] = [("gemm.efficiency", device.gemm.efficiency, _GEMM)]
    rows.append(("memory.efficiency", device.memory_efficiency, _MEMORY))
    if built.model.heads and kernel in device.attention:
        entry = device.attention[kernel]
        rows += [(f"attention.{kernel}.{key}", getattr(entry, key), _ATTENTION) for key in ("forward", "backward")]
    if "kernel_latency" in guesses:
        rows.append(("kernel_latency", device.kernel_latency, _LATENCY))
    for key, value, factors in rows:
        path = f"cluster.set.device.{key}"
        guessed = any(key == guess or key.startswith(f"{guess}.") for guess in guesses) or (
            key[:4] == "gemm" and "gemm shape parameters" in guesses
        )
        source = f"{'a guess' if guessed else 'fitted to measured kernels'}; training runs differ by {factors[0]} to {factors[1]} of it"
        shown = f"{value * 1e6:.3g} us" if key == "kernel_latency" else f"{value:.4g}"
        assumption = ReportedAssumption(path, shown, source, device.name)
        yield from (AssumptionAlternative(assumption, f"x{factor}", (scaled(scenario, path, float(factor)),)) for factor in factors)


def _effect(others: Sequence[tuple[str, Outcome[Figures]]], report: Report) -> AssumptionEffect | None:
    done = [(other, one.answer) for other, one in others if one.answer is not None]
    if not done:
        return None
    steps = [report.step_time, *(one.seconds_per_sample * report.measured.model.samples_per_step for _, one in done)]
    peaks = [report.peak_memory, *(one.peak for _, one in done)]
    return AssumptionEffect((min(steps), max(steps)), (min(peaks), max(peaks)), tuple(other for other, _ in done))


def _size(effect: AssumptionEffect, report: Report) -> float:
    """The largest change: of the step, as a share of it, or of the peak, as a share of the capacity."""
    time = max(abs(step - report.step_time) for step in effect.step_time_s) / report.step_time if report.step_time > 0 else 0.0
    capacity = report.measured.memory.capacity_bytes
    return max(time, max(abs(peak - report.peak_memory) for peak in effect.peak_bytes) / capacity if capacity else 0.0)
