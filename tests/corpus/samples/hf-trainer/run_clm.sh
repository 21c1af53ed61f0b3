torchrun --nproc_per_node=8 run_clm.py \
    --model_name_or_path facebook/opt-1.3b \
    --dataset_name a/data-set \
    --block_size 1024 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 \
    --num_train_epochs 1 \
    --fp16 \
    --output_dir out
