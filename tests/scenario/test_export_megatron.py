"""Exported Megatron-LM scripts: exact texts, and what is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from exports import GPT, arguments, exported, notes

from parsim.errors import InputError

WHOLE = """\
#!/bin/bash
# a GPT: model on 8 x 8 GPUs for Megatron-LM, written by parsim export
# data, tokenizer, learning rate and checkpoint arguments are added behind the script's name
# note: parallel.pipeline.overlap_sends: sends wait for each other there, they are overlapped in the interleaved
# schedule only
export CUDA_DEVICE_MAX_CONNECTIONS=1

DISTRIBUTED_ARGS=(
    --nnodes 8
    --nproc-per-node 8
    --node-rank "${NODE_RANK:-0}"
    --master-addr "${MASTER_ADDR:-localhost}"
    --master-port "${MASTER_PORT:-29500}"
)

MODEL_ARGS=(
    --num-layers 48
    --hidden-size 8192
    --ffn-hidden-size 32768
    --num-attention-heads 64
    --seq-length 2048
    --max-position-embeddings 2048
    --vocab-size 50257
    --make-vocab-size-divisible-by 128
    --position-embedding-type learned_absolute
    --normalization LayerNorm
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 8
    --sequence-parallel
    --pipeline-model-parallel-size 4
    --use-distributed-optimizer
    --overlap-grad-reduce
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --optimizer adam
    --clip-grad 1.0
    --attention-dropout 0.1
    --hidden-dropout 0.1
    --attention-backend flash
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "$@"
"""
PLAIN = arguments(WHOLE)


def test_a_whole_script() -> None:
    assert exported(GPT, "megatron").text == WHOLE


@pytest.mark.parametrize(
    ("overrides", "added", "removed"),
    [
        ("parallel.pipeline.schedule=interleaved parallel.pipeline.virtual_stages=3", "--num-virtual-stages-per-pipeline-rank 3", ""),
        (
            "parallel.pipeline.schedule=interleaved parallel.pipeline.virtual_stages=3 parallel.pipeline.overlap_sends=false",
            "--num-virtual-stages-per-pipeline-rank 3; --no-overlap-p2p-communication",
            "",
        ),
        ("parallel.pipeline.split=[10,12,12,14]", "--decoder-first-pipeline-num-layers 10; --decoder-last-pipeline-num-layers 14", ""),
        ("parallel.pipeline.split=[12,12,12,12]", "", ""),
        ("parallel.pipeline.split=[13,13,11,11]", f"--pipeline-model-parallel-layout 'E{'t' * 13}|{'t' * 13}|{'t' * 11}|{'t' * 11}L'", ""),
        ("parallel.context.size=2 parallel.context.method=ulysses", "--context-parallel-size 2; --cp-comm-type a2a", ""),
        ("parallel.order=[tensor,context,pipeline,data]", "--use-tp-pp-dp-mapping", ""),
        ("parallel.data.strategy=ddp", "", "--use-distributed-optimizer"),
        ("parallel.data.overlap_gather=true", "--overlap-param-gather", ""),
        ("parallel.data.overlap_reduce=false", "", "--overlap-grad-reduce"),
        ("parallel.data.bucket='25 MiB'", "--ddp-bucket-size 6553600", ""),
        ("parallel.data.bucket='40e6 elements'", "--ddp-bucket-size 40000000", ""),
        ("training.precision=bf16", "--grad-reduce-in-bf16", ""),
        ("training.precision=fp16", "--fp16", "--bf16"),
        ("training.precision={preset: fp16, gradients: fp32}", "--fp16; --accumulate-allreduce-grads-in-fp32", "--bf16"),
        ("training.precision=fp32 training.attention=eager", "--attention-backend unfused", "--bf16; --attention-backend flash"),
        (
            "training.precision={preset: bf16-fp32grad, optimizer: bf16, master: bf16}",
            "--use-precision-aware-optimizer; --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            "",
        ),
        ("training.precision={preset: bf16-fp32grad, master: bf16}", "--use-precision-aware-optimizer", ""),
        ("training.recompute=full", "--recompute-granularity full; --recompute-method uniform; --recompute-num-layers 1", ""),
        ("training.recompute={every: 4}", "--recompute-granularity full; --recompute-method uniform; --recompute-num-layers 4", ""),
        ("training.recompute={blocks: 2}", "--recompute-granularity full; --recompute-method block; --recompute-num-layers 2", ""),
        ("training.recompute=selective", "--recompute-granularity selective", ""),
        ("training.recompute={selective: [attention, mlp]}", "--recompute-granularity selective; --recompute-modules core_attn mlp", ""),
        ("training.optimizer=momentum", "--optimizer sgd; --sgd-momentum 0.9", "--optimizer adam"),
        ("training.optimizer.clip_gradients=false", "--clip-grad 0.0", "--clip-grad 1.0"),
        ("training.dropout=0", "--attention-dropout 0; --hidden-dropout 0", "--attention-dropout 0.1; --hidden-dropout 0.1"),
        ("training.loss.kernel=vocab-parallel-fused", "--cross-entropy-loss-fusion", ""),
        ("training.examples=1280 training.epochs=3", "--train-iters 30", ""),
        ("software.gradient_accumulation_fusion=false", "--no-gradient-accumulation-fusion", ""),
        ("software.host.graphs=true", "--enable-cuda-graph", ""),
        ("software.host.graphs=[router,experts]", "--enable-cuda-graph; --cuda-graph-scope moe", ""),
        ("software.host.graphs=[attention,mamba,mlp]", "--enable-cuda-graph; --cuda-graph-scope attn mamba mlp", ""),
        ("parallel.tensor.sequence_parallel=false", "", "--sequence-parallel"),
    ],
)
def test_what_a_key_adds_and_removes(overrides: str, added: str, removed: str) -> None:
    words = re.findall(r"\S+=\{.*?\}|\S+='.*?'|\S+", overrides)
    found = arguments(exported(GPT, "megatron", *words).text)
    assert [line for line in found if line not in PLAIN] == [line for line in added.split("; ") if line]
    assert [line for line in PLAIN if line not in found] == [line for line in removed.split("; ") if line]


def model_of(name: str, *overrides: str) -> list[str]:
    base = {**GPT, "model": name, "parallel": {"tensor": {"size": 8}, "data": {"strategy": "zero1"}}}
    return arguments(exported(base, "megatron", *overrides).text.partition("PARALLEL_ARGS")[0])


def test_the_structure_of_other_models() -> None:
    assert model_of("llama-3-8b") == [
        "--num-layers 32", "--hidden-size 4096", "--ffn-hidden-size 14336", "--num-attention-heads 32", "--group-query-attention",
        "--num-query-groups 8", "--seq-length 2048", "--max-position-embeddings 8192", "--vocab-size 128256",
        "--make-vocab-size-divisible-by 128", "--position-embedding-type rope", "--normalization RMSNorm", "--swiglu",
        "--disable-bias-linear", "--untie-embeddings-and-output-weights",
    ]  # fmt: skip
    mixtral = ["--num-experts 8", "--moe-router-topk 2", "--moe-ffn-hidden-size 14336", "--moe-grouped-gemm"]
    assert model_of("mixtral-8x7b")[-4:] == mixtral
    deepseek = model_of("deepseek-v2-lite")
    for text in (
        "--moe-layer-freq '([0]*1+[1]*26)'", "--moe-shared-expert-intermediate-size 2816", "--moe-router-pre-softmax",
        "--multi-latent-attention", "--kv-lora-rank 512", "--qk-head-dim 128", "--qk-pos-emb-head-dim 64", "--v-head-dim 128",
    ):  # fmt: skip
        assert text in deepseek
    assert "--add-qkv-bias" in model_of("qwen2.5-32b")
    assert {"--qk-layernorm", "--kv-channels 128"} <= set(model_of("qwen3-32b"))
    assert "--window-size 4095,0" in model_of("mistral-7b")


def test_torch_fsdp2_with_what_its_checks_ask_for() -> None:
    base = {**GPT, "model": "llama-3-8b", "parallel": {"tensor": {"size": 2}, "data": {"strategy": "fsdp"}}}
    result = exported(base, "megatron", "parallel.data.reshard_after_forward=false")
    found = arguments(result.text)
    for text in (
        "--use-torch-fsdp2",
        "--ckpt-format torch_dist",
        "--no-gradient-accumulation-fusion",
        "--torch-fsdp2-no-reshard-after-forward",
    ):
        assert text in found
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in result.text


@pytest.mark.parametrize(
    ("overrides", "path", "rule"),
    [
        (["parallel.data.strategy=zero3"], "parallel.data.strategy", r"shards optimizer states only.*--to deepspeed or --to fsdp"),
        (["parallel.data.strategy=zero2"], "parallel.data.strategy", r"--to deepspeed"),
        (["parallel.data.strategy=hsdp", "parallel.pipeline.size=1", "parallel.data.shard_size=2"], "parallel.data.strategy", r"--to fsdp"),
        (["parallel.pipeline.schedule=gpipe"], "parallel.pipeline.schedule", r"gpipe is not among Megatron-LM's schedules"),
        (["parallel.order=[data,tensor,context,pipeline]"], "parallel.order", r"ranks are numbered tensor, context, data, pipeline or"),
        (["training.precision=amp-bf16"], "training.precision", r"not autocast; use bf16-fp32grad, or --to deepspeed or fsdp"),
        (
            ["training.precision.optimizer=bf16", "parallel.data.strategy=ddp"],
            "training.precision",
            r"precision-aware-optimizer needs .* use zero1",
        ),
        (["training.optimizer=adafactor"], "training.optimizer.name", r"not among Megatron-LM's optimizers"),
        (["training.finetune={method: lora}"], "training.finetune.method", r"pretrain_gpt.py trains all parameters"),
        (["training.step=false"], "training.step", r"always steps"),
        (["training.attention=mem-efficient"], "training.attention", r"no attention backend mem-efficient"),
        (
            ["parallel.data.overlap_reduce=false", "parallel.data.overlap_gather=true"],
            "parallel.data.overlap_gather",
            r"needs --overlap-grad",
        ),
        (["model=bloom-7b1", "parallel.pipeline.size=2"], "model.position", r"no alibi positions there.*--to deepspeed"),
        (["model=mamba-codestral-7b"], "model.mixer", r"pretrain_mamba.py's, not pretrain_gpt.py's.*--to deepspeed"),
        (
            ["cluster.gpus=12", "parallel.tensor.size=4", "parallel.pipeline.size=1", "training.global_batch=126"],
            "cluster.gpus",
            r"8, 4 processes",
        ),
    ],
)
def test_what_megatron_cannot_run_is_refused(overrides: list[str], path: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        exported(GPT, "megatron", *overrides)
    finding = next(finding for finding in caught.value.findings if finding.path == path)
    assert re.search(rule, f"{finding.message}; {finding.suggestion}")
    assert caught.value.exit_code == 2


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        exported(GPT, "megatron", "parallel.pipeline.schedule=gpipe", "training.precision=amp-bf16", "training.optimizer=adafactor")
    paths = {finding.path for finding in caught.value.findings}
    assert paths == {"parallel.pipeline.schedule", "training.precision", "training.optimizer.name"}


def test_remarks_say_what_differs() -> None:
    base = {**GPT, "software": {"profile": "deepspeed"}}
    found = notes(exported(base, "megatron", "parallel.tensor.sequence_parallel=false", "training.optimizer=adam"))
    assert "2021 to 2023" in found["parallel.pipeline.scatter_sends"]
    assert "AdamW" in found["training.optimizer.name"]
    assert "deepspeed" in found["software.profile"]


@pytest.mark.parametrize("name", ["plain", 'a "$(touch broken)" `touch broken` \\', "two\nlines; touch broken", "名前"])
def test_bash_accepts_the_script_whatever_the_job_is_called(name: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    layout = "parallel.pipeline.split=[13,13,11,11]"
    script.write_text(exported({**GPT, "name": name}, "megatron", layout).text.replace("torchrun", "echo"), encoding="utf-8")
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    words = subprocess.run(["bash", script, "--mock-data"], capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert words[-1] == "--mock-data"
    assert words[words.index("--node-rank") + 1] == "0"
    assert words[words.index("--pipeline-model-parallel-layout") + 1].count("|") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["job.sh"]
