"""Unequally loaded experts: Zipf's law, counted tokens, capacities, and what they do to a step."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_experts import exchanged, scenario

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.model.mixture import GroupedLinear
from parsim.parallel.expert_load import ExpertLoad, Zipf, busiest, zipf_shares
from parsim.scenario.build import build


@pytest.mark.parametrize(
    ("experts", "exponent", "expert", "rank"),
    [(256, 0.3, 3.7383, 1.8031), (256, 0.5, 8.3740, 2.6016), (256, 1, 41.8004, 5.3015), (64, 0.5, 4.3829, 2.3950), (64, 1, 13.491, 4.5833)],
)
def test_zipf(experts, exponent, expert, rank):
    """One expert per token: no limit binds."""
    shares = zipf_shares(experts, exponent)
    assert busiest(shares, experts) == pytest.approx(expert, rel=2e-5)
    assert busiest(shares, 8) == pytest.approx(rank, rel=3e-5)


@given(st.integers(1, 40), st.floats(0, 5), st.data())
def test_no_expert_gets_a_token_twice(experts, exponent, data):
    top_k = data.draw(st.integers(1, experts))
    shares = zipf_shares(experts, exponent, top_k)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) <= 1 / top_k * (1 + 1e-12)
    assert shares == sorted(shares, reverse=True)
    free = [share for share in shares if share < 1 / top_k * (1 - 1e-9)]
    weights = [(place + 1) ** -exponent for place in range(experts)][experts - len(free) :]
    assert [share * weights[0] for share in free] == pytest.approx([weight * free[0] for weight in weights] if free else [])


def test_a_capacity_takes_from_the_busiest_experts_only():
    """Shares of four experts 0.48, 0.24, 0.16, 0.12; each may keep 1.2 x 1/4."""
    layer = GroupedLinear("up", ("x",), "y", 8, 8, 4, 1)
    load_ = ExpertLoad(Zipf(1.0), 2, 1000, 1.2)
    shares = zipf_shares(4, 1.0)
    assert shares == pytest.approx([0.48, 0.24, 0.16, 0.12])
    assert load_.rows(layer) == pytest.approx((2 * (0.3 + 0.24), 0.82, 0.82))
    assert ExpertLoad(Zipf(1.0), 2, 1000).rows(layer) == pytest.approx((1.44, 1.0, 1.0))
    assert ExpertLoad(Zipf(1.0), 2, 1000, 1.2, padded=True).rows(layer) == pytest.approx((1.2, 1.2, 0.82))


def facts(**expert):
    return simulate(scenario(expert=expert)).document()["experts"]


def test_the_report_says_what_experts_get():
    """128 tokens of hidden size 256 on a rank, two of eight experts each, on four ranks of two experts."""
    plain = {
        "layers": 2, "experts_per_rank": 2, "imbalance": 1.0, "dispatch_bytes": 256 * 512, "combine_bytes": 256 * 512,
        "rows_per_expert": 128.0, "dropped_share": 0.0,
    }  # fmt: skip
    assert facts(size=4) == plain
    assert facts(size=1) is None
    assert facts(size=4, imbalance=1.5) == plain | {
        "imbalance": 1.5, "dispatch_bytes": 384 * 512, "combine_bytes": 384 * 512, "rows_per_expert": 192.0,
    }  # fmt: skip
    assert facts(size=4, capacity_factor=0.75)["dropped_share"] == 0.25
    assert facts(size=4, imbalance=1.5, capacity_factor=1.25)["dropped_share"] == pytest.approx(0.25 / 4)
    assert facts(size=4, dispatch_dtype="fp8")["dispatch_bytes"] == 256 * (256 + 8)
    assert facts(size=4, dispatcher="allgather")["dispatch_bytes"] == 4 * 128 * 512
    assert facts(size=4, dispatcher="deepep")["dispatch_bytes"] == round(128 * 13 / 7 * 512)
    assert facts(size=4, tensor=2)["combine_bytes"] == (256 + 512) * 512


def test_the_report_of_counted_tokens(histogram):
    found = simulate(histogram()).document()["experts"]
    assert (found["imbalance"], found["rows_per_expert"]) == (1.5, 192.0)


def tokens(report):
    """Rows of the exchanged tokens of a layer -> how often."""
    return {size // 512: count for (kind, _, size), count in exchanged(report).items() if kind == "all_to_all" and size > 4096}


ROWS = "layer,expert,tokens\n" + "".join(f"0,{expert},{100}\n" for expert in range(8)) + "1,0,300\n1,1,100\n1,5,400\n"


@pytest.fixture
def histogram(tmp_path):
    def write(text=ROWS):
        (tmp_path / "load.csv").write_text(text)
        tree = scenario(expert={"size": 4, "imbalance": {"histogram": str(tmp_path / "load.csv")}})
        tree["training"]["gradient_accumulation"] = 1
        return tree

    return write


def test_each_layer_has_its_own_load(histogram):
    """Even in layer 0; in layer 1 experts 0 and 1 on one rank, and 4 and 5 on another, have half of the tokens each: twice the mean."""
    tree = histogram()
    assert tokens(simulate(tree)) == {256: 4, 512: 4}
    assert simulate(tree).step_time == pytest.approx(simulate(tree, unfolded=True).step_time, rel=1e-9)
    assert {block: rows.busiest for block, rows in build_plan(tree).loads.items()} == {1: 1.0, 2: 2.0}


def build_plan(tree):
    from parsim.scenario.built import clock_of, plan_of

    built = build(load(tree))
    return plan_of(built, clock_of(built))


def test_an_even_histogram_is_no_imbalance(histogram):
    even = histogram("layer,expert,tokens\n" + "".join(f"{layer},{expert},7\n" for layer in range(2) for expert in range(8)))
    plain = copy.deepcopy(even)
    plain["parallel"]["expert"]["imbalance"] = 1.0
    assert simulate(even).step_time == simulate(plain).step_time


def test_recomputed_layers_are_loaded_alike(histogram):
    tree = histogram()
    tree["training"]["recompute"] = "full"
    assert tokens(simulate(tree)) == {256: 6, 512: 6}


def test_zipf_in_a_step():
    tree = scenario(expert={"size": 4, "imbalance": {"zipf": 0.5}})
    assert set(tokens(simulate(tree))) == {round(256 * busiest(zipf_shares(8, 0.5, 2), 4))}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("layer,expert\n0,1\n", "the first line must be layer,expert,tokens", 1),
        ("layer,expert,tokens\n0,0,1\n0,0,2\n", "expert 0 of layer 0 is listed twice", 3),
        ("layer,expert,tokens\n0,0\n", "2 values instead of 3", 2),
        ("layer,expert,tokens\n0,-1,5\n", "whole numbers, counted from 0", 2),
        ("layer,expert,tokens\n0,1,nan\n", "'nan' is no count", 2),
        (ROWS + "1,8,4\n", "expert 8 of layer 1: it has experts 0 to 7", 13),
        (ROWS + "2,0,4\n", "layer 2 has no experts; layers with experts are 0, 1", 13),
        ("layer,expert,tokens\n0,0,1\n", "no tokens are counted for the experts of layer 1", None),
    ],
)
def test_files_that_are_wrong(histogram, text, message, line):
    with pytest.raises(ParsimError) as caught:
        simulate(histogram(text))
    found = [f for f in caught.value.findings if message in f.message]
    assert found
    assert found[0].file.endswith("load.csv")
    assert found[0].line == line


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ParsimError, match="no such file") as caught:
        simulate(scenario(expert={"size": 4, "imbalance": {"histogram": str(tmp_path / "none.csv")}}))
    assert [finding.path for finding in caught.value.findings] == ["parallel.expert.imbalance"]


def test_a_text_from_a_stranger_names_no_file():
    text = "model: mixtral-8x7b\ncluster: {topology: hgx-h100}\ntraining: {sequence_length: 64, micro_batch: 1}\n"
    with pytest.raises(ParsimError, match="no files are read for this text"):
        simulate(load(text + "parallel: {expert: {size: 8, imbalance: {histogram: /etc/passwd}}}\n", trusted=False))


@pytest.mark.parametrize("value", [0.5, {"zipf": -1}, {"zipf": 1, "histogram": "a"}, {"gauss": 1}, {"histogram": 3}])
def test_loads_that_are_none(value):
    with pytest.raises(ParsimError, match=r"parallel\.expert\.imbalance"):
        simulate(scenario(expert={"size": 4, "imbalance": value}))
