"""PyTorch's FullyShardedDataParallel as accelerate and transformers configure it: what is sharded, wrapped, checkpointed and offloaded.

The strategies: torch.distributed.fsdp.ShardingStrategy. SHARD_GRAD_OP keeps gathered parameters until the backward is done with them, which
is ``reshard_after_forward: false``.
"""

from __future__ import annotations

from typing import Any

from parsim.interop.export_draft import ExportDraft, one_instance, sixteen_bits
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

LAYER_CLASSES = {
    "bert": "BertLayer", "roberta": "RobertaLayer", "vit": "ViTLayer", "gpt2": "GPT2Block", "opt": "OPTDecoderLayer",
    "bloom": "BloomBlock", "gpt-neox": "GPTNeoXLayer", "phi": "PhiDecoderLayer", "phi3": "Phi3DecoderLayer", "mpt": "MptBlock",
    "clip-text": "CLIPEncoderLayer", "clip-vision": "CLIPEncoderLayer", "gla": "GLABlock", "gated-deltanet": "GatedDeltaNetBlock",
    "llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer",
    "gemma": "GemmaDecoderLayer", "gemma2": "Gemma2DecoderLayer", "mixtral": "MixtralDecoderLayer",
    "qwen2-moe": "Qwen2MoeDecoderLayer", "qwen3-moe": "Qwen3MoeDecoderLayer", "deepseek-v2": "DeepseekV2DecoderLayer",
    "deepseek-v3": "DeepseekV3DecoderLayer", "deepseek-v3.2": "DeepseekV32DecoderLayer", "qwen3-next": "Qwen3NextDecoderLayer",
    "mamba2": "Mamba2Block", "nemotron-h": "NemotronHBlock", "retnet": "RetNetBlock", "gpt-oss": "GptOssDecoderLayer",
    "llama4-text": "Llama4TextDecoderLayer", "kimi-k2": "DeepseekV3DecoderLayer", "glm4-moe": "Glm4MoeDecoderLayer",
    "xlm-roberta": "XLMRobertaLayer", "camembert": "CamembertLayer", "distilbert": "TransformerBlock", "electra": "ElectraLayer",
    "mpnet": "MPNetLayer", "nomic-bert": "NomicBertLayer", "modernbert": "ModernBertEncoderLayer", "deit": "DeiTLayer",
    "glm4-moe-lite": "Glm4MoeLiteDecoderLayer", "youtu": "YoutuDecoderLayer", "minicpm3": "MiniCPM3DecoderLayer",
    "deberta-v2": "DebertaV2Layer", "glm-moe-dsa": "GlmMoeDsaDecoderLayer", "mamba": "MambaBlock", "falcon-mamba": "FalconMambaBlock",
    "jamba": "JambaAttentionDecoderLayer,JambaMambaDecoderLayer", "qwen3.5": "Qwen3_5DecoderLayer",
    "qwen3.5-moe": "Qwen3_5MoeDecoderLayer", "granitemoehybrid": "GraniteMoeHybridDecoderLayer", "bamba": "BambaDecoderLayer",
    "falcon-h1": "FalconH1DecoderLayer", "rwkv": "RwkvBlock",
    "gptj": "GPTJBlock", "codegen": "CodeGenBlock", "gpt-neo": "GPTNeoBlock", "gpt-bigcode": "GPTBigCodeBlock",
    "starcoder2": "Starcoder2DecoderLayer", "falcon": "FalconDecoderLayer", "stablelm": "StableLmDecoderLayer",
    "persimmon": "PersimmonDecoderLayer", "cohere": "CohereDecoderLayer", "cohere2": "Cohere2DecoderLayer",
    "phimoe": "PhimoeDecoderLayer", "dbrx": "DbrxBlock", "hyperclovax": "HyperCLOVAXDecoderLayer",
    "vaultgemma": "VaultGemmaDecoderLayer", "cwm": "CwmDecoderLayer", "jais2": "Jais2DecoderLayer",
    "flex-olmo": "FlexOlmoDecoderLayer", "solar-open": "SolarOpenDecoderLayer", "exaone-moe": "ExaoneMoeDecoderLayer",
    "gemma3-text": "Gemma3DecoderLayer", "gemma4-text": "Gemma4TextDecoderLayer",
    "glm": "GlmDecoderLayer", "glm4": "Glm4DecoderLayer", "olmo": "OlmoDecoderLayer",
    "olmo2": "Olmo2DecoderLayer", "olmo3": "Olmo3DecoderLayer", "exaone4": "Exaone4DecoderLayer", "smollm3": "SmolLM3DecoderLayer",
    "granite": "GraniteDecoderLayer", "helium": "HeliumDecoderLayer", "arcee": "ArceeDecoderLayer", "apertus": "ApertusDecoderLayer",
    "nemotron": "NemotronDecoderLayer", "hunyuan-v1-dense": "HunYuanDenseV1DecoderLayer", "ernie4-5": "Ernie4_5DecoderLayer",
    "seed-oss": "SeedOssDecoderLayer", "ministral": "MinistralDecoderLayer", "olmoe": "OlmoeDecoderLayer",
    "granitemoe": "GraniteMoeDecoderLayer", "granitemoeshared": "GraniteMoeSharedDecoderLayer", "minimax-m2": "MiniMaxM2DecoderLayer",
    "dots1": "Dots1DecoderLayer", "hunyuan-v1-moe": "HunYuanMoEV1DecoderLayer", "ernie4-5-moe": "Ernie4_5_MoeDecoderLayer",
    "openai-gpt": "Block", "dinov2": "Dinov2Layer", "t5": "T5Block", "mt5": "MT5Block", "umt5": "UMT5Block",
    "bart": "BartDecoderLayer", "mbart": "MBartDecoderLayer", "pegasus": "PegasusDecoderLayer", "marian": "MarianDecoderLayer",
    "m2m-100": "M2M100DecoderLayer", "whisper": "WhisperDecoderLayer", "orion": "OrionDecoderLayer",
    "mimo-v2-flash": "MiMoV2FlashDecoderLayer", "laguna": "LagunaDecoderLayer", "step3p5": "Step3p7DecoderLayer",
    "granite-swa": "GraniteSWADecoderLayer", "granitemoe-swa": "GraniteMoeSWADecoderLayer", "mellum": "MellumDecoderLayer",
    "afmoe": "AfmoeDecoderLayer", "axk1": "AXK1DecoderLayer", "hy-v3": "HYV3DecoderLayer", "lfm2": "Lfm2DecoderLayer",
    "lfm2-moe": "Lfm2MoeDecoderLayer", "kimi-linear": "KimiLinearDecoderLayer", "cohere2-moe": "Cohere2MoeDecoderLayer",
    "nanochat": "NanoChatDecoderLayer", "biogpt": "BioGptDecoderLayer", "xglm": "XGLMDecoderLayer",
    "modernbert-decoder": "ModernBertDecoderLayer", "roberta-prelayernorm": "RobertaPreLayerNormLayer",
    "megatron-bert": "MegatronBertLayer",
}  # fmt: skip
"""family -> class of a layer in huggingface/transformers (retnet, gla, gated-deltanet: fla-org/flash-linear-attention)"""


