"""When a block's tensors come and go: liveness analysis of its forward and backward, as compilers do it for registers.

A storage is the memory behind one or several named tensors (views and in-place results share it). Backward uses of a
storage are pairs (operator index, phase). Since weight steps may run right after their input steps or be postponed past
all of them, a storage used by both kinds is freed by a weight step at or below the lowest index that uses it: that step
comes last under either order (it may hold no kernel at all).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from parsim.kernel import Memory
from parsim.model.attention import AttentionCore
from parsim.model.gradient_flow import Draft, GradientFlow
from parsim.model.kept_products import MATMULS, KeptProduct, kept_products
from parsim.model.model import Block, Operator
from parsim.model.regions import REGIONS, Region, regions
from parsim.model.tape import Tape
from parsim.model.workload import Workload

_KEPT_OUTPUT = "attention"


def tape(block: Block, at: Workload, drop: tuple[str, ...] = (), input_gradient: bool = True, frozen: tuple[str, ...] = ()) -> Tape:
    """The tape of `block` under `at`.

    `drop` names what selective recomputation does not keep (`Operator.selective`): by-products and outputs of these
    operators, except an attention core's output, which the projection behind it needs for its weight (2205.05198 §5); or
    ``matmuls`` for everything but what `parsim.model.kept_products` names; or a region of `parsim.model.regions`.
    `input_gradient=False`: nothing before the block is trained. `frozen`: tensors beside its input that want no gradient.

    Gradients follow the chain rule over named tensors: residual adds and views pass their gradient on without a copy,
    a tensor with several consumers sums into the newest contribution. Tensors of one storage (`Work.output` = 0) live
    and die together. Tapes are kept per block.

    Errors: ModelError when an operator reads a tensor that no operator before it wrote, or when the block's output is
    a view of its input.
    """
    return _kept_tape(block, at, tuple(sorted(drop)), input_gradient, frozen)


@lru_cache(maxsize=4096)
def _kept_tape(block: Block, at: Workload, drop: tuple[str, ...], input_gradient: bool, frozen: tuple[str, ...]) -> Tape:
    return Liveness(block, at, drop, input_gradient, frozen).tape()


class Liveness(GradientFlow):
    """One block under one workload; `tape()` is the result."""

    def __init__(self, block: Block, at: Workload, drop: tuple[str, ...], input_gradient: bool, frozen: tuple[str, ...] = ()) -> None:
        super().__init__(block, at, input_gradient, frozen)
        self.drop = tuple(word for word in drop if word not in REGIONS)
        self.regions = regions(self.operators, drop)
        self.products: Mapping[int, KeptProduct] = kept_products(self.operators, self.works, self.at) if MATMULS in drop else {}
        self.part_of: dict[str, str] = {}
        """what is kept of a storage whose rest is made again -> that storage"""
        # what lives from forward into backward, and what selective recomputation makes again instead
        self._collect_saves()
        self.dropped = self._dropped()
        for region in self.regions:
            self.dropped |= self._dropped_of(region)
        self._recompute()

    # --- saved tensors and recomputation ------------------------------------------------------------------------

    def _collect_saves(self) -> None:
        """Registers what the active operators keep, each storage once."""
        self.private: dict[int, list[str]] = {index: [] for index in range(len(self.operators))}
        self.shown: dict[str, int] = {}
        """storages that blocks behind read -> the operator that makes or hands them out"""
        self.owner: dict[str, int] = dict(self.producer)
        active = set(self.active)
        for index, work in enumerate(self.works):
            for save in work.saves:
                storage = self.storage.get(save.tensor)
                if save.until == "shown":
                    self._show(storage or self._tensor(save.tensor, save.bytes), index, frozen=self.at.backward and index not in active)
                    continue
                if storage is None:
                    storage = self._tensor(save.tensor, save.bytes)
                    self.private[index].append(storage)
                    self.owner[storage] = index
                if index not in active:
                    continue
                if save.until == "pass":
                    if storage not in ("output", *self.held):
                        self.held.append(storage)
                else:
                    by_weight = save.until == "weight" and bool(work.backward_weight)
                    self._use(storage, index, "weight" if by_weight else "input")

    def _show(self, storage: str, index: int, *, frozen: bool) -> None:
        """Blocks behind read it: until this one's backward, or, where it has none, until theirs has ended."""
        self.shown[storage] = index
        if frozen:
            self.held.append(storage)
            self.owner[storage] = index
            if storage not in self.producer:
                self.private[index].append(storage)

    def _droppable(self, index: int) -> bool:
        if MATMULS in self.drop:
            fused = isinstance(self.operators[index], AttentionCore) and self.at.attention != "eager" and "attention" not in self.drop
            return index in self.active and not fused
        return bool(self.operators[index].selective in self.drop and self.works[index].output and index in self.active)

    def _divide(self, storage: str, index: int) -> bool:
        """Whether all of a product's storage is kept; of one that is kept in part the rest takes its place."""
        kept = self.products[index].kept
        if not 0 < kept < self.works[index].output:
            return kept > 0
        part = self._tensor(f"{storage}.kept", kept)
        self._tensor(storage, self.works[index].output - kept)
        self.part_of[part] = storage
        self.private[index].append(part)
        self.owner[part] = index
        return False

    def _dropped(self) -> set[str]:
        """Storages that backward needs but forward does not keep."""
        dropped = set()
        for storage, index in list(self.owner.items()):
            if storage == "output" or storage in self.held or not self._droppable(index):
                continue
            is_output = storage in self.producer
            if index in self.products:
                if not is_output or not self._divide(storage, index):
                    dropped.add(storage)
            elif not is_output or MATMULS in self.drop or self.operators[index].selective != _KEPT_OUTPUT:
                dropped.add(storage)
        if self.products and not self.at.compiled and self.active:  # without a compiler a result is kept whether it is needed or not
            for index, product in self.products.items():
                storage = self.storage[self.operators[index].output]
                if product.kept == self.works[index].output and storage != "output" and not self.uses.get(storage):
                    self._use(storage, self.active[-1], "input")
        return dropped

    def _dropped_of(self, region: Region) -> set[str]:
        """Storages that a region makes again."""
        inside = set(region.operators)
        own = {storage for storage, index in self.owner.items() if index in inside and index in self.active}
        own -= {"output", *self.held}
        if region.outputs:
            self._keep_originals(region, own)
            return own
        return {name for name in own if all(index in inside for index, _ in self.uses.get(name, ()))}

    def _keep_originals(self, region: Region, own: set[str]) -> None:
        """Products that read what a region makes again keep it, not a low-precision copy, which they make again for their weights."""
        for index in self.active:
            copy = f"{self.operators[index].name}.input_fp8"
            source = self.storage[self.operators[index].inputs[0]] if index not in region.operators else ""
            if source in own and copy in self.uses:
                del self.uses[copy]
                self._use(source, index, "weight")
                step = self.weight_steps[index]
                step.kernels = (Memory(self.tensors[source].bytes + self.tensors[copy].bytes), *step.kernels)

    def _run_again(self, index: int, done: set[int]) -> set[int]:
        """The operators of the regions that are made again before the backward of operator `index`, with what makes their inputs."""
        wanted = {place for region in self.regions if region.before == index for place in region.operators if place in self.active}
        own = wanted - done
        wanted = set(own)
        for place in sorted(own):
            for name in self.operators[place].inputs:
                source = self.storage[name]
                made = self.owner.get(source)
                if made not in own:
                    self._use(source, index, "recompute")
                    if source in self.dropped and made not in done:
                        self._trace(source, index, wanted, done)
        return wanted

    def _free_inside(self, drafts: Mapping[int, Draft]) -> None:
        """What a region makes and only the region reads dies behind its last reader there."""
        for place, draft in drafts.items():
            output = self.storage[self.operators[place].output]
            readers = [i for i in drafts if i > place and output in map(self.storage.__getitem__, self.operators[i].inputs)]
            if output in draft.frees and readers:
                draft.frees.remove(output)
                drafts[max(readers)].frees.append(output)

    def _recompute(self) -> None:
        """Inserts recompute steps before the first backward use of each dropped storage, and those of regions where they stand."""
        done: set[int] = set()
        for index in self.active:
            again = self._run_again(index, done)
            drafts = {step: self._again(step) for step in sorted(again)}
            self._free_inside(drafts)
            for draft in drafts.values():
                draft.communicates = True
                self.recompute_steps.setdefault(index, []).append(draft)
            done |= again
            lost = [name for name, uses in self.uses.items() if name in self.dropped and any(user == index for user, _ in uses)]
            wanted: set[int] = set()
            for name in lost:
                self._trace(name, index, wanted, done)
            for step in sorted(wanted):
                self.recompute_steps.setdefault(index, []).append(self._again(step))
            done |= wanted
        for part, storage in self.part_of.items():
            self.uses[part] = self.uses.get(storage, [])

    def _trace(self, storage: str, before: int, wanted: set[int], done: set[int]) -> None:
        """Adds to `wanted` the operators that make `storage` again before the backward of operator `before`."""
        made = self.owner[storage]
        makers = [made, *(i for i, operator in enumerate(self.operators) if i > made and self._rewrites(i, operator, storage))]
        for maker in makers:
            if maker in wanted or maker in done:
                continue
            wanted.add(maker)
            for name in self.operators[maker].inputs:
                source = self.storage[name]
                if source == storage:
                    continue
                self._use(source, before, "recompute")
                if source in self.dropped:
                    self._trace(source, before, wanted, done)

    def _rewrites(self, index: int, operator: Operator, storage: str) -> bool:
        """Whether the operator works in place on the storage."""
        return not self.works[index].output and self.storage[operator.output] == storage and storage in self.producer

    def _again(self, index: int) -> Draft:
        """The recompute step of one operator."""
        operator, work = self.operators[index], self.works[index]
        draft = Draft(operator, "recompute", self.products[index].again if index in self.products else work.forward)
        output = self.storage[operator.output]
        if work.output and output in self.dropped:
            draft.allocates.append(output)
            if not self.uses.get(output):
                draft.frees.append(output)
        elif work.output and index not in self.products:
            draft.transient(self._tensor(f"{operator.name}.recomputed", work.output, "temporaries"))
        for name in self.private[index]:
            if name in self.part_of:
                continue
            if name in self.dropped and self.uses.get(name):
                draft.allocates.append(name)
            elif name not in self.uses:
                draft.transient(name)
        if work.forward_temporary:
            draft.transient(self._temporary(index))
        return draft

    # --- steps --------------------------------------------------------------------------------------------------

    def _temporary(self, index: int) -> str:
        return self._tensor(f"{self.operators[index].name}.forward", self.works[index].forward_temporary, "temporaries")

    def _kept(self) -> list[str]:
        """Storages other than the boundary that forward keeps for backward."""
        inner = [name for name, uses in self.uses.items() if uses and name in self.owner and name != "output"]
        return [name for name in inner if name not in self.dropped]

    def _forward(self, saved: bool) -> list[Draft]:
        """Forward steps; `saved` False keeps nothing."""
        kept = {"input", "output"}.union(self._kept(), self.held) if saved else {"input", "output", *self.shown}
        drafts = [Draft(operator, "forward", work.forward) for operator, work in zip(self.operators, self.works, strict=True)]
        for index, draft in enumerate(drafts):
            if self.works[index].output:
                draft.allocates.append(self.storage[self.operators[index].output])
            if not saved:
                draft.allocates += [name for name, place in self.shown.items() if place == index and name not in self.producer]
            for name in self.private[index]:
                draft.allocates.append(name)
                if name not in kept:
                    last = drafts[self.last_read[self.part_of[name]]] if name in self.part_of else draft
                    last.frees.append(name)
            if self.works[index].forward_temporary:
                draft.transient(self._temporary(index))
        for name in self.producer:
            if name not in kept:
                drafts[self.last_read[name]].frees.append(name)
        return drafts

    def _last_use(self, storage: str) -> Draft | None:
        """The backward step after which nothing uses the storage, under either order of weight steps; None = no use."""
        uses = self.uses.get(storage)
        if not uses:
            return None
        lowest = min(index for index, _ in uses)
        phases = {"weight" if phase == "weight" else "input" for _, phase in uses}
        if phases == {"input"}:
            return self.input_steps[lowest]
        return self.weight_steps.setdefault(lowest, Draft(self.operators[lowest], "weight"))

    def tape(self) -> Tape:
        """The finished tape."""
        forward, unsaved = self._forward(True), self._forward(False)
        # a storage dies behind its last use in backward; boundary tensors belong to the neighbours, who are told when
        boundary: dict[str, Draft | None] = {"input": None, "output": None}
        for storage in self.uses:
            draft = self._last_use(storage)
            if draft is None or storage in self.held or storage == "grad_input":
                continue
            if storage in boundary:
                boundary[storage] = draft
                draft.needed = True
            elif storage in self.tensors:
                draft.frees.append(storage)
        backward = []
        for index in self.active:
            backward += self.recompute_steps.get(index, [])
            backward += [steps[index] for steps in (self.scratch_steps, self.input_steps, self.weight_steps) if index in steps]
        backward = [draft for draft in backward if draft.kernels or draft.allocates or draft.frees or draft.needed]
        places = {draft: place for place, draft in enumerate(backward)}
        last = {name: -1 if draft is None else places[draft] for name, draft in boundary.items()}
        return Tape(
            tensors=self.tensors,
            forward=tuple(draft.step() for draft in forward),
            forward_unsaved=tuple(draft.step() for draft in unsaved),
            backward=tuple(draft.step() for draft in backward),
            input_saved=last["input"] >= 0 or "input" in self.held,
            input_last_forward=self.last_read["input"],
            input_last_backward=last["input"],
            output_saved=last["output"] >= 0,
            output_last_backward=last["output"],
            held=tuple(self.held),
            shown=tuple(self.shown),
            saved=tuple(self._kept()),
        )
