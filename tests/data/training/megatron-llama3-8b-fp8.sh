#!/bin/bash
# In the manner of NVIDIA/Megatron-LM, examples/llama/train_llama3_8b_h100_fp8.sh (quoted pairs in arrays, branches, +=).
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TOKENIZER_ARG=${3:-"MOCK"}
mkdir -p "$(dirname "$TOKENIZER_ARG")"

GPUS_PER_NODE=8
TP_SIZE=2
CP_SIZE=1
DTYPE="fp8"
PRETRAIN="pretrain_gpt.py"

DISTRIBUTED_ARGS=( --nproc_per_node $GPUS_PER_NODE --nnodes 1 --node_rank ${NODE_RANK:-0} )
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 1000000
    --rotary-percent 1.0
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --attention-backend fused
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-samples 1953125000
    --lr 0.00015
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --manual-gc
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size 4
    --sequence-parallel
)
DDP_ARGS=( --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather )
TRAINING_ARGS+=("${DDP_ARGS[@]}")
DATA_ARGS_LIST=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA_ARGS_LIST+=(
        "--mock-data"
        "--tokenizer-type NullTokenizer"
        "--vocab-size 128256"
        "--split '99,1,0'"
    )
else
    DATA_ARGS_LIST+=( "--data-path $4" "--tokenizer-model $TOKENIZER_ARG" )
fi
if [ ! -f "$PRETRAIN" ]; then
    echo "missing"
    exit 1
fi
torchrun "${DISTRIBUTED_ARGS[@]}" \
    "$PRETRAIN" \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${DTYPE_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS_LIST[@]}
