"""The order of rows: what keeps all constraints before what does not, the better before the worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.study.search.incumbents import Values, dominates


@dataclass(frozen=True, slots=True)
class Ranked:
    """A row among those that keep all constraints."""

    place: int
    """in the given sequence"""
    layer: int
    """1: nothing is better in all objectives; 2: only layer 1 is; and so on. With one objective always 1"""


def ranked(scores: Sequence[Values]) -> list[Ranked]:
    """The order of rows by their scores; equal ones stay in the order given.

    With several objectives, the Pareto layers in order, each by the first objective.
    """
    if not scores:
        return []
    order = sorted(range(len(scores)), key=lambda place: (scores[place], place))
    if len(scores[0]) == 1:
        return [Ranked(place, 1) for place in order]
    layers = _layers(scores, order)
    return [Ranked(place, layers[place]) for place in sorted(order, key=lambda place: (layers[place], scores[place], place))]


def _layers(scores: Sequence[Values], order: Sequence[int]) -> dict[int, int]:
    """Layer of each place. In the sorted order only earlier ones can dominate; the last of a layer is asked first."""
    layers: list[list[int]] = []
    found: dict[int, int] = {}
    for place in order:
        number = next(
            (
                number
                for number, layer in enumerate(layers)
                if not any(dominates(scores[other], scores[place]) for other in reversed(layer))
            ),
            len(layers),
        )
        if number == len(layers):
            layers.append([])
        layers[number].append(place)
        found[place] = number + 1
    return found