def write_fsdp(draft: ImportDraft, source: Source, switch: Key | None, *, own: bool = False) -> None:
    """Write strategy, units and prefetching. `switch` is transformers' ``fsdp``; `own`: nothing but transformers reads it."""
    _read_strategy(draft, source, switch)
    _read_version(draft, source, own=own)
    _read_units(draft, source, switch)
    offload = source.of("training.offload.parameters")
    words = _words(switch)
    if draft.flag(offload) or "offload" in words:
        for path in ("parameters", "gradients", "optimizer"):
            draft.write(f"training.offload.{path}", "cpu", offload, switch if "offload" in words else None)
    else:
        draft.harmless(offload, "nothing is offloaded")
    again = source.of("training.recompute.fsdp")
    if draft.switch(source, "training.recompute.fsdp"):
        draft.write("training.recompute", "full", again)
    backward, limit = source.of("parallel.data.prefetch"), source.of("parallel.data.limit_gathers")
    if backward is not None:
        late = str(backward.value).upper() in ("NO_PREFETCH", "NONE", "3")
        after = str(backward.value).upper() in ("BACKWARD_POST", "2")
        if after:
            draft.unmodelled(backward, "parsim gathers the next unit beside the current one (BACKWARD_PRE), or not ahead at all")
        else:
            draft.write("parallel.data.prefetch", 0 if late else 1, backward)
    if draft.switch(source, "parallel.data.limit_gathers", "what is gathered ahead is limited by prefetching"):
        draft.write("parallel.data.limit_gathers", 2, limit)
    draft.only_some(source, *(name for name in source.table.only if name.startswith("fsdp_")))
    for name in source.table.names():
        if name.startswith("fsdp_") and not name.endswith("*") and (key := source.get(name)) is not None:
            draft.harmless(key, source.table.reason(source.table.harmless, name))


