"""Pipeline schedules as data: for each rank, the order of its forward and backward slots.

A schedule knows neither bytes nor seconds; `parsim.program` gives its slots duration, messages and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from itertools import pairwise

from parsim.errors import Finding, PlanError
from parsim.limits import MOST_PASSES, beyond
from parsim.parallel.schedules.bidirectional import chimera, dualpipe, dualpipev
from parsim.parallel.schedules.check import check, deadlock
from parsim.parallel.schedules.classic import combined, gpipe, interleaved, looped_bfs, naive, one_f_one_b, pipedream, pipedream_2bw
from parsim.parallel.schedules.controllable_memory import v_half, v_min
from parsim.parallel.schedules.slot import APART, GRADIENTS_OF_WEIGHTS, Overlapped, Schedule, Slot, SlotKind, to_text
from parsim.parallel.schedules.zero_bubble import interleaved_zb, zb_h1, zb_h2, zb_v

__all__ = [
    "ALIASES", "BIDIRECTIONAL", "CUSTOM", "ENDLESS", "INTERLEAVED", "LATER", "NAMES", "OVERLAPPING", "SPLIT", "UNBOUNDED", "V_SHAPED",
    "ZERO_BUBBLE", "Overlapped", "Schedule", "Slot", "SlotKind", "check", "chunks", "deadlock", "directions", "grows", "homes",
    "overlapped", "peak_in_flight", "schedule", "stays", "to_text",
]  # fmt: skip

_PATH = "parallel.pipeline.schedule"

_BUILDERS: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "pipedream": pipedream,
    "pipedream-2bw": pipedream_2bw,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "chimera": chimera,
}
_INTERLEAVED: dict[str, Callable[[int, int, int], Schedule]] = {
    "interleaved": interleaved,
    "interleaved-zb": interleaved_zb,
    "looped-bfs": looped_bfs,
}
_OVERLAPPING: dict[str, Callable[[int, int, int], tuple[Schedule, Overlapped]]] = {
    "combined-1f1b": combined,
    "dualpipev": lambda stages, micro_batches, _: dualpipev(stages, micro_batches),
    "dualpipe": lambda stages, micro_batches, _: dualpipe(stages, micro_batches),
}
CUSTOM = "custom"
"""a schedule of the user's own (`parsim.parallel.schedules.custom`)"""

NAMES = (
    "naive", "gpipe", "looped-bfs", "1f1b", "pipedream", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-zb",
    "combined-1f1b", "dualpipev", "dualpipe", "chimera", "pipedream-2bw",
)  # fmt: skip
"""the schedules that `schedule` can make"""
INTERLEAVED = (*_INTERLEAVED, "combined-1f1b")
"""those that take any number of chunks per rank"""
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipev")
"""those with two chunks per rank in the shape of a V"""
SPLIT = ("zb-h1", "zb-h2", *V_SHAPED, "interleaved-zb", "dualpipe")
"""those whose backward is split into I and W, always or at times"""
OVERLAPPING = tuple(_OVERLAPPING)
"""those in which forwards run beside backwards"""
BIDIRECTIONAL = ("dualpipe", "chimera")
"""those in which every stage lies on two ranks, and micro-batches enter at either end"""

ZERO_BUBBLE = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-zb")
"""those in which weight gradients fill the bubble, whose ranks may step alone"""
ENDLESS = ("pipedream", "pipedream-2bw")
"""those that never flush the pipeline"""
UNBOUNDED = ("pipedream-2bw", *V_SHAPED, "looped-bfs", "combined-1f1b", *BIDIRECTIONAL)
"""those of which searches have no lower bounds: they are simulated"""

ALIASES = {
    "pipedream-flush": "1f1b", "dapple": "1f1b", "interleaved-1f1b": "interleaved", "interleaved-zero-bubble": "interleaved-zb",
    "loopedbfs": "looped-bfs",
}  # fmt: skip
"""other names of schedules"""
LATER = ("hanayo",)
"""schedules that are known and not supported yet"""


