"""What `fit` is asked: the scenario that a question stands for, and which changes of it may help where something does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.report.report import Report
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.files import find, names, read, read_text
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold

Tree = dict[str, Any]
Candidate = tuple[str, str, tuple[str, ...]]
"""(family, change in words, overrides); once enough of a family fit, the rest of it is not tried"""
_SEQUENCE = 2048
_DEVICES = ("a100-sxm-40gb", "l40s", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "mi300x")
STATES = ("parameters", "gradients", "optimizer")
WORDS = (*STATES, "activations", "all")
PLACES = ("cpu", "nvme")
METHODS = ("lora", "qlora", "freeze")
_FROM = {"full": METHODS[:2], "lora": METHODS[1:2]}
"""what is trained -> cheaper methods that still adapt the whole model"""
_NAMES = {"lora": "LoRA", "qlora": "QLoRA"}


@dataclass(frozen=True)
class Question:
    """What the user asks; fields are the command line's options."""

    model: str
    on: str
    """a cluster: ``4x v100-32gb``, a topology's name or path"""
    train: str = "full"
    """full | lora | qlora | freeze"""
    zero: int | None = None
    """None: ZeRO-3 on several GPUs (what needs least memory without changing the mathematics), FSDP with spread experts, nothing on one"""
    tensor: int = 1
    pipeline: int = 1
    nodes: int = 1
    sequence_length: int | None = None
    """None: 2048 tokens, or as many as the model has positions for"""
    micro_batch: int = 1
    precision: str | None = None
    optimizer: str | None = None
    recompute: str | None = None
    offload: str | None = None
    """what goes to the host (see `parsim.study.offload`); None: nothing"""
    host_memory: str | None = None
    """of a machine; None: what the topology says"""
    expert: int = 1
    """ranks over which the experts of a layer are spread"""
    expert_tensor: int | None = None
    """ranks that share the width of an expert; None: what the stack does"""


def scenario_of(question: Question) -> Tree:
    """The scenario a question stands for, as `--save` writes it."""
    parallel: Tree = {}
    if question.tensor > 1:
        parallel["tensor"] = {"size": question.tensor}
    if question.pipeline > 1:
        parallel["pipeline"] = {"size": question.pipeline}
    if (spread := question.expert > 1) or question.expert_tensor is not None:
        width = {} if question.expert_tensor is None else {"tensor": question.expert_tensor}
        parallel["expert"] = {"size": question.expert, **width}
        if question.tensor > 1:  # every rank sends tokens of its own
            parallel["tensor"]["sequence_parallel"] = True
    training: Tree = {"micro_batch": question.micro_batch, "gradient_accumulation": 1}
    if question.sequence_length is not None:
        training["sequence_length"] = question.sequence_length
    if question.pipeline > 1:
        training["gradient_accumulation"] = question.pipeline
    for key in ("precision", "optimizer", "recompute"):
        if (value := getattr(question, key)) is not None:
            training[key] = value
    if question.offload is not None:
        training |= offload_settings(question.offload, question.recompute)
    if question.train not in ("full", *METHODS):
        text = f"cannot train {question.train!r}"
        raise ScenarioError(Finding(text, "--train", question.train, f"one of full, {', '.join(METHODS)}"))
    if question.train != "full":
        training["finetune"] = {"method": question.train}
    cluster: Tree = {"topology": question.on}
    if question.nodes > 1:
        cluster["nodes"] = question.nodes
    if question.host_memory is not None:
        cluster["set"] = {"node": {"host_memory": question.host_memory}}
    tree: Tree = {"model": question.model, "training": training, "parallel": parallel, "cluster": cluster}
    if question.zero not in (None, 0, 1, 2, 3):
        raise ScenarioError(Finding(f"ZeRO has stages 0 to 3, not {question.zero}", "--zero", question.zero, "0 is plain DDP"))
    plain = {key: value for key, value in training.items() if key != "offload"}
    probe = {**tree, "training": {"sequence_length": 1, **plain}, "parallel": {**parallel, "data": {"strategy": "ddp"}}}
    built = build(load(probe))
    if built.model.sequence and question.sequence_length is None:
        training["sequence_length"] = min(_SEQUENCE, built.model.maximum_sequence or _SEQUENCE)
    several = built.parallelism.data.size > 1
    wants_three = training.get("offload", {}).get("parameters", "none") != "none"
    strategy = f"zero{3 if question.zero is None else question.zero}" if several or wants_three else "none"
    if strategy == "zero3" and question.zero is None and spread:
        strategy = "fsdp"  # DeepSpeed's ZeRO-3 has no spread experts
    parallel["data"] = {"strategy": "ddp" if strategy == "zero0" else strategy}
    return tree


