"""torchtitan's pipeline: schedule, micro-batches, and which layers each stage has.

The split: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py (`generate_llm_fqn_per_model_part`): embedding and head count
as a layer each; what is left over after an equal split goes to the first stages.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from parsim.interop.export_draft import ExportDraft
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

V_SHAPED = ("zb-v", "dualpipev")
"""schedules with two chunks per rank"""
LOOPED = ("interleaved", "interleaved-zb", "looped-bfs", *V_SHAPED)


def write_pipeline(draft: ImportDraft, source: Source, ranks: int, layers: int | None, local: int) -> None:
    """Write the `parallel.pipeline` section and, where there is one, the micro-batch; `local` samples are those of a rank and step."""
    paths = ("schedule", "csv", "virtual_stages", "micro_batch", "micro_batches", "split")
    kind, table, each, micro, count, points = (source.of(f"parallel.pipeline.{path}") for path in paths)
    parts = source.of("parallel.pipeline.modules")
    if ranks == 1:
        draft.take(source, "parallel.pipeline.size")
        for key in (kind, table, each, micro, count, points, parts):
            draft.harmless(key, "there is no pipeline")
        return
    draft.take(source, "parallel.pipeline.size")
    schedule = _schedule(draft, source, kind, table)
    counts = None if parts is None or not parts.value else _listed(parts, layers)
    if parts is not None and parts.value and (counts is None or len(counts) % ranks):
        draft.fill("parallel.pipeline.split", "layers of every stage, as module_fqns_per_model_part lists them", parts)
    elif counts is not None:
        draft.write("parallel.pipeline.split", counts, parts)
        if len(counts) > ranks:
            draft.write("parallel.pipeline.virtual_stages", len(counts) // ranks, parts)
        draft.harmless(each, "the lists of modules count")
        draft.harmless(points, "the lists of modules count")
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


def _listed(parts: Key, layers: int | None) -> list[int] | None:
    """Layers of every stage where their modules are listed; None where these are not the layers in order."""
    rows = [[str(name) for name in row] for row in parts.value if isinstance(row, list)]
    numbers = [[name.removeprefix("layers.") for name in row if name.startswith("layers.")] for row in rows]
    together = [number for row in numbers for number in row]
    return [len(row) for row in numbers] if layers is not None and together == [str(number) for number in range(layers)] else None


def pipeline_entries(draft: ExportDraft, document: dict[str, Any]) -> None:
    """Put the pipeline into `document`: its schedule, and the modules of every stage where they are not torchtitan's own split."""
    pipeline = draft.job.built.parallelism.pipeline
    draft.entry(document, "parallel.pipeline.size", pipeline.size)
    for key in ("schedule", "virtual_stages", "split", "account_for"):
        draft.says(f"parallel.pipeline.{key}", "no pipeline")
    draft.lacks("parallel.pipeline.overlap_sends", "torch.distributed.pipelining sends beside the computation")
    draft.lacks("parallel.pipeline.scatter_sends", "every tensor rank sends what it has")
    draft.says("parallel.pipeline.post_validation", "never")
    if pipeline.post_validation:
        draft.refuses("parallel.pipeline.post_validation", "no stage steps before the others", "leave it out")
    if pipeline.size == 1:
        return
    path = "parallel.pipeline.schedule"
    row = draft.table.rows[path]
    if row.theirs(pipeline.schedule) is None:
        draft.refuses(path, "torchtitan has no such schedule", f"use {', '.join(row.words)}, or --to megatron")
        return
    draft.entry(document, path, pipeline.schedule)
    stages, layers = list(draft.job.layers), sum(draft.job.layers)
    draft.put(document, "parallel.pipeline.micro_batch", draft.job.built.training.micro_batch)
    if stages == split(layers, len(stages)) and len(stages) == pipeline.size * (2 if pipeline.schedule in LOOPED else 1):
        said = "as torchtitan divides layers, embedding and head"
    else:
        ends = list(accumulate(stages, initial=0))
        modules = [[f"layers.{number}" for number in range(begin, end)] for begin, end in pairwise(ends)]
        modules[0].insert(0, "tok_embeddings")
        modules[-1] += ["norm", "output"]
        said = draft.put(document, "parallel.pipeline.modules", modules)
    for key in ("virtual_stages", "split"):
        draft.says(f"parallel.pipeline.{key}", said)


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
