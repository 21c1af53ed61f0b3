"""What becomes of a mutant, and whether that is right."""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_kinds import BESIDE, KINDS, LOAD, Kind
from fuzz_mutations import SECRET, Donors, Mutant, donors, mutate
from fuzz_trees import FORMS

import parsim

SECONDS = 20.0
"""CPU time that a mutant may take [s]"""
CODES = (0, 2, 3, 4)
LONG = 20_000
"""characters of a message that nobody reads any more"""
SPEAK_OF_TRAINING = (LOAD, "parsim.scenario.software:read_profile")
"""readers of files whose words are those of a scenario"""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class OutOfTimeError(BaseException):
    """The time of a mutant is over; no `Exception`, so that nothing handles it."""


@dataclass
class Verdict:
    """What became of one mutant."""

    number: int
    kind: str
    command: str
    changes: tuple[str, ...]
    code: int | None = None
    passed: bool = False
    """it was read and checked: the reader returned, or there was an answer"""
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    """empty: right"""
    output: str = ""


@dataclass(frozen=True)
class Case:
    """A mutant with the command that reads it."""

    kind: Kind
    mutant: Mutant
    words: tuple[str, ...]
    stream: str
    """empty | full | no stdout | no stderr"""


def case(number: int, seed: int, kinds: Sequence[Kind] = KINDS) -> Case:
    """The mutant of a number: the same for ever, as long as neither seeds nor mutations change."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choices(kinds, [kind.share for kind in kinds])[0]
    texts = _seeds(kind)
    boxes = kind.strict or kind.form == "arguments"
    mutant = mutate(dice.choice(texts), FORMS[kind.form], _donors(kind), dice, strict=kind.strict, boxes=boxes, legal=kind.legal)
    command = kind.commands[0] if mutant.accept else dice.choice(kind.commands)
    stream = dice.choice(("full", "no stdout", "no stderr")) if kind.streams else ""
    if kind.file:
        return Case(kind, mutant, tuple(command.replace("{}", kind.file).split()), stream)
    try:
        extra = json.loads(mutant.text)
    except ValueError:  # changed as a text
        extra = mutant.text.replace("\0", "").split()
    return Case(kind, mutant, (*command.split(), *map(str, extra)), stream)


def unchanged(kinds: Sequence[Kind] = KINDS) -> Iterator[Case]:
    """Every seed as it is, with the first of the commands: a change of something wrong proves little."""
    for kind in kinds:
        for text in _seeds(kind):
            form = FORMS[kind.form]
            mutant = Mutant(form.text(form.tree(text)), None, (), refuse=False)
            words = (
                kind.commands[0].replace("{}", kind.file).split() if kind.file else [*kind.commands[0].split(), *json.loads(mutant.text)]
            )
            yield Case(kind, mutant, tuple(words), "")


@cache
def _seeds(kind: Kind) -> tuple[str, ...]:
    return kind.seeds() if callable(kind.seeds) else kind.seeds


@cache
def _donors(kind: Kind) -> Donors:
    form = FORMS[kind.form]
    return donors(
        [form.tree(text) for text in _seeds(kind)], _words() if kind.reader in SPEAK_OF_TRAINING or kind.form == "arguments" else {}
    )


@cache
def _words() -> dict[str, list[str]]:
    """Legal words by key, as the schema of scenarios lists them; on a command line behind -- or under the whole path."""
    from parsim.parallel.schedules import NAMES
    from parsim.scenario.json_schema import schema

    found: dict[str, list[str]] = {}

    def visit(node: Any, key: str) -> None:
        if isinstance(node, list):
            for item in node:
                visit(item, key)
        if not isinstance(node, dict):
            return
        words = [word for word in node.get("enum", ()) if isinstance(word, str)]
        if words and key:
            for name in (key, f"--{key}", *([] if key != "name" else ["optimizer", "--optimizer"])):
                found.setdefault(name, []).extend(words)
        for name, item in node.items():
            for below, inner in item.items() if name in ("properties", "definitions") and isinstance(item, dict) else ():
                visit(inner, below if name == "properties" else "")
            if name not in ("properties", "definitions"):
                visit(item, key)

    visit(schema(), "")
    found["schedule"] = [*NAMES]
    return {key: list(dict.fromkeys(words)) for key, words in found.items()}


def prepare(kinds: Sequence[Kind]) -> None:
    """Load what commands load, and watch the readers, so that every process has both from the start."""
    warnings.simplefilter("always")
    for module in pkgutil.walk_packages(parsim.__path__, "parsim."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of what is not installed
                importlib.import_module(module.name)
    for kind in kinds:
        _donors(kind)
    for kind in kinds:
        if kind.reader:
            _watch(kind.reader)


_returned: list[str] = []
"""readers that have returned since the mutant began"""


@cache
def _watch(reader: str) -> None:
    """Put a function that notes its return in place of the reader, wherever it was imported."""
    module, _, name = reader.partition(":")
    original: Callable[..., Any] = getattr(importlib.import_module(module), name)

    def watched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        _returned.append(reader)
        return result

    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__name__", "").startswith("parsim") and getattr(loaded, name, None) is original:
            setattr(loaded, name, watched)


def run_case(number: int, chosen: Case, folder: Path, seconds: float = SECONDS) -> Verdict:
    """Run one case in a fresh `folder`, in this process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(chosen, folder)
    os.chdir(folder)
    verdict = Verdict(number, chosen.kind.name, " ".join(chosen.words), chosen.mutant.changes)
    _returned.clear()
    begin = time.process_time()
    try:
        with _time_limit(seconds):
            code, out, err = _executed(chosen.words, chosen.stream)
    except OutOfTimeError:
        verdict.failures.append(f"more than {seconds:g} s of CPU time")
        verdict.seconds = time.process_time() - begin
        return verdict
    verdict.seconds = time.process_time() - begin
    verdict.code = code
    verdict.passed = code in (0, 3, 4) or chosen.kind.reader in _returned
    verdict.output = (out + err)[-3000:]
    verdict.failures += list(_failures(chosen, code, out, err))
    return verdict


