"""The training recipe as Megatron-LM arguments."""

from __future__ import annotations

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.every_tool import partial_batch

PRECISIONS = {
    "fp32": [],
    "tf32": [],
    "bf16": ["--bf16", "--grad-reduce-in-bf16"],
    "bf16-fp32grad": ["--bf16"],
    "fp16": ["--fp16"],
    "fp16-fp32grad": ["--fp16", "--accumulate-allreduce-grads-in-fp32"],
    "fp8": ["--bf16", "--fp8-format hybrid"],
}
"""preset -> arguments; --bf16 alone accumulates gradients in fp32"""
ATTENTION = {"flash2": "flash", "flash3": "flash", "cudnn": "fused", "eager": "unfused"}
MODULES = {"attention": "core_attn", "mlp": "mlp", "norm": "layernorm"}
OPTIMIZERS = {
    "adam": ["--optimizer adam"],
    "adamw": ["--optimizer adam"],
    "sgd": ["--optimizer sgd", "--sgd-momentum 0.0"],
    "momentum": ["--optimizer sgd", "--sgd-momentum 0.9"],
    "lion": ["--optimizer lion"],
}


def training_arguments(draft: Draft) -> list[str]:
    """Batch, precision, optimizer, recomputation and what the layers do."""
    job = draft.job
    training, section = job.built.training, job.settings.training
    partial_batch(draft)
    arguments = [
        draft.says("training.micro_batch", f"--micro-batch-size {training.micro_batch}"),
        draft.says("training.global_batch", f"--global-batch-size {training.global_batch}"),
    ]
    draft.says("training.gradient_accumulation", f"follows: {job.built.batch_arithmetic}")
    if job.built.steps_to_train is not None:
        steps = draft.says("training.examples", f"--train-iters {job.built.steps_to_train}")
        draft.says("training.epochs", steps)
        arguments.append(steps)
    if section.finetune is not None:
        text = "pretrain_gpt.py trains all parameters"
        draft.refuses("training.finetune.method", text, "use --to deepspeed or --to fsdp, and PEFT in the script")
        for key in type(section.finetune).model_fields:
            draft.lacks(f"training.finetune.{key}", text)
    return [
        *arguments,
        *_precision(draft),
        *_optimizer(draft),
        *_loss(draft),
        *_attention(draft),
        *_recompute(draft),
        *_offload(draft),
        *_software(draft),
    ]


def _precision(draft: Draft) -> list[str]:
    path, name = "training.precision", draft.job.precision
    if name in PRECISIONS:
        draft.says(path, " ".join(PRECISIONS[name]) or "the default, fp32")
        return PRECISIONS[name]
    if name.startswith("amp"):
        text, hint = "weights are in half precision with an fp32 master there, not autocast", "use bf16-fp32grad, or --to deepspeed or fsdp"
    elif name == "pure-bf16":
        text, hint = "half-precision weights have an fp32 master there", "use bf16, or --to deepspeed or fsdp"
    else:
        text, hint = f"no arguments store {draft.job.stored}", f"use one of {', '.join(PRECISIONS)}"
    draft.refuses(path, text, hint)
    return []


def _optimizer(draft: Draft) -> list[str]:
    optimizer = draft.job.built.training.optimizer
    path = "training.optimizer.name"
    clip = draft.says("training.optimizer.clip_gradients", f"--clip-grad {1.0 if optimizer.clip_gradients else 0.0}")
    draft.lacks("training.optimizer.implementation", "the optimizer is always Transformer Engine's or apex's fused one")
    if optimizer.name not in OPTIMIZERS:
        draft.refuses(path, "it is not among Megatron-LM's optimizers", f"use one of {', '.join(OPTIMIZERS)}, or --to deepspeed or fsdp")
        return [clip]
    if optimizer.name == "adam":
        draft.remarks(path, "Megatron-LM's adam decouples weight decay (AdamW); states and work are the same")
    draft.says(path, " ".join(OPTIMIZERS[optimizer.name]))
    return [*OPTIMIZERS[optimizer.name], clip]


