"""Llama 2 70B: GPU-hours, energy and cost against what Meta published (Touvron et al. 2023, arXiv 2307.09288, table 2)."""

from __future__ import annotations

import pytest

from parsim.run import simulate
from parsim.scenario import files, load

FILE = files.home("scenarios") / "llama-2-70b-2t-2048x-a100.yaml"
PUBLISHED = 1_720_320
"""GPU-hours of 400 W, all time included"""
AT_TDP = tuple(f"economics.gpu_power.{state}=1" for state in ("computing", "communicating", "waiting"))


def test_hours_and_money() -> None:
    """6 % fewer hours: the strategy is not published, and the 35 days of 2,048 GPUs include whatever went wrong."""
    document = simulate(FILE).document()
    assert document["gpu_hours"] / PUBLISHED == pytest.approx(0.940, abs=0.002)
    assert document["time_to_train_s"] / 86_400 == pytest.approx(32.9, abs=0.1)
    assert document["steps_to_train"] == 476_838  # 2e12 / (1024 x 4096), rounded up
    assert document["cost_to_train"] == pytest.approx(2.0 * document["gpu_hours_billed"])
    assert document["cost"]["parts_to_train"] == {"rent": document["cost_to_train"]}
    assert document["gpu_hours"] == document["gpu_hours_billed"]


def test_boards_at_tdp_are_the_energy_of_the_model_card() -> None:
    """GPU-hours x 400 W: what the card multiplies, without machines and building."""
    document = simulate(FILE, *AT_TDP, "economics.node_power=0 W", "economics.pue=1").document()
    assert document["energy_J"] == pytest.approx(document["gpu_hours"] * 3600 * 400, rel=1e-9)
    assert document["economics"]["gpu_power_W"] == pytest.approx(400)


def test_bought_machines_cost_less_than_half_of_the_rent() -> None:
    """150,000 USD a node over four years at 80 %, and 0.08 USD per kWh: 0.72 instead of 2.00 USD per GPU-hour."""
    document = simulate(load(FILE, named=["bought"])).document()
    per_hour = 150_000 / 8 / (4 * 365.25 * 24 * 0.8)
    energy = document["energy_J"] / 3.6e6 * 0.08
    assert document["cost"]["parts_to_train"] == pytest.approx({"hardware": per_hour * document["gpu_hours"], "energy": energy})
    assert document["cost"]["per_gpu_hour"] == pytest.approx(0.72, abs=0.005)


@pytest.mark.slow
def test_deepseek_v3() -> None:
    """DeepSeek-AI 2024, arXiv 2412.19437, table 1 and section 4.2: 2.664 M GPU-hours for 14.8e12 tokens, 15,360 sequences a step.

    9.4 % fewer, without the module that predicts a second token (4 % of the work), without restarts, with even routing.
    """
    document = simulate(load(files.home("scenarios") / "deepseek-v3-2048x-h800.yaml", named=["dualpipe"])).document()
    assert document["gpu_hours"] / 2_664_000 == pytest.approx(0.906, abs=0.003)
