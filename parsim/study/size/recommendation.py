"""The answer in one sentence: what to rent or buy, how long and for how much, how sure that is, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsim.report.quantities import gib, number, percent, seconds
from parsim.report.verdict import WORDS
from parsim.study.size.prices import BOUGHT, basis, unlike
from parsim.study.size.strategies import DAY, Configuration
from parsim.study.size.ties import ties
from parsim.units import format_count

if TYPE_CHECKING:
    from parsim.study.size.answer import AnswerData

_WORSE = {"cost": "more expensive", "time": "slower", "energy": "higher in energy"}
_SURE = {
    "validated": "validated against similar published runs",
    "interpolated": "interpolated between published runs",
    "unvalidated": "not validated: no similar published run",
}
_SHORT = 2 * DAY
"""below this a training is given in hours"""


@dataclass(frozen=True)
class Recommendation:
    """What to do, and what to know about it."""

    sentence: str
    lines: tuple[str, ...] = ()
    best: Configuration | None = None
    """None: nothing can do it"""
    tied: bool = False
    """the runner-up is not known to be worse"""


def recommendation(answer: AnswerData) -> Recommendation:
    """Of the first of the ranking."""
    if not answer.ranked:
        reasons = "; ".join(f"{sized.machine}: {sized.reason}" for sized in answer.machines if sized.reason)
        said = "Interrupted before any configuration was found" if answer.interrupted else f"No configuration {_meets(answer)}"
        return Recommendation(f"{said}{': ' if reasons else ''}{reasons}.")
    best = answer.ranked[0]
    next_words, tied = _runner_up(answer, best)
    priced = basis(answer.prices)
    aside = [
        _SURE[best.status],
        f"{gib(best.headroom)} GiB of memory {'to spare' if not best.tight else 'to spare, which is tight,'} on the fullest GPU",
    ]
    aside += [priced] if priced and best.cost is not None else []
    head = f"{_verb(answer, best)} {machines_of(best)}: {takes(answer, best)} for {format_count(answer.question.tokens)} tokens"
    sentence = f"{head} ({'; '.join(aside)}){next_words}."
    partly = "So far: " if answer.interrupted else ""
    return Recommendation(f"{partly}{sentence}", tuple(_lines(answer, best)), best, tied)


def _meets(answer: AnswerData) -> str:
    """What a configuration must do."""
    question = answer.question
    limits = [*(["deadline"] if question.deadline is not None else []), *(["budget"] if question.budget is not None else [])]
    return f"meets the {' and the '.join(limits)}" if limits else "works"


def machines_of(one: Configuration) -> str:
    """``32 x hgx-b200 (256 GPUs)``."""
    return f"{one.nodes} x {one.machine} ({one.gpus} GPU{'s' * (one.gpus != 1)})"


def takes(answer: AnswerData, one: Configuration) -> str:
    """``24.4 days and 904k USD``."""
    cost = "" if one.cost is None else f" and {money(one.cost, answer.question.currency)}"
    return f"{duration(one.seconds)}{cost}"


def duration(time: float) -> str:
    """Days, or hours of a short training."""
    return f"{number(time / DAY)} days" if time >= _SHORT else f"{number(time / 3600.0)} hours"


def money(amount: float, currency: str) -> str:
    """``3.44M USD``."""
    return f"{format_count(amount, digits=3) if amount >= 1e5 else f'{amount:,.0f}'} {currency}"


def _verb(answer: AnswerData, best: Configuration) -> str:
    kind = next((sized.price.kind for sized in answer.machines if sized.machine == best.machine and sized.price is not None), "")
    return "Buy" if kind == BOUGHT else "Rent" if kind else "Use"


def _runner_up(answer: AnswerData, best: Configuration) -> tuple[str, bool]:
    """What comes next, behind a semicolon, and whether it is a tie."""
    others = answer.ranked[1:2] or answer.everything[1:2]
    if not others:
        return ("; no other configuration was reached yet" if answer.interrupted else f"; no other configuration {_meets(answer)}"), False
    other, minimise = others[0], answer.question.minimise
    what = "the runner-up" if answer.ranked[1:] else "the next best"
    named = f"; {what}, {machines_of(other)} with {takes(answer, other)},"
    ours, theirs = best.objective(minimise), other.objective(minimise)
    if not ours or not theirs:
        return f"{named} has no price", False
    if minimise == "gpus":
        return f"{named} needs {number(theirs - ours)} GPUs more" if theirs > ours else f"{named} needs as many GPUs", False
    more = f"{percent(theirs / ours - 1)} {_WORSE[minimise]}"
    found = ties([best, other], minimise)
    if not found:
        return f"{named} is {more}, beyond the usual error of such predictions", False
    tie = found[0]
    if tie.verdict == "tie" or (tie.band is not None and best.machine == other.machine):
        overlap = "their bands overlap and " if _overlap(best, other) else ""
        return f"{named} is a tie: {more}, but {overlap}published pairs of runs are off by as much", True
    return f"{named} is {more}, but published runs are too few to tell the two apart", True


def _overlap(one: Configuration, other: Configuration) -> bool:
    """Whether the bands of their times do."""
    if one.spread is None or other.spread is None:
        return False
    return max(one.seconds * one.spread[0], other.seconds * other.spread[0]) <= min(
        one.seconds * one.spread[1], other.seconds * other.spread[1]
    )


def _lines(answer: AnswerData, best: Configuration) -> Iterator[str]:
    question = answer.question
    yield f"Strategy: {best.strategy}; step {seconds(best.step_time)}, MFU {percent(best.mfu)}, limited by {WORDS[best.limiter_kind]}."
    if best.runs is not None:
        yield _disturbed(best)
    elif best.band is not None:
        low, high = best.band
        cost = ""
        if best.cost is not None:
            cost = f", {money(best.cost_at(low), question.currency)} to {money(best.cost_at(high), question.currency)}"
        yield f"Likely range (80 %): {duration(best.seconds * low)} to {duration(best.seconds * high)}{cost}."
    if question.deadline is not None and best.spread is not None and best.seconds * best.spread[1] > question.deadline:
        slow = duration(best.seconds * best.spread[1])
        yield f"It may miss the deadline of {duration(question.deadline)}: the slow end of the range is {slow}."
    if answer.prices:
        yield f"Prices: {'; '.join(map(str, answer.prices))}."
    if warning := unlike(answer.prices):
        yield f"Caution: {warning}."
    if question.disturbed and any(machine.variability is None for machine in question.machines):
        steady = ", ".join(machine.label for machine in question.machines if machine.variability is None)
        yield f"Without variability: {steady}. The ranking compares its undisturbed steps with disturbed ones."


def _disturbed(best: Configuration) -> str:
    runs = best.runs
    if runs is None or runs.count == 1:
        return f"Step with the slow ranks: {seconds(best.step_time)}; undisturbed {seconds(best.simulated_step_time)}."
    ends = f"{seconds(best.step_time * runs.least)} to {seconds(best.step_time * runs.most)}"
    return (
        f"Ranked by the disturbed step: median of {runs.count} runs {seconds(best.step_time)}, from {ends};"
        f" undisturbed {seconds(best.simulated_step_time)}."
    )
