"""Saved activations against measurements: PyTorch 2.13 and Hugging Face transformers 5.23 on the ``meta`` device, unique
storages that autograd keeps, parameters excluded. Equal to the byte."""

from __future__ import annotations

from functools import cache

import pytest

from parsim.model.activations import block_saved_bytes, saved_bytes
from parsim.model.attention import AttentionCore, Rotary, RotaryTables
from parsim.model.catalogue import build_model
from parsim.model.convolution import Conv2d
from parsim.model.elementwise import Activation, Flatten, GatedActivation, Prefix, ResidualAdd, SelectToken
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Block, Model
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.workload import Workload

MIB = 2**20


@cache
def model(name: str) -> Model:
    trees = {
        "bert": {"family": "bert", "hidden": 768, "layers": 12, "heads": 12, "vocabulary": 30522, "task": "encoder"},
        "gpt2": {"family": "gpt2", "hidden": 768, "layers": 12, "heads": 12, "vocabulary": 50257},
        "llama2-7b": {"family": "llama", "hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000, "mlp": 11008},
        "llama2-13b": {"family": "llama", "hidden": 5120, "layers": 40, "heads": 40, "vocabulary": 32000, "mlp": 13824},
        "llama3-8b": {"family": "llama", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "vocabulary": 128256, "mlp": 14336},
    }
    expanded = name.removesuffix(" repeat_kv")
    tree = dict(trees[expanded], **({"expand_key_value": True} if expanded != name else {}))
    return build_model(tree, name=name, base_lookup=lambda _: {})


def at(batch: int, sequence: int, attention: str, *, bits: int = 32, dropout: float = 0.0) -> Workload:
    element, dtype = (4, "fp32") if bits == 32 else (2, "bf16")
    return Workload(batch, sequence, element=element, dtype=dtype, weight_element=element, attention=attention, dropout=dropout)


@pytest.mark.parametrize(
    ("name", "workload", "expected"),
    [
        ("bert", at(32, 512, "eager"), 14_599_688_192),
        ("bert", at(32, 512, "eager", dropout=0.1), 20_954_058_752),
        ("bert", at(32, 512, "mem-efficient"), 9_777_287_360),
        ("bert", at(32, 512, "mem-efficient", dropout=0.1), 10_091_860_160),
        ("bert", at(32, 512, "flash2", bits=16, dropout=0.1), 5_209_641_248),
        ("bert", at(1, 512, "eager", dropout=0.1), 654_818_304),
        ("bert", at(1, 256, "eager", dropout=0.1), 242_476_032),
        ("gpt2", at(8, 1024, "eager", dropout=0.1), 21_183_569_924),
        ("gpt2", at(8, 1024, "mem-efficient", dropout=0.1), 10_316_652_740),
        ("gpt2", at(8, 1024, "mem-efficient"), 10_159_366_340),
        ("gpt2", at(8, 1024, "flash2", bits=16, dropout=0.1), 6_063_628_580),
        ("gpt2", at(8, 1024, "flash2", bits=16), 5_906_342_180),
        ("gpt2", at(8, 1024, "eager", bits=16, dropout=0.1), 12_098_707_460),
        ("gpt2", at(8, 1024, "eager", bits=16), 8_317_542_404),
        ("llama2-7b", at(1, 2048, "flash2", bits=16), 12_553_069_324),
        ("llama3-8b repeat_kv", at(1, 4096, "flash2", bits=16), 30_172_857_100),
    ],
)
def test_saved_bytes_of_whole_models(name: str, workload: Workload, expected: int) -> None:
    assert saved_bytes(model(name), workload) == expected


@pytest.mark.parametrize(
    ("name", "sequence", "gib"),
    [
        ("llama2-7b", 2048, 11.383),
        ("llama2-7b", 4096, 22.767),
        ("llama2-13b", 1024, 8.913),
        ("llama3-8b", 4096, 24.517),
        ("llama3-8b", 8192, 49.033),
    ],
)
def test_saved_bytes_of_llama_layers(name: str, sequence: int, gib: float) -> None:
    llama = model(name)
    workload = at(1, sequence, "flash2", bits=16)
    layer = llama.blocks[1]
    # Python's RMSNorm keeps a copy of its input, so no boundary tensor is saved
    assert llama.layers * block_saved_bytes(layer, workload) / 2**30 == pytest.approx(gib, abs=5e-4)


@pytest.mark.parametrize(("kv_heads", "expected"), [(8, 12_013_568), (2, 11_227_136)])
def test_llama_block_with_shared_keys(kv_heads: int, expected: int) -> None:
    """Hidden 512, MLP 1376, 8 heads, batch 2 x 256 in bf16, scaled-dot-product attention; the tables are [1, s, d]."""
    layer = llama_layer(512, 1376, 8, kv_heads)
    tables = Block("embedding", (RotaryTables("tables", ("input",), "rows", 64), Activation("copy", ("rows",), "output", 512, "relu")))
    workload = at(2, 256, "flash2", bits=16)
    measured = block_saved_bytes(layer, workload) + block_saved_bytes(tables, workload)
    # the CPU's flash kernel, which was measured, keeps no random state (24 B)
    assert measured - 24 == expected


def test_llama_layer_with_fused_kernels() -> None:
    """(12 + 4k/a) h + 6f + 4a + 8 bytes per token: norms keep their input, SwiGLU keeps gate and up (Transformer Engine)."""
    h, f, a, k, tokens = 512, 1376, 8, 2, 2 * 256
    workload = Workload(2, 256, attention="flash2", fused=True)
    block = llama_layer(h, f, a, k)
    saved = block_saved_bytes(block, workload) + tape(block, workload).tensors["input"].bytes
    assert saved - 24 == tokens * ((12 + 4 * k / a) * h + 6 * f + 4 * a + 8)


def llama_layer(hidden: int, mlp: int, heads: int, kv_heads: int) -> Block:
    d = hidden // heads
    widths = (hidden, kv_heads * d, kv_heads * d)
    return Block(
        "layer",
        (
            RMSNorm("norm1", ("input",), "n1", hidden),
            Linear("qkv", ("n1",), "qkv", hidden, widths, False, "column"),
            Rotary("rotary", ("qkv",), "rotated", heads, kv_heads, d),
            AttentionCore("core", ("rotated",), "context", heads, kv_heads, d),
            Linear("proj", ("context",), "attended", hidden, (hidden,), False, "row"),
            ResidualAdd("add1", ("attended", "input"), "middle", hidden),
            RMSNorm("norm2", ("middle",), "n2", hidden),
            Linear("up", ("n2",), "gate_up", hidden, (mlp, mlp), False, "column", selective="mlp"),
            GatedActivation("act", ("gate_up",), "product", mlp),
            Linear("down", ("product",), "fed", mlp, (hidden,), False, "row"),
            ResidualAdd("add2", ("fed", "middle"), "output", hidden),
        ),
    )


def test_vision_transformer() -> None:
    """ViT-B/16, fp32, batch 32 of 224 x 224 images: 197 tokens; memory-efficient attention pads its statistics to 224 rows."""
    h, f, tokens = 768, 3072, 197
    patches = Block(
        "embedding",
        (
            Conv2d("patches", ("input",), "patches", 3, h, (16, 16), (224, 224), (16, 16)),
            Flatten("flatten", ("patches",), "rows"),
            Prefix("prefix", ("rows",), "output", h, tokens),
        ),
    )
    layer = Block(
        "layer",
        (
            LayerNorm("norm1", ("input",), "n1", h),
            Linear("qkv", ("n1",), "qkv", h, (h, h, h), split="column"),
            AttentionCore("core", ("qkv",), "context", 12, 12, 64, causal=False),
            Linear("proj", ("context",), "attended", h, (h,), split="row"),
            ResidualAdd("add1", ("attended", "input"), "middle", h),
            LayerNorm("norm2", ("middle",), "n2", h),
            Linear("fc1", ("n2",), "wide", h, (f,), split="column"),
            Activation("gelu", ("wide",), "gelu", f, "gelu", "column"),
            Linear("fc2", ("gelu",), "fed", f, (h,), split="row"),
            ResidualAdd("add2", ("fed", "middle"), "output", h),
        ),
    )
    head = Block(
        "head",
        (
            LayerNorm("norm", ("input",), "states", h),
            SelectToken("token", ("states",), "first", h),
            Linear("classifier", ("first",), "output", h, (1000,), per_sample=True),
        ),
    )
    vit = Model("vit", (patches, *[layer] * 12, head), ("embedding", *(f"layer {i}" for i in range(12)), "head"))
    assert sum(p.count for block in vit.blocks for p in block.parameters()) == 86_567_656
    assert saved_bytes(vit, at(32, tokens, "mem-efficient")) == 3_781_639_616


def test_logits_and_loss_peaks() -> None:
    """512 tokens, vocabulary 32000, bf16: 10 and 14 bytes per logit at the forward and backward peak (PyTorch)."""
    logits = 512 * 32000
    loss = Loss("loss", ("logits",), "loss", 32000)
    work = loss.work(Workload(1, 512))
    by_name = {save.tensor: save.bytes for save in work.saves}
    assert by_name["loss.log_softmax"] == 4 * logits
    assert by_name["logits"] == 2 * logits
    assert 2 * logits + by_name["loss.log_softmax"] + work.forward_temporary == 10 * logits
    assert 2 * logits + by_name["loss.log_softmax"] + sum(work.backward_scratch) == 14 * logits
    single = loss.work(Workload(1, 512, element=4, dtype="fp32"))
    assert 4 * logits + 4 * logits + single.forward_temporary == 8 * logits
    assert 4 * logits + 4 * logits + sum(single.backward_scratch) + single.input_gradients[0] == 16 * logits


def test_sharded_and_chunked_cross_entropy() -> None:
    """DTensor's loss_parallel: fp32 copy, shifted copy and log-softmax forward; backward three more beside the log-softmax. In chunks: fp32
    logits and log-softmax of all of them, and no gradient of all logits.
    """
    logits = 512 * 32000
    loss = Loss("loss", ("logits",), "loss", 32000)
    sharded = loss.work(Workload(1, 512, tensor=8, sequence_parallel=True))
    part = 4 * logits // 8
    assert next(save.bytes for save in sharded.saves if save.tensor == "loss.log_softmax") == part
    assert sharded.forward_temporary == 2 * part
    assert sharded.backward_scratch == (part, part, part)
    chunked = loss.work(Workload(1, 512, loss_kernel="eager-chunks"))
    assert {save.tensor: save.bytes for save in chunked.saves if save.bytes > 10_000} == {
        "loss.log_softmax": 4 * logits, "logits": 2 * logits, "loss.wider": 2 * logits,
    }  # fmt: skip
    assert chunked.input_gradients == (0,)
    assert (chunked.forward_temporary, chunked.backward_scratch) == (0, ())
    freed = loss.work(Workload(1, 512, holds_logits=False))
    assert "logits" not in {save.tensor for save in freed.saves}
