"""The command `parsim new`: a scenario file to start from, of a model on a cluster, or a copy of a shipped one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError, attempt
from parsim.terminal import Debug, Json, busy, remark, say, say_json

if TYPE_CHECKING:
    from parsim.study.new_scenario import New

EXAMPLE = "gpt2-ddp-4x-a100"
"""the shipped scenario that is copied where nothing is asked for"""
MODELS = ("llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt2", "gpt3-175b", "bert-large", "vit-base")
CLUSTERS = ("hgx-h100", "hgx-h200", "hgx-b200", "dgx-a100-80gb", "aws-p5", "1x rtx-4090", "8x l40s")
"""offered by number; any other name may be typed"""


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(new)


def new(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The file to write, with or without .yaml; default: after model and cluster.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model (`parsim list models`), or the path of a config.json.")] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="A topology (`parsim list topologies`), or a box.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many machines; default: as many as --gpus needs.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs; default: those of the machines.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="auto | ddp | zero1 | zero2 | zero3 | fsdp; default: auto, the first that fits.")
    ] = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens per sample; default: the model's own.")] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per forward pass of one replica.")] = 1,
    example: Annotated[str | None, typer.Option("--from", metavar="SCENARIO", help="Copy a shipped scenario instead.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a commented scenario, and the schema with which an editor checks it: asks on a terminal, or takes --model and --on."""
    given = {"--model": model, "--on": on, "--nodes": nodes, "--gpus": gpus, "--strategy": strategy, "--sequence": sequence}
    findings = _usable(example, given)
    asks = example is None and not any(value is not None for value in given.values()) and _may_ask()
    path = _path(name or _called(model, on, nodes, example))
    if name is not None or not asks:
        findings = [*_taken(path), *findings]
    if not findings and asks:
        model, on, nodes, strategy = questions(_answer)
        path = _path(name or _called(model, on, nodes, example))
        findings = _taken(path)
    if findings and not (model and on):
        raise ScenarioError(findings)
    if model is None or on is None:
        _deliver(path, _copy(example or EXAMPLE), None, as_json=as_json)
        return
    from parsim.study.fit_question import FitQuestion
    from parsim.study.new_scenario import AUTO, new_scenario

    question = FitQuestion(model, on, nodes=nodes, gpus=gpus, sequence_length=sequence, micro_batch=micro_batch)
    with busy("Looking for what fits", quiet=as_json):
        made = attempt(lambda: new_scenario(question, strategy or AUTO), findings)
    if findings or made is None:
        raise ScenarioError(findings)
    _deliver(path, made.text, made, as_json=as_json)


def _path(name: str) -> Path:
    return Path(name) if Path(name).suffix in (".yaml", ".yml") else Path(f"{name}.yaml")


def _called(model: str | None, on: str | None, nodes: int | None, example: str | None) -> str:
    """A name where none was given: ``llama-3-70b-8x-hgx-h100``, or that of the scenario that is copied."""
    if model is None or on is None:
        return Path(example or EXAMPLE).name
    machines = f"{nodes}x-{Path(on).stem}" if nodes is not None and nodes > 1 else Path(on).stem
    own = Path(model).parent.name if Path(model).name == "config.json" else Path(model).stem if Path(model).suffix == ".json" else model
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{own or 'model'}-{machines}").strip("-.")


def _taken(path: Path) -> list[Finding]:
    """A file that is there is never overwritten."""
    if not (path.exists() or path.is_symlink()):
        return []
    return [Finding("exists and is not overwritten", value=path.name, suggestion="choose another name: parsim new NAME", file=str(path))]


def _usable(example: str | None, given: dict[str, Any]) -> list[Finding]:
    """Options that do not go together."""
    from parsim.scenario.files import names
    from parsim.scenario.values import did_you_mean

    findings = []
    written = [option for option, value in given.items() if value is not None]
    if example is not None:
        if example not in names("scenarios"):
            hint = did_you_mean(example, names("scenarios")) or f"choose from {', '.join(names('scenarios'))}"
            findings.append(Finding(f"there is no shipped scenario {example!r}", "--from", example, hint, file="command line"))
        findings += [
            Finding("a copied scenario says that itself", option, str(given[option]), "leave out it or --from", file="command line")
            for option in written
        ]
    elif written:
        hints = {"--model": "add --model llama-3-70b, for example", "--on": "add --on hgx-h100, for example"}
        findings += [
            Finding("is needed, too", option, suggestion=hint, file="command line") for option, hint in hints.items() if not given[option]
        ]
    return findings


