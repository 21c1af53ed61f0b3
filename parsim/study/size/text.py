"""The answer as text (the ranked table, what cannot do it and why, what was assumed, what would change it), and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from parsim.report.narrow import narrow
from parsim.report.plots.figure import Drawing, Kind, save
from parsim.report.plots.tradeoff import Limits, Option, gpus_time_figure, time_cost_figure
from parsim.report.quantities import NONE, gib, number, percent
from parsim.report.table import Column, Table
from parsim.report.verdict import WORDS
from parsim.report.write import write_together
from parsim.study.fit_text import yaml_lines
from parsim.study.size.answer import AnswerData, BetterConfiguration, Sensitivity, Sized, document, front, ranking, sensitivity
from parsim.study.size.asking import UNFINISHED
from parsim.study.size.prices import basis
from parsim.study.size.question import SizeQuestion
from parsim.study.size.recommendation import duration, machines_of, money, recommendation
from parsim.study.size.strategies import Configuration
from parsim.units import format_count, format_time

MWH = 3.6e9
"""joules"""
_TELLING = 5e-4
"""a smaller change of what is minimised is no difference"""
_WIDTH = 100
"""columns of running text"""
_UNKNOWN = "no published run on such a GPU with such a strategy shows how large the error may be"
_WORDS = {"cost": "the cost", "gpus": "the number of GPUs", "energy": "the energy", "time": "the time"}


def text(answer: AnswerData, columns: int | None = None) -> str:
    """Everything for a terminal of so many columns: tables go on below, other lines are wrapped. None: however wide it is."""
    said = recommendation(answer)
    parts = [
        [fill(said.sentence, columns or _WIDTH, break_on_hyphens=False), *(f"  {line}" for line in said.lines)],
        [asked(answer)],
        _table(answer, columns),
        list(_impossible(answer)),
        list(_sensitivity(answer, columns)),
        list(_notes(answer)),
        list(_assumed(answer)),
        list(_looked(answer)),
        [f"warning: {finding}" for finding in answer.warnings],
    ]
    whole = "\n\n".join("\n".join(lines) for lines in parts if lines)
    return whole if columns is None else "\n".join(_wrapped(line, columns) for line in whole.splitlines())


def _wrapped(line: str, columns: int) -> str:
    """A line of words in several; those of tables are no longer than the terminal is wide."""
    return line if len(line) <= columns else fill(line, columns, subsequent_indent="    ", break_on_hyphens=False)


def improvement(one: BetterConfiguration) -> str:
    """A line about what is best so far."""
    cost = "" if one.found.cost is None else f" and {money(one.found.cost, one.found.economics.currency)}"
    return f"{one.after:5.1f} s  best so far: {machines_of(one.found)}, {duration(one.found.seconds)}{cost}, {one.found.strategy}"


def asked(answer: AnswerData) -> str:
    """The question, and the recipe that it comes to, in a line."""
    question, recipe = answer.question, answer.recipe
    limits = []
    if question.deadline is not None:
        limits.append(f"in {format_time(question.deadline)}")
    if question.budget is not None:
        limits.append(f"for at most {money(question.budget.amount, question.currency)}")
    size = format_count(answer.parameters)
    return (
        f"{question.model} ({size} parameters), {format_count(question.tokens)} tokens {' and '.join(limits)}".rstrip()
        + f", least {question.minimise} first; sequence {recipe.sequence_length}, global batch {recipe.global_batch}"
        + f" ({format_count(recipe.tokens_per_step, digits=3)} tokens)"
    )


def shown(answer: AnswerData) -> list[Configuration]:
    """The rows of the table: the best of every machine, `top` of each; all of them where the question gives the numbers of GPUs."""
    rows: list[Configuration] = []
    for sized, machine in zip(answer.machines, answer.question.machines, strict=True):
        rows += sized.possible if machine.gpus else sized.possible[: answer.question.top]
    return ranking(rows, answer.question.minimise)


def _table(answer: AnswerData, columns: int | None) -> list[str]:
    """Two tables of the same rows, since one would be wider than a terminal."""
    rows = shown(answer)
    if not rows:
        return []
    scale, prefix = _scale([one.cost for one in rows])
    unit = f"{prefix}{answer.question.currency}"
    best = set(front(answer.everything))
    places = [f"{place}{'*' if one in best else ''}" for place, one in enumerate(rows, 1)]
    words, limited = (
        [Column(name, align="left") for name in ("", "machine", "GPUs (nodes)", "strategy")],
        Column("limited by", "", "left", margin=1),
    )
    numbers = [Column("step", "s"), Column("days"), Column("GPU-hours"), Column("cost", unit), Column("MFU")]
    limited = Column("limited by", align="left", margin=1)
    lines = [
        Table([*words, *numbers, limited], [(place, *_what(one, scale)) for place, one in zip(places, rows, strict=True)]).text(columns)
    ]
    lines += _disturbed(rows)
    if any(one.band is not None for one in rows):
        lines.append("steps, days and cost are estimates: simulated, then corrected by published runs, which also give the 80 % ranges")
    if any(place.endswith("*") for place in places):
        lines.append(f"* no other option is better in both time and {'cost' if any(one.cost is not None for one in rows) else 'GPUs'}")
    if tags := answer.prices:
        lines.append(f"cost: {basis(tags)}")
    lines += [tie.why for tie in answer.ties]
    ends = "80 % range" if not answer.question.disturbed else "range of runs"
    sure = (
        "GPUs",
        "goodput",
        "energy [MWh]",
        "head-room [GiB]",
        f"{_clean(answer)} step [s]",
        f"days, {ends}",
        f"cost [{unit}], {ends}",
        "confidence",
    )
    rest = [(place, *_how_sure(one, scale)) for place, one in zip(places, rows, strict=True)]
    lines += ["", Table([*words[:2], *map(Column, sure)], rest).text(columns)]
    lines += [f"{NONE}: {why}" for why in dict.fromkeys(one.basis or _UNKNOWN for one in rows if one.band is None)]
    lines += _failures(rows[0]) + _slow_gpu(answer)
    late = [place for place, one in zip(places, rows, strict=True) if _may_be_late(one, answer.question)]
    if late:
        lines.append(f"at the slow end of the range, {', '.join(late)} may miss the deadline")
    return lines


def _what(one: Configuration, scale: float) -> tuple[str, ...]:
    idle = f", {one.idle} idle" if one.idle else ""
    return (
        one.machine, f"{one.gpus} ({one.nodes}{idle})", str(one.strategy), number(one.step_time), number(one.days), f"{one.gpu_hours:,.0f}",
        NONE if one.cost is None else number(one.cost / scale), percent(one.mfu), WORDS[one.limiter_kind],
    )  # fmt: skip


def _how_sure(one: Configuration, scale: float) -> tuple[str, ...]:
    days = cost = NONE
    if one.spread is not None:
        low, high = one.spread
        days = f"{number(one.days * low)}-{number(one.days * high)}"
        cost = NONE if one.cost is None else f"{number(one.cost_at(low) / scale)}-{number(one.cost_at(high) / scale)}"
    energy = NONE if one.energy is None else number(one.energy / MWH)
    room = gib(one.headroom) + (" tight" if one.tight else "")
    return one.machine, str(one.gpus), percent(one.goodput), energy, room, number(one.simulated_step_time), days, cost, one.status


def _disturbed(rows: list[Configuration]) -> list[str]:
    """What stands for a step where machines and steps differ."""
    counts = sorted({one.runs.count for one in rows if one.runs is not None})
    if not counts:
        return []
    many = " or ".join(map(str, counts))
    lines = [
        f"a step is the median of {many} disturbed runs, each on its own random cluster; goodput, days and cost follow from it",
        "the strategy for each number of GPUs is the fastest without disturbances; published runs do not correct these steps",
    ]
    seen = {one.runs.method for one in rows if one.runs is not None and one.runs.method.startswith("longest")}
    return lines + [f"how the runs were found: {method}" for method in sorted(seen)]


def _failures(best: Configuration) -> list[str]:
    """How often the best one fails, and what is done about it."""
    failures = best.economics.failures
    if failures is None:
        return []
    low, high = best.goodput_band or (best.goodput, best.goodput)
    every, between = format_time(failures.interval, digits=3), format_time(failures.mtbf, digits=3)
    return [
        f"Option 1: one failure every {between}; best checkpoint interval {every} (Daly), {format_time(failures.checkpoint)} each",
        f"Option 1: goodput {100 * low:.1f} % to {100 * high:.1f} % (80 % range, by the chance of failures)",
    ]


def _slow_gpu(answer: AnswerData) -> list[str]:
    """What the goodput of the best one is with one slow GPU."""
    if answer.slow_gpu is None or answer.slow_goodput is None:
        return []
    said = answer.slow_gpu.sentence()
    return [
        f"Option 1, undisturbed: {said[:1].lower()}{said[1:-1]}",
        f"Option 1: goodput {percent(answer.slow_goodput)} with that slow GPU, {percent(answer.ranked[0].goodput)} without",
    ]


def _may_be_late(one: Configuration, question: SizeQuestion) -> bool:
    return one.spread is not None and question.deadline is not None and one.seconds * one.spread[1] > question.deadline


def _clean(answer: AnswerData) -> str:
    return "undisturbed" if answer.question.disturbed else "simulated"


def _scale(costs: list[float | None]) -> tuple[float, str]:
    most = max((cost for cost in costs if cost is not None), default=0.0)
    return (1e6, "M ") if most >= 1e6 else (1e3, "k ") if most >= 1e4 else (1.0, "")


def _impossible(answer: AnswerData) -> Iterator[str]:
    for sized in answer.machines:
        if not sized.possible:
            yield f"{sized.machine}: {sized.reason}." if sized.reason == UNFINISHED else f"{sized.machine} cannot: {sized.reason}."


def _sensitivity(answer: AnswerData, width: int | None) -> Iterator[str]:
    effects = sensitivity(answer)
    if not effects:
        return
    telling = [one for one in effects if one.moved or one.relative is None or abs(one.relative) >= _TELLING]
    yield f"If an assumption is wrong: the best option then, and the change of {_WORDS[answer.question.minimise]}"
    columns = [Column("change", align="left"), Column("winner", align="left"), Column("difference")]
    table = Table(columns, [_effect(one) for one in telling])
    yield "\n\n".join(part.text() for part in ([table] if width is None else narrow(table, width)))
    if silent := [one.change for one in effects if one not in telling]:
        yield f"no difference: {', '.join(silent)}"


def _effect(one: Sensitivity) -> tuple[str, str, str]:
    if one.winner is None:
        return one.change, "no option is left", NONE
    winner = f"{one.winner.machine}, {one.winner.gpus} GPUs" + (" instead" if one.moved else "")
    return one.change, winner, NONE if one.relative is None else f"{100 * one.relative:+.1f} %"


def _notes(answer: AnswerData) -> Iterator[str]:
    for sized in answer.machines:
        for note in sized.notes:
            yield f"{sized.machine}: {note}"


def _assumed(answer: AnswerData) -> Iterator[str]:
    assumed = answer.assumed
    if assumed:
        yield "Assumed"
        for one in assumed:
            yield f"  {one.name}: {one.value} ({one.source})"


def _looked(answer: AnswerData) -> Iterator[str]:
    yield "What the search covered"
    for line in looked_at(answer):
        yield f"  {line}"


def looked_at(answer: AnswerData) -> Iterator[str]:
    """Which strategies, and how many candidates of every machine."""
    yield _lattice(answer.question)
    yield from map(_tally, answer.machines)


def _lattice(question: SizeQuestion) -> str:
    micro = ", ".join(map(str, question.micro_batches))
    chunks = " with 2 or 4 virtual stages" if "interleaved" in question.schedules else ""
    again = "none, MLPs alone where all layers have one, or all layers" if "auto" in question.recompute else " or ".join(question.recompute)
    return (
        "strategies: tensor parallelism by powers of two within a machine, with sequence parallelism; pipelines of equally many layers, at"
        f" most 16 stages, {' or '.join(question.schedules)}{chunks}; data parallelism {' or '.join(question.sharding)}; micro-batches of"
        f" {micro}; recomputation: {again}; software {question.software}"
    )


def _tally(sized: Sized) -> str:
    tally = sized.tally
    grid = (
        f"{sized.grid[0]} to {sized.grid[-1]} GPUs in {len(sized.grid)} numbers"
        if len(sized.grid) > 1
        else f"{sized.grid[0] if sized.grid else 0} GPUs"
    )
    return (
        f"{sized.machine}: {grid}; {tally.considered:,} candidates: {tally.refused} impossible, {tally.too_large} proven not to fit,"
        f" {tally.too_slow} proven too slow, {tally.simulated} simulated"
    )


def drawings(answer: AnswerData, *, width: float = 7.0) -> dict[str, Drawing]:
    """Name -> figure: time-cost (where there are prices) and gpus-time, of everything that was looked at."""
    options, unit, limits = _options(answer)
    found: dict[str, Drawing] = {}
    if any(one.value is not None for one in options):
        found["time-cost"] = time_cost_figure(options, unit, limits, width=width)
    if options:
        bands = "shortest to longest disturbed run" if answer.question.disturbed else "likely range (80 %)"
        found["gpus-time"] = gpus_time_figure(options, limits, width=width, bands=bands)
    return found


def figures(answer: AnswerData, kind: Kind = "svg", *, width: float = 7.0) -> dict[str, bytes]:
    """File name -> picture, of `drawings`."""
    return {f"{name}.{kind}": save(drawing, kind) for name, drawing in drawings(answer, width=width).items()}


def scenarios(answer: AnswerData) -> dict[str, str]:
    """File name -> scenario of the best configuration of every machine, ready for `parsim run`."""
    return {f"{_stem(one)}.yaml": "\n".join(["# made by parsim size", *yaml_lines(one.tree, 0), ""]) for one in answer.ranked}


def _stem(one: Configuration) -> str:
    words = f"{one.tree['model']}-{one.machine}-{one.strategy.gpus}"
    return re.sub(r"[^A-Za-z0-9.]+", "-", Path(words).name).strip("-")


def write_answer(answer: AnswerData, directory: Path, kind: Kind = "svg") -> list[Path]:
    """size.json, size.txt, size.html and the figures; all or none. Raises OutputError if the disk says no."""
    from parsim.study.size.page import page

    written = json.dumps(document(answer), indent=1, ensure_ascii=False, allow_nan=False)
    texts = {"size.json": f"{written}\n", "size.txt": f"{text(answer)}\n", "size.html": page(answer)}
    return write_together(directory, {**{name: one.encode() for name, one in texts.items()}, **figures(answer, kind)})


def write_scenarios(answer: AnswerData, directory: Path) -> list[Path]:
    """`scenarios` as files."""
    return write_together(directory, {name: written.encode() for name, written in scenarios(answer).items()})


def _options(answer: AnswerData) -> tuple[list[Option], str, Limits]:
    configurations = [one for sized in answer.machines for one in sized.found]
    possible, best = set(answer.everything), set(front(answer.everything))
    most = max((one.cost for one in configurations if one.cost is not None), default=0.0)
    scale, prefix = (1e6, "M ") if most >= 1e6 else (1e3, "k ") if most >= 1e3 else (1.0, "")
    question = answer.question
    options = [
        Option(
            one.machine,
            one.gpus,
            one.days,
            None if one.cost is None else one.cost / scale,
            one.spread,
            one in possible,
            one in best,
            one in answer.ranked[:1],
        )
        for one in configurations
    ]
    limits = Limits(
        None if question.deadline is None else question.deadline / 86400.0,
        None if question.budget is None else question.budget.amount / scale,
    )
    return options, f"{prefix}{question.currency}", limits
