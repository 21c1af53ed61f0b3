"""The answer of `fit --inference` as text and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from parsim.study.inference import InferenceAnswer, InferenceMemory, LargestThatFits
from parsim.units import format_bytes, format_time

_WIDTH = 48
_PARTS = (
    ("weights", "P", "weights"),
    ("cache", "K", "key-value cache"),
    ("working_set", "A", "working set"),
    ("workspace", "W", "workspace"),
    ("context", "C", "CUDA context"),
    ("communicators", "N", "communicators"),
)
"""field, letter in the bar, name"""


def text(answer: InferenceAnswer, *, explain: bool = False) -> str:
    """The whole answer."""
    lines = [*_verdict(answer), "", *_bar(answer), "", *_facts(answer)]
    if answer.maximum is not None:
        lines += ["", *_maximum(answer.maximum)]
    if not answer.fits:
        lines += ["", *_alternatives(answer)]
    if explain:
        lines += ["", "how these numbers come about", *(f"  {name:<16} {formula}" for name, formula in formulas(answer))]
    return "\n".join(lines)


def document(answer: InferenceAnswer) -> dict[str, Any]:
    """The answer as one JSON document; bytes are per GPU."""
    decode, maximum = answer.decode, answer.maximum
    return {
        "parsim": 1,
        "fits": answer.fits,
        "inference": asdict(answer.question),
        "capacity_bytes": answer.capacity,
        "need_bytes": answer.memory.total,
        "memory": {**asdict(answer.memory), "working_set": answer.memory.working_set},
        "cache_bytes_per_token": answer.bytes_per_token,
        "state_bytes_per_sequence": answer.state_bytes,
        "decode": None
        if decode is None
        else {
            "step_time_floor_s": decode.seconds,
            "tokens_per_s_at_most": answer.tokens_per_s,
            "weight_bytes_read": decode.weight_bytes,
            "cache_bytes_read": decode.cache_bytes,
        },
        "replicas": answer.replicas,
        "maximum": None if maximum is None else asdict(maximum),
        "alternatives": [{"change": change, "need_bytes": need} for change, need in answer.alternatives],
    }


def formulas(answer: InferenceAnswer) -> Iterator[tuple[str, str]]:
    """(name, formula with this question's numbers) of every part."""
    asked, memory = answer.question, answer.memory
    yield "weights", f"{answer.parameters:,} parameters over {asked.tensor} tensor-parallel GPUs = {format_bytes(memory.weights)}"
    if answer.decode is None:
        yield "working set", f"peak of one forward pass without gradients or loss, input included = {format_bytes(memory.layer)}"
    else:
        sequences = f"{asked.batch} sequences" + (f" x {asked.beams} beams" if asked.beams > 1 else "")
        pages = f" in pages of {asked.paged_block}" if asked.paged_block > 1 else ""
        token = f"{answer.bytes_per_token:,} B/token (layers x key-value heads x head size x 2 x type, per GPU)"
        tokens = f"{token} x {asked.context_length:,} tokens{pages}"
        if answer.state_bytes:  # linear attention
            state = f"{answer.state_bytes:,} B of state"
            tokens = f"({tokens} + {state})" if answer.bytes_per_token else state
        yield "key-value cache", f"{tokens} x {sequences} = {format_bytes(memory.cache)}"
        prefill = f"{asked.prefill_tokens or asked.context_length:,} prompt tokens at once"
        yield "working set", f"max(one layer at {prefill} {format_bytes(memory.layer)}, logits {format_bytes(memory.logits)})"
        read = f"({format_bytes(round(answer.decode.weight_bytes))} of weights + {format_bytes(answer.decode.cache_bytes)} of cache)"
        yield "decode floor", f"{read} / {answer.decode.bandwidth / 1e12:.3g} TB/s; launches, communication and arithmetic come on top"
    yield "fits", f"the sum, {format_bytes(memory.total)} <= {format_bytes(answer.capacity)}, what the driver reports"


def _verdict(answer: InferenceAnswer) -> Iterator[str]:
    asked = answer.question
    word = "yes" if answer.fits else "no"
    what = f"{asked.batch} {'sequence' if answer.decode else 'sample'}{'s' * (asked.batch != 1)}"
    length = f" of {asked.context_length:,} tokens" if (asked.context_length or 1) > 1 else ""
    need = format_bytes(answer.memory.total, decimal=True)
    yield f"{word}: {asked.model} on {asked.on}, {what}{length}, needs {need} of {format_bytes(answer.capacity)} per GPU"
    split = f"{asked.tensor} tensor-parallel GPUs per copy" if asked.tensor > 1 else "one GPU per copy"
    yield f"{asked.precision} weights, {split}; {answer.replicas} cop{'ies' if answer.replicas != 1 else 'y'} on this machine"


def _bar(answer: InferenceAnswer) -> Iterator[str]:
    sizes = _sizes(answer.memory)
    scale = max(answer.capacity, answer.memory.total) / _WIDTH
    bar, passed = "", 0.0
    for name, letter, _ in _PARTS:
        passed += sizes[name]
        bar += letter * (round(passed / scale) - len(bar))
    edge = round(answer.capacity / scale)
    bar = bar.ljust(_WIDTH, "·")
    yield f"  [{bar[:edge]}]{bar[edge:].rstrip('·')}  {format_bytes(answer.memory.total)}"
    shown = ", ".join(f"{letter} {words}" for name, letter, words in _PARTS if sizes[name] > scale / 2)
    yield f"  {shown}; ] = capacity {format_bytes(answer.capacity)}"


def _sizes(memory: InferenceMemory) -> dict[str, int]:
    return {**asdict(memory), "working_set": memory.working_set}


def _facts(answer: InferenceAnswer) -> Iterator[str]:
    sizes = _sizes(answer.memory)
    for name, _, words in _PARTS:
        if sizes[name]:
            yield f"{words:<17} {format_bytes(sizes[name])}"
    if answer.decode is None:
        yield f"{'outputs':<17} {format_bytes(answer.memory.outputs)} after the pass"
        return
    rate = f"at most {answer.tokens_per_s:,.0f} tokens/s per copy"
    yield f"{'decode floor':<17} {format_time(answer.decode.seconds)} per token and sequence: {rate}"


def _maximum(maximum: LargestThatFits) -> Iterator[str]:
    yield f"largest {maximum.what}: {maximum.value:,} ({format_bytes(maximum.bytes)})"
    if maximum.next_bytes is not None:
        yield f"  {maximum.value + 1:,} does not fit ({format_bytes(maximum.next_bytes)})"
    else:
        yield f"  {maximum.value + 1:,}: {maximum.limit}"


def _alternatives(answer: InferenceAnswer) -> Iterator[str]:
    if not answer.alternatives:
        yield "none of the changes tried fits; larger or more tensor-parallel GPUs are needed"
        return
    yield "what would fit"
    for change, need in answer.alternatives:
        yield f"  {change:<52} {format_bytes(need):>10}"
