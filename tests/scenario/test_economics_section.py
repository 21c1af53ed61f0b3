"""The economics section: prices in one currency, dated examples, what was bought, power, failures; and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from parsim.errors import InputError
from parsim.report.economics import economics
from parsim.run import economics_of, simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.provenance import today

MODEL = {"family": "gpt2", "hidden": 256, "layers": 2, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512}
YEAR = 365.25 * 24


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 2025-09-03, 90 days after the date of AWS's example prices."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1756857600")


def built(section: Mapping[str, Any] | None = None, topology: Any = "aws:p5.48xlarge", tokens: Any = "2T", **cluster: Any) -> Built:
    training = {"sequence_length": 256, "micro_batch": 2, "gradient_accumulation": 2} | ({"tokens": tokens} if tokens else {})
    tree = {"model": MODEL, "cluster": {"topology": topology, **cluster}, "training": training, "economics": dict(section or {})}
    return build(load(tree))


def refused(section: Mapping[str, Any], topology: Any = "aws:p5.48xlarge") -> list[str]:
    with pytest.raises(InputError) as caught:
        built(section, topology)
    return [f"{finding.path}: {finding.message}; {finding.suggestion}" for finding in caught.value.findings]


def warned(job: Built) -> list[str]:
    return [f"{finding.path}: {finding.message}" for finding in job.warnings if finding.path.startswith("economics")]


def test_nobody_asked() -> None:
    assert built(tokens=None).economics is None
    assert economics_of(built(tokens=None)) is None


@pytest.mark.parametrize("section", [{"pue": 1.1}, {"gpu_hour": "example"}, {"gpu_hour": 2}, {"mtbf_per_gpu": "1000 h"}])
def test_any_key_asks(section: dict[str, Any]) -> None:
    found = economics_of(built(section, tokens=None))
    assert found is not None
    assert found.steps is None
    assert "cost_to_train" in found.reasons


def test_the_length_is_that_of_the_tokens() -> None:
    found = economics_of(built(gpus=4))
    assert found is not None
    assert (found.used_gpus, found.billed_gpus, found.nodes) == (4, 8, 1)
    assert found.steps == pytest.approx(2e12 / (4 * 2 * 2 * 256))


# prices


def test_the_example_price_of_the_topology() -> None:
    job = built()
    found = economics_of(job)
    assert found is not None
    assert (found.rent, found.currency) == (6.88, "USD")
    assert found.price["example"] is True
    assert found.price["date"] == "2025-06-05"
    assumed = {item.name: item for item in job.assumptions}
    assert assumed["gpu_hour"].value == "6.88 USD"
    assert warned(job) == []


def test_an_example_price_gets_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 90 days, not on the 90th."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(1756857600 + 86_400))
    assert today().isoformat() == "2025-09-04"
    (text,) = warned(built())
    assert text == "economics.gpu_hour: the example price of aws-p5, 6.88 USD per GPU-hour, is of 2025-06-05, more than 90 days ago"
    assert warned(built({"gpu_hour": 3})) == []
    assert warned(built(tokens=None)) == []


def test_the_clock_is_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert today().year >= 2025
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert today().year >= 2025


@pytest.mark.parametrize(
    ("written", "amount"), [(2, 2.0), (2.5, 2.5), ("2.50 USD", 2.5), ("USD 2.5", 2.5), ("2.5usd", 2.5), ("1_000 USD", 1000.0), (0, 0.0)]
)
def test_the_price_of_the_scenario_wins(written: Any, amount: float) -> None:
    found = economics_of(built({"gpu_hour": written}))
    assert found is not None
    assert (found.rent, found.price["example"]) == (amount, False)


def test_a_power_price_is_no_rent() -> None:
    """Who writes what a kWh costs has machines of his own: the example rent is not added."""
    found = economics_of(built({"power_price": "0.1 USD"}))
    assert found is not None
    assert (found.rent, found.power_price) == (None, 0.1)
    both = economics_of(built({"power_price": 0.1, "gpu_hour": "example"}))
    assert both is not None
    assert (both.rent, both.power_price) == (6.88, 0.1)


def test_machines_bought() -> None:
    found = economics_of(built({"purchase": {"node": "300_000 USD", "years": 5, "utilisation": 0.5, "upkeep": 0.1}}, nodes=3))
    assert found is not None
    assert found.rent is None
    assert found.hardware == pytest.approx(3 * 300_000 * (1 / 5 + 0.1) / (YEAR * 0.5))
    by_gpu = economics_of(built({"purchase": {"gpu": 37_500}}, nodes=3, gpus=20))
    assert by_gpu is not None
    assert by_gpu.hardware == pytest.approx(24 * 37_500 / (4 * YEAR))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"gpu_hour": "2 EUR"}, "economics.gpu_hour: this price is in EUR, but economics.currency is USD; rates are not converted"),
        ({"currency": "EUR"}, "economics.currency: the example price of aws-p5 is 6.88 USD per GPU-hour, but economics.currency is EUR"),
        ({"currency": "EUR", "gpu_hour": 2, "power_price": "0.1 USD"}, "economics.power_price: this price is in USD"),
        ({"purchase": {"node": "1 GBP"}}, "economics.purchase.node: this price is in GBP"),
        ({"purchase": {"node": 1, "gpu": 1}}, "economics.purchase: a purchase needs one price, of a node or of a gpu"),
        ({"purchase": {"years": 3}}, "economics.purchase: a purchase needs one price"),
        ({"purchase": {"node": 1}, "gpu_hour": 1}, "economics.purchase: both gpu_hour and purchase are given"),
        ({"gpu_power": {"waiting": 0.8}}, "economics.gpu_power: expected waiting <= communicating <= computing"),
        (
            {"mtbf_per_gpu": "1 h", "checkpoint_time": "1 h"},
            "8 GPUs fail every 450 s, a checkpoint takes .* less than once in 100 times",
        ),
        ({"mtbf_per_gpu": "1 h", "checkpoint_time": "1 s", "checkpoint_bandwidth": "1 GB/s"}, "economics.checkpoint.bandwidth: the time"),
        ({"mtbf_per_gpu": "1 h", "checkpoint_bandwidth": "0 GB/s"}, "economics.checkpoint.bandwidth: must be greater than 0"),
        ({"mtbf_per_gpu": "0 h", "checkpoint_time": "1 s"}, "economics.mtbf_per_gpu: must be greater than 0"),
        ({"gpu_hour": "$2"}, r"economics.gpu_hour: '\$2' is not a price .*; write the currency as USD"),
        ({"gpu_hour": "2,000 USD"}, "write thousands without commas"),
        ({"gpu_hour": "2 XYZ"}, "XYZ is not a known currency"),
        ({"gpu_hour": -1}, "is not a price"),
        ({"gpu_hour": "exampel"}, "did you mean 'example'"),
        ({"gpu_hour": True}, "is not a price"),
        ({"currency": "usd"}, "economics.currency: 'usd' is not a currency; write USD"),
        ({"currency": "dollars"}, "is not a currency; known: USD, EUR"),
        ({"purchase": {"node": 1, "utilisation": 0}}, "economics.purchase.utilisation"),
        ({"pue": 0.9}, "economics.pue"),
        ({"node_power": "2 kWh"}, "economics.node_power: .*an energy in J, expected a power in W"),
    ],
)
def test_what_is_refused(section: dict[str, Any], expected: str) -> None:
    (text,) = refused(section)
    assert re.search(expected, text), text


def test_currencies_never_mix_and_all_is_said_at_once() -> None:
    found = refused({"gpu_hour": "2 EUR", "power_price": "1 CNY", "gpu_power": {"waiting": 0.9}})
    assert [text.partition(":")[0] for text in found] == ["economics.gpu_hour", "economics.power_price", "economics.gpu_power"]


def test_an_example_that_is_not_there() -> None:
    (text,) = refused({"gpu_hour": "example"}, "4x v100-32gb")
    assert text.startswith("economics.gpu_hour: the topology 4x v100-32gb has no example price; write economics.gpu_hour (rent)")
    job = economics_of(built(topology="4x v100-32gb"))
    assert job is not None
    assert job.reasons["cost"].startswith("there is no price: write economics.gpu_hour")


def test_a_box_may_have_a_price_and_a_power_of_its_own() -> None:
    box = {
        "gpu": "a100-sxm-80gb",
        "count": 4,
        "overhead_power": "1 kW",
        "price": {"gpu_hour": 1.5, "currency": "EUR", "date": "2025-09-01"},
    }
    found = economics_of(built({"currency": "EUR"}, topology=box))
    assert found is not None
    assert (found.rent, found.currency) == (1.5, "EUR")
    assert found.power is not None
    assert found.power.beside == 1000


def test_spot_prices_by_factor() -> None:
    found = economics_of(built({}, set={"price": {"gpu_hour": "x0.5"}}))
    assert found is not None
    assert found.rent == pytest.approx(3.44)


def test_idle_gpus_are_paid_for() -> None:
    """4 of 8 with a batch of 16 samples in micro-batches of 2: 8 replicas divide it; of 12 of 16 no more do than 8."""
    idle = [str(finding) for finding in built(gpus=4).warnings if finding.path == "cluster.gpus"]
    (text,) = idle
    assert "4 of 8 GPUs are idle but billed: machines are billed as a whole; with cluster.gpus 8 fewer are" in text
    (text,) = [str(finding) for finding in built(gpus=6).warnings if finding.path == "cluster.gpus"]
    assert "2 of 8 GPUs are idle but billed: machines are billed as a whole; no larger number divides the batch" in text
    assert [finding for finding in built(gpus=4, tokens=None).warnings if finding.path == "cluster.gpus"] == []


# power and failures


def test_power() -> None:
    found = economics_of(built({"pue": 1.1}, nodes=3))
    assert found is not None
    assert found.power is not None
    assert (found.power.idle, found.power.tdp, found.power.beside, found.power.pue) == (75, 700, 3 * 2800, 1.1)
    assert (found.power.computing, found.power.communicating, found.power.waiting) == (0.9, 0.5, 0.3)
    own = economics_of(built({"node_power": "1 kW", "gpu_power": {"computing": 1}}, nodes=3))
    assert own is not None
    assert own.power is not None
    assert (own.power.beside, own.power.computing) == (3000, 1.0)


def test_power_that_nobody_knows() -> None:
    """Half of the TDP of the GPUs, and it is called an assumption."""
    job = built(topology="4x v100-32gb")
    found = economics_of(job)
    assert found is not None
    assert found.power is not None
    assert found.power.beside == 0.5 * 4 * 300
    assert {item.name: item.value for item in job.assumptions}["node_power"] == "600 W = 0.5 x TDP of its GPUs"


def test_failures() -> None:
    job = built({"mtbf_per_gpu": "50_000 h", "checkpoint_time": "60 s", "restart_time": "10 min", "checkpoint_interval": "1 h"}, nodes=2)
    found = economics_of(job)
    assert found is not None
    assert found.failures is not None
    assert found.failures.mtbf == pytest.approx(50_000 * 3600 / 16)
    assert (found.failures.checkpoint, found.failures.restart, found.failures.interval) == (60, 600, 3600)


def test_a_checkpoint_is_as_long_as_its_bytes() -> None:
    """Weights and Adam's two moments: 12 B per parameter where the master is the weight, 14 B with bf16."""
    tree = {
        "model": "llama-2-70b",
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 4},
        "training": {"sequence_length": 4096, "micro_batch": 1, "gradient_accumulation": 1, "precision": "bf16"},
        "parallel": {"tensor": {"size": 8}, "pipeline": {"size": 4}},
        "economics": {"mtbf_per_gpu": "50_000 h", "checkpoint_bandwidth": "10 GB/s"},
    }
    found = economics_of(build(load(tree)))
    assert found is not None
    assert found.failures is not None
    assert found.failures.checkpoint == pytest.approx(14 * 68_976_648_192 / 10e9)  # 0.966 TB