def schedule(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Schedule:
    """The schedule called `name` for p ranks, m micro-batches and v model chunks per rank.

    Raises `PlanError` for a name that is unknown or not supported yet, and where a schedule's own rule is broken
    (interleaved m % p = 0, interleaved-zb m % floor(m/p) = 0 and v > 1, pipedream m >= p, v > 1 else only in a V, where v = 2).

    >>> print(to_text(schedule("1f1b", stages=2, micro_batches=3)))
    F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    """
    name = _canonical(name)
    sizes = (
        ("parallel.pipeline.size", "pipeline stages", stages),
        ("training.gradient_accumulation", "micro-batches", micro_batches),
        ("parallel.pipeline.virtual_stages", "virtual stages", virtual_stages),
    )
    if wrong := [Finding(f"{value} {words}: at least 1 is needed", path, value) for path, words, value in sizes if value < 1]:
        raise PlanError(wrong)
    arithmetic = f"{micro_batches:,} micro-batches x {stages:,} stages x {virtual_stages:,} chunks"
    path = max(sizes, key=lambda size: size[2])[0]
    if many := beyond(micro_batches * stages * virtual_stages, MOST_PASSES, "forward passes", path, arithmetic):
        raise PlanError(many)
    if name == "interleaved-zb" and virtual_stages == 1:
        message = f"{name} needs at least 2 stages per rank, but virtual_stages = 1"
        suggestion = "use virtual_stages: 2 or more, or schedule zb-h1, which is the same with one"
        raise PlanError(Finding(message, "parallel.pipeline.virtual_stages", virtual_stages, suggestion))
    if name in _INTERLEAVED:
        return _INTERLEAVED[name](stages, micro_batches, virtual_stages)
    if name not in INTERLEAVED and virtual_stages != (least := chunks(name)):
        runs = "one stage" if least == 1 else f"{least} stages"
        message = f"{name} runs {runs} per rank, but virtual_stages = {virtual_stages}"
        suggestion = f"use schedule interleaved, or virtual_stages: {least}"
        raise PlanError(Finding(message, "parallel.pipeline.virtual_stages", virtual_stages, suggestion))
    if name in _OVERLAPPING:
        return _OVERLAPPING[name](stages, micro_batches, virtual_stages)[0]
    return _BUILDERS[name](stages, micro_batches)


def overlapped(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Overlapped:
    """The slots of `schedule` that run a forward and a backward at once.

    >>> [tuple(map(str, pair)) for pair in sorted(overlapped("combined-1f1b", 1, 3))]
    [('F0.1', 'B0.0'), ('F0.2', 'B0.1')]
    """
    name = _canonical(name)
    return _OVERLAPPING[name](stages, micro_batches, virtual_stages)[1] if name in OVERLAPPING else APART


def directions(name: str) -> int:
    """Equal parts of the global stages, each a whole model with an equal part of the micro-batches; usually one.

    >>> directions("1f1b"), directions("dualpipe")
    (1, 2)
    """
    return 2 if name in BIDIRECTIONAL else 1


def chunks(name: str) -> int:
    """Model chunks per rank that a schedule has where nobody says how many.

    >>> chunks("1f1b"), chunks("zb-v")
    (1, 2)
    """
    return 2 if name in V_SHAPED else 1


def grows(name: str, stages: int, micro_batches: int) -> bool:
    """Whether a schedule is a longer one of those with fewer micro-batches, as many modulo p: in groups of the same size, if any.

    >>> grows("1f1b", 4, 9), grows("interleaved-zb", 4, 12), grows("interleaved-zb", 4, 10)
    (True, True, False)
    """
    return name not in ("pipedream-2bw", *OVERLAPPING, *BIDIRECTIONAL) and (name != "interleaved-zb" or micro_batches % stages == 0)


def homes(rows: Schedule) -> tuple[int, ...]:
    """The rank that holds each global stage.

    >>> homes(schedule("interleaved", 2, 2, 2)), homes(schedule("zb-v", 2, 2, 2))
    ((0, 1, 0, 1), (0, 1, 1, 0))
    """
    home = {slot.stage: rank for rank, row in enumerate(rows) for slot in row}
    return tuple(home[stage] for stage in sorted(home))


def stays(rows: Schedule) -> bool:
    """Whether some stage hands its result to another on the same rank, as in the middle of a V.

    >>> stays(schedule("interleaved", 2, 2, 2)), stays(schedule("zb-v", 2, 2, 2))
    (False, True)
    """
    return any(one == other for one, other in pairwise(homes(rows)))


def peak_in_flight(rows: Schedule) -> list[int]:
    """Per rank, the most (stage, micro-batch) pairs that are between the start of F and the end of B or W.

    Order alone decides it, because the slots of a rank do not overlap. Multiply by the activation bytes of a chunk.

    >>> peak_in_flight(schedule("1f1b", 4, 8))
    [4, 3, 2, 1]
    """
    peaks = []
    for row in rows:
        live = peak = 0
        for slot in row:
            live += slot.kind == SlotKind.FORWARD
            peak = max(peak, live)
            live -= slot.kind in GRADIENTS_OF_WEIGHTS
        peaks.append(peak)
    return peaks


def _canonical(name: str) -> str:
    word = name.strip().lower().replace("_", "-")
    word = ALIASES.get(word, word)
    if word in NAMES:
        return word
    if word in LATER:
        suggestion = f"use one of {', '.join(NAMES)}, or give the order in a schedule file"
        raise PlanError(Finding(f"schedule {name!r} is not supported yet", path=_PATH, value=name, suggestion=suggestion))
    if word == CUSTOM:
        raise PlanError(Finding("a custom schedule needs its order", path=_PATH, value=name, suggestion="give the path of a schedule file"))
    close = get_close_matches(word, (*NAMES, *ALIASES), n=1)
    suggestion = f"did you mean {close[0]}?" if close else f"use one of {', '.join(NAMES)}, or the path of a schedule file"
    raise PlanError(Finding(f"there is no schedule {name!r}", path=_PATH, value=name, suggestion=suggestion))
