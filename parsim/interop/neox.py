"""GPT-NeoX's YAML as a scenario, one file or several of one job: the model's sizes, DeepSpeed's keys, tensor and pipeline ranks.

What the keys mean and what is taken where they are left out: EleutherAI/gpt-neox, megatron/neox_arguments; the width of the MLP and what
layers there are: megatron/model/transformer.py. Spellings with - and _ are one key; a key that two files hold is an error, as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from parsim.errors import Finding, ScenarioError
from parsim.interop import deepspeed, deepspeed_zero
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    Count,
    TransformerSizes,
    counted,
    sizes,
    write_cluster,
    write_sequence_length,
)
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.recognise import Foreign
from parsim.scenario.support import EXAMPLES

OTHER_LAYERS = {
    "moe_num_experts": (1, "mixtures of experts (MegaBlocks)"),
    "soft_prompt_tuning": (None, "a prompt that is trained in place of the weights"),
    "sparsity_config": (None, "sparse attention"),
}
"""key -> the value with which it is off, and what it is"""
GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
VOCABULARIES = {"GPT2BPETokenizer": 50257, "HFGPT2Tokenizer": 50257}
PILE_ROWS = 50277
"""of 20B_tokenizer.json (EleutherAI/gpt-neox-20b)"""
ATTENTION = {"flash": "flash2", "global": "eager"}
POSITIONS = ("rotary", "alibi", "none")


def read_neox(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a configuration, with the further files that are given."""
    if foreign.document is None:
        return
    source = _merged([of_document(document, "neox").keys for document in (foreign.document, *foreign.more)])
    _refuse(draft, source)
    found = _model(draft, source)
    _cluster(draft, source)
    length = write_sequence_length(draft, source.of("training.sequence_length"))
    deepspeed.write_batch(draft, source)
    _precision(draft, source)
    deepspeed.write_optimizer(draft, source, known=False)
    _clipping(draft, source)
    _recompute(draft, source)
    deepspeed_zero.write_states(draft, source, found)
    _offload(draft, source)
    _mesh(draft, source)
    _dropout(draft, source)
    _attention(draft, source)
    _duration(draft, source, length)
    draft.close(source)


def _merged(files: Iterable[Iterable[Key]]) -> Source:
    """All keys under one spelling. Raises `ScenarioError` where two files hold the same one, as NeoX does."""
    keys: dict[str, Key] = {}
    findings: list[Finding] = []
    for read in files:
        own: dict[str, Key] = {}
        for key in read:
            plain = replace(key, name=key.name.replace("-", "_"))
            other = keys.get(plain.name)
            if other is not None:
                findings.append(
                    key.finding(f"it stands in {other.file}, too, at {other.place('')}", "GPT-NeoX refuses this: keep one of them")
                )
            own[plain.name] = plain
        keys |= own
    if findings:
        raise ScenarioError(findings)
    return Source(keys.values(), key_table("neox"))


def _refuse(draft: ImportDraft, source: Source) -> None:
    """Other layers and other losses than those of a GPT."""
    job = source.get("train_impl")
    if job is not None and str(job.value) != "normal":
        draft.errors.append(job.finding(f"not supported yet: {job.value}, which runs other models and passes beside the one of a step"))
    draft.harmless(job, "one model and its loss")
    for name, (off, what) in OTHER_LAYERS.items():
        for key in [key for key in source.keys if key.name == name or key.name.startswith(f"{name}.")]:
            if key.value not in (off, None, {}, []):
                draft.errors.append(key.finding(f"not supported yet: {what}"))
            draft.harmless(key, "there are none")