def write(chosen: Case, folder: Path) -> None:
    """The files of a case."""
    for name, text in {**BESIDE, **chosen.kind.beside}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        studies = {"@0": "study.json", "@1": "results.jsonl"}
        whole = next(_seeds(kind)[0] for kind in KINDS if kind.name == studies[text]) if text in studies else text
        (folder / name).write_text(whole, encoding="utf-8")
    if chosen.kind.file:
        path = folder / chosen.kind.file
        path.parent.mkdir(parents=True, exist_ok=True)
        mutant = chosen.mutant
        path.write_bytes(mutant.raw if mutant.raw is not None else FORMS[chosen.kind.form].bytes(mutant.text))


def _executed(words: Sequence[str], stream: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    from parsim.cli import main

    before = sys.stdout, sys.stderr, sys.stdin
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    stdin = io.TextIOWrapper(io.BytesIO(b""), "utf-8")
    full = Path("/dev/full").open("w", encoding="utf-8") if stream == "full" else None  # noqa: SIM115 - closed below
    sys.stdout = None if stream == "no stdout" else full or out  # type: ignore[assignment]
    sys.stderr = None if stream == "no stderr" else err  # type: ignore[assignment]
    sys.stdin = stdin
    code = 1
    try:
        main(list(words))
    except OutOfTimeError:
        raise
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:  # noqa: BLE001 - a user would see it as a traceback
        err.write(traceback.format_exc())
    finally:
        sys.stdout, sys.stderr, sys.stdin = before
        with suppress(OSError):
            if full is not None:
                full.close()
    return code, _written(out), _written(err)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]