def _read_version(draft: ImportDraft, source: Source, *, own: bool) -> None:
    """FullyShardedDataParallel, or fully_shard: accelerate's default is the former, and was transformers' until 5.10 (training_args.py)."""
    path = "parallel.data.fsdp_version"
    key = source.of(path)
    number = "1" if key is None else str(key.value)
    if number not in ("1", "2"):
        draft.errors += [] if key is None else [key.finding(f"there is no version {number} of FSDP", "1 or 2")]
        return
    draft.write(path, int(number), key, note="" if key is not None else "1 if not given")
    if key is None and own:
        draft.remark("fully_shard is the default of transformers since 5.10", path, "write 2 where it runs")


def _words(switch: Key | None) -> list[str]:
    if switch is None or isinstance(switch.value, bool):
        return []
    value = switch.value
    return [str(word) for word in value] if isinstance(value, list) else str(value).replace(",", " ").split()


def _read_strategy(draft: ImportDraft, source: Source, switch: Key | None) -> None:
    version = source.of("parallel.data.fsdp_version")
    if version is not None and str(version.value) == "2":
        _read_fully_shard(draft, source, version, switch)
        return
    row, path = source.table.rows["parallel.data.strategy"], "parallel.data.reshard_after_forward"
    key, reshard = source.of("parallel.data.strategy"), source.of(path)
    words = [word.upper() for word in _words(switch) if row.ours(word.upper()) is not None]
    name = words[0] if words else "FULL_SHARD" if key is None else str(key.value).rpartition(".")[2].upper()
    meant, asked = row.ours(name), key if key is not None else switch
    if meant is None and asked is not None:
        draft.errors.append(asked.finding(f"{name} is no sharding strategy", f"one of {', '.join(row.words.values())}"))
        return
    if words and key is not None and switch is not None and row.ours(str(key.value).rpartition(".")[2].upper()) != meant:
        text = f"{key.value} here, {words[0].lower()} in {switch.written}, which the Trainer takes"
        draft.errors.append(key.finding(text, "write the same in both"))
    strategy, _, keeps = str(meant).partition(" ")
    note = "" if key is not None or words or switch is not None else "FULL_SHARD if not given"
    draft.write("parallel.data.strategy", strategy, key, switch, note=note)
    if version is not None and key is not None and reshard is not None and row.ours(str(reshard.value).upper()) is None:
        draft.harmless(reshard, f"FSDP 1 goes by {key.written}")
        reshard = None
    if reshard is not None and strategy != "ddp":
        if (other := row.ours(str(reshard.value).upper())) is not None:
            strategy, _, keeps = other.partition(" ")
            draft.write("parallel.data.strategy", strategy, key, switch, reshard)
            draft.write(path, keeps == "resharded", reshard)
        else:
            draft.write(path, draft.flag(reshard, default=True), reshard)
    elif reshard is not None:
        draft.harmless(reshard, "nothing is sharded")
    elif keeps == "kept":
        draft.write(path, False, key or switch)


def _read_fully_shard(draft: ImportDraft, source: Source, version: Key, switch: Key | None) -> None:
    """FSDP 2, where everything is sharded, over all replicas unless there is a mesh, and parameters are kept or not after the forward.

    It does not read FSDP 1's strategies (huggingface/accelerate, utils/dataclasses.py), of which the Trainer translates ``shard_grad_op``.
    """
    path = "parallel.data.reshard_after_forward"
    former, reshard = source.of("parallel.data.strategy"), source.of(path)
    draft.write("parallel.data.strategy", "fsdp", version, switch)
    if former is not None:
        draft.harmless(former, "read by FSDP 1 only")
        draft.remark(f"FSDP 2 goes by fsdp_reshard_after_forward (true if not given), not by {former.written}", path)
    if reshard is not None and source.table.rows["parallel.data.strategy"].ours(str(reshard.value).upper()) is not None:
        draft.errors.append(reshard.finding(f"FSDP 2 has no {reshard.value} here", "true or false"))
    elif reshard is not None:
        draft.write(path, draft.flag(reshard, default=True), reshard)
    elif "shard_grad_op" in (word.lower() for word in _words(switch)):
        draft.write(path, False, switch)


