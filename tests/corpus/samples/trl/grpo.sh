trl vllm-serve --model Qwen/Qwen2.5-7B-Instruct --tensor_parallel_size 2 &

accelerate launch --num_processes 6 examples/scripts/grpo_vlm.py \
    --model_name_or_path Qwen/Qwen2.5-7B-Instruct \
    --dataset_name a/data-set \
    --dtype bfloat16 \
    --use_peft \
    --lora_r 32 \
    --lora_target_modules q_proj k_proj v_proj o_proj \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 4 \
    --num_generations 8 \
    --max_completion_length 1024 \
    --use_vllm \
    --vllm_mode server \
    --loss_type dr_grpo
