"""verl's supervised fine-tuning by an engine, FSDP or Megatron-Core, as a scenario.

volcengine/verl, verl/trainer/sft_trainer.py and sft_trainer_ray.py (since 0.6), verl/trainer/config/sft_trainer_engine.yaml:
micro-batches are filled with tokens unless told otherwise, activations are checkpointed, and an engine that keeps parameters or
states on the host takes them back for every step.
"""

from __future__ import annotations

from parsim.interop.command import Invocation, read_environment
from parsim.interop.hydra import overrides
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_micro_batch, write_model
from parsim.interop.keys import Source, key_table
from parsim.interop.processes import write_launched
from parsim.interop.verl_megatron import read_engine
from parsim.interop.verl_policy import ray_gpus, write_machines
from parsim.interop.verl_workers import (
    sample_ranks,
    write_adapters,
    write_batch,
    write_clipping,
    write_dynamic,
    write_epochs,
    write_length,
    write_products,
    write_sequence_ranks,
    write_sharding,
    write_types,
)

BY_RAY = "verl.trainer.sft_trainer_ray"
MODULES = ("verl.trainer.sft_trainer", BY_RAY)
ENGINES = ("fsdp", "megatron")
OWN, OPTIMIZER = "engine.", "optim.override_optimizer_config."
TOKENS = 8192
"""of a GPU's micro-batch, if nothing is said"""
AWAY = ("param_offload", "optimizer_offload", "grad_offload")
"""what an engine keeps on the host between steps"""


def read_engine_tuning(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of ``verl.trainer.sft_trainer``, started by torchrun, or of the one that Ray starts."""
    source = Source((*overrides(draft, call), *call.options), key_table("verl-engine"))
    megatron = _engine(draft, source)
    _host(draft, source)
    if draft.errors:
        return
    away = [f"{OWN}{name}" for name in AWAY]
    settings = [key for key in source.keys if key.name.startswith((OWN, OPTIMIZER)) and key.name not in away] if megatron else []
    source = Source((key for key in source.keys if key not in settings), source.table)
    launch = Source(call.launch, source.table)
    write_model(draft, source.of("model"))
    world = _machines(draft, call, source, launch)
    if megatron:
        read_engine(draft, settings, (OWN, OPTIMIZER))
        draft.harmless(source.of("training.recompute"), "Megatron's engine goes by recompute_granularity")
        write_clipping(draft, source)
        _without_adapters(draft, source)
    else:
        write_sequence_ranks(draft, source)
    length = write_length(draft, source)
    write_batch(draft, source)
    write_epochs(draft, source)
    _micro_batch(draft, source, length, sample_ranks(draft, world))
    if not megatron:
        write_types(draft, source)
        write_products(draft, source, OWN.removesuffix("."), "optim.optimizer")
        _recompute(draft, source)
        write_adapters(draft, source)
        write_sharding(draft, source, world, "its engine shards everything")
    draft.only_some(source, *source.table.only)
    read_environment(draft, call.environment)
    draft.close(source)
    draft.close(launch)


def _engine(draft: ImportDraft, source: Source) -> bool:
    """Whether the engine is Megatron's; an error for one that parsim does not know."""
    kind, strategy = source.get("engine"), source.of("parallel.data.fsdp_version")
    name = ENGINES[0] if kind is None else str(kind.value)
    if kind is not None and name not in ENGINES:
        draft.refuse(kind, f"verl's engine {name}", f"parsim reads {' and '.join(ENGINES)}")
    for key in source.all("engine", "optim", "model"):
        draft.harmless(key, "whose settings count")
    megatron = name == "megatron"
    known = source.table.rows["parallel.data.fsdp_version"]
    if not megatron and strategy is not None and known.ours(str(strategy.value)) is None:
        draft.refuse(strategy, f"the strategy {strategy.value}", "parsim reads fsdp and fsdp2")
    return megatron


def _host(draft: ImportDraft, source: Source) -> None:
    """Weights and states that wait on the host, and come for the step."""
    for key in source.all(*(f"{OWN}{name}" for name in AWAY)):
        if draft.flag(key):
            draft.unmodelled(key, "what waits on the host between steps travels before and after each; here it stays on the GPU")
        else:
            draft.harmless(key, "nothing waits on the host")
    policy = source.get(f"{OWN}offload_policy")
    if draft.flag(policy) and policy is not None:
        draft.refuse(policy, "weights that stay on the host", "use false")
    draft.harmless(policy, "weights stay on the GPU")


def _machines(draft: ImportDraft, call: Invocation, source: Source, launch: Source) -> int | None:
    """The processes of torchrun, or those that Ray starts. Returns the GPUs of the job, where they are a number."""
    if call.program == BY_RAY:
        write_machines(draft, source, launch)
        return ray_gpus(draft, source)
    write_launched(draft, launch)
    for name in ("trainer.n_gpus_per_node", "trainer.nnodes"):
        draft.harmless(source.get(name), "the launcher says how many processes there are")
    gpus = draft.value("cluster.gpus")
    return gpus if isinstance(gpus, int) else None


def _without_adapters(draft: ImportDraft, source: Source) -> None:
    rank, targets = source.of("training.finetune.rank"), source.of("training.finetune.targets")
    if rank is not None and draft.whole(rank, 0):
        draft.refuse(rank, "adapters under Megatron's engine", "use 0, or FSDP")
    for key in (rank, targets):
        draft.harmless(key, "there are no adapters")


def _micro_batch(draft: ImportDraft, source: Source, length: int | None, ranks: int | None) -> None:
    """As many samples as some tokens hold, which is so unless told otherwise, or a number of them."""
    each, dynamic, tokens = source.of("training.micro_batch"), source.get("data.use_dynamic_bsz"), source.get("data.max_token_len_per_gpu")
    if (dynamic is None or draft.flag(dynamic)) and draft.given.micro_batch is None:
        draft.harmless(each, "micro-batches are filled with tokens")
        most = draft.whole(tokens, 1) if tokens is not None else TOKENS
        write_dynamic(draft, dynamic, tokens, most, length, ranks, "samples")
        return
    for key in (dynamic, tokens):
        draft.harmless(key, "micro-batches have a number of samples")
    write_micro_batch(draft, each, 4, "data.micro_batch_size_per_gpu is 4 if not given")


def _recompute(draft: ImportDraft, source: Source) -> None:
    again = source.of("training.recompute")
    if again is None or draft.flag(again):
        draft.write("training.recompute", "full", again, note="" if again else "model.enable_gradient_checkpointing is true if not given")
    else:
        draft.harmless(again, "switched off")
