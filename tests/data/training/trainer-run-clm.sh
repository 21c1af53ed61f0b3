# In the manner of huggingface/transformers, examples/pytorch/language-modeling/run_clm.py with torchrun.
export NCCL_ALGO=Ring NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True OMP_NUM_THREADS=8
torchrun --nproc_per_node=8 --nnodes=2 run_clm.py \
    --model_name_or_path meta-llama/Llama-2-7b-hf \
    --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
    --block_size 4096 --bf16 True --do_train --gradient_checkpointing \
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer \
    --attn_implementation flash_attention_2 --learning_rate 2e-5 \
    --max_steps 1000 --use_liger_kernel --output_dir out --per_device_train_batch_size 1
