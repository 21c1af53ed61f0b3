"""Parameters that blocks of a model share, on the ranks of a pipeline: an embedding with the head, or with modules that predict more words.

A tied parameter is the storage of the one that it is tied to where that is on its rank, under whichever chunk. Elsewhere the first on a
rank is a copy, which the others there are; its gradient is summed with the owner's at the end of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from parsim.model.model import Model, Parameter
from parsim.parallel.schedules import Schedule
from parsim.parallel.schedules.slot import GRADIENTS_OF_WEIGHTS

if TYPE_CHECKING:
    from parsim.parallel.plan import Chunk


@dataclass(frozen=True, slots=True)
class TiedChunks:
    """Which chunks of one pipeline rank share a weight: it has one gradient, to which the backward passes of all of them add."""

    owner: int
    """global stage that has the weight; its data-parallel strategy reduces the gradient and steps the weight"""
    first: int
    """global stage whose backward is the first of a step to write the gradient"""
    last: int
    """global stage whose backward is the last to write it; then the gradient is complete"""


@dataclass(frozen=True, eq=False)
class Ties:
    """The ties of a model whose chunks run these slots. `count` gives elements of a parameter on a rank."""

    model: Model
    chunks_of_model: tuple[Chunk, ...]
    slots: Schedule
    count: Callable[[Parameter], int]

    @cached_property
    def _homes(self) -> dict[str, tuple[int, ...]]:
        """Full name of a parameter that others are tied to -> pipeline ranks that hold it: one for every direction."""
        owners = {name: owner for owner, _, name in self.model.ties}
        return {
            name: tuple(chunk.pipeline_rank for chunk in self.chunks_of_model if owner in chunk.blocks) for name, owner in owners.items()
        }

    @cached_property
    def _copies(self) -> dict[tuple[int, str], tuple[str, Parameter]]:
        """(pipeline rank, full name) -> the first parameter there that is tied to it, where the rank has not the owner."""
        copies: dict[tuple[int, str], tuple[str, Parameter]] = {}
        for chunk in self.chunks_of_model:
            for _, block, tied in self.model.ties:
                if block in chunk.blocks and chunk.pipeline_rank not in self._homes[tied]:
                    parameter = next(p for p in self.model.blocks[block].parameters() if p.tied == tied)
                    name = f"{self.model.block_names[block]}.{parameter.name}"
                    copies.setdefault((chunk.pipeline_rank, tied), (name, parameter))
        return copies

    def storage(self, tied: str, pipeline_rank: int) -> str:
        """Full name of the weight that parameters of a pipeline rank are which are tied to `tied`; empty: there is none."""
        if pipeline_rank in self._homes.get(tied, ()):
            return tied
        return self._copies[pipeline_rank, tied][0] if (pipeline_rank, tied) in self._copies else ""

    @cached_property
    def across_stages(self) -> list[tuple[int, int, int]]:
        """Trained copies of one parameter on two pipeline ranks: (rank of the owner, rank of the copy, local elements)."""
        copies = ((rank, tied, parameter) for (rank, tied), (_, parameter) in self._copies.items() if parameter.trainable)
        return [(self._homes[tied][0], rank, self.count(parameter)) for rank, tied, parameter in copies]

    @cached_property
    def chunks(self) -> dict[tuple[int, str], TiedChunks]:
        """(pipeline rank, full parameter name) -> its chunks that share the parameter, where several do: in a schedule whose stages lie in
        a V, or in both directions.
        """
        users: dict[tuple[int, str], list[Chunk]] = {}
        for owner, block, name in self.model.ties:
            for one in self.chunks_of_model:
                for other in self.chunks_of_model if owner in one.blocks else ():
                    if block in other.blocks and other is not one and other.pipeline_rank == one.pipeline_rank:
                        users.setdefault((one.pipeline_rank, name), [one]).append(other)
        shared = {}
        for (rank, name), chunks in users.items():
            stages = {chunk.stage for chunk in chunks}
            writers = [slot.stage for slot in self.slots[rank] if slot.kind in GRADIENTS_OF_WEIGHTS and slot.stage in stages]
            owner = chunks[0].stage
            shared[rank, name] = TiedChunks(owner, *((writers[0], writers[-1]) if writers else (owner, owner)))
        return shared

    def on(self, pipeline_rank: int) -> dict[str, TiedChunks]:
        """Parameters that several chunks of a pipeline rank share."""
        return {name: tied for (rank, name), tied in self.chunks.items() if rank == pipeline_rank}
