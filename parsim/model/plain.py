"""Models written layer by layer in a scenario: multi-layer perceptrons and convolutional networks.

``{input: {shape: [3, 224, 224], dtype: fp32}, layers: [{conv2d: {out: 64, kernel: 7, stride: 2, padding: 3}}, relu, ...]}``.
A layer is a word or a mapping from one word to its settings. Layers with weights begin a new block; activations, norms,
pools and views join the block before them, so that blocks are sensible pipeline stages and wrap units. Names of settings
and their defaults are those of ``torch.nn``; residual blocks are those of torchvision's ``models/resnet.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from typing import Any, Literal, NamedTuple, cast

from parsim.errors import Finding, ModelError
from parsim.limits import MOST_LAYERS, beyond
from parsim.model.convolution import BatchNorm, Conv2d, Pool, window_count
from parsim.model.elementwise import ACTIVATIONS, Activation, Dropout, Flatten, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.loss import Loss
from parsim.model.model import Block, Model, Operator
from parsim.model.norms import LayerNorm
from parsim.model.transformer import LARGEST

Shape = tuple[int, ...]
Settings = Mapping[str, Any]
DTYPES = ("fp32", "tf32", "fp16", "bf16")
LOSSES = ("auto", "sum", "mse", "cross_entropy")


def plain_model(tree: Mapping[str, Any], name: str, loss: str = "auto") -> Model:
    """The model that `tree` (keys ``input`` and ``layers``) describes.

    `loss`: sum | mse | cross_entropy; auto is cross_entropy for images, sum otherwise. Paths in errors begin at ``model``.
    Errors: ModelError with the path of the layer that is unknown, lacks a setting or does not fit its input's shape.
    """
    unknown = [key for key in tree if key not in ("input", "layers")]
    if unknown:
        raise _error(f"model.{unknown[0]}", tree[unknown[0]], "unknown key; a model written by layers has input and layers")
    shape = _input_shape(tree.get("input"))
    layers = tree.get("layers")
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise _error("model.layers", layers, "needs a list with at least one layer")
    if loss not in LOSSES:
        raise _error("training.loss", loss, f"one of {', '.join(LOSSES)}")
    if many := beyond(_expanded(layers), MOST_LAYERS, "layers", "model.layers"):
        raise ModelError(many)
    groups: list[_Builder] = []
    for index, layer in enumerate(layers):
        path = f"model.layers[{index}]"
        word, settings = _word(layer, path)
        for _ in range(_times(settings, path) if word == "repeat" else 1):
            shape = _add_layer(groups, word, settings, shape, path)
    kind = loss if loss != "auto" else "cross_entropy" if len(_input_shape(tree["input"])) == 3 else "sum"
    groups[-1].finish(shape, cast(Literal["sum", "mse", "cross_entropy"], kind))
    shared: dict[tuple[Operator, ...], Block] = {}
    blocks = tuple(shared.setdefault(block.operators, block) for block in (group.block() for group in groups))
    facts = {
        "input_shape": _input_shape(tree["input"]),
        "input_elements": prod(_input_shape(tree["input"])),
        "input_dtype": tree["input"].get("dtype", "fp32"),
        "output_shape": shape,
        "loss": kind,
        "dropout": max(group.dropout for group in groups),
    }
    names = tuple(f"layer {index}" for index in range(len(blocks)))
    return Model(name, blocks, names, sequence=False, layers=len(blocks), facts=facts)


@dataclass
class _Builder:
    """Operators of one block under construction; `tensor` is the latest result."""

    operators: list[Operator] = field(default_factory=list)
    tensor: str = "input"
    prefix: str = ""
    begun: bool = False
    """holds an operator with weights"""
    dropout: float = 0.0
    """largest probability of its dropout layers"""

    def fresh(self, word: str) -> str:
        """A name no operator here has yet."""
        name, number = f"{self.prefix}{word}", 1
        while any(operator.name == name for operator in self.operators):
            number += 1
            name = f"{self.prefix}{word}{number}"
        return name

    def add(self, operator: Operator) -> None:
        """Appends an operator that writes a tensor of its own name."""
        self.operators.append(operator)
        self.tensor = operator.output

    def finish(self, shape: Shape, kind: Literal["sum", "mse", "cross_entropy"]) -> None:
        """Appends the loss."""
        self.add(Loss("loss", (self.tensor,), "loss", prod(shape), kind, split="replicated", upcast=False))

    def block(self) -> Block:
        """The block, its last tensor called ``output``; shortcuts are registered first, as Hugging Face's ResNet does."""
        operators = tuple(_renamed(operator, self.tensor) for operator in self.operators)
        names = [operator.name for operator in operators]
        order = sorted(names, key=lambda name: not name.startswith("shortcut."))
        return Block("layer", operators, () if order == names else tuple(order))


