"""Figures of pipeline schedules: what is drawn is what was computed, at the width of a column, with fonts embedded."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from matplotlib.patches import Rectangle

from parsim.cli import execute
from parsim.report.plots import style
from parsim.report.plots.schedule import pgf, save_schedule, schedule_figure
from parsim.report.schedule_scene import Panel, SlotBox, brightness, label, legend_entries, scene, shaded, ticks
from parsim.study.schedule import simulate
from parsim.study.schedule_inputs import entries, times
from parsim.study.schedule_text import figure

ALL = ["gpipe", "1f1b", "interleaved", "pipedream", "zb-h1"]


def drawn(names=ALL, width=7.0, p=4, m=8, v=(2,), communication=None, overlap=True, **options):
    asked = times(communication=communication, overlap=overlap)
    results = simulate(entries(names, p, m, v), asked)
    return results, figure(results, asked, width=width, **options)


@pytest.mark.parametrize("width", [3.5, 7.0])
def test_every_rectangle_is_where_the_engine_put_its_slot(width):
    results, made = drawn(width=width)
    patches = [patch for patch in schedule_figure(made).axes[0].patches if isinstance(patch, Rectangle) and patch.get_gid()]
    expected = [(str(box.slot), box.start, box.end) for result in results for box in result.boxes]
    found = [
        (
            patch.get_gid(),
            (patch.get_x() - made.left) / made.scale,
            (patch.get_x() + patch.get_width() - made.left) / made.scale,
        )
        for patch in patches
    ]
    assert [name for name, *_ in found] == [name for name, *_ in expected]
    for (_, *times_), (_, *wanted) in zip(found, expected, strict=True):
        assert times_ == pytest.approx(wanted, abs=1e-9)


def test_rows_stand_under_each_other_in_the_order_of_ranks():
    results, made = drawn(["1f1b", "gpipe"])
    heights = [rect.y for rect in made.rects if rect.name]
    for result, number in zip(results, (0, 1), strict=True):
        own = heights[number * 64 : number * 64 + 64]
        by_rank = [{y for box, y in zip(result.boxes, own, strict=True) if box.rank == rank} for rank in range(4)]
        assert [len(one) for one in by_rank] == [1, 1, 1, 1]
        assert sorted((min(one) for one in by_rank), reverse=True) == [min(one) for one in by_rank]
    assert min(heights[:64]) > max(heights[64:])


def test_one_time_axis_for_all():
    _, made = drawn(["1f1b", "interleaved"])
    names = [rect for rect in made.rects if rect.name]
    first, second = names[:64], names[64:]
    assert max(rect.x + rect.width for rect in first) == pytest.approx(made.left + 33 * made.scale)
    assert max(rect.x + rect.width for rect in second) == pytest.approx(made.left + 28.5 * made.scale)


def test_colours_are_those_of_every_figure():
    _, made = drawn(["zb-h1"])
    fills = {rect.name[0]: rect.fill for rect in made.rects if rect.name}
    assert fills == {"F": style.ROLES["forward"].colour, "I": style.ROLES["backward"].colour, "W": style.ROLES["weight"].colour}
    idle = [rect for rect in made.rects if rect.hatch and rect.width > 1]
    assert {rect.fill for rect in idle} == {style.BUBBLE}
    assert len(idle) == 4


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_legible_in_grey():
    """Forward, backward and weight gradient differ as greys (idle is hatched besides); numbers stand out from their boxes."""
    greys = [luminance(style.ROLES[role].colour) for role in ("forward", "backward", "weight")]
    assert all(later - earlier > 0.15 for earlier, later in pairwise(greys))
    for role in ("forward", "backward", "weight"):
        for chunk in range(4):
            fill = luminance(shaded(style.ROLES[role].colour, brightness(role, chunk, 4)))
            assert abs(fill - luminance(style.ROLES[role].text)) > 0.4


def test_chunks_are_darkest_first():
    assert [round(brightness("forward", chunk, 3), 12) for chunk in range(3)] == [0.6, 0.8, 1.0]
    assert brightness("backward", 0, 1) == 1.0


@pytest.mark.parametrize(("width", "fits"), [(7.0, True), (3.5, True), (1.5, False)])
def test_numbers_of_a_kind_are_written_all_or_none(width, fits):
    _, made = drawn(["1f1b"], width=width)
    numbers = [text.text for text in made.texts if text.align == "center" and text.colour != style.INK]
    forwards = [text for text in made.texts if text.colour == style.ROLES["forward"].text]
    assert (len(forwards), len(numbers)) == ((32, 64) if fits else (0, 32))  # backwards are twice as long
    for text in forwards:
        assert text.size >= 4.0


@pytest.mark.parametrize("width", [3.5, 7.0])
def test_numbers_lie_inside_their_boxes(width):
    _, made = drawn(["interleaved"], width=width)
    boxes = [rect for rect in made.rects if rect.name]
    assert len([text for text in made.texts if text.colour == "#ffffff"]) == 64
    for text in made.texts:
        if text.colour in ("#ffffff", "#111111"):
            box = next(one for one in boxes if abs(one.x + one.width / 2 - text.x) < 1e-9 and abs(one.y + one.height / 2 - text.y) < 1e-9)
            assert 0.64 * text.size * len(text.text) / 72 <= box.width


def test_nothing_leaves_the_page():
    for width in (2.0, 3.5, 7.0, 12.0):
        _, made = drawn(width=width, communication="0.5", title="Five schedules")
        assert all(rect.x >= 0 and rect.x + rect.width <= width + 1e-9 and rect.y >= 0 for rect in made.rects)
        assert all(0 <= text.y <= made.height for text in made.texts)
        assert made.width == width


def test_labels_captions_and_counting():
    _, made = drawn(["1f1b"], labels="pass", captions=False, first=1, title="Four devices")
    words = [text.text for text in made.texts]
    assert {"Four devices", "Device 1", "Device 4", "F1", "B8"} <= set(words)
    assert not any("makespan" in word for word in words)
    _, plain = drawn(["1f1b"], labels="none")
    assert [text.text for text in plain.texts][:3] == ["1f1b: makespan 33, bubble 27.27 %", "rank 0", "rank 1"]
    assert label(SlotBox(0, "F0.0", "F", 0, 0, 1), "none") == ""


def test_messages_are_lines_or_boxes():
    _, overlapped = drawn(["1f1b"], communication="0.5")
    lines = [line for line in overlapped.lines if line.colour == style.ROLES["pipeline"].colour]
    assert len(lines) == 2 * 3 * 8
    assert {round((line.x1 - line.x0) / overlapped.scale, 9) for line in lines} == {0.5}
    results, blocking = drawn(["1f1b"], communication="0.5", overlap=False)
    purple = [rect for rect in blocking.rects if rect.fill == style.ROLES["pipeline"].colour and not rect.hatch]
    assert len(purple) == 2 * len(results[0].messages) + 1  # the legend's
    assert len(results[0].messages) == 48


def test_legend():
    def words(*names, **options):
        results, _ = drawn(list(names), **options)
        panels = [
            Panel("", (), tuple(SlotBox(0, str(b.slot), b.slot.kind, 0, b.start, b.end, b.chunk, r.entry.virtual) for b in r.boxes), 1.0)
            for r in results
        ]
        return [name for name, *_ in legend_entries(panels)]

    assert words("1f1b") == ["forward", "backward", "idle"]
    assert words("zb-h1") == ["forward", "backward input", "weight gradient", "idle"]
    assert words("1f1b", "zb-h1") == ["forward", "backward, or its input part", "weight gradient", "idle"]
    assert words("interleaved")[-1] == "(darker: earlier chunk)"


@pytest.mark.parametrize(
    ("end", "most", "last"), [(33.0, 8, 30.0), (28.5, 12, 27.5), (0.0331, 8, 0.03), (1000.0, 5, 1000.0), (7.0, 1, 0.0)]
)
def test_ticks_are_round(end, most, last):
    found = ticks(end, most)
    assert found[0] == 0
    assert len(found) <= most + 1
    assert found[-1] <= end * (1 + 1e-9)
    if last != 27.5:
        assert found[-1] == pytest.approx(last)


def test_pdf_has_the_width_of_the_column_and_its_fonts():
    _, made = drawn(width=3.5)
    data = save_schedule(made, "pdf")
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", data)
    assert box is not None
    assert float(box[1]) == 3.5 * 72
    assert float(box[2]) == pytest.approx(made.height * 72, abs=0.01)
    assert b"/FontFile2" in data  # TrueType, subset and embedded
    assert b"/Subtype /Type3" not in data
    assert data == save_schedule(made, "pdf")


def test_svg_draws_letters_as_outlines_and_names_slots():
    _, made = drawn(["1f1b"], width=3.5)
    root = ET.fromstring(save_schedule(made, "svg"))
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("width") == "252pt"
    assert not list(root.iter(f"{space}text"))
    assert {f"{kind}{rank}.{i}" for kind in "FB" for rank in range(4) for i in range(8)} <= {
        one.get("id") for one in root.iter(f"{space}g")
    }
    assert save_schedule(made, "png")[:4] == b"\x89PNG"


def test_pgf():
    _, made = drawn(["1f1b"], width=3.5, title="50 % of A & B_1 {x} \\ ~ ^ $ #")
    code = pgf(made)
    named = re.findall(r"\\draw\[fill=\w+,draw=\w+,line width=0\.4pt\] \(([\d.]+),[\d.]+\) rectangle \(([\d.]+),[\d.]+\); % (\S+)", code)
    assert len(named) == 64
    spans = {name: ((float(x0) - made.left) / made.scale, (float(x1) - made.left) / made.scale) for x0, x1, name in named}
    assert spans["B0.0"] == pytest.approx((10, 12), abs=2e-3)
    assert spans["B3.7"] == pytest.approx((25, 27), abs=2e-3)
    assert r"50 \% of A \& B\_1 \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{} \$ \#" in code
    assert r"\useasboundingbox (0,0) rectangle (3.5000," in code
    bare = re.sub(r"\\[{}]", "", code)
    assert bare.count("{") == bare.count("}")
    used = set(re.findall(r"parsim\d+", code))
    assert used == set(re.findall(r"\\definecolor\{(parsim\d+)\}", code))
    assert code.count(r"\begin{tikzpicture}") == code.count(r"\end{tikzpicture}") == 1


def test_empty_pieces_are_no_trouble():
    made = scene([Panel("", ("rank 0",), (SlotBox(0, "F0.0", "F", 0, 0.0, 0.0),), 0.0)], width=3.0, unit="ms")
    assert save_schedule(made, "svg").startswith(b"<?xml")


def test_all_formats_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "1f1b gpipe -p 4 -m 8 --width 8.6cm --pdf a.pdf --out b.svg --out c.pgf --out d.png --count-from 1"
    assert execute(["schedule", *line.split()]) == 0
    assert capsys.readouterr().out.endswith("\nWrote a.pdf, b.svg, c.pgf, d.png\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pdf", "b.svg", "c.pgf", "d.png"]
    assert "Device 4" in (tmp_path / "c.pgf").read_text(encoding="utf-8")
    root = ET.parse(tmp_path / "b.svg").getroot()
    assert float(root.get("width").removesuffix("pt")) == pytest.approx(8.6 / 2.54 * 72, rel=1e-5)
