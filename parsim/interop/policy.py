"""Updates of a policy by TRL's GRPOTrainer, and by tools that are built on it, as a scenario: one update on answers that are there.

huggingface/trl, trl/trainer/grpo_trainer.py (_generate_and_score_completions, _get_per_token_logps_and_entropies): answers are generated
and scored; the reference model reads them where the loss has a KL term, and the policy itself does where they may be an older policy's;
then every answer is trained on. A step of the scenario is one update with its share of those forward passes, which there, too, have the
micro-batches of the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import machine_size
from parsim.interop.keys import Key, Source
from parsim.interop.policy_memory import write_vllm
from parsim.interop.trl_versions import VERSION, TrlVersions, versions_of

PATH = "training.objective"
NAMES = {
    (True, True): "grpo",
    (True, False): "grpo-without-reference",
    (False, True): "grpo-on-policy",
    (False, False): "grpo-on-policy-without-reference",
}
"""whether the policy reads the answers before the update, and whether a reference model does -> objective"""
STEPS = ("steps_per_generation", "generation_batch_size")
CORRECTION = "vllm_importance_sampling_correction"
GENERATIONS = 8
"""default of num_generations"""


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """How a tool runs such updates, where it has ways of its own."""

    tool: str = "TRL"
    prompt: tuple[str, ...] = ("max_prompt_length",)
    """its keys for the longest prompt"""
    answer: tuple[str, ...] = ("max_completion_length",)
    """and for the longest answer"""
    own_pass: bool | None = None
    """whether the policy always reads the answers before the update; None: only where they may be an older policy's"""
    always_since: str = ""
    """the version that began to do so always, where it is not known which one it is"""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """what it takes where a key is not given; of others, TRL's"""


TRL = PolicyRules()


@dataclass(frozen=True, slots=True)
class Policy:
    """The keys of such an update, by their names in GRPOConfig, and what is taken where they are not given."""

    source: Source
    rules: PolicyRules
    versions: TrlVersions

    def default(self, name: str) -> tuple[Any, str] | None:
        """The value of a key that is not given, with a note; None where it depends on the version of TRL."""
        if name in self.rules.defaults:
            value = self.rules.defaults[name]
            return value, f"{name} is {str(value).lower()} if not given"
        return self.versions.default(name)

    def flag(self, draft: ImportDraft, name: str) -> bool | None:
        """A switch; None where it is not given and depends on the version of TRL."""
        if (key := self.source.get(name)) is not None:
            return draft.flag(key)
        known = self.default(name)
        return None if known is None else bool(known[0])


def policy_of(source: Source, rules: PolicyRules) -> Policy:
    """The policy of these keys."""
    names = (key.name for key in source.keys if not key.written.startswith("vllm."))
    return Policy(source, rules, versions_of(names, own=rules is TRL))


def write_policy_length(draft: ImportDraft, policy: Policy, *unread: Key) -> int | None:
    """Prompt and answer, both as long as they may be; `unread` are lengths that count for other trainings."""
    source, path = policy.source, "training.sequence_length"
    prompt, answer = source.get(*policy.rules.prompt), source.get(*policy.rules.answer)
    keys = [key for key in (prompt, answer, *unread) if key is not None]
    if draft.given.sequence_length is not None:
        draft.write(path, draft.given.sequence_length, note="--sequence")
        for key in keys:
            draft.harmless(key, "replaced by --sequence")
        return draft.given.sequence_length
    first, second = (_longest(draft, policy, key, name) for key, name in ((prompt, "prompt"), (answer, "completion")))
    if first and second:
        note = f"a prompt of {first} and an answer of {second} tokens; shorter samples: add mean_sequence_length"
        draft.write(path, first + second, prompt, answer, note=note)
        for key in unread:
            draft.harmless(key, "the lengths of prompt and answer count")
        return first + second
    words = [f"{size} of {of}" if size else f"tokens of {of}" for size, of in ((first, "a prompt"), (second, "an answer"))]
    limits = "".join(f"; {key.written} limits neither" for key in unread)
    draft.fill(path, f"{' + '.join(words)} (--sequence){limits}", *keys)
    return None


