"""From flags or a file to a `SizeQuestion`: one reader for both, all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from parsim import units
from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.economics import Money
from parsim.scenario.shortforms import box
from parsim.scenario.sold import one_machine, oversold
from parsim.scenario.values import did_you_mean, shown
from parsim.scenario.yaml_tree import Origin
from parsim.study.axes import short_keys, split_values
from parsim.study.size import entries
from parsim.study.size.question import OBJECTIVES, RECOMPUTE, SCHEDULES, SHARDING, Machine, SizeQuestion, parse_money

T = TypeVar("T")
MARK = "size"
"""a file with this key at its top is a question"""
KEYS = (
    "model", "tokens", "on", "days", "hours", "budget", "minimise", "sequence_length", "global_batch", "micro_batch", "precision",
    "software", "recompute", "schedule", "strategy",
    "gpus", "max_gpus", "gpu_hour", "buy", "years", "power_price", "pue", "mtbf", "checkpoint_time",
    "restart_time", "goodput", "set", "top", "exhaustive", "variability", "runs",
)  # fmt: skip
_FORMER = "sharding"
"""what the key strategy was called before; it is still read"""
_DAY, _HOUR = 86400.0, 3600.0
_MOST_GPUS = 1_000_000
_MOST_RUNS = 1000
_NAMED = ("gpu_hour", "buy", "gpus", "variability")
"""keys that may have a value for each machine"""


def question_file(name: str) -> Path | None:
    """The file of a question: one that comes with parsim, or a path; None for anything else, such as a model."""
    if name in (known := shipped_questions()):
        return known[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    try:
        return path if MARK in files.read(path).tree else None
    except ScenarioError:
        return path  # reading it again says what is wrong


def shipped_questions() -> dict[str, Path]:
    """Name -> file of the questions that come with parsim."""
    return {path.stem: path for path in sorted((files.data_root() / "studies" / "size").glob("*.yaml"))}


def asked(name: str, keys: Mapping[str, Any]) -> SizeQuestion:
    """The question about a model, or in a file, with `keys` on top. Raises as `read_question` does."""
    file = question_file(name)
    return read_question(None, {"model": name, **keys}) if file is None else read_question(file, keys)


def read_question(file: str | Path | None, flags: Mapping[str, Any]) -> SizeQuestion:
    """The question in a file's ``size:`` (None: no file), with `flags` on top: key -> value as in the file.

    Raises:
        ScenarioError: every mistake at once, with its place.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    findings: list[Finding] = []
    if file is not None:
        document = files.read(file)
        written = document.tree.get(MARK)
        findings += [
            Finding("unknown key beside size", key, value, "write everything under size:", *document.locate(key))
            for key, value in document.tree.items()
            if key != MARK
        ]
        if isinstance(written, Mapping):
            tree = {str(key): value for key, value in written.items()}
            origins = {key: document.locate(f"{MARK}.{key}") for key in tree}
        else:
            findings.append(Finding(f"{shown(written)} is not a mapping", MARK, written, "", *document.locate(MARK)))
    given = {key: value for key, value in flags.items() if value is not None}
    tree |= given
    if _FORMER in tree and "strategy" not in tree:
        tree["strategy"] = tree.pop(_FORMER)
        origins |= {"strategy": origins.pop(_FORMER)} if _FORMER in origins else {}
        given |= {"strategy": given.pop(_FORMER)} if _FORMER in given else {}
    reader = _QuestionReader(tree, {key: place for key, place in origins.items() if key not in given}, findings)
    question = reader.question(None if file is None else str(Path(file).parent))
    if findings or question is None:
        raise ScenarioError(findings)
    return question


