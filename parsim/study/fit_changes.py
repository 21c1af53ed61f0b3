"""Changes of a question of `fit` that may help where something does not fit: first single ones, then two together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.report.report import Report
from parsim.scenario.files import find, names, read, read_text
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold
from parsim.study.fit_question import METHODS, FitQuestion, Tree

Candidate = tuple[str, str, tuple[str, ...]]
"""(family, change in words, overrides); of a family no two rows of nearly the same price are shown"""
FULL = ("training.recompute=full",)
SELECTIVE = ("training.recompute=selective",)
_DEVICES = ("a100-sxm-40gb", "l40s", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "mi300x")
_FROM = {"full": METHODS[:2], "lora": METHODS[1:2]}
"""what is trained -> cheaper methods that still adapt the whole model"""
_NAMES = {"lora": "LoRA", "qlora": "QLoRA"}
_TENSOR = (2, 4, 8)
_PIPELINE = (2, 4, 8)


def single_changes(question: FitQuestion, tree: Tree, report: Report) -> list[Candidate]:
    """Changes of one thing, of recipe or strategy, on the GPUs at hand."""
    candidates: list[Candidate] = []
    if question.recompute in (None, "none", "false"):
        candidates.append(("recomputation", "selective recomputation", SELECTIVE))
    if recomputed(question):
        candidates.append(("recomputation", "full recomputation", FULL))
    if question.micro_batch > 1:
        candidates.append(("micro-batch", "micro-batch 1", ("training.micro_batch=1",)))
    if question.zero is not None and question.zero < 3:
        stages = range(question.zero + 1, 4)
        candidates += [("sharding", f"ZeRO-{stage}", (f"parallel.data.strategy=zero{stage}",)) for stage in stages]
    candidates += parallel_candidates(question, tree, report)
    if question.optimizer is None:
        candidates.append(("states", "8-bit Adam", ("training.optimizer=adam-8bit",)))
    candidates += [one for one in offload_candidates(tree, ()) if one[0] == "offload"]
    return candidates


def double_changes(question: FitQuestion, tree: Tree, report: Report) -> list[Candidate]:
    """Changes of two things and more, on the GPUs at hand."""
    again = recomputed(question)
    more = " + full recomputation" if again else ""
    candidates: list[Candidate] = []
    if again:
        candidates += [
            (family, f"{words}{more}", (*change, *again)) for family, words, change in parallel_candidates(question, tree, report)
        ]
    if question.micro_batch > 1:
        candidates.append(("micro-batch", f"micro-batch 1{more}", ("training.micro_batch=1", *again)))
    if question.zero is not None and question.zero < 3:
        candidates.append(("sharding", f"ZeRO-3{more}", ("parallel.data.strategy=zero3", *again)))
    if question.optimizer is None:
        candidates.append(("states", f"8-bit Adam{more}", ("training.optimizer=adam-8bit", *again)))
        candidates.append(("states", f"Adafactor{more}", ("training.optimizer=adafactor", *again)))
    if question.precision is None:
        candidates.append(("states", f"pure bf16 states (2+2+4 B/parameter){more}", ("training.precision=pure-bf16", *again)))
    candidates += offload_candidates(tree, again)
    half = tree["training"].get("sequence_length", 0) // 2
    if half >= 128:
        candidates.append(("sequence", f"sequence {half}{more}", (f"training.sequence_length={half}", *again)))
    return candidates


def recomputed(question: FitQuestion) -> tuple[str, ...]:
    """The override for full recomputation; nothing where the question has it."""
    return () if question.recompute in ("full", "true") else FULL


def parallel_candidates(question: FitQuestion, tree: Tree, report: Report) -> list[Candidate]:
    """Wider tensor and pipeline parallelism inside and across the machines, with as many samples per step as before."""
    ranks = report.measured.ranks
    if question.expert > 1 or question.expert_tensor is not None:
        return []
    each = ranks.total // ranks.nodes
    strategy = tree["parallel"]["data"]["strategy"]
    candidates: list[Candidate] = []
    for size in _TENSOR:
        if question.tensor < size <= each and ranks.total % (size * question.pipeline) == 0:
            words = f"tensor parallelism over {size} GPUs"
            candidates.append(("tensor", words, _parallel(question, tree, report, size, question.pipeline, strategy)))
    widest = max((size for size in _TENSOR if size <= each), default=1)
    for tensor in dict.fromkeys((question.tensor, max(question.tensor, widest))):
        for size in _PIPELINE:
            if question.pipeline < size and ranks.total % (size * tensor) == 0:
                words = f"{size} pipeline stages" + (f" x {tensor} tensor-parallel GPUs" if tensor > question.tensor else "")
                candidates.append(("pipeline", words, _parallel(question, tree, report, tensor, size, strategy)))
    return candidates


def _parallel(question: FitQuestion, tree: Tree, report: Report, tensor: int, pipeline: int, strategy: str) -> tuple[str, ...]:
    """Overrides for these sizes; a pipeline shards the optimizer's states only, as stacks with one do."""
    more = tensor * pipeline // (question.tensor * question.pipeline)
    replicas = report.measured.ranks.total // (tensor * pipeline)
    overrides = [f"training.gradient_accumulation={more * tree['training']['gradient_accumulation']}"]
    if tensor > question.tensor:
        overrides += [f"parallel.tensor.size={tensor}", "parallel.tensor.sequence_parallel=true"]
    if pipeline > question.pipeline:
        overrides.append(f"parallel.pipeline.size={pipeline}")
        strategy = "zero1" if strategy in ("zero2", "zero3", "fsdp") else strategy
    wanted = strategy if replicas > 1 else "none"
    if wanted != tree["parallel"]["data"]["strategy"]:
        overrides.append(f"parallel.data.strategy={wanted}")
    return tuple(overrides)


