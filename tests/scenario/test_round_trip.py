"""What `parsim export` writes for another tool, `parsim import` reads back as the same job: same step, same memory."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.interop.formats import export, import_config
from parsim.interop.import_draft import Given
from parsim.run import simulate
from parsim.scenario import load


@pytest.mark.parametrize(
    ("name", "tool", "given"),
    [
        ("gpt3-22b-8x-a100", "megatron", {}),
        ("llama-7b-zero2-8x-a100", "deepspeed", {"model": "llama-7b", "sequence_length": 2048}),
        ("llama-7b-zero3-8x-a100", "deepspeed", {"model": "llama-7b", "sequence_length": 2048}),
    ],
)
def test_there_and_back(name: str, tool: str, given: dict[str, Any]) -> None:
    scenario = load(name)
    text = export(scenario, tool).text
    imported = import_config(text, f"job.{tool}", Given(on="dgx-a100-80gb", **given))
    back = simulate(imported.tree)
    there = simulate(scenario)
    assert back.step_time == there.step_time
    assert back.peak_memory == there.peak_memory
