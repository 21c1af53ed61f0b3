NPROC_PER_NODE=8 \
megatron rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type full \
    --dataset a-data-set \
    --tensor_model_parallel_size 1 \
    --micro_batch_size 2 \
    --global_batch_size 128 \
    --steps_per_generation 4 \
    --num_generations 8 \
    --beta 0 \
    --max_length 1024 \
    --max_completion_length 2048 \
    --reward_funcs accuracy \
    --vllm_mode server \
    --vllm_server_host 127.0.0.1 \
    --bf16 true \
    --lr 1e-6 \
    --train_iters 100
