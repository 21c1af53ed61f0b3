"""Commands of verl: its first supervised fine-tuning as a scenario; that by an engine, and updates of policies, have rooms of their own.

volcengine/verl, verl/trainer/fsdp_sft_trainer.py and verl/trainer/config/sft_trainer.yaml: overrides in Hydra's form, ``key=value``.
See `parsim.interop.verl_engine` and `parsim.interop.verl_policy`.
"""

from __future__ import annotations

from parsim.interop.command import Invocation, read_environment
from parsim.interop.hydra import overrides
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_micro_batch, write_model
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.processes import write_launched
from parsim.interop.verl_engine import MODULES as BY_ENGINE
from parsim.interop.verl_engine import read_engine_tuning
from parsim.interop.verl_policy import MODULES as POLICY
from parsim.interop.verl_policy import read_policy_update, settings_keys
from parsim.interop.verl_workers import write_adapters, write_batch, write_epochs, write_length, write_sequence_ranks, write_types

OF_FSDP = "verl.trainer.fsdp_sft_trainer"
SUPERVISED = (OF_FSDP, *BY_ENGINE)
GENERATING = {
    "main_generation": "the generation of answers",
    "main_eval": "an evaluation",
}
"""modules that are not read, by the end of their name"""


NEWER = (
    "model.strategy", "model.use_shm", "model.fsdp_config.model_dtype", "data.use_shm", "data.multiturn.tools_key",
    "data.multiturn.enable_thinking_key", "trainer.save_freq", "trainer.test_freq", "trainer.nnodes", "trainer.n_gpus_per_node",
    "trainer.max_ckpt_to_keep",
)  # fmt: skip
"""keys of the versions that checkpoint activations unless told otherwise, and that older ones do not know (Hydra refuses an unknown key)"""
VERSION = "the version of verl"
"""what says how it takes a key, or what it takes where nothing is said"""


def read_verl(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of ``verl.trainer.fsdp_sft_trainer``, ``verl.trainer.sft_trainer`` or ``verl.trainer.main_ppo``."""
    if call.program in POLICY:
        keys = (*settings_keys(draft, call), *overrides(draft, call), *call.options)
        read_policy_update(draft, call, Source(keys, key_table("verl-policy")))
        return
    if call.program in BY_ENGINE:
        read_engine_tuning(draft, call)
        return
    source = Source((*overrides(draft, call), *call.options), key_table("verl"))
    if call.program != OF_FSDP:
        line = call.positional[0].line if call.positional else 1
        word = source.get("algorithm.adv_estimator") or Key(call.program, "python -m", call.program, draft.file, line)
        why = GENERATING.get(call.program.rpartition(".")[2], f"the module {call.program}")
        draft.refuse(word, why, f"parsim reads {', '.join((*SUPERVISED, *POLICY))}")
        return
    launch = Source(call.launch, key_table("verl"))
    write_model(draft, source.of("model"))
    write_launched(draft, launch)
    write_length(draft, source)
    _micro_batch(draft, source, write_batch(draft, source))
    write_epochs(draft, source)
    _types(draft, source)
    write_adapters(draft, source)
    draft.write("parallel.data.strategy", "fsdp", note="its trainer shards everything")
    _sharding(draft, source)
    read_environment(draft, call.environment)
    draft.close(source)
    draft.close(launch)


def _micro_batch(draft: ImportDraft, source: Source, samples: int | None) -> None:
    """Samples of a GPU: verl of 2024 divides ``data.micro_batch_size`` among all GPUs; a later one ignores it and takes 4."""
    each, old = source.of("training.micro_batch"), source.get("data.micro_batch_size")
    together = draft.whole(old, 1)
    if old is None or each is not None or draft.given.micro_batch is not None:
        write_micro_batch(draft, each, 4, "data.micro_batch_size_per_gpu is 4 if not given")
        draft.harmless(old, "the samples of a GPU are said")
        return
    how = f"{together} / GPUs in verl of 2024, which divides {old.written}; 4 in a later one, which ignores it"
    draft.fill("training.micro_batch", f"{how} (--micro-batch)", old)
    draft.causes["training.micro_batch"] = VERSION
    if samples and together and samples % together:
        draft.errors.append(
            old.finding(f"{samples} samples of a step / {together} = {samples / together:.4g} is not whole", "use a divisor")
        )


def _types(draft: ImportDraft, source: Source) -> None:
    """Autocast in bf16, on weights of the type that is said; AdamW of PyTorch."""
    write_types(draft, source)
    again = source.of("training.recompute")
    newer = next(iter(source.all(*NEWER)), None)
    if again is None and newer is not None:
        note = f"model.enable_gradient_checkpointing is true if not given in versions that know {newer.name}"
        draft.write("training.recompute", "full", note=note)
    elif again is None:
        draft.fill("training.recompute", "full or none: what model.enable_gradient_checkpointing is if not given depends on the version")
        draft.causes["training.recompute"] = VERSION
    elif draft.flag(again):
        draft.write("training.recompute", "full", again)
    else:
        draft.harmless(again, "switched off")


def _sharding(draft: ImportDraft, source: Source) -> None:
    version, offload = source.of("parallel.data.fsdp_version"), source.of("training.offload.parameters")
    word = source.table.rows["parallel.data.fsdp_version"].ours(version.value) if version is not None else None
    if version is not None and word is not None:
        draft.write("parallel.data.fsdp_version", int(word), version)
    elif version is not None:
        draft.refuse(version, f"the strategy {version.value}", "parsim reads fsdp and fsdp2")
    parameters = source.get("model.fsdp_config.offload_params")
    if draft.flag(offload) and draft.flag(parameters) and draft.value("parallel.data.fsdp_version") != 2:
        for path in ("parameters", "gradients", "optimizer"):
            draft.write(f"training.offload.{path}", "cpu", offload, parameters)
    for key in (offload, parameters):
        draft.harmless(
            key, "nothing is offloaded without both cpu_offload and offload_params, nor by FSDP 2, to which its trainer hands FSDP 1's word"
        )
    write_sequence_ranks(draft, source)
    for name in ("trainer.n_gpus_per_node", "trainer.nnodes"):
        draft.harmless(source.get(name), "the launcher says how many processes there are")
