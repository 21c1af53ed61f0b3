"""Updates of verl's policy optimisation (GRPO, RLOO, REINFORCE++ ...) as a scenario.

volcengine/verl, verl/trainer/ppo/ray_trainer.py (fit): answers are generated and scored; the policy and the reference model read all of
them without gradients; then the actor is updated mini-batch by mini-batch (verl/workers/actor/dp_actor.py, update_policy). A step of the
scenario is one update with its share of those forward passes. Defaults are those of verl/trainer/config/ppo_trainer.yaml.
"""

from __future__ import annotations

from parsim.interop.command import VISIBLE, Invocation, read_environment
from parsim.interop.hydra import NAMES, PATHS, settings_file
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import Count, counted, write_cluster, write_micro_batch, write_model
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.verl_megatron import is_megatrons, read_engine
from parsim.interop.verl_workers import (
    sample_ranks,
    write_adapters,
    write_dynamic,
    write_products,
    write_sequence_ranks,
    write_sharding,
    write_types,
)
from parsim.scenario import files

MODULES = ("verl.trainer.main_ppo", "recipe.dapo.main_dapo")
ESTIMATOR = "algorithm.adv_estimator"
WITH_CRITIC = ("gae",)
WITHOUT_CRITIC = (
    "grpo", "grpo_passk", "grpo_vectorized", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "rloo_vectorized",
    "opo", "gpg", "optimal_token_baseline",
)  # fmt: skip
"""estimators of advantages: verl/trainer/ppo/core_algos.py (AdvantageEstimator)"""
ACTOR = "actor_rollout_ref.actor"
DEFAULT_FILES = ("ppo_trainer", "ppo_trainer.yaml", "dapo_trainer", "dapo_trainer.yaml")
"""whose sections the defaults come from"""
MEGATRON_FILES = ("ppo_megatron_trainer", "ppo_megatron_trainer.yaml")
"""the same with Megatron's engine"""
PROMPT, ANSWER, PROMPTS, MINI_BATCH = 512, 512, 1024, 256
"""defaults: tokens of a prompt and of an answer, prompts of a rollout and of an update"""
NODES, GPUS = 1, 8
OWN_MICRO_BATCHES = "forward passes before the update in micro-batches of their own: here they have those of the update"
TOKENS = 16384
"""default of ppo_max_token_len_per_gpu"""


def read_policy_update(draft: ImportDraft, call: Invocation, source: Source) -> None:
    """Write the scenario of one update of ``verl.trainer.main_ppo``, by FSDP or by Megatron; a critic is refused by name."""
    megatron = _megatron(source, _settings(draft, call, source))
    of_engine = [key for key in source.keys if is_megatrons(key)] if megatron else []
    if megatron:
        source = Source((key for key in source.keys if not is_megatrons(key)), source.table)
    _refuse_others(draft, call, source, megatron=megatron)
    if draft.errors:
        return
    launch = Source(call.launch, key_table("verl-policy"))
    write_model(draft, source.of("model"))
    write_machines(draft, source, launch)
    if megatron:
        read_engine(draft, of_engine)
        draft.harmless(source.of("training.recompute"), "Megatron's engine goes by recompute_granularity")
    else:
        _sequence_ranks(draft, source)
    length = _length(draft, source)
    _batch(draft, source)
    _micro_batch(draft, source, length)
    _forward_passes(draft, source)
    _objective(draft, source)
    if not megatron:
        _types(draft, source)
        write_adapters(draft, source)
        write_sharding(draft, source, ray_gpus(draft, source), "its actor shards everything")
    draft.only_some(source, *source.table.only)
    draft.remark("a step is one update with its forward passes: generating and scoring the answers is not part of it", "training.objective")
    read_environment(draft, call.environment)
    draft.close(source)
    draft.close(launch)


def settings_keys(draft: ImportDraft, call: Invocation) -> list[Key]:
    """What a settings file of the user's own says, which the command overrides."""
    named = next((key for key in call.options if key.name in NAMES), None)
    if named is None or str(named.value) in (*DEFAULT_FILES, *MEGATRON_FILES):
        return []
    path, missing = settings_file(draft, call)
    if path is None:
        draft.errors.append(missing)
        return []
    return [key for key in of_document(files.read(path), "verl").keys if not key.name.startswith("hydra.")]


def _settings(draft: ImportDraft, call: Invocation, source: Source) -> list[str]:
    """The files of verl's own whose defaults count; an error for others below the user's."""
    defaults = source.get("defaults")
    if defaults is None or not isinstance(defaults.value, list):
        return [str(key.value) for key in call.options if key.name in NAMES]
    names = [str(name) for name in defaults.value if name != "_self_"]
    if others := [name for name in names if name not in (*DEFAULT_FILES, *MEGATRON_FILES)]:
        draft.refuse(defaults, f"the settings of {', '.join(others)}", f"parsim knows {DEFAULT_FILES[0]} and {MEGATRON_FILES[0]}")
    draft.harmless(defaults, "the defaults that parsim knows")
    return names


