"""Options of Megatron-LM that need no arithmetic: NVIDIA/Megatron-LM, megatron/training/arguments.py and the dataclasses in megatron/core
from which newer versions make options; older ones of megatron/arguments.py (v2.0 to 23.06).
"""

from __future__ import annotations

from parsim.scenario.importers.training.draft import Tables

HARMLESS = {
    "changes what the weights become, not the work": (
        "lr min_lr lr_decay_style lr_decay_iters lr_decay_samples lr_warmup_fraction lr_warmup_iters lr_warmup_samples "
        "lr_warmup_init lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples decoupled_lr decoupled_min_lr head_lr_mult "
        "override_lr_scheduler override_opt_param_scheduler use_checkpoint_lr_scheduler use_checkpoint_opt_param_scheduler "
        "weight_decay start_weight_decay end_weight_decay weight_decay_incr_style apply_wd_to_qk_layernorm adam_beta1 "
        "adam_beta2 adam_eps sgd_momentum lion_beta1 lion_beta2 init_method_std init_method_xavier_uniform "
        "embedding_init_method_std layernorm_epsilon norm_epsilon seed data_parallel_random_init loss_scale initial_loss_scale "
        "min_loss_scale loss_scale_window hysteresis softmax_scale rotary_base rotary_interleaved "
        "rotary_seq_len_interpolation_factor use_rope_scaling rope_scaling_factor rotary_scaling_factor mscale mscale_all_dim "
        "rope_type moe_aux_loss_coeff moe_z_loss_coeff moe_router_load_balancing_type moe_router_topk_scaling_factor "
        "moe_router_bias_update_rate moe_router_score_function moe_router_pre_softmax moe_router_num_groups "
        "moe_router_group_topk moe_input_jitter_eps iterations_to_skip mtp_loss_scaling_factor apply_query_key_layer_scaling "
        "no_query_key_layer_scaling calculate_per_token_loss eod_mask_loss reset_position_ids"
    ),
    "logging, timers and profiling": (
        "log_interval log_params_norm log_num_zeros_in_grad log_throughput log_progress log_straggler log_energy "
        "timing_log_level timing_log_option no_barrier_with_level_1_timing tensorboard_dir tensorboard_log_interval "
        "tensorboard_queue_size log_timers_to_tensorboard log_batch_size_to_tensorboard log_memory_to_tensorboard "
        "log_validation_ppl_to_tensorboard log_world_size_to_tensorboard no_log_learnig_rate_to_tensorboard "
        "no_log_loss_scale_to_tensorboard log_loss_scale_to_tensorboard wandb_project wandb_exp_name wandb_save_dir "
        "wandb_entity logging_level log_memory_interval log_device_memory_used no_one_logger one_logger_project "
        "one_logger_run_name one_logger_async app_tag_run_name app_tag_run_version config_logger_dir profile profile_step_start "
        "profile_step_end profile_ranks use_pytorch_profiler record_memory_history memory_snapshot_path "
        "disable_straggler_on_startup straggler_ctrlr_port straggler_minmax_count moe_per_layer_logging"
    ),
    "checkpoints and restarts": (
        "save load save_interval save_retain_interval no_save_optim no_save_rng no_load_optim no_load_rng finetune ckpt_step "
        "pretrained_checkpoint exit_on_missing_checkpoint ckpt_format dist_ckpt_format use_dist_ckpt auto_detect_ckpt_format "
        "ckpt_convert_format ckpt_convert_save ckpt_fully_parallel_save no_ckpt_fully_parallel_save ckpt_fully_parallel_load "
        "ckpt_assume_constant_structure dist_ckpt_strictness async_save persistent_save_interval non_persistent_save_interval "
        "non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_dir non_persistent_local_ckpt_algo "
        "use_persistent_ckpt_worker exit_interval exit_duration_in_mins exit_signal_handler adlr_autoresume "
        "adlr_autoresume_interval use_tokenizer_model_from_checkpoint_args no_use_tokenizer_model_from_checkpoint_args "
        "rerun_mode error_injection_rate error_injection_type enable_ft_package calc_ft_timeouts distributed_timeout_minutes"
    ),
    "the data set and how it is read": (
        "data_path train_data_path valid_data_path test_data_path data_args_path per_split_data_args_path split data_impl "
        "mmap_warmup data_cache_path mock_data vocab_file merge_file tokenizer_model tokenizer_hf_no_use_fast trust_remote_code "
        "tiktoken_pattern tiktoken_num_special_tokens tiktoken_special_tokens vocab_extra_ids num_workers dataloader_type "
        "no_data_sharding no_mmap_bin_files num_dataset_builder_threads s3_cache_path object_storage_cache_path fim_data "
        "sample_rate mask_prob short_seq_prob no_create_attention_mask_in_dataloader"
    ),
    "evaluation": "eval_interval eval_iters skip_train test_mode full_validation eval_micro_batch_size eval_global_batch_size",
    "how processes find each other": (
        "distributed_backend local_rank lazy_mpu_init use_cpu_initialization init_model_with_meta_device no_initialization "
        "disable_gloo_process_groups use_gloo_process_groups use_ring_exchange_p2p node_rank master_addr master_port rdzv_id "
        "rdzv_backend rdzv_endpoint rdzv_conf max_restarts monitor_interval start_method role log_dir redirects tee standalone "
        "module no_python local_addr hostfile include exclude launcher launcher_args force_multinode"
    ),
    "the same work in another implementation": (
        "use_mcore_models use_legacy_models transformer_impl attention_softmax_in_fp32 no_align_param_gather align_param_gather "
        "no_align_grad_reduce moe_use_legacy_grouped_gemm tp_comm_bootstrap_backend te_rng_tracker inference_rng_tracker "
        "deterministic_mode use_te activation_func_clamp_value no_contiguous_buffers_in_local_ddp disable_jit_fuser"
    ),
    "only of inference and of reinforcement learning": (
        "inference_* flash_decode rl_* grpo_* perform_rl_step langrl_env_config refit_method decode_only_cuda_graphs "
        "enable_chunked_prefill use_legacy_static_engine cache_mla_latents mlp_chunks_for_prefill"
    ),
    "only of other models than a GPT": (
        "bert_* dino_* ict_* biencoder_* retriever_* vision_* swin_* img_h img_w img_dim patch_dim num_channels num_classes "
        "classes_fraction data_per_class_fraction iter_per_epoch mask_type mask_factor block_data_path embedding_path "
        "evidence_data_path titles_data_path indexer_* query_in_block_prob use_one_sent_docs output_bert_embeddings "
        "encoder_tensor_model_parallel_size encoder_pipeline_model_parallel_size max_tokens_to_oom warmup"
    ),
    "replicas and restarts after failures": "inprocess_* replication* otel_* flight_recorder_* ft_num_warmup_iters",
    "checks of the gradients, which cost next to nothing": (
        "no_check_for_nan_in_loss_and_grad check_for_nan_in_loss_and_grad check_for_spiky_loss check_for_large_grads "
        "check_weight_hash_across_dp_replicas_interval"
    ),
    "pauses of Python's garbage collector are not part of a step": "manual_gc manual_gc_interval no_manual_gc_eval",
    "options of the job scheduler": (
        "job_name partition account time exclusive mem overcommit output error container_image container_mounts container_name "
        "container_workdir no_container_mount_home export label mpi kill_on_bad_exit cpu_bind cpus_per_task qos constraint "
        "mail_type mail_user reservation dependency signal requeue open_mode unbuffered wait l p A J t o e c u"
    ),
}
UNMODELLED = {
    "collectives of tensor parallelism cut up and hidden under matrix products; parsim hides the gradient's all-reduce only": (
        "tp_comm_overlap tp_comm_overlap_cfg tp_comm_overlap_rs_dgrad disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad "
        "disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag disable_tp_comm_split_rs"
    ),
    "single fusions: parsim fuses all of norm, bias, activation and dropout (software.fusion: eager: none)": (
        "no_bias_gelu_fusion no_bias_swiglu_fusion no_bias_dropout_fusion no_masked_softmax_fusion no_persist_layer_norm "
        "no_rope_fusion bias_activation_fusion apply_rope_fusion moe_permute_fusion moe_router_fusion "
        "use_transformer_engine_op_fuser"
    ),
    "experts: how tokens reach them, what is dropped, and what runs meanwhile": (
        "moe_token_dispatcher_type moe_enable_deepep moe_flex_dispatcher_backend moe_grouped_gemm "
        "moe_pad_expert_input_to_capacity moe_token_drop_policy moe_expert_capacity_factor moe_extended_tp "
        "expert_tensor_parallel_size overlap_moe_expert_parallel_comm moe_shared_expert_overlap delay_wgrad_compute "
        "moe_layer_recompute moe_router_force_load_balancing moe_use_upcycling moe_router_padding_for_fp8 "
        "moe_router_padding_for_quantization moe_router_topk_limited_devices"
    ),
    "steps of another batch than the full one": "decrease_batch_size_if_needed step_batch_size_schedule",
    "8-bit formats beyond Transformer Engine's usual recipe, which training.precision: fp8 is": (
        "fp8_recipe fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo no_fp8_wgrad fp8_param_gather "
        "first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 fp4_format fp4_recipe "
        "keep_fp8_transpose_cache reuse_grad_buf_for_mxfp8_param_ag"
    ),
    "the Megatron profiles keep the optimizer on the device; DeepSpeed's and PyTorch's can offload it": (
        "optimizer_cpu_offload optimizer_offload_fraction use_torch_optimizer_for_cpu_offload overlap_cpu_optimizer_d2h_h2d "
        "no_pin_cpu_grads no_pin_cpu_params cpu_offloading cpu_offloading_num_layers fine_grained_activation_offloading "
        "offload_modules"
    ),
    "another layout of the pipeline": (
        "pipeline_model_parallel_layout standalone_embedding_stage pipeline_model_parallel_split_rank "
        "microbatch_group_size_per_vp_stage microbatch_group_size_per_virtual_pipeline_stage "
        "overlap_p2p_communication_warmup_flush defer_embedding_wgrad_compute wgrad_deferral_limit "
        "pipeline_model_parallel_comm_backend mtp_num_layers"
    ),
    "details of how gradients are reduced and parameters gathered": (
        "ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw ddp_average_in_collective "
        "ddp_reduce_scatter_with_fp32_accumulation suggested_communication_unit_size no_gradient_reduce_div_fusion use_nccl_ub "
        "overlap_param_gather_with_optimizer_step delay_param_gather no_delay_grad_reduce num_distributed_optimizer_instances "
        "nccl_communicator_config_path use_sharp high_priority_stream_groups fsdp_double_buffer "
        "hierarchical_context_parallel_sizes hybrid_context_parallel outer_dp_sharding_strategy"
    ),
    "other optimizers, or parts of it elsewhere": "muon_* adaptive_muon_* soap_* store_param_remainders optimizer_cuda_graph",
    "losses and teachers beside the model's own loss": "logits_* mtp_* num_speculative_tokens",
    "experts and their memory": "moe_*",
    "layers that are not all alike, or not transformers": (
        "heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json hybrid_attention_ratio hybrid_mlp_ratio "
        "hybrid_override_pattern hybrid_layer_pattern is_hybrid_model mamba_state_dim mamba_head_dim mamba_num_groups spec "
        "window_size window_attn_skip_freq no_rope_freq linear_attention_freq fp32_residual_connection "
        "apply_residual_connection_post_layernorm relative_attention_num_buckets relative_attention_max_distance "
        "retro_add_retriever attention_output_gate qk_clip"
    ),
    "activations that are spread over the tensor ranks without sequence parallelism": (
        "distribute_saved_activations distribute_checkpointed_activations"
    ),
    "memory that is given back between steps": "empty_unused_memory_level",
    "other kernels of the cross entropy than Megatron's vocabulary-parallel one": (
        "fp16_lm_cross_entropy cross_entropy_loss_fusion cross_entropy_fusion_impl"
    ),
    "attention masks between the documents of a sample": "reset_attention_mask",
    "options that a checkpoint brings": "use_checkpoint_args use_mp_args_from_checkpoint_args yaml_cfg",
}
TABLES = Tables(HARMLESS, UNMODELLED)
