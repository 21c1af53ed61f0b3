"""FSDP with experts that are spread over ranks: the experts of a layer are a unit of their own, over the ranks that hold the same ones.

torchtitan wraps them so (pytorch/torchtitan, models/llama4/infra/parallelize.py, apply_fsdp; distributed/parallel_dims.py). With s ranks
in a shard group (data x context), t tensor ranks and experts on a grid of ep x etp, of P parameters per layer:

=================  =====================================  ====================================================
                   everything else                        experts of the layer
=================  =====================================  ====================================================
sharded over       s                                      s t / (ep etp) (efsdp): those with the same experts
gathered           before the layer                       behind it; both of the next layer before the layer runs
reduced            behind the layer's backward            behind the gradients of the experts, beside the rest
summed over        replicas / s shard groups              as many
=================  =====================================  ====================================================

Whoever prefetches a layer prefetches its experts, but for the first layer of a pass: what runs before it (embedding, head) announces the
layer only, so that its experts are gathered behind the second layer. A rank whose experts nobody else has gathers nothing: it
casts and copies them (FSDPParamGroup.wait_for_unshard), and divides their gradients instead of reducing them
(foreach_reduce). Elsewhere the reduction divides by the replicas of the data, not by its own ranks (set_gradient_divide_factor),
which takes no kernel. fully_shard cuts experts one by one, and inside where there are fewer than ranks; both are equal parts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from parsim.parallel.experts import SeveralStrategies
from parsim.parallel.fsdp import ROOT, FullyShardedDataParallel
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.muon import Matrix


@dataclass
class ShardedExperts(FullyShardedDataParallel):
    """The experts of a chunk's layers, a unit for each layer."""

    _unwritten: dict[str, set[str]] = field(init=False, default_factory=dict)
    """unit -> weights whose gradients are to come in this pass"""
    _finished: set[str] = field(init=False, default_factory=set)
    """units that this pass has reduced"""

    @property
    def _copied(self) -> bool:
        return True

    def _cuts(self, experts: Matrix) -> bool:
        """Where a rank's experts are fewer than the ranks that share them, each of them is cut: one rank in turn gets one of them whole.

        torchtitan: apply_fsdp (Shard(1) if efsdp x ep > experts), kimi_k2_7/config_registry.py, _per_expert_compute_layout.
        """
        return experts.number < self.size

    @property
    def _alone(self) -> bool:
        """Nobody else has these experts, and they are on the device."""
        return self.size == 1 and self.training.offload.parameters == "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect()

    def _expect(self) -> None:
        """The next pass has written nothing."""
        self._unwritten = {unit.name: {weight.name for weight in unit.weights if weight.trains} for unit in self.units}
        self._finished = set()

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """As ever."""
        super().pass_ends(at, backward=backward)
        if backward:
            self._expect()

    def _gather(self, unit: Unit, at: Emitter, after: Sequence[int]) -> None:
        if not self._alone:
            super()._gather(unit, at, after)

    def use(self, unit: Unit, at: Emitter, *, backward: bool) -> None:
        """Wait for the experts, or make the copies that their products read."""
        if not self._alone:
            super().use(unit, at, backward=backward)
        elif unit.name not in self._live and self._gathered_bytes(unit):
            self._live.add(unit.name)
            at.compute("", "compute", self._copies.before_gather(*self._split(unit)), allocates=[self._whole(unit, at)])

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """With the last one the experts are done, while the rest of the layer is not."""
        awaited = self._unwritten[unit.name]
        awaited.difference_update(weight.name for weight in weights)
        if not awaited:
            self._drop(unit, at)
            self._take_gradients(unit, at)
            self._finished.add(unit.name)

    def _take_gradients(self, unit: Unit, at: Emitter) -> None:
        if unit.name not in self._finished:
            super()._take_gradients(unit, at)


@dataclass(frozen=True)
class ShardedMixture(SeveralStrategies):
    """Layers and their experts under FSDP, each over its own ranks."""

    parts: tuple[FullyShardedDataParallel, ...]
    """of everything else, then of the experts"""

    @cached_property
    def _known(self) -> dict[str, tuple[Unit, ...]]:
        return {}

    def _units(self, unit: Unit) -> Iterator[tuple[FullyShardedDataParallel, Unit]]:
        """What each strategy keeps of a unit. The root has no experts."""
        if unit.name not in self._known:
            rows = [tuple(weight for weight in unit.weights if self.part_of(weight) is part) for part in self.parts]
            units = [Unit(name, unit.blocks, weights) for name, weights in zip((unit.name, expert_unit(unit)), rows, strict=True)]
            self._known[unit.name] = tuple(units[:1] if unit.name == ROOT else units)
        return zip(self.parts, self._known[unit.name], strict=False)

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """Both follow the order of the layers."""
        for number, part in enumerate(self.parts):
            own = [list(self._units(unit)) for unit in units]
            part.pass_begins([row[number][1] for row in own if number < len(row)], at, backward=backward)

    def _gather(self, unit: Unit, ahead: int, at: Emitter, *, backward: bool) -> None:
        """The layer, those ahead of it with their experts, and then its own experts, if they were not ahead of another."""
        (layers, own), *rest = self._units(unit)
        layers.gather(own, 0, at, backward=backward)
        for distance in range(1, ahead + 1) if rest else ():
            for part, mine in self._units(unit):
                part.gather(mine, distance, at, backward=backward)
        for part, mine in rest:
            part.gather(mine, 0, at, backward=backward)

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Gather, prefetch and wait."""
        data = self.parts[0].data
        self._gather(unit, min(1, data.limit_gathers - 1), at, backward=False)
        for part, mine in self._units(unit):
            part.use(mine, at, backward=False)

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        """Free what was gathered."""
        for part, mine in self._units(unit):
            part.after_forward(mine, at)

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """Gather, prefetch and wait."""
        self._gather(unit, self.parts[0].data.prefetch, at, backward=True)
        for part, mine in self._units(unit):
            part.use(mine, at, backward=True)

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Ask those whose weights they are."""
        for part, mine in self._units(unit):
            if own := [weight for weight in weights if self.part_of(weight) is part]:
                part.before_gradient(mine, own, at)

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Tell those whose weights they are."""
        for part, mine in self._units(unit):
            if own := [weight for weight in weights if self.part_of(weight) is part]:
                part.gradient(mine, own, at)

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """Reduce what is left: experts come first, as in the layer's backward."""
        for part, mine in reversed(list(self._units(unit))):
            part.after_backward(mine, at)


def expert_unit(unit: Unit) -> str:
    """Name of the unit of a layer's experts."""
    return f"{unit.name} experts"
