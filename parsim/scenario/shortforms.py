"""Short ways to write things, and the long form that everything else works with.

``tp: 8`` stands for ``tensor: {size: 8}``; ``cluster: NAME`` for ``cluster: {topology: NAME}``; ``parallel: fsdp`` for
``parallel: {data: {strategy: fsdp}}``. Every layer of a scenario is expanded before layers are merged.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.yaml_tree import Origin

_BOX = re.compile(r"\s*([0-9]+)\s*[x×](?:\s+|(?=[^\W_]))(\S.*?)\s*")

SHORT = {
    "parallel.tp": "parallel.tensor.size",
    "parallel.pp": "parallel.pipeline.size",
    "parallel.dp": "parallel.data.size",
    "parallel.cp": "parallel.context.size",
    "parallel.ep": "parallel.expert.size",
    "parallel.etp": "parallel.expert.tensor",
    "parallel.zero": "parallel.data.strategy",
    "training.mbs": "training.micro_batch",
    "training.gbs": "training.global_batch",
    "training.gas": "training.gradient_accumulation",
    "training.seq": "training.sequence_length",
    "economics.checkpoint_time": "economics.checkpoint.stall",
    "economics.checkpoint_bandwidth": "economics.checkpoint.bandwidth",
    "economics.checkpoint_interval": "economics.checkpoint.interval",
    "economics.restart_time": "economics.recovery.restart_time",
}
"""short key -> long key"""
ASSUMPTIONS = {
    "software_profile": "software.profile",
    "vocabulary_padding": "model.vocab_divisible_by",
    "precision": "training.precision",
    "fp8_keep": "training.precision.keep",
    "fp8_recipe": "training.precision.recipe",
    "tensor_overlap": "parallel.tensor.overlap",
    "expert_tensor": "parallel.expert.tensor",
    "parameter_gather": "parallel.data.overlap_gather",
    "gradient_reduction": "parallel.data.accumulate",
    "expert_load": "parallel.expert.imbalance",
    "expert_dispatcher": "parallel.expert.dispatcher",
    "expert_sms": "parallel.expert.sms",
    "attention": "training.attention",
    "dropout": "training.dropout",
    "optimizer_kernels": "training.optimizer.implementation",
    "loss_kernel": "training.loss.kernel",
    "kernel_fusion": "software.fusion",
    "gradient_accumulation_fusion": "software.gradient_accumulation_fusion",
    "norm_kernels": "software.norm",
    "train_metrics": "software.train_metrics",
    "fsdp_version": "parallel.data.fsdp_version",
    "host_per_kernel_forward": "software.host.per_kernel_forward",
    "host_per_kernel_backward": "software.host.per_kernel_backward",
    "training_effects": "software.effects",
    "host_per_list_entry": "software.host.per_list_entry",
    "context_memory": "software.memory.context",
    "communicator_memory": "software.memory.communicators",
    "workspace_memory": "software.memory.workspace",
    "host_memory_bandwidth": "cluster.set.links.host-memory.per_direction",
    "drive_read_bandwidth": "cluster.set.links.nvme-read.per_direction",
    "drive_write_bandwidth": "cluster.set.links.nvme-write.per_direction",
    "finetune_base": "training.finetune.base",
    "adapter_dtype": "training.finetune.adapter_dtype",
    "gpu_hour": "economics.gpu_hour",
    "power_computing": "economics.gpu_power.computing",
    "power_communicating": "economics.gpu_power.communicating",
    "power_waiting": "economics.gpu_power.waiting",
    "node_power": "economics.node_power",
    "restart_time": "economics.recovery.restart_time",
    "checkpoint_stall": "economics.checkpoint.stall",
}
"""name of an assumption, as reports print it -> the key that states it"""
SCALAR = {
    "cluster": "topology",
    "training.optimizer": "name",
    "training.loss": "kind",
    "cluster.fabric": "kind",
    "cluster.storage": "bandwidth",
    "cluster.collectives": "profile",
    "variability": "profile",
    "software": "profile",
    "parallel": "search",
}
"""section that a plain text may stand for -> the key the text is the value of"""
NUMBER = {"variability.jitter": ("kernel", "collective")}
"""section that a number may stand for -> the keys the number is the value of"""
LATE_SCALAR = {"model": "base", "training.precision": "preset"}
"""the same, but only where a mapping is laid over the text"""
SEARCHES = ("auto", "none")
"""plain texts for `parallel` that say how a strategy is found; any other is a strategy: ``parallel: fsdp`` is ``data: {strategy: fsdp}``"""
SEARCHED = {"search": "auto"}
"""`parallel` where nothing is known of the strategy but that it is searched for: takes the place of a strategy below it"""
SYNONYMS: dict[str, dict[Any, Any]] = {
    "training.recompute": {True: "full", False: "none", "gradient_checkpointing": "full"},
    "training.finetune": {False: None, "none": None},
}
"""other spellings of a value"""
ZERO = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}


FAILURES = "economics.failures"
"""list that the name of a published one may stand for"""


def published_failures(name: str) -> list[dict[str, Any]]:
    """The causes of a shipped list of failures: each by the GPU-hours in which it struck once. Raises `ScenarioError`."""
    document = files.read(files.find("failures", name, files.SEALED))
    gpu_hours = document.tree["gpus"] * document.tree["days"] * 24.0
    causes = document.tree["causes"]
    return [{**{k: v for k, v in one.items() if k != "count"}, "per_gpu": f"{gpu_hours / one['count']:.15g} h"} for one in causes]


def long_key(key: str) -> str:
    """The long form of a key: of its short form (``parallel.tp``) and of a section that a plain text stands for."""
    key = SHORT.get(key, key)
    return f"{key}.{SCALAR[key]}" if key in SCALAR else key


def box(text: str) -> dict[str, Any] | None:
    """``4x v100-32gb`` as ``{gpu: v100-32gb, count: 4}``; None for anything else, names of shipped topologies included."""
    match = _BOX.fullmatch(text)
    if match is not None and (text in files.names("topologies") or text in files.aliases("topologies")):
        return None
    return {"gpu": match[2], "count": int(match[1])} if match else None


class SettingsSource:
    """One source of settings: a tree in long form, where each key was written, and what was wrong with it."""

    def __init__(self, tree: Mapping[str, Any], origins: Mapping[str, Origin], findings: list[Finding]) -> None:
        self.tree: dict[str, Any] = copy.deepcopy(dict(tree))
        self.origins = dict(origins)
        self.findings = findings
        self._scalars()
        self._failures()
        for short, long in SHORT.items():
            self._short(short, long)
        for name, long in ASSUMPTIONS.items():
            self._short(f"assumptions.{name}", long)
        self._synonyms()

    def _section(self, path: str) -> tuple[dict[str, Any] | None, str]:
        """The mapping that holds the last key of `path`, and that key."""
        *sections, key = path.split(".")
        holder: Any = self.tree
        for section in sections:
            holder = holder.get(section) if isinstance(holder, dict) else None
        return (holder if isinstance(holder, dict) else None), key

    def _scalars(self) -> None:
        for path, inner in SCALAR.items():
            holder, key = self._section(path)
            if holder is None or not isinstance(text := holder.get(key), str):
                continue
            named = path == "parallel" and text not in SEARCHES
            holder[key] = {"data": {"strategy": text}} if named else {inner: text}
            if path in self.origins:
                self.origins["parallel.data.strategy" if named else f"{path}.{inner}"] = self.origins[path]

        for path, keys in NUMBER.items():
            holder, key = self._section(path)
            if holder is not None and isinstance(value := holder.get(key), int | float) and not isinstance(value, bool):
                holder[key] = dict.fromkeys(keys, value)
                if path in self.origins:
                    self.origins.update({f"{path}.{inner}": self.origins[path] for inner in keys})

    def _failures(self) -> None:
        """The causes behind the name of a published list of failures."""
        holder, key = self._section(FAILURES)
        if holder is None or not isinstance(name := holder.get(key), str):
            return
        try:
            holder[key] = published_failures(name)
        except ScenarioError as error:
            first = error.findings[0]
            self._problem(first.message, FAILURES, name, first.suggestion, self.origins.get(FAILURES))
            holder[key] = []

    def _short(self, short: str, long: str) -> None:
        holder, key = self._section(short)
        if holder is None or key not in holder:
            return
        value = holder.pop(key)
        origin = self.origins.pop(short, None)
        if key == "zero":
            value = self._zero(value, origin)
            if value is None:
                return
        holder, last = self.tree, long.rpartition(".")[2]
        reached = ""
        for section in long.split(".")[:-1]:
            reached = f"{reached}.{section}".lstrip(".")
            inner = holder.setdefault(section, {})
            if inner is None:
                inner = holder[section] = {}
            if isinstance(inner, str) and (plain := (SCALAR | LATE_SCALAR).get(reached)) is not None:
                inner = holder[section] = {plain: inner}
            if not isinstance(inner, dict):
                return  # the schema says what is wrong with it
            if origin is not None:
                self.origins.setdefault(reached, origin)
            holder = inner
        if last in holder:
            other = self.origins.get(long)
            place = f" (line {other[1]})" if other is not None and other[1] is not None else ""
            message = f"short and long form at once: {key} = {value} and {long} = {holder[last]}{place}"
            self._problem(message, short, value, "keep one of them", origin)
            return
        holder[last] = value
        if origin is not None:
            self.origins[long] = origin

    def _zero(self, value: Any, origin: Origin | None) -> str | None:
        if isinstance(value, str) and value in ZERO.values():
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value in ZERO:
            return ZERO[value]
        self._problem(f"{value!r} is not a ZeRO stage: 0, 1, 2 or 3", "parallel.zero", value, "or write data: {strategy: ...}", origin)
        return None

    def _synonyms(self) -> None:
        for path, words in SYNONYMS.items():
            holder, key = self._section(path)
            if holder is None or not isinstance(holder.get(key), (str, bool)):
                continue
            for word, meant in words.items():
                if type(word) is type(holder[key]) and word == holder[key]:
                    holder[key] = meant
                    break

    def _problem(self, message: str, path: str, value: Any, suggestion: str, origin: Origin | None) -> None:
        file, line, column = origin or ("", None, None)
        self.findings.append(Finding(message, path, value, suggestion, file, line, column))
