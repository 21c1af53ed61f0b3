"""ZeRO++ (Wang et al. 2023, arXiv 2306.10209): ZeRO-3 with fewer bytes between machines, as DeepSpeed runs it.

=========  ================================  ==========================================================================
part       key                               what
=========  ================================  ==========================================================================
qwZ        `quantised_weights`               weights are gathered in int8: 1 B an element, with a scale (4 B) of every 8,000
hpZ        `secondary_partition`: g          the forward leaves a second copy, shared by g neighbours (2 P/g bytes), of which the
                                             backward gathers among them
qgZ        `quantised_gradients`             gradients of every matrix in int4: all-to-all among the ranks of a machine, summed and made
                                             int4 again, all-to-all between machines of what is left, summed
=========  ================================  ==========================================================================

In units of 2 P bytes a machine receives 1 + 1 + 1 of others under ZeRO-3, and 0.5 + 0 + 0.25 with all three. Every part is quantised
before it is sent, and restored behind it: kernels beside compute around gathers and reductions, as ZeRO-3's copies are. One gradient
after another is exchanged. Gradients of vectors, and those whose elements are no multiple of 2 N, are
reduce-scattered as ever. Source: deepspeed/runtime/zero/partition_parameters.py (all_gather_coalesced, _partition_param_sec) and
deepspeed/runtime/comm/coalesced_collectives.py (all_to_all_quant_reduce); csrc/quantization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parsim.errors import Finding
from parsim.kernel import Memory
from parsim.parallel.copies import GATHERS, REDUCTIONS
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.groups import LOCAL, REMOTE, SECONDARY, SHARD
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.replicated import LANE
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import DataParallel, Parallelism
from parsim.parallel.training import Training

SCALED = 8_000
"""elements of a weight that share a scale (CUDAQuantizer.target_group_size)"""
INT8, INT4, SCALE = 1, 0.5, 4
"""bytes of an element, and of a scale"""


@dataclass
class ZeroPlusPlus(FullyShardedDataParallel):
    """See the module's table."""

    _backward: bool = field(init=False, default=False)
    """the pass that is written is a backward"""

    @property
    def _second(self) -> bool:
        return self.data.secondary_partition > 1

    def resident(self, at: Emitter) -> list[str]:
        """Besides ZeRO-3's: the second copy."""
        names = super().resident(at)
        if not (self._second and self.training.backward):
            return names
        size = sum(-(-self._gathered_bytes(unit) // self.data.secondary_partition) for unit in self.units)
        return [*names, at.tensor("secondary partition", size, "parameters")]

    # -- gathers --------------------------------------------------------------------------------------------------

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """Backward gathers elsewhere."""
        super().pass_begins(units, at, backward=backward)
        self._backward = backward

    def _gather(self, unit: Unit, at: Emitter, after: Sequence[int]) -> None:
        whole = self._gathered_bytes(unit)
        if unit.name in self._issued or unit.name in self._live or not whole:
            return
        self._live.add(unit.name)
        group, ranks = (SECONDARY, self.data.secondary_partition) if self._second and self._backward else (SHARD, self.size)
        name, count, into = f"{unit.name} weights", self._split(unit)[0], [self._whole(unit, at)]
        if not self.data.quantised_weights:
            ready = [at.beside(f"copy {name} in", [Memory(2.0 * whole / ranks)], stream=GATHERS, after=after)]
            gathered = at.collective("all_gather", group, whole, name, lane=LANE, after=ready, allocates=into)
            self._issued[unit.name] = at.beside(f"copy {name} out", [Memory(2.0 * whole)], stream=GATHERS, after=[gathered])
            return
        moved = float((self._gathered_element + INT8) * count)
        ready = [at.beside(f"quantise {name}", [Memory(moved / ranks, count / ranks)], stream=GATHERS, after=after)]
        sent = at.tensor(f"{unit.name}.quantised", INT8 * count, "buffers")
        gathered = at.collective("all_gather", group, INT8 * count, name, lane=LANE, after=ready, allocates=[*into, sent], frees=[sent])
        scales = SCALE * -(-count // SCALED)
        gathered = at.collective("all_gather", group, scales, f"{unit.name} scales", lane=LANE, after=[gathered])
        self._issued[unit.name] = at.beside(f"restore {name}", [Memory(moved, float(count))], stream=GATHERS, after=[gathered])

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        """The second copy is taken when the gathered weights go."""
        if self._second and self.training.backward and unit.name in self._live:
            at.compute("", "compute", [Memory(2.0 * self._gathered_bytes(unit) / self.data.secondary_partition)])
        super().after_forward(unit, at)

    # -- reductions -----------------------------------------------------------------------------------------------

    def _reduce(self, unit: Unit, count: int, at: Emitter) -> None:
        """Matrices one after another, and at last what is not quantised."""
        matrices = [weight for weight in unit.weights if self._quantises(weight)]
        if not matrices:
            super()._reduce(unit, count, at)
            return
        name, precision = f"{unit.name} grads", self.training.precision
        keep, whole = [self._shard_gradient(unit, at)] if at.first else [], self._gradients(unit, unit.weights, at)
        rest = count - sum(weight.count for weight in matrices)
        handle = at.mark()
        for place, weight in enumerate(matrices):
            done = place == len(matrices) - 1 and not rest
            handle = self._exchange(weight, at, handle, keep if place == 0 else (), whole if done else ())
        if rest:
            size = rest * precision.reduce
            handle = at.collective("reduce_scatter", SHARD, size, name, lane=self._reduce_lane, after=[handle], frees=whole)
        if kernels := self._copies.behind_reduce(self._share(count), adds=not at.first):
            handle = at.beside(f"copy {name} out", kernels, stream=REDUCTIONS, after=[handle])
        self._reduced = handle

    def _quantises(self, weight: Weight) -> bool:
        return self.data.quantised_gradients and weight.trains and len(weight.parameter.shape) > 1 and weight.count % (2 * self.size) == 0

    def _exchange(self, weight: Weight, at: Emitter, after: int, allocates: Sequence[str], frees: Sequence[str]) -> int:
        """One gradient: int4 to the ranks of the machine, the sums in int4 to other machines; the handle of its share."""
        local, count, element = self.data.local_ranks, weight.count, self.training.precision.gradients
        groups = max(*weight.parameter.shape[:2], self.size)
        part = count / local
        name = f"{weight.name} grads"
        here = at.beside(f"quantise {name}", [Memory((element + INT4) * count, float(count))], stream=REDUCTIONS, after=[after])
        lane = self._reduce_lane
        here = at.collective("all_to_all", LOCAL, int(INT4 * count), name, lane=lane, after=[here], allocates=allocates)
        here = at.collective("all_to_all", LOCAL, SCALE * groups, f"{name} scales", lane=lane, after=[here], frees=frees)
        sums = Memory(INT4 * count + INT4 * part, float(count))
        here = at.beside(f"sum {name}", [sums], stream=REDUCTIONS, after=[here])
        here = at.collective("all_to_all", REMOTE, int(INT4 * part), name, lane=lane, after=[here])
        here = at.collective("all_to_all", REMOTE, SCALE * max(1, groups // local), f"{name} scales", lane=lane, after=[here])
        restored = Memory(INT4 * part + element * part + element * (part + count / self.size), 2.0 * part)
        return at.beside(f"restore {name}", [restored], stream=REDUCTIONS, after=[here])


def asked(data: DataParallel) -> bool:
    """Whether any part of ZeRO++ is switched on."""
    return data.quantised_weights or data.quantised_gradients or data.secondary_partition > 1


def findings(training: Training, parallelism: Parallelism, runtime: Runtime, replicas: int) -> list[Finding]:
    """What ZeRO++ does not go with, and numbers of ranks that do not divide."""
    data = parallelism.data
    if not asked(data):
        return []
    name = "quantised_weights" if data.quantised_weights else "quantised_gradients"
    name = name if getattr(data, name) else "secondary_partition"
    path, value = f"parallel.data.{name}", getattr(data, name)
    if data.strategy != "zero3" or not runtime.deepspeed or runtime.lists_weights:
        text = f"ZeRO++ is DeepSpeed's ZeRO-3, and this is {data.strategy} of {runtime.profile}"
        return [Finding(text, path, value, "use parallel.data.strategy zero3 and software.profile deepspeed, or leave it out")]
    found = []
    refused = (("training.offload", training.offload.states), ("training.finetune", training.finetune is not None))
    found += [Finding("not supported yet: ZeRO++ with it", where, None, "leave it out") for where, on in refused if on]
    if training.precision.gathered != 2 or training.precision.gradients != 2:
        found.append(Finding("ZeRO++ quantises 16-bit weights and gradients", "training.precision", training.precision.name, "use bf16"))
    if (ranks := data.secondary_partition) > 1 and replicas % ranks:
        text = f"{replicas} replicas (data x context) / {ranks} ranks of a secondary partition = {replicas / ranks:.4g} is not whole"
        legal = [str(n) for n in range(1, replicas + 1) if replicas % n == 0]
        found.append(Finding(text, "parallel.data.secondary_partition", ranks, f"use {' or '.join(legal)}"))
    if data.quantised_gradients and replicas % data.local_ranks:
        text = (
            f"{replicas} replicas do not fill machines of {data.local_ranks}: gradients are exchanged inside and between identical machines"
        )
        found.append(Finding(text, "parallel.data.quantised_gradients", True, "use whole machines, or leave it out"))
    return found
