"""Per-layer inputs, and layers that read keys and values of earlier ones (Gemma 4's E2B and E4B), by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import job, model_of

from parsim.errors import ModelError, PlanError
from parsim.model.activations import caches, forward_pass, saved_bytes
from parsim.model.adapters import targets_of
from parsim.model.attention import AttentionCore
from parsim.model.blocks import build_transformer
from parsim.model.clamps import Clamp
from parsim.model.finetune import Finetune, finetuned
from parsim.model.flops import block_flop
from parsim.model.huggingface import read_config
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.model.per_layer import PER_LAYER, SumBeside
from parsim.model.transformer import TransformerConfig, configure
from parsim.model.workload import Workload
from parsim.parallel.training import Recompute

H, F, V, V2, P, LAYERS, HEADS, D, WIDE = 64, 176, 320, 288, 16, 6, 4, 24, 32
"""of `SMALL`: layers 0, 2, 4 have windows and heads of 24 elements, 1, 3, 5 see all keys with heads of 32; two key-value heads"""
SMALL: dict[str, Any] = {
    "family": "gemma4-text", "hidden": H, "mlp": F, "layers": LAYERS, "heads": HEADS, "kv_heads": 2, "head_dim": D,
    "full_attention": {"head_dim": WIDE}, "vocabulary": V, "maximum_sequence": 64, "attention_window": 8, "full_attention_every": 2,
    "shared_key_values": 3, "shared_key_value_mlp": 2 * F, "per_layer_inputs": {"width": P, "vocabulary": V2},
}  # fmt: skip
BATCH, SEQUENCE = 2, 16
T, E = BATCH * SEQUENCE, 2
AT = Workload(BATCH, SEQUENCE)
INPUTS = T * LAYERS * P * E
KEYS = {1: 2 * 2 * WIDE * T * E, 2: 2 * 2 * D * T * E}
"""bytes of the keys and values that layer 1 hands to layers 3 and 5, and layer 2 to layer 4"""


def small(**changes: Any) -> Model:
    base = configure(structure(), None)
    return build_transformer(configure(changes, base), name="small")


def structure() -> dict[str, Any]:
    from parsim.model.families import FAMILIES

    return {**FAMILIES["gemma4-text"].structure, **SMALL}


def weights(*names: str) -> dict[str, int]:
    return {p.name: p.count for block in small().blocks for p in block.parameters() if p.name in names}


def test_parameters_by_hand() -> None:
    """A layer of its own: queries, keys, values, output, norms of queries and keys, MLP, four norms; a reader has neither keys nor values
    nor their norms, and an MLP twice as wide. Every layer has gate, projection and norm.
    """
    per_layer = 2 * H * P + H
    own = {d: (2 * HEADS + 4) * d * H + 2 * d + 3 * H * F + 4 * H + per_layer for d in (D, WIDE)}
    reader = {d: 2 * HEADS * d * H + d + 3 * H * 2 * F + 4 * H + per_layer for d in (D, WIDE)}
    embedding = V * H + V2 * LAYERS * P + H * LAYERS * P + P
    assert parameter_count(small()) == embedding + 2 * own[D] + own[WIDE] + 2 * reader[WIDE] + reader[D] + H
    assert weights("embed_tokens_per_layer.weight", "per_layer_model_projection.weight", "per_layer_projection_norm.weight") == {
        "embed_tokens_per_layer.weight": V2 * LAYERS * P, "per_layer_model_projection.weight": H * LAYERS * P,
        "per_layer_projection_norm.weight": P,
    }  # fmt: skip


def test_published_sizes() -> None:
    """35 layers of 8 heads, the last 20 of them readers; every fifth sees all keys with heads of 512 elements."""
    h, f, p = 1536, 6144, 256
    layers = 35 * (4 * h + 2 * h * p + h)
    attention = sum(2 * 8 * d * h * n + d * n for d, n in ((256, 28), (512, 7))) + sum(
        2 * d * h * n + d * n for d, n in ((256, 12), (512, 3))
    )
    tables = 262144 * (h + 35 * p)
    expected = tables + 35 * p * h + p + layers + attention + 3 * h * (15 * f + 20 * 2 * f) + h
    assert parameter_count(model_of("gemma-4-e2b")) == expected


def test_work_of_a_reader() -> None:
    """Of a token: queries and output, an MLP of twice the width, gate and projection; scores and values of half a square."""
    products = 2 * HEADS * WIDE * H + 3 * H * 2 * F + 2 * H * P
    flop = block_flop(small().blocks[1 + 3], SEQUENCE)
    core = 4 * HEADS * WIDE * SEQUENCE**2 / 2
    assert flop.forward == 2 * SEQUENCE * products + core
    assert (flop.backward_input, flop.backward_weight) == (2 * SEQUENCE * products + 2 * core, 2 * SEQUENCE * products)
    assert block_flop(small().blocks[0], SEQUENCE).forward == 2 * SEQUENCE * H * LAYERS * P


def test_whose_keys_are_read() -> None:
    """The last layer before the readers that sees as much."""
    model = small()
    assert [block.shows for block in model.blocks[:-1]] == [
        (PER_LAYER,), (), ("keys_and_values_of_all",), ("keys_and_values_of_windows",), (), (), (),
    ]  # fmt: skip
    read = [next(one for one in block.operators if isinstance(one, AttentionCore)).inputs[1:] for block in model.blocks[1:-1]]
    assert read == [(), (), (), ("keys_and_values_of_all",), ("keys_and_values_of_windows",), ("keys_and_values_of_all",)]
    assert [cache.elements for cache in caches(model)] == [4 * D, 4 * WIDE, 4 * D]


def test_what_is_kept_and_where() -> None:
    """Per-layer inputs once, in the embedding's block; keys and values where they are made; of a reader neither."""
    model = small()
    embedding, layer, reader = (tape(model.blocks[number], AT) for number in (0, 2, 4))
    assert embedding.tensors[PER_LAYER].bytes == INPUTS
    assert PER_LAYER in embedding.saved
    kept = {name: row.bytes for name, row in reader.tensors.items() if name in reader.saved}
    assert kept["query_key_value"] == T * HEADS * WIDE * E
    assert not {PER_LAYER, "keys_and_values_of_all"} & kept.keys()
    assert {layer.tensors[name].bytes for name in layer.saved if name == "query_key_value"} == {T * (HEADS + 4) * WIDE * E}
    assert "keys_and_values_of_all" not in layer.saved


