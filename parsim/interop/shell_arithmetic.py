"""Arithmetic of the shell: whole numbers, comparisons and assignments, without executing anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

LARGEST = 10**30
"""of a number that a script computes"""
_LONGEST = 400
"""letters of an expression"""
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_COUNTED = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
_NOT = re.compile(r"!(?!=)")
_OCTAL = re.compile(r"(?<![\w.])0+(?=[0-9])")


class UnknownValueError(Exception):
    """A value of an expression is not known; its name."""


def _quotient(a: int, b: int) -> int:
    """Cut towards zero, as C and the shell do."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b < 0 or b > 100:
        raise ValueError("no power that a script needs")
    return int(a**b)


_BINARY: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARED: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def calculated(text: str, value_of: Callable[[str], str], assign: Callable[[str, int | None], None]) -> int | None:
    """The value of expressions between commas, the last one's; None where it has none.

    `value_of` gives the letters of a variable, `assign` gets what the expressions assign (None: not known).

    Raises:
        UnknownValueError: a variable in it has no value.
    """
    result: int | None = 0
    for part in text.split(","):
        if match := _COUNTED.fullmatch(part):
            name, step = match[1] or match[4], 1 if "+" in (match[2] or match[3]) else -1
            before = _value(name, value_of)
            after = None if before is None else before + step
            assign(name, after)
            result = before if match[1] else after
        elif match := _ASSIGNED.fullmatch(part):
            name, sign, rest = match.groups()
            try:
                result = _value(f"{name} {sign} ({rest})" if sign else rest, value_of)
            except UnknownValueError:
                assign(name, None)
                raise
            assign(name, result)
        else:
            result = _value(part, value_of)
    return result


def _value(text: str, value_of: Callable[[str], str]) -> int | None:
    def filled(match: re.Match[str]) -> str:
        value = value_of(match[0]).strip()
        if not value:
            raise UnknownValueError(match[0])
        return f"({value})"

    text = _NAME.sub(filled, text.strip())
    if not text or len(text) > _LONGEST:
        return None
    text = _OCTAL.sub("", _NOT.sub(" not ", text.replace("&&", " and ").replace("||", " or ")))
    try:
        return _of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
        return None


def _of(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        value = _BINARY[type(node.op)](_of(node.left), _of(node.right))
        if abs(value) > LARGEST:
            raise OverflowError("more than a script needs")
        return value
    if isinstance(node, ast.UnaryOp):
        value = _of(node.operand)
        return -value if isinstance(node.op, ast.USub) else int(not value) if isinstance(node.op, ast.Not) else value
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_of(node.left), _of(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values = [_of(value) for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    raise ValueError("not an expression of whole numbers")
