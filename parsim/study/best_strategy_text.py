"""What `parsim plan` prints and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parsim.errors import InputError
from parsim.interop.export_draft import Exported
from parsim.interop.formats import export
from parsim.report.quantities import gib, percent, seconds
from parsim.report.report import Report
from parsim.report.write import Content, write_together
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario, flow
from parsim.study.best_strategy import BestStrategy, Improvement
from parsim.study.size.question import Assumed
from parsim.units import format_time
from parsim.version import CONTRACT_VERSION, __version__

FILES = {"megatron": "megatron.sh", "deepspeed": "deepspeed.json", "fsdp": "accelerate-fsdp.yaml"}
"""tool -> the file of its configuration"""
SCENARIO = "scenario.yaml"


def question_text(base: Scenario, assumed: Sequence[Assumed]) -> str:
    """What is asked: model, machines, batch, precision; with the sources of what was assumed."""
    built = build(base)
    training = built.training
    tokens = f" of {training.sequence_length:,} tokens" if built.model.sequence else ""
    free = f"; {gib(built.memory_reserve)} GiB of each stays free" if built.memory_reserve else ""
    lines = [
        f"{built.model.name} on {built.used_gpus} x {built.kinds[0].name} ({built.cluster.name}){free}",
        f"{training.global_batch:,} samples{tokens} per step",
    ]
    return "\n".join([*lines, *(f"  {one.name}: {one.value}, {one.source}" for one in assumed), ""])


def improvement(one: Improvement) -> str:
    """A line of the search."""
    mfu = "" if one.row["mfu"] is None else f", MFU {percent(one.row['mfu'])}"
    return f"{one.after:5.0f} s  {seconds(one.row['step_time_s'])}{mfu}: {one.strategy}"


def answer(plan: BestStrategy) -> str:
    """The best strategy, how far that is proved, the next best and why it loses, the scenario."""
    if plan.best is None:
        whole = "no strategy fits into memory" if plan.proven else "nothing was found yet that fits into memory"
        return f"\n{whole}: {_searched(plan)}"
    report = simulate(plan.scenario)
    lines = ["", f"Best: {plan.best.strategy}", report.verdict]
    if (seconds_of_all := report.estimate.time_to_train_s) is not None:
        lines.append(f"Whole training: {format_time(seconds_of_all, digits=3)}, nothing failing; `parsim size` counts failures and money")
    lines.append(_searched(plan))
    if (comparison := plan.against_runner_up()) is not None and plan.runner_up is not None:
        lines += [f"Runner-up: {plan.runner_up.strategy}", comparison.verdict]
    return "\n".join([*lines, "", *yaml_of(plan.tree())])


def _searched(plan: BestStrategy) -> str:
    if plan.study is None:
        why = "interrupted" if plan.interrupted else "out of time"
        return f"Not proved to be the fastest: the search was ended after {plan.wall:.0f} s ({why})."
    counts = plan.study.counts()
    ruled_out = counts["points"] - counts["simulated"]
    return (
        f"Proved: {counts['points']:,} strategies, {counts['simulated']} simulated, {ruled_out:,} ruled out by lower bounds of time and "
        f"memory, in {plan.wall:.0f} s."
    )


def yaml_of(tree: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """A scenario as the lines of a YAML file."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and depth == 0:
            yield f"{key}:"
            yield from yaml_of(value, 1)
        else:
            yield f"{'  ' * depth}{key}: {flow(value)}"


def exports(scenario: Scenario) -> dict[str, Exported | str]:
    """Tool -> the configuration with which it runs the scenario, or why it cannot."""
    found: dict[str, Exported | str] = {}
    for tool in FILES:
        try:
            found[tool] = export(scenario, tool)
        except InputError as error:
            found[tool] = error.findings[0].message
    return found


def write(plan: BestStrategy, directory: Path) -> list[str]:
    """Write the scenario and what starts it; the names of the files."""
    contents: dict[str, Content] = {SCENARIO: "\n".join(["# found by parsim plan", *yaml_of(plan.tree()), ""]).encode()}
    for tool, exported in exports(plan.scenario).items():
        if isinstance(exported, Exported):
            contents[FILES[tool]] = exported.text.encode()
    return [path.name for path in write_together(directory, contents)]


def document(plan: BestStrategy, assumed: Sequence[Assumed]) -> dict[str, Any]:
    """The plan as one JSON document; its ``report`` is that of the best."""
    report: Report | None = None if plan.best is None else simulate(plan.scenario)
    counts = {} if plan.study is None else plan.study.counts()
    comparison = plan.against_runner_up()
    launch = {} if plan.best is None else {tool: one.launch for tool, one in exports(plan.scenario).items() if isinstance(one, Exported)}
    second = None
    if plan.runner_up is not None and comparison is not None:
        overrides = [] if plan.runner_up.place.candidate is None else list(plan.runner_up.place.candidate.overrides)
        second = {"strategy": plan.runner_up.strategy, "overrides": overrides, "why": comparison.verdict}
        second["step_time_s"] = plan.runner_up.row["step_time_s"]
    return {
        "parsim": CONTRACT_VERSION,
        "version": __version__,
        "plan": {
            "proven": plan.proven,
            "points": counts.get("points"),
            "simulated": counts.get("simulated"),
            "ruled_out": counts["points"] - counts["simulated"] if counts else None,
            "wall_s": plan.wall,
            "assumed": [{"name": one.name, "value": one.value, "source": one.source} for one in assumed],
            "improvements": [
                {"after_s": one.after, "strategy": one.strategy, "step_time_s": one.row["step_time_s"]} for one in plan.improvements
            ],
            "runner_up": second,
            "launch": launch,
        },
        "scenario": None if plan.best is None else plan.tree(),
        "report": None if report is None else report.document(),
    }
