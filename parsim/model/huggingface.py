"""Hugging Face ``config.json`` as a `TransformerConfig`.

Pure: a parsed config in, an architecture out; nothing is downloaded. Every key is either read, known to change
nothing parsim models, or an error that names it: a config is never half understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.limits import MOST_LAYERS, beyond
from parsim.model.families import MODEL_TYPES, Family
from parsim.model.families.family import words
from parsim.model.transformer import LARGEST, TransformerConfig, configure

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-new",
    "gelu_fast": "gelu-new",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's activation names (``transformers/activations.py``) -> ours"""

TASKS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "sequence-classification",
    "ForImageClassification": "image-classification",
    "Model": "encoder",
}
"""suffix of the class in ``architectures`` -> task"""

HARMLESS = words(
    "model_type torch_dtype dtype transformers_version _name_or_path name_or_path _commit_hash auto_map use_cache "
    "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id "
    "initializer_range layer_norm_eps layer_norm_epsilon rms_norm_eps norm_epsilon norm_eps rope_theta rope_scaling "
    "rope_parameters pretraining_tp task_specific_params gradient_checkpointing output_attentions output_hidden_states "
    "return_dict torchscript problem_type tokenizer_class finetuning_task attn_implementation _attn_implementation "
    "_attn_implementation_autoset id2label label2id num_labels quantization_config unsloth_version unsloth_fixed "
    "chunk_size_feed_forward is_encoder_decoder"
)
"""Keys that change neither parameters nor work nor activation memory. ``quantization_config`` is how the checkpoint is
stored; training precision is the scenario's. RoPE settings change angles, not shapes."""

_WHOLE, _NUMBER, _FLAG, _TEXTS, _LIST, _MAPPING = "a whole number", "a number", "true or false", "a list of texts", "a list", "a mapping"
KINDS = {
    "architectures": _TEXTS,
    "num_hidden_layers": _WHOLE,
    "no_rope_layers": _LIST,
    "moe_layers": _LIST,
    "layer_types": _TEXTS,
    "attention_chunk_size": _WHOLE,
    "interleave_moe_layer_step": _WHOLE,
    "no_rope_layer_interval": _WHOLE,
    "sliding_window": _WHOLE,
    "sliding_window_size": _WHOLE,
    "max_window_layers": _WHOLE,
    "use_sliding_window": _FLAG,
    "moe_intermediate_size": _WHOLE,
    "n_shared_experts": _WHOLE,
    "num_labels": _WHOLE,
    "d_model": _WHOLE,
    "expansion_ratio": _NUMBER,
    "attn_config": _MAPPING,
    "id2label": _MAPPING,
    "attn_pdrop": _NUMBER,
    "attention_dropout": _NUMBER,
    "attention_probs_dropout_prob": _NUMBER,
    "no_bias": _FLAG,
    "learned_pos_emb": _FLAG,
    "do_layer_norm_before": _FLAG,
    "_remove_final_layer_norm": _FLAG,
    "attention_bias": _FLAG,
    "layers_block_type": _TEXTS,
    "full_attention_interval": _WHOLE,
    "expand": _NUMBER,
    "expand_k": _NUMBER,
    "expand_v": _NUMBER,
    "hidden_ratio": _NUMBER,
    "num_heads": _WHOLE,
    "head_dim": _WHOLE,
}
"""What stands under the keys that families read by themselves; the fields of `TransformerConfig` check the others."""

WITH_TEXT_PART = ("llama4",)
"""model types whose ``text_config`` is what is trained here; a vision part has no counterpart"""
_REQUIRED = ("hidden", "layers", "heads", "vocabulary", "mlp")
_OPTIONAL_KEYS = ("n_inner",)
_ONE_TASK = ("causal-lm", "image-classification")
"""tasks of families that have no other"""


def read_config(tree: Mapping[str, Any], path: str = "model") -> TransformerConfig:
    """The architecture that a parsed Hugging Face ``config.json`` describes.

    Raises `ModelError` naming an unknown ``model_type`` (with the known ones), a missing size, a key that may be
    architectural but that parsim does not read, or a value parsim cannot model.
    """
    tree = _text_part(tree)
    family = _family(tree, path)
    _check_kinds(tree, path)
    values: dict[str, Any] = {"family": family.name}
    read: set[str] = set()
    for key, names in family.keys.items():
        if key in tree:
            read.add(key)
            for name in names.split() if tree[key] is not None else ():
                _put(values, name, ACTIVATIONS.get(str(tree[key]), tree[key]) if name == "activation" else tree[key])
    rotary = tree.get("rope_parameters")  # where transformers 5 writes what older versions call partial_rotary_factor or rotary_pct
    if isinstance(rotary, Mapping) and "rotary_fraction" in family.keys.values() and rotary.get("partial_rotary_factor") is not None:
        values["rotary_fraction"] = rotary["partial_rotary_factor"]
    if family.adjust is not None:
        _require(family, values, path)
        read |= family.adjust(values, tree)
    read |= _task(family, values, tree, path)
    _refuse(family, tree, read, path)
    _require(family, values, path)
    return configure(merged(family.structure, values), path=path)


