"""The stages of an answer against each other: nothing that is said early is taken back later."""

from __future__ import annotations

import random
from functools import cache

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.report.measured import AT_PEAK
from parsim.scenario.build import build
from parsim.study.planner.answers import Planner, exact
from parsim.study.planner.options import (
    BATCH,
    CHOSEN,
    MICRO_BATCH,
    NODES,
    PIPELINE,
    QUICK,
    RECOMPUTE,
    TENSOR,
    changes,
    eased,
    options,
    repairs,
)
from parsim.study.planner.short_run import MARGIN, short_run, surely_fits
from parsim.study.planner.state import tree_of, whole

SMALL: dict[str, object] = {
    "model": {"base": "llama-3-8b", "layers": 8}, NODES: 2, "training.sequence_length": 2048, BATCH: 128, "parallel.tensor.size": 4,
    "parallel.pipeline.size": 2, "software.profile": "pytorch-2",
}  # fmt: skip
MANY = 8
"""states of a seed that the long tests look at"""
MACHINES = ("hgx-h100", "dgx-a100-40gb", "8x-rtx-4090-pcie")


@cache
def planner() -> Planner:
    return Planner()


def random_state(draw: random.Random) -> dict[str, object]:
    """A state as somebody clicks it together: one value after another of those that are offered, legal or not."""
    state: dict[str, object] = dict(SMALL) | {"parallel.pipeline.size": 1, "parallel.pipeline.schedule": None}
    state |= changes("parallel.tensor.size", 1, whole(state))
    state["cluster.topology"] = draw.choice(MACHINES)
    if state["cluster.topology"] == MACHINES[2]:
        state |= {NODES: 1, "cluster.memory_reserve": f"{draw.choice((0, 12, 16, 18, 20))} GiB"}
    state[BATCH] = draw.choice((32, 64, 128, 256))
    for _ in range(draw.randint(1, 5)):
        offered = options(planner(), state, draw.sample(CHOSEN, 3))
        legal = [one["changes"] for listed in offered.values() for one in listed if not one["reason"]]
        if legal:
            state |= draw.choice(legal)
    return state


