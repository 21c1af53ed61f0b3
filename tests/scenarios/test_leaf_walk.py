"""Nothing is parsed and ignored: every leaf of the scenario's JSON Schema, where it matters, changes the report or is refused.

`LEAVES` says for each leaf where it matters and what to write there. Each value must give a report that differs from the default's
and from those of the other values; words that mean the same must give the same. Leaves and the words of enumerations are found in
the schema, so a new key or a new word without an entry fails.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import InputError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.json_schema import schema
from parsim.scenario.shortforms import ASSUMPTIONS, SHORT
from parsim.study.automatic import decided

MODEL = {"family": "gpt2", "hidden": 256, "layers": 4, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512}
MIXTURE = {
    "family": "mixtral", "hidden": 256, "mlp": 512, "layers": 4, "heads": 4, "kv_heads": 2, "vocabulary": 1024,
    "experts": {"count": 4, "top_k": 2},
}  # fmt: skip
BASE: dict[str, Any] = {
    "name": "leaf walk",
    "model": MODEL,
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    "training": {"sequence_length": 256, "micro_batch": 2, "gradient_accumulation": 2},
}
LABELS = ("scenario", "provenance", "assumptions", "warnings")
"""parts of the report that repeat what was written"""


def under(path: str, value: Any) -> dict[str, Any]:
    """``under("a.b", 1) == {"a": {"b": 1}}``."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def laid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping; ``...`` takes a key away."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        if value is ...:
            result.pop(key, None)
            continue
        below = result.get(key)
        result[key] = laid(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else copy.deepcopy(value)
    return result


@dataclass(frozen=True)
class Leaf:
    """Where a leaf matters, and what to write."""

    values: tuple[Any, ...]
    """each gives a report of its own, or is refused"""
    where: Mapping[str, Any]
    same: Mapping[Any, Any]
    """word -> the word (None: the default) that gives the same report here"""


def leaf(*values: Any, same: Mapping[Any, Any] | None = None, **where: Any) -> Leaf:
    """A leaf with `values`, in the base scenario changed by dotted keys (``parallel__data__strategy="zero1"``)."""
    changes: dict[str, Any] = {}
    for path, value in where.items():
        changes = laid(changes, under(path.replace("__", "."), value))
    return Leaf(values, changes, {} if same is None else same)


WITH_IMAGES = str(Path(__file__).parents[1] / "data" / "llava.json")
COUNTED = str(Path(__file__).parents[1] / "data" / "expert_load.csv")
BOX = {"gpu": "a100-sxm-80gb", "count": 2, "nic": "ib-hdr"}
AUTO = {"auto": None}
THIN = {"link": "gpu0-nvswitch", "at": "0 s", "bandwidth": "x0.5"}
CRASH = {"rank": 0, "at": "1 ms", "kind": "crash"}
LOST = {"variability__faults": [{"nic": "node0/nic0", "at": "0 s", "down": True}], "cluster__nodes": 2, "cluster__gpus": "all"}
BACK = {**LOST, "variability__faults": [{"nic": "node0/nic0", "at": "0 s", "until": "500 ms", "down": True}]}
LORA = {"method": "lora"}
FREEZE = {"method": "freeze"}
PROMPT = {"method": "prompt"}
PRESETS = ("fp32", "tf32", "amp-bf16", "bf16-fp32grad", "pure-bf16", "fp8")
FP16 = ("fp16", "amp-fp16", "fp16-fp32grad")
AS_PRECISE = {"auto": None, "bf16": None}
"""fp16 is as fast on an A100, but its step divides gradients by the loss scale"""
HALF: dict[Any, Any] = {"bf16": None, "fp16": None, 2: None, "tf32": "fp32", 4: "fp32"}
"""types of a state that has two bytes by default"""
WHOLE: dict[Any, Any] = {"fp32": None, "tf32": None, 4: None, "fp16": "bf16", 2: "bf16"}
"""types of a state that has four"""
PLACES = ("cpu", "nvme")
BOXES = {"topology": {**BOX, "nics": 1}, "nodes": 8, "gpus": "all"}
FOUR_NODES = {"nodes": 4, "gpus": "all"}
STREAM = [{"from": "gpu0", "to": "gpu1", "rate": "200 GB/s"}]
TRANSFERS = [{"from": "gpu0", "to": "gpu1", "bytes": "20 MB", "every": "1 ms"}]
TURNS = [{"from": "gpu0", "to": "gpu1", "rate": "200 GB/s", "every": "1 ms", "duty": 0.5}]
PCIE = {"topology": "8x-rtx-4090-pcie"}
MIXED = {
    "topology": ..., "gpus": "all", "regions": [{"between": ["a", "b"], "bandwidth": "10 GB/s"}],
    "nodes": [{"use": "hgx-h100", "count": 1, "gpus": 2}, {"use": "dgx-a100-80gb", "count": 1, "gpus": 2, "region": "b"}],
}  # fmt: skip
GROUPS = {"parallel__data__outer": {"size": 2, "local_steps": 4, "fragments": 2}}

FAILING = {"mtbf_per_gpu": "50000 h", "checkpoint": {"stall": "60 s"}}
RARE = {"mtbf_per_gpu": "50000 h"}
WEEKS = {"failures": [{"cause": "any", "per_gpu": "10 h"}], "checkpoint": {"stall": "60 s"}, "horizon": "2 d"}
ELASTIC = laid(WEEKS, {"recovery": {"policy": "elastic"}})
IN_MEMORY = {"mode": "memory", "lag": "10 min"}

LEAVES: dict[str, Leaf] = {
    "model": leaf("bert-base", {**MODEL, "layers": 6}),
    "training.sequence_length": leaf(128),
    "training.mean_sequence_length": leaf(128, 512, same={**AUTO, 256: None}),
    "training.document_length": leaf(128, 512, same={**AUTO, 256: None}),
    "training.global_batch": leaf(8, 32, training={"gradient_accumulation": "auto", "global_batch": 16}),
    "training.micro_batch": leaf(4),
    "training.gradient_accumulation": leaf(1, 4, "auto"),
    "training.partial_micro_batch": leaf(True, training={"global_batch": "25600 tokens", "gradient_accumulation": "auto"}),
    "training.tokens": leaf("1G"),
    "training.examples": leaf(1000, 2000),
    "training.epochs": leaf(0.5, 3, same={1: None}, training__examples=1000),
    "training.target_sequence_length": leaf(32, 64, same=AUTO, model="t5-base"),
    "training.images": leaf(2, same={**AUTO, 1: None}, model=WITH_IMAGES, training__sequence_length=1024),
    "training.image_size": leaf(112, same=AUTO, model=WITH_IMAGES, training__sequence_length=1024),
    "training.objective": leaf(
        "dpo", "orpo", "kto", "reward", "grpo", "grpo-without-reference", "grpo-on-policy",
        same={**AUTO, "language-modelling": None, "grpo-on-policy-without-reference": None}, cluster__topology="dgx-a100-80gb",
    ),
    "training.iteration": leaf("first", same={"steady": None}),
    "training.backward": leaf(False),
    "training.step": leaf(False),
    "training.precision": leaf(*PRESETS, *FP16, "mxfp8", "nvfp4", "deepseek-v3", "int8", same=AS_PRECISE),
    "training.precision.preset": leaf(*PRESETS, *FP16, "mxfp8", "nvfp4", "deepseek-v3", "int8", same=AS_PRECISE),
    "training.precision.parameters": leaf("fp32", "fp8", "none", 0, 1, same=HALF),
    "training.precision.gradients": leaf("fp32", "fp8", "none", 0, 1, same=HALF),
    "training.precision.master": leaf("none", "bf16", "fp8", 1, same={**WHOLE, 0: "none"}),
    "training.precision.optimizer": leaf("bf16", "fp8", "none", 0, same={**WHOLE, 1: "fp8"}),
    "training.precision.activations": leaf("fp32", "fp8", "none", 0, 1, same=HALF),
    "training.precision.matmul": leaf("fp32", "tf32", "fp8", "fp16", same={"bf16": None}),
    "training.precision.gather": leaf(
        "fp8", same={"auto": None, "bf16": None}, training__precision={"preset": "fp8", "recipe": "tensorwise"},
        parallel__data__strategy="fsdp", cluster__topology="hgx-h100",
    ),
    "training.precision.keep": leaf(
        ["embedding", "router", "norm", "attention"], ["embedding", "head", "router", "norm"], ["head", "attention"],
        training__precision__preset="fp8", training__attention="cudnn", cluster__topology="hgx-h100",
    ),
    "training.precision.keep_layers": leaf(
        1, [0, 2], same={0: None}, training__precision={"preset": "fp8", "recipe": "current"}, cluster__topology="hgx-h100",
        software__host__graphs=True,
    ),
    "training.precision.recipe": leaf(
        "delayed", "current", "blockwise", "mxfp8", "nvfp4", "rowwise", "deepseek-v3", "int8", same={"auto": None, "tensorwise": None},
        training__precision__preset="fp8", cluster__topology="hgx-b200",
    ),
    "training.precision.reduce": leaf("fp32", "fp8", "none", 0, same={**HALF, 1: "fp8"}),
    "training.optimizer.name": leaf(
        "sgd", "momentum", "adam-8bit", "adam-4bit", "adafactor", "lamb", "muon", "soap", "shampoo",
        same={"adam": None, "adamw": None, "lion": "momentum", "adam-mini": "momentum"},
    ),
    "training.optimizer.implementation": leaf("fused", "loop", same={"auto": None, "foreach": None}),
    "training.optimizer.clip_gradients": leaf(False),
    "training.optimizer.newton_schulz_steps": leaf(4, 6, training__optimizer__name="muon"),
    "training.optimizer.tensor_mode": leaf(
        "duplicated", "distributed", same={"blockwise": None}, training__optimizer__name="muon", parallel__tensor__size=2
    ),
    "training.optimizer.split_query_key_value": leaf(False, training__optimizer__name="muon"),
    "training.optimizer.split_gate_up": leaf(True, model=MIXTURE, training__optimizer__name="muon"),
    "training.optimizer.padded_parts": leaf(True, training__optimizer__name="muon", parallel__data__strategy="zero1"),
    "training.optimizer.precondition_frequency": leaf(5, 100, same={"auto": None, 10: None}, training__optimizer__name="soap"),
    "training.optimizer.max_preconditioner_dim": leaf(64, 256, same={"auto": None, 10_000: None}, training__optimizer__name="soap"),
    "training.loss.kind": leaf("sum", "mse", same={"auto": None, "cross_entropy": None}),
    "training.loss.kernel": leaf(
        "fused", "vocab-parallel", "vocab-parallel-fused", "te", "eager-chunks", "compiled", same={"auto": None, "eager": None}
    ),
    "training.loss.hold_logits": leaf(False, same={"auto": None, True: None}),
    "training.loss.chunks": leaf(2, 4),
    "training.dropout": leaf(0.0, same={"auto": None, 0.2: None}),
    "training.attention": leaf(
        "eager", "mem-efficient", "triton-fa1", "flash2", "flash3", same={"auto": None, "cudnn": None}, cluster__topology="hgx-h100"
    ),
    "training.recompute": leaf("full", "selective", same={"none": None, "gradient_checkpointing": "full"}, training__attention="eager"),
    "training.recompute.every": leaf(1, 2),
    "training.recompute.one_in": leaf(1, 2),
    "training.recompute.blocks": leaf(1, 2),
    "training.recompute.selective": leaf(["attention"], ["mlp"], ["norm"], ["matmuls"], training__attention="eager"),
    "training.offload.parameters": leaf(
        *PLACES, same={"none": None}, parallel__data__strategy="zero3", training__offload={"optimizer": "cpu", "gradients": "cpu"}
    ),
    "training.offload.gradients": leaf(*PLACES, same={"none": None}, parallel__data__strategy="zero3"),
    "training.offload.optimizer": leaf(*PLACES, same={"none": None}, parallel__data__strategy="zero3"),
    "training.offload.activations": leaf(*PLACES, same={"none": None}, training__recompute="full"),
    "training.finetune.method": leaf("qlora", "freeze", "bottleneck", "ia3", "prompt", same={"lora": None}, training__finetune=LORA),
    "training.finetune.rank": leaf(8, training__finetune=LORA),
    "training.finetune.targets": leaf(["q", "v"], ["c_attn"], same={"all-linear": None}, training__finetune=LORA),
    "training.finetune.dropout": leaf(0.1, same={0.0: None}, training__finetune=LORA),
    "training.finetune.tower": leaf(False, model="llava-1.5-7b", training={"finetune": LORA, "sequence_length": 1024}),
    "training.finetune.dora": leaf(True, training__finetune=LORA),
    "training.finetune.adapter_dtype": leaf("model", same={"auto": None, "fp32": None}, training__finetune=LORA),
    "training.finetune.virtual_tokens": leaf(8, training__finetune=PROMPT),
    "training.finetune.prompt_encoder": leaf("mlp", "lstm", same={"none": None}, training__finetune=PROMPT),
    "training.finetune.encoder_hidden": leaf(64, same={"auto": None}, training__finetune={**PROMPT, "prompt_encoder": "mlp"}),
    "training.finetune.encoder_layers": leaf(3, training__finetune={**PROMPT, "prompt_encoder": "mlp"}),
    "training.finetune.experts": leaf("linear", same={"fused": None}, model="mixtral-8x7b", training__finetune=LORA),
    "training.finetune.train_embeddings": leaf(True, training__finetune=LORA),
    "training.finetune.base": leaf(
        "nf4", "nf4-dq", "int8", "fp8", "nvfp4", same={"auto": None, "bf16": None}, training={"finetune": LORA, "precision": "amp-bf16"}
    ),
    "training.finetune.quantise_head": leaf(True, training__finetune={"method": "qlora"}),
    "training.finetune.quantised_from": leaf(
        "fp16", "fp32", same=AS_PRECISE, training={"finetune": {"method": "qlora"}, "precision": "amp-bf16"}
    ),
    "training.finetune.keeps_inputs": leaf(True, training__finetune={"method": "qlora"}),
    "training.finetune.freeze": leaf(["embedding"], ["attention", "norms"], same={"backbone": None}, training__finetune=FREEZE),
    "training.finetune.freeze.layers": leaf(0, 1, 2, training__finetune={"method": "freeze", "freeze": {"layers": 3}}),
    "training.finetune.freeze.spread": leaf(1, 4, training__finetune={"method": "freeze", "freeze": {"spread": 2}}),
    "training.finetune.base_sharded": leaf(
        False, same={"auto": None, True: None}, training__finetune=LORA, parallel__data__strategy="fsdp"
    ),
    "training.finetune.flat_gradients": leaf(True, training__finetune=LORA, parallel__data__strategy="fsdp"),
    "training.data_loading": leaf("1 s"),
    "parallel.order": leaf(
        ["data", "tensor", "context", "pipeline"],
        ["pipeline", "tensor", "context", "data"],
        cluster=FOUR_NODES, parallel__tensor__size=2, parallel__pipeline__size=2,
    ),
    "parallel.tensor.size": leaf(2, 4),
    "parallel.tensor.sequence_parallel": leaf(True, parallel__tensor__size=2),
    "parallel.tensor.overlap": leaf(
        "none", "full", "async", same={"backward": None, "auto": None},
        parallel__tensor={"size": 2, "sequence_parallel": True}, software__profile="megatron-core",
    ),
    "parallel.tensor.overlap_splits": leaf(2, parallel__tensor={"size": 2, "sequence_parallel": True, "overlap": "full"}),
    "parallel.tensor.overlap_sms": leaf(64, parallel__tensor={"size": 2, "sequence_parallel": True, "overlap": "full"}),
    "parallel.fully_connected": leaf(2, same={1: None}),
    "parallel.pipeline.size": leaf(2, 4),
    "parallel.pipeline.schedule": leaf(
        "gpipe", "looped-bfs", "naive", "pipedream", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipev", "dualpipe",
        "chimera", "pipedream-2bw",
        parallel__pipeline__size=4, training__gradient_accumulation=8,
    ),
    "parallel.pipeline.virtual_stages": leaf(2, parallel__pipeline={"size": 2, "schedule": "interleaved"}),
    "parallel.pipeline.split": leaf("balanced", [1, 3], same={"even": None}, parallel__pipeline__size=2, model__vocabulary=16384),
    "parallel.pipeline.account_for": leaf(["embedding", "loss"], parallel__pipeline__size=4, model__layers=10),
    "parallel.pipeline.post_validation": leaf(
        True, parallel__pipeline={"size": 2, "schedule": "zb-h2"}, training__gradient_accumulation=4, model__tied_embeddings=False
    ),
    "parallel.pipeline.overlap_sends": leaf(False, parallel__pipeline__size=2),
    "parallel.pipeline.scatter_sends": leaf(
        False, parallel__pipeline__size=2, parallel__tensor__size=8, cluster={"nodes": 2, "gpus": "all"}, model__heads=8
    ),
    "parallel.context.size": leaf(2),
    "parallel.context.method": leaf("all-gather", "ulysses", same={"ring": None}, parallel__context__size=2),
    "parallel.expert.size": leaf(2, 4, model=MIXTURE),
    "parallel.expert.tensor": leaf(2, 4, same={"auto": None, 1: None}, model=MIXTURE),
    "parallel.expert.imbalance.zipf": leaf(0.5, 1.0, model=MIXTURE, parallel__expert__size=2),
    "parallel.expert.imbalance.histogram": leaf(COUNTED, model=MIXTURE, parallel__expert__size=2),
    "parallel.expert.routing": leaf(
        "round-robin", same={"router": None}, model=MIXTURE, parallel__expert={"size": 2, "dispatcher": "deepep"}
    ),
    "parallel.expert.capacity_factor": leaf(0.5, same={2.0: None}, model=MIXTURE, parallel__expert__size=2),
    "parallel.expert.shared_overlap": leaf(
        True, model=MIXTURE | {"experts": {"count": 4, "top_k": 2, "shared": 512}}, parallel__expert__size=2
    ),
    "parallel.expert.grouped_gemm": leaf(
        "single", False, model=MIXTURE, parallel__expert__size=2,
        software={"profile": "megatron-core", "host": {"per_kernel_forward": "1 ms"}},
    ),
    "parallel.expert.batch_overlap": leaf(True, model=MIXTURE, parallel__expert__size=2, training__gradient_accumulation=4),
    "parallel.expert.fused_mlp": leaf(
        True, model=MIXTURE, parallel__expert__size=2, cluster__topology="hgx-b200", software__profile="megatron-core",
        training__precision={"preset": "fp8", "recipe": "mxfp8"},
    ),
    "parallel.expert.permute_fusion": leaf(
        False, same={"auto": None, True: None}, model=MIXTURE, parallel__expert__size=2, software__profile="megatron-core"
    ),
    "parallel.expert.paged_stash": leaf(
        True, model=MIXTURE, parallel__expert={"size": 2, "dispatcher": "hybridep", "fused_mlp": True}, cluster__topology="hgx-b200",
        software__profile="megatron-core", training__precision={"preset": "fp8", "recipe": "mxfp8"},
    ),
    "parallel.expert.pad_to_capacity": leaf(True, model=MIXTURE, parallel__expert={"size": 2, "capacity_factor": 2.0}),
    "parallel.expert.dispatcher": leaf(
        "allgather", "deepep", "hybridep", same={"auto": None, "alltoall": None}, model=MIXTURE, parallel__expert__size=2
    ),
    "parallel.expert.dispatch_dtype": leaf("fp8", same={"bf16": None}, model=MIXTURE, parallel__expert__size=2),
    "parallel.expert.combine_dtype": leaf("fp8", same={"bf16": None}, model=MIXTURE, parallel__expert__size=2),
    "parallel.expert.sms": leaf(
        8, 40, same={"auto": None, 20: None}, model=MIXTURE, parallel__expert={"size": 2, "dispatcher": "deepep"}
    ),
    "parallel.data.size": leaf(2, same={"auto": None, 4: None}),
    "parallel.data.strategy": leaf(
        "none", "torch-data-parallel", "parameter-server", "zero1", "zero2", "zero3", "fsdp", same={"ddp": None, "hsdp": "fsdp"}
    ),
    "parallel.data.shard_size": leaf(1, 2, 3, same={"auto": None, 4: None}, parallel__data__strategy="hsdp"),
    "parallel.data.bucket": leaf("1 MiB", "100000 elements", same=AUTO),
    "parallel.data.first_bucket": leaf("4 MiB", same=AUTO),
    "parallel.data.bucket_view": leaf(True),
    "parallel.data.overlap_reduce": leaf(False),
    "parallel.data.overlap_gather": leaf(True, same={"auto": None}, parallel__data__strategy="zero1"),
    "parallel.data.accumulate": leaf("no_sync", same={"auto": None, "every": None}),
    "parallel.data.unit": leaf("block", "model", same={"layer": None}, parallel__data__strategy="fsdp"),
    "parallel.data.prefetch": leaf(0, 2, parallel__data__strategy="fsdp", cluster=PCIE),
    "parallel.data.limit_gathers": leaf(1, 3, parallel__data__strategy="fsdp", training__backward=False, training__micro_batch=32),
    "parallel.data.reshard_after_forward": leaf(False, parallel__data__strategy="fsdp"),
    "parallel.data.optimizer_instances": leaf(
        2, 3, 4, parallel__data__strategy="zero1", software__profile="megatron-core", cluster__gpus=4
    ),
    "parallel.data.batch_split": leaf(
        "balanced", [2, 10, 10, 10], same={"even": None},
        training={"gradient_accumulation": "auto", "global_batch": 32}, variability__slow=[{"rank": 0, "speed": 0.4}],
    ),
    "parallel.data.outer.size": leaf(4, 1, **GROUPS),
    "parallel.data.outer.local_steps": leaf(2, 8, **GROUPS),
    "parallel.data.outer.fragments": leaf(1, 4, **GROUPS),
    "parallel.data.outer.overlap_steps": leaf(1, **GROUPS),
    "parallel.data.outer.dtype": leaf("bf16", "int8", same={"fp32": None}, **GROUPS),
    "parallel.data.quantised_weights": leaf(True, parallel__data__strategy="zero3"),
    "parallel.data.quantised_gradients": leaf(True, parallel__data__strategy="zero3"),
    "parallel.data.secondary_partition": leaf(2, 3, 4, parallel__data__strategy="zero3"),
    "parallel.data.fsdp_version": leaf(1, same={"auto": None, 2: None}, parallel__data__strategy="fsdp"),
    "parallel.data.queues": leaf("separate", same={"shared": None}, parallel__data__strategy="fsdp", cluster=PCIE),
    "cluster.topology": leaf("hgx-h100", "8x-rtx-4090-pcie", "4x v100-32gb", BOX, training__precision="fp16", cluster__gpus=2),
    "cluster.nodes.use": leaf("hgx-h200", "dgx-a100-80gb", cluster=MIXED),
    "cluster.nodes.count": leaf(2, cluster=MIXED),
    "cluster.nodes.gpus": leaf(1, 3, "all", cluster=MIXED),
    "cluster.nodes.nics": leaf(1, 2, cluster=MIXED),
    "cluster.nodes.region": leaf("b", cluster=MIXED),
    "cluster.nodes.set": leaf({"device": {"memory": "40 GiB"}}, cluster=MIXED),
    "cluster.regions.between": leaf(["b", "c"], cluster=MIXED),
    "cluster.regions.bandwidth": leaf("1 GB/s", "20 GB/s", cluster=MIXED),
    "cluster.regions.latency": leaf("10 ms", cluster=MIXED),
    "cluster.gpus": leaf(2, "all"),
    "cluster.gpus_per_node": leaf(2, same={"all": None}),
    "cluster.placement": leaf(
        "scattered", [0, 8, 9, 1], same={"packed": None, "[0, 1, 2, 3]": None}, cluster={"nodes": 2, "gpus": 4}, parallel__tensor__size=2
    ),
    "cluster.fabric.kind": leaf(
        "single-switch", "fat-tree", "torus", "full-mesh", same={"default": None, "rail-optimised": None}, cluster=FOUR_NODES
    ),
    "cluster.fabric.oversubscription": leaf(
        4, same={"default": None, 1: None}, cluster={**FOUR_NODES, "fabric": {"kind": "fat-tree", "leaf_ports": 8}}
    ),
    "cluster.fabric.routing": leaf(
        "ecmp", same={"default": None, "spray": None}, cluster={**FOUR_NODES, "fabric": {"kind": "fat-tree", "leaf_ports": 8}}
    ),
    "cluster.fabric.queue_pairs": leaf(
        4, same={"default": None, 1: None}, cluster={**FOUR_NODES, "fabric": {"kind": "fat-tree", "leaf_ports": 8, "routing": "ecmp"}}
    ),
    "cluster.fabric.link": leaf("ib-ndr", cluster=FOUR_NODES),
    "cluster.fabric.leaf_ports": leaf(
        8, same={"default": None}, cluster={**FOUR_NODES, "fabric": {"kind": "fat-tree", "oversubscription": 4}}
    ),
    "cluster.fabric.dims": leaf([8], "default", cluster={**BOXES, "fabric": {"kind": "torus", "dims": [2, 4]}}),
    "cluster.set": leaf(
        {"device": {"memory": {"bandwidth": "x0.5"}}}, {"links": {"nvlink3": {"per_direction": "x0.5"}}}, {"node": {"p2p": False}}
    ),
    "cluster.collectives.profile": leaf("nccl", "ring", same={"measured": None}),
    "cluster.collectives.algorithm": leaf(
        "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat",
        same={"auto": None, "ring": None}, parallel__data__strategy="zero1",
    ),
    "cluster.collectives.protocol": leaf("simple", "ll", "ll128", same=AUTO),
    "cluster.interference": leaf("off", "full", same={"simple": None}),
    "cluster.storage.bandwidth": leaf("1 GB/s", "2 GB/s", same={"default": None}, economics=RARE),
    "cluster.storage.per_node": leaf("1 GB/s", same={"default": None}, cluster__storage={"bandwidth": "2 GB/s"}, economics=RARE),
    "cluster.storage.latency": leaf("1 s", same={"default": None, "0 s": None}, cluster__storage={"bandwidth": "2 GB/s"}, economics=RARE),
    "cluster.memory_reserve": leaf("1 GiB"),
    "cluster.background.from": leaf("gpu8", cluster={"nodes": 2, "gpus": "all", "background": STREAM}),
    "cluster.background.to": leaf("gpu8", cluster={"nodes": 2, "gpus": "all", "background": STREAM}),
    "cluster.background.rate": leaf("50 GB/s", "150 GB/s", cluster__background=STREAM),
    "cluster.background.bytes": leaf("10 MB", "1 GiB", cluster__background=TRANSFERS),
    "cluster.background.at": leaf("1 ms", "2 ms", same={"0 s": None}, cluster__background=TRANSFERS),
    "cluster.background.duty": leaf(0.25, 0.75, cluster__background=TURNS),
    "cluster.background.every": leaf("2 ms", "10 s", cluster__background=TRANSFERS),
    "software.profile": leaf("megatron-core", "deepspeed", same={"auto": None, "pytorch-2": None}),
    "software.effects": leaf("none", {"clock-ampere": 0.8}, same={"published": None}),
    "software.effects.clock-volta": leaf(0.8, cluster__topology="dgx-1-v100", training__precision="fp16"),
    "software.effects.clock-ampere": leaf(0.8, 1.0),
    "software.effects.clock-hopper": leaf(0.8, 1.0, cluster__topology="hgx-h100"),
    "software.effects.clock-blackwell": leaf(0.8, 1.0, cluster__topology="hgx-b200"),
    "software.effects.clock-cdna": leaf(0.8, 1.0, cluster__topology="mi300x-8"),
    "software.effects.memory-traffic": leaf(0.8),
    "software.effects.launch-2021": leaf(2.0, software__profile="megatron-2021"),
    "software.effects.launch-transformer-engine": leaf(4.0, software__profile="megatron-core"),
    "software.effects.boundary-deepspeed": leaf(1.0, software__profile="deepspeed-2021", parallel__data__strategy="zero1"),
    "software.fusion": leaf("fused", "compiled", same={"auto": None, "eager": None}),
    "software.gradient_accumulation_fusion": leaf(True, same={"auto": None}),
    "software.norm": leaf("persistent", same={"auto": None, "two-pass": None}),
    "software.train_metrics": leaf(1, 2, same={"auto": None, 0: None}),
    "software.host.per_layer_forward": leaf("1 ms", same=AUTO),
    "software.host.per_layer_backward": leaf("1 ms", same=AUTO),
    "software.host.per_collective": leaf("1 ms", same=AUTO, parallel__tensor__size=2),
    "software.host.per_kernel_forward": leaf("1 ms", "0 s", same=AUTO),
    "software.host.per_kernel_backward": leaf("1 ms", same=AUTO),
    "software.host.launches_per_product": leaf(20.0, same={"auto": None, 1.0: None}, software__host__per_kernel_forward="1 ms"),
    "software.host.per_list_entry": leaf("1 ms", same=AUTO, software__profile="deepspeed-2021", parallel__data__strategy="zero3"),
    "software.host.blocking": leaf(True, parallel__data__overlap_reduce=False),
    "software.host.graphs": leaf(True),
    "software.boundary": leaf("1 s"),
    "software.step_constant": leaf("10 ms"),
    "software.memory.context": leaf("1 GiB", same={"auto": None, "0.5 GiB": None}),
    "software.memory.communicators": leaf("1 GiB", same=AUTO),
    "software.memory.workspace": leaf("64 MiB", same={"auto": None, "8519680 B": None}),
    "software.memory.overhead": leaf("1 GiB"),
    "software.memory.allocator": leaf("expandable", "exact", same={"auto": None, "segments": None}),
    "variability.seed": leaf(7),
    "variability.runs": leaf(3, variability__jitter=0.1),
    "variability.hashing": leaf(
        True, variability__runs=3, cluster={**FOUR_NODES, "fabric": {"kind": "fat-tree", "leaf_ports": 8, "routing": "ecmp"}}
    ),
    "variability.slow.node": leaf(1, variability__slow=[{"node": 0, "speed": 0.5}], cluster__nodes=2, cluster__gpus=16),
    "variability.slow.rank": leaf(1, 2, variability__slow=[{"rank": 0, "speed": 0.5}]),
    "variability.slow.speed": leaf(0.25, 0.75, variability__slow=[{"rank": 0, "speed": 0.5}]),
    "variability.slow.from": leaf("1 ms", "2 ms", variability__slow=[{"rank": 0, "speed": 0.5}]),
    "variability.slow.to": leaf("1 ms", "2 ms", variability__slow=[{"rank": 0, "speed": 0.5}]),
    "variability.faults.link": leaf("gpu1-nvswitch", "gpu1->nvswitch", "gpu9-nvswitch", variability__faults=[THIN]),
    "variability.faults.nic": leaf("node0/nic0", variability__faults=[THIN]),
    "variability.faults.rank": leaf(1, 7, variability__faults=[CRASH]),
    "variability.faults.node": leaf(1, variability__faults=[CRASH]),
    "variability.faults.at": leaf("1 ms", "2 ms", variability__faults=[THIN]),
    "variability.faults.until": leaf("1 ms", "2 ms", variability__faults=[THIN]),
    "variability.faults.bandwidth": leaf("x0.25", "20 GB/s", "x0", variability__faults=[THIN]),
    "variability.faults.down": leaf(True, variability__faults=[THIN]),
    "variability.faults.fallback": leaf("neighbour", "respread", same={"none": None}, **LOST),
    "variability.faults.give_up": leaf("1 s", "2 s", same=AUTO, **LOST),
    "variability.faults.retry": leaf("auto", "1 s", "2 s", same={"0 s": None}, **BACK),
    "variability.faults.kind": leaf("hang", same={"crash": None}, variability__faults=[CRASH]),
    "variability.faults.detect": leaf("1 s", "2 s", same=AUTO, variability__faults=[CRASH]),
    "economics.currency": leaf("EUR", training__tokens="1G", economics__gpu_hour=2.0),
    "economics.gpu_hour": leaf(
        2.0, "3.5 USD", "3.5 EUR", same={"example": None, "2.0 USD": 2.0}, cluster__topology="aws:p5.48xlarge", training__tokens="1G"
    ),
    "economics.purchase.node": leaf("200_000 USD", training__tokens="1G", economics__purchase={"node": 100_000}),
    "economics.purchase.gpu": leaf(25_000, training__tokens="1G", economics__purchase={"gpu": 20_000}),
    "economics.purchase.years": leaf(3, 5, training__tokens="1G", economics__purchase={"node": 100_000}),
    "economics.purchase.utilisation": leaf(0.8, training__tokens="1G", economics__purchase={"node": 100_000}),
    "economics.purchase.upkeep": leaf(0.1, training__tokens="1G", economics__purchase={"node": 100_000}),
    "economics.power_price": leaf(0.2, "0.3 USD"),
    "economics.pue": leaf(1.5, training__tokens="1G"),
    "economics.node_power": leaf("1 kW", "3 kW", same=AUTO, training__tokens="1G"),
    "economics.gpu_power.computing": leaf(0.8, 1.0, same={"auto": None, 0.9: None}, training__tokens="1G"),
    "economics.gpu_power.communicating": leaf(0.6, same=AUTO, training__tokens="1G"),
    "economics.gpu_power.waiting": leaf(0.2, same=AUTO, training__tokens="1G"),
    "economics.carbon_intensity": leaf(0.4, training__tokens="1G"),
    "economics.mtbf_per_gpu": leaf("50000 h", economics__checkpoint__stall="60 s"),
    "economics.failures.cause": leaf("gpu", "network", economics=WEEKS),
    "economics.failures.per_gpu": leaf("20 h", economics=WEEKS),
    "economics.failures.detect": leaf("30 s", "hang", same={"0 s": None}, economics=WEEKS),
    "economics.failures.restart_time": leaf("1 h", same={**AUTO, "5 min": None}, economics=WEEKS),
    "economics.failures.repair": leaf("1 h", "0 s", same={**AUTO, "48 h": None}, economics=ELASTIC),
    "economics.failures.recovery": leaf("storage", same={**AUTO, "memory": None}, economics=laid(WEEKS, {"checkpoint": IN_MEMORY})),
    "economics.failures.silent": leaf(True, economics=laid(WEEKS, {"failures": [{"cause": "any", "per_gpu": "10 h", "detect": "1 h"}]})),
    "economics.checkpoint.mode": leaf(
        "async", "memory", same={"sync": None}, economics={"mtbf_per_gpu": "500 h", "checkpoint": {"bandwidth": "1 MB/s"}}
    ),
    "economics.checkpoint.bytes": leaf("1 TB", same=AUTO, economics={"mtbf_per_gpu": "50000 h", "checkpoint": {"bandwidth": "1 GB/s"}}),
    "economics.checkpoint.bandwidth": leaf("1 GB/s", "2 GB/s", economics__mtbf_per_gpu="50000 h"),
    "economics.checkpoint.stall": leaf("60 s", "120 s", economics__mtbf_per_gpu="50000 h"),
    "economics.checkpoint.lag": leaf(
        "1 min", "2 min", same=AUTO,
        economics={"mtbf_per_gpu": "500 h", "checkpoint": {"mode": "async", "stall": "1 s", "bandwidth": "1 MB/s", "interval": "1 h"}},
    ),
    "economics.checkpoint.interval": leaf("1 h", "2 h", same=AUTO, economics=FAILING),
    "economics.recovery.policy": leaf("elastic", "replica", "hot_spare", same={"restart": None}, economics=FAILING),
    "economics.recovery.restart_time": leaf("1 h", same={"auto": None, "5 min": None}, economics=FAILING),
    "economics.recovery.spares": leaf(1, 2, economics=laid(WEEKS, {"failures": [{"cause": "any", "per_gpu": "10 h", "repair": "9 h"}]})),
    "economics.recovery.repair": leaf("1 h", same={"48 h": None}, economics=ELASTIC),
    "economics.recovery.hang_timeout": leaf(
        "30 min", same={"10 min": None}, economics=laid(WEEKS, {"failures": [{"cause": "any", "per_gpu": "10 h", "detect": "hang"}]})
    ),
    "economics.horizon": leaf("1 d", "2 d", economics=FAILING),
    "report.flop_convention": leaf(
        "llm-foundry", "6n", "6n-non-embedding", "megatron", "megatron-lm", "exact", "exact-full", same={"palm": None}
    ),
    "report.fold": leaf(False),
    "report.ranks": leaf([0, 1], same=AUTO),
}  # fmt: skip
ELSEWHERE = {
    **dict.fromkeys(
        (
            "variability.profile",
            *(f"variability.jitter.{key}" for key in ("kernel", "collective", "host", "step", "shape")),
            *(f"variability.gpus.{key}" for key in ("spread", "node_share", "slow_nodes.share", "slow_nodes.speed")),
            *(f"variability.host.{key}" for key in ("pause", "every", "aligned")),
        ),
        "test_what_is_random_changes_disturbed_steps",
    ),
    "parallel.search": "test_a_strategy_that_is_searched_for",
    "name": "test_the_name_is_what_reports_call_it",
    "extends": "test_extends_and_overrides_bring_in_settings",
    "overrides": "test_extends_and_overrides_bring_in_settings",
    "study": "test_a_study_changes_nothing",
    "assumptions": "test_an_assumption_is_another_name_of_a_key",
}
"""leaves that other tests of this file change"""


@cache
def leaves() -> dict[str, list[Any]]:
    """Every leaf of the JSON Schema with the words it enumerates, short forms left out."""
    whole = schema()
    definitions = whole["definitions"]

    def inner(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The keys below `node`, by whatever way the schema says so."""
        if node.get("$ref", "").startswith("#") and not node["$ref"].endswith("/Partial"):  # another file's words are that file's
            yield from definitions[node["$ref"].rpartition("/")[2]]["properties"].items()
        if node.get("type") == "object":
            yield from node.get("properties", {}).items()
        for part in (*node.get("allOf", ()), *node.get("anyOf", ())):
            yield from inner(part)
        if node.get("type") == "array":
            yield from inner(node["items"])

    def words(node: Mapping[str, Any]) -> Iterator[Any]:
        yield from node.get("enum", ())
        if "const" in node:
            yield node["const"]
        for part in node.get("anyOf", ()):
            yield from words(part)

    found: dict[str, list[Any]] = {}

    def walk(node: Mapping[str, Any], path: str) -> None:
        below = list(inner(node))
        listed = [word for word in words(node) if (not isinstance(word, bool) and word != 0) or path.startswith("training.precision.")]
        if not below or listed:
            found[path] = listed
        for key, child in below:
            walk(child, f"{path}.{key}")

    for key, node in whole["properties"].items():
        walk(node, key)
    return {path: listed for path, listed in found.items() if path not in SHORT}


@cache
def _outcome(text: str) -> tuple[str, str, frozenset[str]]:
    try:
        document = simulate(json.loads(text)).document()
    except InputError as error:
        return "", str(error), frozenset()
    assumed = frozenset(item["name"] for item in document["assumptions"])
    for key in LABELS:
        del document[key]
    del document["simulation"]["wall_s"]
    return json.dumps(document), "", assumed


def outcome(tree: Mapping[str, Any]) -> tuple[str, str]:
    """(report without labels, "") of a scenario, or ("", why it is refused)."""
    return _outcome(json.dumps(tree))[:2]


def assumed(tree: Mapping[str, Any]) -> frozenset[str]:
    """Names of the assumptions that the report of a scenario prints."""
    return _outcome(json.dumps(tree))[2]


def written(path: str, value: Any, where: Mapping[str, Any]) -> dict[str, Any]:
    """The base scenario, changed to `where` the leaf matters, with the leaf set."""
    base = laid(BASE, where)
    section, _, key = path.rpartition(".")
    if section in (
        "variability.slow",
        "variability.faults",
        "cluster.background",
        "cluster.nodes",
        "cluster.regions",
        "economics.failures",
    ):
        holder, _, entries = section.partition(".")
        base[holder][entries][0][key] = value
        return base
    if section == "training.recompute":
        return laid(base, {"training": {"recompute": {key: value}}})
    if path in ("cluster.topology", "model"):  # replaced whole
        (base[section] if section else base)[key] = value
        return base
    return laid(base, under(path, value))


def place(path: str) -> str:
    """What a finding about a leaf must name: its section."""
    return path.rpartition(".")[0] or path


def test_every_leaf_has_an_entry() -> None:
    assert sorted(leaves()) == sorted([*LEAVES, *ELSEWHERE])


def test_a_strategy_that_is_searched_for() -> None:
    """What is found is in the report, and `parallel: auto` is short for a search."""
    base = laid(BASE, {"training": {"gradient_accumulation": ..., "global_batch": 16}})
    plain, short, long, none = (
        simulate(decided(load(laid(base, {} if said is None else {"parallel": said})))).document()
        for said in (None, "auto", {"search": "auto"}, {"search": "none"})
    )
    assert short["plan"] is not None
    assert {**short["plan"], "wall_s": 0} == {**long["plan"], "wall_s": 0}
    assert short["step_time_s"] == long["step_time_s"] <= plain["step_time_s"] == none["step_time_s"]
    assert plain["plan"] is none["plan"] is None


PAUSE = {"pause": "1 s", "every": 2}
SLOW = {"share": 0.9, "speed": 0.5}


@pytest.mark.parametrize(
    "said",
    [
        ("none", "typical", "bad", {"profile": "traced"}, {"profile": "slow-nodes", "gpus": {"slow_nodes": {"share": 0.9}}}),
        tuple({"jitter": jitter} for jitter in (0, 0.1, *({cause: 0.2} for cause in ("kernel", "collective", "host", "step")))),
        tuple({"jitter": {"kernel": 0.1, "shape": shape}} for shape in ("lognormal", "normal", "exponential")),
        tuple({"gpus": gpus} for gpus in ({}, {"spread": 0.02}, {"spread": 0.02, "node_share": 0.1}, {"slow_nodes": {"share": 0.9}})),
        tuple({"gpus": {"slow_nodes": slow}} for slow in (SLOW, SLOW | {"share": 0.0}, SLOW | {"speed": 0.6})),
        tuple({"host": host} for host in ({"every": 2}, PAUSE, PAUSE | {"every": 6}, PAUSE | {"pause": "2 s"}, PAUSE | {"aligned": True})),
    ],
    ids=("profile", "jitter", "shape", "gpus", "slow nodes", "host"),
)
def test_what_is_random_changes_disturbed_steps(said: tuple[Any, ...]) -> None:
    """Every value of a key gives steps of its own."""
    seen = set()
    for variability in said:
        tree = laid(BASE, {"variability": variability, "cluster": {"nodes": 2, "gpus": 16}, "parallel": {"tp": 2}})
        samples = DisturbedStep(prepare(build(load(tree)))).samples(range(5))
        seen.add(tuple(sample.step_time for sample in samples))
    assert len(seen) == len(said)


def test_every_word_of_an_enumeration_is_tried() -> None:
    known = {path: [json.dumps(value) for value in (*entry.values, *entry.same)] for path, entry in LEAVES.items()}
    known |= {path: [json.dumps(word) for word in leaves()[path]] for path, test in ELSEWHERE.items() if "disturbed" in test}
    known |= {"parallel.search": ['"none"', '"auto"']}  # test_a_strategy_that_is_searched_for
    missing = [(path, word) for path, words in leaves().items() for word in words if json.dumps(word) not in known.get(path, ())]
    assert not missing


@pytest.mark.parametrize("path", LEAVES)
def test_a_changed_leaf_changes_the_report_or_is_refused(path: str) -> None:
    entry = LEAVES[path]
    default, problem = outcome(laid(BASE, entry.where))
    assert not problem, "the scenario in which the leaf matters must run"
    seen = {default: "its default"}
    for value in entry.values:
        report, problem = outcome(written(path, value, entry.where))
        if problem:
            assert place(path) in problem, f"{path} = {value!r} is refused, but for something else"
            assert "not supported yet: " in problem or "; " in problem, "a refusal says what is not built, or what to write instead"
            continue
        assert report not in seen, f"{path} = {value!r} gives the same report as {seen[report]}: parsed and ignored"
        seen[report] = repr(value)


@pytest.mark.parametrize("path", [path for path, entry in LEAVES.items() if entry.same])
def test_words_that_mean_the_same_give_the_same_report(path: str) -> None:
    entry = LEAVES[path]
    for word, other in entry.same.items():
        meant = laid(BASE, entry.where) if other is None else written(path, other, entry.where)
        value = json.loads(word) if isinstance(word, str) and word.startswith("[") else word
        assert outcome(written(path, value, entry.where)) == outcome(meant), f"{path} = {word!r}"


@pytest.mark.parametrize(("short", "long"), SHORT.items())
def test_short_forms_say_the_same_as_long_ones(short: str, long: str) -> None:
    values = {
        "parallel.zero": (1, "zero1"),
        "training.gbs": (32, 32),
        "parallel.dp": (4, 4),
        "parallel.ep": (1, 1),
        "parallel.etp": ("auto", "auto"),
        "economics.checkpoint_bandwidth": ("2 GB/s", "2 GB/s"),
        **dict.fromkeys(("economics.checkpoint_time", "economics.checkpoint_interval", "economics.restart_time"), ("2 min", "2 min")),
    }
    value, meant = values.get(short, (2, 2))
    base = laid(BASE, {"training": {"gradient_accumulation": "auto"}} if short == "training.gbs" else {})
    section, _, key = long.rpartition(".")
    base.get(section, {}).pop(key, None)
    report, problem = outcome(laid(base, under(short, value)))
    assert (report, problem) == outcome(laid(base, under(long, meant)))
    assert not problem


ASSUMED = {
    "gpu_hour": 2,
    "power_computing": 1.0,
    "power_communicating": 0.6,
    "power_waiting": 0.2,
    "node_power": "1 kW",
    "restart_time": "1 h",
    "checkpoint_stall": "1 min",
    "host_per_kernel_forward": "1 ms",
    "host_per_kernel_backward": "1 ms",
    "host_per_list_entry": "1 ms",
    "training_effects": "none",
    "software_profile": "megatron-core",
    "precision": "fp32",
    "attention": "eager",
    "dropout": 0.0,
    "optimizer_kernels": "fused",
    "loss_kernel": "fused",
    "kernel_fusion": "fused",
    "gradient_accumulation_fusion": True,
    "train_metrics": 1,
    "norm_kernels": "two-pass",
    "fsdp_version": 1,
    "context_memory": "1 GiB",
    "communicator_memory": "1 GiB",
    "workspace_memory": "64 MiB",
    "host_memory_bandwidth": "40 GB/s",
    "drive_read_bandwidth": "1 GB/s",
    "drive_write_bandwidth": "1 GB/s",
    "finetune_base": "nf4",
    "adapter_dtype": "model",
    "fp8_keep": ["embedding", "router", "norm", "attention"],
    "fp8_recipe": "delayed",
    "gradient_reduction": "no_sync",
    "tensor_overlap": "none",
    "parameter_gather": True,
    "expert_tensor": 1,
    "vocabulary_padding": 300,
    "expert_load": 1.5,
    "expert_dispatcher": "deepep",
    "expert_sms": 8,
}
SPREAD = {
    "model": "mixtral-8x7b",
    "software": {"profile": "megatron-core"},
    "parallel": {"tensor": {"size": 2, "sequence_parallel": True}, "expert": {"size": 2}, "data": {"strategy": "ddp"}},
}
DRIVES = {"training": {"offload": {"optimizer": "nvme"}}, "parallel": {"data": {"strategy": "zero3"}}}
ASSUMED_WHERE = {
    **dict.fromkeys(("host_memory_bandwidth", "drive_read_bandwidth", "drive_write_bandwidth"), DRIVES),
    "finetune_base": {"training": {"finetune": {"method": "qlora"}}},
    "adapter_dtype": {"training": {"finetune": LORA}},
    "gpu_hour": {"training": {"tokens": "1G"}, "cluster": {"topology": "aws:p5.48xlarge"}},
    **{key: {"training": {"tokens": "1G"}} for key in ("power_computing", "power_communicating", "power_waiting")},
    "node_power": {"training": {"tokens": "1G"}, "cluster": {"topology": "8x-l40s-pcie"}},
    "restart_time": {"economics": FAILING},
    "checkpoint_stall": {"economics": {"mtbf_per_gpu": "500 h", "checkpoint": {"mode": "async", "bandwidth": "1 GB/s"}}},
    "fsdp_version": {"parallel": {"data": {"strategy": "fsdp"}}},
    "norm_kernels": {"software": {"profile": "megatron-core"}},
    "host_per_list_entry": {"software": {"profile": "deepspeed-2021"}, "parallel": {"data": {"strategy": "zero3"}}},
    "train_metrics": {"software": {"profile": "llm-foundry-2023"}},
    "fp8_recipe": {"training": {"precision": {"preset": "fp8"}}, "cluster": {"topology": "hgx-h100"}},
    "fp8_keep": {"training": {"precision": {"preset": "fp8"}}, "cluster": {"topology": "hgx-h100"}},
    "parameter_gather": {"parallel": {"data": {"strategy": "zero1"}}},
    "expert_tensor": SPREAD,
    "tensor_overlap": {"parallel": {"tensor": {"size": 2}}, "software": {"profile": "megatron-core"}},
    "vocabulary_padding": {"software": {"profile": "megatron-core"}, "model": {"vocabulary": 1000}},
    **{key: {"model": MIXTURE, "parallel": {"expert": {"size": 2}}} for key in ("expert_load", "expert_dispatcher")},
    "expert_sms": {"model": MIXTURE, "parallel": {"expert": {"size": 2, "dispatcher": "deepep"}}},
}
"""where an assumption is made that not every scenario needs"""


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_an_assumption_is_another_name_of_a_key(name: str) -> None:
    base = laid(BASE, ASSUMED_WHERE.get(name, {}))
    changed = laid(base, under(f"assumptions.{name}", ASSUMED[name]))
    report, problem = outcome(changed)
    assert not problem
    assert report != outcome(base)[0]
    assert name in assumed(base)
    assert (report, "") == outcome(laid(base, under(ASSUMPTIONS[name], ASSUMED[name])))
    assert name not in assumed(changed), "what is written is no assumption any more"


def test_reports_print_assumptions_by_the_names_that_can_be_overridden() -> None:
    assert assumed(BASE) <= set(ASSUMPTIONS)
    assert assumed(BASE) >= {"software_profile", "precision", "attention", "context_memory"}


def test_the_name_is_what_reports_call_it() -> None:
    assert simulate({**BASE, "name": "mine"}).measured.name == "mine"


def test_a_study_changes_nothing() -> None:
    """Only parsim sweep reads it; tests/study/test_sweep_studies.py changes what is in it."""
    assert outcome({**BASE, "study": {"axes": {"training.micro_batch": [1, 2]}}}) == outcome(BASE)


def test_extends_and_overrides_bring_in_settings(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(json.dumps({**BASE, "overrides": {"larger": {"training": {"micro_batch": 4}}}}), encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: base.yaml\ntraining: {sequence_length: 128}\n", encoding="utf-8")
    extended = laid(BASE, {"training": {"sequence_length": 128}})
    for named, tree in (((), extended), (("larger",), laid(extended, {"training": {"micro_batch": 4}}))):
        document = simulate(load(mine, named=named)).document()
        assert document["step_time_s"] == simulate(tree).document()["step_time_s"]
        assert document["scenario"]["training"]["micro_batch"] == tree["training"]["micro_batch"]
