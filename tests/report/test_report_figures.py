"""What stands on the axes, not how its pixels look."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from parsim.errors import InputError
from parsim.program.program import Lane, Program
from parsim.report import Report
from parsim.report.lanes import MOST_RANKS, Bars, rank_lanes, timeline_data
from parsim.report.plots import style
from parsim.report.plots.figure import save
from parsim.report.plots.memory import plot_memory, plot_peaks
from parsim.report.plots.sheet import timeline_figure
from parsim.report.plots.timeline import RASTERISE, plot_timeline
from parsim.report.selection import Representative, choose
from parsim.report.timeline import Timeline, breakdown
from parsim.report.write import memory_picture, timeline_picture

GIB = 2**30


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    return Report(make_measured(run(make_pipeline(4, 8, send=0.3, optimizer=0.5)), 4))


def test_roles_follow_the_letters_of_the_schedule():
    assert [style.role("compute", name) for name in ("F3 layer 17", "B0 head", "I2 x", "W2 x", "F layer", "R1 x")] == [
        "forward", "backward", "backward", "weight", "forward", "recompute",
    ]  # fmt: skip
    assert style.role("compute", "Finish gradients") == "other"
    assert style.role("compute", "weight version") == "other"
    assert style.role("recompute", "R3 layer 17") == "recompute"
    assert style.role("pipeline_comm", "send F1") == "pipeline"
    assert style.role("data_comm", "bucket 0") == "communication"
    assert style.role("launch", "host") == "other"
    assert set(style.ROLES) >= {"forward", "backward", "weight", "recompute", "optimizer", "other", "communication", "pipeline", "offload"}


def test_lanes_are_the_breakdown_drawn(overlap):
    timeline = Timeline(overlap)
    lanes, row = rank_lanes(timeline, Representative(0, 0), 0.0, 18.0), breakdown(timeline, 0)
    length = {key: float((bars.end - bars.begin).sum()) for key, bars in lanes.compute.items()}
    assert length == {"forward": 4.0, "recompute": 1.0, "backward": 4.0, "optimizer": 1.0}
    exposed = {key: float((bars.end - bars.begin).sum()) for key, bars in lanes.exposed.items()}
    assert exposed["data_comm"] == row["data_comm"] == 5.0
    assert exposed["tensor_comm"] == row["tensor_comm"] == 1.0
    assert len(lanes.beside["data_comm"]) == 3
    forward, backward = lanes.boxes
    assert (forward.begin, forward.end, forward.micro_batch, forward.solid) == (0.0, 4.0, 0, True)
    # recomputation belongs to its backward
    assert (backward.begin, backward.end, backward.kind, backward.role, backward.solid) == (5.0, 10.0, "B", "backward", False)


def test_gaps_separate_bars_but_not_boxes(run):
    program = Program()
    for rank, name, wait in ((0, "F0 layer 0", 0.0), (0, "F0 layer 1", 0.0), (0, "F0 layer 2", 5.0)):
        needs = [program.add("wait", "offload", (Lane(rank, "copy"),), duration=wait)] if wait else []
        program.add(name, "compute", (Lane(rank, "compute"),), needs, 1.0)
    lanes = rank_lanes(Timeline(run(program)), Representative(0, 0), 0.0, 6.0)
    assert lanes.compute["forward"].begin.tolist() == [0.0, 5.0]
    assert lanes.compute["forward"].end.tolist() == [2.0, 6.0]
    (box,) = lanes.boxes
    assert (box.begin, box.end, box.solid) == (0.0, 6.0, False)


def test_coverage_is_an_average():
    bars = Bars(np.array([0.0, 0.5, 2.0]), np.array([1.0, 1.5, 2.25]))
    assert bars.coverage(np.array([0.0, 1.0, 2.0, 3.0])).tolist() == [1.0, 0.5, 0.25]


def test_the_axes_hold_every_pass_with_its_number(report):
    axes = timeline_figure(timeline_data(report)).axes[0]
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    assert sorted(numbers) == sorted(str(i) for i in range(8) for _ in range(2 * 4))
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0 · stage 0\nends last\nleast memory left", "rank 1 · stage 1", "rank 2 · stage 2", "rank 3 · stage 3",
    ]  # fmt: skip
    assert axes.get_xlim() == (0.0, report.step_time)
    drawn = {to_hex(collection.get_facecolor()[0]) for collection in axes.collections}
    colours = {style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.BUBBLE, style.WAITING}
    assert drawn >= {colour.lower() for colour in colours}


def test_axes_of_the_caller_are_used(report):
    axes = Figure().add_subplot()
    assert plot_timeline(timeline_data(report), axes) is axes
    assert axes.get_xlabel() == "time [s]"
    assert axes.get_legend() is not None


def test_numbers_that_do_not_fit_are_left_out_together(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(4, 200)), 4, micro_batches=200))
    axes = timeline_figure(timeline_data(report, window="0%:100%")).axes[0]
    assert not [text for text in axes.texts if text.get_text().isdigit()]


def test_thousands_of_bars_become_averages(run, make_measured):
    program = Program()
    for i in range(RASTERISE):
        program.add("F0 x" if i % 2 else "B0 x", "compute", (Lane(0, "compute"),), duration=1e-3, instance=i)
        if not i % 2:
            program.add("copy", "data_comm", (Lane(0, "data"),), duration=2e-3)
    report = Report(make_measured(run(program), 1))
    data = timeline_data(report, window="0%:100%")
    assert data.bars > RASTERISE
    axes = timeline_figure(data).axes[0]
    (image,) = axes.images
    mixed = (np.array([0x00, 0x72, 0xB2]) + np.array([0xE6, 0x9F, 0x00])) / 2 / 255
    assert np.abs(np.asarray(image.get_array())[0].mean(axis=0) - mixed).max() < 0.01
    # all of it is hidden: the pale steps fill the row, and there are no others
    (pale,) = axes.collections
    assert (pale.get_label(), pale.get_hatch()) == ("_communication, hidden", style.HIDDEN_HATCH)
    heights = pale.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((1.0, 1.42))
    assert any("averaged" in text.get_text() for text in axes.figure.texts)
    assert len(save(axes.figure)) < 300_000


def test_too_many_ranks_are_represented(run, make_pipeline, make_measured):
    stages = MOST_RANKS + 4
    report = Report(make_measured(run(make_pipeline(stages, 2)), stages, micro_batches=2))
    ranks = choose(report, MOST_RANKS)
    assert len(ranks) <= MOST_RANKS
    assert {0, stages - 1, report.breakdown_rank, report.bottleneck_rank} <= set(ranks)
    assert timeline_data(report).note == f"{len(ranks)} of {stages} classes of equal ranks"
    assert [lane.rank for lane in timeline_data(report, [5, 7]).lanes] == [5, 7]
    with pytest.raises(InputError, match="the job has no rank 99"):
        timeline_data(report, [99])


def test_memory_is_stacked_in_gib_under_its_capacity(report):
    device = report.measured.memory.devices[0]
    axes = plot_memory(device.curve, capacity=40 * GIB, rank=0, until=report.end)
    assert axes.get_ylabel() == "memory of rank 0 [GiB]"
    tops = [collection.get_paths()[0].vertices[:, 1].max() for collection in axes.collections]
    assert tops == pytest.approx([0.5, 2.5, 4.5, 16.5, 24.5])
    assert max(collection.get_paths()[0].vertices[:, 0].max() for collection in axes.collections) == pytest.approx(report.end)
    assert [line.get_ydata()[0] for line in axes.lines] == [24.5, 40.0]
    assert {"capacity 40.0 GiB", "24.5 GiB"} <= {text.get_text() for text in axes.texts}
    assert axes.get_ylim()[1] > 40.0


def test_a_capacity_far_above_does_not_flatten_the_picture(report):
    device = report.measured.memory.devices[0]
    axes = plot_memory(device.curve, capacity=200 * GIB, used=30 * GIB)
    assert axes.get_ylim()[1] == pytest.approx(1.3 * 30)
    texts = {text.get_text() for text in axes.texts}
    assert {"capacity 200.0 GiB, far above", "most in use 30.0 GiB, with what the allocator caches; without it 24.5 GiB"} <= texts


def test_peaks_are_one_bar_per_class(report):
    devices = report.measured.memory.devices
    axes = plot_peaks(devices, [str(device.rank) for device in devices], capacity=40 * GIB)
    ends = {}
    for bar in axes.patches:
        ends[round(bar.get_y(), 2)] = max(ends.get(round(bar.get_y(), 2), 0.0), bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([24.5, 23.5, 22.5, 21.5])
    assert axes.get_xlabel() == "memory at the peak [GiB]"


def test_equal_reports_give_equal_bytes(run, make_pipeline, make_measured):
    files = []
    for _ in range(2):
        report = Report(make_measured(run(make_pipeline(4, 8, send=0.3)), 4, name="对比 demo"))
        files.append((timeline_picture(report), memory_picture(report)))
    assert files[0] == files[1]
    assert files[0][0].startswith(b"<?xml")
    assert b"<dc:date>" not in files[0][0]


def test_figures_without_memory_or_time(run, make_measured):
    from parsim.report import MemoryFacts

    report = Report(make_measured(run(Program()), 1, memory=MemoryFacts(GIB, ()), classes=()))
    assert timeline_data(report).lanes == ()
    assert len(timeline_figure(timeline_data(report)).axes) == 1