def _megatron(source: Source, settings: list[str]) -> bool:
    """The engine is Megatron's: by the settings file, or by the actor's strategy."""
    strategy = source.get(f"{ACTOR}.strategy")
    return any(name in MEGATRON_FILES for name in settings) if strategy is None else str(strategy.value) == "megatron"


def _refuse_others(draft: ImportDraft, call: Invocation, source: Source, *, megatron: bool) -> None:
    estimator = source.get(ESTIMATOR)
    line = call.positional[0].line if call.positional else 1
    if estimator is None or str(estimator.value) in WITH_CRITIC:
        word = estimator or Key(call.program, "python -m", call.program, draft.file, line)
        said = "" if estimator else f" ({ESTIMATOR} is gae if not given)"
        draft.refuse(word, f"PPO, which trains a critic beside the policy{said}", f"parsim reads {', '.join(WITHOUT_CRITIC)}")
    elif str(estimator.value) not in WITHOUT_CRITIC:
        draft.refuse(estimator, f"the estimator {estimator.value}", f"parsim reads {', '.join(WITHOUT_CRITIC)}")
    else:
        draft.harmless(estimator, "how answers are weighed")
    strategy = source.of("parallel.data.fsdp_version")
    if megatron:
        draft.harmless(strategy, "Megatron's engine")
        for key in source.all("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"):
            if draft.whole(key, 0):
                draft.refuse(key, "adapters under Megatron's engine", "use 0, or FSDP")
            draft.harmless(key, "there are no adapters")
    elif strategy is not None and source.table.rows["parallel.data.fsdp_version"].ours(strategy.value) is None:
        draft.refuse(strategy, f"verl's engine {strategy.value}", "parsim reads fsdp and fsdp2")
    for key in source.all(*NAMES, *PATHS):
        draft.harmless(key, "the defaults that parsim knows, or a file that is read")
    epochs = source.get(f"{ACTOR}.ppo_epochs")
    if (count := draft.whole(epochs, 1)) is not None and count > 1:
        draft.refuse(epochs, "several updates on the same answers, which share their forward passes", "use 1")
    draft.harmless(epochs, "every answer is trained on once")


def write_machines(draft: ImportDraft, source: Source, launch: Source) -> None:
    """Ray starts a process for every GPU that the trainer asks for."""
    nodes, each = source.get("trainer.nnodes"), source.get("trainer.n_gpus_per_node")
    count = counted(draft, nodes, replaced=draft.given.nodes is not None)
    per_node = counted(draft, each)
    if each is None and nodes is not None:
        per_node = Count(GPUS, nodes, f"trainer.n_gpus_per_node is {GPUS} if not given")
    for key in (*launch.all("nnodes", "nodes", "ntasks", "ntasks_per_node", "gpus_per_node", "gres", "gpus"), launch.get(VISIBLE)):
        draft.harmless(key, "Ray starts a process on every GPU that trainer.nnodes and trainer.n_gpus_per_node ask for")
    write_cluster(draft, nodes=count, per_node=per_node, open_nodes=nodes if nodes is not None and count is None else None)


def _sequence_ranks(draft: ImportDraft, source: Source) -> None:
    """Ulysses: ranks that share a sample; the forward passes before the update have the actor's."""
    size = write_sequence_ranks(draft, source)
    own = source.get("actor_rollout_ref.ref.ulysses_sequence_parallel_size")
    if own is not None and draft.whole(own, 1) != size:
        draft.refuse(own, f"forward passes whose samples are spread over other ranks than the update's ({size})", f"use {size}")
    draft.harmless(own, "as in the update")


def ray_gpus(draft: ImportDraft, source: Source) -> int | None:
    """GPUs of the job, where they are numbers."""
    nodes, each = source.get("trainer.nnodes"), source.get("trainer.n_gpus_per_node")
    sizes = [draft.given.nodes or NODES if nodes is None or draft.given.nodes else nodes.value, GPUS if each is None else each.value]
    try:
        return int(sizes[0]) * int(sizes[1])
    except (TypeError, ValueError):
        return None


def _length(draft: ImportDraft, source: Source) -> int | None:
    """Prompt and answer, both as long as they may be."""
    prompt, answer = source.of("training.sequence_length"), source.get("data.max_response_length")
    if draft.given.sequence_length is not None:
        draft.write("training.sequence_length", draft.given.sequence_length, note="--sequence")
        for key in (prompt, answer):
            draft.harmless(key, "replaced by --sequence")
        return draft.given.sequence_length
    sizes = [draft.whole(key, 1) if key is not None else default for key, default in ((prompt, PROMPT), (answer, ANSWER))]
    if None in sizes:
        return None
    length = sum(size or 0 for size in sizes)
    note = f"a prompt of {sizes[0]} and an answer of {sizes[1]} tokens; shorter samples: add mean_sequence_length"
    draft.write("training.sequence_length", length, prompt, answer, note=note)
    return length


