"""Values of shell variables, and what ``${NAME:-default}`` and ``$((1 + 2))`` make of them.

A value that cannot be known (the output of a program) stands as `UNKNOWN` around the name of what would say it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from parsim.interop.shell_arithmetic import UnknownValueError, calculated
from parsim.interop.shell_patterns import PATTERNS, patterned
from parsim.interop.shell_words import HELD, JOINED, UNKNOWN, WordPart, enclosed

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_INNER = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#])(\[[^\]]*\])?(.*)", re.DOTALL)
_SETTABLE = re.compile(r"[A-Za-z_]\w*|[0-9]+")
_SPECIAL = re.compile(rf"[\\`${UNKNOWN[0]}]")
_OPEN = re.compile(f"{UNKNOWN[0]}([^{UNKNOWN[1]}]*){UNKNOWN[1]}?")

_HOLD = str.maketrans(HELD)
_RELEASE = str.maketrans({**{held: blank for blank, held in HELD.items()}, JOINED: ""})
_WORDS = re.compile(r"\$[@*]|\$\{(?:[@*]|\w+\[[@*]\])")
"""what becomes as many words as there are, none if there are none"""
_LONGEST = 100_000
"""letters of a value; a longer one is not known"""
_MOST_WORDS = 5_000
"""of an array"""
_MOST_LETTERS = 2_000_000
"""that one word becomes"""
_MOST_TOGETHER = 2_000_000
"""that all of them become"""
_MANY_ARGUMENTS = "9"
"""what ``$#`` is taken for, so that scripts do not think that arguments are missing"""


@dataclass(frozen=True, slots=True)
class LetterRun:
    """Letters that begin on a line."""

    text: str
    line: int


Scalar = list[LetterRun]


@dataclass(frozen=True, slots=True)
class Field:
    """One word that a command gets, and the line it was written on."""

    text: str
    line: int
    runs: tuple[LetterRun, ...] = ()
    """of a text in quotes: its pieces with their lines"""


def plain(value: Scalar) -> str:
    """The letters."""
    return _restored("".join(run.text for run in value))


def unknown(name: str) -> str:
    """What stands for a value that cannot be known."""
    return f"{UNKNOWN[0]}{name}{UNKNOWN[1]}"


def unknown_names(text: str) -> list[str]:
    """Names of what is not known in `text`, in order."""
    return [match[1] for match in _OPEN.finditer(text)]


def settable(name: str) -> bool:
    """Whether `name` is a variable that the user can give a value, and no command."""
    return _SETTABLE.fullmatch(name) is not None


def legible(text: str) -> str:
    """`text` with ``$NAME`` for what is not known."""
    return _OPEN.sub(lambda match: f"${match[1]}" if settable(match[1]) else match[1].replace("\u00a0", " "), text)


def fields(value: Scalar) -> list[Field]:
    """`value` cut at blanks, each piece with its line."""
    words: list[Field] = []
    letters, begun = "", 0
    for run in value:
        line = run.line
        for letter in run.text:
            if letter in " \t\n" or (letter == JOINED and not letters):
                if letters:
                    words.append(Field(letters, begun))
                letters = ""
            elif letter != JOINED:
                begun = begun if letters else line
                letters += letter
            line += letter in ("\n", JOINED)
    return [*words, Field(letters, begun)] if letters else words


