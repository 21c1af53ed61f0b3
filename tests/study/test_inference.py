"""`parsim fit --inference`: bytes by closed form and published figures, floors by HBM bandwidth, maxima exactly."""

from __future__ import annotations

import json

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.model.activations import Cache
from parsim.study.inference import InferenceQuestion, fit
from parsim.study.inference_text import document, text
from parsim.theory import key_value_bytes_per_token, memory_bound_time

MIB, GIB = 2**20, 2**30
P7 = 6_738_415_616
MLP = {"input": {"shape": [1024], "dtype": "fp32"}, "layers": [{"linear": {"out": out}} for out in (1024, 1024, 2048)]}


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("llama-7b", 524_288),
        ("llama-13b", 819_200),
        ("llama-2-70b", 327_680),
        ("llama-3-8b", 131_072),
        ("llama-3.1-405b", 516_096),
        ("gpt2", 36_864),
        ("mixtral-8x7b", 131_072),
        ("deepseek-v3", 70_272),  # multi-head latent attention: (512 + 64) x 61 layers x 2 B
    ],
)
def test_cache_per_token(model, bytes_per_token):
    assert fit(InferenceQuestion(model, "1x h200", context_length=512)).bytes_per_token == bytes_per_token


def test_the_formula_agrees_with_theory():
    assert key_value_bytes_per_token(80, 8, 128) == fit(InferenceQuestion("llama-2-70b", "1x h200", context_length=512)).bytes_per_token


@pytest.mark.parametrize(("model", "length", "size"), [("llama-7b", 4096, 2.0), ("llama-2-70b", 4096, 1.25), ("llama-3-8b", 8192, 1.0)])
def test_cache_of_a_whole_context(model, length, size):
    assert fit(InferenceQuestion(model, "1x h200", context_length=length)).memory.cache == size * GIB


def test_7b_with_4096_tokens():
    memory = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=4096)).memory
    assert memory.weights + memory.cache == 15_624_314_880
    assert memory.context == GIB // 2
    assert memory.total == memory.weights + memory.cache + memory.layer + memory.workspace + memory.context


def test_the_decode_floor_reads_every_weight_once():
    decode = fit(InferenceQuestion("llama-7b", "1x h100-sxm", context_length=1)).decode
    assert decode.weight_bytes / decode.bandwidth == pytest.approx(4.023e-3, rel=1e-4)
    assert decode.weight_bytes / decode.bandwidth == pytest.approx(memory_bound_time(2 * P7, 3.35e12), rel=1e-12)


def test_the_floor_grows_with_the_cache_and_serves_the_batch():
    answer = fit(InferenceQuestion("llama-7b", "1x a100-80gb", batch=8, context_length=4096))
    assert answer.decode.seconds == pytest.approx((2 * P7 + 8 * 2 * GIB) / 2.039e12, rel=1e-9)
    assert answer.tokens_per_s == pytest.approx(8 / answer.decode.seconds)


def test_one_token_visits_its_experts_only():
    # 12,879,925,248 of 46,702,792,704 parameters are active; a batch visits 1 - (1 - 2/8)^b of the experts
    one = fit(InferenceQuestion("mixtral-8x7b", "1x h200", context_length=1))
    many = fit(InferenceQuestion("mixtral-8x7b", "1x h200", batch=64, context_length=1))
    assert one.decode.weight_bytes == pytest.approx(2 * 12_879_925_248, rel=1e-9)
    assert many.decode.weight_bytes == pytest.approx(2 * 46_702_792_704, rel=1e-6)


def test_shared_keys_are_cached_once_and_a_table_is_read_by_rows():
    """Gemma 4 E2B: of 35 layers 15 have keys of their own, 3 of them all and 12 those of 512 tokens; of the second table a row a token."""
    answer = fit(InferenceQuestion("gemma-4-e2b", "1x h200", batch=2, context_length=32768))
    assert answer.memory.cache == 2 * (3 * 32768 * 2 * 512 * 2 + 12 * 512 * 2 * 256 * 2)
    read = 4_628_569_344 - (262_144 - 2) * 35 * 256
    assert answer.decode.weight_bytes - 2 * read == pytest.approx(0, abs=200)  # a number per layer that no gradient updates
    inputs = 32768 * 35 * 256 * 2  # of the prompt, there while the layers run
    assert answer.memory.working_set > inputs


def test_pages_are_rounded_up():
    exact = fit(InferenceQuestion("llama-7b", "1x a100-80gb", batch=3, context_length=1001)).memory.cache
    paged = fit(InferenceQuestion("llama-7b", "1x a100-80gb", batch=3, context_length=1001, paged_block=16)).memory.cache
    assert exact == 3 * 1001 * 524_288
    assert paged == 3 * 1008 * 524_288


def test_a_window_bounds_the_cache():
    assert Cache(1, 4096).tokens(10_000) == 4096
    long = fit(InferenceQuestion("mistral-7b", "1x a100-80gb", context_length=32_768)).memory.cache
    assert long == 4096 * 131_072
    gemma = fit(InferenceQuestion("gemma-2-9b", "1x a100-80gb", context_length=8192))  # every second layer sees all
    assert gemma.memory.cache == (4096 + 8192) * gemma.bytes_per_token // 2


