"""The answer of `fit` as text: verdict, one bar per class of GPUs, what would help, the inverse, the formulas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from parsim.report.measured import DeviceMemory, MemoryFacts, RankClass
from parsim.report.report import Report
from parsim.report.variability_text import left_out
from parsim.study.fit import Alternative, FitAnswer, LargestFit, formulas
from parsim.units import format_bytes, format_time

HEAD = "what would fit; times against the simulated step above, as if it fitted"
NONE = "none of the changes tried fits; more or larger GPUs are needed"
_WIDTH = 48
_STRATEGIES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp": "FSDP"}
_LETTERS = {
    "parameters": "P",
    "gradients": "G",
    "optimizer": "O",
    "activations": "A",
    "buffers": "B",
    "temporaries": "T",
    "workspace": "W",
    "context": "C",
    "communicators": "N",
    "fragmentation": "f",
}


def text(answer: FitAnswer, *, explain: bool = False) -> str:
    """The whole answer."""
    parts = [verdict(answer), *([maximum(answer.maximum)] if answer.maximum is not None else [])]
    if not answer.fits:
        parts.append("\n".join([HEAD, *map(alternative_line, answer.alternatives)]) if answer.alternatives else NONE)
    if explain:
        parts.append(explanation(answer))
    return "\n\n".join(parts)


def verdict(answer: FitAnswer) -> str:
    """Yes or no, one bar per class of GPUs, and the facts."""
    return "\n".join([*_verdict(answer), "", *_bars(answer.report), "", *_facts(answer)])


def explanation(answer: FitAnswer) -> str:
    """The formulas with this question's numbers."""
    return "\n".join(["how these numbers come about", *(f"  {name:<12} {formula}" for name, formula in formulas(answer.report))])


def document(answer: FitAnswer) -> dict[str, Any]:
    """The answer as one JSON document; `report` is the run's own."""
    largest = answer.maximum
    return {
        "parsim": 1,
        "fits": answer.fits,
        "scenario": answer.tree,
        "report": answer.report.document(),
        "alternatives": [
            {
                "change": a.change,
                "overrides": list(a.overrides),
                "peak_bytes": a.memory.peak_bytes,
                "step_time_s": a.step_time,
                "slowdown": a.slowdown,
            }
            for a in answer.alternatives
        ],
        "refused": list(answer.refused),
        "complete": answer.complete,
        "maximum": None
        if largest is None
        else {
            "what": largest.what,
            "value": largest.value,
            "parameters": largest.fits.measured.model.parameters,
            "peak_bytes": largest.fits.peak_memory,
            "next_peak_bytes": None if largest.exceeds is None else largest.exceeds.peak_memory,
            "limit": largest.limit,
        },
    }


def yaml(answer: FitAnswer) -> str:
    """The question's configuration as a scenario file."""
    tree = {"name": f"{answer.question.model} on {answer.question.on}", **answer.tree}
    return "\n".join(["# made by parsim fit", *yaml_lines(tree, 0), ""])


