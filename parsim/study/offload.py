"""What `fit --offload` means, and which offloads may help where something does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ScenarioError

STATES = ("parameters", "gradients", "optimizer")
WORDS = (*STATES, "activations", "all")
PLACES = ("cpu", "nvme")


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


def offload_candidates(tree: Mapping[str, Any], recompute: tuple[str, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
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
    found = []
    if "optimizer" not in present:
        whole = tree["parallel"]["data"]["strategy"] == "ddp"
        stage = ("parallel.data.strategy=zero2",) if whole else ()
        words = "optimizer in host memory" if not whole else "ZeRO-2 with the optimizer in host memory"
        found.append(("offload", words, (*stage, optimizer)))
        if recompute:
            found.append(("offload", f"{words} + full recomputation", (*stage, optimizer, *recompute)))
    if "parameters" not in present:
        found.append(("offload", "ZeRO-3 with parameters and optimizer in host memory + full recomputation", (*everything, *recompute)))
    if stored and "activations" not in present:
        found.append(("offload", "ZeRO-3 with states and checkpoints in host memory", (*everything, *stored)))
    if "nvme" not in present.values():
        drives = tuple(item.replace("=cpu", "=nvme") for item in everything)
        found.append(("drives", "ZeRO-3 with parameters and optimizer on drives + full recomputation", (*drives, *recompute)))
    return found
