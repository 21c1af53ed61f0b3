"""What ``--help`` shows: options under headings, one example of every command, commands by what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from parsim.vocabulary import PANELS

_OWN = "Options"
_SENTENCE = 300
"""characters; longer first sentences of a command are cut"""
_HEADINGS = {word: heading for heading, words in PANELS.items() for word in words}
GROUPS: Mapping[str, Sequence[str]] = {
    "One training step": ("run", "check", "show", "explain", "timeline", "trace"),
    "Questions": ("ui", "fit", "plan", "size", "compare", "sweep"),
    "Parts of a step": ("schedule", "collective", "topology", "flops", "mfu"),
    "Measured runs": ("diagnose", "calibrate", "validate"),
    "Files": ("new", "list", "import", "export", "schema"),
}
"""heading -> commands of ``parsim --help``; what is in none of them stands last"""
EXAMPLES: Mapping[str, str] = {
    "run": "parsim run gpt2-ddp-4x-a100 training.micro_batch=4",
    "ui": "parsim ui",
    "check": "parsim check mine.yaml",
    "show": "parsim show gpt2-ddp-4x-a100 --written",
    "explain": "parsim explain gpt2-ddp-4x-a100",
    "timeline": "parsim timeline gpt2-ddp-4x-a100 --width 3.5in --figure step.pdf",
    "trace": "parsim trace gpt2-ddp-4x-a100 --ranks 0-3",
    "fit": "parsim fit llama-3-70b --on hgx-h100 --nodes 8",
    "plan": "parsim plan llama-2-7b --on hgx-h100 --nodes 2",
    "size": "parsim size llama-2-7b --tokens 1T --on hgx-h100,hgx-h200 --days 30",
    "compare": "parsim compare gpt2-ddp-4x-a100 parallel.data.strategy=ddp,zero1",
    "sweep": "parsim sweep gpt2-ddp-4x-a100 training.micro_batch=1,2,4 --maximise tokens_per_s",
    "schedule": "parsim schedule gpipe 1f1b zb-h1 -p 4 -m 8 --figure schedules.svg",
    "collective": "parsim collective all-reduce --on hgx-h100 --nodes 2",
    "topology": "parsim topology show hgx-h100 --nodes 2",
    "topology show": "parsim topology show hgx-h100 --nodes 2",
    "topology plot": "parsim topology plot hgx-h100 --nodes 2 --figure network.svg",
    "flops": "parsim flops llama-2-7b --sequence 4096 --gpu h100-sxm",
    "mfu": "parsim mfu llama-2-7b --gpu a100-sxm-80gb --gpus 64 --tokens-per-s 200000",
    "diagnose": "parsim diagnose mine.yaml --step-time 18.2s --profile rank0.json",
    "calibrate": "parsim calibrate --quick --save this-machine.yaml",
    "validate": "parsim validate --summary",
    "validate memory": "parsim validate memory --summary",
    "validate nccl": "parsim validate nccl",
    "validate gemm": "parsim validate gemm --figure gemm.svg",
    "validate traces": "parsim validate traces",
    "validate steps": "parsim validate steps --source mlperf-v5.0-eos-dfw-n1024 --runs 60",
    "new": "parsim new mine --model llama-3-70b --on hgx-h100 --nodes 8",
    "list": "parsim list models",
    "import": "parsim import train.sh --on hgx-h100 --save mine.yaml",
    "import config": "parsim import config train.sh --on hgx-h100 --save mine.yaml",
    "import module": "parsim import module model.py:make_model --inputs 2x1024:int64 --trust-code --save mine.yaml",
    "import topo": "parsim import topo topology.txt --save machine.yaml",
    "import profile": "parsim import profile rank0.json.gz --save device.yaml",
    "export": "parsim export gpt2-ddp-4x-a100 --to megatron --save train.sh",
    "schema": "parsim schema",
}
"""command, without `parsim` -> a command line that makes sense"""


class Command(TyperCommand):
    """A command whose options stand under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the command's own options, then the shared ones by heading."""
        _format_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example."""
        _format_example(ctx, formatter)


class Group(TyperGroup):
    """A command with commands of its own; those of `parsim` stand under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options by heading, then the commands."""
        _format_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names and first sentences."""
        texts = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name)) and not command.hidden}
        rows = {name: (name, command.get_short_help_str(_SENTENCE)) for name, command in texts.items()}
        if ctx.parent is not None:
            with formatter.section("Commands"):
                formatter.write_dl(list(rows.values()))
            return
        others = [name for name in rows if not any(name in names for names in GROUPS.values())]
        formatter.write("\nCommands:\n")
        for heading, names in {**GROUPS, "Others": others}.items():
            shown = [rows[name] for name in names if name in rows]
            if shown:
                with formatter.section(heading):
                    formatter.write_dl([(f"{name:<{max(map(len, rows))}}", text) for name, text in shown])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example."""
        _format_example(ctx, formatter)


def dressed(app: typer.Typer) -> typer.Typer:
    """The command line with every command a `Command`."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            dressed(group.typer_instance)
    return app


def _format_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], _OWN: [], **{heading: [] for heading in PANELS}}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            heading = next((_HEADINGS[word] for word in parameter.opts if word in _HEADINGS and ctx.parent is not None), _OWN)
            rows["Arguments" if parameter.param_type_name == "argument" else heading].append(record)
    for heading, records in rows.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


def _format_example(ctx: Any, formatter: Any) -> None:
    name = ctx.command_path.partition(" ")[2]
    if (example := EXAMPLES.get(name)) is not None:
        formatter.write(f"\nExample:\n  {example}\n")
