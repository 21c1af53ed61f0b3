"""Decoders whose layers differ in heads, gates, sinks, indexers or convolutions: what each layer has, and what they do not go with."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from decoders import COHERE_EXPERTS, DECODERS, GROUPED, HEADS, LATENT, MIMO, PARAMETERS, STEP

from parsim import load, simulate
from parsim.errors import ModelError, ParsimError
from parsim.model.attention import AttentionCore
from parsim.model.catalogue import build_model
from parsim.model.families import MODEL_TYPES
from parsim.model.flops import attention_width
from parsim.model.gated_convolution import GateProduct
from parsim.model.huggingface import read_config
from parsim.model.linear import Linear
from parsim.model.linear_attention import HeadGate, ShortConvolution
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.model.sparse_attention import LightningIndexer, SparseCore
from parsim.model.workload import Workload

DSA: dict[str, Any] = {**LATENT, "model_type": "glm_moe_dsa", "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
INDEXER = 24 * 2 * 16 + 64 * 16 + 2 * 16 + 64 * 2
"""parameters of one layer's"""
SLIDING: dict[str, Any] = {"layer_types": ["full_attention", *["sliding_attention"] * 3], "sliding_window": 8}
AT = Workload(batch=2, sequence=64)


def built(kind: str, values: dict[str, Any], **changes: Any) -> Model:
    return build_model({"model_type": kind, **values, **changes}, name=kind, base_lookup=lambda _: {})


def of(name: str, **changes: Any) -> Model:
    return built(*DECODERS[name], **changes)


def cores(model: Model) -> list[AttentionCore]:
    return [one for block in model.blocks for one in block.operators if isinstance(one, AttentionCore)]


def words(model: Model, layer: int) -> list[str]:
    return [operator.name for operator in model.blocks[1 + layer].operators]


def test_the_bias_of_ernies_router_is_a_parameter_that_no_gradient_updates() -> None:
    model = of("ernie4_5_moe")
    assert parameter_count(model) - trainable_parameter_count(model) == 3 * 4
    other = of("dots1")
    assert parameter_count(other) == trainable_parameter_count(other)


# values narrower than keys, sinks in windows


def test_windows_have_twice_the_heads_and_sinks() -> None:
    found = [(core.kv_heads, core.head_dim, core.value_dim, core.window, core.sinks) for core in cores(of("mimo_v2_flash"))]
    assert found == [(1, 24, 16, 0, False), *[(2, 24, 16, 8, True)] * 3]
    model = of("mimo_v2_flash")
    assert attention_width(model) == 4 * (24 + 16) / 2
    assert "value_scale" in words(model, 0)
    assert list(model.key_value_heads.values()) == [2, 1]


def test_numbers_of_the_files_beside_the_weights_say_the_same() -> None:
    published = {key: value for key, value in MIMO.items() if key != "sliding_window"} | {
        "hybrid_layer_pattern": [0, 1, 1, 1], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 7, "sliding_window": 7,
        "swa_num_key_value_heads": 2, "swa_head_dim": 24, "swa_v_head_dim": 16, "add_swa_attention_sink_bias": True,
        "partial_rotary_factor": 0.334, "topk_method": "noaux_tc",
    }  # fmt: skip
    assert read_config({"model_type": "mimo_v2_flash", **published}) == read_config({"model_type": "mimo_v2_flash", **MIMO})


def test_work_of_values_that_are_narrower_than_keys() -> None:
    """Per token: queries of 4 x 24, keys of 24, values of 16 for one head; outputs of 4 x 16."""
    model = of("mimo_v2_flash")
    core, product = cores(model)[0], next(one for one in model.blocks[1].operators if isinstance(one, Linear))
    assert product.out_features == (96, 24, 16)
    work = core.work(Workload(batch=1, sequence=64, attention="flash2"))
    assert work.output == 64 * 64 * 2
    assert [save.bytes for save in work.saves[:1]] == [64 * (96 + 24 + 16) * 2]


# heads and gates


