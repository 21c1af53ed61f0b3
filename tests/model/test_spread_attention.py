"""Attention cores whose tokens are spread over ranks: nothing is computed twice, nothing is left out, and what it costs in memory."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import model_of

from parsim.kernel import Attention, Gemm, Memory
from parsim.model.activations import block_saved_bytes
from parsim.model.attention import AttentionCore
from parsim.model.workload import Workload

METHODS = ("ring", "all-gather", "ulysses")


def core(heads: int = 32, kv_heads: int = 8, head_dim: int = 128, *, causal: bool = True, **more: object) -> AttentionCore:
    return AttentionCore("core", ("queries", "keys"), "output", heads, kv_heads, head_dim, causal, **more)  # type: ignore[arg-type]


def at(sequence: int, context: int, method: str = "ring", **more: object) -> Workload:
    """One rank of `context`; `sequence` tokens in all."""
    return Workload(1, sequence // context, context=context, context_method=method, **more)  # type: ignore[arg-type]


def flop(kernels: tuple[object, ...]) -> float:
    return sum(kernel.flop for kernel in kernels if isinstance(kernel, Attention | Gemm))


# -- work ---------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 16), st.integers(1, 64), st.sampled_from(METHODS), st.booleans(), st.booleans())
def test_all_ranks_together_do_the_work_of_one(context: int, chunk: int, method: str, causal: bool, backward: bool) -> None:
    """Sum over ranks of the attention FLOP = the count of the unsplit sample, to the last score."""
    sequence = 2 * context * chunk
    heads = 2 * context
    one = core(heads, heads, 64, causal=causal)
    part, whole = one.work(at(sequence, context, method)), one.work(at(sequence, 1))
    if backward:
        assert context * flop(part.backward_input) == flop(whole.backward_input)
    assert context * flop(part.forward) == flop(whole.forward)
    pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
    assert flop(whole.forward) == 4 * pairs * heads * 64


@pytest.mark.parametrize("context", [2, 3, 4, 8])
def test_two_chunks_per_rank_balance_causal_attention(context: int) -> None:
    """Counted one by one: rank r holds chunks r and 2c - 1 - r, and every rank has the scores of the priced blocks."""
    chunk = 4
    length = 2 * context * chunk
    held = [[*range(r * chunk, (r + 1) * chunk), *range((2 * context - 1 - r) * chunk, (2 * context - r) * chunk)] for r in range(context)]
    assert sorted(functools.reduce(operator.iadd, held, [])) == list(range(length))
    kernels = [k for k in core(1, 1, 1).work(at(length, context)).forward if isinstance(k, Attention)]
    priced = [kernel.flop / 4 for kernel in kernels]
    assert len(priced) == context
    for queries in range(context):
        counted = [sum(key <= query for query in held[queries] for key in held[(queries - step) % context]) for step in range(context)]
        assert counted == priced
    gathered = [k.flop / 4 for k in core(1, 1, 1).work(at(length, context, "all-gather")).forward if isinstance(k, Attention)]
    assert sum(gathered) == sum(priced)


def test_each_block_is_a_kernel_of_its_own_size() -> None:
    """Llama-3-8B, 32,768 tokens on 8 ranks: a causal triangle of 4096, then seven blocks of 4096 queries and 2048 keys."""
    kernels = [k for k in core().work(at(32768, 8)).forward if isinstance(k, Attention)]
    assert [(k.queries, k.keys, k.causal, k.heads, k.kv_heads) for k in kernels] == [
        (4096, 4096, True, 32, 8),
        *[(4096, 2048, False, 32, 8)] * 7,
    ]
    backward = [k for k in core().work(at(32768, 8)).backward_input if isinstance(k, Attention)]
    assert [(k.keys, k.causal, k.backward) for k in backward] == [*[(2048, False, True)] * 7, (4096, True, True)]
    middle = [k for k in core().work(at(32768, 8, "all-gather")).forward if isinstance(k, Attention)]
    assert [(k.queries, k.keys, k.causal) for k in middle] == [(2048, 16384, True), (2048, 18432, True)]
    (heads,) = core().work(at(32768, 8, "ulysses")).forward
    assert heads == replace(kernels[0], queries=32768, keys=32768, heads=4, kv_heads=1)


def test_full_attention_sees_whole_blocks() -> None:
    """Without a mask every block is 4096 x 4096."""
    kernels = [k for k in core(causal=False).work(at(32768, 8)).forward if isinstance(k, Attention)]
    assert [(k.queries, k.keys, k.causal) for k in kernels] == [(4096, 4096, False)] * 8


@pytest.mark.parametrize("method", METHODS)
def test_one_rank_needs_no_method(method: str) -> None:
    assert core().work(Workload(2, 1024, context=1, context_method=method)) == core().work(Workload(2, 1024))


# -- memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("tensor", "sequence_parallel"), [(1, False), (2, False), (2, True)])
def test_what_is_saved_is_that_of_a_shorter_sample(method: str, tensor: int, sequence_parallel: bool) -> None:
    """Korthikanti et al. 2205.05198 with s / c for s; ulysses keeps the output by heads and by tokens: b s h e / (c t) more."""
    layer = model_of("llama-3-8b").blocks[1]
    split = at(32768, 4, method, tensor=tensor, sequence_parallel=sequence_parallel, fused=True)
    plain = replace(split, context=1)
    more = 2 * 8192 * 4096 // tensor if method == "ulysses" else 0
    assert block_saved_bytes(layer, split) == block_saved_bytes(layer, plain) + more


def test_a_ring_holds_blocks_until_they_are_merged() -> None:
    """c times K and V, partial output and fp32 statistics; backward two buffers of K, V, dK, dV, and dQ, dK, dV of a block."""
    query, key_value, statistics = 4096 * 32 * 128 * 2, 2 * 4096 * 8 * 128 * 2, 4096 * 32 * 4
    work = core().work(at(32768, 8))
    assert work.forward_temporary == 8 * (key_value + query + statistics)
    assert work.backward_temporary == 4 * key_value + query + key_value
    gathered = core().work(at(32768, 8, "all-gather"))
    assert gathered.forward_temporary == 8 * key_value
    assert gathered.backward_temporary == 2 * 8 * key_value + query // 2 + 8 * key_value * 9 // 16
    exchanged = core().work(at(32768, 8, "ulysses"))
    assert (exchanged.forward_temporary, exchanged.backward_temporary) == (0, query + query + key_value)


def test_evaluation_holds_the_copies_by_heads_only_meanwhile() -> None:
    query, key_value, statistics = 4096 * 32 * 128 * 2, 2 * 4096 * 8 * 128 * 2, 4096 * 32 * 4
    work = core().work(at(32768, 8, "ulysses", backward=False))
    assert work.saves == ()
    assert work.forward_temporary == query + key_value + query + statistics + 24


def test_latent_attention_passes_on_keys_and_values_of_unequal_size() -> None:
    one = AttentionCore("core", ("q", "k", "v"), "output", 16, 16, 192, value_dim=128)
    sizes = one.sizes(at(16384, 4))
    assert (sizes.key, sizes.value, sizes.key_value) == (4096 * 16 * 192 * 2, 4096 * 16 * 128 * 2, 4096 * 16 * 320 * 2)
    assert sizes.output == sizes.value


def test_keys_copied_to_all_heads_travel_as_copies() -> None:
    one = core(expand_kv=True)
    assert one.sizes(at(32768, 8)).key_value == 4 * core().sizes(at(32768, 8)).key_value
    assert isinstance(one.work(at(32768, 8)).forward[0], Memory)


@pytest.mark.parametrize("method", METHODS)
def test_heads_first_queries_copy_the_output_behind_the_last_block_and_its_gradient_before_the_first(method: str) -> None:
    here = at(32768, 8, method)
    plain, copied = core().work(here), core(heads_first=True).work(here)
    copy = Memory(2.0 * 4096 * 32 * 128 * 2)
    assert (*plain.forward, copy) == copied.forward
    assert (copy, *plain.backward_input) == copied.backward_input
    if method != "ulysses":
        part = core(heads_first=True).spread(here)
        assert (part.kernels(backward=False), part.kernels(backward=True)) == (copied.forward, copied.backward_input)
    assert "core.heads_first" in [save.tensor for save in copied.saves]
    library = replace(here, fused=True)
    assert core(heads_first=True).work(library) == core().work(library)


def test_memory_efficient_kernels_get_keys_of_all_heads() -> None:
    here = at(32768, 8, attention="mem-efficient")
    assert core().sizes(here) == core(expand_kv=True).sizes(here)
    assert core().work(here) == core(expand_kv=True).work(here)
