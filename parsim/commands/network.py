"""Commands about the network alone, without a scenario: collectives, topologies, and how good the predictions are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, progress, say, say_json

validations = typer.Typer(name="validate", help="Compare predictions with published measurements.")
topologies = typer.Typer(name="topology", help="Show or draw machines and the network between them.", no_args_is_help=True)

Topology = Annotated[str, typer.Argument(metavar="NAME", help='A topology (`parsim list topologies`), a path, or "4x v100-32gb".')]
Nodes = Annotated[int, typer.Option(min=1, help="How many of the machine.")]
Figure = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: a .svg or .png file.")]


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command()(collective)
    app.add_typer(topologies)
    app.add_typer(validations)


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, ...")],
    topology: Annotated[str, typer.Option(metavar="NAME", help='A topology (`parsim list topologies`), a path, or "4x v100-32gb".')],
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs take part; default: all of the machines.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="On how many machines; default: as few as hold the GPUs.")] = None,
    size: Annotated[str | None, typer.Option(metavar="RANGE", help="1KiB:16GiB (doubling), or sizes with commas.")] = None,
    factor: Annotated[float, typer.Option(help="From one size of a range to the next.")] = 2.0,
    profile: Annotated[str, typer.Option(help="measured | nccl (the library's own prediction)")] = "measured",
    algorithm: Annotated[str, typer.Option(help="auto | ring | tree | nvls | nvls-tree | ...")] = "auto",
    protocol: Annotated[str, typer.Option(help="auto | simple | ll | ll128")] = "auto",
    nccl: Annotated[str | None, typer.Option(metavar="VERSION", help="Version of the library, for example 2.18.")] = None,
    as_json: Json = False,
    plot: Figure = None,
    compare: Annotated[Path | None, typer.Option(metavar="FILE", help="Output of nccl-tests, or a CSV with bytes,time_us.")] = None,
    debug: Debug = False,
) -> None:
    """Predict a collective over message sizes, as nccl-tests measures it."""
    from parsim.hardware.nccl.inputs import AUTOMATIC, Settings
    from parsim.scenario.importers.nccl_tests import read_log
    from parsim.study import collective as study
    from parsim.study.machines import group

    wanted = study.kind_of(kind)
    suffix = None if plot is None else _suffix(plot)
    log = None if compare is None else read_log(compare)
    cluster, members = group(topology, gpus or (log.ranks if log else None), nodes or (log.nodes if log and not gpus else None))
    settings = Settings(profile, nccl or AUTOMATIC.version, algorithm.replace("-", "_"), protocol)
    measured = tuple(sorted({sample.bytes for sample in log.samples})) if log and size is None else ()
    rows = study.sweep(cluster, members, wanted, measured or study.sizes(size or "1KiB:16GiB", factor), settings)
    compared = () if log is None else study.compare(cluster, members, wanted, log, settings)
    machines = len({cluster.node_of(gpu) for gpu in members})
    title = f"{wanted.replace('_', '-')}, {len(members)} GPUs of {f'{machines} x ' if machines > 1 else ''}{cluster.name}"
    title += f", NCCL {settings.version}, profile {profile}"
    if plot is not None and suffix is not None:
        _draw(plot, study.picture(rows, compared, title, suffix))
    if as_json:
        about = {
            "collective": wanted, "topology": cluster.name, "gpus": len(members), "nodes": machines, "profile": profile,
            "nccl": settings.version, "algorithm": settings.algorithm, "protocol": settings.protocol,
        }  # fmt: skip
        say_json(study.document(rows, compared, about))
    else:
        say(study.text(rows, compared, title) + (f"\nWrote {plot}" if plot is not None else ""))


@topologies.command()
def show(topology: Topology, nodes: Nodes = 1, as_json: Json = False, debug: Debug = False) -> None:
    """Print links by class, bisection bandwidth, the GPUs' ways to their NICs, and what they share."""
    from parsim.study.topology import document, survey, text

    found = survey(topology, nodes)
    say_json(document(found)) if as_json else say(text(found))


@topologies.command()
def plot(
    topology: Topology,
    nodes: Nodes = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .svg or .png file instead of <topology>.svg.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the network in tiers, and the inside of a machine."""
    from parsim.study.topology import picture

    path = out if out is not None else Path(f"{Path(topology).stem}.svg")
    _draw(path, picture(topology, nodes, _suffix(path)))
    say_json({"parsim": 1, "file": str(path)}) if as_json else say(f"Wrote {path}")


@validations.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    source: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this source; may be given again.")] = None,
    grade: Annotated[list[str] | None, typer.Option(help="a-priori | calibrated | held-out; default: all three")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Leave out the rows.")] = False,
    plot: Figure = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own sources.yaml, fits.yaml and rows.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per CPU.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predicted with published steps of training runs: seconds and memory, by source."""
    if context.invoked_subcommand is not None:
        return
    from parsim.study.runs import fitted, published
    from parsim.study.validate_runs import GRADES, document, validate
    from parsim.study.validate_runs_text import picture, text

    for name in grade or ():
        if name not in GRADES:
            raise ScenarioError(Finding(f"unknown grade {name!r}", "--grade", name, f"known: {', '.join(GRADES)}"))
    suffix = None if plot is None else _suffix(plot)
    grades = tuple(one for one in GRADES if not grade or one in grade)
    watch = partial(progress, "Predicting published runs")
    found = validate(published(data, source or ()), fitted(data), grades, jobs=jobs, watch=watch)
    if plot is not None and suffix is not None:
        _draw(plot, picture(found, suffix))
    if as_json:
        say_json(document(found))
    else:
        say(text(found, rows=not summary) + (f"\nWrote {plot}" if plot is not None else ""))


@validations.command()
def nccl(
    profile: Annotated[str | None, typer.Option(help="measured | nccl; default: both")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own measurements.csv and systems.yaml.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predicted with published times of collectives, by system and size."""
    from parsim.hardware.nccl.profiles import PROFILES
    from parsim.hardware.nccl.profiles import profile as known
    from parsim.study.measurements import measurements
    from parsim.study.validate_nccl import document, text, validate

    found = validate(measurements(data), PROFILES if profile is None else [known(profile).name])
    say_json(document(found)) if as_json else say(text(found))


@validations.command()
def gemm(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own measurements.csv, attention.csv and devices.yaml.")] = None,
    as_json: Json = False,
    plot: Figure = None,
    debug: Debug = False,
) -> None:
    """Compare predicted with published times of matrix products and fused attention, by device and type."""
    from parsim.study.kernel_measurements import kernel_measurements
    from parsim.study.validate_gemm import document, picture, text, validate

    suffix = None if plot is None else _suffix(plot)
    found = validate(kernel_measurements(data))
    if plot is not None and suffix is not None:
        _draw(plot, picture(found, suffix))
    say_json(document(found)) if as_json else say(text(found) + (f"\nWrote {plot}" if plot is not None else ""))


def _suffix(path: Path) -> Literal["svg", "png"]:
    """The kind of picture that a file's name asks for."""
    match path.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
    raise ScenarioError(Finding(f"cannot draw a {path.suffix or 'file without suffix'}", "FILE", str(path), "name it .svg or .png"))


def _draw(path: Path, picture: bytes) -> None:
    """Write a picture."""
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be written: {error.strerror}", value=path.name, file=str(path))) from None