def test_heads_by_the_kind_of_layer_with_a_gate_for_each() -> None:
    model = of("laguna")
    assert [(core.heads, core.kv_heads, core.window) for core in cores(model)] == [(4, 2, 0), *[(6, 2, 8)] * 3]
    gates = [one for block in model.blocks for one in block.operators if isinstance(one, HeadGate)]
    assert [(gate.heads, gate.features, gate.wide) for gate in gates] == [(4, 96, True), *[(6, 144, True)] * 3]
    assert model.key_value_heads == {"key-value heads": 2, "heads of layers that see all keys": 4}
    assert attention_width(model) == 24 * (4 + 3 * 6) / 4


def test_step_3_5_as_transformers_writes_it_and_as_the_files_beside_the_weights_do() -> None:
    model = built("step3p5", STEP)
    assert [(core.heads, core.window) for core in cores(model)] == [(4, 0), *[(6, 8)] * 3]
    assert ["mixture.router" in words(model, layer) for layer in range(4)] == [False, True, True, True]
    attention = 3 * (64 * (6 + 2 * 2) * 24 + 6 * 24 * 64 + 64 * 6) + 64 * (4 + 2 * 2) * 24 + 4 * 24 * 64 + 64 * 4 + 4 * 2 * 24
    experts = 3 * ((4 * 48 + 32) * 3 * 64 + 4 * 64)
    assert parameter_count(model) == 2 * 320 * 64 + attention + 3 * 64 * 176 + experts + 9 * 64
    published = {key: value for key, value in STEP.items() if key not in ("num_sliding_attention_heads", "mlp_layer_types")} | {
        "layer_types": [*STEP["layer_types"], "sliding_attention"], "num_nextn_predict_layers": 1, "moe_layers_enum": "1,2,3",
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2,
                                    "head_dim": 24},
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 1.0], "use_head_wise_attn_gate": True, "moe_router_activation": "sigmoid",
    }  # fmt: skip
    saved = {**STEP, "per_layer_config": {str(layer): {"num_attention_heads": 6} for layer in (1, 2, 3)}}
    assert read_config({"model_type": "step3p5", **published}) == read_config({"model_type": "step3p5", **STEP})
    assert read_config({"model_type": "step3p5", **saved}) == read_config({"model_type": "step3p5", **STEP})


