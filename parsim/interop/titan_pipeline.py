"""torchtitan's pipeline: schedule, micro-batches, and which layers each stage has.

The split: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py (`generate_llm_fqn_per_model_part`): embedding and head count
as a layer each; what is left over after an equal split goes to the first stages.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

V_SHAPED = ("zb-v", "dualpipev")
"""schedules with two chunks per rank"""
LOOPED = ("interleaved", "interleaved-zb", "looped-bfs", *V_SHAPED)


def write_pipeline(draft: ImportDraft, source: Source, ranks: int, layers: int | None, local: int) -> None:
    """Write the `parallel.pipeline` section and, where there is one, the micro-batch; `local` samples are those of a rank and step."""
    paths = ("schedule", "csv", "virtual_stages", "micro_batch", "micro_batches", "split")
    kind, table, each, micro, count, points = (source.of(f"parallel.pipeline.{path}") for path in paths)
    parts = source.get("parallelism.module_fqns_per_model_part")
    if ranks == 1:
        draft.take(source, "parallel.pipeline.size")
        for key in (kind, table, each, micro, count, points, parts):
            draft.harmless(key, "there is no pipeline")
        return
    draft.take(source, "parallel.pipeline.size")
    schedule = _schedule(draft, source, kind, table)
    if parts is not None and parts.value:
        draft.fill("parallel.pipeline.split", "layers of every stage, as module_fqns_per_model_part lists them", parts)
    else:
        _stages(draft, ranks, layers, schedule, each, points)
    _micro_batch(draft, local, micro, count)


def _schedule(draft: ImportDraft, source: Source, kind: Key | None, table: Key | None) -> str:
    path = "parallel.pipeline.schedule"
    if table is not None and table.value:
        draft.write(path, str(table.value), table)
        draft.harmless(kind, "the table of the schedule counts")
        return ""
    if kind is None:
        draft.write(path, "1f1b", note="1F1B if not given")
        return "1f1b"
    ours = source.table.rows[path].ours(str(kind.value))
    if ours is None:
        draft.errors.append(kind.finding(f"not supported yet: schedule {kind.value}", f"one of {', '.join(source.table.rows[path].known)}"))
        return ""
    draft.write(path, ours, kind)
    return ours


def _stages(draft: ImportDraft, ranks: int, layers: int | None, schedule: str, each: Key | None, points: Key | None) -> None:
    """Chunks per rank and the layers of each."""
    per_stage = draft.whole(each, 1)
    chunks = 2 if schedule in LOOPED else 1
    if layers is not None and ranks * chunks > layers + 2:
        text = f"{ranks} ranks x {chunks} stages for {layers} layers, embedding and head"
        draft.errors += [key.finding(text, "use fewer ranks") for key in draft.lines["parallel.pipeline.size"].keys]
        return
    if points is not None and points.value:
        counts = _cut(points, layers)
        if counts is None or len(counts) % ranks:
            draft.fill("parallel.pipeline.split", "layers of every stage", points)
            return
        draft.write("parallel.pipeline.split", counts, points)
        chunks = len(counts) // ranks
    elif per_stage is not None and each is not None:
        if layers is None:
            draft.fill("parallel.pipeline.virtual_stages", f"(layers + 2) / {per_stage} layers per stage / {ranks} ranks", each)
            return
        stages = ceil((layers + 2) / per_stage)
        if stages % ranks or stages < ranks:
            text = f"({layers} layers + 2) / {per_stage} per stage = {stages} stages, no multiple of {ranks} ranks"
            draft.errors.append(each.finding(text, "torchtitan refuses this: use another number of layers per stage"))
            return
        chunks = stages // ranks
        draft.write("parallel.pipeline.split", split(layers, stages), each, note="embedding and head count as a layer each")
    elif layers is not None:
        draft.write("parallel.pipeline.split", split(layers, ranks * chunks), note="embedding and head count as a layer each")
    if chunks > 1:
        draft.write("parallel.pipeline.virtual_stages", chunks, each)
    draft.harmless(points, "empty")


def split(layers: int, stages: int) -> list[int]:
    """Layers of every stage.

    >>> split(32, 4)
    [8, 9, 8, 7]
    """
    share, rest = divmod(layers + 2, stages)
    counts = [share + (stage < rest) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def _cut(points: Key, layers: int | None) -> list[int] | None:
    """Layers between ``layers.N`` of older configurations; None where they are something else."""
    words = [str(word) for word in points.value] if isinstance(points.value, list) else str(points.value).split(",")
    numbers = [word.strip().removeprefix("layers.") for word in words]
    if layers is None or not all(number.isdigit() for number in numbers):
        return None
    ends = [0, *map(int, numbers), layers]
    counts = [after - before for before, after in pairwise(ends)]
    return counts if min(counts) >= 0 else None


def _micro_batch(draft: ImportDraft, local: int, micro: Key | None, count: Key | None) -> None:
    """The part of a local batch that goes through the pipeline at a time."""
    path = "training.micro_batch"
    if draft.given.micro_batch is not None:
        draft.write(path, draft.given.micro_batch, note="--micro-batch")
        draft.harmless(micro, "replaced by --micro-batch")
        draft.harmless(count, "replaced by --micro-batch")
        return
    parts = draft.whole(count, 1)
    size = local // parts if parts is not None else draft.whole(micro, 1) or 1
    if size < 1 or local % size:
        key = count or micro
        text = f"a local batch of {local} samples is not cut into whole micro-batches"
        if key is not None:
            draft.errors.append(key.finding(text, "use a divisor"))
        return
    source = count if parts is not None else micro
    draft.write(path, size, source, note="" if source is not None else "pipeline_parallel_microbatch_size is 1 if not given")
    draft.harmless(micro if parts is not None else None, "pipeline_parallel_microbatches counts")
