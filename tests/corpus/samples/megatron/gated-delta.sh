#!/bin/bash
# Three of four layers with Gated DeltaNet, on four stages of unlike length.
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16 --kv-channels 128 \
    --experimental-attention-variant gated_delta_net --linear-attention-freq 4 --linear-num-value-heads 32 --linear-num-key-heads 16 \
    --attention-output-gate --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 151936 --untie-embeddings-and-output-weights \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*5|(t*7|)*2t*5L' \
    --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --lr 1e-4 --train-iters 1000
