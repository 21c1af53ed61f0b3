"""Programs of Megatron-LM that train no GPT: encoders and hybrids that parsim builds, and what it refuses by name.

pretrain_bert.py, pretrain_mamba.py and what their models are: NVIDIA/Megatron-LM, megatron/core/models/bert/bert_model.py and
megatron/core/models/hybrid; megatron/training/arguments.py.
"""

from __future__ import annotations

import re

from parsim.errors import Finding, ScenarioError
from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.megatron.multimodal import builds, is_multimodal

_REFUSED = {
    "pretrain_bart": "BART, an encoder-decoder",
    "pretrain_ict": "a pair of BERTs for retrieval (ICT)",
    "pretrain_retro": "RETRO, a GPT with a retriever",
    "pretrain_realm": "REALM, a retriever",
    "pretrain_vision": "a vision model",
    "vision": "a vision model",
    "pretrain_vlm": "a model of images and text",
    "multimodal": "a model of images and text",
    "mimo": "a model of several kinds of input",
    "pretrain_multimodal": "a model of images and text",
    "train_vlm": "a model of images and text",
}
"""begin of a program -> what it trains"""
_KINDS = {
    "an encoder of its own": re.compile(r"bert|electra"),
    "a model of several kinds of input": re.compile(
        r"(?:^|_)(?:[a-z]+\d*_?vlm?|vlm?|llava|internvl|omni|audio|vit|clip|dit|diffusion|video|image|mllm)(?:_|$)"
    ),
}
"""and what stands in the names of programs of others' own"""
_NO_TRAINING = (
    "generate",
    "text_generation",
    "inference",
    "evaluate",
    "eval_",
    "evaluation",
    "preprocess",
    "convert",
    "checkpoint",
    "ckpt",
    "to_hf",
    "zeroshot",
)
"""in the names of programs that do something else than to train"""
NO_STEP = "does not train"
TASK = "task"
"""option of tasks/main.py that says what is trained"""
CLASSES = {"MNLI": 3, "QQP": 2, "RACE": 1}
"""``--task`` of tasks/main.py that trains a BERT with a classifier -> its classes (tasks/glue/finetune.py); RACE's is a score"""
TEXTS = {"RACE": 4}
"""texts of one sample, each of which the model sees (tasks/race/data.py, NUM_CHOICES)"""
_OTHER_TASKS = {"RET-FINETUNE-NQ": "a pair of BERTs for retrieval (ICT)"}
"""and those that train something else (tasks/orqa/supervised/finetune.py); the rest evaluate"""
_MARKS = {
    "retro_add_retriever": "RETRO, a GPT with a retriever",
    "retro_workdir": "RETRO, a GPT with a retriever",
    "model_provider": "a model of several kinds of input",
    "vision_model_type": "a model of images and text",
    "language_model_type": "a model of images and text",
    "vision_pretraining": "a vision model",
    "vision_pretraining_type": "a vision model",
    "ict_head_size": "a pair of BERTs for retrieval (ICT)",
}
"""options that only these models have"""
_INSTEAD = "give a decoder of that size with --model, or write the scenario: parsim new"
HYBRID_LETTERS = "M*-"
HALF = 0.5


def refused_model(draft: ImportDraft, call: Invocation, source: Source) -> None:
    """Note the error of a program that trains what parsim does not build. Raises `ScenarioError` where it trains nothing at all."""
    name = call.program.rpartition("/")[2].removesuffix(".py")
    folders = call.program.split("/")[:-1]
    task = next((part for part in (name, *folders[-1:]) for begin in _NO_TRAINING if begin in part.lower()), "")
    if task and "train" not in name and "finetune" not in name:
        text = f"{name} {NO_STEP}: there is no step to simulate"
        raise ScenarioError(_finding(draft, call, text, "give the script of a training"))
    if draft.flag(skipped := source.get("skip_train")) and skipped is not None:
        raise ScenarioError(skipped.finding(f"with this option {name or 'the program'} {NO_STEP}: it evaluates", "leave it out"))
    for steps in ("train_samples", "train_iters"):
        if (key := source.get(steps)) is not None and key.text == "0":
            raise ScenarioError(key.finding(f"without a step the program {NO_STEP}: it evaluates", "give the script of a training"))
    chosen = _task(call, source)
    if chosen is not None and chosen.text in _OTHER_TASKS:
        draft.errors.append(chosen.finding(f"it trains {_OTHER_TASKS[chosen.text]}, which is not supported yet", _INSTEAD))
    elif chosen is not None and chosen.value in (True, ""):
        draft.errors.append(chosen.finding("it has no value, and says what is trained", chosen.hint))
    elif chosen is not None and chosen.text not in CLASSES and "vision" not in folders:
        raise ScenarioError(chosen.finding(f"this task {NO_STEP}: there is no step to simulate", "give the script of a training"))
    if draft.given.model is not None or (is_multimodal(call) and builds(source)):
        return
    what = next((text for begin, text in _REFUSED.items() if name.startswith(begin) or begin in folders), "")
    if not what and not is_encoder(call, source):
        what = next((text for text, kind in _KINDS.items() if kind.search(name)), "")
    if what:
        draft.errors.append(_finding(draft, call, f"{name} trains {what}, which is not supported yet", _INSTEAD))
        return
    marks = [(key, text) for option, text in _MARKS.items() if (key := source.get(option)) is not None and key.value not in (False, "0")]
    if marks:
        key, text = marks[0]
        draft.errors.append(key.finding(f"this is an option of {text}, which is not supported yet", _INSTEAD))


