"""One setting of a configuration changed where it stands in the text: the scenario changes with it, or is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parsim.errors import InputError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Fate, Given, ImportedScenario
from parsim.interop.keys import Key

WATCHED = (
    "model.layers",
    "model.hidden",
    "training.micro_batch",
    "training.precision",
    "training.sequence_length",
    "parallel.tensor.size",
    "parallel.pipeline.size",
    "parallel.context.size",
    "parallel.expert.size",
    "training.global_batch",
    "training.gradient_accumulation",
    "training.finetune.method",
    "parallel.data.strategy",
    "cluster.nodes",
    "cluster.gpus",
)
"""keys of a scenario of which every setting that makes them is changed"""
FOLLOWS = (
    "training.precision", "training.finetune.method", "training.gradient_accumulation", "parallel.data.strategy", "cluster.nodes",
    "cluster.gpus",
)  # fmt: skip
"""keys that are no number of the file's, or follow from several of them: another scenario is enough"""
SIZES = {
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "seq_length", "seq_len", "sequence_len", "cutoff_len",
    "max_length", "micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "global_batch_size",
    "gradient_accumulation_steps", "tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size",
    "pipe_parallel_size", "context_parallel_size", "expert_model_parallel_size", "num_experts", "tensor_parallel_degree",
    "pipeline_parallel_degree", "context_parallel_degree", "local_batch_size", "lora_r", "lora_rank",
}  # fmt: skip
"""what tools call sizes that no step is without; said to have no effect, they would be lost"""
_OTHER_WORD = {
    "bf16": "fp16", "fp16": "bf16", "bfloat16": "float16", "float16": "bfloat16", "lora": "full", "qlora": "full", "freeze": "full",
    "FULL_SHARD": "SHARD_GRAD_OP", "HYBRID_SHARD": "FULL_SHARD", "FSDP": "MULTI_GPU", "MULTI_GPU": "MULTI_CPU", "NO": "MULTI_CPU",
}  # fmt: skip
_VALUE = r"""(?P<before>["']?\s*[=:\s]\s*["']?)(?P<value>[^\s"',})\\]+)"""
_MISSING = "(left to fill in)"


@dataclass(frozen=True)
class Change:
    """One setting with another value."""

    setting: str
    path: str
    was: Any
    becomes: str
    text: str
    """the whole configuration after it"""


def changes(text: str, imported: ImportedScenario, file: str) -> Iterator[Change]:
    """Every watched setting that stands in `text` with its value on its own line, once with another value."""
    for fate in imported.fates:
        path = next((path for path in WATCHED if path in fate.to), None)
        if path is not None and fate.key.line is not None and fate.key.file == file:
            changed = _changed(text, fate)
            if changed is not None:
                yield Change(fate.key.written, path, fate.key.value, *changed)


def _changed(text: str, fate: Fate) -> tuple[str, str] | None:
    lines = text.splitlines(keepends=True)
    assert fate.key.line is not None
    if fate.key.line > len(lines):
        return None
    line, written = lines[fate.key.line - 1], fate.key.written
    value = fate.key.value if fate.key.original is None else fate.key.original
    if value is True and written.startswith("--"):
        other = _OTHER_WORD.get(written.removeprefix("--"))
        found = re.search(rf"{re.escape(written)}(?![\w-])", line)
        span, becomes = (found.span() if found else None), f"--{other}" if other else ""  # else it is left out
    else:
        becomes = _other(value) or ""
        name = re.escape(written if written.startswith("--") else written.rpartition(".")[2])
        found = re.search(rf"(?<![\w-]){name}{_VALUE}", line) if becomes else None
        span = found.span("value") if found else None
    if span is None:
        return None
    lines[fate.key.line - 1] = line[: span[0]] + becomes + line[span[1] :]
    return becomes, "".join(lines)


def _other(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(not value).lower()
    text = str(value)
    return str(2 * int(text)) if re.fullmatch(r"[1-9]\d{0,8}", text) else _OTHER_WORD.get(text)


_SAID_ELSEWHERE = ("given again", "it is one micro-batch", "Megatron's options say it, too")
"""how the reason of a size begins that another key says (of what contradicts it, a file is refused)"""


_OF_OTHERS = ("exp_manager.", "actor_rollout_ref.rollout.")
"""what begins the names of NeMo's checkpoints, and of what generates answers for verl's updates"""
ADDED_UP = ("max_prompt_length", "max_response_length", "max_completion_length", "max_length", "sequence_len")
"""settings of updates of a policy whose sum the scenario says, or asks for"""


def quiet(imported: ImportedScenario) -> list[str]:
    """Sizes of more than one that are said to have no effect, and were not merely given again further down."""
    return [
        f"{fate.key.written} {fate.key.value}: {fate.why}"
        for fate in imported.fates
        if fate.kind == "no effect" and _is_size(fate.key) and not fate.why.startswith(_SAID_ELSEWHERE)
    ]


def _is_size(key: Key) -> bool:
    """A number of more than one under a name of `SIZES`."""
    named = key.name.rpartition(".")[2] in SIZES and not key.name.startswith(_OF_OTHERS)
    return named and re.fullmatch(r"\d+", str(key.value)) is not None and int(key.value) > 1


def outcome(change: Change, file: str, before: Mapping[str, Any]) -> str:
    """``changed``, ``refused``, or ``ignored``: the scenario says the same of the key as without the change."""
    try:
        after = import_config(change.text, file, Given("corpus"))
    except InputError:
        return "refused"
    was, now = looked_up(before, change.path), looked_up(after.tree, change.path)
    if (change.path in FOLLOWS and before != after.tree) or (_adds_up(change, before) and (was != now or _says_why(after, change.path))):
        return "changed"
    if change.path not in FOLLOWS and now != _MISSING and change.becomes.isdigit() and int(change.becomes) != now:
        return "refused" if was != now and _says_why(after, change.path) else f"ignored: {change.path} is {now}, not {change.becomes}"
    return "changed" if was != now or _says_why(after, change.path) else f"ignored: {change.path} is still {now}"


def _adds_up(change: Change, before: Mapping[str, Any]) -> bool:
    """It is a length of a prompt or of an answer, of which a sample has both."""
    policy = str(looked_up(before, "training.objective")).startswith("grpo")
    return policy and change.setting.lstrip("-").rpartition(".")[2] in ADDED_UP


def _says_why(imported: ImportedScenario, path: str) -> bool:
    return path in imported.to_fill


def looked_up(tree: Mapping[str, Any], path: str) -> Any:
    """The value under a dotted key."""
    holder: Any = tree
    for part in path.split("."):
        if not isinstance(holder, Mapping) or part not in holder:
            return _MISSING
        holder = holder[part]
    return holder
