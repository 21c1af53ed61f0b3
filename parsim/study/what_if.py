"""What a change of the machine or the recipe would give, and what assumptions are worth: each one simulated, none estimated.

A change is overrides of the scenario, so that ``parsim run FILE`` with the same words gives the same numbers.
Of assumptions, a choice is replaced by the other choices, a number by the ends of the range in which it is published or measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parsim.hardware.device import Device
from parsim.hardware.fabric.joined import REGION_LINK
from parsim.parallel.schedules import ENDLESS
from parsim.parallel.settings import Host
from parsim.parallel.shares import MEETING_ONCE
from parsim.report import Report
from parsim.report.measured import Assumption, Effect
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.files import find, names, read
from parsim.scenario.precision import PRESETS
from parsim.scenario.scenario import Scenario, flow
from parsim.study.variants import Figures, Outcome, Variant, figures, outcomes
from parsim.units import parse

Overrides = tuple[str, ...]
"""``KEY=VALUE`` words as on the command line"""
Watch = Callable[[Iterable[Outcome[Figures]], int], Iterable[Outcome[Figures]]]
STRAGGLER = 0.8
"""speed of the slow rank"""
_BOUNDLESS = "1 EB/s"
"""of an ideal link"""
SLOW_RANK = "rank "
"""how the name of that change begins"""
_DIGITS = 9
"""to which effects are sorted: short runs answer for long ones to so many, and what is equal stays in the order in which it was asked"""
_FREE = 1e6
"""times as fast: an ideal link"""
_NVLINKS = (("nvlink3", 12, 2021), ("nvlink4", 18, 2023), ("nvlink5", 18, 9999))
"""link kind, links of a GPU, last year of the GPUs beside it (DGX A100, HGX H100 and HGX B200 user guides)"""


@dataclass(frozen=True, slots=True)
class Change:
    """One question, and the overrides that ask it."""

    name: str
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change and what came of it."""

    change: Change
    outcome: Outcome[Figures]
    step_time: float
    """of the same number of samples as the scenario's step [s]; 0 where the change cannot be simulated"""
    effect: float
    """step_time over the scenario's, less one"""

    @property
    def fits(self) -> bool:
        """Whether it could be simulated, and fits in memory."""
        return self.outcome.status == "fits"

    @property
    def peak(self) -> int:
        """Highest device memory in use on any rank [B]; 0 where the change cannot be simulated."""
        return 0 if self.outcome.answer is None else self.outcome.answer.peak

    @property
    def refused(self) -> str:
        """Why it cannot be simulated; empty where it can."""
        return self.outcome.refusal


def what_ifs(scenario: Scenario, report: Report, *, jobs: int | None = None, watch: Watch | None = None) -> list[WhatIf]:
    """Simulate every change that applies to a scenario, whose own report is given; the most time saved comes first."""
    asked = list(changes(scenario, report))
    came = tried(scenario, [change.overrides for change in asked], jobs=jobs, watch=watch)
    answers = [_answer(change, one, report) for change, one in zip(asked, came, strict=True)]
    return sorted(answers, key=lambda one: (one.outcome.answer is None, round(one.effect, _DIGITS)))


def tried(
    scenario: Scenario, changes: Sequence[Overrides], *, jobs: int | None = None, watch: Watch | None = None
) -> list[Outcome[Figures]]:
    """What the scenario does with each of the changes on top, in their order."""
    tree = scenario.document()
    # figures are those of the undisturbed step, but for what breaks something itself
    once = () if scenario.settings.variability.runs == 1 else ("variability.runs=1",)
    whole = ("variability.faults=[]",) if scenario.tree["variability"]["faults"] else ()
    variants = [Variant(tree, (*whole, *overrides, *once), trust_code=scenario.trust_code) for overrides in changes]
    came = outcomes(variants, figures, jobs=jobs)
    return list(came if watch is None else watch(came, len(variants)))


def _answer(change: Change, came: Outcome[Figures], report: Report) -> WhatIf:
    if came.answer is None:
        return WhatIf(change, came, 0.0, 0.0)
    step = came.answer.seconds_per_sample * report.measured.model.samples_per_step
    return WhatIf(change, came, step, step / report.step_time - 1.0)


def changes(scenario: Scenario, report: Report) -> Iterator[Change]:
    """The questions worth asking of a scenario."""
    built = build(scenario)
    profiled = isinstance(scenario.tree["model"], dict) and "stages" in scenario.tree["model"]
    yield from _links(scenario, built, report)
    if not profiled:  # stages whose times were measured know neither devices nor sizes
        yield from _nvlink(scenario, built, report)
        yield from _device(scenario, built)
        yield from _micro_batches(built)
        yield from _recipe(built, report)
        yield from _uneven(scenario, built)
    yield from _overlap(built)
    slow = [*scenario.tree["variability"]["slow"], {"rank": report.bottleneck_rank, "speed": STRAGGLER}]
    if report.bottleneck_rank not in built.slow:
        yield Change(f"{SLOW_RANK}{report.bottleneck_rank} at {STRAGGLER:g} of its speed", (f"variability.slow={flow(slow)}",))
    yield from _lost_nic(built, report)


