"""What a change of the machine or the recipe would give: each one simulated, none estimated.

A change is overrides of the scenario, so that ``parsim run FILE`` with the same words gives the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parsim.hardware.fabric.joined import REGION_LINK
from parsim.parallel.runtime import Host
from parsim.parallel.schedules import ENDLESS
from parsim.parallel.shares import MEETING_ONCE
from parsim.report import Report
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.files import find, names, read
from parsim.scenario.scenario import Scenario, flow
from parsim.study.variants import Figures, Outcome, Variant, figures, outcomes
from parsim.units import parse

Overrides = tuple[str, ...]
"""``KEY=VALUE`` words as on the command line"""
Watch = Callable[[Iterable[Outcome[Any]], int], Iterable[Outcome[Any]]]
_BOUNDLESS = "1 EB/s"
"""of an ideal link"""
DIGITS = 9
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


def ranked(report: Report, asked: Sequence[Change], came: Sequence[Outcome[Figures]]) -> list[WhatIf]:
    """Changes of a scenario, whose own report is given, by what came of them."""
    answers = [_answer(change, one, report) for change, one in zip(asked, came, strict=True)]
    return sorted(answers, key=lambda one: (one.outcome.answer is None, round(one.effect, DIGITS)))


def tried(
    scenario: Scenario, changes: Sequence[Overrides], *, jobs: int | None = None, watch: Watch | None = None
) -> list[Outcome[Figures]]:
    """What the scenario does with each of the changes on top, in their order."""
    variants = variants_with(scenario, changes)
    came = outcomes(variants, figures, jobs=jobs)
    return list(came if watch is None else watch(came, len(variants)))


def levelled(report: Report, came: Sequence[Outcome[Figures]]) -> list[Outcome[Figures]]:
    """What came of the changes behind the first, which changes nothing. Where a short step's allocator holds as much as that of the
    unchanged one, the whole step's would hold as much as the report says: its peak is no lower for being short.
    """
    unchanged, *changed = (one.answer for one in came)
    if unchanged is None or not unchanged.reserved:
        return [*came[1:]]
    missed = report.peak_memory - unchanged.peak
    return [
        replace(outcome, answer=one._replace(peak=one.peak + missed)) if one is not None and one.reserved == unchanged.reserved else outcome
        for outcome, one in zip(came[1:], changed, strict=True)
    ]


def variants_with(scenario: Scenario, changes: Sequence[Overrides]) -> list[Variant]:
    """The scenario with each of the changes on top, for `figures`."""
    tree = scenario.document()
    # figures are those of the undisturbed step, but for what breaks something itself
    once = () if scenario.settings.variability.runs == 1 else ("variability.runs=1",)
    lasting = _lasting(scenario)
    whole = ("variability.faults=[]",) if scenario.tree["variability"]["faults"] else ()
    if lasting != scenario.tree["variability"]["slow"]:
        whole = (*whole, f"variability.slow={flow(lasting)}")
    return [Variant(tree, (*whole, *overrides, *once), trust_code=scenario.trust_code) for overrides in changes]


def _lasting(scenario: Scenario) -> list[Any]:
    """Who is slow all the time, as it is written; who is slow for a while belongs to the disturbed step."""
    pairs = zip(scenario.tree["variability"]["slow"], scenario.settings.variability.slow, strict=True)
    return [written for written, one in pairs if one.lasting]


def _answer(change: Change, came: Outcome[Figures], report: Report) -> WhatIf:
    if came.answer is None:
        return WhatIf(change, came, 0.0, 0.0)
    step = came.answer.seconds_per_sample * report.measured.model.samples_per_step
    return WhatIf(change, came, step, step / report.step_time - 1.0)


def changes(scenario: Scenario, report: Report) -> Iterator[Change]:
    """The questions worth asking of a scenario, besides `slow_rank`."""
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
    yield from _lost_nic(built, report)


def slow_rank(scenario: Scenario, rank: int, speed: float) -> Iterator[Change]:
    """The rank that costs most when it is slow, or the one that others wait for, at this speed; nothing where it is slow already."""
    if rank not in build(scenario).slow:
        slow = [*_lasting(scenario), {"rank": rank, "speed": speed}]
        known = ", and the batch balanced for it" if scenario.settings.parallel.data.batch_split == "balanced" else ""
        yield Change(f"rank {rank} at {speed:g} of its speed{known}", (f"variability.slow={flow(slow)}",))


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
