"""``fsdp_config``: what is sharded, wrapped, checkpointed and offloaded."""

from __future__ import annotations

from typing import Any

from parsim.scenario.exporters.draft import Draft

LAYER_CLASSES = {
    "bert": "BertLayer", "roberta": "RobertaLayer", "vit": "ViTLayer", "gpt2": "GPT2Block", "opt": "OPTDecoderLayer", "bloom": "BloomBlock",
    "gpt-neox": "GPTNeoXLayer", "phi": "PhiDecoderLayer", "phi3": "Phi3DecoderLayer", "mpt": "MptBlock", "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer", "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer", "mixtral": "MixtralDecoderLayer", "qwen2-moe": "Qwen2MoeDecoderLayer",
    "qwen3-moe": "Qwen3MoeDecoderLayer",    "deepseek-v2": "DeepseekV2DecoderLayer", "deepseek-v3": "DeepseekV3DecoderLayer",
}  # fmt: skip
"""family -> class of a layer in huggingface/transformers"""
FSDP1 = {True: "FULL_SHARD", False: "SHARD_GRAD_OP"}
"""parameters are resharded after the forward -> the sharding strategy"""


def fsdp(draft: Draft, version: int) -> dict[str, Any]:
    """The strategy as FSDP's options, of version 1 or 2."""
    data = draft.job.built.parallelism.data
    path = "parallel.data.strategy"
    if data.strategy == "zero1":
        text = "FSDP shards gradients wherever it shards optimizer states"
        draft.refuses(path, text, "use --to deepspeed or --to megatron, or zero2, zero3 or fsdp")
    resharded = data.reshard_after_forward and data.strategy != "zero2"
    if version == 2:
        said: dict[str, Any] = {"fsdp_version": 2, "fsdp_reshard_after_forward": resharded}
    else:
        said = {"fsdp_version": 1, "fsdp_sharding_strategy": _hybrid(draft, resharded) if data.strategy == "hsdp" else FSDP1[resharded]}
    draft.says(path, ", ".join(f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in said.items()))
    draft.says("parallel.data.reshard_after_forward", draft.keys[path].text)
    if data.strategy == "zero2":
        draft.remarks(path, "FSDP shards parameters too, and keeps them gathered from the forward to the end of the backward pass")
    elif data.strategy == "zero3":
        draft.remarks(path, "FSDP reduces gradients at the last micro-batch (ZeRO-3 at every one) and keeps whole ones until then")
    said |= _wrapping(draft) | _prefetching(draft, version)
    draft.says("parallel.data.shard_size", f"shard groups of {data.shard_size}" if data.strategy == "hsdp" else "all replicas")
    for key in ("bucket", "first_bucket", "bucket_view"):
        draft.lacks(f"parallel.data.{key}", "FSDP's buckets are its units")
    draft.lacks("parallel.data.overlap_gather", "units are gathered ahead of their use anyway")
    if not data.overlap_reduce:
        draft.lacks("parallel.data.overlap_reduce", "FSDP always reduces under the backward pass")
    draft.says("parallel.data.overlap_reduce", "always")
    return {**said, "fsdp_cpu_ram_efficient_loading": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}


def _hybrid(draft: Draft, resharded: bool) -> str:
    """FSDP1's hybrid sharding: its groups are the nodes."""
    data, nodes = draft.job.built.parallelism.data, draft.job.gpus_per_node
    if data.shard_size != nodes[0]:
        text = f"FSDP1 shards inside nodes of {nodes[0]} GPUs, not in groups of {data.shard_size}"
        draft.refuses("parallel.data.shard_size", text, "leave --fsdp-version 1 out")
    return "HYBRID_SHARD" if resharded else "HYBRID_SHARD_ZERO2"


def _wrapping(draft: Draft) -> dict[str, Any]:
    unit, path = draft.job.built.parallelism.data.unit, "parallel.data.unit"
    if unit == "model":
        return {"fsdp_auto_wrap_policy": draft.says(path, "NO_WRAP")}
    policy = {"fsdp_auto_wrap_policy": draft.says(path, "TRANSFORMER_BASED_WRAP")}
    if unit == "block":
        draft.remarks(path, "embedding and head are no units of their own under TRANSFORMER_BASED_WRAP")
    layer = LAYER_CLASSES.get(draft.job.family)
    if layer is None:
        draft.remarks(path, "fsdp_transformer_layer_cls_to_wrap is not known for this model: Hugging Face's models say it themselves")
        return policy
    return {**policy, "fsdp_transformer_layer_cls_to_wrap": layer}


