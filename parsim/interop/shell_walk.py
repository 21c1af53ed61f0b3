"""The control flow of a shell script: lists, branches, loops and functions are followed, nothing is executed."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from parsim.interop.shell_tests import undecided
from parsim.interop.shell_values import Field, LetterRun, Variables, plain, unknown
from parsim.interop.shell_words import Token

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
QUIET = ("echo", "printf", "mkdir", "shift", "let", "true", ":", "sleep", "cp", "mv", "rm", "cd", "set", "unset")
"""commands that no loop is stopped for"""
REDIRECTIONS = ("<", ">", ">>", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&")
_SEPARATORS = ("\n", ";", "&", ";;")
_RANGE = re.compile(r"\{(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})\}")
_TAKES_ARGUMENTS = re.compile(r"\bshift\b|\bgetopts?\b")
_DEEPEST = 50
_MOST_ROUNDS = 2000
"""of one loop"""
_MOST_STATEMENTS = 20_000
"""of one script"""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command with its words, as it would run."""

    words: tuple[Field, ...]
    line: int
    own: int = 0
    """where its own words begin: those before start the shell that it runs in"""
    pipe: tuple[tuple[str, ...], ...] = ()
    """words of the commands that get its output"""
    to: str = ""
    """file that gets its output"""
    document: tuple[str, int] | None = None
    """here-document that it reads, and its first line"""
    blank: tuple[tuple[str, int], ...] = ()
    """variables that stand for words of it and have no value, with their lines"""


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the script that its reader should know."""

    message: str
    line: int


class Walker:
    """Walks through tokens; what single commands do is said by `ShellScript`."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        """names whose value the user has said stay as they are"""
        self.exported: dict[str, int] = {}
        """names of the environment -> line"""
        self.commands: list[ShellCommand] = []
        self.notes: list[Note] = []
        self._functions: dict[str, tuple[list[Token], int, int]] = {}
        self._called: set[str] = set()
        self._tokens: list[Token] = []
        self._at = 0
        self._live = True
        self._depth = self._texts = self._statements = self._loops = 0
        self._leaving = ""
        """break or continue, until its loop sees it"""

    def _simple(self) -> bool:
        raise NotImplementedError

    def read_functions(self) -> None:
        """Read functions that nobody has called as if they were."""
        for name, (found, begin, end) in list(self._functions.items()):
            if name not in self._called:
                self._walk(found[begin:end])

    # -- walking

    def _walk(self, found: list[Token]) -> None:
        before = self._tokens, self._at, self._live
        self._tokens, self._at, self._live = found, 0, True
        while self._at < len(self._tokens):
            self._list(())
            self._at += 1  # a keyword without its begin
        self._tokens, self._at, self._live = before

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _keyword(self) -> str:
        token = self._peek()
        return token.bare if token is not None and token.plain and not token.operator else ""

    def _list(self, ends: tuple[str, ...]) -> bool:
        """Read commands up to one of the keywords `ends`; whether the last one succeeded."""
        status, connector = True, ""
        live = self._live
        while (token := self._peek()) is not None:
            word = self._keyword()
            if word in ends or token.operator == ";;":
                break
            if token.operator in _SEPARATORS:
                connector, self._live = "", live and not self._leaving
            elif token.operator in ("&&", "||"):
                connector = token.operator
                self._live = live and not self._leaving and (status if connector == "&&" else not status)
            elif token.operator in REDIRECTIONS:
                self._at += 1  # behind a loop or a group
            elif token.operator == "((":
                status = self._arithmetic(token) if self._live else status
            elif not token.operator:
                statement = self._statement(word)
                status = statement if self._live else status
                self._live = self._live and not self._leaving
                continue
            self._at += 1
        self._live = live
        return status

    def _statement(self, word: str) -> bool:
        self._statements += 1
        if self._depth > _DEEPEST or self._statements > _MOST_STATEMENTS:
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
            if self._defines(word):
                return True
            if word in ("{", "}", "then", "do", "done", "fi", "esac", "else", "elif"):
                self._at += 1
                return True
            return self._simple()
        finally:
            self._depth -= 1

    def _arithmetic(self, token: Token) -> bool:
        """``(( ... ))``: whether its value is not zero."""
        value = self.variables.arithmetic(token.bare, token.line)
        if value is None:
            self._note(f"what (({token.bare.strip()})) gives is not known: it is taken as false", token.line)
        return bool(value)

    def _note(self, message: str, line: int) -> None:
        note = Note(message, line)
        if note not in self.notes:
            self.notes.append(note)

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
        if subject is not None and (name := undecided([value])):
            self._note(f"what {name} is is not known: of the cases the one for anything is taken", subject.line)
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

    # -- loops and functions

    def _loop(self, word: str) -> bool:
        line, live = self._tokens[self._at].line, self._live
        begin = self._at + 1
        self._at, self._live = begin, False
        self._list(("do",)) if word in ("while", "until") else self._skip_to("do")
        inside = self._at + 1
        self._at = inside
        self._list(("done",))
        end, self._live = self._at, live
        header = [token for token in self._tokens[begin : inside - 1] if token.parts]
        self._loops += 1
        if live and header:
            if word == "for" and header[0].operator == "((":
                self._count(header[0], inside, end, line)
            elif word in ("for", "select"):
                self._each(header, inside, end, line)
            else:
                self._while(word, begin, inside, end, line)
        self._loops -= 1
        self._live, self._leaving = live, "" if live else self._leaving
        self._at = end + 1
        return True

    def _skip_to(self, word: str) -> None:
        while self._peek() is not None and self._keyword() != word:
            self._at += 1

    def _round(self, inside: int) -> bool:
        """Read the body of a loop once; whether the next round may be read, too."""
        before = len(self.commands)
        self._at, self._live = inside, True
        self._list(("done",))
        left, self._leaving = self._leaving, ""
        return left != "break" and all(command.words[command.own].text in QUIET for command in self.commands[before:])

    def _each(self, header: list[Token], inside: int, end: int, line: int) -> None:
        """``for NAME in WORDS``."""
        if len(header) < 3 or header[1].bare != "in":
            self._round(inside)
            return
        name = header[0].bare
        items = [item for token in header[2:] for item in _counted(token) or self.variables.expand(token.parts)]
        if any(undecided([item.text]) for item in items) or len(items) > _MOST_ROUNDS:
            self._unread(f"what {name} runs through is not known: the loop is not read", inside, end, line)
            return
        for at, item in enumerate(items):
            self.variables.set(name, [LetterRun(item.text, line)])
            if not self._round(inside):
                if rest := ", ".join(other.text for other in items[at + 1 :]):
                    times = f"once, with {name}={item.text}" if at == 0 else f"{at + 1} times, up to {name}={item.text}"
                    self._note(f"the loop is read {times} (not with {rest})", line)
                return

    def _count(self, header: Token, inside: int, end: int, line: int) -> None:
        """``for ((i = 0; i < 4; i++))``."""
        begin, _, rest = header.bare.partition(";")
        condition, _, step = rest.partition(";")
        if begin.strip():
            self.variables.arithmetic(begin, line)
        for _ in range(_MOST_ROUNDS):
            holds = self.variables.arithmetic(condition, line)
            if holds is None:
                break
            if not holds:
                return
            if not self._round(inside):
                self._note(f"the loop (({header.bare.strip()})) is read once", line)
                return
            self.variables.arithmetic(step, line)
        self._unread(f"how often (({header.bare.strip()})) is done is not known: the loop is not read", inside, end, line)

    def _while(self, word: str, begin: int, inside: int, end: int, line: int) -> None:
        text = " ".join(token.bare for token in self._tokens[begin:end] if token.parts)
        if "$#" in text or _TAKES_ARGUMENTS.search(text):
            self._note(f"what stands in a {word} loop is not read", line)
            return
        first = self._tokens[begin]
        seen = len(self.notes)
        if first.operator == "((" or first.bare in ("[", "[[", "test"):
            for _ in range(_MOST_ROUNDS):
                self._at, self._live = begin, True
                holds = self._list(("do",))
                if len(self.notes) > seen:
                    break
                if holds is (word == "until") or not self._round(inside):
                    return
        self._unread(f"what stands in a {word} loop is not read", inside, end, line)

    def _unread(self, message: str, inside: int, end: int, line: int) -> None:
        """A loop that is not followed: what it assigns is not known from here on."""
        self._note(message, line)
        for token in self._tokens[inside:end]:
            if match := ASSIGNMENT.match(token.bare):
                self.variables.set(match[1], [LetterRun(unknown(match[1]), line)])

    def _defines(self, word: str) -> bool:
        """Whether a function is defined here; its body is read where it is called."""
        at, after = self._at, self._tokens[self._at + 1 : self._at + 3]
        if word == "function" and after:
            word, at = after[0].bare, at + 1
            after = self._tokens[at + 1 : at + 3]
        elif [token.operator for token in after] != ["(", ")"] or not word:
            return False
        at += 3 if [token.operator for token in after] == ["(", ")"] else 1
        while at < len(self._tokens) and self._tokens[at].operator == "\n":
            at += 1
        if at >= len(self._tokens) or self._tokens[at].bare != "{":
            self._at = at
            return True
        depth, end = 0, at
        while end < len(self._tokens):
            token = self._tokens[end]
            depth += (token.bare == "{") - (token.bare == "}") if token.plain else 0
            if not depth:
                break
            end += 1
        if self._live:
            self._functions[word] = self._tokens, at + 1, end
            self._called.discard(word)
        self._at = end + 1
        return True

    def _call(self, items: tuple[Field, ...]) -> None:
        """Run a function with its arguments."""
        found, begin, end = self._functions[items[0].text]
        self._called.add(items[0].text)
        outer = {str(n): self.variables.scalars.pop(str(n), None) for n in range(1, 10)}
        arguments = self.variables.arrays.pop("@", None)
        self.variables.arrays["@"] = list(items[1:])
        for n, item in enumerate(items[1:10], 1):
            self.variables.scalars[str(n)] = [LetterRun(item.text, item.line)]
        self._texts += 1
        if self._texts <= _DEEPEST:
            self._walk(found[begin:end])
        self._texts -= 1
        self.variables.arrays.pop("@", None)
        for name, value in outer.items():
            self.variables.scalars.pop(name, None)
            if value is not None:
                self.variables.scalars[name] = value
        if arguments is not None:
            self.variables.arrays["@"] = arguments


def _counted(token: Token) -> list[Field]:
    """The words of ``{1..4}``."""
    match = _RANGE.fullmatch(token.bare)
    if match is None or not token.plain:
        return []
    first, last = int(match[1]), int(match[2])
    step = 1 if last >= first else -1
    return [Field(str(number), token.line) for number in range(first, last + step, step)[: _MOST_ROUNDS + 1]]
