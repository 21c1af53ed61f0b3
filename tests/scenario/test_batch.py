"""Batch arithmetic: two of three, the third derived; errors with the arithmetic and the nearest legal values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.scenario.batch import resolve_batch
from parsim.scenario.training import TrainingSection


def batch(data: int = 1, *, sequence: bool = True, **keys: Any) -> Any:
    return resolve_batch(TrainingSection(**keys), data, sequence=sequence)


def test_each_of_the_three_is_derived() -> None:
    # GPT-3 175B on 1,024 GPUs: 1536 / (1 x 8) = 192 micro-batches
    assert batch(8, global_batch=1536, micro_batch=1).micro_batches == 192
    assert batch(8, global_batch=1536, micro_batch=1).arithmetic == "gradient_accumulation = 1536 / (1 x 8) = 192"
    assert batch(8, global_batch=1536, gradient_accumulation=48).micro_batch == 4
    result = batch(8, micro_batch=2, gradient_accumulation=3)
    assert (result.global_batch, result.arithmetic) == (48, "global_batch = 2 x 3 x 8 = 48")
    assert batch(8, micro_batch=2, gradient_accumulation=3, global_batch=48).micro_batches == 3


def refusal(*arguments: Any, **keys: Any) -> str:
    with pytest.raises(PlanError) as caught:
        batch(*arguments, **keys)
    return str(caught.value)


def test_indivisible_batches_name_the_two_nearest() -> None:
    assert refusal(3, global_batch=16, micro_batch=2) == (
        "training.global_batch  global_batch 16 / (micro_batch 2 x data 3) = 16 / 6 = 2.667 is not whole; use 12 or 18, or data 2 or 4"
    )
    assert "16 / 32 = 0.5 is not whole; use 32 or 64, or data 4" in refusal(8, global_batch=16, micro_batch=4)
    assert "use 15 or 20" in refusal(1, global_batch=16, gradient_accumulation=5)


def test_contradiction_shows_the_product() -> None:
    assert refusal(2, global_batch=16, micro_batch=2, gradient_accumulation=3) == (
        "training.gradient_accumulation  micro_batch 2 x gradient_accumulation 3 x data 2 = 12, but global_batch is 16; "
        "leave one of the three out; gradient_accumulation 4 fits"
    )


def test_two_are_needed() -> None:
    assert "(none is given)" in refusal(1)
    assert "(only global_batch is given); add for example micro_batch: 1" in refusal(1, global_batch=16)
    assert "(only micro_batch is given); add for example global_batch: 32" in refusal(1, micro_batch=16)


def test_tokens() -> None:
    exact = batch(8, global_batch="4194304 tokens", sequence_length=2048, micro_batch=1)
    assert (exact.global_batch, exact.micro_batches, exact.warnings) == (2048, 256, ())
    assert exact.arithmetic.startswith("4194304 tokens / 2048 tokens per sequence = 2048 sequences; ")
    rounded = batch(8, global_batch="4M tokens", sequence_length=2048, micro_batch=1)
    assert rounded.global_batch == 1952  # 1953.125, to the nearest multiple of 8
    assert batch(8, global_batch="4110000 tokens", sequence_length=2048, micro_batch=1).global_batch == 2008  # 2006.8
    assert "1953.125 sequences; the nearest multiple of 8 is used: 1952 sequences = 3997696 tokens" in rounded.warnings[0].message
    assert "only with a sequence_length" in refusal(1, global_batch="4M tokens", micro_batch=1)
    message = refusal(64, global_batch="100k tokens", sequence_length=1024, micro_batch=1)
    assert 'not a multiple of 64; use "65536 tokens" or "131072 tokens"' in message


def test_a_smaller_last_micro_batch_is_counted() -> None:
    """14 samples on 2 replicas, 3 at a time: 3 + 3 + 1."""
    keys = {"global_batch": 14, "micro_batch": 3, "partial_micro_batch": True}
    for count in ({}, {"gradient_accumulation": 3}):
        found = batch(2, **keys, **count)
        assert (found.micro_batches, found.last_micro_batch) == (3, 1)
    for count in (2, 4):
        assert "7 samples per replica in micro-batches of 3 are 2 whole ones and one of 1; leave it out, or write 3" in refusal(
            2, **keys, gradient_accumulation=count
        )


def test_a_batch_of_millions_is_probably_meant_in_tokens() -> None:
    (warning,) = batch(1, global_batch=4_000_000, micro_batch=1).warnings
    assert warning.message == "global_batch is 4,000,000 sequences per step: are these tokens?"
    assert warning.suggestion == 'write "4000000 tokens"'
    assert batch(1, global_batch=4_000_000, micro_batch=1, sequence=False).warnings == ()
    assert batch(1, global_batch=100_000, micro_batch=1).warnings == ()


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_any_two_give_the_third(micro: int, count: int, data: int) -> None:
    total = micro * count * data
    for keys in ({"global_batch": total, "micro_batch": micro}, {"global_batch": total, "gradient_accumulation": count}):
        result = batch(data, **keys)
        assert (result.global_batch, result.micro_batch, result.micro_batches) == (total, micro, count)


@given(st.integers(1, 10_000), st.integers(1, 50), st.integers(1, 50))
def test_suggestions_are_legal_and_nearest(total: int, micro: int, data: int) -> None:
    try:
        result = batch(data, global_batch=total, micro_batch=micro)
    except PlanError as error:
        batches, _, replicas = error.findings[0].suggestion.removeprefix("use ").partition(", or data ")
        low, high = (int(word) for word in batches.split(" or "))
        for count in map(int, filter(None, replicas.split(" or "))):
            assert batch(count, global_batch=total, micro_batch=micro).global_batch == total
        assert bool(replicas) is (total % micro == 0)
        assert all(batch(data, global_batch=legal, micro_batch=micro).global_batch == legal for legal in (low, high))
        assert high - low == micro * data
        assert low < total < high or (low == micro * data and total < low)
    else:
        assert result.micro_batches * micro * data == total
