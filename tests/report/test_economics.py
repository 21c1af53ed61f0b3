"""Time, energy and money: exact figures by hand, laws, and published ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.report.economics import HOUR, KWH, METRICS, Bill, Busy, Economics, Power, bill, economics
from parsim.report.goodput import Failures

YEAR = 365.25 * 24
POWER = Power(idle=60.0, tdp=400.0, computing=0.9, communicating=0.5, waiting=0.3, beside=4000.0, pue=1.2)
JOB = Economics(used_gpus=12, billed_gpus=16, nodes=2, steps=1000.0, samples_per_step=64.0, tokens_per_step=64e3, rent=2.0, power=POWER)
STEP, BUSY = 10.0, Busy(computing=7.0, communicating=2.0)


def test_by_hand() -> None:
    """12 of 16 GPUs; 10 s of which 7 s compute, 2 s communicate, 1 s waits: 60 + 340 x (0.63 + 0.1 + 0.03) = 318.4 W a GPU."""
    found = bill(JOB, STEP, BUSY)
    assert found.gpu_power == pytest.approx(60 + 340 * (0.9 * 0.7 + 0.5 * 0.2 + 0.3 * 0.1))
    watts = (12 * 318.4 + 4 * 60 + 4000) * 1.2
    assert found.power == pytest.approx(watts)
    assert found.energy_per_step == pytest.approx(watts * 10)
    assert found.energy_to_train == pytest.approx(watts * 1e4)
    assert found.energy_per_token == pytest.approx(watts * 10 / 64e3)
    assert found.time_to_train == 1e4
    assert found.gpu_hours == pytest.approx(12e4 / HOUR)
    assert found.gpu_hours_billed == pytest.approx(16e4 / HOUR)
    assert found.cost_to_train == pytest.approx(2 * 16e4 / HOUR)
    assert found.cost_per_step == pytest.approx(2 * 160 / HOUR)
    assert found.cost_per_million_tokens == pytest.approx(2 * 160 / HOUR / 64e3 * 1e6)
    assert found.cost_per_million_samples == pytest.approx(2 * 160 / HOUR / 64 * 1e6)
    assert found.steps == 1000
    assert (found.goodput, found.carbon_to_train) == (None, None)


def test_machines_that_were_bought_and_their_power() -> None:
    """Two nodes of 150,000 over four years, training 80 % of the time: 10.69 per hour; 0.10 per kWh."""
    hourly = 2 * 150_000 / (4 * YEAR * 0.8)
    found = bill(replace(JOB, rent=None, hardware=hourly, power_price=0.10, carbon=0.4), STEP, BUSY)
    energy = (12 * 318.4 + 4 * 60 + 4000) * 1.2 * 10 / KWH
    assert hourly == pytest.approx(10.695, abs=1e-3)
    assert found.parts_per_step == pytest.approx({"hardware": hourly * 10 / HOUR, "energy": 0.10 * energy})
    cost = found.cost()
    assert cost is not None
    assert cost["per_gpu_hour"] == pytest.approx((hourly + 0.10 * energy * 360) / 16)
    assert sum(cost["parts_to_train"].values()) == pytest.approx(found.cost_to_train)
    assert found.carbon_to_train == pytest.approx(energy * 1000 * 0.4)


def test_failures_are_paid() -> None:
    failures = Failures.at_best(mtbf=3 * HOUR, checkpoint=60.0, restart=300.0)
    found, without = bill(replace(JOB, failures=failures), STEP, BUSY), bill(JOB, STEP, BUSY)
    assert found.goodput == pytest.approx(0.87365, abs=1e-5)
    for metric in ("time_to_train_s", "gpu_hours", "gpu_hours_billed", "cost_to_train", "cost_per_step", "energy_J", "energy_per_token_J"):
        assert found.metrics()[metric] == pytest.approx(without.metrics()[metric] / failures.goodput), metric
    assert found.power == pytest.approx(without.power)
    assert found.document()["failures"]["expected_failures"] == pytest.approx(found.time_to_train / failures.mtbf)


def test_what_is_unknown_is_null() -> None:
    found = bill(Economics(used_gpus=1, billed_gpus=1, nodes=1), STEP, BUSY)
    assert set(found.metrics()) == set(METRICS)
    assert {key for key, value in found.metrics().items() if value is not None} == set()
    assert found.cost() is None


times = st.floats(1e-6, 1e3)


@given(step=times, computing=st.floats(0, 1), communicating=st.floats(0, 1), more=st.floats(1, 10), power_price=st.floats(0, 1))
def test_nothing_gets_cheaper_by_a_longer_step(
    step: float, computing: float, communicating: float, more: float, power_price: float
) -> None:
    """Of equal work: computing and communicating as long as before, the rest is waiting. So bounds of the step bound the bill."""
    failures = Failures.at_best(1e5, 60.0, 300.0)
    job = replace(JOB, hardware=3.0, power_price=power_price, carbon=0.4, failures=failures)
    busy = Busy(computing * step, (1 - computing) * communicating * step)
    short, long = bill(job, step, busy).metrics(), bill(job, step * more, busy).metrics()
    assert all(short[key] <= long[key] * (1 + 1e-9) for key in METRICS)


@given(step=times, computing=st.floats(0, 0.5), communicating=st.floats(0, 0.25), more=st.floats(1, 2))
def test_nothing_gets_cheaper_by_busier_gpus(step: float, computing: float, communicating: float, more: float) -> None:
    job = replace(JOB, power_price=0.1)
    for busier in (Busy(computing * more * step, communicating * step), Busy(computing * step, communicating * more * step)):
        one, other = bill(job, step, Busy(computing * step, communicating * step)).metrics(), bill(job, step, busier).metrics()
        assert all(one[key] <= other[key] * (1 + 1e-9) for key in METRICS if one[key] is not None)


@given(step=times, computing=st.floats(0, 1), communicating=st.floats(0, 1))
def test_a_gpu_draws_between_idle_and_tdp(step: float, computing: float, communicating: float) -> None:
    found = bill(JOB, step, Busy(computing * step, (1 - computing) * communicating * step)).gpu_power
    assert found is not None
    assert POWER.idle <= found <= POWER.tdp


def test_facts_of_a_scenario() -> None:
    plain: dict[str, Any] = {"used_gpus": 8, "billed_gpus": 8, "nodes": 1, "steps": None, "currency": "EUR", "reasons": {}}
    found = economics(plain | {"power": None, "failures": {"mtbf": 3 * HOUR, "checkpoint": 60.0, "restart": 0.0, "interval": 0.0}})
    assert found.failures is not None
    assert found.failures.interval == pytest.approx(1098.771, abs=1e-3)
    assert (found.currency, found.power) == ("EUR", None)


# published: what is known of the power of machines that train


def training(power: Power, gpus: int, computing: float, communicating: float) -> Bill:
    return bill(Economics(used_gpus=gpus, billed_gpus=gpus, nodes=1, power=power), 1.0, Busy(computing, communicating))


def test_an_h100_node_in_training() -> None:
    """76 % of 10.2 kW on average in intensive training (arXiv 2506.14551), 8.4 kW at most (arXiv 2412.08602): within 3 %."""
    h100 = Power(75.0, 700.0, 0.9, 0.5, 0.3, beside=2800.0)
    assert training(h100, 8, 0.85, 0.10).power == pytest.approx(0.76 * 10.2e3, rel=0.03)
    assert training(replace(h100, computing=1.0), 8, 1.0, 0.0).power == pytest.approx(8.4e3)


def test_v100_machines_of_gpt_3() -> None:
    """330 W per V100, host and network included, PUE 1.10; 1,287 MWh (Patterson et al. 2021, arXiv 2104.10350, table 4): 4 % more here."""
    v100 = Power(40.0, 300.0, 0.9, 0.5, 0.3, beside=700.0)
    found = training(v100, 8, 0.85, 0.10).power
    assert found is not None
    assert found / 8 / 330 == pytest.approx(1.04, abs=5e-3)
    hours = 10_000 * 14.8 * 24
    assert hours * 330 * 1.10 / 1e9 == pytest.approx(1.287, rel=2e-3)


@pytest.mark.parametrize(("hours", "tonnes"), [(184_320, 31.22), (368_640, 62.44), (1_720_320, 291.42)])
def test_llama_2_at_tdp(hours: int, tonnes: float) -> None:
    """GPU-hours x 400 W is the energy of the model cards (arXiv 2307.09288, table 2: 31.22, 62.44, 291.42 t CO2 at 0.423 kg per kWh).

    Only the boards at TDP, without the machines around them and without the building.
    """
    board = Power(60.0, 400.0, 1.0, 1.0, 1.0, beside=0.0)
    job = Economics(used_gpus=1, billed_gpus=1, nodes=1, steps=float(hours), power=board, carbon=0.4234)
    found = bill(job, HOUR, Busy(HOUR, 0.0))
    assert found.energy_to_train == pytest.approx(hours * 0.4 * KWH)
    assert found.carbon_to_train == pytest.approx(tonnes * 1e3, rel=2e-3)
