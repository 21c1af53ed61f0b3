"""A shell script as words and operators, each with its line. Nothing is expanded here, nothing is executed anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from parsim.units import is_digits

JOINED = "\0"
"""stands in a text for a line that was continued with a backslash: no letter, but one line more"""
HELD = {" ": "\1", "\n": "\2", "\t": "\3"}
"""blanks that no word is cut at, as they are kept meanwhile"""
UNKNOWN = ("\4", "\5")
"""stand around the name of a value that cannot be known"""
_OPERATORS = ("<<<", "<<-", "&>>", ";;", "&&", "||", "|&", "<<", ">>", "&>", ">&", "<&", ";", "&", "|", "(", ")", "<", ">", "\n")
_ENDS = set(" \t\n;&|()<>")
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[^<>\n|&;]{0,80}[^\s<>|&;])?>(?=[\s\"'\\_]|$)")
"""``<path to data>``, as examples leave it to their readers"""
_LONGEST_EXPRESSION = 2000
"""letters between ``((`` and ``))``"""
_MOST_EXPRESSIONS = 1000


@dataclass(frozen=True, slots=True)
class WordPart:
    """A piece of a word; what quotes stand around it."""

    text: str
    quote: str
    """empty, ' or \" """
    line: int


@dataclass(slots=True)
class HereDocument:
    """A here-document, which is read after the line that names it."""

    text: str = ""
    line: int = 0
    literal: bool = False
    """its end is written in quotes: nothing in it is replaced"""


@dataclass(frozen=True, slots=True)
class Token:
    """A word (with parts) or an operator (with text)."""

    line: int
    parts: tuple[WordPart, ...] = ()
    operator: str = ""
    """``((`` has one part, the expression up to ``))``"""
    glued: bool = False
    """no blank before it"""
    document: HereDocument | None = None
    """of ``<<``"""

    @property
    def bare(self) -> str:
        """The word as it stands, without quotes; empty for an operator."""
        return "".join(part.text for part in self.parts).replace(JOINED, "")

    @property
    def plain(self) -> bool:
        """A word without quotes: it may be a keyword."""
        return bool(self.parts) and all(not part.quote for part in self.parts)


def tokens(text: str, lines: list[int] | None = None) -> list[Token]:
    """The tokens of a script without its comments; `lines` are those of its letters where it is no whole file."""
    if lines is None:
        text = text.replace("\r\n", "\n")
        if text.endswith("\\"):  # bash goes on with a line that is not there
            text += "\n"
        text = text.translate(dict.fromkeys(map(ord, UNKNOWN)))
        lines = numbered(text, 1)
    return _WordReader(text, lines).read()


def numbered(text: str, first: int) -> list[int]:
    """The line of every letter of `text`, which begins on line `first`."""
    lines: list[int] = []
    for letter in text:
        lines.append(first)
        first += letter in ("\n", JOINED)
    return lines


