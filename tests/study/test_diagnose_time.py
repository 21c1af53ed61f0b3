"""`parsim diagnose` with a time alone: the value that explains it, what is plausible, and what memory says."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import load, simulate
from parsim.errors import ScenarioError
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.scenario.effects import catalogue
from parsim.study.diagnose import explain_step, question, solve
from parsim.study.diagnose_causes import Plausible, UncertainParameter, parameters, plausible

SMALL = {
    "model": {"base": "gpt2", "layers": 1},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
    "training": {"sequence_length": 512, "micro_batch": 2, "gradient_accumulation": 1},
    "parallel": {"data": {"strategy": "ddp"}},
}
ROOT = Path(__file__).resolve().parents[2]
EFFECT_OF = {
    "V100 SXM2 32GB": "clock-volta",
    "A100 SXM 80GB": "clock-ampere",
    "H100 SXM 80GB": "clock-hopper",
    "B200 SXM 180GB": "clock-blackwell",
    **{f"Instinct {card}": "clock-cdna" for card in ("MI300X 192GB", "MI325X 256GB", "MI350X 288GB", "MI355X 288GB")},
}
"""GPUs whose clock in a training step was fitted, and the effect that says it"""
CLOCK = next(effect.value for effect in catalogue() if effect.name == "clock-ampere")


def quiet(_doing, causes, _total):
    return causes


@pytest.fixture(scope="module")
def scenario():
    return load(SMALL)


def parameter(now=1.0, *, rate=True, slowest=0.02, fastest=1.0):
    span = Plausible(0.9, 1.1, "assumption", "a test")
    return UncertainParameter("x", "x", now, "", rate, slowest, fastest, span, lambda value: (f"{value!r}",), "")


class TestSolve:
    @given(st.floats(0.05, 0.999), st.floats(0.0, 3.0), st.floats(0.01, 5.0))
    def test_the_value_behind_a_time_is_found(self, value, floor, work):
        """T = max(floor, work / x) + 0.5: whatever x made a slower step is found, within the promised 1e-4 of the step."""

        def step(arguments):
            return max(floor, work / float(arguments[0])) + 0.5

        now, target = step(("1.0",)), step((repr(value),))
        found, reached = solve(parameter(), step, now, target)
        assert reached == pytest.approx(target, rel=1e-4)
        assert step((repr(found),)) == pytest.approx(target, rel=1e-4)

    def test_a_time_that_was_zero(self):
        found, reached = solve(parameter(0.0, rate=False, slowest=4000.0, fastest=0.0), lambda a: max(3.0, float(a[0])) + 1.0, 4.0, 5.5)
        assert (found, reached) == (pytest.approx(4.5, rel=1e-3), pytest.approx(5.5, rel=1e-4))

    def test_the_bound_where_nothing_explains(self):
        """x = 0.02 makes 1 + 0.1 / 0.02 = 6; ten is out of reach."""
        assert solve(parameter(), lambda a: 1.0 + 0.1 / float(a[0]), 1.1, 10.0) == (pytest.approx(0.02), pytest.approx(6.0))

    def test_faster_than_the_best_is_not_possible(self):
        assert solve(parameter(), lambda a: 1.0 / float(a[0]), 1.0, 0.5) == (1.0, 1.0)


class TestPlausible:
    def test_inside_is_zero_and_one_half_width_outside_is_one(self):
        """0.8 to 1.25 is ln 1.25 wide on each side of 1."""
        span = Plausible(0.8, 1.25, "fitted", "")
        assert [span.beyond(value) for value in (0.8, 1.0, 1.25)] == [0.0, 0.0, 0.0]
        assert span.beyond(1.25**2) == pytest.approx(1.0)
        assert span.beyond(0.8**3) == pytest.approx(2.0)

    def test_from_zero_on_it_is_linear(self):
        assert Plausible(0.0, 0.1, "fitted", "").beyond(0.2) == pytest.approx(2.0)

    def test_a_range_relative_to_the_files_value(self):
        assert plausible("network", 25e9).low == pytest.approx(22.5e9)
        assert plausible("data_loading", 0.0, unit=0.2).high == pytest.approx(0.22)

    @pytest.mark.parametrize(("device", "effect"), EFFECT_OF.items())
    def test_fitted_clocks_are_those_of_the_fits(self, device, effect):
        """Lowest and highest of the effect over the fits that each leave one family of sources out, rounded outwards to four digits."""
        values = left_out(effect)
        span = plausible("clock", 1.0, device)
        assert (span.low, span.high) == (math.floor(1e4 * min(values) + 1e-6) / 1e4, math.ceil(1e4 * max(values) - 1e-6) / 1e4)
        assert span.basis == "fitted"
        assert effect in span.source

    def test_the_fitted_clock_of_other_gpus_covers_all(self):
        values = [value for effect in EFFECT_OF.values() for value in left_out(effect)]
        assert plausible("clock", 1.0).low <= min(values) < max(values) <= plausible("clock", 1.0).high

    def test_the_fitted_time_of_the_optimizer_is_that_of_the_fits(self):
        """From nothing, as without DeepSpeed of 2021, to the highest fitted to it."""
        span = plausible("boundary", 0.0)
        assert span.basis == "fitted"
        assert (span.low, span.high) == (0.0, pytest.approx(max(left_out("boundary-deepspeed"))))

    def test_only_what_was_fitted_is_said_to_be(self):
        tree = files.read(files.home("devices").parent / "plausible.yaml").tree
        assert {name for name, row in tree.items() if row["basis"] == "fitted"} == {"clock", "boundary", "setting"}
        narrower = {(name, device) for name, row in tree.items() for device in row.get("devices") or {}}
        assert narrower == {("clock", device) for device in EFFECT_OF}

    def test_every_range_says_where_it_comes_from(self):
        tree = files.read(files.home("devices").parent / "plausible.yaml").tree
        for name, row in tree.items():
            for one in (row, *(row.get("devices") or {}).values()):
                assert one["basis"] in ("fitted", "measured", "assumption"), name
                assert len(one["source"]) > 40
                assert one["low"] < one["high"]


def left_out(effect):
    """Its values where one family of sources was left out of the fit."""
    return [values[effect] for values in files.read(ROOT / "validation/runs/fits.yaml").tree["left_out"].values()]


class TestExplainStep:
    @pytest.mark.parametrize(
        ("change", "cause", "value"),
        [
            ("cluster.set.device.gemm.efficiency=0.567", "gemm", 0.567),
            ("cluster.set.device.memory.efficiency=0.574", "memory", 0.574),
            ("cluster.set.device.compute.clock_derate=0.7", "clock", 0.7 * CLOCK),  # as training finds it
            ("software.host.per_kernel_forward=36 us", "launch", None),
            ("software.step_constant=3 ms", "step_constant", 3e-3),
            ("training.data_loading=40 ms", "data_loading", 40e-3),
            ("variability.slow=[{rank: 0, speed: 0.7}]", "slow_rank_0", 0.7),
        ],
    )
    def test_what_was_changed_is_listed_with_its_value(self, scenario, change, cause, value):
        step = simulate(scenario.with_overrides(change)).step_time
        built, report = build(scenario), simulate(scenario)
        one = next(entry for entry in parameters(scenario, built, report) if entry.name == cause)
        found, reached = solve(one, lambda arguments: simulate(scenario.with_overrides(*arguments)).step_time, report.step_time, step)
        assert reached == pytest.approx(step, rel=1e-4)
        if value is not None:
            assert found == pytest.approx(value, rel=2e-3)

    def test_every_explanation_reproduces_the_measured_step(self, scenario):
        measured = 1.25 * simulate(scenario).step_time
        found = explain_step(question(scenario, f"{measured!r} s", None), quiet)
        explaining = [one for one in found.explanations if one.explains and one.value is not None]
        assert {"gemm", "memory", "clock", "launch", "data_loading", "step_constant", "slow_rank_0"} <= {
            one.cause.name for one in explaining
        }
        for one in explaining:
            assert simulate(scenario.with_overrides(*one.arguments)).step_time == pytest.approx(measured, rel=1e-4), one.cause.name
        ranks = [one.rank for one in found.explanations]
        assert ranks == sorted(ranks)

    def test_what_cannot_explain_says_what_its_bound_gives(self, scenario):
        measured = 20 * simulate(scenario).step_time
        found = explain_step(question(scenario, f"{measured!r} s", None), quiet)
        wire = next(one for one in found.explanations if one.cause.name == "nvlink")
        assert not wire.explains
        assert wire.value == pytest.approx(wire.cause.now / 50)
        assert wire.step < measured

    def test_memory_by_setting_and_by_overhead(self):
        scenario = load(SMALL, "model.layers=2")
        peak = simulate(scenario).peak_memory
        found = explain_step(question(scenario, None, f"{peak + 2**30} B"), quiet)
        assert found.overhead == 2**30
        assert found.explanations == []
        lower = simulate(scenario.with_overrides("training.recompute=full")).peak_memory
        assert next(one.peak for one in found.memory if one.cause.key == "training.recompute" and one.cause.value == "full") == lower
        distances = [abs(math.log(one.peak / (peak + 2**30))) for one in found.memory]
        assert distances == sorted(distances)

    def test_a_link_that_the_scenario_changed_is_changed_on_top(self, scenario):
        halved = scenario.with_overrides("cluster.set.links.nvlink3.bandwidth=x0.5")
        one = next(entry for entry in parameters(halved, build(halved), simulate(halved)) if entry.name == "nvlink")
        assert one.now == pytest.approx(120e9)
        assert one.arguments(60e9) == ("cluster.set.links.nvlink3.bandwidth=x0.25",)

    def test_wrong_measurements_are_all_named(self, scenario):
        with pytest.raises(ScenarioError) as caught:
            question(scenario, "5 GB", "-1 GiB")
        assert [finding.path for finding in caught.value.findings] == ["--step-time", "--peak-memory"]