def _longest(draft: ImportDraft, policy: Policy, key: Key | None, what: str) -> int | None:
    """Tokens of a prompt or an answer at most; None where nothing says it."""
    if key is not None:
        return draft.whole(key, 1)
    if what == "prompt" and policy.rules.prompt != TRL.prompt:
        return None
    known = policy.default(f"max_{what}_length")
    return known[0] or None if known is not None else None


def write_policy(draft: ImportDraft, policy: Policy, told: Key | None) -> None:
    """The objective, behind the batch: which forward passes come before an update, and the memory that vLLM keeps."""
    source, rules = policy.source, policy.rules
    again, answers = source.get("num_iterations"), source.get("num_generations")
    if (count := draft.whole(again, 1)) is not None and count > 1:
        draft.refuse(again, "several updates on the same answers, which share their forward passes", "use 1")
    draft.harmless(again, "every answer is trained on once")
    group = draft.whole(answers, 1) if answers is not None else GENERATIONS
    beta, steps = source.get("beta"), source.get(*STEPS)
    _write_objective(draft, policy, _steps(draft, policy, steps, group), [told, beta, steps, source.get(CORRECTION)])
    draft.harmless(answers, f"{group} answers to a prompt: the batch counts answers")
    draft.harmless(source.get("loss_type"), "how answers are weighed")
    synced = source.get("sync_ref_model")
    if synced is not None and draft.flag(synced):
        draft.unmodelled(synced, "updates of the reference model between steps")
    draft.harmless(synced, "the reference model stays as it is")
    draft.harmless(source.get("reward_funcs"), "generating and scoring answers is not part of the step")
    _refuse_other_reference(draft, source)
    for key in source.all("reward_model", "reward_model_name_or_path"):
        draft.unmodelled(key, "reward models that lie on the GPUs of the training")
    if (prompts := draft.value("training.examples")) is not None and group is not None:
        draft.write("training.examples", prompts * group, note=f"--examples: {prompts} prompts x {group} answers")
    write_vllm(draft, source, policy.default, used=bool(rules.defaults.get("use_vllm")))
    draft.remark("a step is one update with its forward passes: generating and scoring the answers is not part of it", PATH)


def _refuse_other_reference(draft: ImportDraft, source: Source) -> None:
    """Another reference model than the policy before training; without a KL term none is loaded."""
    names = source.table.rows["model"].names if "model" in source.table.rows else ()
    named = source.get(*names)
    for key in source.all("ref_model", "ref_model_name_or_path"):
        if (named is None or key.text != named.text) and not str(draft.value(PATH)).endswith("without-reference"):
            text = "a reference model that is another one than the trained"
            draft.refuse(key, text, "leave it out: it is taken as the model before training")
        draft.harmless(key, "the model before training, or none")


@dataclass(frozen=True, slots=True)
class _PassBefore:
    """Whether a forward pass comes before the update (None: that is open), and why."""

    runs: bool | None
    note: str = ""
    cause: str = ""
    """what would say it, where it is open"""


def _write_objective(draft: ImportDraft, policy: Policy, steps: int | None, keys: list[Key | None]) -> None:
    """The objective, by what every version of TRL does that the keys can be for; where that is not the same, it is asked."""
    parts, causes = policy.versions.parts("beta", CORRECTION), []
    found: dict[str, tuple[TrlVersions, str]] = {}
    for part in parts:
        one = replace(policy, versions=part)
        own, reference = _own_pass(draft, one, steps), _reference(draft, one)
        causes += [own.cause] if own.cause else []
        for (first, second), name in NAMES.items():
            if own.runs in (first, None) and reference.runs == second:
                found.setdefault(name, (part, "; ".join(each.note for each in (own, reference) if each.note)))
    name, (_, why) = next(iter(found.items()))
    if len(found) == 1:
        draft.write(PATH, name, *keys, note=why)
        return
    words = [name + ("" if part is parts[0] else f" since TRL {'.'.join(map(str, part.first))}") for name, (part, _) in found.items()]
    draft.fill(PATH, f"{', or '.join(words)}: {why}", *keys)
    if len(parts) > 1 or causes:
        draft.causes[PATH] = causes[0] if causes else VERSION


def _reference(draft: ImportDraft, policy: Policy) -> _PassBefore:
    """The reference model's, for the KL term."""
    if (beta := policy.source.get("beta")) is not None:
        weight = draft.number(beta)
        return _PassBefore(bool(weight), "" if weight else "without a KL term")
    weight, note = policy.default("beta") or (0.0, "")
    return _PassBefore(bool(weight), note)


