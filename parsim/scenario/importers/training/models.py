"""Models that a configuration names, found offline; sequence length and what else follows from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parsim.errors import Finding, InputError
from parsim.scenario import files
from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key
from parsim.scenario.placeholder import EXAMPLES
from parsim.scenario.references import lookup, model_tree


@dataclass(frozen=True, slots=True)
class Sizes:
    """What translations need to know of a transformer."""

    hidden: int
    layers: int
    vocabulary: int
    layer_parameters: int
    """of its largest layer"""


def write_model(draft: Draft, key: Key | None) -> Sizes | None:
    """The model that the user names, else the one of `key`; its sizes where they are known."""
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
        hint = error.findings[0].suggestion
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        draft.fill("model", f"not in the catalogue{hint}: {EXAMPLES['model']} (--model)", key)
        return None
    draft.write("model", name if files.is_shipped(path) else str(path.resolve()), key)
    return sizes(str(path), None)


def sizes(name: str, relative_to: str | None) -> Sizes | None:
    """Sizes of a model; None where it is unknown or no transformer (loading the scenario says so)."""
    from parsim.model.catalogue import build_model, read_architecture

    try:
        tree, called, beside = model_tree(name, relative_to)
        config = read_architecture(tree, base_lookup=lookup("models", beside)).resolved()
        model = build_model(tree, name=called, base_lookup=lookup("models", beside))
    except InputError:
        return None
    layers = [block for block in model.blocks if block.kind not in ("embedding", "head")]
    largest = max(sum(parameter.count for parameter in block.parameters()) for block in layers)
    return Sizes(config.hidden, config.layers, config.vocabulary, largest)


def write_sequence_length(draft: Draft, key: Key | None, note: str = "") -> int | None:
    """Tokens per sample: what the user says, else what `key` says."""
    if draft.given.sequence_length is not None:
        draft.write("training.sequence_length", draft.given.sequence_length, note="--sequence-length")
        draft.harmless(key, "replaced by --sequence-length")
        return draft.given.sequence_length
    length = draft.whole(key, 1)
    if key is None or length is None:
        draft.fill("training.sequence_length", f"{EXAMPLES['training.sequence_length']} (--sequence-length)", key)
        return None
    draft.write("training.sequence_length", length, key, note=note)
    return length


def write_micro_batch(draft: Draft, key: Key | None, default: int | None = None, note: str = "") -> int | None:
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


def write_accumulation(draft: Draft, key: Key | None, default: int | None = None, note: str = "") -> None:
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
    """The file called `path` beside the file `beside`, in one of the folders above it, or in the working directory."""
    start = Path(beside).resolve().parent if beside != "-" else Path.cwd()
    for folder in (start, *start.parents, Path.cwd()):
        try:
            found = folder / Path(path).expanduser()
            if found.is_file():
                return found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found
        except (OSError, RuntimeError, ValueError):
            return None
    return None


def missing_file(key: Key) -> Finding:
    """The finding of a file that a key names and that is not there."""
    return key.finding(f"{key.value} is not there: what it says is left to fill in", "put the file beside this one")