def test_a_pass_that_keeps_nothing_keeps_what_layers_behind_read() -> None:
    model = small()
    left = {}
    for number, block in enumerate(model.blocks):
        entry = tape(block, AT)
        steps = entry.forward_unsaved
        made, freed = ({name for step in steps for name in getattr(step, what)} for what in ("allocates", "frees"))
        left |= {number: {name: entry.tensors[name].bytes for name in made - freed - {"output"}}}
        assert set(left[number]) == set(entry.shown)
    assert {number: rest for number, rest in left.items() if rest} == {
        0: {PER_LAYER: INPUTS}, 2: {"keys_and_values_of_all": KEYS[1]}, 3: {"keys_and_values_of_windows": KEYS[2]},
    }  # fmt: skip
    without = {"shared_key_values": 0, "shared_key_value_mlp": 0, "per_layer_inputs": None}
    evaluated, plain = (forward_pass(small(vocabulary=8192, **changes), AT, batch=0) for changes in ({}, without))
    assert evaluated.outputs == plain.outputs
    # while the head makes its logits, three tensors are there that a model without them has not
    assert evaluated.peak - plain.peak == INPUTS + KEYS[1] + KEYS[2]


def test_gradients_from_the_side_are_there_throughout_a_layer() -> None:
    """What the layers behind have summed comes first; the layer's own part is added, and the sum stays until the layer's begin."""
    entry = tape(small().blocks[1 + 3], AT)
    steps = entry.backward
    place = {name: next(i for i, step in enumerate(steps) if name in step.allocates) for name in entry.tensors if name.startswith("grad:")}
    assert isinstance(steps[0].operator, SumBeside)
    assert place[f"grad:{PER_LAYER}"] == place["grad:keys_and_values_of_all"] == 0
    for name, size, at in ((PER_LAYER, INPUTS, "take_per_layer"), ("keys_and_values_of_all", KEYS[1], "attention")):
        summed = f"grad:{name}@{at}"
        assert entry.tensors[summed].bytes == entry.tensors[f"grad:{name}"].bytes == size
        assert f"grad:{name}" in steps[place[summed]].frees
        assert summed in next(step for step in reversed(steps) if step.phase == "input").frees
    moved = sum(kernel.bytes for kernel in steps[place[f"grad:{PER_LAYER}@take_per_layer"]].kernels)
    assert moved == INPUTS + 2 * T * P * E + 3 * INPUTS  # zeros, a copy of the part, the sum