def _batch(draft: ImportDraft, source: Source) -> None:
    """Answers of an update: prompts of a mini-batch times the answers to each."""
    mini, prompts = source.of("training.global_batch"), source.get("data.train_batch_size")
    answers = source.get("actor_rollout_ref.rollout.n")
    each = draft.whole(answers, 1) if answers is not None else 1
    size = draft.whole(mini, 1) if mini is not None else MINI_BATCH
    rollout = draft.whole(prompts, 1) if prompts is not None else PROMPTS
    if each is None or size is None or rollout is None:
        return
    if size > rollout:
        at = mini or prompts
        if at is not None:
            text = f"an update takes {size} prompts, and a rollout has {rollout} (verl asks for at least as many)"
            draft.errors.append(at.finding(text, f"write {ACTOR}.ppo_mini_batch_size of at most {rollout}"))
    elif rollout % size:
        draft.unmodelled(prompts, f"the last update of a rollout takes {rollout % size} prompts instead of {size}")
    draft.harmless(prompts, f"a rollout of {rollout} prompts is {rollout // size} updates, each with its share of the forward passes")
    if draft.given.gradient_accumulation is not None:
        draft.write("training.gradient_accumulation", draft.given.gradient_accumulation, note="--gradient-accumulation")
        for key in (mini, answers):
            draft.harmless(key, "replaced by --gradient-accumulation")
        return
    draft.write("training.global_batch", size * each, mini, answers, note=f"{size} prompts of an update x {each} answers")


def _micro_batch(draft: ImportDraft, source: Source, length: int | None) -> None:
    """Answers of a GPU at a time: their number, verl's older number for all GPUs, or as many as some tokens hold."""
    each, together = source.of("training.micro_batch"), source.get(f"{ACTOR}.ppo_micro_batch_size")
    dynamic, tokens = source.get(f"{ACTOR}.use_dynamic_bsz"), source.get(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if draft.flag(dynamic) and draft.given.micro_batch is None:
        for key in (each, together):
            draft.harmless(key, "micro-batches are filled with tokens")
        most = draft.whole(tokens, 1) if tokens is not None else TOKENS
        write_dynamic(draft, dynamic, tokens, most, length, sample_ranks(draft, ray_gpus(draft, source)), "answers")
        return
    for key in (dynamic, tokens):
        draft.harmless(key, "micro-batches have a number of answers")
    ranks, total = sample_ranks(draft, ray_gpus(draft, source)), draft.whole(together, 1)
    if each is None and draft.given.micro_batch is None and total is not None and ranks is not None and total % ranks == 0:
        draft.write("training.micro_batch", total // ranks, together, note=f"{total} / {ranks} ranks with samples of their own")
        return
    draft.harmless(together, "the answers of a GPU are said")
    write_micro_batch(draft, each)


def _forward_passes(draft: ImportDraft, source: Source) -> None:
    """Those before the update have its micro-batches here; verl can give them others."""
    said = [f"actor_rollout_ref.{role}.log_prob_micro_batch_size_per_gpu" for role in ("rollout", "ref")]
    for key in source.all(*said):
        draft.only_if(key, [draft.value("training.micro_batch")], OWN_MICRO_BATCHES, "as many answers as in the update")
    dynamic = source.get("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz")
    if draft.flag(dynamic):
        draft.unmodelled(dynamic, OWN_MICRO_BATCHES)


def _types(draft: ImportDraft, source: Source) -> None:
    """FSDP's mixed precision in bf16, on weights of the type that is said; AdamW of PyTorch."""
    write_types(draft, source)
    write_products(draft, source, f"{ACTOR}.fsdp_config", f"{ACTOR}.optim.optimizer")
    again = source.of("training.recompute")
    if again is None:
        draft.fill("training.recompute", "full or none: what enable_gradient_checkpointing is if not given depends on the version of verl")
    elif draft.flag(again):
        draft.write("training.recompute", "full", again)
    else:
        draft.harmless(again, "switched off")


def _objective(draft: ImportDraft, source: Source) -> None:
    loss, reward = source.get(f"{ACTOR}.use_kl_loss"), source.get("algorithm.use_kl_in_reward")
    asked = [key for key in (loss, reward) if draft.flag(key)]
    if asked:
        draft.write("training.objective", "grpo", *asked)
    else:
        note = "no KL term: use_kl_loss and use_kl_in_reward are false" + ("" if loss and reward else " if not given")
        draft.write("training.objective", "grpo-without-reference", loss, reward, note=note)
    for key in (loss, reward):
        draft.harmless(key, "the reference model is there for the other term")
