"""Copies between parameters, gradients and the flat tensors that a sharded strategy's collectives work on.

Bytes are read plus written, per element; g: a gathered weight and its gradient, s: a weight of the own share, r: a gradient on the wire,
N ranks. Streams: *compute* is the one that kernels of the model run on, *beside* one of the strategy's own.

==================  ==============================  ============================  =================================
when                FSDP1                           FSDP2                         DeepSpeed ZeRO-3
==================  ==============================  ============================  =================================
before a gather     cast (s + g) / N, beside        cast (s + g) / N and copy     copy 2 g / N, beside
                                                    2 g / N, beside
behind it           -                               2 g, compute                  2 g, beside
gradients complete  join 2 g, compute               join and cast g + r, compute  -
before a reduction  cast g + r, divide 2 r, beside  -                             copy 2 g, cast g + r, join 2 r,
                                                                                  divide 2 r, beside
behind it           divide 2 r / N, cast            cast (r + s) / N, beside      copy (r + s) / N, beside
                    (r + s) / N, beside
==================  ==============================  ============================  =================================

Casts happen where types differ. A later micro-batch's share is added to the first one's behind the reduction, 3 s / N.

FSDP1 (PyTorch, torch/distributed/fsdp): weights are views of one flat parameter, so that autograd joins their gradients (the backward of
``torch.split`` in _flat_param.py, _get_unflat_views); the shard is cast on the stream "pre_unshard" (_use_low_precision_shard) and gathered
in place; gradients are cast and divided on the stream "post_backward" (_runtime_utils.py, _post_backward_hook; the division by
_get_gradient_predivide_factor in algorithms/_comm_hooks/default_hooks.py, then _reduce_grad). FSDP2 (torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py): foreach_all_gather copies on the stream all_gather_copy_in, foreach_all_gather_copy_out (split_with_sizes_copy) and
foreach_reduce_scatter_copy_in (chunk_cat) on the current one; fp32 and bf16 are averaged by NCCL. DeepSpeed (runtime/zero):
partition_parameters.py, all_gather_coalesced and AllGatherCoalescedHandle.wait, on the all-gather stream
(partitioned_param_coordinator.py, fetch_sub_module); stage3.py, __add_grad_to_ipg_bucket and __avg_scatter_grads with
runtime/comm/coalesced_collectives.py, reduce_scatter_coalesced, on reduce_and_partition_stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parsim.kernel import Memory
from parsim.parallel.training import Precision

GATHERS, REDUCTIONS = "gathers", "reductions"
"""streams of the kernels around gathers and around reductions"""
Stack = Literal["fsdp1", "fsdp2", "zero3"]


@dataclass(frozen=True, slots=True)
class ShardedCopies:
    """The copies of one unit; see the module's table."""

    stack: Stack
    ranks: int
    """that share the unit (N)"""
    gathered: int
    """bytes of a gathered weight, and of the gradient that autograd makes of it (g)"""
    kept: int
    """bytes of a weight of the own share, and of its reduced gradient (s)"""
    reduce: int
    """bytes of a gradient on the wire (r)"""
    fp16: bool = False
    """fp16 gradients on the wire, which might overflow: FSDP2 divides them around the reduction, too"""

    def before_gather(self, share: int, stored: int, narrow: int = 0) -> list[Memory]:
        """Of the own share, beside compute: `share` elements of trained weights, `narrow` of them in fp8; `stored` bytes of others."""
        cast = self.kept != self.gathered and self.stack != "zero3"
        moved = [(self.kept + self.gathered) * (share - narrow)] if cast else []
        moved.append((self.kept + 1) * narrow)
        if self.stack != "fsdp1":
            moved.append(2 * (self.gathered * (share - narrow) + narrow + stored))
        return _kernels(moved)

    def behind_gather(self, size: int) -> list[Memory]:
        """Of `size` gathered bytes: out of the flat tensor into the parameters; FSDP1's parameters are views of it."""
        return [] if self.stack == "fsdp1" else _kernels([2 * size])

    @property
    def out_beside(self) -> bool:
        """Whether that happens beside compute."""
        return self.stack == "zero3"

    def join(self, count: int) -> list[Memory]:
        """Of `count` gradients, on the compute stream: into one flat tensor."""
        match self.stack:
            case "fsdp1":
                return _kernels([2 * self.gathered * count])
            case "fsdp2":
                return _kernels([(self.gathered + self.reduce) * count])
        return []

    def before_reduce(self, count: int) -> list[Memory]:
        """Of `count` gradients, beside compute."""
        cast = [(self.gathered + self.reduce) * count] if self.reduce != self.gathered else []
        divide = 2 * self.reduce * count
        match self.stack:
            case "fsdp1":
                return _kernels([*cast, divide] if self.divides_before else cast)
            case "fsdp2":
                return _kernels([divide] if self.fp16 else [])
        return _kernels([2 * self.gathered * count, *cast, 2 * self.reduce * count, divide])

    def behind_reduce(self, share: int, *, adds: bool) -> list[Memory]:
        """Of `share` reduced gradients, beside compute; `adds` to those of earlier micro-batches."""
        divides = self.divides_behind if self.stack == "fsdp1" else self.fp16 and self.stack == "fsdp2"
        divide = [2 * self.reduce * share] if divides else []
        if self.ranks == 1 and self.stack == "fsdp2":  # divided and copied instead of reduced (foreach_reduce)
            divide = [2 * self.reduce * share] * 2
        cast = [(self.reduce + self.kept) * share] if self.reduce != self.kept or (self.stack == "zero3" and not adds) else []
        return _kernels([*divide, *cast, *([3 * self.kept * share] if adds else [])])

    @property
    def divides_before(self) -> bool:
        """FSDP1 divides by about the root of N before the reduction ..."""
        return predivide_factor(self.ranks) > 1

    @property
    def divides_behind(self) -> bool:
        """... and by the rest behind it."""
        return self.ranks / predivide_factor(self.ranks) > 1


def bucket_copies(precision: Precision, count: int, *, copied: bool) -> list[Memory]:
    """What DeepSpeed's ZeRO-1 and 2 do to a bucket of `count` gradients before they reduce it.

    They are `copied` into the bucket already or now, divided by the replicas, and put together by destination (runtime/zero/
    stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_bucket); casts where types differ.
    """
    into = 0 if copied else 2 * precision.gradients * count
    cast = (precision.gradients + precision.reduce) * count if precision.gradients != precision.reduce else 0
    return _kernels([into, cast, 2 * precision.reduce * count, 2 * precision.reduce * count])


def predivide_factor(ranks: int) -> int:
    """FSDP1's gradient_predivide_factor: a power of two, doubled while it divides N and is less than N over itself.

    PyTorch, torch/distributed/algorithms/_comm_hooks/default_hooks.py, DefaultState._get_gradient_predivide_factor.
    """
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return factor


def _kernels(moved: list[int]) -> list[Memory]:
    """One kernel for each number of bytes, as a list."""
    return [Memory(float(size)) for size in moved if size]