def _lost_nic(built: Built, report: Report) -> Iterator[Change]:
    """A NIC of the bottleneck's machine is lost before the step begins, and the next one does its work, too."""
    cluster = built.cluster
    node = cluster.node_of(built.gpus[report.bottleneck_rank])
    ports = [name for name in cluster.machine(node).ports if name.startswith("nic")]
    machines, pipeline = {cluster.node_of(gpu) for gpu in built.gpus}, built.parallelism.pipeline
    endless = pipeline.schedule in ENDLESS or pipeline.post_validation  # faults need a step that ends
    if len(machines) > 1 and len(ports) > 1 and not endless:
        lost = [{"nic": f"node{node}/{ports[0]}", "at": "0 s", "down": True, "fallback": "neighbour"}]
        yield Change(f"NIC node{node}/{ports[0]} lost, the next one in its place", (f"variability.faults={flow(lost)}",))


# -- the network ------------------------------------------------------------------------------------------------------


def _links(scenario: Scenario, built: Built, report: Report) -> Iterator[Change]:
    """Each kind of link that carries something, all of them, transfers without staging, and an ideal network."""
    used = dict.fromkeys(row.kind.removesuffix("-trunk") for row in report.links if row.bytes)  # a trunk is many links of its kind
    kinds = [kind for kind in used if kind != REGION_LINK]
    for kind in kinds:
        yield Change(f"{kind} x2", (_scaled_link(scenario, kind, 2.0),))
    if len(kinds) > 1:
        yield Change("every link x2", tuple(_scaled_link(scenario, kind, 2.0) for kind in kinds))
    if REGION_LINK in used:
        wider = [{**link, "bandwidth": f"{2 * parse(link['bandwidth'], 'rate'):.12g} B/s"} for link in scenario.tree["cluster"]["regions"]]
        yield Change("links between regions x2", (f"cluster.regions={flow(wider)}",))
    staged = () if built.cluster.machine(0).p2p else ("cluster.set.node.p2p=true",)
    if staged and len(built.gpus) > 1:
        yield Change("peer-to-peer transfers over PCIe", staged)
    if kinds:
        free = [f"cluster.set.links.{kind}.latency=0 s" for kind in kinds]
        faster = [_scaled_link(scenario, kind, _FREE) for kind in kinds]
        if REGION_LINK in used:
            near = [{**link, "bandwidth": _BOUNDLESS, "latency": "0 s"} for link in scenario.tree["cluster"]["regions"]]
            free.append(f"cluster.regions={flow(near)}")
        yield Change("an ideal network: infinitely fast, no latency", ("cluster.collectives.profile=ring", *staged, *faster, *free))


def _scaled_link(scenario: Scenario, kind: str, factor: float) -> str:
    change = scenario.tree["cluster"]["set"].get("links", {}).get(kind, {})
    key = next((key for key in ("bandwidth", "per_direction", "line_rate") if key in change), "bandwidth")
    return scaled(scenario, f"cluster.set.links.{kind}.{key}", factor)


def scaled(scenario: Scenario, path: str, factor: float) -> str:
    """The override that multiplies a number of a device or topology file by `factor`, whatever ``cluster.set`` makes of it already."""
    holder: Any = scenario.tree
    for key in path.split("."):
        holder = holder.get(key) if isinstance(holder, dict) else None
    if isinstance(holder, (int, float)):
        return f"{path}={holder * factor:.12g}"
    match = re.fullmatch(r"\s*([x×]?)\s*([0-9._]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*", str(holder)) if holder is not None else None
    if match is None:
        return f"{path}=x{factor:.12g}"
    return f"{path}={match[1]}{float(match[2]) * factor:.12g} {match[3]}".rstrip()


