"""What the ranks of one pipeline rank do in a step: its begin, every slot of the schedule in order, its end, as items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parsim.kernel import Kernel, on_kind
from parsim.parallel.groups import OFFLOAD, PIPELINE
from parsim.parallel.plan import Plan, Role
from parsim.parallel.schedules.slot import SlotKind
from parsim.program.block_templates import BlockTemplates
from parsim.program.pass_builder import Item
from parsim.program.program import Effect
from parsim.program.stage_passes import StagePasses

Family = tuple[str, str, int, int]
"""kind, axis, pipeline rank, pipeline rank of the receiver or -1"""


class Message(NamedTuple):
    """What a slot hands on to another pipeline rank."""

    size: int | None
    """[B]; None: it takes a measured time and crosses no links"""
    effects: tuple[Effect, ...]
    """on the sender"""
    duration: float
    """[s]"""


@dataclass(frozen=True, slots=True, eq=False)
class SlotPass:
    """A slot's pass; one object for the micro-batches that repeat it."""

    items: Sequence[Item]
    message: Message | None


_NOTHING = SlotPass((), None)
"""of a replica that does without a micro-batch: the first ones, so that all replicas end with the last, where they meet"""


class Script:
    """The passes of one pipeline rank and role for a whole step, written in the order of its schedule."""

    def __init__(self, plan: Plan, pipeline_rank: int, role: Role, clock: Callable[[Kernel], float], templates: BlockTemplates) -> None:
        self.passes = StagePasses(plan, pipeline_rank, role.central, clock, templates)
        self.begin: Sequence[Item] = [] if plan.asynchronous else self.passes.begin()  # else between two backwards, as the end is
        self.slots: list[SlotPass] = []
        self.versions: list[Sequence[tuple[int, tuple[Effect, ...]]]] = []
        """PipeDream: (weight version, effects) of the versions kept or dropped around each slot; else empty"""
        self._plan = plan
        self._pipeline_rank = pipeline_rank
        self._skipped = role.skipped
        self._known: dict[tuple[str, int, bool, bool, bool, bool, bool], SlotPass] = {}
        self._distinct: list[SlotPass] = []
        self._write()
        self.end: Sequence[Item] = [] if plan.asynchronous else self.passes.end()

    def _write(self) -> None:
        plan, passes = self._plan, self.passes
        step, fixed, updates = plan.step - self._skipped, passes.fixed, 0
        smaller = plan.training.micro_batches - 1 if plan.training.last_micro_batch else -1
        taken: dict[tuple[str, int], int] = {}
        beside = {backward for _, backward in plan.overlapped}
        asynchronous = plan.asynchronous
        for slot in plan.slots[self._pipeline_rank]:
            kind, stage, micro_batch = slot
            if micro_batch < self._skipped:
                self.slots.append(_NOTHING)
                continue
            # B and W count together: a table may mix them, and either writes the first gradient or completes the last
            counted = (SlotKind.BACKWARD_WEIGHT if kind == SlotKind.FULL_BACKWARD else kind, stage)
            count = taken[counted] = taken.get(counted, 0) + 1
            first, last = step == 1 or count % step == 1, count % step == 0
            done = min(taken.get((SlotKind.BACKWARD_WEIGHT, one), 0) for one in passes.chunks) // step if asynchronous else 0
            key = (kind, stage, first, last, micro_batch == smaller, bool(beside) and slot in beside, done > updates)
            updates = done
            if not fixed or (slot_pass := self._known.get(key)) is None:
                slot_pass = self._known[key] = self._slot(*key)
            self.slots.append(slot_pass)
            if asynchronous:
                self.versions.append(passes.stash(kind, micro_batch))

    def _slot(self, kind: str, stage: int, first: bool, last: bool, partial: bool, beside: bool, updates: bool) -> SlotPass:
        items = self.passes.template(kind, stage, first, last, partial, beside, updates)
        for known in self._distinct:
            if known.items is items:
                return known
        sends = receiver(self._plan, kind, stage) is not None
        self._distinct.append(SlotPass(items, Message(*self.passes.sends(kind, stage, partial)) if sends else None))
        return self._distinct[-1]

    def families(self) -> Iterator[tuple[Family, int | None]]:
        """Every kind of transfer that these ranks begin, with its size [B]; None: see `Message.size`."""
        plan, rank = self._plan, self._plan.mesh.at(pipeline=self._pipeline_rank)[0]
        slots = dict(zip(self.slots, plan.slots[self._pipeline_rank], strict=True))
        passes = (self.begin, *(one.items for one in slots), self.end)
        members: dict[str, tuple[int, ...]] = {}
        for kind, axis, size in dict.fromkeys(item.collective for items in passes for item in items if item.collective is not None):
            if axis not in members:
                members[axis] = plan.groups.members(axis, rank)
            if len(members[axis]) > 1 or axis == OFFLOAD:
                yield (kind, axis, plan.mesh.coordinate(members[axis][0], PIPELINE), -1), size
        for one, slot in slots.items():
            target = receiver(plan, slot.kind, slot.stage)
            if one.message is not None and target is not None:
                yield ("send", PIPELINE, self._pipeline_rank, target), one.message.size


Scripts = Sequence[dict[Role, Script]]
"""by pipeline rank: role -> script"""


def script_of(scripts: Scripts, plan: Plan, rank: int) -> Script:
    """What a rank does."""
    return scripts[plan.mesh.coordinate(rank, PIPELINE)][plan.role(rank)]


def receiver(plan: Plan, kind: str, stage: int) -> int | None:
    """The pipeline rank that needs what such a slot makes, if it is another one."""
    following = plan.neighbour(stage, 1 if kind == SlotKind.FORWARD else -1)
    boundary = stage if kind == SlotKind.FORWARD else stage - 1
    if kind == SlotKind.BACKWARD_WEIGHT or following is None or plan.stays(boundary):
        return None
    return plan.chunks[following].pipeline_rank


def write(plan: Plan, clock: Callable[[Kernel], float]) -> Scripts:
    """The scripts of all pipeline ranks and roles. `clock` turns a kernel into seconds."""
    roles: list[dict[Role, None]] = [{} for _ in plan.slots]
    for p, role in zip(plan.mesh.coordinates(PIPELINE), plan.roles(), strict=True):
        roles[p][role] = None
    templates: dict[int, BlockTemplates] = {}
    return [
        {role: Script(plan, p, role, on_kind(clock, role.kind), templates.setdefault(role.kind, {})) for role in mine}
        for p, mine in enumerate(roles)
    ]


def families(scripts: Scripts) -> dict[Family, dict[int | None, None]]:
    """Every kind of transfer in a step -> sizes [B]."""
    sizes: dict[Family, dict[int | None, None]] = {}
    for by_role in scripts:
        for script in by_role.values():
            for family, size in script.families():
                sizes.setdefault(family, {})[size] = None
    return sizes
