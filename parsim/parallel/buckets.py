"""Gradient buckets: PyTorch's rule and DeepSpeed's rule, from the model's parameter order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.parallel.hooks import Weight

MIB = 2**20
DDP_BUCKET = 25 * MIB
DDP_FIRST_BUCKET = MIB
DEEPSPEED_BUCKET = 500_000_000
"""elements (reduce_bucket_size, allgather_bucket_size)"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Weights whose gradients travel together."""

    index: int
    weights: tuple[Weight, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return sum(weight.count for weight in self.weights)


class BucketArrivals:
    """Which buckets have all their gradients. They are reduced in their order: one that is complete early waits for those before it."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._bucket_of = {weight.name: bucket.index for bucket in buckets for weight in bucket.weights}
        self._begin()

    def _begin(self) -> None:
        self._missing = [len(bucket.weights) for bucket in self._buckets]
        self._next = 0

    def complete(self, weights: Sequence[Weight]) -> list[Bucket]:
        """The buckets that can be reduced once the gradients of these weights are there, too; behind the last one all begins anew."""
        for weight in weights:
            if (index := self._bucket_of.get(weight.name)) is not None:
                self._missing[index] -= 1
        first = self._next
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._next += 1
        ready = list(self._buckets[first : self._next])
        if self._next == len(self._buckets):
            self._begin()
        return ready


def ddp_buckets(weights: Sequence[Weight], element: int, cap: float = DDP_BUCKET, first: float = DDP_FIRST_BUCKET) -> list[Bucket]:
    """PyTorch's `compute_bucket_assignment_by_size` over the gradients' arrival order (reverse registration).

    A bucket is closed as soon as its size reaches the cap; the first bucket has its own, smaller cap so that the
    first all-reduce starts early. `element` is bytes per gradient element; caps in bytes.
    """
    return _fill(list(reversed(weights)), [first, cap], element)


def element_buckets(weights: Sequence[Weight], cap: float = DEEPSPEED_BUCKET) -> list[Bucket]:
    """DeepSpeed's reduce buckets: gradients in arrival order; a gradient that would overflow the bucket starts the next."""
    buckets: list[Bucket] = []
    held: list[Weight] = []
    count = 0
    for weight in reversed(weights):
        if held and count + weight.count > cap:
            buckets.append(Bucket(len(buckets), tuple(held)))
            held, count = [], 0
        held.append(weight)
        count += weight.count
    if held:
        buckets.append(Bucket(len(buckets), tuple(held)))
    return buckets


def megatron_buckets(weights: Sequence[Weight], ranks: int) -> list[Bucket]:
    """Megatron-LM's rule (param_and_grad_buffer.py): append in arrival order, close at so many elements."""
    return _fill(list(reversed(weights)), [megatron_bucket(ranks)], 1)


def megatron_bucket(ranks: int) -> float:
    """Elements at which Megatron-LM closes a bucket among `ranks` data-parallel ones."""
    return max(40e6, 1e6 * ranks)


def _fill(arriving: Sequence[Weight], caps: Sequence[float], element: int) -> list[Bucket]:
    buckets: list[Bucket] = []
    held: list[Weight] = []
    size = 0
    for weight in arriving:
        held.append(weight)
        size += weight.count * element
        if size >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(Bucket(len(buckets), tuple(held)))
            held, size = [], 0
    if held:
        buckets.append(Bucket(len(buckets), tuple(held)))
    return buckets