class _QuestionReader:
    def __init__(self, tree: Mapping[str, Any], origins: Mapping[str, Origin], findings: list[Finding]) -> None:
        self.tree, self.origins, self.findings = tree, origins, findings

    def problem(self, key: str, message: str, value: Any = None, suggestion: str = "") -> None:
        """Remember a mistake under the name by which the user gave the key."""
        if (place := self.origins.get(key)) is not None:
            self.findings.append(Finding(message, f"{MARK}.{key}", value, suggestion, *place))
        else:
            flag = "MODEL" if key == "model" else f"--{key.replace('_', '-')}"
            self.findings.append(Finding(message, flag, value, suggestion))

    def read(self, key: str, convert: Callable[[Any], T]) -> T | None:
        """The converted value; None if it is not given or wrong."""
        value = self.tree.get(key)
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            self.problem(key, str(error), value)
            return None

    # -- the whole --------------------------------------------------------------------------------------------------

    def question(self, folder: str | None) -> SizeQuestion | None:
        for key, value in self.tree.items():
            if key not in KEYS:
                self.problem(key, "unknown key of a question", value, did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}")
        for key, example in (("model", "llama-2-70b"), ("tokens", "2T"), ("on", "hgx-h100")):
            if self.tree.get(key) is None:
                self.problem(key, "is missing", None, f"for example {example}")
        model = self.read("model", self._model(folder))
        deadline = self._deadline()
        budget = self.read("budget", lambda value: parse_money(value, "5M USD"))
        machines = self._machines(folder)
        fixed = any(machine.gpus for machine in machines)
        if deadline is None and budget is None and not fixed and not any(self.tree.get(key) for key in ("days", "hours", "budget", "gpus")):
            self.problem("days", "no limit given", None, "add --days, --hours, --budget or --gpus (in a file: days: 60)")
        tokens = self.read("tokens", lambda value: units.parse(value, "count"))
        if tokens is not None and tokens < 1:
            self.problem("tokens", "must be at least one token", self.tree["tokens"])
        words: dict[str, Any] = {
            "minimise": self.read("minimise", entries.one_of(OBJECTIVES)), "recompute": self.read("recompute", entries.some_of(RECOMPUTE)),
            "schedules": self.read("schedule", entries.some_of(SCHEDULES)), "sharding": self.read("strategy", entries.some_of(SHARDING)),
            "precision": self.read("precision", entries.text), "software": self.read("software", self._software),
        }  # fmt: skip
        numbers = self._numbers()
        currency = self._currency(machines, budget, numbers["power_price"])
        given = {key: value for key, value in {**words, **numbers}.items() if value is not None}
        if self.findings or model is None or tokens is None:
            return None
        return SizeQuestion(
            model=model,
            tokens=float(tokens),
            machines=machines,
            deadline=deadline,
            budget=budget,
            currency=currency,
            **given,
        )

    def _numbers(self) -> dict[str, Any]:
        whole, number = entries.whole, entries.number
        readers: dict[str, Callable[[Any], Any]] = {
            "sequence_length": whole(1, 2**30), "global_batch": entries.batch, "micro_batch": entries.wholes(2**20),
            "max_gpus": whole(1, _MOST_GPUS), "power_price": lambda value: parse_money(value, "0.10 USD"), "pue": number(1.0, 10.0),
            "mtbf": entries.time, "checkpoint_time": entries.time, "restart_time": entries.time, "goodput": entries.share,
            "years": number(0.01, 100.0), "runs": whole(1, _MOST_RUNS), "top": whole(1, 1000), "exhaustive": entries.flag,
        }  # fmt: skip
        numbers = {key: self.read(key, convert) for key, convert in readers.items()}
        return {"micro_batches": numbers.pop("micro_batch"), **numbers}

    def _deadline(self) -> float | None:
        days, hours = self.read("days", entries.positive), self.read("hours", entries.positive)
        if days is not None and hours is not None:
            self.problem("hours", "days and hours are both given", self.tree["hours"], "give one of them")
        return days * _DAY if days is not None else hours * _HOUR if hours is not None else None

    def _currency(self, machines: Sequence[Machine], *others: Money | None) -> str:
        """The one currency of all prices; nothing is converted."""
        prices = [machine.gpu_hour for machine in machines] + [
            machine.purchase.price for machine in machines if machine.purchase is not None
        ]
        named = list(dict.fromkeys(price.currency for price in (*others, *prices) if price is not None and price.currency))
        if len(named) > 1:
            self.problem("budget", f"prices in {' and '.join(named)} are not converted", None, "write all of them in one currency")
        return named[0] if named else "USD"

    def _model(self, folder: str | None) -> Callable[[Any], str]:
        def convert(value: Any) -> str:
            name = entries.text(value)
            try:
                path = files.find("models", name, None if folder is None else Path(folder) / "question.yaml")
            except ScenarioError as error:
                raise ValueError(_said(error)) from None
            return path.stem if files.is_shipped(path) else str(path.resolve())

        return convert

    def _software(self, value: Any) -> str:
        try:
            path = files.find("software", entries.text(value))
        except ScenarioError as error:
            raise ValueError(_said(error)) from None
        return path.stem if files.is_shipped(path) else str(path)

    # -- machines -----------------------------------------------------------------------------------------------------

    def _machines(self, folder: str | None) -> tuple[Machine, ...]:
        names = self.read("on", lambda value: [entries.text(item) for item in entries.items(value)]) or []
        known: dict[str, str] = {}
        for name in names:
            if names.count(name) > 1 and name not in known:
                self.problem("on", f"{name} is listed twice", self.tree["on"])
            if (topology := self._topology(name, folder)) is not None:
                known[name] = topology
        each = {key: self._for_each(key, names) for key in _NAMED}
        variants = self._variants()
        machines = []
        for name, topology in known.items():
            rent = self._value("gpu_hour", each["gpu_hour"].get(name), parse_money)
            bought = self._value("buy", each["buy"].get(name), entries.purchase)
            counts = self._value("gpus", each["gpus"].get(name), entries.wholes(_MOST_GPUS))
            varied = self._value("variability", each["variability"].get(name), entries.variability)
            if varied is None and self.tree.get("variability") is None and self.tree.get("runs") is not None:
                varied = {"profile": entries.TYPICAL}
            if rent is not None and bought is not None:
                self.problem("buy", f"{name} has a rent and a purchase price", None, "give one of the two")
            for settings, words in variants:
                machines.append(Machine(" ".join((name, *words)), topology, settings, rent, bought, counts or (), varied))
        return tuple(machines)

    def _topology(self, name: str, folder: str | None) -> str | None:
        """What a scenario anywhere calls it: a name or a box as it is, a path from the question's folder whole."""
        try:
            if (machine := box(name)) is not None:
                if (large := oversold(machine, folder)) is not None:
                    self.problem("on", large.message, name, f"size chooses how many machines: {one_machine(machine, folder)}")
                    return None
                return name
            path = files.find("topologies", name, None if folder is None else Path(folder) / "question.yaml")
        except ScenarioError as error:
            self.problem("on", _said(error), name)
            return None
        return name if files.is_shipped(path) else str(path.resolve())

    def _value(self, key: str, value: Any, convert: Callable[[Any], T]) -> T | None:
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            self.problem(key, str(error), value)
            return None

    def _for_each(self, key: str, names: Sequence[str]) -> dict[str, Any]:
        """Machine -> value: one for all, or a mapping."""
        value = self.tree.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or (key == "variability" and not any(name in names for name in value)):
            return dict.fromkeys(names, value)
        for name in value:
            if name not in names:
                self.problem(
                    key, f"{name} is not among the machines", value[name], did_you_mean(str(name), names) or f"they are {', '.join(names)}"
                )
        return {str(name): item for name, item in value.items()}

    def _variants(self) -> list[tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]]:
        """Every combination of the values under ``set``: keys with values, and the words that tell them apart."""
        axes = self.tree.get("set") or {}
        if not isinstance(axes, Mapping):
            self.problem("set", f"{shown(axes)} is not a mapping", axes, "write cluster.set.node.nics: [1, 8]")
            return [((), ())]
        lists = {str(key): value if isinstance(value, list) else [value] for key, value in axes.items()}
        for key, values in lists.items():
            if not values:
                self.problem("set", f"{key} has no value", None, "write one, or several in a list")
        short = short_keys(list(lists))
        several = [key for key, values in lists.items() if len(values) > 1]
        return [
            (
                tuple(zip(lists, values, strict=True)),
                tuple(f"{short[key]}={value}" for key, value in zip(lists, values, strict=True) if key in several),
            )
            for values in product(*lists.values())
        ]


def named_values(texts: Iterable[str] | None) -> Any:
    """``NAME=VALUE`` arguments as a mapping; a single VALUE as itself; None without arguments."""
    words = list(texts or ())
    if not words:
        return None
    pairs = [word.rpartition("=") for word in words]
    if len(words) == 1 and not pairs[0][1]:
        return words[0]
    return {name: value for name, _, value in pairs}


def set_values(texts: Iterable[str] | None) -> dict[str, Any] | None:
    """``KEY=VALUE[,VALUE]`` arguments as a mapping of lists.

    Raises:
        ScenarioError: an argument without =, or a value that is no YAML.
    """
    axes: dict[str, Any] = {}
    for text in texts or ():
        key, equals, values = text.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(Finding(f"{text!r} is not of the form KEY=VALUE", "--set", text, "for example cluster.set.node.nics=1,8"))
        axes[key.strip()] = [files.parse_value(value) for value in split_values(values)]
    return axes or None


def _said(error: ScenarioError) -> str:
    first = error.findings[0]
    return f"{first.message}; {first.suggestion}" if first.suggestion else first.message
