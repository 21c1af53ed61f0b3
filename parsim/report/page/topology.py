"""The machine and the fabric as one picture: boxes by kind in tiers, folded, lines coloured and as thick as links were busy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING

from parsim.report.communication import LinkClass, LinkRow
from parsim.report.quantities import percent, rate
from parsim.report.wiring import Wires, Wiring

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

STEPS = (
    (0.0, "#9aa1ab", 1.0),
    (0.25, "#8a8a3c", 1.8),
    (0.5, "#b8a63a", 2.6),
    (0.75, "#f0e442", 3.4),
    (0.95, "#e68a00", 4.2),
    (9.0, "#d55e00", 5.0),
)
"""(utilisation up to which, colour, width): 0, < 25, < 50, < 75, < 95, >= 95 %"""
_APART = 0.05
"""members whose utilisation differs by more than this are lines of their own"""
_MOST_LINES = 3
_FABRIC = ("core", "spine", "leaf", "switch")
_TIERS = ("nic", "pcie", "gpu", "nvswitch")
_SIDE = {"memory": 0, "cpu": 1, "nvme": 2, "drive": 2}
"""kinds beside the PCIe switches, and their tier inside the machine"""
_NAMES = {
    "nic": "NIC",
    "pcie": "PCIe switch",
    "gpu": "GPU",
    "nvswitch": "NVSwitch",
    "cpu": "CPU",
    "memory": "host memory",
    "nvme": "NVMe drive",
}
_STEP, _HEIGHT, _SPREAD = 78, 34, 16


@dataclass
class _Line:
    """Links between two kinds of parts that were about equally busy."""

    ends: tuple[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    """name, one for each direction -> links, of all machines"""
    capacity: float = 0.0
    used: float = 0.0
    kind: str = ""


def topology(report: Metrics) -> str:
    """The picture as inline SVG; empty where nobody knows the cluster."""
    if report.measured.wiring is None:
        return ""
    wiring = report.measured.wiring()
    lines = _lines(wiring, _by_name(wiring, report.links, dict.fromkeys(report.measured.links.values())))
    places, width, height, frame = _place(wiring, lines)
    drawn = "".join(_draw(line, places, number, of) for line, number, of in _numbered(lines))
    boxes = "".join(_box(kind, count, places[kind]) for kind, count in _counts(wiring).items() if kind in places)
    title = f"{wiring.fabric} of {wiring.machines} machines" if wiring.machines > 1 else "the machine"
    border = ""
    if wiring.machines > 1:
        x, y, w, h = frame
        kinds = f" ({wiring.other_machines} others differ)" if wiring.other_machines else ""
        words = f"one of {wiring.machines:,} machines{kinds}"
        border = (
            f'<rect class="frame" x="{x}" y="{y}" width="{w}" height="{h}"/><text class="soft" x="{x + 8}" y="{y + h - 8}">{words}</text>'
        )
    return (
        f'<svg class="topology" role="img" aria-label="Links of {escape(title)}, coloured by utilisation" viewBox="0 0 {width} {height}"'
        f' style="max-width:{width}px">{border}{drawn}{boxes}</svg>{_legend()}'
    )


def _ends(name: str) -> tuple[str, str]:
    """The kinds of parts that a class of links connects; what is no pair loops at the NICs."""
    ends = name.partition(" (")[0].replace("<->", "->").split("->")
    return (ends[0], ends[1]) if len(ends) == 2 else ("nic", "nic")


def _by_name(wiring: Wiring, rows: Sequence[LinkRow], classes: Iterable[LinkClass]) -> list[LinkRow]:
    """The rows of a report, each once for every name of the links that carry the same; it bears the name of one of them."""
    if not wiring.alike:  # nobody says what the rows stand for
        return list(rows)
    return [
        replace(row, link=name, kind=kind, count=count)
        for row, link_class in zip(rows, classes, strict=True)
        for (name, kind), count in wiring.alike[link_class.number].items()
    ]


def _lines(wiring: Wiring, rows: Sequence[LinkRow]) -> list[_Line]:
    """One line per pair of kinds, and more where some members were much busier than others; both directions together."""
    by_ends: dict[tuple[str, str, str], dict[str, list[LinkRow]]] = {}
    for wires in (*wiring.between, *wiring.inside):
        by_ends.setdefault(_pair(wires), {}).setdefault(wires.name, [])
    for row in rows:
        by_ends.setdefault(_pair(row), {}).setdefault(row.link, []).append(row)
    machines = wiring.machines - wiring.other_machines
    wired = {(known.name, known.kind): known for known in wiring.between}
    wired |= {(known.name, known.kind): replace(known, count=known.count * machines) for known in wiring.inside}
    lines: list[_Line] = []
    for (a, b, kind), by_name in by_ends.items():
        buckets: list[_Line] = []
        for name, members in by_name.items():
            idle = wired.get((name, kind))
            rest = [LinkRow(name, kind, idle.count, idle.capacity, 0.0, 0.0, 0.0)] if idle is not None and not members else []
            for row in sorted(members or rest, key=lambda row: -row.utilisation):
                own = next((line for line in buckets if line.used - row.utilisation <= _APART), None)
                if own is None and len(buckets) == _MOST_LINES:
                    own = buckets[-1]
                if own is None:
                    own = _Line((a, b), kind=kind, used=row.utilisation)
                    buckets.append(own)
                own.used = max(own.used, row.utilisation)
                own.capacity = max(own.capacity, row.capacity_Bps)
                own.counts[name] = own.counts.get(name, 0) + row.count
        lines += buckets
    return lines


def _pair(links: Wires | LinkRow) -> tuple[str, str, str]:
    a, b = sorted(_ends(links.name if isinstance(links, Wires) else links.link))
    return a, b, links.kind


def _numbered(lines: Sequence[_Line]) -> list[tuple[_Line, int, int]]:
    """Each line with its number among those of the same ends."""
    alike: dict[tuple[str, str], list[_Line]] = {}
    for line in lines:
        alike.setdefault(line.ends, []).append(line)
    return [(line, number, len(group)) for group in alike.values() for number, line in enumerate(group)]


def _counts(wiring: Wiring) -> dict[str, int]:
    return {**wiring.switches, **wiring.parts}


def _width(kind: str, count: int) -> int:
    return 26 + 8 * len(_label(kind, count))


def _label(kind: str, count: int) -> str:
    name = _NAMES.get(kind, kind)
    return f"{name} ×{count:,}" if count > 1 else name


def _place(wiring: Wiring, lines: Sequence[_Line]) -> tuple[dict[str, tuple[int, int, int]], int, int, tuple[int, int, int, int]]:
    """Centre and width of every box, the size of the picture, and the frame of a machine."""
    counts = _counts(wiring)
    known = {end for line in lines for end in line.ends}
    fabric = [kind for kind in counts if kind not in _TIERS and kind not in _SIDE]
    fabric.sort(key=lambda kind: _FABRIC.index(kind) if kind in _FABRIC else -1)
    inner = [kind for kind in _TIERS if kind in counts]
    places: dict[str, tuple[int, int, int]] = {}
    widest = max((_width(kind, counts[kind]) for kind in (*fabric, *inner)), default=100)
    centre = 150 + widest // 2
    level = 34
    for kind in fabric:
        places[kind] = (centre, level, _width(kind, counts[kind]))
        level += _STEP
    top = level
    for kind in inner:
        places[kind] = (centre, level, _width(kind, counts[kind]))
        level += _STEP
    side = [kind for kind in counts if kind in _SIDE and (kind in known or kind != "memory")]
    at = centre + widest // 2 + 230
    for kind in side:
        places[kind] = (at, top + _SIDE[kind] * _STEP, _width(kind, counts[kind]))
        level = max(level, top + (_SIDE[kind] + 1) * _STEP)
    right = max(x + w // 2 for x, _, w in places.values()) + 175
    return places, right, level - 14, (8, top - 30, right - 16, level - top + 8)


def _style(used: float) -> tuple[str, float]:
    if used <= 0.0:
        return STEPS[0][1], STEPS[0][2]
    return next((colour, width) for limit, colour, width in STEPS[1:] if used < limit)


def _draw(line: _Line, places: dict[str, tuple[int, int, int]], number: int, of: int) -> str:
    """A line with its label; parts of one kind that are joined to each other get a loop at their left."""
    colour, width = _style(line.used)
    a, b = line.ends
    if a not in places or b not in places:
        return ""
    (x, y, w), (u, v, _) = places[a], places[b]
    text: tuple[float, float]
    words = f"{rate(line.capacity)} · {percent(line.used)}"
    count = max(line.counts.values())
    title = f"{' and '.join(line.counts)}: {count:,} × {line.kind}, {rate(line.capacity)} each way, busiest used {percent(line.used)}"
    if a == b:
        way = 1 if a in _SIDE else -1
        side, top, reach = x + way * (w // 2), y - 11 - 5 * number, way * (26 + 8 * number)
        path = f"M{side} {top}h{reach}v{22 + 10 * number}h{-reach}"
        text, anchor = (side + reach + 8 * way, y + 4 + 13 * (number - (of - 1) / 2)), "start" if way > 0 else "end"
    elif x == u:
        at = x + (2 * number - of + 1) * _SPREAD
        path = f"M{at} {min(y, v) + _HEIGHT // 2}V{max(y, v) - _HEIGHT // 2}"
        anchor = "start" if number == of - 1 else "end"
        far = abs(y - v) > _STEP
        text = (at + (10 if anchor == "start" else -10), (y + v) / 2 + 4 + (24 if far else 0))
    else:
        path, text, anchor = _across((x, y, w), places[b], number)
    return (
        f'<g class="link" data-link="{escape("|".join(line.counts))}"><title>{escape(title)}</title>'
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        f'<text x="{text[0]:.0f}" y="{text[1]:.0f}" text-anchor="{anchor}">{escape(words)}</text></g>'
    )


def _across(a: tuple[int, int, int], b: tuple[int, int, int], number: int) -> tuple[str, tuple[float, float], str]:
    """From the main column to the parts beside it."""
    (x, y, w), (u, v, r) = (a, b) if a[0] < b[0] else (b, a)
    start, end = x + w // 2, u - r // 2
    path = f"M{start} {y + 6 * number}L{end} {v + 6 * number}"
    return path, ((start + end) / 2, (y + v) / 2 - 8 + 14 * number), "middle"


def _box(kind: str, count: int, place: tuple[int, int, int]) -> str:
    x, y, w = place
    behind = f'<rect class="box" x="{x - w // 2 + 4}" y="{y - _HEIGHT // 2 - 4}" width="{w}" height="{_HEIGHT}"/>' if count > 1 else ""
    front = f'<rect class="box" x="{x - w // 2}" y="{y - _HEIGHT // 2}" width="{w}" height="{_HEIGHT}"/>'
    return f'{behind}{front}<text x="{x}" y="{y + 4}" text-anchor="middle">{escape(_label(kind, count))}</text>'


def _legend() -> str:
    words = ("idle", "< 25 %", "< 50 %", "< 75 %", "< 95 %", "≥ 95 %")
    stroke = '<span><svg width="34" height="10" aria-hidden="true"><path d="M2 5H32" stroke="{}" stroke-width="{}"/></svg> {}</span>'
    parts = "".join(stroke.format(colour, width, escape(text)) for (_, colour, width), text in zip(STEPS, words, strict=True))
    return f'<div class="legend">Share of capacity used over the step: {parts}</div>'