class _WordReader:
    def __init__(self, text: str, lines: list[int]) -> None:
        self.text = text
        self.lines = lines
        self.at = self.tried = 0
        self.found: list[Token] = []
        self.waiting: list[tuple[str, HereDocument]] = []
        """ends of here-documents that begin after this line"""

    @property
    def line(self) -> int:
        return self.lines[min(self.at, len(self.lines) - 1)]

    def read(self) -> list[Token]:
        glued = False
        while self.at < len(self.text):
            rest = self.text[self.at : self.at + 3]
            if rest[0] in " \t":
                self.at += 1
                glued = False
            elif rest.startswith("\\\n"):
                self.at += 2
                glued = False
            elif rest[0] == "#" and not glued:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif rest.startswith("((") and not glued and self._arithmetic():
                glued = False
            elif rest[0] == "<" and _PLACEHOLDER.match(self.text, self.at):
                self._word(glued)
                glued = True
            elif operator := next((known for known in _OPERATORS if rest.startswith(known)), ""):
                self._operator(operator, glued)
                glued = False
            else:
                self._word(glued)
                glued = True
        return self.found

    def _arithmetic(self) -> bool:
        """``((...))`` as one token; False where two brackets are closed apart."""
        self.tried += 1
        if self.tried > _MOST_EXPRESSIONS:
            return False
        window = self.text[self.at : self.at + _LONGEST_EXPRESSION]
        whole = window[: _balanced(window, 0)]
        if not whole.endswith("))") or _balanced(window, 1) != len(whole) - 1:
            return False
        self.found.append(Token(self.line, (WordPart(whole[2:-2], '"', self.line),), "(("))
        self.at += len(whole)
        return True

    def _operator(self, operator: str, glued: bool) -> None:
        last = self.found[-1] if self.found else None
        if operator[0] in "<>" and glued and last is not None and is_digits(last.bare) and last.plain:
            self.found.pop()  # 2> is one operator
        document = HereDocument() if operator in ("<<", "<<-") else None
        self.found.append(Token(self.line, operator=operator, glued=glued, document=document))
        self.at += len(operator)
        if document is not None:
            match = re.match(r"[ \t]*(['\"\\]?)([\w.-]+)", self.text[self.at :])
            if match:
                document.literal = bool(match[1])
                self.waiting.append((match[2], document))
        if operator == "\n":
            for end, waiting in self.waiting:
                self._read_document(end, waiting)
            self.waiting = []

    def _read_document(self, end: str, document: HereDocument) -> None:
        document.line, rows = self.line, []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            row = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            if row.strip() == end:
                break
            rows.append(row)
        document.text = "".join(f"{row}\n" for row in rows)

    def _word(self, glued: bool) -> None:
        parts: list[WordPart] = []
        first = self.line
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "<" and (match := _PLACEHOLDER.match(self.text, self.at)):
                parts.append(WordPart(match[0], '"', self.line))
                self.at = match.end()
            elif letter in _ENDS:
                break
            elif letter == "'":
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
        """One letter, an escaped one, a value that is not known, or a whole ``$(...)``, ``${...}`` or ```...```."""
        text, at = self.text, self.at
        letter, pair = text[at], text[at : at + 2]
        if pair == "\\\n":
            letters.append(JOINED)
            self.at += 2
        elif letter == "\\" and len(pair) > 1:
            kept = pair[1] if not escapes or pair[1] in escapes else pair
            letters.append("\\$" if kept == "$" else HELD.get(kept, kept) if not escapes else kept)
            self.at += 2
        elif letter == UNKNOWN[0]:
            end = text.find(UNKNOWN[1], at)
            self.at = len(text) if end < 0 else end + 1
            letters.append(text[at : self.at])
        elif letter == "`" or pair in ("$(", "${"):
            self.at = enclosed(text, at)
            letters.append(text[at : self.at])
        elif pair == "$[" and (end := _balanced(text, at + 1)):  # as bash wrote $((...)) before 1995
            self.at = end
            letters.append(f"$(({text[at + 2 : end - 1]}))")
        else:
            letters.append(letter)
            self.at += 1


def enclosed(text: str, at: int = 0) -> int:
    """Where ``$(...)``, ``${...}`` or ```...```, which begins at `at`, ends."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    return _balanced(text, at + 1) or len(text)


def _balanced(text: str, at: int) -> int:
    """The end of the bracket at `at`, 0 where it is never closed; brackets in quotes count only if it is not closed without them."""
    opens, closes = {"(": ("(", ")"), "[": ("[", "]")}.get(text[at], ("{", "}"))
    depth, quote, skip, plain, end = 0, "", False, 0, 0
    for place in range(at, len(text)):
        letter = text[place]
        plain += (letter == opens) - (letter == closes)
        end = end or (place + 1 if not plain else 0)
        if skip:
            skip = False
        elif letter == "\\" and quote != "'":
            skip = True
        elif quote == "'":
            quote = "" if letter == "'" else quote
        elif letter == "'" and not quote:
            quote = "'"
        elif letter == '"':
            quote = "" if quote else '"'
        elif not quote:
            depth += (letter == opens) - (letter == closes)
            if not depth:
                return place + 1
    return end
