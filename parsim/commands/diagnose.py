"""The command `parsim diagnose`: a run is not what the simulation says; why?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError, attempt
from parsim.terminal import Debug, Json, Named, Overrides, Quiet, TrustCode, progress, say, say_json

if TYPE_CHECKING:
    from parsim.study.diagnose import Diagnosis, MeasuredStep
    from parsim.study.diagnose_classes import Recorded
    from parsim.study.diagnose_trace import Evidence

Profile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Trace of the PyTorch profiler (.json or .json.gz), or one that parsim wrote; again for another rank."
    ),
]


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(diagnose)


def diagnose(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The scenario of the run: a file, or the name of a shipped scenario.")],
    overrides: Overrides = None,
    override: Named = None,
    step_time: Annotated[str | None, typer.Option(metavar="TIME", help="Measured time of an optimizer step, for example 18.2s.")] = None,
    peak_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Measured peak of a GPU's memory, for example 61GiB.")] = None,
    profile: Profile = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in a trace, where the profiler did not mark them.")] = None,
    nccl_log: Annotated[Path | None, typer.Option(metavar="FILE", help="Output of nccl-tests, or of the run with NCCL_DEBUG=INFO.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a scenario with a block of overrides per explanation.")] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="With --profile: recorded and predicted step in one file; default: parsim-out/<scenario>/diagnose.json.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Say what would explain a measured step time, and which causes a trace shows."""
    from parsim.study.diagnose import Simulator, explain_step
    from parsim.study.diagnose_causes import parameters
    from parsim.study.diagnose_text import document, text
    from parsim.study.diagnose_trace import attributed
    from parsim.study.diagnose_wires import read_wires, with_wires

    _usable(step_time, peak_memory, profile, nccl_log, perfetto=perfetto, steps=steps)
    asked, recorded = _inputs(file, overrides, override, step_time, peak_memory, profile, steps, trust_code=trust_code)
    scenario = asked.scenario
    shown = partial(progress, quiet=quiet)
    with scenario.placing():
        diagnosis = explain_step(asked, shown)
        wires = None
        if nccl_log is not None:
            causes = parameters(scenario, diagnosis.built, diagnosis.report)
            wires = read_wires(nccl_log, diagnosis.built, causes)
            with_wires(diagnosis, wires, causes, Simulator(scenario))
        evidence = None if recorded is None else attributed(scenario, diagnosis.built, diagnosis.report, recorded, shown)
    written = [] if evidence is None else [_perfetto(evidence, perfetto, file, as_json=as_json)]
    if save is not None:
        _save(save, file, overrides, override, diagnosis, evidence)
        written.append(save)
    if as_json:
        say_json(document(diagnosis, evidence, wires))
        return
    say(text(diagnosis, evidence, wires))
    for path in filter(None, written):
        say(f"Wrote {path}")


def _usable(
    step_time: str | None,
    peak_memory: str | None,
    profile: Sequence[Path] | None,
    log: Path | None,
    *,
    perfetto: Path | None,
    steps: int | None,
) -> None:
    findings = []
    if not (step_time or peak_memory or profile or log):
        repair = "give --step-time 18.2s, --peak-memory 61GiB, --profile kineto.json or --nccl-log FILE"
        findings.append(Finding("nothing that was measured was given", suggestion=repair, file="command line"))
    for option, value in (("--perfetto", perfetto), ("--steps", steps)):
        if value is not None and not profile:
            findings.append(Finding(f"{option} goes with --profile", option, str(value), file="command line"))
    if findings:
        raise ScenarioError(findings)


def _inputs(
    file: str,
    overrides: Sequence[str] | None,
    named: Sequence[str] | None,
    step_time: str | None,
    peak_memory: str | None,
    profile: Sequence[Path] | None,
    steps: int | None,
    *,
    trust_code: bool,
) -> tuple[MeasuredStep, Recorded | None]:
    """What was measured of which scenario, and what was recorded; every problem of them at once."""
    from dataclasses import replace

    from parsim.scenario import load
    from parsim.study.diagnose import question

    findings: list[Finding] = []
    scenario: Any = attempt(lambda: load(file, *(overrides or ()), named=list(named or ()), trust_code=trust_code), findings)
    asked = attempt(lambda: question(scenario, step_time, peak_memory), findings)
    recorded = None
    if profile:
        from parsim.calibration.recorded import read_recorded

        recorded = attempt(lambda: read_recorded(profile, steps), findings)
    if findings or asked is None:
        raise ScenarioError(findings)
    if recorded is not None and asked.step_time is None:
        asked = replace(asked, step_time=recorded.step_time)
    return asked, recorded


def _perfetto(evidence: Evidence, path: Path | None, file: str, *, as_json: bool) -> Path | None:
    """Write recorded and predicted step; nothing beside a JSON document unless asked to."""
    from parsim.report.write import make_folder
    from parsim.study.diagnose_files import write_comparison

    if path is None and as_json:
        return None
    if path is None:
        path = Path("parsim-out") / Path(file).stem / "diagnose.json"
        make_folder(path.parent)
    sides = [("predicted", evidence.predicted)]
    if evidence.best:
        sides.append((f"predicted with {', '.join(evidence.best)}", evidence.explained))
    write_comparison(path, evidence.recorded, *sides)
    return path


def _save(
    path: Path, file: str, overrides: Sequence[str] | None, named: Sequence[str] | None, diagnosis: Diagnosis, evidence: Evidence | None
) -> None:
    """Write the scenario with what explains the run; a path of the user's is written as the new file finds it."""
    from parsim.scenario import files
    from parsim.study.diagnose_files import saved

    blocks = _blocks(diagnosis, evidence)
    if not blocks:
        raise ScenarioError(Finding("nothing explains the run, so there is nothing to save", "--save", str(path), file="command line"))
    source = files.find("scenarios", file)
    extends = file if files.is_shipped(source) else os.path.relpath(source, path.parent)
    from parsim.report.write import write_new

    write_new(path, saved(extends, overrides or (), named or (), blocks, str(path)))


def _blocks(diagnosis: Diagnosis, evidence: Evidence | None) -> Mapping[str, Sequence[str]]:
    """Name -> overrides: what the trace shows together, then each cause that alone explains the step time."""
    blocks: dict[str, Sequence[str]] = {}
    if evidence is not None and evidence.best:
        blocks["calibrated"] = evidence.arguments
    for one in diagnosis.explanations:
        if one.explains:
            name = one.cause.name if one.value is not None else f"{one.cause.name}_{getattr(one.cause, 'value', '')}"
            blocks.setdefault(name.replace(" ", "_"), one.arguments)
    return blocks
