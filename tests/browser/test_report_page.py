"""report.html in a real browser: quick, quiet, offline, and every hand on the timeline does what it says."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib

import pytest

pytestmark = pytest.mark.browser


def compute_row(opened, label):
    """Centre of the compute row of a rank [px]; scrolled into view."""
    box = opened.plot()
    rows = json.loads(opened.page.locator("#timeline").get_attribute("data-rows"))
    _, _, _, top, height = next(row for row in rows if row[1] == label and row[2] == "compute")
    return box["y"] + top + height / 2


def longest_op(report, rank, name, instance):
    """The longest op of a name on the compute lane."""
    ops = [report.timeline.program.ops[i] for i in report.timeline.lane(rank)]
    return max((op for op in ops if (op.name, op.instance) == (name, instance)), key=lambda op: op.duration)


def test_sixteen_stages_are_a_small_page_and_open_on_a_part(open_page, pipeline):
    report, path = pipeline
    assert path.stat().st_size < 1_000_000
    opened = open_page(path)
    assert opened.requests == [path.as_uri()]
    assert opened.complaints == []
    # 128 micro-batches cannot be read at once: it opens on the fill of the pipeline and one of the equal periods
    (one,) = report.repeats
    assert opened.view()[0] == pytest.approx(0.0, abs=0.01 * report.step_time)
    assert opened.view()[1] == pytest.approx(one.begin + one.period, rel=1e-6)
    assert one.count > 90
    for button, window in (("period", (one.begin, one.begin + one.period)), ("drain", (one.end - one.period, 1.004 * report.step_time))):
        opened.page.locator(f"[data-do={button}]").click()
        opened.until(lambda window=window: opened.view() == pytest.approx(window, rel=1e-6), button)
    opened.page.locator("[data-do=all]").click()
    opened.until(lambda: opened.view()[1] == pytest.approx(report.step_time, rel=0.01), "the whole step")


def test_ten_numbers_are_those_of_the_document(open_page, pipeline):
    report, path = pipeline
    opened, document = open_page(path), json.loads(report.to_json())
    for key in (
        "step_time_s", "mfu", "hfu", "memory.peak_bytes", "bubble_fraction", "tokens_per_s_per_gpu", "samples_per_s", "breakdown_s.compute",
        "breakdown_s.tensor_comm", "critical_path_s.recompute", "collectives.0.exposed_s", "memory.devices.15.at_peak.activations",
    ):  # fmt: skip
        expected = document
        for part in key.split("."):
            expected = expected[int(part)] if isinstance(expected, list) else expected[part]
        shown = opened.page.locator(f'[data-key="{key}"]').first
        assert json.loads(shown.get_attribute("data-v")) == expected, key
    tile = opened.page.locator('.tile [data-key="estimate.step_time_s"]').inner_text()
    assert tile == f"{document['estimate']['step_time_s']:.3g} s"
    assert float(tile.split()[0]) == pytest.approx(document["estimate"]["step_time_s"], rel=0.003)
    assert opened.page.locator('.tile [data-key="estimate.mfu"]').inner_text() == f"{100 * document['estimate']['mfu']:.0f} %"


def test_zooming_moves_both_charts(open_page, pipeline):
    _, path = pipeline
    opened = open_page(path)
    page, whole = opened.page, opened.whole()
    box = opened.plot()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 100)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    opened.until(lambda: page.evaluate("scrollY") > before, "a plain wheel scrolls the page")
    assert opened.view() == whole
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    opened.until(lambda: opened.view()[1] - opened.view()[0] < 0.5 * (whole[1] - whole[0]), "ctrl and wheel zoom")
    # the pointer stays on its time
    fixed = whole[0] + 0.25 * (whole[1] - whole[0])
    begin, end = opened.view()
    assert begin + 0.25 * (end - begin) == pytest.approx(fixed, abs=0.002 * (whole[1] - whole[0]))
    assert opened.view(".chart") == opened.view("#timeline .stuck") == opened.view()
    page.locator("[data-do=all]").click()
    opened.until(lambda: opened.view() == whole, "all of it")
    memory = page.locator(".chart .u-over")
    memory.scroll_into_view_if_needed()
    box = memory.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=4)
    page.mouse.up()
    opened.until(lambda: opened.view() != whole, "a range dragged in the memory chart")
    assert opened.view()[0] == pytest.approx(whole[0] + 0.5 * (whole[1] - whole[0]), rel=0.01)
    assert opened.view()[1] == pytest.approx(whole[0] + 0.6 * (whole[1] - whole[0]), rel=0.01)
    assert opened.view(".chart") == opened.view()
    assert opened.complaints == []


def test_hovering_says_what_when_how_much_and_why(open_page, pipeline):
    report, path = pipeline
    opened = open_page(path)
    opened.whole()
    page = opened.page
    op = longest_op(report, 0, "F0 layer 3", 0)
    begin, end = float(report.timeline.start[op.index]), float(report.timeline.end[op.index])
    y = compute_row(opened, "stage 0")
    tip = page.locator(".tip")
    page.mouse.move(opened.at((begin + end) / 2), y)
    opened.until(tip.is_visible, "a tooltip")
    assert re.match(r"(forward|backward) [FB]0 · micro-batch 0 \(\d+ ops\) · stage 0, compute", tip.inner_text())
    # close up, the kernel itself
    box = opened.plot()
    for _ in range(40):
        if opened.view()[1] - opened.view()[0] < 20 * (end - begin):
            break
        width = opened.view()[1] - opened.view()[0]
        page.mouse.move(opened.at((begin + end) / 2, box), y)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        opened.until(lambda width=width: opened.view()[1] - opened.view()[0] < width, "zoom")
    page.mouse.move(opened.at((begin + end) / 2) + 1, y)
    opened.until(lambda: tip.is_visible() and "F0 layer 3" in tip.inner_text(), "the kernel's tooltip")
    lines = tip.inner_text().split("\n")
    assert len(lines) == 4
    assert lines[0] == "F0 layer 3 · micro-batch 0 · stage 0, compute (ranks 0-7)"
    length = f"{1e3 * (end - begin):.4g} ms" if end - begin >= 2e-3 else f"{round(1e6 * (end - begin)):,} µs"
    assert f"takes {length}" in lines[1]
    assert "% of the step" in lines[1]
    flop, _ = report.timeline.program.work[op.name, op.duration]
    assert flop > 1e11
    assert f"{flop / 1e9:.0f} GFLOP" in lines[2]
    assert "device memory" in lines[2]
    assert lines[3].startswith("waited for ")
    page.mouse.move(10, 10)
    opened.until(tip.is_hidden, "it goes with the pointer")


def test_clicking_follows_dependencies_back_to_the_start(open_page, pipeline):
    report, path = pipeline
    opened = open_page(path)
    opened.whole()
    page, details = opened.page, opened.page.locator("#details")
    last = report.timeline.program.slots[0][-1]
    assert last[0] == "B"
    group = [i for i in report.timeline.lane(0) if report.timeline.program.ops[i].name.startswith("optimizer")]
    begin = float(report.timeline.start[group[0]])
    page.mouse.click(opened.at(0.5 * (begin + float(report.timeline.end[group[0]]))), compute_row(opened, "stage 0"))
    opened.until(lambda: details.get_attribute("data-chain"), "a selection")
    text = details.inner_text()
    assert re.search(r"a chain of [\d,]+ causes back to zero gradients .* on stage 0, compute, which waits for nothing", text), text
    assert int(details.get_attribute("data-chain")) > 1_000
    # cause after cause, time never runs forward
    until = float(details.get_attribute("data-start"))
    for _ in range(20):
        page.locator("[data-do=previous]").click()
        assert float(details.get_attribute("data-end")) <= until + 1e-9
        until = float(details.get_attribute("data-start"))
    page.locator("[data-do=next]").click()
    assert float(details.get_attribute("data-start")) >= until
    page.locator("[data-do=clear]").click()
    assert details.get_attribute("data-chain") is None
    page.locator("[data-do=critical]").click()
    assert page.locator("[data-do=critical]").get_attribute("aria-pressed") == "true"
    assert int(details.get_attribute("data-chain")) > 1_000
    assert opened.complaints == []


def test_the_keyboard_is_enough(open_page, pipeline):
    report, path = pipeline
    opened = open_page(path)
    page, details = opened.page, opened.page.locator("#details")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "timeline":
            break
    assert page.evaluate("document.activeElement.id") == "timeline"
    assert page.locator("#timeline").evaluate("element => getComputedStyle(element).outlineWidth") == "3px"
    page.keyboard.press("0")
    opened.until(lambda: opened.view()[1] >= report.step_time, "the whole step")
    whole = opened.view()
    page.keyboard.press("w")
    zoomed = opened.until(lambda: opened.view() if opened.view() != whole else None, "w zooms")
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (whole[1] - whole[0]), rel=1e-6)
    page.keyboard.press("d")
    moved = opened.until(lambda: opened.view() if opened.view() != zoomed else None, "d pans")
    assert moved[0] - zoomed[0] == pytest.approx(0.2 * (zoomed[1] - zoomed[0]), rel=1e-6)
    page.keyboard.press("0")
    opened.until(lambda: opened.view() == whole, "0 shows all")
    page.keyboard.press("ArrowRight")
    first = opened.until(lambda: details.get_attribute("data-span"), "arrows select")
    page.keyboard.press("ArrowRight")
    second = opened.until(
        lambda: details.get_attribute("data-span") not in (None, first) and details.get_attribute("data-span"), "the next"
    )
    assert int(second) == int(first) + 1
    page.keyboard.press("ArrowDown")
    assert "stage 1" in details.inner_text()
    page.keyboard.press("Enter")
    assert "stage 0" in details.inner_text() or "stage 1" in details.inner_text()
    page.keyboard.press("f")
    opened.until(lambda: opened.view() != whole, "f fits")
    page.keyboard.press("Escape")
    assert details.get_attribute("data-span") is None
    before = opened.view()
    page.locator("#theme").focus()
    page.keyboard.press("w")
    page.wait_for_timeout(60)
    assert opened.view() == before  # letters act only while the timeline has the focus


def pixels(png):
    """The colours of a screenshot (8-bit RGB or RGBA, as Chromium writes it)."""
    data, place, rows = b"", 8, []
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        chunk = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", chunk[:10])
        data += chunk if kind == b"IDAT" else b""
        place += 12 + length
    import numpy as np
    from matplotlib.image import imread

    assert zlib.decompress(data)
    assert colour in (2, 6)
    rows = np.rint(imread(io.BytesIO(png))[..., :3] * 255).astype(int).reshape(-1, 3)
    assert len(rows) == width * height
    return rows


def share_of(rows, colour):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((abs(rows - wanted).max(axis=1) <= 3).mean())


def test_dark_mode_keeps_the_palette_and_changes_the_paper(open_page, small):
    _, path = small
    opened = open_page(path)
    page = opened.page
    papers = {"light": "#ffffff", "dark": "#14171b"}
    seen = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # without loading the page again
        page.wait_for_timeout(150)
        rows = pixels(page.locator("#timeline").screenshot())
        seen.append(share_of(rows, papers[scheme]))
        for colour in ("#0072B2", "#E69F00", "#009E73"):
            assert share_of(rows, colour) > 0.01, (scheme, colour)
    assert min(seen) > 0.2
    page.locator("#theme").click()
    page.wait_for_timeout(150)
    assert share_of(pixels(page.locator("#timeline").screenshot()), papers["light"]) > 0.2
    assert opened.complaints == []


def test_print_and_forced_colours(open_page, small):
    _, path = small
    opened = open_page(path, color_scheme="dark")
    page = opened.page
    assert page.pdf().startswith(b"%PDF-")
    page.emulate_media(media="print")
    assert page.locator("body").evaluate("element => getComputedStyle(element).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".controls").first.is_hidden()
    page.emulate_media(media="screen", forced_colors="active")
    colour = page.locator("#breakdown .swatch").first.evaluate("element => getComputedStyle(element).backgroundColor")
    assert colour == "rgb(0, 114, 178)"


def test_a_name_that_is_markup_stays_a_name(open_page, small):
    report, path = small
    opened = open_page(path)
    assert report.measured.name == "</script><img src=x onerror=alert(1)>"
    assert opened.page.locator("h1").inner_text() == report.measured.name
    assert opened.page.locator("img").count() == 0
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_tables_sort_by_number(open_page, small):
    _, path = small
    opened = open_page(path)
    head = opened.page.locator("#collectives th", has_text="Busy")

    def values():
        return [float(v) for v in opened.page.locator('#collectives [data-key$=".busy_s"]').evaluate_all("c => c.map(x => x.dataset.v)")]

    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(values())
    assert len(values()) == 3


def test_without_scripts_the_answers_are_there(open_page, small):
    report, path = small
    opened = open_page(path, java_script_enabled=False)
    text = opened.page.inner_text("body")
    for line in (*report.headline.lines, report.headline.band, report.limiter, report.loss):
        assert line in text, line
    assert "need scripts" in text
    for table in ("#breakdown", "#devices", "#collectives", "#links", "svg.topology"):
        assert opened.page.locator(table).is_visible(), table
    assert opened.page.locator("#assumptions").is_hidden()
    opened.page.locator("summary", has_text="Assumptions (").click()
    assert opened.page.locator("#assumptions").is_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_three_lines_a_badge_and_contents(open_page, small, width):
    report, path = small
    opened = open_page(path, viewport={"width": width, "height": 844})
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") == width  # nothing overflows
    lines = page.locator(".verdict .line").all_inner_texts()
    assert [line.removeprefix("✓ ") for line in lines] == list(report.headline.lines)
    badge = page.locator(".verdict .badge")
    assert badge.is_visible()
    assert badge.inner_text() == report.measured.confidence.status
    shown, folded = page.locator("nav.contents"), page.locator("details.contents")
    assert (shown.is_visible(), folded.is_visible()) == (width > 1000, width < 1000)
    if width < 1000:
        assert folded.get_attribute("open") is None
        folded.locator("summary").click()
    links = (shown if width > 1000 else folded).locator("a")
    titles = links.all_inner_texts()
    assert titles.index("Where the step goes") < titles.index("Memory") < titles.index("What the numbers mean")
    for number in range(links.count()):
        target = links.nth(number).get_attribute("href")
        assert page.locator(target).count() == 1, target
    links.nth(titles.index("What the numbers mean")).click()
    opened.until(page.locator("#def-mfu").is_visible, "a link opens the part that it leads to")
    assert opened.complaints == []


def test_the_structure_is_readable_aloud(open_page, small):
    _, path = small
    tree = open_page(path).page.locator("body").aria_snapshot()
    for part in ('heading "Timeline"', 'heading "Memory"', 'columnheader "Busy', 'application "Timeline of the step by rank'):
        assert part in tree, part


def test_two_runs_share_one_axis(open_page, small, tmp_path):
    from parsim import load, simulate
    from parsim.report.page.page import page as html_of

    report, _ = small
    other = simulate(load("scenarios/gpt2-ddp-4x-a100.yaml", "parallel.data.strategy=zero3"))
    path = tmp_path / "comparison.html"
    path.write_text(html_of([("ddp", report), ("zero3", other)]), "utf-8")
    opened = open_page(path)
    rows = json.loads(opened.page.locator("#timeline").get_attribute("data-rows"))
    assert {row[0] for row in rows} == {0, 1}
    assert opened.view()[1] == pytest.approx(max(report.step_time, other.step_time), rel=0.01)
    assert opened.page.locator(".chart").count() == 2
    box = opened.plot()
    compute = [row for row in rows if row[2] == "compute"]
    tip = opened.page.locator(".tip")
    for number, run in enumerate((report, other)):
        opened.page.mouse.move(opened.at(0.03 * run.step_time, box), box["y"] + compute[number][3] + 10)
        opened.until(tip.is_visible, "a tooltip in each run")
    assert opened.complaints == []


def test_a_comparison_of_long_steps_opens_where_passes_can_be_read(open_page, pipeline, small, tmp_path):
    from parsim.report.page.comparison import Banner
    from parsim.report.page.page import page as html_of

    (long, _), (short, _) = pipeline, small
    path = tmp_path / "comparison.html"
    path.write_text(html_of([("long", long), ("short", short)], banner=Banner("short wins", (), winners=["short"])), "utf-8")
    opened = open_page(path)
    (one,) = long.repeats
    assert opened.view()[1] == pytest.approx(one.begin + one.period, rel=1e-6)
    opened.page.locator("[data-do=period]").click()
    opened.until(lambda: opened.view() == pytest.approx((one.begin, one.begin + one.period), rel=1e-6), "one period")
    assert opened.page.locator("[data-do=drain]").is_hidden()
    opened.whole()
    assert opened.view()[1] == pytest.approx(long.step_time, rel=0.01)
    heads = opened.page.locator("#metrics thead th")
    assert [("marked" in (head.get_attribute("class") or "")) for head in heads.all()] == [False, False, True]
    assert heads.nth(2).inner_text() == "★ short"
    assert opened.page.locator("#metrics .badge").all_inner_texts() == [run.measured.confidence.status for run in (long, short)]
    assert opened.complaints == []
