"""Small modules that NeMo trains beside a frozen model: LoRA, bottlenecks, learned scales, learned tokens.

NVIDIA/NeMo, nemo/collections/nlp/parts/peft_config.py, examples/nlp/language_modeling/tuning/conf (``model.peft.peft_scheme``) and, before
that, conf/megatron_*_prompt_learning_config.yaml, *_adapter_tuning_config.yaml, *_ia3_tuning_config.yaml (``model.virtual_prompt_style``)
and megatron_ptune_gpt.yaml; NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/peft/lora.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key
from parsim.interop.nemo_jobs import ADAPTERS, NOTHING, OVERRIDDEN, chosen_scheme
from parsim.interop.peft import listed

PATH = "training.finetune"
STYLE = "model.virtual_prompt_style"
TEMPLATE = "model.prompt_encoder.template"
"""of the first P-tuning: virtual tokens before, between and behind the fields of a sample"""
LEARNED = (
    "model.p_tuning.", "model.prompt_tuning.", "model.adapter_tuning.", "model.lora_tuning.", "model.prompt_encoder.",
    "model.task_templates", STYLE,
)  # fmt: skip
"""begins of keys of these files"""
FROZEN = (
    "model.restore_from_path", "model.language_model_path", "model.pretrained_language_model_path", "model.language_model.nemo_file",
)  # fmt: skip
"""the file of the frozen model, which holds its sizes and its length"""
RANK = 32
"""adapter_dim, and dim of Megatron-Bridge, if not given"""
TARGETS = {
    "attention_qkv": (("q_proj", "k_proj", "v_proj"), ("query_key_value",)), "attention_dense": (("o_proj",), ("attention_output",)),
    "mlp_fc1": (("gate_proj", "up_proj"), ("mlp_up",)), "mlp_fc2": (("down_proj",), ("mlp_down",)),
}  # fmt: skip
"""a target -> linear layers of a model of the Hub, and of Megatron-LM's GPT"""
_TARGETS_ALSO = {
    "linear_qkv": ("attention_qkv",), "linear_proj": ("attention_dense",), "linear_fc1": ("mlp_fc1",), "linear_fc2": ("mlp_fc2",),
    "attention": ("attention_qkv", "attention_dense"), "mlp": ("mlp_fc1", "mlp_fc2"), "all": tuple(TARGETS),
}  # fmt: skip
_ENCODERS = {"mlp": "mlp", "tpmlp": "mlp", "lstm": "lstm", "biglstm": "lstm", "embedding": "none"}
_SECTIONS = {"lora": "lora_tuning", "adapter": "adapter_tuning", "ptuning": "p_tuning", "ia3": "ia3_tuning"}
"""a scheme -> its section"""


def asks_for_modules(keys: list[Key]) -> bool:
    """Whether keys say that learned tokens or scales are trained, not the model."""
    return any(key.name in (STYLE, TEMPLATE) and key.value not in NOTHING for key in keys)


def write_adapters(draft: ImportDraft, keys: list[Key], name: str) -> None:
    """What is trained beside the frozen model; `name`: the job's. Kinds that parsim has not are refused."""
    said = {key.name: key for key in keys}
    scheme = chosen_scheme(keys)
    style, template = said.get(STYLE), said.get(TEMPLATE)
    ours = [key for key in keys if key.name.startswith((*ADAPTERS, *LEARNED))]
    if scheme is not None:
        word = "lora" if scheme.name in OVERRIDDEN else str(scheme.value).rpartition(".")[2].lower()
        _of_scheme(draft, scheme, word, ours)
    elif style is not None and style.value not in NOTHING:
        _of_style(draft, style, said, name)
    elif template is not None:
        _first_p_tuning(draft, template, said)
    chosen = "training.finetune.method" in draft.lines
    for key in ours:
        if not draft.settled(key):
            draft.harmless(key, "how adapters begin and are scaled, or of another adapter" if chosen else "no adapter is chosen")


def ask_for_frozen_model(draft: ImportDraft, keys: Iterable[Key]) -> None:
    """A model that is frozen lies in a file: what is left open of its sizes and its length is one question."""
    named = next((key for key in keys if key.name in FROZEN), None)
    left = [path for path in ("model", "training.sequence_length", "training.target_length") if path in draft.lines]
    left = [path for path in left if draft.value(path) is None]
    if named is not None and "training.finetune.method" in draft.lines and left:
        draft.causes |= dict.fromkeys(left, f"the frozen model ({named.written})")