def alive(recompute: Recompute, name: str) -> tuple[str, str]:
    """The ops that make and release a tensor."""
    run = job(small(), sequence_length=SEQUENCE, micro_batch=BATCH, recompute=recompute)
    memory = run.memory(0)
    number = next(i for i, tensor in enumerate(memory.tensors) if tensor.name == name)
    rows = [run.program.ops[memory.op[row]].name for row in range(len(memory.tensor)) if memory.tensor[row] == number]
    assert len(rows) == 2
    return rows[0], rows[1]


def test_recomputed_layers_hand_their_keys_on_once() -> None:
    """From the layer's first forward pass until it runs again, behind the backward pass of all that read them."""
    full = Recompute("full")
    assert alive(full, "layer 1.keys_and_values_of_all") == ("F0 layer 1", "R0 layer 1")
    assert alive(full, "layer 2.keys_and_values_of_windows") == ("F0 layer 2", "R0 layer 2")
    assert alive(full, f"embedding.{PER_LAYER}") == ("F0 embedding", "B0 embedding")
    with pytest.raises(AssertionError):  # without recomputation they are what the layer's own attention keeps
        alive(Recompute("none"), "layer 1.keys_and_values_of_all")


@pytest.mark.parametrize("changes", [{"per_layer_inputs": None}, {"shared_key_values": 0, "shared_key_value_mlp": 0}])
def test_stages_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"stages that pass on more than the residual stream"):
        job(small(**changes), pipeline=2)


@pytest.mark.parametrize("settings", [{"data": 2}, {"data": 2, "data_settings": {"strategy": "zero3"}}, {"tensor": 2}])
@pytest.mark.parametrize("mode", ["none", "full"])
def test_strategies_run_and_leave_nothing_behind(settings: dict[str, Any], mode: Any) -> None:
    run = job(small(), **settings, sequence_length=SEQUENCE, micro_batch=BATCH, recompute=Recompute(mode))
    memory = run.memory(0)
    beside = [number for number, tensor in enumerate(memory.tensors) if PER_LAYER in tensor.name or "keys_and_values_of" in tensor.name]
    assert beside
    assert not any(memory.delta[memory.tensor == number].sum() for number in beside)


def test_adapters_stand_beside_what_a_reader_has() -> None:
    model = small()
    reader = model.blocks[1 + 3]
    words = [target.words for one in reader.operators if isinstance(one, Linear) for target in targets_of(one, model)]
    assert [next(iter(word)) for word in words] == [
        "query", "attention_output", "gate", "up", "mlp_down", "per_layer_input_gate", "per_layer_projection",
    ]  # fmt: skip
    rank, per_layer = 4, 2 * (H + P)
    tuned = finetuned(model, Finetune(rank=rank, targets=("q_proj", "v_proj", "per_layer_input_gate", "per_layer_projection")))
    queries = 3 * (H + HEADS * D) + 3 * (H + HEADS * WIDE)
    values = 2 * (H + 2 * D) + (H + 2 * WIDE)
    assert trainable_parameter_count(tuned) == rank * (queries + values + LAYERS * per_layer)


