"""The command `parsim export`: a scenario as the configuration of a training tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Named, Overrides, TrustCode, remark, say, say_json

TARGETS = "megatron | deepspeed | fsdp | torchtitan"


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(export)


def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario.")],
    overrides: Overrides = None,
    to: Annotated[str | None, typer.Option(metavar="TARGET", help=f"{TARGETS}: a bash script, a JSON, an accelerate YAML, a TOML.")] = None,
    override: Named = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it here instead of to standard output.")] = None,
    fsdp_version: Annotated[int, typer.Option("--fsdp-version", metavar="1|2", help="Version of PyTorch's FSDP.")] = 2,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Write a scenario as Megatron-LM arguments, DeepSpeed JSON, accelerate's FSDP YAML or torchtitan's TOML; notes go to stderr."""
    from parsim.interop.formats import export as exported
    from parsim.scenario import load

    if to is None:
        raise ScenarioError(Finding("say which tool", "--to", None, f"write --to {TARGETS.replace(' | ', ', --to ')}"))
    result = exported(load(file, *(overrides or ()), named=list(override or ()), trust_code=trust_code), to, fsdp_version=fsdp_version)
    if save is not None:
        from parsim.report.write import write_new

        write_new(save, result.text)
    launch = result.launch.replace("FILE", str(save)) if save is not None else result.launch
    if as_json:
        say_json(_document(result, save, launch))
        return
    for note in result.notes:
        remark(f"note: {note}")
    for call in result.script:
        remark(f"in the script: {call}")
    if save is None and to != "megatron":  # whose script starts it
        remark(f"start with: {launch}")
    say(result.text if save is None else f"Wrote {save}. Next: {launch}", escapes=True)


def _document(result: Any, out: Path | None, launch: str) -> dict[str, Any]:
    return {
        "parsim": 1,
        "to": result.target,
        "file": None if out is None else str(out),
        "text": result.text,
        "launch": launch,
        "script": list(result.script),
        "notes": [note.as_dict() for note in result.notes],
        "keys": {path: {"kind": fate.kind, "text": fate.text} for path, fate in result.keys.items()},
    }
