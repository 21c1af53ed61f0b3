"""DeepSpeed-Chat's ``main.py``: options beside those that it shares with the Trainer, and a DeepSpeed configuration made of them.

deepspeedai/DeepSpeedExamples, applications/DeepSpeed-Chat: training/step1_supervised_finetuning/main.py, step2_reward_model_finetuning,
step2_dpo_finetuning, dschat/utils/ds_utils.py (get_train_ds_config) and dschat/utils/module/lora.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.interop.command import Invocation
from parsim.interop.deepspeed_named import brought_tree
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.scenario.support import EXAMPLES

DEFAULTS: Mapping[str, Any] = {"per_device_train_batch_size": 16, "max_seq_len": 512}
"""where the Trainer has others"""
STEPS = {"step1": "", "supervised": "", "step2_dpo": "dpo", "dpo": "dpo", "step2": "reward", "reward": "reward"}
"""words in a script's path -> what its step trains for; the first that is there counts"""
BLOCKS = ("layers.", "decoder.layers.", "h.", "transformer.h.", "model.layers.")
"""names of modules in which all linear layers are those of the blocks"""
OWN = (
    "data_split", "sft_only_data_path", "data_output_path", "num_warmup_steps", "lora_learning_rate", "enable_tensorboard",
    "tensorboard_path", "print_loss", "add_eot_token", "eot_token", "num_padding_at_beginning", "eval_interval", "eval_iters",
)  # fmt: skip
_FINETUNE = "training.finetune"


def is_chat(call: Invocation | None, source: Source) -> bool:
    """Whether a command runs one of DeepSpeed-Chat's first two steps: their options, and DeepSpeed without a file."""
    switch = source.get("deepspeed")
    return call is not None and "data_split" in source and switch is not None and switch.value is True and "actor_zero_stage" not in source


def with_defaults(source: Source) -> Source:
    """The options, with those that have other defaults there."""
    more = (Key(name, f"{name} of DeepSpeed-Chat", value, "main.py") for name, value in DEFAULTS.items() if name not in source)
    return Source((*more, *source.keys), source.table)


def chat_states(draft: ImportDraft, source: Source) -> Source:
    """The DeepSpeed configuration that the script makes of its options."""
    stage, away, switch = source.get("zero_stage"), source.get("offload"), source.get("deepspeed")
    device = {"device": "cpu" if draft.flag(away) else "none"}
    kind = source.get("dtype")
    section: dict[str, Any] = {
        "stage": draft.whole(stage, 0) or 0,
        "overlap_comm": True,
        "offload_optimizer": device,
        "offload_param": device,
    }
    if section["stage"] == 3:
        section |= {"stage3_max_live_parameters": 30_000_000, "stage3_prefetch_bucket_size": 30_000_000}
    else:
        del section["offload_param"]
    half = "bf16" if kind is not None and str(kind.value) == "bf16" else "fp16"
    for key in (stage, away, switch):
        if key is not None:
            draft.write("software.profile", "deepspeed", key)
    tree = {half: {"enabled": True}, "zero_optimization": section, "gradient_clipping": 1.0}
    return brought_tree(draft, Key("deepspeed", "--deepspeed", "get_train_ds_config", draft.file, switch.line if switch else None), tree)


def write_chat(draft: ImportDraft, source: Source) -> None:
    """What the step trains for, as the script's path says, and its adapters."""
    split = source.get("data_split")
    path = draft.file.replace("\\", "/").lower()
    word = next((word for word in STEPS if word in path), None)
    if word is None and "training.objective" not in draft.lines:
        draft.fill("training.objective", f"which of DeepSpeed-Chat's steps it is: {EXAMPLES['training.objective']}", split)
    elif word is not None and STEPS[word] and "training.objective" not in draft.lines:
        draft.write("training.objective", STEPS[word], note=f"{word}, in the path of the script")
    rank, where, alone = source.get("lora_dim"), source.get("lora_module_name"), source.get("only_optimize_lora")
    count = draft.whole(rank, 0) or 0
    if count and where is not None and str(where.value) not in BLOCKS:
        draft.refuse(where, "adapters in some modules only", f"parsim reads {', '.join(BLOCKS)}")
    elif count:
        draft.write(f"{_FINETUNE}.method", "lora", rank)
        draft.write(f"{_FINETUNE}.rank", count, rank)
        draft.write(f"{_FINETUNE}.targets", "all-linear", where, note="" if where else "decoder.layers. if not given")
        draft.write(f"{_FINETUNE}.dropout", 0.0)
        if not draft.flag(alone):
            draft.write(f"{_FINETUNE}.train_embeddings", True, note="without --only_optimize_lora what has no adapter trains too")
            draft.remark("norms and biases train beside the adapters there, and are frozen here", f"{_FINETUNE}.train_embeddings")
    for key in (rank, where, alone):
        draft.harmless(key, "adapters as the rank says; there are none without one")
    for key in source.all(*OWN):
        draft.harmless(key, "data, learning rates and logging of DeepSpeed-Chat")
    share = source.get("dropout")
    if (probability := draft.number(share)) is not None:
        draft.write("training.dropout", probability, share)
    draft.only_if(source.get("compute_fp32_loss"), (False,), "a loss in fp32")
