"""What parsim makes of one configuration file of the corpus: accepted, accepted as another tool's, or refused with a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from typing import Any

from parsim.errors import Finding, InputError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.model.catalogue import build_model
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

HF_CONFIG = "hf-config"
TOOL_WORDS = {
    "megatron": ("megatron-lm",),
    "megatron-deepspeed": ("megatron-deepspeed",),
    "gpt-neox": ("neox",),
    "deepspeed": ("deepspeed",),
    "accelerate": ("accelerate",),
    "llama-factory": ("llama-factory",),
    "axolotl": ("axolotl",),
    "torchtitan": ("torchtitan",),
    "nemo": ("nemo", "megatron-bridge", "flagscale", "primus", "yaml-cfg"),
    "swift": ("swift",),
    "verl": ("verl",),
    "trl": ("hugging face", "trl"),
    "hf-trainer": ("hugging face", "trl"),
}
"""kind of file -> one of these stands in the name of the tool that it is read as"""
ANSWERS = {
    "cluster.topology": "hgx-h100",
    "cluster.fabric.link": "ib-hdr",
    "cluster.gpus": 1,
    "model": "llama-2-7b",
    "model.vocabulary": 50257,
    "training.sequence_length": 2048,
    "training.micro_batch": 1,
    "training.gradient_accumulation": 1,
    "training.precision": "bf16",
    "training.images": 1,
    "training.objective": "dpo",
    "training.finetune.base": "bf16",
    "parallel.data.strategy": "zero1",
    "parallel.data.outer.size": 2,
    "training.global_batch": 256,
    "training.recompute": "none",
    "training.dropout": 0.0,
    "training.optimizer.name": "adam",
    "parallel.tensor.size": 1,
    "parallel.pipeline.size": 1,
    "parallel.context.size": 1,
    "parallel.expert.size": 1,
}
"""what the harness writes where the importer asks; other lines that are left to the reader go, which leaves them to their defaults"""
_USES_DEEPSPEED = re.compile(r"^[^#\n]*--deepspeed(?![\w-])", re.MULTILINE)
"""an option that is no comment's: a script without it is Megatron-LM's own, although it speaks of DeepSpeed"""
GPUS_PER_NODE = 8
_REASON = 110


@dataclass(frozen=True)
class Verdict:
    """One row of ``expected.csv``."""

    file: str
    kind: str
    verdict: str
    """accepted | other tool (accepted, as a job of another one) | unbuildable (imported, and does not check) | refused | traceback"""
    tool: str = ""
    questions: int | str = ""
    """lines left to the reader"""
    unread: int | str = ""
    """keys that are not modelled or unknown, and said to be"""
    reason: str = ""
    """the first finding: its key and what it says"""
    world: int | str = ""
    tensor: int | str = ""
    pipeline: int | str = ""
    data: int | str = ""
    context: int | str = ""
    expert: int | str = ""
    precision: str = ""
    finetuning: str = ""
    parameters: int | str = ""

    def row(self) -> list[str]:
        """As the cells of a table."""
        return [str(getattr(self, name)) for name in COLUMNS]


COLUMNS = tuple(item.name for item in fields(Verdict))


def judge(path: Path, kind: str, name: str) -> tuple[Verdict, tuple[Finding, ...]]:
    """The verdict on a file of this kind, called `name`, and the findings with which it was refused."""
    try:
        text = path.read_text(encoding="utf-8")
        return (_model(text, name), ()) if kind == HF_CONFIG else (_job(text, kind, path.name, name), ())
    except InputError as error:
        return Verdict(name, kind, "refused", reason=reason(error.findings)), tuple(error.findings)
    except Exception as error:  # noqa: BLE001 - that is the defect which is looked for
        return Verdict(name, kind, "traceback", reason=f"{type(error).__name__}: {error}"[:_REASON]), ()


def reason(findings: Iterable[Finding]) -> str:
    """The first finding on one line, without the name of the file."""
    first = next(iter(findings))
    text = ": ".join(part for part in (first.path, first.message) if part)
    return " ".join(text.split())[:_REASON]


def _model(text: str, name: str) -> Verdict:
    model = build_model(json.loads(text), name="corpus", base_lookup=lambda _: {})
    return Verdict(name, HF_CONFIG, "accepted", questions=0, parameters=parameter_count(model))


def _job(text: str, kind: str, file: str, name: str) -> Verdict:
    imported = import_config(text, file, Given("corpus"))
    read_as = imported.tool
    fitting = any(word in read_as.lower() for word in TOOL_WORDS[kind])
    if kind == "deepspeed":
        fitting = read_as == "DeepSpeed"
    if kind == "megatron-deepspeed" and not _USES_DEEPSPEED.search(text):
        fitting = fitting or read_as == "Megatron-LM"
    unread = sum(fate.kind in ("not modelled", "unknown") for fate in imported.fates)
    questions = imported.questions
    tree = answered(imported)
    questions += "nodes" not in imported.tree.get("cluster", {}) and "nodes" in tree.get("cluster", {})
    said = Verdict(name, kind, "accepted" if fitting else "other tool", read_as, questions, unread)
    try:
        facts = _built(tree)
    except InputError as error:
        facts = {"reason": reason(error.findings)}
        if fitting:
            facts["verdict"] = "unbuildable"
    return Verdict(**{**{name: getattr(said, name) for name in COLUMNS}, **facts})


def answered(imported: ImportedScenario) -> dict[str, Any]:
    """The imported scenario with `ANSWERS` to its questions, and with as many machines as its sizes need where it does not say."""
    tree: dict[str, Any] = json.loads(json.dumps(imported.tree))
    for path in imported.to_fill:
        *above, last = path.split(".")
        holder = tree
        for part in above:
            holder = holder[part]
        if path in ANSWERS:
            holder[last] = ANSWERS[path]
        else:
            del holder[last]
    parallel, cluster = tree.get("parallel", {}), tree.setdefault("cluster", {})
    ranks = 1
    for axis in ("tensor", "pipeline", "context", "expert"):
        ranks *= _size(parallel, axis)
    if "cluster.nodes" in imported.to_fill and "gpus" in cluster:
        cluster["nodes"] = ceil(cluster["gpus"] / GPUS_PER_NODE)  # what --on would have said
    if not {"nodes", "gpus"} & set(cluster) and ranks > GPUS_PER_NODE:
        cluster["nodes"] = ceil(ranks / GPUS_PER_NODE)
    return tree


def _size(parallel: Mapping[str, Any], axis: str) -> int:
    section = parallel.get(axis)
    size = section.get("size", 1) if isinstance(section, Mapping) else 1
    return size if isinstance(size, int) else 1


def _built(tree: Mapping[str, Any]) -> dict[str, Any]:
    made = build(load(tree))
    split = made.parallelism
    precision = tree.get("training", {}).get("precision", "")
    return {
        "world": made.used_gpus,
        "tensor": split.tensor.size,
        "pipeline": split.pipeline.size,
        "data": split.data.size,
        "context": split.context.size,
        "expert": split.expert.size,
        "precision": precision if isinstance(precision, str) else json.dumps(precision),
        "finetuning": made.training.finetune.method if made.training.finetune else "",
        "parameters": parameter_count(made.model),
    }
