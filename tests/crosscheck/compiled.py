"""What torch.compile keeps for backward: its partitioner asked, without code generation.

Graphs go the way they go in Inductor (``torch/_inductor/compile_fx.py``): ahead-of-time autograd with Inductor's decompositions,
its passes over the joint graph, the min-cut partitioner. Nothing is compiled, so no compiler and no GPU is needed.
"""

from __future__ import annotations

from typing import Any

import torch._dynamo
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch_side import saved_bytes, torch


def _partition(graph: Any, inputs: Any, **options: Any) -> Any:
    values = [node.meta.get("val") for node in graph.graph.nodes]
    with V.set_fake_mode(detect_fake_mode([value for value in values if isinstance(value, torch.Tensor)])):
        joint_graph_passes(graph)
    options.pop("compiler", None)
    return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **options)


def _as_it_is(graph: Any, _: Any) -> Any:
    return make_boxed_func(graph.forward)


def _backend(graph: Any, inputs: Any) -> Any:
    compiler = aot_autograd(fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=_partition, decompositions=select_decomp_table())
    return compiler(graph, inputs)


def compiled_saved_bytes(built: Any, **inputs: Any) -> int:
    """As `saved_bytes`, of the whole module as one graph."""
    torch._dynamo.reset()
    whole = torch.compile(built, backend=_backend, fullgraph=True)
    return saved_bytes(lambda: whole(**inputs), built)