def _nvlink(scenario: Scenario, built: Built, report: Report) -> Iterator[Change]:
    """The same GPUs behind NVSwitches, where one machine has none."""
    device = built.cluster.device(built.gpus[0])
    wired = any(row.kind.startswith("nvlink") for row in report.links if row.bytes)
    if wired or len(built.kinds) > 1 or report.measured.ranks.nodes > 1 or len(built.gpus) < 2:
        return
    if "set" in scenario.written.get("cluster", {}) or device.compute_capability == 0:
        return  # changes of a machine may not fit another one; other makers have other links
    name = next((name for name in names("devices") if read(find("devices", name)).tree.get("name") == device.name), None)
    if name is None:
        return
    words = [f"cluster.topology={flow({'gpu': name, 'count': len(built.gpus), 'interconnect': 'nvswitch'})}"]
    kind, count = device.nvlink, device.nvlinks
    if not kind:
        kind, count, _ = next(row for row in _NVLINKS if _year(device.compute_capability) <= row[2])
        links = {"nvlink": kind, "nvlinks": count, "interconnect": "nvswitch"}
        words.append(f"cluster.set.device.links={flow(links)}")
    yield Change(f"NVLink between these GPUs ({count} x {kind})", tuple(words))


def _year(capability: float) -> int:
    """Of the data-centre GPUs with the NVLink that goes with a compute capability."""
    return 2020 if capability < 8.9 else 2022 if capability < 10 else 2024


# -- the device -------------------------------------------------------------------------------------------------------


def _device(scenario: Scenario, built: Built) -> Iterator[Change]:
    common = [dtype for dtype in built.kinds[0].peak if all(dtype in device.peak for device in built.kinds)]
    peaks = tuple(scaled(scenario, f"cluster.set.device.compute.peak.{dtype}", 2.0) for dtype in common)
    yield Change("GPU FLOP/s x2", peaks)
    yield Change("memory bandwidth +50 %", (scaled(scenario, "cluster.set.device.memory.bandwidth", 1.5),))
    if built.runtime.host != Host():
        yield Change("CUDA graphs: no wait for the host", ("software.host.graphs=true",))


def _uneven(scenario: Scenario, built: Built) -> Iterator[Change]:
    """Parts by the speed of the GPUs, where these differ and the parts do not."""
    if len(built.kinds) == 1:
        return
    data, section = built.parallelism.data, scenario.settings.parallel
    if data.size > 1 and section.data.batch_split == "even" and data.strategy in MEETING_ONCE:
        batch = (f"training.micro_batch={built.training.micro_batch}", f"training.global_batch={built.training.global_batch}")
        words = ("parallel.data.batch_split=balanced", "parallel.data.accumulate=no_sync", "training.gradient_accumulation=auto")
        yield Change("a batch balanced by the speed of the GPUs", (*words, *batch))
    if built.parallelism.pipeline.size > 1 and section.pipeline.split == "even":
        yield Change("stages balanced by the speed of their GPUs", ("parallel.pipeline.split=balanced",))


# -- the recipe -------------------------------------------------------------------------------------------------------


def _micro_batches(built: Built) -> Iterator[Change]:
    """Twice as many micro-batches: half as large if they can be halved, else a batch twice as large."""
    training, data = built.training, built.parallelism.data
    batch, each = training.global_batch, training.micro_batch
    if data.size * training.micro_batches * each != batch:
        return
    if each % 2 == 0:
        words = (f"training.global_batch={batch}", f"training.micro_batch={each // 2}", "training.gradient_accumulation=auto")
        yield Change("micro-batches x2, half as large", words)
    else:
        words = (f"training.global_batch={2 * batch}", f"training.micro_batch={each}", "training.gradient_accumulation=auto")
        yield Change("micro-batches x2, twice the batch (time of the same samples)", words)
    doubled = (f"training.global_batch={batch}", f"training.micro_batch={2 * each}", "training.gradient_accumulation=auto")
    if training.micro_batches % 2 == 0:
        yield Change("micro-batches twice as large, half as many", doubled)


def _overlap(built: Built) -> Iterator[Change]:
    """All overlap off, and what is off on."""
    split = built.parallelism
    off: list[str] = []
    on: list[str] = []
    if split.data.size > 1:
        (off if split.data.overlap_reduce else on).append("parallel.data.overlap_reduce")
        if split.data.strategy in ("zero1", "zero2"):
            (off if split.data.overlap_gather else on).append("parallel.data.overlap_gather")
    if split.pipeline.size > 1:
        (off if split.pipeline.overlap_sends else on).append("parallel.pipeline.overlap_sends")
    words_off = [f"{key}=false" for key in off]
    if split.data.size > 1 and split.data.strategy in ("zero3", "fsdp", "hsdp") and split.data.prefetch:
        words_off.append("parallel.data.prefetch=0")
    if split.tensor.size > 1 and split.tensor.overlap != "none" and not split.tensor.sequence_parallel:
        words_off.append("parallel.tensor.overlap=none")
    if words_off:
        yield Change("no overlap of communication and compute", tuple(words_off))
    if on:
        yield Change("more overlap", tuple(f"{key}=true" for key in on))


