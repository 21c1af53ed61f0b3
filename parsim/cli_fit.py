"""Options of `parsim fit --inference`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import say, say_json

Batch = Annotated[int | None, typer.Option(help="Inference: sequences (or samples) at once; default 1.")]
ContextLength = Annotated[
    int | None, typer.Option(help="Inference: tokens of each, prompt and answer; default: what the model was made for.")
]
PagedBlock = Annotated[int | None, typer.Option(help="Inference: tokens of a page of the key-value cache (vLLM: 16); default: no pages.")]
Beams = Annotated[int | None, typer.Option(help="Inference: beams of a beam search; each has a cache.")]
CacheType = Annotated[str | None, typer.Option("--kv-dtype", help="Inference: fp32, bf16, fp16, fp8 or int8; default: as the activations.")]
PrefillTokens = Annotated[int | None, typer.Option(help="Inference: prompt tokens in one forward pass; default: one whole context.")]


@dataclass(frozen=True)
class Common:
    """What both kinds of questions have."""

    model: str
    on: str
    tensor: int
    precision: str | None


@dataclass(frozen=True)
class Decoding:
    """The options that only inference has; None: not written."""

    batch: int | None
    context_length: int | None
    paged_block: int | None
    beams: int | None
    kv_dtype: str | None
    prefill_tokens: int | None

    def written(self) -> dict[str, Any]:
        """Those that were."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def refuse(self) -> None:
        """Training has none of them."""
        hints = {"batch": "use --mbs for training, or add --inference", "context_length": "use --seq for training, or add --inference"}
        findings = [
            Finding("an option of inference", f"--{name.replace('_', '-')}", value, hints.get(name, "add --inference"))
            for name, value in self.written().items()
        ]
        if findings:
            raise ScenarioError(findings)


def infer(common: Common, decoding: Decoding, others: Mapping[str, Any], *, maximum: str | None, explain: bool, as_json: bool) -> int:
    """Answer, and return the exit code; `others` are options of training that must not be there."""
    from parsim.study.inference import Question, fit
    from parsim.study.inference_text import document, text

    hints = {"--mbs": "use --batch", "--seq": "use --context-length", "--pp": "use --tp"}
    findings = [
        Finding("an option of training", option, str(value), hints.get(option, "leave it out of a question about inference"))
        for option, value in others.items()
        if value is not None
    ]
    if findings:
        raise ScenarioError(findings)
    question = Question(common.model, common.on, tensor=common.tensor, precision=common.precision, **decoding.written())
    answer = fit(question, maximum=None if maximum is None else maximum.replace("_", "-"))
    say_json(document(answer)) if as_json else say(text(answer, explain=explain))
    return 0 if answer.fits else 3
