"""`training.finetune`: contradictions are refused together, autos resolve, and a length of training gives hours."""

from __future__ import annotations

import math

import pytest

from parsim.errors import InputError, PlanError, ScenarioError
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build

MODEL = {"family": "llama", "hidden": 256, "layers": 4, "heads": 4, "vocabulary": 1024, "mlp": 512, "maximum_sequence": 512}


def tree(finetune, strategy="ddp", **training):
    return {
        "name": "mine",
        "model": MODEL,
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 1, "finetune": finetune, **training},
        "parallel": {"data": {"strategy": strategy}},
    }


def problems(*arguments, **training):
    with pytest.raises(InputError) as caught:
        build(load(tree(*arguments, **training)))
    return [(finding.path.removeprefix("training.finetune."), finding.message) for finding in caught.value.findings]


def test_contradictions_are_found_all_at_once():
    assert problems({"method": "freeze", "rank": 8, "targets": ["q"], "base": "nf4"}) == [
        ("rank", "method freeze has no adapters"),
        ("targets", "method freeze has no adapters"),
        ("base", "method freeze keeps its base in 16 or 32 bits"),
    ]
    assert problems({"method": "qlora", "base": "bf16"}) == [("base", "qlora has its base in four bits")]
    assert problems({"method": "lora", "base": "nf4", "freeze": {"layers": 2}, "quantise_head": True}) == [
        ("freeze", "method lora freezes everything but its adapters"),
        ("base", "method lora keeps its base in 8, 16 or 32 bits"),
        ("quantise_head", "method lora has nothing in four bits"),
    ]
    assert problems({"method": "qlora", "base": "int8"}) == [("base", "qlora has its base in four bits")]
    assert problems({"base": "int8"}, "zero3") == [("base", "zero3 does not shard weights in int8 (Params8bitLt)")]
    assert problems({"base": "int8"}, precision="fp32") == [("base", "bitsandbytes casts 16-bit inputs to int8, and products are in fp32")]
    assert problems({"base_sharded": True}) == [("base_sharded", "ddp keeps whole weights on every rank")]
    assert problems({"flat_gradients": True}, "zero3") == [("flat_gradients", "zero3 has no flat parameters")]
    assert problems({"flat_gradients": True, "base_sharded": False}, "fsdp") == [
        ("flat_gradients", "unsharded frozen weights cannot be part of a flat parameter")
    ]


def test_weights_are_stored_as_their_products_read_them():
    """Llama 2 7B has 6,476,005,376 elements in linear layers: bf16 with a cached cast against the cast alone, made once."""
    count = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert count == 6_476_005_376

    def lora(base, precision, topology, strategy="ddp"):
        training = {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 2, "precision": precision}
        return {
            "model": {"base": "llama-2-7b"},
            "cluster": {"topology": topology, "gpus": 1},
            "training": {**training, "finetune": {"method": "lora", "base": base}},
            "parallel": {"data": {"strategy": strategy}},
            "software": {"profile": "megatron-core", "host": {"graphs": True}},
        }

    def rank(*job):
        document = simulate(load(lora(*job))).document()
        return document["memory"]["devices"][0]["resident_bytes"]["parameters"], document["step_time_s"]

    for recipe, topology, plain, alone in (
        ("current", "hgx-h100", 4.0, 2.0),
        ("delayed", "hgx-b200", 3.0, 1.0),
        ("mxfp8", "hgx-b200", 2 + 2 * 33 / 32, 2 * 33 / 32),
    ):
        precision = {"preset": "fp8", "recipe": recipe}
        whole, single = rank("bf16", precision, topology), rank("fp8", precision, topology)
        assert whole[0] - single[0] == pytest.approx((plain - alone) * count, rel=1e-3)
        assert whole[1] - single[1] > plain * count / 8e12  # the casts of a step read and write at least what they leave

    def refused(*job):
        with pytest.raises(InputError) as caught:
            build(load(lora(*job)))
        return [finding.message for finding in caught.value.findings]

    assert refused("nvfp4", "fp8", "hgx-h100") == ["products are in delayed, which do not read weights in nvfp4"]
    assert refused("fp8", "fp8", "hgx-h100", "fsdp") == ["not supported yet: weights stored in fp8 alone with torchao's casts, or sharded"]
    assert refused("fp8", {"preset": "fp8", "recipe": "current", "keep_layers": 1}, "hgx-h100") == [
        "not supported yet: weights in fp8 beside layers that stay in bf16"
    ]
    assert problems({"base": "fp8"}) == [("base", "products are in bf16, which do not read weights in fp8")]
    assert problems({"method": "qlora", "base": "fp8"}) == [("base", "qlora has its base in four bits")]
    assert problems({"method": "freeze", "base": "fp8"}) == [("base", "method freeze keeps its base in 16 or 32 bits")]


