"""Forward passes without gradients beside a micro-batch's own: those of a reference model, or of the policy on other samples.

Each keeps nothing for backward. Behind the policy's forward pass everything that this has kept is there while they run; GRPO's come
before it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from parsim.model.adapted_experts import FrozenExperts, FrozenRouter
from parsim.model.adapters import FrozenLinear
from parsim.model.mixture import Router
from parsim.model.model import Block, Model, Operator
from parsim.parallel.hooks import Sharding
from parsim.parallel.objective import Objective, Whose
from parsim.program.pass_builder import PassBuilder
from parsim.program.pipeline_rank import PipelineRank

if TYPE_CHECKING:
    from parsim.parallel.plan import Plan


class UnsavedRank(PipelineRank):
    """A rank as such a pass sees it: the policy's own weights, or those of a reference model beside it."""

    def __init__(self, policy: PipelineRank, role: str, whose: Whose, turn: int) -> None:
        """`turn`: passes of the same weights that come before it in a slot."""
        plan = policy.plan
        self.separate = whose == "reference" and plan.training.objective.separate(plan.training.finetune)
        self.whose, self.turn = whose, turn
        self._policy = policy
        super().__init__(_without_gradients(plan, whose), policy.pipeline_rank, role, policy.clock, table=policy.table)
        if plan.sharded and not self.separate:
            self.units = policy.units

    @property
    def title(self) -> str:
        """What the names of its blocks begin with in the step's compute."""
        return f"{self.whose} "

    def mark(self, partial: bool) -> str:
        """Its activations are others than the policy's."""
        again = f"{self.turn + 1} " if self.turn else ""
        return f"{self.whose} without gradients {again}{super().mark(partial)}"

    @property
    def prefix(self) -> str:
        """What the names of all its tensors begin with, its weights' too, where these are its own."""
        return "reference " if self.separate else ""

    def builder(self, stage: int, *, first: bool = True, last: bool = True) -> PassBuilder:
        """A builder that declares tensors under its own names."""
        made = super().builder(stage, first=first, last=last)
        made.prefix = self.prefix + made.prefix
        return made

    def shardings(self, role: str) -> dict[int, Sharding]:
        """The policy's where its weights are sharded: what is gathered there is gathered here. Whole weights ask for nothing."""
        own = super().shardings(role)
        return self._policy.sharding if self.plan.sharded and not self.separate else own

    def first_use(self, way: str) -> int | None:
        """The policy's pass has been there before."""
        return None

    def _declare_resident(self) -> tuple[int, ...]:
        if not self.separate:
            return ()
        builders = {stage: self.builder(stage) for stage in self.sharding}
        return tuple(self.table.index[at.full(name)] for stage, at in builders.items() for name in self.sharding[stage].resident(at))


def unsaved_ranks(policy: PipelineRank, role: str) -> tuple[UnsavedRank, ...]:
    """One for every forward pass without gradients beside a micro-batch's own."""
    wanted = policy.plan.training.objective.unsaved
    return tuple(UnsavedRank(policy, role, whose, wanted[:place].count(whose)) for place, whose in enumerate(wanted))


def _without_gradients(plan: Plan, whose: Whose) -> Plan:
    """The plan of a forward pass in evaluation mode; a reference is the policy without adapters."""
    model = plan.model if whose == "policy" or plan.training.finetune is None else _unadapted(plan.model)
    training = replace(plan.training, backward=False, step=False, data_loading=0.0, dropout=0.0, objective=Objective())
    workload = replace(plan.workload, backward=False, dropout=0.0)
    return replace(plan, model=model, training=training, workload=workload, _known_weights={})


def _unadapted(model: Model) -> Model:
    changed: dict[Block, Block] = {}
    for block in model.distinct_blocks:
        adapted = any(_bare(operator) is not operator for operator in block.operators)
        changed[block] = replace(block, operators=tuple(map(_bare, block.operators))) if adapted else block
    return replace(model, blocks=tuple(changed[block] for block in model.blocks))


def _bare(operator: Operator) -> Operator:
    if isinstance(operator, FrozenRouter):
        return Router(**{field.name: getattr(operator, field.name) for field in fields(Router)})
    if isinstance(operator, FrozenLinear):
        return replace(operator, adapters=()) if operator.adapters else operator
    return replace(operator, adapters=()) if isinstance(operator, FrozenExperts) and operator.adapters else operator
