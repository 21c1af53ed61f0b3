"""A scenario as arguments of Megatron-LM's ``pretrain_gpt.py``: a bash script to read, edit and start.

Names are those of NVIDIA/Megatron-LM's main branch (``megatron/training/arguments.py``, ``megatron/core/transformer/*_config.py``).
"""

from __future__ import annotations

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.every_tool import simulator_only, strategy_of_nobody
from parsim.scenario.exporters.exported import Exported
from parsim.scenario.exporters.job import Job
from parsim.scenario.exporters.launcher import grid, torchrun
from parsim.scenario.exporters.megatron_model import model_arguments
from parsim.scenario.exporters.megatron_parallel import data_arguments, mesh_arguments, pipeline_arguments
from parsim.scenario.exporters.megatron_training import training_arguments
from parsim.scenario.exporters.remarks import comments

SCRIPT = "pretrain_gpt.py"


def to_megatron(job: Job) -> Exported:
    """The script. Raises `PlanError` with everything that Megatron-LM cannot run as it was simulated."""
    draft = Draft(job, "Megatron-LM")
    simulator_only(draft)
    nodes, processes = grid(draft)
    torch_fsdp = job.built.parallelism.data.strategy == "fsdp"
    groups = {
        "DISTRIBUTED_ARGS": torchrun(nodes, processes),
        "MODEL_ARGS": model_arguments(draft),
        "PARALLEL_ARGS": [*mesh_arguments(draft), *pipeline_arguments(draft)],
        "TRAINING_ARGS": training_arguments(draft),
    }
    if not strategy_of_nobody(draft):
        groups["PARALLEL_ARGS"] += data_arguments(draft)
    environment = [] if torch_fsdp else ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    if job.built.training.precision.matmul == "tf32":
        environment.append("export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    if not job.built.runtime.megatron:
        text = f"simulated with the software profile {job.built.runtime.profile}; what Megatron-LM's kernels would take: megatron-core"
        draft.remarks("software.profile", text)
    return draft.exported("megatron", _script(draft, groups, environment), "bash FILE, with data and tokenizer arguments behind it")


def _script(draft: Draft, groups: dict[str, list[str]], environment: list[str]) -> str:
    job = draft.job
    size = f"{len(job.gpus_per_node)} x {job.gpus_per_node[0]} GPUs"
    lines = [
        "#!/bin/bash",
        *comments(f"{job.scenario.name}: {job.built.model.name} on {size} for Megatron-LM, written by parsim export"),
        *comments("data, tokenizer, learning rate and checkpoint arguments are added behind the script's name"),
        *(line for note in draft.notes for line in comments(f"note: {note.path}: {note.message}")),
        *environment,
        "",
    ]
    for name, arguments in groups.items():
        lines += [f"{name}=(", *(f"    {argument}" for argument in arguments), ")", ""]
    rest = " ".join(f'"${{{name}[@]}}"' for name in groups if name != "DISTRIBUTED_ARGS")
    return "\n".join([*lines, f'torchrun "${{DISTRIBUTED_ARGS[@]}}" {SCRIPT} {rest} "$@"', ""])
