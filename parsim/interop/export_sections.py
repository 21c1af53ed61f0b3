"""What every exporter says or refuses alike: a simulator's own keys, the batch, the launcher's grid, what the model's code decides."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.interop.export_draft import ExportDraft

NO_TOOL = "no tool has it by configuration"


def simulator_only(draft: ExportDraft) -> None:
    """Keys that only a simulator has: what kind of step is looked at, how long the training is, properties of the data."""
    training = draft.job.settings.training
    if not training.backward:
        draft.refuses("training.backward", "a training job always has a backward pass", "leave it out")
    if not training.step:
        draft.refuses("training.step", "a training job always steps its optimizer", "leave it out")
    draft.lacks("training.iteration", "it says which step is simulated, not how to train")
    draft.lacks("training.mean_sequence_length", "it describes the data")
    draft.lacks("training.data_loading", "it is a time, not a setting")
    draft.lacks("training.tokens", "the length of the training is the script's")
    draft.lacks("parallel.expert.imbalance", "it describes the data")
    for path in ("training.backward", "training.step"):
        if path not in draft.keys:
            draft.says(path, "always")


def partial_batch(draft: ExportDraft, otherwise: str = "") -> None:
    """A smaller last micro-batch; `otherwise` says who decides it, an empty text: the tool refuses it."""
    path = "training.partial_micro_batch"
    last = draft.job.built.training.last_micro_batch
    if last and not otherwise:
        batch = draft.job.built.batch_arithmetic
        text = f"the last micro-batch has {last} samples ({batch}); every micro-batch has the same size there"
        draft.refuses(path, text, "use a global_batch of whole micro-batches, or --to fsdp")
    elif last:
        draft.lacks(path, otherwise)
    else:
        draft.says(path, "not needed: all micro-batches are whole")


def strategy_of_nobody(draft: ExportDraft) -> bool:
    """Refuse strategies and schedules that exist in no tool; True where the strategy was one."""
    path, strategy = "parallel.data.strategy", draft.job.built.parallelism.data.strategy
    if ".py:" in strategy:
        draft.refuses(path, f"a strategy of your own runs nowhere but here; {NO_TOOL}", "export ddp, zero1, zero2, zero3 or fsdp")
    elif strategy in ("torch-data-parallel", "parameter-server"):
        who = "torch.nn.DataParallel is a call in the script" if strategy == "torch-data-parallel" else NO_TOOL
        draft.refuses(path, f"{draft.tool} runs one process per GPU; {who}", "use ddp")
    else:
        return False
    return True


def grid(draft: ExportDraft) -> tuple[int, int]:
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


def order(draft: ExportDraft, known: dict[tuple[str, ...], str], elsewhere: str) -> str:
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
