"""``parsim explain``: a scenario from all sides, or the definition of one number."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.terminal import Debug, Json, Named, Overrides, Quiet, SlowGpu, TrustCode, Workers, progress, say, say_json

if TYPE_CHECKING:
    from parsim.scenario import Scenario
    from parsim.study.explain import Explanation


def register(app: typer.Typer) -> None:
    """Put the command on the command line."""
    app.command()(explain)


def explain(
    name: Annotated[
        str | None, typer.Argument(metavar="FILE|METRIC", help="A scenario, or a key of the report; all keys without it.")
    ] = None,
    overrides: Overrides = None,
    override: Named = None,
    as_json: Json = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write explanation.json, what-if.svg, assumptions.svg, roofline.svg there.")
    ] = None,
    slow_gpu: SlowGpu = None,
    workers: Workers = None,
    quiet: Quiet = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Say why a scenario's step takes so long and what would help; or define a number of the report."""
    from parsim.report.definitions import DEFINITIONS
    from parsim.scenario import load

    if name is None:
        say_json({"parsim": 1, "metrics": list(DEFINITIONS)}) if as_json else say("\n".join(DEFINITIONS))
    elif name in DEFINITIONS or not (overrides or override or out is not None or _is_scenario(name)):
        define(name, as_json=as_json)
    else:
        scenario = load(name, *(overrides or ()), named=list(override or ()), trust_code=trust_code)
        _scenario(scenario, name, out, workers, slow_gpu, as_json=as_json, quiet=quiet)


def _is_scenario(name: str) -> bool:
    from parsim.scenario.files import names

    return Path(name).suffix in (".yaml", ".yml", ".json") or name in names("scenarios") or Path(name).is_file()


def define(metric: str, *, as_json: bool) -> None:
    """Print the definition of a metric."""
    from dataclasses import asdict

    from parsim.report.definitions import explain as define

    definition = define(metric)
    say_json({"parsim": 1, **asdict(definition)}) if as_json else say(str(definition))


def _scenario(
    scenario: Scenario, file: str, out: Path | None, workers: int | None, slow_gpu: float | None, *, as_json: bool, quiet: bool
) -> None:
    from parsim.report.slow_gpu import SPEED
    from parsim.study.explain import document, text
    from parsim.study.explain import explain as study

    if out is not None:
        from parsim.report.write import check_folder

        check_folder(out)
    found = study(scenario, slow_gpu=slow_gpu or SPEED, jobs=workers, watch=partial(progress, "Simulating changes", quiet=quiet))
    said: dict[str, Any] | None = document(found) if as_json or out is not None else None
    written = [] if out is None or said is None else _write(found, said, out)
    if as_json and said is not None:
        say_json(said)
    else:
        say(text(found, file) + (f"\nWrote {out}: {', '.join(written)}" if written else ""))


def _write(found: Explanation, said: dict[str, Any], out: Path) -> list[str]:
    import json

    from parsim.report.write import write_together
    from parsim.study.explain import pictures

    files = {"explanation.json": (json.dumps(said, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(), **pictures(found)}
    return [path.name for path in write_together(out, files)]
