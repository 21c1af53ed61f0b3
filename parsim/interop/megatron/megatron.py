"""Megatron-LM's options, from a shell script or as plain arguments, as a scenario; and a scenario as a script of ``pretrain_gpt.py``.

What the options mean: NVIDIA/Megatron-LM, megatron/training/arguments.py (`validate_args`) and
megatron/core/transformer/transformer_config.py. Written are the names of its main branch.
"""

from __future__ import annotations

from parsim.interop.command import Invocation, read_environment, remark_open
from parsim.interop.export_draft import ExportDraft, Exported, ExportJob, comments, grid, simulator_only, strategy_of_nobody, torchrun
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_sequence_length
from parsim.interop.keys import Source, key_table
from parsim.interop.megatron.encoder_decoder import is_encoder_decoder, write_target
from parsim.interop.megatron.megatron_deepspeed import MARKS as FORK_MARKS
from parsim.interop.megatron.model import model_arguments, read_model
from parsim.interop.megatron.multimodal import builds, is_multimodal, settle_recompute, write_multimodal
from parsim.interop.megatron.other_models import refused_model, write_texts
from parsim.interop.megatron.parallel import OF_2021, data_arguments, mesh_arguments, pipeline_arguments, read_parallel
from parsim.interop.megatron.training import read_training, training_arguments
from parsim.interop.processes import write_launched

SCRIPT = "pretrain_gpt.py"
NO_FUSIONS = "--no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-masked-softmax-fusion --no-persist-layer-norm"
"""what software.fusion: eager is there"""


def read_megatron(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of a Megatron-LM command into `draft`."""
    source, launch = (Source(keys, key_table("megatron")) for keys in (call.options, call.launch))
    if (fork := next((key for key in source.keys if key.name in FORK_MARKS and key.name not in source.table.names()), None)) is not None:
        draft.errors.append(fork.finding("this is an option of Megatron-DeepSpeed, which is another tool", "--from megatron-deepspeed"))
    refused_model(draft, call, source)
    tensor = draft.take(source, "parallel.tensor.size") or 1
    layers = read_model(draft, source, tensor, call)
    long = source.of("training.sequence_length")
    if is_multimodal(call) and builds(source) and draft.given.model is None:
        long = write_multimodal(draft, source, tensor)
    stacks = is_encoder_decoder(call, source) and draft.given.model is None
    if stacks:
        long = source.get("encoder_seq_length", "seq_length")
    write_launched(draft, launch, call.launcher, call.variables, call.used)
    length = write_sequence_length(draft, long)
    if stacks:
        write_target(draft, source)
    read_training(draft, source, length)
    write_texts(draft, call, source)
    if "model.vision" in draft.lines:
        settle_recompute(draft, layers)
    read_parallel(draft, source, layers)
    _read_software(draft, source)
    read_environment(draft, call.environment)
    remark_open(draft, call, source)
    draft.close(source)
    draft.close(launch)


GRAPH_SCOPES = {
    "full_iteration": (),
    "attn": ("attention",),
    "mamba": ("mamba",),
    "mlp": ("mlp",),
    "moe": ("router", "experts"),
    "moe_router": ("router",),
    "moe_preprocess": (),
}
"""word of --cuda-graph-scope -> parts of a layer (megatron/core/transformer/enums.py, CudaGraphScope)"""


def _read_software(draft: ImportDraft, source: Source) -> None:
    old = [name for name in OF_2021 if name in source]
    if old:
        written = next(key.written for key in source.keys if key.name == old[0])
        draft.write("software.profile", "megatron-2021", note=f"{written} is an option of Megatron-LM of 2021")
    else:
        draft.write("software.profile", "megatron-core")
    fusions = [key for name in NO_FUSIONS.split() if (key := source.get(name.strip("-").replace("-", "_"))) is not None and draft.flag(key)]
    if len(fusions) == len(NO_FUSIONS.split()):
        draft.write("software.fusion", "eager", *fusions)
    draft.take(source, "software.gradient_accumulation_fusion")
    graphs, scope = source.of("software.host.graphs"), source.get("cuda_graph_scope", "cuda_graph_modules")
    if graphs is None or graphs.value in ("none", False, "False"):
        for idle in (graphs, scope):
            draft.harmless(idle, "there are no graphs")
        return
    words = ["full_iteration"] if scope is None else scope.text.replace(",", " ").split()
    if unknown := [word for word in words if word not in GRAPH_SCOPES]:
        draft.unmodelled(scope, f"parsim knows {', '.join(GRAPH_SCOPES)}, not {unknown[0]}")
    parts = list(dict.fromkeys(part for word in words for part in GRAPH_SCOPES.get(word, ())))
    keys = [key for key in (graphs, scope) if key is not None and (key is graphs or not unknown)]
    draft.write("software.host.graphs", "full_iteration" in words or parts or False, *keys)


def to_megatron(job: ExportJob) -> Exported:
    """The script. Raises `PlanError` with everything that Megatron-LM cannot run as it was simulated."""
    draft = ExportDraft(job, "Megatron-LM", key_table("megatron"))
    simulator_only(draft)
    nodes, processes = grid(draft)
    torch_fsdp = job.built.parallelism.data.strategy == "fsdp"
    groups = {
        "DISTRIBUTED_ARGS": torchrun(nodes, processes),
        "MODEL_ARGS": model_arguments(draft),
        "PARALLEL_ARGS": [*mesh_arguments(draft), *pipeline_arguments(draft)],
        "TRAINING_ARGS": [*training_arguments(draft), *_software(draft)],
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


def _software(draft: ExportDraft) -> list[str]:
    """Keys of the software section that are options there; kernels are the profile's otherwise."""
    software, runtime = draft.job.settings.software, draft.job.built.runtime
    arguments = []
    if software.gradient_accumulation_fusion is False or (
        draft.job.built.parallelism.data.strategy == "fsdp" and not runtime.gradient_accumulation_fusion
    ):
        arguments.append(draft.option("software.gradient_accumulation_fusion"))
    if software.host.graphs:
        arguments.append(draft.option("software.host.graphs"))
    if isinstance(parts := software.host.graphs, tuple):
        if "experts" in parts and "router" not in parts:
            draft.refuses("software.host.graphs", "a graph of the experts holds the router, too (--cuda-graph-scope moe)", "add router")
        hidden = ("moe_router",) if "experts" in parts else ()
        words = [word for word, held in GRAPH_SCOPES.items() if held and set(held) <= set(parts) and word not in hidden]
        arguments.append(f"--cuda-graph-scope {' '.join(words)}")
    if software.fusion == "eager":
        arguments += draft.says("software.fusion", NO_FUSIONS).split()
    elif software.fusion == "compiled":
        draft.remarks("software.fusion", "norms and activations are fused by Megatron-LM's own kernels, not by torch.compile")
    return arguments


def _script(draft: ExportDraft, groups: dict[str, list[str]], environment: list[str]) -> str:
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
