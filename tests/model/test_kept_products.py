"""Recomputation of every second product: bytes and kernels of a Llama layer, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim.kernel import Attention, Gemm
from parsim.model.activations import block_saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Block
from parsim.model.tape import Step
from parsim.model.workload import Workload

BATCH, TOKENS = 2, 8192
ROWS = BATCH * TOKENS
HIDDEN, KEYS, WIDTH, HEADS = 4096, 1024, 14336, 32
"""Llama 3 8B"""
AT = Workload(BATCH, TOKENS, attention="flash2", fused=True, compiled=True)
SELECTED = ("matmuls",)


@pytest.fixture(scope="module")
def llama() -> Block:
    tree = {"family": "llama", "hidden": HIDDEN, "layers": 1, "heads": HEADS, "kv_heads": 8, "vocabulary": 128256, "mlp": WIDTH}
    return build_model(tree, name="llama", base_lookup=lambda _: {}).blocks[1]


def products(steps: tuple[Step, ...]) -> list[tuple[int, int, int]]:
    return [(k.m, k.n, k.k) for step in steps for k in step.kernels if isinstance(k, Gemm)]


def test_bytes_that_a_llama_layer_keeps(llama: Block) -> None:
    """The layer's input; queries and values; the core's output, log-sum-exp and random state; the gate. In bf16, 2 B an element."""
    kept = 2 * ROWS * (HIDDEN + KEYS) + 2 * ROWS * HIDDEN + 4 * ROWS * HEADS + 24 + 2 * ROWS * WIDTH
    assert block_saved_bytes(llama, AT, SELECTED) == kept == 773_849_112
    entry = tape(llama, AT, SELECTED)
    assert entry.input_saved
    assert not entry.output_saved
    sizes = {name: entry.tensors[name].bytes for name in entry.saved}
    assert sizes == {
        "query_key_value.kept": 2 * ROWS * (HIDDEN + KEYS),
        "attention": 2 * ROWS * HIDDEN,
        "attention.log_sum_exp": 4 * ROWS * HEADS,
        "attention.random_state": 24,
        "mlp_up.kept": 2 * ROWS * WIDTH,
    }


def test_products_that_run_again(llama: Block) -> None:
    """Keys, attention's output projection and the up projection: products 2, 4 and 6; the seventh, down, is needed by nobody."""
    again = tuple(step for step in tape(llama, AT, SELECTED).backward if step.phase == "recompute")
    assert sorted(products(again)) == sorted([(ROWS, KEYS, HIDDEN), (ROWS, HIDDEN, HIDDEN), (ROWS, WIDTH, HIDDEN)])
    assert not [k for step in again for k in step.kernels if isinstance(k, Attention)]
    names = [step.operator.name for step in again]
    assert sorted(names) == sorted(
        ["attention_norm", "query_key_value", "rotary", "attention_output", "attention_residual", "mlp_norm", "mlp_up", "mlp_activation"]
    )


def test_most_that_backward_of_the_mlp_holds(llama: Block) -> None:
    """Up is made again beside the gate that was kept, so that gate, up and their product are 3 f wide, not 4."""
    entry = tape(llama, AT, SELECTED)
    assert entry.tensors["mlp_up"].bytes == entry.tensors["mlp_up.kept"].bytes == 2 * ROWS * WIDTH


def test_reduce_scatters_results_stay_under_sequence_parallelism(llama: Block) -> None:
    at = replace(AT, tensor=8, sequence_parallel=True)
    rows, hidden, keys, width = ROWS, HIDDEN // 8, KEYS // 8, WIDTH // 8
    kept = 2 * rows * (hidden + keys) + 2 * rows * hidden + 4 * rows * HEADS // 8 + 24 + 2 * rows * width + 2 * (rows // 8) * HIDDEN
    assert block_saved_bytes(llama, at, SELECTED) == kept
    again = tuple(step for step in tape(llama, at, SELECTED).backward if step.phase == "recompute")
    assert sorted(products(again)) == sorted([(rows, keys, HIDDEN), (rows, width, HIDDEN)])


def test_eager_scores_are_made_again(llama: Block) -> None:
    """Math attention has no kernel of its own in torchtitan's list: its products are batched ones (aten.bmm)."""
    entry = tape(llama, replace(AT, attention="eager", sequence=512), SELECTED)
    assert not [name for name in entry.saved if name.startswith("attention")]
    assert "attention" in {step.operator.name for step in entry.backward if step.phase == "recompute"}


def test_one_weight_for_queries_keys_and_values_is_one_product() -> None:
    """GPT: the first product is kept whole, the second (attention's output) is not, the third (up) is."""
    tree = {"family": "megatron-gpt", "hidden": 512, "layers": 1, "heads": 8, "vocabulary": 50304, "maximum_sequence": 1024}
    layer = build_model(tree, name="gpt", base_lookup=lambda _: {}).blocks[1]
    saved = tape(layer, Workload(1, 1024, attention="flash2"), SELECTED).saved
    assert "query_key_value" in saved
    assert "mlp_up" in saved
    assert not [name for name in saved if name.endswith(".kept") or name == "attention_output"]
