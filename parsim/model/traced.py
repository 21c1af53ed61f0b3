"""Models read off a module by a trace (``parsim import module``): blocks of operators with their sizes per sample.

``{input: {shape: [128], dtype: fp32}, blocks: [{times: 12, operators: [{op: linear, name: q, of: [input], in: 768, out: 768}]}]}``.
A block begins with the tensor ``input``, what the block before it made, and ends with the one that it calls ``output`` (left out: the
last result that nothing in it reads). Sizes are of one sample: ``rows`` of features, or elements; ``12B`` are bytes that no precision
changes, ``12 once`` is shared by all samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from math import prod
from typing import Any, Literal, NamedTuple, cast

from parsim.errors import Finding, ModelError
from parsim.limits import LARGEST_SIZE, MOST_LAYERS, beyond
from parsim.model.loss import Loss
from parsim.model.model import Block, Layer, Model, Operator
from parsim.model.parameter_counts import parameter_count
from parsim.model.traced_operators import (
    Product,
    Size,
    TracedActivation,
    TracedAttention,
    TracedBatchNorm,
    TracedConv2d,
    TracedDropout,
    TracedEmbedding,
    TracedKernel,
    TracedLayerNorm,
    TracedLinear,
    TracedLoss,
    TracedPool,
    TracedRMSNorm,
    TracedSum,
)

DTYPES = ("fp32", "tf32", "fp16", "bf16")
_SIZE = re.compile(r"([0-9]{1,16})(B?)( once)?")


class _Word(NamedTuple):
    kind: Callable[..., Operator]
    keys: Mapping[str, str]
    """key of the file -> field of the operator"""
    fixed: Mapping[str, Any] = {}


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_IMAGE = {**_same("kernel", "size", "stride", "padding", "dilation", "groups", "bias", "rows"), "in": "in_channels", "out": "out_channels"}
_WORDS: dict[str, _Word] = {
    "linear": _Word(TracedLinear, {"in": "in_features", "out": "out_features", **_same("bias", "rows", "once", "tied", "trainable")}),
    "conv2d": _Word(TracedConv2d, {**_IMAGE, "trainable": "trainable"}),
    "batchnorm": _Word(TracedBatchNorm, _same("channels", "size", "rows", "trainable")),
    "layernorm": _Word(TracedLayerNorm, _same("hidden", "bias", "rows", "trainable")),
    "rmsnorm": _Word(TracedRMSNorm, _same("hidden", "rows", "trainable")),
    "embedding": _Word(
        TracedEmbedding,
        {"out": "width", "table": "parameter_names", **_same("vocabulary", "rows", "once", "tied", "trainable")},
        {"split": "replicated"},
    ),
    "activation": _Word(TracedActivation, _same("kind", "features", "inplace", "rows")),
    "dropout": _Word(TracedDropout, _same("features", "rows")),
    "sum": _Word(TracedSum, _same("features", "inplace", "rows")),
    "pool": _Word(TracedPool, {"kind": "kind", **_same("channels", "size", "rows"), "out": "output_size"}),
    "attention": _Word(TracedAttention, _same("heads", "kv_heads", "head_dim", "value_dim", "causal", "dropout", "rows", "groups")),
    "product": _Word(Product, _same("m", "n", "k", "count", "left", "once")),
    "kernel": _Word(
        TracedKernel,
        _same("reads", "writes", "keeps", "kept", "passes", "also", "launches", "tied", "trainable") | {"parameters": "tensors"},
    ),
    "loss": _Word(TracedLoss, _same("kind", "classes", "upcast", "rows"), {"split": "replicated"}),
}
_KINDS = {"pool": ("max", "average", "global"), "loss": ("cross_entropy", "mse", "sum")}


def traced_model(tree: Mapping[str, Any], name: str, loss: str = "auto", stated: object = None) -> Model:
    """The model that `tree` (keys ``input``, ``blocks``, ``unmapped``) describes; `stated` parameters are checked.

    Errors: ModelError with the path of the operator that is unknown, lacks a setting or reads a tensor that is not there.
    """
    unknown = [key for key in tree if key not in ("input", "blocks", "unmapped")]
    if unknown:
        raise _error(f"model.{unknown[0]}", tree[unknown[0]], "unknown key; a traced model has input and blocks")
    rows = tree.get("blocks")
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise _error("model.blocks", rows, "needs a list with at least one block")
    blocks: list[Block] = []
    counts = [_whole(row.get("times", 1), f"model.blocks[{i}].times") for i, row in enumerate(map(_mapping, rows))]
    if many := beyond(sum(counts), MOST_LAYERS, "blocks", "model.blocks"):
        raise ModelError(many)
    dropout = 0.0
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        path = f"model.blocks[{index}]"
        last = index == len(rows) - 1
        if last and count > 1:
            raise _error(f"{path}.times", count, "the last block ends in the loss and stands once")
        operators, probability = _operators(row, path)
        dropout = max(dropout, probability)
        if last:
            operators = _with_loss(operators, loss)
        blocks += [_block(operators, row.get("output"), path)] * count
    shape, dtype = _input(tree.get("input"))
    ends = [operator for operator in blocks[-1].operators if isinstance(operator, Loss)]
    unmapped = tree.get("unmapped") or ()
    if not isinstance(unmapped, Sequence) or isinstance(unmapped, str):
        raise _error("model.unmapped", unmapped, "needs a list")
    facts = {
        "input_shape": shape,
        "input_elements": prod(shape),
        "input_dtype": dtype,
        "loss": ends[-1].kind if ends else "traced",
        "dropout": dropout,
        "unmapped": tuple(map(str, unmapped)),
    }
    model = Model(name, tuple(blocks), tuple(f"layer {i}" for i in range(len(blocks))), sequence=False, layers=len(blocks), facts=facts)
    if isinstance(stated, int) and parameter_count(model) != stated:
        message = f"the blocks have {parameter_count(model):,} parameters, the file states {stated:,}"
        raise _error("model.parameters", stated, message, "import the module again")
    return model


def traced_warnings(model: Model) -> list[Finding]:
    """What a traced model lacks."""
    unmapped = model.facts.get("unmapped") or ()
    if not isinstance(unmapped, tuple) or not unmapped:
        return []
    text = f"operators that the import did not know count as one pass over their tensors: {'; '.join(unmapped)}"
    return [Finding(text, "model.unmapped")]


def _error(path: str, value: object, message: str, suggestion: str = "") -> ModelError:
    return ModelError(Finding(message, path, value, suggestion))


def _mapping(row: object) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise _error("model.blocks", row, "a block is a mapping with operators")
    return row


def _whole(value: object, path: str, minimum: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST_SIZE:
        raise _error(path, value, f"needs a whole number of at least {minimum}, at most {LARGEST_SIZE:,}")
    return value


def _input(tree: object) -> tuple[tuple[int, ...], str]:
    """Shape of a sample and its type."""
    if not isinstance(tree, Mapping) or set(tree) - {"shape", "dtype"}:
        raise _error("model.input", tree, "needs a mapping with shape and dtype", "e.g. {shape: [128], dtype: fp32}")
    if tree.get("dtype", "fp32") not in DTYPES:
        raise _error("model.input.dtype", tree["dtype"], f"one of {', '.join(DTYPES)}")
    sizes = tree.get("shape")
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise _error("model.input.shape", sizes, "needs a list of sizes, without the batch")
    return tuple(_whole(size, "model.input.shape") for size in sizes), str(tree.get("dtype", "fp32"))


def _operators(row: Mapping[str, Any], path: str) -> tuple[list[Operator], float]:
    """The operators of a block, and the largest probability of its dropouts."""
    if unknown := [key for key in row if key not in ("name", "times", "operators", "output")]:
        raise _error(f"{path}.{unknown[0]}", row[unknown[0]], "unknown key; a block has name, times, operators and output")
    listed = row.get("operators")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise _error(f"{path}.operators", listed, "needs a list with at least one operator")
    made: list[Operator] = []
    known, dropout = {"input"}, 0.0
    for index, line in enumerate(listed):
        operator = _operator(line, known, f"{path}.operators[{index}]")
        if operator.name in known:
            raise _error(f"{path}.operators[{index}].name", operator.name, "stands twice in its block")
        known.add(operator.name)
        made.append(operator)
        dropout = max(dropout, float(line.get("p", 0.0)))
    return made, dropout


def _operator(line: object, known: set[str], path: str) -> Operator:
    if not isinstance(line, Mapping) or str(line.get("op")) not in _WORDS:
        value = line.get("op") if isinstance(line, Mapping) else line
        raise _error(path, value, f"an operator is a mapping with op, one of {', '.join(_WORDS)}")
    word = _WORDS[str(line["op"])]
    name = line.get("name")
    if not isinstance(name, str) or not name or name in ("input", "output"):
        raise _error(f"{path}.name", name, "needs a name, other than input and output")
    sources = line.get("of", [])
    if not isinstance(sources, Sequence) or isinstance(sources, str) or any(source not in list(known) for source in sources):
        raise _error(f"{path}.of", sources, "needs a list of tensors: input, or operators before it in the block")
    values: dict[str, Any] = dict(word.fixed)
    for key, value in line.items():
        if key in ("op", "name", "of") or (key == "p" and line["op"] in ("dropout", "attention")):
            continue
        if key not in word.keys:
            raise _error(f"{path}.{key}", value, f"unknown setting; {line['op']} has {', '.join(word.keys)}")
        values[word.keys[key]] = _value(word.keys[key], value, f"{path}.{key}", str(line["op"]))
    _probability(line.get("p", 0.0), path)
    required = [field.name for field in fields(cast(Any, word.kind)) if field.default is MISSING and field.default_factory is MISSING]
    missing = [key for key, to in word.keys.items() if to in required and to not in values]
    if missing:
        raise _error(f"{path}.{missing[0]}", None, f"required by {line['op']}")
    operator = word.kind(name=name, inputs=tuple(sources), output=name, **values)
    _consistent(operator, path)
    return operator


def _probability(value: object, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise _error(f"{path}.p", value, "needs a probability in [0, 1)")


def _value(field: str, value: Any, path: str, word: str) -> Any:
    """One setting as the operator's field has it."""
    if field in ("bias", "once", "inplace", "causal", "dropout", "upcast", "passes", "left", "trainable"):
        if not isinstance(value, bool):
            raise _error(path, value, "needs true or false")
        return value
    if field == "tied":
        return str(value)
    if field == "kind":
        from parsim.model.elementwise import ACTIVATIONS

        if value not in _KINDS.get(word, ACTIVATIONS):
            raise _error(path, value, f"one of {', '.join(_KINDS.get(word, ACTIVATIONS))}")
        return value
    if field in ("also", "writes", "kept"):
        return _size(value, path)
    if field == "tensors":
        if not isinstance(value, Mapping):
            raise _error(path, value, "needs a mapping of names to shapes")
        return tuple((str(name), _shape(shape, path)) for name, shape in value.items())
    if field == "parameter_names":
        return (str(value),)
    if field in ("reads", "keeps", "kernel", "size", "stride", "padding", "dilation", "output_size"):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _error(path, value, "needs a list")
        if field == "reads":
            return tuple(_size(item, path) for item in value)
        if field == "keeps":
            return tuple(map(str, value))
        if len(value) != 2:
            raise _error(path, value, "needs height and width")
        return tuple(_whole(item, path, 0 if field == "padding" else 1) for item in value)
    if field == "out_features":
        return (_whole(value, path),)
    return _whole(value, path, 0 if field in ("value_dim", "launches") else 1)