def _renamed(operator: Operator, last: str) -> Operator:
    changes: dict[str, Any] = {}
    if last in operator.inputs:
        changes["inputs"] = tuple("output" if name == last else name for name in operator.inputs)
    if operator.output == last:
        changes["output"] = "output"
    return cast(Operator, replace(cast(Any, operator), **changes)) if changes else operator


def _error(path: str, value: object, message: str, suggestion: str = "") -> ModelError:
    return ModelError(Finding(message, path, value, suggestion))


def _input_shape(tree: object) -> Shape:
    """[features] or [channels, height, width]."""
    if not isinstance(tree, Mapping):
        raise _error("model.input", tree, "needs a mapping", "e.g. {shape: [3, 224, 224], dtype: fp32}")
    for key in tree:
        if key not in ("shape", "dtype"):
            raise _error(f"model.input.{key}", tree[key], "unknown key; input has shape and dtype")
    if tree.get("dtype", "fp32") not in DTYPES:
        raise _error("model.input.dtype", tree["dtype"], f"one of {', '.join(DTYPES)}")
    shape = tree.get("shape")
    sizes = [shape] if isinstance(shape, int) else shape
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) not in (1, 3):
        raise _error("model.input.shape", shape, "needs [features] or [channels, height, width], without the batch")
    return tuple(_positive(size, "model.input.shape") for size in sizes)