def _own_pass(draft: ImportDraft, policy: Policy, steps: int | None) -> _PassBefore:
    """The policy's own, for how likely an older one found the answers, or vLLM did; `steps` are micro-batches generated together."""
    rules, accumulated = policy.rules, draft.value("training.gradient_accumulation")
    if rules.own_pass:
        return _PassBefore(True, f"{rules.tool} always reads the answers before the update")
    if policy.source.get(*STEPS) is not None:
        if steps is None or not isinstance(accumulated, int):
            text = "the policy reads the answers before the update unless all of them are generated for it"
            return _PassBefore(None, text, "cluster.topology" if draft.given.on is None and isinstance(accumulated, int) else "")
        if accumulated % steps:
            text = f"{steps} micro-batches are generated together, and an update takes {accumulated}: the policy has changed in between"
            return _PassBefore(True, text)
    if rules.always_since:
        text = f"the policy reads the answers before the update since {rules.tool} {rules.always_since}"
        return _PassBefore(None, text, f"the version of {rules.tool}")
    if draft.flag(policy.source.get("use_vllm")) and policy.flag(draft, CORRECTION):
        return _PassBefore(True, "vLLM's probabilities are held against the policy's own")
    return _PassBefore(False, "answers are the updated policy's own")


def _steps(draft: ImportDraft, policy: Policy, steps: Key | None, group: int | None) -> int | None:
    """Micro-batches that are generated together, where they are said; a whole number of prompts with all their answers."""
    micro, world, per_update = draft.value("training.micro_batch"), _world(draft), draft.value("training.gradient_accumulation")
    together = micro * world if isinstance(micro, int) and world is not None else None
    count = draft.whole(steps, 1)
    if not isinstance(per_update, int):
        return None
    if steps is not None and count is not None and steps.name == "generation_batch_size":
        if together is not None and count % together:
            text = f"{count} answers of a generation / ({micro} samples x {world} GPUs) = {count / together:.4g} is not whole"
            draft.errors.append(steps.finding(text, "use a multiple"))
        count = None if together is None else max(1, count // together)
    each = count if steps is not None else per_update
    if each is not None and together is not None and group is not None and each * together % group:
        text = f"{each * together} answers are generated together, which are no whole number of prompts with {group} answers each"
        draft.remark(text, PATH, f"{policy.rules.tool} starts with a multiple only; samples were prompts before TRL 0.15")
    return count


def _world(draft: ImportDraft) -> int | None:
    """GPUs of the job, where they are numbers."""
    if "cluster.gpus" in draft.lines:
        count = draft.value("cluster.gpus")
        return count if isinstance(count, int) else None
    nodes = draft.value("cluster.nodes") if "cluster.nodes" in draft.lines else 1
    return nodes * machine_size(draft) or None if isinstance(nodes, int) else None


def write_policy_liger(draft: ImportDraft, policy: Policy) -> None:
    """Liger's kernels, and its loss, which makes the logits answer by answer (linkedin/Liger-Kernel, chunked_loss/fused_linear_ppo.py)."""
    kernel, loss = policy.source.get("use_liger_kernel", "enable_liger_kernel"), policy.source.get("use_liger_loss")
    on = kernel is not None and draft.flag(kernel)
    if on:
        draft.write("software.fusion", "fused", kernel)
    draft.harmless(kernel, "switched off")
    pieces = draft.flag(loss) or (on and policy.flag(draft, "use_liger_loss") is not False)
    if not pieces:
        draft.harmless(loss, "switched off")
        return
    micro = draft.value("training.micro_batch")
    if draft.value(PATH) == NAMES[False, False] and isinstance(micro, int) and (draft.flag(loss) or policy.flag(draft, "use_liger_loss")):
        draft.write("training.loss.kernel", "fused", loss or kernel)
        if micro > 1:
            draft.write("training.loss.chunks", micro, loss or kernel, note="one answer after the other")
        return
    why = "Liger makes the logits answer by answer, or none of the whole: here all of a micro-batch are stored"
    draft.unmodelled(loss, why)
    if loss is None:
        draft.remark(why, "training.loss.chunks", "TRL does so with use_liger_kernel since 0.25, with use_liger_loss before")
