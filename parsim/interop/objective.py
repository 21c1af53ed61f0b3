"""What the step of a Trainer trains for: next tokens, preferences between two answers, a policy, or what parsim does not simulate.

Told by LLaMA-Factory's ``stage``, by TRL's command or script (``trl dpo``, ``dpo.py``), and by keys that only one of TRL's trainers has:
huggingface/trl, trl/trainer/*_config.py and trl/scripts; hiyouga/LLaMA-Factory, src/llamafactory/hparams/finetuning_args.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.trl_command import is_trl
from parsim.scenario.support import EXAMPLES

PATH = "training.objective"
PLAIN = ("sft", "pt")
"""stages whose step is one forward and one backward of one model on every sample"""
STAGES = {"dpo": "dpo", "kto": "kto", "orpo": "orpo", "cpo": "orpo", "simpo": "orpo", "rm": "reward", "reward": "reward"}
"""stages and trainers -> objectives; CPO and SimPO compare two answers without a reference model, as ORPO does"""
POLICY = "grpo"
"""what a trainer is told by whose updates are read (`parsim.interop.policy`)"""
ROLLOUTS = {
    "ppo": "PPO: answers are generated between the updates",
    "rloo": "RLOO: answers are generated between the updates",
    "gkd": "distillation: a teacher answers beside the model",
    "xpo": "XPO: answers are generated between the updates",
    "nash_md": "Nash-MD: answers are generated between the updates",
    "online_dpo": "online DPO: answers are generated between the updates",
    "prm": "rewards of single steps",
    "bco": "BCO: a classifier of its own beside the model",
    "own grpo": "GRPO: answers are generated between the updates",
    "answers": "answers are generated between the updates",
}
SCRIPTS = {"online_dpo": "online_dpo", "nash_md": "nash_md", POLICY: POLICY} | {
    name: name for name in (*ROLLOUTS, *STAGES) if name not in ("rm", "own grpo", "answers")
}
"""what stands in the name of a script, between its other words -> what it trains for; the first that does counts"""
GENERATING = {
    "num_ppo_epochs": "ppo",
    "rloo_k": "rloo",
    "normalize_advantages": "rloo",
    "reward_clip_range": "rloo",
    "num_generations": POLICY,
    "reward_funcs": POLICY,
    "max_completion_length": POLICY,
    "steps_per_generation": POLICY,
    "generation_batch_size": POLICY,
    "use_vllm": "answers",
    "vllm_mode": "answers",
}
"""keys of trainers that generate -> what they train for; the first that is there counts"""
ONLY = {
    "precompute_ref_log_probs": "dpo",
    "precompute_ref_batch_size": "dpo",
    "rpo_alpha": "dpo",
    "f_divergence_type": "dpo",
    "sync_ref_model": "dpo",
    "reference_free": "dpo",
    "desirable_weight": "kto",
    "undesirable_weight": "kto",
    "center_rewards_coefficient": "reward",
}
"""keys of one trainer -> what it trains for"""
SOME = ("beta", "max_prompt_length", "truncation_mode")
"""keys of several of them"""
REFERENCES = ("ref_model", "ref_model_name_or_path")
WITHOUT_REFERENCE = ("orpo", "simpo")
"""LLaMA-Factory's losses of stage dpo that need no reference model"""


@dataclass(frozen=True, slots=True)
class StatedObjective:
    """What is trained for, and what says so."""

    name: str
    key: Key | None = None
    note: str = ""


def write_objective(draft: ImportDraft, source: Source, call: Invocation | None, *, policies: bool = True) -> StatedObjective | None:
    """Write the objective, and where it is not told which one it is, ask the reader; other trainings that generate answers are refused.

    Where it is GRPO, and the tool has such `policies`, nothing is written, and what says so is given back (`parsim.interop.policy`).
    """
    told = _by_stage(source) or _by_command(call) or _by_keys(draft, source)
    if told is not None and told.name == POLICY and policies:
        if told.key is not None or is_trl(call) or source.all(*(name for name, other in GENERATING.items() if other == POLICY)):
            return told
        told = replace(told, name="own grpo")
    if told is not None:
        _write(draft, source, told, call)
    _settle_rest(draft, source, told)
    return None


