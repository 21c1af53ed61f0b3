"""Figures of several runs: bars as long as the numbers, one axis for all, the same colours as everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parsim.report.lanes import timeline_data
from parsim.report.plots import style
from parsim.report.plots.comparison import ComparedRun, breakdown_figure, collectives_figure, memory_figure, timelines_figure
from parsim.report.plots.figure import COLUMN
from parsim.report.plots.tradeoff import RunPoint, front, pareto_figure
from parsim.report.report import Report
from parsim.report.timeline import COMMUNICATION, KEYS
from parsim.report.verdict import WORDS
from parsim.run import simulate

GIB = 2**30


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {name: simulate(f"pipeline-unit-{name}") for name in ("gpipe", "1f1b", "pipedream")}


@pytest.fixture(scope="module")
def zero() -> list[ComparedRun]:
    tree = {
        "model": "gpt2", "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
        "training": {"sequence_length": 128, "global_batch": 8, "micro_batch": 4},
    }  # fmt: skip
    kept = [ComparedRun(name, simulate(tree, f"parallel.data.strategy={name}").document()) for name in ("ddp", "zero3")]
    tight = simulate(tree, "cluster.set.device.memory=1 GiB").document()
    assert tight["memory"]["fits"] is False
    return [
        *kept,
        ComparedRun("1 GiB", tight, "memory: too little"),
        ComparedRun("broken", None, "parallel.tensor.size: 3 does not divide 2"),
    ]


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle) and patch.get_width() > 0]


def row(figure: Figure, place: float) -> list[Rectangle]:
    return [bar for bar in bars(figure) if bar.get_y() < place < bar.get_y() + bar.get_height()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def entries(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_the_bars_of_a_step_are_its_breakdown(zero: list[ComparedRun]) -> None:
    figure = breakdown_figure(zero)
    assert figure.axes[0].get_xlabel() == "step time [ms]"
    for place, entry in enumerate(zero[:3]):
        assert entry.document is not None
        parts = {to_hex(bar.get_facecolor()): bar.get_width() / 1e3 for bar in row(figure, place)}
        assert sum(parts.values()) == pytest.approx(entry.document["step_time_s"])
        assert parts[style.KEYS["compute"].lower()] == pytest.approx(entry.document["breakdown_s"]["compute"])
    assert row(figure, 3) == []
    assert words(figure)[3].startswith("not simulated: parallel.tensor.size: 3 does not divide")
    assert words(figure)[2].endswith("does not fit")
    assert {bar.get_facecolor()[3] for bar in row(figure, 0)} == {1.0}
    assert {bar.get_facecolor()[3] < 0.5 for bar in row(figure, 2)} == {True}
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["ddp", "zero3", "1 GiB ✗", "broken ✗"]


def test_classes_of_one_colour_differ_in_hatch() -> None:
    looks = {(style.KEYS[key], style.KEY_HATCHES.get(key, "")) for key in KEYS}
    assert len(looks) == len(KEYS)
    assert {style.KEYS[key] for key in COMMUNICATION} == {style.VERMILION, style.PURPLE}


def test_the_legend_names_what_is_there_once(zero: list[ComparedRun]) -> None:
    known = [WORDS[key] for key in KEYS if any(one.document and one.document["breakdown_s"][key] > 0 for one in zero)]
    assert entries(breakdown_figure(zero)) == known
    assert sorted(entries(collectives_figure(zero))) == ["communication, exposed", "communication, hidden"]


def test_the_bars_of_memory_are_the_peak_and_the_line_is_the_capacity(zero: list[ComparedRun]) -> None:
    figure = memory_figure(zero[:2])
    assert figure.axes[0].get_xlabel() == "memory at the peak of a device [GiB]"
    for place, entry in enumerate(zero[:2]):
        assert entry.document is not None
        assert sum(bar.get_width() for bar in row(figure, place)) * GIB == pytest.approx(entry.document["memory"]["peak_bytes"])
    assert "capacity 79.3 GiB, far above" in entries(figure)
    # unequal capacities are marks on their own bars
    marks = [line for line in memory_figure(zero).axes[0].lines if len(line.get_xdata()) == 2]
    assert [mark.get_xdata()[0] for mark in marks] == [pytest.approx(79.25 / 80)], "what the driver leaves of 1 GiB"


def test_every_device_of_a_pipeline_has_a_bar(reports: dict[str, Report]) -> None:
    figure = memory_figure([ComparedRun(name, report.document()) for name, report in reports.items()])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:5] == ["gpipe · stage 0", "gpipe · stage 1", "gpipe · stage 2", "gpipe · stage 3", "1f1b · stage 0"]
    places = figure.axes[0].get_yticks()
    assert places[4] - places[3] > places[3] - places[2], "runs stand apart"


def test_collectives_are_grouped_by_kind_and_split_by_what_is_seen(zero: list[ComparedRun]) -> None:
    figure = collectives_figure(zero)
    for kind in ("AllGather, data", "ReduceScatter, data", "AllReduce, data"):
        assert kind in words(figure)
    total = sum(bar.get_width() for bar in bars(figure)) / 1e3
    busy = sum(one["busy_s"] for entry in zero if entry.document for one in entry.document["collectives"])
    shown = sum(one["exposed_s"] for entry in zero if entry.document for one in entry.document["collectives"])
    assert total == pytest.approx(busy)
    solid = [bar for bar in bars(figure) if bar.get_facecolor() == to_rgba(style.VERMILION)]
    assert sum(bar.get_width() for bar in solid) / 1e3 == pytest.approx(shown)


def test_timelines_stand_on_one_axis_and_end_where_they_end(reports: dict[str, Report]) -> None:
    figure = timelines_figure([(name, timeline_data(report), name != "gpipe") for name, report in reports.items()])
    assert [ax.get_xlim() for ax in figure.axes] == [(0.0, 33.0)] * 3
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["gpipe: 33 s, does not fit", "1f1b: 33 s", "pipedream: 24 s"]
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", "time [s]"]
    ends = [ax.lines[-1].get_xdata()[0] for ax in figure.axes]
    assert ends == pytest.approx([33.0, 33.0, 24.0])
    assert len(figure.legends) == 1
    assert entries(figure)[0] == "forward"
    assert len(entries(figure)) == len(set(entries(figure)))
    # what lies behind the end of the shorter one is paper, not bubble
    cover = [patch for patch in figure.axes[2].patches if to_hex(patch.get_facecolor()) == style.PAPER]
    assert [(patch.get_x(), patch.get_width()) for patch in cover] == [(pytest.approx(24.0), pytest.approx(9.0))]


@pytest.mark.parametrize("width", [COLUMN, 7.0])
def test_nothing_is_cut_off_in_print(zero: list[ComparedRun], reports: dict[str, Report], width: float) -> None:
    places = [
        RunPoint("a long name of a variant", 1.0, 30 * GIB, fits=True, capacity=80 * GIB),
        RunPoint("other", 1.01, 31 * GIB, fits=False),
    ]
    figures: list[Figure] = [
        breakdown_figure(zero, width=width), memory_figure(zero, width=width), collectives_figure(zero, width=width),
        pareto_figure(places, width=width),
        timelines_figure([(name, timeline_data(report), True) for name, report in reports.items()], width=width),
    ]  # fmt: skip
    for figure in figures:
        assert figure.get_size_inches()[0] == width
        figure.draw_without_rendering()
        paper = figure.bbox
        texts = [text for ax in figure.axes for text in (*ax.texts, ax.xaxis.label, ax.yaxis.label)]
        for ax in figure.axes:
            low, high = sorted(ax.get_ylim())
            texts += [text for text in ax.get_yticklabels() if low <= text.get_position()[1] <= high]
        texts += [text for legend in figure.legends for text in legend.get_texts()]
        for text in texts:
            box = text.get_window_extent()
            if text.get_text().strip() and text.get_visible() and not text.get_text().startswith("not simulated"):
                assert box.x0 >= paper.x0 - 1, text.get_text()
                assert box.x1 <= paper.x1 + 1, text.get_text()
                assert box.y0 >= paper.y0 - 1, text.get_text()
                assert box.y1 <= paper.y1 + 1, text.get_text()


def test_the_front_of_four() -> None:
    places = [
        RunPoint(*one, fits=fits)
        for *one, fits in [("a", 1.0, 40, True), ("b", 2.0, 30, True), ("c", 2.5, 35, True), ("d", 0.5, 90, False)]
    ]
    assert [place.label for place in front(places)] == ["a", "b"]
    figure = pareto_figure(places)
    (step,) = [line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post"]
    assert list(step.get_xdata()) == [1.0, 2.0]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("step time [s]", "peak memory [GiB]")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=12))
def test_nobody_beats_the_front(points: list[tuple[int, int, bool]]) -> None:
    places = [RunPoint(str(number), time, peak, fits) for number, (time, peak, fits) in enumerate(points)]
    best = front(places)

    def beats(one: RunPoint, other: RunPoint) -> bool:
        return one.time <= other.time and one.peak <= other.peak and (one.time, one.peak) != (other.time, other.peak)

    fitting = [place for place in places if place.fits]
    assert not any(beats(one, other) for one in fitting for other in best)
    for place in fitting:
        assert place in best or any(beats(other, place) or other[1:3] == place[1:3] for other in best)


def test_labels_do_not_cover_each_other() -> None:
    places = [RunPoint(f"variant {number}", 1.0 + number / 500, (20 + number % 2) * GIB, fits=True) for number in range(5)]
    figure = pareto_figure(places)
    figure.draw_without_rendering()
    boxes: list[Any] = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    overlapping = [(one, other) for number, one in enumerate(boxes) for other in boxes[:number] if one.overlaps(other)]
    assert not overlapping


def test_only_the_stages_that_do_not_fit_are_said_not_to(reports: dict[str, Report]) -> None:
    document = reports["gpipe"].document()
    devices = [{**device, "peak_bytes": (number + 1) * GIB} for number, device in enumerate(document["memory"]["devices"])]
    memory = {**document["memory"], "devices": devices, "capacity_bytes": 3 * GIB, "reserve_bytes": 0, "fits": False}
    figure = memory_figure([ComparedRun("gpipe", {**document, "memory": memory})])
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.00 GiB", "2.00 GiB", "3.00 GiB", "4.00 GiB, does not fit"]
    marks = [label.get_text().startswith("gpipe ✗") for label in figure.axes[0].get_yticklabels()]
    assert marks == [False, False, False, True]
