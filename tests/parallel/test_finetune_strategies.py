"""Fine-tuning under every data strategy: states to the byte, only trained gradients on the wire, nothing leaked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import job, model_of, tree

from parsim.model.adapters import stored_bytes
from parsim.model.catalogue import build_model
from parsim.model.finetune import Finetune, finetuned
from parsim.parallel.optimizer import weight_bytes
from parsim.parallel.training import Optimizer, Recompute

SMALL = {"family": "llama", "hidden": 256, "layers": 4, "heads": 4, "vocabulary": 1024, "mlp": 512, "maximum_sequence": 512}
ADAPTERS = 4 * 8 * (4 * (256 + 256) + 3 * (256 + 512))
FUSED = Optimizer("adamw", "fused", clip_gradients=False)


def small(recipe, tensor=1):
    return finetuned(build_model(SMALL, name="small", base_lookup=tree, tensor=tensor), recipe)


def tuned(recipe, **settings):
    tensor = settings.get("tensor", 1)
    return job(small(recipe, tensor), finetune=recipe, optimizer=FUSED, **settings)


LORA = Finetune(rank=8)
QLORA = Finetune("qlora", rank=8, base="nf4-dq")


@pytest.mark.parametrize(
    ("recipe", "states"),
    [
        (Finetune(rank=16), 14_116_462_592),  # 2 P + 16 x 39,976,960 = 13.1470 GiB
        (Finetune("qlora", rank=16, base="nf4-dq"), 4_505_223_168),  # 4.126953125 bit on linear layers, 2 B else: 4.1958 GiB
        # a byte for each of 6,476,005,376, 4 for each of their 32 x (5 x 4096 + 2 x 11008) rows, 2 B else: 7.1208 GiB
        (Finetune(rank=16, base="int8"), 6_476_005_376 + 4 * 32 * (5 * 4096 + 2 * 11008) + 2 * 262_410_240 + 16 * 39_976_960),
    ],
)
def test_states_of_llama_7b(recipe, states):
    run = job(finetuned(model_of("llama-7b"), recipe), finetune=recipe)
    plan = run.plan
    weights = [w for chunk in plan.chunks for w in plan.weights(chunk)]
    trained = sum(w.count for w in weights if w.trains)
    precision = plan.training.precision
    stored = sum(weight_bytes(w, plan.training) for w in weights)
    assert stored + trained * (precision.gradients + precision.master + 8) == states
    assert round(states / 2**30, 4) == {14_116_462_592: 13.1470, 4_505_223_168: 4.1958, 7_645_896_704: 7.1208}[states]


def test_the_rest_in_sixteen_bits_beside_fp32_adapters():
    """amp-bf16: adapters 4 + 4 + 8, the base 2 where it says bf16."""
    from parsim.scenario.precision import PRESETS

    recipe = replace(LORA, base="bf16")
    run = tuned(recipe, precision=PRESETS["amp-bf16"])
    plan = run.plan
    weights = [w for chunk in plan.chunks for w in plan.weights(chunk)]
    base = sum(w.count for w in weights if not w.trains)
    assert sum(weight_bytes(w, plan.training) for w in weights) == 2 * base + 4 * ADAPTERS


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        ("ddp", {"all_reduce": 2 * ADAPTERS}),
        ("zero1", {"reduce_scatter": 2 * ADAPTERS, "all_gather": 2 * ADAPTERS}),
        ("zero2", {"reduce_scatter": 2 * ADAPTERS, "all_gather": 2 * ADAPTERS}),
        ("fsdp", {"reduce_scatter": 2 * ADAPTERS}),
        ("zero3", {"reduce_scatter": 2 * ADAPTERS}),
    ],
)
@pytest.mark.parametrize("recipe", [LORA, QLORA], ids=["lora", "qlora"])
def test_only_adapters_gradients_travel(strategy, kinds, recipe):
    run = tuned(recipe, data=2, data_settings={"strategy": strategy})
    for kind, size in kinds.items():
        assert run.bytes(axis="data", kind=kind) == size


@pytest.mark.parametrize("recipe", [LORA, QLORA], ids=["lora", "qlora"])
def test_fsdp_gathers_frozen_weights_as_they_are_stored(recipe):
    run = tuned(recipe, data=2, data_settings={"strategy": "fsdp"})
    plan = run.plan
    weights = [w for chunk in plan.chunks for w in plan.weights(chunk)]
    layers = sum(weight_bytes(w, plan.training) for w in weights if w.name.startswith("layer"))
    outer = sum(weight_bytes(w, plan.training) for w in weights if not w.name.startswith("layer"))
    assert run.bytes(axis="data", kind="all_gather") == 2 * layers + outer
    linear = 4 * (4 * 256 * 256 + 3 * 256 * 512)
    expected = stored_bytes(linear, "nf4-dq") if recipe is QLORA else 2 * linear
    assert layers == expected + 2 * 4 * 2 * 256 + 2 * ADAPTERS


def test_a_whole_base_is_resident_and_not_gathered():
    recipe = replace(QLORA, base_sharded=False)
    run = tuned(recipe, data=4, data_settings={"strategy": "fsdp"})
    assert run.bytes(axis="data", kind="all_gather") == 2 * 2 * ADAPTERS
    sharded = tuned(QLORA, data=4, data_settings={"strategy": "fsdp"})
    resident = [sum(run_.program.tensors[0][i].bytes for i in run_.program.resident[0]) for run_ in (run, sharded)]
    plan = run.plan
    base = sum(weight_bytes(w, plan.training) for chunk in plan.chunks for w in plan.weights(chunk) if not w.trains)
    assert resident[0] - resident[1] == pytest.approx(base * 3 / 4, abs=100)


def test_flat_parameters_reduce_the_gradients_of_mixed_units_whole():
    recipe = replace(LORA, flat_gradients=True)
    run = tuned(recipe, data=2, data_settings={"strategy": "fsdp"})
    layer = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
    assert run.bytes(axis="data", kind="reduce_scatter") == 2 * (4 * layer + ADAPTERS)
    assert run.bytes(axis="data", kind="all_gather") == tuned(LORA, data=2, data_settings={"strategy": "fsdp"}).bytes(
        axis="data", kind="all_gather"
    )


def test_frozen_layers_take_no_part_in_backward():
    recipe = Finetune("freeze", freeze=3)
    run = tuned(recipe, data=2, data_settings={"strategy": "fsdp"})
    names = [op.name for op in run.program.ops if op.lanes[0].rank == 0]
    assert {name for name in names if name.startswith("B0 layer")} == {"B0 layer 3"}
    assert sum(name == "all_gather layer 2 weights" for name in names) == 1
    assert sum(name == "all_gather layer 3 weights" for name in names) == 2


def test_checkpointed_adapters_make_the_embeddings_output_want_a_gradient():
    """PEFT's enable_input_require_grads: layer 0's backward runs to its input; the frozen embedding's does not."""
    plain, checkpointed = (tuned(LORA, recompute=Recompute(mode)) for mode in ("none", "full"))
    tapes = [run.lowering.passes_of(0).tape(1) for run in (plain, checkpointed)]
    assert ["grad_input" in taped.tensors for taped in tapes] == [False, True]
    assert checkpointed.lowering.passes_of(0).tape(0).backward == ()


