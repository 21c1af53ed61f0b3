"""The `cluster` and `software` sections: what runs the job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from parsim.hardware.transfers import SHORTEST_PERIOD
from parsim.scenario.effects import EffectsKind
from parsim.scenario.reliability import StorageSection
from parsim.scenario.values import Anything, Choice, Flag, JsonSchema, Kind, ListOf, Number, Quantity, Section, Text, Whole, shown

FABRICS = ("default", "single-switch", "fat-tree", "rail-optimised", "torus", "full-mesh")
GRAPHED = ("attention", "mamba", "mlp", "router", "experts")
"""parts of a layer that can be CUDA graphs of their own"""
TERABYTE = 10**12
_TIME = Quantity("time", 86400.0)
_AUTO_TIME = Quantity("time", 86400.0, ("auto",))


@dataclass(frozen=True)
class NodesKind(Whole):
    """A number of nodes, or a list of ``{use, count}`` (several kinds of machines)."""

    maximum: int = 10**6

    def check(self, value: Any) -> Any:
        if not isinstance(value, list):
            return super().check(value)
        from parsim.scenario.node_groups import EXAMPLE, group_problems

        if not value:
            raise ValueError(f"there are no machines in the list; {EXAMPLE}")
        if problems := group_problems(value):
            raise ValueError("; ".join(problems))
        return value

    def json_schema(self) -> JsonSchema:
        entry = {
            "type": "object",
            "properties": {
                "use": {"type": ["string", "object"], "description": "topology of the machines: a name, a path or a box"},
                "count": {"type": "integer", "minimum": 1, "description": "how many of them"},
                "gpus": {"type": "integer", "minimum": 1, "description": "use the first N GPUs of each"},
                "nics": {"type": "integer", "minimum": 0, "description": "keep N NICs of each"},
                "region": {"type": "string", "description": "where they are; left out: the first region of cluster.regions"},
                "set": {"type": "object", "description": "changes as of cluster.set, for these machines"},
            },
            "required": ["use"],
            "additionalProperties": False,
        }
        return {"anyOf": [super().json_schema(), {"type": "array", "items": entry, "minItems": 1}]}


@dataclass(frozen=True)
class GpuKind(Kind):
    """A GPU of the cluster, ``gpu9``; machines follow each other."""

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and (match := re.fullmatch(r"gpu([0-9]{1,7})", value)):
            return int(match[1])
        hint = f"; write gpu{value}" if type(value) is int and value >= 0 else ""
        raise ValueError(f'{shown(value)} is not a GPU such as "gpu9"{hint}')

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": "^gpu[0-9]{1,7}$", "examples": ["gpu0", "gpu9"]}


class FabricSection(Section):
    """The network between nodes; ``fabric: default`` leaves it to the topology."""

    kind: Annotated[str, Choice(FABRICS, {"rail-optimized": "write rail-optimised"})] = "default"
    """how nodes are connected"""
    oversubscription: Annotated[Any, Number(1.0, 1000.0, words=("default",))] = "default"
    """downlink over uplink bandwidth of the leaves"""
    routing: Annotated[str, Choice(("default", "spray", "ecmp"))] = "default"
    """how flows share equal paths"""
    queue_pairs: Annotated[Any, Whole(1, 128, ("default",))] = "default"
    """ecmp: connections of two NICs, each hashed by itself (NCCL_IB_QPS_PER_CONNECTION, 1 by default)"""
    link: Annotated[str, Text("ib-ndr")] = "default"
    """kind of link between machines"""
    leaf_ports: Annotated[Any, Whole(1, 100_000, ("default",))] = "default"
    """ports of a leaf switch that face machines"""
    dims: Annotated[Any, ListOf(Whole(1, 10**6), ("default",), filled=True)] = "default"
    """torus: machines along each dimension"""


class CollectivesSection(Section):
    """How collective operations are run."""

    profile: Annotated[str, Choice(("measured", "nccl", "ring"))] = "measured"
    """measured: NCCL's tuning model corrected by measurements per fabric; nccl: the library's own prediction; ring: latency and
    bandwidth of rings and trees on the effective capacities of the graph"""
    algorithm: Annotated[str, Choice(("auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"))] = "auto"
    """algorithm of the collectives that know it (NCCL_ALGO); auto: the fastest by NCCL's prediction"""
    protocol: Annotated[str, Choice(("auto", "simple", "ll", "ll128"))] = "auto"
    """protocol (NCCL_PROTO); auto: the fastest by NCCL's prediction"""