def _model(draft: ImportDraft, source: Source) -> TransformerSizes | None:
    """The `model` section, by sizes."""
    rows = source.table.below("model.")
    if draft.given.model is not None:
        draft.write("model", draft.given.model, note="--model")
        for row in rows:
            if row.path != "model.attention_dropout":
                draft.harmless(source.of(row.path), f"replaced by --model {draft.given.model}")
        draft.harmless(source.get("tokenizer_type"), f"replaced by --model {draft.given.model}")
        return sizes(draft.given.model, None)
    draft.write("model.family", "megatron-gpt", note="GPT-NeoX's layers, by their sizes")
    for path in ("model.layers", "model.hidden", "model.heads"):
        if draft.take(source, path) is None and source.of(path) is None:
            draft.fill(path, source.table.rows[path].name)
    draft.take(source, "model.kv_heads")
    _mlp(draft, source)
    _positions(draft, source)
    _norms(draft, source)
    draft.take(source, "model.maximum_sequence")
    if draft.take(source, "model.tied_embeddings") is None:
        draft.write("model.tied_embeddings", True, note="no_weight_tying is false if not given")
    if (window := draft.take(source, "model.attention_window")) is not None:
        draft.write("model.attention_window", window, source.of("model.attention_window"))
    _vocabulary(draft, source)
    return _sizes_of(draft)


def _sizes_of(draft: ImportDraft) -> TransformerSizes | None:
    """What ZeRO's translations need to know of the model as it is written."""
    values = [draft.value(f"model.{name}") for name in ("hidden", "layers", "vocabulary", "mlp")]
    if not all(isinstance(value, int) for value in values):
        return None
    hidden, layers, vocabulary, width = (int(value) for value in values)
    matrices = 3 if draft.value("model.gated") else 2
    return TransformerSizes(hidden, layers, vocabulary, 4 * hidden * hidden + matrices * hidden * width)


