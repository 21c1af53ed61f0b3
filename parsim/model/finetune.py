"""Fine-tuning as a change of the model: which parameters are trained, and what stands beside the frozen ones.

lora and qlora freeze everything and put adapters beside linear layers (`parsim.model.adapters`), qlora with the linear layers
in four bits, lora also with those in eight (`parsim.model.adapters`); bottleneck, ia3 and prompt freeze everything and put small modules
between its operators (`parsim.model.inserted`); freeze trains a part of the model as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from parsim.errors import Finding, ModelError
from parsim.model.adapted_experts import expert_targets, frozen_experts, frozen_router
from parsim.model.adapters import (
    ALL_LINEAR,
    AS_READ,
    FORMATS,
    INT8,
    LATEST,
    Adapter,
    FourBits,
    FrozenLinear,
    known_names,
    matching,
    targets_of,
)
from parsim.model.inserted import PromptEncoder, VirtualTokens, bottlenecks, infused, prompted
from parsim.model.linear import Embedding, Linear
from parsim.model.mixture import GroupedLinear, Router
from parsim.model.model import OUTER, Block, Model, Operator
from parsim.model.per_layer import PerLayerTable

PATH = "training.finetune"
TOWER = ("vision", "projector")
"""kinds of blocks"""
INSERTED = ("bottleneck", "ia3", "prompt")
"""methods that put modules between operators"""
BACKBONE = "backbone"
"""freeze everything but the head"""


@dataclass(frozen=True, slots=True)
class SpreadLayers:
    """Everything is frozen but this many layers, the last one of each of as many equal runs (LLaMA Pro, 2401.02415)."""

    layers: int


@dataclass(frozen=True, slots=True)
class Finetune:
    """The `training.finetune` section with every auto resolved."""

    method: Literal["lora", "qlora", "freeze", "bottleneck", "ia3", "prompt"] = "lora"
    rank: int = 16
    """r of every adapter, or the width of every bottleneck"""
    dora: bool = False
    """outputs of adapted layers have a trained length"""
    virtual_tokens: int = 0
    """method prompt: learned tokens of a sample"""
    prompt_encoder: PromptEncoder = "none"
    """what they pass through"""
    encoder_hidden: int = 0
    """its width; 0 = half the model's"""
    encoder_layers: int = 2
    """its Linear layers, or those of its LSTM"""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """names of linear layers, or all-linear"""
    dropout: bool = False
    """the adapters' inputs are dropped"""
    fp32_adapters: bool = False
    """adapters are fp32 parameters beside 16-bit activations, which their layers cast (PEFT)"""
    train_embeddings: bool = False
    """the word table and the language-model head are trained too"""
    base: Literal["", "bf16", "nf4", "nf4-dq", "int8", "fp8", "nvfp4"] = ""
    """how frozen linear weights are stored; '' = as the precision says"""
    quantise_head: bool = False
    """the language-model head is quantised too"""
    four_bits: FourBits = LATEST
    """how products multiply by weights in four bits"""
    freeze: int | SpreadLayers | tuple[str, ...] = (BACKBONE,)
    """method freeze: the embedding and this many first layers, all but some layers, or parts by name"""
    tower: bool = True
    """adapters stand in a tower of images and its projector, too"""
    linear_experts: bool = False
    """every expert is made of linear layers, which are quantised and adapted like others"""
    base_sharded: bool = True
    """strategies that shard weights shard the frozen ones too"""
    flat_gradients: bool = False
    """FSDP1: a flat parameter that holds trained and frozen weights has a gradient for all of them"""

    @property
    def inserted(self) -> bool:
        """Modules stand between the operators."""
        return self.method in INSERTED

    @property
    def quantised(self) -> bool:
        """The frozen linear layers are in four or eight bits."""
        return self.base in (*FORMATS, *AS_READ)