def _of_scheme(draft: ImportDraft, scheme: Key, word: str, ours: list[Key]) -> None:
    """``model.peft.peft_scheme``, each with a section of its own; NeMo 2 and Megatron-Bridge have LoRA's keys beside the class."""
    section = _SECTIONS.get(word)
    if section is None:
        draft.refuse(scheme, f"adapters of the kind {word}", f"parsim has {', '.join(_SECTIONS)}, or train all weights: null")
        return
    own = {key.name.rpartition(".")[2]: key for key in ours if f".{section}." in key.name}
    if word == "lora":
        own |= {key.name.rpartition(".")[2]: key for key in ours if key.name.startswith("peft.") and key.name.count(".") == 1}
    _check_places(draft, own)
    match word:
        case "lora":
            _lora(draft, scheme, own)
        case "adapter":
            _bottlenecks(draft, scheme, own)
        case "ia3":
            draft.write(f"{PATH}.method", "ia3", scheme)
        case _:
            draft.write(f"{PATH}.method", "prompt", scheme)
            _tokens(draft, own.get("virtual_tokens"), 10)
            draft.write(f"{PATH}.prompt_encoder", "mlp", scheme)
            _width(draft, own.get("bottleneck_dim"))
            table = own.get("embedding_dim")
            if table is not None:
                draft.remark(
                    f"the table of learned tokens is {table.value} wide there, as wide as the model here", f"{PATH}.virtual_tokens"
                )


def _check_places(draft: ImportDraft, own: dict[str, Key]) -> None:
    """Modules in some layers only, or of one weight for all layers, are other jobs."""
    for name, what in (("layer_selection", "adapters in some layers only"), ("weight_tying", "adapters that share their weights")):
        key = own.get(name)
        if key is not None and key.value not in NOTHING:
            draft.refuse(key, what, "leave it out")


def _lora(draft: ImportDraft, scheme: Key, own: dict[str, Key]) -> None:
    rank, share, where = own.get("adapter_dim", own.get("dim")), own.get("adapter_dropout", own.get("dropout")), own.get("target_modules")
    draft.write(f"{PATH}.method", "lora", scheme)
    draft.write(f"{PATH}.rank", draft.whole(rank, 1) or RANK, rank, note="" if rank else f"{RANK} if not given")
    names = [name for word in listed(where) or ["all"] for name in _TARGETS_ALSO.get(word, (word,))]
    strange = [name for name in names if name not in TARGETS]
    if strange:
        draft.refuse(where, f"adapters of {strange[0]}", f"parsim knows {', '.join([*TARGETS, *_TARGETS_ALSO])}")
    else:
        fused = draft.value("model.family") == "megatron-gpt"
        targets = [layer for name in dict.fromkeys(names) for layer in TARGETS[name][fused]]
        draft.write(f"{PATH}.targets", targets, where, note="" if where else "all linear layers of attention and MLP if not given")
        if "q_proj" in targets:
            draft.remark("one adapter stands beside query, key and value there; here each has its own", f"{PATH}.targets")
    draft.write(f"{PATH}.dropout", draft.number(share) or 0.0, share)


def layers_of(words: list[str]) -> list[str] | None:
    """Linear layers of a model of the Hub that Megatron-Core's names (``linear_qkv``) mean; None where one of `words` is no such name."""
    names = [name for word in words for name in _TARGETS_ALSO.get(word, (word,))]
    if not names or any(name not in TARGETS for name in names):
        return None
    return [layer for name in dict.fromkeys(names) for layer in TARGETS[name][0]]


def _bottlenecks(draft: ImportDraft, chosen: Key, own: dict[str, Key]) -> None:
    """``adapter_tuning``: both types have the same weights."""
    width, share, norm, kind = (own.get(name) for name in ("adapter_dim", "adapter_dropout", "norm_position", "type"))
    draft.write(f"{PATH}.method", "bottleneck", chosen, kind)
    draft.write(f"{PATH}.rank", draft.whole(width, 1) or RANK, width, note="" if width else f"{RANK} if not given")
    draft.write(f"{PATH}.dropout", draft.number(share) or 0.0, share)
    if norm is not None and norm.value not in ("pre", "post"):
        draft.refuse(norm, "bottlenecks without a norm", "write pre or post")
    draft.harmless(norm, "a norm before the bottleneck, or one behind it: the same work")