def test_modules_between_operators_have_keys_of_their_own():
    assert problems({"method": "prompt", "targets": ["q"], "dora": True}) == [
        ("targets", "method prompt has no such key"),
        ("dora", "method prompt has no such key"),
    ]
    assert problems({"method": "ia3", "rank": 4, "base": "nf4"}) == [
        ("rank", "method ia3 has no such key"),
        ("base", "method ia3 keeps its base in 16 or 32 bits"),
    ]
    assert problems({"virtual_tokens": 8}) == [("virtual_tokens", "method lora has no such key")]
    assert problems({"method": "freeze", "prompt_encoder": "mlp"}) == [("prompt_encoder", "method freeze learns no tokens")]
    assert problems({"method": "prompt", "prompt_encoder": "mlp", "encoder_layers": 1}) == [
        ("encoder_layers", "an mlp of one layer has no hidden width: NeMo refuses it")
    ]
    assert problems({"dora": True, "base": "int8"}) == [("base", "not supported yet: DoRA beside weights in int8")]
    assert problems({"experts": "linear"}) == [("experts", "model has no experts")]
    for method in ("bottleneck", "ia3", "prompt"):
        with pytest.raises(InputError, match="dpo with a reference model from which learned modules are taken"):
            simulate(load(tree({"method": method}, objective="dpo")))


