"""Values of shell variables, and what ``${NAME:-default}`` and ``$((1 + 2))`` make of them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from parsim.interop.shell_words import HELD, JOINED, WordPart, enclosed
from parsim.units import is_digits

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_INNER = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#])(\[[^\]]*\])?(.*)", re.DOTALL)
_HOLD = str.maketrans(HELD)
_RELEASE = str.maketrans({**{held: blank for blank, held in HELD.items()}, JOINED: ""})
_WORDS = re.compile(r"\$[@*]|\$\{(?:[@*]|\w+\[[@*]\])")
"""what becomes as many words as there are, none if there are none"""
_MANY_ARGUMENTS = "9"
"""what ``$#`` is taken for, so that scripts do not think that arguments are missing"""
_ARITHMETIC: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}


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

    def set(self, name: str, value: Scalar, *, append: bool = False) -> None:
        """``NAME=value`` or ``NAME+=value``."""
        if append and name in self.arrays:
            self.arrays[name] = self.arrays[name] + fields(value)
            return
        self.arrays.pop(name, None)
        self.scalars[name] = [*self.scalars.get(name, []), *value] if append else list(value)

    def set_array(self, name: str, items: list[Field], *, append: bool = False) -> None:
        """``NAME=(...)`` or ``NAME+=(...)``."""
        before = self.arrays.get(name) or (fields(self.scalars[name]) if name in self.scalars else [])
        self.arrays[name] = [*before, *items] if append else items
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
            for piece in self._pieces(part.text, part.line):
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

    def _pieces(self, text: str, line: int) -> list[Scalar | list[Field]]:
        """`text` with its variables replaced; arrays stay lists of words."""
        pieces: list[Scalar | list[Field]] = []
        at = 0
        letters = ""
        begun = line
        while at < len(text):
            rest = text[at:]
            taken = 1
            value: Scalar | list[Field] | None = None
            if rest.startswith("\\$"):
                letters, taken = letters + "$", 2
            elif rest[0] == "`" or rest.startswith("$("):
                taken = enclosed(rest)
                value = self._computed(rest[:taken], line)
            elif rest.startswith("${"):
                taken = enclosed(rest)
                value = self._braced(rest[2 : taken - 1], line)
            elif rest[0] == "$" and (match := _NAME.match(rest, 1)):
                taken = match.end()
                value = self.lookup(match[0], line) or []
                if value and isinstance(value[0], Field):
                    value = [LetterRun(value[0].text, value[0].line)]  # $NAME of an array is its first word
            else:
                letters += rest[0]
            if value is not None:
                pieces += [[LetterRun(letters, begun)], value] if letters else [value]
                letters = ""
            line += text[at : at + taken].count("\n") + text[at : at + taken].count(JOINED)
            begun = begun if letters else line
            at += taken
        return [*pieces, [LetterRun(letters, begun)]] if letters else pieces

    def _braced(self, inner: str, line: int) -> Scalar | list[Field]:
        match = _INNER.fullmatch(inner)
        if match is None:
            self.unset.setdefault(line, {})["${" + inner + "}"] = None
            return []
        count, name, index, rest = match.groups()
        known = name in self.arrays or name in self.scalars or name == "#"
        if rest.startswith((":-", "-", ":=", "=", ":+", "+", ":?", "?")):
            colon = rest.startswith(":")
            what, other = rest[colon], rest[1 + colon :].strip("'\"")
            set_ = known and (not colon or bool(_letters(self.lookup(name, line))))
            if what == "+":
                return self._default(other, line) if set_ else []
            if not set_ and what in "-=":
                return self._default(other, line)
        elif rest:
            self.unset.setdefault(line, {})["${" + inner + "}"] = None
        value = self.lookup(name, line) or []
        if index in ("[@]", "[*]") and not count:
            return value if value and isinstance(value[0], Field) else fields(value)
        if count:
            return [LetterRun(str(len(value) if index else len(_letters(value))), line)]
        if index and is_digits(index[1:-1]) and name in self.arrays:
            items = self.arrays[name]
            chosen = int(index[1:-1])
            return [LetterRun(items[chosen].text, items[chosen].line)] if chosen < len(items) else []
        if value and isinstance(value[0], Field):
            return [LetterRun(value[0].text, value[0].line)]
        return value

    def _default(self, text: str, line: int) -> Scalar:
        return self.text((WordPart(text, '"', line),))

    def _computed(self, text: str, line: int) -> Scalar:
        """``$((...))`` as a number; the output of a command is not known."""
        if text.startswith("$((") and text.endswith("))"):
            number = self.arithmetic(text[3:-2], line)
            if number is not None:
                return [LetterRun(str(number), line)]
        self.unset.setdefault(line, {})[text if len(text) < 40 else text[:37] + "..."] = None
        return []

    def arithmetic(self, text: str, line: int) -> int | None:
        """The value of an arithmetic expression of numbers and variables; None where it has none."""
        expanded = plain(self.text((WordPart(text, '"', line),)))
        named = re.sub(r"[A-Za-z_]\w*", lambda match: plain(self.text((WordPart("${" + match[0] + "}", '"', line),))) or "?", expanded)
        try:
            return _calculated(ast.parse(named.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
            return None


def _calculated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    raise ValueError("not an expression of whole numbers")


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
