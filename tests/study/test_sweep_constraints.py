"""The language of constraints: what it says, what is unknown, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import ScenarioError
from parsim.scenario.schema import leaves
from parsim.study.sweep.constraint import constraint
from parsim.study.sweep.metrics import BYTES, FLOPS, MONEY, NUMBER, RATE, TIME, quantity
from parsim.study.sweep.vocabulary import Stage, UnknownWord, Word, find

KNOWN: dict[str, Any] = {
    "step_time_s": 1.5, "fits": True, "mfu": 0.42, "peak_bytes": 70 * 2**30, "gpus": 16, "gpus_per_node": 8, "tokens_per_s": 1e5,
    "parallel.tensor.size": 4, "parallel.pipeline.size": 2, "parallel.data.strategy": "zero1", "parallel.pipeline.schedule": "1f1b",
    "training.data_loading": 1e-3, "parallel.pipeline.overlap_sends": True, "cost_to_train": None, "model_tflops_per_gpu": 150e12,
}  # fmt: skip


def known(word: Word) -> Any:
    return KNOWN.get(word.name)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("fits", True),
        ("not fits", False),
        ("step_time < 2 s", True),
        ("step_time < 1500 ms", False),
        ("step_time <= 1500ms", True),
        ("1 s < step_time < 2 s", True),
        ("peak_memory <= 70 GiB", True),
        ("peak_memory <= 70 GB", False),
        ("mfu > 42 %", False),
        ("mfu >= 42 %", True),
        ("tp * pp <= gpus_per_node", True),
        ("tensor.size == gpus_per_node", False),
        ("gpus / tp / pp == 2", True),
        ("-tp < -3", True),
        ("(tp + pp) * 2 == 12 and fits", True),
        ("tp == 8 or pp == 2", True),
        ("strategy == zero1", True),
        ("strategy != zero1", False),
        ("zero1 == parallel.data.strategy", True),
        ("schedule == '1f1b'", True),
        ('parallel.pipeline.schedule == "gpipe"', False),
        ("overlap_sends", True),
        ("overlap_sends == false", False),
        ("tokens_per_s * step_time >= 150_000 tokens", True),
        ("tokens_per_s / gpus > 6e3 tokens/s", True),
        ("model_tflops_per_gpu > 100 TFLOP/s", True),
        ("model_tflops_per_gpu > 0.2 PFLOP/s", False),
        ("data_loading == 1 ms", True),
        ("cost_to_train < 1e6 USD", None),
        ("cost_to_train < 1e6 USD and tp == 8", False),
        ("cost_to_train < 1e6 USD or fits", True),
        ("not cost_to_train < 1e6 USD", None),
        ("tp / (pp - 2) > 1", None),
    ],
)
def test_what_holds(text: str, holds: bool | None) -> None:
    assert constraint(text).holds(known) is holds


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ("step_time < 2 GiB", "'step_time < 2 GiB' compares a time with an amount of memory", "write for example '2 s'"),
        ("step_time < 2", "'step_time < 2' compares a time with a plain number", "write for example '2 s'"),
        ("peak_memory + 1 s < 2 GiB", "'peak_memory + 1 s': an amount of memory + a time", "write for example '70 GiB'"),
        ("tokens_per_s > 6e3", "compares something per second with a plain number", "write for example '1e5 tokens/s'"),
        ("step_time * 2 GiB < 3 s", "compares something in s B with a time", ""),
        ("stp_time < 2 s", "unknown word 'stp_time'", "did you mean 'step_time'?"),
        ("paralel.tensor.size < 2", "unknown word 'paralel.tensor.size'", "did you mean 'parallel.tensor.size'?"),
        ("qqq < 2", "unknown word 'qqq'", "known are figures of the report"),
        ("size < 2", "'size' may be parallel.tensor.size or", "write the longer name"),
        ("strategy == zero11", "parallel.data.strategy is never 'zero11'", "did you mean 'zero1'?"),
        ("strategy < 3", "'strategy < 3' compares a text with a plain number", ""),
        ("tp", "'tp' is a plain number, not something that holds or not", "compare it"),
        ("fits + 1 < 2", "'fits' is yes or no, not a number", "calculate with numbers only"),
        ("fits < true", "'fits' is yes or no: neither more nor less than another", "use == or !="),
        ("tp = 3", "cannot be read at letter 4: '= 3'", "write == to compare"),
        ("schedule == 1f1b", "cannot be read at letter 13: '1f1b'", "put a text in quotes: '1f1b'"),
        ("step_time < 2 sec", "'2 sec': unknown unit 'sec'", "for example 2 s"),
        ("fits && tp == 1", "'&&' is not a word of constraints", "write 'and'"),
        ("tp ≤ 4", "'≤' is not a word of constraints", "write '<='"),
        ("tp ** 2 < 4", "'tp ** 2': only + - * / are known", ""),
        ("__import__('os').system('true')", "is not part of a constraint", "use comparisons"),
        ("[tp for tp in ()]", "is not part of a constraint", "use comparisons"),
        ("tp in (1, 2)", "only <, <=, ==, !=, >= and > compare", "write tp == 2 or tp == 4"),
        ("", "a constraint is a text", "for example: step_time < 2 s"),
        (3, "a constraint is a text", "for example: step_time < 2 s"),
        ("(" * 500 + "tp" + ")" * 500 + " < 3", "cannot be read", ""),
    ],
)
def test_what_is_refused(text: Any, message: str, suggestion: str) -> None:
    with pytest.raises(ScenarioError) as error:
        constraint(text, ("study.yaml", 7, 10))
    found = error.value.findings[0]
    assert message in found.message
    assert suggestion in found.suggestion
    assert (found.file, found.line, found.column, found.path) == ("study.yaml", 7, 10, "where")


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("tp <= 8 and strategy == zero1", Stage.WRITTEN),
        ("tp <= gpus_per_node", Stage.KNOWN),
        ("micro_batches >= 4 * pp", Stage.KNOWN),
        ("tp <= 8 and fits", Stage.SIMULATED),
    ],
)
def test_when_it_can_be_decided(text: str, stage: Stage) -> None:
    assert constraint(text).stage is stage


def test_why_it_does_not_hold() -> None:
    assert constraint("step_time < 1 s").why(known) == "step_time < 1 s: step_time_s is 1.5 s"
    assert constraint("mfu > 50 % and tp <= 2").why(known) == "mfu > 50 % and tp <= 2: mfu is 42 %, parallel.tensor.size is 4"
    assert constraint("peak_memory < 2 GiB").why(known) == "peak_memory < 2 GiB: peak_bytes is 70 GiB"
    assert constraint("cost < 3 USD").why(known) == (
        "cost < 3 USD: cost_to_train is not known; it needs a price (economics.gpu_hour) and "
        "training.tokens (or training.examples and training.epochs)"
    )


@pytest.mark.parametrize(
    ("number", "unit", "value", "dimension"),
    [
        ("2", "s", 2.0, TIME), ("1.5", "ms", 1.5e-3, TIME), ("3", "d", 259_200.0, TIME), ("70", "GiB", 70 * 2.0**30, BYTES),
        ("400", "Gb/s", 50e9, RATE), ("312", "TFLOP/s", 312e12, FLOPS), ("40", "%", 0.4, NUMBER), ("2", "T", 2e12, NUMBER),
        ("1e6", "USD", 1e6, MONEY), ("1.2", "GWh", 4.32e12, find("energy").sort), ("4", "M", 4e6, NUMBER),
    ],
)  # fmt: skip
def test_quantities(number: str, unit: str, value: float, dimension: Any) -> None:
    found = quantity(number, unit)
    assert found is not None
    assert found[0] == pytest.approx(value, rel=1e-12)
    assert found[1] == dimension


def test_what_is_no_unit() -> None:
    assert quantity("2", "and") is None


@given(st.floats(0.001, 1e3), st.floats(0.001, 1e3))
def test_arithmetic_is_that_of_numbers(one: float, two: float) -> None:
    values = {"parallel.tensor.size": one, "parallel.pipeline.size": two}

    def of(word: Word) -> Any:
        return values[word.name]

    assert constraint("tp + pp > tp - pp").holds(of) is (one + two > one - two)
    assert constraint("tp * pp >= tp / pp").holds(of) is (one * two >= one / two)
    assert constraint("not (tp < pp)").holds(of) is (one >= two)


@given(st.sampled_from([True, False, None]), st.sampled_from([True, False, None]))
def test_unknown_is_neither_true_nor_false(one: bool | None, two: bool | None) -> None:
    """Kleene: false and x is false, true or x is true, and an unknown decides nothing."""
    values = {"parallel.pipeline.overlap_sends": one, "parallel.pipeline.scatter_sends": two}
    sides = [-1 if value is False else 1 if value else 0 for value in (one, two)]
    meant = {-1: False, 0: None, 1: True}

    def holds(text: str) -> bool | None:
        return constraint(text).holds(lambda word: values[word.name])

    assert holds("overlap_sends and scatter_sends") is meant[min(sides)]
    assert holds("overlap_sends or scatter_sends") is meant[max(sides)]
    assert holds("not overlap_sends") is meant[-sides[0]]


def test_every_leaf_is_a_word_by_its_full_name() -> None:
    for key in leaves():
        assert find(key).name == key


def test_short_words() -> None:
    assert [find(word).name for word in ("tp", "pp", "dp", "mbs", "tensor.size", "micro_batch", "data.size")] == [
        "parallel.tensor.size", "parallel.pipeline.size", "parallel.data.size", "training.micro_batch", "parallel.tensor.size",
        "training.micro_batch", "parallel.data.size",
    ]  # fmt: skip
    assert find("nodes").stage is Stage.KNOWN
    assert find("cluster.nodes").stage is Stage.WRITTEN
    assert find("cluster.set.links.nvlink3.bandwidth").sort == "any"
    with pytest.raises(UnknownWord):
        find("no such word")