@pytest.mark.parametrize(
    "section", [{"method": "bottleneck"}, {"method": "ia3"}, {"method": "prompt", "prompt_encoder": "lstm"}, {"dora": True}]
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_every_method_can_be_simulated_and_trains_what_it_says(section, recompute):
    report = simulate(load(tree(section, "fsdp", recompute=recompute)))
    trained = report.document()["model"]["parameters_trainable"]
    assert 0 < trained < report.document()["model"]["parameters"] / 4


def test_dora_is_of_one_tensor_rank():
    with pytest.raises(InputError, match="DoRA over tensor ranks"):
        simulate(load({**tree({"dora": True}), "parallel": {"tensor": {"size": 2}}}))


def test_a_gpu_without_int8_has_no_weights_in_it():
    old = {**tree({"base": "int8"}, precision="amp-fp16"), "cluster": "4x v100-32gb"}
    with pytest.raises(InputError, match=r"V100 .* has no int8: its file states no int8 peak"):
        build(load(old))


def test_unknown_targets_name_the_known_ones():
    with pytest.raises(InputError) as caught:
        simulate(tree({"targets": ["q", "mlp.fc"]}))
    (finding,) = caught.value.findings
    assert (finding.path, finding.value) == ("training.finetune.targets", "mlp.fc")
    assert finding.suggestion == "it has all-linear, query, key, value, attention_output, gate, up, mlp_down, lm_head"


@pytest.mark.parametrize(
    ("finetune", "message"),
    [
        ({"method": "lora2"}, "did you mean 'lora'"),
        ({"method": "dora"}, "write lora, and dora: true"),
        ({"rank": 0}, "whole number from 1"),
        ({"targets": []}, "all-linear"),
        ({"targets": "all_linear"}, "did you mean 'all-linear'"),
        ({"dropout": 1.0}, "a number in"),
        ({"freeze": {"layer": 3}}, "backbone"),
        ({"freeze": "backbones"}, "did you mean 'backbone'"),
        ({"freeze": {"layers": -1}}, "layers: "),
        ({"freeze": {"spread": 0}}, "spread: "),
        ({"base": "int4"}, "write nf4"),
    ],
)
def test_wrong_values(finetune, message):
    with pytest.raises(ScenarioError, match=message):
        load(tree(finetune))


def test_a_model_of_measured_stages_has_nothing_to_freeze():
    scenario = {**tree({}), "model": {"stages": [{"forward": "1 ms", "backward": "2 ms"}]}}
    del scenario["training"]["sequence_length"]
    with pytest.raises(InputError, match="no layers to freeze"):
        simulate(scenario)


def test_bytes_per_parameter_tell_both_kinds():
    def words(finetune, **training):
        return build(load(tree(finetune, **training))).bytes_per_parameter

    assert words({"method": "lora"}) == "4+4+8 = 16 B/parameter trained, 2 B frozen"
    assert words({"method": "lora"}, precision="pure-bf16") == "4+4+8 = 16 B/parameter trained, 2 B frozen"
    own = {"method": "lora", "adapter_dtype": "model"}
    assert words(own) == "2+2+4+8 = 16 B/parameter trained, 2 B frozen"
    assert words(own, precision="pure-bf16") == "2+2+4 = 8 B/parameter trained, 2 B frozen"
    assert words({"method": "qlora"}) == "4+4+8 = 16 B/parameter trained, 2 B frozen (nf4-dq linear layers 0.5159 B)"
    assert words({"method": "qlora", "base": "nf4"}).endswith("(nf4 linear layers 0.5625 B)")
    assert words({"method": "lora", "base": "int8"}).endswith("(int8 linear layers 1.0000 B)")
    assert words({"method": "lora"}, precision="fp32") == "4+4+8 = 16 B/parameter trained, 4 B frozen"
    assert words({"method": "lora"}, precision="amp-bf16") == "4+4+8 = 16 B/parameter (+2 cached) trained, 2 B frozen"


@pytest.mark.parametrize(
    ("profile", "strategy", "training", "fp32"),
    [
        ("pytorch-2", "ddp", {}, True),
        ("pytorch-2", "zero1", {"precision": "pure-bf16"}, True),
        ("pytorch-2", "ddp", {"precision": "amp-bf16"}, True),
        ("pytorch-2", "ddp", {"precision": "fp32"}, False),
        ("pytorch-2", "ddp", {"precision": "fp8"}, False),
        ("pytorch-2", "fsdp", {"precision": "amp-bf16"}, False),  # gathered in bf16
        ("pytorch-2", "fsdp", {"precision": "pure-bf16"}, False),
        ("deepspeed", "zero2", {}, False),  # the engine casts every parameter
        ("megatron-core", "ddp", {}, False),
        ("nemo", "ddp", {}, False),
    ],
)
def test_what_type_adapters_have_by_the_stack(profile, strategy, training, fp32):
    scenario = {**tree({"method": "lora"}, **training), "software": {"profile": profile}}
    scenario["cluster"] = "2x h100-sxm"
    scenario["parallel"] = {"data": {"strategy": strategy}}
    scenario["training"]["global_batch"] = 2 * scenario["training"]["micro_batch"]
    built = build(load(scenario))
    assert built.training.finetune.fp32_adapters is fp32
    assert [a.value for a in built.assumptions if a.name == "adapter_dtype"] == (["fp32"] if fp32 else [])
    scenario["training"]["finetune"] = {"method": "lora", "adapter_dtype": "model"}
    stated = build(load(scenario))
    assert not stated.training.finetune.fp32_adapters


@pytest.mark.parametrize(
    ("finetune", "strategy", "precision", "message"),
    [
        ({"method": "lora"}, "none", "fp32", "activations are fp32"),
        ({"method": "lora"}, "none", {"preset": "bf16", "matmul": "tf32"}, "products are in tf32"),
        ({"method": "lora"}, "none", "fp8", "narrower than 16 bits"),
        ({"method": "lora"}, "fsdp", "amp-bf16", "fsdp gathers adapters in 16 bits"),
        ({"method": "lora", "train_embeddings": True}, "none", "pure-bf16", "embeddings that are trained in 16 bits"),
        ({"method": "freeze"}, "none", "pure-bf16", "method freeze has no adapters"),
        ({"method": "ia3"}, "none", "pure-bf16", "method ia3 has no such key"),
    ],
)
def test_where_adapters_cannot_be_fp32(finetune, strategy, precision, message):
    scenario = tree({**finetune, "adapter_dtype": "fp32"}, precision=precision)
    if strategy != "none":
        scenario["cluster"], scenario["parallel"] = "2x h100-sxm", {"data": {"strategy": strategy}}
        scenario["training"]["global_batch"] = 2 * scenario["training"]["micro_batch"]
    if precision == "fp8":
        scenario["cluster"] = "1x h100-sxm"
    with pytest.raises(PlanError, match=message):
        build(load(scenario))


def test_states_and_gradients_of_fp32_adapters():
    """DDP reduces 4 bytes of each; weights, gradients and moments of Adam have 4 + 4 + 8."""
    scenario = {**tree({"method": "lora", "rank": 8}, precision="pure-bf16"), "software": {"profile": "pytorch-2"}}
    precision = build(load(scenario)).training.precision
    sizes = (precision.parameters, precision.gradients, precision.master, precision.optimizer_element, precision.reduce)
    assert sizes == (4, 4, 0, 4, 4)
    assert (precision.activations, precision.cached_casts, precision.matmul) == (2, 0, "bf16")


def test_the_document_says_what_is_trained():
    document = simulate(tree({"rank": 8})).document()
    adapters = 4 * 8 * (4 * 512 + 3 * 768)
    assert document["model"]["parameters_trainable"] == adapters
    assert document["model"]["parameters"] == 4 * (4 * 256**2 + 3 * 256 * 512 + 512) + 2 * 1024 * 256 + 256 + adapters
    assert {"finetune_base"} & {a["name"] for a in document["assumptions"]} == set()
    stated = {a["name"]: a["value"] for a in simulate(tree({"method": "qlora"})).document()["assumptions"]}
    assert stated["finetune_base"] == "nf4-dq"
    full = simulate(tree(None)).document()["model"]
    assert full["parameters_trainable"] == full["parameters"]


@pytest.mark.parametrize(("epochs", "examples", "steps"), [(None, 1000, 250), (3, 52_002, 39_002), (0.5, 1001, 126)])
def test_hours_of_a_whole_training(epochs, examples, steps):
    extra = {} if epochs is None else {"epochs": epochs}
    report = simulate(tree({}, examples=examples, **extra))
    assert steps == math.ceil(examples * (epochs or 1) / 4)
    document = report.document()
    assert document["time_to_train_s"] == pytest.approx(steps * document["step_time_s"], rel=1e-12)
    assert document["gpu_hours"] == pytest.approx(4 * steps * document["step_time_s"] / 3600, rel=1e-12)


def test_epochs_need_examples():
    with pytest.raises(PlanError, match="epochs of how many examples"):
        build(load(tree(None, epochs=3)))


def test_experts_without_adapters_are_said():
    scenario = tree({"method": "lora"})
    scenario["model"] = {"base": "mixtral-8x7b", "layers": 1, "hidden": 256, "mlp": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
    report = simulate(scenario)
    assert any("experts" in warning["message"] for warning in report.document()["warnings"])
