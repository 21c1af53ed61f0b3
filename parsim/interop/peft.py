"""Adapters: as TRL's command line and LLaMA-Factory ask for them, and as calls of PEFT and bitsandbytes in a training script."""

from __future__ import annotations

import re
from typing import Any

from parsim.interop.export_draft import ExportDraft
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import sizes
from parsim.interop.keys import Key, Source
from parsim.model.adapters import AS_READ
from parsim.scenario.finetune import FinetuneSection

EMBEDDINGS = ("embed_tokens", "lm_head", "wte")
"""what `train_embeddings` trains"""
RANK = 16
DROPOUT = 0.05
"""TRL's defaults"""
TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""`training.finetune.quantised_from` as PyTorch calls it"""
EIGHT_BITS = "int8"
"""`training.finetune.base` of bitsandbytes' 8 bits (LLM.int8())"""


def asks_for_adapters(source: Source) -> bool:
    """Whether the arguments ask for adapters."""
    switch = source.get("use_peft")
    return switch is not None and str(switch.value).lower() in ("true", "1")


def write_peft(draft: ImportDraft, source: Source) -> None:
    """Write the adapters of TRL's arguments."""
    get = source.get
    switch, four, eight = get("use_peft"), get("load_in_4bit"), get("load_in_8bit")
    rank, targets, share, saved = get("lora_r"), get("lora_target_modules"), get("lora_dropout"), get("lora_modules_to_save")
    nested, form = get("use_bnb_nested_quantization", "use_bnb_nested_quant", "bnb_4bit_use_double_quant"), get("bnb_4bit_quant_type")
    if not asks_for_adapters(source):
        if switch is None:
            draft.unmodelled(rank, "TRL makes no adapters without use_peft; where your script does, write training.finetune")
        for key in (switch, rank, targets, share, saved, nested, form, get("use_dora")):
            draft.harmless(key, "without use_peft there are no adapters")
        for key in (four, eight):
            if key is not None and draft.flag(key):
                draft.errors.append(key.finding("a quantised model is trained with adapters only", "add use_peft, or leave it out"))
            draft.harmless(key, "nothing is quantised")
        return
    quantised = draft.flag(four)
    draft.write("training.finetune.method", "qlora" if quantised else "lora", switch, four if quantised else None)
    draft.write("training.finetune.rank", draft.whole(rank, 1) or RANK, rank, note="" if rank else f"{RANK} if not given")
    write_targets(draft, targets)
    value = draft.number(share)
    draft.write("training.finetune.dropout", DROPOUT if value is None else value, share, note="" if share else f"{DROPOUT} if not given")
    write_saved(draft, saved)
    if quantised:
        note = "" if nested else "not nested if not said"
        draft.write("training.finetune.base", "nf4-dq" if draft.flag(nested) else "nf4", nested, note=note)
        draft.only_if(form, ("nf4",), "another code of the same four bits")
        write_quantised_experts(draft)
    else:
        draft.harmless(four, "switched off")
        for key in (nested, form):
            draft.harmless(key, "nothing is quantised")
    write_eight_bits(draft, eight, quantised=quantised)
    write_dora(draft, get("use_dora"))


SWITCHES = ("lora_enable", "use_lora", "enable_lora", "use_peft_lora")
LLAVA_RANK = 64
OWN_RANKS = ("lora_rank", "peft_lora_r")
"""options with which training scripts that are not TRL's ask for adapters (haotian-liu/LLaVA, llava/train/train.py, among many)"""


def write_own_adapters(draft: ImportDraft, source: Source) -> bool:
    """Write the adapters that a script of its own asks for, as the names of its options say; False where it asks for none."""
    switch, bits = source.get(*SWITCHES), source.get("bits", "q_lora", "load_in_4bit")
    rank = source.get(*OWN_RANKS) or (source.get("lora_r") if switch is not None else None)
    trl = source.get("use_peft")
    if (switch is None and rank is None) or (trl is not None and rank is None):
        return False
    switch = switch or trl
    if switch is not None and not draft.flag(switch):
        for key in (switch, *source.all(*OWN_RANKS)):
            draft.harmless(key, "no adapters are asked for")
        return False
    quantised = bits is not None and str(bits.value).lower() in ("4", "true")
    draft.write("training.finetune.method", "qlora" if quantised else "lora", switch, rank, bits if quantised else None)
    if quantised:
        write_quantised_experts(draft)
    if rank is None and switch is not None and switch.name == "lora_enable":
        draft.write("training.finetune.rank", LLAVA_RANK, note=f"{LLAVA_RANK} if not given, as in LLaVA")
    elif rank is None:
        draft.fill("training.finetune.rank", "rank of the adapters, for example 64")
    elif (value := draft.whole(rank, 1)) is not None:
        draft.write("training.finetune.rank", value, rank)
    targets = source.get("lora_target_modules", "peft_target_modules", "target_modules")
    write_targets(draft, targets, note="" if targets else "all linear layers, unless the script says otherwise")
    share = source.get("lora_dropout", "peft_lora_dropout")
    draft.write("training.finetune.dropout", draft.number(share) or 0.0, share)
    write_dora(draft, source.get("use_dora"))
    draft.remark("the script's own options of adapters are read as their names say", "training.finetune")
    for key in source.all("lora_alpha", "peft_lora_alpha", "lora_bias", "lora_weight_path", "peft_lora_bias"):
        draft.harmless(key, "how adapters are scaled and stored")
    return True


