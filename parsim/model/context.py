"""The attention core of one context-parallel rank: its kernels block by block, and what it holds beside its operands.

c ranks hold s/c tokens of every sample each. Causal attention is kept in balance by cutting a sample into 2c chunks: rank r
holds chunks r and 2c - 1 - r, so every rank has the same number of scores (Brandon et al. 2023, striped; the zig-zag split
of Llama 3, 2407.21783 §3.3.2, and of Transformer Engine). The sums over all ranks are those of the unsplit sample, exactly.

===========  ======================================================================  =================================
method       kernels of a rank (causal; L = s / 2c, the length of a chunk)            beside its operands
===========  ======================================================================  =================================
ring         its own 2L x 2L triangle, then c - 1 blocks of half a square:            c times K, V, output and
             2L queries x the first L keys of an earlier rank, or the second          statistics of a block; backward
             L queries x 2L keys of a later one                                       2 x (K, V, dK, dV), dQ, dK, dV
all-gather   one per chunk: L queries x all keys up to them                           all K, V; backward dK, dV of all
ulysses      the whole sample for a / c heads                                         Q, K, V, output by heads
===========  ======================================================================  =================================

torchtitan calls PyTorch's ``context_parallel`` (`parsim.model.torch_ring`), which goes round block by block whichever way keys travel.

What is held and merged otherwise follows Transformer Engine (``pytorch/attention/dot_product_attention/context_parallel.py``, commit
d0067d0): partial outputs in the activations' type, statistics in fp32, merged once all blocks are done. (ring-flash-attention
instead adds each block to one fp32 output and holds two K, V buffers.) Its two streams, on which a block may begin while the
one before runs out, are one lane here. Ranks differ in how many blocks have half the keys and how many half the queries;
every rank is priced as the last one, whose blocks all have half the keys: short loops over keys are the slower half, and
everybody waits for it. With all-gather the price is that of the rank with the two middle chunks.
"""

from __future__ import annotations

import math

from parsim.kernel import Kernel, Memory
from parsim.model.context_blocks import CoreBlock, CoreKernel, CoreSizes, SpreadCore
from parsim.model.torch_ring import torch_ring
from parsim.model.workload import Workload


def spread(at: Workload, kernel: CoreKernel, sizes: CoreSizes, *, causal: bool) -> SpreadCore:
    """The core under ``at.context_method`` ring or all-gather; ulysses needs no blocks."""
    if at.torch_context:
        return torch_ring(at, kernel, sizes, causal=causal)
    return (_ring if at.context_method == "ring" else _gathered)(at, kernel, sizes, causal=causal)


def _ring(at: Workload, kernel: CoreKernel, sizes: CoreSizes, *, causal: bool) -> SpreadCore:
    c, own = at.context, at.sequence
    keys = own // 2 if causal else own
    seen = sizes.key_value * keys // own
    """bytes of the keys and values that a block reads"""

    def block(backward: bool) -> Kernel:
        return kernel(own, keys, False, backward)

    own_forward, own_backward = kernel(own, own, causal, False), kernel(own, own, causal, True)
    pick = (Memory(2.0 * seen, launches=2),) if causal else ()
    """the first half of the keys and values of every sample is copied together"""
    statistics = Memory(3.0 * sizes.statistics)
    merge = Memory(2.0 * sizes.output + 3.0 * (c - 1) * sizes.output, launches=c)
    """the first partial output is scaled, the others are scaled and added"""
    join = Memory(2.0 * sizes.key_value)
    """keys and values into one buffer"""
    forward = [CoreBlock((join, own_forward))]
    forward += [CoreBlock((*pick, block(False), statistics)) for _ in range(c - 1)]
    forward[-1] = CoreBlock((*forward[-1].kernels, merge))
    # backward goes round the other way and ends with the own block; gradients are added to those that have arrived
    backward = []
    for step in range(c):
        last = step == c - 1
        added = sizes.key_value if last else seen
        passes = 3.0 if step else 2.0
        kernels = (own_backward,) if last else (*pick, block(True))
        backward.append(
            CoreBlock(((join,) if not step else ()) + kernels, (Memory(passes * sizes.query), Memory(passes * added, launches=2)))
        )
    return SpreadCore(
        tuple(forward),
        tuple(backward),
        forward_temporary=c * (sizes.key_value + sizes.output + sizes.statistics),
        backward_temporary=4 * sizes.key_value + sizes.query + sizes.key_value,
    )


def _gathered(at: Workload, kernel: CoreKernel, sizes: CoreSizes, *, causal: bool) -> SpreadCore:
    c, own = at.context, at.sequence
    whole = c * sizes.key_value
    order = Memory(2.0 * whole, launches=2)
    """what was gathered rank by rank is put in the order of the sample"""
    chunks = ((own - own // 2, c * own // 2), (own // 2, (c + 1) * own // 2)) if causal else ((own, c * own),)
    """(queries, keys up to them) of the two middle chunks"""
    longest = max(keys for _, keys in chunks)
    added = math.fsum(Memory(3.0 * whole * keys / (c * own), launches=2).bytes for _, keys in chunks)
    return SpreadCore(
        (CoreBlock((order, *(kernel(queries, keys, causal, False) for queries, keys in chunks))),),
        (
            CoreBlock(
                (
                    order,
                    *(kernel(queries, keys, causal, True) for queries, keys in chunks),
                    Memory(added + float(whole), launches=2 * len(chunks) + 2),
                    order,
                )
            ),
        ),
        forward_temporary=whole,
        backward_temporary=2 * whole + sizes.query // len(chunks) + whole * longest // (c * own),
    )
