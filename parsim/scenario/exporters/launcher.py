"""How many processes on how many nodes: torchrun's and accelerate's options."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.scenario.exporters.draft import Draft


def grid(draft: Draft) -> tuple[int, int]:
    """Nodes, and processes on each; unequal nodes are refused, ranks in an order of the user's own are remarked."""
    per_node = draft.job.gpus_per_node
    cluster = draft.job.settings.cluster
    if len(set(per_node)) > 1:
        counts = ", ".join(map(str, per_node))
        text = f"the nodes run {counts} processes; the launcher starts equally many on each"
        draft.refused.append(Finding(text, "cluster.gpus", cluster.gpus, f"use a multiple of {len(per_node)} GPUs"))
    if cluster.placement != "packed":
        text = "the launcher numbers ranks node by node (packed): give the nodes another order, or set CUDA_VISIBLE_DEVICES"
        draft.remarks("cluster.placement", text)
    draft.says("parallel.data.size", f"follows from {sum(per_node)} processes")
    return len(per_node), per_node[0]


def order(draft: Draft, known: dict[tuple[str, ...], str], elsewhere: str) -> str:
    """What says the rank order `known`; an order of axes of size 1 does not matter. Anything else is refused."""
    parallelism = draft.job.built.parallelism
    wide = tuple(axis for axis in parallelism.order if getattr(parallelism, axis).size > 1)
    for axes, text in known.items():
        if wide == tuple(axis for axis in axes if axis in wide):
            draft.says("parallel.order", text or "the tool's own order")
            return text
    orders = " or ".join(", ".join(axes) for axes in known)
    draft.refuses("parallel.order", f"ranks are numbered {orders} there; {elsewhere}", "use the default order")
    return ""


def torchrun(nodes: int, processes: int) -> list[str]:
    """torchrun's options; where a node finds the others is taken from the environment."""
    options = [f"--nnodes {nodes}", f"--nproc-per-node {processes}"]
    if nodes > 1:
        options += ['--node-rank "${NODE_RANK:-0}"', '--master-addr "${MASTER_ADDR:-localhost}"', '--master-port "${MASTER_PORT:-29500}"']
    return options
