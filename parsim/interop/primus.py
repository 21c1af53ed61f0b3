"""Primus's YAML as a scenario: Megatron-LM's options over a model of its own list, in the module ``pre_trainer`` or ``post_trainer``.

What the keys mean, and the defaults written here: AMD-AGI/Primus, primus/configs/modules/megatron (pre_trainer.yaml, sft_trainer.yaml,
trainer_base.yaml, primus_turbo.yaml) and primus/configs/models/megatron. Values such as ``${PRIMUS_TP:1}`` are variables of the
environment with a default, which is taken. What trains with Megatron-Bridge is read by `parsim.interop.primus_bridge`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsim.errors import InputError
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import has_experts, write_cluster, write_sequence_length
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.training import read_training
from parsim.interop.nemo_adapters import write_adapters
from parsim.interop.primus_bridge import module_of, read_bridge
from parsim.interop.recognise import Foreign
from parsim.model.catalogue import read_architecture
from parsim.model.transformer import TransformerConfig
from parsim.scenario import files
from parsim.scenario.references import lookup, model_tree
from parsim.scenario.support import EXAMPLES

_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):([^${}]*)\}")
DEFAULTS: Mapping[str, Any] = {
    "micro_batch_size": 2, "global_batch_size": 16, "seq_length": 1024, "bf16": True, "use_distributed_optimizer": True,
    "sequence_parallel": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
"""of pre_trainer.yaml, trainer_base.yaml, language_model.yaml and llama_base.yaml, where Megatron-LM has others"""
SWITCH = "enable_primus_turbo"
TURBO_UNITS = 32
"""compute units of DeepEP's kernels (primus_turbo.yaml)"""
SUPERVISED = "sft_trainer.yaml"
TUNED: Mapping[str, Any] = {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048}
"""of SUPERVISED, where pre_trainer.yaml has others"""
CONFIGS = ("pre_trainer.yaml", "trainer_base.yaml", SUPERVISED)
_ADAPTERS = ("lora.", "peft.")
"""a section of the fine-tuning, and the one of Megatron-Bridge that has the same keys"""