class BackgroundSection(Section):
    """Traffic of another job: a stream of at most `rate` for the whole step or a share of its time, or transfers of `bytes`."""

    source: Annotated[int, GpuKind()] = Field(alias="from")
    """GPU that sends"""
    target: Annotated[int, GpuKind()] = Field(alias="to")
    """GPU that receives"""
    rate: Annotated[Any, Quantity("rate", optional=True)] = None
    """stream, at most this fast: for the whole step, or with `every` and `duty` in turns"""
    bytes: Annotated[Any, Quantity("bytes", 10**6 * TERABYTE, optional=True)] = None
    """size of a transfer"""
    at: Annotated[Any, Quantity("time", 86400.0, optional=True)] = None
    """when the first transfer or turn begins, from the begin of the step on; default 0 s"""
    every: Annotated[Any, Quantity("time", 86400.0, optional=True)] = None
    """time from the begin of one transfer to that of the next, longer if a transfer takes longer; left out: only one. Of a stream: from
    one turn to the next"""
    duty: Annotated[Any, Number(0.0, 1.0, open=True, above=True, optional=True)] = None
    """share of every period `every` in which a stream flows, from its begin on"""

    @model_validator(mode="after")
    def _one_kind(self) -> BackgroundSection:
        if self.source == self.target:
            raise ValueError(f"gpu{self.source} sends to itself; name two GPUs")
        if (self.rate is None) == (self.bytes is None):
            raise ValueError("either rate (a stream) or bytes (transfers); for example {from: gpu0, to: gpu9, rate: 10 GB/s}")
        if self.duty is not None and not (self.rate is not None and self.every is not None):
            raise ValueError("duty goes with rate and every; for example {..., rate: 10 GB/s, every: 50 ms, duty: 0.3}")
        if self.rate is not None and self.duty is None and (self.at is not None or self.every is not None):
            raise ValueError("a stream of a rate lasts for the whole step; at and every go with bytes, or with rate and duty")
        if self.rate == 0 or self.bytes == 0:
            raise ValueError("it sends nothing; leave it out")
        if self.every is not None and self.every < SHORTEST_PERIOD:
            raise ValueError("every is less than 1 us; write a rate for traffic without gaps")
        return self


class RegionSection(Section):
    """The link between two regions, the same each way."""

    between: Annotated[tuple[str, ...], ListOf(Text("a"), filled=True)]
    """names of the two regions"""
    bandwidth: Annotated[float, Quantity("rate")]
    """of the link, one way"""
    latency: Annotated[float, Quantity("time", 10.0)] = Field(default="0 s")  # type: ignore[assignment]
    """of the link, one way"""

    @model_validator(mode="after")
    def _two(self) -> RegionSection:
        if len(self.between) != 2 or self.between[0] == self.between[1]:
            raise ValueError(f"between names {shown(list(self.between))}, not two regions; for example between: [a, b]")
        if self.bandwidth <= 0:
            raise ValueError("the link carries nothing; for example bandwidth: 1 Gb/s")
        return self


class ClusterSection(Section):
    """The machine; a name or "4x v100-32gb" alone stands for ``{topology: ...}``."""

    topology: Annotated[
        Any, Anything((str, dict, type(None)), 'a topology name, a path, a box such as {gpu: rtx-3090, count: 6}, or "4x v100-32gb"')
    ] = None
    """name, alias or path of a topology, a box {gpu, count, interconnect, p2p}, or "4x v100-32gb" """
    nodes: Annotated[Any, NodesKind()] = 1
    """how often the node template is repeated; or machines of several kinds, [{use: hgx-h100, count: 4}, {use: hgx-h200, count: 2}],
    and then no topology"""
    regions: tuple[RegionSection, ...] = ()
    """links between regions of such a list: [{between: [a, b], bandwidth: 1 Gb/s, latency: 30 ms}]"""
    gpus: Annotated[Any, Whole(1, 10**7, ("all",))] = "all"
    """use the first N GPUs"""
    gpus_per_node: Annotated[Any, Whole(1, 10**7, ("all",))] = "all"
    """use the first N GPUs of every node: 64 of the 72 of a rack, for groups of 64"""
    placement: Annotated[Any, ListOf(Whole(0, 10**7), ("packed", "scattered"), filled=True)] = "packed"
    """packed | scattered | [GPU of each rank]"""
    fabric: FabricSection = FabricSection()
    """the network between nodes"""
    set: Annotated[dict[str, Any], Anything((dict,), "a mapping of changes to the device and topology files")] = Field(default={})
    """changes to the device and topology files, same keys; x2 multiplies"""
    collectives: CollectivesSection = CollectivesSection()
    """collective operations"""
    interference: Annotated[str, Choice(("off", "simple", "full"))] = "simple"
    """how compute and communication slow each other down"""
    storage: StorageSection = StorageSection()
    """where checkpoints go; default = the topology's"""
    memory_reserve: Annotated[int, Quantity("bytes", TERABYTE)] = Field(default="0 B")  # type: ignore[assignment]
    """memory of every device that must stay free"""
    background: tuple[BackgroundSection, ...] = ()
    """traffic of other jobs: [{from: gpu0, to: gpu9, rate: 10 GB/s}], {..., rate: 10 GB/s, every: 50 ms, duty: 0.3} or
    {..., bytes: 1 GiB, at: 0 s, every: 50 ms}"""


