"""Parameter counts against Hugging Face's classes (torch ``meta`` device, tied weights once) and published tables."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.model.catalogue import build_model, read_architecture
from parsim.model.families import FAMILIES
from parsim.model.model import Model
from parsim.model.parameter_counts import active_parameter_count, padded_parameter_count, parameter_count
from parsim.scenario import files

HUGGING_FACE = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "bert-base": 109_514_298,
    "roberta-base": 124_697_433,
    "distilbert-base": 66_985_530,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "deberta-v3-base": 184_551_780,
    "deberta-v3-large": 435_191_908,
    "qwen3.5-9b": 9_409_813_744,
    "qwen3.5-27b": 27_356_728_560,
    "chatglm2-6b": 6_243_584_000,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "bart-large": 406_291_456,
    "whisper-large-v3": 1_543_490_560,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "nemotron-4-15b": 15_628_775_424,
    "nemotron-4-340b": 341_029_195_776,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-1b": 1_011_781_632,
    "pythia-6.9b": 6_857_302_016,
    "bloom-176b": 176_247_271_424,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-4-e2b": 4_628_569_344,
    "gemma-4-e2b-it": 4_797_113_600,
    "gemma-4-e4b": 7_463_013_376,
    "gemma-4-e4b-it": 7_632_344_064,
    "gemma-4-31b": 30_697_345_280,
    "gemma-4-31b-it": 31_273_086_512,
    "gemma-4-26b-a4b": 25_233_141_760,
    "gemma-4-26b-a4b-it": 25_805_933_872,
    "phi-2": 2_779_683_840,
    "deepseek-v3": 671_026_404_352,
    "deepseek-v3.2": 671_877_929_216,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "glm-4.5": 352_797_829_024 - 89 * 160,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "resnet50": 25_557_032,
}

ACTIVE = {"mixtral-8x7b": 12_879_925_248, "qwen3-30b-a3b": 3_353_032_704, "deepseek-v3": 37_552_282_624, "gemma-4-26b-a4b": 3_822_530_560}
ACTIVE |= {"gemma-4-e2b": 4_628_569_344 - 262_144 * 35 * 256, "gemma-4-e4b": 7_463_013_376 - 262_144 * 42 * 256}


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def model(name: str, tensor: int = 1) -> Model:
    return build_model(look_up(name), name=name, tensor=tensor, base_lookup=look_up)


def changed(base: str, tensor: int = 1, **changes: Any) -> Model:
    return build_model({"base": base, **changes}, name="changed", tensor=tensor, base_lookup=look_up)


@pytest.mark.parametrize(("name", "count"), HUGGING_FACE.items())
def test_counts_match_hugging_face(name: str, count: int) -> None:
    assert parameter_count(model(name)) == count


def test_every_shipped_file_builds_and_has_the_count_it_states() -> None:
    for name in files.names("models"):
        tree = look_up(name)
        built = model(name)
        assert tree["name"] == name
        assert tree["source"], name
        if "family" in tree:
            assert tree["family"] in FAMILIES, name
        if tree.get("parameters"):
            assert parameter_count(built) == tree["parameters"], name
        if tree.get("active_parameters"):
            assert active_parameter_count(built) == tree["active_parameters"], name


def test_at_least_45_models_are_shipped() -> None:
    assert len(files.names("models")) >= 45


@pytest.mark.parametrize(("name", "count"), ACTIVE.items())
def test_active_parameters_of_mixtures(name: str, count: int) -> None:
    assert active_parameter_count(model(name)) == count


def test_a_dense_model_is_all_active() -> None:
    assert active_parameter_count(model("llama-2-7b")) == 6_738_415_616


def test_deepseek_v3_router_biases_are_buffers() -> None:
    buffers = [p for block in model("deepseek-v3").blocks for p in block.parameters() if p.buffer]
    assert sum(p.count for p in buffers) == 14_848


@pytest.mark.parametrize(
    ("base", "task", "count"),
    [
        ("bert-base", "encoder", 109_482_240),
        ("bert-base", "masked-lm", 109_514_298),
        ("bert-base", "pretraining", 110_106_428),
        ("bert-base", "sequence-classification", 109_483_778),
        ("bert-large", "encoder", 335_141_888),
        ("bert-large", "pretraining", 336_226_108),
    ],
)
def test_heads_of_bert(base: str, task: str, count: int) -> None:
    assert parameter_count(changed(base, task=task)) == count


@pytest.mark.parametrize(
    ("name", "hidden", "layers"),
    [
        # Narayanan et al. 2021 (2104.04473), table 1
        ("megatron-gpt-1.7b", 2304, 24),
        ("megatron-gpt-3.6b", 3072, 30),
        ("megatron-gpt-7.5b", 4096, 36),
        ("megatron-gpt-18.4b", 6144, 40),
        ("megatron-gpt-39.1b", 8192, 48),
        ("megatron-gpt-76.1b", 10240, 60),
        ("megatron-gpt-145.6b", 12288, 80),
        ("megatron-gpt-310.1b", 16384, 96),
        ("megatron-gpt-529.6b", 20480, 105),
        ("megatron-gpt-1008b", 25600, 128),
        # Korthikanti et al. 2022 (2205.05198), table 3
        ("megatron-gpt-22b", 6144, 48),
        ("megatron-gpt-175b", 12288, 96),
        ("megatron-gpt-530b", 20480, 105),
        ("megatron-gpt-1t", 25600, 128),
    ],
)
def test_megatron_counts_follow_equation_2(name: str, hidden: int, layers: int) -> None:
    vocabulary, sequence = 51200, 2048
    equation = 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden
    final_norm = 2 * hidden  # the equation leaves it out
    assert parameter_count(model(name)) == equation + final_norm


@pytest.mark.parametrize(
    ("name", "billions"),
    [("1.7b", 1.7), ("3.6b", 3.6), ("7.5b", 7.5), ("18.4b", 18.4), ("39.1b", 39.1), ("76.1b", 76.1), ("145.6b", 145.6), ("310.1b", 310.1)],
)
def test_megatron_sizes_are_as_named(name: str, billions: float) -> None:
    assert round(parameter_count(model(f"megatron-gpt-{name}")) / 1e9, 1) == billions


def test_vocabulary_is_padded_to_128_times_the_tensor_size() -> None:
    padded = build_model(look_up("gpt3-175b"), name="gpt3-175b", tensor=8, divisor=128, base_lookup=look_up)
    assert (padded.vocabulary, padded.vocabulary_padded) == (50257, 51200)
    assert parameter_count(padded) == 174_604_259_328
    assert padded_parameter_count(padded) == 174_604_259_328 + (51200 - 50257) * 12288


@pytest.mark.parametrize(("tensor", "divisor", "rows"), [(1, 0, 50257), (8, 0, 50257), (1, 128, 50304), (2, 128, 50432)])
def test_vocabulary_is_padded_where_the_stack_does_so_on_one_rank_too(tensor: int, divisor: int, rows: int) -> None:
    gpt2 = build_model(look_up("gpt2"), name="gpt2", tensor=tensor, divisor=divisor, base_lookup=look_up)
    assert gpt2.vocabulary_padded == rows
    assert parameter_count(gpt2) == 124_439_808
    assert padded_parameter_count(gpt2) == 124_439_808 + (rows - 50257) * 768


def test_no_padding_on_one_rank_where_rows_divide() -> None:
    assert changed("gpt2", 1, vocabulary=51200, vocab_divisible_by=128).vocabulary_padded == 51200


def test_padding_follows_the_divisor_of_the_user() -> None:
    assert changed("gpt3-175b", 2, vocab_divisible_by=64).vocabulary_padded == 50304


def test_padding_counts_head_and_embedding_where_they_are_not_tied() -> None:
    padded = changed("llama-2-7b", 8, vocab_divisible_by=1000)
    assert padded.vocabulary_padded == 32000
    padded = changed("llama-2-7b", 2, vocab_divisible_by=1024)
    assert padded.vocabulary_padded == 32768
    assert padded_parameter_count(padded) - parameter_count(padded) == 2 * 768 * 4096


def test_untying_adds_the_head() -> None:
    assert parameter_count(changed("gpt2", tied_embeddings=False)) == 124_439_808 + 50257 * 768


def test_equal_layers_are_one_object() -> None:
    layers = [block for block in model("llama-2-7b").blocks if block.kind == "layer"]
    assert len(layers) == 32
    assert len({id(block) for block in layers}) == 1


def test_dense_and_expert_layers_are_different_objects() -> None:
    layers = [id(block) for block in model("deepseek-v3").blocks if block.kind == "layer"]
    assert len(set(layers[:3])) == len(set(layers[3:])) == 1
    assert layers[2] != layers[3]


def test_gemma_2_alternates_two_layers() -> None:
    layers = [id(block) for block in model("gemma-2-9b").blocks if block.kind == "layer"]
    assert layers[::2] == [layers[0]] * 21
    assert layers[1::2] == [layers[1]] * 21
    assert layers[0] != layers[1]


def test_changes_keep_the_rest_of_the_base() -> None:
    architecture = read_architecture({"base": "llama-2-70b", "layers": 12}, base_lookup=look_up)
    assert (architecture.layers, architecture.hidden, architecture.kv_heads) == (12, 8192, 8)


def test_one_field_of_the_experts_can_change() -> None:
    architecture = read_architecture({"base": "mixtral-8x7b", "experts": {"count": 16}}, base_lookup=look_up)
    assert architecture.experts is not None
    assert (architecture.experts.count, architecture.experts.top_k) == (16, 2)


def test_experts_can_be_removed() -> None:
    dense = changed("mixtral-8x7b", experts=None)
    assert parameter_count(dense) == 7_241_732_096


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"base": "gpt2", "hiden": 1024}, ("model.hiden", "'hidden'")),
        ({"base": "gpt2", "hidden": "big"}, ("model.hidden", "whole number")),
        ({"base": "gpt2", "layers": True}, ("model.layers", "whole number")),
        ({"base": "gpt2", "heads": 7}, ("model.heads", "768 / 7")),
        ({"base": "gpt2", "activation": "geluu"}, ("model.activation", "'gelu'")),
        ({"base": "gpt2", "tied_embeddings": 1}, ("model.tied_embeddings", "true or false")),
        ({"base": "gpt2", "dropout": 1.5}, ("model.dropout", "1.5")),
        ({"base": "mixtral-8x7b", "experts": {"topk": 3}}, ("model.experts.topk", "'top_k'")),
        ({"base": "mixtral-8x7b", "experts": {"top_k": 9}}, ("top_k 9", "count 8")),
        ({"base": "gpt2", "experts": {"count": 8}}, ("model.experts.top_k", "required")),
        ({"family": "lama", "hidden": 1}, ("model.family", "'llama'")),
        ({"family": "llama", "hidden": 64}, ("model.layers", "required")),
        ({"hidden": 64}, ("cannot tell", "base and changes")),
        ({"base": "gpt2", "family": "llama"}, ("cannot change family",)),
        ({"base": "vit-base", "image": {"patch": 15}}, ("224 / 15",)),
        ({"base": "gpt2", "task": "image-classification"}, ("needs an image",)),
    ],
)
def test_what_is_wrong_is_named(tree: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(tree, name="wrong", base_lookup=look_up)
    for word in words:
        assert word in str(caught.value)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ModelError) as caught:
        changed("gpt2", hiden=1, layerz=2)
    assert [finding.path for finding in caught.value.findings] == ["model.hiden", "model.layerz"]


def test_bases_may_not_go_in_a_circle() -> None:
    trees = {"a": {"base": "b"}, "b": {"base": "a"}}
    with pytest.raises(ModelError, match="circle"):
        build_model({"base": "a"}, name="round", base_lookup=trees.__getitem__)


def test_names_and_aliases_are_unique_and_resolve() -> None:
    spelled = [spelling for name in files.names("models") for spelling in (name, *look_up(name).get("aliases", ()))]
    assert len(spelled) == len(set(spelled))
    assert look_up("meta-llama/Llama-2-13b-hf")["name"] == "llama-2-13b"
    assert {look_up(alias)["name"] for alias in spelled} == set(files.names("models"))
