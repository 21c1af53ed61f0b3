"""The bill in words: lines, units and notes."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from parsim.report.economics import Busy, Economics, Power, bill
from parsim.report.goodput import Failures
from parsim.report.page.metrics import costs
from parsim.report.statement import energy, statement
from parsim.run import simulate

POWER = Power(idle=60.0, tdp=400.0, computing=0.9, communicating=0.5, waiting=0.3, beside=4000.0, pue=1.2)
JOB = Economics(used_gpus=12, billed_gpus=16, nodes=2, steps=250_000.4, samples_per_step=64.0, tokens_per_step=64e3, rent=2.0, power=POWER)
BUSY = Busy(7.0, 2.0)


def lines(economics: Economics) -> dict[str, tuple[str, str]]:
    return {line.title: (line.text, line.note) for line in statement(bill(economics, 10.0, BUSY))}


def test_a_bill_in_words() -> None:
    found = lines(replace(JOB, carbon=0.4, price={"example": True, "date": "2025-06-05"}, failures=Failures(1e5, 60.0, 300.0, 3000.0)))
    assert found["Steps to train"] == ("250,001", "")
    assert found["Time to train"] == ("30.1 d", "checkpoints, lost work and restarts included")
    assert found["GPU-hours"] == ("8,657", "12 GPUs in use")
    assert found["GPU-hours billed"] == ("11,543", "16 GPUs, 4 of them idle: nodes are paid whole")
    assert found["Goodput"] == ("96.3 %", "a failure every 27.8 h, a checkpoint every 50 min of training")
    assert found["Cost to train"] == ("23,086 USD", "rent: 2 USD per GPU-hour; example price of 2025-06-05")
    assert found["Cost per million tokens"] == ("1.44 USD", "")
    assert found["Energy to train"] == ("6.98 MWh", "9.67 kW at PUE 1.2, 318 W per GPU of 400 W")
    assert found["CO2 to train"] == ("2.79 t", "0.4 kg per kWh")


def test_without_a_length_or_a_price() -> None:
    found = lines(replace(JOB, steps=None, rent=None))
    assert list(found) == ["Energy per step", "Energy per token"]
    parts = lines(replace(JOB, steps=None, power_price=0.1))
    assert parts["Cost per million tokens"][1] == "rent 97 %, energy 2.9 %: 2.06 USD per GPU-hour"


@pytest.mark.parametrize(("joules", "text"), [(3.6e9 * 812, "812 MWh"), (3.6e6 * 3.1, "3.1 kWh"), (27_300, "27.3 kJ"), (0.667, "0.667 J")])
def test_energy_in_a_unit_that_reads_well(joules: float, text: str) -> None:
    assert energy(joules) == text


def test_costs_are_compared_in_one_currency_only() -> None:
    def document(currency: str) -> dict[str, Any]:
        return {"cost": {"currency": currency}}

    assert [metric.title for metric in costs([document("EUR"), {"cost": None}])] == ["Cost to train [EUR]", "Cost per million tokens [EUR]"]
    assert costs([document("EUR"), document("USD")]) == costs([{"cost": None}]) == ()


def test_terminal_and_page_show_it_only_where_somebody_asked() -> None:
    from rich.console import Console

    from parsim.report.page.page import page
    from parsim.report.tables import print_report

    tree = {
        "model": {"family": "gpt2", "hidden": 256, "layers": 2, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
        "training": {"sequence_length": 256, "micro_batch": 2, "gradient_accumulation": 2},
    }
    for economics, shown in (({}, False), ({"gpu_hour": 2}, True)):
        report = simulate({**tree, "economics": economics})
        out = StringIO()
        print_report(report, Console(file=out, width=100))
        assert ("Money and time" in out.getvalue()) is shown
        assert ("no goodput: it needs economics.mtbf_per_gpu" in out.getvalue()) is shown
        html = page([("run", report)])
        assert ("<h2>Money and time</h2>" in html) is shown
        assert ('data-key="cost_per_step"' in html.partition("<summary>What the numbers mean")[0]) is shown
