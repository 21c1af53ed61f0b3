"""Hugging Face ``config.json`` as a `TransformerConfig`.

Pure: a parsed config in, an architecture out; nothing is downloaded. Every key is either read, known to change
nothing parsim models, or an error that names it: a config is never half understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.limits import MOST_LAYERS, beyond
from parsim.model.families import MODEL_TYPES, REFUSED, Family
from parsim.model.families.family import words
from parsim.model.families.harmless import is_harmless, says_nothing
from parsim.model.families.usual_sizes import assumed_sizes
from parsim.model.families.vision_language import VISION_LANGUAGE
from parsim.model.transformer import LARGEST, TransformerConfig, configure

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-new",
    "gelu_fast": "gelu-new",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
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
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "Model": "encoder",
}
"""suffix of the class in ``architectures`` -> task"""
_OF_DECODERS = ("causal-lm", "sequence-classification", "token-classification", "question-answering", "encoder")
_LABELLED = ("sequence-classification", "token-classification", "image-classification")
_OF_ENCODERS = ("masked-lm", "pretraining", "sequence-classification", "token-classification", "question-answering", "encoder")

_WHOLE, _NUMBER, _FLAG = "a whole number", "a number", "true or false"
_TEXT, _TEXTS, _LIST, _MAPPING = "a text", "a list of texts", "a list", "a mapping"
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
    "num_experts": _WHOLE,
    "moe_topk": _WHOLE,
    "hybrid_override_pattern": _TEXT,
    "num_shared_expert": _WHOLE,
    "num_shared_experts": _WHOLE,
    "rotary_dim": _WHOLE,
    "window_size": _WHOLE,
    "layer_switch": _WHOLE,
    "_sliding_window_pattern": _WHOLE,
    "multi_query_group_num": _WHOLE,
    "model_max_length": _WHOLE,
    "mamba_expand": _NUMBER,
    "mamba_d_ssm": _WHOLE,
    "shared_intermediate_size": _WHOLE,
    "num_local_experts": _WHOLE,
    "moe_layer_start_index": _WHOLE,
    "moe_num_shared_experts": _WHOLE,
    "moe_shared_expert_intermediate_size": _WHOLE,
    "num_kv_heads": _WHOLE,
    "n_head_kv": _WHOLE,
    "num_key_value_heads": _WHOLE,
    "attn_layer_indices": _LIST,
    "attention_types": _LIST,
    "attention_layers": _TEXTS,
    "mlp_layer_types": _TEXTS,
    "mlp_only_layers": _LIST,
    "indexer_types": _TEXTS,
    "num_nextn_predict_layers": _WHOLE,
    "index_topk_freq": _WHOLE,
    "index_skip_topk_offset": _WHOLE,
    "attn_type_list": _LIST,
    "ffn_config": _MAPPING,
    "n_shared_experts": _WHOLE,
    "num_labels": _WHOLE,
    "d_model": _WHOLE,
    "expansion_ratio": _NUMBER,
    "attn_config": _MAPPING,
    "id2label": _MAPPING,
    "attn_pdrop": _NUMBER,
    "attention_dropout": _NUMBER,
    "activation_dropout": _NUMBER,
    "embedding_dropout": _NUMBER,
    "mlp_dropout": _NUMBER,
    "mlp_ratio": _NUMBER,
    "global_attn_every_n_layers": _WHOLE,
    "attention_probs_dropout_prob": _NUMBER,
    "no_bias": _FLAG,
    "learned_pos_emb": _FLAG,
    "do_layer_norm_before": _FLAG,
    "_remove_final_layer_norm": _FLAG,
    "attention_bias": _FLAG,
    "layers_block_type": _TEXTS,
    "full_attention_interval": _WHOLE,
    "expand": _NUMBER,
    "attn_layer_period": _WHOLE,
    "attn_layer_offset": _WHOLE,
    "expert_layer_period": _WHOLE,
    "expert_layer_offset": _WHOLE,
    "expand_k": _NUMBER,
    "expand_v": _NUMBER,
    "hidden_ratio": _NUMBER,
    "num_heads": _WHOLE,
    "head_dim": _WHOLE,
}
"""What stands under the keys that families read by themselves; the fields of `TransformerConfig` check the others."""

_REQUIRED = ("hidden", "layers", "heads", "vocabulary", "mlp")
_OPTIONAL_KEYS = ("n_inner",)
_REMOVE = "remove it if it changes neither shapes nor work"
_SIZES = words("hidden layers heads kv_heads mlp vocabulary experts.count experts.top_k experts.mlp mixer.heads")


def read_config(tree: Mapping[str, Any], path: str = "model") -> TransformerConfig:
    """The architecture that a parsed Hugging Face ``config.json`` describes.

    Raises `ModelError` naming an unknown ``model_type`` (with the known ones), a missing size, a key that may be
    architectural but that parsim does not read, or a value parsim cannot model.
    """
    if str(tree.get("model_type")) in VISION_LANGUAGE:
        from parsim.model.vision_language import read_vision_language

        return read_vision_language(tree, path)
    family = _family(tree, path)
    tree = _said_once(tree)
    tree = {**_assumed(family, tree, path), **tree}
    _check_kinds(family, tree, path)
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


def sizes_of_class(tree: Mapping[str, Any]) -> dict[str, int]:
    """Sizes that a config leaves out and that it has from its class, by their keys; those of its text with its section before."""
    kind = str(tree.get("model_type"))
    where = VISION_LANGUAGE[kind].text_key if kind in VISION_LANGUAGE else ""
    text = tree.get(where)
    if isinstance(text, Mapping):
        name = str(text.get("model_type"))
        family = MODEL_TYPES.get(VISION_LANGUAGE[kind].text.get(name, name))
        found = {} if family is None else _assumed(family, text, where)
        return {f"{where}.{key}": size for key, size in found.items()}
    return _assumed(MODEL_TYPES[kind], tree, "") if kind in MODEL_TYPES else {}


def _assumed(family: Family, tree: Mapping[str, Any], path: str) -> dict[str, int]:
    """`assumed_sizes`, unless ``architectures`` names a class of another model type."""
    classes = tree.get("architectures")
    name = next((name for name in (classes if isinstance(classes, list) else ()) if isinstance(name, str)), "")
    suffix = max((suffix for suffix in TASKS if name.endswith(suffix)), key=len, default="")
    stem = _letters(name.removesuffix(suffix))
    known = {_letters(kind) for kind in MODEL_TYPES}
    own = {_letters(kind) for kind in (family.model_type, *family.also)}
    return {} if stem in known - own else assumed_sizes(family, tree, part=path.endswith(("text_config", "llm_config")))


def _said_once(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A number that a list repeats for every layer, as that number."""
    layers = tree.get("num_hidden_layers")
    numbers = [key for key, kind in KINDS.items() if kind == _WHOLE and isinstance(tree.get(key), list)]
    same = {key: tree[key][0] for key in numbers if len(tree[key]) == layers and all(item == tree[key][0] for item in tree[key])}
    return {**tree, **same}


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
    if isinstance(kind, str) and kind in REFUSED:
        message = f"model_type {kind!r} is not supported yet: {REFUSED[kind]}"
        raise ModelError(Finding(message, f"{path}.model_type", kind, _known()))
    # an architecture that is spelled much like another is still another: nothing is offered in its place
    raise ModelError(Finding(f"architecture {kind!r} is not known, so it is not supported yet", f"{path}.model_type", kind, _known()))


