"""``parsim size``: a target in, a purchase out.

Exit codes: 0 if a configuration meets the limits, 2 for a question that cannot be asked, 3 if none does, 130 if it was interrupted
(what was found is printed and kept).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.terminal import Debug, Json, Quiet, TrustCode, Workers, finishing, progress, say, say_json

if TYPE_CHECKING:
    from parsim.study.size.answer import BetterConfiguration
    from parsim.study.size.size import Answer

Several = list[str] | None


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(size)


def size(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help="A model, or a YAML file with the whole question under size:.")],
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole training, for example 2T.")] = None,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER,CLUSTER...", help="Machines to choose from (`parsim list topologies`).")
    ] = None,
    days: Annotated[float | None, typer.Option(help="Deadline [days].")] = None,
    hours: Annotated[float | None, typer.Option(help="Deadline [h].")] = None,
    budget: Annotated[str | None, typer.Option(help='At most this much money: "5M USD".')] = None,
    minimise: Annotated[
        str | None,
        typer.Option(
            "--minimise", "--minimize", help="cost | gpus | energy | time; default: cost, gpus without a price, time within a budget."
        ),
    ] = None,
    gpus: Annotated[
        Several, typer.Option(metavar="[NAME=]N,N...", help="Fixed numbers of GPUs instead of a search for the right number.")
    ] = None,
    max_gpus: Annotated[str | None, typer.Option(help="Largest number of GPUs to consider; default: 16384.")] = None,
    sequence: Annotated[str | None, typer.Option(help="Tokens per sample; default: the model's.")] = None,
    global_batch: Annotated[str | None, typer.Option(help='Samples per step, or "4M tokens"; default: published, or a rule.')] = None,
    micro_batch: Annotated[str | None, typer.Option(metavar="N,N...", help="Micro-batches to try; default: 1,2.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 | fp8 | ...; default: the software's.")] = None,
    software: Annotated[str | None, typer.Option(help="Software profile; default: megatron-core.")] = None,
    recompute: Annotated[str | None, typer.Option(help="auto | none | mlp | full; default: auto, every one of them.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Pipeline schedules to try: 1f1b,interleaved; default: 1f1b.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="auto | zero1 | fsdp; default: auto (ZeRO-1; FSDP only without tensor and pipeline parallelism).")
    ] = None,
    gpu_hour: Annotated[
        Several, typer.Option(metavar="[NAME=]PRICE", help="Rent of a GPU-hour; default: the dated example of the topology.")
    ] = None,
    buy: Annotated[Several, typer.Option(metavar="[NAME=]PRICE[/node]", help="Price of a GPU (or node) that is bought.")] = None,
    years: Annotated[float | None, typer.Option(help="Years until bought hardware is worth nothing; default: 4.")] = None,
    power_price: Annotated[str | None, typer.Option(help="Price of a kWh.")] = None,
    pue: Annotated[float | None, typer.Option(help="Power of the building over power of the machines; default: 1.2.")] = None,
    mtbf: Annotated[str | None, typer.Option(help="Mean time between failures of one GPU: 50000h; default: published.")] = None,
    checkpoint_time: Annotated[str | None, typer.Option(help="Time that training stops for one checkpoint, for example 60s.")] = None,
    restart_time: Annotated[str | None, typer.Option(help="Time from a failure until training continues; default: 5 min.")] = None,
    goodput: Annotated[float | None, typer.Option(help="Fixed goodput (useful time over all time); 1: no failures.")] = None,
    set_: Annotated[
        Several,
        typer.Option(
            "--set", metavar="KEY=VALUE,VALUE...", help="Scenario keys; several values are several machines: cluster.set.node.nics=1,8."
        ),
    ] = None,
    variability: Annotated[
        Several,
        typer.Option(metavar="[NAME=]PROFILE", help="Rank by steps with variability: typical | bad | ..., or a mapping; default: none."),
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Disturbed steps of each candidate; default: 11.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows of each machine; default: 3.")] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Simulate every candidate, also those excluded by bounds (slow).")
    ] = False,
    workers: Workers = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write size.html (a page to pass on), size.json, size.txt and figures there.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the scenario of each machine's best there, for `parsim run`.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Say which machines, how many and with which strategy train a model in time or within a budget."""
    from parsim.study.size.reading import named_values, set_values
    from parsim.study.size.size import size as answered

    flags: dict[str, Any] = {
        "tokens": tokens, "on": on, "days": days, "hours": hours, "budget": budget, "minimise": minimise, "gpus": named_values(gpus),
        "max_gpus": max_gpus, "sequence_length": sequence, "global_batch": global_batch, "micro_batch": micro_batch,
        "precision": precision, "software": software, "recompute": recompute, "schedule": schedule, "strategy": strategy,
        "gpu_hour": named_values(gpu_hour), "buy": named_values(buy), "years": years, "power_price": power_price, "pue": pue, "mtbf": mtbf,
        "checkpoint_time": checkpoint_time, "restart_time": restart_time, "goodput": goodput, "set": set_values(set_),
        "top": top, "variability": named_values(variability), "runs": runs, "exhaustive": exhaustive or None,
    }  # fmt: skip

    def better(one: BetterConfiguration) -> None:
        from parsim.study.size.text import improvement

        if not (as_json or quiet):
            say(improvement(one))

    for folder in (out, save):
        if folder is not None:
            from parsim.report.write import check_folder

            check_folder(folder)
    watch = partial(progress, "Sizing machines", quiet=quiet)
    answer = answered(model, trust_code=trust_code, workers=workers, watch=watch, improved=better, **flags)
    with finishing() as pressed:
        written = _write(answer, out, save)
        if as_json:
            from parsim.study.size.answer import document

            say_json(document(answer))
        else:
            from parsim.study.size.text import text

            columns = get_terminal_size().columns if sys.stdout.isatty() else None
            say(text(answer, columns) + "".join(f"\n\n{line}" for line in written))
    if answer.interrupted or pressed():
        raise typer.Exit(130)
    if not answer.ranked:
        raise typer.Exit(3)


def _write(answer: Answer, out: Path | None, save: Path | None) -> list[str]:
    """Write what was asked for, and say so."""
    from parsim.study.size.text import write_answer, write_scenarios

    said = []
    if out is not None:
        said.append(f"Wrote {out}{os.sep}: {', '.join(path.name for path in write_answer(answer, out))}")
    if save is not None and (paths := write_scenarios(answer, save)):
        names = ", ".join(path.name for path in paths)
        said.append(f"Wrote {save}{os.sep}: {names}; next: parsim run {paths[0]}, parsim export {paths[0]}")
    return said
