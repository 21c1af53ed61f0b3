"""What `fit` is asked: the scenario that a question stands for, and which changes of it may help where something does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.values import did_you_mean

Tree = dict[str, Any]
_SEQUENCE = 2048
"""tokens of a sample of a model that any number fits"""
LONGEST = 8192
"""tokens of a sample that nobody gave: models for longer contexts are trained with so many before they are extended"""
STATES = ("parameters", "gradients", "optimizer")
WORDS = (*STATES, "activations", "all")
PLACES = ("cpu", "nvme")
METHODS = ("lora", "qlora", "freeze")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")


@dataclass(frozen=True)
class FitQuestion:
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
    nodes: int | None = None
    """None: as many as `gpus` need"""
    sequence_length: int | None = None
    """None: as many tokens as the model has positions for, 8192 at most"""
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
    gpus: int | None = None
    """None: all of the machines"""
    strategy: str | None = None
    """one of `STRATEGIES`, or a stage of ZeRO as a digit; in place of `zero`"""


def scenario_of(question: FitQuestion) -> Tree:
    """The scenario a question stands for, as `--save` writes it."""
    wanted = _strategy(question)
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
    if question.nodes is not None and question.nodes > 1:
        cluster["nodes"] = question.nodes
    if question.host_memory is not None:
        cluster["set"] = {"node": {"host_memory": question.host_memory}}
    tree: Tree = {"model": question.model, "training": training, "parallel": parallel, "cluster": cluster}
    plain = {key: value for key, value in training.items() if key != "offload"}
    probe = {**tree, "training": {"sequence_length": 1, **plain}, "parallel": {**parallel, "data": {"strategy": "ddp"}}}
    try:
        built = build(load(probe))
    except InputError as error:
        if question.sequence_length is not None or {finding.path for finding in error.findings} != {"training.sequence_length"}:
            raise
        del probe["training"]["sequence_length"]  # a model of images has none
        built = build(load(probe))
    if question.gpus is not None:
        cluster |= cluster_size(question.on, built.cluster.gpus_per_node, question.nodes, question.gpus)
        built = build(load(probe))
    if built.model.sequence and question.sequence_length is None:
        training["sequence_length"] = min(LONGEST, built.model.maximum_sequence or _SEQUENCE)
    several = built.parallelism.data.size > 1
    wants_three = training.get("offload", {}).get("parameters", "none") != "none"
    usual = "fsdp" if spread else "zero3"  # DeepSpeed's ZeRO-3 has no spread experts
    parallel["data"] = {"strategy": (wanted or usual) if several or wants_three else "none"}
    return tree


def _strategy(question: FitQuestion) -> str | None:
    """The strategy that is asked for; None: the usual one.

    Raises:
        ScenarioError: there is no such strategy.
    """
    asked = question.strategy if question.strategy is not None else None if question.zero is None else str(question.zero)
    if asked is None or asked in STRATEGIES:
        return asked
    if asked not in ("0", "1", "2", "3"):
        hint = did_you_mean(asked, STRATEGIES) or f"choose from {', '.join(STRATEGIES)}"
        raise ScenarioError(Finding(f"there is no strategy {asked!r}", "--strategy", asked, hint))
    return STRATEGIES[int(asked)]


def cluster_size(on: str, each: int, nodes: int | None, gpus: int) -> dict[str, int]:
    """The keys of `cluster` that say how many GPUs there are: machines with `each` of them, all but those that are idle.

    Raises:
        ScenarioError: the machines do not give so many.
    """
    machines = nodes or -(-gpus // each)
    if gpus > machines * each:
        text = f"{machines} x {on} = {machines * each} GPUs, not {gpus}"
        raise ScenarioError(Finding(text, "--gpus", gpus, f"write --nodes {-(-gpus // each)}"))
    return ({"nodes": machines} if machines > 1 else {}) | ({"gpus": gpus} if gpus < machines * each else {})


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