def offload_settings(text: str, recompute: str | None) -> dict[str, Any]:
    """The training settings of ``optimizer``, ``optimizer:nvme,parameters``, ``all``, or a place alone (``cpu``: the optimizer).

    Parameters take the optimizer with them, as DeepSpeed demands; activations need checkpoints, so layers are recomputed
    unless the question says how.
    """
    chosen: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")):
        word, _, where = part.partition(":")
        if word in PLACES and not where:
            word, where = "optimizer", word
        where = where or "cpu"
        if word not in WORDS or where not in PLACES:
            hint = f"one of {', '.join(WORDS)}, with :nvme for drives; for example optimizer,parameters"
            raise ScenarioError(Finding(f"cannot offload {part!r}", "--offload", text, hint))
        for name in ("parameters", "optimizer", "activations") if word == "all" else (word,):
            chosen[name] = "cpu" if name == "activations" and word == "all" else where
    if "parameters" in chosen:
        chosen.setdefault("optimizer", chosen["parameters"])
    settings: dict[str, Any] = {"offload": chosen}
    if "activations" in chosen and recompute is None:
        settings["recompute"] = "full"
    return settings


# -- changes that may help ------------------------------------------------------------------------------------------


def same_hardware(question: Question, tree: Tree) -> list[Candidate]:
    """Changes of recipe and strategy on the GPUs at hand."""
    recompute = () if question.recompute in ("full", "true") else ("training.recompute=full",)
    eight_bit = ("training.optimizer=adam-8bit",)
    candidates: list[Candidate] = []
    if recompute:
        candidates.append(("recipe", "full recomputation", recompute))
    if question.micro_batch > 1:
        candidates.append(("recipe", "micro-batch 1", ("training.micro_batch=1",)))
        candidates.append(("recipe", "micro-batch 1 + full recomputation", ("training.micro_batch=1", *recompute)))
    if question.zero is not None and question.zero < 3:
        candidates += [("recipe", f"ZeRO-{stage}", (f"parallel.data.strategy=zero{stage}",)) for stage in range(question.zero + 1, 4)]
        candidates.append(("recipe", "ZeRO-3 + full recomputation", ("parallel.data.strategy=zero3", *recompute)))
    if question.optimizer is None:
        candidates.append(("recipe", "8-bit Adam", eight_bit))
        candidates.append(("recipe", "8-bit Adam + full recomputation", (*eight_bit, *recompute)))
        candidates.append(("recipe", "Adafactor + full recomputation", ("training.optimizer=adafactor", *recompute)))
    if question.precision is None:
        candidates.append(
            ("recipe", "pure bf16 states (2+2+4 B/parameter) + full recomputation", ("training.precision=pure-bf16", *recompute))
        )
    candidates += offload_candidates(tree, recompute)
    half = tree["training"].get("sequence_length", 0) // 2
    if half >= 128:
        candidates.append(("recipe", f"sequence length {half} + full recomputation", (f"training.sequence_length={half}", *recompute)))
    return candidates


def more_gpus(question: Question, present: int) -> list[Candidate]:
    """More GPUs of the same kind than the `present` ones: a larger box, or a shipped machine with this device, in growing numbers."""
    count, device = _box(question.on)
    machines = _machines(device) if device else {}
    candidates: list[Candidate] = []
    for label, extra in (("", ()), (" + full recomputation", ("training.recompute=full",))):
        for factor in (2, 4, 8):
            if not device:
                nodes = question.nodes * factor
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
