accelerate launch --num_processes 8 trl/scripts/dpo.py \
    --model_name_or_path mistralai/Mistral-7B-v0.1 \
    --dataset_name a/data-set \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --max_length 1024 \
    --bf16 true \
    --beta 0.1
