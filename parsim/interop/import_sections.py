"""What every importer writes: the cluster that the user or the launcher says, the model, sequence length and batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.errors import InputError, ScenarioError
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key
from parsim.model.architecture_records import Experts
from parsim.model.model import OUTER
from parsim.scenario import files
from parsim.scenario.machines import machines
from parsim.scenario.references import lookup, model_tree
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold
from parsim.scenario.support import EXAMPLES
from parsim.units import is_digits

_PLACEHOLDER = re.compile(r"<[^<>]+>|[A-Za-z]+(?:_[A-Za-z]+)+")
"""what a shared script has in place of a number: ``<nodes>``, ``your_num_nodes``"""


@dataclass(frozen=True, slots=True)
class Count:
    """A number and the key that says it."""

    value: int
    key: Key
    note: str = ""
    """how it follows from the key"""


def counted(draft: ImportDraft, key: Key | None, *, replaced: bool = False) -> Count | None:
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
    if isinstance(key.value, str) and key.value not in ("auto", "gpu") and _PLACEHOLDER.fullmatch(key.value):
        option = "--nodes" if key.name in ("nodes", "nnodes", "num_nodes") else "--on"
        draft.unmodelled(key, f"it stands for a number: {option} says it")
        return None
    if str(key.value) in ("auto", "gpu", "-1"):
        draft.harmless(key, "as many as the machine has")
        return None
    value = draft.whole(key, 1)
    return None if value is None else Count(value, key)


def write_cluster(
    draft: ImportDraft,
    *,
    nodes: Count | None = None,
    per_node: Count | None = None,
    total: Count | None = None,
    open_nodes: Key | None = None,
) -> None:
    """The cluster section. `per_node` GPUs on each of `nodes`, or `total` GPUs on as many machines as they need; ``--nodes`` wins.

    `open_nodes` is a key that would say how many nodes there are, and has no value.
    """
    given = draft.given
    machine = box(given.on) if given.on is not None else None
    if machine is not None and (problem := oversold(machine, None)) is not None:
        raise ScenarioError(replace(problem, path="--on"))
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
    elif total is not None:
        count = write_nodes(draft, total)
    elif open_nodes is not None:
        draft.fill("cluster.nodes", f"machines (--nodes){'; ' + open_nodes.hint if open_nodes.hint else ''}", open_nodes)
        draft.causes["cluster.nodes"] = "cluster.topology"
    _gpus(draft, count, share, per_node, total)
    if machine is None or count == 1:
        return
    draft.fill("cluster.fabric.link", f"{EXAMPLES['cluster.fabric.link']}; a named topology brings its own")
    wanted = share and share != machine["count"]
    if wanted:
        draft.remark(f"{share} GPUs per machine are used, and --on says machines of {machine['count']}", "cluster.topology")


USUAL_MACHINE = 8
"""GPUs that fit into one machine, whichever it is; of more, the machine says how many it takes"""


def write_nodes(draft: ImportDraft, total: Count) -> int:
    """As many machines as `total` GPUs need; which machine it is (``--on``) says how many, so both lines are one question."""
    because = f"; {total.note}" if total.note else ""
    if each := machine_size(draft):
        count = -(-total.value // each)
        if count > 1:
            draft.write("cluster.nodes", count, total.key, note=f"{total.value} GPUs in machines of {each}{because}")
        return count
    if draft.given.on is None and total.value > USUAL_MACHINE:
        draft.fill("cluster.nodes", f"{total.value} / GPUs of the machine (--on says both){because}", total.key)
        draft.causes["cluster.nodes"] = "cluster.topology"
    return 1


def _gpus(draft: ImportDraft, count: int, share: int | None, per_node: Count | None, total: Count | None) -> None:
    """How many GPUs are used, where the configuration says it."""
    given = draft.given.nodes is not None
    if share is not None and draft.value("cluster.nodes") is None and "cluster.nodes" in draft.lines:  # their number is asked
        keys = [item.key for item in (per_node, total) if item is not None]
        if share == machine_size(draft):
            for key in keys:
                draft.harmless(key, "as many as the machine has")
            return
        draft.fill("cluster.gpus", f"{share} x machines (--nodes says both)", *keys)
        draft.causes["cluster.gpus"] = "cluster.topology"
    elif share is not None:
        sources = [item.key for item in (per_node, total) if item is not None]
        note = f"{count} x {share}" if count > 1 else ""
        draft.write("cluster.gpus", count * share, *sources, note=note)
    elif total is not None and not given:
        draft.write("cluster.gpus", total.value, total.key, note=total.note)


def machine_size(draft: ImportDraft) -> int:
    """GPUs of the machine that the user names; 0 where it is a whole graph or unknown, or none is named."""
    on = draft.given.on
    if on is None:
        return 0
    if (machine := box(on)) is not None:
        return int(machine["count"])
    with suppress(InputError):  # loading the scenario says what is wrong with it
        named = machines(on)
        return named.gpus if named.nodes == 1 else 0
    return 0


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """What translations need to know of a transformer."""

    hidden: int
    layers: int
    vocabulary: int
    layer_parameters: int
    """of its largest layer"""
    towers: bool = False
    """it has a tower of images"""
    linear_experts: bool = False
    """it has experts, which were linear layers in transformers 4"""


ALWAYS_FUSED = ("llama4-text", "gpt-oss")
"""families whose experts were three-dimensional parameters before transformers 5, too (modeling_llama4.py, modeling_gpt_oss.py)"""


def write_model(draft: ImportDraft, key: Key | None) -> TransformerSizes | None:
    """The model that the user names, else the one of `key`; its sizes where they are known. How many images a sample has is asked."""
    found = _named_model(draft, key)
    if found is not None and found.towers:
        ask_for_images(draft)
    return found


def ask_for_images(draft: ImportDraft) -> None:
    """How many images a sample has, which no configuration says."""
    text = "the text alone is model: {base: NAME, vision: null, projector: null}"
    draft.fill("training.images", f"images per sample, for example 1, of {IMAGE_SIZE} where any is taken; {text}")


IMAGE_SIZE = "training.image_size pixels a side"


def _named_model(draft: ImportDraft, key: Key | None) -> TransformerSizes | None:
    given = draft.given.model
    if given is not None:
        draft.write("model", given, note="--model")
        draft.harmless(key, f"replaced by --model {given}")
        return sizes(given, None)
    if key is None:
        draft.fill("model", f"{EXAMPLES['model']} (--model)")
        return None
    name = str(key.value)
    try:
        path = files.find("models", name, draft.file if draft.file != "-" else None)
    except InputError as error:
        if (known := _same_name(name)) is not None:
            draft.write(
                "model", known, key, note=f"{name.rstrip('/').rpartition('/')[2]} is the name of {known} on the Hub; --model replaces it"
            )
            return sizes(known, None)
        hint = error.findings[0].suggestion
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        draft.fill("model", f"not in the catalogue{hint}: {EXAMPLES['model']} (--model)", key)
        return None
    draft.write("model", name if files.is_shipped(path) else str(path.resolve()), key)
    return sizes(str(path), None)


def _same_name(name: str) -> str | None:
    """The Hub's model of the catalogue that a folder, a copy of the Hub or another owner's repository is called after; None without one.

    ``/data/Qwen2.5-7B`` and ``unsloth/Qwen2.5-7B`` are called after Qwen/Qwen2.5-7B, and so is ``models--Qwen--Qwen2.5-7B/snapshots/0a1b``.
    """
    cached = re.search(r"models--[\w.-]+?--([\w.-]+)(?:/snapshots/\w+)?/?$", name)
    last = cached[1] if cached else name.rstrip("/").rpartition("/")[2]
    if "/" not in name or not last:
        return None
    found = {
        ours: alias
        for alias, ours in files.aliases("models").items()
        if alias.count("/") == 1 and alias.casefold().endswith(f"/{last.casefold()}")
    }
    return next(iter(found.values())) if len(found) == 1 else None


def sizes(name: str | Mapping[str, Any], relative_to: str | None) -> TransformerSizes | None:
    """Sizes of a model; None where it is unknown or no transformer (loading the scenario says so)."""
    from parsim.model.catalogue import build_model, read_architecture

    try:
        tree, called, beside = model_tree(name, relative_to)
        config = read_architecture(tree, base_lookup=lookup("models", beside)).resolved()
        model = build_model(tree, name=called, base_lookup=lookup("models", beside))
    except InputError:
        return None
    layers = [block for block in model.blocks if block.kind not in OUTER]
    largest = max(sum(parameter.count for parameter in block.parameters()) for block in layers)
    linear = config.experts is not None and config.family not in ALWAYS_FUSED
    return TransformerSizes(config.hidden, config.layers, config.vocabulary, largest, config.vision is not None, linear)


def has_experts(draft: ImportDraft) -> bool:
    """Whether the model that has been written is a mixture, by its own lines or by its name."""
    return draft.value("model.experts.count") is not None or _named_experts(draft) is not None


def has_shared_expert(draft: ImportDraft) -> bool:
    """Whether every token visits an expert beside those that it chooses, by the model's own lines or by its name."""
    named = _named_experts(draft)
    return bool(draft.value("model.experts.shared") or (named is not None and named.shared))


