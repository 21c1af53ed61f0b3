"""Types of weights, gradients and states as DeepSpeed's JSON says them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.job import preset_name

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {},
    "amp-bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "amp-fp16": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "bf16-fp32grad": {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"},
    "fp16-fp32grad": {"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"},
    "pure-bf16": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
}
MASTERLESS = "without ZeRO bf16 has no fp32 master weights there (DDP_BFLOAT16)"


def precision(draft: Draft) -> dict[str, Any]:
    """The keys, or a refusal."""
    job, path = draft.job, "training.precision"
    wanted = job.built.training.precision
    usual = preset_name(replace(wanted, reduce=wanted.gradients))
    if usual not in PRECISIONS:
        if usual == "fp8":
            draft.refuses(path, "no key turns fp8 matrix products on", "use bf16-fp32grad, or --to megatron or fsdp")
        else:
            text = f"no keys store {job.stored}"
            draft.refuses(path, text, f"use one of {', '.join(PRECISIONS)}")
        return {}
    said = dict(PRECISIONS[usual])
    if wanted.reduce != wanted.gradients:
        said["communication_data_type"] = "fp32" if wanted.reduce == 4 else "bf16" if wanted.matmul == "bf16" else "fp16"
    if usual == "pure-bf16" and job.built.parallelism.data.strategy in ("none", "ddp"):
        said["bf16"] = {"enabled": True}
    _without_zero(draft, usual)
    if usual == "tf32":
        draft.script.append("torch.backends.cuda.matmul.allow_tf32 = True")
    if usual == "pure-bf16" and "bf16_optimizer_states" in said["bf16"]:
        draft.remarks(path, "ZeRO keeps a second bf16 copy of its shard there (2 B/parameter more, sharded)")
    draft.says(path, ", ".join(f"{key}: {value}" for key, value in said.items()) or "the default, fp32")
    return said


def _without_zero(draft: Draft, usual: str) -> None:
    """What stage 0 cannot store (``_do_optimizer_sanity_check`` in runtime/engine.py); the pipeline engine has its own optimizer."""
    job, path = draft.job, "training.precision"
    if job.built.parallelism.data.strategy not in ("none", "ddp") or job.built.parallelism.pipeline.size > 1:
        return
    if usual in ("bf16", "bf16-fp32grad"):
        draft.refuses(path, MASTERLESS, "use parallel.zero 1, or precision: pure-bf16, amp-bf16 or fp16")
    elif usual == "fp16-fp32grad":
        draft.refuses(path, "without ZeRO gradients have the type of the weights there", "use parallel.zero 1, or precision: fp16")