def _mlp(draft: ImportDraft, source: Source) -> None:
    """Width and activation; gated ones are made two thirds as wide, and both are rounded up to a multiple."""
    kind, width, factor, multiple = (source.of(f"model.{name}") for name in ("activation", "mlp", "expansion", "mlp_multiple"))
    word = "gelu" if kind is None else str(kind.value)
    if word not in ("gelu", "relu", "swish", "silu", *GATED) and kind is not None:
        draft.errors.append(kind.finding(f"not supported yet: an MLP with {word}", f"gelu, relu, swish, {', '.join(GATED)}"))
        return
    gated = word in GATED
    draft.write("model.activation", GATED.get(word) or {"swish": "silu"}.get(word, word), kind, note="" if kind else "gelu if not given")
    if gated:
        draft.write("model.gated", True, kind)
        draft.write("model.fused_gate_up", True, kind, note="one linear layer makes both")
    old = source.get("mlp_type")
    if old is not None and str(old.value) not in ("regular", "normal"):
        draft.fill("model.mlp", "the width of the MLP, which older versions of GPT-NeoX made of mlp_type", old, width)
        return
    draft.harmless(old, "the MLP of a GPT")
    hidden = draft.value("model.hidden")
    share, rounded = draft.number(factor), draft.whole(multiple, 1) or 1
    whole = draft.whole(width, 1)
    if not isinstance(hidden, int):
        draft.fill("model.mlp", "4 x hidden_size if nothing is said", width, factor)
        return
    whole = whole if whole is not None else int(share * hidden) if share is not None else 4 * hidden
    inner = int(whole * 2 / 3) // 2 if gated else whole
    result = -(-inner // rounded) * rounded
    arithmetic = f"{whole} x 2/3 / 2 = {inner}" if gated else "" if width or factor else f"4 x {hidden}"
    up = f"up to a multiple of {rounded}" if result != inner else ""
    draft.write("model.mlp", result, width, factor, multiple, note="; ".join(filter(None, (arithmetic, up))))


def _positions(draft: ImportDraft, source: Source) -> None:
    kind, share = source.of("model.position"), source.of("model.rotary_fraction")
    if kind is None:
        draft.write("model.position", "learned", note="pos_emb is learned if not given")
    elif draft.take(source, "model.position") is None:
        draft.errors.append(kind.finding(f"not supported yet: {kind.value} positions", f"learned, {', '.join(POSITIONS)}"))
    if draft.value("model.position") == "rotary":
        if draft.take(source, "model.rotary_fraction") is None:
            draft.write("model.rotary_fraction", 1.0, note="rotary_pct is 1.0 if not given")
    else:
        draft.harmless(share, "positions are not rotary")


def _norms(draft: ImportDraft, source: Source) -> None:
    norm = source.of("model.normalisation")
    if norm is None:
        draft.write("model.normalisation", "layernorm", note="layernorm if not given")
    elif draft.take(source, "model.normalisation") is None:
        draft.errors.append(norm.finding(f"not supported yet: norm {norm.value}", "layernorm or rmsnorm"))
    draft.take(source, "model.query_key_norm")
    if draft.take(source, "model.parallel_residual"):
        draft.take(source, "model.shared_norm")
    else:
        draft.harmless(source.of("model.shared_norm"), "attention and MLP follow each other")
    if draft.value("model.normalisation") == "rmsnorm":
        draft.harmless(source.of("model.norm_bias"), "RMSNorm has none")
    else:
        draft.take(source, "model.norm_bias")
    bias = source.of("model.output_bias")
    if draft.take(source, "model.output_bias") is not None:
        draft.write("model.query_key_value_bias", draft.flag(bias), bias)
    draft.take(source, "model.mlp_bias")


def _vocabulary(draft: ImportDraft, source: Source) -> None:
    rows, kind, names = source.of("model.vocabulary"), source.get("tokenizer_type"), source.get("vocab_file")
    file = "" if names is None else PurePosixPath(str(names.value)).name
    word = "GPT2BPETokenizer" if kind is None else str(kind.value)
    if draft.take(source, "model.vocabulary") is not None:
        draft.write("model.vocab_divisible_by", 1, rows, note="it is padded already")
        draft.harmless(kind, "padded_vocab_size counts")
        draft.harmless(source.of("model.vocab_divisible_by"), "padded_vocab_size counts")
        return
    if word in VOCABULARIES:
        draft.write("model.vocabulary", VOCABULARIES[word], kind, note="" if kind else "GPT2BPETokenizer if not given")
    elif word == "HFTokenizer" and file.startswith("20B_tokenizer"):
        draft.write("model.vocabulary", PILE_ROWS, kind, names, note=f"rows of {file}")
    else:
        draft.fill("model.vocabulary", f"{EXAMPLES['model.vocabulary']}; the tokenizer says it", kind)
    if draft.take(source, "model.vocab_divisible_by") is None:
        draft.write("model.vocab_divisible_by", 128, note="make_vocab_size_divisible_by is 128 if not given")


def _cluster(draft: ImportDraft, source: Source) -> None:
    nodes, each, total = (source.of(f"cluster.{name}") for name in ("nodes", "gpus_per_node", "gpus"))
    if nodes is not None and str(nodes.value) == "-1":
        draft.harmless(nodes, "all nodes of the host file")
        nodes = None
    per_node: Count | None = counted(draft, each)
    count = counted(draft, nodes, replaced=draft.given.nodes is not None)
    write_cluster(draft, nodes=count, per_node=per_node, total=counted(draft, total) if per_node is None else None)


def _precision(draft: ImportDraft, source: Source) -> None:
    """``precision``, where DeepSpeed's sections do not say it."""
    kind, old = source.of("training.precision.kind"), source.get("fp16.type")
    names = [key.name.partition(".")[0] for key in source.keys]
    if not any(name in names for name in ("precision", "fp16", "bf16", "optimizer", "train_batch_size", "train_micro_batch_size_per_gpu")):
        draft.fill("training.precision", "fp16, bf16 or fp32: the other files of the job say it")
        left = [path for path in ("training.precision", "training.micro_batch") if draft.value(path) is None and path in draft.lines]
        draft.causes |= dict.fromkeys(left, "the other files of the job")
        text = f"this is a part of a job, and these keys depend on the others: {', '.join(left)}"
        draft.remark(text, suggestion="give its other files too, parsim import A.yml B.yml")
        return
    if old is not None and str(old.value) == "bfloat16":
        draft.errors.append(old.finding("bfloat16 is a type of its own here", "write bf16: {enabled: true}"))
    word = None if kind is None else source.table.rows["training.precision.kind"].ours(str(kind.value))
    if kind is not None and word is None:
        draft.errors.append(kind.finding(f"{kind.value!r} is none of fp16, bfloat16 and fp32"))
        return
    deepspeed.write_precision(draft, source, None if word is None else ("" if word == "fp32" else word, kind))
    draft.harmless(kind, "the same")


def _clipping(draft: ImportDraft, source: Source) -> None:
    """1.0 where DeepSpeed's key is not there; ``clip_grad`` is an older name."""
    key = source.of("training.optimizer.clip_gradients") or source.get("clip_grad")
    limit = draft.number(key)
    note = "" if key else "gradient_clipping is 1.0 if not given"
    draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, key, note=note)


