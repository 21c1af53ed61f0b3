#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --heterogeneous-layers-config-path layers.json \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \
    --vocab-size 128256 --micro-batch-size 1 --global-batch-size 64 --bf16 --lr 1e-4