def _read_units(draft: ImportDraft, source: Source, switch: Key | None) -> None:
    """What is wrapped: every layer, or the model as one unit."""
    policy, names, size = (source.of(f"parallel.data.unit{side}") for side in ("", ".class", ".size"))
    word = str(policy.value).upper() if policy is not None else ""
    if word == "NO_WRAP":
        draft.write("parallel.data.unit", "model", policy)
        draft.harmless(names, "nothing is wrapped")
        draft.harmless(size, "nothing is wrapped")
        return
    if word == "SIZE_BASED_WRAP" or (names is None and size is not None and str(size.value) not in ("0", "auto")):
        for key in (policy, size):
            draft.unmodelled(key, "parsim wraps layers, not everything above a size")
        draft.harmless(names, "units are wrapped by size")
        return
    if policy is not None or names is not None:
        draft.write("parallel.data.unit", "layer", policy, names)
    elif switch is not None and _words(switch) and "auto_wrap" not in _words(switch):
        draft.write("parallel.data.unit", "model", switch, note="without auto_wrap")
    draft.harmless(size, "layers are wrapped by their class")


def as_text(said: dict[str, Any]) -> str:
    """Keys as a line of a fate: ``fsdp_version: 2, fsdp_reshard_after_forward: true``."""
    return ", ".join(f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in said.items())


def fsdp(draft: ExportDraft, version: int) -> dict[str, Any]:
    """The strategy as FSDP's options, of version 1 or 2."""
    data = draft.job.built.parallelism.data
    path = "parallel.data.strategy"
    if data.strategy == "zero1":
        text = "FSDP shards gradients wherever it shards optimizer states"
        draft.refuses(path, text, "use --to deepspeed or --to megatron, or zero2, zero3 or fsdp")
    resharded = as_fsdp(draft)
    said: dict[str, Any] = {"fsdp_version": version}
    draft.says("parallel.data.fsdp_version", as_text(said))
    if data.strategy in ("fsdp", "hsdp") and data.fsdp_version != version:
        draft.remarks("parallel.data.fsdp_version", f"version {version} is written, the scenario runs version {data.fsdp_version}")
    if version == 2:
        said |= draft.pair("parallel.data.reshard_after_forward", resharded)
    else:
        _check_groups(draft)
        said |= draft.pair(path, f"{'hsdp' if data.strategy == 'hsdp' else 'fsdp'} {'resharded' if resharded else 'kept'}")
    draft.says(path, as_text(said))
    draft.says("parallel.data.reshard_after_forward", draft.keys[path].text)
    said |= _wrapping(draft) | _prefetching(draft, version)
    draft.says("parallel.data.shard_size", f"shard groups of {data.shard_size}" if data.strategy == "hsdp" else "all replicas")
    draft.lacks_below("parallel.data.")
    one_instance(draft)
    sixteen_bits(draft)
    if not data.overlap_reduce:
        draft.lacks("parallel.data.overlap_reduce", "FSDP always reduces under the backward pass")
    draft.says("parallel.data.overlap_reduce", "always")
    return {**said, "fsdp_cpu_ram_efficient_loading": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}


def as_fsdp(draft: ExportDraft) -> bool:
    """Whether FSDP drops gathered parameters after the forward; where ZeRO is to be run by it, what differs is remarked."""
    data, path = draft.job.built.parallelism.data, "parallel.data.strategy"
    if data.strategy == "zero2":
        draft.remarks(path, "FSDP shards parameters too, and keeps them gathered from the forward to the end of the backward pass")
    elif data.strategy == "zero3":
        draft.remarks(path, "FSDP reduces gradients at the last micro-batch (ZeRO-3 at every one) and keeps whole ones until then")
    return data.reshard_after_forward and data.strategy != "zero2"


def _check_groups(draft: ExportDraft) -> None:
    """FSDP1's hybrid sharding: its groups are the nodes."""
    data, nodes = draft.job.built.parallelism.data, draft.job.gpus_per_node
    if data.strategy == "hsdp" and data.shard_size != nodes[0]:
        text = f"FSDP1 shards inside nodes of {nodes[0]} GPUs, not in groups of {data.shard_size}"
        draft.refuses("parallel.data.shard_size", text, "leave --fsdp-version 1 out")


def _wrapping(draft: ExportDraft) -> dict[str, Any]:
    unit, path = draft.job.built.parallelism.data.unit, "parallel.data.unit"
    policy = draft.pair(path, unit)
    draft.says(path, str(draft.table.rows[path].theirs(unit)))
    if unit == "model":
        return policy
    if unit == "block":
        draft.remarks(path, "embedding and head are no units of their own under TRANSFORMER_BASED_WRAP")
    layer = LAYER_CLASSES.get(draft.job.family)
    if layer is None:
        draft.remarks(path, "fsdp_transformer_layer_cls_to_wrap is not known for this model: Hugging Face's models say it themselves")
        return policy
    return policy | draft.pair("parallel.data.unit.class", layer)


