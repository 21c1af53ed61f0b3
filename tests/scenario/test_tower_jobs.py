"""Jobs of encoder-decoders and of text models with a vision tower: lengths, strategies, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import InputError
from parsim.interop.export_draft import job_of
from parsim.run import simulate
from parsim.scenario.load import load

SMALL = {"base": "t5-base", "layers": 3, "encoder": {"layers": 2}}
WHISPER = {"base": "whisper-large-v3", "layers": 2, "encoder": {"layers": 2}}
VISION = {
    "model_type": "clip_vision_model", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 224, "patch_size": 14,
}  # fmt: skip
TEXT = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 4096,
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": TEXT, "vision_config": VISION,
    "image_token_index": 32000, "projector_hidden_act": "gelu", "vision_feature_layer": -1,
}  # fmt: skip


def job(model: Any, training: dict[str, Any] | None = None, gpus: int = 4, **parallel: Any) -> dict[str, Any]:
    strategy = parallel.pop("strategy", "ddp")
    tokens = {"sequence_length": 512} | (training or {})
    return {
        "model": model,
        "cluster": {"topology": "dgx-a100-80gb", "gpus": gpus},
        "training": {"global_batch": 16, "micro_batch": 2, **tokens},
        "parallel": {"data": {"strategy": strategy}, **parallel},
    }


@pytest.fixture
def llava(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAVA))
    return str(path)


def assumed(tree: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in simulate(tree).document()["assumptions"]}


def refused(tree: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        simulate(tree)
    return str(caught.value)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_every_strategy_shards_the_same_parameters(strategy: str) -> None:
    report = simulate(job(SMALL, {"target_sequence_length": 128}, strategy=strategy)).document()
    h, f, table, buckets = 768, 3072, 32128 * 768, 32 * 12
    encoder, decoder = 4 * h * h + 2 * h * f + 2 * h, 8 * h * h + 2 * h * f + 3 * h
    assert report["model"]["parameters"] == table + 2 * encoder + 3 * decoder + 2 * buckets + 2 * h


def test_a_folded_job_is_the_unfolded_one() -> None:
    tree = job(SMALL, {"target_sequence_length": 64}, tensor={"size": 2})
    folded, whole = simulate(tree).document(), simulate(tree, unfolded=True).document()
    assert folded["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)
    assert folded["memory"]["devices"][0]["peak_bytes"] == whole["memory"]["devices"][0]["peak_bytes"]
    assert folded["confidence"]["status"] == "unvalidated"


def test_a_shorter_target_takes_less_time_and_memory() -> None:
    long, short = (simulate(job(SMALL, {"target_sequence_length": length})).document() for length in (512, 64))
    assert short["step_time_s"] < long["step_time_s"]
    assert short["memory"]["devices"][0]["peak_bytes"] < long["memory"]["devices"][0]["peak_bytes"]


def test_what_is_not_said_is_assumed(llava: str) -> None:
    assert assumed(job(SMALL))["target_sequence_length"] == "512 tokens, as many as the encoder's"
    assert assumed(job(WHISPER, {"sequence_length": 1500}))["target_sequence_length"] == "448 tokens"
    assert assumed(job(llava))["images"] == "1 image per sample, 256 of its 512 tokens"
    assert "images" not in assumed(job(llava, {"images": 2}))
    assert "target_sequence_length" not in assumed(job("gpt2"))
    assert assumed(job(SMALL))["attention"] == "mem-efficient"  # the one kernel that adds a bias to the scores


def test_a_frozen_tower_has_no_gradients(llava: str) -> None:
    trained = simulate(job(llava, {"finetune": {"method": "freeze", "freeze": ["vision"]}})).document()["model"]
    patches = 3 * 14 * 14 * 256 + 256 + 257 * 256 + 4 * 256  # product, class token, positions, norms before and behind the tower
    layers = 2 * (4 * 256 * 257 + 2 * 256 * 512 + 512 + 256 + 4 * 256)
    assert trained["parameters"] - trained["parameters_trainable"] == patches + layers


def test_pipeline_stages_of_a_vision_language_model(llava: str) -> None:
    report = simulate(job(llava, pipeline={"size": 2}, tensor={"size": 2})).document()
    assert report["model"]["parameters"] == simulate(job(llava)).document()["model"]["parameters"]


@pytest.mark.parametrize(
    ("model", "training", "parallel", "words"),
    [
        (SMALL, {}, {"pipeline": {"size": 2}}, "pipeline stages of an encoder-decoder"),
        (SMALL, {}, {"context": {"size": 2}}, "context parallelism of an encoder-decoder"),
        (SMALL, {"mean_sequence_length": 300}, {}, "a mean length of the samples"),
        (SMALL, {"attention": "flash2"}, {}, "flash2 does not support a bias on the scores"),
        (SMALL, {"images": 2}, {}, "has no image input next to text"),
        (SMALL, {"image_size": 448}, {}, "has a fixed image size"),
        ({**SMALL, "encoder": {"layers": 2, "heads": 6}}, {}, {"tensor": {"size": 4}}, "6 heads of the encoder"),
        ("gpt2", {"target_sequence_length": 64}, {}, "no separate decoder sequence"),
        (WHISPER, {"sequence_length": 512}, {}, "makes 1500 of every recording"),
        (WHISPER, {"sequence_length": 1500, "target_sequence_length": 449}, {}, "has 448 positions"),
        ("llava", {"images": 3}, {}, "768 tokens of images do not fit"),
        ("llava", {"image_size": 336}, {}, "has a fixed image size"),
    ],
)
def test_what_does_not_go_together_is_refused(
    llava: str, model: Any, training: dict[str, Any], parallel: dict[str, Any], words: str
) -> None:
    assert words in refused(job(llava if model == "llava" else model, training, **parallel))


def test_exports_are_refused() -> None:
    with pytest.raises(InputError, match="a model of several stacks"):
        job_of(load(job(SMALL)))


@pytest.mark.parametrize("model", [SMALL, WHISPER])
def test_adapters_of_both_stacks(model: Any) -> None:
    """r (in + out) parameters beside every linear layer of the encoder, the decoder and the attention between them."""
    whisper = model is WHISPER
    report = simulate(job(model, {"sequence_length": 1500 if whisper else 512, "finetune": {"method": "lora", "rank": 8}})).document()
    h, f = (1280, 5120) if whisper else (768, 3072)
    attention, mlp, layers = 4 * 8 * 2 * h, 2 * 8 * (h + f), (2, 2 if whisper else 3)
    trained = layers[0] * (attention + mlp) + layers[1] * (2 * attention + mlp)
    assert report["model"]["parameters_trainable"] == trained
