"""What other tools call our keys: Megatron-LM, DeepSpeed, Hugging Face (transformers, accelerate), torchtitan and PyTorch."""

from __future__ import annotations

FOREIGN: dict[str, tuple[str, str]] = {
    # parallel sizes
    "tensor_model_parallel_size": ("Megatron", "parallel.tensor.size"),
    "tensor_parallel_size": ("vLLM and NeMo", "parallel.tensor.size"),
    "tensor_parallel_degree": ("torchtitan", "parallel.tensor.size"),
    "tensor_parallel": ("", "parallel.tensor.size"),
    "tp_size": ("", "parallel.tensor.size"),
    "pipeline_model_parallel_size": ("Megatron", "parallel.pipeline.size"),
    "pipeline_parallel_size": ("", "parallel.pipeline.size"),
    "pipeline_parallel_degree": ("torchtitan", "parallel.pipeline.size"),
    "pipeline_parallel": ("", "parallel.pipeline.size"),
    "pp_size": ("", "parallel.pipeline.size"),
    "stages": ("", "parallel.pipeline.size"),
    "pipeline_parallel_schedule": ("torchtitan", "parallel.pipeline.schedule"),
    "virtual_pipeline_model_parallel_size": ("Megatron", "parallel.pipeline.virtual_stages"),
    "num_layers_per_virtual_pipeline_stage": ("Megatron", "parallel.pipeline.virtual_stages"),
    "interleave": ("", "parallel.pipeline.virtual_stages"),
    "context_parallel_size": ("Megatron", "parallel.context.size"),
    "context_parallel_degree": ("torchtitan", "parallel.context.size"),
    "expert_model_parallel_size": ("Megatron", "parallel.expert.size"),
    "data_parallel_size": ("Megatron", "parallel.data.size"),
    "data_parallel": ("", "parallel.data.size"),
    "dp_size": ("", "parallel.data.size"),
    "data_parallel_shard_degree": ("torchtitan", "parallel.data.size"),
    "data_parallel_replicate_degree": ("torchtitan", "parallel.data.size"),
    "sequence_parallel": ("Megatron", "parallel.tensor.sequence_parallel"),
    # data parallelism
    "zero_stage": ("", "parallel.data.strategy"),
    "zero_optimization": ("DeepSpeed", "parallel.data.strategy"),
    "stage": ("DeepSpeed", "parallel.data.strategy"),
    "use_distributed_optimizer": ("Megatron", "parallel.data.strategy"),
    "fsdp": ("Hugging Face", "parallel.data.strategy"),
    "fsdp_config": ("accelerate", "parallel.data.strategy"),
    "sharding_strategy": ("PyTorch FSDP", "parallel.data.strategy"),
    "fsdp_sharding_strategy": ("accelerate", "parallel.data.strategy"),
    "reduce_bucket_size": ("DeepSpeed", "parallel.data.bucket"),
    "bucket_cap_mb": ("PyTorch DDP", "parallel.data.bucket"),
    "gradient_as_bucket_view": ("PyTorch DDP", "parallel.data.bucket_view"),
    "overlap_comm": ("DeepSpeed", "parallel.data.overlap_reduce"),
    "overlap_grad_reduce": ("Megatron", "parallel.data.overlap_reduce"),
    "overlap_param_gather": ("Megatron", "parallel.data.overlap_gather"),
    "limit_all_gathers": ("PyTorch FSDP", "parallel.data.limit_gathers"),
    "fsdp_reshard_after_forward": ("accelerate", "parallel.data.reshard_after_forward"),
    # batch and sequence
    "train_batch_size": ("DeepSpeed", "training.global_batch"),
    "global_batch_size": ("Megatron", "training.global_batch"),
    "batch_size": ("", "training.global_batch"),
    "train_micro_batch_size_per_gpu": ("DeepSpeed", "training.micro_batch"),
    "micro_batch_size": ("Megatron", "training.micro_batch"),
    "microbatch_size": ("", "training.micro_batch"),
    "per_device_train_batch_size": ("Hugging Face", "training.micro_batch"),
    "device_train_microbatch_size": ("MosaicML", "training.micro_batch"),
    "local_batch_size": ("torchtitan", "training.micro_batch"),
    "gradient_accumulation_steps": ("DeepSpeed and Hugging Face", "training.gradient_accumulation"),
    "num_microbatches": ("", "training.gradient_accumulation"),
    "micro_batches": ("", "training.gradient_accumulation"),
    "accumulate_grad_batches": ("Lightning", "training.gradient_accumulation"),
    "seq_length": ("Megatron", "training.sequence_length"),
    "seq_len": ("torchtitan", "training.sequence_length"),
    "seqlen": ("", "training.sequence_length"),
    "max_seq_len": ("", "training.sequence_length"),
    "max_seq_length": ("Hugging Face", "training.sequence_length"),
    "max_length": ("Hugging Face", "training.sequence_length"),
    "sequence_len": ("", "training.sequence_length"),
    "block_size": ("nanoGPT", "training.sequence_length"),
    "context_length": ("", "training.sequence_length"),
    "train_tokens": ("", "training.tokens"),
    # precision, optimizer, memory
    "bf16": ("DeepSpeed, Megatron and Hugging Face", "training.precision"),
    "fp16": ("DeepSpeed, Megatron and Hugging Face", "training.precision"),
    "fp8": ("", "training.precision"),
    "mixed_precision": ("accelerate", "training.precision"),
    "torch_dtype": ("Hugging Face", "training.precision"),
    "dtype": ("", "training.precision"),
    "optim": ("Hugging Face", "training.optimizer"),
    "gradient_clipping": ("DeepSpeed", "training.optimizer.clip_gradients"),
    "clip_grad": ("Megatron", "training.optimizer.clip_gradients"),
    "gradient_checkpointing": ("Hugging Face", "training.recompute"),
    "activation_checkpointing": ("DeepSpeed", "training.recompute"),
    "activation_checkpoint": ("torchtitan", "training.recompute"),
    "recompute_granularity": ("Megatron", "training.recompute"),
    "recompute_activations": ("Megatron", "training.recompute"),
    "attn_implementation": ("Hugging Face", "training.attention"),
    "use_flash_attn": ("Megatron", "training.attention"),
    "flash_attention": ("", "training.attention"),
    "attention_dropout": ("", "training.dropout"),
    "hidden_dropout": ("Megatron", "training.dropout"),
    "offload_optimizer": ("DeepSpeed", "training.offload.optimizer"),
    "offload_param": ("DeepSpeed", "training.offload.parameters"),
    "cpu_offload": ("", "training.offload"),
    "lora": ("", "training.finetune"),
    # model
    "hidden_size": ("Hugging Face and Megatron", "model.hidden"),
    "n_embd": ("Hugging Face", "model.hidden"),
    "d_model": ("", "model.hidden"),
    "num_layers": ("Megatron", "model.layers"),
    "num_hidden_layers": ("Hugging Face", "model.layers"),
    "n_layer": ("Hugging Face", "model.layers"),
    "n_layers": ("", "model.layers"),
    "num_attention_heads": ("Hugging Face and Megatron", "model.heads"),
    "n_head": ("Hugging Face", "model.heads"),
    "num_key_value_heads": ("Hugging Face", "model.kv_heads"),
    "num_query_groups": ("Megatron", "model.kv_heads"),
    "intermediate_size": ("Hugging Face", "model.mlp"),
    "ffn_hidden_size": ("Megatron", "model.mlp"),
    "vocab_size": ("Hugging Face and Megatron", "model.vocabulary"),
    "make_vocab_size_divisible_by": ("Megatron", "model.vocab_divisible_by"),
    "tie_word_embeddings": ("Hugging Face", "model.tied_embeddings"),
    "max_position_embeddings": ("Hugging Face and Megatron", "model.maximum_sequence"),
    "model_name_or_path": ("Hugging Face", "model"),
    "model_name": ("", "model"),
    # cluster
    "num_nodes": ("", "cluster.nodes"),
    "nnodes": ("torchrun", "cluster.nodes"),
    "num_machines": ("accelerate", "cluster.nodes"),
    "num_gpus": ("", "cluster.gpus"),
    "world_size": ("", "cluster.gpus"),
    "nproc_per_node": ("torchrun", "cluster.gpus"),
    "num_processes": ("accelerate", "cluster.gpus"),
    "gpu": ("", "cluster.topology"),
    "hardware": ("", "cluster"),
    "system": ("", "cluster"),
}
"""foreign key -> (whose it is, our key)"""

VALUES = {
    "zero_optimization": "zero1, zero2 or zero3",
    "zero_stage": "zero1, zero2 or zero3",
    "use_distributed_optimizer": "zero1",
    "fsdp": "fsdp",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "gradient_checkpointing": "full",
    "activation_checkpointing": "full",
}
"""what the value becomes there"""


def translation(key: str) -> str:
    """``the name in Megatron; write parallel.tensor.size``, or an empty text.

    Hyphens and a leading ``--`` do not matter.
    """
    word = key.lower().lstrip("-").replace("-", "_")
    if word not in FOREIGN:
        return ""
    owner, ours = FOREIGN[word]
    value = f": {VALUES[word]}" if word in VALUES else ""
    return f"{'the name in ' + owner + '; ' if owner else ''}write {ours}{value}"