@pytest.mark.parametrize("seed", range(3))
def test_no_stage_says_fits_where_the_simulation_says_no(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(2):
        check_stages(random_state(draw))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_stage_says_fits_where_the_simulation_says_no_in_many_states(seed: int) -> None:
    draw = random.Random(1000 + seed)
    for _ in range(MANY):
        check_stages(random_state(draw))


@pytest.mark.parametrize("schedule", ["dualpipev", "dualpipe", "pipedream-2bw"])
def test_bounds_hold_where_passes_run_at_once_or_steps_do_not_end(schedule: str) -> None:
    check_stages(dict(SMALL) | {"parallel.pipeline.schedule": schedule, "parallel.data.strategy": "ddp", BATCH: 32})


@pytest.mark.parametrize(
    "change",
    [
        {"training.optimizer.name": "muon", "parallel.data.strategy": "ddp"},
        {"parallel.pipeline.schedule": "pipedream", "parallel.pipeline.size": 4, BATCH: 2, MICRO_BATCH: 1, "parallel.data.strategy": "ddp"},
    ],
)
def test_a_legal_state_of_which_nothing_is_proved_is_not_impossible(change: dict[str, object]) -> None:
    check_stages({**SMALL, NODES: 1, "parallel.pipeline.schedule": None, "parallel.tensor.size": 2, **change})


def check_stages(state: dict[str, object]) -> None:
    """What is said early of a state is never taken back."""
    bound = planner().bound(state)
    assert bound["says"] in ("does not fit", "at least")  # every click was legal, and a bound proves no fit
    *early, last = exact(state)
    assert last["stage"] == "simulated", last["findings"]
    assert bound["peak_bytes"] <= last["peak_bytes"]
    assert (bound["step_time_s"] or 0.0) <= last["step_time_s"]
    assert bound["says"] != "does not fit" or last["says"] == "does not fit"
    for answer in early:
        assert answer["stage"] == "provisional"
        assert answer["says"] in (last["says"], "close")
        assert answer["peak_bytes"] == pytest.approx(last["peak_bytes"], rel=0.01)
        assert answer["step_time_s"] == pytest.approx(last["step_time_s"], rel=1e-9)
        assert answer["mfu"] == pytest.approx(last["mfu"], rel=1e-9)
        assert answer["tokens_per_s"] == pytest.approx(last["tokens_per_s"], rel=1e-9)


def test_the_last_stage_is_the_report() -> None:
    state = dict(SMALL) | {"parallel.pipeline.size": 2, "training.tokens": "1T"}
    report = simulate(load(tree_of(whole(state)))).document()
    *early, last = exact(state)
    assert [one["stage"] for one in early] == ["provisional"]
    assert last["step_time_s"] == report["step_time_s"]
    assert last["mfu"] == report["mfu"]
    assert last["peak_bytes"] == report["memory"]["peak_bytes"] == sum(last["at_peak"].values())
    assert list(last["at_peak"]) == list(AT_PEAK)
    assert last["estimate"] == report["estimate"]
    assert last["estimate"]["cost_to_train"] > 0
    assert last["currency"] == "USD"


@pytest.mark.parametrize(
    "change",
    [
        {"parallel.pipeline.schedule": "gpipe"},
        {"parallel.pipeline.schedule": "pipedream-2bw", "parallel.data.strategy": "ddp"},
        {"parallel.data.batch_split": [60, 68], "parallel.tensor.size": 4, "parallel.pipeline.size": 2},
        {"training.global_batch": 16},
    ],
)
def test_steps_that_do_not_grow_evenly_have_no_short_run(change: dict[str, object]) -> None:
    state = dict(SMALL) | {"parallel.tensor.size": 4, "parallel.pipeline.size": 2} | change
    assert short_run(build(load(tree_of(whole(state))))) is None


def test_near_the_limit_only_the_whole_run_decides() -> None:
    scenario = load(tree_of(whole(dict(SMALL))))
    short = short_run(build(scenario))
    assert short is not None
    assert surely_fits(short) is True
    left = short.simulated_memory.headroom
    close = short_run(build(scenario.with_overrides(f"cluster.memory_reserve={left - 100 * 2**20} B")))
    assert close is not None
    assert abs(close.simulated_memory.headroom) < MARGIN * close.simulated_memory.capacity_bytes
    assert surely_fits(close) is None


@pytest.mark.parametrize("seed", range(3))
def test_one_click_leaves_every_impossible_state(seed: int) -> None:
    draw = random.Random(100 + seed)
    impossible = 0
    while impossible < 2:
        state: dict[str, object] = dict(SMALL)
        for _ in range(draw.randint(1, 4)):
            offered = options(planner(), state, QUICK)
            wrong = [one["changes"] for listed in offered.values() for one in listed if one["reason"]]
            state |= draw.choice([*wrong, {NODES: draw.choice((3, 7))}, {BATCH: draw.choice((7, 33))}])
        if planner().bound(state)["says"] != "impossible":
            continue
        impossible += 1
        ways = repairs(planner(), state, options(planner(), state, QUICK))
        assert ways
        for way in ways:
            assert planner().bound({**state, **way})["says"] != "impossible", way


def test_an_offered_value_is_legal_exactly_where_it_simulates() -> None:
    for key, listed in options(planner(), SMALL).items():
        for one in listed:
            answer = planner().bound({**SMALL, **one["changes"]})
            assert (answer["says"] == "impossible") == bool(one["reason"]), (key, one)


def test_one_impossible_value_strikes_out_only_what_no_repair_can_use() -> None:
    state = dict(SMALL) | {BATCH: 7}
    offered = options(planner(), state)
    assert all(one["reason"] for one in offered[RECOMPUTE])  # as things stand nothing else helps
    ways = repairs(planner(), state, offered)
    assert ways[0] == {BATCH: 8}
    shown = eased(planner(), state, offered, ways)
    for key in (RECOMPUTE, TENSOR, MICRO_BATCH):
        assert [one["value"] for one in shown[key] if one["reason"]] == [], key
    assert {one["value"] for one in shown[PIPELINE] if one["reason"]} == {8, 16}  # with four ranks of tensors on sixteen GPUs
    assert options(planner(), SMALL) == eased(planner(), SMALL, options(planner(), SMALL), [])


def test_repairs_name_only_keys_that_change() -> None:
    for state in ({"model": "gpt2"}, {BATCH: 7}, {NODES: 7}):
        for way in repairs(planner(), state, options(planner(), state)):
            assert "training.gradient_accumulation" not in way
            assert all(whole(state).get(key) != value for key, value in way.items()), way


def test_a_model_that_takes_too_long_to_describe_is_refused() -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 10**6,
              "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    answer = planner().bound({"model": config})
    assert answer["says"] == "impossible"
    assert "layers" in answer["findings"][0]["message"]


def test_what_raises_is_an_answer() -> None:
    assert planner().bound({"model": "no-such-model"})["findings"][0]["path"] == "model"
    assert [one["says"] for one in exact({"model": "./secret.yaml"})] == ["impossible"]
    with pytest.raises(ParsimError):
        planner().built({"parallel.data.strategy": "mine.py:Mine"})
