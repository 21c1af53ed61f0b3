"""Causes, what-ifs, the roofline and the effect of assumptions: figures, and equality with running the changed scenario."""

import json

import pytest

from parsim import load, simulate
from parsim.cli import execute
from parsim.report.plots.explanation import ChangeBar, tornado_figure
from parsim.report.verdict import exposed_communication
from parsim.scenario.build import build
from parsim.study.assumptions import with_effects
from parsim.study.explain import explain, text
from parsim.study.roofline import roofline
from parsim.study.variants import Figures, Outcome
from parsim.study.what_if import changes, levelled, ranked, scaled, slow_rank, tried
from parsim.units import snapped

KINDS = (
    "gpt2-ddp-4x-a100", "gpt2-ddp-straggler", "bert-torch-dp-8x-v100-pcie", "gpt2-xl-gpipe-4x-v100", "pipeline-unit-interleaved",
    "custom-schedule", "qwen3-30b-dualpipev", "mixtral-8x7b-experts", "llama-7b-zero3-offload-2x-rtx-3090",
    "llama-7b-zero1-mixed-h100-a100", "llama-7b-lora-1x-rtx-4090", "llama-7b-zero3-8x-rtx-4090",
)  # fmt: skip
"""one shipped scenario of each kind of step"""
NIC_FREE = "bert-ddp-8x-v100-pcie"
"""one machine: nothing leaves it"""


@pytest.fixture(scope="module")
def over_pcie():
    return explain(load("llama-7b-zero3-8x-rtx-4090"), jobs=1)


@pytest.mark.parametrize("name", KINDS)
def test_the_causes_sum_to_the_step(name):
    report = simulate(name)
    rows = report.causes
    assert sum(row.seconds for row in rows) == pytest.approx(report.step_time, rel=1e-9)
    by_kind = {key: sum(row.seconds for row in rows if row.kind == key) for key in report.critical}
    assert by_kind == pytest.approx(dict(report.critical), rel=1e-9, abs=1e-12 * report.step_time)
    assert [snapped(row.seconds) for row in rows] == sorted((snapped(row.seconds) for row in rows), reverse=True)


def test_zero3_over_pcie_waits_for_its_collectives(over_pcie):
    assert over_pcie.report.limiter_kind == "data_comm"
    assert [row.name for row in over_pcie.causes[:2]] == ["AllGather among 8 data ranks", "ReduceScatter among 8 data ranks"]
    assert "AllGather among 8 data ranks" in over_pcie.summary
    nvlink = next(one for one in over_pcie.what_ifs if one.change.name.startswith("NVLink"))
    assert 1 < nvlink.step_time < 10
    assert f"With NVLink between these GPUs it would take {nvlink.step_time:.3g} s" in over_pcie.summary
    changed = simulate("llama-7b-zero3-8x-rtx-4090", *nvlink.change.overrides)
    assert changed.step_time == nvlink.step_time
    assert any(row.kind == "nvlink4" and row.bytes for row in changed.links)
    assert nvlink.effect == pytest.approx(changed.step_time / over_pcie.report.step_time - 1, rel=1e-12)


def what_ifs(scenario, report):
    asked = [*changes(scenario, report), *slow_rank(scenario, report.bottleneck_rank, 0.8)]
    return ranked(report, asked, tried(scenario, [one.overrides for one in asked], jobs=1))


@pytest.mark.parametrize(
    "name",
    [
        "bert-ddp-8x-v100-pcie",
        pytest.param("gpt2-ddp-4x-a100", marks=pytest.mark.slow),
        pytest.param("gpt2-xl-gpipe-4x-v100", marks=pytest.mark.slow),
        pytest.param("resnet50-ddp-8x-v100", marks=pytest.mark.slow),
    ],
)
def test_a_what_if_is_the_changed_scenario(name):
    scenario = load(name)
    report = simulate(scenario)
    found = what_ifs(scenario, report)
    assert [one.effect for one in found if not one.refused] == sorted(one.effect for one in found if not one.refused)
    for one in found:
        if not one.refused:
            changed = simulate(name, *one.change.overrides)
            per_sample = changed.step_time / changed.measured.model.samples_per_step
            assert one.step_time == pytest.approx(per_sample * report.measured.model.samples_per_step, rel=1e-12), one.change
            assert one.peak == changed.peak_memory


