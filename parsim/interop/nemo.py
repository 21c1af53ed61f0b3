"""YAML of NeMo 1, NeMo 2 and Megatron-Bridge, or a command of NeMo 1 that overrides one, as a scenario.

Their keys are options of Megatron-LM, in sections and by other names.

What the keys mean: NVIDIA/NeMo, examples/nlp/language_modeling/conf and nemo/collections/nlp; NVIDIA-NeMo/Megatron-Bridge,
src/megatron/bridge/training (config.py, mixed_precision.py). ``_target_`` names a class, which is never imported: it is looked up in
the table. Simple interpolations of OmegaConf are followed; what they leave open is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding
from parsim.interop.command import read_environment
from parsim.interop.hydra import composed
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import sizes, write_sequence_length
from parsim.interop.interpolations import behind, resolved
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.encoder_decoder import is_encoder_decoder, of_stacks, write_target
from parsim.interop.megatron.model import read_model
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.training import read_training
from parsim.interop.nemo_adapters import LEARNED, ask_for_frozen_model, asks_for_modules, write_adapters
from parsim.interop.nemo_jobs import ADAPTERS, check_trained, of_job
from parsim.interop.nemo_precision import write_precision
from parsim.interop.processes import write_launched
from parsim.interop.recognise import Foreign
from parsim.interop.tokenizers import rows_of
from parsim.scenario import files

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
NO_GPT = {
    re.compile(r"Mamba|Hybrid|NemotronH|SSM|Griffin|Hyena"): "layers that carry a state",
    re.compile(r"T5|Bert(?!Embedding)"): "a model that is not a decoder alone",
    re.compile(r"VL|Vision|Llava|Omni|Clip|DiT|Flux|Diffusion"): "a model of images or sounds",
}
"""names of Megatron-Bridge's and NeMo's classes whose sizes are no GPT's: what they are"""
MIXERS = ("hybrid_override_pattern", "hybrid_layer_pattern", "hybrid_attention_ratio", "is_hybrid_model")
OF_TRAINING_DATA = {
    "model.data.train_ds.micro_batch_size": "model.micro_batch_size", "model.data.train_ds.global_batch_size": "model.global_batch_size",
    "model.data.train_ds.max_seq_length": "model.encoder_seq_length", "model.data.train_ds.max_src_seq_length": "model.encoder_seq_length",
}  # fmt: skip
"""key of a fine-tuning's data -> the model's"""
LOADED = ("model.data.train_ds.batch_size", "model.train_ds.batch_size")
"""the batch of a rank in the first fine-tunings, whose steps Lightning accumulates"""
BATCHES = ("micro_batch_size", "global_batch_size")
OF_MODEL = {
    "model.micro_batch_size": ("model.micro_batch_size",), "model.global_batch_size": ("model.global_batch_size",),
    "model.encoder_seq_length": ("model.encoder_seq_length", "model.seq_length", "model.data.seq_length"),
}  # fmt: skip
"""and all names that it has there"""


