"""Laws of imported training configurations: whatever stands in them, every key's end is said, and there is no traceback."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_samples import DATA, from_text, leaves, taken

from parsim.errors import ScenarioError
from parsim.interop.formats import TOOLS
from parsim.interop.keys import key_table
from parsim.scenario.files import parse_text


@cache
def known_names(tool: str) -> list[str]:
    """Every key that the importer of `tool` knows: those of its tables and those it asks for."""
    table = key_table("huggingface" if tool in ("hf", "llama-factory") else tool)
    seen: dict[str, None] = dict.fromkeys(name.removesuffix("*").rstrip("._") for name in table.names())
    seen |= dict.fromkeys(name for row in table.rows.values() for name in row.names)
    for path in DATA.iterdir():
        if TOOLS[tool] == taken(path.name).tool:
            seen |= dict.fromkeys(fate.key.name for fate in taken(path.name).fates)
    return sorted({*seen, *ASKED.get(tool, "").split()})


ASKED = {
    "megatron": (
        "swiglu group_query_attention num_query_groups kv_channels squared_relu openai_gelu add_qkv_bias qk_layernorm "
        "apply_layernorm_1p use_rotary_position_embeddings no_position_embedding padded_vocab_size make_vocab_size_divisible_by "
        "num_experts moe_layer_freq moe_router_dtype multi_latent_attention kv_lora_rank q_lora_rank "
        "use_precision_aware_optimizer exp_avg_dtype exp_avg_sq_dtype main_params_dtype main_grads_dtype grad_reduce_in_bf16 "
        "accumulate_allreduce_grads_in_fp32 fp8_format use_flash_attn recompute_activations recompute_granularity "
        "recompute_method recompute_num_layers recompute_modules checkpoint_activations num_virtual_stages_per_pipeline_rank "
        "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers DDP_impl use_torch_fsdp2 "
        "account_for_embedding_in_pipeline_split cp_comm_type context_parallel_size use_megatron_fsdp "
        "data_parallel_sharding_strategy torch_fsdp2_no_reshard_after_forward ddp_bucket_size overlap_param_gather train_tokens "
        "train_samples use_tp_pp_dp_mapping enable_cuda_graph cuda_graph_scope no_gradient_accumulation_fusion "
        "no_async_tensor_model_parallel_allreduce"
    ),
    "megatron-recipe": (
        "MODE ENV_VARS.NCCL_ALGO ENV_VARS.CUDA_LAUNCH_BLOCKING ARGS.num_layers ARGS.bf16 ARGS.recompute_modules ARGS.overlap_p2p_comm "
        "ARGS.tensor_model_parallel_size ARGS.moe_layer_freq ARGS.fp8_format ARGS.cuda_graph_scope ARGS.pipeline_model_parallel_layout "
        "MODEL_ARGS.--hidden-size MODEL_ARGS.--micro-batch-size MODEL_ARGS.--swiglu"
    ),
    "megatron-deepspeed": (
        "deepspeed deepspeed_config kd num_experts_switch use_flash_attn_v2 pp_partition_method swiglu checkpoint_activations "
        "enable_zbh1_pipeline mlp_type topk num_experts expert_interval tokenizer_name_or_path pad_vocab_size_to"
    ),
    "deepspeed": (
        "communication_data_type data_types.grad_accum_dtype torch_autocast.enabled torch_autocast.dtype "
        "optimizer.params.torch_adam tensor_parallel.autotp_size sequence_parallel_size zero_optimization.cpu_offload "
        "zero_optimization.offload_optimizer.ratio activation_checkpointing.cpu_checkpointing "
        "activation_checkpointing.number_checkpoints zero_optimization.mics_shard_size"
    ),
    "accelerate": (
        "dynamo_config.dynamo_backend parallelism_config.parallelism_config_sp_size "
        "parallelism_config.parallelism_config_cp_comm_strategy megatron_lm_config.megatron_lm_tp_degree "
        "fsdp_config.fsdp_version fsdp_config.fsdp_reshard_after_forward"
    ),
    "hf": (
        "use_peft lora_r load_in_4bit load_in_8bit lora_modules_to_save pure_bf16 fp8 tp_size adafactor attn_implementation "
        "packing max_length fsdp_config.backward_prefetch fsdp_config.min_num_params fsdp_config.limit_all_gathers torch_dtype"
    ),
    "llama-factory": (
        "freeze_trainable_layers freeze_extra_modules additional_target quantization_type use_unsloth "
        "tensor_model_parallel_size sequence_parallel use_distributed_optimizer recompute_granularity "
        "expert_model_parallel_size neat_packing pure_bf16 fp8"
    ),
    "swift": (
        "tuner_type train_type quant_bits quant_method task_type rlhf_type deepspeed fsdp torch_dtype bf16 lora_rank model model_name "
        "sequence_parallel_size gradient_checkpointing target_modules modules_to_save"
    ),
    "verl": "algorithm.adv_estimator",
    "axolotl": (
        "load_in_4bit load_in_8bit gptq adapter lora_target_linear pad_to_sequence_len sample_packing flash_attention sdp_attention "
        "liger_rms_norm liger_fused_linear_cross_entropy max_steps rl fsdp fsdp_version fsdp_config.offload_params"
    ),
    "torchtitan": "model.name model.flavor model.converters float8.enable_float8_linear compile.components training.data_parallel_type",
    "neox": "tokenizer_type vocab_file attention_config train_impl moe_num_experts partition_activations clip_grad mlp_type",
    "flagscale": "model.num_layers model.hidden_size system.precision.bf16 experiment.runner.nnodes system.hetero.enable_hetero",
    "nemo": (
        "model.num_layers model.hidden_size model.activation model.bias model.megatron_amp_O2 trainer.precision mixed_precision "
        "model.optim.name model.num_query_groups model.encoder_seq_length trainer.devices model._target_ model.fsdp ddp.bucket_size"
    ),
    "primus": (
        "modules.pre_trainer.overrides.num_layers modules.pre_trainer.overrides.micro_batch_size modules.pre_trainer.model "
        "modules.pre_trainer.framework modules.pre_trainer.overrides.fp8"
    ),
}
"""keys that code asks for, beside those of the tables and of their rows"""
ANY = st.one_of(
    st.booleans(), st.integers(0, 64), st.sampled_from(["auto", "none", "full", "fp32", "bf16", "selective", "block", "", "x", "4"]),
    st.none(), st.floats(0, 2), st.lists(st.sampled_from(["core_attn", "mlp", "full_shard", "all"]), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_law_every_key_ends_in_one_way_whatever_its_value(tool: str, data: st.DataObject) -> None:
    """Any keys with any values: findings about wrong ones, else a scenario, and each key's end is said."""
    chosen = data.draw(st.dictionaries(st.sampled_from(known_names(tool)), ANY, max_size=12))
    if tool in ("megatron", "megatron-deepspeed"):
        rows = [f"--{name.replace('_', '-') if name != 'DDP_impl' else 'DDP-impl'} {word(value)}" for name, value in chosen.items()]
        text = "\n".join(["--num-layers 8", *rows])
        expected = len({row.split()[0] for row in ["--num-layers", *rows]})
    else:
        tree: dict[str, Any] = {"output_dir": "x"} if tool in ("hf", "llama-factory") else {}
        for name, value in chosen.items():
            nest(tree, name.split("."), value)
        text = json.dumps(tree) if tree else '{"a": 1}'
        expected = len(leaves(json.loads(text)))
    try:
        imported = from_text(text, tool)
    except ScenarioError:
        return  # a wrong value, with its place
    own = [fate for fate in imported.fates if fate.key.file == "-"]
    assert len({fate.key.written for fate in own}) == expected
    assert imported.tree == parse_text(imported.yaml, "x").tree


def word(value: Any) -> str:
    return "" if value is None or value is True else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def nest(tree: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value under a dotted path, unless a plain value stands in the way."""
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            return
        tree = below
    if not isinstance(tree.get(path[-1]), dict):
        tree[path[-1]] = value