def more_gpus(question: FitQuestion, present: int, each: int = 0) -> list[Candidate]:
    """More GPUs of the kind of the `present` ones (in machines that hold `each`): a larger box, a shipped machine."""
    count, device = _box(question.on)
    machines = _machines(device) if device else {}
    candidates: list[Candidate] = []
    for label, extra in (("", ()), (" + full recomputation", ("training.recompute=full",))):
        for factor in (2, 4, 8):
            if not device and question.gpus is not None and each:
                wanted = present * factor
                overrides = (f"cluster.nodes={-(-wanted // each)}", f"cluster.gpus={wanted}", *extra)
                candidates.append((f"nodes{label}", f"{wanted} GPUs of {question.on}{label}", overrides))
            elif not device:
                nodes = (question.nodes or 1) * factor
                candidates.append((f"nodes{label}", f"{nodes} nodes of {question.on}{label}", (f"cluster.nodes={nodes}", *extra)))
            elif count * factor <= 8 and oversold({"gpu": device, "count": count * factor}, None) is None:
                box = f"{count * factor}x {device}"
                candidates.append((f"box{label}", f"{box}{label}", (f"cluster.topology={box}", *extra)))
        for name, gpus in machines.items():
            for nodes in (1, 2, 4):
                if nodes * gpus > present:
                    overrides = (f"cluster.topology={name}", f"cluster.nodes={nodes}", *extra)
                    candidates.append((f"{name}{label}", f"{nodes} x {name}{label}", overrides))
    return candidates


def _machines(device: str) -> dict[str, int]:
    """Shipped topologies whose machines hold the device, several GPUs each, with their number."""
    stem = find("devices", device).stem
    paths = {name: find("topologies", name) for name in names("topologies")}
    trees = {name: read(path).tree.get("node", {}) for name, path in paths.items() if stem in read_text(path)}
    return {name: node["gpus"] for name, node in trees.items() if node.get("device") == stem and node.get("gpus", 1) > 1}


def other_devices(report: Report) -> list[Candidate]:
    """As many GPUs of kinds with more memory, the smallest first."""
    total = report.measured.ranks.total
    return [
        ("device", f"{total}x {name}", (f"cluster.topology={total}x {name}",))
        for name in _DEVICES
        if total <= 16 and oversold({"gpu": name, "count": total}, None) is None
    ]


def _box(on: str) -> tuple[int, str]:
    """``4x v100-32gb`` -> (4, "v100-32gb"); a topology's name -> (0, "")."""
    machine = box(on)
    return (machine["count"], machine["gpu"]) if machine is not None else (0, "")


def finetune_candidates(train: str, recompute: tuple[str, ...]) -> list[Candidate]:
    """LoRA and QLoRA instead of what is trained, alone and with full recomputation (`recompute`: its override, or nothing).

    They train other things than what was asked for, so they are a family of their own.
    """
    candidates: list[Candidate] = []
    for method in _FROM.get(train, ()):
        change = (f"training.finetune.method={method}",)
        candidates.append((method, f"{_NAMES[method]} (rank 16, all linear layers)", change))
        if recompute:
            candidates.append((method, f"{_NAMES[method]} (rank 16, all linear layers) + full recomputation", (*change, *recompute)))
    return candidates


def offload_candidates(tree: Mapping[str, Any], recompute: tuple[str, ...]) -> list[Candidate]:
    """(family, change, overrides) of offloads that go further than what the question has already."""
    training = tree["training"]
    present = training.get("offload", {})
    name = training.get("optimizer", "adamw")
    if name not in ("adam", "adamw", "lion"):
        return []
    optimizer = "training.offload.optimizer=cpu"
    everything = ("parallel.data.strategy=zero3", optimizer, "training.offload.parameters=cpu")
    checkpoints = () if "training.recompute=full" not in recompute else recompute
    stored = (*checkpoints, "training.offload.activations=cpu") if checkpoints or training.get("recompute") == "full" else ()
    candidates = []
    if "optimizer" not in present:
        whole = tree["parallel"]["data"]["strategy"] == "ddp"
        stage = ("parallel.data.strategy=zero2",) if whole else ()
        words = "optimizer in host memory" if not whole else "ZeRO-2 with the optimizer in host memory"
        candidates.append(("offload", words, (*stage, optimizer)))
        if recompute:
            candidates.append(("offload", f"{words} + full recomputation", (*stage, optimizer, *recompute)))
    if "parameters" not in present:
        candidates.append(
            ("offload", "ZeRO-3 with parameters and optimizer in host memory + full recomputation", (*everything, *recompute))
        )
    if stored and "activations" not in present:
        candidates.append(("offload", "ZeRO-3 with states and checkpoints in host memory", (*everything, *stored)))
    if "nvme" not in present.values():
        drives = tuple(item.replace("=cpu", "=nvme") for item in everything)
        candidates.append(("drives", "ZeRO-3 with parameters and optimizer on drives + full recomputation", (*drives, *recompute)))
    return candidates
