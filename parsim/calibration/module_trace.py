"""What a PyTorch module does, read by torch.export on the meta device: nothing is computed and no memory is needed.

torch.export is PyTorch's own tracer of whole programs. It keeps operators as the module calls them (linear, layer_norm,
scaled_dot_product_attention), the module that each belongs to, and refuses what it cannot follow. Torch is imported here only,
by the one command that needs it.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from parsim.calibration.module_inputs import stretched, written_inputs
from parsim.errors import Finding, ScenarioError
from parsim.interop.traced_nodes import ModuleTrace, Ref, TensorFacts, TracedNode, TracedParameter

_COPIES = ("reshape", "contiguous", "to", "flatten", "clone")
"""operators that copy, or give back what they got"""
_BITS = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


def traced_module(reference: str, inputs: Sequence[str] = (), dtype: str | None = None) -> tuple[ModuleTrace, ModuleTrace]:
    """Two traces of the module that ``FILE.py:FUNCTION`` returns, with batches of different sizes. Runs the file.

    `inputs` are words such as ``2x128:int64`` or ``labels=2x128:int64``; without them the file's ``make_inputs`` is called, with the
    size of the batch if it takes an argument. `dtype` (fp32 | fp16 | bf16) is what the module is cast to; None: it stays as it is.
    Raises `ScenarioError` where torch is missing, the file fails, or torch.export cannot follow the module.
    """
    torch = _torch(reference)
    file, _, function = reference.rpartition(":")
    names = _names(file, function, reference)
    with torch.device("meta"):
        module = _called(names[function], reference)
        if not isinstance(module, torch.nn.Module):
            raise _error(reference, f"{function} returned {type(module).__name__}, no torch.nn.Module")
        module = module.to("meta").train()
        if dtype:
            module = module.to({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype])
        if hasattr(module, "config") and getattr(module.config, "use_cache", False):
            module.config.use_cache = False  # a cache of keys is for generating
        make = names.get("make_inputs")
        if not inputs and make is None:
            hint = "write --inputs 2x128:int64 (shape with the batch first, type), or def make_inputs(batch): in the file"
            raise _error(reference, "there are no example inputs", hint)
        first, second = _pair(torch, inputs, make, reference)
        return tuple(_trace(torch, module, given, batch, reference) for given, batch in (first, second))  # type: ignore[return-value]


def _torch(reference: str) -> Any:
    try:
        torch: Any = import_module("torch")
    except ImportError:
        hint = "pip install 'parsim[calibrate]', or pip install torch: the CPU build is enough"
        raise _error(reference, "needs PyTorch, which is not installed", hint) from None
    return torch


def _error(reference: str, message: str, suggestion: str = "") -> ScenarioError:
    return ScenarioError(Finding(message, value=reference, suggestion=suggestion, file=reference.rpartition(":")[0]))


def _names(file: str, function: str, reference: str) -> dict[str, Any]:
    """What the file defines; it may import its neighbours."""
    path = Path(file)
    if not path.is_file():
        raise _error(reference, f"there is no file {file}")
    sys.path.insert(0, os.fspath(path.parent.resolve()))
    try:
        names = runpy.run_path(os.fspath(path), run_name="parsim_module")
    except (Exception, SystemExit) as error:
        raise _error(reference, f"{file} failed with {type(error).__name__}: {_line(error)}") from error
    finally:
        sys.path.pop(0)
    if not callable(names.get(function)):
        known = [name for name, value in names.items() if inspect.isfunction(value) and not name.startswith("_")]
        raise _error(reference, f"{file} has no function {function!r}", f"it has {', '.join(known)}" if known else "")
    return names


def _called(function: Callable[..., Any], reference: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        name = getattr(function, "__name__", "the function")
        raise _error(reference, f"{name} failed with {type(error).__name__}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


Given = tuple[tuple[Any, ...], dict[str, Any]]


def _pair(torch: Any, words: Sequence[str], make: Any, reference: str) -> tuple[tuple[Given, int], tuple[Given, int]]:
    """The inputs of two batches; the second is one sample larger."""
    if words or not inspect.signature(make).parameters:
        given = written_inputs(torch, words) if words else _arguments(_called(make, reference))
        tensors = [value for value in (*given[0], *given[1].values()) if isinstance(value, torch.Tensor) and value.dim()]
        if not tensors:
            raise _error(reference, "the example inputs hold no tensor with a batch")
        batch = tensors[0].shape[0]
        if batch < 2:
            given, batch = stretched(torch, given, batch, 2), 2  # torch.export takes a size of 1 for a fact
        return (given, batch), (stretched(torch, given, batch, batch + 1), batch + 1)
    made = [_arguments(_called(make, reference, batch)) for batch in (2, 3)]
    return (made[0], 2), (made[1], 3)


def _arguments(made: Any) -> Given:
    """What make_inputs returned as positional and named arguments of forward."""
    if isinstance(made, Mapping):
        return (), dict(made)
    return (tuple(made), {}) if isinstance(made, tuple | list) else ((made,), {})


def _trace(torch: Any, module: Any, given: Given, batch: int, reference: str) -> ModuleTrace:
    leaves = import_module("torch.utils._pytree")
    meta = leaves.tree_map(lambda value: value.to("meta") if isinstance(value, torch.Tensor) else value, given)
    try:
        program = torch.export.export(module, meta[0], meta[1])
    except Exception as error:
        hint = "torch.export has to follow forward: no values of tensors may decide what is run (docs.pytorch.org/docs/stable/export.html)"
        raise _error(reference, f"torch.export cannot trace it: {type(error).__name__}: {_line(error)}", hint) from error
    reader = _GraphReader(torch, module, program)
    flop, by_operator = _flop(torch, module, program, meta, reference)
    return reader.trace(batch, flop, by_operator)


def _flop(torch: Any, module: Any, program: Any, given: Given, reference: str) -> tuple[tuple[int, int], dict[str, int]]:
    """What torch's own counter counts, forward and backward: of the module, or of its trace where forward looks into tensors."""
    try:
        return _counted(torch, module, given)
    except Exception:  # noqa: BLE001 - whatever a module does on the meta device that it does not while it is traced
        module.zero_grad()
    try:
        return _counted(torch, program.module(check_guards=False), given)
    except Exception as error:
        raise _error(reference, f"one step on the meta device failed: {type(error).__name__}: {_line(error)}") from error