def test_a_gate_for_every_head_keeps_the_output_and_a_few_numbers() -> None:
    gate = HeadGate("gate", ("core", "numbers"), "out", 96, 4, wide=True)
    tokens = AT.tokens
    assert {save.tensor: save.bytes // tokens for save in gate.work(AT).saves} == {"core": 192, "gate.numbers": 8, "gate.fp32": 16}
    fused = gate.work(Workload(batch=2, sequence=64, fused=True))
    assert {save.tensor: save.bytes // tokens for save in fused.saves} == {"core": 192, "gate.numbers": 8}


def test_rotary_positions_of_dense_layers_and_of_windows() -> None:
    def rotates(model: Model) -> list[bool]:
        return ["rotary" in words(model, layer) for layer in range(4)]

    assert rotates(of("cohere2_moe")) == [True, False, True, False]
    assert rotates(of("cohere2_moe with dense layers")) == [True, True, False, True]  # the dense layer sees all keys
    assert rotates(of("granite_swa")) == [True] * 4
    assert rotates(of("granite_swa with biases")) == [False, True, True, True]
    assert rotates(of("afmoe")) == [True, True, True, False]
    assert ["query_key_norm" in words(of("afmoe"), layer) for layer in range(4)] == [True] * 4


# indexers


@pytest.mark.parametrize(
    "spelling",
    [
        {"indexer_types": ["full", "shared", "full", "shared"]},
        {"index_topk_pattern": "FSFS"},
        {"index_topk_freq": 2, "index_skip_topk_offset": 1},
    ],
)
def test_layers_that_share_an_indexer(spelling: dict[str, Any]) -> None:
    model = build_model({**DSA, **spelling}, name="shared", base_lookup=lambda _: {})
    chooses = [any(isinstance(one, LightningIndexer) for one in block.operators) for block in model.blocks[1:-1]]
    assert chooses == [True, False, True, False]
    assert parameter_count(of("glm_moe_dsa")) - parameter_count(model) == 2 * INDEXER
    full, shared = (core.work(AT) for core in cores(model)[:2])
    assert full.forward == shared.forward
    assert [save.bytes for save in full.saves if save not in shared.saves] == [AT.tokens * 8 * 4]
    assert (len(full.input_gradients), len(shared.input_gradients)) == (3, 2)
    assert isinstance(cores(model)[1], SparseCore)


def test_indexers_of_glm_5_2() -> None:
    """Every fourth layer from the third, and the two before it: 21 of 78."""
    config = read_config({**DSA, "num_hidden_layers": 78, "index_topk_freq": 4, "index_skip_topk_offset": 3})
    assert config.latent is not None
    chosen = [layer for layer in range(78) if config.latent.has_indexer(layer)]
    assert (chosen[:5], chosen[-1], len(chosen)) == ([0, 1, 2, 6, 10], 74, 21)


JOB: dict[str, Any] = {
    "cluster": {"topology": "dgx-h100", "gpus": 2},
    "training": {"micro_batch": 1, "global_batch": 4, "sequence_length": 64},
    "parallel": {"data": {"size": 2, "strategy": "zero1"}},
}


def test_stages_and_checkpoints_begin_with_layers_that_choose() -> None:
    tree = {**JOB, "model": {**DSA, "indexer_types": ["full", "shared"] * 2}}
    stages = {"pipeline": {"size": 2}, "data": {"size": 1}}
    assert simulate(load(tree)).fits
    assert simulate(load({**tree, "parallel": stages})).fits
    assert simulate(load({**tree, "training": {**JOB["training"], "recompute": {"every": 2}}})).fits
    for change, message in (
        ({"training": {**JOB["training"], "recompute": "full"}}, "recomputation that parts a layer"),
        ({"training": {**JOB["training"], "recompute": {"blocks": 1}}}, "recomputation that parts a layer"),
        (
            {"parallel": {**stages, "pipeline": {"size": 2, "split": [1, 3]}}},
            "a pipeline stage that begins with a layer without an indexer",
        ),
    ):
        with pytest.raises(ParsimError, match=message):
            simulate(load({**tree, **change}))


# convolutions


def test_a_gated_convolution_in_place_of_attention() -> None:
    model = of("lfm2")
    assert [("attention" in words(model, layer), "mixer_convolution" in words(model, layer)) for layer in range(4)] == [
        (False, True), (False, True), (True, False), (False, True),
    ]  # fmt: skip
    row = [one for one in model.blocks[1].operators if isinstance(one, ShortConvolution | GateProduct)]
    before, convolution, behind = row
    assert (before.inputs, behind.inputs) == (("mixer_in",), ("mixer_in", "mixer_convolution"))
    kept = {save.tensor: save.bytes // AT.tokens for one in row for save in one.work(AT).saves}
    assert kept == {"mixer_in": 3 * 64 * 2, "mixer_gate_in": 64 * 2, "mixer_convolution": 64 * 2}
    assert convolution.work(AT).output == AT.tokens * 64 * 2


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({"intermediate_size": 12288}, 8192),
        ({"block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256}, 8192),
        ({"block_ff_dim": 10240, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 256}, 8960),
        ({"block_ff_dim": 1000, "block_ffn_dim_multiplier": None}, 666),
        ({"intermediate_size": 12288, "block_auto_adjust_ff_dim": False}, 12288),
    ],
)
def test_widths_of_lfm2(values: dict[str, Any], width: int) -> None:
    assert read_config({**GROUPED, "model_type": "lfm2", **values}).mlp == width


def test_ranks_of_convolutions() -> None:
    tree = {**JOB, "model": {"model_type": "lfm2", **DECODERS["lfm2"][1]}}
    assert simulate(load({**tree, "parallel": {"tensor": {"size": 2}, "data": {"size": 1}}})).fits
    with pytest.raises(ParsimError, match="a convolution over 3 tokens, the first of which another rank has"):
        simulate(load({**tree, "parallel": {"context": {"size": 2}, "data": {"size": 1, "strategy": "zero1"}}}))


def test_layers_of_kimi_linear_are_numbered_from_one_beside_the_weights() -> None:
    kind, values = DECODERS["kimi_linear"]
    published = {key: value for key, value in values.items() if key not in ("layer_types", "linear_head_dim", "linear_num_heads")} | {
        "linear_attn_config": {
            "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4,
        },
        "moe_router_activation_func": "sigmoid", "mla_use_nope": True, "use_grouped_topk": True,
    }  # fmt: skip
    assert read_config({"model_type": kind, **published}) == read_config({"model_type": kind, **values})
    model = built(kind, published)
    assert parameter_count(model) == PARAMETERS["kimi_linear"]
    assert not any("rotary" in word for layer in range(4) for word in words(model, layer))


def test_a_decay_that_has_products_of_its_own_has_a_gradient() -> None:
    """Gated linear attention as fla has it."""
    gla = {"model_type": "gla", "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "vocab_size": 320}
    folded, whole = (simulate(load({**JOB, "model": gla}), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    taped = tape(built("gla", gla).blocks[1], AT)
    assert {"mixer_decay_down", "mixer_decay_up"} <= {step.operator.name for step in taped.backward}


@pytest.mark.parametrize(
    "name", ["mimo_v2_flash", "laguna", "granite_swa", "afmoe", "axk1", "hy_v3", "kimi_linear", "nanochat", "cohere2_moe"]
)
def test_a_step_of_two_ranks(name: str) -> None:
    kind, values = DECODERS[name]
    tree = {**JOB, "model": {"model_type": kind, **values}}
    folded, whole = (simulate(load(tree), unfolded=unfolded) for unfolded in (False, True))
    assert folded.fits
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("mimo_v2_flash", {**MIMO, "swa_head_dim": 32}, "swa_head_dim  32 is not supported yet: layers of a window have 24"),
        ("mimo_v2_flash", {**MIMO, "add_full_attention_sink_bias": True}, "add_full_attention_sink_bias"),
        ("mimo_v2_flash", {**MIMO, "hybrid_layer_pattern": [0, 2, 1, 1]}, "hybrid_layer_pattern"),
        ("mimo_v2_flash", {**MIMO, "layer_types": ["sliding_attention"] * 4, "sliding_window": None}, "need a window"),
        ("laguna", {**DECODERS["laguna"][1], "num_attention_heads_per_layer": [4, 6, 6, 4]}, "layers of one kind with different numbers"),
        ("laguna", {**DECODERS["laguna"][1], "gating": "per-element"}, "gating: 'per-element' is not supported yet"),
        ("laguna", {**DECODERS["laguna"][1], "moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
        ("granite_swa", {**GROUPED, "layer_rope_theta": [1e4, 0, 1e4, 1e4]}, "layers without rotary positions other than those"),
        ("mellum", {**DECODERS["mellum"][1], "rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of every head"),
        ("afmoe", {**DECODERS["afmoe"][1], "route_norm": False}, "route_norm: False is not supported yet"),
        ("cohere2_moe", {**COHERE_EXPERTS, "expert_selection_fn": "topk"}, "expert_selection_fn: 'topk' is not supported yet"),
        ("axk1", {**LATENT, "moe_layer_freq": 2}, "moe_layer_freq: 2 is not supported yet"),
        ("hy_v3", {**HEADS, "num_experts": 4, "qk_norm": False}, "qk_norm: False is not supported yet"),
        ("glm_moe_dsa", {**DSA, "indexer_types": ["shared", "full", "full", "full"]}, "the first one among them"),
        ("glm_moe_dsa", {**DSA, "index_topk_pattern": "FSX"}, "must say full or shared (F or S) for each of 4 layers"),
        ("lfm2", {**GROUPED, "layer_types": ["conv"] * 3}, "for each of 4 layers"),
        ("lfm2", {**GROUPED, "conv_dim": 128}, "conv_dim  128 is not hidden_size = 64"),
        ("kimi_linear", {**DECODERS["kimi_linear"][1], "mla_use_output_gate": True}, "mla_use_output_gate"),
        ("kimi_linear", {**DECODERS["kimi_linear"][1], "linear_attn_config": {"gate_lower_bound": -5.0}}, "gate_lower_bound"),
        ("xglm", {**DECODERS["xglm"][1], "add_cross_attention": True}, "add_cross_attention"),
        ("modernbert-decoder", {**DECODERS["modernbert-decoder"][1], "classifier_bias": True}, "classifier_bias"),
        ("minimax_m3_vl_text", GROUPED, "attention to blocks of keys"),
        ("step3p5", {**GROUPED, "partial_rotary_factors": [0.5]}, "must have a share for each of 4 layers"),
        ("step3p5", {**GROUPED, "attention_other_setting": {"head_dim": 64}, **SLIDING}, "differ in more than their number of heads"),
        ("step3p5", {**GROUPED, "per_layer_config": {"0": {"head_dim": 64}}, **SLIDING}, "per_layer_config"),
        ("step3p7", {"text_config": GROUPED}, "its text alone can be trained"),
        ("qwen4_exp_text", GROUPED, "embeddings of several words"),
        ("glm5_next_text", GROUPED, "hyper-connections"),
        ("hy_v4", GROUPED, "hyper-connections"),
        ("inkling_text", GROUPED, "biases of relative positions made of every query"),
        ("mistral_large4_text", GROUPED, "the compressed keys of earlier ones"),
        ("gpt_neox_japanese", GROUPED, "a bias behind the attention of the last layer"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(kind: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config({"model_type": kind, **{key: value for key, value in values.items() if key != "model_type"}})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_dim": 8, "fused_query_key_value": True}, "heads of one width"),
        ({"value_dim": 8, "value_norm": True}, "as wide as keys"),
        ({"head_gate": "sigmoid", "attention_gate": True}, "exclude each other"),
        ({"attention_window": 8, "full_attention_every": 2, "full_attention": {"heads": 3, "kv_heads": 2}}, "heads / kv_heads = 3 / 2"),
        ({"latent": {"key_rank": 8, "indexers": "FS"}}, "none chooses keys"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    base = {"family": "llama", "hidden": 64, "layers": 4, "heads": 4, "vocabulary": 320, "head_dim": 16}
    with pytest.raises(ModelError, match=message):
        build_model({**base, **changes}, name="changed", base_lookup=lambda _: {})


@pytest.mark.parametrize(
    "name",
    [
        "mimo_v2_flash",
        "laguna",
        "granite_swa",
        "lfm2",
        "kimi_linear",
        "cohere2_moe",
        "afmoe",
        "mellum",
        "glm_moe_dsa with shared indexers",
        "step",
    ],
)
def test_strange_values_are_findings(name: str) -> None:
    """No value under any key ends in anything but a model or a finding."""
    kind, values = ("step3p5", STEP) if name == "step" else DECODERS[name]
    family = MODEL_TYPES[kind]
    further = (
        "layer_types sliding_window hybrid_layer_pattern moe_layer_freq rope_parameters num_attention_heads_per_layer gating_types "
        "layer_rope_theta full_attn_idxs block_ff_dim block_multiple_of conv_L_cache linear_attn_config num_shared_experts "
        "mlp_layer_types mlp_only_layers moe_layers_enum attention_other_setting per_layer_config partial_rotary_factors "
        "num_nextn_predict_layers index_topk_pattern index_topk_freq first_k_dense_replace sliding_window_pattern"
    )
    for key in {*values, *family.keys, *family.stated, *further.split()}:
        for value in ("x", [], [1] * 4, ["x"] * 4, [None] * 4, {"a": 1}, -1, 1.5, True, 0, 10**12, None):
            with contextlib.suppress(ModelError):
                read_config({"model_type": kind, **values, key: value})