def _prefetching(draft: ExportDraft, version: int) -> dict[str, Any]:
    data = draft.job.built.parallelism.data
    prefetch = "parallel.data.prefetch"
    draft.lacks("parallel.data.limit_gathers", "two gathered units at most (limit_all_gathers)")
    draft.lacks("parallel.data.queues", "PyTorch decides it")
    if data.accumulate == "every":
        draft.lacks("parallel.data.accumulate", "the script's GradientAccumulationPlugin(sync_each_batch=True)")
    else:
        draft.says("parallel.data.accumulate", "the default, gradients are reduced at the last micro-batch")
    if version == 2:
        draft.lacks(prefetch, "FSDP2 gathers one unit ahead; set_modules_to_forward_prefetch in the script for more")
        return {}
    said = draft.pair(prefetch, min(data.prefetch, 1))
    draft.says(prefetch, as_text(said))
    said["fsdp_forward_prefetch"] = False
    if data.prefetch > 1:
        draft.lacks(prefetch, "FSDP1 gathers one unit ahead")
    return {**said, "fsdp_use_orig_params": True, "fsdp_sync_module_states": True}


def data_parallel(draft: ExportDraft) -> dict[str, Any]:
    """DistributedDataParallel: its options are the script's (``DistributedDataParallelKwargs``, ``TrainingArguments``)."""
    draft.says("parallel.data.strategy", "distributed_type: MULTI_GPU")
    draft.lacks("parallel.data.bucket_view", "the script's DistributedDataParallelKwargs(gradient_as_bucket_view=...)")
    draft.lacks("parallel.data.accumulate", "the script's GradientAccumulationPlugin(sync_each_batch=True)")
    draft.lacks("parallel.data.overlap_reduce", "DDP always reduces under the backward pass")
    for key in (
        "bucket",
        "first_bucket",
        "overlap_gather",
        "queues",
        "shard_size",
        "unit",
        "prefetch",
        "limit_gathers",
        "reshard_after_forward",
        "fsdp_version",
    ):
        draft.lacks(f"parallel.data.{key}", "DDP has no such option")
    one_instance(draft)
    sixteen_bits(draft)
    return {}


def recompute(draft: ExportDraft, document: dict[str, Any]) -> None:
    """Activation checkpointing: FSDP's own, or the model's where nothing is sharded."""
    path, mode = "training.recompute", draft.job.built.training.recompute.mode
    if mode not in ("none", "full"):
        words = {"every": "groups of layers", "one_in": "some of the layers", "blocks": "the first layers only"}
        what = words.get(mode, "parts of a layer")
        draft.refuses(path, f"every layer is checkpointed, or none; not {what}", "use --to megatron, or recompute: full")
    if "fsdp_config" not in document:
        return
    said = draft.pair("training.recompute.fsdp", mode == "full")
    document["fsdp_config"] |= said
    draft.says(path, as_text(said))


def offload(draft: ExportDraft, document: dict[str, Any]) -> None:
    """CPU offload: parameters, gradients and optimizer states together, or nothing."""
    wanted = draft.job.built.training.offload
    states = {key: getattr(wanted, key) for key in ("parameters", "gradients", "optimizer")}
    for key, where in states.items():
        path = f"training.offload.{key}"
        draft.says(path, as_text(draft.pair("training.offload.parameters", where != "none")))
        if where == "nvme":
            draft.refuses(path, "FSDP offloads to host memory, not to drives", "use --to deepspeed, or cpu")
    path = "training.offload.optimizer" if wanted.optimizer != "none" else "training.offload.parameters"
    if len(set(states.values())) > 1:
        text = f"FSDP offloads parameters, gradients and optimizer together, not {', '.join(f'{k} {v}' for k, v in states.items())}"
        draft.refuses(path, text, "use --to deepspeed, or offload both parameters and optimizer")
    if "fsdp_config" in document:
        document["fsdp_config"] |= draft.pair("training.offload.parameters", wanted.parameters == "cpu")
    elif wanted.states:
        draft.refuses(path, "DDP keeps all states on the device", "use strategy fsdp, or --to deepspeed")
    draft.says("training.offload.activations", "the default, none")
    if wanted.activations != "none":
        text = "accelerate has no key for activations in host memory"
        draft.refuses("training.offload.activations", text, "use --to deepspeed")
