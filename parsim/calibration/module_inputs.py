"""Example inputs of a module: written on the command line, and made larger by samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from parsim.errors import Finding, ScenarioError

_WORD = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_]*)=)?([0-9]+(?:x[0-9]+)*)(?::([a-z0-9]+))?")
_TYPES = {
    "fp32": "float32", "float32": "float32", "fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "int64": "int64", "int32": "int32", "long": "int64", "bool": "bool",
}  # fmt: skip


def written_inputs(torch: Any, words: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors of ``2x3x224x224:fp32`` (positional) and ``labels=2x128:int64`` (named); the type is fp32 where it is left out.

    Errors: ScenarioError for every word that is none.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    findings = []
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None or (match[3] or "fp32") not in _TYPES or len(match[2]) > 100:
            hint = "write 2x128:int64 or labels=2x128:int64; types: fp32, fp16, bf16, int64, int32, bool"
            findings.append(Finding(f"{word!r} is no input", "--inputs", word, hint))
            continue
        shape = tuple(map(int, match[2].split("x")))
        tensor = torch.zeros(shape, dtype=getattr(torch, _TYPES[match[3] or "fp32"]), device="meta")
        if match[1]:
            named[match[1]] = tensor
        else:
            positional.append(tensor)
    if findings:
        raise ScenarioError(findings)
    return tuple(positional), named


def stretched(torch: Any, given: tuple[tuple[Any, ...], dict[str, Any]], batch: int, to: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs with `to` samples where they have `batch`: tensors whose first size is the batch."""

    def stretch(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == batch:
            return torch.zeros((to, *value.shape[1:]), dtype=value.dtype, device="meta")
        if isinstance(value, tuple | list):
            return type(value)(map(stretch, value))
        return {key: stretch(item) for key, item in value.items()} if isinstance(value, dict) else value

    return tuple(map(stretch, given[0])), {name: stretch(value) for name, value in given[1].items()}
