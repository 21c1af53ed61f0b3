#!/bin/bash
#SBATCH -t 0:30:00 --exclusive --mem=0
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
# In the manner of NVIDIA/Megatron-LM v2.6, examples/sc21 (a choice of sizes, arguments in one string, srun): 39.1B of
# Narayanan et al. 2021 (arXiv 2104.04473), table 1.
MODEL_SIZE=39B

if [ ${MODEL_SIZE} == "1.7B" ]; then
    TP=1; PP=1; MBS=16; GBS=512; NLS=24; HS=2304; NAH=24; DDP=torch
elif [ ${MODEL_SIZE} == "39B" ]; then
    TP=8
    PP=2
    MBS=4
    GBS=1536
    NLS=48
    HS=8192
    NAH=64
    DDP=local
    EXTRA="--activations-checkpoint-method uniform "
else
    echo "Invalid configuration"
    exit 1
fi

PARAMS=" ${EXTRA} \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --micro-batch-size ${MBS} \
    --global-batch-size ${GBS} \
    --num-layers ${NLS} \
    --hidden-size ${HS} \
    --num-attention-heads ${NAH} \
    --DDP-impl ${DDP} \
    --data-path <path to data> \
    --vocab-file vocab.json \
    --merge-file merges.txt \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --train-iters 500 \
    --lr 0.0001 \
    --fp16 \
    --loss-scale 8192 "
CMD="python -u pretrain_gpt.py ${PARAMS}"
DATETIME=`date +'date_%y-%m-%d'`
srun -l --container-image "nvcr.io#nvidia/pytorch:20.12-py3" --output=logs/%x_$DATETIME.log sh -c "${CMD}"
