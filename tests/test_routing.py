"""Places that a token visits: closed form, counting, and scores that are drawn."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.routing import Routing


def ranks(experts, top_k, slots, **more):
    return Routing(experts, top_k, slots, **more).visited()


@pytest.mark.parametrize(
    ("experts", "top_k", "slots", "expected"), [(256, 8, 8, 5.294652), (256, 8, 64, 7.675750), (8, 2, 4, 1.857143), (64, 6, 8, 4.535516)]
)
def test_known_means(experts, top_k, slots, expected):
    assert ranks(experts, top_k, slots) == pytest.approx(expected, abs=5e-7)


@given(st.sampled_from([(6, 3), (8, 4), (8, 2), (9, 3)]), st.integers(1, 4))
def test_counted_one_by_one(grid, top_k):
    experts, slots = grid
    each = experts // slots
    chosen = list(combinations(range(experts), top_k))
    assert ranks(experts, top_k, slots) == pytest.approx(sum(len({e // each for e in some}) for some in chosen) / len(chosen))


def test_routing_limited_to_machines():
    """DeepSeek-V3 on eight machines of eight, four of which a token may visit: nearly always all four."""
    limited = Routing(256, 8, 64, groups=8, kept=4)
    machines = tuple(tuple(range(8 * n, 8 * n + 8)) for n in range(8))
    assert limited.distinct(machines) == pytest.approx(3.954, abs=0.01)
    assert limited.visited() == pytest.approx(7.49, abs=0.02)
    assert ranks(256, 8, 64, groups=8, kept=8) == ranks(256, 8, 64)


@pytest.mark.parametrize(("experts", "top_k", "expected"), [(128, 8, 1), (256, 8, 1), (64, 6, 1.5), (160, 6, 1.2), (64, 8, 1)])
def test_experts_in_turn_are_neighbours(experts, top_k, expected):
    """Eight ranks. 64 / 8 = 8 experts of a rank: tokens begin at its experts 0, 2, 4 and 6, and the last two reach the next rank."""
    assert ranks(experts, top_k, 8, in_turn=True) == expected


@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_experts_in_turn_token_by_token(slots, each, data):
    experts = slots * each
    top_k = data.draw(st.integers(1, experts))
    tokens = [{(token * top_k + k) % experts // each for k in range(top_k)} for token in range(experts)]
    assert ranks(experts, top_k, slots, in_turn=True) == pytest.approx(sum(map(len, tokens)) / experts)


def test_ranks_that_share_an_expert_all_get_its_tokens():
    assert ranks(8, 2, 4, width=2) == 2 * ranks(8, 2, 4)