@pytest.mark.slow
def test_a_change_that_leaves_the_allocator_alone_has_the_peak_of_the_whole_step():
    """64 micro-batches need 0.25 GiB more of the allocator than the few from which a search answers."""
    training = {"sequence_length": 8192, "global_batch": 256, "micro_batch": 1, "recompute": "selective"}
    parallel = {"tensor": {"size": 8, "sequence_parallel": True}, "pipeline": {"size": 2}, "data": {"strategy": "zero1"}}
    cluster = {"topology": "hgx-h100", "nodes": 8}
    scenario = load({"model": "llama-3-70b", "cluster": cluster, "training": training, "parallel": parallel})
    report = simulate(scenario)
    words = [("assumptions.host_per_kernel_forward=5 us",), ("assumptions.context_memory=0.3 GiB",)]
    came = tried(scenario, [(), *words], jobs=1)
    assert came[0].answer.peak < report.peak_memory
    found = [one.answer.peak for one in levelled(report, came)]
    assert found == [simulate(scenario.with_overrides(*one)).peak_memory for one in words]
    assert found[0] == report.peak_memory


def test_only_peaks_of_short_steps_are_levelled():
    report = simulate("gpt2-ddp-4x-a100")
    least = report.peak_memory
    peaks = {"unchanged": (least - 5, 7), "context": (least - 8, 7), "other tensors": (least - 4, 8), "whole": (least - 3, 0)}
    came = [Outcome("fits", Figures(1.0, 1, *each)) for each in peaks.values()]
    refused = Outcome("refused", None)
    assert [one.answer and one.answer.peak for one in levelled(report, [*came, refused])] == [least - 3, least - 4, least - 3, None]
    assert levelled(report, [came[3], *came]) == came


def test_a_lost_nic_costs_what_the_step_with_that_fault_takes():
    scenario = load("gpt2-link-flap")  # its own fault is left out
    found = what_ifs(scenario, simulate(scenario))
    (lost,) = [one for one in found if one.change.name.startswith("NIC ")]
    changed = simulate("gpt2-link-flap", *lost.change.overrides)
    assert lost.step_time == changed.measured.faults.together.step_time_s > changed.step_time
    assert not any(change.name.startswith("NIC ") for change in changes(load(NIC_FREE), simulate(NIC_FREE)))


def test_who_is_slow_for_a_while_is_no_part_of_a_change():
    asked = [("cluster.interference=off",)]
    pause, always = "{rank: 0, speed: 0, from: 1 s, to: 9 s}", "{rank: 2, speed: 0.5}"
    alone, both = (tried(load("pipeline-unit-1f1b", f"variability.slow=[{slow}]"), asked) for slow in (always, f"{pause}, {always}"))
    assert both[0].answer == alone[0].answer
    scenario = load("pipeline-unit-1f1b", f"variability.slow=[{pause}]")
    (change,) = slow_rank(scenario, 1, 0.5)
    assert change.overrides == ("variability.slow=[{rank: 1, speed: 0.5}]",)


def test_a_free_network_leaves_no_communication():
    report = simulate("bert-ddp-8x-v100-pcie")
    free = next(one for one in what_ifs(load("bert-ddp-8x-v100-pcie"), report) if one.change.name.startswith("an ideal network"))
    assert report.breakdown["data_comm"] > 0.2 * report.step_time
    left = simulate("bert-ddp-8x-v100-pcie", *free.change.overrides)
    assert exposed_communication(left.breakdown) < 0.002 * free.step_time


def test_twice_the_micro_batches_by_the_closed_form():
    # (m + p - 1) (tF + tB): 11 x 3 = 33 for m = 8, 19 x 3 = 57 for m = 16, half of which is for the same samples
    scenario = load("pipeline-unit-1f1b")
    words = ("training.global_batch=16",)
    [twice] = [one.answer for one in tried(scenario, [words])]
    assert twice.step_time == pytest.approx(57.0)
    assert twice.seconds_per_sample * 8 == pytest.approx(28.5)


def test_measured_stages_are_asked_nothing_about_devices():
    scenario = load("pipeline-unit-1f1b")
    report = simulate(scenario)
    asked = [change.name for change in changes(scenario, report)]
    assert not [name for name in asked if "GPU" in name or "memory" in name or "micro-batches" in name]
    assert [change.name for change in slow_rank(scenario, report.bottleneck_rank, 0.8)] == ["rank 0 at 0.8 of its speed"]


def test_scaling_builds_on_what_the_scenario_changes_already():
    path = "cluster.set.device.memory.bandwidth"
    assert scaled(load("gpt2-ddp-4x-a100"), path, 1.5) == f"{path}=x1.5"
    assert scaled(load("gpt2-ddp-4x-a100", f"{path}=x0.5"), path, 1.5) == f"{path}=x0.75"
    assert scaled(load("gpt2-ddp-4x-a100", f"{path}=1000 GB/s"), path, 1.5) == f"{path}=1500 GB/s"
    slower = simulate("gpt2-ddp-4x-a100", f"{path}=x0.5")
    halved = load("gpt2-ddp-4x-a100", f"{path}=x0.5")
    [again] = [one.answer for one in tried(halved, [(scaled(halved, path, 2.0),)])]
    assert again.step_time == pytest.approx(simulate("gpt2-ddp-4x-a100").step_time, rel=1e-12)
    assert slower.step_time > again.step_time