def test_tensor_parallel_halves():
    """Beside a column A is whole and B split, beside a row the other way round; the whole half is summed at the step."""
    run = tuned(LORA, tensor=2)
    (weights,) = (run.plan.weights(chunk) for chunk in run.plan.chunks)
    counts = {w.name: w.count for w in weights}
    assert counts["layer 0.query.lora_A.weight"] == 8 * 256
    assert counts["layer 0.query.lora_B.weight"] == 256 * 8 // 2
    assert counts["layer 0.mlp_down.lora_A.weight"] == 8 * 512 // 2
    assert counts["layer 0.mlp_down.lora_B.weight"] == 256 * 8
    whole = 4 * 8 * (5 * 256 + 2 * 256)  # A of q, k, v, gate, up; B of output and down
    (summed,) = [op for op in run.collectives(axis="tensor") if "adapter gradients" in op.name]
    assert summed.collective.bytes == 2 * whole
    full = job(build_model(SMALL, name="small", base_lookup=tree, tensor=2), tensor=2, optimizer=FUSED)
    others = [op for op in run.collectives(axis="tensor") if op != summed]
    # the same collectives on activations, but for the input gradients of layer 0's column-parallel products
    assert len(full.collectives(axis="tensor")) - len(others) == 1


GRID = [
    {"data": 2, "data_settings": {"strategy": s}}
    for s in ("ddp", "zero1", "zero2", "zero3", "fsdp", "torch-data-parallel", "parameter-server")
]
GRID += [{"data": 2, "data_settings": {"strategy": "fsdp", "unit": unit, "reshard_after_forward": False}} for unit in ("block", "model")]
GRID += [
    {"tensor": 2, "tensor_settings": {"sequence_parallel": True}},
    {"pipeline": 2},
    {"pipeline": 4, "pipeline_settings": {"schedule": "gpipe"}},
    {"pipeline": 2, "pipeline_settings": {"schedule": "pipedream"}},
    {"pipeline": 2, "pipeline_settings": {"schedule": "interleaved", "virtual_stages": 2}},
    {"tensor": 2, "pipeline": 2, "data": 2, "data_settings": {"strategy": "zero3"}},
    *({"pipeline": 2, "data": 2, "data_settings": {"strategy": s}} for s in ("zero1", "zero2", "fsdp")),
    {"iteration": "first"},
    {"backward": False},
]
RECIPES = [
    LORA,
    replace(LORA, dropout=True, targets=("q", "v")),
    replace(LORA, train_embeddings=True),
    QLORA,
    Finetune("freeze"),
    Finetune("freeze", freeze=2),
    Finetune("freeze", freeze=("attention", "norms")),
]


@pytest.mark.parametrize("settings", GRID, ids=str)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_nothing_is_leaked_or_freed_twice(settings, recompute):
    """Each recipe with one of the two recomputations, the other one with the setting that follows."""
    wires = {"tensor": 1e-5, "data": 1e-4, "pipeline": 1e-5}
    for recipe in RECIPES[(GRID.index(settings) + (recompute == "full")) % 2 :: 2]:
        run = tuned(recipe, wires=wires, recompute=Recompute(recompute), micro_batches=4, **settings)
        for rank, resident in run.program.resident.items():
            memory = run.memory(rank)
            names = {number: memory.tensors[number].name for number, _ in memory.final}
            assert [name for number, name in names.items() if number not in resident and "workspace" not in name] == []
            assert [memory.tensors[number].name for number in resident if number not in names] == []
            assert all(levels.min() >= 0 for levels in memory.levels.values())
