"""Is a trace of the job that a scenario describes? Ranks, shapes and numbers of matrix products, and groups of collectives say so.

A ranking of causes explains whatever it is given, another model too: so what tells two jobs apart is compared first. A recorded
product is known where the scenario has one with the same three sizes, in whatever order (its gradients have the same ones).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from parsim.kernel import Gemm
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.parallel.plan import Plan
from parsim.scenario.built import Built
from parsim.study.diagnose_classes import GEMM, Recorded, features

Shape = tuple[int, int, int]
KNOWN = 0.5
"""of the recorded products' work, so much has shapes of the scenario where both are one job"""
MOST = 1.5
"""products per step, one over the other, from which on layers or micro-batches differ"""


def other_job(built: Built, plan: Plan, recorded: Recorded, base: Recorded) -> tuple[str, ...]:
    """What tells the recorded job from the scenario's; empty where nothing does. `base` is what the scenario predicts."""
    found = []
    ranks = len(built.gpus)
    if recorded.world and recorded.world != ranks:
        found.append(f"the trace is of {recorded.world} ranks, the scenario has {ranks}")
    if shapes := _strange_shapes(plan, recorded.products):
        found.append(shapes)
    found += _numbers(recorded, base)
    if groups := _strange_groups(recorded, base):
        found.append(groups)
    return tuple(found)


def sizes(shape: Shape) -> Shape:
    """A product's three sizes in order: its own and those of its gradients are the same."""
    first, second, third = sorted(shape)
    return first, second, third


def shapes_of(plan: Plan) -> dict[Shape, float]:
    """Sizes of the scenario's products -> FLOP of one micro-batch; weights that are multiplied as one also one by one."""
    found: dict[Shape, float] = {}
    at = plan.workload
    for index, block in enumerate(plan.model.blocks):
        steps = tape(block, at, (), index > 0)
        for step in (*steps.forward, *steps.backward):
            for kernel in step.kernels:
                if isinstance(kernel, Gemm):
                    found[sizes((kernel.m, kernel.n, kernel.k))] = found.get(sizes((kernel.m, kernel.n, kernel.k)), 0.0) + kernel.flop
        for operator in block.operators:
            if isinstance(operator, Linear) and len(operator.out_features) > 1:
                whole = next(kernel for kernel in operator.work(at.inside(block)).forward if isinstance(kernel, Gemm))
                for out in operator.out_features:
                    found.setdefault(sizes((whole.m, whole.n * out // sum(operator.out_features), whole.k)), 0.0)
    return found


def _strange_shapes(plan: Plan, products: Mapping[Shape, int]) -> str:
    """Recorded products that the scenario has none of, if they are most of the work."""
    work: dict[Shape, float] = {shape: 2.0 * shape[0] * shape[1] * shape[2] * count for shape, count in products.items()}
    total = math.fsum(work.values())
    own = shapes_of(plan)
    unknown = {shape: flop for shape, flop in work.items() if sizes(shape) not in own}
    share = math.fsum(unknown.values()) / total if total else 0.0
    if share <= 1 - KNOWN or not own:
        return ""
    largest, expected = max(unknown, key=lambda shape: unknown[shape]), max(own, key=lambda shape: own[shape])
    return (
        f"{share:.0%} of the work of its matrix products is in shapes that the scenario does not have: the most in "
        f"{' x '.join(map(str, largest))} ({products[largest]} times); the scenario's most in {' x '.join(map(str, expected))} in any order"
    )


def _numbers(recorded: Recorded, base: Recorded) -> list[str]:
    """Products per step, where layers or micro-batches must differ."""
    seen, expected = features(recorded), features(base)
    for rank in recorded.ranks:
        mine, theirs = seen.get((rank, f"#{GEMM}"), 0.0), expected.get((rank, f"#{GEMM}"), 0.0)
        if min(mine, theirs) > 0 and max(mine, theirs) / min(mine, theirs) > MOST:
            return [f"{mine:.0f} matrix products per step on rank {rank}, the scenario has {theirs:.0f}: other layers or micro-batches"]
    return []


def _strange_groups(recorded: Recorded, base: Recorded) -> str:
    """Collectives among numbers of ranks that the scenario has no collective of."""

    def groups(side: Recorded) -> Counter[int]:
        found: Counter[int] = Counter()
        for one in side.slices:
            kind, _, size = one.kind.rpartition(" x")
            if kind.startswith("comm ") and "send" not in kind and size.isdigit() and int(size) > 1:
                found[int(size)] += 1
        return found

    seen, expected = groups(recorded), groups(base)
    if not seen or not expected or set(seen) & set(expected):
        return ""
    return f"its collectives are among {_list(seen)} ranks, the scenario's among {_list(expected)}"


def _list(counts: Mapping[int, int]) -> str:
    return ", ".join(map(str, sorted(counts)))
