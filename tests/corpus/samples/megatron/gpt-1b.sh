#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-4}

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 4 \
    --context-parallel-size 2 \
    --num-layers 24 \
    --hidden-size 2048 \
    --num-attention-heads 16 \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --vocab-size 50257 \
    --micro-batch-size 2 \
    --global-batch-size 256 \
    --train-iters 1000 \
    --use-distributed-optimizer \
    --sequence-parallel \
    --bf16