def _shape(value: object, path: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _error(path, value, "needs a list of sizes")
    return tuple(_whole(size, path) for size in value)


def _size(value: object, path: str) -> Size:
    """``128`` elements, ``512B`` bytes, ``128 once`` for all samples together, or a list of several."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_size(item, path) for item in value]
        return Size(*map(sum, zip(*parts, strict=True)))
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        return Size(**{("once_bytes" if match[2] else "once") if match[3] else "bytes" if match[2] else "elements": int(match[1])})
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**15:
        return Size(value)
    raise _error(path, value, "needs elements (128), bytes (512B), or one of them for all samples (128 once)")


def _consistent(operator: Operator, path: str) -> None:
    """Settings that have to fit each other."""
    inputs = len(operator.inputs)
    if isinstance(operator, TracedKernel):
        if len(operator.reads) != inputs:
            raise _error(f"{path}.reads", len(operator.reads), f"needs one size for each of the {inputs} tensors that it reads")
        if strange := [name for name in operator.keeps if name not in (*operator.inputs, operator.output)]:
            raise _error(f"{path}.keeps", strange, "keeps neither an input nor its result")
    elif isinstance(operator, TracedAttention):
        if not 1 <= inputs <= 3 or operator.heads % operator.kv_heads:
            raise _error(f"{path}.of", list(operator.inputs), "needs query, key and value, with heads a multiple of kv_heads")
    elif isinstance(operator, Product):
        if inputs > 2:
            raise _error(f"{path}.of", list(operator.inputs), "needs at most two tensors")
    elif isinstance(operator, TracedSum):
        if inputs < 2:
            raise _error(f"{path}.of", list(operator.inputs), "needs two tensors")
    elif inputs > 1 or (not inputs and not isinstance(operator, TracedLinear | TracedEmbedding | TracedConv2d)):
        raise _error(f"{path}.of", list(operator.inputs), "needs one tensor")
    if isinstance(operator, TracedConv2d) and min(operator.output_size) < 1:
        raise _error(f"{path}.kernel", list(operator.kernel), f"is larger than the padded image of {list(operator.size)}")
    if isinstance(operator, TracedConv2d) and (operator.in_channels % operator.groups or operator.out_channels % operator.groups):
        raise _error(f"{path}.groups", operator.groups, "must divide the input and the output channels")


def _with_loss(operators: list[Operator], loss: str) -> list[Operator]:
    """Operators that end in a loss of the kind that ``training.loss`` asks for; a loss in the trace is what it is."""
    last = operators[-1]
    if not isinstance(last, TracedLoss):
        return operators
    if loss not in ("auto", last.kind):
        if last.kind == "cross_entropy":
            raise _error("training.loss", loss, "the trace ends in cross_entropy", "leave training.loss out")
        last = replace(last, kind=cast(Literal["sum", "mse", "cross_entropy"], loss))
    return [*operators[:-1], last]


def _block(operators: Sequence[Operator], stated: object, path: str) -> Block:
    """The operators as a block: `stated`, or its last result that nothing in it reads, is called ``output``."""
    read = {name for operator in operators for name in operator.inputs}
    ends = [operator.name for operator in operators if operator.name not in read and operator.inputs]
    last = ends[-1] if stated is None and ends else stated
    if "input" not in read:
        raise _error(f"{path}.operators", None, "no operator reads input, what the block before it made")
    if last not in [operator.name for operator in operators]:
        raise _error(f"{path}.output", stated, "needs the name of an operator of the block")

    def called(name: str) -> str:
        return "output" if name == last else name

    renamed = []
    for operator in operators:
        changes: dict[str, Any] = {"output": called(operator.output), "inputs": tuple(map(called, operator.inputs))}
        if isinstance(operator, TracedKernel):
            changes["keeps"] = tuple(map(called, operator.keeps))
        renamed.append(cast(Operator, replace(cast(Layer, operator), **changes)))
    return Block("layer", tuple(renamed))