def test_beams_and_types_multiply_the_cache():
    plain = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=1024)).memory
    beams = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=1024, beams=4)).memory
    small = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=1024, kv_dtype="fp8")).memory
    assert (beams.cache, small.cache) == (4 * plain.cache, plain.cache // 2)
    assert beams.logits == 4 * plain.logits == 4 * 32_000 * (2 + 4)


def test_tensor_parallelism_splits_weights_and_heads():
    one = fit(InferenceQuestion("llama-2-70b", "1x b200", context_length=4096)).memory
    four = fit(InferenceQuestion("llama-2-70b", "4x a100-80gb", context_length=4096, tensor=4)).memory
    assert four.cache == one.cache // 4
    # the 161 norms are whole on every rank; both vocabulary tables are padded from 32,000 to 63 x 512 rows
    norms, padding = 161 * 8192, 2 * 256 * 8192
    assert one.weights == 2 * 68_976_648_192
    assert four.weights == 2 * ((68_976_648_192 - norms + padding) // 4 + norms)
    assert four.communicators > one.communicators == 0


def test_latent_caches_are_whole_on_every_rank():
    assert fit(InferenceQuestion("deepseek-v3", "8x h200", context_length=512, tensor=8)).bytes_per_token == 70_272


def test_prompts_in_parts_need_less():
    whole = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=65_536)).memory
    parts = fit(InferenceQuestion("llama-7b", "1x a100-80gb", context_length=65_536, prefill_tokens=2048)).memory
    assert whole.layer == 32 * parts.layer
    assert whole.cache == parts.cache


@pytest.mark.parametrize("what", ["batch", "context-length"])
@pytest.mark.parametrize("model", ["llama-7b", "mistral-7b", "gpt2"])
def test_maxima_are_exact(model, what):
    question = InferenceQuestion(model, "1x rtx-4090", batch=2, context_length=512, paged_block=16)
    largest = fit(question, maximum=what).maximum
    key = what.replace("-", "_")
    at = fit(InferenceQuestion(**{**question.__dict__, key: largest.value}))
    assert at.fits
    assert at.memory.total == largest.bytes
    if largest.next_bytes is None:
        assert "1024 learned positions" in largest.limit
    else:
        beyond = fit(InferenceQuestion(**{**question.__dict__, key: largest.value + 1}))
        assert not beyond.fits
        assert beyond.memory.total == largest.next_bytes


def test_the_mlp_of_three_layers():
    # parameters 16.015625, x 40, hidden 40, output 80, workspace 8.125; a hidden tensor less after the pass
    answer = fit(InferenceQuestion(MLP, "1x a100-80gb", batch=10_240))
    memory = answer.memory
    assert (memory.weights + memory.layer + memory.workspace) / MIB == 184.140625
    assert (memory.weights + 40 * MIB + memory.outputs + memory.workspace) / MIB == 144.140625
    assert answer.decode is None


def test_bert_keeps_its_outputs():
    encoder = {"base": "bert-base", "task": "encoder"}
    memory = fit(InferenceQuestion(encoder, "1x v100-32gb", batch=32, context_length=512, precision="fp32")).memory
    assert (memory.outputs + memory.workspace) / MIB == 56.21875  # 48 + 0.09375 + 8.125


def test_what_would_fit_is_said():
    answer = fit(InferenceQuestion("llama-2-70b", "4x a100-80gb", batch=1, context_length=4096))
    assert not answer.fits
    assert [change for change, _ in answer.alternatives] == ["--tp 2"]
    crowded = fit(InferenceQuestion("llama-3-8b", "1x rtx-4090", batch=64, context_length=8192))
    changes = [change for change, _ in crowded.alternatives]
    assert changes[0].startswith("--batch 7 ")
    assert all(need <= crowded.capacity for _, need in crowded.alternatives)


def test_text_and_document_say_the_same():
    answer = fit(InferenceQuestion("llama-7b", "1x a100-80gb", batch=8, context_length=4096, paged_block=16), maximum="batch")
    words = text(answer, explain=True)
    assert words.startswith("yes: llama-7b on 1x a100-80gb, 8 sequences of 4,096 tokens, needs 29.43 GiB (31.6 GB) of 79.25 GiB per GPU")
    assert "largest batch: 32 (77.43 GiB)" in words
    assert "524,288 B/token" in words
    found = document(answer)
    assert found["need_bytes"] == answer.memory.total
    assert found["maximum"]["value"] == 32
    json.dumps(found, allow_nan=False)


def test_the_command(capsys):
    code = execute(["fit", "llama-7b", "--on", "1x a100-80gb", "--inference", "--batch", "1", "--context-length", "4096", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["memory"]["cache"] == 2 * GIB
    assert execute(["fit", "llama-65b", "--on", "1x a100-80gb", "--inference"]) == 3
    assert capsys.readouterr().out.startswith("no: llama-65b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--inference", "--zero", "2", "--micro-batch", "4"], ["--strategy", "--micro-batch", "use --batch", "2 problems"]),
        (["--batch", "4", "--beams", "2"], ["--batch", "--beams", "add --inference"]),
        (["--inference", "--kv-dtype", "fp4", "--beams", "0"], ["one of fp32, bf16", "at least 1", "2 problems"]),
        (["--inference", "--max", "parameters"], ["one of batch, context-length"]),
    ],
)
def test_options_that_do_not_go_together_are_all_named(capsys, options, words):
    assert execute(["fit", "llama-7b", "--on", "1x a100-80gb", *options]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (InferenceQuestion("gpt2", "1x a100-80gb", context_length=2048), "1024 learned positions"),
        (InferenceQuestion("bert-base", "1x a100-80gb", context_length=128, paged_block=16), "no key-value cache"),
        (InferenceQuestion("resnet50", "1x a100-80gb", context_length=128), "no key-value cache"),
        (InferenceQuestion("llama-7b", "2x a100-80gb", tensor=4), "does not divide the GPUs"),
        (InferenceQuestion("llama-2-70b", "3x a100-80gb", tensor=3), "64 heads / tensor size 3 = 21.3333 is not whole; use 2 or 4"),
    ],
)
def test_impossible_questions_are_refused(question, words):
    with pytest.raises(InputError, match=words):
        fit(question)
