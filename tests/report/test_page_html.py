"""The page says what the document says: every number carries its key and its value in full."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from parsim import load, simulate
from parsim.report import Report
from parsim.report.communication import LinkRow
from parsim.report.page.metrics import ESTIMATES, METRICS, difference, relative
from parsim.report.page.page import data_of, page
from parsim.report.page.topology import STEPS, topology
from parsim.report.plots import style
from parsim.report.wiring import wiring_of
from parsim.scenario.build import build


class Numbers(HTMLParser):
    """data-key -> data-v."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if "data-key" in named and "data-v" in named:
            self.found[named["data-key"]] = named["data-v"]


def numbers(text):
    parser = Numbers()
    parser.feed(text)
    return parser.found


def lookup(document, key):
    for part in key.split("."):
        if document is None:
            return None
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


@pytest.fixture(name="report", scope="module")
def report_fixture():
    return simulate(load("scenarios/llama-7b-zero3-8x-a100.yaml"))


def test_every_number_is_the_one_of_the_document(report):
    document = json.loads(report.to_json())
    found = numbers(page([("run", report)]))
    own = {key: value for key, value in found.items() if key != "exposed_communication"}
    assert len(own) > 60
    for key, value in own.items():
        expected = lookup(document, key)
        assert json.loads(value) == expected if not isinstance(expected, str) else value == expected, key
    for key in ("step_time_s", "mfu", "memory.peak_bytes", "bubble_fraction", "breakdown_s.compute", "critical_path_s.compute"):
        assert key in own
    assert any(key.startswith("collectives.0.") for key in own)
    assert any(key.startswith("links.") for key in own)
    assert any(key.startswith("memory.devices.0.at_peak.") for key in own)
    assert float(found["exposed_communication"]) * report.step_time == pytest.approx(report.breakdown["data_comm"], rel=1e-12)


def test_texts_are_formatted_from_the_same_numbers(report):
    text = page([("run", report)])
    for metric in (ESTIMATES if report.estimate.of == "bands" else METRICS)[:2]:
        value = lookup(report.document(), metric.key)
        assert f'data-key="{metric.key}" data-v="{value!r}">{metric.text(value)}<' in text


def test_the_scenario_says_where_each_value_was_written(report):
    text = page([("run", report)])
    assert '<td class="word">parallel.data.strategy</td>' in text
    assert "llama-7b-zero3-8x-a100.yaml:" in text
    row = text[text.index(">training.dropout<") :][:200]
    assert ">default<" in row


def test_a_comparison_shows_both_and_what_changed(report):
    other = simulate(load("scenarios/llama-7b-zero3-8x-a100.yaml", "parallel.data.strategy=zero1"))
    text = page([("zero3", report), ("zero1 <b>", other)])
    found = numbers(text)
    for number, run in enumerate((report, other)):
        document = json.loads(run.to_json())
        for metric in METRICS:
            if metric.key != "exposed_communication" and lookup(document, metric.key) is not None:
                assert json.loads(found[f"{number}.{metric.key}"]) == lookup(document, metric.key)
        assert found[f"{number}.breakdown_s.compute"] == repr(run.breakdown["compute"])
    assert relative(report.step_time, other.step_time) in text
    assert "zero1 &lt;b&gt;" in text
    assert '<td class="word">parallel.<wbr>data.<wbr>strategy</td><td class="word">zero3</td><td class="word">zero1</td>' in text
    assert len(data_of(text)["columns"]) == 2
    assert page([("zero3", report), ("zero1 <b>", other)]) == text


def test_a_page_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one report"):
        page([])


def test_differences_are_points_for_shares_and_percent_for_the_rest():
    by_key = {metric.key: metric for metric in METRICS}
    assert difference(by_key["mfu"], 0.4, 0.45) == "+5.0 points"
    assert difference(by_key["mfu"], 0.4, 0.4) == "="
    assert difference(by_key["step_time_s"], 2.0, 1.0) == "-50.0 %"
    assert difference(by_key["memory.headroom_bytes"], 4.0, 8.0) == "+100.0 %"
    assert difference(by_key["memory.headroom_bytes"], -4.0, 4.0) == "–"  # the two values say it
    assert difference(by_key["step_time_s"], 1.0, 1.0001) == "≈"
    assert difference(by_key["tokens_per_s"], None, 1.0) == "–"


