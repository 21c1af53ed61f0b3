"""A shell script as words and operators, each with its line. Nothing is expanded here, nothing is executed anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from parsim.units import is_digits

JOINED = "\0"
"""stands in a text for a line that was continued with a backslash: no letter, but one line more"""
HELD = {" ": "\1", "\n": "\2", "\t": "\3"}
"""blanks that no word is cut at, as they are kept meanwhile"""
_OPERATORS = ("<<<", "<<-", "&>>", ";;", "&&", "||", "|&", "<<", ">>", "&>", ">&", "<&", ";", "&", "|", "(", ")", "<", ">", "\n")
_ENDS = set(" \t\n;&|()<>")


@dataclass(frozen=True, slots=True)
class WordPart:
    """A piece of a word; what quotes stand around it."""

    text: str
    quote: str
    """empty, ' or \" """
    line: int


@dataclass(frozen=True, slots=True)
class Token:
    """A word (with parts) or an operator (with text)."""

    line: int
    parts: tuple[WordPart, ...] = ()
    operator: str = ""
    glued: bool = False
    """no blank before it"""

    @property
    def bare(self) -> str:
        """The word as it stands, without quotes; empty for an operator."""
        return "".join(part.text for part in self.parts).replace(JOINED, "")

    @property
    def plain(self) -> bool:
        """A word without quotes: it may be a keyword."""
        return bool(self.parts) and all(not part.quote for part in self.parts)


def tokens(text: str) -> list[Token]:
    """The tokens of a script; comments and the bodies of here-documents are left out."""
    return _Reader(text.replace("\r\n", "\n")).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.found: list[Token] = []
        self.waiting: list[str] = []
        """ends of here-documents that begin after this line"""

    def read(self) -> list[Token]:
        glued = False
        while self.at < len(self.text):
            rest = self.text[self.at :]
            if rest[0] in " \t":
                self.at += 1
                glued = False
            elif rest.startswith("\\\n"):
                self.at += 2
                self.line += 1
                glued = False
            elif rest[0] == "#" and not glued:
                end = rest.find("\n")
                self.at += len(rest) if end < 0 else end
            elif operator := next((known for known in _OPERATORS if rest.startswith(known)), ""):
                self._operator(operator, glued)
                glued = False
            else:
                self._word(glued)
                glued = True
        return self.found

    def _operator(self, operator: str, glued: bool) -> None:
        last = self.found[-1] if self.found else None
        if operator[0] in "<>" and glued and last is not None and is_digits(last.bare) and last.plain:
            self.found.pop()  # 2> is one operator
        self.found.append(Token(self.line, operator=operator, glued=glued))
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            match = re.match(r"[ \t]*(['\"]?)([\w.-]+)\1", self.text[self.at :])
            if match:
                self.waiting.append(match[2])
        if operator == "\n":
            self.line += 1
            for end in self.waiting:
                self._skip_document(end)
            self.waiting = []

    def _skip_document(self, end: str) -> None:
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            row = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if row.strip() == end:
                return

    def _word(self, glued: bool) -> None:
        parts: list[WordPart] = []
        first = self.line
        while self.at < len(self.text) and self.text[self.at] not in _ENDS:
            letter = self.text[self.at]
            if letter == "'":
                parts.append(self._single())
            elif letter == '"':
                parts.append(self._double())
            else:
                parts.append(self._bare())
        self.found.append(Token(first, tuple(parts), glued=glued))

    def _single(self) -> WordPart:
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        part = WordPart(self.text[self.at + 1 : end], "'", self.line)
        self.line += part.text.count("\n")
        self.at = end + 1
        return part

    def _double(self) -> WordPart:
        letters: list[str] = []
        first = self.line
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            self._letter(letters, escapes='"$`\\')
        self.at += 1
        return WordPart("".join(letters), '"', first)

    def _bare(self) -> WordPart:
        letters: list[str] = []
        first = self.line
        while self.at < len(self.text) and self.text[self.at] not in _ENDS and self.text[self.at] not in "'\"":
            self._letter(letters, escapes="")
        return WordPart("".join(letters), "", first)

    def _letter(self, letters: list[str], escapes: str) -> None:
        """One letter, an escaped one, or a whole ``$(...)``, ``${...}`` or ```...```."""
        rest = self.text[self.at :]
        if rest.startswith("\\\n"):
            letters.append(JOINED)
            self.at += 2
            self.line += 1
        elif rest[0] == "\\" and len(rest) > 1:
            kept = rest[1] if not escapes or rest[1] in escapes else rest[:2]
            letters.append("\\$" if kept == "$" else HELD.get(kept, kept) if not escapes else kept)
            self.at += 2
        elif rest.startswith(("$(", "${", "`")):
            whole = rest[: enclosed(rest)]
            letters.append(whole)
            self.line += whole.count("\n")
            self.at += len(whole)
        else:
            letters.append(rest[0])
            self.line += rest[0] == "\n"
            self.at += 1


def enclosed(text: str) -> int:
    """How many letters ``$(...)``, ``${...}`` or ```...``` at the begin of `text` take."""
    if text[0] == "`":
        end = text.find("`", 1)
        return len(text) if end < 0 else end + 1
    opens, closes = ("(", ")") if text[1] == "(" else ("{", "}")
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == opens) - (letter == closes)
        if at and not depth:
            return at + 1
    return len(text)
