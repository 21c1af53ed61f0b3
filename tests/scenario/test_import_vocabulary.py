"""Vocabularies that a script says by a tokenizer only, and models of Megatron-LM that are no GPT."""

from __future__ import annotations

from typing import Any

import pytest
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.interop.tokenizers import known_tokenizers, rows_of
from parsim.model.model import parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

BASE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 4"


def vocabulary(options: str, **given: Any) -> Any:
    return values(from_text(f"{BASE} {options}", **given))["model.vocabulary"]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ("--tokenizer-type GPT2BPETokenizer --vocab-file v.json", 50257),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", 128256),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model", 32000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/Qwen2.5-7B-Instruct", 151665),
        ("--tokenizer-type HFTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3", 128815),
        ("--tokenizer-type SentencePieceTokenizer --tokenizer-model /x/mixtral-8x7b/tokenizer.model", 32000),
        ("--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421", 152064),
        ("--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256", 128256),
        ("--vocab-file bert-large-uncased-vocab.txt", 30522),
        ("--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt", 50257),
        ("--tokenizer-type NullTokenizer --vocab-size 131072", 131072),
        ("--tokenizer-type SentencePieceTokenizer --tokenizer-model /x/ours.model", "FILL-IN"),
        ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model $MODEL", "FILL-IN"),
    ],
)
def test_the_vocabulary_of_a_tokenizer(options: str, rows: object) -> None:
    assert vocabulary(options) == rows


def test_what_the_user_says_counts() -> None:
    asked = "--tokenizer-type SentencePieceTokenizer --tokenizer-model /x/ours.model"
    assert vocabulary(asked, vocabulary=64000) == 64000
    assert vocabulary(asked, tokenizer="llama-3") == 128256
    assert vocabulary(asked, tokenizer="Qwen/Qwen3-8B") == 151669
    assert vocabulary(asked, tokenizer="nobody-knows") == "FILL-IN"
    assert vocabulary("--vocab-size 100", vocabulary=200) == 200
    for name in ("--vocabulary", "--tokenizer"):
        warnings = from_text("--num_train_epochs 1 --per_device_train_batch_size 1 --output_dir x", **{name[2:]: "1"}).warnings
        assert any(f"{name} 1 has no use" in str(finding) for finding in warnings)


@pytest.mark.parametrize(("tensor", "rows"), [(1, 50304), (8, 51200)])
def test_rows_are_padded_as_megatron_pads(tensor: int, rows: int) -> None:
    """Multiples of 128 x tensor ranks: 50257 becomes 50304 on one and 51200 on eight (Megatron-LM's logs say so)."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} --tokenizer-type GPT2BPETokenizer --tensor-model-parallel-size {tensor}"
    assert build(load(from_text(text, on="dgx-a100-80gb").tree)).model.vocabulary_padded == rows


def test_every_tokenizer_is_found_by_its_own_names() -> None:
    for known in known_tokenizers().values():
        assert known.rows > 1000
        assert rows_of(known.name) == rows_of(known.source) == known
        assert all(rows_of(name) == known for name in known.names), known.name
        assert all(rows_of(name, option="tokenizer_type") == known for name in known.types)
    assert rows_of("/some/where/tokenizer.model") is None
    assert rows_of("x" * 100_000) is None


RUN = f"torchrun --nproc_per_node 8 {{}} {BASE} --bf16"


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("pretrain_t5.py", "", "pretrain_t5 trains T5, an encoder-decoder, which is not supported yet"),
        ("pretrain_gpt.py", "--encoder-num-layers 12 --decoder-num-layers 12", "option of an encoder-decoder"),
        ("pretrain_gpt.py", "--decoder-seq-length 128", "option of an encoder-decoder"),
        ("pretrain_ict.py", "", "retrieval"),
        ("pretrain_retro.py", "", "RETRO"),
        ("pretrain_gpt.py", "--retro-add-retriever", "RETRO"),
        ("pretrain_vlm.py", "", "images and text"),
        ("examples/multimodal/train.py", "", "images and text"),
        ("pretrain_vision_classify.py", "", "a vision model"),
        ("tools/generate_samples_gpt.py", "", "does not train"),
        ("pretrain_mamba.py", "", "read by their pattern"),
        ("pretrain_mamba.py", "--hybrid-override-pattern ME*- --normalization RMSNorm", "read by their pattern"),
        ("pretrain_mamba.py", "--hybrid-layer-pattern M-M*", "hybrid models without --normalization RMSNorm"),
    ],
)
def test_models_that_are_refused_by_name(program: str, options: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        from_text(f"{RUN.format(program)} {options}")


def test_bert_is_an_encoder() -> None:
    """Second way to count BERT-large with norms before the sublayers: 24 layers, tables, pooler, two heads, tied words."""
    text = f"{RUN.format('pretrain_bert.py')} --tokenizer-type BertWordPieceLowerCase"
    imported = from_text(text, on="dgx-a100-80gb")
    shown = {"model.family": "bert", "model.task": "pretraining", "model.norm_placement": "pre", "model.vocabulary": 30522}
    assert shown.items() <= values(imported).items()
    h, rows = 1024, 30522
    head = h * h + 3 * h + rows + 2 * h + 2
    counted = 24 * (12 * h * h + 13 * h) + (rows + 512 + 2) * h + 2 * h + (h * h + h) + head
    assert parameter_count(build(load(imported.tree)).model) == counted
    masked = values(from_text(f"{text} --bert-no-binary-head", on="dgx-a100-80gb"))
    assert (masked["model.task"], masked["model.token_types"]) == ("masked-lm", 0)


def test_a_hybrid_by_its_pattern() -> None:
    options = "--normalization RMSNorm --position-embedding-type none --disable-bias-linear --vocab-size 32000 --mamba-num-groups 4"
    imported = from_text(f"{RUN.format('pretrain_mamba.py')} {options} --hybrid-layer-pattern M-M*-M-M", on="dgx-a100-80gb")
    shown = {
        "model.family": "nemotron-h", "model.layer_pattern": "M-M*-M-M", "model.layers": 8, "model.mixer.heads": 32,
        "model.mixer.value_dim": 64, "model.mixer.key_heads": 4, "model.mixer.key_dim": 128,
    }  # fmt: skip
    assert shown.items() <= values(imported).items()
    build(load(imported.tree))


def test_llama_3s_tokenizer_by_its_type() -> None:
    found = rows_of("Llama3Tokenizer", option="tokenizer_type")
    assert found is not None
    assert found.rows == 128256
