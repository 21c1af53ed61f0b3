"""What a scenario may not say yet. A value here is refused, never ignored.

What the schema knows and the simulator does not do: to make something supported, delete its row (or widen its values). And what an
import left to its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding
from parsim.parallel.schedules import LATER, NAMES


@dataclass(frozen=True, slots=True)
class Limit:
    """One key, what it may be so far, and what else would need."""

    path: str
    supported: Callable[[Any], bool]
    feature: str
    suggestion: str = ""


def _only(*values: Any) -> Callable[[Any], bool]:
    return lambda value: (
        any(type(value) is type(known) and value == known for known in values)
        or (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and value in [v for v in values if not isinstance(v, (bool, str))]
        )
    )


def _known_schedule(value: Any) -> bool:
    name = str(value).strip().lower().replace("_", "-")
    return name not in LATER


_LATER_PROFILES = ("pytorch-compile",)

LIMITS: tuple[Limit, ...] = (
    Limit("parallel.pipeline.schedule", _known_schedule, "this schedule", f"use {', '.join(NAMES)}, or give the order in a schedule file"),
    Limit(
        "parallel.expert.grouped_gemm",
        _only(True, "single"),
        "products of a rank's experts one after the other",
        "leave it out: one grouped product",
    ),
    Limit("report.ranks", _only("auto"), "the choice of ranks", "use auto"),
    Limit("cluster.collectives.algorithm", lambda value: not str(value).startswith("collnet"), "switches that reduce (SHARP)", "use auto"),
    Limit("software.profile", lambda value: value not in _LATER_PROFILES, "this profile", "use pytorch-2 with software.fusion: compiled"),
)


def unsupported(tree: Mapping[str, Any]) -> list[Finding]:
    """A finding for every written value whose feature is not built yet."""
    findings = []
    for limit in LIMITS:
        holder: Any = tree
        *sections, key = limit.path.split(".")
        for section in sections:
            holder = holder.get(section) if isinstance(holder, Mapping) else None
        if not isinstance(holder, Mapping) or key not in holder or limit.supported(holder[key]):
            continue
        findings.append(Finding(f"not supported yet: {limit.feature}", limit.path, holder[key], limit.suggestion))
    return findings


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
    "training.objective": "language-modelling, dpo, orpo, kto, reward, grpo ...",
    "training.finetune.base": "bf16 (nf4 with method: qlora)",
    "training.precision": "bf16, fp16, amp-bf16, fp32 ...",
    "parallel.data.strategy": "ddp, zero1, zero2, zero3, fsdp or hsdp",
}
"""key -> what belongs there"""


def unfilled(tree: Mapping[str, Any]) -> list[Finding]:
    """A finding for every value that is still to be filled in."""
    text = "must be filled in: the imported configuration does not state it"
    return [Finding(text, path, PLACEHOLDER, f"write {EXAMPLES.get(path, 'a value')}") for path in _holes(tree, "")]


def _holes(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        if value == PLACEHOLDER:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping):
            yield from _holes(value, f"{prefix}{key}.")
