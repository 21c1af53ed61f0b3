#!/bin/bash
# In the manner of NVIDIA/Megatron-LM, examples/gpt3/train_gpt3_175b_distributed.sh (arrays, positional paths, torchrun).
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-16}
MASTER_ADDR=localhost
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
SEQ=2048

CHECKPOINTS=$1
DATA=$2

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)

GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length $SEQ
    --max-position-embeddings $SEQ
    --attention-backend auto # flash, fused, unfused or local
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
)

MODEL_PARALLEL_ARGS=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)

DATA_ARGS=(
    --data-path $DATA
    --vocab-file gpt2-vocab.json
    --merge-file gpt2-merges.txt
    --split 949,50,1
)

LOGGING_ARGS=(
    --log-interval 100
    --save "$CHECKPOINTS/run 1"
    --eval-iters 10
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    "${DATA_ARGS[@]}" \
    ${LOGGING_ARGS[@]} 2>&1 | tee log.txt