def test_links_are_folded_but_the_hot_one_stays(report, make_measured, run, make_pipeline):
    wiring = wiring_of(build(load("scenarios/gpt3-175b-1024x-a100.yaml")).cluster)
    assert (wiring.machines, wiring.parts["gpu"], wiring.switches) == (128, 8, {"leaf": 56, "spine": 1})
    assert {wires.name: wires.count for wires in wiring.between} == {
        "nic->leaf": 1024,
        "leaf->nic": 1024,
        "leaf->spine": 56,
        "spine->leaf": 56,
    }
    measured = make_measured(run(make_pipeline(2, 2)), 2, micro_batches=2, wiring=lambda: wiring)
    busy = Report(measured)
    busy.links = [
        LinkRow("nic->leaf", "ib-hdr", 1023, 2.4e10, 1e9, 0.12, 0.0),
        LinkRow("nic->leaf", "ib-hdr", 1, 2.4e10, 8e9, 0.97, 0.5),
        LinkRow("gpu->nvswitch", "nvlink3", 1024, 2.4e11, 1e9, 0.60, 0.0),
    ]
    svg = topology(busy)
    assert svg.count('data-link="nic-&gt;leaf') == 2  # the hot one, and the others
    assert "NIC ×8" in svg
    assert "leaf ×56" in svg
    assert "one of 128 machines" in svg
    hot = svg[svg.index('data-link="nic-&gt;leaf') :]
    assert f'stroke="{STEPS[5][1]}" stroke-width="5.0"' in hot[:500]
    assert f'stroke="{STEPS[3][1]}"' in svg[svg.index('data-link="gpu-&gt;nvswitch') :][:500]


def test_both_directions_of_a_link_are_drawn_as_busy_as_they_are():
    """Folding names a class of links after one of them: the others carry the same, and are not idle."""
    scenario = load(
        {
            "model": {"base": "gpt2", "layers": 4},
            "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
            "training": {"global_batch": 4, "micro_batch": 1, "sequence_length": 128},
            "parallel": {"tensor": {"size": 4}, "pipeline": {"size": 2}},
        }
    )
    folded, whole = (re.findall("<title>(.*?)</title>", topology(simulate(scenario, unfolded=each))) for each in (False, True))
    used = {title.partition(":")[0].replace("-&gt;", ">"): title.partition(": ")[2] for title in folded}
    assert used["gpu>nvswitch and nvswitch>gpu"].startswith("16 × nvlink3")
    assert "busiest used 0 %" not in used["gpu>nvswitch and nvswitch>gpu"]
    assert used["nic>pcie and pcie>nic"] == used["gpu>pcie and pcie>gpu"]
    assert used["nic>leaf and leaf>nic"].startswith("16 × ib-hdr")
    assert used["cpu>cpu"].startswith("4 × ")
    assert folded == whole


def test_colours_are_those_of_the_figures(report):
    import base64
    import gzip

    facts = json.loads(gzip.decompress(base64.b64decode(data_of(page([("run", report)]))["facts"])))
    roles = facts["styles"]["roles"]
    assert {name: look["colour"] for name, look in roles.items()} == {name: look.colour for name, look in style.ROLES.items()}
    categories = facts["styles"]["categories"]
    assert {name: look["colour"] for name, look in categories.items()} == {name: look.colour for name, look in style.CATEGORIES.items()}
    assert all(len(look["colour"]) == 7 for look in (*roles.values(), *categories.values()))  # the page parses six digits


def test_vendored_files_are_the_published_ones():
    import base64
    import hashlib

    folder = files("parsim.report") / "assets"
    vendor = json.loads((folder / "VENDOR.json").read_text("utf-8"))
    assert (vendor["name"], vendor["version"], vendor["license"]) == ("uplot", "1.6.32", "MIT")
    for name, digest in vendor["files"].items():
        found = hashlib.sha512((folder / name).read_bytes()).digest()
        assert digest == f"sha512-{base64.b64encode(found).decode()}", name
    assert set(vendor["files"]) == {"uplot.min.js", "uplot.min.css", "uplot.LICENSE"}


def test_the_licence_is_in_every_page(report):
    assert "Copyright (c) 2022 Leon Sorokin" in page([("run", report)])
