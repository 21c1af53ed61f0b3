"""YAML of NeMo 1, NeMo 2 and Megatron-Bridge, or a command of NeMo 1 that overrides one, as a scenario.

Their keys are options of Megatron-LM, in sections and by other names.

What the keys mean: NVIDIA/NeMo, examples/nlp/language_modeling/conf and nemo/collections/nlp; NVIDIA-NeMo/Megatron-Bridge,
src/megatron/bridge/training (config.py, mixed_precision.py). ``_target_`` names a class, which is never imported: it is looked up in
the table. Simple interpolations of OmegaConf are followed; what they leave open is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding
from parsim.interop.command import read_environment
from parsim.interop.hydra import MISSING, composed
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_sequence_length
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.encoder_decoder import is_encoder_decoder, of_stacks, write_target
from parsim.interop.megatron.model import read_model
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.training import read_training
from parsim.interop.processes import write_launched
from parsim.interop.recognise import Foreign
from parsim.scenario import files

DEPTH = 20
"""interpolations that lead to one another"""
LONGEST = 1000
"""letters of a value"""
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w.]*)")
_CALL = re.compile(r"(multiply|divide_floor|divide_ceil):\s*(\d+)\s*,\s*(\d+)\s*")
_CALLS: Mapping[str, Callable[[int, int], int]] = {
    "multiply": lambda a, b: a * b, "divide_floor": lambda a, b: a // b, "divide_ceil": lambda a, b: -(-a // b),
}  # fmt: skip
"""resolvers that NeMo's launcher registers (NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py)"""
_MOUNTED = ("training.", "fine_tuning.", "peft.", "adapter_learning.", "prompt_learning.", "steerlm_reg.")
"""where the launcher puts a file of its folder conf"""
LAUNCH = ("nnodes", "nproc_per_node")
SAME = {"nnodes": "trainer.num_nodes", "nproc_per_node": "trainer.devices"}
"""option of torchrun -> key of NeMo 1"""
GATED = ("swiglu", "fast-swiglu")
"""activations of NeMo 1 that gate with silu"""
ACTIVATIONS = {"gelu": None, "openai-gelu": "openai_gelu", "squared-relu": "squared_relu"}
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
SIZES = (
    "model.layers", "model.heads", "model.kv_heads", "model.mlp", "model.head_dim", "model.maximum_sequence", "model.vocabulary",
    "model.vocab_divisible_by", "model.rotary_fraction",
)  # fmt: skip
"""what may stand beside the class of a model"""
OTHER_JOBS = ("peft.", "model.peft.", "model.teacher.", "model.kd_config.", "model.lora_tuning.")
MIXERS = ("hybrid_override_pattern", "hybrid_layer_pattern", "hybrid_attention_ratio", "is_hybrid_model")
ENCODERS = ("model.encoder.num_layers", "model.encoder.hidden_size", "model.bert_", "model.mm_cfg.", "model.vision_config.")
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "mixed": {},
    "with_fp8_delayed_scaling_mixed": {"fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_current_scaling_mixed": {
        "fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": True,
    },
    "with_fp8_subchannel_scaling_mixed": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"},
    "with_mxfp8_mixed": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "with_nvfp4_mixed": {"fp4_format": "e2m1"},
}  # fmt: skip
"""end of a name of mixed_precision -> options (src/megatron/bridge/training/mixed_precision.py)"""
OF_TRAINING_DATA = {
    "model.data.train_ds.micro_batch_size": "model.micro_batch_size", "model.data.train_ds.global_batch_size": "model.global_batch_size",
    "model.data.train_ds.max_seq_length": "model.encoder_seq_length",
}  # fmt: skip
"""key of a fine-tuning's data -> the model's"""
OF_MODEL = {
    "model.micro_batch_size": ("model.micro_batch_size",), "model.global_batch_size": ("model.global_batch_size",),
    "model.encoder_seq_length": ("model.encoder_seq_length", "model.seq_length", "model.data.seq_length"),
}  # fmt: skip
"""and all names that it has there"""
WORDS = {"16": "fp16", "16-mixed": "fp16", "bf16": "bf16", "bf16-mixed": "bf16", "32": "fp32", "32-true": "fp32", "bf16-true": "bf16"}
"""trainer.precision"""


