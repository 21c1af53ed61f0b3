"""Files: the trace that Perfetto reads, the page that opens offline, and all of them whole."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from html.parser import HTMLParser

import pytest

from parsim.errors import Finding, InputError
from parsim.report import Report, ReportedAssumption
from parsim.report.page.page import page as page_of
from parsim.report.write import replacing, write_outputs


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    return Report(make_measured(run(make_pipeline(4, 8, send=0.3, optimizer=0.5)), 4, name='a "name"'))


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
    text = page_of([(report.measured.name, report)])
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
        assumptions=(ReportedAssumption(evil, evil, evil),),
        warnings=(Finding(evil, evil),),
    )
    text = page_of([(measured.name, Report(measured))])
    assert "<img" not in text
    parsed = Page()
    parsed.feed(text)
    assert not parsed.tags["img"]


def test_pages_are_deterministic(run, make_pipeline, make_measured):
    pages = {page_of([("same", Report(make_measured(run(make_pipeline(2, 4)), 2, micro_batches=4)))]) for _ in range(2)}
    assert len(pages) == 1


def test_all_files_are_written(report, tmp_path):
    directory = tmp_path / "parsim-out" / "demo"
    paths = write_outputs(report, directory, ("json", "svg", "png", "trace", "html"))
    assert [path.name for path in paths] == [
        "report.json", "timeline.svg", "memory.svg", "timeline.png", "memory.png", "trace.json.gz", "report.html",
    ]  # fmt: skip
    assert sorted(path.name for path in directory.iterdir()) == sorted(path.name for path in paths)
    assert json.loads((directory / "report.json").read_text("utf-8"))["step_time_s"] == report.step_time
    assert (directory / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    json.loads(gzip.decompress((directory / "trace.json.gz").read_bytes()))
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
