"""`parsim.schedule`: the same as `parsim schedule`, in Python's words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim import schedule, theory
from parsim.cli import execute
from parsim.errors import PlanError


def test_it_is_what_the_command_prints(capsys):
    command = [
        "schedule",
        "1f1b",
        "interleaved",
        "-p",
        "4",
        "-m",
        "8",
        "-v",
        "2",
        "--times",
        "F=1,B=2",
        "--comm",
        "0.5",
        "--activation",
        "1 GiB",
    ]
    assert execute(command) == 0
    text = capsys.readouterr().out
    assert execute([*command, "--json"]) == 0
    found = schedule("1f1b", "interleaved", p=4, m=8, v=2, times={"F": 1, "B": 2}, comm=0.5, activation="1 GiB")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.document()))
    assert repr(found) == text.rstrip("\n")


def test_it_is_a_sequence_with_labels():
    found = schedule("gpipe", "interleaved", p=4, m=8, v=[2, 4], times="F=1,B=2")
    assert found.labels == ("gpipe", "interleaved v=2", "interleaved v=4")
    assert [result.makespan for result in found] == [33.0, 28.5, 26.25]
    assert len(found) == 3
    assert found["interleaved v=4"] is found[2]
    with pytest.raises(KeyError, match="there are gpipe, interleaved v=2"):
        found["interleaved"]


def test_lists_units_and_factors_mean_what_they_mean_on_the_command_line():
    by_list = schedule("1f1b", p=4, m=8, times={"F": [1, 1, 2, 1], "B": [2, 2, 4, 2]})
    by_factor = schedule("1f1b", p=4, m=8, times={"F": 1, "B": 2}, stage_times=[1, 1, 2, 1])
    assert by_list[0].makespan == by_factor[0].makespan > 33
    timed = schedule("1f1b", p=4, m=8, times={"F": "1 ms", "B": "2 ms"})
    assert timed.unit == "s"
    assert timed[0].makespan == pytest.approx(0.033, rel=1e-12)
    assert schedule("1f1b", p=4, m=8, comm=0.5, overlap_sends=False)[0].blocking


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b", "naive"]), st.integers(1, 6), st.integers(1, 12), st.sampled_from([0.25, 1.0, 3.0]))
def test_the_bubble_is_the_formula(name, p, m, backward):
    result = schedule(name, p=p, m=m, times={"F": 1, "B": backward})[0]
    assert result.bubble_fraction == pytest.approx(theory.bubble_fraction(name, p, m), abs=1e-12)


@pytest.mark.parametrize(
    ("names", "options", "texts"),
    [
        ((), {}, ['names  no schedule is named; for example schedule("1f1b", "gpipe", p=4, m=8)']),
        (("1f1b",), {"p": 0, "m": -1}, ["p  0 pipeline stages: at least 1 is needed", "m  -1 micro-batches: at least 1 is needed"]),
        (("1f1b",), {"p": 4, "m": 8, "stage_times": [1, 2]}, ["stage_times  2 values, but 1f1b has 4 ranks", "give 1 or 4 values"]),
        (("zb-h1",), {"p": 4, "m": 8, "times": "F=1,B=2"}, ["times  zb-h1 splits its backwards", "give I and W"]),
        (
            ("1f1b",),
            {"p": 4, "m": 8, "times": {"F": "1 ms", "B": 2}, "activation": "1 foo", "comm": "x"},
            ["comm  'x' is not a time", "times  1 ms has a unit, 2 has none", "activation  \"1 foo\": unknown unit 'foo'"],
        ),
    ],
)
def test_mistakes_name_arguments_all_at_once(names, options, texts):
    with pytest.raises(PlanError) as caught:
        schedule(*names, **options)
    assert all(text in str(caught.value) for text in texts)
    assert "--" not in str(caught.value)


def test_it_shows_itself():
    found = schedule("1f1b", "zb-h1", p=2, m=4)
    html = found._repr_html_()
    assert "11.11 %" in schedule("zb-h1", p=4, m=8)._repr_html_()
    assert html.count("<tr>") == 3
    assert "<svg" in html
    figure = found.figure(width="3.5in")
    assert figure.get_figwidth() == pytest.approx(3.5)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert repr(found).startswith("p = 2 ranks, m = 4 micro-batches")
