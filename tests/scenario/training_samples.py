"""Sample configurations of other training tools, and how tests import them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario

DATA = Path(__file__).parent.parent / "data" / "training"
A100 = {"on": "dgx-a100-80gb"}
WHOLE = {**A100, "model": "llama-2-7b", "sequence_length": 2048}
GIVEN: dict[str, dict[str, Any]] = {
    "megatron-gpt3-175b.sh": A100,
    "megatron-llama3-8b-fp8.sh": {"on": "hgx-h100"},
    "megatron-sc21.sh": A100,
    "megatron-mixtral.txt": {**A100, "nodes": 4},
    "megatron-recipe.yaml": {"on": "hgx-b200", "nodes": 2},
    "ds_z2.json": {**WHOLE, "nodes": 2},
    "ds_z3_offload.json": {**WHOLE, "micro_batch": 2, "gradient_accumulation": 4},
    "accelerate-fsdp.yaml": {**WHOLE, "micro_batch": 2, "gradient_accumulation": 4},
    "accelerate-hsdp.yaml": {**WHOLE, "micro_batch": 2, "gradient_accumulation": 4},
    "accelerate-deepspeed.yaml": {**WHOLE, "micro_batch": 2},
    "trainer-ddp.json": {"on": "4x a100-80gb"},
    "trainer-run-clm.sh": A100,
    "trainer-deepspeed.yaml": A100,
    "llama-factory-lora.yaml": {"on": "1x rtx-4090"},
    "llama-factory-qlora.yaml": {"on": "4x a100-80gb"},
    "llama-factory-full.yaml": A100,
    "llama-factory-freeze.yaml": {"on": "8x a100-80gb"},
    "axolotl-qlora.yaml": {"on": "1x rtx-4090"},
    "axolotl-fsdp.yaml": A100,
    "neox-6.9b.yaml": {"on": "dgx-a100-40gb"},
    "torchtitan-llama3.toml": {"on": "hgx-h100", "nodes": 2},
    "nemo-gpt.yaml": A100,
    "nemo-bridge.yaml": {"on": "hgx-h100"},
}
"""sample -> what the user says beside it"""


def taken(sample: str, **more: Any) -> ImportedScenario:
    """An import of a sample; without `more` it is made once, so look at it and change nothing."""
    return _taken(sample) if not more else _imported(sample, more)


@cache
def _taken(sample: str) -> ImportedScenario:
    return _imported(sample, {})


def _imported(sample: str, more: Mapping[str, Any]) -> ImportedScenario:
    path = DATA / sample
    return import_config(path.read_text(encoding="utf-8"), str(path), Given(path.stem, **{**GIVEN[sample], **more}))


def from_text(text: str, tool: str = "", file: str = "-", **given: Any) -> ImportedScenario:
    return import_config(text, file, Given(**given), tool=tool)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of a scenario; values that are mappings stay whole."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        whole = path in ("training.precision", "training.recompute", "training.finetune.freeze")
        found |= flat(value, f"{path}.") if isinstance(value, dict) and not whole else {path: value}
    return found


def values(imported: ImportedScenario) -> dict[str, Any]:
    return {key: value for key, value in flat(imported.tree).items() if key != "name"}


@cache
def values_of(text: str, given: tuple[tuple[str, Any], ...], file: str = "-") -> dict[str, Any]:
    """The values of a text that many tests change; look at them and change nothing."""
    return values(from_text(text, file=file, **dict(given)))


def of_kind(imported: ImportedScenario, kind: str, file: str = "") -> list[str]:
    return [fate.key.written for fate in imported.fates if fate.kind == kind and (not file or Path(fate.key.file).name == file)]


def leaves(tree: Any, prefix: str = "") -> list[str]:
    if isinstance(tree, dict) and tree:
        return [name for key, value in tree.items() for name in leaves(value, f"{prefix}.{key}" if prefix else str(key))]
    return [prefix]


def keys_of(sample: str) -> list[str]:
    """Every key of a sample, found without the importer: leaves of a file, options of a script."""
    text = (DATA / sample).read_text(encoding="utf-8")
    if sample.endswith(".json"):
        return leaves(json.loads(text))
    if sample.endswith(".yaml"):
        from ruamel.yaml import YAML

        names = leaves(YAML(typ="safe").load(text))
        return [name.removeprefix("ARGS.").removeprefix("ENV_VARS.") for name in names] if sample.startswith("megatron") else names
    if sample.endswith(".toml"):
        return leaves(tomllib.loads(text))
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#") and "[" not in line)
    options = re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", code)
    untaken = {"megatron-llama3-8b-fp8.sh": ("--data-path", "--tokenizer-model")}  # in a branch that is not taken
    slurm = [f"#SBATCH {name}" for name in re.findall(r"^#SBATCH (-\w|--[\w-]+)", text, re.MULTILINE)]
    exported = re.findall(r"(NCCL_\w+|PYTORCH_CUDA_ALLOC_CONF)=", code)
    return [name for name in options if name not in untaken.get(sample, ())] + slurm + [f"export {name}" for name in exported]
