"""Which values a key may have beside the others of a state, and what leads out of a state that cannot exist or does not fit.

Whether a value is legal is what `build` says of it; nothing here knows a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from parsim.errors import InputError, ParsimError
from parsim.parallel.schedules import LATER, NAMES
from parsim.run import step_of
from parsim.scenario.build_machine import machine
from parsim.scenario.built import Built, plan_of
from parsim.scenario.json_schema import schema
from parsim.study.planner.answers import Planner
from parsim.study.planner.short_run import short_run, surely_fits
from parsim.study.planner.state import State, example, scenario_of, whole
from parsim.study.search.lattice import STANDARD, divisors

TENSOR, PIPELINE, CONTEXT, EXPERT = (f"parallel.{axis}.size" for axis in ("tensor", "pipeline", "context", "expert"))
SEQUENCE_PARALLEL, SCHEDULE, VIRTUAL = "parallel.tensor.sequence_parallel", "parallel.pipeline.schedule", "parallel.pipeline.virtual_stages"
STRATEGY, MICRO_BATCH, RECOMPUTE = "parallel.data.strategy", "training.micro_batch", "training.recompute"
NODES, BATCH, SEQUENCE = "cluster.nodes", "training.global_batch", "training.sequence_length"
ACCUMULATION = "training.gradient_accumulation"
CHOSEN = (TENSOR, PIPELINE, CONTEXT, EXPERT, STRATEGY, SCHEDULE, MICRO_BATCH, RECOMPUTE)
"""keys whose values are offered one by one, each with whether it is legal"""
_LARGEST, _MOST_CONTEXT = 128, 16
_MICRO_BATCHES, _MACHINES = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)
_ROUND = tuple(2**power for power in range(4, 13))
_MOST_REPAIRS, _MOST_TRIED = 4, 24
_ANY = 1e-3
"""seconds of a kernel, where nobody asks for a time"""
QUICK = tuple(key for key in CHOSEN if key != SCHEDULE)
"""those that are answered within a tenth of a second; a schedule is written out to be judged"""
Changes = dict[str, Any]


@dataclass(frozen=True)
class OptionFacts:
    """What the offered values depend on."""

    gpus: int
    each: int
    """GPUs of a machine"""
    experts: int
    sequence: bool


def facts_of(state: State, built: Built | None) -> OptionFacts:
    """Of a state, also of one that cannot be built as long as its machines can. Raises `InputError`."""
    if built is not None:
        experts = int(str(built.model.facts.get("experts", 0) or 0))
        return OptionFacts(built.used_gpus, built.cluster.gpus_per_node, experts, bool(built.model.sequence))
    cluster, gpus = machine(scenario_of(state))
    return OptionFacts(len(gpus), cluster.gpus_per_node, 0, sequence=True)


def values(key: str, flat: Mapping[str, Any], facts: OptionFacts) -> list[Any]:
    """What is offered for a key; the value it has is always among them."""
    now = flat.get(key, _default(key))
    offered: list[Any]
    if key == TENSOR:
        offered = [size for size in divisors(facts.gpus) if size <= facts.each]
    elif key == PIPELINE:
        offered = [size for size in divisors(facts.gpus) if size <= _LARGEST]
    elif key == CONTEXT:
        offered = [size for size in divisors(facts.gpus) if size <= _MOST_CONTEXT] if facts.sequence else [1]
    elif key == EXPERT:
        offered = [size for size in divisors(facts.experts) if size <= facts.gpus] if facts.experts else [1]
    elif key == STRATEGY:
        offered = list(_strategies())
    elif key == SCHEDULE:
        offered = [name for name in NAMES if name not in LATER]
    elif key == MICRO_BATCH:
        offered = list(_MICRO_BATCHES)
    else:
        offered = [*STANDARD.recompute]
    if now not in offered:
        offered = sorted([*offered, now]) if isinstance(now, int) else [*offered, now]
    return offered


def changes(key: str, value: Any, flat: Mapping[str, Any]) -> Changes:
    """What choosing a value changes: the key, and those that only make sense with another value of it."""
    changed: Changes = {key: value}
    if key == TENSOR and (value > 1) != (flat.get(TENSOR, 1) > 1):
        changed[SEQUENCE_PARALLEL] = True if value > 1 else None
    if key == EXPERT and value > 1 and flat.get(TENSOR, 1) > 1:
        changed[SEQUENCE_PARALLEL] = True
    if key == SCHEDULE or (key == PIPELINE and value == 1):
        needed = key == SCHEDULE and value in _CHUNKED
        changed[VIRTUAL] = max(2, flat.get(VIRTUAL, 1)) if needed else None
        if key == PIPELINE:
            changed[SCHEDULE] = None
    return changed


_CHUNKED = ("interleaved", "interleaved-zb", "looped-bfs")
"""schedules of several chunks per stage"""


def options(planner: Planner, state: State, keys: Sequence[str] = CHOSEN) -> dict[str, list[dict[str, Any]]]:
    """Key -> its values: what choosing one changes, and why it cannot be chosen (empty: it can); keys without a choice are left out."""
    flat = whole(state)
    try:
        built: Built | None = planner.built(state)
    except InputError:
        built = None
    try:
        facts = facts_of(state, built)
    except InputError:
        return {}
    offered: dict[str, list[dict[str, Any]]] = {}
    for key in keys:
        now = flat.get(key, _default(key))
        listed = values(key, flat, facts)
        if listed == [1] or (key == SCHEDULE and flat.get(PIPELINE, 1) == 1):
            continue
        offered[key] = [
            {"value": value, "changes": change, "chosen": value == now, "reason": refusal(planner, state, change)}
            for value, change in ((value, changes(key, value, flat)) for value in listed)
        ]
    return offered


def refusal(planner: Planner, state: State, change: Changes) -> str:
    """Why a state cannot be changed so; empty: it can."""
    try:
        plan_of(planner.built({**state, **change}), lambda _: _ANY)
    except InputError as error:
        return "; ".join(str(finding.message) for finding in error.listed[:3])
    except ParsimError as error:
        return str(error)
    return ""


# -- ways out ---------------------------------------------------------------------------------------------------------


def repairs(planner: Planner, state: State, offered: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Changes]:
    """What makes a possible state of an impossible one, one click each: a single value where one does, the nearest first.

    The last one always helps: the example.
    """
    found = _batch(planner, state)
    for key, listed in offered.items():
        at = next((place for place, one in enumerate(listed) if one["chosen"]), 0)
        legal = [(abs(place - at), place) for place, one in enumerate(listed) if not one["reason"] and not one["chosen"]]
        if legal and key not in (SCHEDULE, RECOMPUTE):
            found.append(dict(listed[min(legal)[1]]["changes"]))
    for change in _larger(state) if len(found) < _MOST_REPAIRS else ():
        more_than_known = any(set(one) <= set(change) for one in found if NODES not in one)  # of machines several numbers are offered
        if not more_than_known and not refusal(planner, state, change):
            found.append(change)
        if len(found) == _MOST_REPAIRS:
            break
    return [*found[:_MOST_REPAIRS], *([] if found else [_plain(state)])]


def _batch(planner: Planner, state: State) -> list[Changes]:
    """The nearest global batch that is possible, where the batch is what does not fit with the rest."""
    batch = whole(state).get(BATCH)
    wrong = [finding["path"] for finding in planner.bound(state)["findings"]]
    if not isinstance(batch, int) or batch < 1 or BATCH not in wrong:
        return []
    near = [batch + sign * distance for distance in range(1, 9) for sign in (1, -1)]
    rounds = [count * size for size in _ROUND for count in (batch // size + 1, batch // size)]
    for other in dict.fromkeys([*near, *rounds]):
        if other > 0 and not refusal(planner, state, change := {BATCH: other, **_without_steps(state)}):
            return [change]
    return []


def _without_steps(state: State) -> Changes:
    """Gradient accumulation follows from the batch, unless somebody wrote it."""
    return {ACCUMULATION: None} if ACCUMULATION in whole(state) else {}


def eased(
    planner: Planner, state: State, offered: Mapping[str, Sequence[Mapping[str, Any]]], ways: Sequence[Changes]
) -> dict[str, list[dict[str, Any]]]:
    """The values of an impossible state: those that one of `ways`, or another batch, makes possible can be chosen."""
    only_batch = bool(offered) and {finding["path"] for finding in planner.bound(state)["findings"]} == {BATCH}
    round_batch: list[Changes] = []
    if only_batch:
        round_batch.append({BATCH: facts_of(state, None).gpus * _MICRO_BATCHES[-1], **_without_steps(state)})

    def reason(key: str, one: Mapping[str, Any]) -> str:
        tried = (*ways, *(round_batch if key != SCHEDULE else ()))
        return "" if any(not refusal(planner, state, {**way, **one["changes"]}) for way in tried) else str(one["reason"])

    return {key: [{**one, "reason": reason(key, one) if one["reason"] else ""} for one in listed] for key, listed in offered.items()}


def _larger(state: State) -> Iterator[Changes]:
    """Other machines, another batch; then a strategy without any model parallelism."""
    flat = whole(state)
    nodes, micro = flat.get(NODES, 1), flat.get(MICRO_BATCH, 1)
    if isinstance(nodes, int):
        yield from ({NODES: count} for count in sorted(_MACHINES, key=lambda count: abs(count - nodes)) if count != nodes)
    try:
        gpus = facts_of(state, None).gpus
    except InputError:
        return
    if isinstance(micro, int):
        yield {BATCH: gpus * micro, **_without_steps(state)}
    simple: Changes = {key: None for key in flat if key.startswith("parallel.")} | {STRATEGY: "fsdp"}
    batches: list[Changes] = [{}, {BATCH: gpus, MICRO_BATCH: 1, **_without_steps(state)}]
    yield from (simple | batch for batch in batches)
    length = flat.get(SEQUENCE)
    if isinstance(length, int):  # a model may have fewer positions
        shorter: list[Changes] = [{SEQUENCE: length >> halved} for halved in range(1, 6) if length >> halved]
        yield from shorter
        yield from (simple | one | batch for one in shorter for batch in batches)


def _plain(state: State) -> Changes:
    """All keys as the example has them."""
    return {key: example().get(key) for key in state}


def nearest_fits(planner: Planner, state: State, wanted: int = 3) -> Iterator[dict[str, Any]]:
    """Plans near a state that fit, by a short run or the whole: one value changed, or two."""
    offered = options(planner, state, QUICK)
    single = [one["changes"] for listed in offered.values() for one in listed if not one["reason"] and not one["chosen"]]
    saving = [change for change in single if RECOMPUTE in change or STRATEGY in change]
    pairs = [one | other for one in saving for other in single if not set(one) & set(other)]
    nodes = whole(state).get(NODES, 1)
    more = [{NODES: nodes * factor} for factor in (2, 4)] if isinstance(nodes, int) else []
    tried = found = 0
    for change in (*single, *pairs, *more):
        if found == wanted or tried == _MOST_TRIED:
            return
        try:
            changed = {**state, **change}
            built = planner.built(changed)
            if planner.around(whole(changed)).bounder.surely_full(built):
                continue
            tried += 1
            step = short_run(built) or step_of(built)
            fits = surely_fits(step) if step.method == "periods" else step.fits
        except ParsimError:
            continue
        if fits:
            found += 1
            yield {"changes": change, "step_time_s": step.step_time}


@cache
def _strategies() -> tuple[str, ...]:
    """Strategies of data parallelism that the schema names."""
    found = schema()["definitions"]["DataSection"]["properties"]["strategy"]
    return tuple(next(one["enum"] for one in found["anyOf"] if "enum" in one))


def _default(key: str) -> Any:
    """The value of a key that nobody writes."""
    return {STRATEGY: "ddp", SCHEDULE: "1f1b", RECOMPUTE: "none"}.get(key, 1)
