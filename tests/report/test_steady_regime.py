"""Schedules that never flush: the period, not the makespan, is their step time."""

from __future__ import annotations

import pytest

from parsim.report.steady import first_makespan, steady_period
from parsim.report.timeline import Timeline, breakdown


def test_pipedream_has_makespan_33_and_period_3(run, make_pipeline):
    """p = 4, m = 8, tF = 1, tB = 2: 33 s started empty, then one micro-batch per 3 s (arXiv:1806.03377)."""
    timeline = Timeline(run(make_pipeline(4, 32)))
    window = steady_period(timeline, 8)
    assert window.exact
    assert window.period == pytest.approx(3.0, rel=1e-12)
    assert window.micro_batches == 8
    assert window.end - window.begin == pytest.approx(24.0)
    assert window.step_time(8) == pytest.approx(24.0)
    assert window.scale(16) == 2.0
    assert first_makespan(timeline, 8) == 33.0


def test_there_is_no_bubble_in_the_steady_window(run, make_pipeline):
    timeline = Timeline(run(make_pipeline(4, 32)))
    window = steady_period(timeline, 8)
    for rank in timeline.ranks:
        row = breakdown(timeline, rank, window.begin, window.end)
        assert row["compute"] == pytest.approx(24.0)
        assert row["bubble"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("stages", "period"), [(2, 3.5), (4, 3.75), (8, 3.875)])
def test_latency_bounds_the_period_by_the_window_of_micro_batches(run, make_pipeline, stages, period):
    """Little's law: p micro-batches per round trip, period = tF + tB + 2 (p - 1) c / p."""
    window = steady_period(Timeline(run(make_pipeline(stages, 80, send=0.5))), 8)
    assert window.exact
    assert window.period == pytest.approx(period, rel=1e-9)


def test_a_run_that_does_not_repeat_itself_is_averaged(run, make_pipeline):
    program = make_pipeline(2, 24)
    program = program.with_durations([op.duration * (1.0 + 0.01 * ((op.instance * 7919) % 13)) for op in program.ops])
    window = steady_period(Timeline(run(program)), 8)
    assert not window.exact
    assert window.period == pytest.approx(3.0 * 1.06, rel=0.02)


def test_too_short_a_run_is_refused(run, make_pipeline):
    with pytest.raises(ValueError, match="simulate more"):
        steady_period(Timeline(run(make_pipeline(4, 3))))