def _finding(draft: ImportDraft, call: Invocation, message: str, suggestion: str) -> Finding:
    return Finding(message, "", call.program, suggestion, draft.file, call.line)


def _task(call: Invocation, source: Source) -> Key | None:
    """What tasks/main.py is asked to do."""
    return source.get(TASK) if call.program.endswith("main.py") else None


def write_texts(draft: ImportDraft, call: Invocation, source: Source) -> None:
    """A sample of several texts is as many for the model (tasks/finetune_utils.py, sample_multiplier)."""
    chosen = _task(call, source)
    if chosen is None or chosen.text not in TEXTS:
        return
    each = TEXTS[chosen.text]
    for path in ("training.micro_batch", "training.global_batch"):
        if isinstance(samples := draft.value(path), int):
            note = f"{samples} x {each} texts of a question, which count as samples here"
            draft.write(path, each * samples, *draft.lines[path].keys, chosen, note=note)


def is_encoder(call: Invocation | None, source: Source) -> bool:
    """Whether a BERT is trained: by its program, or by what NeMo's files say of its second task."""
    if call is None:
        return "bert_binary_head" in source
    return call.program.rpartition("/")[2].startswith("pretrain_bert") or _task(call, source) is not None


def is_hybrid(call: Invocation, source: Source) -> bool:
    """Whether the program trains a model with layers that carry a state."""
    patterned = source.get("hybrid_layer_pattern", "hybrid_override_pattern", "hybrid_attention_ratio", "is_hybrid_model")
    return call.program.rpartition("/")[2].startswith(("pretrain_mamba", "pretrain_hybrid")) or patterned is not None


def write_encoder(draft: ImportDraft, source: Source, call: Invocation | None) -> None:
    """Megatron's BERT: norms before the sublayers, a norm behind the last, masked words and, unless switched off, the next sentence."""
    chosen = _task(call, source) if call is not None else None
    without, with_it = source.get("bert_no_binary_head"), source.get("bert_binary_head")
    draft.write("model.family", "bert", with_it, note="Megatron's BERT")
    if chosen is not None:
        draft.write("model.task", "sequence-classification", chosen)
        draft.write("model.labels", CLASSES.get(chosen.text, 2), chosen)
        draft.harmless(without, "the classifier takes its place")
    elif draft.flag(without) or not draft.flag(with_it, default=True):
        draft.write("model.task", "masked-lm", without, with_it)
        draft.write("model.token_types", 0, without, with_it)
    else:
        draft.write("model.task", "pretraining", with_it, note="masked words and the next sentence")
        draft.harmless(without, "switched off")
    if (block := source.get("transformer_block_type")) is not None and block.value != "pre_ln":
        draft.refuse(block, f"a BERT of Megatron's with {block.value}", "parsim has pre_ln")
    for name, value in (("norm_placement", "pre"), ("final_norm", True), ("embedding_norm", False), ("fused_query_key_value", True)):
        draft.write(f"model.{name}", value, note="Megatron's BERT")