def _loss(draft: Draft) -> list[str]:
    training = draft.job.built.training
    draft.says("training.loss.kind", "the cross-entropy of the language-model head")
    if training.loss_chunks > 1:
        text = "the logits of a micro-batch are made at once there"
        draft.refuses("training.loss.chunks", text, "use chunks: 1, or --to deepspeed or fsdp, where the model's code is yours")
    draft.says("training.loss.chunks", "1")
    kernel = "training.loss.kernel"
    if training.loss_kernel == "fused":
        return [draft.says(kernel, "--cross-entropy-loss-fusion")]
    if training.loss_kernel == "eager":
        draft.lacks(kernel, "the cross-entropy is always the vocabulary-parallel one")
    else:
        draft.says(kernel, "always")
    return []


def _attention(draft: Draft) -> list[str]:
    training, config = draft.job.built.training, draft.job.architecture
    probability = f"{training.dropout:g}"
    hidden = draft.says("training.dropout", f"--hidden-dropout {probability}")
    dropped = config is None or config.attention_dropout
    arguments = [f"--attention-dropout {probability if dropped else '0'}", hidden]
    path, kernel = "training.attention", training.attention
    if kernel not in ATTENTION:
        hint = "use flash2, cudnn or eager, or --to fsdp or deepspeed, where attention is the model's"
        draft.refuses(path, f"there is no attention backend {kernel}", hint)
        return arguments
    if kernel == "flash3":
        draft.remarks(path, "--attention-backend flash takes FlashAttention 3 where it is installed, on Hopper")
    return [*arguments, draft.says(path, f"--attention-backend {ATTENTION[kernel]}")]


def _recompute(draft: Draft) -> list[str]:
    recompute = draft.job.built.training.recompute
    full = "--recompute-granularity full"
    said = {
        "none": [],
        "full": [full, "--recompute-method uniform", "--recompute-num-layers 1"],
        "every": [full, "--recompute-method uniform", f"--recompute-num-layers {recompute.every}"],
        "blocks": [full, "--recompute-method block", f"--recompute-num-layers {recompute.blocks}"],
        "selective": ["--recompute-granularity selective"],
    }[recompute.mode]
    if recompute.mode == "selective" and recompute.selective != ("attention",):
        said = [*said, f"--recompute-modules {' '.join(MODULES[part] for part in recompute.selective)}"]
    draft.says("training.recompute", " ".join(said) or "the default, none")
    return said


def _offload(draft: Draft) -> list[str]:
    offload = draft.job.built.training.offload
    for key in ("parameters", "activations"):
        path = f"training.offload.{key}"
        if getattr(offload, key) != "none":
            draft.refuses(path, f"no option keeps {key} in host memory between their uses there", "use --to deepspeed")
        else:
            draft.says(path, "the default, none")
    path = "training.offload.optimizer"
    draft.says("training.offload.gradients", "they follow the optimizer")
    if offload.optimizer == "none":
        draft.says(path, "the default, none")
        return []
    if offload.optimizer == "nvme":
        draft.refuses(path, "no option keeps optimizer states on drives there", "use --to deepspeed, or cpu")
    elif draft.job.built.parallelism.data.strategy != "zero1":
        text = "--optimizer-cpu-offload needs --use-distributed-optimizer (parallel.data.strategy: zero1)"
        draft.refuses(path, text, "use zero1, or --to deepspeed or --to fsdp")
    else:
        draft.remarks(path, "the CPU steps in torch.optim there, and parsim's times are those of DeepSpeed's kernel")
    return [draft.says(path, "--optimizer-cpu-offload"), "--use-precision-aware-optimizer"]


def _software(draft: Draft) -> list[str]:
    """Keys of the software section that are options there; kernels are the profile's otherwise."""
    software, runtime = draft.job.settings.software, draft.job.built.runtime
    arguments = []
    if software.gradient_accumulation_fusion is False or (
        draft.job.built.parallelism.data.strategy == "fsdp" and not runtime.gradient_accumulation_fusion
    ):
        arguments.append(draft.says("software.gradient_accumulation_fusion", "--no-gradient-accumulation-fusion"))
    if software.host.graphs:
        arguments.append(draft.says("software.host.graphs", "--enable-cuda-graph"))
    if software.fusion == "eager":
        text = "--no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-masked-softmax-fusion --no-persist-layer-norm"
        arguments += draft.says("software.fusion", text).split()
    elif software.fusion == "compiled":
        draft.remarks("software.fusion", "norms and activations are fused by Megatron-LM's own kernels, not by torch.compile")
    return arguments
