"""The best strategy for a state, as lines of a document while the search goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any

from parsim.errors import ParsimError
from parsim.scenario.scenario import Scenario
from parsim.study.best_strategy import HEADROOM, BestStrategy, FasterStrategy, search
from parsim.study.planner.answers import impossible
from parsim.study.planner.state import State, changes_of, scenario_of

Say = Callable[[Mapping[str, Any]], None]
_EVERY = 0.3
"""between two lines of progress [s]"""


def best_strategy(state: State, say: Say) -> None:
    """Search, and say every improvement, how far it is, and at last what is proved.

    The question is that of `parsim plan`: a state that says nothing of a reserve keeps as much memory free.

    ``{"kind": "progress", "doing", "done", "of"}``, ``{"kind": "better", "state", ...}``, ``{"kind": "end", "proven", "counts"}`` or
    ``{"kind": "error", ...}``.
    """
    try:
        base = asked(state)

        def watch(doing: str, results: Iterable[Any], total: int | None) -> Iterator[Any]:
            said = 0.0
            for done, result in enumerate(results, 1):
                if (now := monotonic()) - said >= _EVERY:
                    said = now
                    say({"kind": "progress", "doing": doing, "done": done, "of": total})
                yield result

        def better(one: FasterStrategy) -> None:
            say({
                "kind": "better",
                "after_s": one.after,
                "strategy": one.strategy,
                "step_time_s": one.row["step_time_s"],
                "peak_bytes": one.row.get("peak_bytes"),
                "mfu": one.row["mfu"],
                "state": changes_of(BestStrategy(base, [one]).tree()),
            })  # fmt: skip

        found = search(base, watch=watch, improved=better)
        counts = {} if found.study is None else found.study.counts()
        say({"kind": "end", "proven": found.proven, "points": counts.get("points"), "simulated": counts.get("simulated")})
    except ParsimError as error:
        say({"kind": "error"} | {key: value for key, value in impossible(error).items() if key == "findings"})


def asked(state: State) -> Scenario:
    """The scenario whose strategy is searched: with the memory that `parsim plan` keeps free, unless the state says how much that is.

    Raises:
        ScenarioError: there is no such scenario.
    """
    scenario = scenario_of(state)
    if "memory_reserve" in scenario.written.get("cluster", {}):
        return scenario
    return scenario.with_overrides(f"cluster.memory_reserve={HEADROOM}")
