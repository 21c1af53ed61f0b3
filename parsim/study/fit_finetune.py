"""What `fit` knows of fine-tuning: offering it where full training does not fit, and the states of a partly frozen model."""

from __future__ import annotations

from parsim.report.report import Report

METHODS = ("lora", "qlora", "freeze")
Candidate = tuple[str, str, tuple[str, ...]]
_FROM = {"full": METHODS[:2], "lora": METHODS[1:2]}
"""what is trained -> cheaper methods that still adapt the whole model"""
_NAMES = {"lora": "LoRA", "qlora": "QLoRA"}


def finetune_candidates(train: str, recompute: tuple[str, ...]) -> list[Candidate]:
    """LoRA and QLoRA instead of what is trained, alone and with full recomputation (`recompute`: its override, or nothing).

    They train other things than what was asked for, so they are a family of their own.
    """
    found: list[Candidate] = []
    for method in _FROM.get(train, ()):
        change = (f"training.finetune.method={method}",)
        found.append((method, f"{_NAMES[method]} (rank 16, all linear layers)", change))
        if recompute:
            found.append((method, f"{_NAMES[method]} (rank 16, all linear layers) + full recomputation", (*change, *recompute)))
    return found


def finetune_states(report: Report) -> int | None:
    """Weights, gradients and optimizer state of a rank when all exist [B]; None where everything is trained.

    Resident bytes as the ledger has them, plus a gradient per trained parameter, sharded where the strategy shards gradients.
    """
    measured = report.measured
    recipe = measured.scenario["training"].get("finetune")
    if recipe is None:
        return None
    device = max(measured.memory.devices, key=lambda d: d.device_used_bytes)
    gradient = measured.memory.states.gradient
    sharded = str(measured.scenario["parallel"]["data"]["strategy"]) in ("zero2", "zero3", "fsdp")
    ranks = measured.ranks
    share = ranks.tensor * ranks.pipeline * (ranks.data * ranks.context if sharded else 1)
    if measured.scenario["training"]["offload"]["optimizer"] != "none":
        gradient = 0  # gone to the host
    resident = sum(device.resident_bytes.get(name, 0) for name in ("parameters", "optimizer"))
    return resident + round(gradient * measured.model.parameters_trainable / share)
