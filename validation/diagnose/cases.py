"""How often `parsim diagnose` finds what was changed: synthetic runs whose cause is known. See README.md beside this file.

python validation/diagnose/cases.py            writes results.csv and prints the table of README.md
python validation/diagnose/cases.py --cases 24 a smaller draw, as the tests take it
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.calibration.recorded import read_recorded
from parsim.run import simulate
from parsim.scenario import Scenario, files, load
from parsim.scenario.build import build
from parsim.study.diagnose import MeasuredStep, Simulator, explained
from parsim.study.diagnose_causes import Cause, Setting, parameters, settings
from parsim.study.diagnose_classes import ATTENTION, COMPUTE, GEMM, MEMORY, OPTIMIZER, GpuSlice, Recorded, Window, features, predicted
from parsim.study.diagnose_trace import Attributor
from parsim.terminal import progress

HERE = Path(__file__).resolve().parent
CHANGE = 0.3
"""by how much a parameter is changed"""
VISIBLE = 0.02
"""a change counts if it moves some class of time by at least this part of the step"""
KERNEL, CLASS = 0.05, 0.02
"""noise: relative spread of every kernel, and of all kernels of a class together (what a model of them is off)"""
STEPS = 2
"""recorded steps"""

SCENARIOS: Mapping[str, Any] = files.read(HERE / "scenarios.yaml").tree
"""name -> scenario, ranks"""
SLOW = 1
"""the slow rank"""
_SWITCHED = (("recompute", "full"), ("attention_kernel", "eager"), ("overlap_reduce", False), ("prefetch", 0), ("fusion", "compiled"),
             ("accumulate", "every"))  # fmt: skip
"""settings that are changed"""


@dataclass(frozen=True)
class Change:
    """What was changed in a run."""

    cause: Cause
    value: float | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Overrides."""
        return self.cause.overrides(self.value)

    @property
    def is_(self) -> tuple[str, object]:
        """What an answer must name: a parameter, or a setting and its value."""
        return named(self.cause)

    def __str__(self) -> str:
        return f"{self.cause.name}={self.cause.value if isinstance(self.cause, Setting) else format(self.value, '.4g')}"


def named(cause: Cause) -> tuple[str, object]:
    """A cause, comparable."""
    return (cause.name, cause.value if isinstance(cause, Setting) else None)


@dataclass(frozen=True)
class Bench:
    """One scenario with everything that is simulated once for all its cases."""

    name: str
    scenario: Scenario
    ranks: tuple[int, ...]
    attributor: Attributor
    causes: tuple[Cause, ...]
    changes: tuple[Change, ...]


def bench(name: str) -> Bench:
    """A scenario, its causes and its visible changes."""
    scenario, ranks = load(SCENARIOS[name]["scenario"]), tuple(SCENARIOS[name]["ranks"])
    report, built = simulate(scenario), build(scenario)
    causes = (*parameters(scenario, built, report, ranks), *settings(scenario, built))
    attributor = Attributor(scenario, ranks)
    attributor.add(causes)
    base, step = features(attributor.base), attributor.base.step_time
    visible = []
    for change in _changes(causes, step, built.training.micro_batches):
        seen = features(predicted(scenario.with_overrides(*change.arguments), ranks))
        moved = max(abs(seen.get(key, 0.0) - base.get(key, 0.0)) for key in {**seen, **base} if not key[1].startswith("#"))
        if moved >= VISIBLE * step:
            visible.append(change)
    return Bench(name, scenario, ranks, attributor, causes, tuple(visible))


def _changes(causes: Sequence[Cause], step: float, micro_batches: int) -> Iterator[Change]:
    """Every parameter by 30 % to either side as far as it goes, a time that was zero to 30 % of the step, and the switched settings."""
    for cause in causes:
        if isinstance(cause, Setting):
            if (cause.name, cause.value) in _SWITCHED:
                yield Change(cause, None)
        elif cause.name.startswith("slow_rank_"):
            if cause.name == f"slow_rank_{SLOW}":
                yield Change(cause, 1.0 - CHANGE)
        elif cause.name == "data_loading":
            yield Change(cause, (1.0 + CHANGE) * step / micro_batches)
        elif cause.now == 0.0:
            yield Change(cause, CHANGE * step if cause.name == "step_constant" else CHANGE * step / 0.1)
        else:
            for factor in (1.0 - CHANGE, 1.0 + CHANGE):
                low, high = sorted((cause.slowest, cause.fastest))
                if low <= cause.now * factor <= high:
                    yield Change(cause, cause.now * factor)


# -- a run that was recorded -------------------------------------------------------------------------------------------

