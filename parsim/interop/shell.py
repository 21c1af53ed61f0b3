"""Reads a shell script for the commands that it would run: assignments, arrays, tests, branches, loops and functions are followed.

Nothing is executed. What cannot be known (the output of a program) stands as `shell_values.unknown`, what only the environment says is
empty and remembered; files are taken to exist, commands to succeed, a loop around a command to run once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from parsim.interop.shell_outputs import LONGEST, filtered, printed
from parsim.interop.shell_tests import tested, undecided
from parsim.interop.shell_values import Field, LetterRun, Variables, legible, plain, unknown
from parsim.interop.shell_walk import ASSIGNMENT, QUIET, REDIRECTIONS, Note, ShellCommand, Walker
from parsim.interop.shell_words import JOINED, HereDocument, Token, WordPart, numbered, tokens

__all__ = ["Note", "ShellCommand", "ShellScript"]

_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = ("bash", "sh", "zsh", "dash")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_SHELL_TEXT = re.compile(r"-[a-z]*c")
_DEEPEST_TEXT = 4
"""shells in shells"""
_MOST_CAPTURES = 4000
"""outputs of commands that are worked out"""


@dataclass(slots=True)
class _Parts:
    """A command while its words are collected."""

    words: list[Token] = field(default_factory=list)
    pipe: list[list[Token]] = field(default_factory=list)
    target: Token | None = None
    document: HereDocument | None = None
    blank: list[tuple[str, int]] = field(default_factory=list)


class ShellScript(Walker):
    """A script that has been read."""

    def __init__(self, text: str, variables: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> None:
        known = {**(environment or {}), **(variables or {})}
        super().__init__(Variables({name: [LetterRun(value, 0)] for name, value in known.items()}, fixed=frozenset(variables or ())))
        self.variables.capture = self._captured
        self._captures = 0
        self._starting: tuple[Field, ...] = ()
        """words that start the shell which reads this text"""
        self._walk(tokens(text))

    def _simple(self) -> bool:
        parts = _Parts()
        words = parts.words
        assigned = True
        token = self._peek()
        line = token.line if token is not None else 0
        while (token := self._peek()) is not None:
            if token.operator in REDIRECTIONS:
                self._redirect(token, parts)
                continue
            if token.operator == "(" and token.glued and words and assigned and (match := ASSIGNMENT.fullmatch(words[-1].bare)):
                words.pop()
                self._array(match[1], append=bool(match[2]))
                continue
            if token.operator in ("|", "|&"):
                parts.pipe.append([])
                words = parts.pipe[-1]
                self._at += 1
                continue
            if token.operator:
                break
            declares = bool(words) and words[0].bare in _DECLARES
            assigned = (assigned or declares) and (ASSIGNMENT.match(token.bare) is not None or (token.bare in _DECLARES and not words))
            words.append(token)
            self._at += 1
        token = self._peek()
        if token is not None and token.operator in ("(", ")"):
            self._at += 1
        return self._run(parts, line) if parts.words and self._live else True

    def _redirect(self, token: Token, parts: _Parts) -> None:
        self._at += 1
        after = self._peek()
        if token.document is not None:
            parts.document = token.document
        elif token.operator in (">", ">>") and after is not None and after.parts and parts.target is None:
            parts.target = after
        self._at += 1

    def _array(self, name: str, *, append: bool) -> None:
        self._at += 1
        items: list[Field] = []
        while (token := self._peek()) is not None and token.operator != ")":
            if token.parts and self._live:
                items += self.variables.expand(token.parts)
            self._at += 1
        self._at += 1
        if self._live:
            self.variables.set_array(name, items, append=append)

    def _run(self, parts: _Parts, line: int) -> bool:
        words = parts.words
        declares = words[0].bare in _DECLARES and words[0].plain
        rest = list(words[1:] if declares else words)
        while rest and (match := ASSIGNMENT.match(rest[0].bare)) and rest[0].parts[0].quote == "":
            token = rest.pop(0)
            first = token.parts[0]
            pieces = (WordPart(first.text[match.end() :], "", first.line), *token.parts[1:])
            self._assign(match[1], self.variables.text(pieces), append=bool(match[2]))
            if declares and words[0].bare == "export":
                self.exported[match[1]] = token.line
        if declares:
            self.exported |= {token.bare: token.line for token in rest if words[0].bare == "export" and not token.bare.startswith("-")}
            return True
        words_of = [(token, self.variables.expand(token.parts)) for token in rest]
        items = tuple(item for _, found in words_of for item in found)
        programs = [at for at, (_, found) in enumerate(words_of) if any(item.text.endswith(".py") for item in found)]
        for token, found in words_of[programs[0] :] if programs else ():
            if not found and (match := _VARIABLE.fullmatch(token.bare)):
                parts.blank.append((match[1], token.line))
        if not items:
            return True
        if items[0].text in ("[", "[[", "test"):
            return self._test([item.text for item in items[1:] if item.text not in ("]", "]]")], line)
        if items[0].text in ("break", "continue") and self._loops:
            self._leaving = items[0].text
            return True
        if items[0].text == "let":
            return bool([self.variables.arithmetic(item.text, line) for item in items[1:]][-1:] != [0])
        return self._command(items, parts, line)

    def _command(self, items: tuple[Field, ...], parts: _Parts, line: int) -> bool:
        name = items[0].text
        if name in ("source", "."):
            self._note(f"{legible(' '.join(item.text for item in items[1:2]))} is another script, which is not read", line)
        elif name == "printf" and len(items) > 3 and items[1].text == "-v":
            value = printed(["printf", *(item.text for item in items[3:])])
            self._assign(items[2].text, [LetterRun(unknown(items[2].text) if value is None else value, line)], append=False)
            return True
        elif name in ("read", "mapfile", "readarray"):
            for item in items[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", item.text):
                    self._assign(item.text, [LetterRun(unknown(item.text), line)], append=False)
        elif name in self._functions:
            self._call(items)
        elif (at := self._shell_in(items)) is not None:
            text = tuple(item for word in items[1:] for item in (LetterRun(" ", word.line), *_runs(word))) if at == 0 else _runs(items[at])
            self._shell(list(text), items[: self._starts(items, at)])
            return True
        pipe = tuple(tuple(item.text for token in stage for item in self.variables.expand(token.parts)) for stage in parts.pipe)
        target = plain(self.variables.text(parts.target.parts)) if parts.target is not None else ""
        document = None
        if parts.document is not None:
            text_of = parts.document.text
            filled = text_of if parts.document.literal else plain(self.variables.text((WordPart(text_of, '"', parts.document.line),)))
            document = filled, parts.document.line
        self.commands.append(ShellCommand((*self._starting, *items), line, len(self._starting), pipe, target, document, tuple(parts.blank)))
        return True

    def _starts(self, items: tuple[Field, ...], at: int) -> int:
        """Where the words end that start the shell whose text is `items[at]`."""
        names = [place for place in range(at) if items[place].text.rpartition("/")[2] in _SHELLS]
        return names[-1] if names else at

    def _shell_in(self, items: tuple[Field, ...]) -> int | None:
        """Which of the words is a text that a shell runs: behind ``bash -c``, or one that names a program; 0 for eval's."""
        if items[0].text == "eval":
            return 0
        shell = program = False
        for at, (last, item) in enumerate(pairwise(items), 1):
            shell = shell or last.text.rpartition("/")[2] in _SHELLS
            program = program or last.text.endswith(".py")
            if shell and _SHELL_TEXT.fullmatch(last.text):
                return at
            if ".py" in item.text and re.search(r"\s", item.text) and items[0].text not in QUIET:
                return None if program else at
        return None

    def _shell(self, runs: list[LetterRun], starting: tuple[Field, ...]) -> None:
        """Read a text that another shell would run, with the variables of this one."""
        if self._texts >= _DEEPEST_TEXT:
            return
        letters, lines = "", []
        for run in runs:
            for letter, line in zip(run.text, numbered(run.text, run.line), strict=True):
                if letter != JOINED:
                    letters += plain([LetterRun(letter, line)])
                    lines.append(line)
        before, self._starting = self._starting, (*self._starting, *starting)
        self._texts += 1
        self._walk(tokens(letters, lines))
        self._texts -= 1
        self._starting = before

    def _captured(self, text: str, line: int) -> str | None:
        """What commands inside ``$(...)`` print; None where that cannot be told."""
        self._captures += 1
        if self._texts >= _DEEPEST_TEXT or len(text) > LONGEST or self._captures > _MOST_CAPTURES:
            return None
        kept = self.commands, self.notes, dict(self.exported), dict(self.variables.scalars), dict(self.variables.arrays)
        self.commands, self.notes = [], []
        self._texts += 1
        self._walk(tokens(text, [line] * len(text)))
        self._texts -= 1
        commands, clear = self.commands, not self.notes
        self.commands, self.notes, self.exported, self.variables.scalars, self.variables.arrays = kept
        outputs = [output_of(command) for command in commands]
        known = [output for output in outputs if output is not None]
        return "".join(known) if clear and commands and len(known) == len(outputs) else None

    def _assign(self, name: str, value: list[LetterRun], *, append: bool) -> None:
        self.variables.set(name, value, append=append)

    def _test(self, words: list[str], line: int) -> bool:
        holds = tested(words)
        if name := undecided(words):
            self._note(f"what {name} is is not known: a test of it is taken as {str(holds).lower()}", line)
        return holds


def output_of(command: ShellCommand) -> str | None:
    """What a command prints behind its pipe; None where that cannot be told."""
    words = [word.text for word in command.words[command.own :]]
    text = command.document[0] if command.document is not None and words == ["cat"] else printed(words)
    for stage in command.pipe:
        text = None if text is None else filtered(text, stage)
    return text


def _runs(item: Field) -> tuple[LetterRun, ...]:
    return item.runs or (LetterRun(item.text, item.line),)