def _known() -> str:
    return f"known: {', '.join(sorted({*MODEL_TYPES, *VISION_LANGUAGE}))}"


def _check_kinds(family: Family, tree: Mapping[str, Any], path: str) -> None:
    """Raise `ModelError` for every key whose value is of another kind than `KINDS` says; null is as good as absent."""
    findings = [
        Finding(f"must be {kind}, is {repr(tree[key])[:60]}", f"{path}.{key}", tree[key], "take it from the model's own config.json")
        for key, kind in KINDS.items()
        if tree.get(key) is not None and not _is_kind(tree[key], kind)
    ]
    for key, names in family.keys.items():  # families calculate with these
        value, low = tree.get(key), int(bool(set(names.split()) & {"hidden", "layers", "heads"}))
        wrong = not isinstance(value, int) or isinstance(value, bool) or value < low
        if value is not None and wrong and set(names.split()) & _SIZES and not any(one.path == f"{path}.{key}" for one in findings):
            message = f"must be a whole number of at least {low}, is {repr(value)[:60]}"
            findings.append(Finding(message, f"{path}.{key}", value, "take it from the model's own config.json"))
    if not findings:  # families expand the layers by themselves
        findings = beyond(tree.get("num_hidden_layers") or 0, MOST_LAYERS, "layers", f"{path}.num_hidden_layers")
    if findings:
        raise ModelError(findings)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return isinstance(value, str)
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
    """Sizes without which nothing can be said; a default that is not the architecture's own would silently be another model."""
    findings = []
    for field in _REQUIRED:
        keys = [key for key, names in family.keys.items() if field in names.split()]
        if keys and not set(keys) & set(_OPTIONAL_KEYS) and field not in values and field not in family.structure:
            findings.append(Finding(f"{' or '.join(keys)} is required", f"{path}.{keys[-1]}"))
    if findings:
        raise ModelError(findings)