def finetuned(model: Model, recipe: Finetune) -> Model:
    """`model` with its frozen parts frozen and its adapters in place.

    Raises `ModelError` with every target or part that the model does not have, and where nothing or everything would be trained.
    """
    if model.facts.get("family") == "stages":
        raise ModelError(Finding("a model of measured stages has no layers to freeze", PATH, recipe.method, "leave finetune out"))
    if recipe.linear_experts and not model.facts.get("experts"):
        raise ModelError(Finding(f"{model.name} has no experts", f"{PATH}.experts", "linear", "leave it out"))
    if recipe.linear_experts and (recipe.base == INT8 or recipe.dora):
        text = f"not supported yet: experts {'in eight bits' if recipe.base == INT8 else 'with DoRA'}"
        raise ModelError(Finding(text, f"{PATH}.experts", "linear", "use four bits or sixteen, without dora; or write experts: fused"))
    if recipe.base in AS_READ and model.facts.get("experts"):
        text = f"not supported yet: experts stored in {recipe.base} alone"
        raise ModelError(Finding(text, f"{PATH}.base", recipe.base, "use bf16"))
    change = _insert if recipe.inserted else _freeze if recipe.method == "freeze" else _adapt
    blocks = _tied(model, change(model, recipe))
    counts = {
        trained: sum(p.count for b in blocks for p in b.parameters() if p.trainable is trained and not p.buffer)
        for trained in (True, False)
    }
    if not counts[True]:
        raise ModelError(Finding("nothing is left to train", f"{PATH}.freeze", _shown(recipe.freeze), "freeze less"))
    if not counts[False]:
        raise ModelError(Finding("nothing is frozen: this is full training", f"{PATH}.freeze", _shown(recipe.freeze), "leave finetune out"))
    return replace(model, blocks=blocks, active_fraction_blocks=_active(model, blocks))


def _shown(freeze: int | SpreadLayers | tuple[str, ...]) -> object:
    if isinstance(freeze, SpreadLayers):
        return {"spread": freeze.layers}
    return {"layers": freeze} if isinstance(freeze, int) else list(freeze)


