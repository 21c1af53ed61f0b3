NPROC_PER_NODE=8 \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --train_type lora \
    --dataset a-data-set \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 16 \
    --lora_rank 8 \
    --target_modules all-linear \
    --max_length 2048 \
    --deepspeed zero2
