"""The host as a floor: block time = max(kernels and the collectives between them, launching them)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim import simulate
from parsim.errors import ScenarioError
from parsim.kernel import Attention, Fixed, Gemm, Memory
from parsim.model.catalogue import build_model
from parsim.model.low_precision import Quantisation
from parsim.model.mixture import GroupedLinear
from parsim.model.workload import Workload
from parsim.parallel.runtime import Host
from parsim.parallel.training import Recompute
from parsim.program.host import launches, layer_parts
from tests.jobs import job, layers, tree

GPT2 = {
    "model": "gpt2",
    "cluster": {"topology": "hgx-h100", "gpus": 1},
    "training": {"sequence_length": 256, "micro_batch": 1, "global_batch": 1},
    "parallel": {"data": {"strategy": "none"}},
}


def makespan(floor_forward, floor_backward, **settings):
    """Four layers of 1 s forward and 2 s backward."""
    host = Host(per_layer_forward=floor_forward, per_layer_backward=floor_backward)
    settings = {"step": False, "data_settings": {"strategy": "none"}} | settings
    return job(layers(4), runtime={"host": host}, **settings).makespan


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [(0.5, 1.5, 12), (1.0, 2.0, 12), (1.5, 0.0, 4 * 1.5 + 8), (0.0, 2.5, 4 + 10), (3.0, 3.0, 24)],
)
def test_a_layer_takes_the_longer_of_kernels_and_launch(forward, backward, expected):
    assert makespan(forward, backward) == pytest.approx(expected, rel=1e-12)


def test_recomputation_has_the_floor_of_the_forward():
    assert makespan(1.5, 0.0, recompute=Recompute("full")) == pytest.approx(4 * 1.5 + 4 * (1.5 + 2), rel=1e-12)


def test_micro_batches_repeat_the_floor_and_pipelines_overlap_it():
    assert makespan(1.5, 3.0, micro_batches=3, global_batch=3) == pytest.approx(3 * 4 * 4.5, rel=1e-12)
    # two stages of two layers, 1F1B with m = 3: (m + p - 1) (tF + tB) with tF = 3 and tB = 6
    assert makespan(1.5, 3.0, micro_batches=3, global_batch=3, pipeline=2) == pytest.approx((3 + 1) * 9, rel=1e-12)


def test_split_backward_shares_the_floor():
    slots = tuple(tuple((kind, 0, i) for i in range(2) for kind in "FIW") for _ in range(1))
    from parsim.parallel.schedules.slot import Slot

    own = tuple(tuple(Slot(*slot) for slot in row) for row in slots)
    found = makespan(0.0, 3.0, micro_batches=2, global_batch=2, pipeline_settings={"schedule": "custom", "slots": own})
    assert found == pytest.approx(2 * 4 * (1 + 1.5 + 1.5), rel=1e-12)


def test_launches_are_counted_by_kernel():
    gemm, attention = Gemm(8, 8, 8), Attention(1, 1, 1, 8, 8, 8, True)
    assert launches([gemm, attention, Memory(1.0, launches=3), Memory(1.0, launches=0), Fixed(1.0)]) == 5
    assert launches([gemm, Gemm(8, 8, 8, launches=4), attention, Memory(1.0)], 2.7) == pytest.approx(5 * 2.7 + 2)


def test_a_small_model_is_launch_bound_and_graphs_free_it():
    report = simulate(GPT2).document()
    assert report["limiter_kind"] == "launch"
    assert report["breakdown_s"]["launch"] > 0
    assert sum(report["breakdown_s"].values()) == pytest.approx(report["step_time_s"], rel=1e-9)
    graphs = simulate(GPT2, "software.host.graphs=true").document()
    assert graphs["breakdown_s"]["launch"] == 0
    assert graphs["step_time_s"] < report["step_time_s"]


def test_compiled_blocks_launch_fewer_kernels():
    """The floor per kernel counts what torch.compile leaves to launch; a floor per layer does not care."""
    small = {**GPT2, "training": {**GPT2["training"], "dropout": 0.0}}
    key = "software.host.per_kernel_forward"
    steps = {}
    for fusion in ("eager", "fused", "compiled"):
        times = [simulate(small, f"software.fusion={fusion}", f"{key}={one}").document()["step_time_s"] for one in ("1 ms", "2 ms")]
        steps[fusion] = (times[1] - times[0]) / 1e-3
    # per layer GELU in Python is 8 kernels instead of 1, and two sums join the kernels behind them; compiled cross-entropy is 2, not 3
    assert steps["eager"] - steps["fused"] == pytest.approx(12 * 7)
    assert steps["fused"] - steps["compiled"] == pytest.approx(12 * 2 + 1)


def test_a_large_model_does_not_see_the_host():
    large = {**GPT2, "model": "gpt3-6.7b", "training": {"sequence_length": 2048, "micro_batch": 4, "global_batch": 4}}
    slow, fast = (simulate(large, f"software.host.per_kernel_forward={time}").document() for time in ("12 us", "0 s"))
    assert slow["step_time_s"] == pytest.approx(fast["step_time_s"], rel=2e-3)


def test_the_floor_grows_with_collectives_between_operators():
    tree = {
        "model": "gpt2",
        "cluster": {"topology": "hgx-h100", "gpus": 4},
        "training": {"sequence_length": 256, "micro_batch": 1, "global_batch": 1},
        "parallel": {"tensor": {"size": 4}},
        "software": {"host": {"per_layer_forward": "1 ms", "per_layer_backward": "1 ms"}},
    }
    without, with_them = (simulate(tree, f"software.host.per_collective={time}").document()["step_time_s"] for time in ("0 s", "1 ms"))
    # twelve layers with two all-reduces forward and two backward; embedding and head have one or more besides
    assert with_them - without >= 12 * 4e-3


def blocking(floor_forward, floor_backward, **settings):
    """The same layers under a thread that waits for every kernel."""
    host = Host(per_layer_forward=floor_forward, per_layer_backward=floor_backward, blocking=True)
    settings = {"step": False, "data_settings": {"strategy": "none"}} | settings
    return job(layers(4), runtime={"host": host}, **settings).makespan


@pytest.mark.parametrize(("forward", "backward"), [(0.0, 0.0), (0.5, 1.5), (3.0, 0.25)])
def test_blocking_launches_come_on_top_of_the_kernels(forward, backward):
    assert blocking(forward, backward) == pytest.approx(4 * (1 + forward) + 4 * (2 + backward), rel=1e-12)


def test_blocking_is_paid_per_layer_and_micro_batch():
    # two stages of two layers, 1F1B with m = 3: (m + p - 1) (tF + tB), recomputation launches the forward once more
    found = blocking(0.5, 0.25, micro_batches=3, global_batch=3, pipeline=2, recompute=Recompute("full"))
    assert found == pytest.approx((3 + 1) * 2 * ((1 + 0.5) + (1 + 0.5) + (2 + 0.25)), rel=1e-12)


BLOCKING = {
    **GPT2,
    "cluster": {"topology": "hgx-h100", "gpus": 4},
    "parallel": {"tensor": {"size": 4, "overlap": "none"}, "data": {"overlap_reduce": False}},
    "software": {"host": {"blocking": True}},
}


def test_blocking_counts_launches_and_collectives():
    """Every launch and every collective between operators takes its time once, in each of twelve layers."""
    steps = {key: [] for key in ("per_kernel_forward", "per_layer_forward", "per_collective")}
    for key, found in steps.items():
        for time in ("1 ms", "2 ms"):
            found.append(simulate(BLOCKING, f"software.host.{key}={time}").document())
    per = {key: (two["step_time_s"] - one["step_time_s"]) / 1e-3 for key, (one, two) in steps.items()}
    assert per["per_layer_forward"] == pytest.approx(12)
    assert per["per_kernel_forward"] > 12 * 10
    assert per["per_collective"] >= 12 * 4
    one = steps["per_collective"][0]
    assert sum(one["breakdown_s"].values()) == pytest.approx(one["step_time_s"], rel=1e-9)
    assert one["breakdown_s"]["launch"] >= 12 * 4e-3


def test_blocking_refuses_what_overlaps():
    tree = {**BLOCKING, "parallel": {"tensor": {"size": 2}, "pipeline": {"size": 2}}}
    with pytest.raises(ScenarioError) as caught:
        simulate(tree)
    hints = [finding.suggestion for finding in caught.value.findings]
    assert hints == ["write parallel.pipeline.overlap_sends: false"], "what is left to the stack does not overlap then"
    tree["parallel"]["tensor"]["overlap"] = "backward"
    with pytest.raises(ScenarioError) as caught:
        simulate(tree)
    hints = [finding.suggestion for finding in caught.value.findings]
    assert hints == ["write parallel.tensor.overlap: none", "write parallel.pipeline.overlap_sends: false"]
    with pytest.raises(ScenarioError) as caught:
        simulate(BLOCKING, "software.host.graphs=true")
    assert [finding.suggestion for finding in caught.value.findings] == ["use host.graphs or host.blocking"]
    with pytest.raises(ScenarioError, match="without prefetching"):
        simulate({**GPT2, "cluster": BLOCKING["cluster"], "parallel": {"data": {"strategy": "fsdp"}}, "software": BLOCKING["software"]})


MOE = {
    "model": {"base": "qwen3-30b-a3b", "layers": 2},
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 256, "micro_batch": 1, "global_batch": 8},
    "parallel": {"expert": {"size": 8, "capacity_factor": 1.0, "pad_to_capacity": True}, "data": {"strategy": "zero1"}},
    "software": {"profile": "megatron-core"},
}


def test_a_graph_is_one_launch():
    """Two layers of 16 experts a rank: what launches take is proportional to their number."""

    def launched(*changes):
        two, one = (simulate(MOE, f"software.host.per_kernel_forward={time} ms", *changes).document()["step_time_s"] for time in (2, 1))
        return (two - one) / 1e-3

    none, attention, experts = launched(), launched("software.host.graphs=[attention]"), launched("software.host.graphs=[experts]")
    both = launched("software.host.graphs=[attention, experts]")
    assert none - both == pytest.approx((none - attention) + (none - experts))
    assert experts < none - 2 * 2 * 16, "two products of sixteen experts in each of two layers were launched one by one"
    assert launched("software.host.graphs=true") == 0


@pytest.mark.parametrize(
    ("base", "pattern", "parts"),
    [
        ("nemotron-3-nano-30b-a3b", "ME*", [["mamba"], ["router", "experts"], ["attention"]]),
        ("nemotron-h-8b", "M-*", [["mamba"], ["mlp"], ["attention"]]),
        ("mamba-codestral-7b", "", [["mamba"]]),
        ("qwen3-30b-a3b", "", [["attention", "router", "experts"]]),
        ("llama-3-8b", "", [["attention", "mlp"]]),
    ],
)
def test_layers_are_cut_into_parts(base, pattern, parts):
    """Hybrid models have layers of one part alone."""
    changes = {"layers": len(parts)} | ({"layer_pattern": pattern} if pattern else {})
    blocks = build_model({"base": base, **changes}, name=base, base_lookup=tree).blocks[1:-1]
    assert [list(dict.fromkeys(layer_parts(block.operators).values())) for block in blocks] == parts


def test_experts_are_launched_one_by_one_by_transformer_engine_only():
    experts = GroupedLinear("up", ("x",), "y", 2048, 1536, 128, 8)
    eager = Workload(batch=1, sequence=4096, expert=8)
    fused = replace(eager, fused=True)
    assert [launches(experts.training_work(at).forward) for at in (eager, replace(fused, compiled=True), fused)] == [1, 1, 16]
    quantised = {
        recipe: replace(fused, dtype="fp8", quantisation=Quantisation(recipe, "transformer-engine", False, True))
        for recipe in ("mxfp8", "delayed")
    }
    casts = {recipe: launches(experts.training_work(at).forward) - 16 for recipe, at in quantised.items()}
    assert casts["mxfp8"] % 16 == 1, "sixteen casts and the copies that fill rows up"
    assert casts["delayed"] < 16
