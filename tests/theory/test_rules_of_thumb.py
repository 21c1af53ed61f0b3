"""docs/rules-of-thumb.md, recomputed: every number in its tables comes from a formula of parsim.theory."""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil
from pathlib import Path

import pytest

from parsim import theory

PAGE = Path(__file__).parents[2] / "docs" / "rules-of-thumb.md"
GB, MIB, GIB = 1e9, 2**20, 2**30

P7 = theory.llama_parameters(4096, 11008, 32, 32, 32000)
P13 = theory.llama_parameters(5120, 13824, 40, 40, 32000)
P65 = theory.llama_parameters(8192, 22016, 80, 64, 32000)
BERT = theory.bert_parameters(768, 3072, 12, 30522)
BERT_LONG = theory.bert_parameters(768, 3072, 12, 30522, positions=2048 + 512)

WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""cuBLAS's default workspace, :4096:2:16:8 (PyTorch CUDA notes) [B]"""
BLOCK = 512
"""smallest block of PyTorch's caching allocator [B]"""

WIDTHS = (1024, 1024, 1024, 2048)
ROWS = 10240
MLP = 4 * sum(theory.linear_parameters(*pair) for pair in pairwise(WIDTHS))
X, Y1, Y2, OUT = (4 * ROWS * width for width in WIDTHS)
LAST = 4 * 1024 * 2048
"""weight of the last layer [B]; its bias is 8192"""

GPT13 = 40 * theory.transformer_layer_activation_bytes(1024, 1, 5120, 40)
GPT13_FLASH = 40 * theory.transformer_layer_activation_bytes(1024, 1, 5120, 40, recompute="selective")
EDGES13 = 2 * 1024 * 5120 * 2
SAVED7 = 32 * theory.llama_saved_bytes_per_layer(2048, 4096, 11008, 32)
ROUGH7 = (4096 + 11008) * 2048 * 32

LINEARS7 = theory.llama_layer_parameters(4096, 11008, 32, norms=False)
ACCUMULATED = (512 / 170.19, 512 / 190.22)


def bert_total(tokens: int) -> float:
    """One sample in training mode, no gradients: parameters (2048 positions more, as the notes' model), saved tensors, workspace [B]."""
    return 4 * BERT_LONG + theory.bert_saved_bytes(1, tokens, 768, 3072, 12, 12, dropout=True) + 8 * tokens + WORKSPACE