def write_dora(draft: ImportDraft, key: Key | None) -> None:
    """DoRA, where adapters are asked for."""
    if key is not None and draft.flag(key) and "training.finetune.rank" in draft.lines:
        draft.write("training.finetune.dora", True, key)
    draft.harmless(key, "switched off, or there are no adapters")


def write_adapter_dtype(draft: ImportDraft, key: Key | None, *, fp32: bool) -> None:
    """The type of adapters where it is not PEFT's own choice, which parsim takes without the key."""
    if "training.finetune.method" in draft.lines and not fp32:
        draft.write("training.finetune.adapter_dtype", "model", key)
    draft.harmless(key, "fp32 adapters where the engine or the strategy leave them so, as PEFT has it")


def write_quantised_experts(draft: ImportDraft) -> None:
    """Experts in four bits are linear layers, as transformers had them before version 5: those of later ones are not quantised at all."""
    model = draft.value("model")
    found = sizes(model, draft.file if draft.file != "-" else None) if isinstance(model, str) else None
    if found is not None and found.linear_experts:
        note = "linear layers, in four bits and adapted with the others: transformers before version 5; fused leaves them in 16 bits"
        draft.write("training.finetune.experts", "linear", note=note)


def write_eight_bits(draft: ImportDraft, key: Key | None, *, quantised: bool) -> None:
    """A base in 8 bits."""
    if key is not None and draft.flag(key) and not quantised:
        draft.write("training.finetune.base", EIGHT_BITS, key)
    else:
        draft.harmless(key, "four bits count" if quantised else "switched off")


def write_saved(draft: ImportDraft, key: Key | None) -> None:
    """Whole modules that are trained beside the adapters."""
    names = listed(key)
    if names and set(names) <= set(EMBEDDINGS):
        draft.write("training.finetune.train_embeddings", True, key)
    else:
        draft.unmodelled(key, "parsim trains embedding and head beside adapters, nothing else")


def write_targets(draft: ImportDraft, key: Key | None, note: str = "") -> None:
    """Where adapters stand: all linear layers, names, or a pattern for the full names of layers, as PEFT matches it."""
    path = "training.finetune"
    if key is None or not isinstance(key.value, str) or not set(key.value) & set(_PATTERN):
        draft.write(f"{path}.targets", names_or_all(key), key, note=note)
        return
    found = matched(key.value)
    if found is None:
        what = "a pattern that names no linear layers of a decoder, some layers only, or more than parsim matches"
        draft.refuse(key, what, "give the names of the layers: [q_proj, v_proj]")
        return
    names, tower = found
    draft.write(f"{path}.targets", names, key)
    if not tower:
        draft.write(f"{path}.tower", False, key, note="the pattern matches layers of the text alone")


_PATTERN = r"*.[](|)\^$+?"
"""letters of a regular expression"""
_ALLOWED = re.compile(r"[\w.\\\[\]()|*+?^$:=!<-]{1,300}")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEAT = re.compile(r"[*+]|(?<!\()\?")
_MOST_REPEATS = 3
_ROOTS = (
    "model.layers", "model.language_model.layers", "language_model.model.layers", "model.text_model.layers",
    "base_model.model.model.layers",
)  # fmt: skip
_MOST_LAYERS = 32
"""layers that a pattern is tried on: where it does not treat all of them alike, it is refused"""
_LAYERS = tuple(f"{part}.{name}_proj" for part, names in (("self_attn", "q k v o"), ("mlp", "gate up down")) for name in names.split())
"""linear layers of a decoder in transformers"""
_TOWERS = (
    "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", "model.vision_tower.encoder.layers.0.self_attn.q_proj",
    "model.vision_tower.transformer.layers.0.attention.q_proj", "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
    "model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv", "model.visual.blocks.0.mlp.gate_proj",
    "model.visual.blocks.0.mlp.linear_fc1", "model.vision_model.encoder.layers.0.self_attn.q_proj",
)  # fmt: skip
"""and some of towers of images"""


def matched(pattern: str) -> tuple[list[str], bool] | None:
    """The layers of a decoder that PEFT's `pattern` matches whole, and whether it matches one of a tower; None where it matches none.

    Patterns with repeated groups, or with many repetitions, are not tried: they could take for ever.
    """
    repeats = len(_REPEAT.findall(pattern))
    if not _ALLOWED.fullmatch(pattern) or _REPEATED_GROUP.search(pattern) or repeats > _MOST_REPEATS:
        return None
    try:
        wanted = re.compile(pattern)
    except re.error:
        return None
    each = [
        [layer.rpartition(".")[2] for layer in _LAYERS if any(wanted.fullmatch(f"{root}.{number}.{layer}") for root in _ROOTS)]
        for number in range(_MOST_LAYERS)
    ]
    alike = all(names == each[0] for names in each)
    return (each[0], any(wanted.fullmatch(name) for name in _TOWERS)) if each[0] and alike else None


