"""Paths on the links that stand for theirs, against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parsim.program.folding import Classes


@st.composite
def partitions(draw):
    """Links in classes, and a path over some of them (a link may come again)."""
    used = sorted(draw(st.sets(st.integers(0, 10**7), min_size=1, max_size=20)))
    kind = [draw(st.integers(0, 4)) for _ in used]
    like = [kind.index(one) for one in kind]
    path = draw(st.lists(st.tuples(st.sampled_from(used), st.floats(0.01, 9)), max_size=30))
    return Classes((0,), {0: 0}, np.array(used), np.array(like), {}), used, like, tuple(path)


@given(partitions(), st.integers(1, 1000))
def test_the_load_of_a_class_is_spread_over_its_links(case, times):
    classes, used, like, path = case
    expected = {}
    for link, coefficient in path:
        first = used[like[used.index(link)]]
        expected[first] = expected.get(first, 0.0) + coefficient
    counts = {used[place]: like.count(place) for place in set(like)}
    assert classes.links == {link: used[place] for link, place in zip(used, like, strict=True)}
    assert classes.link_counts == counts
    assert classes.path(path, times) == tuple((link, times * total / counts[link]) for link, total in sorted(expected.items()))
