"""Values that an imported scenario leaves to its reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parsim.errors import Finding

PLACEHOLDER = "FILL-IN"
"""stands where the imported configuration says nothing"""
EXAMPLES = {
    "model": "a name of `parsim list models`, a Hub id that it knows, or the path of a config.json",
    "model.vocabulary": "rows of the word table, for example 50257",
    "cluster.topology": 'a name of `parsim list topologies`, or a box such as "8x a100-80gb"',
    "cluster.fabric.link": "the link between machines, for example ib-hdr or roce-100g",
    "training.sequence_length": "tokens per sample, for example 2048",
    "training.micro_batch": "samples per forward pass and GPU, for example 1",
    "training.global_batch": "samples per optimizer step, for example 256",
    "training.gradient_accumulation": "micro-batches per optimizer step, for example 1",
    "training.precision": "bf16, fp16, amp-bf16, fp32 ...",
    "parallel.data.strategy": "ddp, zero1, zero2, zero3, fsdp or hsdp",
}
"""key -> what belongs there"""


def unfilled(tree: Mapping[str, Any]) -> list[Finding]:
    """A finding for every value that is still to be filled in."""
    text = "is still to be filled in: the imported configuration does not say it"
    return [Finding(text, path, PLACEHOLDER, f"write {EXAMPLES.get(path, 'a value')}") for path in _holes(tree, "")]


def _holes(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        if value == PLACEHOLDER:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping):
            yield from _holes(value, f"{prefix}{key}.")
