"""What `parsim plan` prints and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parsim.errors import Finding, InputError
from parsim.interop.export_draft import Exported
from parsim.interop.formats import export
from parsim.report.quantities import percent, seconds
from parsim.report.report import Report
from parsim.report.write import Content, write_together
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario, flow
from parsim.study.automatic import question, starting_point
from parsim.study.best_strategy import BestStrategy, FasterStrategy
from parsim.study.runner_up import why_slower
from parsim.study.size.question import Assumed
from parsim.units import format_time
from parsim.version import CONTRACT_VERSION, __version__

FILES = {"megatron": "megatron.sh", "deepspeed": "deepspeed.json", "torchtitan": "torchtitan.toml", "fsdp": "accelerate-fsdp.yaml"}
"""tool -> the file of its configuration"""
CALLED = {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed", "torchtitan": "torchtitan", "fsdp": "accelerate"}
"""tool -> what its users call it"""
SHARDINGS = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp": "FSDP"}
"""strategy -> what its authors call it"""
SCENARIO = "scenario.yaml"
_WITH = {
    "parallel.tensor.sequence_parallel": " with sequence parallelism",
    "parallel.tensor.size": " with tensor parallelism",
    "parallel.pipeline.size": " with pipeline parallelism",
    "training.precision": " in this precision",
}
"""key that a tool refuses -> what that is in a sentence"""


def question_text(base: Scenario, assumed: Sequence[Assumed]) -> str:
    """What is asked: model, machines, batch, precision; with the sources of what was assumed."""
    asked, kept = question(base)
    built = build(starting_point(asked, kept))
    training = built.training
    tokens = f" of {training.sequence_length:,} tokens" if built.model.sequence else ""
    free = f", keeping {built.memory_reserve / 2**30:.4g} GiB free on each GPU" if built.memory_reserve else ""
    lines = [
        f"{built.model.name} on {built.used_gpus} x {built.kinds[0].name} ({built.cluster.name}){free}",
        f"{training.global_batch:,} samples{tokens} per step",
        software_text(asked),
    ]
    return "\n".join([*lines, *(f"  {one.name}: {one.value}, {one.source}" for one in assumed), ""])


def software_text(base: Scenario) -> str:
    """Which software stack the strategies are searched for."""
    profile = base.settings.software.profile
    if profile == "auto":
        return "Software: each strategy with the stack that usually runs it"
    return f"Software: {profile} for all strategies; another one: --software torchtitan, or software.profile in the scenario"


def improvement(one: FasterStrategy) -> str:
    """A line of the search."""
    mfu = "" if one.row["mfu"] is None else f", MFU {percent(one.row['mfu'])}"
    return f"{one.after:5.0f} s  {seconds(one.row['step_time_s'])}{mfu}: {one.strategy}"


def answer(plan: BestStrategy) -> str:
    """The best strategy, how far that is proved, the next best and why it loses, the scenario."""
    if plan.best is None:
        whole = "no strategy fits into memory" if plan.proven else "no strategy that fits into memory was found yet"
        return "\n".join([f"\n{whole}: {_searched(plan)}", *nearby_lines(plan)])
    report = simulate(plan.scenario)
    said = report.headline
    lines = [
        "",
        f"Best: {plan.best.strategy}",
        f"Software: {build(plan.scenario).runtime.profile}",
        *said.lines,
        f"[{said.badge}] {said.band}",
    ]
    lines += [*training_lines(report), _searched(plan)]
    lines += nearby_lines(plan)
    if plan.runner_up is not None:
        other = simulate(plan.with_strategy(plan.runner_up))
        lines += [f"Runner-up: {plan.runner_up.strategy}", why_slower(report.document(), other.document())]
    return "\n".join([*lines, "", *yaml_of(plan.tree()), "", *launches(plan.scenario)])


def nearby_lines(plan: BestStrategy) -> list[str]:
    """That another number of GPUs is much better, where the one that was asked for divides badly."""
    if not plan.nearby:
        return []
    asked = build(starting_point(*question(plan.base))).used_gpus
    own = "does not fit" if plan.best is None else f"takes {seconds(plan.best.row['step_time_s'])}"
    others = " and ".join(f"{seconds(one.row['step_time_s'])} on {gpus} GPUs" for gpus, one in plan.nearby)
    return [f"{asked} GPUs divide badly: the step {own}, but {others} (simulated, usual strategies only)"]


def training_lines(report: Report) -> list[str]:
    """How long the whole training takes and what it costs, as far as the scenario says how long it is and what a GPU costs."""
    estimate = report.estimate
    if (time := estimate.time_to_train_s) is None:
        return []
    cost = estimate.document()["cost_to_train"]
    currency = report.measured.scenario["economics"]["currency"]
    hour = next((one for one in report.measured.assumptions if one.name == "gpu_hour"), None)
    at = "" if hour is None else f" at {hour.value} per GPU-hour ({hour.source.partition(':')[0]})"
    price = "no price of these GPUs is known: add economics.gpu_hour" if cost is None else f"{cost:,.0f} {currency}{at}"
    return [f"Whole training: {format_time(time, digits=3)}, {price}; nothing fails (`parsim size` counts failures)"]


def launches(scenario: Scenario) -> list[str]:
    """What starts it with every tool that can, and why the others cannot."""
    lines = []
    for tool, exported in exports(scenario).items():
        said = exported if isinstance(exported, str) else exported.launch.replace("FILE", FILES[tool])
        lines.append(f"{CALLED[tool]}: {said}")
    return lines


def summary(found: Mapping[str, Any]) -> str:
    """A report's `plan` in lines: what was found, how far it is proved, and why the next one loses."""
    lines = [f"Strategy found: {found['strategy']}", _proof(found)]
    if (second := found["runner_up"]) is not None:
        lines.append(f"Runner-up: {second['strategy']}. {second['why']}")
    return "\n".join(lines)


