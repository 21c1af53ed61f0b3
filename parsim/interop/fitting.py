"""Whether the GPUs that a configuration counts can run it, and how many they are at most where it counts none.

Scripts are shared with the count of the last try (``NNODES=1`` before tensor 8 x pipeline 16): such a count says nothing of the job. Where
it is too small for the model, the smallest that is not is taken, and said; where it fits otherwise not, it is asked for.
"""

from __future__ import annotations

from math import lcm, prod

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import USUAL_MACHINE, Count, machine_size, write_nodes
from parsim.interop.keys import Key

MODEL_AXES = ("tensor", "pipeline", "context")
"""axes of one copy of the model"""
BATCH_ALONE = ("DeepSpeed",)
"""tools whose files say the batch, and the size of a copy of the model elsewhere"""


def fit_machines(draft: ImportDraft) -> None:
    """Correct or leave open GPUs that do not hold whole copies of the model or parts of the batch; bound them where none are counted."""
    sizes = [size if isinstance(size := draft.value(f"parallel.{axis}.size"), int) else 1 for axis in MODEL_AXES]
    copy = prod(sizes)
    gpus, batch, micro = (draft.value(path) for path in ("cluster.gpus", "training.global_batch", "training.micro_batch"))
    samples = batch if isinstance(batch, int) and isinstance(micro, int) and batch % micro == 0 else None
    if copy < 1:
        return
    product = " x ".join(f"{axis} {size}" for axis, size in zip(MODEL_AXES, sizes, strict=True) if size > 1)
    least, said = _with_experts(draft, copy, product)
    if _fill_machines(draft, least, said, [] if samples is None else [samples // micro, copy]):
        return
    if least > (machine_size(draft) or USUAL_MACHINE) and not {"cluster.gpus", "cluster.nodes"} & set(draft.lines):
        draft.fill("cluster.nodes", f"machines (--nodes): {said} = {least} GPUs hold the model once")
        draft.causes["cluster.nodes"] = "cluster.topology"
        return
    if isinstance(gpus, int):
        if gpus < copy:
            _smallest(draft, copy, f"{product} = {copy} GPUs hold the model once")
        elif gpus % copy:
            _open(draft, f"{product} = {copy} GPUs hold the model once, and {gpus} are counted")
        elif samples is not None and samples // micro % (gpus // copy):
            copies = f"{gpus} GPUs{f' / ({product})' if product else ''} = {gpus // copy} copies of the model"
            problem = f"a batch of {batch} cannot be split into micro-batches of {micro} on {copies}"
            _open(draft, problem, samples // micro * copy)
    elif (
        samples is not None and "cluster.gpus" not in draft.lines and draft.value("cluster.nodes") is None and draft.tool not in BATCH_ALONE
    ):
        most = samples // micro * copy
        if most < (machine_size(draft) or USUAL_MACHINE):
            machines = draft.lines.pop("cluster.nodes", None)  # left to the reader: one holds them
            note = f"no more fit: {batch} samples / {micro} of a micro-batch x {copy} of a copy of the model"
            draft.write("cluster.gpus", most, *(machines.keys if machines is not None else ()), note=note)


def _with_experts(draft: ImportDraft, copy: int, product: str) -> tuple[int, str]:
    """GPUs that hold the model once with experts that are spread over data-parallel ranks, and the sizes that say it.

    Megatron-Core cuts a stage's ranks in two ways at once: tensor x context, and expert x expert tensor (parallel_state.py).
    """
    tensor, stages, width, ranks = (
        draft.value(f"parallel.{axis}") for axis in ("tensor.size", "pipeline.size", "expert.tensor", "expert.size")
    )
    if not isinstance(ranks, int) or ranks < 2 or str(draft.value("software.profile")).partition("-")[0] != "megatron":
        return copy, product
    held = {"pipeline": stages or 1, "expert": ranks, "expert tensor": width or tensor or 1}
    least = lcm(copy, prod(held.values()))
    if least == copy:
        return copy, product
    shown = " x ".join(f"{axis} {size}" for axis, size in held.items() if size > 1)
    return least, shown if least == prod(held.values()) else f"a multiple of {product} and of {shown}"


def _fill_machines(draft: ImportDraft, least: int, said: str, shares: list[int]) -> bool:
    """Whether machines that the user names, and nothing counts the GPUs of, are taken as far as whole copies of the model fill them.

    `shares` are the micro-batches of a step and the GPUs of a copy of the model, where they are known: a copy has as many as another.
    """
    nodes, each, named = draft.given.nodes or 1, machine_size(draft), draft.given.nodes is not None
    total, why = nodes * each, f"{said} = {least} GPUs hold the model once"
    counted = {"cluster.gpus"} if named else {"cluster.gpus", "cluster.nodes"}
    if not each or counted & set(draft.lines) or total % least == 0:
        return named
    if total < least:
        if named:
            draft.remark(f"{why}, and {nodes} x {each} are fewer", "cluster.nodes", f"use --nodes {-(-least // each)}")
        return named
    step = lcm(least, nodes)  # every machine gives as many
    counts = range(total // step * step, 0, -step)
    fitting = next((gpus for gpus in counts if not shares or shares[0] % (gpus // shares[1]) == 0), None)
    if fitting is not None:
        draft.write("cluster.gpus", fitting, note=f"of {total}: {why}")
        draft.remark(f"{why}: of {total} {fitting} are used", "cluster.gpus", "write how many are used")
    return True


def _smallest(draft: ImportDraft, copy: int, why: str) -> None:
    counted, nodes = draft.lines.pop("cluster.gpus"), draft.lines.pop("cluster.nodes", None)
    key = next(iter(counted.keys), None) or Key("cluster.gpus", "cluster.gpus", counted.value, draft.file)
    total = Count(copy, key, f"{why}, and {counted.value} are counted")
    write_nodes(draft, total)
    draft.write("cluster.gpus", copy, *counted.keys, *(nodes.keys if nodes is not None else ()), note=total.note)
    draft.remark(f"{total.note}: the smallest job that holds it is taken", "cluster.gpus", "say how many machines there are: --nodes N")


def _open(draft: ImportDraft, problem: str, most: int | None = None) -> None:
    """Ask for the machines; where the batch has no work for the GPUs of one (`most` of them), for how many of those are used."""
    counted = draft.lines.pop("cluster.gpus").keys
    nodes = draft.lines.get("cluster.nodes")
    keys = dict.fromkeys([*counted, *(nodes.keys if nodes is not None else ())])
    if most is not None and most < (machine_size(draft) or USUAL_MACHINE):
        draft.lines.pop("cluster.nodes", None)
        path, words = "cluster.gpus", f"GPUs, at most {most}"
    else:
        path, words = "cluster.nodes", "machines (--nodes)"
    draft.fill(path, f"{words}: {problem}", *keys)
    draft.causes[path] = "cluster.topology"