def _prefetching(draft: Draft, version: int) -> dict[str, Any]:
    data = draft.job.built.parallelism.data
    prefetch = "parallel.data.prefetch"
    draft.lacks("parallel.data.limit_gathers", "two gathered units at most (limit_all_gathers)")
    draft.lacks("parallel.data.queues", "PyTorch decides it")
    if data.accumulate == "every":
        draft.lacks("parallel.data.accumulate", "the script's GradientAccumulationPlugin(sync_each_batch=True)")
    else:
        draft.says("parallel.data.accumulate", "the default, gradients are reduced at the last micro-batch")
    if version == 2:
        draft.lacks(prefetch, "FSDP2 gathers one unit ahead; set_modules_to_forward_prefetch in the script for more")
        return {}
    said = {"fsdp_backward_prefetch": "BACKWARD_PRE" if data.prefetch else "NO_PREFETCH", "fsdp_forward_prefetch": False}
    draft.says(prefetch, f"fsdp_backward_prefetch: {said['fsdp_backward_prefetch']}")
    if data.prefetch > 1:
        draft.lacks(prefetch, "FSDP1 gathers one unit ahead")
    return {**said, "fsdp_use_orig_params": True, "fsdp_sync_module_states": True}


def data_parallel(draft: Draft) -> dict[str, Any]:
    """DistributedDataParallel: its options are the script's (``DistributedDataParallelKwargs``, ``TrainingArguments``)."""
    draft.says("parallel.data.strategy", "distributed_type: MULTI_GPU")
    draft.lacks("parallel.data.bucket_view", "the script's DistributedDataParallelKwargs(gradient_as_bucket_view=...)")
    draft.lacks("parallel.data.accumulate", "the script's GradientAccumulationPlugin(sync_each_batch=True)")
    draft.lacks("parallel.data.overlap_reduce", "DDP always reduces under the backward pass")
    for key in (
        "bucket",
        "first_bucket",
        "overlap_gather",
        "queues",
        "shard_size",
        "unit",
        "prefetch",
        "limit_gathers",
        "reshard_after_forward",
    ):
        draft.lacks(f"parallel.data.{key}", "DDP has no such option")
    return {}


def recompute(draft: Draft, document: dict[str, Any]) -> None:
    """Activation checkpointing: FSDP's own, or the model's where nothing is sharded."""
    path, mode = "training.recompute", draft.job.built.training.recompute.mode
    if mode not in ("none", "full"):
        what = {"every": "groups of layers", "blocks": "the first layers only", "selective": "parts of a layer"}[mode]
        draft.refuses(path, f"every layer is checkpointed, or none; not {what}", "use --to megatron, or recompute: full")
    if "fsdp_config" not in document:
        return
    document["fsdp_config"]["fsdp_activation_checkpointing"] = mode == "full"
    draft.says(path, f"fsdp_activation_checkpointing: {str(mode == 'full').lower()}")


def offload(draft: Draft, document: dict[str, Any]) -> None:
    """CPU offload: parameters, gradients and optimizer states together, or nothing."""
    wanted = draft.job.built.training.offload
    states = {key: getattr(wanted, key) for key in ("parameters", "gradients", "optimizer")}
    for key, where in states.items():
        path = f"training.offload.{key}"
        draft.says(path, f"fsdp_offload_params: {str(where != 'none').lower()}")
        if where == "nvme":
            draft.refuses(path, "FSDP offloads to host memory, not to drives", "use --to deepspeed, or cpu")
    path = "training.offload.optimizer" if wanted.optimizer != "none" else "training.offload.parameters"
    if len(set(states.values())) > 1:
        text = f"FSDP offloads parameters, gradients and optimizer together, not {', '.join(f'{k} {v}' for k, v in states.items())}"
        draft.refuses(path, text, "use --to deepspeed, or offload both parameters and optimizer")
    if "fsdp_config" in document:
        document["fsdp_config"]["fsdp_offload_params"] = wanted.parameters == "cpu"
    elif wanted.states:
        draft.refuses(path, "DDP keeps all states on the device", "use strategy fsdp, or --to deepspeed")
    draft.says("training.offload.activations", "the default, none")
    if wanted.activations != "none":
        text = "accelerate has no key for activations in host memory"
        draft.refuses("training.offload.activations", text, "use --to deepspeed")
