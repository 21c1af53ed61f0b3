"""One slot of a pipeline schedule, and its text form.

A schedule is pure order: it knows neither bytes nor seconds. Stages are *global* virtual stages: with v chunks per
rank there are p*v of them, and `parsim.parallel.schedules.placement` says which rank holds which.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from parsim.errors import Finding, PlanError

KINDS = ("F", "B", "I", "W")
"""forward, whole backward, backward-input, backward-weight"""

_OURS = re.compile(r"([FBIW])([0-9]{1,9})\.([0-9]{1,9})")
_TORCH = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


class Slot(NamedTuple):
    """One pass of one micro-batch through one stage: ``F0.3`` is the forward of micro-batch 3 on stage 0."""

    kind: str
    """F forward | B whole backward | I backward-input | W backward-weight"""
    stage: int
    """global virtual stage"""
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Read ``F0.3``, or ``0F3`` as torch.distributed.pipelining spells it ([stage][kind][micro-batch]).

        Raises `PlanError` for anything else.

        >>> Slot.parse("B2.7")
        Slot(kind='B', stage=2, micro_batch=7)
        >>> str(Slot.parse("2B7"))
        'B2.7'
        """
        if match := _OURS.fullmatch(text):
            kind, stage, micro_batch = match.groups()
        elif match := _TORCH.fullmatch(text):
            stage, kind, micro_batch = match.groups()
        else:
            message = f"{text!r} is not a slot" if len(text) <= 40 else f"{text[:40]!r}... is not a slot: it has {len(text):,} characters"
            raise PlanError(
                Finding(message, value=text[:40], suggestion="write F0.3 (kind, stage, micro-batch), kind one of F B I W, or 0F3")
            )
        return cls(kind, int(stage), int(micro_batch))


Schedule: TypeAlias = tuple[tuple[Slot, ...], ...]
"""per rank of the pipeline, its slots in the order in which it runs them"""

Overlapped: TypeAlias = frozenset[tuple[Slot, Slot]]
"""(forward, backward) of the slots that run both at once: neighbours in a rank's row, begun together and ended together"""

APART: Overlapped = frozenset()
"""no overlapped slots: every pass has its rank to itself"""


def to_text(schedule: Schedule) -> str:
    """A schedule as text: one line per rank, slots separated by spaces (`custom.from_text` reads it back).

    >>> to_text(((Slot("F", 0, 0), Slot("B", 0, 0)),))
    'F0.0 B0.0'
    """
    return "\n".join(" ".join(map(str, row)) for row in schedule)