_NAMES = {
    GEMM: "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn",
    ATTENTION: "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    MEMORY: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    OPTIMIZER: "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>>",
}
_NCCL = {"all_reduce": "AllReduce_Sum_bf16_RING_LL", "all_gather": "AllGather_RING_LL", "reduce_scatter": "ReduceScatter_Sum_bf16_RING_LL",
         "send": "SendRecv", "broadcast": "Broadcast_RING_LL"}  # fmt: skip
_TORCH = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "send": "send"}


def noisy(window: Window, draw: random.Random, classes: Mapping[str, float], shared: dict[tuple[str, int], float]) -> Window:
    """The window with kernels that take longer or shorter; what follows moves, gaps stay. Collectives are equal on all ranks (`shared`)."""
    work = sorted((one for one in window.stretches if one.kind in COMPUTE), key=lambda one: one.start)
    old, new, made = [window.begin], [window.begin], []
    for one in work:
        start = new[-1] + one.start - old[-1]
        length = one.duration * classes[one.kind] * draw.lognormvariate(0.0, KERNEL / max(1.0, one.count) ** 0.5)
        made.append(replace(one, start=start, duration=length))
        old += [one.start, one.end]
        new += [start, start + length]

    def moved(moment: float) -> float:
        place = min(max(bisect_right(old, moment), 1), len(old) - 1)
        span = old[place] - old[place - 1]
        if moment >= old[-1] or span <= 0:
            return new[place] + moment - old[place]
        return new[place - 1] + (new[place] - new[place - 1]) * (moment - old[place - 1]) / span

    seen: dict[str, int] = {}
    for one in (one for one in window.stretches if one.kind not in COMPUTE):
        start = moved(one.start)
        seen[one.name] = seen.get(one.name, 0) + 1
        factor = shared.setdefault((one.name, seen[one.name]), draw.lognormvariate(0.0, KERNEL))
        transfer = (one.duration - one.waited) * classes[one.kind] * factor
        made.append(replace(one, start=start, duration=one.waited + transfer))
    return Window(window.begin, moved(window.end), tuple(made))


def kineto(windows: Sequence[Window], rank: int) -> dict[str, Any]:
    """One rank's steps as PyTorch's profiler writes them: kernels by name, NCCL's with their parameters, marks of the steps."""
    events: list[dict[str, Any]] = []
    at = 5e9
    for number, window in enumerate(windows):
        origin, length = at - window.begin * 1e6, (window.end - window.begin) * 1e6
        events.append(
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number + 3}", "pid": 0, "tid": 7, "ts": at, "dur": length}
        )
        for one in window.stretches:
            events += _events(one, origin)
        at += length
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank}, "traceEvents": events}


