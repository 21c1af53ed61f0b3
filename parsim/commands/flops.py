"""Commands that count: where a model's FLOP are, and what share of the peak a run reaches."""

from __future__ import annotations

from typing import Annotated

import typer

from parsim.terminal import Debug, Json, say, say_json

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, or a path to its YAML or config.json.")]
Sequence = Annotated[
    int | None, typer.Option(min=1, max=2**30, help="Tokens per sample; default: 2048, or what the model has positions for.")
]
Tokens = Annotated[str | None, typer.Option(help="Tokens of the whole training, for example 2T: how long does it take?")]
Dtype = Annotated[str | None, typer.Option(help="bf16 | fp16 | tf32 | fp32 | fp8; default: bf16, or fp16 on a GPU without it.")]


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command()(flops)
    app.command()(mfu)


def flops(
    model: Model,
    sequence: Sequence = None,
    micro_batch: Annotated[int, typer.Option(min=1, max=2**30, help="Samples of one forward pass.")] = 1,
    training: Annotated[bool, typer.Option("--training/--forward", help="Forward and backward, or the forward pass alone.")] = True,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show which operations are compute-bound on this GPU (`parsim list devices`).")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=2**30, help="How many of them train; default: 1.")] = None,
    tokens: Tokens = None,
    mfu: Annotated[str | None, typer.Option(help="Model FLOP utilisation of the training, 0.4 or 40%; default: 0.4.")] = None,
    convention: Annotated[str | None, typer.Option(help="What the MFU counts: palm | 6n | megatron | exact | ...; default: palm.")] = None,
    dtype: Dtype = None,
    fused: Annotated[
        bool, typer.Option("--fused", help="Count the bytes of fused norms and activations instead of eager PyTorch's.")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="By module, as DeepSpeed's flops profiler; with --gpu also the time.")] = False,
    depth: Annotated[int | None, typer.Option(min=0, max=100, help="Levels of the tree; default: all.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Count a model's FLOP and bytes by part, under every convention."""
    from parsim.study.flops import FlopsQuestion, document, text
    from parsim.study.flops import flops as count

    answer = count(FlopsQuestion(model, sequence, micro_batch, training, gpu, gpus, tokens, mfu, convention, dtype, fused, tree, depth))
    say_json(document(answer)) if as_json else say(text(answer))


def mfu(
    model: Model,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="The GPU (`parsim list devices`).")],
    gpus: Annotated[int, typer.Option(min=1, max=2**30, help="How many of them.")] = 1,
    tokens_per_s: Annotated[float | None, typer.Option(help="How fast the whole job is [tokens/s].")] = None,
    samples_per_s: Annotated[float | None, typer.Option(help="The same [samples/s].")] = None,
    step_time: Annotated[
        str | None, typer.Option(help="The same: time of one optimizer step, for example 24.8s; with --global-batch.")
    ] = None,
    global_batch: Annotated[str | None, typer.Option(help='Samples of one step, whole job; "4M tokens" is legal.')] = None,
    tflops: Annotated[float | None, typer.Option(help="The same: what a log prints per GPU [TFLOP/s].")] = None,
    sequence: Sequence = None,
    recompute: Annotated[str, typer.Option(help="none | selective (attention cores) | full (every layer)")] = "none",
    dtype: Dtype = None,
    tokens: Tokens = None,
    claimed: Annotated[str | None, typer.Option(help="An MFU claimed for this run: shows which FLOP convention and peak give it.")] = None,
    paper_tokens_per_s: Annotated[float | None, typer.Option(help="Speed of a published run per GPU [tokens/s], to compare with.")] = None,
    paper_mfu: Annotated[str | None, typer.Option(help="The MFU that this run reported.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what share of the peak a run reaches, under every convention, beside published runs."""
    from parsim.study.mfu import MfuQuestion, document
    from parsim.study.mfu import mfu as count
    from parsim.study.mfu_text import text

    question = MfuQuestion(
        model, gpu, gpus, tokens_per_s, samples_per_s, step_time, global_batch, tflops, sequence, recompute, dtype, tokens, claimed,
        paper_tokens_per_s, paper_mfu,
    )  # fmt: skip
    answer = count(question)
    say_json(document(answer)) if as_json else say(text(answer))
