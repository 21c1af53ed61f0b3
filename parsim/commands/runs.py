"""What `parsim run` does where a step is made many times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parsim.terminal import Interrupted, progress

if TYPE_CHECKING:
    from parsim.report import Report
    from parsim.scenario import Scenario


def repeated(
    scenario: Scenario,
    out: Path | None,
    *,
    unfolded: bool,
    until: str | None,
    workers: int | None,
    dask: str | None,
    slow_gpu: float | None,
    quiet: bool,
) -> Report:
    """The report of a step that is made many times; runs are kept in `out` as they come."""
    from parsim.monte_carlo.stopping import until as enough
    from parsim.study.monte_carlo.runs import simulate_runs

    try:
        return simulate_runs(
            scenario,
            unfolded=unfolded,
            out=out,
            until=None if until is None else enough(until),
            workers=workers,
            dask=dask,
            slow_gpu=slow_gpu,
            watch=lambda came, total: progress("Making runs", came, total, quiet=quiet),
        )
    except KeyboardInterrupt:
        if out is not None:
            raise Interrupted(f"the runs so far are in {out / 'runs.jsonl'}; run the same command again to continue") from None
        raise
