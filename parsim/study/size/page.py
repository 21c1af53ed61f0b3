"""The answer as a page to pass on: recommendation, table, figures, assumptions, and what was not modelled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape

from parsim.report.notebook import on_paper
from parsim.report.page.markup import badge, section
from parsim.report.page.plain import plain_page
from parsim.report.plots import style
from parsim.report.plots.figure import save
from parsim.report.quantities import NONE, gib, number, percent, seconds
from parsim.report.table import Cell, Column, Content, Table
from parsim.report.verdict import WORDS
from parsim.study.size.answer import AnswerData, front, sensitivity
from parsim.study.size.prices import basis, unlike
from parsim.study.size.recommendation import Recommendation, machines_of, money, recommendation
from parsim.study.size.strategies import CODES, Configuration
from parsim.study.size.text import asked, drawings, looked_at, shown

_LIKELY, _RUNS = "Likely range (80 %)", "In the runs"
_WIDTH = 4.6
"""of a figure [inch]: drawn larger than that on a wide screen, so that its words can be read"""
_TELLING = 5e-4
"""a smaller change of what is minimised is no difference, as in the terminal"""
_LABELS = {"time-cost": "Time to train against cost", "gpus-time": "GPUs against time to train"}


def page(answer: AnswerData) -> str:
    """One HTML file that needs nothing else."""
    said = recommendation(answer)
    rows = shown(answer)
    body = (
        _banner(answer, said),
        _tiles(said.best, answer) if said.best is not None else "",
        section("The best of every kind of machine", _frozen(_table(answer, rows)) + _below(answer, rows)) if rows else "",
        section("Time, cost and number of GPUs", _figures(answer)),
        section("Machines that cannot meet it", _listed(f"{one.machine}: {one.reason}" for one in answer.machines if not one.possible)),
        section("If an assumption is wrong", _effects(answer)),
        section("Assumptions", _stacked(_assumptions(answer))),
        section("What was not modelled", _listed(not_modelled(answer))),
        section("What the search covered", _listed(looked_at(answer))),
        section("Warnings", _listed(str(finding) for finding in answer.warnings)),
    )
    return plain_page(f"Machines for {answer.question.model}", asked(answer), "\n".join(filter(None, body)))


def _banner(answer: AnswerData, said: Recommendation) -> str:
    state, mark = ("fails", "✗") if said.best is None else ("open", "≈") if said.tied or answer.interrupted else ("fits", "✓")
    lines = "".join(f"<li>{escape(line)}</li>" for line in (*said.lines, *(f"{tie.why}." for tie in answer.ties)))
    sure = "" if said.best is None else f'<p class="sure">{badge(said.best.status)} {escape(_sure(said.best))}</p>'
    return (
        f'<div class="verdict {state}" id="recommendation">'
        f'<b><span class="mark" aria-hidden="true">{mark}</span> {escape(said.sentence)}</b>'
        f"{sure}{f'<ul>{lines}</ul>' if lines else ''}</div>"
    )


def _sure(best: Configuration) -> str:
    """What stands beside the badge."""
    if best.spread is None:
        return "no likely range is known"
    low, high = (best.days * factor for factor in best.spread)
    return f"{_RUNS if best.runs is not None else _LIKELY}: {_days(low)} to {_days(high)}"


def _days(days: float) -> str:
    return f"{number(days)} days" if days >= 2 else f"{number(days * 24)} h"


def _tiles(best: Configuration, answer: AnswerData) -> str:
    """The numbers of the recommendation."""
    tiles = [
        ("Machines", f"{best.nodes} x {best.machine}", f"{best.gpus} GPUs{f', {best.idle} idle' if best.idle else ''}"),
        (
            "Time to train",
            _days(best.days),
            _sure(best),
        ),
        ("Cost", NONE if best.cost is None else money(best.cost, answer.question.currency), basis(answer.prices)),
        ("Step", seconds(best.step_time), f"{'undisturbed' if best.runs is not None else 'simulated'} {seconds(best.simulated_step_time)}"),
        ("Goodput", percent(best.goodput), f"useful time over all time{_with_slow_gpu(answer)}"),
        ("Memory to spare", f"{gib(best.headroom)} GiB", "tight: published peaks reach beyond" if best.tight else "on the fullest GPU"),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>'
            for name, value, note in tiles
        )
        + "</div>"
    )


def _with_slow_gpu(answer: AnswerData) -> str:
    slow, goodput = answer.slow_gpu, answer.slow_goodput
    return "" if slow is None else f"; {percent(goodput)} with one GPU at {slow.speed:g} of its speed"


def _table(answer: AnswerData, rows: Sequence[Configuration]) -> str:
    """One row per configuration, the recommended one first."""
    best = set(front(answer.everything))
    clean = "Undisturbed step" if answer.question.disturbed else "Simulated step"
    columns = [
        Column("Machines", align="left"), Column("Strategy", align="left"), Column("Step", "s"), Column(clean, "s"), Column("Days"),
        Column(_RUNS if answer.question.disturbed else _LIKELY), Column(f"Cost [{answer.question.currency}]"),
        Column("GPU-hours", write=lambda value: f"{value:,.0f}"), Column("Goodput", write=percent), Column("MFU", write=percent),
        Column("Memory to spare", "GiB", write=gib),
        Column("Limited by", align="left"), Column("Confidence", align="left"),
    ]  # fmt: skip
    lines = [_row(one, first=one in answer.ranked[:1], on_front=one in best) for one in rows]
    return Table(columns, lines).html("ranking", sortable=False)


def _row(one: Configuration, *, first: bool, on_front: bool) -> list[Content]:
    name = machines_of(one)
    mark = '<strong class="best">best</strong> ' if first else ""
    days = NONE if one.spread is None else f"{number(one.days * one.spread[0])} to {number(one.days * one.spread[1])}"
    cost: Content = NONE if one.cost is None else Cell(money(one.cost, "").strip(), one.cost)
    return [
        Cell(name, html=f"{mark}{escape(name)}{' *' if on_front else ''}"), str(one.strategy), one.step_time, one.simulated_step_time,
        one.days,
        days, cost, one.gpu_hours, one.goodput, one.mfu, one.headroom, WORDS[one.limiter_kind],
        Cell(one.status, html=badge(one.status)),
    ]  # fmt: skip


def _below(answer: AnswerData, rows: Sequence[Configuration]) -> str:
    notes = [f"* no other option is better in both time and {'cost' if any(one.cost is not None for one in rows) else 'GPUs'}"]
    words = [word if word in CODES else word.rstrip("0123456789") for one in rows for word in str(one.strategy).split()]
    notes.append(f"Strategy: {', '.join(f'{word} {CODES[word]}' for word in dict.fromkeys(words))}")
    notes.append("MFU: FLOP that the model needs over what the GPUs could do at their dense peak (parsim explain mfu)")
    if answer.prices:
        notes.append(f"Costs are {basis(answer.prices)}: {'; '.join(map(str, answer.prices))}")
    if warning := unlike(answer.prices):
        notes.append(warning)
    if any(one.band is not None for one in rows):
        notes.append("Steps, days and cost are estimates: simulated, then corrected by published runs, which also give the 80 % ranges")
    if counts := {one.runs.count for one in rows if one.runs is not None}:
        notes.append(f"A step is the median of {' or '.join(map(str, sorted(counts)))} disturbed runs, each on its own random cluster")
    notes += dict.fromkeys(f"No range: {one.basis}" for one in rows if one.band is None and one.basis)
    return _listed(f"{note}." for note in notes)


def _figures(answer: AnswerData) -> str:
    """As pictures in the page, light or dark as it is."""
    parts = []
    for name, drawing in drawings(answer, width=_WIDTH).items():
        svg = save(drawing, "svg", inline=True)
        parts.append(f'<figure class="drawing">{_themed(on_paper(svg, f"parsim-{sha256(svg).hexdigest()[:12]}", _LABELS[name]))}</figure>')
    return f'<div class="drawings">{"".join(parts)}</div>' if parts else ""


def _themed(svg: str) -> str:
    """Paper and ink of a picture as the page has them."""
    for drawn, themed in ((style.INK, "--ink"), (style.PAPER, "--paper"), (style.GRID, "--line")):
        svg = re.sub(rf"(fill|stroke): {drawn}\b", rf"\1: var({themed})", svg, flags=re.IGNORECASE)
    return svg.replace("background:#fff", "background:none", 1)


def _effects(answer: AnswerData) -> str:
    """The effect of each change on the answer; changes without effect in one sentence."""
    rows: list[list[Content]] = []
    silent = []
    for one in sensitivity(answer):
        if one.winner is not None and not one.moved and one.relative is not None and abs(one.relative) < _TELLING:
            silent.append(one.change)
            continue
        if one.winner is None:
            rows.append([one.change, "no option is left", NONE])
            continue
        winner = f"{machines_of(one.winner)}{' instead' if one.moved else ''}"
        against = NONE if one.relative is None else f"{100 * one.relative:+.1f} %"
        rows.append([one.change, Cell(winner, html=f"<strong>{escape(winner)}</strong>" if one.moved else escape(winner)), against])
    columns = [
        Column("Change", align="left"),
        Column("Best then", align="left"),
        Column(f"{answer.question.minimise.capitalize()}: difference"),
    ]
    table = _frozen(Table(columns, rows).html("sensitivity", sortable=False)) if rows else ""
    return table + (f"<p>No difference: {escape(', '.join(silent))}.</p>" if silent else "")


def _assumptions(answer: AnswerData) -> str:
    rows = [[one.name, one.value, one.source] for one in answer.assumed]
    return (
        Table([Column(name, align="left") for name in ("What", "Value", "Source")], rows).html("assumptions", sortable=False)
        if rows
        else ""
    )


def not_modelled(answer: AnswerData) -> Iterator[str]:
    """What the numbers leave out, for whoever signs the order."""
    yield "Whether that many machines are available at that price, discounts, and the terms of a contract"
    yield "Storage, data transfer, head nodes, staff, and any run but this one: failed experiments, evaluation, fine-tuning"
    if not answer.question.disturbed:
        yield "Slow or unequal GPUs and steps that vary: ask with --variability typical"
    if answer.question.goodput is None:
        yield "Failures other than at a constant rate, and recovery other than a restart from the last checkpoint"
    else:
        yield "Failures: the goodput is given"
    yield "Traffic of other jobs on the network, and reading the training data"
    yield "Context parallelism, selective recomputation and offloading; schedules and shardings that the question does not list"
    yield "Whether the model learns as well with this batch: only its time is simulated"


def _listed(lines: Sequence[str] | Iterator[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _stacked(table: str) -> str:
    """The cells of a row under each other where the page is narrow."""
    return f'<div class="stacked">{table}</div>' if table else ""


def _frozen(table: str) -> str:
    return f'<div class="frozen">{table}</div>' if table else ""
