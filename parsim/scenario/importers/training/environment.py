"""Variables of the environment that change a step."""

from __future__ import annotations

from collections.abc import Iterable

from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key

ALGORITHMS = ("ring", "tree", "nvls")
PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128", "SIMPLE": "simple"}
LIBRARIES = ("NCCL_", "NVTE_", "NVSHMEM_", "UCX_", "FI_", "GLOO_", "TORCH_NCCL_", "TORCHINDUCTOR_", "PYTORCH_", "CUBLAS_", "CUDNN_")
"""variables that may change how fast a library is"""
HARMLESS = {
    "NCCL_DEBUG": "logging",
    "NCCL_DEBUG_SUBSYS": "logging",
    "NCCL_DEBUG_FILE": "logging",
    "NCCL_SOCKET_IFNAME": "how processes find each other",
    "NCCL_IB_TIMEOUT": "patience after a loss on the network",
    "NCCL_IB_RETRY_CNT": "patience after a loss on the network",
    "NCCL_TIMEOUT": "patience",
    "NCCL_ASYNC_ERROR_HANDLING": "patience",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "patience",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "memory is as parsim's allocator has it",
    "NCCL_AVOID_RECORD_STREAMS": "memory is as parsim's allocator has it",
}


def read_environment(draft: Draft, variables: Iterable[Key]) -> None:
    """Write what exported variables mean; those that concern no library are left out."""
    for key in {key.name: key for key in variables}.values():
        name, value = key.name.removeprefix("$"), str(key.value)
        if name == "CUDA_LAUNCH_BLOCKING":
            draft.write("software.host.blocking", value == "1", key)
        elif name == "NCCL_ALGO" and value.lower() in ALGORITHMS:
            draft.write("cluster.collectives.algorithm", value.lower(), key)
        elif name == "NCCL_PROTO" and value in PROTOCOLS:
            draft.write("cluster.collectives.protocol", PROTOCOLS[value], key)
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if value.lower() == "expandable_segments:true":
                draft.write("software.memory.allocator", "expandable", key)
            else:
                draft.unmodelled(key, "parsim's allocator has segments of PyTorch's sizes, or expandable ones")
        elif name in HARMLESS:
            draft.harmless(key, HARMLESS[name])
        elif name.startswith(LIBRARIES):
            draft.unmodelled(key, "a setting of a library")