def _named_experts(draft: ImportDraft) -> Experts | None:
    """The experts of a model that is written by its name; None where it has none, or no name."""
    from parsim.model.catalogue import read_architecture

    name = draft.value("model") or draft.value("model.base")
    if not isinstance(name, str):
        return None
    try:
        tree, _, beside = model_tree(name, None)
        return read_architecture(tree, base_lookup=lookup("models", beside)).resolved().experts
    except InputError:
        return None


def write_experts(draft: ImportDraft, ranks: Key | None, width: Key | None, dispatcher: Key | None) -> None:
    """Over how many ranks Megatron-Core spreads experts, how many share the width of each, and how tokens reach them."""
    for path, key in (("parallel.expert.size", ranks), ("parallel.expert.tensor", width)):
        if (count := draft.whole(key, 1)) is not None:
            draft.write(path, count, key)
    draft.only_if(dispatcher, ("alltoall",), "parsim sends tokens to their experts by all-to-all")


def write_sequence_length(draft: ImportDraft, key: Key | None, note: str = "") -> int | None:
    """Tokens per sample: what the user says, else what `key` says."""
    if draft.given.sequence_length is not None:
        draft.write("training.sequence_length", draft.given.sequence_length, note="--sequence")
        draft.harmless(key, "replaced by --sequence")
        return draft.given.sequence_length
    length = draft.whole(key, 1)
    if key is None or length is None:
        draft.fill("training.sequence_length", f"{EXAMPLES['training.sequence_length']} (--sequence)", key)
        return None
    draft.write("training.sequence_length", length, key, note=note)
    return length


