"""A mypy plugin: the builtin `sum` adds whole numbers only.

Python 3.12 changed `sum` of floats (it carries the rounding errors along), so 3.11 and 3.12 differ in the last digit. `math.fsum` rounds
once, everywhere alike. What a sum adds is known by its type, hence the rule is checked where types are.
"""

from collections.abc import Callable, Iterable

from mypy.errorcodes import MISC
from mypy.plugin import FunctionContext, Plugin
from mypy.types import AnyType, Instance, ProperType, TupleType, Type, UnionType, get_proper_type


class ExactSums(Plugin):
    """Refuse `sum` of floats, and of what has no type."""

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """Hook every call of the builtin `sum`."""
        return _check if fullname == "builtins.sum" else None


def _check(call: FunctionContext) -> Type:
    # Inferred afresh: the types in `call` were inferred for one overload of `sum`, the first of which expects bool. All overloads are
    # refused, so mypy reports a mismatch with the first beside this message.
    given = [call.api.get_expression_type(argument) for arguments in call.args for argument in arguments]
    if any(isinstance(kind, AnyType) or (isinstance(kind, Instance) and kind.type.fullname == "builtins.float") for kind in _inside(given)):
        call.api.fail("sum() of floats differs between Python 3.11 and 3.12: use math.fsum", call.context, code=MISC)
    return call.default_return_type


def _inside(kinds: Iterable[Type]) -> Iterable[ProperType]:
    """The types given, and those of what they hold: ``float`` in ``list[float]``."""
    for kind in map(get_proper_type, kinds):
        yield kind
        if isinstance(kind, Instance):
            yield from _inside(kind.args)
        elif isinstance(kind, (UnionType, TupleType)):
            yield from _inside(kind.items)


def plugin(_version: str) -> type[Plugin]:
    """Name the plugin to mypy."""
    return ExactSums
