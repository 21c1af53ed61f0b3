"""fp8 recipes: the bytes that quantising moves, what is kept and sent, and when; against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import InputError
from parsim.kernel import Gemm, Memory
from parsim.model.linear import Linear
from parsim.model.low_precision import DEEPSEEK, RECIPES, TORCHAO, TRANSFORMER_ENGINE, Quantisation
from parsim.model.model import Work
from parsim.model.workload import Workload
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.precision import PRESETS
from tests.jobs import job

T, K, N = 8192, 4096, 14336
X, W, DY = T * K, N * K, T * N


def engine(recipe: str, *, hopper: bool = True, caches: bool = True) -> Quantisation:
    return Quantisation(recipe, TRANSFORMER_ENGINE, tn_only=hopper, caches_weights=caches)


def torchao(recipe: str) -> Quantisation:
    return Quantisation(recipe, TORCHAO, tn_only=False, caches_weights=False)


def deepseek(*, caches: bool = True) -> Quantisation:
    return Quantisation("deepseek-v3", DEEPSEEK, tn_only=True, caches_weights=caches)


def moved(kernels: Any) -> float:
    return sum(kernel.bytes for kernel in kernels if isinstance(kernel, Memory))


def layer(casts: Quantisation, **changes: Any) -> Work:
    at = Workload(
        1,
        T,
        dtype=casts.products,
        quantisation=casts,
        fused=True,
        **{k: v for k, v in changes.items() if k in Workload.__dataclass_fields__},
    )
    own = {k: v for k, v in changes.items() if k in Linear.__dataclass_fields__}
    return Linear("l", ("x",), "y", **{"in_features": K, "out_features": (N,), "bias": False, **own}).work(at)


def whole_step(casts: Quantisation, **changes: Any) -> float:
    """Bytes of all casts of one layer and micro-batch, the first of a step."""
    work = layer(casts, **changes)
    once = moved(casts.weight(W)) if casts.caches_weights else 0.0
    return moved(work.forward) + moved(work.backward_input) + moved(work.backward_weight) + once


@pytest.mark.parametrize(
    ("casts", "size"),
    [
        (engine("delayed"), 838_860_800),  # 2 read, 1 written, 1 transposed
        (engine("delayed", hopper=False), 838_860_800 * 3 // 4),
        (engine("current"), 1_258_291_200),  # 2 more to find the largest value
        (engine("current", hopper=False), 1_258_291_200 * 5 // 6),
        (engine("blockwise"), 848_326_656),  # 4.0625, weights 2 + 2 (1 + 4 / 128^2)
        (engine("mxfp8", hopper=False), 851_968_000),  # 4.0625
        (engine("nvfp4", hopper=False), 1_074_790_400),  # 5.125: 2 read for the largest value, 2 read, 2 x 0.5625 written
        (deepseek(), 5.09375 * X + 4.0625 * DY + 4.00048828125 * W),  # x once more: 1.03125 read, 1.03125 written
        (torchao("tensorwise"), 8 * (X + W + DY)),
        (torchao("rowwise"), 8 * (X + W + DY)),
        (torchao("mxfp8"), 2 * 3.03125 * (X + W + DY)),
    ],
)
def test_bytes_of_a_layer(casts: Quantisation, size: float) -> None:
    assert whole_step(casts) == size


def test_what_a_linear_layer_gains() -> None:
    """600 and 1100 TFLOP/s, 2.68 TB/s: three products of 962 GFLOP, 1.64 times as fast (1.56 with a pass for the largest value)."""
    products = 3 * 2 * T * K * N
    for recipe, gain in (("delayed", 1.6379), ("current", 1.5551)):
        time = products / 1100e12 + whole_step(engine(recipe)) / 2.68e12
        assert products / 600e12 / time == pytest.approx(gain, abs=1e-4)


@given(st.sampled_from(sorted(RECIPES)), st.booleans(), st.booleans())
def test_a_frozen_weight_needs_no_columns(recipe: str, hopper: bool, caches: bool) -> None:
    own = RECIPES[recipe][0]
    casts = Quantisation(recipe, own, hopper, caches and own == TRANSFORMER_ENGINE)
    frozen, trained = layer(casts, trainable=False), layer(casts)
    assert frozen.backward_weight == frozen.saves == ()
    assert moved(frozen.forward) <= moved(trained.forward)
    assert moved(frozen.backward_input) <= moved(trained.backward_input)
    total = [sum(map(moved, (one.forward, one.backward_input, one.backward_weight))) for one in (frozen, trained)]
    if own == TORCHAO or hopper or recipe in ("blockwise", "mxfp8"):
        assert total[0] < total[1]


def test_norms_write_what_products_read() -> None:
    """Delayed: no cast of x, 2 B for its transpose less the 1 B that the norm does not write; current: no pass for the largest value."""
    assert moved(layer(engine("delayed"), after_norm=True).forward) == X
    assert moved(layer(engine("delayed", hopper=False), after_norm=True).forward) == 0
    assert moved(layer(engine("current"), after_norm=True).forward) == 4 * X
    assert moved(layer(engine("nvfp4"), after_norm=True).forward) == 5.125 * X
    assert moved(layer(engine("mxfp8"), after_norm=True).forward) == moved(layer(engine("mxfp8")).forward)
    eager = Workload(1, T, dtype="fp8", quantisation=engine("delayed"))
    assert moved(Linear("l", ("x",), "y", K, (N,), after_norm=True).work(eager).forward) == 4 * X


@pytest.mark.parametrize(
    ("casts", "saved", "cached", "sent", "sent_back"),
    [
        (engine("delayed"), 1, 2, 1, 1),
        (engine("current", hopper=False), 1, 1, 1, 1),
        (engine("blockwise"), 1.03125, 2 * (1 + 4 / 128**2), 1.03125, 2.0625),
        (engine("mxfp8", hopper=False), 1.03125, 2.0625, 1.03125, 2.0625),
        (engine("nvfp4", hopper=False), 0.5625, 1.125, 0.5625, 1.125),
        (engine("delayed", caches=False), 1, 0, 1, 1),
        (deepseek(), 1.03125, 2 * (1 + 4 / 128**2), 1.03125, 2.0625),
        (torchao("tensorwise"), 0, 0, 1, 1),
        (torchao("rowwise"), 0, 0, 0, 0),
    ],
)
def test_what_is_kept_and_sent(casts: Quantisation, saved: float, cached: float, sent: float, sent_back: float) -> None:
    assert (casts.saved, casts.weight_copies, casts.sent(), casts.sent(backward=True)) == (saved, cached, sent, sent_back)
    kept = {save.tensor: save.bytes for save in layer(casts).saves}
    assert kept == ({f"l.input_{casts.products}": round(X * saved)} if saved else {"x": 2 * X})


def test_what_is_gathered_is_quantised_before_and_transposed_behind() -> None:
    """Four ranks with sequence parallelism: a quarter of x is cast by rows, what the weight's gradient needs is made of the whole."""
    column = layer(engine("delayed"), tensor=4, sequence_parallel=True, split="column")
    assert moved(column.forward) == 3 * X / 4
    assert moved(column.backward_weight) == 2 * X
    assert {save.bytes for save in column.saves} == {X // 4}
    row = layer(engine("delayed"), tensor=4, sequence_parallel=True, split="row")
    assert moved(row.backward_input) == 3 * DY / 4
    assert moved(row.backward_weight) == 2 * DY
    blackwell = layer(engine("delayed", hopper=False), tensor=4, sequence_parallel=True, split="row")
    assert moved(blackwell.backward_weight) == 0


def test_products_are_made_in_the_layout_that_the_device_has() -> None:
    def layouts(casts: Quantisation) -> list[str]:
        work = layer(casts)
        kernels = (*work.forward, *work.backward_input, *work.backward_weight)
        return [kernel.layout for kernel in kernels if isinstance(kernel, Gemm)]

    assert layouts(engine("delayed")) == layouts(torchao("rowwise")) == ["TN", "TN", "TN"]
    assert layouts(engine("mxfp8", hopper=False)) == ["TN", "NN", "NT"]
    assert layouts(engine("nvfp4", hopper=False)) == ["TN", "TN", "TN"]


def test_a_biass_gradient_is_summed_by_the_cast() -> None:
    for recipe, read in (("delayed", 0), ("mxfp8", 0), ("blockwise", 2 * DY), ("nvfp4", 2 * DY)):
        extra = moved(layer(engine(recipe), bias=True).backward_weight) - moved(layer(engine(recipe)).backward_weight)
        assert extra == read


def fp8(casts: Quantisation | None) -> Any:
    return replace(PRESETS["fp8"], quantisation=casts, matmul=casts.products if casts is not None else "fp8")


def seconds(kernel: Any) -> float:
    """A clock in which only moved bytes take time, one second each."""
    return kernel.bytes if isinstance(kernel, Memory) else 0.0


@pytest.mark.parametrize("recipe", ["delayed", "current", "blockwise", "mxfp8", "nvfp4"])
def test_weights_are_quantised_once_a_step(recipe: str) -> None:
    def compute(casts: Quantisation | None, micro_batches: int) -> float:
        run = job("llama-3.2-1b", precision=fp8(casts), clock=seconds, micro_batches=micro_batches, step=False)
        return sum(op.duration for op in run.program.ops if op.kind == "compute")

    kept, every = engine(recipe), engine(recipe, caches=False)
    matrices = 16 * (2048 * (2048 + 2 * 512) + 2048 * 2048 + 3 * 2048 * 8192)
    casts = [compute(kept, count) - compute(None, count) for count in (1, 2, 3)]
    assert casts[1] - casts[0] == pytest.approx(casts[2] - casts[1], rel=1e-9)
    assert 2 * casts[0] - casts[1] == pytest.approx(moved(kept.weight(matrices)), rel=1e-9)
    twice = moved(every.weight_in_pass(matrices, backward=False)) + moved(every.weight_in_pass(matrices, backward=True))
    assert compute(every, 2) - compute(kept, 2) == pytest.approx(2 * twice - moved(kept.weight(matrices)), rel=1e-9)


def test_gathers_of_tensor_parallelism_are_quantised() -> None:
    """Of a layer's gathers all are of linear inputs or of their gradients: two forward, two and two again backward; half the bytes."""

    def gathered(precision: Any) -> int:
        run = job("llama-3.2-1b", tensor=4, precision=precision, tensor_settings={"sequence_parallel": True})
        names = ("query_key_value", "mlp_up", "attention_output", "mlp_down")
        return sum(op.collective.bytes for op in run.collectives(kind="all_gather") if any(name in op.name for name in names))

    whole = gathered(PRESETS["bf16"])
    assert whole == 16 * 6 * 128 * 2048 * 2
    assert gathered(fp8(engine("delayed"))) == whole / 2
    assert gathered(fp8(engine("mxfp8", hopper=False))) == 16 * 128 * 2048 * (4 * 1.03125 + 2 * 2.0625)
    assert gathered(fp8(torchao("rowwise"))) == whole
    assert gathered(fp8(torchao("tensorwise"))) == whole / 2


def test_ranks_agree_on_a_current_scale() -> None:
    def agreements(recipe: str) -> list[int]:
        run = job("llama-3.2-1b", tensor=4, precision=fp8(engine(recipe)), tensor_settings={"sequence_parallel": True})
        return [op.collective.bytes for op in run.collectives(kind="all_reduce") if op.name.endswith("scale")]

    assert [agreements(recipe) for recipe in ("delayed", "current", "nvfp4")] == [[], 16 * 4 * [4], 16 * 4 * [8]]


SCENARIO: dict[str, Any] = {
    "model": "llama-3-8b",
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 16, "precision": "fp8"},
    "parallel": {"data": {"strategy": "zero1"}},
    "software": {"profile": "megatron-core"},
}
RECIPE = "training.precision={{preset: fp8, recipe: {}}}".format


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), Quantisation("delayed", TRANSFORMER_ENGINE, tn_only=True, caches_weights=True)),
        (("cluster.topology=hgx-b200",), Quantisation("delayed", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True)),
        (("software.profile=pytorch-2",), Quantisation("tensorwise", TORCHAO, tn_only=False, caches_weights=False)),
        ((RECIPE("rowwise"),), Quantisation("rowwise", TORCHAO, tn_only=False, caches_weights=False)),
        (("parallel.zero=3",), Quantisation("delayed", TRANSFORMER_ENGINE, tn_only=True, caches_weights=False)),
        (
            ("training.precision=mxfp8", "cluster.topology=hgx-b200"),
            Quantisation("mxfp8", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True),
        ),
        (
            ("training.precision=mxfp8", "cluster.topology=hgx-b200", "software.profile=pytorch-2"),
            Quantisation("mxfp8", TORCHAO, tn_only=False, caches_weights=False),
        ),
        (("training.precision=bf16",), None),
    ],
)
def test_recipe_of_a_scenario(changes: tuple[str, ...], expected: Quantisation | None) -> None:
    assert build(load(SCENARIO, *changes)).training.precision.quantisation == expected


