"""Megatron's engine under verl's policies and fine-tuning: its settings are options of Megatron-LM.

volcengine/verl: verl/trainer/config/engine/megatron.yaml (defaults), verl/utils/megatron_utils.py (DistributedDataParallelConfig: gradients
in fp32, nothing overlaps), verl/trainer/config/ref/megatron_ref.yaml (the reference model is divided as the actor if nothing is said).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import has_experts
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.precision import read_precision
from parsim.interop.megatron.training import read_attention, read_optimizer, read_recompute

ACTOR, REFERENCE = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.megatron."
OPTIMIZER = "actor_rollout_ref.actor.optim.override_optimizer_config."
_SECTIONS = ("override_transformer_config.", "override_ddp_config.")
_RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""setting of verl or of Megatron-Core's classes -> option of Megatron-LM"""
_INVERTED = {"gradient_accumulation_fusion": "no_gradient_accumulation_fusion"}
_BESIDE = (
    "param_offload", "grad_offload", "optimizer_offload", "use_mbridge", "vanilla_mbridge", "use_dist_checkpointing",
    "dist_checkpointing_path", "dist_checkpointing_prefix", "dist_ckpt_optim_fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient", "load_weight", "seed", "forward_only",
)  # fmt: skip
"""what lies on the host between steps, and how weights are loaded"""
_FUSED = ("masked_softmax_fusion", "bias_dropout_fusion", "persist_layer_norm", "deallocate_pipeline_outputs")
_NOTHING = ("null", "None")
_DEFAULTS: dict[str, Any] = {
    "use_distributed_optimizer": True, "sequence_parallel": True, "attention_backend": "flash", "no_gradient_accumulation_fusion": True,
}  # fmt: skip
"""of engine/megatron.yaml and of Megatron-Core's TransformerConfig"""
_WITH_EXPERTS: dict[str, Any] = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True}
"""what verl/models/mcore/config_converter.py says of models with experts"""
_SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size",
)  # fmt: skip


def is_megatrons(key: Key) -> bool:
    """A setting of the engine, or of the optimizer that is Megatron's there."""
    return key.name.startswith((ACTOR, REFERENCE, OPTIMIZER))


def read_engine(draft: ImportDraft, keys: list[Key], begins: tuple[str, str] = (ACTOR, OPTIMIZER)) -> None:
    """Write how the model is divided, its types, optimizer, recomputation and attention, from the engine's settings.

    `begins`: how its own settings begin, and those of its optimizer.
    """
    own = [key for key in keys if key.name.startswith(begins)]
    options = []
    for key in own:
        name = _name(key, begins)
        if key.value is None or str(key.value) in _NOTHING:
            draft.harmless(key, "not set")
        elif key.name.removeprefix(begins[0]) in _BESIDE:
            draft.harmless(key, "what lies on the host between steps, or how weights are loaded")
        elif name == "use_remove_padding":
            if draft.flag(key):
                draft.unmodelled(key, "samples of different length: say the mean one, training.mean_sequence_length")
            draft.harmless(key, "samples are padded")
        elif name in _FUSED:
            draft.only_if(key, (True, "True", "true"), "kernels that are not fused", "Megatron-Core's kernels")
        else:
            options.append(_option(key, name))
    source = Source(_with_defaults(options, _DEFAULTS | (_WITH_EXPERTS if has_experts(draft) else {})), key_table("megatron"))
    draft.take(source, "parallel.tensor.size")
    read_parallel(draft, source, None)
    read_precision(draft, source)
    read_optimizer(draft, source)
    read_recompute(draft, source)
    read_attention(draft, source)
    draft.take(source, "software.gradient_accumulation_fusion")
    if draft.flag(source.get("optimizer_cpu_offload")):
        draft.take(source, "training.offload.optimizer")
        share = source.get("optimizer_offload_fraction")
        draft.only_if(
            share, (1, 1.0, "1", "1.0"), "a part of the optimizer's states on the host: here all are", "all states are on the host"
        )
    draft.write("software.profile", "megatron-core", note="Megatron-Core is the engine")
    draft.close(source)
    _read_reference(draft, own, [key for key in keys if key.name.startswith(REFERENCE)])


def _name(key: Key, begins: tuple[str, str]) -> str:
    """What the setting is called in its section."""
    name = key.name
    for begin in (*begins, *_SECTIONS):
        name = name.removeprefix(begin)
    return name


def _option(key: Key, name: str) -> Key:
    """The key by the option of Megatron-LM that it is."""
    if name in _INVERTED and str(key.value).lower() in ("true", "false"):
        return replace(key, name=_INVERTED[name], value=str(key.value).lower() == "false", original=key.value)
    if name == "dtype":
        return replace(key, name="fp16" if str(key.value) in ("float16", "fp16") else "bf16", value=True, original=key.value)
    return replace(key, name=_RENAMED.get(name, name))


def _with_defaults(options: list[Key], defaults: Mapping[str, Any]) -> list[Key]:
    given = {key.name for key in options}
    wanted = defaults if given & {"bf16", "fp16"} else {**defaults, "bf16": True}
    return options + [Key(name, f"verl's {name}", value, "default") for name, value in wanted.items() if name not in given]


def _read_reference(draft: ImportDraft, actor: list[Key], keys: list[Key]) -> None:
    """Parsim divides the reference model as the policy."""
    sizes = {key.name.removeprefix(ACTOR): str(key.value) for key in actor if str(key.value) not in _NOTHING}
    for key in keys:
        name = key.name.removeprefix(REFERENCE)
        if name in _SIZES and str(key.value) not in _NOTHING and str(key.value) != sizes.get(name, "1"):
            draft.refuse(key, "a reference model that is divided in another way than the policy", f"use {sizes.get(name, '1')}")
        elif name == "param_offload" and draft.flag(key):
            draft.unmodelled(key, "the reference model's weights lie on the host, here on the GPUs")
        else:
            draft.harmless(key, "the reference model is divided as the policy is")
