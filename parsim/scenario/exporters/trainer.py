"""What Hugging Face's ``TrainingArguments`` say beside accelerate's YAML, and mixed precision, which both say."""

from __future__ import annotations

from typing import Any

from parsim.scenario.exporters.draft import Draft

MIXED = {
    "fp32": "no", "tf32": "no", "pure-bf16": "no", "amp-bf16": "bf16", "amp-fp16": "fp16", "bf16": "bf16", "fp16": "fp16",
    "bf16-fp32grad": "bf16", "fp16-fp32grad": "fp16", "fp8": "fp8",
}  # fmt: skip
OPTIM = {
    "adam": "adamw_torch", "adamw": "adamw_torch", "sgd": "sgd", "momentum": "sgd", "adam-8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor", "lion": "lion_32bit",
}  # fmt: skip
FP8 = {"fp8_backend": "TE", "fp8_format": "HYBRID"}


def precision(draft: Draft) -> dict[str, Any]:
    """``mixed_precision``: weights stay in fp32 there, in shards, and are cast when they are gathered or used."""
    path, name = "training.precision", draft.job.precision
    if name not in MIXED:
        text = f"mixed_precision cannot store {draft.job.stored}"
        draft.refuses(path, text, f"use one of {', '.join(MIXED)}")
        return {}
    mixed = MIXED[name]
    draft.says(path, f"mixed_precision: {mixed}")
    if name == "pure-bf16":
        draft.script.append("from_pretrained(dtype=torch.bfloat16)")
    elif name in ("bf16", "fp16", "bf16-fp32grad", "fp16-fp32grad", "fp8"):
        simulated = draft.job.built.bytes_per_parameter
        draft.remarks(path, f"weights and gradients are fp32 there, amp-{mixed if mixed != 'fp8' else 'bf16'}; simulated: {simulated}")
    elif mixed != "no" and draft.job.built.parallelism.data.strategy not in ("none", "ddp"):
        draft.remarks(path, f"FSDP reduces gradients in {mixed} there; simulated: fp32")
    return {"mixed_precision": mixed} | ({"fp8_config": dict(FP8)} if mixed == "fp8" else {})


def trainer_arguments(draft: Draft, document: dict[str, Any]) -> list[str]:
    """The script's arguments; accelerate's YAML has no keys for them."""
    job, training = draft.job, draft.job.built.training
    section = job.settings.training
    optim = draft.scripted("training.optimizer.name", f'optim="{_optim(draft)}"')
    draft.scripted("training.optimizer.implementation", optim)
    arguments = [
        draft.scripted("training.micro_batch", f"per_device_train_batch_size={training.micro_batch}"),
        draft.scripted("training.gradient_accumulation", f"gradient_accumulation_steps={training.micro_batches}"),
        optim,
        draft.scripted("training.optimizer.clip_gradients", f"max_grad_norm={1.0 if training.optimizer.clip_gradients else 0.0}"),
    ]
    draft.scripted("training.global_batch", f"it follows: {job.built.batch_arithmetic}")
    if training.optimizer.name == "momentum":
        arguments.append('optim_args="momentum=0.9"')
    epochs = draft.scripted("training.epochs", f"num_train_epochs={section.epochs or 1:g}")
    if section.examples is not None:
        arguments.append(epochs)
    draft.lacks("training.examples", "the data set's")
    if "fsdp_config" not in document:
        checkpointing = draft.scripted("training.recompute", f"gradient_checkpointing={training.recompute.mode == 'full'}")
        arguments += [checkpointing] if training.recompute.mode == "full" else []
        arguments += _ddp(draft)
    if training.precision.matmul == "tf32":
        arguments.append("tf32=True")
    if job.settings.software.fusion == "compiled":
        arguments.append(draft.scripted("software.fusion", "torch_compile=True"))
    return arguments


def _ddp(draft: Draft) -> list[str]:
    bucket = draft.job.built.parallelism.data.bucket
    if bucket is None:
        return []
    amount, unit = bucket
    size = amount if unit == "bytes" else amount * draft.job.built.training.precision.gradients
    return [draft.scripted("parallel.data.bucket", f"ddp_bucket_cap_mb={size / 2**20:g}")]


def _optim(draft: Draft) -> str:
    optimizer = draft.job.built.training.optimizer
    name = OPTIM[optimizer.name]
    if name == "adamw_torch" and optimizer.implementation == "fused":
        name = "adamw_torch_fused"
    if optimizer.name == "adam":
        draft.remarks("training.optimizer.name", "the Trainer's Adam decouples weight decay (AdamW); states and work are the same")
    return name
