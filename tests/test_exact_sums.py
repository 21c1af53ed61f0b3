"""Sums of floats that reach output are exact: `sum` of Python 3.11 adds from left to right, that of 3.12 carries the rounding along."""

import builtins
import math

import pytest

from parsim import simulate


def left_to_right(numbers, start=0):
    """The builtin of Python 3.11."""
    for number in numbers:
        start = start + number
    return start


def compensated(numbers, start=0):
    """The builtin of Python 3.12 and later, but for the last rounding."""
    numbers = list(numbers)
    if any(isinstance(number, float) for number in (start, *numbers)):
        return math.fsum((start, *numbers))
    return left_to_right(numbers, start)


def answer(name, overrides, monkeypatch, summation):
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "sum", summation)
        report = simulate(name, *overrides)
        document = report.document()
    del document["simulation"]["wall_s"]
    return document, str(report)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gpt2-ddp-straggler", []),
        ("gpt2-ddp-4x-a100", []),
        ("llama-7b-lora-1x-rtx-4090", []),
    ],
)
def test_same_answer_with_the_sums_of_every_python(name, overrides, monkeypatch):
    assert left_to_right([0.1] * 10) != compensated([0.1] * 10)
    first, second = (answer(name, overrides, monkeypatch, summation) for summation in (left_to_right, compensated))
    assert first == second