def _events(one: GpuSlice, origin: float) -> Iterator[dict[str, Any]]:
    start, length = origin + one.start * 1e6, one.duration * 1e6
    if one.kind in COMPUTE:
        pieces = max(1, round(one.count))
        for piece in range(pieces):
            yield {"ph": "X", "cat": "kernel", "name": _NAMES[one.kind], "pid": 0, "tid": 7, "ts": start + piece * length / pieces,
                   "dur": length / pieces, "args": {"stream": 7}}  # fmt: skip
        return
    _, kind, size = one.kind.split()
    args = {"stream": 20, "Collective name": _TORCH.get(kind, kind), "Group size": int(size[1:]), "dtype": "BFloat16",
            "In msg nelems": one.bytes // 2, "Out msg nelems": one.bytes // 2}  # fmt: skip
    yield {
        "ph": "X",
        "cat": "kernel",
        "name": f"ncclDevKernel_{_NCCL.get(kind, kind)}",
        "pid": 0,
        "tid": 20,
        "ts": start,
        "dur": length,
        "args": args,
    }


def recording(run: Recorded, folder: Path, draw: random.Random) -> list[Path]:
    """Files of all ranks: the same errors of a class everywhere, noise of its own for every kernel."""
    kinds = sorted({one.kind for windows in run.ranks.values() for window in windows for one in window.stretches})
    classes = {kind: draw.lognormvariate(0.0, CLASS) for kind in kinds}
    paths, shared = [], [dict[tuple[str, int], float]() for _ in range(STEPS)]
    for rank, windows in run.ranks.items():
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_text(json.dumps(kineto([noisy(windows[0], draw, classes, step) for step in shared], rank)), encoding="utf-8")
        paths.append(path)
    return paths


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What was changed, and where it came in the answer."""

    scenario: str
    changes: tuple[Change, ...]
    gap: float
    """of the step time, relative"""
    places: tuple[int, ...]
    """from 1; 0: not in the answer"""
    listed: bool | None
    """one change, with its time only: whether it is among what explains it"""
    first: str

    @property
    def right(self) -> bool:
        """One change comes first; two are both among the first three."""
        return all(1 <= place <= (1 if len(self.places) == 1 else 3) for place in self.places)


def case(one: Bench, changes: tuple[Change, ...], draw: random.Random) -> Result:
    """Record a changed run and ask what was changed."""
    arguments = tuple(argument for change in changes for argument in change.arguments)
    changed = one.scenario.with_overrides(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        recorded = read_recorded(recording(predicted(changed, one.ranks), Path(folder), draw))
    evidence = one.attributor.evidence(recorded)
    names = [named(entry.cause) for entry in evidence.ranking]
    if not evidence.best:
        names = []
    places = tuple(names.index(change.is_) + 1 if change.is_ in names else 0 for change in changes)
    base = one.attributor.base.step_time
    step = simulate(changed).step_time
    listed = time_only(one, changes[0], step) if len(changes) == 1 else None
    return Result(one.name, changes, step / base - 1.0, places, listed, str(evidence.ranking[0].cause.name) if names else "nothing")


def time_only(one: Bench, change: Change, step: float) -> bool:
    """Whether the changed cause is among those that explain the step time; a step that did not change asks for none."""
    simulator, report = Simulator(one.scenario), simulate(one.scenario)
    found = explained(change.cause, simulator, report, MeasuredStep(one.scenario, step))
    if abs(step / report.step_time - 1.0) <= 1e-4:
        return True
    return found is not None and found.explains


def draws(benches: Sequence[Bench], count: int, together: int, seed: int) -> Iterator[tuple[Bench, tuple[Change, ...]]]:
    """`count` cases: every scenario and change in turn (or pair of changes of different causes, drawn)."""
    draw = random.Random(seed)  # noqa: S311 - a draw that must repeat
    single = [(one, (change,)) for one in benches for change in one.changes]
    if together == 1:
        draw.shuffle(single)
        yield from itertools.islice(itertools.cycle(single), count)
        return
    for number in range(count):
        one = benches[number % len(benches)]
        while True:
            pair = draw.sample(one.changes, 2)
            if pair[0].cause.name != pair[1].cause.name:
                break
        yield one, tuple(pair)


def results(count: int, pairs: int, seed: int = 1, names: Sequence[str] = tuple(SCENARIOS)) -> Iterator[Result]:
    """`count` runs with one change and `pairs` with two, in turn."""
    benches = [bench(name) for name in progress("Simulating every cause", names, len(names))]
    single, double = (list(enumerate(draws(benches, number, together, seed))) for together, number in ((1, count), (2, pairs)))
    asked = [entry for both in itertools.zip_longest(single, double) for entry in both if entry is not None]
    for place, (one, changes) in progress("Cases", asked, len(asked)):
        draw = random.Random(f"{seed} {len(changes)} {place}")  # noqa: S311 - noise that must repeat
        yield case(one, changes, draw)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows of results.csv by scenario."""
    lines = [
        "| scenario | one change | ranked first | listed with a time only | two changes | both in the first three |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*sorted({row["scenario"] for row in rows}), "all"):
        mine = [row for row in rows if name in (row["scenario"], "all")]
        single, double = [row for row in mine if row["listed_with_time_only"]], [row for row in mine if not row["listed_with_time_only"]]
        cells = [len(single), _share(single, "right"), _share(single, "listed_with_time_only"), len(double), _share(double, "right")]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _share(rows: Sequence[Mapping[str, str]], column: str) -> str:
    good = sum(row[column] == "true" for row in rows)
    return f"{good} ({good / len(rows):.0%})" if rows else "-"


def main() -> None:
    """Write results.csv and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    parser.add_argument("--table", action="store_true", help="only print the table of the file")
    options = parser.parse_args()
    if not options.table:
        _write(options.out, results(options.cases, options.pairs, options.seed))
    with options.out.open(encoding="utf-8", newline="") as stream:
        sys.stdout.write(f"{table(list(csv.DictReader(stream)))}\n")


def _write(path: Path, found: Iterator[Result]) -> None:
    """One row per run, as they come."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["scenario", "changed", "step_change", "place", "listed_with_time_only", "first", "right"])
        for one in found:
            listed = "" if one.listed is None else str(one.listed).lower()
            places = " ".join(map(str, one.places))
            writer.writerow(
                [one.scenario, " ".join(map(str, one.changes)), f"{one.gap:.4f}", places, listed, one.first, str(one.right).lower()]
            )
            stream.flush()


if __name__ == "__main__":
    main()
