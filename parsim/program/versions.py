"""Weight versions of PipeDream: an update after every backward, while micro-batches in flight keep the weights they began with."""

from __future__ import annotations

from collections.abc import Iterator


class Versions:
    """Which weight versions a PipeDream stage keeps besides the latest: those that micro-batches in flight still need."""

    def __init__(self) -> None:
        self._latest = 0
        self._used: dict[int, int] = {}
        self._stashed: set[int] = set()

    @property
    def stashed(self) -> int:
        """Old versions kept now."""
        return len(self._stashed)

    def step(self, kind: str, micro_batch: int) -> Iterator[tuple[int, bool]]:
        """(version, True) when it becomes old but needed, (version, False) when nobody needs it any more."""
        if kind == "F":
            self._used[micro_batch] = self._latest
            return
        if kind not in "BW":
            return
        mine = self._used.pop(micro_batch)
        old, self._latest = self._latest, self._latest + 1
        if mine in self._stashed and mine not in self._used.values():
            self._stashed.discard(mine)
            yield mine, False
        if old in self._used.values():
            self._stashed.add(old)
            yield old, True
