"""Periods of a step, found in its trace: exact numbers of small schedules."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from parsim import simulate
from parsim.report import Report
from parsim.report.lanes import timeline_data
from parsim.report.plots.figure import rounded
from parsim.report.plots.sheet import timeline_figure
from parsim.report.repeats import groups_of, repeats
from parsim.report.shortened import short_axis, shortened
from parsim.report.timeline import Timeline
from parsim.report.write import timeline_picture, write_outputs
from parsim.simulation.trace import Trace


def found(report):
    facts = report.measured.schedule
    return repeats(report.timeline, report.timeline.ranks, report.begin, report.end, groups_of(facts.stages, facts.virtual_stages))


@pytest.mark.parametrize(("micro_batches", "count"), [(16, 12), (40, 36)])
def test_1f1b_repeats_a_forward_and_a_backward(micro_batches, count):
    # F = 1 s, B = 2 s, four stages: the first backward ends on stage 0 at 4 F + 4 B = 12 s; before it begins the last warm-up pass is over
    (one,) = found(simulate("pipeline-unit-1f1b", f"training.global_batch={micro_batches}"))
    assert one.micro_batches == 1
    assert one.period == pytest.approx(3.0, rel=1e-12)
    assert one.count == count == micro_batches - 4
    assert one.begin == pytest.approx(10.0, rel=1e-12)
    assert one.end == pytest.approx(10.0 + 3.0 * count, rel=1e-12)


def test_interleaved_repeats_groups_as_large_as_the_pipeline():
    (one,) = found(simulate("pipeline-unit-interleaved", "training.global_batch=40"))
    assert (one.micro_batches, one.count) == (4, 8)  # of 40 the first and the last group fill and drain
    assert one.period == pytest.approx(4 * 3.0, rel=1e-12)  # two chunks of 0.5 + 1 s for each


def test_gpipe_repeats_forwards_and_then_backwards():
    # stage 3 begins at 3 s; stage 0 has sent its 40th forward at 40 s. Backwards the other way round, 2 s each, from 43 s on
    forward, backward = found(simulate("pipeline-unit-gpipe", "training.global_batch=40"))
    assert (forward.period, forward.begin, forward.end) == pytest.approx((1.0, 3.0, 40.0), rel=1e-12)
    assert (backward.period, backward.begin, backward.end) == pytest.approx((2.0, 49.0, 123.0), rel=1e-12)
    assert (forward.count, backward.count) == (37, 37)


def test_few_micro_batches_and_unequal_ones_repeat_nothing():
    assert found(simulate("pipeline-unit-1f1b", "training.global_batch=5")) == ()
    assert found(simulate("gpt2-ddp-4x-a100")) == ()


def jittered(run, make_pipeline):
    """A trace whose periods differ by a part in a thousand."""
    trace = run(make_pipeline(4, 120))
    late = [[time + 0.01 * math.sin(time) for time in times] for times in (trace.start, trace.end)]
    return Trace(trace.program, *late, {}, events=trace.events)


def test_a_jittered_trace_repeats_nothing(run, make_pipeline):
    even, uneven = Timeline(run(make_pipeline(4, 120))), Timeline(jittered(run, make_pipeline))
    (one,) = repeats(even, even.ranks, 0.0, even.makespan)
    assert (one.begin, one.period, one.count) == pytest.approx((10.0, 3.0, 116))
    assert repeats(uneven, uneven.ranks, 0.0, uneven.makespan) == ()


def test_what_breaks_ends_a_stretch():
    pause = "variability={slow: [{rank: 0, speed: 0, from: 70 s, to: 73 s}]}"
    report = simulate("pipeline-unit-1f1b", "training.global_batch=40", pause).shown
    one, two = found(report)
    assert report.end == pytest.approx(132.0)
    assert one.end <= 70.0 + 1e-9
    assert two.begin >= 73.0 - 1e-9
    assert one.period == pytest.approx(3.0)
    assert two.period == pytest.approx(3.0)


# pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(name="long", scope="module")
def long_fixture():
    """Ends at 3 * (120 + 3) s."""
    return simulate("pipeline-unit-1f1b", "training.global_batch=120")


def texts(figure):
    return [text.get_text() for text in (*figure.texts, *(text for ax in figure.axes for text in ax.texts))]


def test_a_period_is_drawn_once_and_the_figure_says_so(long):
    data = timeline_data(long)
    axis = short_axis(data, 500.0)
    assert axis is not None
    assert axis.shown == ((0.0, pytest.approx(13.0)), (pytest.approx(358.0), pytest.approx(369.0)))  # 10 + 3, 10 + 116 * 3
    (gap,) = axis.breaks
    assert gap.text == "× 116, 3 s each"
    # what is drawn lasts as long as it is wide, and the drain begins where the gap ends
    assert axis.at([0.0, 10.0, 13.0]).tolist() == pytest.approx([0.0, 10.0, 13.0])
    assert axis.at([358.0, 369.0]).tolist() == pytest.approx([gap.right, gap.right + 11.0])
    drawn = shortened(data, axis)
    assert [box.micro_batch for box in drawn.lanes[0].boxes if not box.cut and box.kind == "B"] == [0, 116, 117, 118, 119]
    for before, after in zip(data.lanes, drawn.lanes, strict=True):  # less the 115 periods of 1 s forward and 2 s backward
        for role, each in (("forward", 1.0), ("backward", 2.0)):
            assert before.compute[role].seconds - after.compute[role].seconds == pytest.approx(115 * each)
    shown = texts(timeline_figure(data, 7.0))
    assert "× 116, 3 s each" in shown
    assert any("cut: of 116 equal periods from 10 s to 358 s one is drawn" in text for text in shown)
    assert len(timeline_picture(long)) < 200_000


def test_a_narrow_period_is_drawn_larger(long):
    axis = short_axis(timeline_data(long), 200.0)
    assert axis is not None
    (begin, end), (left, right) = axis.pieces[1], axis.places[1]
    assert right - left == pytest.approx(_times(axis.note) * (end - begin), rel=0.05)


def _times(note):
    return float(note.rsplit(", ", 1)[1].split(" times")[0]) if " times as wide" in note else 1.0


def test_whoever_asks_for_a_window_gets_all_of_it(long):
    data = timeline_data(long, window="0%:100%")
    assert short_axis(data, 100.0) is None
    assert not any("cut:" in text for text in texts(timeline_figure(data, 7.0)))


def test_without_a_period_the_first_and_the_last_part_are_drawn(run, make_pipeline, make_measured):
    report = Report(make_measured(jittered(run, make_pipeline), 4))
    data = timeline_data(report)
    axis = short_axis(data, 500.0)
    assert axis is not None
    (first, last) = axis.shown
    readable = 500.0 / 8.0 / 240 * report.end  # 240 passes, 8 points each
    assert first == (0.0, pytest.approx(readable / 2))
    assert last == (pytest.approx(report.end - readable / 2), pytest.approx(report.end))
    assert "no equal periods" in axis.note
    assert any(text.endswith(" not drawn") for text in texts(timeline_figure(data, 7.0)))


def test_svg_paths_become_short_and_stay_where_they_are():
    rect = b'<path d="M 1.004 2.5 \nL 1.004 4.256 \nL 3.9 4.256 \nL 3.9 2.5 \nz \n" style="fill: #009e73"/>'
    other = b'<path d="M 5 2.5 L 6 3.5 L 6 2.5 z" style="fill: #009e73"/>'
    blue = other.replace(b"#009e73", b"#0072b2")
    assert rounded(rect + b"\n  " + other + blue) == (
        b'<path d="M1 2.5V4.26H3.9V2.5zM5 2.5L6 3.5V2.5z" style="fill: #009e73"/><path d="M5 2.5L6 3.5V2.5z" style="fill: #0072b2"/>'
    )


def test_the_files_of_a_long_step_are_small(long, tmp_path):
    paths = write_outputs(long, tmp_path, ("json", "svg", "html"))
    assert sum(path.stat().st_size for path in paths) < 1_000_000
    for path in paths:
        if path.suffix == ".svg":
            ElementTree.parse(path)