def _positive(value: object, path: str, minimum: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST:
        raise _error(path, value, f"needs a whole number of at least {minimum}, at most {LARGEST:,}")
    return value


def _pair(value: object, path: str, minimum: int = 1) -> tuple[int, int]:
    """A number for both axes, or one for each."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise _error(path, value, "needs one number or two (height, width)")
        return _positive(value[0], path, minimum), _positive(value[1], path, minimum)
    number = _positive(value, path, minimum)
    return number, number


def _word(layer: object, path: str) -> tuple[str, Settings]:
    """A layer's word and settings."""
    settings: object = None
    if isinstance(layer, str):
        word = layer
    elif isinstance(layer, Mapping) and len(layer) == 1:
        word, settings = next(iter(layer.items()))
    else:
        raise _error(path, layer, "a layer is a word or a mapping from one word to its settings", "e.g. {linear: {out: 1024}}")
    word = str(word)
    if word not in _WORDS:
        close = get_close_matches(word, _WORDS, 1)
        raise _error(path, word, f"unknown layer; known: {', '.join(_WORDS)}", f"did you mean {close[0]}?" if close else "")
    settings = {} if settings is None else settings
    if not isinstance(settings, Mapping):
        main = _WORDS[word].main
        if not main:
            raise _error(f"{path}.{word}", settings, "needs a mapping of settings")
        settings = {main: settings}
    for key in settings:
        if key not in _WORDS[word].settings:
            raise _error(f"{path}.{word}.{key}", settings[key], f"unknown setting; {word} has {', '.join(_WORDS[word].settings) or 'none'}")
    return word, settings


def _expanded(layers: object) -> int:
    """How many layers a list has with its repetitions; what is no list of layers is refused when it is built."""
    count = 0
    for layer in layers if isinstance(layers, Sequence) and not isinstance(layers, str) else ():
        settings = next(iter(layer.values()), None) if isinstance(layer, Mapping) else None
        if not isinstance(settings, Mapping):
            count += 1
            continue
        times = settings.get("times", 1)
        inside = sum(map(_expanded, (settings.get("layers"), settings.get("shortcut"))))
        count += max(1, inside) * (times if isinstance(times, int) and times > 0 else 1)
    return count


def _times(settings: Settings, path: str) -> int:
    return _positive(settings.get("times"), f"{path}.repeat.times")


def _add_layer(groups: list[_Builder], word: str, settings: Settings, shape: Shape, path: str) -> Shape:
    """Adds one top-level layer, in a new block where it begins one; returns the shape behind it."""
    if word in ("repeat", "sequence"):
        for index, layer in enumerate(_layers(settings, f"{path}.{word}")):
            inner = f"{path}.{word}.layers[{index}]"
            inner_word, inner_settings = _word(layer, inner)
            for _ in range(_times(inner_settings, inner) if inner_word == "repeat" else 1):
                shape = _add_layer(groups, inner_word, inner_settings, shape, inner)
        return shape
    if not groups or (_WORDS[word].begins and groups[-1].begun):
        groups.append(_Builder())
    groups[-1].begun |= _WORDS[word].begins
    return _WORDS[word].build(groups[-1], settings, shape, f"{path}.{word}")


def _layers(settings: Settings, path: str) -> Sequence[object]:
    layers = settings.get("layers")
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise _error(f"{path}.layers", layers, "needs a list with at least one layer")
    return layers


def _image(shape: Shape, path: str) -> tuple[int, tuple[int, int]]:
    if len(shape) != 3:
        raise _error(path, list(shape), "needs an image [channels, height, width]; its input is flat")
    return shape[0], (shape[1], shape[2])


# --- layers -------------------------------------------------------------------------------------------------------


def _linear(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    if len(shape) != 1:
        raise _error(path, list(shape), "needs a flat input", "put flatten before it")
    out, name = _positive(settings.get("out"), f"{path}.out"), to.fresh("linear")
    to.add(Linear(name, (to.tensor,), name, shape[0], (out,), bool(settings.get("bias", True))))
    return (out,)


def _conv2d(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    channels, size = _image(shape, path)
    out, groups = _positive(settings.get("out"), f"{path}.out"), _positive(settings.get("groups", 1), f"{path}.groups")
    if channels % groups or out % groups:
        raise _error(f"{path}.groups", groups, f"must divide the {channels} input and the {out} output channels")
    kernel = _pair(settings.get("kernel"), f"{path}.kernel")
    stride, dilation = _pair(settings.get("stride", 1), f"{path}.stride"), _pair(settings.get("dilation", 1), f"{path}.dilation")
    padding = _pair(settings.get("padding", 0), f"{path}.padding", 0)
    name = to.fresh("conv2d")
    layer = Conv2d(
        name, (to.tensor,), name, channels, out, kernel, size, stride, padding, dilation, groups, bool(settings.get("bias", True))
    )
    if min(layer.output_size) < 1:
        raise _error(f"{path}.kernel", list(kernel), f"is larger than the padded image of {size[0]} x {size[1]}")
    to.add(layer)
    return (out, *layer.output_size)


def _batchnorm(to: _Builder, _: Settings, shape: Shape, __: str) -> Shape:
    name = to.fresh("batchnorm")
    to.add(BatchNorm(name, (to.tensor,), name, shape[0], (shape[1], shape[2]) if len(shape) == 3 else (1, 1)))
    return shape


def _layernorm(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    if len(shape) != 1:
        raise _error(path, list(shape), "over images is not supported yet", "use batchnorm")
    name = to.fresh("layernorm")
    to.add(LayerNorm(name, (to.tensor,), name, shape[0], bool(settings.get("bias", True))))
    return shape


def _activation(kind: str) -> Callable[[_Builder, Settings, Shape, str], Shape]:
    def build(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
        inplace, name = bool(settings.get("inplace", False)), to.fresh(kind)
        if inplace and kind not in ("relu", "silu"):
            raise _error(f"{path}.inplace", True, "only relu works in place")
        if inplace and kind == "silu":
            raise _error(f"{path}.inplace", True, "silu needs its input in backward", "leave inplace out")
        to.add(Activation(name, (to.tensor,), name, prod(shape), kind, inplace=inplace and to.tensor != "input"))
        return shape

    return build


def _dropout(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    probability = settings.get("p", 0.5)
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability < 1:
        raise _error(f"{path}.p", probability, "needs a probability in [0, 1)")
    if probability:
        name = to.fresh("dropout")
        to.add(Dropout(name, (to.tensor,), name, prod(shape)))
        to.dropout = max(to.dropout, float(probability))
    return shape


def _pool(kind: Literal["max", "average"]) -> Callable[[_Builder, Settings, Shape, str], Shape]:
    def build(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
        channels, size = _image(shape, path)
        kernel = _pair(settings.get("kernel"), f"{path}.kernel")
        stride = _pair(settings.get("stride", kernel), f"{path}.stride")
        padding = _pair(settings.get("padding", 0), f"{path}.padding", 0)
        ceil = bool(settings.get("ceil_mode", False))
        height, width = (window_count(*axis, 1, ceil) for axis in zip(size, kernel, stride, padding, strict=True))
        if min(height, width) < 1:
            raise _error(f"{path}.kernel", list(kernel), f"is larger than the padded image of {size[0]} x {size[1]}")
        name = to.fresh(f"{kind}pool")
        to.add(Pool(name, (to.tensor,), name, channels, size, (height, width), kind))
        return (channels, height, width)

    return build


def _adaptive(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    channels, size = _image(shape, path)
    target = _pair(settings.get("output", 1), f"{path}.output")
    name = to.fresh("avgpool")
    to.add(Pool(name, (to.tensor,), name, channels, size, target, "global" if target == (1, 1) else "average"))
    return (channels, *target)


def _flatten(to: _Builder, _: Settings, shape: Shape, __: str) -> Shape:
    name = to.fresh("flatten")
    to.add(Flatten(name, (to.tensor,), name))
    return (prod(shape),)


def _sequence(to: _Builder, layers: Sequence[object], shape: Shape, path: str) -> Shape:
    """Layers inside a residual branch."""
    for index, layer in enumerate(layers):
        inner = f"{path}[{index}]"
        word, settings = _word(layer, inner)
        times = 1
        if word == "repeat":
            times = _times(settings, inner)
        for _ in range(times):
            if word in ("repeat", "sequence"):
                shape = _sequence(to, _layers(settings, f"{inner}.{word}"), shape, f"{inner}.{word}.layers")
            else:
                shape = _WORDS[word].build(to, settings, shape, f"{inner}.{word}")
    return shape


def _residual(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
    """layers(x) + shortcut(x); an empty shortcut is x itself."""
    return _branches(to, _layers(settings, path), settings.get("shortcut") or (), shape, path)


def _branches(to: _Builder, layers: Sequence[object], shortcut: Sequence[object], shape: Shape, path: str, inplace: bool = False) -> Shape:
    source, prefix = to.tensor, to.prefix
    behind = _sequence(to, layers, shape, f"{path}.layers")
    branch, to.tensor, to.prefix = to.tensor, source, f"{prefix}shortcut."
    aside = _sequence(to, shortcut, shape, f"{path}.shortcut")
    to.prefix = prefix
    if aside != behind:
        raise _error(path, list(behind), f"cannot add shapes {list(behind)} and {list(aside)}", "give the shortcut a conv2d or linear")
    name = to.fresh("add")
    to.add(ResidualAdd(name, (branch, to.tensor), name, prod(behind), inplace=inplace))
    return behind


def _resnet(expansion: int) -> Callable[[_Builder, Settings, Shape, str], Shape]:
    """ResNet's residual block of `width` channels (1512.03385): bottleneck with expansion 4, basic block with 1."""

    def build(to: _Builder, settings: Settings, shape: Shape, path: str) -> Shape:
        channels, _ = _image(shape, path)
        width, stride = _positive(settings.get("width"), f"{path}.width"), _positive(settings.get("stride", 1), f"{path}.stride")
        out, relu = width * expansion, {"relu": {"inplace": True}}

        def conv(channels: int, kernel: int, step: int = 1) -> list[object]:
            shape = {"out": channels, "kernel": kernel, "stride": step, "padding": kernel // 2, "bias": False}
            return [{"conv2d": shape}, "batchnorm"]

        if expansion == 1:
            layers = [*conv(width, 3, stride), relu, *conv(width, 3)]
        else:
            layers = [*conv(width, 1), relu, *conv(width, 3, stride), relu, *conv(out, 1)]
        shortcut = conv(out, 1, stride) if stride != 1 or channels != out else []
        return _activation("relu")(to, {"inplace": True}, _branches(to, layers, shortcut, shape, path, True), path)

    return build


class _LayerWord(NamedTuple):
    """What a layer word means: its builder, its settings, and whether it begins a block."""

    build: Callable[[_Builder, Settings, Shape, str], Shape]
    settings: tuple[str, ...] = ()
    begins: bool = False
    main: str = ""
    """the setting that a bare value stands for"""


def _group(_: _Builder, __: Settings, shape: Shape, ___: str) -> Shape:
    return shape


_POOL = ("kernel", "stride", "padding", "ceil_mode")
_WORDS: dict[str, _LayerWord] = {
    "linear": _LayerWord(_linear, ("out", "bias"), True, "out"),
    "conv2d": _LayerWord(_conv2d, ("out", "kernel", "stride", "padding", "dilation", "groups", "bias"), True),
    "batchnorm": _LayerWord(_batchnorm),
    "layernorm": _LayerWord(_layernorm, ("bias",)),
    **{kind: _LayerWord(_activation(kind), ("inplace",)) for kind in ACTIVATIONS},
    "dropout": _LayerWord(_dropout, ("p",), main="p"),
    "maxpool": _LayerWord(_pool("max"), _POOL, main="kernel"),
    "avgpool": _LayerWord(_pool("average"), _POOL, main="kernel"),
    "adaptive_avgpool": _LayerWord(_adaptive, ("output",), main="output"),
    "global_avgpool": _LayerWord(_adaptive),
    "flatten": _LayerWord(_flatten),
    "residual": _LayerWord(_residual, ("layers", "shortcut"), True),
    "bottleneck": _LayerWord(_resnet(4), ("width", "stride"), True),
    "basic_block": _LayerWord(_resnet(1), ("width", "stride"), True),
    "repeat": _LayerWord(_group, ("times", "layers")),
    "sequence": _LayerWord(_group, ("layers",), main="layers"),
}
