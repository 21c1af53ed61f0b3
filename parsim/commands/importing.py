"""Commands that turn what other tools print into files that parsim reads."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.command_help import Group
from parsim.errors import Finding, InputError, ScenarioError
from parsim.terminal import Debug, Json, Quiet, TrustCode, busy, remark, say, say_json, standard_input

if TYPE_CHECKING:
    from parsim.interop.import_draft import ImportedScenario
    from parsim.interop.module import ImportedModule


class _Commands(Group):
    """``parsim import FILE`` is ``parsim import config FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), "")
        if args and first not in self.commands and "--help" not in args[:1]:
            args = ["config", *args]
        return super().parse_args(ctx, args)


TOOLS = (
    "megatron | megatron-deepspeed | megatron-recipe | deepspeed | accelerate | hf | llama-factory | axolotl | torchtitan | neox | nemo | "
    "flagscale | swift | verl | primus"
)
_TRUST = "importing a module runs the code of its file: if you trust it, add --trust-code"
imports = typer.Typer(name="import", cls=_Commands, help="Turn foreign files into YAML to read and edit.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.add_typer(imports)


@imports.command()
def config(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A script, arguments, JSON or YAML; - is standard input.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="Further files of the same job (GPT-NeoX).")] = None,
    tool: Annotated[str, typer.Option("--from", metavar="TOOL", help=f"{TOOLS}; default: told by the keys.")] = "",
    on: Annotated[str | None, typer.Option(metavar="CLUSTER", help='One machine: a topology, or a box such as "8x a100-80gb".')] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines, whatever the configuration says.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, whatever the configuration says.")] = None,
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens per sample.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Samples per forward pass and GPU.")] = None,
    accumulation: Annotated[int | None, typer.Option("--gradient-accumulation", min=1, help="Micro-batches per optimizer step.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Samples of the data set, for the time to train.")] = None,
    precision: Annotated[str | None, typer.Option(help="Types, where the configuration leaves them open: bf16, fp16 ...")] = None,
    arguments: Annotated[
        str | None, typer.Option("--hf", metavar="FILE", help="Arguments or script that go with a DeepSpeed or accelerate file.")
    ] = None,
    variables: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the script.")] = None,
    called_with: Annotated[str | None, typer.Option("--arguments", metavar="WORDS", help="$1 $2 ... of the script.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=1, help="Rows of the word table, before padding.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tokenizer that sets the vocabulary, for example llama-3.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the result; default: the file's name.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the scenario here instead of to standard output.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a training configuration of another tool and write it as a scenario; no key is dropped silently."""
    from parsim.interop.formats import import_config
    from parsim.interop.import_draft import Given
    from parsim.scenario.files import read_text
    from parsim.scenario.precision import PRESETS
    from parsim.scenario.values import did_you_mean

    text = standard_input() if file == "-" else read_text(Path(file))
    called = name or ("imported" if file == "-" else Path(file).stem)
    given = Given(
        called,
        on,
        nodes,
        model,
        sequence,
        micro_batch,
        accumulation,
        examples,
        precision,
        {**_numbered(called_with), **_variables(variables or [])},
    )
    given = replace(given, vocabulary=vocabulary, tokenizer=tokenizer)
    if precision is not None and precision not in PRESETS:
        hint = did_you_mean(precision, list(PRESETS)) or f"write {', '.join(PRESETS)}"
        raise ScenarioError(Finding(f"{precision!r} is no precision", "--precision", precision, hint))
    others = [(read_text(Path(name)), name) for name in more or []]
    with busy(f"Reading {file}", quiet=quiet):
        imported = import_config(text, file, given, tool=tool, arguments=arguments, more=others)
    keys = [fate.as_dict() for fate in imported.fates]
    _deliver(imported, save, {"tool": imported.tool, "evidence": imported.evidence, "keys": keys} if as_json else None)


def _deliver(imported: ImportedScenario | ImportedModule, out: Path | None, document: dict[str, Any] | None) -> None:
    """Say the warnings; write the scenario, or print it, or as JSON with `document`."""
    for finding in imported.warnings:
        remark(f"warning: {finding}")
    if out is not None:
        from parsim.report.write import write_new

        write_new(out, imported.yaml)
    if document is not None:
        warnings = [finding.as_dict() for finding in imported.warnings]
        rest = {"to_fill": list(imported.to_fill), "warnings": warnings, "file": None if out is None else str(out)}
        say_json({"parsim": 1, "scenario": imported.tree, **document, **rest})
    elif out is None:
        say(imported.yaml, escapes=True)
    else:
        holes = f" Fill in {', '.join(imported.to_fill)}, then" if imported.to_fill else " Next"
        say(f"Wrote {out}.{holes}: parsim run {out}", escapes=True)


def _variables(words: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` as a mapping."""
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise ScenarioError([Finding(f"{word!r} is not NAME=VALUE", "--set", word, "for example --set NNODES=4") for word in wrong])
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _numbered(words: str | None) -> dict[str, str]:
    """The arguments of a script by their numbers."""
    try:
        return {str(number): word for number, word in enumerate(shlex.split(words or ""), 1)}
    except ValueError as error:
        raise ScenarioError(Finding(f"no arguments of a command: {error}", "--arguments", words)) from None


@imports.command()
def module(
    file: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns the torch.nn.Module.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", metavar="2x128:int64", help="Shape and type of an example input, labels=2x128:int64 by name; repeatable."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32 | fp16 | bf16: cast the module; default: as it is.")] = None,
    on: Annotated[str | None, typer.Option(metavar="CLUSTER", help='One machine: a topology, or a box such as "8x a100-80gb".')] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: the function's name.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the scenario here instead of to standard output.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Trace a PyTorch module on the meta device and write it as a scenario: its operators, shapes and parameters."""
    from parsim.scenario.trust import code_file, is_trusted, refusal

    if code_file(file) is None or not file.rpartition(":")[2].isidentifier():
        hint = "write FILE.py:FUNCTION, for example model.py:make_model"
        raise ScenarioError(Finding(f"{file} names no function of a Python file", value=file, suggestion=hint, file="command line"))
    if dtype not in (None, "fp32", "fp16", "bf16"):
        raise ScenarioError(Finding(f"{dtype!r} is not known", "--dtype", dtype, "write fp32, fp16 or bf16", file="command line"))
    if not is_trusted(trust_code):
        raise ScenarioError(replace(refusal(file, "", sealed=True), suggestion=_TRUST, file="command line"))
    from parsim.calibration.module_trace import traced_module
    from parsim.interop.module import import_traces

    with busy(f"Tracing {file}", quiet=quiet):
        traces = traced_module(file, inputs or (), dtype)
        imported = import_traces(*traces, file, name=name or file.rpartition(":")[2], on=on)
    _deliver(imported, save, {"tool": "torch", "counted": dict(imported.facts)} if as_json else None)


@imports.command()
def topo(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Text of `nvidia-smi topo -m`, or NCCL's topology XML; - is standard input.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The GPU (`parsim list devices`); default: inferred, with a warning.")
    ] = None,
    nic: Annotated[str | None, typer.Option(help="Link kind of the NICs, for example ib-hdr.")] = None,
    pcie: Annotated[str | None, typer.Option(help="Link kind of the PCIe slots, for example pcie4-x16.")] = None,
    cpu: Annotated[str | None, typer.Option(help="amd | intel, or a socket link kind.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the result; default: the file's name.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the topology here instead of to standard output.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a machine's topology and write it as a topology file; what is ambiguous is said, not guessed silently."""
    from parsim.interop.nccl_xml import import_nccl_xml
    from parsim.interop.topo_m import import_topo
    from parsim.scenario.files import read_text

    text = standard_input() if file == "-" else read_text(Path(file))
    read = import_nccl_xml if text.lstrip().startswith("<") else import_topo
    called = name or ("imported" if file == "-" else Path(file).stem)
    try:
        with busy(f"Reading {file}", quiet=quiet):
            imported = read(text, device=gpu, nic=nic, pcie=pcie, cpu=cpu, name=called)
    except InputError as error:
        raise type(error)(
            [finding if finding.file else finding.at(file, finding.line, finding.column) for finding in error.findings]
        ) from None
    for finding in imported.warnings:
        remark(f"warning: {finding}")
    if save is not None:
        from parsim.report.write import write_new

        write_new(save, imported.yaml)
    if as_json:
        warnings = [finding.as_dict() for finding in imported.warnings]
        say_json({"parsim": 1, "topology": imported.tree, "warnings": warnings, "file": None if save is None else str(save)})
    else:
        say(imported.yaml if save is None else f"Wrote {save}. Next: parsim topology show {save}", escapes=True)


@imports.command()
def profile(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Trace of torch.profiler, .json or .json.gz.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device to put the times on; default: the one that the trace names.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new device; default: the device's name, measured.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the device file here instead of to standard output.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read kernel times and shapes from a PyTorch trace and write them as the measured tables of a device file."""
    from parsim.calibration.profile import import_profile
    from parsim.terminal import remark, write_collectives

    with busy(f"Reading {file}", quiet=quiet):
        result = import_profile(file, device=gpu, name=name)
    for note in result.tables.notes:
        remark(str(note))
    folder = None
    if save is not None:
        from parsim.report.write import write_new

        write_new(save, result.yaml)
        folder = write_collectives(save, result.collective_files(save))
    if as_json:
        written = None if save is None else str(save)
        say_json({"parsim": 1, "file": written, "device": result.tree, "notes": result.tables.notes, "collectives": folder})
    elif save is None:
        say(result.yaml)
    else:
        kind = "device file" if result.whole else "measured tables, to be put into a device file"
        say(f"Wrote {save}, a {kind}." if result.whole else f"Wrote {save}: {kind}.")
        if folder is not None:
            say(f"Wrote {folder}; the network model takes no tables, compare: parsim validate nccl --data {folder}")
