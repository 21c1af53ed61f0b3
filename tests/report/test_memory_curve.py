"""A thinned curve of memory is the curve, but for what happens within a bin of time."""

from __future__ import annotations

import numpy as np
import pytest

from parsim import simulate


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