def _text_part(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder of a config that describes it beside a vision part; the class of the latter's head says nothing of it."""
    part = tree.get("text_config")
    return part if tree.get("model_type") in WITH_TEXT_PART and isinstance(part, Mapping) else tree


def merged(structure: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` over a family's `structure`; nested records are merged field by field."""
    result = dict(structure)
    for name, value in values.items():
        nested = result.get(name)
        both = isinstance(nested, Mapping) and isinstance(value, Mapping)
        result[name] = {**nested, **value} if both else value  # type: ignore[dict-item]
    return result


def _family(tree: Mapping[str, Any], path: str) -> Family:
    kind = tree.get("model_type")
    if isinstance(kind, str) and kind in MODEL_TYPES:
        return MODEL_TYPES[kind]
    if kind is None:
        raise ModelError(Finding("a Hugging Face config needs a model_type", f"{path}.model_type", None, _known()))
    near = get_close_matches(str(kind), MODEL_TYPES, n=1)
    hint = f"did you mean {near[0]!r}? {_known()}" if near else _known()
    raise ModelError(Finding(f"model_type {kind!r} is not supported yet", f"{path}.model_type", kind, hint))


def _known() -> str:
    return f"supported: {', '.join(sorted(MODEL_TYPES))}"


def _check_kinds(tree: Mapping[str, Any], path: str) -> None:
    """Raise `ModelError` for every key whose value is of another kind than `KINDS` says; null is as good as absent."""
    findings = [
        Finding(f"must be {kind}, is {repr(tree[key])[:60]}", f"{path}.{key}", tree[key], "take it from the model's own config.json")
        for key, kind in KINDS.items()
        if tree.get(key) is not None and not _is_kind(tree[key], kind)
    ]
    if not findings:  # families expand the layers by themselves
        findings = beyond(tree.get("num_hidden_layers") or 0, MOST_LAYERS, "layers", f"{path}.num_hidden_layers")
    if findings:
        raise ModelError(findings)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == _TEXTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind in (_WHOLE, _NUMBER):
        accepted = int if kind == _WHOLE else (int, float)
        return isinstance(value, accepted) and not isinstance(value, bool) and 0 <= value <= LARGEST
    return isinstance(value, {_FLAG: bool, _LIST: list}.get(kind, Mapping))


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    record, _, inner = name.rpartition(".")
    (values.setdefault(record, {}) if record else values)[inner] = value


def _require(family: Family, values: Mapping[str, Any], path: str) -> None:
    """Sizes without which nothing can be said; a default would silently be another model."""
    findings = []
    for field in _REQUIRED:
        keys = [key for key, names in family.keys.items() if field in names.split()]
        if keys and not set(keys) & set(_OPTIONAL_KEYS) and field not in values:
            findings.append(Finding(f"{' or '.join(keys)} is required", f"{path}.{keys[-1]}"))
    if findings:
        raise ModelError(findings)


def _task(family: Family, values: dict[str, Any], tree: Mapping[str, Any], path: str) -> set[str]:
    """The head, from the class name in ``architectures``; without one the family's own."""
    classes = tree.get("architectures") or []
    usual = family.structure.get("task", "causal-lm")
    for name in classes[:1]:
        task = next((task for suffix, task in TASKS.items() if name.endswith(suffix)), None)
        if task is None or (task != usual and (usual in _ONE_TASK or task in _ONE_TASK)):
            legal = [suffix for suffix, task in TASKS.items() if task == usual or not {usual, task} & set(_ONE_TASK)]
            hint = f"supported for {family.name}: classes that end in {', '.join(legal)}"
            raise ModelError(Finding(f"the head of {name} is not supported yet", f"{path}.architectures", classes, hint))
        values["task"] = task
    return {"architectures"}


def _refuse(family: Family, tree: Mapping[str, Any], read: set[str], path: str) -> None:
    findings = []
    for key, value in tree.items():
        if key in family.stated:
            if value is not None and value not in family.stated[key]:
                message = f"{key}: {value!r} is not supported yet for {family.name}"
                findings.append(Finding(message, f"{path}.{key}", value, f"supported: {', '.join(map(repr, family.stated[key]))}"))
        elif key not in read | HARMLESS | family.harmless:
            message = f"{key!r} is a key that parsim does not read for model_type {family.model_type!r}"
            findings.append(Finding(message, f"{path}.{key}", value, "remove it if it changes neither shapes nor work"))
    if findings:
        raise ModelError(findings)