@dataclass
class Variables:
    """Scalars and arrays of a script, and names that it uses without setting them."""

    scalars: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, list[Field]] = field(default_factory=dict)
    unset: dict[int, dict[str, None]] = field(default_factory=dict)
    """line -> names that have no value there"""
    used: dict[str, None] = field(default_factory=dict)
    letters: int = 0
    """that were replaced so far"""
    fixed: frozenset[str] = frozenset()
    """names that keep their values"""
    capture: Callable[[str, int], str | None] | None = None
    """gives what a command prints, where that can be told without running it"""

    def set(self, name: str, value: Scalar, *, append: bool = False) -> None:
        """``NAME=value`` or ``NAME+=value``; a command's output that is not known is called by the name from here on."""
        if name in self.fixed:
            return
        if any(UNKNOWN[0] in run.text for run in value):
            value = [
                LetterRun(_OPEN.sub(lambda found: found[0] if settable(found[1]) else unknown(name), run.text), run.line) for run in value
            ]
        if (
            len(value) > _MOST_WORDS
            or sum(len(run.text) for run in value) + (len(_letters(self.scalars.get(name))) if append else 0) > _LONGEST
        ):
            value, append = [LetterRun(unknown(name), value[0].line)], False
        if append and name in self.arrays:
            self.arrays[name] = self.arrays[name] + fields(value)
            return
        self.arrays.pop(name, None)
        self.scalars[name] = [*self.scalars.get(name, []), *value] if append else list(value)

    def set_array(self, name: str, items: list[Field], *, append: bool = False) -> None:
        """``NAME=(...)`` or ``NAME+=(...)``."""
        if name in self.fixed:
            return
        before = self.arrays.get(name) or (fields(self.scalars[name]) if name in self.scalars else [])
        together = [*before, *items] if append else items
        self.arrays[name] = together if len(together) <= _MOST_WORDS else []
        self.scalars.pop(name, None)

    def expand(self, parts: tuple[WordPart, ...]) -> list[Field]:
        """The words that one word becomes: what is not in quotes is cut at blanks."""
        done: list[Field] = []
        current: Scalar | None = None
        raw: Scalar = []
        for part in parts:
            if part.quote == "'":
                raw.append(LetterRun(part.text, part.line))
                current = [*(current or []), LetterRun(_kept(part.text), part.line)]
                continue
            for piece in self._pieces(part.text, part.line, quoted=bool(part.quote)):
                if items := [item for item in piece if isinstance(item, Field)]:
                    done += fields(current or [])
                    done += [Field(_kept(item.text), item.line) for item in items] if part.quote else _recut(items)
                    current = None
                    continue
                runs = [item for item in piece if isinstance(item, LetterRun)]
                raw += runs
                current = [*(current or []), *([LetterRun(_kept(run.text), run.line) for run in runs] if part.quote else runs)]
        quoted = any(part.quote for part in parts)
        words = any(part.quote == '"' and _WORDS.search(part.text) for part in parts)
        if current is not None:
            done += fields(current) or ([Field("", parts[0].line)] if quoted and not words else [])
        elif quoted and not done and all(part.text == "" for part in parts):
            done = [Field("", parts[0].line)]
        if len(done) == 1 and quoted and raw:
            return [Field(_restored(done[0].text), done[0].line, tuple(raw))]
        return [Field(_restored(item.text), item.line) for item in done]

    def text(self, parts: tuple[WordPart, ...]) -> Scalar:
        """The value that an assignment gives: nothing is cut."""
        value: Scalar = []
        for part in parts:
            if part.quote == "'":
                value.append(LetterRun(part.text, part.line))
                continue
            for piece in self._pieces(part.text, part.line):
                words = [item for item in piece if isinstance(item, Field)]
                value += [LetterRun(" " * bool(i) + item.text, item.line) for i, item in enumerate(words)]
                value += [item for item in piece if isinstance(item, LetterRun)]
        return value

    def lookup(self, name: str, line: int) -> Scalar | list[Field] | None:
        """The value of a variable; None where it has none. That it has none, or an empty one, is noted."""
        self.used[name] = None
        value = self.arrays.get(name, self.scalars.get(name))
        if name == "#":
            value = [LetterRun(_MANY_ARGUMENTS, line)]
        if value and _letters(value):
            return value
        if value is not None and name in self.arrays:
            return value
        self.unset.setdefault(line, {})[name] = None
        return value

    def _pieces(self, text: str, line: int, *, quoted: bool = False) -> list[Scalar | list[Field]]:
        """`text` with its variables replaced; arrays stay lists of words."""
        pieces: list[Scalar | list[Field]] = []
        at = 0
        letters, total = "", 0
        begun = line
        while at < len(text):
            special = _SPECIAL.search(text, at)
            end = special.start() if special is not None else len(text)
            value: Scalar | list[Field] | None = None
            if end > at:
                letters += text[at:end]
            elif text.startswith("\\$", at):
                letters, end = letters + "$", at + 2
            elif text[at] == "`" or text.startswith("$(", at):
                end = enclosed(text, at)
                value = self._computed(text[at:end], line)
            elif text.startswith("${", at):
                end = enclosed(text, at)
                value = self._braced(text[at + 2 : end - 1], line, quoted=quoted)
            elif text[at] == UNKNOWN[0]:
                end = (text.find(UNKNOWN[1], at) + 1) or len(text)
                letters += text[at:end]
            elif text[at] == "$" and (match := _NAME.match(text, at + 1)):
                end = match.end()
                value = self.lookup(match[0], line) or []
                value = self._first(value) if settable(match[0]) else value  # $NAME of an array is its first word
            else:
                letters, end = letters + text[at], at + 1
            if value is not None:
                total += (more := len(_letters(value)))
                self.letters += more
                if total > _MOST_LETTERS or self.letters > _MOST_TOGETHER:
                    return []
                pieces += [[LetterRun(letters, begun)], value] if letters else [value]
                letters = ""
            line += text.count("\n", at, end) + text.count(JOINED, at, end)
            begun = begun if letters else line
            at = end
        return [*pieces, [LetterRun(letters, begun)]] if letters else pieces

    def _braced(self, inner: str, line: int, *, quoted: bool) -> Scalar | list[Field]:
        match = _INNER.fullmatch(inner)
        if match is None:
            return self._unknown("${" + inner + "}", line)
        count, name, index, rest = match.groups()
        if count == "!":
            name, count = plain(self._first(self.lookup(name, line))), ""
            if not settable(name):
                return []
        known = name in self.arrays or name in self.scalars or name == "#"
        if rest.startswith((":-", "-", ":=", "=", ":+", "+", ":?", "?")):
            colon = rest.startswith(":")
            what, other = rest[colon], rest[1 + colon :].strip("'\"")
            set_ = known and (not colon or bool(_letters(self.lookup(name, line))))
            if what == "+":
                return self._default(other, line) if set_ else []
            if not set_ and what in "-=":
                default = self._default(other, line)
                if what == "=":
                    self.set(name, default)
                return default
            rest = ""
        value = self.lookup(name, line) or []
        if index in ("[@]", "[*]") and not count:
            items = [item for item in value if isinstance(item, Field)] or fields(self._first(value))
            separator = plain(self.scalars.get("IFS", []))[:1]
            if index == "[*]" and quoted and separator:
                return [LetterRun(separator.join(item.text for item in items), line)]
            return [*items]
        if count and unknown_names(_letters(value)):
            return self._unknown("${" + inner + "}", line)  # of a command's output nobody can count the words
        if count:
            return [LetterRun(str(len(value) if index else len(_letters(value))), line)]
        chosen = self._item(name, index, line) if index else self._first(value)
        return self._patterned(chosen, rest, inner, line) if rest else chosen

    def _item(self, name: str, index: str, line: int) -> Scalar:
        """``${NAME[3]}``; nothing behind the end."""
        number = self.arithmetic(index[1:-1], line)
        items = self.arrays.get(name)
        if items is None:
            return self.scalars.get(name, []) if number == 0 else []
        if number is None:
            return self._unknown("${" + name + index + "}", line)
        return [LetterRun(items[number].text, items[number].line)] if -len(items) <= number < len(items) else []

    def _patterned(self, value: Scalar, rest: str, inner: str, line: int) -> Scalar:
        """``${NAME//a/b}``, ``${NAME%.*}``, ``${NAME:0:3}`` and the like."""
        text = plain(value)
        if names := unknown_names(text):
            return [LetterRun(unknown(names[0]), line)]
        if rest[0] == ":":
            ends = [self.arithmetic(part, line) for part in rest[1:].split(":")[:2]]
            if None in ends or rest.count(":") > 2:
                return self._unknown("${" + inner + "}", line)
            begin, length = (ends[0] or 0), (ends[1] if len(ends) > 1 else None)
            cut = text[begin:]
            return [LetterRun(cut if length is None else cut[:length], line)]
        kind = next((kind for kind in PATTERNS if rest.startswith(kind)), "")
        if not kind:
            return self._unknown("${" + inner + "}", line)
        words = [plain(self._default(part, line)) for part in rest[len(kind) :].split("/", 1 if kind[0] == "/" else 0)]
        done = patterned(text, kind, words[0].strip("'\""), words[1].strip("'\"") if len(words) > 1 else "")
        return [LetterRun(done, line)] if done is not None else self._unknown("${" + inner + "}", line)

    def _unknown(self, text: str, line: int, name: str = "") -> Scalar:
        """A value that is not known; `name` is what would say it, else `text` stands for it, which nobody can set."""
        self.unset.setdefault(line, {})[name or (text if len(text) < 40 else text[:37] + "...")] = None
        label = name or "".join("\u00a0" if letter.isspace() else letter for letter in text if letter not in "".join(UNKNOWN))
        return [LetterRun(unknown(label if len(label) < 40 else label[:37] + "..."), line)]

    @staticmethod
    def _first(value: Scalar | list[Field] | None) -> Scalar:
        """The letters of a scalar; of an array its first word."""
        runs: Scalar = []
        for item in value or []:
            if isinstance(item, Field):
                return [LetterRun(item.text, item.line)]
            runs.append(item)
        return runs

    def _default(self, text: str, line: int) -> Scalar:
        return self.text((WordPart(text, '"', line),))

    def _computed(self, text: str, line: int) -> Scalar:
        """``$((...))`` as a number, and what a command prints where that can be told."""
        if text.startswith("$((") and text.endswith("))"):
            try:
                number = self.calculate(text[3:-2], line)
            except UnknownValueError as error:
                return self._unknown(text, line, str(error) if settable(str(error)) else "")
            return [LetterRun(str(number), line)] if number is not None else self._unknown(text, line)
        inner = text[1:-1] if text[0] == "`" else text[2:-1]
        printed = self.capture(inner, line) if self.capture is not None else None
        if printed is None:
            return self._unknown(text, line)
        return [LetterRun(printed.rstrip("\n"), line)]

    def arithmetic(self, text: str, line: int) -> int | None:
        """The value of an arithmetic expression of numbers and variables; None where it has none."""
        try:
            return self.calculate(text, line)
        except UnknownValueError:
            return None

    def calculate(self, text: str, line: int) -> int | None:
        """The same, with its assignments. Raises `UnknownValueError` where a variable in it has no value."""

        def value_of(name: str) -> str:
            return _checked(plain(self._first(self.lookup(name, line))), name)

        def assign(name: str, value: int | None) -> None:
            self.set(name, [LetterRun(unknown(name) if value is None else str(value), line)])

        return calculated(_checked(plain(self.text((WordPart(text, '"', line),))), ""), value_of, assign)


def _checked(text: str, name: str) -> str:
    """`text`, unless something in it is not known, or it is no number."""
    if names := unknown_names(text):
        raise UnknownValueError(names[0])
    return text if not name or re.fullmatch(r"\s*-?\w+\s*", text) else ""


def _letters(value: Scalar | list[Field] | None) -> str:
    return "".join(item.text for item in value or [])


def _kept(text: str) -> str:
    """Blanks in quotes, hidden from cutting."""
    return text.translate(_HOLD)


def _restored(text: str) -> str:
    return text.translate(_RELEASE)


def _recut(items: list[Field]) -> list[Field]:
    """``${NAME[@]}`` without quotes: its words are cut at blanks once more."""
    return [piece for item in items for piece in fields([LetterRun(item.text, item.line)])]
