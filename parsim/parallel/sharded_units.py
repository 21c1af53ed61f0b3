"""What the ranks of a sharded strategy hold of its units: ZeRO-3 and FullyShardedDataParallel (Rajbhandari et al. 2020, Zhao et al. 2023).

A unit's weights are one flat row, of which each of the n ranks has 1/n, rounded up; its optimizer state goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parsim.parallel.hooks import Unit, Weight
from parsim.parallel.narrow_weights import narrow_elements
from parsim.parallel.optimizer import State, split_bytes
from parsim.parallel.replicated import Replicated


@dataclass
class ShardedUnits(Replicated):
    """Sizes of units, whole and in shares. `units` are in forward order; the root unit (if any) is named ``root``."""

    units: tuple[Unit, ...] = ()
    _splits: dict[str, tuple[int, int]] = field(init=False, default_factory=dict)
    """unit -> the result of `_split`"""
    _narrow: dict[str, int] = field(init=False, default_factory=dict)
    """unit -> elements that travel in fp8"""
    _counts: dict[str, int] = field(init=False, default_factory=dict)
    """unit -> elements with a gradient"""

    def _share(self, count: int) -> int:
        return -(-count // self.size)

    def _state_list(self) -> list[tuple[Weight, State]]:
        states = []
        for unit in self.units:
            states += self._flat_states(unit.name, [w for w in unit.weights if w.trains], unit.blocks[0])
        return states

    @property
    def _gathered_element(self) -> int:
        """Bytes of a gathered weight: MixedPrecision casts fp32 shards to the type that the layers read before it gathers."""
        return self.training.precision.gathered

    @property
    def _whole_base(self) -> bool:
        """Frozen weights are not sharded."""
        return self.training.finetune is not None and not self.training.finetune.base_sharded

    def _split(self, unit: Unit) -> tuple[int, int]:
        """(elements stored as trained weights are, bytes of those stored otherwise) of what the unit shards."""
        if unit.name not in self._splits:
            weights = [w for w in unit.weights if w.trains] if self._whole_base else unit.weights
            self._splits[unit.name] = split_bytes(weights, self.training)
        return self._splits[unit.name]

    def _shard_bytes(self, unit: Unit) -> int:
        plain, other = self._split(unit)
        return self._share(plain) * self.training.precision.parameters + self._share(other)

    def _gathered_bytes(self, unit: Unit) -> int:
        plain, other = self._split(unit)
        return plain * self._gathered_element + other - self._narrow_of(unit) * (self._gathered_element - 1)

    def _narrow_of(self, unit: Unit) -> int:
        """Elements that travel in fp8."""
        if unit.name not in self._narrow:
            self._narrow[unit.name] = narrow_elements(unit.weights, self.training.precision)
        return self._narrow[unit.name]

    def _trained(self, unit: Unit) -> int:
        """Elements with a gradient."""
        if unit.name not in self._counts:
            recipe = self.training.finetune
            trained = sum(w.count for w in unit.weights if w.trains)
            whole = trained > 0 and (recipe is None or recipe.flat_gradients)  # a unit of buffers alone has none
            self._counts[unit.name] = unit.count if whole else trained
        return self._counts[unit.name]

    def _stepped(self, unit: Unit) -> int:
        """Elements of the rank's share that the optimizer updates."""
        trained = sum(w.count for w in unit.weights if w.trains)
        return self._share(unit.count if self.training.finetune is None else trained)