@pytest.mark.parametrize(
    ("section", "path", "lacks"),
    [
        ({"mtbf_per_gpu": "1000 h"}, "economics.mtbf_per_gpu", "checkpoint_time"),
        ({"checkpoint_time": "60 s"}, "economics.checkpoint.stall", "mtbf_per_gpu"),
        ({"restart_time": "60 s"}, "economics.recovery.restart_time", "mtbf_per_gpu"),
    ],
)
def test_half_of_what_goodput_needs(section: dict[str, Any], path: str, lacks: str) -> None:
    job = built(section)
    assert job.economics is not None
    assert economics(job.economics).failures is None
    assert lacks in job.economics["reasons"]["goodput"]
    assert warned(job) == [f"{path}: goodput is not computed, and failures cost nothing"]


def test_of_failures_that_nobody_asks_for_nothing_is_said() -> None:
    """A cluster may have storage, and a job a price, without either."""
    assert warned(built({"gpu_hour": 2.0}, storage={"latency": 0})) == []


def test_a_checkpoint_of_a_model_without_parameters() -> None:
    tree = {
        "model": {"stages": [{"forward": "1 ms", "backward_input": "1 ms"}]},
        "cluster": {"topology": "4x v100-32gb"},
        "training": {"global_batch": 8, "micro_batch": 1},
        "parallel": {"pipeline": {"size": 4}},
        "economics": {"mtbf_per_gpu": "50_000 h", "checkpoint_bandwidth": "10 GB/s"},
    }
    with pytest.raises(InputError, match="has no parameters from which the size of a checkpoint could follow; write checkpoint_time"):
        build(load(tree))


def test_a_quick_evaluation_gives_the_numbers_of_the_report() -> None:
    """What a search does: the bill of a step time and busy times, without a report."""
    from parsim.report.economics import METRICS, bill

    job = built({"mtbf_per_gpu": "50_000 h", "checkpoint_time": "60 s", "power_price": 0.1, "gpu_hour": 2, "carbon_intensity": 0.4}, gpus=4)
    report = simulate(job.scenario)
    priced = economics_of(job)
    assert priced is not None
    quick = bill(priced, report.step_time, report.busy).metrics()
    document = report.document()
    assert {key: document[key] for key in METRICS} == quick
    assert None not in quick.values()
    assert document["cost"]["to_train"] == document["cost_to_train"]
    assert document["gpu_hours_billed"] == pytest.approx(2 * document["gpu_hours"])
    assert 75 <= document["economics"]["gpu_power_W"] <= 700
    assert document["time_to_train_s"] == pytest.approx(2e12 / document["tokens_per_s"] / document["goodput"])
