"""How many processes a command starts: what its launchers say, held against what Slurm or the script says of the machines."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from parsim.interop.command import VISIBLE
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import Count, counted, write_cluster
from parsim.interop.keys import Key, Source

PER_NODE = ("GPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NUM_GPUS_PERNODE", "GPU_PER_NODE", "NGPUS_PER_NODE", "N_GPUS_PER_NODE", "NPROC_PER_NODE")
"""variables in which scripts hold how many GPUs of a machine they use"""
NODES = ("NNODES", "NUM_NODES", "NUM_NODE", "N_NODES", "NODE_COUNT", "SLURM_NNODES")
TOGETHER = ("NUM_GPUS", "WORLD_SIZE")
"""variables in which they hold how many GPUs there are on all machines"""
_GPUS = re.compile(r"(?:^|,)gpu(?::[\w.-]+?)?:([0-9]+)(?:\([^)]*\))?(?=,|$)")
_MAPPED = re.compile(r"ppr:([0-9]+):node")
_SLURM = ("nodes", "gpus_per_node", "ntasks_per_node", "gres", "ntasks", "gpus", "gpus_per_task", "np", "npernode", "map_by", "hostfile",
          "nrs", "tasks_per_rs", "gpu_per_rs", "rs_per_host")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Launched:
    """What launchers and Slurm say."""

    nodes: Count | None
    """of torchrun or DeepSpeed's launcher"""
    processes: Count | None
    """that these start on a node"""
    allocated: Count | None
    """nodes of Slurm"""
    tasks: Count | None
    """that srun starts on a node"""
    gpus: Count | None
    """of a node, by Slurm"""
    total: Count | None
    """tasks of srun or mpirun together"""


def write_launched(
    draft: ImportDraft, launch: Source, launcher: str = "", variables: Mapping[str, Key] | None = None, used: Collection[str] = ()
) -> None:
    """The cluster section from the options of torchrun, ``deepspeed``, mpirun or srun.

    `variables` are the script's whole numbers; they count where the options say nothing. What contradicts each other is an error,
    unless it is a variable that the script never asks for: it asks for those `used`.
    """
    replaced = draft.given.nodes is not None
    said = _Launched(
        counted(draft, launch.get("nnodes", "num_nodes"), replaced=replaced),
        counted(draft, launch.get("nproc_per_node", "num_gpus")),
        counted(draft, launch.get("nodes"), replaced=replaced),
        _tasks(draft, launch),
        gpus_of_node(draft, launch),
        counted(draft, launch.get("ntasks", "np")) or _of_sets(draft, launch, "nrs"),
    )
    known = variables or {}
    starts = said.processes is not None or launcher in ("torchrun", "deepspeed", "accelerate", "ds")
    nodes = said.nodes or said.allocated or (None if starts else _spread(said)) or _variable(known, NODES)
    per_node = said.processes or (None if starts else _direct(said, nodes)) or said.gpus or _variable(known, PER_NODE)
    per_node = per_node or _visible(launch, launcher)
    _check(draft, said, {name: key for name, key in known.items() if name in used}, nodes, per_node, starts=starts)
    taken = [count.key for count in (nodes, per_node) if count is not None]
    why = "the launcher says how many processes there are" if per_node else "machines are given with --on and --nodes"
    for key in launch.all(*_SLURM, VISIBLE):
        if key not in taken:
            draft.harmless(key, why)
    asked = launch.get("nnodes", "num_nodes", "nodes", "hostfile", "nrs")
    is_open = nodes is None and asked is not None and (asked.value in (True, "") or asked.name == "hostfile" or draft.settled(asked))
    together = _variable(known, TOGETHER) if launcher in ("deepspeed", "ds") else None
    if nodes is None and per_node is None and together is not None:
        text = f"the script counts {together.value} GPUs, and DeepSpeed's launcher takes those of its host file"
        write_cluster(draft, total=replace(together, note=text))
        return
    write_cluster(draft, nodes=nodes, per_node=per_node, open_nodes=asked if is_open else None)


