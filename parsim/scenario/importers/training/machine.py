"""The cluster of an imported scenario: what the user says of it, and how many GPUs the configuration uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim.errors import ScenarioError
from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key, Source
from parsim.scenario.placeholder import EXAMPLES
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold
from parsim.units import is_digits


@dataclass(frozen=True, slots=True)
class Count:
    """A number and the key that says it."""

    value: int
    key: Key


def counted(draft: Draft, key: Key | None, *, replaced: bool = False) -> Count | None:
    """The key's value as a number from 1; None where it says none. ``1:4`` (torchrun's elastic form) counts as the larger one.

    Where the user has `replaced` it, it need not be a number.
    """
    if key is None:
        return None
    if replaced and not is_digits(str(key.value)):
        draft.harmless(key, f"replaced by --nodes {draft.given.nodes}")
        return None
    if isinstance(key.value, str) and ":" in key.value:
        key_value = key.value.rpartition(":")[2]
        return Count(int(key_value), key) if is_digits(key_value) else None
    if key.value is True or key.value == "":
        draft.unmodelled(key, f"it has no value here: the machine is taken as --on and --nodes say{'; ' + key.hint if key.hint else ''}")
        return None
    if str(key.value) in ("auto", "gpu"):
        draft.harmless(key, "as many as the machine has")
        return None
    value = draft.whole(key, 1)
    return None if value is None else Count(value, key)


def write_launched(draft: Draft, launch: Source) -> None:
    """The cluster section from the options of torchrun, ``deepspeed`` or srun."""
    nodes = counted(draft, launch.get("nnodes", "num_nodes", "nodes"), replaced=draft.given.nodes is not None)
    per_node = counted(draft, launch.get("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node"))
    taken = [count.key for count in (nodes, per_node) if count is not None]
    why = "the launcher says how many processes there are" if per_node else "machines are given with --on and --nodes"
    for key in launch.all("nodes", "gpus_per_node", "ntasks_per_node", "gres", "ntasks", "gpus"):
        if key not in taken:
            draft.harmless(key, why)
    write_cluster(draft, nodes=nodes, per_node=per_node)


def write_cluster(draft: Draft, *, nodes: Count | None = None, per_node: Count | None = None, total: Count | None = None) -> None:
    """The cluster section. `per_node` GPUs on each of `nodes`, or `total` GPUs together; the user's ``--nodes`` wins."""
    given = draft.given
    machine = box(given.on) if given.on is not None else None
    if machine is not None and (found := oversold(machine, None)) is not None:
        raise ScenarioError(replace(found, path="--on"))
    if given.on is not None:
        draft.write("cluster.topology", given.on, note="--on")
    else:
        draft.fill("cluster.topology", f"{EXAMPLES['cluster.topology']} (--on)")
    share = per_node.value if per_node else total.value // nodes.value if total and nodes and total.value % nodes.value == 0 else None
    count = given.nodes or (nodes.value if nodes else 1)
    if given.nodes is not None:
        why = f"replaced by --nodes {given.nodes}"
        draft.write("cluster.nodes", given.nodes, note="--nodes")
        if nodes is not None:
            draft.harmless(nodes.key, why)
        if total is not None and share is None:
            draft.harmless(total.key, why)
    elif nodes is not None:
        draft.write("cluster.nodes", nodes.value, nodes.key)
    _gpus(draft, count, share, per_node, total)
    if machine is None or count == 1:
        return
    draft.fill("cluster.fabric.link", f"{EXAMPLES['cluster.fabric.link']}; a named topology brings its own")
    wanted = share and share != machine["count"]
    if wanted:
        draft.remark(f"{share} GPUs per machine are used, and --on says machines of {machine['count']}", "cluster.topology")


def _gpus(draft: Draft, count: int, share: int | None, per_node: Count | None, total: Count | None) -> None:
    """How many GPUs are used, where the configuration says it."""
    given = draft.given.nodes is not None
    if share is not None:
        sources = [item.key for item in (per_node, total) if item is not None]
        note = f"{count} x {share}" if count > 1 else ""
        draft.write("cluster.gpus", count * share, *sources, note=note)
    elif total is not None and not given:
        draft.write("cluster.gpus", total.value, total.key)
