"""How unequally the experts of a layer are loaded, and what that makes of the rows of the busiest rank.

Experts lie on the ranks in their order, as many on each. Three ways to say it: a factor; Zipf's law, by which expert number i gets
tokens in proportion to i^-s; counted tokens, layer by layer. A token visits an expert once, so that none gets more than E / K
times the mean: what Zipf's law would give it beyond goes to the others in their proportions.

With a capacity every expert keeps at most that many rows of a rank, whichever way the load is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from typing import NamedTuple

from parsim.errors import Finding
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Model

PATH = "parallel.expert.imbalance"


@dataclass(frozen=True, slots=True)
class Zipf:
    """Expert number i of every layer is chosen in proportion to i^-exponent."""

    exponent: float


class ExpertTokens(NamedTuple):
    """A row of a histogram."""

    layer: int
    expert: int
    tokens: float
    line: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counted tokens of experts; experts that are not listed got none."""

    file: str
    rows: tuple[ExpertTokens, ...]


Imbalance = float | Zipf | Histogram
"""rows of the busiest rank over the mean, or where they come from"""


class Rows(NamedTuple):
    """Rows of a rank in one layer, over the copies of its tokens."""

    busiest: float
    """of the busiest rank's experts"""
    sent: float
    """that a rank sends: less where tokens are dropped, more where experts are filled up"""
    kept: float = 1.0
    """copies that some expert works on"""


def capacity(tokens: int, top_k: int, experts: int, factor: float) -> int:
    """Rows that an expert may get of one rank with `tokens` tokens (Megatron-LM: moe_utils.py, get_capacity).

    >>> capacity(4096, 8, 256, 1.0), capacity(4096, 2, 8, 1.25)
    (128, 1280)
    """
    return ceil(tokens * top_k / experts * factor)


def zipf_shares(experts: int, exponent: float, top_k: int = 1) -> list[float]:
    """Share of the token copies that each expert gets; none more than a token can give it.

    >>> [round(share, 3) for share in zipf_shares(3, 1.0)], [round(share, 3) for share in zipf_shares(3, 1.0, top_k=2)]
    ([0.545, 0.273, 0.182], [0.5, 0.3, 0.2])
    """
    weights = [(place + 1) ** -exponent for place in range(experts)]
    full = 0
    left, most = fsum(weights), 1 / top_k
    while full < experts and weights[full] * (1 - full * most) > most * left:
        left -= weights[full]
        full += 1
    scale = (1 - full * most) / left if full < experts else 0.0
    return [most] * full + [weight * scale for weight in weights[full:]]


def busiest(shares: Sequence[float], ranks: int) -> float:
    """The busiest rank's share over the mean, experts on `ranks` ranks in their order.

    >>> round(busiest(zipf_shares(256, 0.5), 256), 3), round(busiest(zipf_shares(256, 0.5), 8), 4)
    (8.374, 2.6016)
    """
    each = len(shares) // ranks
    return ranks * max(fsum(shares[first : first + each]) for first in range(0, len(shares), each))


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The load of all mixture layers of a model, on ranks with `tokens` tokens each."""

    imbalance: Imbalance
    ranks: int
    tokens: int
    factor: float | None = None
    """of the capacity; None: nothing is dropped"""
    padded: bool = False

    def rows(self, layer: GroupedLinear, shares: Sequence[float] | None = None) -> Rows:
        """Rows of a rank; `shares` of the layer's experts where they are known."""
        experts, copies = layer.experts, self.tokens * layer.top_k
        if shares is None and isinstance(self.imbalance, Zipf):
            shares = zipf_shares(experts, self.imbalance.exponent, layer.top_k)
        even = self.imbalance if isinstance(self.imbalance, (int, float)) else 1.0
        most = even if shares is None else busiest(shares, self.ranks)
        if self.factor is None:
            return Rows(most, 1.0)
        full = capacity(self.tokens, layer.top_k, experts, self.factor) * experts / copies
        if shares is None:
            others = (self.ranks - most) / (self.ranks - 1) if self.ranks > 1 else 1.0
            kept = (min(most, full) + (self.ranks - 1) * min(max(0.0, others), full)) / self.ranks
            rows = Rows(min(most, full), min(1.0, full), kept)
        else:
            limited = [min(share, full / experts) for share in shares]
            rows = Rows(busiest(limited, self.ranks), fsum(limited), fsum(limited))
        return Rows(full, full, rows.kept) if self.padded else rows

    def by_block(self, model: Model) -> dict[int, Rows]:
        """Rows of every mixture layer whose load is its own, by block."""
        if not isinstance(self.imbalance, Histogram):
            return {}
        counted = by_layer(self.imbalance)
        found = {}
        for block, operator in mixtures(model).items():
            counts = counted[_layer(model, block)]
            total = fsum(counts.values())
            found[block] = self.rows(operator, [counts.get(expert, 0.0) / total for expert in range(operator.experts)])
        return found


def mixtures(model: Model) -> dict[int, GroupedLinear]:
    """The first product of every mixture layer, by block."""
    layers: dict[int, GroupedLinear] = {}
    for block, described in enumerate(model.blocks):
        for operator in described.operators:
            if isinstance(operator, GroupedLinear):
                layers.setdefault(block, operator)
    return layers


def by_layer(histogram: Histogram) -> dict[int, dict[int, float]]:
    """Layer -> expert -> tokens."""
    counted: dict[int, dict[int, float]] = {}
    for row in histogram.rows:
        counted.setdefault(row.layer, {})[row.expert] = row.tokens
    return counted


def _layer(model: Model, block: int) -> int:
    """Number of a block's layer, as its name has it; prediction modules follow the layers."""
    if model.blocks[block].kind == "mtp":
        return model.layers + [number for number, other in enumerate(model.blocks) if other.kind == "mtp"].index(block)
    return int(model.block_names[block].rpartition(" ")[2])


def histogram_findings(histogram: Histogram, model: Model) -> list[Finding]:
    """Rows that the model has no place for, and layers that have none."""
    layers = {_layer(model, block): operator.experts for block, operator in mixtures(model).items()}
    findings = []
    known: Mapping[int, int] = layers
    for row in histogram.rows:
        if row.layer not in known:
            text = f"layer {row.layer} has no experts; layers with experts are {_shown(sorted(known))}, counted from 0"
            findings.append(Finding(text, PATH, row.layer, "leave the row out", histogram.file, row.line))
        elif row.expert >= known[row.layer]:
            text = f"expert {row.expert} of layer {row.layer}: it has experts 0 to {known[row.layer] - 1}"
            findings.append(Finding(text, PATH, row.expert, "leave the row out", histogram.file, row.line))
    counted = by_layer(histogram)
    if empty := [layer for layer in sorted(known) if not fsum(counted.get(layer, {}).values())]:
        text = f"no tokens are counted for the experts of layer {_shown(empty)}"
        findings.append(Finding(text, PATH, None, "give every layer with experts its rows", histogram.file))
    return findings[:_MOST_SHOWN]


_MOST_SHOWN = 10


def _shown(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers[:8])) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")
