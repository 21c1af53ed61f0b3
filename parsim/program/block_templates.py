"""What equal blocks add to passes, written once and repeated.

Between two questions to the data-parallel strategy, what a block adds to a pass depends on its tape, on how the pass uses it, and
on what the pass looks like there: the compute item that is open, the handles that are waited for. The first block of a kind is
written operator by operator, and what that added is kept as a `BlockTemplate`; other blocks of the kind get the same items under their own
name, with their own tensors. The writer does not see which of the two happened, and the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from parsim.parallel.hooks import START
from parsim.program.pass_builder import Item, PassBuilder
from parsim.program.program import Effect

Named = tuple[str, bool]
"""a name, and whether that of the block follows it"""


@dataclass(frozen=True, slots=True)
class TemplateItem:
    """One item of a `BlockTemplate`, or its share of one that was open before."""

    continued: bool
    """it is the compute item that was open"""
    name: Named
    kind: str
    lanes: tuple[str, ...]
    sums: tuple[float, float, float, float]
    """duration, memory time, FLOP and bytes moved"""
    collective: tuple[str, str, int] | None
    needs: tuple[int, ...]
    """items of the template from its first, or, below 0, ~place among the handles known before it"""
    tails: tuple[str, ...]
    effects: tuple[tuple[float, int, bool], ...]
    """offset, place of the tensor in the block's tape, whether it is allocated"""
    aside: bool


@dataclass(frozen=True, slots=True)
class BlockTemplate:
    """What some operators of a block add to a pass, whichever block it is."""

    items: tuple[TemplateItem, ...]
    open: bool
    """the last item is still being written"""
    called: tuple[Named, str]
    """what compute is called then, and its kind"""
    waits: tuple[int, ...]
    tails: tuple[str, ...]
    pending: tuple[tuple[int, ...], ...]
    last_compute: int


BlockTemplates = dict[Hashable, BlockTemplate]
"""what is known already, by what it depends on"""


@dataclass(frozen=True, slots=True)
class BlockTensors:
    """What a block does not share with others of its kind."""

    name: str
    tensors: tuple[int, ...]
    """number in the rank's table of every tensor of its tape"""


class DeferredOperators:
    """Operators of one block that are to be written, one after the other, before anything else is.

    Nothing is written while the strategy has nothing to say, so that a template is as long as the strategy lets it be.
    """

    def __init__(self, at: PassBuilder, known: BlockTemplates, of: Hashable, own: BlockTensors, pending: list[list[int]]) -> None:
        """`of`: what all operators depend on, besides what they look like; `pending`: handles that axes keep for later operators."""
        self.at, self.known, self.own, self.pending = at, known, own, pending
        self._what: list[Hashable] = [of]
        self._writes: list[Callable[[], None]] = []
        at.deferred = self._write

    def add(self, what: Hashable, write: Callable[[], None]) -> None:
        """Do to the pass what `write` does, which depends on `what`."""
        self._what.append(what)
        self._writes.append(write)

    def _write(self) -> None:
        at = self.at
        handles = [at.last_compute, *at.waits, *chain.from_iterable(self.pending)]
        key = (tuple(self._what), _look(at, self.own, handles), tuple(map(len, self.pending)))
        if (template := self.known.get(key)) is not None:
            _repeat(template, at, self.own, handles, self.pending)
            return
        opened, begun = at.segment, len(at.items)
        before = len(opened.effects) if opened is not None else 0
        for write in self._writes:
            write()
        items = at.items[begun:] + ([at.segment] if at.segment is not None else [])
        keeper = _Keeper(self.own, begun, handles)
        self.known[key] = BlockTemplate(
            items=tuple(keeper.item(item, item is opened, before) for item in items),
            open=at.segment is not None,
            called=(_nameless(at.called[0], self.own), at.called[1]),
            waits=keeper.handles(at.waits),
            tails=tuple(at.tails),
            pending=tuple(map(keeper.handles, self.pending)),
            last_compute=keeper.handles([at.last_compute])[0],
        )


class _Keeper:
    """Takes from items what is the block's own."""

    def __init__(self, own: BlockTensors, begun: int, known: Sequence[int]) -> None:
        """`begun`: items that the pass had; `known`: handles from before."""
        self._own, self._begun, self._known = own, begun, known
        self._places = {number: place for place, number in enumerate(own.tensors)}

    def handles(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Items counted from the first of the template; or, below 0, ~place among the handles from before."""
        return tuple(number - self._begun if number >= self._begun else ~self._known.index(number) for number in numbers)

    def item(self, item: Item, continued: bool, before: int) -> TemplateItem:
        """An item; of one that was open, what came after its effects `before`."""
        name = _nameless(item.name, self._own) if item.collective is None else (item.name, False)
        needs = () if continued else self.handles(item.needs)
        effects = item.effects[before:] if continued else item.effects
        changes = tuple((effect.offset, self._places[effect.tensor], effect.allocate) for effect in effects)
        sums = (item.duration, item.memory_time, item.flop, item.moved)
        return TemplateItem(continued, name, item.kind, item.lanes, sums, item.collective, needs, tuple(item.tails), changes, item.aside)


def _look(at: PassBuilder, own: BlockTensors, handles: Sequence[int]) -> Hashable:
    """What the pass looks like, handles being told apart only by which of them are equal."""
    opened = at.segment
    return (
        None if opened is None else (opened.duration, opened.flop, opened.moved, opened.memory_time, at.holds(opened)),
        (_nameless(at.called[0], own), at.called[1]),
        (_nameless(at.named[0], own), at.named[1]),
        handles[0] == START,
        len(at.waits),
        tuple(map(handles.index, handles)) if len(handles) > 1 else (),
        tuple(at.tails),
    )


def _nameless(name: str, own: BlockTensors) -> tuple[str, bool]:
    """A name without that of the block, and whether it had it."""
    return (name.removesuffix(own.name), True) if own.name and name.endswith(own.name) else (name, False)


def _repeat(template: BlockTemplate, at: PassBuilder, own: BlockTensors, handles: Sequence[int], pending: Sequence[list[int]]) -> None:
    """Add the same under another name, with other tensors."""
    begun, tensors, opened = len(at.items), own.tensors, at.segment

    def real(places: Sequence[int]) -> list[int]:
        return [begun + place if place >= 0 else handles[~place] for place in places]

    for piece in template.items:
        effects = [Effect(offset, tensors[place], allocate) for offset, place, allocate in piece.effects]
        if piece.continued and opened is not None:
            opened.duration, opened.memory_time, opened.flop, opened.moved = piece.sums
            opened.effects += effects
            at.items.append(opened)
        else:
            name, whose = piece.name
            text = name + own.name if whose else name
            needs = real(piece.needs) if piece.needs else []
            at.items.append(
                Item(text, piece.kind, piece.lanes, *piece.sums, piece.collective, needs, list(piece.tails), effects, piece.aside)
            )
    at.segment = at.items.pop() if template.open else None
    (name, whose), kind = template.called
    at.called = (name + own.name if whose else name, kind)
    at.waits, at.tails = real(template.waits), list(template.tails)
    for kept, numbers in zip(pending, template.pending, strict=True):
        kept[:] = real(numbers)
    at.last_compute = real((template.last_compute,))[0]
