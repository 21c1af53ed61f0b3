NPROC_PER_NODE=8 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type full \
    --dataset a-data-set \
    --torch_dtype bfloat16 \
    --reward_funcs accuracy format \
    --beta 0.001 \
    --num_generations 8 \
    --max_length 1024 \
    --max_completion_length 2048 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --use_vllm true \
    --vllm_mode colocate \
    --vllm_gpu_memory_utilization 0.4 \
    --sleep_level 1 \
    --offload_optimizer true \
    --deepspeed zero3