def read_nemo(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a configuration."""
    written = _written(draft, foreign)
    if written is None:
        return
    table = key_table("nemo")
    spelled = files.read(Path(__file__).parent / "tables" / "nemo.yaml").tree
    sections = str(spelled["sections"]).split()
    keys = of_stacks(draft, _fine_tuned(draft, list(resolved(draft, written, sections, "nemo"))))
    renamed: list[Key] = []
    classes: list[Key] = []
    for key in keys:
        if key.name.startswith(OTHER_JOBS) and key.value not in (None, "none", False, {}, []):
            if not key.name.endswith("_target_"):
                draft.errors.append(key.finding("not supported yet: adapters and distillation of NeMo", "leave the section out"))
            draft.harmless(key, "the section counts")
        elif key.name.startswith(ENCODERS) and key.value is not None:
            draft.errors.append(key.finding("not supported yet: an encoder beside the decoder", "parsim reads NeMo's GPT"))
            draft.harmless(key, "of a model that is refused")
        elif key.name.endswith("_target_"):
            classes.append(key)
        else:
            renamed += _renamed(key, spelled)
    first = any(key.name == "model.encoder_seq_length" for key in keys)
    renamed = _shaped(draft, renamed)
    source = Source((key for key in renamed if not starts(key)), table)
    check_training(draft, source)
    _agree(draft, renamed, "seq_length")
    _activation(draft, renamed, classes)
    tensor = draft.take(source, "parallel.tensor.size") or 1
    layers = _model(draft, source, classes, spelled["classes"], tensor)
    launch = launched(draft, renamed, source)
    stacks = is_encoder_decoder(None, source) and draft.given.model is None
    long = source.get("seq_length", "encoder_seq_length") if stacks else source.of("training.sequence_length")
    length = write_sequence_length(draft, long)
    if stacks:
        write_target(draft, source)
    read_training(draft, source, length)
    if draft.given.model is None and "model.family" not in draft.lines and "hidden_dropout" not in source:
        draft.write("training.dropout", 0.0, note="of the class that is named")
    _precision(draft, source, keys)
    read_parallel(draft, source, layers)
    _software(draft, source, tensor)
    if first:
        _defaults(draft, source)
    draft.close(source)
    draft.close(launch)
    _one_fate_each(draft)


def _fine_tuned(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """Batch and length of a fine-tuning, which stand in ``model.data.train_ds`` and count before the model's.

    NVIDIA/NeMo, nemo/collections/nlp/models/language_modeling/megatron_gpt_sft_model.py and examples/nlp/language_modeling/tuning.
    """
    said = {key.name: key for key in keys}
    found = []
    for key in keys:
        ours = OF_TRAINING_DATA.get(key.name, "")
        twins = [said[name] for name in OF_MODEL.get(ours, ()) if name in said and said[name].value is not None]
        if ours and key.value is not None and isinstance(key.value, int):
            if any(str(twin.value) == str(key.value) for twin in twins):
                draft.harmless(key, "given again: the model's section says it, too")
            else:
                for twin in twins:
                    draft.harmless(twin, f"given again: {key.written} counts")
                found.append(replace(key, name=ours))
        else:
            found.append(key)
    return [key for key in found if not draft.settled(key) or key.name not in sum(OF_MODEL.values(), ())]


def _written(draft: ImportDraft, foreign: Foreign) -> tuple[Key, ...] | None:
    """The keys of a file, or of the file that a command names with what it overrides and what its launcher says."""
    if foreign.document is not None:
        return of_document(foreign.document, "nemo").keys
    keys = composed(draft, foreign.call, "nemo") if foreign.call is not None else None
    if keys is None or foreign.call is None:
        return None
    for key in foreign.call.launch:
        same = next((other for other in keys if SAME.get(key.name) == other.name), None)
        if same is not None and str(same.value) != key.text:
            text = f"{key.written} {key.text} ({key.place(draft.file)}) and {same.written} {same.value} ({same.place(draft.file)})"
            draft.errors.append(key.finding(f"{text} contradict each other", "correct one of the two"))
        if same is None:
            keys.append(key)
        else:
            draft.harmless(key, "the configuration says the same")
    read_environment(draft, foreign.call.environment)
    return tuple(keys)


def check_training(draft: ImportDraft, source: Source) -> None:
    """An error where it is another kind of job of the same tool."""
    if not source.all("seq_length", "micro_batch_size", "global_batch_size"):
        text = "no training of a language model: neither sizes of a batch nor of a sequence stand in it"
        draft.errors.append(Finding(text, file=draft.file, line=1, suggestion="parsim reads trainings of decoders of text"))


def starts(key: Key) -> bool:
    """Whether it says how many processes are started: the configuration's, or an option of torchrun, srun or sbatch."""
    return key.name in LAUNCH or key.written.startswith(("--", "#SBATCH"))


def launched(draft: ImportDraft, keys: list[Key], source: Source) -> Source:
    """Write the cluster section; the keys that say it, which stand beside those of `source`."""
    launch = Source((key for key in keys if starts(key)), source.table)
    write_launched(draft, launch)
    return launch


def resolved(draft: ImportDraft, keys: tuple[Key, ...], sections: list[str], tool: str) -> Iterator[Key]:
    """Keys with OmegaConf's interpolations followed; what stays open is an error where it matters to the table of `tool`."""
    values = {key.name: key.value for key in keys}
    table = key_table(tool)
    for key in keys:
        value, steps = _followed(key, values)
        plain = replace(key, value=value, original=key.value) if steps else key
        if isinstance(value, str) and ("${" in value or value == MISSING):
            idle = any(table.reason(table.harmless, name) for name in (key.name, behind(key.name, sections)))
            if idle or key.name.startswith(("model.data.", "model.tokenizer.", "tokenizer.")):
                draft.harmless(key, "it names a file or a logger")
            else:
                text = f"{value} is open: parsim follows references, multiply and divide"
                draft.errors.append(key.finding(text, "write the value itself"))
            continue
        if steps and table.reason(table.harmless, behind(key.name, sections)):
            draft.harmless(plain, "given again: it refers to other keys")
        yield plain


def _followed(key: Key, values: Mapping[str, Any]) -> tuple[Any, int]:
    """The value of a key behind its interpolations, as far as they lead, and how many there were."""
    value, steps = key.value, 0
    while isinstance(value, str) and steps < DEPTH and (match := _INNERMOST.search(value)):
        found = _one(match[1].strip(), key.name, values)
        if found is None or (isinstance(found, str) and match[0] in found):
            break
        value = found if match[0] == value.strip() else value.replace(match[0], str(found))
        steps += 1
        if len(str(value)) > LONGEST:
            break
    return value, steps


def _one(text: str, name: str, values: Mapping[str, Any]) -> Any:
    """What stands between the braces of one interpolation in the key `name`; None where that is not known."""
    if (call := _CALL.fullmatch(text)) is not None:
        one, other = int(call[2]), int(call[3])
        return _CALLS[call[1]](one, other) if other or call[1] == "multiply" else None
    if (match := _REFERENCE.fullmatch(text)) is None:
        return None
    above = name.split(".")
    path = match[2] if not match[1] else ".".join([*above[: len(above) - len(match[1])], match[2]])
    mounted = next((folder for folder in _MOUNTED if path.startswith(folder)), "")
    if path not in values and mounted:
        path = path.removeprefix(mounted)
    if path not in values:
        return None
    found = values[path]
    return _one_of(found, path) if isinstance(found, str) else found


def _one_of(text: str, path: str) -> str:
    """Relative references of another key, written from the root: they are relative to where they stand."""
    above = path.split(".")

    def absolute(match: re.Match[str]) -> str:
        dots = len(match[1])
        return "${" + ".".join([*above[: len(above) - dots], match[2]]) + "}" if dots else match[0]

    return re.sub(r"\$\{(\.*)([A-Za-z_][\w.]*)\}", absolute, text)


def behind(name: str, sections: list[str]) -> str:
    """The name of a key in its section."""
    return name.removeprefix(next((section for section in sections if name.startswith(section)), ""))


def _renamed(key: Key, spelled: Mapping[str, Any]) -> Iterator[Key]:
    """The key by the option of Megatron-LM that it is; `spelled` is the table."""
    name = "optimizer" if key.name == "model.optim.name" else behind(key.name, str(spelled["sections"]).split())
    if key.value is not None and name in spelled["inverted"] and isinstance(key.value, bool):
        yield replace(key, name=spelled["inverted"][name], value=not key.value, original=key.value)
        return
    yield replace(key, name=spelled["renamed"].get(name, name))


def _shaped(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """Keys whose values are said otherwise there: activation, norm, groups, optimizer."""
    found: list[Key] = []
    for key in keys:
        word = str(key.value)
        match key.name:
            case "activation" if word in GATED:
                found.append(replace(key, name="swiglu", value=True, original=key.value))
            case "activation" if word in ("geglu", "fast-geglu"):
                found.append(replace(key, name="geglu", value=True, original=key.value))
            case "activation" if word in ACTIVATIONS:
                if (option := ACTIVATIONS[word]) is not None:
                    found.append(replace(key, name=option, value=True, original=key.value))
                else:
                    draft.harmless(key, "the activation of a GPT")
            case "activation":
                draft.errors.append(key.finding(f"not supported yet: an MLP with {word}", f"{', '.join((*GATED, *ACTIVATIONS))}"))
            case "max_steps" | "train_iters" if word == "-1":
                draft.harmless(key, "epochs or time end the training")
            case "gated_linear_unit":
                found.append(replace(key, name="swiglu"))
            case "normalization" if word.lower() in NORMS:
                found.append(replace(key, value=NORMS[word.lower()], original=key.value))
                if word.lower() == "layernorm1p":
                    draft.remark("1 + weight is made inside the norm's kernel", "model.normalisation")
            case "layernorm_zero_centered_gamma":
                found.append(replace(key, name="apply_layernorm_1p"))
            case "num_query_groups" if key.value is not None:
                found += [key, replace(key, name="group_query_attention", value=True, original=key.value)]
            case "optimizer" if word in ("fused_adam", "distributed_fused_adam", "mcore_distributed_optim", "adamw"):
                found.append(replace(key, value="adam", original=key.value))
                if word.startswith(("distributed", "mcore")):
                    found.append(replace(key, name="use_distributed_optimizer", value=True, original=key.value))
            case "fp8_format" | "fp4_format" if word in ("True", "False", "None"):
                draft.harmless(key, "switched off") if word != "True" else found.append(key)
            case "tokenizer_type" | "type" if word == "GPT2BPETokenizer":
                found.append(replace(key, name="tokenizer_type"))
            case _:
                found.append(key)
    return found


def _agree(draft: ImportDraft, keys: list[Key], name: str) -> None:
    """An error where two sections say different numbers."""
    said = [key for key in keys if key.name == name and key.value is not None]
    for key in said[1:]:
        if str(key.value) != str(said[0].value):
            text = f"{key.value} here, {said[0].written}: {said[0].value} in {said[0].place(draft.file)}"
            draft.errors.append(key.finding(text, "they are one number: write the same"))


def _activation(draft: ImportDraft, keys: list[Key], classes: list[Key]) -> None:
    """Megatron-Core's MLP is gelu, or gated with silu, where no class says otherwise; others and mixers are refused."""
    gated = next((key for key in keys if key.name == "swiglu" and key.value is True), None)
    for key in classes:
        if not key.name.endswith("activation_func._target_"):
            continue
        word = _class(key)
        if word not in (("silu", "swish") if gated is not None else ("gelu",)):
            what = f"an MLP {'gated ' if gated is not None else ''}with {word}"
            draft.errors.append(key.finding(f"not supported yet: {what}", "gated with silu, or gelu; or give the model with --model"))
    for key in keys:
        if key.name in MIXERS and key.value not in (None, 0, 0.0, False, ""):
            draft.errors.append(key.finding("not supported yet: layers that carry a state", "give the model with --model"))


def _model(draft: ImportDraft, source: Source, classes: list[Key], known: Mapping[str, str], tensor: int) -> int | None:
    """Sizes that are written, else those of the class that is named."""
    named = next((key for key in classes if key.name in ("model._target_", "model.config._target_") and _class(key) in known), None)
    for key in classes:
        draft.harmless(key, "the name of a class, which is not imported")
    if draft.given.model is None and named is not None and source.of("model.hidden") is None:
        _base(draft, source, named, known[_class(named)])
        return draft.whole(source.of("model.layers"), 1)
    layers = read_model(draft, source, tensor)
    foreign = next((key for key in classes if key.name in ("model._target_", "model.config._target_")), None)
    if draft.given.model is None and foreign is not None and layers is not None:
        draft.remark(f"the sizes of {_class(foreign)} are read as those of a GPT: what its code says beside them is not known", "model")
    return layers


def _base(draft: ImportDraft, source: Source, named: Key, base: str) -> None:
    """The model of a class, with the sizes that are written beside it."""
    beside = [row.path for row in source.table.below("model.") if row.path != "model.attention_dropout" and source.of(row.path) is not None]
    draft.write("model.base" if beside else "model", base, named, note=_class(named))
    for path in beside:
        key = source.of(path)
        if path not in SIZES and key is not None:
            text = f"parsim does not change this of {_class(named)}"
            draft.errors.append(key.finding(text, "write all sizes of the model, hidden_size among them, or give it with --model"))
        draft.take(source, path)


def _class(key: Key) -> str:
    return str(key.value).rpartition(".")[2]


def _precision(draft: ImportDraft, source: Source, keys: list[Key]) -> None:
    """What ``trainer.precision`` and ``mixed_precision`` say, which win over single options."""
    given = {key.name: key for key in keys if key.value is not None}
    mixed: Key | None = given.get("mixed_precision") or given.get("trainer.plugins.precision")
    plain, half = given.get("trainer.precision"), given.get("model.megatron_amp_O2")
    if mixed is not None and isinstance(mixed.value, str):
        _mixed(draft, mixed, source)
    elif plain is not None:
        word = WORDS.get(str(plain.value))
        if word is None:
            draft.errors.append(plain.finding(f"{plain.value!r} is no precision", f"one of {', '.join(WORDS)}"))
            return
        if word == "fp32":
            draft.write("training.precision", "fp32", plain)
        elif half is not None and draft.flag(half):
            sync = source.get("grad_sync_dtype", "grad_reduce_in_bf16")
            low = sync is not None and (str(sync.value) in ("bf16", "fp16") or sync.value is True)
            kind = word if low or word == "fp16" else f"{word}-fp32grad"
            draft.write("training.precision", kind, plain, half, sync if low else None)
        else:
            note = "" if half else "megatron_amp_O2 is false if not given: autocast on fp32 weights"
            draft.write("training.precision", f"amp-{word}", plain, half, note=note)
        for name in ("fp8_format", "fp8_e4m3", "fp8_hybrid"):
            if (narrow := source.get(name)) is not None and narrow.value not in (False, "False", None):
                draft.write("training.precision", "fp8", plain, narrow)
    elif draft.value("training.precision") == "fp32" and not any(name in source for name in ("bf16", "fp16")):
        draft.fill("training.precision", "bf16-fp32grad, bf16 or fp8: the recipe's Python code says it")
    for key in keys:  # those that another one has replaced
        if key.name in ("mixed_precision", "trainer.plugins.precision", "trainer.precision", "model.megatron_amp_O2"):
            twin = next((other for other in source.keys if (other.written, other.line) == (key.written, key.line)), key)
            if not draft.settled(twin):
                draft.harmless(twin, "the same")


def _mixed(draft: ImportDraft, key: Key, source: Source) -> None:
    """A recipe by its name: ``bf16_with_fp8_current_scaling_mixed``."""
    word = str(key.value).replace("-", "_")
    half, _, kind = word.partition("_")
    options = RECIPES.get(kind) if half in ("bf16", "fp16") else None
    if options is None:
        draft.errors.append(key.finding(f"not supported yet: the recipe {word}", f"bf16_ or fp16_ and one of {', '.join(RECIPES)}"))
        return
    low = source.get("grad_reduce_in_bf16")
    wide = half == "bf16" and not draft.flag(low)
    used = [key, low if draft.flag(low) else None]
    if not options:
        draft.write("training.precision", f"{half}-fp32grad" if wide else half, *used)
        return
    value: dict[str, Any] = {"preset": "fp8", "recipe": "nvfp4" if "fp4_format" in options else _recipe(str(options["fp8_recipe"]))}
    value |= {} if wide else {"gradients": "bf16"}
    sharded = source.get("use_distributed_optimizer")
    if options.get("fp8_param_gather") and draft.flag(sharded):
        value["gather"] = "fp8"
    if options.get("first_last_layers_bf16"):
        value["keep_layers"] = 1
    draft.write("training.precision", value, *used)


def _recipe(word: str) -> str:
    """Megatron-LM's name of a recipe in parsim's words."""
    return key_table("megatron").rows["training.precision.recipe"].ours(word) or "delayed"


def _software(draft: ImportDraft, source: Source, tensor: int) -> None:
    draft.write("software.profile", "nemo")
    if tensor > 1 and draft.value("parallel.tensor.overlap") is None:
        draft.write("parallel.tensor.overlap", "backward", note="tp_comm_overlap is false if not given")
    draft.take(source, "software.gradient_accumulation_fusion")


def _defaults(draft: ImportDraft, source: Source) -> None:
    """What NeMo 1 takes where nothing is said, other than Megatron-LM."""
    if source.of("training.optimizer.clip_gradients") is None:
        draft.write("training.optimizer.clip_gradients", False, note="gradient_clip_val is 0 if not given")
    if source.of("software.gradient_accumulation_fusion") is None:
        draft.write("software.gradient_accumulation_fusion", False, note="gradient_accumulation_fusion is false if not given")
    fsdp = source.get("fsdp")
    if fsdp is not None and draft.flag(fsdp):
        draft.errors.append(fsdp.finding("not supported yet: FSDP of NeMo 1", "write the scenario's strategy: fsdp"))
    draft.harmless(fsdp, "switched off")


def _one_fate_each(draft: ImportDraft) -> None:
    """A key that stands for several options has one fate: the weightiest, with all that it became."""
    weight = {"unknown": 0, "no effect": 1, "not modelled": 2, "translated": 3}
    best: dict[tuple[str, str, int | None], Key] = {}
    for key, fate in list(draft.fates.items()):
        place = (key.file, key.written, key.line)
        other = best.get(place)
        if other is None:
            best[place] = key
            continue
        first = draft.fates[other]
        kept, lost = (key, other) if weight[fate.kind] > weight[first.kind] else (other, key)
        draft.fates[kept].to += [path for path in draft.fates[lost].to if path not in draft.fates[kept].to]
        del draft.fates[lost]
        best[place] = kept
