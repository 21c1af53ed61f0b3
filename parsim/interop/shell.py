"""Reads a shell script for the commands that it would run: assignments, arrays, tests and branches are followed.

Nothing is executed. What cannot be known (the output of a command, a variable of the environment) is empty and remembered;
files are taken to exist, commands to succeed, loops to run once.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from parsim.interop.shell_values import Field, LetterRun, Variables, plain
from parsim.interop.shell_words import Token, WordPart, tokens

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SEPARATORS = ("\n", ";", "&", ";;")
_REDIRECTIONS = ("<", ">", ">>", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&")
_COMPARISONS = {"-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__}
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its words, as it would run."""

    words: tuple[Field, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the script that its reader should know."""

    message: str
    line: int


class Script:
    """A script that has been read."""

    def __init__(self, text: str, variables: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> None:
        known = {**(environment or {}), **(variables or {})}
        self.variables = Variables({name: [LetterRun(value, 0)] for name, value in known.items()})
        self.fixed = frozenset(variables or ())
        """names whose value the user has said"""
        self.exported: dict[str, int] = {}
        """names of the environment -> line"""
        self.commands: list[Command] = []
        self.notes: list[Note] = []
        self._tokens = tokens(text)
        self._at = 0
        self._live = True
        self._depth = 0
        while self._at < len(self._tokens):
            self._list(())
            self._at += 1  # a keyword without its begin

    # -- walking

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _keyword(self) -> str:
        token = self._peek()
        return token.bare if token is not None and token.plain else ""

    def _list(self, ends: tuple[str, ...]) -> bool:
        """Read commands up to one of the keywords `ends`; whether the last one succeeded."""
        status, connector = True, ""
        live = self._live
        while (token := self._peek()) is not None:
            word = self._keyword()
            if word in ends or token.operator == ";;":
                break
            if token.operator in _SEPARATORS:
                connector, self._live = "", live
            elif token.operator in ("&&", "||"):
                connector = token.operator
                self._live = live and (status if connector == "&&" else not status)
            elif not token.operator:
                statement = self._statement(word)
                status = statement if self._live else status
                continue
            self._at += 1
        self._live = live
        return status

    def _statement(self, word: str) -> bool:
        if self._depth > _DEEPEST:
            self._at = len(self._tokens)
            return True
        self._depth += 1
        try:
            if word == "if":
                return self._if()
            if word == "case":
                return self._case()
            if word in ("for", "while", "until", "select"):
                return self._loop(word)
            if word == "!":
                self._at += 1
                return not self._statement(self._keyword())
            if word in ("{", "}", "function", "then", "do", "done", "fi", "esac", "else", "elif"):
                self._at += 1
                return True
            return self._simple()
        finally:
            self._depth -= 1

    def _if(self) -> bool:
        live, taken = self._live, False
        self._at += 1
        while True:
            self._live = live and not taken
            status = self._list(("then",))
            self._at += 1
            self._live = live and status and not taken
            taken = taken or (live and status)
            self._list(("elif", "else", "fi"))
            word = self._keyword()
            self._at += 1
            if word == "elif":
                continue
            if word == "else":
                self._live = live and not taken
                self._list(("fi",))
                self._at += 1
            break
        self._live = live
        return True

    def _case(self) -> bool:
        live, taken = self._live, False
        self._at += 1
        subject = self._peek()
        value = plain(self.variables.text(subject.parts)) if subject is not None and live else ""
        while self._peek() is not None and self._keyword() != "in":
            self._at += 1
        self._at += 1
        while (token := self._peek()) is not None and self._keyword() != "esac":
            if token.operator:
                self._at += 1
                continue
            patterns = []
            while (token := self._peek()) is not None and token.operator != ")":
                patterns += [plain(self.variables.text(token.parts))] if token.parts else []
                self._at += 1
            self._at += 1
            match = live and not taken and any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)
            taken = taken or match
            self._live = match
            self._list(("esac",))
        self._live = live
        self._at += 1
        return True

    def _loop(self, word: str) -> bool:
        line = self._tokens[self._at].line
        live = self._live
        self._at += 1
        header: list[Token] = []
        while (token := self._peek()) is not None and self._keyword() != "do":
            header += [token] if token.parts else []
            self._at += 1
        self._at += 1
        if word == "for" and live and len(header) > 2 and header[1].bare == "in":
            items = [item for token in header[2:] for item in self.variables.expand(token.parts)]
            if items:
                self._assign(header[0].bare, [LetterRun(items[0].text, line)], append=False)
            if len(items) > 1:
                rest = ", ".join(item.text for item in items[1:])
                self.notes.append(Note(f"the loop is read once, with {header[0].bare}={items[0].text} (not with {rest})", line))
        elif live and word != "for":
            self._live = False
            self.notes.append(Note(f"what stands in a {word} loop is not read", line))
        self._list(("done",))
        self._live = live
        self._at += 1
        return True

    # -- simple commands

    def _simple(self) -> bool:
        words: list[Token] = []
        assigned = True
        token = self._peek()
        line = token.line if token is not None else 0
        while (token := self._peek()) is not None:
            if token.operator in _REDIRECTIONS:
                self._at += 2
                continue
            if token.operator == "(" and token.glued and words and assigned and (match := _ASSIGNMENT.fullmatch(words[-1].bare)):
                words.pop()
                self._array(match[1], append=bool(match[2]))
                continue
            if token.operator in ("|", "|&"):
                self._at += 1
                self._skip_pipe()
                break
            if token.operator:
                break
            declares = bool(words) and words[0].bare in _DECLARES
            assigned = (assigned or declares) and (_ASSIGNMENT.match(token.bare) is not None or (token.bare in _DECLARES and not words))
            words.append(token)
            self._at += 1
        token = self._peek()
        if token is not None and token.operator in ("(", ")"):
            self._at += 1
            named = token.operator == "(" and len(words) == 1 and (after := self._peek()) is not None and after.operator == ")"
            words = [] if named else words  # name(): what stands in a function is read where it is written
        return self._run(words, line) if words and self._live else True

    def _skip_pipe(self) -> None:
        while (token := self._peek()) is not None and token.operator not in (*_SEPARATORS, "&&", "||", ")"):
            self._at += 1

    def _array(self, name: str, *, append: bool) -> None:
        self._at += 1
        items: list[Field] = []
        while (token := self._peek()) is not None and token.operator != ")":
            if token.parts:
                items += self.variables.expand(token.parts)
            self._at += 1
        self._at += 1
        if self._live and name not in self.fixed:
            self.variables.set_array(name, items, append=append)

    def _run(self, words: list[Token], line: int) -> bool:
        declares = words[0].bare in _DECLARES and words[0].plain
        rest = list(words[1:] if declares else words)
        while rest and (match := _ASSIGNMENT.match(rest[0].bare)) and rest[0].parts[0].quote == "":
            token = rest.pop(0)
            first = token.parts[0]
            parts = (WordPart(first.text[match.end() :], "", first.line), *token.parts[1:])
            self._assign(match[1], self.variables.text(parts), append=bool(match[2]))
            if declares and words[0].bare == "export":
                self.exported[match[1]] = token.line
        if declares:
            self.exported |= {token.bare: token.line for token in rest if words[0].bare == "export" and not token.bare.startswith("-")}
            return True
        if not rest:
            return True
        items = tuple(item for token in rest for item in self.variables.expand(token.parts))
        if items and items[0].text in ("[", "[[", "test"):
            return self._test([item.text for item in items[1:] if item.text not in ("]", "]]")], line)
        if items and items[0].text in ("source", "."):
            self.notes.append(Note(f"{' '.join(item.text for item in items[1:2])} is another script, which is not read", line))
        if items:
            self.commands.append(Command(items, line))
        return True

    def _assign(self, name: str, value: list[LetterRun], *, append: bool) -> None:
        if name not in self.fixed:
            self.variables.set(name, value, append=append)

    def _test(self, words: list[str], line: int) -> bool:
        """``[ ... ]``: texts and numbers are compared, files are taken to exist."""
        if words[:1] == ["!"]:
            return not self._test(words[1:], line)
        if "-a" in words[1:]:
            middle = words.index("-a", 1)
            return self._test(words[:middle], line) and self._test(words[middle + 1 :], line)
        match words:
            case ["-z"] | ["-n"]:
                return words[0] == "-z"
            case ["-z", text]:
                return not text
            case ["-n", text]:
                return bool(text)
            case [left, "=" | "==", right]:
                return left == right or fnmatch.fnmatchcase(left, right)
            case [left, "!=", right]:
                return not (left == right or fnmatch.fnmatchcase(left, right))
            case ["=" | "==", _]:
                return False
            case [comparison, _] if comparison in _COMPARISONS:
                return False
            case ["!=", _]:
                return True
            case [left, comparison, right] if comparison in _COMPARISONS:
                if re.fullmatch(r"-?[0-9]+", left) and re.fullmatch(r"-?[0-9]+", right):
                    return bool(_COMPARISONS[comparison](int(left), int(right)))
                return False
            case [text]:
                return bool(text)
        return True
