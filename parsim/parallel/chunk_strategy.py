"""Which data-parallel strategy keeps the weights of a chunk, and over which ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from parsim.parallel.ddp import DistributedDataParallel
from parsim.parallel.experts import SeveralStrategies
from parsim.parallel.fsdp import FullyShardedDataParallel, Traffic
from parsim.parallel.fsdp_experts import ShardedExperts, ShardedMixture, expert_unit
from parsim.parallel.groups import DATA, EXPERT_DATA, EXPERT_REPLICA, EXPERT_SHARD, EXPERT_TENSOR, REPLICA, SHARD, TENSOR
from parsim.parallel.hooks import Sharding, Unit, Weight
from parsim.parallel.kronecker import BY_MATRIX
from parsim.parallel.layer_wise import LayerWiseOptimizer
from parsim.parallel.muon import MatrixLayout, is_matrix
from parsim.parallel.replicated import Replicated
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import CustomStrategy, DataParallel
from parsim.parallel.shampoo import DistributedShampoo, ShardedShampoo
from parsim.parallel.single_process import DataParallelModule, ParameterServer
from parsim.parallel.training import Training
from parsim.parallel.zero import ZeroOptimizer
from parsim.parallel.zero3_2021 import ListedZero3
from parsim.parallel.zero3_buckets import BucketedZero3, bucketed
from parsim.parallel.zero_muon import PartitionedMuon
from parsim.parallel.zero_plus_plus import ZeroPlusPlus, asked

if TYPE_CHECKING:
    from parsim.parallel.plan import Chunk, Plan

SHARDED = ("zero3", "fsdp", "hsdp")
"""strategies that shard parameters"""
INSTANCES = {DATA: (SHARD, REPLICA), EXPERT_DATA: (EXPERT_SHARD, EXPERT_REPLICA)}
"""ranks with the same weights -> those of one instance of the optimizer, and those with the same share in every instance"""

_Common = tuple[tuple[Weight, ...], Training, DataParallel, Runtime, int]


class _Own(TypedDict):
    """What tells one strategy of a chunk from another."""

    group: str
    label: str
    replicas: int
    layout: MatrixLayout


def sharding_of(plan: Plan, chunk: Chunk, role: str) -> Sharding:
    """The strategy of a chunk, with buckets and state of its own; spread experts have one of their own."""
    weights = plan.weights(chunk)
    if not plan.parallelism.exchanges_tokens:
        strategies = _alike(plan, chunk, role, weights, plan.replicas)
        return strategies[0] if len(strategies) == 1 else SeveralStrategies(tuple(strategies))
    experts = tuple(weight for weight in weights if weight.parameter.expert)
    others = tuple(weight for weight in weights if not weight.parameter.expert)
    several = plan.replicas > 1 or plan.training.offload.states
    if experts and several and plan.parallelism.data.strategy in ("fsdp", "hsdp"):
        return _sharded_mixture(plan, chunk, others, experts)
    strategies = _alike(plan, chunk, role, others, plan.replicas)
    if experts:
        strategies += _alike(plan, chunk, role, experts, plan.groups.expert[2], EXPERT_DATA, "experts' ")
    return SeveralStrategies(tuple(strategies))


def _sharded_mixture(plan: Plan, chunk: Chunk, others: tuple[Weight, ...], experts: tuple[Weight, ...]) -> ShardedMixture:
    """Layers under FSDP, and their experts as units over those ranks of a shard group that hold the same ones."""
    copies = plan.replicas // plan.shard_size
    common = (plan.training, plan.parallelism.data, plan.runtime)
    units, own = [], []
    for unit in plan.units(chunk):
        if held := tuple(weight for weight in unit.weights if not weight.parameter.expert):
            units.append(Unit(unit.name, unit.blocks, held))
        if held := tuple(weight for weight in unit.weights if weight.parameter.expert):
            own.append(Unit(expert_unit(unit), unit.blocks, held))
    traffic, pipelined = Traffic(), plan.parallelism.pipeline.size > 1
    layers = FullyShardedDataParallel(
        others,
        *common,
        plan.shard_size,
        units=tuple(units),
        copies=copies,
        pipelined=pipelined,
        traffic=traffic,
        layout=_layout(plan, SHARD),
    )
    spread = ShardedExperts(
        experts,
        *common,
        plan.groups.expert[2] // copies,
        units=tuple(own),
        copies=copies,
        pipelined=pipelined,
        label="experts' ",
        groups=(EXPERT_SHARD, EXPERT_REPLICA),
        traffic=traffic,
        layout=_layout(plan, EXPERT_DATA),
    )
    return ShardedMixture((layers, spread))


def _alike(
    plan: Plan, chunk: Chunk, role: str, weights: tuple[Weight, ...], size: int, group: str = DATA, label: str = ""
) -> list[Replicated]:
    """The strategies that keep these weights: matrices that ranks own whole have one of their own."""
    if not (plan.training.optimizer.name in BY_MATRIX and plan.parallelism.data.strategy in ("zero1", "zero2")):
        return [_strategy(plan, chunk, role, weights, size, group, label)]
    matrices = tuple(filter(is_matrix, weights))
    others = tuple(weight for weight in weights if not is_matrix(weight))
    found = [_strategy(plan, chunk, role, others, size, group, label, "adamw")] if others else []
    if matrices:
        found.append(_strategy(plan, chunk, role, matrices, size, group, f"{label}matrices' "))
    if len(found) == 2 and isinstance(found[0], ZeroOptimizer) and isinstance(found[1], PartitionedMuon):
        found[0].lends, found[1].borrows = found[1].buckets, True
    return found


def _strategy(
    plan: Plan, chunk: Chunk, role: str, weights: tuple[Weight, ...], size: int, group: str = DATA, label: str = "", optimizer: str = ""
) -> Replicated:
    """How `size` ranks keep these weights of a chunk; `optimizer` steps them where it is not the recipe's."""
    recipe = plan.training.optimizer
    training = replace(plan.training, optimizer=replace(recipe, name=optimizer)) if optimizer else plan.training
    common = (weights, training, plan.parallelism.data, plan.runtime, size)
    own = _Own(group=group, label=label, replicas=plan.replicas, layout=_layout(plan, group))
    strategy = plan.parallelism.data.strategy
    alone = size == 1 or strategy == "none"
    if plan.parallelism.data.custom is not None and not alone:
        return _custom(plan, plan.parallelism.data.custom, chunk)
    if alone and plan.training.offload.states:  # the optimizer's host side is a shard of one
        if strategy in SHARDED:
            return FullyShardedDataParallel(*common, units=tuple(u for u in plan.units(chunk) if u.weights))
        return ZeroOptimizer(*common, stage=1 if strategy == "zero1" else 2, **own)
    if recipe.name == "shampoo" and not alone:
        if strategy == "ddp":
            return DistributedShampoo(*common, **own)
        units = tuple(u for u in plan.units(chunk) if u.weights)
        copies, pipelined = size // plan.shard_size, plan.parallelism.pipeline.size > 1
        return ShardedShampoo(*common[:-1], plan.shard_size, units=units, copies=copies, pipelined=pipelined)
    if alone and not plan.runtime.megatron:
        return Replicated(*common, **own)
    if alone or strategy == "ddp":
        return DistributedDataParallel(*common, **own)
    if strategy in ("zero1", "zero2"):
        return _zero(common, int(strategy[-1]), own)
    if strategy == "zero3" and plan.runtime.lists_weights:
        return ListedZero3(*common, units=tuple(u for u in plan.units(chunk) if u.weights))
    if strategy in SHARDED:
        units = tuple(u for u in plan.units(chunk) if u.weights)
        pipelined = plan.parallelism.pipeline.size > 1
        if asked(plan.parallelism.data):
            return ZeroPlusPlus(*common, units=units, pipelined=pipelined)
        if bucketed(plan.parallelism.data, plan.runtime):
            return BucketedZero3(*common, units=units, pipelined=pipelined)
        copies = size // plan.shard_size
        return FullyShardedDataParallel(
            *common[:-1], plan.shard_size, units=units, copies=copies, pipelined=pipelined, layout=_layout(plan, SHARD)
        )
    central = DataParallelModule if strategy == "torch-data-parallel" else ParameterServer
    outputs, inputs = plan.boundary_bytes()
    return central(*common, steps=role == "server", output_bytes=outputs, input_bytes=inputs)