def _tied(model: Model, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """A parameter that is used in two places is one tensor: frozen in one place, it is frozen in the other."""
    states = {f"{name}.{p.name}": p.trainable for name, block in zip(model.block_names, blocks, strict=True) for p in block.parameters()}
    pairs = [
        (f"{name}.{p.name}", p.tied) for name, block in zip(model.block_names, blocks, strict=True) for p in block.parameters() if p.tied
    ]
    cold = {name for pair in pairs if not all(states[each] for each in pair) for name in pair if states[name]}
    if not cold:
        return blocks

    def change(name: str, operator: Operator) -> Operator:
        return _frozen(operator) if any(f"{name}.{p.name}" in cold for p in operator.parameters()) else operator

    return tuple(
        replace(block, operators=tuple(change(name, operator) for operator in block.operators))
        if any(f"{name}.{p.name}" in cold for p in block.parameters())
        else block
        for name, block in zip(model.block_names, blocks, strict=True)
    )


def _active(model: Model, blocks: tuple[Block, ...]) -> dict[int, float]:
    """Share of each mixture layer's parameters that one token uses, adapters included."""
    shares = {}
    for index, share in model.active_fraction_blocks.items():
        before, after = (sum(p.count for p in b.parameters() if not p.buffer) for b in (model.blocks[index], blocks[index]))
        shares[index] = (before * share + after - before) / after
    return shares


# -- adapters -----------------------------------------------------------------------------------------------------


def _adapt(model: Model, recipe: Finetune) -> tuple[Block, ...]:
    seen = [block for block in model.distinct_blocks if recipe.tower or block.kind not in TOWER]
    linears = [operator for block in seen for operator in block.operators if isinstance(operator, Linear)]
    everything = [target for operator in linears for target in targets_of(operator, model)]
    if recipe.linear_experts:
        grouped = [operator for block in seen for operator in block.operators if isinstance(operator, GroupedLinear | Router)]
        everything += [target for operator in grouped for target in expert_targets(operator, gated=bool(model.facts.get("gated")))]
    missing = [name for name in recipe.targets if name != ALL_LINEAR and not matching(name, everything)]
    if missing:
        known = known_names(everything)
        raise ModelError(
            [
                Finding(f"{model.name} has no linear layer called {name!r}", f"{PATH}.targets", name, f"it has {', '.join(known)}")
                for name in missing
            ]
        )
    if recipe.dora:
        sliced = [t.words[0] for name in recipe.targets for t in matching(name, everything) if not t.whole]
        if sliced:
            text = f"DoRA scales the outputs of a whole weight, and {sliced[0]} is a slice of one in {model.name}"
            raise ModelError(Finding(text, f"{PATH}.targets", list(recipe.targets), f"name the whole weight: {known_names(everything)[1]}"))
    adapted = {block: _adapted_block(model, block, recipe) for block in model.distinct_blocks}
    return tuple(adapted[block] for block in model.blocks)


def _adapted_block(model: Model, block: Block, recipe: Finetune) -> Block:
    if block.kind in TOWER and not recipe.tower:
        return replace(block, operators=tuple(map(_frozen, block.operators)))

    def change(operator: Operator) -> Operator:
        trains = recipe.train_embeddings and _embeds(operator)
        if isinstance(operator, Linear):
            chosen = {t.name: t for wanted in recipe.targets for t in matching(wanted, targets_of(operator, model))}
            if trains and not chosen:
                return operator
            adapters = tuple(
                Adapter(t.name, t.out_features, recipe.rank, recipe.dropout, not t.whole, recipe.dora, recipe.fp32_adapters)
                for t in chosen.values()
            )
            quantised = recipe.quantised and (operator.split != "vocab" or recipe.quantise_head)
            return _frozen_linear(operator, recipe.base if quantised else "", adapters, recipe.four_bits)
        if recipe.linear_experts and isinstance(operator, GroupedLinear | Router):
            return _linear_experts(model, operator, recipe)
        return operator if trains else _frozen(operator)

    return replace(block, operators=tuple(map(change, block.operators)))


def _linear_experts(model: Model, operator: GroupedLinear | Router, recipe: Finetune) -> Operator:
    """Experts or a router whose weights are linear layers."""
    known = expert_targets(operator, gated=bool(model.facts.get("gated")))
    chosen = tuple(dict.fromkeys(target for wanted in recipe.targets for target in matching(wanted, known)))
    if isinstance(operator, Router):
        return frozen_router(operator, recipe.rank, fp32=recipe.fp32_adapters) if chosen else _frozen(operator)
    storage, fp32 = recipe.base if recipe.quantised else "", recipe.fp32_adapters
    return frozen_experts(operator, storage, chosen, recipe.rank, dropout=recipe.dropout, fp32=fp32, four_bits=recipe.four_bits)


def _embeds(operator: Operator) -> bool:
    """The word table or the head; a second table is neither."""
    return (isinstance(operator, Embedding) and not isinstance(operator, PerLayerTable)) or (
        isinstance(operator, Linear) and operator.split == "vocab"
    )


def _frozen(operator: Operator) -> Operator:
    """The operator with nothing to train in it."""
    if isinstance(operator, Linear):
        return _frozen_linear(operator, "", ())
    return cast("Operator", replace(cast("Any", operator), trainable=False)) if hasattr(operator, "trainable") else operator


def _frozen_linear(linear: Linear, storage: str, adapters: tuple[Adapter, ...], four_bits: FourBits = LATEST) -> FrozenLinear:
    values = {field.name: getattr(linear, field.name) for field in fields(Linear)}
    alone = linear.after_norm and not adapters  # adapters read the norm's output in bf16
    return FrozenLinear(**{**values, "trainable": False, "after_norm": alone}, storage=storage, adapters=adapters, four_bits=four_bits)


# -- modules between operators ------------------------------------------------------------------------------------


def _insert(model: Model, recipe: Finetune) -> tuple[Block, ...]:
    """Everything frozen, with small trained modules between; a tower of images has none."""
    widths = (model.kv_heads * model.head_dim, cast("int", model.facts.get("mlp", 0)))
    other = any(map(model.facts.get, ("experts", "latent", "shared_key_values"))) or any(model.full_heads)
    if recipe.method == "ia3" and (other or not all(widths)):
        text = f"not supported yet: learned scales in {model.name}, of which an MLP or keys and values are other than a decoder's"
        raise ModelError(Finding(text, f"{PATH}.method", recipe.method, "use method: lora"))
    if recipe.method == "prompt" and model.facts.get("per_layer_inputs"):
        text = f"{model.name} finds the per-layer inputs of a token by its word, and learned tokens are no words"
        raise ModelError(Finding(text, f"{PATH}.method", recipe.method, "use method: lora"))
    hidden = recipe.encoder_hidden or max(1, model.hidden // 2)
    learned = VirtualTokens(
        "virtual_tokens", (), "", model.hidden, recipe.virtual_tokens, recipe.prompt_encoder, hidden, recipe.encoder_layers
    )
    changed: dict[Block, Block] = {}
    begun = False
    for block in model.distinct_blocks:
        cold = replace(block, operators=tuple(map(_frozen, block.operators)))
        if block.kind in TOWER:
            pass
        elif recipe.method == "prompt" and not begun:
            cold, begun = prompted(cold, learned), True
        elif recipe.method == "bottleneck":
            cold = bottlenecks(cold, model.hidden, recipe.rank, dropout=recipe.dropout)
        elif recipe.method == "ia3":
            cold = infused(cold, widths)
        changed[block] = cold
    blocks = tuple(changed[block] for block in model.blocks)
    if recipe.method == "ia3" and not any(operator.name == "mlp_infused" for block in blocks for operator in block.operators):
        raise ModelError(Finding(f"{model.name} has no MLP whose activation could be scaled", f"{PATH}.method", "ia3", "use method: lora"))
    return blocks


# -- a part of the model ------------------------------------------------------------------------------------------


def _freeze(model: Model, recipe: Finetune) -> tuple[Block, ...]:
    layers = [index for index, block in enumerate(model.blocks) if block.kind not in ("embedding", "head")]
    heads = any(block.kind == "head" for block in model.blocks)
    cold: tuple[str, ...] | None = recipe.freeze if isinstance(recipe.freeze, tuple) else None
    if cold == (BACKBONE,):
        below = len(layers) if heads else len(layers) - 1
    elif isinstance(recipe.freeze, SpreadLayers):
        return _all_but(model, recipe, recipe.freeze.layers)
    elif cold is None:
        below = int(recipe.freeze)  # type: ignore[arg-type]
        if below > len(layers):
            text = f"{below} layers to freeze, but {model.name} has {len(layers)}"
            raise ModelError(Finding(text, f"{PATH}.freeze", {"layers": below}, f"at most {len(layers)}"))
    else:
        return _by_name(model, recipe, cold)
    last = layers[below - 1] if below else -1
    cooled: dict[Block, Block] = {}
    blocks = []
    for index, block in enumerate(model.blocks):
        cools = index <= last or block.kind == "embedding"
        if cools and block not in cooled:
            cooled[block] = _cooled(block, recipe, {operator.name for operator in block.operators})
        blocks.append(cooled[block] if cools else block)
    return tuple(blocks)


def _all_but(model: Model, recipe: Finetune, trained: int) -> tuple[Block, ...]:
    """The model with `trained` of its layers as they are, and everything else frozen."""
    layers = [index for index, block in enumerate(model.blocks) if block.kind not in (*OUTER, *TOWER)]
    if len(layers) % trained:
        text = f"{len(layers)} layers of {model.name} are no {trained} equal runs"
        hint = f"a number that divides {len(layers)}"
        raise ModelError(Finding(text, f"{PATH}.freeze", {"spread": trained}, hint))
    run = len(layers) // trained
    warm = set(layers[run - 1 :: run])
    cooled: dict[Block, Block] = {}
    for block in dict.fromkeys(block for index, block in enumerate(model.blocks) if index not in warm):
        cooled[block] = _cooled(block, recipe, {operator.name for operator in block.operators})
    return tuple(block if index in warm else cooled[block] for index, block in enumerate(model.blocks))


def _cooled(block: Block, recipe: Finetune, cold: set[str]) -> Block:
    """The block with the operators of these names frozen; embeddings stay if they are to be trained."""

    def change(operator: Operator) -> Operator:
        stays = operator.name not in cold or (recipe.train_embeddings and _embeds(operator))
        return operator if stays else _frozen(operator)

    return replace(block, operators=tuple(map(change, block.operators)))


def _by_name(model: Model, recipe: Finetune, names: tuple[str, ...]) -> tuple[Block, ...]:
    words = dict.fromkeys(word for block in model.blocks for operator in block.operators for word in _words(block, operator))
    missing = [name for name in names if name not in words]
    if missing:
        findings = [
            Finding(f"{model.name} has no part called {name!r}", f"{PATH}.freeze", name, f"backbone, or any of {', '.join(words)}")
            for name in missing
        ]
        raise ModelError(findings)
    chosen = set(names)
    cooled: dict[Block, Block] = {}
    for block in model.distinct_blocks:
        cold = {operator.name for operator in block.operators if chosen.intersection(_words(block, operator))}
        cooled[block] = _cooled(block, recipe, cold)
    return tuple(cooled[block] for block in model.blocks)


def _words(block: Block, operator: Operator) -> tuple[str, ...]:
    """What a part of the model may be called: its block's kind, its place in a layer, its own name."""
    if not any(not parameter.buffer for parameter in operator.parameters()):
        return ()
    part: tuple[str, ...] = ()
    if "norm" in operator.name:
        part = ("norms",)
    elif isinstance(operator, Linear | GroupedLinear) and block.kind == "layer":
        if operator.name.startswith(("query", "key", "value", "attention")):
            part = ("attention",)
        elif operator.name.startswith(("mlp", "mixture")):
            part = ("mlp",)
    return (block.kind, *part, operator.name)
