"""The question: flags and files give the same one, and every mistake is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsim.errors import ScenarioError
from parsim.scenario.economics import Money
from parsim.scenario.files import find
from parsim.study.size.question import Machine, Purchase, parse_money
from parsim.study.size.reading import named_values, question_file, read_question, set_values, shipped_questions

BASE = {"model": "llama-2-70b", "tokens": "2T", "days": 60.0, "on": "dgx-a100-80gb,hgx-h100"}


def test_money() -> None:
    assert parse_money("5M USD") == Money(5e6, "USD")
    assert parse_money("EUR 2.50") == Money(2.5, "EUR")
    assert parse_money(3) == Money(3.0)
    assert str(parse_money("30k USD")) == "30000 USD"


@pytest.mark.parametrize("text", ["$5", "5 million", "-1", "1,000 USD", True, None, "USD 5 USD", "1e13"])
def test_no_money(text: object) -> None:
    with pytest.raises(ValueError):
        parse_money(text)


def test_flags() -> None:
    question = read_question(None, {**BASE, "global_batch": "4M tokens", "gpu_hour": named_values(["hgx-h100=2.5 USD"]), "mtbf": "50000h"})
    assert question.deadline == 60 * 86400
    assert question.tokens == 2e12
    assert question.global_batch == "4000000 tokens"
    assert question.mtbf == 50000 * 3600
    assert question.machines == (Machine("dgx-a100-80gb", "dgx-a100-80gb"), Machine("hgx-h100", "hgx-h100", gpu_hour=Money(2.5, "USD")))
    assert question.currency == "USD"


def test_a_file_gives_the_same_question(tmp_path: Path) -> None:
    path = tmp_path / "question.yaml"
    path.write_text(
        "size:\n  model: llama-2-70b\n  tokens: 2T\n  days: 60\n  on: [dgx-a100-80gb, hgx-h100]\n  gpu_hour: {hgx-h100: 2.5 USD}\n"
        "  buy: {dgx-a100-80gb: 200k USD/node}\n  micro_batch: [1, 2, 4]\n  set: {cluster.set.node.nics: [1, 8]}\n",
        encoding="utf-8",
    )
    assert question_file(str(path)) == path
    assert question_file("llama-2-70b") is None
    flags = {
        **BASE, "gpu_hour": named_values(["hgx-h100=2.5 USD"]), "buy": named_values(["dgx-a100-80gb=200k USD/node"]),
        "micro_batch": "1,2,4", "set": set_values(["cluster.set.node.nics=1,8"]),
    }  # fmt: skip
    assert read_question(path, {}) == read_question(None, flags)
    question = read_question(path, {"days": 30.0})
    assert question.deadline == 30 * 86400
    assert [machine.label for machine in question.machines] == [
        "dgx-a100-80gb nics=1", "dgx-a100-80gb nics=8", "hgx-h100 nics=1", "hgx-h100 nics=8",
    ]  # fmt: skip
    assert question.machines[1].settings == (("cluster.set.node.nics", 8),)
    assert question.machines[0].purchase == Purchase(Money(2e5, "USD"), "node")


def test_every_mistake_at_once(tmp_path: Path) -> None:
    path = tmp_path / "question.yaml"
    path.write_text(
        "size:\n  modle: llama-2-70b\n  tokens: many\n  days: -1\n  on: [hgx-h10]\n  goodput: 2\n  budget: $5\n", encoding="utf-8"
    )
    with pytest.raises(ScenarioError) as caught:
        read_question(path, {})
    said = {(finding.line, finding.path) for finding in caught.value.findings}
    assert {(2, "size.modle"), (3, "size.tokens"), (4, "size.days"), (5, "size.on"), (6, "size.goodput"), (7, "size.budget")} <= said
    assert "did you mean 'model'" in str(caught.value)
    assert "hgx-h100" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"days": None}, "no limit given"),
        ({"hours": 3.0}, "days and hours are both given"),
        ({"gpu_hour": {"hgx-h200": "2"}}, "hgx-h200 is not among the machines"),
        ({"gpu_hour": "2", "buy": "30000"}, "has a rent and a purchase price"),
        ({"budget": "5M USD", "gpu_hour": "2 EUR"}, "prices in USD and EUR are not converted"),
        ({"buy": "3 USD/rack"}, "per gpu or per node"),
        ({"minimise": "fun"}, "not one of cost, gpus, energy, time"),
        ({"gpus": "0"}, "whole number from 1"),
        ({"model": "llama-9"}, "llama-9"),
        ({"on": "hgx-h100,hgx-h100"}, "listed twice"),
        ({"micro_batch": "1.5"}, "whole number"),
    ],
)
def test_mistakes(change: dict[str, object], words: str) -> None:
    with pytest.raises(ScenarioError, match=words.replace("?", r"\?")):
        read_question(None, {**BASE, **change})


def test_set_needs_a_key() -> None:
    with pytest.raises(ScenarioError, match="KEY=VALUE"):
        set_values(["nics"])


def test_every_shipped_question_can_be_asked() -> None:
    for path in shipped_questions().values():
        question = read_question(path, {})
        assert question.machines
        assert question.deadline or question.budget


def test_paths_start_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(find("topologies", "hgx-h100").read_text(encoding="utf-8"), encoding="utf-8")
    path = tmp_path / "question.yaml"
    path.write_text("size: {model: gpt2, tokens: 1B, days: 1, on: [./mine.yaml]}\n", encoding="utf-8")
    (machine,) = read_question(path, {}).machines
    assert machine == Machine("./mine.yaml", str(tmp_path / "mine.yaml"))
