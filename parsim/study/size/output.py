"""The files of an answer: the table, the document, two figures, and a scenario for every machine's best."""

from __future__ import annotations

import json
import re
from pathlib import Path

from parsim.report.plots.figure import Kind, save
from parsim.report.plots.tradeoff import Limits, Option, gpus_time_figure, time_cost_figure
from parsim.report.write import write_together
from parsim.study.fit_text import yaml_lines
from parsim.study.size.answer import Answer, document, front
from parsim.study.size.configuration import Configuration
from parsim.study.size.text import text


def figures(answer: Answer, kind: Kind = "svg", *, width: float = 7.0) -> dict[str, bytes]:
    """File name -> picture: time-cost (where there are prices) and gpus-time, of everything that was looked at."""
    options, unit, limits = _options(answer)
    found = {}
    if any(one.value is not None for one in options):
        found[f"time-cost.{kind}"] = save(time_cost_figure(options, unit, limits, width=width), kind)
    if options:
        found[f"gpus-time.{kind}"] = save(gpus_time_figure(options, limits, width=width), kind)
    return found


def scenarios(answer: Answer) -> dict[str, str]:
    """File name -> scenario of the best configuration of every machine, ready for `parsim run`."""
    return {f"{_stem(one)}.yaml": "\n".join(["# made by parsim size", *yaml_lines(one.tree, 0), ""]) for one in answer.ranked}


def _stem(one: Configuration) -> str:
    words = f"{one.tree['model']}-{one.machine}-{one.strategy.gpus}"
    return re.sub(r"[^A-Za-z0-9.]+", "-", Path(words).name).strip("-")


def write_answer(answer: Answer, directory: Path, kind: Kind = "svg") -> list[Path]:
    """size.json, size.txt and the figures; all or none. Raises OutputError if the disk says no."""
    written = json.dumps(document(answer), indent=1, ensure_ascii=False, allow_nan=False)
    return _write(directory, {"size.json": f"{written}\n".encode(), "size.txt": f"{text(answer)}\n".encode(), **figures(answer, kind)})


def write_scenarios(answer: Answer, directory: Path) -> list[Path]:
    """`scenarios` as files."""
    return _write(directory, {name: written.encode() for name, written in scenarios(answer).items()})


def _write(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    return write_together(directory, contents)


def _options(answer: Answer) -> tuple[list[Option], str, Limits]:
    found = [one for sized in answer.machines for one in sized.found]
    possible = {id(one) for one in answer.everything}
    best = {id(one) for one in front(answer.everything)}
    most = max((one.cost for one in found if one.cost is not None), default=0.0)
    scale, prefix = (1e6, "M ") if most >= 1e6 else (1e3, "k ") if most >= 1e3 else (1.0, "")
    question = answer.question
    options = [
        Option(
            one.machine, one.gpus, one.days, None if one.cost is None else one.cost / scale, one.band, id(one) in possible, id(one) in best
        )
        for one in found
    ]
    limits = Limits(
        None if question.deadline is None else question.deadline / 86400.0,
        None if question.budget is None else question.budget.amount / scale,
    )
    return options, f"{prefix}{question.currency}", limits