def test_frozen_inputs_have_no_gradient() -> None:
    """Adapters of queries alone: nothing in the embedding is trained, so that nothing is added to the inputs' gradient."""
    tuned = finetuned(small(), Finetune(rank=4, targets=("q_proj",)))
    plain, again = (
        job(tuned, sequence_length=SEQUENCE, micro_batch=BATCH, finetune=Finetune(rank=4), recompute=Recompute(mode))
        for mode in ("none", "full")
    )
    names = [{tensor.name for tensor in run.memory(0).tensors} for run in (plain, again)]
    sums = [{name for name in found if f"grad:{PER_LAYER}" in name} for found in names]
    assert not sums[0]
    assert sums[1]  # behind checkpoints the embedding's output wants a gradient, and the inputs are made of it
    assert f"embedding.{PER_LAYER}" in names[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared_key_values": 6}, "the last 6 of 6 layers"),
        ({"shared_key_values": 5}, "the last 5 of 6 layers"),
        ({"shared_key_values": 0}, "give shared_key_values, or leave it out"),
        ({"fused_query_key_value": True}, "fused_query_key_value: false"),
        ({"per_layer_inputs": {"width": 0}}, "have a width"),
        ({"per_layer_inputs": {"width": 10**9}}, "at most"),
        ({"parallel_residual": True}, "one behind the other"),
        ({"clamped_products": True, "experts": {"count": 4, "top_k": 2}}, "of dense MLPs alone"),
    ],
)
def test_what_contradicts_itself(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        small(**changes)


def test_a_config_without_speech_is_read() -> None:
    """E2B's file with `audio_config: null`; per-layer inputs are there where it says nothing of them."""
    text = {
        "model_type": "gemma4_text", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": 4, "num_attention_heads": 4,
        "vocab_size": V, "num_kv_shared_layers": 1, "use_double_wide_mlp": True, "layer_types": ["full_attention"] * 4,
    }  # fmt: skip
    config = read_config(
        {"model_type": "gemma4", "text_config": text, "vision_config": {"use_clipped_linears": True}, "audio_config": None}
    )
    assert isinstance(config, TransformerConfig)
    assert (config.shared_key_values, config.shared_key_value_mlp) == (1, 2 * F)
    assert config.per_layer_inputs is not None
    assert (config.per_layer_inputs.width, config.per_layer_inputs.vocabulary) == (256, 262144)
    assert config.vision is not None
    assert config.vision.clamped_products


def test_clamps_keep_what_they_are_given() -> None:
    """Queries, keys and values clamp the same input, each by bounds of its own."""
    clamp = Clamp("c", ("x",), "y", H, copies=3)
    work, size = clamp.work(AT), T * H * E
    assert (work.output, work.input_gradients, {save.tensor: save.bytes for save in work.saves}) == (3 * size, (size,), {"x": size})
    assert sum(kernel.bytes for kernel in work.forward) == 3 * 2 * size
    assert sum(kernel.bytes for kernel in work.backward_input) == 3 * (4 * size + 6 * T * H)
    assert clamp.work(replace(AT, fused=True)).output == 0


def test_saved_bytes_do_not_grow_with_a_second_reader_of_the_same_keys() -> None:
    """A reader keeps its own tensors alone: as many bytes as the reader before it that sees as much."""
    model = small()
    shorter = replace(model, blocks=(*model.blocks[:6], *model.blocks[7:]), block_names=(*model.block_names[:6], *model.block_names[7:]))
    at = replace(AT, attention="flash2")
    reader = tape(model.blocks[4], at)
    own = sum(reader.tensors[name].bytes for name in reader.saved)
    boundary = T * H * E
    assert saved_bytes(model, at) - saved_bytes(shorter, at) in (own, own + boundary)


@pytest.mark.parametrize(("method", "words"), [("prompt", "learned tokens are no words"), ("ia3", "learned scales")])
def test_modules_that_do_not_fit(method: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        finetuned(small(), Finetune(method, virtual_tokens=8))