def _counted(torch: Any, module: Any, given: Given) -> tuple[tuple[int, int], dict[str, int]]:
    counter_mode = import_module("torch.utils.flop_counter").FlopCounterMode
    counts: list[int] = []
    by_operator: dict[str, int] = {}
    results: list[Any] = []
    for step in (lambda: results.append(module(*given[0], **given[1])), lambda: _scalar(torch, results[0]).backward()):
        with counter_mode(display=False) as counter:
            step()
        counts.append(counter.get_total_flops())
        for operator, count in counter.get_flop_counts().get("Global", {}).items():
            name = str(operator).removeprefix("aten.")
            by_operator[name] = by_operator.get(name, 0) + count
    module.zero_grad()
    return (counts[0], counts[1]), by_operator


def _scalar(torch: Any, result: Any) -> Any:
    """What backward begins with: the loss, or the sum of the first result."""
    leaves = import_module("torch.utils._pytree").tree_leaves(result)
    found = [value for value in leaves if isinstance(value, torch.Tensor) and value.requires_grad]
    scalars = [value for value in found if not value.dim()]
    return scalars[0] if scalars else found[0].sum()


class _GraphReader:
    """From an exported program to nodes without torch."""

    def __init__(self, torch: Any, module: Any, program: Any) -> None:
        self.torch, self.module, self.program = torch, module, program
        self.nodes: list[TracedNode] = []
        self.modules = dict(module.named_modules())

    def trace(self, batch: int, flop: tuple[int, int], by_operator: Mapping[str, int]) -> ModuleTrace:
        signature = self.program.graph_signature
        self._read(self.program.graph_module, {}, "", recorded=True)
        named = dict(self.module.named_parameters(remove_duplicate=False))
        first = {id(value): name for name, value in reversed(list(named.items()))}
        parameters = {
            key: TracedParameter(first[id(named[name])], tuple(named[name].shape), bool(named[name].requires_grad))
            for key, name in signature.inputs_to_parameters.items()
        }
        values = {node.name: node.meta.get("val") for node in self.program.graph.nodes if node.op == "placeholder"}
        inputs = {name: self._facts(values[name]) for name in signature.user_inputs if isinstance(values.get(name), self.torch.Tensor)}
        kinds = [value.dtype for value in self.module.parameters() if value.is_floating_point()]
        own = max(dict.fromkeys(kinds), key=kinds.count) if kinds else self.torch.float32
        given = set(signature.user_inputs) | set(parameters)
        buffers = {name: facts for name, value in values.items() if name not in given and (facts := self._facts(value)) is not None}
        return ModuleTrace(
            batch=batch,
            nodes=tuple(self.nodes),
            parameters=parameters,
            buffers=buffers,
            inputs={name: facts for name, facts in inputs.items() if facts is not None},
            outputs=tuple(name for name in signature.user_outputs if isinstance(name, str)),
            element=own.itemsize,
            dtype=_BITS.get(str(own), "fp32"),
            parameter_count=sum(int(value.numel()) for value in self.module.parameters()),
            flop=flop,
            flop_by_operator=dict(by_operator),
            tool=f"torch {self.torch.__version__}",
        )

    def _read(self, graph_module: Any, names: dict[str, str], prefix: str, *, recorded: bool) -> tuple[Any, ...]:
        """Appends the calls of a graph; returns its results. `names` are those of its arguments outside."""
        results: tuple[Any, ...] = ()
        several: dict[str, tuple[Any, ...]] = {}
        for node in graph_module.graph.nodes:
            if node.op == "output":
                returned = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
                results = tuple(self._argument(value, names) for value in returned)
            if node.op != "call_function":
                continue
            target = getattr(node.target, "__name__", str(node.target))
            inner = [value for value in node.args if getattr(value, "op", "") == "get_attr"]
            if inner and "wrap" in target:
                several[node.name] = self._inside(graph_module, node, inner[0], names, prefix, recorded=recorded)
                continue
            if target == "getitem" and node.args[0].name in several:
                result = several[node.args[0].name][node.args[1]]
                names[node.name] = result.name if isinstance(result, Ref) else node.name
                continue
            names[node.name] = prefix + node.name
            self._append(node, names, recorded=recorded)
        return results

    def _inside(self, graph_module: Any, node: Any, inner: Any, names: dict[str, str], prefix: str, *, recorded: bool) -> tuple[Any, ...]:
        """A region under set_grad_enabled or autocast."""
        place = list(node.args).index(inner)
        recorded = recorded and not ("grad" in str(node.target) and node.args[0] is False)
        body = getattr(graph_module, inner.target)
        holders = [one for one in body.graph.nodes if one.op == "placeholder"]
        outside = {one.name: names.get(given.name, given.name) for one, given in zip(holders, node.args[place + 1 :], strict=True)}
        results = self._read(body, outside, f"{prefix}{node.name}.", recorded=recorded)
        if len(results) == 1 and isinstance(results[0], Ref):
            names[node.name] = results[0].name
        return results

    def _append(self, node: Any, names: dict[str, str], *, recorded: bool) -> None:
        target = node.target
        op = target.overloadpacket.__name__ if hasattr(target, "overloadpacket") else getattr(target, "__name__", str(target))
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        module = list((node.meta.get("nn_module_stack") or {}).values())
        path = module[-1][0] if module else ""
        arguments = tuple(self._argument(argument, names) for argument in self._ordered(node))
        owner = self.modules.get(path.partition("@")[0])
        self.nodes.append(
            TracedNode(
                name=names[node.name],
                op=op,
                arguments=arguments,
                tensor=self._facts(first) if isinstance(first, self.torch.Tensor) else None,
                module=path.partition("@")[0],
                recorded=recorded,
                view=self._is_view(node, first),
                causal=causal if isinstance(causal := getattr(owner, "is_causal", None), bool) else None,
            )
        )

    def _ordered(self, node: Any) -> Iterator[Any]:
        """Arguments in the order of the operator's schema, named ones in their places, what is left out as its default."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            yield from (*node.args, *node.kwargs.values())
            return
        for index, argument in enumerate(schema.arguments):
            if index < len(node.args):
                yield node.args[index]
            else:
                yield node.kwargs.get(argument.name, argument.default_value)

    def _argument(self, value: Any, names: Mapping[str, str]) -> Any:
        if isinstance(value, self.torch.fx.Node):
            return Ref(names.get(value.name, value.name))
        if isinstance(value, tuple | list):
            return tuple(self._argument(item, names) for item in value)
        return value if isinstance(value, int | float | str | bool) or value is None else str(value)

    def _facts(self, value: Any) -> TensorFacts | None:
        if not isinstance(value, self.torch.Tensor):
            return None
        differentiable = value.is_floating_point() or value.is_complex()
        return TensorFacts(tuple(map(int, value.shape)), value.element_size(), differentiable, tuple(map(int, value.stride())))

    def _is_view(self, node: Any, value: Any) -> bool:
        """Whether the result is the memory of the first argument: views are; copies that copy nothing, such as contiguous(), may be."""
        schema = getattr(node.target, "_schema", None)
        if getattr(node.target, "__name__", "") == "getitem":
            return True
        source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], self.torch.fx.Node) else None
        if schema is None or not isinstance(source, self.torch.Tensor):
            return False
        op = node.target.overloadpacket.__name__
        if op not in _COPIES:
            return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        if op == "clone" or not isinstance(value, self.torch.Tensor) or value.dtype != source.dtype:
            return False
        if op in ("contiguous", "to"):
            return bool(value.stride() == source.stride())
        try:
            self.torch.empty_strided(source.shape, source.stride(), device="meta").view(value.shape)
        except RuntimeError:
            return False
        return True