def names_or_all(key: Key | None) -> Any:
    """Linear layers by name, or all of them."""
    names = [_layer(name) for name in listed(key)]
    return "all-linear" if not names or names in (["all"], ["all-linear"]) else names


def listed(key: Key | None) -> list[str]:
    """A list, or a text with commas."""
    if key is None:
        return []
    value = key.value if isinstance(key.value, list) else str(key.value).split(",")
    return [str(name).strip() for name in value]


def _layer(name: str) -> str:
    """``self_attn.q_proj``, of which PEFT matches the end of a layer's name, by its last word."""
    part, _, last = name.rpartition(".")
    return last if part in ("self_attn", "mlp", "attn", "attention") else name


PATH = "training.finetune"


def finetuning(draft: ExportDraft) -> None:
    """The calls of the script that make what was simulated."""
    section, recipe = draft.job.settings.training.finetune, draft.job.built.training.finetune
    if section is None or recipe is None:
        return
    for key, why in (
        ("base_sharded", "it follows from how the script wraps the base"),
        ("flat_gradients", "it is FSDP1's, not FSDP2's way"),
    ):
        draft.lacks(f"{PATH}.{key}", why)
    if section.method == "bottleneck":
        for key in ("method", "rank", "dropout", "base"):
            draft.lacks(f"{PATH}.{key}", "bottlenecks behind sublayers are NeMo's; PEFT has none")
        return
    if section.method in ("ia3", "prompt"):
        calls = [_learned(section)]
    elif section.method == "freeze":
        parts = section.freeze if isinstance(section.freeze, str) else str(section.freeze)
        calls = [f"requires_grad_(False) on {parts}"]
    else:
        calls = [_adapters(section)]
        if section.adapter_dtype == "model" and draft.job.built.training.precision.matmul in ("fp16", "bf16"):
            calls.append("get_peft_model(autocast_adapter_dtype=False)")
        if recipe.base == EIGHT_BITS:
            calls.insert(0, "BitsAndBytesConfig(load_in_8bit=True)")
        elif recipe.base in AS_READ:
            draft.lacks(f"{PATH}.base", "PEFT has frozen weights in 16 or 32 bits, or in bitsandbytes' forms")
        elif recipe.quantised:
            calls.insert(0, _quantised(section, recipe.base))
            if section.quantised_from != "auto":
                calls.insert(1, f"from_pretrained(dtype=torch.{TYPES[section.quantised_from]})")
            if section.keeps_inputs:
                calls.insert(0, "bitsandbytes before 0.43.2")
        elif recipe.base == "bf16":
            calls.insert(0, "from_pretrained(dtype=torch.bfloat16)")
    learned = ("virtual_tokens", "prompt_encoder", "encoder_hidden", "encoder_layers")
    adapters = (
        "rank",
        "targets",
        "dropout",
        "dora",
        "adapter_dtype",
        "tower",
        "experts",
        "train_embeddings",
        "base",
        "quantise_head",
        "quantised_from",
        "keeps_inputs",
        "freeze",
    )
    for key in ("method", *adapters, *learned):
        draft.scripted(f"{PATH}.{key}", "; ".join(calls))
    draft.script += calls


def _learned(section: FinetuneSection) -> str:
    """PEFT's learned scales, or its learned tokens and what they pass through."""
    if section.method == "ia3":
        return "IA3Config()"
    count = f"num_virtual_tokens={section.virtual_tokens}"
    if section.prompt_encoder == "none":
        return f"PromptTuningConfig({count})"
    width = [] if section.encoder_hidden == "auto" else [f"encoder_hidden_size={section.encoder_hidden}"]
    kind = f"encoder_reparameterization_type={section.prompt_encoder.upper()!r}"
    return f"PromptEncoderConfig({', '.join([count, kind, *width, f'encoder_num_layers={section.encoder_layers}'])})"


def _adapters(section: FinetuneSection) -> str:
    targets = section.targets if isinstance(section.targets, str) else list(section.targets)
    arguments = [f"r={section.rank}", f"target_modules={targets!r}", f"lora_dropout={section.dropout:g}"]
    if section.dora:
        arguments.append("use_dora=True")
    if not section.tower:
        arguments.append("exclude_modules='.*(vision|visual|projector).*'")
    if section.train_embeddings:
        arguments.append("modules_to_save=['embed_tokens', 'lm_head']")
    return f"LoraConfig({', '.join(arguments)})"


def _quantised(section: FinetuneSection, base: str) -> str:
    arguments = ["load_in_4bit=True", "bnb_4bit_quant_type='nf4'", f"bnb_4bit_use_double_quant={base == 'nf4-dq'}"]
    if section.quantise_head:
        arguments.append("llm_int8_skip_modules=[]")
    return f"BitsAndBytesConfig({', '.join(arguments)})"
