"""The command `parsim fit`: of training, and with `--inference` of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Quiet, busy, say, say_json

if TYPE_CHECKING:
    from parsim.study.fit import Alternative, FitAnswer

Batch = Annotated[int | None, typer.Option(help="Inference: sequences (or samples) at once; default 1.")]
ContextLength = Annotated[int | None, typer.Option(help="Inference: tokens per sequence, prompt and answer; default: the model's maximum.")]
PagedBlock = Annotated[int | None, typer.Option(help="Inference: tokens of a page of the key-value cache (vLLM: 16); default: no pages.")]
Beams = Annotated[int | None, typer.Option(help="Inference: beams of a beam search; each has a cache.")]
CacheType = Annotated[str | None, typer.Option("--kv-dtype", help="Inference: fp32, bf16, fp16, fp8 or int8; default: as the activations.")]
PrefillTokens = Annotated[int | None, typer.Option(help="Inference: prompt tokens in one forward pass; default: one whole context.")]


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(fit)


def fit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, or a path to its YAML or config.json.")],
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help='"4x v100-32gb", or a topology (`parsim list topologies`).')],
    train: Annotated[str, typer.Option(help="full | lora | qlora | freeze")] = "full",
    strategy: Annotated[
        str | None, typer.Option(help="ddp | zero1 | zero2 | zero3 | fsdp; default: zero3 on several GPUs, with --ep fsdp.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline-parallel size.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks over which the experts of a mixture are spread.")] = 1,
    etp: Annotated[int | None, typer.Option(help="Ranks that share the width of an expert; default: what the stack does.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many machines; default: as many as --gpus needs.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs; default: those of the machines.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens per sample; default: the model's own.")] = None,
    micro_batch: Annotated[int, typer.Option(help="Samples per forward pass of one replica.")] = 1,
    precision: Annotated[str | None, typer.Option(help="A precision preset, for example bf16 or pure-bf16.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, adam-8bit, adafactor, lion, momentum, sgd")] = None,
    recompute: Annotated[str | None, typer.Option(help="none | full | selective")] = None,
    offload: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="To the host: optimizer, parameters, activations or all, with commas; optimizer:nvme for drives."
        ),
    ] = None,
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each machine's CPUs, for example 512GiB.")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Inference instead of training.")] = False,
    batch: Batch = None,
    context_length: ContextLength = None,
    paged_block: PagedBlock = None,
    beams: Beams = None,
    kv_dtype: CacheType = None,
    prefill_tokens: PrefillTokens = None,
    maximum: Annotated[
        str | None,
        typer.Option("--max", metavar="WHAT", help="micro_batch, sequence_length or parameters; of inference batch or context-length."),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the scenario, to continue with `parsim run`.")] = None,
    explain_: Annotated[bool, typer.Option("--explain", help="Show how each number is computed.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Exit with 0 also if it does not fit in memory.")] = False,
    debug: Debug = False,
) -> None:
    """Say whether a model fits, what fills the memory, and what would help."""
    decoding = Decoding(batch, context_length, paged_block, beams, kv_dtype, prefill_tokens)
    if inference:
        others = {
            "--strategy": strategy,
            "--optimizer": optimizer,
            "--recompute": recompute,
            "--offload": offload,
            "--save": save,
            "--sequence": sequence,
        }
        others |= {
            "--host-memory": host_memory,
            "--pp": None if pp == 1 else pp,
            "--micro-batch": None if micro_batch == 1 else micro_batch,
        }
        others |= {"--ep": None if ep == 1 else ep, "--etp": etp}
        others |= {"--nodes": None if nodes == 1 else nodes, "--gpus": gpus, "--train": None if train == "full" else train}
        common = Common(model, on, tp, precision)
        code = infer(common, decoding, others, maximum=maximum, explain=explain_, as_json=as_json)
        if code and not allow_oom:
            raise typer.Exit(code)
        return
    decoding.refuse()

    from parsim.study.fit import check_maximum, find_maximum, verdict
    from parsim.study.fit_question import FitQuestion
    from parsim.study.fit_text import explanation, yaml
    from parsim.study.fit_text import maximum as largest_text
    from parsim.study.fit_text import verdict as verdict_text

    question = FitQuestion(
        model, on, train, None, tp, pp, nodes, sequence, micro_batch, precision, optimizer, recompute, offload, host_memory, ep, etp, gpus,
        strategy,
    )  # fmt: skip
    if maximum is not None:
        check_maximum(maximum)
    with busy("Simulating one step", quiet=quiet):
        answer = verdict(question)
    if save is not None:
        from parsim.report.write import write_new

        write_new(save, yaml(answer))
    tell = (lambda _: None) if as_json else say
    tell(verdict_text(answer))
    if maximum is not None:
        with busy("Looking for the largest", quiet=quiet):
            answer = replace(answer, maximum=(largest := find_maximum(answer.tree, maximum)))
        tell(f"\n{largest_text(largest)}")
    if not answer.fits or as_json:
        _alternatives(answer, as_json=as_json, quiet=quiet)
    if explain_:
        tell(f"\n{explanation(answer)}")
    if save is not None:
        tell(f"Wrote {save}. Next: parsim run {save}")
    if not answer.fits and not allow_oom:
        raise typer.Exit(3)


def _alternatives(answer: FitAnswer, *, as_json: bool, quiet: bool) -> None:
    """What would fit, each as it is found; as JSON one document at the end, of what was found also where the user interrupts."""
    from parsim.study.fit import find_alternatives
    from parsim.study.fit_text import HEAD, NONE, alternative_line, document

    found: list[Alternative] = []
    refused: list[str] = []

    def whole(*, complete: bool) -> dict[str, Any]:
        return document(replace(answer, alternatives=tuple(found), refused=tuple(refused), complete=complete))

    try:
        several = find_alternatives(answer, refused)
        while (alternative := _next(several, quiet=quiet)) is not None:
            found.append(alternative)
            if not as_json:
                say(alternative_line(alternative) if len(found) > 1 else f"\n{HEAD}\n{alternative_line(alternative)}")
    except KeyboardInterrupt:
        if as_json:
            say_json(whole(complete=False))
        raise
    if as_json:
        say_json(whole(complete=True))
    elif not found:
        say(f"\n{NONE}")


def _next(alternatives: Iterator[Alternative], *, quiet: bool) -> Alternative | None:
    with busy("Looking for what would fit", quiet=quiet):
        return next(alternatives, None)


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
        hints = {
            "batch": "use --micro-batch for training, or add --inference",
            "context_length": "use --sequence for training, or add --inference",
        }
        findings = [
            Finding("an option of inference", f"--{name.replace('_', '-')}", value, hints.get(name, "add --inference"))
            for name, value in self.written().items()
        ]
        if findings:
            raise ScenarioError(findings)


def infer(common: Common, decoding: Decoding, others: Mapping[str, Any], *, maximum: str | None, explain: bool, as_json: bool) -> int:
    """Answer, and return the exit code; `others` are options of training that must not be there."""
    from parsim.scenario.shortforms import box
    from parsim.scenario.sold import one_machine, oversold
    from parsim.study.inference import InferenceQuestion
    from parsim.study.inference import fit as answer_to
    from parsim.study.inference_text import document, text

    machine = box(common.on)
    if machine is not None and (large := oversold(machine, None)) is not None:
        raise ScenarioError(Finding(large.message, "--on", common.on, f"one machine: {one_machine(machine, None)}"))
    hints = {"--micro-batch": "use --batch", "--sequence": "use --context-length", "--pp": "use --tp"}
    findings = [
        Finding("an option of training", option, str(value), hints.get(option, "leave it out of a question about inference"))
        for option, value in others.items()
        if value is not None
    ]
    if findings:
        raise ScenarioError(findings)
    question = InferenceQuestion(common.model, common.on, tensor=common.tensor, precision=common.precision, **decoding.written())
    answer = answer_to(question, maximum=None if maximum is None else maximum.replace("_", "-"))
    say_json(document(answer)) if as_json else say(text(answer, explain=explain))
    return 0 if answer.fits else 3
