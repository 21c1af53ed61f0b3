"""The attention core of one rank under PyTorch's ``context_parallel`` (torch/distributed/tensor/experimental/_attention.py).

Keys and values of the others come in one gather, or go round a ring; either way a rank computes block by block, with the chunks of
`parsim.model.context`. Partial outputs are merged in fp32 (``_SDPAMerger``), and gradients summed in fp32, in which those of keys and
values go round (``_templated_ring_attention_backward``, convert_to_f32). Bytes of an element of the output, of queries or of keys and
values in 16 bit; statistics S are 4 B a row and head:

=======================================================  =======================================  ==========================
what                                                    kernel by kernel                         compiled
=======================================================  =======================================  ==========================
merge: cast; difference, its product with the weight,    6; 12, 8, 12; 14 S                       10; 5 S
subtracted; weight and new statistics
the first partial output                                 6, a cast                                -2, read in 16 bit
the result                                               6, a cast                                -2, written in 16 bit
gradients of queries: zeros, each added, a cast          4, 10 c, 6                               2 c + 2
of keys and values, own block: zeros, added, joined      4, 10, 8                                 6
every further one: half of them added, joined twice      5 + 8 + 8                                9
back home                                                6, a cast                                6, a cast
keys and values: made contiguous; joined before a send   4; 4                                     4; 4
=======================================================  =======================================  ==========================

torchtitan compiles whole layers (fullgraph=True), attention with them: Inductor makes one kernel of what stands between two blocks. Halves
of keys are views. The blocks themselves are those of scaled_dot_product_attention, FlashAttention-2: torchtitan allows it and the
memory-efficient kernel beside ``context_parallel`` only.
"""

from __future__ import annotations

from parsim.kernel import Memory
from parsim.model.context_blocks import CoreBlock, CoreKernel, CoreSizes, SpreadCore
from parsim.model.workload import Workload

WIDE = 4
"""bytes of an element of sums"""


def torch_ring(at: Workload, kernel: CoreKernel, sizes: CoreSizes, *, causal: bool) -> SpreadCore:
    """The last rank's, whose blocks behind its own all have the first half of the keys (`_is_causal_behavior`)."""
    c, own, e = at.context, at.sequence, at.element
    keys = own // 2 if causal else own
    part = keys / own
    queries, key_values, output = sizes.query // e, sizes.key_value // e, sizes.output // e
    contiguous, joined = Memory(2.0 * sizes.key_value, launches=2), Memory(2.0 * sizes.key_value)
    gathers = at.context_method == "all-gather"
    if at.compiled:
        merges = [_merged(output, sizes.statistics, e, first=step == 1, last=step == c - 1) for step in range(1, c)]
        cast: tuple[Memory, ...] = ()
        result: tuple[Memory, ...] = ()
        begin: tuple[Memory, ...] = ()
        summed = [Memory(float((e + WIDE) * key_values)), *[Memory((2 * WIDE + e * part) * key_values)] * (c - 1)]
        ended = (Memory(float((c + 1) * e * queries)), Memory(float((WIDE + e) * key_values)))
    else:
        cast, result = (Memory(float((e + WIDE) * output)),), (Memory(float((WIDE + e) * output)),)
        once = (e + WIDE) + 3 * WIDE + 2 * WIDE + 3 * WIDE
        merges = [Memory(float(once * output + 14 * sizes.statistics), launches=9)] * (c - 1)
        begin = (Memory(float(WIDE * (queries + key_values)), launches=3),)
        added, pass_, dq = 2 * WIDE + e, 2 * WIDE, (2 * WIDE + e) * queries
        summed = [Memory(float((added + pass_) * key_values + dq), launches=4)]
        summed += [Memory((added * part + 2 * pass_) * key_values + dq, launches=6)] * (c - 1)
        ended = (Memory(float((WIDE + e) * queries)), Memory(float((WIDE + e) * key_values)))
    sends = () if gathers and at.compiled else (joined,)  # what is never sent is not joined
    forward = [CoreBlock((contiguous, joined, kernel(own, own, causal, False), *cast))]
    forward += [CoreBlock((*(sends if step < c - 1 else ()), kernel(own, keys, False, False), merges[step - 1])) for step in range(1, c)]
    forward[-1] = CoreBlock((*forward[-1].kernels, *result))
    backward = [CoreBlock((*begin, contiguous, joined, kernel(own, own, causal, True)), (summed[0],))]
    backward += [CoreBlock((*(sends if step < c - 1 else ()), kernel(own, keys, False, True)), (summed[step],)) for step in range(1, c)]
    backward.append(CoreBlock((), ended))
    kept = (2 + (c if gathers else 1)) * sizes.key_value
    merging = (WIDE + e + WIDE) if at.compiled else (e + 4 * WIDE)
    sums = (c * e if at.compiled else WIDE + e) * queries + (3 * WIDE + e) * key_values
    return SpreadCore(tuple(forward), tuple(backward), kept + merging * output, kept + sums)


def _merged(output: int, statistics: int, element: int, *, first: bool, last: bool) -> Memory:
    """Both outputs and statistics read, one of each written: partial outputs and the last sum in 16 bit, sums between in 32."""
    moved = (element if first else WIDE) + element + (element if last else WIDE)
    return Memory(float(moved * output + 5 * statistics), launches=2)
