"""What torch.compile keeps for backward: its partitioner asked, without code generation.

Graphs go the way they go in Inductor (``torch/_inductor/compile_fx.py``): ahead-of-time autograd with Inductor's decompositions,
its passes over the joint graph, the min-cut partitioner. Nothing is compiled, so no compiler and no GPU is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch_side import saved_bytes, torch

_dynamo = import_module("torch._dynamo")
_partitioner = import_module("torch._functorch.partitioners").min_cut_rematerialization_partition
_boxed = import_module("functorch.compile").make_boxed_func
_aot_autograd = import_module("torch._dynamo.backends.common").aot_autograd
_fake_mode = import_module("torch._guards").detect_fake_mode
_decompositions = import_module("torch._inductor.decomposition").select_decomp_table
_joint_graph_passes = import_module("torch._inductor.fx_passes.joint_graph").joint_graph_passes
_inductor = import_module("torch._inductor.virtualized").V


def _partition(graph: Any, inputs: Any, **options: Any) -> Any:
    values = [node.meta.get("val") for node in graph.graph.nodes]
    with _inductor.set_fake_mode(_fake_mode([value for value in values if isinstance(value, torch.Tensor)])):
        _joint_graph_passes(graph)
    options.pop("compiler", None)
    return _partitioner(graph, inputs, compiler="inductor", **options)


def _as_it_is(graph: Any, _: Any) -> Any:
    return _boxed(graph.forward)


def _backend(graph: Any, inputs: Any) -> Any:
    compiler = _aot_autograd(fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=_partition, decompositions=_decompositions())
    return compiler(graph, inputs)


def compiled_saved_bytes(built: Any, **inputs: Any) -> int:
    """As `saved_bytes`, of the whole module as one graph."""
    _dynamo.reset()
    whole = torch.compile(built, backend=_backend, fullgraph=True)
    return saved_bytes(lambda: whole(**inputs), built)