def test_the_assumptions_are_sorted_by_effect():
    scenario = load("gpt2-ddp-4x-a100")
    report = with_effects(scenario, simulate(scenario), jobs=1)
    rows = report.measured.assumptions
    assert {row.name for row in simulate(scenario).measured.assumptions} <= {row.name for row in rows}
    capacity = report.measured.memory.capacity_bytes

    def size(row):
        time = max(abs(step - report.step_time) for step in row.effect.step_time_s) / report.step_time
        return max(time, max(abs(peak - report.peak_memory) for peak in row.effect.peak_bytes) / capacity)

    sizes = [size(row) for row in rows if row.effect is not None]
    assert sizes == sorted(sizes, reverse=True)
    context = next(row for row in rows if row.name == "context_memory").effect
    # 0.5 GiB assumed, 0.3 and 1.8 GiB tried: the peak moves by the difference, the step by nothing
    assert [peak - report.peak_memory for peak in context.peak_bytes] == pytest.approx([-0.2 * 2**30, 1.3 * 2**30], abs=1)
    assert context.step_time_s == (report.step_time, report.step_time)
    attention = next(row for row in rows if row.name == "attention").effect
    assert attention.step_time_s[1] == max(simulate(scenario, f"training.attention={one}").step_time for one in attention.tried)
    document = json.loads(json.dumps(report.document()))
    assert document["assumptions"][0]["effect"]["tried"]
    assert document["step_time_s"] == report.step_time


def test_stated_values_are_no_assumptions():
    scenario = load("gpt2-ddp-4x-a100", "training.attention=flash2", "software.memory.context=1 GiB")
    stated = {row.name for row in with_effects(scenario, simulate(scenario), jobs=1).measured.assumptions}
    assert not {"attention", "context_memory"} & stated


def test_the_roofline_by_hand():
    built = build(load("mlp-1x-a100"))
    found = roofline(built)
    assert found.ridge == pytest.approx(found.peak / found.bandwidth)
    at_batch = built.training.micro_batch
    for point in found.points:
        if point.flop:
            assert found.bound(point) == ("compute" if point.intensity >= found.ridge else "memory")
            assert point.rate <= found.limit(point) * (1 + 1e-9), point
    widths = [layer["linear"]["out"] for layer in load("mlp-1x-a100").tree["model"]["layers"] if "linear" in layer]
    inputs = load("mlp-1x-a100").tree["model"]["input"]["shape"][0]
    sides = list(zip([inputs, *widths], widths, strict=False))
    flop = sum(3 * 2 * at_batch * i * o for i, o in sides)  # the product and the gradients of its two operands
    assert sum(point.flop for point in found.points if point.name == "linear") == pytest.approx(flop, rel=1e-9)


def test_the_text_names_units_and_the_command(over_pcie):
    shown = text(over_pcie, "mine.yaml")
    for part in ("Critical path", "Step [s]", "Peak [GiB]", "FLOP/B", "TFLOP/s", "Assumptions by their effect", "parsim run mine.yaml"):
        assert part in shown


def test_the_tornado_draws_what_it_is_given():
    figure = tornado_figure("t", [ChangeBar("a", -0.1, 0.0), ChangeBar("b", -0.02, 0.3)], "step time")
    ax = figure.axes[0]
    assert sorted(patch.get_width() for patch in ax.patches) == pytest.approx([-10.0, -2.0, 30.0])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]  # the longest on top
    assert ax.get_xlabel() == "step time, change from now [%]"


def test_the_command_line(capsys, tmp_path):
    assert execute(["explain", "mlp-1x-a100", "--json", "--quiet", "--workers", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert not printed.err
    assert document["report"]["step_time_s"] == simulate("mlp-1x-a100").step_time
    assert sum(row["s"] for row in document["critical_path"]) == pytest.approx(document["report"]["step_time_s"], rel=1e-9)
    assert {path.name for path in tmp_path.iterdir()} == {"explanation.json", "what-if.svg", "assumptions.svg", "roofline.svg"}
    assert execute(["--explain", "mfu"]) == 0
    assert "mfu [fraction]" in capsys.readouterr().out
    assert execute(["explain", "mfuu"]) == 2
    assert "did you mean 'mfu'" in capsys.readouterr().err
    assert execute(["explain", "nosuch.yaml"]) == 2
    assert execute(["run", "mlp-1x-a100", "--sensitivity", "--no-pictures", "--out", str(tmp_path / "run")]) == 0
    assert "Assumptions by their effect" in capsys.readouterr().out
