"""What axolotl's YAML trains for: next tokens, pairs, a policy on answers that are generated, or what parsim does not simulate.

axolotl-ai-cloud/axolotl, src/axolotl/core/builders/rl.py and core/trainers/grpo/__init__.py (set_training_args_kwargs): ``rl: grpo`` is
TRL's GRPOTrainer with the keys of the sections ``trl`` and ``vllm``. What they do not say is TRL's default, and ``sequence_len`` limits
neither prompts nor answers.
"""

from __future__ import annotations

from dataclasses import replace

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.policy import Policy, PolicyRules, policy_of, write_policy, write_policy_length

COMPARED = {("rl", word): name for word, name in (("dpo", "dpo"), ("ipo", "dpo"), ("orpo", "orpo"), ("simpo", "orpo"), ("kto", "kto"))} | {
    ("reward_model", "true"): "reward"
}
"""key and value -> what is trained for"""
OTHER_JOBS = {
    "rl": "answers are generated between the updates",
    "reward_model": "a reward model has another head and pairs of samples",
    "process_reward_model": "a reward model has another head",
    "unfrozen_parameters": "parsim freezes the first layers, or parts by kind (training.finetune.freeze), not names by pattern",
    "lisa_n_layers": "LISA trains other layers every few steps",
    "qat": "training with quantised weights",
    "diffusion": "a diffusion model's loss",
    "ebft": "reinforcement learning with generated samples",
    "trainer_cls": "a trainer of one's own",
}
"""keys that make another job of it"""
TRAINING = (
    "datasets",
    "pretraining_dataset",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "sequence_len",
    "learning_rate",
    "adapter",
)
"""keys of which a training has one"""
POLICIES = ("grpo", "gdpo")
"""words of ``rl`` for updates of a policy; GDPO norms rewards one by one"""
RULES = PolicyRules("axolotl", defaults={"vllm_gpu_memory_utilization": 0.9})


def refuse_other_jobs(draft: ImportDraft, source: Source) -> None:
    """Write the objective of pairs; refuse what parsim does not train for, by its key."""
    base = source.of("model")
    if base is not None and not source.all(*TRAINING):
        text = f"nothing of a training stands beside it: none of {', '.join(TRAINING)}"
        draft.errors.append(base.finding(text, "a recipe that merges models has this key, too"))
    for name, why in OTHER_JOBS.items():
        for key in [key for key in source.keys if key.name == name or key.name.startswith(f"{name}.")]:
            if key.value in (None, False, [], {}):
                draft.harmless(key, "switched off")
            elif name == "rl" and str(key.value).lower() in POLICIES:
                continue
            elif (objective := COMPARED.get((name, str(key.value).lower()))) is not None:
                draft.write("training.objective", objective, key)
            else:
                draft.errors.append(key.finding(f"not supported yet: {why}", "leave it out to simulate supervised training"))
    for key in source.keys:
        if key.name.startswith(("trl.", "vllm.", "dpo_", "kto_", "rl_beta", "orpo_", "cpo_", "simpo_")):
            draft.harmless(key, "it counts with rl only")


def policy_sections(source: Source) -> tuple[Source, Policy | None]:
    """The keys without those of a policy, and the policy by TRL's names; None where the file trains something else."""
    kind = source.get("rl")
    if kind is None or str(kind.value).lower() not in POLICIES:
        return source, None
    beta = "rl_beta" if "trl.beta" not in source else ""
    own = [key for key in source.keys if key.name.startswith(("trl.", "vllm.")) or key.name == beta]
    policy = Source((replace(key, name=_name(key)) for key in own), key_table("grpo"))
    return Source((key for key in source.keys if key not in own), source.table), policy_of(policy, RULES)


def _name(key: Key) -> str:
    section, _, name = key.name.partition(".")
    return name if section == "trl" else f"vllm_{name}" if section == "vllm" else "beta"


def write_answers(draft: ImportDraft, source: Source, policy: Policy) -> int | None:
    """The length of prompt and answer."""
    length = write_policy_length(draft, policy, *source.all(*source.table.rows["training.sequence_length"].names))
    for key in source.all("sample_packing", "pad_to_sequence_len"):
        draft.harmless(key, "a sample is a prompt and an answer")
    return length


def write_policy_job(draft: ImportDraft, source: Source, policy: Policy) -> None:
    """The objective and the memory that vLLM keeps, behind the batch."""
    write_policy(draft, policy, source.get("rl"))
    loss = policy.source.get("use_liger_loss")
    if draft.flag(loss):
        draft.unmodelled(loss, "Liger makes the logits answer by answer: here all of a micro-batch are stored")
    draft.harmless(loss, "switched off")
    draft.close(policy.source)
