"""Checkpoints in host memory: inputs of recomputed layers leave the device in forward and come back in backward.

An input leaves when the layers that read it are done; in backward it is fetched while the group above it computes, so one
is on its way while another is in use (DeepSpeed's cpu_checkpointing, torch.autograd.graph.save_on_cpu on checkpoints).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parsim.parallel.stages import CheckpointGroup
from parsim.program.pass_builder import PassBuilder


class CheckpointOffload:
    """The checkpoints of one pass that are kept in host memory."""

    def __init__(self, at: PassBuilder, kept: Mapping[CheckpointGroup, str], moved: Callable[[int], int]) -> None:
        """`kept`: groups whose input leaves the device, in forward order, and its tensor; `moved`: bytes copied of a tensor's bytes."""
        self.at = at
        self.groups = tuple(kept)
        self._inputs = kept
        self._moved = moved
        self._fetched: dict[int, int] = {}

    def after_forward(self, group: CheckpointGroup) -> None:
        """Send the input of a group that has run."""
        if group in self.groups:
            name, size, host = self._names(group)
            self.at.copy("d2h", self._moved(size), name, after=[self.at.mark()], allocates=[host], frees=[name])

    def before_recompute(self, group: CheckpointGroup) -> None:
        """Wait for a group's input and fetch that of the group below."""
        if group not in self.groups:
            return
        place = self.groups.index(group)
        self._fetch(place)
        self.at.wait(self._fetched[place])
        if place:
            self._fetch(place - 1)

    def begin_backward(self) -> None:
        """Fetch the input of the last group."""
        if self.groups:
            self._fetch(len(self.groups) - 1)

    def _fetch(self, place: int) -> None:
        if place in self._fetched:
            return
        name, size, host = self._names(self.groups[place])
        # whatever left in forward has left when the first fetch of the pass begins; gradients that leave meanwhile hold up nothing
        earlier = [min(self._fetched.values())] if self._fetched else []
        behind = () if earlier else ("d2h",)
        after = [self.at.mark(), *earlier]
        self._fetched[place] = self.at.copy("h2d", self._moved(size), name, after=after, behind=behind, allocates=[name], frees=[host])

    def _names(self, group: CheckpointGroup) -> tuple[str, int, str]:
        """The input's tensor, its bytes, and the tensor on the host."""
        name = self._inputs[group]
        size = self.at.table.rows[self.at.number(name)].bytes
        return name, size, self.at.tensor(f"{name} in host memory", size, "host activations", per_micro_batch=True)