def _failures(chosen: Case, code: int, out: str, err: str) -> Iterator[str]:
    """What is wrong with an answer."""
    said = out + err
    if code not in CODES:
        yield f"exit code {code}: {_cause(chosen, err)}"
    elif "Traceback (most recent call last)" in said:
        yield f"a traceback: {_last(err)}"
    if control := _CONTROL.search(said):
        yield f"control character {control[0]!r} in the output"
    if SECRET in said:
        yield "shows the content of another file"
    if Path("it-ran").exists():
        yield "ran code that nobody allowed"
    if code == 2 and not chosen.stream:
        if not err.strip():
            yield "exit code 2 without a word"
        if len(err) > LONG or max(map(len, err.splitlines()), default=0) > LONG / 10:
            yield "a message that nobody can read: too long"
    if warning := re.search(r"^.*\.py:\d+: (\w*Warning): ", err, re.MULTILINE):
        yield f"a Python warning: {warning[0][-100:]}"
    shows = chosen.words[:1] == ("show",) and "--program" not in chosen.words  # it prints what other commands check
    if chosen.mutant.refuse and code in (0, 3, 4) and not shows:
        yield f"an impossible value was taken: {_kind_of_value(chosen.mutant.changes[0])}"
    if chosen.mutant.accept and code != 0:
        yield "a legal document was refused: " + re.sub(r"\d+", "_", f"{chosen.mutant.changes[0]}, exit code {code}")
    if code in (0, 3) and "--json" in chosen.words and not chosen.stream:
        yield from _document_failures(out)
    boxes = [word for word in chosen.words if chosen.kind.form == "arguments"] + [
        change for change in chosen.mutant.changes if re.match(r"(\S*\.)?(topology|on|count): ", change)
    ]
    # a published run that cannot be predicted is a row of the answer
    if (
        code in (0, 3)
        and chosen.kind.reader != "parsim.validation.published_runs:published"
        and any(re.search(r"(^|')\d{3,}x \w", text) for text in boxes)
    ):
        yield "a box larger than any that is sold"


def _document_failures(out: str) -> Iterator[str]:
    try:
        document = json.loads(out, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
    except ValueError as error:
        yield f"no JSON document: {str(error)[:60]}"
        return
    step = document.get("step_time_s") if isinstance(document, dict) else None
    if isinstance(step, (int, float)) and not 0 <= step < 1e18:
        yield "a step that takes longer than the universe is old"
    if isinstance(document, dict) and "step_time_s" in document:
        estimate = document.get("estimate") or {}
        headline = estimate.get("step_time_s", step)
        band = estimate.get("step_time_band_s") or (document.get("confidence") or {}).get("step_time_s")
        if band is not None and not band[0] <= headline <= band[1]:
            yield "the step of the headline lies outside the band beside it"


def _kind_of_value(change: str) -> str:
    """Failures of one cause together: the value without its key."""
    value = change.partition("impossible, ")[2]
    if value.isascii():
        return re.sub(r"\d{30,}(\.\.\.)?", "400 digits", value)
    return "digits of another script" if not value.strip("'\"").isascii() else value


def _cause(chosen: Case, err: str) -> str:
    """The innermost line of parsim behind an internal error, found by running it again."""
    traced = err
    if "Traceback" not in err:
        try:
            with _time_limit(SECONDS):
                _, _, traced = _executed((*chosen.words, "--debug"), chosen.stream)
        except OutOfTimeError:
            return "took too long to find"
        if "Traceback" not in traced:
            traced = err
    frames = re.findall(r'File "[^"]*/(parsim/[^"]+)", line \d+, in (\w+)', traced)
    place = f"{frames[-1][0]} {frames[-1][1]}" if frames else "?"
    return f"{_last(traced)} in {place}"


def _last(text: str) -> str:
    """The last line of a traceback: type of the error, and as much of its text as is the same every time."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "_", lines[-1])[:100] if lines else text.strip()[-100:]


class _time_limit:  # noqa: N801 - used as a statement
    """Raise `OutOfTimeError` after some CPU time [s], again and again; end the process where Python does not come to its handlers."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def over(_signal: int, _frame: object) -> None:
            raise OutOfTimeError

        signal.signal(signal.SIGPROF, over)
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime + self.seconds + 10)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, self.seconds, 1.0)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
