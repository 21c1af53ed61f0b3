"""What one block costs on a stage, by itself: seconds of its passes, bytes that it keeps.

Candidates that differ in their pipeline, data parallelism or number of micro-batches have the same blocks; so each
distinct block is written once (by the very code that writes whole stages) and asked by thousands of candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from parsim.kernel import Kernel
from parsim.parallel.groups import OFFLOAD, TENSOR
from parsim.parallel.plan import Chunk, Plan
from parsim.parallel.replicated import Replicated
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS
from parsim.parallel.settings import DataParallel, Recompute
from parsim.program.stage_passes import StagePasses
from parsim.study.search.chains import Levels, Price, levels, longest, rounded

UNTOUCHED = ("none", "ddp", "zero1")
"""strategies whose kernels between the passes of a block are those of replicated weights"""


@dataclass(frozen=True, slots=True)
class BlockCost:
    """One block between its boundary tensors; what it receives from another stage is left out."""

    seconds: dict[str, float]
    """kind of slot (F, B, I, W; f, b, i, w: of the first micro-batch) -> [s]"""
    computing: dict[str, float]
    """the same if launching took no time [s]"""
    waits: dict[str, float]
    """the part of `computing` at its end in which compute waits for a collective, and the host may be launching the next block [s]"""
    idle: bool
    """some kind of slot gives its compute lane nothing to do (frozen weights), and then waits for nobody"""
    kept: int
    """live bytes that its forward adds, its input being there before and its output after [B]"""
    forward_high: int
    """most that its forward adds meanwhile [B]"""
    backward_high: tuple[int, int]
    """most that the first micro-batch's backward adds, and a later one's, the received gradient included [B]"""
    input: int
    """what another stage sends to it [B]; 0 for the first block"""
    output: int
    """what it sends to another stage [B]; 0 for the last block"""
    message: dict[str, int | None]
    """F, B -> bytes of the message that hands its result on; None: a measured duration instead"""
    message_seconds: dict[str, float]
    """that duration [s]"""
    gathers: dict[str, float]
    """F, B -> seconds in which what is received is put together from scattered parts"""


def block_cost(
    plan: Plan, block: int, *, checkpoint: bool, kinds: tuple[str, ...], clock: Callable[[Kernel], float], price: Price, speed: float
) -> BlockCost:
    """Write one block of `plan` alone on a stage and measure it. `checkpoint`: it keeps its input only.

    The data-parallel strategy is left out (its collectives hold no compute up that they need not), and with it its gradients.
    """

    def on_links(kind: str, axis: str, size: int) -> float:
        return 0.0 if axis == OFFLOAD else price(kind, axis, size)  # copies run ahead of the block that waits for them

    single = _alone(plan, block, checkpoint=checkpoint)
    passes = StagePasses(single, block, "", clock)
    passes.sharding[block] = Replicated(single.weights(passes.chunks[block]), single.training, DataParallel(), single.runtime, 1)
    last = block == len(plan.model.blocks) - 1
    gathers = _gathers(passes, block, last=last, price=price)
    seconds, computing, waits, measured, idle = {}, {}, {}, {}, False
    for kind in kinds:
        for name, first in ((kind, False), (kind.lower(), True)):
            items = passes.template(kind, block, first, False)
            whole = longest(items, on_links, {}, speed=speed, arrival=0.0).compute
            bare = longest(items, on_links, {}, speed=speed, arrival=0.0, host=False)
            received = gathers.get("F" if kind == "F" else "B" if kind in GRADIENTS_OF_INPUTS else "", 0.0)
            idle |= whole < 0.0
            seconds[name], computing[name] = max(0.0, whole) - received, max(0.0, bare.compute) - received
            waits[name] = max(0.0, bare.compute - bare.busy) if bare.busy >= 0.0 else 0.0
            measured[name] = levels(items, passes.table.rows, without=("gradients", "workspace"))
    taped = passes.tape(block)
    sent = {way: passes.sends(way, block) for way in ("F", "B") if way in kinds or (way == "B" and "I" in kinds)}
    handed = rounded(taped.tensors["output"].bytes) if not last else 0
    before = 0 if block == 0 else rounded(passes.tape(block - 1).tensors["output"].bytes)
    ahead: Levels = measured["F"]
    return BlockCost(
        seconds=seconds,
        computing=computing,
        waits=waits,
        idle=idle,
        kept=ahead.net - before,
        forward_high=ahead.high - before,
        backward_high=(
            max((measured[kind].high for kind in ("b", "i") if kind in measured), default=0),
            max((measured[kind].high for kind in ("B", "I") if kind in measured), default=0),
        ),
        input=before,
        output=handed,
        message={way: size for way, (size, _, _) in sent.items()},
        message_seconds={way: duration for way, (_, _, duration) in sent.items()},
        gathers=gathers,
    )


def _alone(plan: Plan, block: int, *, checkpoint: bool) -> Plan:
    """The same plan with every block on a stage of its own and replicated weights."""
    training, runtime = plan.training, plan.runtime
    if checkpoint:
        training = replace(training, recompute=Recompute("full"))
    elif training.recompute.mode != "selective":
        training = replace(training, recompute=Recompute("none"))
    tied = any(parameter.tied for parameter in plan.model.blocks[block].parameters())
    if plan.parallelism.data.strategy not in UNTOUCHED or tied:
        runtime = replace(runtime, gradient_accumulation_fusion=True)  # adds no kernels that the real strategy may not have
    chunks = tuple(Chunk(b, b, (b,)) for b in range(len(plan.model.blocks)))
    pipeline = replace(plan.parallelism.pipeline, schedule="1f1b")  # pipedream would end a step in every backward
    parallelism = replace(plan.parallelism, pipeline=pipeline, data=DataParallel(size=plan.parallelism.data.size, strategy="none"))
    return replace(plan, training=training, runtime=runtime, parallelism=parallelism, chunks=chunks, _known_weights={})


def _gathers(passes: StagePasses, block: int, *, last: bool, price: Price) -> dict[str, float]:
    """Seconds of the blocking gather with which a received message becomes whole, by direction."""
    found = {}
    for way, boundary, there in (("F", block - 1, block > 0), ("B", block, not last)):
        if there:
            size = passes.tape(boundary).tensors["output"].bytes
            found[way] = 0.0 if passes.message(size) == size else price("all_gather", TENSOR, passes.moved(size))
    return found