def _recompute(draft: ImportDraft, source: Source) -> None:
    """Checkpoints of every n layers."""
    switch, number, host = (source.of(f"training.recompute.{name}") for name in ("switch", "layers", "host"))
    if not draft.flag(switch):
        for key in (switch, number, host, source.get("partition_activations")):
            draft.harmless(key, "nothing is checkpointed")
        return
    every = draft.whole(number, 1) or 1
    draft.write("training.recompute", "full" if every == 1 else {"every": every}, switch, number)
    if draft.flag(host):
        draft.write("training.offload.activations", "cpu", host)
    else:
        draft.harmless(host, "checkpoints stay on the device")


def _offload(draft: ImportDraft, source: Source) -> None:
    """ZeRO's older ``cpu_offload``."""
    key = source.of("training.offload.host")
    if key is not None and draft.flag(key):
        draft.write("training.offload.optimizer", "cpu", key)
    else:
        draft.harmless(key, "nothing is offloaded")


def _mesh(draft: ImportDraft, source: Source) -> None:
    """Tensor and pipeline ranks; a pipeline of 0 stages is none."""
    key = source.of("parallel.pipeline.size")
    stages = draft.whole(key, 0)
    if stages is not None and stages > 0:
        draft.write("parallel.pipeline.size", stages, key)
    else:
        draft.harmless(key, "no pipeline")
    sequence = source.of("parallel.tensor.sequence_parallel")
    if draft.value("parallel.tensor.size") not in (None, 1):
        draft.take(source, "parallel.tensor.sequence_parallel")
    else:
        draft.harmless(sequence, "there is one tensor rank")


def _dropout(draft: ImportDraft, source: Source) -> None:
    hidden, attention = source.of("training.dropout"), source.of("model.attention_dropout")
    probability, inside = draft.number(hidden) or 0.0, draft.number(attention) or 0.0
    draft.write("training.dropout", probability or inside, hidden, attention, note="" if hidden or attention else "0 if not given")
    if draft.given.model is None:
        draft.write("model.attention_dropout", inside > 0, attention)


def _attention(draft: ImportDraft, source: Source) -> None:
    """``[[["flash"], 32]]``: one kernel for all layers; layers of several kinds are refused."""
    keys = [key for key in source.keys if key.name == "attention_config"]
    if not keys or keys[0].value in (None, []):
        draft.write("training.attention", "eager", note="attention_config is global if not given")
        return
    key = keys[0]
    words = {word.strip("[]'\" ") for word in str(key.value).split(",")}
    kinds = sorted(word for word in words if word and not word.isdigit() and word != "all")
    if len(kinds) == 1 and kinds[0] in ATTENTION:
        draft.write("training.attention", ATTENTION[kinds[0]], key)
        return
    text = f"not supported yet: layers with {', '.join(kinds) or 'no attention'}"
    draft.errors.append(key.finding(text, "all layers global, or all flash; or the scenario's own model: parsim new"))


def _duration(draft: ImportDraft, source: Source, length: int | None) -> None:
    key, batch = source.of("training.examples"), draft.value("training.global_batch")
    steps = draft.whole(key, 0)
    if key is not None and steps and length and isinstance(batch, int):
        draft.write("training.tokens", steps * batch * length, key, note=f"x {batch} samples x {length} tokens")
    else:
        draft.harmless(key, "how long the training lasts")
