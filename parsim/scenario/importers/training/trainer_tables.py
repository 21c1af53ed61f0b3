"""Arguments of transformers' Trainer, its example scripts, TRL and LLaMA-Factory that need no arithmetic: huggingface/transformers,
src/transformers/training_args.py and examples/pytorch/language-modeling/run_clm.py; hiyouga/LLaMA-Factory, src/llamafactory/hparams.
"""

from __future__ import annotations

from parsim.scenario.importers.training.accelerate import SCHEDULER
from parsim.scenario.importers.training.draft import Tables

HARMLESS = {
    "changes what the weights become, not the work": (
        "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon lr_scheduler_type lr_scheduler_kwargs warmup_ratio "
        "warmup_steps seed data_seed label_smoothing_factor optim_args ddp_broadcast_buffers half_precision_backend "
        "fp16_opt_level average_tokens_across_devices config_overrides ignore_data_skip lr_scheduler min_lr "
        "embedding_learning_rate"
    ),
    "logging": (
        "logging_dir logging_strategy logging_first_step logging_steps logging_nan_inf_filter log_level log_level_replica "
        "log_on_each_node report_to run_name project trackio_space_id disable_tqdm include_num_input_tokens_seen "
        "include_tokens_per_second skip_memory_metrics debug plot_loss print_param_status include_effective_tokens_per_second "
        "use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir "
        "swanlab_lark_webhook_url swanlab_lark_secret enable_torch_profiler profiler_output_dir profiler_wait_steps "
        "profiler_warmup_steps profiler_active_steps profiler_repeat profiler_record_shapes profiler_profile_memory "
        "profiler_with_stack profile_modules mp_parameters"
    ),
    "checkpoints and the Hub": (
        "output_dir overwrite_output_dir save_strategy save_steps save_total_limit save_safetensors save_on_each_node "
        "save_only_model enable_jit_checkpoint restore_callback_states_from_checkpoint resume_from_checkpoint "
        "load_best_model_at_end metric_for_best_model greater_is_better push_to_hub hub_model_id hub_strategy hub_token "
        "hub_private_repo hub_always_push hub_revision push_to_hub_model_id push_to_hub_organization push_to_hub_token token "
        "use_auth_token hf_hub_token ms_hub_token om_hub_token export_dir export_size export_device export_quantization_bit "
        "export_quantization_dataset export_quantization_nsamples export_quantization_maxlen export_legacy_format "
        "export_hub_model_id"
    ),
    "evaluation and prediction": (
        "do_train do_eval do_predict eval_strategy evaluation_strategy eval_steps eval_delay eval_on_start "
        "eval_accumulation_steps per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only fp16_full_eval "
        "bf16_full_eval include_inputs_for_metrics include_for_metrics eval_do_concat_batches batch_eval_metrics "
        "eval_use_gather_object predict_with_generate generation_max_length generation_num_beams max_eval_samples eval_dataset "
        "val_size eval_on_each_dataset eval_num_beams compute_accuracy temperature top_k top_p max_new_tokens do_sample "
        "num_beams early_stopping_steps infer_backend infer_dtype use_kv_cache vllm_maxlen vllm_gpu_util vllm_enforce_eager "
        "vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend"
    ),
    "which tokens count": (
        "completion_only_loss assistant_only_loss eos_token pad_token skip_special_tokens packing_strategy eval_packing"
    ),
    "replaced by newer keys": "use_legacy_prediction_loop fp16_backend torchdynamo compute_dtype",
    "the data set and how it is read": (
        "dataset dataset_name dataset_config_name dataset_config train_file validation_file validation_split_percentage "
        "dataset_dir media_dir template dataset_text_field dataset_train_split dataset_test_split dataset_streaming "
        "shuffle_dataset dataset_num_proc dataset_kwargs train_on_prompt mask_history streaming buffer_size mix_strategy "
        "interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers max_samples max_train_samples "
        "ignore_pad_token_for_loss tool_format default_system enable_thinking preserve_thinking tokenized_path "
        "data_shared_file_system keep_linebreaks dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
        "dataloader_persistent_workers dataloader_prefetch_factor remove_unused_columns label_names length_column_name "
        "split_batches accelerator_config accelerator_config.* disable_shuffling image_max_pixels image_min_pixels "
        "image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels video_fps video_maxlen use_audio_in_video "
        "audio_sampling_rate data_path eval_data_path text_column"
    ),
    "how the model and its tokenizer are loaded": (
        "tokenizer_name tokenizer_name_or_path config_name model_type cache_dir use_fast_tokenizer model_revision "
        "trust_remote_code low_cpu_mem_usage adapter_name_or_path adapter_folder create_new_adapter resize_vocab "
        "split_special_tokens add_tokens add_special_tokens new_special_tokens_config init_special_tokens rope_scaling "
        "offload_folder train_from_scratch quantization_device_map device_map chat_template_path"
    ),
    "how processes find each other": (
        "local_rank ddp_backend ddp_timeout xpu_backend tpu_num_cores tpu_metrics_debug past_index no_cuda_is_available "
        "use_mps_device ray_scope ray_num_workers ray_init_kwargs master_addr master_port node_rank rdzv_id rdzv_backend "
        "rdzv_endpoint rdzv_conf max_restarts monitor_interval start_method role log_dir redirects tee standalone module "
        "no_python local_addr hostfile include exclude launcher launcher_args force_multi machine_rank main_process_ip "
        "main_process_port same_network gpu_ids num_cpu_threads_per_process m u main_training_function config_file_is_read "
        "jit_mode_eval"
    ),
    "options of the job scheduler": SCHEDULER,
    "scales an adapter's output, which takes no time": (
        "lora_alpha use_rslora loraplus_lr_ratio loraplus_lr_embedding pissa_init pissa_iter pissa_convert lora_bias lora_task_type"
    ),
    "only of another stage": (
        "pref_beta pref_ftx pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma "
        "ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model ref_model_adapters "
        "ref_model_quantization_bit reward_model reward_model_adapters reward_model_quantization_bit reward_model_type ld_alpha"
    ),
    "only of models of images and sound": "freeze_vision_tower freeze_multi_modal_projector freeze_language_model",
    "the same work": "use_reentrant_gc gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* torch_compile_backend",
}
UNMODELLED = {
    "samples of different length: say the mean one, training.mean_sequence_length": (
        "group_by_length train_sampling_strategy padding_free pad_to_multiple_of dynamic_batching"
    ),
    "the batch is searched for when the job starts: parsim fit --max micro_batch": "auto_find_batch_size",
    "a search over the graph after every backward": "ddp_find_unused_parameters",
    "noise in the embedding": "neftune_noise_alpha",
    "activations that are copied to the host as they are": "activation_offloading",
    "a loss of its own kind": "loss_type",
    "layers with parameters that are no linear layers": "lora_target_parameters",
    "memory that is given back between steps": "torch_empty_cache_steps",
    "slower kernels that always do the same": "full_determinism",
    "modes of the compiler": "torch_compile_mode",
    "parsim knows GPUs": "use_cpu no_cuda use_ipex use_kt kt_cpu_activation kt_weight_path kt_non_expert_weight_path kt_use_lora_experts",
    "other optimizers than parsim has; adamw stands in": (
        "use_galore galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise use_apollo "
        "apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type "
        "apollo_layerwise apollo_scale_front use_badam badam_mode badam_start_block badam_switch_mode badam_switch_interval "
        "badam_update_ratio badam_mask_mode badam_verbose use_adam_mini use_muon optim_target_modules"
    ),
    "adapters of another kind than LoRA's": (
        "use_dora use_llama_pro oft_rank oft_block_size oft_target module_dropout mixture_of_depths lora_modules_to_save_all"
    ),
    "kernels of unsloth": "use_unsloth use_unsloth_gc",
    "attention over parts of a sample only": "shift_attn neat_packing block_diag_attn",
    "parts of the model in fp32": "upcast_layernorm upcast_lmhead_output",
    "other losses": "use_dft_loss use_asft_loss asft_alpha use_eaft_loss eaft_alpha moe_aux_loss_coef",
    "8-bit matrix products of torchao": "fp8_backend fp8_enable_fsdp_float8_all_gather",
    "details of Megatron's engine": "moe_* bias_activation_fusion apply_rope_fusion kt_* use_packed_sequences",
    "another engine of training": (
        "use_mca use_megatron_bridge megatron_bridge_args use_hyper_parallel hyper_parallel_args hyper_parallel_cp_size"
    ),
    "details of compiling and Liger's kernels": "liger_kernel_config liger_kernel_config.* use_v1_kernels",
    "a mesh that is given elsewhere": "parallelism_config.*",
    "SageMaker, XLA and other devices": "fsdp_config.xla_fsdp_settings fsdp_config.xla_fsdp_grad_ckpt",
}
TABLES = Tables(HARMLESS, UNMODELLED)