def write_micro_batch(draft: ImportDraft, key: Key | None, default: int | None = None, note: str = "") -> int | None:
    """Samples per forward pass: what the user says, else what `key` says, else the tool's `default`."""
    if draft.given.micro_batch is not None:
        draft.write("training.micro_batch", draft.given.micro_batch, note="--micro-batch")
        draft.harmless(key, "replaced by --micro-batch")
        return draft.given.micro_batch
    size = draft.whole(key, 1) if key is not None and key.value != "auto" else None
    if size is not None:
        draft.write("training.micro_batch", size, key)
        return size
    if default is not None and key is None:
        draft.write("training.micro_batch", default, note=note)
        return default
    draft.fill("training.micro_batch", f"{EXAMPLES['training.micro_batch']} (--micro-batch)", key)
    return None


def write_accumulation(draft: ImportDraft, key: Key | None, default: int | None = None, note: str = "") -> None:
    """Micro-batches per step: what the user says, else what `key` says, else the tool's `default`."""
    if draft.given.gradient_accumulation is not None:
        draft.write("training.gradient_accumulation", draft.given.gradient_accumulation, note="--gradient-accumulation")
        draft.harmless(key, "replaced by --gradient-accumulation")
        return
    count = draft.whole(key, 1) if key is not None and key.value != "auto" else None
    if count is not None:
        draft.write("training.gradient_accumulation", count, key)
    elif key is None and default is not None:
        draft.write("training.gradient_accumulation", default, note=note)
    else:
        draft.fill("training.gradient_accumulation", f"{EXAMPLES['training.gradient_accumulation']} (--gradient-accumulation)", key)


def neighbour(path: str, beside: str) -> Path | None:
    """The file called `path` beside the file `beside`, in one of the folders above it, or in the working directory.

    Beside a text from a stranger (`files.SEALED`) there is none.
    """
    if beside == files.SEALED:
        return None
    start = Path(beside).resolve().parent if beside != "-" else Path.cwd()
    for folder in (start, *start.parents, Path.cwd()):
        try:
            candidate = folder / Path(path).expanduser()
            if candidate.is_file():
                return candidate.relative_to(Path.cwd()) if candidate.is_relative_to(Path.cwd()) else candidate
        except (OSError, RuntimeError, ValueError):
            return None
    return None


def missing_file(draft: ImportDraft, key: Key, paths: Mapping[str, str]) -> None:
    """A file that `key` names is not there: what it says is left to the reader (path -> what to write), as one question."""
    draft.fill_together(paths, f"the file {key.value}", key)
    says = f"{' and '.join(paths)}, which it says, are" if len(paths) > 1 else "what it says is"
    text = f"{key.value} is not there: {says} left to fill in"
    draft.remarks.append(key.finding(text, "put the file beside this one"))


OF_A_TRAINING = {
    "model": "--model", "training.sequence_length": "--sequence", "training.micro_batch": "--micro-batch",
    "training.gradient_accumulation": "--gradient-accumulation", "training.precision": "--precision",
}  # fmt: skip
"""what the training script's arguments say, by the options that say it"""


def ask_for_arguments(draft: ImportDraft) -> None:
    """Of a file that says how a training is spread and not what is trained: all of the latter is one question, answered by one file."""
    left = [path for path in OF_A_TRAINING if path in draft.lines and draft.value(path) is None and path not in draft.causes]
    if len(left) < 2:
        return
    draft.causes |= dict.fromkeys(left, "the training arguments")
    text = f"the training script's arguments say what is trained, and these keys depend on them: {', '.join(left)}"
    draft.remark(text, suggestion=f"give the file that holds them (--hf FILE), or {' '.join(OF_A_TRAINING[path] for path in left)}")