def allocated(layers: int, attention: float, dense: float) -> str:
    """The pattern that Megatron-LM makes of shares: attention evenly, then MLPs among the layers that are left.

    NVIDIA/Megatron-LM, megatron/core/ssm/mamba_hybrid_layer_allocation.py.
    """
    row = ["M"] * layers
    some = round(layers * attention)
    _place(row, "*", (layers - some) / (some + 1), some)
    some = round(layers * dense)
    _place(row, "-", (row.count("M") - some) / some if some else 0.0, some)
    return "".join(row)


def _place(row: list[str], letter: str, between: float, count: int) -> None:
    """Put `letter` in the place of an M, wherever `between` others have passed."""
    left = between
    for at, was in enumerate(row):
        if was != "M" or not count:
            continue
        if left < HALF:
            row[at] = letter
            left += between
        else:
            left -= 1


def _write_modules(draft: ImportDraft, source: Source, key: Key | None, ahead: list[str]) -> None:
    """Modules that predict further words: parts of the pattern behind slashes, or --mtp-num-layers times a pattern of their own."""
    given = source.of("model.mtp_pattern")
    if ahead and key is not None:
        if len(set(ahead)) > 1:
            text = f"modules of different layers ({', '.join(ahead)}) are not supported yet"
            draft.errors.append(key.finding(text, "give every module the same letters"))
        draft.write("model.mtp", len(ahead), key, note="parts of the pattern behind slashes")
        draft.write("model.mtp_pattern", ahead[0], key)
        draft.harmless(given, "the pattern of the layers says it")
        draft.harmless(source.of("model.mtp"), "the pattern of the layers says it")
    elif given is not None and (letters := given.text.strip("'\"")) != "none":
        draft.write("model.mtp_pattern", letters, given)
    else:
        draft.harmless(given, "no module")


def write_hybrid(draft: ImportDraft, source: Source) -> None:
    """Layers of one sublayer each, by the letters of the pattern."""
    key = source.get("hybrid_layer_pattern", "hybrid_override_pattern")
    attention, dense = source.get("hybrid_attention_ratio"), source.get("hybrid_mlp_ratio")
    count = draft.whole(source.of("model.layers"), 1)
    pattern, *ahead = ("" if key is None else key.text.strip("'\"")).split("/")
    if key is None and count is not None and (attention is not None or dense is not None):
        key = attention or dense
        pattern = allocated(count, draft.number(attention) or 0.0, draft.number(dense) or 0.0)
    usual = {"normalization": "RMSNorm", "position_embedding_type": "none"}
    missing = [
        f"--{name.replace('_', '-')} {value}" for name, value in usual.items() if (k := source.get(name)) is None or k.value != value
    ]
    missing += [] if draft.flag(source.get("disable_bias_linear")) else ["--disable-bias-linear"]
    where = key or source.keys[0]
    if key is None or not pattern or set(pattern) - set(HYBRID_LETTERS):
        text = f"hybrid models are read by their pattern of {', '.join(HYBRID_LETTERS)}; others are not supported yet"
        draft.errors.append(where.finding(text, "give --hybrid-layer-pattern with one letter per layer"))
    elif missing:
        text = f"hybrid models without {', '.join(missing)} are not supported yet"
        draft.errors.append(where.finding(text, "give the model with --model"))
    draft.write("model.family", "nemotron-h", note="pretrain_mamba.py")
    draft.write("model.layer_pattern", pattern or "M", key, attention, dense)
    draft.write("model.layers", max(1, len(pattern)), key, note="letters of the pattern, which count before --num-layers")
    draft.harmless(source.of("model.layers"), "the pattern says how many layers there are")
    _write_modules(draft, source, key, ahead)
    heads, width = source.get("mamba_num_heads"), source.get("mamba_head_dim")
    each = draft.whole(width, 1) or 64
    draft.write("model.mixer.value_dim", each, width, note="" if width else "--mamba-head-dim is 64 if not given")
    hidden = draft.whole(source.of("model.hidden"), 1)
    if (count := draft.whole(heads, 1)) is not None:
        draft.write("model.mixer.heads", count, heads)
    elif hidden is not None:
        draft.write("model.mixer.heads", max(1, 2 * hidden // each), note=f"2 x hidden / {each}, as Megatron has it")
    for option, path, default in (("mamba_num_groups", "key_heads", 8), ("mamba_state_dim", "key_dim", 128)):
        option_key = source.get(option)
        value = draft.whole(option_key, 1)
        note = "" if option_key else f"--{option.replace('_', '-')} is {default} if not given"
        draft.write(f"model.mixer.{path}", value if value is not None else default, option_key, note=note)
