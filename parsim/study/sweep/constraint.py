"""Constraints: ``fits``, ``step_time < 2 s``, ``tensor.size <= gpus_per_node and mfu > 40 %``.

A small language of comparisons, and/or/not, + - * /, brackets and quantities. It has the grammar of Python's expressions and is
parsed as one, but only the nodes below are accepted, and nothing is ever evaluated by Python.
What is unknown stays unknown (Kleene's three-valued logic), so a constraint can be asked before the simulation.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parsim import units
from parsim.errors import Finding, ScenarioError
from parsim.scenario.values import Choice, did_you_mean
from parsim.scenario.yaml_tree import Origin
from parsim.study.sweep.metrics import BYTES, EXAMPLES, MONEY, NAMED, NUMBER, TIME, Dimension, quantity
from parsim.study.sweep.vocabulary import Sort, Stage, UnknownWord, Word, find

Value = float | bool | str | None
Known = Callable[[Word], Any]
"""the value of a word in base units; None: not known (yet)"""

_NUMBER = r"(?:[0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"(?<![\w.])(?P<number>{_NUMBER})(?P<gap> ?)(?P<unit>%|[A-Za-z]+(?:/[A-Za-z]+)?(?![\w.(]))")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_ORDER: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt), ast.GtE: (">=", operator.ge),
}  # fmt: skip
_EQUAL: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne)}
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[float, float], float]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul), ast.Div: ("/", operator.truediv),
}  # fmt: skip
_FOREIGN = {"&&": "and", "||": "or", "<>": "!=", "≤": "<=", "≥": ">=", "≠": "!=", "×": "*"}


class _Wrong(ValueError):  # noqa: N818
    """What is wrong, and what to write."""


@dataclass(frozen=True)
class Term:
    """A part of a constraint: how it is evaluated, what it is, and the words in it."""

    sort: Sort
    value: Callable[[Known], Value]
    words: tuple[Word, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Constraint:
    """Something that must hold of a candidate."""

    text: str
    term: Term
    origin: Origin
    currencies: tuple[str, ...] = ()
    """in which its amounts of money are written"""

    @property
    def words(self) -> tuple[Word, ...]:
        """Those it speaks of, each once."""
        return tuple(dict.fromkeys(self.term.words))

    @property
    def stage(self) -> Stage:
        """When it can be decided for certain."""
        return max((word.stage for word in self.words), default=Stage.WRITTEN)

    def holds(self, known: Known) -> bool | None:
        """Whether it holds; None where what is known does not decide it."""
        value = self.term.value(known)
        return None if value is None else bool(value)

    def why(self, known: Known) -> str:
        """``step_time < 2 s: step_time_s is 2.31 s``; what its words are where it does not hold."""
        said = [f"{word.name} is {_shown(known(word), word)}" for word in self.words]
        return f"{self.text}: {', '.join(said)}" if said else f"{self.text}: never holds"


def constraint(text: Any, origin: Origin = ("", None, None), key: str = "where") -> Constraint:
    """The constraint that `text` says.

    Raises:
        ScenarioError: the grammar, unknown words (with the nearest), dimensions that do not go together.
    """
    try:
        parser = _Parser(text)
        term = parser.whole()
    except _Wrong as error:
        message, *hint = error.args
        raise ScenarioError(Finding(message, key, text, hint[0] if hint else "", *origin)) from None
    currencies = tuple(said.rpartition(" ")[2][-3:] for _, dimension, said in parser.quantities.values() if dimension == MONEY)
    return Constraint(" ".join(text.split()), term, origin, currencies)


class _Parser:
    def __init__(self, text: Any) -> None:
        if not isinstance(text, str) or not text.strip():
            raise _Wrong("a constraint is a text", "for example: step_time < 2 s")
        self.text = text.replace("µ", "u").replace("μ", "u").strip()
        for foreign, meant in _FOREIGN.items():
            if foreign in self.text:
                raise _Wrong(f"{foreign!r} is not a word of constraints", f"write {meant!r}")
        self.quantities: dict[int, tuple[float, Dimension, str]] = {}

    def whole(self) -> Term:
        """All of the text, which must be something that holds or not."""
        term = self.term()
        if term.sort not in ("flag", "any"):
            raise _Wrong(f"{self.text!r} is {_named(term.sort)}, not something that holds or not", "compare it: <, <=, ==, !=, >=, >")
        return term

    def term(self) -> Term:
        source = self._without_units()
        try:
            tree = ast.parse(source, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = getattr(error, "offset", None) or 1
            raise _Wrong(f"cannot be read at letter {place}: {self.text[max(0, place - 1) :][:20]!r}", self._hint()) from None
        return self._of(tree.body)

    def _hint(self) -> str:
        """What is probably meant where the grammar is broken."""
        if re.search(r"(?<![<>=!])=(?!=)", self.text):
            return "write == to compare"
        digits = re.search(r"(?<![\w.'\"])[0-9]+[A-Za-z]\w*", self.text)
        return f"put a text in quotes: '{digits[0]}'" if digits else "for example: tp <= gpus_per_node and mfu > 40 %"

    def _without_units(self) -> str:
        """The text with a word of the same length where a quantity stands; quoted texts are left alone."""
        texts = [match.span() for match in _TEXT.finditer(self.text)]

        def replaced(match: re.Match[str]) -> str:
            if any(begin <= match.start() < end for begin, end in texts):
                return match[0]
            whole = match["unit"]
            for unit in dict.fromkeys((whole, whole.partition("/")[0])):
                meant = quantity(match["number"].replace("_", ""), unit)
                if meant is not None:
                    text = match[0][: len(match[0]) - len(whole) + len(unit)]
                    self.quantities[match.start()] = (*meant, text)
                    return "_" * len(text) + whole[len(unit) :]
            if whole in ("and", "or", "not", "if", "in", "is"):
                return match[0]
            raise _Wrong(f"{match[0]!r}: unknown unit {whole!r}", "for example 2 s, 70 GiB, 400 Gb/s, 40 %, 1e6 USD; put a text in quotes")

        return _QUANTITY.sub(replaced, self.text)

    def _of(self, node: ast.expr) -> Term:
        match node:
            case ast.BoolOp():
                return self._all([self._flag(item) for item in node.values], isinstance(node.op, ast.And), self._source(node))
            case ast.UnaryOp(op=ast.Not()):
                inner = self._flag(node.operand)
                return Term("flag", lambda known: None if (value := inner.value(known)) is None else not value, inner.words)
            case ast.UnaryOp(op=ast.USub()):
                one = self._number(node.operand)
                return Term(one.sort, lambda known: None if (value := one.value(known)) is None else -float(value), one.words)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.Constant(value=bool() as flag):
                return Term("flag", lambda _: flag)
            case ast.Constant(value=str() as word):
                return Term("text", lambda _: word, (), word)
            case ast.Constant(value=int() | float() as number):
                return Term(NUMBER, lambda _: float(number))
            case ast.Name() | ast.Attribute():
                return self._word(node)
        raise _Wrong(f"{self._source(node)!r} is not part of a constraint", "use comparisons, and, or, not, + - * / and brackets")

    def _source(self, node: ast.expr) -> str:
        return self.text[node.col_offset : node.end_col_offset]

    def _word(self, node: ast.expr) -> Term:
        if node.col_offset in self.quantities and isinstance(node, ast.Name):
            value, dimension, _ = self.quantities[node.col_offset]
            return Term(dimension, lambda _: value)
        text = self._source(node)
        if text in ("true", "false"):
            return Term("flag", lambda _: text == "true")
        try:
            word = find(text)
        except UnknownWord as error:
            raise _Wrong(*error.args) from None
        return Term(word.sort, lambda known: known(word), (word,), text)

    def _flag(self, node: ast.expr) -> Term:
        term = self._of(node)
        if term.sort not in ("flag", "any"):
            raise _Wrong(f"{self._source(node)!r} is {_named(term.sort)}, not something that holds or not", "compare it with something")
        return term

    def _number(self, node: ast.expr) -> Term:
        term = self._of(node)
        if not isinstance(term.sort, Dimension) and term.sort != "any":
            raise _Wrong(f"{self._source(node)!r} is {_named(term.sort)}, not a number", "calculate with numbers only")
        return term

    @staticmethod
    def _all(terms: list[Term], every: bool, text: str) -> Term:
        def value(known: Known) -> bool | None:
            values = [term.value(known) for term in terms]
            decides = not every
            if any(one is not None and bool(one) is decides for one in values):
                return decides
            return None if None in values else every

        return Term("flag", value, tuple(word for term in terms for word in term.words), text)

    def _arithmetic(self, node: ast.BinOp) -> Term:
        if type(node.op) not in _ARITHMETIC:
            raise _Wrong(f"{self._source(node)!r}: only + - * / are known", "")
        symbol, function = _ARITHMETIC[type(node.op)]
        one, two = self._number(node.left), self._number(node.right)
        sort: Sort = "any"
        if isinstance(one.sort, Dimension) and isinstance(two.sort, Dimension):
            if symbol in "+-" and one.sort != two.sort:
                raise _Wrong(f"{self._source(node)!r}: {one.sort} {symbol} {two.sort}", _unit_hint(one.sort))
            sort = one.sort * two.sort if symbol == "*" else one.sort / two.sort if symbol == "/" else one.sort

        def value(known: Known) -> float | None:
            left, right = one.value(known), two.value(known)
            if not _is_number(left) or not _is_number(right) or (symbol == "/" and right == 0):
                return None
            return function(float(left), float(right))  # type: ignore[arg-type]

        return Term(sort, value, (*one.words, *two.words))

    def _comparison(self, node: ast.Compare) -> Term:
        items = [node.left, *node.comparators]
        pairs = [self._pair(left, op, right) for left, op, right in zip(items, node.ops, items[1:], strict=False)]
        return pairs[0] if len(pairs) == 1 else self._all(pairs, True, self._source(node))

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Term:
        known_operator = _ORDER.get(type(op)) or _EQUAL.get(type(op))
        if known_operator is None:
            raise _Wrong("only <, <=, ==, !=, >= and > compare", "for several values write tp == 2 or tp == 4")
        symbol, function = known_operator
        one, two = self._sides(left, right, equal=type(op) in _EQUAL)
        if "any" not in (one.sort, two.sort) and one.sort != two.sort:
            between = f"{self._source(left)} {symbol} {self._source(right)}"
            raise _Wrong(f"{between!r} compares {_named(one.sort)} with {_named(two.sort)}", _unit_hint(one.sort))
        if type(op) in _ORDER and not isinstance(one.sort, Dimension) and one.sort != "any":
            raise _Wrong(f"{self._source(left)!r} is {_named(one.sort)}: neither more nor less than another", "use == or !=")

        def value(known: Known) -> bool | None:
            a, b = one.value(known), two.value(known)
            if a is None or b is None:
                return None
            if type(op) in _ORDER and not (_is_number(a) and _is_number(b)):
                return None
            return function(a, b)

        return Term("flag", value, (*one.words, *two.words))

    def _sides(self, left: ast.expr, right: ast.expr, *, equal: bool) -> tuple[Term, Term]:
        """Both sides of a comparison; a word beside a key that holds texts may be one of them: ``strategy == zero1``."""
        if equal:
            for place, other in ((left, right), (right, left)):
                meant = self._spoken(place)
                if meant is not None and isinstance(other, ast.Name) and other.col_offset not in self.quantities:
                    said = self._text(other, meant)
                    if said is not None:
                        return (self._of(place), said) if place is left else (said, self._of(place))
        return self._of(left), self._of(right)

    def _spoken(self, node: ast.expr) -> Word | None:
        """The key that holds texts which `node` names, if it does."""
        if not isinstance(node, (ast.Name, ast.Attribute)) or node.col_offset in self.quantities:
            return None
        try:
            word = find(self._source(node))
        except UnknownWord:
            return None
        return word if word.sort in ("text", "any") else None

    def _text(self, node: ast.Name, beside: Word) -> Term | None:
        text = self._source(node)
        if isinstance(beside.leaf, Choice):
            if text in beside.leaf.options:
                return Term("text", lambda _: text, (), text)
            if not _is_word(text):
                hint = did_you_mean(text, beside.leaf.options) or f"known: {', '.join(beside.leaf.options)}"
                raise _Wrong(f"{beside.name} is never {text!r}", hint)
        return None if _is_word(text) else Term("text", lambda _: text, (), text)


def _is_word(text: str) -> bool:
    try:
        find(text)
    except UnknownWord:
        return text in ("true", "false")
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _named(sort: Sort) -> str:
    return {"flag": "yes or no", "text": "a text", "any": "anything"}.get(sort, "") if isinstance(sort, str) else str(sort)


def _unit_hint(sort: Sort) -> str:
    return f"write for example {EXAMPLES[sort]!r}" if isinstance(sort, Dimension) and sort in EXAMPLES else ""


def _shown(value: Any, word: Word) -> str:
    """A value with its unit."""
    if value is None:
        needs = NAMED[word.name].needs if word.name in NAMED else ""
        return f"not known; it needs {needs}" if needs else "not known"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) or word.sort in ("text", "any"):
        return str(value)
    if word.sort == TIME:
        return units.format_time(value)
    if word.sort == BYTES:
        return units.format_bytes(value)
    if word.unit == "fraction":
        return f"{100 * value:.4g} %"
    return f"{value / word.factor:,.6g}{f' {word.unit}' if word.unit not in ('', '1') else ''}"