def _write(draft: ImportDraft, source: Source, told: StatedObjective, call: Invocation | None) -> None:
    if told.name in ROLLOUTS:
        _refuse(draft, told, call)
    elif told.name in PLAIN:
        draft.harmless(told.key, "a step of one model")
    elif told.name in STAGES:
        _write_pairs(draft, source, StatedObjective(STAGES[told.name], told.key, told.note))
    else:
        draft.refuse(told.key, f"the objective {told.name}", f"parsim has {', '.join(dict.fromkeys(STAGES.values()))}")


def _by_stage(source: Source) -> StatedObjective | None:
    key = source.get("stage")
    return None if key is None else StatedObjective(str(key.value), key)


def _by_command(call: Invocation | None) -> StatedObjective | None:
    if call is None:
        return None
    if is_trl(call) and call.positional:
        word = call.positional[0].text
        return StatedObjective(word, None, f"trl {word}")
    for script in (call.program, *(word.text for word in call.positional if word.text.endswith(".py"))):
        stem = script.rpartition("/")[2].removesuffix(".py")
        words = f"_{stem.replace('-', '_').replace('.', '_').lower()}_"
        if (name := next((name for name in SCRIPTS if f"_{name}_" in words), None)) is not None:
            return StatedObjective(SCRIPTS[name], None, script)
    return None


def _by_keys(draft: ImportDraft, source: Source) -> StatedObjective | None:
    for name, objective in GENERATING.items():
        if (key := source.get(name)) is not None and not key.off:
            return StatedObjective(objective, key)
    for name, objective in ONLY.items():
        if (key := source.get(name)) is not None and not key.off:
            return StatedObjective(objective, key)
    if (key := next((key for name in SOME if (key := source.get(name)) is not None), None)) is not None:
        draft.fill(PATH, EXAMPLES[PATH], key)
    return None


def _refuse(draft: ImportDraft, told: StatedObjective, call: Invocation | None) -> None:
    if told.key is not None:
        draft.refuse(told.key, ROLLOUTS[told.name])
    elif call is not None:
        word = Key(told.name, told.note, told.name, draft.file, call.positional[0].line if call.positional else 1)
        draft.refuse(word, ROLLOUTS[told.name])


def _write_pairs(draft: ImportDraft, source: Source, told: StatedObjective) -> None:
    name, note, used = told.name, told.note, [told.key]
    loss, before = source.get("pref_loss"), source.get("precompute_ref_log_probs")
    if name == "dpo" and loss is not None and str(loss.value) in WITHOUT_REFERENCE:
        name, note = "orpo", "pairs without a reference model"
        used.append(loss)
    elif name == "dpo" and before is not None and draft.flag(before):
        name, note = "orpo", "the reference has answered before the training: pairs without a reference model"
        used.append(before)
    elif name == "dpo" and (free := source.get("reference_free")) is not None and draft.flag(free):
        name, note = "orpo", "pairs without a reference model"
        used.append(free)
    draft.write(PATH, name, *used, note=note)
    other = source.get(*REFERENCES)
    if other is not None and name in ("dpo", "kto"):
        draft.refuse(
            other, "a reference model that is another one than the trained", "leave it out: it is taken as the model before training"
        )
    again = source.get("sync_ref_model")
    if again is not None and draft.flag(again):
        draft.unmodelled(again, "updates of the reference model between steps")


def _settle_rest(draft: ImportDraft, source: Source, told: StatedObjective | None) -> None:
    """Keys of these trainers that change no work."""
    pairs = told is not None and told.name in STAGES
    why = "weighs the loss, or says which part of a sample is the answer" if pairs else "only of another stage"
    if pairs:
        _unpaired(draft, source.get("loss_type"), told)
    for key in source.all(*GENERATING, *ONLY, *SOME, "pref_loss", *REFERENCES, *(("loss_type",) if pairs else ())):
        if not draft.settled(key):
            draft.harmless(key, why)


def _unpaired(draft: ImportDraft, key: Key | None, told: StatedObjective | None) -> None:
    """A loss of KTO that needs no answers to other prompts."""
    if key is not None and told is not None and told.name == "kto" and str(key.value) == "apo_zero_unpaired":
        draft.unmodelled(key, "it reads no answers to other prompts; the scenario has KTO's, which does")