EXACT: dict[str, list[str]] = {
    "P1": [f"{P7 - 4096:,}", f"{P7:,}", "4,096"],
    "P2": [f"{2 * 10**9:,} B", f"{2 * 10**9 / GIB:.4f} GiB"],
    "P3": [f"{2 * P7 / GB:.2f} GB", f"{2 * P7 / GIB:.2f} GiB"],
    "P4": [f"{2 * P65 / GB:.2f} GB", f"{2 * P65 / GIB:.2f} GiB", f"{ceil(2 * P65 / 32e9)} GPUs"],
    "P5": [f"{4 * P7 / GB:.2f} / {8 * P7 / GB:.2f} GB", f"{P7:,}"],
    "P6": [f"{MLP // 4:,}"],
    "M1": [
        f"{16 * P7:,} B",
        f"{theory.state_bytes(P7, 'mixed-adam') / GIB:.2f} GiB",
        f"{theory.distributed_optimizer_bytes(P7, 1) / GB:.2f} GB",
    ],
    "M2": [f"{theory.state_bytes(P7, 'mixed-adam') // (2 * P7)} times"],
    "M3": [f"{160 / 7:.1f} GB", f"{20 * 7} GB"],
    "M4": [f"{theory.state_bytes(10**9, mode) / GIB:.2f} GiB" for mode in ("fp32-adam", "pure-bf16-adam")],
    "M5": [" / ".join(str(theory.state_bytes(1, f"fp32-{name}")) for name in ("sgd", "momentum", "adam"))],
    "M6": [str(6 + 4 + 8), str(theory.state_bytes(1, "mixed-adam"))],
    "M7": [f"{6 + 6 + 12 + 1.3} GB"],
    "M8": [f"{2 * P13 / GB:.2f}, {2 * P13 / GB:.2f} and {12 * P13 / GB:.2f} GB", f"{16 * P13 / GIB:.2f} GiB", f"{P13:,}"],
    "M9": [f"{(16 * P13 + GPT13 + EDGES13) / GB:.2f} GB", f"{(16 * P13 + GPT13 + EDGES13) / GIB:.2f} GiB"],
    "M10": [f"{(16 * P13 + GPT13 + EDGES13) / 3 / GB:.2f} GB each"],
    "M11": ["3 of 9, 2 remote per layer"],
    "A1": [f"{ROUGH7:,} B", f"{ROUGH7 / MIB:g} MiB", f"{SAVED7 / GIB:.2f} GiB", f"{SAVED7 / ROUGH7:.0f} times"],
    "A2": [f"{(25.3e9 + 50 * ROUGH7) / GB:.1f} GB", f"{50 * SAVED7 / GIB:.2f} GiB"],
    "A3": [f"{GPT13:,.0f} B", f"{GPT13 / GIB:.4f} GiB"],
    "A4": [f"{40 * theory.llama_saved_bytes_per_layer(1024, 5120, 13824, 40) / GIB:.4f} GiB", f"{GPT13_FLASH / GIB:.4f} GiB"],
    "A5": [f"{4e6 / 1024:,.2f} samples", f"{GPT13 * 4e6 / 1024 / GIB:,.2f} GiB", f"{GPT13 / GIB * 4e6:,.0f} GB"],
    "A6": [f"{EDGES13:,} B", f"{EDGES13 / MIB:g} MiB"],
    "A7": [f"{theory.checkpointed_bytes(64, 1, 1, every=int(theory.optimal_checkpoint_interval(64, 1, 1)))} instead of 64"],
    "A8": [f"{theory.mlp_saved_bytes(1, (1, 4, 4, 1)):g}bsh"],
    "L1": [f"{MLP / MIB} MiB"],
    "L2": [f"{X / MIB:g} MiB"],
    "L3": [f"{(Y1 + Y2 + OUT + WORKSPACE) / MIB} MiB", f"{WORKSPACE:,} B", f"{WORKSPACE / MIB} MiB"],
    "L4": [f"{theory.mlp_saved_bytes(ROWS, WIDTHS) / MIB:g} MiB", f"{OUT / MIB:g} MiB"],
    "L5": [f"{(2 * MLP + X + OUT + 2 * WORKSPACE + BLOCK) / MIB} MiB"],
    "L6": [f"{(MLP + X + Y1 + Y2 + OUT + 2 * WORKSPACE + 2 * BLOCK + OUT + Y2 + LAST + 8192) / MIB} MiB", f"{OUT / MIB:g} MiB"],
    "L7": [f"{2 * MLP / MIB} MiB"],
    "L8": [f"{(MLP + X + OUT + WORKSPACE) / MIB} MiB", f"{(MLP + X + Y2 + OUT + WORKSPACE) / MIB} MiB"],
    "L9": [f"{2 * MIB:,} B / {BLOCK} B"],
    "B1": [f"{BERT:,}", f"{4 * BERT / MIB:.2f} MiB"],
    "B2": [
        f"{(theory.bert_saved_bytes(32, 512, 768, 3072, 12, 12) + WORKSPACE) / MIB} MiB",
        str(theory.bert_saved_bytes(32, 512, 768, 3072, 12, 12) / MIB),
    ],
    "B3": [f"{theory.bert_saved_bytes(32, 512, 768, 3072, 12, 12, dropout=True) / MIB:.2f} MiB"],
    "B4": [f"{(32 * 512 * 768 * 4 + WORKSPACE + 32 * 768 * 4) / MIB} MiB"],
    "B5": [", ".join(f"{bert_total(tokens) / MIB:.0f}" for tokens in (512, 1024, 2560)) + " MiB"],
    "B6": [f"{8 * BERT / MIB:.2f} MiB"],
    "F1": [f"{theory.attention_forward_flops(1, 2048, 32, 128):,}"],
    "F2": [f"{4096 + 128:,}", f"{4096 + 32:,}"],
    "F3": ["| 3 |"],
    "F4": [f"{2 * 32 * LINEARS7 + 2 * 4096 * 32000:,}"],
    "F5": [f"{theory.hfu_over_mfu():.4f}"],
    "F6": [
        f"{theory.flops_6n(P7):,}",
        f"{theory.flops_palm(P7, 32, 4096, 2048):,}",
        f"{100 * (theory.flops_palm(P7, 32, 4096, 2048) / theory.flops_6n(P7) - 1):.1f} %",
    ],
    "F7": [f"{theory.time_to_train(175e9, 300e9, 1024, rate) / 86400:.1f} days" for rate in (312e12, 140e12)],
    "F8": [f"{100 * 100 / 312:.2f} %"],
    "F9": [f"{100 * 3 * 2048 / 4 / 3300:.2f} %"]
    + [f"{100 * theory.mfu(rate, theory.flops_6n(P7), 312e12):.2f} %" for rate in (1536, 3300)],
    "F10": [str(1 + 8 + 10)],
    "T1": [f"{ACCUMULATED[0]:.4f} to {ACCUMULATED[1]:.4f} samples/s", f"{100 * (ACCUMULATED[1] / ACCUMULATED[0] - 1):.1f} %"],
    "T3": [f"server {2 * 8} P", f"{theory.ring_all_reduce_bytes(8, 1):g} P per rank"],
    "T4": [f"{100 * theory.bubble_fraction('naive', 4, 8):.2f} %", f"{100 * theory.bubble_fraction('1f1b', 4, 8):.2f} %"],
    "T5": [", ".join(str(theory.pipedream_versions(4, stage)) for stage in range(4))],
}
WORDS_ONLY = ("M12", "T2", "T6", "T7", "T8")


def rows() -> dict[str, str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {match[1]: line for line in lines if (match := re.match(r"\| ([A-Z]\d+) \|", line))}


def test_every_row_is_recomputed():
    assert sorted(rows()) == sorted([*EXACT, *WORDS_ONLY])


@pytest.mark.parametrize("row", EXACT)
def test_the_page_says_what_the_formulas_give(row):
    for text in EXACT[row]:
        assert text in rows()[row], f"{row}: {text}"


def test_the_page_reads_as_tables():
    assert all(line.count("|") == 6 for line in rows().values())
    assert all("**" in line for line in rows().values())