def read_nemo(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a configuration."""
    written = _written(draft, foreign)
    if written is not None:
        read_keys(draft, written)


def read_keys(draft: ImportDraft, written: tuple[Key, ...], tool: str = "nemo", models: Mapping[str, Any] | None = None) -> None:
    """Write the scenario that keys of NeMo or Megatron-Bridge say, which are those of the table of `tool`.

    `models`: classes beside those of the table, each a model of the catalogue, or one with other sizes.
    """
    table = key_table(tool)
    spelled = files.read(Path(__file__).parent / "tables" / "nemo.yaml").tree
    sections = str(spelled["sections"]).split()
    plain = list(resolved(draft, written, sections, "nemo"))
    check_trained(draft, plain)
    keys = of_job(draft, of_stacks(draft, _fine_tuned(draft, plain)))
    renamed: list[Key] = []
    classes: list[Key] = []
    for key in keys:
        if key.name.endswith("_target_"):
            classes.append(key)
        elif not key.name.startswith((*ADAPTERS, *LEARNED)):
            renamed += _renamed(key, spelled)
    modules = asks_for_modules(keys)
    first = modules or any(key.name == "model.encoder_seq_length" for key in keys)
    renamed = _shaped(draft, renamed)
    source = Source((key for key in renamed if not starts(key)), table)
    if not modules:
        check_training(draft, source)
    _agree(draft, renamed, "seq_length")
    _activation(draft, renamed, classes)
    tensor = draft.take(source, "parallel.tensor.size") or 1
    layers = _model(draft, source, classes, {**spelled["classes"], **(models or {})}, tensor)
    write_adapters(draft, keys, next((str(key.value) for key in written if key.name == "name"), ""))
    launch = launched(draft, renamed, source)
    stacks = is_encoder_decoder(None, source) and draft.given.model is None
    long = source.get("seq_length", "encoder_seq_length") if stacks else source.of("training.sequence_length")
    length = write_sequence_length(draft, long)
    if stacks:
        write_target(draft, source)
    ask_for_frozen_model(draft, written)
    read_training(draft, source, length)
    _accumulation(draft, source, loaded=any(key.written in LOADED for key in source.all("micro_batch_size")))
    if draft.given.model is None and "model.family" not in draft.lines and "hidden_dropout" not in source:
        draft.write("training.dropout", 0.0, note="of the class that is named")
    write_precision(draft, source, keys)
    read_parallel(draft, source, layers)
    _software(draft, source, tensor)
    if first:
        _defaults(draft, source)
    elif draft.value("parallel.data.strategy") == "ddp" and "use_distributed_optimizer" not in source:
        draft.remark("whether the optimizer is distributed the recipe's Python code says, and no key here", "parallel.data.strategy")
    draft.close(source)
    draft.close(launch)
    _one_fate_each(draft)


def _fine_tuned(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """Batch and length of a fine-tuning, which stand in ``model.data.train_ds`` and count before the model's.

    NVIDIA/NeMo, nemo/collections/nlp/models/language_modeling/megatron_gpt_sft_model.py and examples/nlp/language_modeling/tuning.
    """
    said = {key.name: key for key in keys}
    loaded = asks_for_modules(keys) or "model.data.train_ds.max_seq_length" in said
    loaded &= not any(name.endswith(BATCHES) and ".validation_ds." not in name and key.value is not None for name, key in said.items())
    found = []
    for key in keys:
        ours = "model.micro_batch_size" if loaded and key.name in LOADED else OF_TRAINING_DATA.get(key.name, "")
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


def _accumulation(draft: ImportDraft, source: Source, *, loaded: bool) -> None:
    """Lightning accumulates what a loader gives; where NeMo makes micro-batches of a global batch, it stops at more than one.

    NVIDIA/NeMo, megatron_gpt_model.py and megatron_lm_encoder_decoder_model.py: "trainer.accumulate_grad_batches must equal 1".
    """
    key = source.get("accumulate_grad_batches")
    count = draft.whole(key, 1)
    if key is None or count is None:
        return
    if loaded and draft.given.gradient_accumulation is None:
        draft.write("training.gradient_accumulation", count, key)
    elif count > 1 and not loaded:
        text = f"accumulate_grad_batches {count}: NeMo stops here, it accumulates up to global_batch_size by itself"
        draft.errors.append(key.finding(text, "write 1, and a global_batch_size as large"))
    draft.harmless(key, "one: NeMo accumulates up to global_batch_size")


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


_WHOLE = {"model.optim.name": "optimizer", "trainer.gpus": "devices"}
"""keys that another section has, too, or that Lightning called so before 1.7"""


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


def _renamed(key: Key, spelled: Mapping[str, Any]) -> Iterator[Key]:
    """The key by the option of Megatron-LM that it is; `spelled` is the table."""
    name = _WHOLE.get(key.name) or behind(key.name, str(spelled["sections"]).split())
    if key.value is not None and name in spelled["inverted"] and isinstance(key.value, bool):
        yield replace(key, name=spelled["inverted"][name], value=not key.value, original=key.value)
        return
    yield replace(key, name=spelled["renamed"].get(name, name))


def _shaped(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """Keys whose values are said otherwise there: activation, norm, groups, optimizer."""
    found: list[Key] = []
    narrow = any(key.name == "fp8_format" and key.value not in (None, False) for key in keys)
    for key in keys:
        word = str(key.value)
        match key.name:
            case "fp8_e4m3" | "fp8_hybrid" if not narrow:
                draft.harmless(key, "it counts with fp8: true only")
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
            case "nproc_per_node" if isinstance(key.value, list) and key.value:
                found.append(replace(key, value=len(key.value), original=key.value))
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
            case "type" if rows_of(word, option="tokenizer_type") is not None:
                found.append(replace(key, name="tokenizer_type"))
            case "type" if rows_of(word) is not None:
                found.append(replace(key, name="tokenizer_name_or_path"))
            case "model" if isinstance(key.value, str) and rows_of(word) is not None:
                found.append(replace(key, name="tokenizer_model"))
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


def _model(draft: ImportDraft, source: Source, classes: list[Key], known: Mapping[str, Any], tensor: int) -> int | None:
    """Sizes that are written, else those of the class that is named."""
    named = next((key for key in classes if key.name in ("model._target_", "model.config._target_") and _class(key) in known), None)
    for key in classes:
        draft.harmless(key, "the name of a class, which is not imported")
    if draft.given.model is None and named is not None and source.of("model.hidden") is None:
        base = known[_class(named)]
        _base(draft, source, named, base if isinstance(base, Mapping) else {"base": base})
        return draft.whole(source.of("model.layers"), 1) or _layers(base)
    layers = read_model(draft, source, tensor)
    foreign = next((key for key in classes if key.name in ("model._target_", "model.config._target_")), None)
    what = next((what for kind, what in NO_GPT.items() if foreign is not None and kind.search(_class(foreign))), "")
    if draft.given.model is None and foreign is not None and what:
        draft.errors.append(foreign.finding(f"not supported yet: {_class(foreign)}, {what}", "give the model with --model"))
    elif draft.given.model is None and foreign is not None and layers is not None:
        draft.remark(f"the sizes of {_class(foreign)} are read as those of a GPT: what its code says beside them is not known", "model")
    return layers


def _layers(base: str | Mapping[str, Any]) -> int | None:
    """Of a model of the catalogue, or of one that is made of it."""
    if isinstance(base, Mapping) and "layers" in base:
        return int(base["layers"])
    found = sizes(base["base"] if isinstance(base, Mapping) else base, None)
    return found.layers if found is not None else None


def _base(draft: ImportDraft, source: Source, named: Key, model: Mapping[str, Any]) -> None:
    """The model of a class, with the sizes that are written beside it."""
    beside = [row.path for row in source.table.below("model.") if row.path != "model.attention_dropout" and source.of(row.path) is not None]
    for name, value in model.items():
        draft.write(f"model.{name}" if beside or len(model) > 1 else "model", value, named, note=_class(named))
    for path in beside:
        key = source.of(path)
        if path not in SIZES and key is not None:
            text = f"parsim does not change this of {_class(named)}"
            draft.errors.append(key.finding(text, "write all sizes of the model, hidden_size among them, or give it with --model"))
        draft.take(source, path)


def _class(key: Key) -> str:
    return str(key.value).rpartition(".")[2]


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
