"""Scenarios that the tests of the exporters share."""

from __future__ import annotations

from typing import Any

from parsim.interop.formats import Exported, export
from parsim.scenario import load

GPT: dict[str, Any] = {
    "name": "a GPT",
    "model": {"family": "megatron-gpt", "layers": 48, "hidden": 8192, "heads": 64, "vocabulary": 50257, "maximum_sequence": 2048},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 8},
    "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 128},
    "parallel": {"tensor": {"size": 8, "sequence_parallel": True}, "pipeline": {"size": 4}, "data": {"strategy": "zero1"}},
    "software": {"profile": "megatron-core"},
}
LLAMA: dict[str, Any] = {
    "name": "a Llama",
    "model": "llama-2-7b",
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
    "training": {"sequence_length": 2048, "micro_batch": 2, "gradient_accumulation": 4},
    "parallel": {"data": {"strategy": "fsdp"}},
}


def exported(base: dict[str, Any], to: str, *overrides: str, version: int = 2) -> Exported:
    """`base` with overrides, exported."""
    return export(load(base, *overrides), to, fsdp_version=version)


def arguments(script: str) -> list[str]:
    """The arguments of a bash script, without torchrun's."""
    body = script.partition("MODEL_ARGS=(")[2]
    return [line.strip() for line in body.splitlines() if line.startswith("    ")]


def notes(result: Exported) -> dict[str, str]:
    """Key -> what the exporter remarked about it."""
    return {note.path: note.message for note in result.notes}
