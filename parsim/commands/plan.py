"""The command `parsim plan`: the fastest parallel strategy for a model on a cluster.

Exit codes: 0 if a strategy fits, 2 for a question that cannot be asked, 3 if none fits, 130 if it was interrupted (what was found is
printed and kept).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Quiet, Workers, busy, finishing, progress, remark, say, say_json

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario
    from parsim.study.best_strategy import FasterStrategy
    from parsim.study.size.question import Assumed

OUT = Path("parsim-out")


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(plan)


def plan(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|FILE", help="A model; or, without --on, a scenario whose strategy is searched for.")
    ],
    on: Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="A topology (`parsim list topologies`), or a box.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs; default: those of the machines.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many machines; default: as many as --gpus needs.")] = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens per sample; default: the model's.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples per step; default: a published batch, or a rule by model size.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 | fp8 | ...; default: the software's.")] = None,
    software: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="The software stack (`parsim list software`); default: megatron-core.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole training, for example 1T; adds its days and cost.")] = None,
    headroom: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to keep free on each GPU; default: 4 GiB.")] = None,
    within: Annotated[str | None, typer.Option(metavar="TIME", help="Time limit of the search, for example 60s.")] = None,
    workers: Workers = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files here instead of parsim-out/plan-<model>.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the fastest parallel strategy, and write the scenario and the launch arguments of it."""
    from parsim import units
    from parsim.study.best_strategy import HEADROOM, StrategyQuestion, nearby, scenario_of, search
    from parsim.study.best_strategy_text import answer, document, improvement, question_text, write

    numbers: dict[str, float | None] = {}
    no_assumptions: tuple[Assumed, ...] = ()
    for option, value, dimension in (("--tokens", tokens, "count"), ("--within", within, "time")):
        try:
            numbers[option] = None if value is None else units.parse(value, dimension)
        except ValueError as error:
            raise ScenarioError(Finding(str(error), option, value)) from None
    if on is None:
        given = {"--gpus": gpus, "--nodes": nodes, "--sequence": sequence, "--global-batch": global_batch, "--precision": precision}
        given |= {"--tokens": tokens, "--headroom": headroom}
        asked, base, assumed = None, _scenario(model, given), no_assumptions
        base = base if software is None else base.with_overrides(f"software.profile={software}")
    else:
        words = (sequence, global_batch, precision, numbers["--tokens"], headroom or HEADROOM, software or "auto")
        asked = StrategyQuestion(model, on, gpus, nodes, *words)
        base, assumed = scenario_of(asked)
    directory = out if out is not None else None if as_json else OUT / f"plan-{Path(model).stem}"
    if directory is not None:
        from parsim.report.write import check_folder

        check_folder(directory)
    tell = (lambda _: None) if as_json or quiet else say
    tell(question_text(base, assumed))

    def better(one: FasterStrategy) -> None:
        tell(improvement(one))

    found = search(
        base,
        within=numbers["--within"],
        workers=workers,
        watch=lambda doing, results, total: progress(doing, results, total, quiet=quiet, remark=None),
        improved=better,
    )
    if asked is not None and not found.interrupted:
        with busy("Looking at other numbers of GPUs", quiet=quiet):
            found.nearby = nearby(asked, found, workers=workers)
    with finishing() as pressed:
        written = [] if directory is None or found.best is None else write(found, directory)
        if as_json:
            say_json(document(found, assumed))
        else:
            say(answer(found))
            if written:
                say(f"\nWrote {directory}{os.sep}: {', '.join(written)}")
    if found.interrupted or pressed():
        raise typer.Exit(130)
    if found.best is None:
        raise typer.Exit(3)


def found_first(scenario: Scenario, *, workers: int | None, quiet: bool) -> Scenario:
    """The scenario with the strategy that is searched for first (``parallel: auto``); what is found on the way is said on stderr."""
    from parsim.study.automatic import decided
    from parsim.study.best_strategy_text import improvement

    def better(one: FasterStrategy) -> None:
        if not quiet:
            remark(improvement(one))

    return decided(
        scenario,
        workers=workers,
        watch=lambda doing, results, total: progress(doing, results, total, quiet=quiet, remark=None),
        improved=better,
    )


def _scenario(file: str, options: dict[str, Any]) -> Scenario:
    """The scenario in a file; `options` are those that only a question about a model has."""
    from parsim.scenario import load

    hint = "leave it out; or, if this is a model, add --on CLUSTER"
    given = [Finding("the scenario says that", name, value, hint) for name, value in options.items() if value is not None]
    if given:
        raise ScenarioError(given)
    return load(file)
