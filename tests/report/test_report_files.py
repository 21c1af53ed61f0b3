"""Files: the trace that Perfetto reads, the page that opens offline, and all of them whole."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from parsim.errors import Finding, InputError
from parsim.report import Assumption, Report
from parsim.report.chrome_trace import write_chrome_trace
from parsim.report.html import page
from parsim.report.write import replacing, write_outputs


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    return Report(make_measured(run(make_pipeline(4, 8, send=0.3, optimizer=0.5)), 4, name='a "name"'))


def written(report, **options):
    out = io.StringIO()
    result = write_chrome_trace(report, out, **options)
    return json.loads(out.getvalue()), result


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def test_slices_nest_and_ids_are_integers(report):
    document, _ = written(report)
    assert document["displayTimeUnit"] == "ms"
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        assert type(event["pid"]) is int
        if event["ph"] == "X":
            assert type(event["tid"]) is int
            tracks[event["pid"], event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"])))
    assert len(tracks) == 4 + 2 * 2 * 3
    for spans in tracks.values():
        spans.sort()
        assert all(begin + length <= following for (begin, length), (following, _) in pairwise(spans))
        assert all(length > 0 for _, length in spans)


def test_times_are_microseconds_with_three_decimals(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(2, 3, forward=1 / 3e6, backward=2 / 3e6)), 2, micro_batches=3))
    out = io.StringIO()
    write_chrome_trace(report, out)
    stamps = re.findall(r'"(?:ts|dur)":([^,}]+)', out.getvalue())
    assert stamps
    assert all(re.fullmatch(r"\d+\.\d{3}", stamp) for stamp in stamps)
    slices = [event for event in json.loads(out.getvalue())["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    assert [(event["ts"], event["dur"]) for event in slices[:2]] == [(0.0, 0.333), (0.333, 0.334)]


def test_flows_start_and_end_inside_slices(report):
    events = written(report)[0]["traceEvents"]
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    flows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]][event["ph"]] = event
            assert any(begin < event["ts"] < end and name.startswith("send") for begin, end, name in slices[event["pid"], event["tid"]])
    assert len(flows) == 2 * 3 * 8  # every activation and every gradient
    for pair in flows.values():
        assert pair["s"]["name"] == pair["f"]["name"]
        assert pair["s"]["cat"] == pair["f"]["cat"]
        assert pair["f"]["bp"] == "e"
        assert pair["s"]["pid"] != pair["f"]["pid"]
        assert pair["s"]["ts"] < pair["f"]["ts"]


def test_counters_have_one_value_and_a_unit(report):
    counters = [event for event in written(report)[0]["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} >= {"memory: activations", "memory: optimizer"}
    assert all(list(event["args"]) == ["GiB"] for event in counters)
    activations = [event["args"]["GiB"] for event in counters if event["name"] == "memory: activations" and event["pid"] == 0]
    assert max(activations) == 8.0


def test_events_carry_the_words_of_the_profiler(report):
    document, _ = written(report)
    names = {event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M" and event["name"] == "process_name"}
    assert "rank 0 · stage 0" in names
    send = next(event for event in document["traceEvents"] if event["ph"] == "X" and event["name"].startswith("send"))
    assert send["args"]["Collective name"] == "send"
    assert send["args"]["Group size"] == 2
    assert send["args"]["bytes"] == 1_000_000
    assert send["cat"] == "kernel"
    forward = next(event for event in document["traceEvents"] if event["ph"] == "X" and event["name"].startswith("F"))
    assert forward["args"]["micro-batch"] == 0


def test_what_is_left_out_is_said(report):
    document, result = written(report, most_ranks=2, most_spans=10)
    assert len(result.ranks) <= 2
    assert 0 in result.ranks
    assert document["otherData"]["spans_written"] == result.spans == sum(event["ph"] == "X" for event in document["traceEvents"])
    assert 10 <= result.spans <= 14  # those that start together stay together
    assert document["otherData"]["spans_left_out"] == result.spans_left_out > 0
    assert document["otherData"]["ranks_total"] == 4
    assert document["otherData"]["scenario"] == 'a "name"'
    only, _ = written(report, ranks=[2])
    assert {event["pid"] for event in only["traceEvents"]} == {2}
    with pytest.raises(ValueError, match="rank 9 was not simulated"):
        written(report, ranks=[9])


class Page(HTMLParser):
    """Tags in balance, ids unique, nothing fetched."""

    VOID = ("meta", "link", "br", "use", "path", "rect", "image", "stop", "input")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.tags = [], [], defaultdict(int)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        for key in ("src", "href", "xlink:href", "action"):
            assert found.get(key, "#").startswith(("#", "data:")), found[key]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_self_contained(report):
    text = page(report)
    parsed = Page()
    parsed.feed(text)
    assert not parsed.open
    assert len(parsed.ids) == len(set(parsed.ids))
    assert parsed.tags["script"] == 3  # data, uPlot, ours
    assert "default-src 'none'" in text
    assert "url(http" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    for part in (report.limiter, "38.3 s", "mfu [fraction]", "context_memory", "gpu-&gt;nvswitch", "parallel.pipeline.size"):
        assert part in text, part


def test_names_cannot_become_markup(run, make_pipeline, make_measured):
    evil = "</script><img src=x onerror=alert(1)>"
    measured = make_measured(
        run(make_pipeline(2, 2)),
        2,
        name=evil,
        micro_batches=2,
        scenario={"name": evil},
        assumptions=(Assumption(evil, evil, evil),),
        warnings=(Finding(evil, evil),),
    )
    text = page(Report(measured))
    assert "<img" not in text
    parsed = Page()
    parsed.feed(text)
    assert not parsed.tags["img"]


def test_pages_are_deterministic(run, make_pipeline, make_measured):
    pages = {page(Report(make_measured(run(make_pipeline(2, 4)), 2, micro_batches=4))) for _ in range(2)}
    assert len(pages) == 1


def test_all_files_are_written(report, tmp_path):
    directory = tmp_path / "parsim-out" / "demo"
    paths = write_outputs(report, directory, ("json", "svg", "png", "trace", "html"))
    assert [path.name for path in paths] == [
        "report.json", "timeline.svg", "memory.svg", "timeline.png", "memory.png", "trace.json", "report.html",
    ]  # fmt: skip
    assert sorted(path.name for path in directory.iterdir()) == sorted(path.name for path in paths)
    assert json.loads((directory / "report.json").read_text("utf-8"))["step_time_s"] == report.step_time
    assert (directory / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    json.loads((directory / "trace.json").read_text("utf-8"))
    again = {path.name: path.read_bytes() for path in paths}
    write_outputs(report, directory, ("json", "svg", "png", "trace", "html"))
    assert {path.name: path.read_bytes() for path in paths} == again


def test_unknown_formats_are_refused_before_anything_is_written(report, tmp_path):
    with pytest.raises(InputError, match="known: json, svg, png, trace, html"):
        write_outputs(report, tmp_path / "new", ("json", "gif"))
    assert not (tmp_path / "new").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")

    def fail():
        with replacing(path) as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]