def test_the_recipe_is_an_assumption_unless_it_is_written() -> None:
    def assumed(*changes: str) -> list[str]:
        return [one.value for one in build(load(SCENARIO, *changes)).assumptions if one.name == "fp8_recipe"]

    assert assumed() == ["delayed"]
    assert assumed("software.profile=pytorch-2") == ["tensorwise"]
    assert assumed(RECIPE("current")) == assumed("training.precision=bf16") == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (("training.precision=mxfp8",), "has no mxfp8 products"),
        ((RECIPE("rowwise"), "cluster.topology=8x-rtx-4090-pcie"), "rowwise products need Hopper"),
        (("training.precision={preset: bf16, recipe: delayed}",), "bf16 has no fp8 products"),
        ((RECIPE("nvfp4"),), "H100 SXM 80GB has no nvfp4 products .* use delayed or current"),
        ((RECIPE("nvfp4"), "cluster.topology=8x mi355x"), "MI355X 288GB has no nvfp4 products .* use mxfp8"),
        (
            ("training.precision={preset: fp8, recipe: nvfp4, keep: [embedding, router, norm, attention]}", "cluster.topology=hgx-b200"),
            "no library multiplies head in fp4",
        ),
        ((RECIPE("deepseek-v3"), "cluster.topology=8x-rtx-4090-pcie"), "deepseek-v3 products need Hopper"),
        ((RECIPE("int8"), "cluster.topology=hgx-b200"), "has no int8: its file states no int8 peak"),
        (("training.precision={preset: bf16, recipe: int8}",), "bf16 has no fp8 products"),
        (("training.precision={preset: fp8, parameters: fp8}",), "except with gather: fp8"),
        (("training.precision={preset: bf16, parameters: int8}",), "precision: int8 multiplies in int8"),
        ((RECIPE("mxfp4"),), "not supported yet: no library trains in it"),
        ((RECIPE("delay"),), "is not a recipe for fp8, int8 or 4-bit products"),
    ],
)
def test_recipes_that_cannot_be(changes: tuple[str, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        build(load(SCENARIO, *changes))


def test_recipes_in_order_of_what_they_move() -> None:
    steps = {recipe: simulate(load(SCENARIO, RECIPE(recipe))).step_time for recipe in ("delayed", "blockwise", "current", "tensorwise")}
    assert steps["delayed"] < steps["current"] < steps["tensorwise"]
    assert steps["tensorwise"] < simulate(load(SCENARIO, "training.precision=bf16-fp32grad")).step_time


def test_four_bits() -> None:
    """NVFP4 of a scenario: 18 B a parameter and 1.125 cached, products at the device's fp4 peak, faster than MXFP8 on the same one."""
    on = ("cluster.topology=hgx-b200", "parallel.tensor={size: 2, sequence_parallel: true}", "software.profile=nemo")
    built = build(load(SCENARIO, "training.precision=nvfp4", *on))
    assert built.bytes_per_parameter == "2+4+4+8 = 18 B/parameter (+1.125 cached)"
    assert built.parallelism.tensor.overlap == "backward"  # nemo's recipes say full, which Transformer Engine has no buffers for
    steps = {name: simulate(load(SCENARIO, f"training.precision={name}", *on)) for name in ("nvfp4", "mxfp8", "bf16-fp32grad")}
    assert steps["nvfp4"].step_time < steps["mxfp8"].step_time < steps["bf16-fp32grad"].step_time
    mfu = {name: one.mfu * one.step_time for name, one in steps.items()}
    assert mfu["bf16-fp32grad"] / mfu["nvfp4"] == pytest.approx(9000 / 2250)
    with pytest.raises(InputError, match="user buffers take operands in fp8 and wider"):
        simulate(load(SCENARIO, "training.precision=nvfp4", *on, "parallel.tensor.overlap=full"))


def test_deepseek_v3() -> None:
    """Moments in bf16, masters and gradients in fp32: 14 B a parameter; experts in fp8, head, router, embedding and cores in bf16."""
    built = build(load(SCENARIO, "training.precision=deepseek-v3"))
    assert built.bytes_per_parameter == "2+4+4+4 = 14 B/parameter (+2.00049 cached)"
    assert built.training.precision.keep == ("embedding", "head", "router", "norm", "attention")
    whole = build(load(SCENARIO, RECIPE("deepseek-v3")))
    assert whole.bytes_per_parameter == "2+4+4+8 = 18 B/parameter (+2.00049 cached)"
    own = build(load(SCENARIO, "training.precision={preset: deepseek-v3, optimizer: fp32}"))
    assert replace(own.training.precision, name="fp8") == whole.training.precision
    assert simulate(load(SCENARIO, RECIPE("blockwise"))).step_time < simulate(load(SCENARIO, RECIPE("deepseek-v3"))).step_time


def test_fp32_shards_are_gathered_in_bf16() -> None:
    """torchao casts behind FSDP's gather (without enable_fsdp_float8_all_gather); the gather of fp32 shards is that of bf16."""
    sharded = {**SCENARIO, "parallel": {"data": {"strategy": "fsdp"}}, "software": {"profile": "pytorch-2"}}
    sizes = {}
    for name in ("{preset: fp8, parameters: fp32}", "amp-bf16"):
        rows = simulate(load(sharded, f"training.precision={name}")).collectives
        sizes[name] = sum(row.bytes * row.count for row in rows if row.kind == "all_gather")
    assert len(set(sizes.values())) == 1


def test_int8_products_have_the_casts_of_rowwise_ones() -> None:
    """torchao, prototype/quantized_training/int8_mixed_precision.py: all three products; inputs and weights are kept in bf16."""
    int8, rowwise = (Quantisation(recipe, TORCHAO, tn_only=False, caches_weights=False) for recipe in ("int8", "rowwise"))
    assert (int8.products, rowwise.products) == ("int8", "fp8")
    for backward in (False, True):
        assert int8.weight_in_pass(96, backward=backward) == rowwise.weight_in_pass(96, backward=backward)
    assert int8.before_weight(64, 96, input_gathered=False, gradient_gathered=False) == rowwise.before_weight(
        64, 96, input_gathered=False, gradient_gathered=False
    )
    assert (int8.saved, int8.weight_copies, int8.sent()) == (0.0, 0.0, 0.0)


def test_int8_runs_on_devices_without_fp8() -> None:
    """An A100 multiplies 624 TOP/s in int8, twice its 16-bit peak; MFU is of that."""
    built = build(load(SCENARIO, "training.precision=int8", "cluster.topology=dgx-a100-80gb"))
    assert (built.training.precision.matmul, built.training.precision.activations) == ("int8", 2)
    assert built.cluster.device(built.gpus[0]).peak["int8"] == 624e12
