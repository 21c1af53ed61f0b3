"""The sentence that size opens with, prices by kind, the page, and what is told while it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from parsim.cli import execute
from parsim.hardware.fabric.topology import GpuPrice
from parsim.report.quantities import gib, number
from parsim.scenario.economics import Money
from parsim.study.size.answer import AnswerData, BetterConfiguration, Looked, Sized
from parsim.study.size.asking import Asking
from parsim.study.size.page import page
from parsim.study.size.prices import PriceTag, basis, price_tag, unlike
from parsim.study.size.question import Machine, Purchase
from parsim.study.size.recommendation import recommendation
from parsim.study.size.search import Tally
from parsim.study.size.size import size
from parsim.study.size.text import text

SMALL: dict[str, Any] = {"tokens": "10B", "sequence_length": 1024, "global_batch": 64, "gpus": 8}
TWO = ["dgx-a100-80gb", "hgx-h100"]


@cache
def answered() -> AnswerData:
    """GPT-2 on eight GPUs of two kinds, by their example prices."""
    return size("gpt2", on=TWO, workers=1, **SMALL)


def test_the_sentence_has_what_to_rent_how_long_how_much_and_how_sure() -> None:
    answer = answered()
    best, other = answer.ranked
    said = recommendation(answer)
    assert said.sentence.startswith(f"Rent 1 x {best.machine} (8 GPUs): {number(best.seconds / 3600)} hours and ")
    assert f"{gib(best.headroom)} GiB of memory to spare" in said.sentence
    assert f"runner-up, 1 x {other.machine} (8 GPUs)" in said.sentence
    assert ("is a tie" in said.sentence or "do not tell" in said.sentence) == bool(answer.ties) == said.tied
    assert "on-demand prices of 20" in said.sentence
    assert text(answer).startswith(said.sentence[:60])
    assert max(map(len, text(answer, 80).splitlines())) <= 80
    assert answer.document()["recommendation"] == said.sentence
    assert [tag["kind"] for tag in answer.document()["prices"]] == ["on-demand", "on-demand"]


def test_a_worse_runner_up_is_called_worse_and_bought_machines_are_bought() -> None:
    answer = answered()
    first, second = answer.machines if answer.ranked[0].machine == answer.machines[0].machine else answer.machines[::-1]
    dear = replace(second, possible=tuple(one.changed(price=9.0) for one in second.possible))
    said = recommendation(replace_machines(answer, first, dear))
    assert "more expensive, beyond the usual error of such predictions" in said.sentence
    assert not said.tied
    bought = replace(first, price=PriceTag(first.machine, "bought", "300000 USD per machine"))
    said = recommendation(replace_machines(answer, bought, dear))
    assert said.sentence.startswith("Buy 1 x ")
    assert any("the prices are of different kinds" in line for line in said.lines)
    assert recommendation(replace_machines(answer, replace(first, possible=(), reason="too small"))).sentence == (
        f"No configuration works: {first.machine}: too small."
    )


def replace_machines(answer: AnswerData, *machines: Sized) -> AnswerData:
    return replace(answer, machines=machines)


def test_prices_of_one_kind_are_alike_and_others_are_not() -> None:
    h100 = Machine("h", "hgx-h100")
    tags = [
        price_tag(h100, GpuPrice(3.2, "USD", "2026-01-15", "", "on-demand")),
        price_tag(replace(h100, label="l"), GpuPrice(1.85, "USD", "2026-04-15", "", "reserved")),
        price_tag(replace(h100, label="m"), GpuPrice(2.0, "USD", "2026-04-15")),
        price_tag(replace(h100, label="o", gpu_hour=Money(2.0, "USD")), None),
        price_tag(replace(h100, label="b", purchase=Purchase(Money(300000.0, "USD"), "node")), None),
    ]
    known = [tag for tag in tags if tag is not None]
    assert [tag.kind for tag in known] == ["on-demand", "reserved", "example", "yours", "bought"]
    assert price_tag(h100, None) is None
    assert basis(known[:1]) == "on-demand prices of 2026-01-15"
    assert basis(known[:2]) == "on-demand prices and reserved prices of different dates: h 2026-01-15, l 2026-04-15"
    assert basis([]) == unlike([]) == unlike(known[:1]) == ""
    assert "h: on-demand; l: reserved" in unlike(known[:2])


def test_the_page_has_the_whole_answer_and_asks_for_nothing() -> None:
    answer = answered()
    html = page(answer)
    for title in (
        "The best of every kind",
        "Time, cost and number of GPUs",
        "Assumptions",
        "What was not modelled",
        "What the search covered",
    ):
        assert title in html
    assert html.count("<svg") == 2
    assert "<script" not in html
    assert not re.search(r'(?:src|href)="(?!#|data:)', html)
    assert f"best: {answer.ranked[0].machine}, 8 GPUs" in html
    assert f'class="badge {answer.ranked[0].status}"' in html
    assert "fill: #ffffff" not in html  # paper and ink of the figures are those of the page
    assert "+0.0 %" not in html
    assert "No difference: " in html
    assert page(answer) == html


def test_improvements_get_better_whoever_finds_them() -> None:
    alone: list[BetterConfiguration] = []
    together: list[BetterConfiguration] = []
    one = size("gpt2", on=TWO, workers=1, improved=alone.append, **SMALL)
    two = size("gpt2", on=TWO, workers=2, improved=together.append, **SMALL)
    for heard, answer in ((alone, one), (together, two)):
        costs = [improvement.found.cost or 0.0 for improvement in heard]
        assert costs == sorted(costs, reverse=True)
        assert costs[-1] == answer.ranked[0].cost
    assert [(best.machine, best.cost) for best in one.ranked] == [(best.machine, best.cost) for best in two.ranked]


def test_what_was_found_is_kept_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pressed(came: Iterable[Sized], _: int) -> Iterator[Sized]:
        yield next(iter(came))
        raise KeyboardInterrupt

    answer = size("gpt2", on=TWO, workers=1, watch=pressed, **SMALL)
    assert answer.interrupted
    assert [bool(one.possible) for one in answer.machines] == [True, False]
    assert recommendation(answer).sentence.startswith("So far: Rent 1 x dgx-a100-80gb")
    monkeypatch.setattr("parsim.commands.size.progress", lambda _, came, total, **__: pressed(came, total))
    words = ["size", "gpt2", "--tokens", "10B", "--seq", "1024", "--global-batch", "64", "--gpus", "8", "--on", ",".join(TWO)]
    assert execute([*words, "--workers", "1"]) == 130
    said = capsys.readouterr().out
    assert "best so far: 1 x dgx-a100-80gb" in said
    assert "So far: Rent" in said
    assert "hgx-h100: not finished (interrupted)." in said
    assert "cannot:" not in said


def test_a_number_of_gpus_that_is_looked_at_twice_is_one_row() -> None:
    """The first glance, then the whole look: of both the faster strategy is kept, and the row is there once."""
    answer = answered()
    sized = answer.machines[0]
    (found,) = sized.possible
    asking = Asking(answer.question, [sized.price, None], lambda _: None)
    for one in (found.changed(slower=1.5), found, found.changed(slower=2.0)):
        asking.hear(sized.machine, Looked(8, one, Tally()))
    asking.hear(sized.machine, Looked(8, None, Tally()))
    first, second = asking.machines()
    assert (first.possible, first.notes) == ((found,), ("not finished (interrupted)",))
    assert (second.possible, second.reason) == ((), "not finished (interrupted)")
