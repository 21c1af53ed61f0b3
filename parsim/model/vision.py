"""Text models with a vision tower: patches, tower, projector, then the text, into whose embeddings the images' features are put.

The tower works on the images of a sample (`training.images`), the text on all tokens, those of images among them. Structure and names of
parts are those of huggingface/transformers (see `parsim.model.families.vision_language`). A tower whose last layers are not read
(LLaVA's ``vision_feature_layer``) runs and is trained whole here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from parsim.errors import Finding, ModelError
from parsim.kernel import Memory
from parsim.model.architecture_records import Image, Projector
from parsim.model.attention import RotaryTables
from parsim.model.blocks import build_transformer, embed_words, layer_block, shown_per_layer
from parsim.model.convolution import Conv2d
from parsim.model.cross_attention import OwnWords
from parsim.model.elementwise import Activation, Prefix, ResidualAdd
from parsim.model.lengths import Lengths
from parsim.model.linear import Linear
from parsim.model.model import Block, Layer, Model, Operator, Parameter, Save, Work
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.per_layer import embed_per_layer
from parsim.model.pooling import PoolByPosition
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements


@dataclass(frozen=True, slots=True)
class TakePatches(Layer):
    """The patches of an image without the tokens before them, or the means of neighbouring ones: `tokens` of them."""

    features: int
    tokens: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A copy both ways; the gradient is a tensor of full size."""
        size = elements(at, self.features) * at.element
        taken = at.batch * self.tokens * self.features * at.element
        return Work((Memory(size + taken),), (Memory(size + taken),), output=taken, input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class InsertImages(Layer):
    """Features of images in the places of a text that were left for them; `inputs` is (embedded words, features)."""

    features: int
    tokens: int
    """of all images of a sample"""
    newline: bool = False
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """A row behind every line of an image, where there is one."""
        return (Parameter("image_newline", (self.features,), trainable=self.trainable),) if self.newline else ()

    def training_work(self, at: Workload) -> Work:
        """masked_scatter: a copy with the features in it; the mask is kept."""
        size, images = elements(at, self.features) * at.element, at.batch * self.tokens * self.features * at.element
        weight = (Memory(self.features * at.element),) if self.newline and self.trainable else ()
        return Work(
            (Memory(2 * size + 2 * images, launches=2),),
            (Memory(2 * size + 2 * images, launches=2),),
            weight,
            output=size,
            input_gradients=(size, images),
            saves=(Save(f"{self.name}.mask", at.tokens),),
        )


def build_with_vision(
    config: TransformerConfig, *, name: str, lengths: Lengths, tensor: int = 1, loss: str = "auto", divisor: int = 0
) -> Model:
    """The model of `config`, which has a tower and a projector; arguments as of `parsim.model.blocks.build_transformer`."""
    if config.vision is None or config.projector is None or config.vision.image is None:  # checked with the architecture: unreachable
        message = f"{name} has no vision tower"
        raise ValueError(message)
    tower, projector = _sized(config.vision, config.projector, lengths).resolved(), config.projector
    image = tower.image or Image()
    each = image.patches // projector.merge**2
    images = each * lengths.images
    text = build_transformer(replace(config, vision=None, projector=None), name=name, tensor=tensor, loss=loss, divisor=divisor)
    seen = [*_tower_blocks(tower, image, projector), replace(_projector(config.hidden, tower, projector), tokens=each)]
    sampled = {block: replace(block, samples=lengths.images) for block in dict.fromkeys(seen)}
    seen = [sampled[block] for block in seen]
    names = ["vision embedding", *(f"vision layer {number}" for number in range(tower.layers))]
    names += ["vision output", "projector"] if len(seen) > tower.layers + 2 else ["projector"]
    embedding = _text_embedding(config.resolved(), text.vocabulary_padded, images, newline=projector.newline)
    facts = {
        **text.facts,
        "vision": asdict(tower),
        "image_tokens": images,
        "image_size": image.size,
        "image_sizes": image.any_size,
        "further_input": 4 * lengths.images * image.channels * image.frames * image.size**2,
    }
    return replace(
        text,
        blocks=(*seen, embedding, *text.blocks[1:]),
        block_names=(*names, *text.block_names),
        active_fraction_blocks={len(seen) + number: share for number, share in text.active_fraction_blocks.items()},
        facts=facts,
    )


def _sized(tower: TransformerConfig, projector: Projector, lengths: Lengths) -> TransformerConfig:
    """The tower at the size of the scenario's images."""
    image = tower.image or Image()
    if image.any_size:
        image = replace(image, size=lengths.image_size or image.usual_size)
    unit = image.patch * projector.merge
    if not unit or not image.size or image.size % unit:
        hint = f"use a multiple of {unit}" if unit else ""
        text = f"{image.size} pixels / (patches of {image.patch} x {projector.merge} merged) is no whole number of tokens"
        raise ModelError(Finding(text, "training.image_size", image.size, hint))
    return replace(tower, image=image)


def _tower_blocks(tower: TransformerConfig, image: Image, projector: Projector) -> list[Block]:
    """Patches and layers, and what comes behind them before patches are merged."""
    row, patch, side = Row(), (image.patch, image.patch), (image.size, image.size)
    channels = image.channels * image.frames
    row.add(Conv2d("patches", ("input",), "patches", channels, tower.hidden, patch, side, patch, bias=image.bias))
    rows = image.tokens if image.positions < 0 else image.positions
    if rows or image.class_tokens:
        row.add(Prefix("prefix", (row.last,), "prefix", tower.hidden, rows, image.class_tokens))
    if tower.embedding_norm:
        row.add(norm(tower, "embedding_norm", row.last))
    if tower.position == "rotary":
        row.add(RotaryTables("rotary_tables", (row.last,), "rotary_tables", tower.head_dim))
    kinds = [tower.kind(number) for number in range(tower.layers)]
    made = {kind: replace(layer_block(tower, kind), kind="vision") for kind in dict.fromkeys(kinds)}
    blocks = [row.block("vision", ("prefix", "patches")), *(made[kind] for kind in kinds)]
    if (output := _tower_output(tower, image, projector)) is not None:
        blocks.append(output)
    sized = {block: replace(block, tokens=image.tokens) for block in dict.fromkeys(blocks)}
    return [sized[block] for block in blocks]


def _tower_output(tower: TransformerConfig, image: Image, projector: Projector) -> Block | None:
    row = Row()
    if tower.final_norm:
        row.add(norm(tower, "final_norm", row.last))
    if image.class_tokens:
        row.add(TakePatches("take_patches", (row.last,), "take_patches", tower.hidden, image.patches))
    if projector.pools and projector.merge > 1:
        tokens = image.patches // projector.merge**2
        if projector.pools_by_product:
            row.add(PoolByPosition("pool_patches", (row.last,), "pool_patches", tower.hidden, tokens, projector.standardised))
        else:
            row.add(TakePatches("pool_patches", (row.last,), "pool_patches", tower.hidden, tokens))
    if projector.norm != "none" and not projector.norm_merged and not projector.pools and not image.class_tokens:
        row.add(_norm(projector, "projector_norm", row.last, tower.hidden, by_power=tower.norm_by_power))
    return row.block("vision") if row.operators else None


def _norm(projector: Projector, name: str, source: str, width: int, *, by_power: bool) -> Operator:
    if projector.norm == "rmsnorm":
        return RMSNorm(name, (source,), name, width, projector.norm_offset, weights=projector.norm_weights, by_power=by_power)
    return LayerNorm(name, (source,), name, width)


def _projector(width: int, tower: TransformerConfig, projector: Projector) -> Block:
    """From merged patches to the `width` of the text."""
    row, merged = Row(), 1 if projector.pools else projector.merge**2
    features = tower.hidden * merged
    image = tower.image or Image()
    late = projector.norm_merged or projector.pools or bool(image.class_tokens)
    results = []
    for number in range(1 + projector.extra):
        end = f"_extra_{number}" if number else ""
        row.last = "input"
        if number or (projector.norm != "none" and late):
            over = features if number or projector.norm_merged or projector.pools else tower.hidden
            row.add(_norm(projector, f"projector_norm{end}", row.last, over, by_power=tower.norm_by_power))
        inner = features
        if projector.merging:
            row.add(Linear(f"merging{end}", (row.last,), f"merging{end}", inner, (tower.hidden,), bias=False))
            inner = tower.hidden
        for step, wide in enumerate(size for size in (projector.first, projector.second) if size):
            place = f"projection_{step + 1}{end}"
            row.add(Linear(place, (row.last,), place, inner, (wide,), projector.bias))
            row.add(Activation(f"{place}_activation", (row.last,), f"{place}_activation", wide, "gelu"))
            inner = wide
        results.append(row.add(Linear(f"projection{end}", (row.last,), f"projection{end}", inner, (width,), projector.bias)))
    if projector.extra:
        row.add(ResidualAdd("projections", tuple(results), "projections", width))
    return row.block("projector")


def _text_embedding(config: TransformerConfig, vocabulary: int, tokens: int, *, newline: bool) -> Block:
    row = Row()
    words = row.add(OwnWords("words", ("input",), "words"))
    embed_words(config, vocabulary, row, words)
    row.add(InsertImages("images", (row.last, "input"), "images", config.hidden, tokens, newline))
    embed_per_layer(config, row, words)
    return replace(row.block("embedding"), shows=shown_per_layer(config))
