"""A thinned curve of memory is the curve, but for what happens within a bin of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import simulate
from parsim.report.measured import MemoryCurve


def held(times, levels, at):
    """What a step curve holds at times `at`."""
    return levels[np.searchsorted(times, at, side="right") - 1]


@pytest.mark.parametrize("most", [30, 200, 600])
def test_plateaus_keep_their_level(most):
    report = simulate("gpt2-ddp-4x-a100")
    curve = report.plot.timeline_data(width=9.5).memory
    times, whole = np.asarray(curve.times), {name: np.asarray(volume, dtype=float) for name, volume in curve.bytes.items()}
    assert len(times) > 600
    few, thin = curve.thinned(most)
    assert len(few) <= most + 2
    edges = np.linspace(times[0], times[-1], most // 3 + 1)
    for name, volume in whole.items():
        assert np.array_equal(held(few, thin[name], np.nextafter(edges[1:-1], 0)), held(times, volume, np.nextafter(edges[1:-1], 0)))
    assert max(sum(thin.values())) == max(sum(whole.values()))
    assert min(sum(thin.values())) == min(sum(whole.values()))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.integers(0, 3)), min_size=13), st.integers(6, 12))
def test_of_each_bin_the_first_highest_and_lowest_and_the_last_are_kept(rows, most):
    """Against a loop over the bins."""
    rows.sort(key=lambda row: row[0])
    times = [float(time) for time, _, _ in rows]
    total = [activations + temporaries for _, activations, temporaries in rows]
    edges = np.linspace(times[0], times[-1], max(2, most // 3 + 1))[1:-1]
    kept = {0, len(rows) - 1}
    for number in range(len(edges) + 1):
        members = [place for place, time in enumerate(times) if sum(edge <= time for edge in edges) == number]
        if members:
            kept |= {max(members, key=lambda place: total[place]), min(members, key=lambda place: total[place]), members[-1]}
    curve = MemoryCurve(times, {"activations": [row[1] for row in rows], "temporaries": [row[2] for row in rows]})
    found, levels = curve.thinned(most)
    chosen = sorted(kept)
    assert found.tolist() == [times[place] for place in chosen]
    assert levels["activations"].tolist() == [rows[place][1] for place in chosen]
    assert levels["temporaries"].tolist() == [rows[place][2] for place in chosen]


def test_a_curve_begins_with_all_that_is_resident():
    """It comes tensor by tensor at time 0, which is no time; a picture would show it as if it came with the first op."""
    device = simulate("gpt2-xl-gpipe-4x-v100").measured.memory.devices[0]
    begin = {name: volume[0] for name, volume in device.curve.bytes.items() if volume[0] and name not in ("context", "communicators")}
    assert begin == {name: size for name, size in device.resident_bytes.items() if size}
