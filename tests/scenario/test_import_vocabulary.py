"""Vocabularies that a script says by a tokenizer only, and models of Megatron-LM that are no GPT."""

from __future__ import annotations

from typing import Any

import pytest
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.interop.tokenizers import known_tokenizers, rows_of
from parsim.model.parameter_counts import parameter_count
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
        ("--tokenizer-type GPT2BPETokenizer --vocab-file /x/tokenizers/nordic_tokenizer_131072/vocab.json --merge-file m.txt", 131072),
        ("--tokenizer-type SentencePieceTokenizer --tokenizer-model /x/vocab-64000.model", 64000),
        ("--tokenizer-type SentencePieceTokenizer --tokenizer-model /x/tokenizer_20240131.model", "FILL-IN"),
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
        ("pretrain_bart.py", "", "pretrain_bart trains BART, an encoder-decoder, which is not supported yet"),
        ("pretrain_t5.py", "--vocab-size 30000 --pipeline-model-parallel-size 2", "stages of an encoder and of a decoder"),
        ("pretrain_ict.py", "", "retrieval"),
        ("pretrain_retro.py", "", "RETRO"),
        ("pretrain_gpt.py", "--retro-add-retriever", "RETRO"),
        ("pretrain_vlm.py", "", "images and text"),
        ("examples/multimodal/train.py", "", "images and text"),
        ("examples/multimodal/train.py", "--language-model-type nemotron6-moe --vision-model-type radio", "images and text"),
        ("examples/multimodal/train.py", "--language-model-type mistral_7b --vision-model-type clip --vocab-size 32000", "the class token"),
        ("pretrain_vision_classify.py", "", "a vision model"),
        ("tools/generate_samples_gpt.py", "", "does not train"),
        ("tools/dist_ckpt_to_hf.py", "", "does not train"),
        ("pretrain_modern_bert.py", "", "pretrain_modern_bert trains an encoder of its own, which is not supported yet"),
        ("examples/qwen2_vl/pretrain_qwen2_vl.py", "", "pretrain_qwen2_vl trains a model of several kinds of input"),
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


def test_t5_is_two_stacks() -> None:
    """Second way to count: two stacks of pre-norm layers with biases, of which the decoder's have attention to the encoder, too."""
    sizes = "--encoder-num-layers 3 --decoder-num-layers 2 --hidden-size 768 --num-attention-heads 12 --ffn-hidden-size 3072"
    lengths = "--encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 --micro-batch-size 4 --global-batch-size 32"
    words = "--tokenizer-type BertWordPieceCase --vocab-extra-ids 100 --make-vocab-size-divisible-by 8"
    imported = from_text(f"torchrun --nproc_per_node 8 pretrain_t5.py {sizes} {lengths} {words} --bf16", on="dgx-a100-80gb")
    found = values(imported)
    assert (found["training.sequence_length"], found["training.target_sequence_length"], found["model.vocabulary"]) == (512, 128, 29096)
    h, f, rows = 768, 3072, 29096
    attention, mlp, norm = 4 * h * h + 4 * h, 2 * h * f + f + h, 2 * h
    stacks = 3 * (attention + mlp + 2 * norm) + 2 * (2 * attention + mlp + 3 * norm) + 2 * norm
    tables = rows * h + 2 * 512 * h  # Megatron-LM has one table of positions: this is said
    assert parameter_count(build(load(imported.tree)).model) == stacks + tables + rows
    assert "both stacks read one table of positions there" in imported.yaml
    relative = values(from_text(f"torchrun pretrain_t5.py {sizes} {lengths} {words} --position-embedding-type relative", on="1x a100-80gb"))
    assert (relative["model.position"], relative["model.relative_buckets"]) == ("none", 32)


IMAGES = "--img-h 448 --img-w 448 --patch-dim 14 --pixel-shuffle --disable-vision-class-token --seq-length 256 --decoder-seq-length 1024"
QWEN = (
    "--num-layers 28 --hidden-size 3584 --num-attention-heads 28 --group-query-attention --num-query-groups 4 --ffn-hidden-size 18944 "
    "--normalization RMSNorm --position-embedding-type rope --max-position-embeddings 32768 --vocab-size 152064 --swiglu "
    "--untie-embeddings-and-output-weights --tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64 --bf16"
)
PARTS = "--language-model-type qwen2.5_7B --vision-model-type internvit"


def test_a_model_of_images_has_a_tower_and_a_projector() -> None:
    """NVLM of Qwen 2.5 7B and InternViT 6B, whose 25 heads become 28 on four ranks: counted by hand beside the catalogue's text."""
    text = f"torchrun --nproc_per_node 8 examples/multimodal/train.py {QWEN} {PARTS} {IMAGES}"
    imported = from_text(f"{text} --freeze-ViT", on="dgx-a100-80gb")
    assert imported.to_fill == ("training.images",)
    found = values(imported)
    assert (found["training.sequence_length"], found["training.finetune.freeze"]) == (1024, ["vision"])
    imported.tree["training"]["images"] = 2
    model = build(load(imported.tree)).model
    h, wide, f = 3200, 28 * 128, 12800
    layer = h * 3 * wide + wide * h + h + 2 * h * f + f + h + 4 * h + 2 * wide  # two norms and two scales of h, norms of q and k
    tower = 45 * layer + 3 * 14 * 14 * h + h + h + 1025 * h
    projector = 4 * h + 4 * h * 3584 + 3584 * 3584
    qwen = 7_615_616_512
    assert parameter_count(model) == qwen + tower + projector
    assert {block.kind for block in model.blocks if any(p.trainable for p in block.parameters())} == {
        "projector",
        "embedding",
        "layer",
        "head",
    }


