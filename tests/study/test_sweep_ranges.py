"""The range of a study: how many points there are, and which."""

from __future__ import annotations

from math import comb, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import ScenarioError
from parsim.study.search.lattice import divisors
from parsim.study.sweep.ranges import (
    Divisors,
    Listed,
    Point,
    ProductAxis,
    factorisations,
    lattice_of,
    multiplied,
    points,
    powers_of_two,
    stepped,
    values_of,
)

NOWHERE = ("", None, None)


def exponents(number: int) -> list[int]:
    """Those of the prime factors."""
    found: dict[int, int] = {}
    prime = 2
    while number > 1:
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1
    return list(found.values())


def eight(word: str, before: Point) -> int:
    assert word == "gpus"
    return 8 * int(before.get("cluster.nodes", 1))


@given(st.integers(1, 5000), st.integers(2, 4))
def test_a_lattice_has_as_many_points_as_the_closed_form(number: int, factors: int) -> None:
    """Ways to share e equal primes among k factors: C(e + k - 1, k - 1), prime by prime."""
    found = factorisations(number, factors)
    assert len(found) == prod(comb(count + factors - 1, factors - 1) for count in exponents(number))
    assert len(set(found)) == len(found)
    assert all(prod(row) == number for row in found)
    assert found == sorted(found)


@given(st.integers(1, 20_000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [count for count in range(1, number + 1) if number % count == 0]
    assert len(divisors(number)) == prod(count + 1 for count in exponents(number))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_axes_multiply_the_last_fastest(sizes: list[int]) -> None:
    axes = [Listed((f"key{place}",), tuple((value,) for value in range(size))) for place, size in enumerate(sizes)]
    found = [tuple(point.values()) for point in points(axes, eight)]
    assert len(found) == prod(sizes)
    assert found == sorted(found)
    assert [list(point) for point in points(axes, eight)] == [[f"key{place}" for place in range(len(sizes))]] * prod(sizes)


def test_a_lattice_follows_the_machine_of_each_point_wherever_it_is_written() -> None:
    lattice = ProductAxis(("tp", "pp", "dp"), "gpus")
    nodes = Listed(("cluster.nodes",), ((1,), (2,), (4,)))
    for axes in ([lattice, nodes], [nodes, lattice]):
        found = list(points(axes, eight))
        # 2^3, 2^4, 2^5 among three factors: C(5, 2) + C(6, 2) + C(7, 2)
        assert len(found) == 10 + 15 + 21
        assert all(point["tp"] * point["pp"] * point["dp"] == 8 * point["cluster.nodes"] for point in found)
    assert [point["tp"] for point in points([Divisors("tp", "gpus")], eight)] == [1, 2, 4, 8]
    assert [point["tp"] for point in points([Divisors("tp", 12)], eight)] == [1, 2, 3, 4, 6, 12]


def test_zipped_keys_go_together() -> None:
    axis = Listed(("tp", "pp"), ((1, 4), (2, 2)))
    assert list(points([axis, Listed(("mbs",), ((1,), (2,)))], eight)) == [
        {"tp": 1, "pp": 4, "mbs": 1}, {"tp": 1, "pp": 4, "mbs": 2}, {"tp": 2, "pp": 2, "mbs": 1}, {"tp": 2, "pp": 2, "mbs": 2},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ([1, 2, "auto"], [1, 2, "auto"]),
        (4, [4]),
        ({"from": 2, "to": 9, "step": 3}, [2, 5, 8]),
        ({"from": 1, "to": 3}, [1, 2, 3]),
        ({"from": 0.1, "to": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
        ({"from": 3, "to": 50, "factor": 2}, [3, 6, 12, 24, 48]),
        ({"powers_of_two": [3, 64]}, [4, 8, 16, 32, 64]),
    ],
)
def test_forms_of_an_axis(form: Any, values: list[Any]) -> None:
    assert values_of(form, "key", NOWHERE) == values


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ([], "takes no value at all"),
        ({"from": 4, "to": 1}, "a range from 4 to 1 is empty"),
        ({"from": 1, "to": 4, "factor": 1}, "a factor is more than 1, and from is more than 0: factor is 1, from 1"),
        ({"from": 0, "to": 4, "factor": 2}, "a factor is more than 1, and from is more than 0: factor is 2, from 0"),
        ({"from": 1, "to": 4, "step": 0}, "a step is more than 0: step is 0, from 1"),
        ({"from": "1 GiB", "to": "4 GiB"}, "is not a range of numbers"),
        ({"from": 0, "to": 1e9, "step": 1}, "1,000,000,000 values; at most 1,000,000"),
        ({"powers_of_two": [64, 1]}, "[64, 1] is not [from, to]"),
        ({"powers_of_two": [5, 7]}, "there is no such value"),
        ({"powers": [1, 2]}, "is not a range"),
        ({"divisors_of": True}, "True is not a whole number"),
    ],
)
def test_forms_that_are_refused(form: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        values_of(form, "key", ("study.yaml", 3, 5))
    assert message in error.value.findings[0].message
    assert (error.value.findings[0].file, error.value.findings[0].line, error.value.findings[0].column) == ("study.yaml", 3, 5)
    assert error.value.findings[0].suggestion


@pytest.mark.parametrize("form", [{"product": ["tp"], "equals": 8}, {"product": ["tp", "pp"]}, ["tp", "pp"], {"of": 8}])
def test_lattices_that_are_refused(form: Any) -> None:
    with pytest.raises(ScenarioError, match="is not a lattice"):
        lattice_of(form, NOWHERE, str)


@given(st.integers(-50, 50), st.integers(0, 100), st.integers(1, 9))
def test_steps_are_those_of_range(low: int, more: int, step: int) -> None:
    assert stepped(low, low + more, step) == list(range(low, low + more + 1, step))


@given(st.integers(1, 100), st.integers(1, 10_000))
def test_doubling_and_powers_of_two_agree(low: int, high: int) -> None:
    assert powers_of_two(low, high) == [value for value in multiplied(1, max(high, 1), 2) if low <= value <= high]