def _visible(launch: Source, launcher: str) -> Count | None:
    """The devices of a node that ``CUDA_VISIBLE_DEVICES`` leaves; Python alone starts one process, however many it sees."""
    key = launch.get(VISIBLE)
    count = 0 if key is None else len(set(str(key.value).split(",")))
    if key is None or (launcher.startswith("python") and count > 1):
        return None
    return Count(count, key, f"{count} of the machine's GPUs")


def _tasks(draft: ImportDraft, launch: Source) -> Count | None:
    """Tasks per node of srun or mpirun."""
    if (count := counted(draft, launch.get("npernode", "ntasks_per_node"))) is not None:
        return count
    if (count := _of_sets(draft, launch, "rs_per_host")) is not None:
        return count
    mapped = launch.get("map_by")
    match = _MAPPED.search(mapped.text) if mapped is not None else None
    return Count(int(match[1]), mapped) if match is not None and mapped is not None and int(match[1]) else None


def _of_sets(draft: ImportDraft, launch: Source, name: str) -> Count | None:
    """Tasks of jsrun: resource sets, of which `name` says how many there are, times the tasks of one."""
    sets, tasks = counted(draft, launch.get(name)), counted(draft, launch.get("tasks_per_rs"))
    if sets is None or tasks is None:
        return sets
    return Count(sets.value * tasks.value, sets.key, f"{sets.value} resource sets x {tasks.value} tasks")


def gpus_of_node(draft: ImportDraft, launch: Source) -> Count | None:
    """GPUs of a node by ``--gpus-per-node=a100:8``, ``--gres=gpu:8``, or those of jsrun's resource sets."""
    sets, each = launch.get("rs_per_host"), counted(draft, launch.get("gpu_per_rs"))
    if each is not None and (count := counted(draft, sets)) is not None:
        return Count(count.value * each.value, each.key)
    for key in launch.all("gpus_per_node", "gres")[::-1]:
        text = key.text if key.name == "gres" else f"gpu:{key.text}"
        match = _GPUS.search(text)
        if match is not None and int(match[1]):
            return Count(int(match[1]), key)
        if key.name == "gpus_per_node":
            return counted(draft, key)
    return None


def _direct(said: _Launched, nodes: Count | None) -> Count | None:
    """Processes per node where srun or mpirun starts the training program itself."""
    if said.tasks is not None:
        return said.tasks
    if said.total is not None and nodes is not None and said.total.value % nodes.value == 0:
        return Count(said.total.value // nodes.value, said.total.key)
    return said.total if nodes is None else None


def _spread(said: _Launched) -> Count | None:
    """Nodes, from all tasks of mpirun and those of a node."""
    if said.total is None or said.tasks is None or said.total.value % said.tasks.value:
        return None
    return Count(said.total.value // said.tasks.value, said.total.key)


def _variable(known: Mapping[str, Key], names: tuple[str, ...]) -> Count | None:
    key = next((known[name] for name in names if name in known), None)
    return Count(int(str(key.value)), key) if key is not None and key.line is not None and 0 < int(str(key.value)) < 10**6 else None


def _check(
    draft: ImportDraft, said: _Launched, known: Mapping[str, Key], nodes: Count | None, per_node: Count | None, *, starts: bool
) -> None:
    """Numbers that cannot all be true."""
    by_user = set(draft.given.variables.values())
    machine = said.gpus or _variable(known, PER_NODE)
    if per_node is not None and machine is not None and str(per_node.value) not in by_user:
        _compare(draft, per_node, machine, "processes on a node", "GPUs of a node")
    if nodes is not None and said.allocated is not None and draft.given.nodes is None and str(nodes.value) not in by_user:
        _compare(draft, nodes, said.allocated, "nodes", "nodes")
    if not starts and said.tasks is not None and said.total is not None and nodes is not None and draft.given.nodes is None:
        product = Count(nodes.value * said.tasks.value, said.tasks.key)
        _compare(draft, said.total, product, "processes", f"= {nodes.value} nodes x {said.tasks.value} processes")


def _compare(draft: ImportDraft, one: Count, other: Count, what: str, others: str) -> None:
    if one.value != other.value:
        text = f"{one.value} {what} ({one.key.quoted(draft.file)}), and {other.value} {others} ({other.key.quoted(draft.file)})"
        draft.errors.append(one.key.finding(f"{text} contradict each other", "correct one of the two lines"))
