"""What ATen's operators are in a traced model: one function per kind, from a call to the line that stands for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parsim.interop.traced_nodes import Ref, TracedNode
from parsim.interop.traced_reading import CHOICES, INPUT, KNOWN, NOTHING, OUTPUT, PASSES, RAW, OperatorLine, TraceWalk
from parsim.interop.traced_sizes import Traces

_FUNCTIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid"}
_ALIASES = frozenset({"detach", "alias", "lift_fresh", "getitem", "requires_grad_"})
_IGNORED = ("_assert", "sym_", "_guard", "_check")


def read(traces: Traces) -> TraceWalk:
    """All calls as lines, in the order of execution; views and what changes nothing are followed, not listed."""
    reading = TraceWalk(traces)
    for name, parameter in traces.small.parameters.items():
        reading.grad[name] = parameter.trainable
    roots: dict[str, str] = {}
    for node in traces.small.nodes:
        if node.view and node.refs:
            roots[node.name] = roots.get(node.refs[0], node.refs[0])
        else:
            reading.readers.update({roots.get(name, name) for name in node.refs})
    for node in traces.small.nodes:
        _node(reading, node)
    return reading


def _node(reading: TraceWalk, node: TracedNode) -> None:
    if node.op.startswith(_IGNORED) or node.tensor is None:
        return
    tensors = node.refs
    op = node.op.rstrip("_")
    nothing = (op in ("dropout", "feature_dropout") and not (node.arguments[1] and node.arguments[2])) or _same_type(reading, node, op)
    if tensors and (node.view or nothing or op in _ALIASES):
        reading.root[node.name] = reading.rooted(tensors[0])
        reading.grad[node.name] = bool(reading.grad.get(tensors[0])) and op != "detach" and node.recorded and node.tensor.floating
        return
    grad = node.recorded and node.tensor.floating and any(reading.grad.get(name) for name in tensors)
    reading.grad[node.name] = grad
    lines = _WORDS.get(op, _kernel)(reading, node)
    counter = node.op == "add_" and reading.rooted(tensors[0]) in reading.traces.small.buffers  # batch norm's number of batches
    for line in () if counter else lines:
        line.grad = grad
        reading.lines.append(line)
    if node.op != op and tensors:  # in place: who reads the old name from here on reads the result
        old = reading.rooted(tensors[0])
        for name in [name for name, root in reading.root.items() if root == old]:
            reading.root[name] = node.name
        reading.root[old] = node.name


def _same_type(reading: TraceWalk, node: TracedNode, op: str) -> bool:
    if op not in ("to", "_to_copy", "type_as") or not node.refs or node.refs[0] not in reading.traces.facts or node.tensor is None:
        return False
    source = reading.traces.facts[node.refs[0]][0]
    return (source.element, source.floating) == (node.tensor.element, node.tensor.floating)


# --- words ----------------------------------------------------------------------------------------------------------

Words = Callable[[TraceWalk, TracedNode], list[OperatorLine]]


def _inputs(reading: TraceWalk, name: str) -> list[str]:
    """What an operator that needs one tensor reads."""
    return reading.differentiated(name) or ([RAW] if reading.raw(name) else [])


def _trainable(reading: TraceWalk, *parameters: str) -> dict[str, Any]:
    return {} if all(reading.traces.small.parameters[name].trainable for name in parameters) else {"trainable": False}


def _times(rows: tuple[int, bool]) -> dict[str, Any]:
    """``rows`` and ``once`` of a line."""
    return ({} if rows[0] == 1 else {"rows": rows[0]}) | ({"once": True} if rows[1] else {})


def _weighted(reading: TraceWalk, node: TracedNode, source: str, weight: str, bias: str | None) -> list[OperatorLine]:
    """source x weight (+ bias): the weight is [out, in] or [in, out]."""
    held = reading.traces.shape(weight)
    into = reading.traces.shape(source)[-1]
    out = held[0] * held[1] // into
    parameters = [name for name in (reading.parameter(weight), reading.parameter(bias) if bias else None) if name]
    settings = {"in": into, "out": out, **({} if bias else {"bias": False}), **_times(reading.traces.rows(source, into))}
    line = reading.line(node, "linear", _inputs(reading, source), settings | _trainable(reading, *parameters), *parameters)
    line.piece = held[0] * held[1] < math.prod(reading.traces.shape(parameters[0]))
    return [line]


def _linear(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source, weight, bias = (node.arguments + (None,) * 3)[:3]
    if reading.parameter(weight.name) is None or len(reading.traces.shape(weight.name)) != 2:
        return _product(reading, node, source.name, weight.name, transposed=True)
    if bias is not None and reading.parameter(bias.name) is None:
        return _kernel(reading, node)
    return _weighted(reading, node, source.name, weight.name, bias.name if bias is not None else None)


def _addmm(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    bias, source, weight = node.arguments[:3]
    if reading.parameter(weight.name) is None:
        return _product(reading, node, source.name, weight.name)
    if reading.parameter(bias.name) is None:
        return _kernel(reading, node)
    return _weighted(reading, node, source.name, weight.name, bias.name)


def _matmul(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    left, right = node.arguments[-2:] if node.op == "baddbmm" else node.arguments[:2]
    if reading.parameter(right.name) is not None and len(reading.traces.shape(right.name)) == 2:
        return _weighted(reading, node, left.name, right.name, None)
    if reading.parameter(left.name) is not None or reading.parameter(right.name) is not None:
        return _kernel(reading, node)
    return _product(reading, node, left.name, right.name)


def _product(reading: TraceWalk, node: TracedNode, left: str, right: str, *, transposed: bool = False) -> list[OperatorLine]:
    one, two = reading.traces.shape(left), reading.traces.shape(right)
    k = one[-1]
    m = one[-2] if len(one) > 1 else 1
    n = (two[-2] if transposed else two[-1]) if len(two) > 1 else 1
    count, once = reading.traces.rows(node.name, m * n)
    of = reading.differentiated(left, right)
    settings: dict[str, Any] = {"m": m, "n": n, "k": k, "count": count}
    if once:
        settings["once"] = True
    if len(of) == 1 and not reading.grad.get(left):
        settings["left"] = False
    return [reading.line(node, "product", of, settings)]


def _embedding(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    table, ids = node.arguments[0].name, node.arguments[1].name
    parameter = reading.parameter(table)
    if parameter is None:
        return _kernel(reading, node)
    rows, width = reading.traces.shape(table)
    settings = {"vocabulary": rows, "out": width, **_times(reading.traces.rows(node.name, width)), **_trainable(reading, parameter)}
    return [reading.line(node, "embedding", [RAW] if reading.raw(ids) else [], settings, parameter)]


def _convolution(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source, weight, bias, stride, padding, dilation, groups = node.arguments[:7]
    parameter, held, image = reading.parameter(weight.name), reading.traces.shape(weight.name), reading.traces.shape(source.name)
    if parameter is None or len(image) != len(held) or len(held) not in (3, 4):
        return _kernel(reading, node)
    flat = len(held) == 3

    def pair(value: Any, rest: int) -> list[int]:
        values = list(value) if isinstance(value, tuple) else [value]
        values = values * (len(held) - 2) if len(values) == 1 else values
        return [rest, *values] if flat else values

    kernel, steps = ([1, held[2]] if flat else list(held[2:])), pair(dilation, 1)
    if isinstance(padding, str):
        padding = tuple(step * (size - 1) // 2 if padding == "same" else 0 for step, size in zip(steps, kernel, strict=True))[flat:]
    settings: dict[str, Any] = {"in": image[1], "out": held[0], "kernel": kernel, "size": [1, image[2]] if flat else list(image[2:])}
    settings |= {"stride": pair(stride, 1), "padding": pair(padding, 0), "dilation": steps, "groups": groups, "bias": bias is not None}
    settings = {key: value for key, value in settings.items() if (key, value) not in _DEFAULTS}
    parameters = [parameter] + ([bias.name] if bias is not None else [])
    settings |= _times((reading.traces.images(source.name), False)) | _trainable(reading, *parameters)
    return [reading.line(node, "conv2d", _inputs(reading, source.name), settings, *parameters)]


_DEFAULTS = [("stride", [1, 1]), ("padding", [0, 0]), ("dilation", [1, 1]), ("groups", 1), ("bias", True)]


def _norm(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source, shape, weight = node.arguments[:3]
    bias = node.arguments[3] if node.op == "layer_norm" else None
    hidden = 1
    for size in shape:
        hidden *= size
    of = reading.differentiated(source.name)
    if not isinstance(weight, Ref) or reading.parameter(weight.name) is None or not of or reading.traces.count(source.name)[1]:
        return _kernel(reading, node)
    parameters = [weight.name] + ([bias.name] if isinstance(bias, Ref) else [])
    settings = {"hidden": hidden, **_times(reading.traces.rows(source.name, hidden)), **_trainable(reading, *parameters)}
    if node.op == "layer_norm" and bias is None:
        settings["bias"] = False
    return [reading.line(node, "layernorm" if node.op == "layer_norm" else "rmsnorm", of, settings, *parameters)]


def _batchnorm(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source, weight, bias = node.arguments[:3]
    of, shape = reading.differentiated(source.name), reading.traces.shape(source.name)
    if not (isinstance(weight, Ref) and isinstance(bias, Ref) and of):
        return _kernel(reading, node)
    settings: dict[str, Any] = {"channels": shape[1], **_times((reading.traces.images(source.name), False))}
    if len(shape) > 2:
        inner = 1
        for size in shape[3:]:
            inner *= size
        settings["size"] = [shape[2], inner]
    settings |= _trainable(reading, weight.name, bias.name)
    return [reading.line(node, "batchnorm", of, settings, weight.name, bias.name)]


def _activation(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source, op = node.refs[0], node.op.rstrip("_")
    features, shared = reading.traces.count(node.name)
    of = reading.differentiated(source)
    if shared or not of:
        return _kernel(reading, node)
    kind = "gelu-tanh" if op == "gelu" and node.arguments[1:2] == ("tanh",) else _FUNCTIONS[op]
    inplace = {"inplace": True} if node.op != op and op == "relu" else {}
    return [reading.line(node, "activation", of, {"kind": kind, "features": features, **inplace})]


def _dropout(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    features, shared = reading.traces.count(node.name)
    of = reading.differentiated(node.refs[0])
    if shared or not of:
        return _kernel(reading, node)
    return [reading.line(node, "dropout", of, {"features": features, "p": float(node.arguments[1])})]


def _add(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    tensors = [argument.name for argument in node.arguments[:2] if isinstance(argument, Ref)]
    of = reading.differentiated(*tensors)
    counts = {reading.traces.count(name) for name in (*tensors, node.name)}
    element = {reading.traces.facts[name][0].element for name in (*tensors, node.name)}
    if len(of) < 2 or len(counts) > 1 or len(element) > 1 or next(iter(counts))[1] or node.op.startswith("sub"):
        return _kernel(reading, node)
    inplace = {"inplace": True} if node.op == "add_" else {}
    return [reading.line(node, "sum", of, {"features": reading.traces.count(node.name)[0], **inplace})]


def _pool(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    source = node.refs[0]
    image, result = reading.traces.shape(source), node.tensor.shape if node.tensor is not None else ()
    of = reading.differentiated(source)
    if len(image) != 4 or not of:
        return _kernel(reading, node)
    kind = "max" if node.op.startswith("max") else "global" if result[2:] == (1, 1) and node.op.startswith("adaptive") else "average"
    settings = {"kind": kind, "channels": image[1], "size": list(image[2:]), "out": list(result[2:])}
    return [reading.line(node, "pool", of, settings | _times((reading.traces.images(source), False)))]


def _attention(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    query, key, value = (node.arguments[place].name for place in range(3))
    mask, probability, causal = node.arguments[3], node.arguments[4] or 0.0, node.arguments[5]
    shapes = [reading.traces.shape(name) for name in (query, key, value)]
    queries, keys = shapes[0][-2], shapes[1][-2]
    heads, kv_heads = (shape[-3] if len(shape) > 3 else 1 for shape in shapes[:2])
    width, values = shapes[0][-1], shapes[2][-1]
    groups, once = reading.traces.rows(query, heads * queries * width)
    of = reading.differentiated(query, key, value)
    if queries != keys or once or len(of) < 3:
        return _attention_products(reading, node, queries, keys)
    settings: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "rows": queries}
    if values != width:
        settings["value_dim"] = values
    if groups > 1:
        settings["groups"] = groups
    settings["causal"] = bool(causal or (mask is not None and node.causal))
    if probability:
        settings |= {"dropout": True, "p": float(probability)}
    if len(set(of)) < 3:  # slices of one product's result
        of = [of[0]] if len(set(of)) == 1 else [of[0], of[1]] if of[1] == of[2] else of
    return [reading.line(node, "attention", of, settings)]


def _attention_products(reading: TraceWalk, node: TracedNode, queries: int, keys: int) -> list[OperatorLine]:
    """Attention over other keys than queries, as the products and the softmax that it consists of."""
    query, key, value = (node.arguments[place].name for place in range(3))
    width, values = reading.traces.shape(query)[-1], reading.traces.shape(value)[-1]
    count, once = reading.traces.rows(query, queries * width)
    size: Any = f"{count * queries * keys} once" if once else count * queries * keys
    rest: dict[str, Any] = {"count": count} | ({"once": True} if once else {})

    def product(name: str, of: list[str], m: int, n: int, k: int, *, left: bool) -> OperatorLine:
        line = reading.line(node, "product", of, {"m": m, "n": n, "k": k, **rest} | ({} if left or len(of) != 1 else {"left": False}))
        line.name = name
        return line

    scores, weights = f"{node.name}.scores", f"{node.name}.weights"
    first = product(scores, reading.differentiated(query, key), queries, keys, width, left=bool(reading.grad.get(query)))
    trained = [scores] if first.of else []
    softmax = reading.line(node, "kernel", trained, {"reads": [size] if trained else [], "writes": size, "keeps": [weights], "launches": 2})
    softmax.name, softmax.label = weights, "softmax"
    if not trained:
        softmax.settings |= {"also": size, "keeps": []}
    second = product(
        node.name, [*([weights] if trained else []), *reading.differentiated(value)], queries, values, keys, left=bool(trained)
    )
    return [first, softmax, second]


def _cross_entropy(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    logits = node.refs[0]
    shape = reading.traces.shape(logits)
    classes = shape[1] if len(shape) > 1 else shape[0]
    of = reading.differentiated(logits)
    if not of:
        return _kernel(reading, node)
    settings: dict[str, Any] = {"kind": "cross_entropy", "classes": classes, "upcast": False}
    maker = next((line for line in reading.lines if line.name == of[0]), None)
    if maker is not None and maker.aten == "to" and maker.settings.get("cast") == "up" and maker.of:
        settings["upcast"], of = True, maker.of
        reading.lines.remove(maker)
    return [reading.line(node, "loss", of, settings | _times(reading.traces.rows(logits, classes)))]


def _mean_square(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    of = reading.differentiated(node.refs[0])
    count, shared = reading.traces.count(node.refs[0])
    if len(of) != 1 or shared:
        return _kernel(reading, node)
    return [reading.line(node, "loss", of, {"kind": "mse", "classes": count, "upcast": False})]


def _kernel(reading: TraceWalk, node: TracedNode) -> list[OperatorLine]:
    """A memory-bound operator by what its derivative keeps; one that is not known keeps what it reads."""
    op = node.op.rstrip("_")
    names = list(node.refs)
    learned = [name for name in dict.fromkeys(map(reading.rooted, names)) if reading.parameter(name)]
    trained: dict[str, list[str]] = {}
    for name in names:
        if reading.grad.get(name) and reading.parameter(name) is None:
            trained.setdefault(reading.rooted(name), []).append(name)
    beside = [name for name in names if name in reading.traces.facts and not reading.grad.get(name) and reading.parameter(name) is None]
    settings: dict[str, Any] = {
        "reads": [reading.traces.size(*parts) for parts in trained.values()],
        "writes": reading.traces.size(node.name),
    }
    if beside:
        settings["also"] = reading.traces.size(*dict.fromkeys(beside))
    if op in CHOICES and trained and (choice := _choice(reading, beside)):
        settings["kept"] = reading.traces.size(*choice)
    if keeps := _keeps(reading, op, node.name, trained, learned, names):
        settings["keeps"] = keeps
    if op in PASSES and op not in ("reshape", "contiguous", "clone", "flatten", "to", "_to_copy"):
        settings["passes"] = True
    if op == "to" and node.tensor is not None and node.tensor.element > reading.traces.small.element:
        settings["cast"] = "up"
    line = reading.line(node, "kernel", list(trained), settings | _trainable(reading, *learned), *learned)
    if op not in KNOWN and (trained or learned):
        reading.unmapped.append(line)
    return [line]


def _choice(reading: TraceWalk, beside: list[str]) -> list[str]:
    """Masks and indices that only this operator keeps; what several read, or the module has, is there once."""
    alone = []
    for name in dict.fromkeys(beside):
        facts, root = reading.traces.facts[name][0], reading.rooted(name)
        given = root in reading.traces.small.inputs or root in reading.traces.small.buffers
        if not facts.floating and not given and reading.readers[root] == 1:
            alone.append(name)
    return alone


def _keeps(reading: TraceWalk, op: str, result: str, trained: dict[str, list[str]], learned: list[str], names: list[str]) -> list[str]:
    """Tensors among the inputs and the result that backward needs."""
    if op in NOTHING or op in CHOICES or not (trained or learned):
        return []
    if op in OUTPUT:
        return [result]
    if op in ("mul", "div"):
        if len(set(names)) == 1 and len(names) == 1:  # by a number
            return []
        needed = [root for root in trained if len(trained) + len(learned) > 1 or len(trained[root]) > 1]
        return needed or ([result] if op == "div" and names and reading.rooted(names[-1]) in trained and len(names) == 1 else [])
    if op in INPUT or op not in KNOWN:
        return list(trained)
    return [*trained, result]


_WORDS: dict[str, Words] = {
    "linear": _linear,
    "addmm": _addmm,
    **dict.fromkeys(("matmul", "mm", "bmm", "baddbmm"), _matmul),
    "embedding": _embedding,
    **dict.fromkeys(("conv1d", "conv2d"), _convolution),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    "batch_norm": _batchnorm,
    **dict.fromkeys(_FUNCTIONS, _activation),
    "dropout": _dropout,
    "add": _add,
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"), _pool),
    "scaled_dot_product_attention": _attention,
    "cross_entropy_loss": _cross_entropy,
    "mse_loss": _mean_square,
}