def read_primus(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of an experiment that trains with Megatron-LM."""
    if foreign.document is None:
        return
    spelled = files.read(Path(__file__).parent / "tables" / "primus.yaml").tree
    keys = [_with_default(key) for key in of_document(foreign.document, "primus").keys]
    if any(key.name.startswith("modules.") and key.name.endswith(".framework") and key.value == "megatron_bridge" for key in keys):
        read_bridge(draft, keys)
        return
    table = key_table("primus")
    module = module_of(keys)
    begin = f"{module}overrides."
    options = [_renamed(key, begin, spelled) for key in keys if key.name.startswith(begin)]
    beside = [key for key in keys if not key.name.startswith(begin)]
    _check_job(draft, module, beside)
    config = next((str(key.value) for key in beside if key.name == f"{module}config"), CONFIGS[0])
    adapters = [key for key in options if key.name.startswith(_ADAPTERS[1])]
    options = [key for key in options if key not in adapters]
    model = next((key for key in beside if key.name == f"{module}model"), None)
    options = _with_turbo(options)
    given = {key.name for key in options if key.value is not None}
    given |= {"bf16"} & {"bf16" for key in options if key.name == "fp16" and key.value is True}
    defaults = [(config, {**DEFAULTS, **(TUNED if config == SUPERVISED else {})})]
    if model is not None:
        defaults += [(str(model.value), said) for begin, said in spelled["mixtures"].items() if str(model.value).startswith(begin)]
    options += [
        Key(name, f"{name} of Primus's {file}", value, file) for file, said in defaults for name, value in said.items() if name not in given
    ]
    source = Source(options, table)
    _model(draft, source, model, spelled["models"])
    if any(key.name == "peft.peft_scheme" and key.value for key in adapters):
        write_adapters(draft, adapters, "")
    for key in adapters:
        if not draft.settled(key):
            draft.harmless(key, "lora.enabled is false if not given")
    tensor = draft.take(source, "parallel.tensor.size") or 1
    write_cluster(draft)
    length = write_sequence_length(draft, source.of("training.sequence_length"))
    read_training(draft, source, length)
    read_parallel(draft, source, None)
    draft.write("software.profile", "megatron-core", note="Primus trains with Megatron-Core")
    if tensor > 1 and draft.value("parallel.tensor.overlap") is None:
        draft.write("parallel.tensor.overlap", "backward", note="tp_comm_overlap is false if not given")
    draft.take(source, "software.gradient_accumulation_fusion")
    turbo = source.get("use_turbo_grouped_gemm")
    switched = source.get(SWITCH)
    if has_experts(draft) and draft.flag(turbo) and switched is not None and switched.value is True:
        draft.write("parallel.expert.grouped_gemm", "single", turbo)
    else:
        draft.harmless(turbo, "Transformer Engine computes, or there are no experts")
    _forced_balance(draft, source)
    draft.close(source)
    draft.close(Source(beside, table))


def _with_turbo(options: list[Key]) -> list[Key]:
    """The options with what Primus-Turbo makes of them (patches/args/rocm_arg_validation.py, patches/turbo/moe_dispatcher_patches.py).

    Experts that run without waits of the host permute tokens by fused kernels, from the second stage on behind DeepEP and in one product.
    Turbo's DeepEP takes the place of every dispatcher.
    """
    said = {key.name: key for key in options}
    stage, switch = said.get("turbo_sync_free_moe_stage"), said.get(SWITCH)
    if switch is None or switch.value is not True:
        return options
    if stage is not None and isinstance(stage.value, int) and stage.value > 0:
        switched = {"moe_permute_fusion": True} | ({"use_turbo_deepep": True, "use_turbo_grouped_gemm": True} if stage.value > 1 else {})
        options = [key for key in options if key.name not in switched]
        options += [replace(stage, name=name, value=value, original=stage.value) for name, value in switched.items()]
    deepep = next((key for key in options if key.name == "use_turbo_deepep" and key.value is True), None)
    if deepep is None:
        return options
    units = said.get("turbo_deepep_num_cu")
    units = Key("", "turbo_deepep_num_cu of Primus's primus_turbo.yaml", TURBO_UNITS, "primus_turbo.yaml") if units is None else units
    own = {"use_turbo_deepep", "turbo_deepep_num_cu", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"}
    return [
        *(key for key in options if key.name not in own),
        replace(deepep, name="moe_token_dispatcher_type", value="flex", original=deepep.value),
        replace(deepep, name="moe_flex_dispatcher_backend", value="deepep", original=deepep.value),
        replace(units, name="moe_flex_dispatcher_num_sms"),
    ]


def _forced_balance(draft: ImportDraft, source: Source) -> None:
    """Even loads: DeepEP sends tokens to the experts in turn, unless they are drawn (core/extensions/primus_turbo.py)."""
    forced, kind = source.get("moe_router_force_load_balancing"), source.get("moe_router_force_load_balancing_type")
    deepep = draft.value("parallel.expert.dispatcher") == "deepep"
    overlap = source.of("parallel.expert.shared_overlap")
    if deepep and overlap is not None and draft.value("parallel.expert.shared_overlap"):
        hint = "write moe_shared_expert_overlap: false"
        draft.errors.append(overlap.finding("Primus-Turbo's DeepEP has no shared expert beside it", hint))
    if draft.flag(forced) and deepep and (kind is None or kind.text == "even"):
        draft.write("parallel.expert.routing", "round-robin", forced, kind)
    else:
        draft.harmless(kind, "parsim's loads are even")


def _with_default(key: Key) -> Key:
    """The key with the defaults of the variables that its value is made of."""
    if not isinstance(key.value, str) or not _DEFAULT.search(key.value):
        return key
    text = _DEFAULT.sub(lambda match: match[2], key.value)
    return replace(key, value=files.parse_text(f"value: {text}", key.file).tree["value"], original=key.value)


def _renamed(key: Key, begin: str, spelled: Mapping[str, Any]) -> Key:
    """The key by the option of Megatron-LM that it is; of a LoRA section, by that of Megatron-Bridge's."""
    name = key.name.removeprefix(begin)
    if name == "lora.enabled":
        return replace(key, name="peft.peft_scheme", value="lora" if key.value is True else None, original=key.value)
    if name.startswith(_ADAPTERS[0]):
        return replace(key, name=f"{_ADAPTERS[1]}{name.removeprefix(_ADAPTERS[0])}")
    if name in spelled["inverted"] and isinstance(key.value, bool):
        return replace(key, name=spelled["inverted"][name], value=not key.value, original=key.value)
    return replace(key, name=spelled["renamed"].get(name, name))


def _check_job(draft: ImportDraft, module: str, keys: list[Key]) -> None:
    """An error where the experiment is no training of a Megatron-LM model, or has several modules."""
    for key in keys:
        name = key.name.removeprefix(module)
        if name == "framework" and key.value != "megatron":
            draft.errors.append(key.finding(f"not supported yet: Primus with {key.value}", "parsim reads megatron and megatron_bridge"))
        elif name == "config" and key.value not in CONFIGS:
            draft.errors.append(key.finding(f"not supported yet: {key.value}", f"parsim reads {', '.join(CONFIGS)}"))
        elif key.name.startswith("modules.") and name == key.name:
            draft.errors.append(key.finding(f"not supported yet: a module beside {module.split('.')[1]}", "leave it out"))


def _model(draft: ImportDraft, source: Source, key: Key | None, known: Mapping[str, str]) -> None:
    """The model of the catalogue that a file of Primus's list is, with what the experiment changes of it."""
    rows = [row for row in source.table.below("model.") if row.path not in ("model.attention_dropout", "model.maximum_sequence")]
    said = [(row, option) for row in rows if (option := source.of(row.path)) is not None]
    for name in ("max_position_embeddings", "group_query_attention"):
        draft.harmless(source.get(name), "of the model, which has it anyway")
    name = str(key.value).removesuffix(".yaml") if key is not None else ""
    ours = draft.given.model or known.get(name)
    config = _architecture(ours)
    if ours is None or (config is None and draft.given.model is None):
        draft.fill("model", f"{name or 'the model'} is not in the catalogue: {EXAMPLES['model']} (--model)", key)
        for _, option in said:
            draft.harmless(option, "of the model that is to be filled in")
        return
    changed = (
        [] if config is None else [(row, option) for row, option in said if not _same(config, row.path, row.ours(option.value), option)]
    )
    simple = all(row.kind in ("whole", "number", "word") for row, _ in changed) and draft.given.model is None
    for row, option in said:
        if (row, option) not in changed:
            draft.harmless(option, f"as {ours} has it")
        elif simple:
            draft.take(source, row.path)
        else:
            draft.harmless(option, "--model counts" if draft.given.model is not None else "of the model that is to be filled in")
    if changed and not simple:
        what = ", ".join(option.written.rpartition(".")[2] for _, option in changed)
        draft.fill("model", f"{name} with another {what} is a model of its own: {EXAMPLES['model']} (--model)", key)
        return
    note = "--model" if draft.given.model is not None else ""
    draft.write("model.base" if changed else "model", ours, key, note=note)


def _architecture(name: str | None) -> TransformerConfig | None:
    if name is None:
        return None
    try:
        tree, _, beside = model_tree(name, None)
        return read_architecture(tree, base_lookup=lookup("models", beside)).resolved()
    except InputError:
        return None


def _same(config: TransformerConfig, path: str, word: str | None, key: Key) -> bool:
    """Whether the architecture has what the option says."""
    holder: Any = config
    for part in path.split(".")[1:]:
        holder = getattr(holder, part, None)
    if isinstance(holder, bool) or holder is None or not isinstance(holder, int | float | str):
        inverted = path in ("model.tied_embeddings", "model.mlp_bias", "model.experts.renormalise")
        return (bool(holder) is not inverted) == bool(key.value) if key.value not in (None, "") else True
    return holder == key.value or str(holder) == word