def _searched(plan: BestStrategy) -> str:
    return _proof(_counts(plan))


def _proof(found: Mapping[str, Any]) -> str:
    """How far the search went."""
    if not found["proven"]:
        return f"Not proved to be the fastest: the search ended after {found['wall_s']:.0f} s."
    return (
        f"Proved the fastest of {found['points']:,} strategies: {found['simulated']} simulated, {found['ruled_out']:,} ruled out by lower "
        f"bounds of time and memory, in {found['wall_s']:.0f} s."
    )


def _counts(plan: BestStrategy) -> dict[str, Any]:
    """What was searched."""
    counts = {} if plan.study is None else plan.study.counts()
    return {
        "proven": plan.proven,
        "points": counts.get("points"),
        "simulated": counts["simulated"] + counts["judged"] if counts else None,
        "ruled_out": counts.get("passed"),
        "wall_s": plan.wall,
    }


def record(plan: BestStrategy) -> dict[str, Any]:
    """The report's `plan`: what was searched, the strategy, the next best and why it loses, what starts it with each tool."""
    if plan.best is None:
        return {**_counts(plan), "strategy": None, "software": plan.base.settings.software.profile, "runner_up": None, "launch": {}}
    second = None
    if plan.runner_up is not None:
        scenario = plan.with_strategy(plan.runner_up)
        best, other = simulate(plan.scenario).document(), simulate(scenario).document()
        candidate = plan.runner_up.place.candidate
        second = {
            "strategy": plan.runner_up.strategy,
            "overrides": [] if candidate is None else list(candidate.overrides),
            "scenario": scenario.document(),
            "step_time_s": other["step_time_s"],
            "estimate": other["estimate"],
            "why": why_slower(best, other),
        }
    launch = {tool: _launch(tool, one) for tool, one in exports(plan.scenario).items()}
    nearby = [{"gpus": gpus, "strategy": one.strategy, "step_time_s": one.row["step_time_s"]} for gpus, one in plan.nearby]
    return {
        **_counts(plan),
        **({"nearby": nearby} if nearby else {}),
        "strategy": plan.best.strategy,
        "software": plan.base.settings.software.profile,
        "runner_up": second,
        "launch": launch,
    }


def _launch(tool: str, exported: Exported | str) -> dict[str, str]:
    if isinstance(exported, str):
        return {"refused": exported}
    return {"file": FILES[tool], "command": exported.launch.replace("FILE", FILES[tool]), "text": exported.text}


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
            found[tool] = _refusal(error.listed[0])
    return found


def _refusal(finding: Finding) -> str:
    """``not possible with ZeRO-1. FSDP shards gradients wherever it shards optimizer states``."""
    value = None if finding.value is None else flow(finding.value)
    why = finding.message.removeprefix(f"{value}: ")
    if finding.path == "parallel.data.strategy":
        return f"not possible with {SHARDINGS.get(str(finding.value), value)}. {why}"
    return f"not possible{_WITH.get(finding.path, '')}. {why}"


def write(plan: BestStrategy, directory: Path) -> list[str]:
    """Write the scenario and what starts it; the names of the files."""
    contents: dict[str, Content] = {SCENARIO: "\n".join(["# found by parsim plan", *yaml_of(plan.tree()), ""]).encode()}
    for tool, exported in exports(plan.scenario).items():
        if isinstance(exported, Exported):
            contents[FILES[tool]] = exported.text.encode()
    return [path.name for path in write_together(directory, contents)]


def document(plan: BestStrategy, assumed: Sequence[Assumed]) -> dict[str, Any]:
    """The plan as one JSON document; its ``report`` is that of the best."""
    found = record(plan)
    found["assumed"] = [{"name": one.name, "value": one.value, "source": one.source} for one in assumed]
    found["improvements"] = [
        {"after_s": one.after, "strategy": one.strategy, "step_time_s": one.row["step_time_s"]} for one in plan.improvements
    ]
    return {
        "parsim": CONTRACT_VERSION,
        "version": __version__,
        "plan": found,
        "scenario": None if plan.best is None else plan.tree(),
        "report": None if plan.best is None else simulate(plan.scenario).document(),
    }
