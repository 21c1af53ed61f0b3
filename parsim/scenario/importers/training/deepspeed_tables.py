"""Keys of ds_config.json that need no arithmetic: DeepSpeed documentation, configuration JSON; deepspeed/runtime/zero/config.py and
offload_config.py.
"""

from __future__ import annotations

from parsim.scenario.importers.training.draft import Tables

HARMLESS = {
    "changes what the weights become, not the work": (
        "optimizer.params.* scheduler.* fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis "
        "fp16.consecutive_hysteresis fp16.min_loss_scale fp16.auto_cast bf16.check_grad_overflow prescale_gradients "
        "gradient_predivide_factor gradient_allreduce_op seed"
    ),
    "logging, timers and profiling": (
        "steps_per_print wall_clock_breakdown dump_state tensorboard.* wandb.* comet.* csv_monitor.* monitor_config.* "
        "comms_logger.* flops_profiler.* memory_breakdown autotuning.* timers.* activation_checkpointing.profile "
        "zero_optimization.log_trace_cache_warnings zero_optimization.enable_sanity_checks"
    ),
    "checkpoints": (
        "checkpoint.* nebula.* use_node_local_storage tag_validation "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save zero_optimization.stage3_gather_fp16_weights_on_model_save "
        "zero_optimization.gather_16bit_weights_on_model_save zero_optimization.elastic_checkpoint "
        "zero_optimization.load_from_fp32_weights zero_optimization.pipeline_loading_checkpoint "
        "zero_optimization.save_muon_momentum_buffer_in_memory load_universal"
    ),
    "which optimizers are accepted": "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
    "how the job starts": (
        "elasticity.* zero_optimization.override_module_apply zero_optimization.leaf_module.* "
        "zero_optimization.ignore_unused_parameters dataloader_drop_last disable_allgather train_batch_size_auto "
        "zero_optimization.offload_optimizer.fast_init data_efficiency.seed"
    ),
    "where the drive is mounted": "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path",
    "the model's own code turns checkpointing on": (
        "activation_checkpointing.contiguous_memory_optimization activation_checkpointing.synchronize_checkpoint_boundary"
    ),
    "the hidden copies are as parsim has them": (
        "zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_param.buffer_count "
        "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu "
        "zero_optimization.offload_optimizer.buffer_size zero_optimization.offload_optimizer.pipeline "
        "zero_optimization.cpu_offload_use_pin_memory zero_optimization.memory_efficient_linear "
        "zero_optimization.use_multi_rank_bucket_allreduce"
    ),
}
UNMODELLED = {
    "ZeRO++ (write a strategy of your own: docs/write-a-strategy.md)": (
        "zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients "
        "zero_optimization.zero_quantized_nontrainable_weights zero_optimization.zeropp_loco_param.*"
    ),
    "MiCS (write a strategy of your own: docs/write-a-strategy.md)": "zero_optimization.mics_hierarchical_params_gather",
    "parsim gathers and drops parameters layer by layer": (
        "zero_optimization.stage3_max_reuse_distance zero_optimization.max_reuse_distance "
        "zero_optimization.stage3_module_granularity_threshold zero_optimization.stage3_use_all_reduce_for_fetch_params "
        "zero_optimization.stage3_allgather_sequential"
    ),
    "all parameters are sharded, small ones too": (
        "zero_optimization.stage3_param_persistence_threshold zero_optimization.param_persistence_threshold "
        "zero_optimization.stage3_model_persistence_threshold zero_optimization.model_persistence_threshold"
    ),
    "reading and writing drives while the optimizer steps": (
        "zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write aio.*"
    ),
    "parts of the optimizer's work on the device, or behind the next step": (
        "zero_optimization.zenflow.* zero_optimization.offload_optimizer.super_offload "
        "zero_optimization.offload_optimizer.cpuadam_cores_perc"
    ),
    "fewer activations or gradients than parsim keeps": (
        "activation_checkpointing.partition_activations fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads "
        "bf16.bf16_optimizer_states bf16.immediate_grad_update sparse_gradients"
    ),
    "steps that are not all alike": "curriculum_learning.* data_efficiency.* progressive_layer_drop.* eigenvalue.* quantize_training.*",
    "compression and sparsity": "compression_training.* sparse_attention.*",
    "a compiler of DeepSpeed's own": "compile.* deepcompile.*",
    "experts over ranks": "expert_parallel.* moe.* use_data_before_expert_parallelism",
    "how DeepSpeed's pipeline module cuts the model": "pipeline.*",
    "hybrid engine of reinforcement learning": "hybrid_engine.* inference.*",
    "older forms of mixed precision": "amp.* seq_parallel_communication_data_type",
}
TABLES = Tables(HARMLESS, UNMODELLED)