def _zero(common: _Common, stage: int, own: _Own) -> ZeroOptimizer:
    """ZeRO-1 or 2 over all replicas of some weights, or in each of several instances."""
    if common[1].optimizer.name in BY_MATRIX:
        if common[3].deepspeed:
            return PartitionedMuon(*common, stage=stage, **own)
        return LayerWiseOptimizer(*common, **own)
    if (instances := common[2].optimizer_instances) == 1:
        return ZeroOptimizer(*common, stage=stage, **own)
    inside, across = INSTANCES[own["group"]]
    part = _Own(group=inside, label=own["label"], replicas=own["replicas"], layout=own["layout"])
    return ZeroOptimizer(*common[:-1], common[-1] // instances, stage=stage, instances=instances, across=across, **part)


def _layout(plan: Plan, group: str) -> MatrixLayout:
    """How the stack stores the matrices of the ranks of one data-parallel group."""
    facts, joined = plan.model.facts, plan.runtime.transformer_engine
    heads, kv_heads = (int(str(facts.get(key) or 1)) for key in ("heads", "kv_heads"))
    split = plan.parallelism
    width = (EXPERT_TENSOR, split.expert_width) if group == EXPERT_DATA else (TENSOR, split.tensor.size)
    return MatrixLayout(*width, heads, kv_heads, bool(facts.get("gated")), joined)


def _custom(plan: Plan, strategy: CustomStrategy, chunk: Chunk) -> Replicated:
    """The user's strategy; `data.shard_size` says how large a shard group is."""
    data = replace(plan.parallelism.data, shard_size=plan.shard_size)
    common = (plan.weights(chunk), plan.training, data, plan.runtime)
    if issubclass(strategy.kind, FullyShardedDataParallel):
        units = tuple(u for u in plan.units(chunk) if u.weights)
        return strategy.kind(*common, plan.shard_size, units=units, copies=plan.replicas // plan.shard_size)
    if issubclass(strategy.kind, Replicated):
        return strategy.kind(*common, plan.replicas)
    raise TypeError(f"{strategy.kind.__name__} is not derived from Replicated")