def yaml_lines(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Nested mappings of plain scalars, all that a question's scenario has; JSON scalars are YAML."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{'  ' * depth}{key}:" if value else f"{'  ' * depth}{key}: {{}}"
            yield from yaml_lines(value, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {json.dumps(value, ensure_ascii=False)}"


def _verdict(answer: FitAnswer) -> Iterator[str]:
    report = answer.report
    device = _fullest(report)
    states = sum(device.resident_bytes.get(name, 0) for name in ("parameters", "optimizer")) + device.at_peak["gradients"]
    capacity = report.measured.memory.capacity_bytes
    word = "yes" if answer.fits else "no"
    need = format_bytes(device.device_used_bytes, decimal=True)
    lacking = report.measured.memory.host if report.host_lacks else None
    host = f", and host memory: {_host(report.measured.memory)}" if lacking is not None else ""
    yield asked(answer)
    yield f"{word}: {'fits' if answer.fits else 'does not fit'}, needs {need} of {format_bytes(capacity)} per GPU{host}"
    strategy = answer.tree["parallel"]["data"]["strategy"]
    alone = f"model states alone: {format_bytes(_states(report))} per GPU of about {format_bytes(capacity)} ({strategy})"
    yield f"{alone}; {format_bytes(states)} live at the peak"


def asked(answer: FitAnswer) -> str:
    """The question in a line, with what the user did not say: model, cluster, sequence, micro-batch, recomputation, types, strategy."""
    written, ranks = answer.report.measured.scenario, answer.report.measured.ranks
    training, parallel = written["training"], answer.tree["parallel"]
    machines = f"{ranks.nodes} x {answer.question.on}" if ranks.nodes > 1 else answer.question.on
    if ranks.idle_gpus or (ranks.nodes == 1 and not answer.question.on[:1].isdigit()):
        machines = f"{ranks.total} GPU{'s' if ranks.total > 1 else ''} of {machines}"
    elif ranks.nodes > 1:
        machines += f" = {ranks.total} GPUs"
    length = training["sequence_length"]
    assumed = {one.name: one.value for one in answer.report.measured.assumptions}
    recompute = {"none": "no recomputation", "full": "full recomputation", "selective": "selective recomputation"}
    sizes = [
        f"{words} {size}" for words, size in (("tensor", ranks.tensor), ("pipeline", ranks.pipeline), ("expert", ranks.expert)) if size > 1
    ]
    strategy = _STRATEGIES.get(parallel["data"]["strategy"], str(parallel["data"]["strategy"]))
    parts = [
        *([f"sequence {length}"] if length else []),
        f"micro-batch {training['micro_batch']}",
        recompute.get(str(training["recompute"]), f"recomputation {training['recompute']}"),
        str(answer.tree["training"].get("precision") or assumed.get("precision") or training["precision"]),
        *sizes,
        f"{strategy} over {ranks.data} GPUs" if ranks.data > 1 else "one replica",
    ]
    return f"{answer.question.model} on {machines}: {', '.join(parts)}"


def _states(report: Report) -> int:
    """Weights, gradients and optimizer state on a device when all exist [B], from the sum per parameter."""
    if (states := _finetune_states(report)) is not None:
        return states
    measured = report.measured
    sizes = measured.memory.states
    strategy = str(measured.scenario["parallel"]["data"]["strategy"])
    parameters = measured.model.parameters / (measured.ranks.tensor * measured.ranks.pipeline)
    weight, gradient, rest = sizes.weight, sizes.gradient, sizes.master + sizes.optimizer
    n = measured.ranks.data * measured.ranks.context
    away = measured.scenario["training"]["offload"]
    weight = weight if away["parameters"] == "none" else 0
    gradient, rest = (gradient, rest) if away["optimizer"] == "none" else (0, 0)
    sharded = {"zero1": (1, 1, n), "zero2": (1, n, n), "zero3": (n, n, n), "fsdp": (n, n, n)}.get(strategy, (1, 1, 1))
    return round(parameters * (weight / sharded[0] + gradient / sharded[1] + rest / sharded[2]))


def _finetune_states(report: Report) -> int | None:
    """Weights, gradients and optimizer state of a rank when all exist [B]; None where everything is trained.

    Resident bytes as the ledger has them, plus a gradient per trained parameter, sharded where the strategy shards gradients.
    """
    measured = report.measured
    recipe = measured.scenario["training"].get("finetune")
    if recipe is None:
        return None
    device = _fullest(report)
    gradient = measured.memory.states.gradient
    sharded = str(measured.scenario["parallel"]["data"]["strategy"]) in ("zero2", "zero3", "fsdp")
    ranks = measured.ranks
    share = ranks.tensor * ranks.pipeline * (ranks.data * ranks.context if sharded else 1)
    if measured.scenario["training"]["offload"]["optimizer"] != "none":
        gradient = 0  # gone to the host
    resident = sum(device.resident_bytes.get(name, 0) for name in ("parameters", "optimizer"))
    return resident + round(gradient * measured.model.parameters_trainable / share)


def _fullest(report: Report) -> DeviceMemory:
    return max(report.measured.memory.devices, key=lambda device: device.device_used_bytes)


def _bars(report: Report) -> Iterator[str]:
    """One bar per class of ranks; the bracket ends at the capacity."""
    memory = report.measured.memory
    classes: dict[int, RankClass] = {group.rank: group for group in report.measured.classes}
    scale = max(memory.capacity_bytes, *(device.device_used_bytes for device in memory.devices)) / _WIDTH
    used = {name for device in memory.devices for name, size in device.at_peak.items() if size > scale / 2}
    for device in memory.devices:
        bar = ""
        passed = 0.0
        for name, letter in _LETTERS.items():
            passed += device.at_peak.get(name, 0)
            bar += letter * (round(passed / scale) - len(bar))
        edge = round(memory.capacity_bytes / scale)
        bar = bar.ljust(_WIDTH, "·")
        drawn = f"[{bar[:edge]}]{bar[edge:].rstrip('·')}"
        yield f"  GPU {classes[device.rank].ranks:<8} {drawn}  {format_bytes(device.device_used_bytes)}"
    legend = ", ".join(f"{letter} {name}" for name, letter in _LETTERS.items() if name in used)
    yield f"  {legend}; ] = capacity {format_bytes(memory.capacity_bytes)}"


def _facts(answer: FitAnswer) -> Iterator[str]:
    report = answer.report
    memory = report.measured.memory
    device = _fullest(report)
    yield f"bytes per parameter  {memory.bytes_per_parameter} (weight + gradient + master + optimizer)"
    model = report.measured.model
    if model.parameters_trainable != model.parameters:
        share = 100 * model.parameters_trainable / model.parameters
        yield f"parameters trained   {model.parameters_trainable:,} of {model.parameters:,} ({share:.3g} %)"
    yield f"peak                 {format_bytes(device.device_used_bytes)} at {device.peak_op or 'the start of the step'}"
    yield f"at checkpoint save   {format_bytes(memory.at_save_bytes or 0)} per GPU"
    yield f"host memory          {_host(memory)}"
    said, simulated = report.headline, format_time(report.step_time)
    step = f"{format_time(report.estimate.step_time_s)} (simulated {simulated})" if report.estimate.of == "bands" else simulated
    yield f"step                 {step}"
    yield f"confidence           [{said.badge}] {said.band}"
    yield from left_out(report.measured)


def _host(memory: MemoryFacts) -> str:
    """Host memory of the fullest node, of how much."""
    host = memory.host
    if host is None:
        return f"{format_bytes(memory.host_bytes)} used by the strategy (nothing is offloaded)"
    known = (
        "how much a node has is unknown: add --host-memory" if host.capacity_bytes is None else f"of {format_bytes(host.capacity_bytes)}"
    )
    short = "" if host.headroom is None or host.headroom >= 0 else ": too little"
    drives = f", {format_bytes(host.nvme_bytes)} on drives" if host.nvme_bytes else ""
    return f"{format_bytes(host.bytes)} per node ({known}){short}{drives}"


def maximum(largest: LargestFit) -> str:
    """The inverse: the largest value that fits, and why the next one does not."""
    parameters = f" = {largest.fits.measured.model.parameters:,} parameters" if largest.what == "parameters" else ""
    name = "layers" if largest.what == "parameters" else largest.what
    why = f": {largest.limit}" if largest.exceeds is None else f" does not fit ({format_bytes(largest.exceeds.peak_memory)})"
    fits = f"largest {name}: {largest.value}{parameters} ({format_bytes(largest.fits.peak_memory)})"
    return f"{fits}\n  {largest.value + largest.step}{why}"


def alternative_line(alternative: Alternative) -> str:
    """One change, its peak, its price."""
    host = alternative.memory.host
    more = "" if host is None else f", {format_bytes(host.bytes)} of host memory per node"
    peak, step = format_bytes(alternative.memory.peak_bytes), format_time(alternative.step_time)
    return f"  {alternative.change:<56} {peak:>10}  step {step}{_price(alternative)}{more}"


def _price(alternative: Alternative) -> str:
    ratio = alternative.slowdown
    if ratio is None:
        return ""
    what = "token" if alternative.per_token else "sample"
    return f", {ratio:.2f}x the time per {what}" if ratio >= 1 else f", {1 / ratio:.2f}x the {what}s per second"
