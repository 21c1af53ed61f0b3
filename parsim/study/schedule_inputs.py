"""What the schedule laboratory is asked: stage times with or without a unit, and schedules by name or from files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parsim import units
from parsim.errors import Finding, PlanError, ScenarioError
from parsim.parallel.schedules import ALIASES, INTERLEAVED, NAMES, check, chunks, directions, homes, overlapped, schedule
from parsim.parallel.schedules.check import SlotFinding
from parsim.parallel.schedules.custom import SlotTable, from_function, load_function, read_table
from parsim.parallel.schedules.slot import APART, Overlapped, Schedule
from parsim.scenario.files import read_text
from parsim.scenario.trust import code_file, is_trusted, refusal

_FILE = re.compile(r".*[/\\].*|.*\.(csv|txt|tsv|py)(:\w+)?", re.IGNORECASE)
_OPTIONS = {"parallel.pipeline.size": "-p", "training.gradient_accumulation": "-m", "parallel.pipeline.virtual_stages": "-v"}
_PASSES = "write F=1,I=1,W=1 or F=1,B=2"
LONGEST = 1e30
"""longest time of a pass; beyond, sums are no numbers any more"""


@dataclass(frozen=True)
class LabSchedule:
    """A schedule of the laboratory, by name or from the user's file."""

    name: str
    """a name of `NAMES`, or custom"""
    label: str
    rows: Schedule
    micro_batches: int
    virtual: int = 1
    """chunks per rank of interleaved and interleaved-zb"""
    file: str = ""
    places: tuple[tuple[tuple[int, int], ...], ...] = ()
    """(line, column) of every slot in `file`"""
    overlapped: Overlapped = APART
    """slots that run a forward and a backward at once"""
    left_out: int = 0
    """messages and collectives of a lowered table of torch"""

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def homes(self) -> tuple[int, ...]:
        """The rank of each global stage."""
        return homes(self.rows)

    @property
    def directions(self) -> int:
        """Whole models on the ranks, each with an equal part of the micro-batches."""
        return directions(self.name)

    @property
    def chunks(self) -> tuple[int, ...]:
        """By rank: in how many passes it computes its part of a micro-batch."""
        return tuple(max(1, self.homes.count(rank) // self.directions) for rank in range(self.ranks))

    @property
    def split(self) -> bool:
        """Whether backwards are split into I and W."""
        return any(slot.kind == "W" for row in self.rows for slot in row)

    def place(self, rank: int, position: int) -> tuple[int, int] | tuple[None, None]:
        """Line and column of a slot in the file, from 1."""
        return self.places[rank][position] if self.places and 0 <= rank < len(self.places) and position >= 0 else (None, None)


@dataclass(frozen=True)
class PassTimes:
    """Times of the passes of one micro-batch on one rank, all its chunks together; numbers, or seconds where `unit` is "s".

    A list has one value for all ranks, one per rank, or one per global stage (then of that stage alone).
    """

    forward: tuple[float, ...] = (1.0,)
    inputs: tuple[float, ...] = (1.0,)
    """backward-input, I"""
    weights: tuple[float, ...] = (1.0,)
    """backward-weight, W"""
    pairs: tuple[float, ...] = ()
    """FB: a forward beside a backward; empty: the sum of both"""
    communication: tuple[float, ...] = (0.0,)
    """a message between neighbouring stages; one value, or one per boundary"""
    factors: tuple[float, ...] = (1.0,)
    """what stages take relative to these times"""
    unit: str = ""
    whole: bool = field(default=False)
    """only B was given: nobody knows I and W"""
    overlap: bool = True
    """messages hold up no compute"""

    @property
    def equal(self) -> bool:
        """Whether all stages take the same times."""
        return all(len(set(values)) == 1 for values in (self.forward, self.inputs, self.weights, self.factors))

    @property
    def backward(self) -> tuple[float, ...]:
        """I + W, per rank or stage as they are."""
        length = max(len(self.inputs), len(self.weights))
        inputs, weights = (value * length if len(value) == 1 else value for value in (self.inputs, self.weights))
        return tuple(i + w for i, w in zip(inputs, weights, strict=True))

    def per_stage(self, key: str, values: Sequence[float], entry: LabSchedule) -> list[float]:
        """One value per global stage of `entry`. Raises `PlanError` where there are too few or too many."""
        homes, chunks_of = entry.homes, entry.chunks
        shares = [1 / chunks_of[home] for home in homes]
        if len(values) == 1:
            return [values[0] * share for share in shares]
        if len(values) == entry.ranks:
            return [values[home] * share for home, share in zip(homes, shares, strict=True)]
        if len(values) == len(homes):
            return list(values)
        raise PlanError(_count(key, len(values), entry, entry.ranks, len(homes)))

    def factor(self, entry: LabSchedule) -> list[float]:
        """How much longer each global stage takes."""
        homes = entry.homes
        if len(self.factors) == 1:
            return [self.factors[0]] * len(homes)
        if len(self.factors) == entry.ranks:
            return [self.factors[home] for home in homes]
        if len(self.factors) == len(homes):
            return list(self.factors)
        raise PlanError(_count("--stage-times", len(self.factors), entry, entry.ranks, len(homes)))

    def messages(self, entry: LabSchedule) -> list[float]:
        """Seconds of a message per boundary of global stages."""
        boundaries = len(entry.homes) - 1
        if len(self.communication) == 1:
            return list(self.communication) * boundaries
        if len(self.communication) == boundaries:
            return list(self.communication)
        raise PlanError(_count("--comm", len(self.communication), entry, 1, boundaries))


def _count(key: str, count: int, entry: LabSchedule, *possible: int) -> Finding:
    wanted = " or ".join(str(number) for number in dict.fromkeys((1, *possible)))
    stages = len(entry.homes)
    message = f"{count} values, but {entry.label} has {entry.ranks} ranks, {stages} global stages and {stages - 1} boundaries"
    return Finding(message, key, count, f"give {wanted} values")


def times(
    passes: str | None = None,
    *,
    communication: str | None = None,
    stage_times: str | None = None,
    overlap: bool = True,
) -> PassTimes:
    """Read ``F=1,I=1,W=1`` (or ``F=1.2ms,B=2.4ms``; lists with colons), a message's time, and factors ``1,1,2,1``.

    B = I + W: two of the three say the third. Raises `PlanError` with everything that is wrong.
    """
    findings: list[Finding] = []
    reader = _TimesReader(findings)
    given = reader.passes(passes) if passes is not None else {"F": (1.0,), "I": (1.0,), "W": (1.0,)}
    message = (0.0,) if communication is None else reader.list("--comm", communication, (",", ":"))
    factors = (1.0,) if stage_times is None else reader.factors(stage_times)
    if len(reader.units) > 1:
        bare, seconds = (reader.units[unit] for unit in ("", "s"))
        findings.append(
            Finding(f"{seconds} has a unit, {bare} has none", "--times", bare, "give all times with a unit, or none (units of time)")
        )
    if findings:
        raise PlanError(findings)
    inputs, weights, whole = _backward(given, findings)
    if not any((*given["F"], *inputs, *weights)):
        findings.append(Finding("no pass takes any time", "--times", passes, _PASSES))
    if findings:
        raise PlanError(findings)
    unit = next(iter(reader.units), "")
    return PassTimes(given["F"], inputs, weights, given.get("FB", ()), message, factors, unit, whole=whole, overlap=overlap)


def activation_bytes(activation: str | int | None) -> int | None:
    """Bytes that a micro-batch keeps on a rank, from a text with its unit. Raises `PlanError` where it is none."""
    try:
        return int(units.parse(activation, "bytes")) if isinstance(activation, str) else activation
    except ValueError as error:
        raise PlanError(Finding(str(error), "--activation", activation)) from None


class _TimesReader:
    """Values as they are written, the units they were written in, and what is wrong with them."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.units: dict[str, str] = {}
        """unit -> the first value that has it"""

    def passes(self, text: str) -> dict[str, tuple[float, ...]]:
        given: dict[str, tuple[float, ...]] = {}
        for part in text.split(","):
            letter, equals, value = part.partition("=")
            letter = letter.strip().upper()
            if not equals or letter not in ("F", "B", "I", "W", "FB"):
                self.findings.append(Finding(f"{part.strip()!r} is not a pass with its time", "--times", part, _PASSES))
            elif letter in given:
                self.findings.append(Finding(f"{letter} is given twice", "--times", part))
            else:
                given[letter] = self.list("--times", value, (":",))
        if not self.findings and "F" not in given:
            self.findings.append(Finding("F, the time of a forward pass, is missing", "--times", text, _PASSES))
        return given

    def list(self, key: str, text: str, separators: tuple[str, ...]) -> tuple[float, ...]:
        for separator in separators[1:]:
            text = text.replace(separator, separators[0])
        return tuple(self.time(key, part) for part in text.split(separators[0]))

    def time(self, key: str, text: str) -> float:
        text = text.strip()
        unit = ""
        try:
            value = float(text) if text.isascii() else units.real(text)  # NaN is told below
        except ValueError:
            unit = "s"
            try:
                value = float(units.parse(text, "time"))
            except ValueError as error:
                self.findings.append(Finding(str(error), key, text, "write a number (units of time) or a time such as 1.2ms"))
                return 0.0
        if not 0 <= value <= LONGEST:
            self.findings.append(Finding(f"{text} is no time: it must be from 0 to {LONGEST:g}", key, text))
            return 0.0
        if value:
            self.units.setdefault(unit, text)
        return value

    def factors(self, text: str) -> tuple[float, ...]:
        values = []
        for part in text.replace(":", ",").split(","):
            try:
                value = units.real(part)
            except ValueError:
                value = -1.0
            if not 0 < value < float("inf"):
                self.findings.append(
                    Finding(f"{part.strip()!r} is no factor", "--stage-times", part, "write factors on --times, one per rank: 1,1,2,1")
                )
            values.append(value)
        return tuple(values)


def _backward(given: Mapping[str, tuple[float, ...]], findings: list[Finding]) -> tuple[tuple[float, ...], tuple[float, ...], bool]:
    """I, W, and whether only their sum is known."""
    lengths = {len(values) for values in given.values()} - {1}
    if len(lengths) > 1:
        findings.append(Finding(f"lists of {' and '.join(map(str, sorted(lengths)))} values", "--times", "", "give one length"))
        return (), (), False
    size = max((1, *lengths))
    full = {kind: values * size if len(values) == 1 else values for kind, values in given.items() if kind not in ("F", "FB")}
    match sorted(full):
        case ["B"]:
            return tuple(b / 2 for b in full["B"]), tuple(b / 2 for b in full["B"]), True
        case ["I", "W"]:
            return full["I"], full["W"], False
        case ["B", ("I" | "W") as one]:
            rest = tuple(b - part for b, part in zip(full["B"], full[one], strict=True))
            if min(rest) < 0:
                findings.append(Finding(f"{one} is longer than B = I + W", "--times", one, "give I and W"))
            return (full[one], rest, False) if one == "I" else (rest, full[one], False)
        case ["B", "I", "W"]:
            if any(abs(b - i - w) > 1e-9 * b for b, i, w in zip(full["B"], full["I"], full["W"], strict=True)):
                findings.append(Finding("B is not I + W", "--times", "B", "leave one of the three out"))
            return full["I"], full["W"], False
    findings.append(Finding("the backward pass is not known", "--times", ",".join(given), "give B, or I and W"))
    return (), (), False


def entries(
    names: Iterable[str], ranks: int | None, micro_batches: int | None, virtual: Sequence[int] = (1,), *, trust_code: bool = False
) -> list[LabSchedule]:
    """The schedules of `names`, in order; tables of the user's own say themselves how many ranks and micro-batches they have.

    Python files run only with `trust_code`.
    Raises `PlanError` with everything that is wrong with all of them. That they do not deadlock is not checked here.
    """
    files: dict[str, LabSchedule] = {}
    wanted = list(names)
    findings = [] if is_trusted(trust_code) else [refusal(name, "") for name in wanted if ":" in name and code_file(name)]
    for name in wanted:
        if _FILE.fullmatch(name) and ":" not in name and name not in files:
            try:
                files[name] = _table(name, ranks, micro_batches)
            except PlanError as error:
                findings += error.findings
    first = next(iter(files.values()), None)
    p = ranks if ranks is not None or first is None else first.ranks
    m = micro_batches if micro_batches is not None or first is None else first.micro_batches
    if any(name not in files for name in wanted) and not findings:
        findings += [
            Finding(f"how many {what}?", option, None, f"give {option}, for example {option} {example}")
            for value, what, option, example in ((p, "pipeline ranks", "-p", 4), (m, "micro-batches", "-m", 8))
            if value is None
        ]
    if findings or p is None or m is None:
        raise PlanError(findings)
    schedules: list[LabSchedule] = []
    for name in wanted:
        try:
            schedules += [files[name]] if name in files else _named(name, p, m, virtual)
        except PlanError as error:
            findings += [_option(finding) for finding in error.findings]
    if findings:
        raise PlanError([finding for place, finding in enumerate(findings) if finding not in findings[:place]])
    return schedules


def _option(finding: Finding) -> Finding:
    """The finding with options of the command instead of keys of a scenario."""
    option = _OPTIONS.get(finding.path, "")
    suggestion = finding.suggestion.replace("virtual_stages: ", "-v ")
    return Finding(finding.message, option, finding.value, suggestion, finding.file, finding.line, finding.column)


def _named(name: str, p: int, m: int, virtual: Sequence[int]) -> list[LabSchedule]:
    if ":" in name:
        path = name.rpartition(":")[0]
        table = from_function(load_function(name), p, m, virtual[0])
        return [_checked(LabSchedule("custom", name, table.rows, m, file=path, overlapped=table.overlapped), m)]
    word = name.strip().lower().replace("_", "-")
    word = ALIASES.get(word, word)
    counts = virtual if word in INTERLEAVED else [chunks(word)] if word in NAMES else [1]
    made = []
    for v in counts:
        rows = _schedule(word, p, m, v)
        label, own = (f"{word} v={v}", v) if word in INTERLEAVED else (word, 1)
        made.append(LabSchedule(word, label, rows, m, own, overlapped=overlapped(word, p, m, v)))
    return made


def _schedule(word: str, p: int, m: int, v: int) -> Schedule:
    try:
        return schedule(word, p, m, v)
    except PlanError as error:
        known = f"use one of {', '.join(NAMES)}, or the path of a table"
        raise PlanError(
            [Finding(f.message, f.path, f.value, known if f.suggestion.startswith("use one of") else f.suggestion) for f in error.findings]
        ) from None


def _table(name: str, ranks: int | None, micro_batches: int | None) -> LabSchedule:
    path = Path(name)
    if path.suffix.lower() == ".py":
        raise PlanError(Finding("is Python: which function?", "", name, f"write {name}:NAME", file=name))
    try:
        text = read_text(path)
    except ScenarioError as error:
        raise PlanError([replace(one, value=name, suggestion=f"write {', '.join(NAMES)}, or a path") for one in error.findings]) from None
    try:
        table = read_table(text, name)
    except PlanError as error:
        raise PlanError([Finding(f.message, "", f.value, f.suggestion, f.file, f.line, f.column) for f in error.findings]) from None
    return _legal(name, table, ranks, micro_batches)


def _legal(name: str, table: SlotTable, ranks: int | None, micro_batches: int | None) -> LabSchedule:
    if ranks is not None and len(table.rows) != ranks:
        raise PlanError(Finding(f"has {len(table.rows)} rows, but -p is {ranks}", "-p", ranks, "leave -p out", file=name))
    count = 1 + max(slot.micro_batch for row in table.rows for slot in row)
    if micro_batches is not None and count != micro_batches:
        raise PlanError(Finding(f"has {count} micro-batches, but -m is {micro_batches}", "-m", micro_batches, "leave -m out", file=name))
    entry = LabSchedule("custom", name, table.rows, count, file=name, places=table.places, overlapped=table.overlapped)
    return _checked(replace(entry, left_out=table.left_out), micro_batches)


def _checked(entry: LabSchedule, micro_batches: int | None) -> LabSchedule:
    """`entry`, if it is legal; deadlocks are left to be found later."""
    problems = [finding for finding in check(entry.rows, None, micro_batches, entry.overlapped) if "deadlock" not in finding.message]
    if problems:
        raise PlanError([located(entry, finding) for finding in problems])
    return entry


def located(entry: LabSchedule, finding: Finding) -> Finding:
    """A finding about a slot with its place in the user's file."""
    line, column = entry.place(finding.rank, finding.position) if isinstance(finding, SlotFinding) else (None, None)
    return Finding(finding.message, "", finding.value, finding.suggestion, entry.file, line, column)