def _task(family: Family, values: dict[str, Any], tree: Mapping[str, Any], path: str) -> set[str]:
    """The head, from the class name in ``architectures``; without one the family's own."""
    classes = tree.get("architectures") or []
    usual = family.structure.get("task", "causal-lm")
    legal: tuple[str, ...] = _OF_DECODERS if usual == "causal-lm" else (usual, "encoder") if usual not in _OF_ENCODERS else _OF_ENCODERS
    if "encoder" in family.structure and str((classes or [""])[0]).endswith("ForCausalLM"):  # the decoder alone: another model
        legal = ()
    for name in classes[:1]:
        task = family.classes.get(name) or next((task for suffix, task in TASKS.items() if name.endswith(suffix)), None)
        if task not in legal or (task == "encoder" and name not in family.classes and not _is_bare(name)):
            suffixes = [suffix for suffix, task in TASKS.items() if task in legal]
            hint = f"supported for {family.name}: classes that end in {', '.join(suffixes)}"
            raise ModelError(Finding(f"the head of {name} is not supported yet", f"{path}.architectures", classes, hint))
        values["task"] = task
    if values.get("task", usual) in _LABELLED and "labels" not in values:
        named, counted = tree.get("id2label"), tree.get("num_labels")
        values |= {"labels": len(named)} if named else {"labels": counted} if counted is not None else {}
    return {"architectures"}


def _is_bare(name: str) -> bool:
    """Whether a class that ends in Model is an architecture's own, without a head: LlamaModel, but no LlamaDraftModel."""
    return _letters(name.removesuffix("Model")) in {_letters(kind) for kind in MODEL_TYPES}


def _letters(name: str) -> str:
    """Letters and digits in alphabetical order: hunyuan_v1_dense is HunYuanDenseV1."""
    return "".join(sorted(letter for letter in name.lower() if letter.isalnum()))


def _refuse(family: Family, tree: Mapping[str, Any], read: set[str], path: str) -> None:
    findings = []
    for key, value in tree.items():
        if key in family.stated:
            if value is not None and value not in family.stated[key]:
                message = f"{key}: {value!r} is not supported yet for {family.name}"
                findings.append(Finding(message, f"{path}.{key}", value, f"supported: {', '.join(map(repr, family.stated[key]))}"))
        elif key not in read | family.harmless and not is_harmless(key) and not says_nothing(key, value):
            message, hint = f"{key!r} is a key that parsim does not read for model_type {family.model_type!r}", _REMOVE
            if key in family.elsewhere:
                message, hint = f"{key!r} is a key of {family.elsewhere[key]}, which is not supported yet", ""
            findings.append(Finding(message, f"{path}.{key}", value, hint))
    if findings:
        raise ModelError(findings)