def _recipe(built: Built, report: Report) -> Iterator[Change]:
    training, runtime = built.training, built.runtime
    mode = training.recompute.mode
    for other in ("none", "selective", "full"):
        if mode != other and (built.model.heads or other != "selective") and (mode != "none" or not report.fits):
            yield Change(f"recompute {other}", (f"training.recompute={other}",))
    share = report.critical["optimizer"] / report.step_time
    if training.step and training.optimizer.implementation != "fused" and share > 0.005 and training.offload.optimizer == "none":
        yield Change("fused optimizer", ("training.optimizer.implementation=fused",))
    if not runtime.fused and built.model.heads:
        yield Change("compiled kernels (torch.compile)", ("software.fusion=compiled",))


def by_name(found: Sequence[WhatIf], start: str) -> WhatIf | None:
    """The first that could be simulated and whose name begins with `start`."""
    return next((one for one in found if one.change.name.startswith(start) and one.outcome.answer is not None), None)


# -- assumptions -----------------------------------------------------------------------------------------------------

CHOICES = {
    "dropout": ("0", "0.1"),
    "optimizer_kernels": ("fused", "foreach", "loop"),
    "loss_kernel": ("eager", "fused"),
    "gradient_reduction": ("no_sync", "every"),
    "kernel_fusion": ("eager", "fused", "compiled"),
    "gradient_accumulation_fusion": ("true", "false"),
    "finetune_base": ("bf16", "nf4", "nf4-dq"),
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
class _Question:
    assumption: Assumption
    other: str
    overrides: Overrides


def with_effects(scenario: Scenario, report: Report, *, jobs: int | None = None, watch: Watch | None = None) -> Report:
    """The report with its assumptions sorted by what they can do to the step or the memory, the largest first.

    Efficiencies of the device that decide the step are among them, whoever states them: they differ between runs.
    """
    built = build(scenario)
    asked = [*_stated(report, built), *_efficiencies(scenario, built)]
    came = tried(scenario, [question.overrides for question in asked], jobs=jobs, watch=watch)
    groups: dict[Assumption, list[tuple[str, Outcome[Figures]]]] = {assumption: [] for assumption in report.measured.assumptions}
    for question, one in zip(asked, came, strict=True):
        groups.setdefault(question.assumption, []).append((question.other, one))
    assumptions = [replace(assumption, effect=_effect(others, report)) for assumption, others in groups.items()]
    assumptions.sort(key=lambda one: -(round(_size(one.effect, report), _DIGITS) if one.effect is not None else -1.0))
    return Report(replace(report.measured, assumptions=tuple(assumptions)))


def _stated(report: Report, built: Built) -> Iterator[_Question]:
    device = built.cluster.device(built.gpus[0])
    for assumption in report.measured.assumptions:
        for other in _others(assumption, device):
            if assumption.name in _LINKS and other.startswith("x"):
                key = f"cluster.set.links.{_LINKS[assumption.name]}.per_direction"
                yield _Question(assumption, other, (f"{key}={other}",))
            elif other != assumption.value:
                yield _Question(assumption, other, (f"assumptions.{assumption.name}={other}",))


def _others(assumption: Assumption, device: Device) -> Sequence[str]:
    match assumption.name:
        case "software_profile":
            return names("software")
        case "precision":
            size = PRESETS[assumption.value].activations
            same = {"fp16", "bf16"} & {PRESETS[assumption.value].matmul} or {PRESETS[assumption.value].matmul}
            return [name for name, preset in PRESETS.items() if preset.activations == size and preset.matmul in same]
        case "attention":
            return [*device.attention, "eager"]
    return CHOICES.get(assumption.name, ())


def _efficiencies(scenario: Scenario, built: Built) -> Iterator[_Question]:
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
        assumption = Assumption(path, shown, source, device.name)
        yield from (_Question(assumption, f"x{factor}", (scaled(scenario, path, float(factor)),)) for factor in factors)


def _effect(others: Sequence[tuple[str, Outcome[Figures]]], report: Report) -> Effect | None:
    done = [(other, one.answer) for other, one in others if one.answer is not None]
    if not done:
        return None
    steps = [report.step_time, *(one.seconds_per_sample * report.measured.model.samples_per_step for _, one in done)]
    peaks = [report.peak_memory, *(one.peak for _, one in done)]
    return Effect((min(steps), max(steps)), (min(peaks), max(peaks)), tuple(other for other, _ in done))


def _size(effect: Effect, report: Report) -> float:
    """The largest change: of the step, as a share of it, or of the peak, as a share of the capacity."""
    time = max(abs(step - report.step_time) for step in effect.step_time_s) / report.step_time if report.step_time > 0 else 0.0
    capacity = report.measured.memory.capacity_bytes
    return max(time, max(abs(peak - report.peak_memory) for peak in effect.peak_bytes) / capacity if capacity else 0.0)
