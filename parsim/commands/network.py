"""Commands about the network alone, without a scenario: collectives and topologies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parsim.command_help import Group
from parsim.terminal import Debug, Figure, Json, picture_kind, say, say_json

topologies = typer.Typer(name="topology", cls=Group, help="Show or draw machines and the network between them.", no_args_is_help=True)

Topology = Annotated[str, typer.Argument(metavar="NAME", help='A topology (`parsim list topologies`), path, "4x v100-32gb", or scenario.')]
Nodes = Annotated[int, typer.Option(min=1, help="How many of the machine.")]


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command()(collective)
    app.add_typer(topologies)


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, ...")],
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help='A topology (`parsim list topologies`), a path, or "4x v100-32gb".')],
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs take part; default: all of the machines.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="On how many machines; default: as few as hold the GPUs.")] = None,
    size: Annotated[str | None, typer.Option(metavar="RANGE", help="1KiB:16GiB (doubling), or sizes with commas.")] = None,
    factor: Annotated[float, typer.Option(help="Factor between two sizes of a range.")] = 2.0,
    basis: Annotated[str, typer.Option(help="measured | nccl (the library's own prediction)")] = "measured",
    algorithm: Annotated[str, typer.Option(help="auto | ring | tree | nvls | nvls-tree | ...")] = "auto",
    protocol: Annotated[str, typer.Option(help="auto | simple | ll | ll128")] = "auto",
    kernels: Annotated[
        str, typer.Option(help="of an all-to-all: nccl | deepep | deepep-low-latency | hybridep; NCCL is shown beside")
    ] = "nccl",
    nccl: Annotated[str | None, typer.Option(metavar="VERSION", help="Version of the library, for example 2.18.")] = None,
    as_json: Json = False,
    figure: Figure = None,
    nccl_log: Annotated[Path | None, typer.Option(metavar="FILE", help="Output of nccl-tests, or a CSV with bytes,time_us.")] = None,
    debug: Debug = False,
) -> None:
    """Predict a collective over message sizes, as nccl-tests measures it."""
    from dataclasses import replace

    from parsim.hardware.nccl.expert_kernels import remarks_on
    from parsim.hardware.nccl.inputs import AUTOMATIC, Settings
    from parsim.interop.nccl_logs import read_log
    from parsim.scenario.machines import group
    from parsim.study import collective as study
    from parsim.study.collective_bands import worth

    wanted = study.kind_of(kind)
    suffix = None if figure is None else picture_kind(figure)
    log = None if nccl_log is None else read_log(nccl_log)
    cluster, members = group(on, gpus or (log.ranks if log else None), nodes or (log.nodes if log and not gpus else None))
    settings = Settings(basis, nccl or AUTOMATIC.version, algorithm.replace("-", "_"), protocol, kernels=kernels)
    sampled = tuple(sorted({sample.bytes for sample in log.samples})) if log and size is None else ()
    asked = sampled or study.sizes(size or "1KiB:16GiB", factor)
    rows = study.sweep(cluster, members, wanted, asked, settings)
    library = () if kernels == "nccl" else study.sweep(cluster, members, wanted, asked, replace(settings, kernels="nccl"))
    compared = () if log is None else study.compare(cluster, members, wanted, log, settings)
    machines = len({cluster.node_of(gpu) for gpu in members})
    title = f"{wanted.replace('_', '-')}, {len(members)} GPUs of {f'{machines} x ' if machines > 1 else ''}{cluster.name}"
    title += f", NCCL {settings.version}, profile {basis}" if kernels == "nccl" else f", {kernels}"
    if figure is not None and suffix is not None:
        from parsim.report.write import write_file

        write_file(figure, study.picture(rows, compared, title, suffix))
    judged = basis == "measured" and kernels == "nccl"
    if as_json:
        about = {
            "collective": wanted, "topology": cluster.name, "gpus": len(members), "nodes": machines, "profile": basis,
            "nccl": settings.version, "algorithm": settings.algorithm, "protocol": settings.protocol,
            "kernels": kernels,
            **({"worth": worth(cluster, members).document()} if judged else {}),
        }  # fmt: skip
        say_json(study.document(rows, compared, about, library))
    else:
        remarks = worth(cluster, members).lines() if judged else remarks_on(kernels)
        say(study.text(rows, compared, title, remarks, library) + (f"\nWrote {figure}" if figure is not None else ""))


@topologies.command()
def show(topology: Topology, nodes: Nodes = 1, as_json: Json = False, debug: Debug = False) -> None:
    """Print links by class, bisection bandwidth, the GPUs' ways to their NICs, and what they share."""
    from parsim.study.topology import document, survey, text

    survey_ = survey(topology, nodes)
    say_json(document(survey_)) if as_json else say(text(survey_))


@topologies.command()
def plot(
    topology: Topology,
    nodes: Nodes = 1,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .svg or .png file; default: parsim-out/<topology>/topology.svg.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write topology.svg here instead of parsim-out/<topology>.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the network in tiers, and the inside of a machine."""
    from parsim.study.topology import picture

    folder = out if out is not None else Path("parsim-out") / Path(topology).stem
    path = figure if figure is not None else folder / "topology.svg"
    from parsim.report.write import write_together

    write_together(path.parent, {path.name: picture(topology, nodes, picture_kind(path))})
    say_json({"parsim": 1, "file": str(path)}) if as_json else say(f"Wrote {path}")
