"""Keys that the user's own training script and model code decide where the tool only distributes a model."""

from __future__ import annotations

from parsim.scenario.exporters.draft import Draft

ATTENTION = {
    "flash2": "flash_attention_2",
    "flash3": "flash_attention_3",
    "eager": "eager",
    "mem-efficient": "sdpa",
    "cudnn": "sdpa",
}
"""attn_implementation in huggingface/transformers"""


def model_code(draft: Draft) -> None:
    """The sequence length, the loss, dropout and attention: said with the calls of Hugging Face's libraries."""
    training, section = draft.job.built.training, draft.job.settings.training
    if section.sequence_length is not None:
        draft.script.append(draft.scripted("training.sequence_length", f"tokenizer(..., max_length={section.sequence_length})"))
    attention = ATTENTION.get(training.attention)
    if section.attention != "auto" and attention is not None:
        text = f'from_pretrained(attn_implementation="{attention}")'
        draft.script.append(draft.scripted("training.attention", text))
    if attention is None:
        draft.lacks("training.attention", "the model's code decides")
    draft.lacks("training.dropout", f"the model's configuration decides; simulated: {training.dropout:g}")
    for key, value in (("kind", training.loss), ("kernel", training.loss_kernel), ("chunks", training.loss_chunks)):
        draft.lacks(f"training.loss.{key}", f"the model's code decides; simulated: {value}")
    if draft.job.settings.software.fusion == "compiled":
        draft.scripted("software.fusion", "torch.compile(model)")
    elif draft.job.built.runtime.megatron:
        profile = draft.job.built.runtime.profile
        draft.remarks("software.profile", f"simulated with the kernels of {profile}; what this stack would take: pytorch-2 or deepspeed")
