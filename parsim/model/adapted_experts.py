"""Experts that are linear layers of their own, frozen, with or without adapters, as in transformers before version 5.

Each expert of Mixtral, Qwen2-MoE, Qwen3-MoE and others was a module of ``nn.Linear`` that a loop visits (modeling_mixtral.py of 4.x,
MixtralSparseMoeBlock.forward): bitsandbytes puts each in four bits, PEFT's all-linear gives each an A and a B, and the router, which
is such a layer too. Every product is a launch of its own. Since version 5 experts are three-dimensional parameters, which neither of the
two touches (`training.finetune.experts: fused`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.adapter_types import AdapterSizes, beside
from parsim.model.adapters import DOWN, GATE, LATEST, UP, FourBits, Target
from parsim.model.mixture import GroupedLinear, Router
from parsim.model.model import Parameter, Save, Work
from parsim.model.workload import Workload, dispatched, expert_shard

ROUTER = ("router", "gate")
"""what the router's weight may be called"""


@dataclass(frozen=True, slots=True)
class FrozenExperts(GroupedLinear):
    """One product per expert that is not trained, with adapters of this rank beside the parts of its output (gate and up)."""

    trainable: bool = False
    storage: str = ""
    """nf4 | nf4-dq | '' (the precision's)"""
    adapters: tuple[tuple[str, int], ...] = ()
    """(name, outputs) of each adapted part"""
    rank: int = 0
    dropout: bool = False
    fp32_adapters: bool = False
    """the adapters are fp32 (`parsim.model.adapter_types`)"""
    four_bits: FourBits = LATEST
    """of weights in nf4"""

    def parameters(self) -> tuple[Parameter, ...]:
        """The base's, then A [experts, rank, in] and B [experts, out, rank] of each adapter."""
        row = self.split == "row"
        base = (replace(p, storage=self.storage if len(p.shape) == 3 else "") for p in GroupedLinear.parameters(self))
        pairs = (
            pair
            for name, out in self.adapters
            for pair in (
                Parameter(f"{name}.lora_A.weight", (self.experts, self.rank, self.in_features), 2 if row else None, expert=True),
                Parameter(f"{name}.lora_B.weight", (self.experts, out, self.rank), None if row else 1, expert=True),
            )
        )
        return (*base, *pairs)

    def training_work(self, at: Workload) -> Work:
        """The base's products one by one, with dequantised weights where they are quantised, and six products of each adapter."""
        local = -(-self.experts // at.expert)
        m = -(-dispatched(at, self.top_k) // local)
        n = expert_shard(self.out_features, at) if self.split == "column" else self.out_features
        k = expert_shard(self.in_features, at) if self.split == "row" else self.in_features
        work, e = GroupedLinear.training_work(self, at), at.element
        work = work._replace(forward=_one_by_one(work.forward, local), backward_input=_one_by_one(work.backward_input, local))
        copies = dispatched(at, self.top_k)
        if self.storage:
            kernels = self.four_bits.kernels(local * n * k, self.storage, at)
            made = [replace(kernel, launches=local * kernel.launches) for kernel in kernels]
            held = self.four_bits.held(n * k, at)
            work = work._replace(
                forward=(*made, *work.forward),
                backward_input=(*made, *work.backward_input),
                saves=(*work.saves, *self.four_bits.kept(self.inputs[0], copies * k * e)),
                forward_temporary=work.forward_temporary + held,
                backward_temporary=work.backward_temporary + held,
            )
        for name, out in self.adapters:
            wide = expert_shard(out, at) if self.split == "column" else out
            work = self._adapted(work, name, (local, m, wide, k, copies), at)
        return work

    def _adapted(self, work: Work, name: str, sizes: tuple[int, int, int, int, int], at: Workload) -> Work:
        """As `parsim.model.adapters.FrozenLinear` has it, on the copies of a rank's experts; temporary tensors are one expert's."""
        (local, m, n, k, copies), r = sizes, self.rank
        all_rows, one = AdapterSizes(copies * k, copies * k, copies * n), AdapterSizes(m * k, m * k, m * n)
        around, held = (
            beside(at, each, fp32=self.fp32_adapters, quantised=bool(self.storage), dropout=self.dropout) for each in (all_rows, one)
        )
        e = around.element

        def product(rows: int, columns: int, inner: int, *, weight: bool = False) -> Gemm:
            return Gemm(rows, columns, inner, local, around.dtype, e, weight_gradient=weight, grouped=True, launches=local)

        def of_each(kernels: tuple[Kernel, ...]) -> list[Kernel]:
            return [replace(kernel, launches=local * kernel.launches) if isinstance(kernel, Memory) else kernel for kernel in kernels]

        saves: tuple[Save, ...] = (Save(self.inputs[0], copies * k * e, "weight"),)
        if around.own_input:
            saves = (Save(f"{self.name}.{name}.input", copies * k * e, "weight"),)
        if self.dropout:
            saves = (Save(f"{self.name}.{name}.dropped", copies * k * e, "weight"), Save(f"{self.name}.{name}.mask", copies * k))
        saves += (Save(f"{self.name}.{name}.lora_A", copies * r * e, "weight"),)
        return work._replace(
            forward=(*work.forward, *of_each(around.entering), product(m, r, k), product(m, n, r), *of_each(around.leaving)),
            backward_input=(
                *work.backward_input,
                *of_each(around.gradient),
                product(m, r, n),
                product(m, k, r),
                *of_each(around.returning),
            ),
            backward_weight=(*work.backward_weight, product(n, r, m, weight=True), product(r, k, m, weight=True)),
            saves=(*work.saves, *(save for save in saves if save not in work.saves)),
            forward_temporary=max(work.forward_temporary, held.forward_held),
            backward_temporary=max(work.backward_temporary, held.backward_held),
        )


@dataclass(frozen=True, slots=True)
class FrozenRouter(Router):
    """A router that is not trained, with an adapter of this rank beside its weight."""

    trainable: bool = False
    rank: int = 0
    fp32_adapter: bool = False
    """the adapter is fp32"""

    def parameters(self) -> tuple[Parameter, ...]:
        """The weight, then A [rank, hidden] and B [experts, rank]."""
        name = self.parameter_name or self.name
        pair = Parameter(f"{name}.lora_A.weight", (self.rank, self.hidden)), Parameter(f"{name}.lora_B.weight", (self.experts, self.rank))
        return (*Router.parameters(self), *pair)

    def training_work(self, at: Workload) -> Work:
        """The router's, and six small products."""
        work, m, k, r = Router.training_work(self, at), at.local_tokens, self.hidden, self.rank
        around = beside(at, AdapterSizes(m * k, m * k, m * self.experts), fp32=self.fp32_adapter, quantised=False, dropout=False)
        e, dtype = around.element, around.dtype
        shapes = ((m, r, k), (m, self.experts, r)), ((m, r, self.experts), (m, k, r))
        forward, backward = ([Gemm(*shape, dtype=dtype, element=e) for shape in side] for side in shapes)
        weight = [
            Gemm(self.experts, r, m, dtype=dtype, element=e, weight_gradient=True),
            Gemm(r, k, m, dtype=dtype, element=e, weight_gradient=True),
        ]
        before, behind = ((*around.gradient,), (*around.leaving,)) if around.own_input else ((), ())
        saves = (
            Save(f"{self.name}.input" if around.own_input else self.inputs[0], m * k * e, "weight"),
            Save(f"{self.name}.lora_A", m * r * e, "weight"),
        )
        return work._replace(
            forward=(*work.forward, *around.entering, *forward, *behind),
            backward_input=(*work.backward_input, *before, *backward, *around.returning),
            backward_weight=(*work.backward_weight, *weight),
            saves=(*work.saves, *saves),
            forward_temporary=max(work.forward_temporary, around.forward_held if around.own_input else 0),
            backward_temporary=max(work.backward_temporary, around.backward_held if around.own_input else 0),
        )


def _one_by_one(kernels: tuple[Kernel, ...], local: int) -> tuple[Kernel, ...]:
    return tuple(replace(kernel, launches=local) if isinstance(kernel, Gemm) else kernel for kernel in kernels)


def expert_targets(operator: GroupedLinear | Router, *, gated: bool) -> tuple[Target, ...]:
    """What of experts and router an adapter can stand beside."""
    if isinstance(operator, Router):
        return (Target(operator.parameter_name or operator.name, ROUTER, operator.experts),)
    name = operator.parameter_name or operator.name
    if operator.split == "row":
        return (Target(name, DOWN, operator.out_features),)
    if not gated:
        return (Target(name, UP, operator.out_features),)
    half, words = operator.out_features // 2, tuple(word for word in GATE if word not in ROUTER)
    return Target(f"{name}.gate", words, half), Target(f"{name}.up", UP, half)


def frozen_experts(
    operator: GroupedLinear,
    storage: str,
    targets: tuple[Target, ...],
    rank: int,
    *,
    dropout: bool,
    fp32: bool = False,
    four_bits: FourBits = LATEST,
) -> FrozenExperts:
    """The product of experts, frozen, with adapters beside these parts of it."""
    values = {field.name: getattr(operator, field.name) for field in fields(GroupedLinear)}
    adapters = tuple((target.name, target.out_features) for target in targets)
    return FrozenExperts(
        **{**values, "trainable": False},
        storage=storage, adapters=adapters, rank=rank, dropout=dropout, fp32_adapters=fp32, four_bits=four_bits,
    )  # fmt: skip


def frozen_router(operator: Router, rank: int, *, fp32: bool = False) -> FrozenRouter:
    """The router, frozen, with an adapter."""
    values = {field.name: getattr(operator, field.name) for field in fields(Router)}
    return FrozenRouter(**{**values, "trainable": False}, rank=rank, fp32_adapter=fp32)