def test_a_sample_of_2024_is_its_text_beside_one_image() -> None:
    """Then examples/multimodal/train.py had no decoder's length: decoder_seq_length = --seq-length + 336 x 336 / 14 x 14 = 576 tokens."""
    images = "--img-h 336 --img-w 336 --patch-dim 14 --disable-vision-class-token"
    text = f"torchrun --nproc_per_node 8 examples/multimodal/train.py {QWEN} --language-model-type qwen2.5_7B {images} --freeze-ViT"
    imported = from_text(f"{text} --seq-length 2048", on="dgx-a100-80gb")
    found = values(imported)
    assert (imported.to_fill, found["training.sequence_length"], found["training.images"]) == ((), 2048 + 576, 1)
    build(load(imported.tree))
    later = from_text(f"{text} --seq-length 576 --decoder-seq-length 2048", on="dgx-a100-80gb")
    assert (later.to_fill, values(later)["training.sequence_length"]) == (("training.images",), 2048)


@pytest.mark.parametrize("program", ["examples/multimodal/train.py", "pretrain_multimodal.py"])
def test_the_decoder_of_8b_squares_a_relu(program: str) -> None:
    """examples/multimodal/config.py of 2024: ffn_hidden_size 16384 without a gate, also in the projector; 32 layers of 4096 beside it."""
    options = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --position-embedding-type rope --max-position-embeddings 4096"
    options += " --squared-relu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 256000 --bf16 --micro-batch-size 1"
    images = "--img-h 336 --img-w 336 --patch-dim 14 --disable-vision-class-token --seq-length 1024 --tensor-model-parallel-size 4"
    imported = from_text(f"torchrun --nproc_per_node 8 {program} {options} --language-model-type=8b {images}", on="dgx-a100-80gb")
    found = values(imported)
    assert (found["training.sequence_length"], found["training.images"], found["parallel.tensor.size"]) == (1600, 1, 4)
    model = build(load(imported.tree)).model
    layers = [block for block in model.blocks if block.kind == "layer"]
    h, f = 4096, 16384
    assert len(layers) == 32
    assert sum(p.count for p in layers[0].parameters()) == 4 * h * h + 2 * h * f + 4 * h  # two norms with biases
    projector = next(block for block in model.blocks if block.kind == "projector")
    assert sum(p.count for p in projector.parameters()) == 2 * 1024 + 1024 * f + f * h


@pytest.mark.parametrize(
    ("options", "recompute"),
    [
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 28 --recompute-vision", "full"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --recompute-vision", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 14 --recompute-vision", None),
    ],
)
def test_the_tower_is_recomputed_as_a_whole(options: str, recompute: str | None) -> None:
    text = f"torchrun --nproc_per_node 8 examples/multimodal/train.py {QWEN} {PARTS} {IMAGES} {options}"
    if recompute is None:
        with pytest.raises(ScenarioError, match="some layers of the text recomputed, and all of its tower"):
            from_text(text, on="dgx-a100-80gb")
    else:
        assert values(from_text(text, on="dgx-a100-80gb"))["training.recompute"] == recompute


def test_a_hybrid_by_its_pattern() -> None:
    options = "--normalization RMSNorm --position-embedding-type none --disable-bias-linear --vocab-size 32000 --mamba-num-groups 4"
    imported = from_text(f"{RUN.format('pretrain_mamba.py')} {options} --hybrid-layer-pattern M-M*-M-M", on="dgx-a100-80gb")
    shown = {
        "model.family": "nemotron-h", "model.layer_pattern": "M-M*-M-M", "model.layers": 8, "model.mixer.heads": 32,
        "model.mixer.value_dim": 64, "model.mixer.key_heads": 4, "model.mixer.key_dim": 128,
    }  # fmt: skip
    assert shown.items() <= values(imported).items()
    build(load(imported.tree))


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("M-M*/*-/*-", {"model.mtp": 2, "model.mtp_pattern": "*-"}),
        ("M-M*/*-/*- --mtp-num-layers 2 --mtp-use-repeated-layer", {"model.mtp": 2, "model.mtp_repeated": True}),
        ("M-M* --mtp-hybrid-override-pattern none", {}),
        ("M-M* --mtp-num-layers 1 --mtp-hybrid-override-pattern '*-'", {"model.mtp": 1, "model.mtp_pattern": "*-"}),
    ],
)
def test_further_words_of_a_hybrid(options: str, shown: dict[str, object]) -> None:
    norms = "--normalization RMSNorm --position-embedding-type none --disable-bias-linear --vocab-size 32000"
    text = f"{RUN.format('pretrain_mamba.py')} {norms} --untie-embeddings-and-output-weights --hybrid-layer-pattern {options}"
    imported = from_text(text, on="dgx-a100-80gb")
    assert {"model.layer_pattern": "M-M*", "model.layers": 4, **shown}.items() <= values(imported).items()
    build(load(imported.tree))


def test_modules_of_different_layers_are_refused() -> None:
    norms = "--normalization RMSNorm --position-embedding-type none --disable-bias-linear --vocab-size 32000"
    with pytest.raises(ScenarioError, match="modules of different layers"):
        from_text(f"{RUN.format('pretrain_mamba.py')} {norms} --hybrid-layer-pattern M-M*/*-/M", on="dgx-a100-80gb")


def test_llama_3s_tokenizer_by_its_type() -> None:
    found = rows_of("Llama3Tokenizer", option="tokenizer_type")
    assert found is not None
    assert found.rows == 128256