def _of_style(draft: ImportDraft, style: Key, said: dict[str, Key], job: str) -> None:
    """``virtual_prompt_style``: learned tokens, or, where the model learns none, what the file is for."""
    word = str(style.value)
    if word == "inference":
        draft.refuse(style, "a server or an evaluation, which trains nothing", "parsim reads trainings")
    elif word == "no-prompts":
        section = {name.rpartition(".")[2]: key for name, key in said.items() if name.startswith("model.adapter_tuning.")}
        other = next((key for name, key in said.items() if name.startswith(("model.lora_tuning.", "model.perception."))), None)
        other = other or said.get("model.pretrained_audio_model")
        if other is not None:
            draft.refuse(other, "adapters of ranks of their own, or an encoder beside the model", "write training.finetune in the scenario")
        elif section:
            _bottlenecks(draft, style, section)
        elif "ia3" in f"{job} {draft.file}":
            draft.write(f"{PATH}.method", "ia3", style, note="as the job is called: the file's own words are those of any adapter")
        else:
            draft.refuse(style, "adapters of a kind that the file does not say", "write training.finetune in the scenario")
    elif word in ("p-tuning", "prompt-tuning"):
        draft.write(f"{PATH}.method", "prompt", style)
        _of_tasks(draft, said.get("model.new_tasks"), said.get("model.task_templates"))
        if word == "p-tuning":
            _encoder(draft, {name.removeprefix("model.p_tuning."): key for name, key in said.items() if name.startswith("model.p_tuning.")})
    else:
        draft.refuse(style, f"prompts in the style {word}", "parsim has p-tuning, prompt-tuning and no-prompts")


def _of_tasks(draft: ImportDraft, tasks: Key | None, templates: Key | None) -> None:
    """The learned tokens of the task that is trained."""
    rows = templates.value if templates is not None and isinstance(templates.value, list) else []
    wanted = listed(tasks) if tasks is not None and isinstance(tasks.value, list) else []
    counts: dict[str, Any] = {str(row.get("taskname")): row.get("total_virtual_tokens") for row in rows if isinstance(row, dict)}
    if len(wanted) > 1:
        draft.refuse(tasks, "learned tokens of several tasks", "one task: each has its own")
    count = counts.get(wanted[0]) if wanted else None
    if isinstance(count, int) and count > 0:
        draft.write(f"{PATH}.virtual_tokens", count, templates, tasks)
    else:
        draft.fill(f"{PATH}.virtual_tokens", "learned tokens of a sample, for example 20 (total_virtual_tokens)", templates, tasks)


def _tokens(draft: ImportDraft, key: Key | None, default: int) -> None:
    draft.write(f"{PATH}.virtual_tokens", draft.whole(key, 1) or default, key, note="" if key else f"{default} if not given")


def _encoder(draft: ImportDraft, own: dict[str, Key]) -> None:
    """``p_tuning``: the first versions had an LSTM and no word for it."""
    kind, layers, width = own.get("encoder_type"), own.get("num_layers"), own.get("encoder_hidden")
    word = str(kind.value).lower() if kind is not None else "lstm" if layers is not None else "tpmlp"
    if word not in _ENCODERS:
        draft.refuse(kind, f"learned tokens through {word}", f"parsim knows {', '.join(_ENCODERS)}")
        return
    note = "" if kind else "encoder_type is not given: an LSTM in NeMo before 1.11" if layers is not None else "tpmlp if not given"
    draft.write(f"{PATH}.prompt_encoder", _ENCODERS[word], kind, note=note)
    if word == "tpmlp":
        draft.harmless(layers, "tpmlp has two")
    elif word != "embedding" and (count := draft.whole(layers, 1)) is not None:
        draft.write(f"{PATH}.encoder_layers", count, layers)
    if word != "embedding":
        _width(draft, width)


def _width(draft: ImportDraft, key: Key | None) -> None:
    if (width := draft.whole(key, 1)) is not None:
        draft.write(f"{PATH}.encoder_hidden", width, key)


def _first_p_tuning(draft: ImportDraft, template: Key, said: dict[str, Key]) -> None:
    """``prompt_encoder.template``: tokens before, between and behind a sample's fields, through an LSTM."""
    whole = said.get("model.use_lm_finetune")
    if whole is not None and draft.flag(whole):
        draft.refuse(whole, "a model that is trained with its learned tokens", "leave it out: the model is frozen")
    draft.harmless(whole, "the model is frozen")
    counts = template.value if isinstance(template.value, list) else []
    total = sum(count for count in counts if isinstance(count, int))
    draft.write(f"{PATH}.method", "prompt", template)
    if total > 0 and all(isinstance(count, int) for count in counts):
        draft.write(f"{PATH}.virtual_tokens", total, template)
    else:
        draft.errors.append(template.finding(f"{template.value} is no list of numbers of tokens", "write [3, 3, 3]"))
    draft.write(f"{PATH}.prompt_encoder", "lstm", note="the encoder of that version")
    layers = said.get("model.prompt_encoder.num_layers")
    if (count := draft.whole(layers, 1)) is not None:
        draft.write(f"{PATH}.encoder_layers", count, layers)
