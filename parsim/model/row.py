"""Operators laid one behind the other: how blocks of transformers are written down."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from parsim.model.model import Block, Operator
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.transformer import TransformerConfig


@dataclass
class Row:
    """Operators so far and the tensor that the next one usually reads."""

    operators: list[Operator] = field(default_factory=list)
    last: str = "input"

    def add(self, *operators: Operator) -> str:
        """Append `operators`; returns the name of the last one's output."""
        self.operators.extend(operators)
        self.last = operators[-1].output
        return self.last

    def block(self, kind: str, roles: tuple[str, ...] = ()) -> Block:
        """The row as a block; its last tensor becomes ``output``.

        `roles` are beginnings of operator names in parameter-registration order; operators with none of them follow
        as executed. () = registered as executed.
        """
        last = cast("Any", self.operators[-1])
        operators = (*self.operators[:-1], cast("Operator", replace(last, output="output")))
        order: tuple[str, ...] = ()
        if roles:
            order = tuple(sorted((operator.name for operator in operators), key=lambda name: _place(name, roles)))
        return Block(kind, operators, order)


def norm(config: TransformerConfig, name: str, source: str) -> Operator:
    """The architecture's norm over the hidden dimension."""
    if config.normalisation == "rmsnorm":
        offset, keeps, power = config.norm_offset, config.norm_keeps_input, config.norm_by_power
        wide, weights = config.norm_in_fp32, config.norm_weights
        return RMSNorm(name, (source,), name, config.hidden, offset, keeps_input=keeps, wide=wide, weights=weights, by_power=power)
    return LayerNorm(name, (source,), name, config.hidden, config.norm_bias, weights=config.norm_weights, wide=config.norm_in_fp32)


def _place(name: str, roles: tuple[str, ...]) -> int:
    """Index of the longest role that the name begins with."""
    fitting = [(len(role), index) for index, role in enumerate(roles) if name.startswith(role)]
    return max(fitting)[1] if fitting else len(roles)