def _may_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _answer(prompt: str) -> str:
    """One line of the user's; the end of input is the end of the command."""
    remark(prompt)
    line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt
    return line.strip()


def questions(answer: Callable[[str], str]) -> tuple[str, str, int, str]:
    """Model, cluster, machines and strategy, each with numbered choices and a default."""
    from parsim.scenario.files import exists, names
    from parsim.scenario.shortforms import box
    from parsim.study.new_scenario import STRATEGIES

    shipped, machines = names("models"), names("topologies")
    model = _chosen(
        answer, "Which model?", [one for one in MODELS if one in shipped], lambda word: word in shipped or exists(word), shipped
    )
    offered = [one for one in CLUSTERS if one in machines or box(one)]
    on = _chosen(answer, "Which machine?", offered, lambda word: word in machines or exists(word) or bool(box(word)), machines)
    nodes = _chosen(
        answer,
        "How many machines?",
        ["1", "2", "4", "8"],
        lambda word: word.isascii() and word.isdigit() and int(word) > 0,
        (),
        direct=True,
    )
    told = [f"{name}: {text}" for name, text in STRATEGIES.items()]
    strategy = _chosen(answer, "Which strategy?", told, lambda word: word in STRATEGIES, list(STRATEGIES))
    return model, on, int(nodes), strategy.partition(":")[0]


def _chosen(
    answer: Callable[[str], str],
    what: str,
    options: Sequence[str],
    known: Callable[[str], bool],
    names: Sequence[str],
    *,
    direct: bool = False,
) -> str:
    """One of the options by its number, the first where nothing is typed, or any other word that is `known`.

    With `direct` what is typed is meant as it is, and the options are examples.
    """
    from parsim.scenario.values import did_you_mean

    listed = ", ".join(options) if direct else "\n" + "\n".join(f"  {number}  {text}" for number, text in enumerate(options, 1))
    while True:
        word = answer(f"{what}{' for example ' if direct else ''}{listed}\n[{options[0] if direct else 1}]")
        if not word:
            return options[0]
        if not direct and word.isascii() and word.isdigit() and 1 <= int(word) <= len(options):
            return options[int(word) - 1]
        if known(word):
            return word
        remark(f"{word!r} is not known; {did_you_mean(word, names) or 'write a number of the list, or a name'}")


def _copy(example: str) -> str:
    """A shipped scenario, with its schema beside it."""
    from parsim.scenario.files import find
    from parsim.study.new_scenario import SCHEMA

    lines = find("scenarios", example).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join([f"{SCHEMA}\n", *(line for line in lines if "yaml-language-server" not in line)])


def _schemas(folder: Path) -> None:
    """The schema that the file's first line names, and the one that it refers to, where they are not there yet."""
    import json

    from parsim.report.write import write_together
    from parsim.scenario.json_schema import FILE, STUDY_FILE
    from parsim.scenario.json_schema import schema as scenario_schema
    from parsim.study.sweep.study_file import schema as study_schema

    for name, schema in ((FILE, scenario_schema), (STUDY_FILE, study_schema)):
        if not (folder / name).exists():
            write_together(folder, {name: f"{json.dumps(schema(), indent=1, ensure_ascii=False)}\n".encode()})


def _deliver(path: Path, text: str, made: New | None, *, as_json: bool) -> None:
    from parsim.report.write import write_new

    write_new(path, text)
    _schemas(path.parent)
    if as_json:
        fits = {} if made is None else {"fits": made.answer.fits, "change": made.change}
        say_json({"parsim": 1, "file": str(path), **fits})
        return
    if made is not None:
        from parsim.study.fit_text import verdict

        say(
            "\n".join(verdict(made.answer).splitlines()[:2])
            + (f"\nwith {made.change}, without which it does not fit" if made.change else "")
        )
    following = f"parsim run {path}" if made is None or made.answer.fits else f"change it, then parsim run {path}"
    say(f"Wrote {path}. Next: {following}")
