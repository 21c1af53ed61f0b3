"""The `training.finetune` section, and what it means for a model, a precision and a strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from parsim.errors import Finding, PlanError
from parsim.model.adapters import ALL_LINEAR, AS_READ, INT8, FourBits
from parsim.model.finetune import BACKBONE, Finetune, SpreadLayers
from parsim.model.model import Model
from parsim.parallel.chunk_strategy import SHARDED
from parsim.parallel.offload import FSDP
from parsim.parallel.training import Precision
from parsim.scenario.values import Choice, Flag, JsonSchema, Kind, ListOf, Number, Section, Text, Whole, did_you_mean, shown

PATH = "training.finetune"
FP32, HALF = 4, 2
"""bytes"""
_FOUR_BITS = ("quantise_head", "quantised_from", "keeps_inputs")
"""keys of weights in four bits"""
_ADAPTERS_ONLY = ("rank", "targets", "dropout", "dora", "adapter_dtype", "tower", "experts", *_FOUR_BITS)
_PROMPT_ONLY = ("virtual_tokens", "prompt_encoder", "encoder_hidden", "encoder_layers")
_OTHERS = {
    "bottleneck": ("targets", "dora", "adapter_dtype", "tower", "experts", *_FOUR_BITS),
    "ia3": _ADAPTERS_ONLY,
    "prompt": _ADAPTERS_ONLY,
}
"""method between whose operators modules stand -> keys of adapters that it has not"""


class FreezeKind(Kind):
    """What method freeze does not train: ``backbone``, ``{layers: n}``, ``{spread: n}`` or a list of parts."""

    def check(self, value: Any) -> Any:
        rule = "backbone, {layers: n}, {spread: n} or a list of parts such as [embedding, attention, norms]"
        if value == BACKBONE:
            return (BACKBONE,)
        if isinstance(value, dict) and list(value) == ["layers"]:
            try:
                return int(Whole(0, 10_000).check(value["layers"]))
            except ValueError as error:
                raise ValueError(f"layers: {error}") from None
        if isinstance(value, dict) and list(value) == ["spread"]:
            try:
                return SpreadLayers(int(Whole(1, 10_000).check(value["spread"])))
            except ValueError as error:
                raise ValueError(f"spread: {error}") from None
        if isinstance(value, (list, tuple)) and value and all(isinstance(part, str) and part for part in value):
            return tuple(value)
        hint = did_you_mean(value, (BACKBONE,)) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not {rule}{'; ' + hint if hint else ''}")

    def json_schema(self) -> JsonSchema:
        mappings = [
            {"type": "object", "properties": {name: number}, "required": [name], "additionalProperties": False}
            for name, least in (("layers", 0), ("spread", 1))
            for number in ({"type": "integer", "minimum": least, "maximum": 10_000},)
        ]
        parts = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        return {"anyOf": [{"const": BACKBONE}, *mappings, parts]}


class FinetuneSection(Section):
    """Training of adapters (LoRA, QLoRA, DoRA), of other small modules, or of a part of the model; the rest is frozen."""

    method: Annotated[
        str,
        Choice(
            ("lora", "qlora", "freeze", "bottleneck", "ia3", "prompt"),
            {"full": "leave finetune out", "dora": "write lora, and dora: true", "adapter": "write bottleneck", "ptuning": "write prompt"},
        ),
    ] = "lora"
    """lora: adapters beside frozen linear layers | qlora: the same, the linear layers in four bits | freeze: train a part as it is |
    bottleneck: norm, down, SiLU and up behind every sublayer (NeMo's adapters) | ia3: learned scales of keys, values and the MLP's
    activation | prompt: learned tokens at the begin of each sample"""
    rank: Annotated[int, Whole(1, 65536)] = 16
    """rank r of the adapters, or width of the bottlenecks"""
    targets: Annotated[Any, ListOf(Text("q_proj"), (ALL_LINEAR,), filled=True)] = ALL_LINEAR
    """what has adapters: all-linear (all but the language-model head), or names such as [q, v], [q_proj, v_proj]"""
    dropout: Annotated[float, Number(0.0, 1.0, open=True)] = 0.0
    """probability with which an adapter drops elements of its input; above 0 every adapter keeps a mask and a copy of its input"""
    dora: Annotated[bool, Flag()] = False
    """lora and qlora: every output of an adapted layer has a trained length (DoRA, as PEFT makes it)"""
    adapter_dtype: Annotated[
        str,
        Choice(
            ("auto", "fp32", "model"), {"float32": "write fp32", **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16"), "write model")}
        ),
    ] = "auto"
    """lora and qlora, beside 16-bit products: fp32 (adapters are fp32 parameters, and their layers cast what they read; PEFT) | model (they
    have the type of trained weights, and nothing is cast); auto = as the stack has it, model where weights are sharded"""
    virtual_tokens: Annotated[int, Whole(1, 65536)] = 20
    """method prompt: learned tokens, which count to the sample's length"""
    prompt_encoder: Annotated[str, Choice(("none", "mlp", "lstm"), {"tpmlp": "write mlp", "biglstm": "write lstm"})] = "none"
    """method prompt: what they pass through: none (prompt tuning) | mlp | lstm (P-tuning)"""
    encoder_hidden: Annotated[Any, Whole(1, 1_048_576, ("auto",))] = "auto"
    """its width; auto = half the model's"""
    encoder_layers: Annotated[int, Whole(1, 64)] = 2
    """Linear layers of an mlp (2 or more), or layers of an lstm"""
    tower: Annotated[bool, Flag()] = True
    """a model of images has adapters in its tower and projector, too; false = in its text alone"""
    train_embeddings: Annotated[bool, Flag()] = False
    """the word embedding and the language-model head are trained too, whole"""
    base: Annotated[
        str,
        Choice(
            ("auto", "bf16", "nf4", "nf4-dq", "int8", "fp8", "nvfp4"),
            {"int4": "write nf4", "4bit": "write nf4", "fp4": "write nf4 (or nvfp4, beside its products)", "8bit": "write int8"},
        ),
    ] = "auto"
    """how frozen weights are stored: bf16 | nf4 (4.5 bit) | nf4-dq (double quantisation, 4.127 bit) | int8 (LLM.int8(), method lora) |
    fp8 or nvfp4 (method lora: as products of that type read them, quantised when they were loaded); all but bf16 for linear layers only;
    auto = nf4-dq for qlora, two bytes beside half-precision matrix products otherwise"""
    experts: Annotated[str, Choice(("fused", "linear"), {"modules": "write linear"})] = "fused"
    """lora and qlora: fused (three-dimensional parameters, in 16 or 32 bits and without adapters) | linear (layers of their own, quantised
    and adapted like others, as in transformers before version 5)"""
    quantise_head: Annotated[bool, Flag()] = False
    """qlora: the language-model head is quantised too (litgpt), not kept in 16 bits (Hugging Face)"""
    quantised_from: Annotated[
        str, Choice(("auto", "fp16", "bf16", "fp32"), {"float16": "write fp16", "bfloat16": "write bf16", "float32": "write fp32"})
    ] = "auto"
    """qlora: type of the weights that were quantised: products in another one write them out in it first, and cast (Lightning: fp16);
    auto = the type of the products"""
    keeps_inputs: Annotated[bool, Flag()] = False
    """qlora: products keep their inputs for backward, which does not read them (bitsandbytes before 0.43.2, July 2024)"""
    freeze: Annotated[Any, FreezeKind()] = BACKBONE
    """method freeze: backbone (all but the head) | {layers: n} (the embedding and the first n layers) | {spread: n} (all but n layers that
    stand evenly apart, as LLaMA Pro's) | parts: embedding, layer, head, norms, attention, mlp, or an operator's name"""
    base_sharded: Annotated[Any, Flag(("auto",))] = "auto"
    """zero3, fsdp and hsdp shard the frozen weights too; false = every rank holds them whole; auto = they do"""
    flat_gradients: Annotated[bool, Flag()] = False
    """fsdp, hsdp: units of trained and frozen weights have gradients for all of them, as FSDP1's flat parameters do"""


def finetune_recipe(section: FinetuneSection, precision: Precision, strategy: str, adapters: str = "model") -> Finetune:
    """The recipe that `section` means; `adapters`: type that the stack gives them (fp32 | model).

    Raises `PlanError` with every key that contradicts the method or the strategy.
    """
    findings = [*_contradictions(section, strategy), *_eight_bits(section, precision, strategy), *_as_read(section, precision)]
    adapted = section.method in ("lora", "qlora")
    refused = _not_in_fp32(section, precision, strategy)
    if section.adapter_dtype == "fp32" and adapted:
        findings += refused
    if findings:
        raise PlanError(findings)
    whole = strategy not in SHARDED  # one flat parameter, and one unit of FSDP2, has one type
    kind = section.adapter_dtype if section.adapter_dtype != "auto" else adapters if whole else "model"
    base, fp32 = section.base, adapted and kind == "fp32" and not refused
    if fp32 and base == "auto" and section.method == "lora":
        base = "bf16"  # the precision's bytes are the adapters'
    elif base == "auto":
        half = precision.parameters == 4 and (precision.matmul in ("fp16", "bf16") or precision.narrow)
        base = "nf4-dq" if section.method == "qlora" else "bf16" if half and section.method != "freeze" else ""
    elif base == "bf16" and precision.parameters == 2 and not fp32:
        base = ""  # what the precision says anyway
    return Finetune(
        method=cast("Literal['lora', 'qlora', 'freeze', 'bottleneck', 'ia3', 'prompt']", section.method),
        rank=section.rank,
        dora=section.dora,
        linear_experts=section.experts == "linear",
        virtual_tokens=section.virtual_tokens,
        prompt_encoder=cast("Literal['none', 'mlp', 'lstm']", section.prompt_encoder),
        encoder_hidden=0 if section.encoder_hidden == "auto" else section.encoder_hidden,
        encoder_layers=section.encoder_layers,
        targets=(ALL_LINEAR,) if section.targets == ALL_LINEAR else tuple(section.targets),
        dropout=section.dropout > 0,
        fp32_adapters=fp32,
        tower=section.tower,
        train_embeddings=section.train_embeddings,
        base=cast("Literal['', 'bf16', 'nf4', 'nf4-dq', 'int8', 'fp8', 'nvfp4']", base),
        quantise_head=section.quantise_head,
        four_bits=FourBits("" if section.quantised_from == "auto" else section.quantised_from, section.keeps_inputs),
        freeze=section.freeze,
        base_sharded=section.base_sharded is not False,
        flat_gradients=section.flat_gradients,
    )


def adapted_precision(recipe: Finetune, precision: Precision) -> Precision:
    """The precision of what is trained: fp32 adapters have weights, gradients and moments of 4 bytes, and no master copy."""
    if not recipe.fp32_adapters or precision.parameters == FP32:
        return precision
    reduce = FP32 if precision.reduce == precision.gradients else precision.reduce
    return replace(precision, parameters=FP32, gradients=FP32, master=0, optimizer_element=FP32, reduce=reduce)


def adapter_warnings(recipe: Finetune, model: Model) -> list[Finding]:
    """What has no adapters although it is large."""
    if not model.facts.get("experts") or recipe.method not in ("lora", "qlora") or recipe.linear_experts:
        return []
    text = "experts' weights (three-dimensional parameters, no linear layers) are frozen, in 16 or 32 bits, and have no adapters"
    return [Finding(text, f"{PATH}.experts")]


def _contradictions(section: FinetuneSection, strategy: str) -> list[Finding]:
    default = FinetuneSection()
    method, base = section.method, section.base
    findings = []
    if method == "freeze":
        hint = "leave it out, or write method: lora"
        changed = [key for key in _ADAPTERS_ONLY if getattr(section, key) != getattr(default, key)]
        findings += [Finding("method freeze has no adapters", f"{PATH}.{key}", _plain(getattr(section, key)), hint) for key in changed]
    else:
        changed = [key for key in _OTHERS.get(method, ()) if getattr(section, key) != getattr(default, key)]
        changed += [key for key in _PROMPT_ONLY if method != "prompt" and getattr(section, key) != getattr(default, key)]
        findings += [
            Finding(f"method {method} has no such key", f"{PATH}.{key}", _plain(getattr(section, key)), "leave it out") for key in changed
        ]
    if method == "freeze":
        changed = [key for key in _PROMPT_ONLY if getattr(section, key) != getattr(default, key)]
        findings += [Finding("method freeze learns no tokens", f"{PATH}.{key}", getattr(section, key), hint) for key in changed]
    elif section.freeze != default.freeze:
        text = f"method {method} freezes everything but its adapters"
        findings.append(Finding(text, f"{PATH}.freeze", _plain(section.freeze), "leave it out, or write method: freeze"))
    if method == "qlora" and base in ("bf16", INT8, *AS_READ):
        findings.append(Finding("qlora has its base in four bits", f"{PATH}.base", base, "write nf4 or nf4-dq, or method: lora"))
    if section.prompt_encoder == "mlp" and section.encoder_layers < 2:
        text = "an mlp of one layer has no hidden width: NeMo refuses it"
        findings.append(Finding(text, f"{PATH}.encoder_layers", section.encoder_layers, "write 2 or more"))
    if section.dora and base in (INT8, *AS_READ):
        findings.append(Finding(f"not supported yet: DoRA beside weights in {base}", f"{PATH}.base", base, "use bf16, or method: qlora"))
    if (method != "qlora" and base.startswith("nf4")) or (method not in ("lora", "qlora") and base in (INT8, *AS_READ)):
        findings.append(
            Finding(
                f"method {method} keeps its base in {'8, 16' if method == 'lora' else '16'} or 32 bits",
                f"{PATH}.base",
                base,
                "write method: qlora",
            )
        )
    if method == "lora":
        changed = [key for key in _FOUR_BITS if getattr(section, key) != getattr(default, key)]
        hint = "write method: qlora"
        findings += [Finding("method lora has nothing in four bits", f"{PATH}.{key}", getattr(section, key), hint) for key in changed]
    if section.base_sharded is True and strategy not in SHARDED:
        text = f"{strategy} keeps whole weights on every rank"
        findings.append(Finding(text, f"{PATH}.base_sharded", True, f"use {' or '.join(SHARDED)}, or leave it out"))
    if section.flat_gradients and (strategy not in FSDP or section.base_sharded is False):
        text = (
            f"{strategy} has no flat parameters" if strategy not in FSDP else "unsharded frozen weights cannot be part of a flat parameter"
        )
        findings.append(Finding(text, f"{PATH}.flat_gradients", True, "use strategy fsdp with base_sharded: true, or leave it out"))
    return findings


def _not_in_fp32(section: FinetuneSection, precision: Precision, strategy: str) -> list[Finding]:
    """What fp32 adapters do not go with."""
    path, hint = f"{PATH}.adapter_dtype", "write model, or leave it out"
    if precision.activations != HALF:
        return [Finding("activations are fp32: nothing is cast from 16 bits", path, "fp32", hint)]
    if precision.narrow or precision.matmul not in ("fp16", "bf16"):
        made = "narrower than 16 bits" if precision.narrow else f"in {precision.matmul}"
        return [Finding(f"products are {made}: nothing is cast from 16 bits", path, "fp32", hint)]
    if strategy in SHARDED and precision.cached_casts:
        return [Finding(f"{strategy} gathers adapters in 16 bits, so that their layers cast nothing", path, "fp32", hint)]
    if section.train_embeddings and precision.parameters == HALF:
        return [Finding("not supported yet: fp32 adapters beside embeddings that are trained in 16 bits", path, "fp32", hint)]
    return []


def _eight_bits(section: FinetuneSection, precision: Precision, strategy: str) -> list[Finding]:
    """What int8 weights do not go with: bitsandbytes multiplies what autocast or the weights make 16 bits wide, and not under ZeRO-3."""
    if section.base != INT8 or section.method != "lora":
        return []
    path, findings = f"{PATH}.base", []
    if precision.narrow or precision.matmul not in ("fp16", "bf16"):
        text = f"bitsandbytes casts 16-bit inputs to int8, and products are in {'fp8' if precision.narrow else precision.matmul}"
        findings.append(Finding(text, path, INT8, "use training.precision bf16, amp-bf16, fp16 or amp-fp16"))
    if strategy == "zero3" and section.base_sharded is not False:
        text = "zero3 does not shard weights in int8 (Params8bitLt)"
        findings.append(Finding(text, path, INT8, f"use fsdp, ddp, zero1 or zero2, or {PATH}.base_sharded: false"))
    return findings


def _as_read(section: FinetuneSection, precision: Precision) -> list[Finding]:
    """Weights as fp8 or nvfp4 products read them need such products, by the library that keeps what it has quantised."""
    base, casts = section.base, precision.quantisation
    if base not in AS_READ or section.method != "lora":
        return []
    path = f"{PATH}.base"
    if casts is None or base != ("nvfp4" if casts.recipe == "nvfp4" else casts.products):
        made = precision.matmul if casts is None else casts.recipe
        text = f"products are in {made}, which do not read weights in {base}"
        return [Finding(text, path, base, "use bf16, or another training.precision")]
    if not casts.caches_weights:
        text = f"not supported yet: weights stored in {base} alone with torchao's casts, or sharded"
        return [Finding(text, path, base, "use bf16, or strategy ddp, zero1 or zero2 with Transformer Engine's recipes")]
    if any(precision.keep_layers):
        return [Finding(f"not supported yet: weights in {base} beside layers that stay in bf16", path, base, "leave keep_layers out")]
    return []


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def sum_suffix(recipe: Finetune | None, precision: Precision) -> str:
    """What frozen parameters cost, behind the sum per trained one."""
    if recipe is None:
        return ""
    rest = 2 if recipe.base else precision.parameters
    if not recipe.quantised:
        return f" trained, {rest} B frozen"
    sizes = {"nf4": 0.5625, "nf4-dq": 4.126953125 / 8, "int8": 1.0}
    return f" trained, {rest} B frozen ({recipe.base} linear layers {sizes.get(recipe.base, precision.weight_copies):.4f} B)"