@dataclass(frozen=True)
class GraphsKind(Kind):
    """true, false, or the parts of a layer that are graphs."""

    def check(self, value: Any) -> Any:
        return value if isinstance(value, bool) else ListOf(Choice(GRAPHED), filled=True).check(value)

    def json_schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "boolean"}, ListOf(Choice(GRAPHED)).json_schema()]}


class HostSection(Section):
    """The CPU that launches the kernels: a floor under the time of a layer."""

    per_layer_forward: Annotated[Any, _AUTO_TIME] = "auto"
    """time to launch one layer's forward; auto = the profile's"""
    per_layer_backward: Annotated[Any, _AUTO_TIME] = "auto"
    """time to launch one layer's backward; auto = the profile's"""
    per_collective: Annotated[Any, _AUTO_TIME] = "auto"
    """time to launch one collective between a layer's operators; auto = the profile's"""
    per_kernel_forward: Annotated[Any, _AUTO_TIME] = "auto"
    """time to launch one kernel in forward, added to the layer's; auto = the profile's"""
    per_kernel_backward: Annotated[Any, _AUTO_TIME] = "auto"
    """time to launch one kernel in backward, added to the layer's; auto = the profile's"""
    launches_per_product: Annotated[Any, Number(1.0, 100.0, words=("auto",))] = "auto"
    """kernels in whose time one matrix product is launched; auto = the profile's (Transformer Engine: 2.7)"""
    per_list_entry: Annotated[Any, _AUTO_TIME] = "auto"
    """time per rank to list the views of one weight for a collective (ZeRO-3 of DeepSpeed of 2021); auto = the profile's"""
    graphs: Annotated[Any, GraphsKind()] = False
    """CUDA graphs: true = the host launches a whole pass at once and is never late; or parts of every layer that are launched at once:
    [attention, mamba, mlp, router, experts]"""
    blocking: Annotated[bool, Flag()] = False
    """CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel, so that launching comes on top of the kernels and nothing overlaps"""


class RuntimeMemorySection(Section):
    """Device memory outside tensors."""

    context: Annotated[Any, Quantity("bytes", TERABYTE, ("auto",))] = "auto"
    """CUDA context and kernels; auto = the software profile's"""
    communicators: Annotated[Any, Quantity("bytes", TERABYTE, ("auto",))] = "auto"
    """NCCL buffers; auto = by the number of communicators"""
    workspace: Annotated[Any, Quantity("bytes", TERABYTE, ("auto",))] = "auto"
    """cuBLAS workspace of a handle; auto = the library's, by device"""
    overhead: Annotated[int, Quantity("bytes", TERABYTE)] = Field(default="0 B")  # type: ignore[assignment]
    """any other memory on every device"""
    allocator: Annotated[str, Choice(("segments", "expandable", "exact", "auto"))] = "auto"
    """caching allocator: segments | expandable segments | exact sizes; auto = what the stack's launcher sets, by the software profile"""


class SoftwareSection(Section):
    """The training stack; `profile` sets every key below that is auto."""

    profile: Annotated[str, Text("pytorch-2")] = "auto"
    """pytorch-2 | deepspeed | megatron-core | nemo | ... (parsim list software), or a file; auto = by the parallel strategy"""
    fusion: Annotated[str, Choice(("auto", "eager", "compiled", "fused"))] = "auto"
    """norm and activation kernels: eager | fused (Megatron-LM, Transformer Engine) | compiled (torch.compile); auto = the profile's"""
    gradient_accumulation_fusion: Annotated[Any, Flag(("auto",))] = "auto"
    """weight gradients are added to the accumulated gradient inside the GEMM; auto = the profile's"""
    norm: Annotated[str, Choice(("auto", "persistent", "two-pass"))] = "auto"
    """norm kernels: persistent ones keep a row on the chip, two-pass ones read it for the statistics and again; auto = two-pass in eager
    PyTorch, persistent where compiled, the profile's where fused"""
    train_metrics: Annotated[Any, Whole(0, 16, ("auto",))] = "auto"
    """metrics that the trainer computes from the logits of every micro-batch, each a cross entropy of its own; auto = the profile's"""
    host: HostSection = HostSection()
    """launch floor"""
    boundary: Annotated[float, _TIME] = Field(default="0 s")  # type: ignore[assignment]
    """time per 1e9 local parameters at the optimizer step"""
    step_constant: Annotated[float, _TIME] = Field(default="0 s")  # type: ignore[assignment]
    """time added to every step"""
    memory: RuntimeMemorySection = RuntimeMemorySection()
    """device memory outside tensors"""
    effects: Annotated[Any, EffectsKind()] = "published"
    """published | none | a mapping of effects to values: what training steps show and single kernels do not"""
