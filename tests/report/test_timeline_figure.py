"""The timeline as people draw it in papers: what stands where, checked against the trace and the report."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from parsim import simulate
from parsim.errors import InputError
from parsim.report import Report
from parsim.report.lanes import timeline_data
from parsim.report.plots import style
from parsim.report.plots.figure import save
from parsim.report.plots.sheet import timeline_figure
from parsim.report.plots.timeline import COMPUTE, draw_timeline, hidden_style, idle_style, lane_pitch, legend_handles
from parsim.report.quantities import time_unit
from parsim.report.selection import choose, first_of_stages, inches, named, read_ranks, window_of
from parsim.report.timeline import KEYS

SCENARIOS = (
    "pipeline-unit-1f1b", "pipeline-unit-interleaved", "pipeline-unit-pipedream", "custom-schedule", "gpt2-xl-gpipe-4x-v100",
    "gpt2-ddp-straggler", "llama-7b-zero3-8x-a100", "llama-7b-zero3-offload-2x-rtx-3090", "gpt3-22b-8x-a100",
)  # fmt: skip


@cache
def report_of(name: str) -> Report:
    return simulate(name)


def rectangles(axes, label: str) -> list[tuple[float, float, float, float]]:
    """(begin, width, top, height) of everything that was drawn under a name, in the units of the axes."""
    found = []
    for collection in axes.collections:
        if collection.get_label() == f"_{label}":
            for path in collection.get_paths():
                (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append((x0, x1 - x0, y0, y1 - y0))
    return found


def lengths(axes, label: str, top: float) -> float:
    return sum(width for _, width, y, _ in rectangles(axes, label) if y == pytest.approx(top))


@pytest.mark.parametrize("name", ["pipeline-unit-1f1b", "pipeline-unit-gpipe", "custom-schedule"])
def test_boxes_stand_where_the_trace_says(name):
    report = report_of(name)
    data = timeline_data(report)
    axes = timeline_figure(data, 7.0).axes[0]
    timeline, factor = report.timeline, time_unit(report.end).factor
    for number, rank in enumerate(timeline.ranks):
        for role in ("forward", "backward"):
            ops = [index for index in timeline.lane(rank).tolist() if style.role("compute", timeline.program.ops[index].name) == role]
            expected = [(timeline.start[op] / factor, (timeline.end[op] - timeline.start[op]) / factor) for op in ops]
            top = number * lane_pitch(data)
            drawn = [
                (x, width) for x, width, y, height in rectangles(axes, role) if y == pytest.approx(top) and height == pytest.approx(COMPUTE)
            ]
            assert np.array(drawn) == pytest.approx(np.array(expected))
    # every pass has its number in its middle
    numbers = sorted((round(text.get_position()[0], 9), text.get_text()) for text in axes.texts if text.get_text().isdigit())
    boxes = sorted((round((b.begin + b.end) / 2 / factor, 9), str(b.micro_batch)) for lane in data.lanes for b in lane.boxes)
    assert numbers == boxes


@pytest.mark.parametrize("name", SCENARIOS)
def test_bubbles_are_as_long_as_the_report_says(name):
    report = report_of(name)
    data = timeline_data(report)
    scale = report.step_time / (report.end - report.begin)
    for lane in data.lanes:
        row = report.breakdowns[lane.rank]
        bubble = lane.idle["bubble"].seconds if "bubble" in lane.idle else 0.0
        assert bubble * scale == pytest.approx(row["bubble"], rel=1e-9, abs=1e-12)
        # compute and everything that is not compute fill the row without a gap
        busy = sum(bars.seconds for bars in lane.compute.values())
        assert busy + sum(bars.seconds for bars in lane.idle.values()) == pytest.approx(report.end - report.begin, rel=1e-9)
        for key in ("tensor_comm", "data_comm", "offload"):
            if key in lane.idle:
                assert lane.idle[key].seconds * scale == pytest.approx(row[key], rel=1e-9)


def test_bubbles_are_drawn_as_long_as_they_are():
    report = report_of("pipeline-unit-1f1b")  # (p - 1)(F + B) = 9 of 33 s on every rank
    data = timeline_data(report)
    axes = timeline_figure(data, 3.5).axes[0]
    for number in range(4):
        assert lengths(axes, "bubble", number * lane_pitch(data)) == pytest.approx(9.0)


@pytest.mark.parametrize("name", ["llama-7b-zero3-8x-a100", "gpt2-ddp-straggler", "gpt3-22b-8x-a100"])
def test_exposed_and_hidden_are_those_of_the_collectives(name):
    """And of the copies around them that a sharded strategy runs on streams of its own."""
    report = report_of(name)
    timeline, rank = report.timeline, report.breakdown_rank
    lane = timeline_data(report, [rank]).lanes[0]
    for axis in ("data", "tensor"):
        rows = [row for row in report.collectives if row.axis == axis]
        if rows:
            key = f"{axis}_comm"
            ops = timeline.not_computing(rank)
            ops = ops[timeline.kind[ops] == KEYS.index(key)]
            copies = np.array([op for op in ops.tolist() if timeline.program.ops[op].collective is None], dtype=int)
            collectives, compute = np.setdiff1d(ops, copies), timeline.lane(rank)
            exposed = alone(timeline, collectives, compute)
            assert exposed == pytest.approx(sum(row.exposed_s for row in rows), rel=1e-9)
            assert lane.exposed[key].seconds == pytest.approx(alone(timeline, ops, compute), rel=1e-9)
            copied = (timeline.end[copies] - timeline.start[copies]).sum()
            assert lane.beside[key].seconds == pytest.approx(sum(row.busy_s for row in rows) + copied, rel=1e-9)
            assert (copied > 0) == (name == "llama-7b-zero3-8x-a100")


def alone(timeline, ops, compute) -> float:
    """Seconds in which any of `ops` runs and no other of `compute`, stretch by stretch between the moments at which something changes."""
    compute = np.setdiff1d(compute, ops)
    edges = np.unique(np.concatenate([timeline.start[ops], timeline.end[ops], timeline.start[compute], timeline.end[compute]]))
    running = []
    for part in (ops, compute):
        begun, ended = (np.searchsorted(np.sort(column[part]), edges[:-1], side="right") for column in (timeline.start, timeline.end))
        running.append(begun > ended)
    return float(np.diff(edges)[running[0] & ~running[1]].sum())


def test_exposed_lies_solid_on_hidden_in_the_figure():
    report = report_of("gpt2-ddp-straggler")
    data = timeline_data(report)
    axes = timeline_figure(data, 7.0).axes[0]
    factor = time_unit(report.end).factor
    for number, lane in enumerate(data.lanes):
        top = number * lane_pitch(data) + COMPUTE
        assert lengths(axes, "communication", top) * factor == pytest.approx(lane.exposed["data_comm"].seconds)
        assert lengths(axes, "communication, hidden", top) * factor == pytest.approx(lane.beside["data_comm"].seconds)
    solid, pale = ([c for c in axes.collections if c.get_label() == label] for label in ("_communication", "_communication, hidden"))
    assert min(c.get_zorder() for c in solid) > max(c.get_zorder() for c in pale)
    assert {c.get_hatch() for c in solid} == {None}
    assert {c.get_hatch() for c in pale} == {style.HIDDEN_HATCH}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.sampled_from(["custom-schedule", "gpt2-ddp-straggler"]))
def test_windows_are_pieces_of_the_whole(cuts, name):
    report = report_of(name)
    edges = sorted({0.0, report.end, *(cut * report.end for cut in cuts)})
    whole = timeline_data(report)
    for number, lane in enumerate(whole.lanes):
        parts = [timeline_data(report, window=pair, memory=False).lanes[number] for pair in pairwise(edges) if pair[1] - pair[0] > 1e-9]
        for kind in ("compute", "idle", "exposed"):
            for key, bars in getattr(lane, kind).items():
                pieces = [getattr(part, kind)[key].seconds for part in parts if key in getattr(part, kind)]
                assert sum(pieces) == pytest.approx(bars.seconds, rel=1e-6, abs=1e-8)


def test_a_window_clips_everything():
    report = report_of("custom-schedule")
    figure = timeline_figure(timeline_data(report, window="10s:20s"), 7.0)
    lanes, memory = figure.axes
    assert lanes.get_xlim() == (10.0, 20.0)
    for axes in (lanes, memory):
        for collection in axes.collections:
            vertices = np.concatenate([path.vertices for path in collection.get_paths()])
            assert vertices[:, 0].min() >= 10.0 - 1e-9
            assert vertices[:, 0].max() <= 20.0 + 1e-9
    # the level at the left edge is the one that was there before it: 5 micro-batches of 1 GiB on rank 0, and the context
    highest = max(collection.get_paths()[0].vertices[:, 1].max() for collection in memory.collections)
    assert highest == pytest.approx(5.5, abs=0.03)


def test_numbers_are_there_for_all_of_a_kind_or_for_none():
    for width in (2.5, 3.5, 7.0, 12.0):
        data = timeline_data(report_of("gpt2-xl-gpipe-4x-v100"))
        axes = timeline_figure(data, width).axes[0]
        written = sum(text.get_text().isdigit() for text in axes.texts)
        assert written in (0, 32, 64)  # 8 micro-batches of 4 stages: none, backward, both
        if width == 3.5:
            assert written == 32


def test_later_chunks_of_an_interleaved_pipeline_are_lighter_below():
    report = report_of("pipeline-unit-interleaved")
    data = timeline_data(report)
    axes = timeline_figure(data, 7.0).axes[0]
    later = [box for lane in data.lanes for box in lane.boxes if box.chunk == 1]
    assert len(later) == 4 * 8 * 2  # ranks x micro-batches x (F and B)
    bands = rectangles(axes, "later chunk")
    assert sum(width for _, width, _, _ in bands) == pytest.approx(sum(box.end - box.begin for box in later))
    assert "lighter below: later model chunk" in [handle.get_label() for handle in legend_handles([data])]


def test_colours_differ_in_grey_or_by_their_hatch():
    compute = [style.ROLES[name] for name in ("forward", "backward", "weight", "recompute", "optimizer", "other", "launch")]
    compute += [idle_style("bubble"), idle_style("data_comm")]
    for a, b in combinations(compute, 2):
        assert abs(style.grey(a.colour) - style.grey(b.colour)) >= 10.0 or a.hatch != b.hatch, (a.label, b.label)
    for name in ("communication", "pipeline", "offload", "optimizer"):
        exposed, hidden = style.ROLES[name], hidden_style(style.ROLES[name])
        assert style.grey(hidden.colour) - style.grey(exposed.colour) >= 15.0
        assert exposed.hatch != hidden.hatch
    assert style.grey("#ffffff") == pytest.approx(100.0)
    assert style.grey("#000000") == 0.0
    assert style.grey("#777777") == pytest.approx(50.0, abs=0.1)  # mid grey


def test_the_same_colour_means_the_same_in_every_figure():
    plot = report_of("gpt2-ddp-straggler").plot
    for figure, name in (
        (plot.timeline(), "data comm., exposed"),
        (plot.collectives(), "communication, exposed"),
        (plot.breakdown(), "data communication"),
    ):
        (patch,) = [
            handle
            for legend in figure.legends
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True)
            if text.get_text() == name
        ]
        assert to_hex(patch.get_facecolor()) == style.VERMILION.lower()
    assert style.KEYS["compute"] == style.ROLES["forward"].colour
    assert style.KEYS["recompute"] == style.ROLES["recompute"].colour
    assert style.KEYS["optimizer"] == style.ROLES["optimizer"].colour
    assert all(
        style.KEYS[f"{axis}_comm"] == style.beside(f"{axis}_comm").colour for axis in ("tensor", "data", "context", "expert", "pipeline")
    )


@pytest.mark.parametrize("width", [3.5, 7.0, 12.0])
@pytest.mark.parametrize("name", ["gpt2-xl-gpipe-4x-v100", "llama-7b-zero3-offload-2x-rtx-3090", "gpt2-ddp-straggler"])
def test_nothing_is_cut_off_or_lies_on_something_else(name, width):
    figure = timeline_figure(timeline_data(report_of(name)), width)
    assert figure.get_size_inches()[0] == width
    figure.draw_without_rendering()
    sheet = figure.bbox
    boxes = [artist.get_window_extent() for artist in (*figure.legends, *figure.texts)]
    # with what stands around the axes' frame: names of lanes, ticks, the name of the time axis
    boxes += [axes.get_tightbbox() for axes in figure.axes]
    for box in boxes:
        assert box.x0 >= sheet.x0 - 1 and box.x1 <= sheet.x1 + 1 and box.y0 >= sheet.y0 - 1 and box.y1 <= sheet.y1 + 1  # noqa: PT018
    for a, b in combinations(boxes, 2):
        overlap = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert overlap <= 3.0, (a, b)
    assert min(text.get_fontsize() for axes in figure.axes for text in axes.texts) >= 5.0


def test_pdf_holds_its_fonts_as_truetype_and_no_date():
    figures = [timeline_figure(timeline_data(report_of("custom-schedule")), 3.5) for _ in range(2)]
    first, second = (save(figure, "pdf") for figure in figures)
    assert first == second
    assert first.startswith(b"%PDF")
    assert b"/FontFile2" in first
    assert b"/Type3" not in first
    assert b"CreationDate" not in first
    svg = save(figures[0], "svg")
    assert svg == save(figures[1], "svg")
    assert b"<text" not in svg  # outlines: the same on every machine
    assert b"<text" in save(figures[0], "svg", inline=True)


def test_savefig_gives_the_bytes_of_the_command(tmp_path):
    figure = report_of("custom-schedule").plot.timeline(width="89mm")
    figure.savefig(tmp_path / "a.pdf")
    figure.savefig(str(tmp_path / "b.pdf"))
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes() == save(figure, "pdf")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_widths_of_journals():
    assert inches("3.5in") == inches("252pt") == inches(3.5) == 3.5
    assert inches("89 mm") == pytest.approx(3.50394, abs=1e-5)
    assert inches("8.9cm") == inches("89mm")
    for wrong in ("wide", "", "-3in", "3 parsec", "0.2in", "90in", "nan"):
        with pytest.raises(InputError) as caught:
            inches(wrong)
        assert caught.value.findings[0].path == "width"


def test_windows_as_people_write_them():
    report = report_of("pipeline-unit-1f1b")
    assert window_of(report, None) == (0.0, 33.0)
    assert window_of(report, "10s:20s") == (10.0, 20.0)
    assert window_of(report, "500ms:") == (0.5, 33.0)
    assert window_of(report, ":0.5min") == (0.0, 30.0)
    assert window_of(report, "0%:50 %") == (0.0, 16.5)
    assert window_of(report, (None, 2)) == (0.0, 2.0)
    assert window_of(report, "0s:33.1s") == (0.0, 33.0)  # a step is shown with three digits


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("5s", "two times with a colon"),
        ("1s:2s:3s", "two times with a colon"),
        ("20s:10s", "the window ends at 10 s and begins at 20 s; swap its ends"),
        ("5s:5s", "make it longer"),
        ("1s:50s", "the window ends at 50 s, the step takes 33 s"),
        ("40s:50s", "the window begins at 40 s, the step takes 33 s"),
        ("33s:", "make it longer"),
        ("1:2", "has no unit"),
        ("1GB:2s", "is a size in B, expected a time in s"),
        ((float("nan"), 2.0), "nan is no time"),
        ("-1s:2s", "is negative"),
        ("x%:50%", "could not convert"),
    ],
)
def test_windows_that_are_none(window, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        window_of(report_of("pipeline-unit-1f1b"), window)
    assert {finding.path for finding in caught.value.findings} == {"window"}


def test_a_steady_window_is_cut_on_its_own_axis():
    report = report_of("pipeline-unit-pipedream")
    assert report.begin > 0.0
    assert window_of(report, "0%:50%") == pytest.approx((report.begin, (report.begin + report.end) / 2))
    with pytest.raises(InputError, match="the figure shows"):
        window_of(report, (0.0, report.begin / 2))


def test_ranks_as_people_write_them():
    assert read_ranks("0,8, 16-18") == [0, 8, 16, 17, 18]
    assert read_ranks("3,3,1") == [3, 1]
    for wrong in ("", "a", "1,,2", "-1", "5-3", "1.5"):
        with pytest.raises(InputError, match="is no rank"):
            read_ranks(wrong)


def test_representatives_say_what_they_stand_for():
    straggler = report_of("gpt2-ddp-straggler")
    assert [who.label for who in named(straggler, choose(straggler, 16))] == ["rank 0 · 1 of 7 equal", "rank 5 · computes most · ends last"]
    # a folded rank is drawn from the one that was simulated in its place
    (who,) = named(straggler, [3])
    assert (who.rank, who.simulated, who.name, who.equal) == (3, 0, "rank 3", 7)
    assert timeline_data(straggler, [3]).lanes[0].exposed.keys() == timeline_data(straggler, [0]).lanes[0].exposed.keys()
    with pytest.raises(InputError, match=r"the job has no rank 8.*its ranks are 0-7(.|\n)*no rank 9"):
        named(straggler, [8, 1, 9])
    gpipe = report_of("gpt2-xl-gpipe-4x-v100")
    assert first_of_stages(gpipe) == [0, 1, 2, 3]
    assert [who.notes for who in named(gpipe, [0, 1, 3])] == [("ends last",), (), ("computes most", "least memory left")]


def test_too_many_stages_keep_those_that_matter(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(40, 2)), 40, micro_batches=2))
    ranks = choose(report, 16)
    assert len(ranks) <= 16
    assert ranks == sorted(ranks)
    assert {0, 39, report.bottleneck_rank, report.breakdown_rank, report.worst_device.rank} <= set(ranks)
    assert choose(report, 60) == list(range(40))


def test_several_reports_share_one_time_axis():
    gpipe, custom = report_of("pipeline-unit-gpipe"), report_of("custom-schedule")
    figure = Figure(figsize=(7, 4))
    above, below = figure.subplots(2, 1, sharex=True)
    span = (0.0, max(gpipe.end, custom.end))
    datas = [draw_timeline(axes, report, [0, 3], span=span, size=8.0) for axes, report in ((above, gpipe), (below, custom))]
    assert above.get_xlim() == below.get_xlim() == (0.0, 39.0)
    labels = [handle.get_label() for handle in legend_handles(datas)]
    assert len(labels) == len(set(labels))
    assert {"forward", "backward", "bubble", "p2p, exposed"} <= set(labels)
    assert [label.get_text() for label in above.get_yticklabels()] == [lane.who.label for lane in datas[0].lanes]
    assert draw_timeline(below, custom, window="1s:2s").begin == 1.0


def test_every_figure_has_its_name(capsys):
    report = report_of("gpt2-ddp-straggler")
    for figure in (report.plot.memory, report.plot.breakdown, report.plot.collectives, report.plot.links, report.plot.timeline):
        assert figure(width="3.5in").get_size_inches()[0] == 3.5
        with pytest.raises(InputError, match="is no width"):
            figure(width="x")
    assert "timeline, memory, breakdown, collectives, links" in repr(report.plot)
    assert report.plot.memory(rank=3).axes[0].get_ylabel() == "rank 0 [GiB]"
    bars = report.plot.breakdown(ranks=[5]).axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(report.step_time / 1e-3)
    links = report.plot.links().axes[0].patches
    assert max(bar.get_width() for bar in links) == pytest.approx(100 * max(row.utilisation for row in report.links))
    collectives = sum(bar.get_width() for bar in report.plot.collectives().axes[0].patches)
    unit = time_unit(max(row.busy_s for row in report.collectives)).factor
    assert collectives * unit == pytest.approx(sum(row.busy_s for row in report.collectives))


def test_a_notebook_gets_no_scripts_and_no_hostile_names(run, make_pipeline, make_measured):
    evil = "<script>alert('x')</script>&\"'><img src=x onerror=y>"
    report = Report(replace(make_measured(run(make_pipeline(4, 8, send=0.3)), 4), name=evil))
    shown = report._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown
    assert "&lt;script&gt;" in shown
    assert "<svg" in shown
    assert not re.search(r"(?:src|href)=[\"'](?!#)", shown)
    assert "var(--" not in shown
    assert "currentColor" not in shown
    ids = re.findall(r'\bid="([^"]+)"', shown)
    assert len(ids) == len(set(ids))
    other = Report(make_measured(run(make_pipeline(4, 7, send=0.3)), 4, micro_batches=7))._repr_html_()
    assert not set(ids) & set(re.findall(r'\bid="([^"]+)"', other))
    assert len(shown) < 700_000
    assert repr(report) == f"{evil}: {report.verdict}"


def test_recomputation_within_blocks_leaves_a_backward_one_box():
    report = report_of("gpt3-22b-8x-a100")  # selective recomputation: kernels of attention between those of the block
    (lane,) = timeline_data(report).lanes
    assert [(box.kind, box.micro_batch) for box in lane.boxes] == [("F", 0), ("B", 0)]
    backward = lane.boxes[1]
    assert backward.role == "backward"
    assert lane.compute["recompute"].seconds == pytest.approx(report.breakdown["recompute"])
    assert "other" not in lane.compute


def test_a_steady_window_moved_to_zero_keeps_every_row_together():
    data = timeline_data(simulate("gpt2-xl-gpipe-4x-v100", "parallel.pipeline.schedule=pipedream"))
    moved = data.from_zero()
    assert data.begin > 0.0
    assert moved.begin == 0.0
    assert moved.end == data.end - data.begin
    rows = ("compute", "idle", "beside", "exposed")
    assert any(lane.idle for lane in data.lanes)
    for before, after in zip(data.lanes, moved.lanes, strict=True):
        assert [box.begin for box in after.boxes] == pytest.approx([box.begin - data.begin for box in before.boxes])
        for row in rows:
            assert list(getattr(after, row)) == list(getattr(before, row))
            for key, bars in getattr(before, row).items():
                assert getattr(after, row)[key].begin == pytest.approx(bars.begin - data.begin)
                assert getattr(after, row)[key].end == pytest.approx(bars.end - data.begin)
    assert moved.from_zero() is moved
