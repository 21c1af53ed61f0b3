"""Expert parallelism: the experts of a layer are spread over ranks, and tokens travel to them and back (GShard, 2006.16668).

Megatron-LM's dispatchers (megatron/core/transformer/moe/token_dispatcher.py), per layer and micro-batch, with T tokens on a
rank (1/t of the micro-batch's under sequence parallelism), k of E experts per token, ep ranks that hold all experts together and etp that
share the width of each:

==================  ====================================================================================
dispatcher          messages towards the experts; back, the opposite of the tokens'
==================  ====================================================================================
alltoall            all-to-all of T k h over ep and of the weights (fp32), all-gather over etp
allgather           all-gather of T h over ep x etp, of the weights (fp32) and the map (1 B) of all E
deepep, hybridep    every token once to every machine and once to every rank of ep x etp that it visits; hybridep
                    before it, in forward, all-gather of the map (1 B) of all E
==================  ====================================================================================

Backward sends the gradients the opposite way. What stands before and behind the messages: `parsim.model.exchange`. At the end of a
step gradients of experts are reduced, and their states sharded, over the edp copies of them.

In forward and recomputation the host waits for the numbers of tokens before it launches what is done with them (alltoall: d2h_event of
_maybe_dtoh_and_synchronize; allgather: tokens_per_expert.cpu(); DeepEP and HybridEP inside their dispatch), unless experts are padded.
Where PyTorch's operations put tokens in order, it waits for those, too (`Way.counts`); alltoall's numbers have come meanwhile.
Backward knows them.

Ranks that compute meanwhile wait: nothing overlaps the exchanges but a shared expert (`parsim.model.shared_overlap`). With an imbalance
the exchange takes as long as that of the busiest rank.
With a capacity an expert gets at most ceil(T k / E x factor) rows of a rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import ClassVar

from parsim.errors import Finding
from parsim.model.exchange import token_bytes
from parsim.model.low_precision import TRANSFORMER_ENGINE
from parsim.model.mixture import Combine, Dispatch, GroupedLinear
from parsim.model.model import Block, Model, Operator
from parsim.model.shared_overlap import Departure, exchanged
from parsim.model.tape import Step
from parsim.model.workload import Workload, dispatched
from parsim.parallel.expert_load import ExpertLoad, Histogram, Rows, histogram_findings
from parsim.parallel.fully_connected import fully_connected_findings, shared_layers
from parsim.parallel.groups import EXPERT, EXPERT_MODEL, EXPERT_TENSOR, PIPELINE, REPLICATING, TENSOR, Mesh
from parsim.parallel.hooks import COUNTS, LAUNCHES, Emitter, Sharding, SilentHooks, Unit, Weight
from parsim.parallel.replicated import Replicated
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import EXCHANGE_SMS, ExpertParallel, Parallelism
from parsim.parallel.shared_overlap_findings import shared_overlap_findings
from parsim.parallel.training import Training

_SIZE, _TENSOR, _CAPACITY = "parallel.expert.size", "parallel.expert.tensor", "parallel.expert.capacity_factor"
_ROUTING = "parallel.expert.routing"
_STRATEGIES = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp")
_WEIGHT = 4
"""bytes of a router's weight on the wire"""
_DEEPEP_MACHINE = 8
"""ranks of a machine for DeepEP (NUM_MAX_NVL_PEERS)"""


@dataclass
class ExpertParallelHooks(SilentHooks):
    """Runs dispatch and combine of one rank, with the messages between their kernels."""

    workload: Workload
    loads: Mapping[int, Rows] = field(default_factory=dict)
    """of blocks whose load is their own"""
    answer: float = 0.0
    """what the host takes from the counts of tokens to what is done with them [s]; 0: it need not know them"""
    beside: bool = False
    """something runs beside the messages that are being written"""

    def inside(self, number: int, block: Block) -> None:
        """The load is that of this block."""
        if (rows := self.loads.get(number)) is not None:
            self.workload = loaded(self.workload, rows)

    def runs(self, operator: Operator) -> bool:
        """Whether tokens travel inside the operator, or from it or to it."""
        return exchanged(operator) is not None

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """A forward, recompute or input step of dispatch or combine: towards the experts, or back from them.

        Of their halves the first to run starts the messages, and the second waits for them.
        """
        operator = exchanged(step.operator)
        if operator is None:
            message = f"{step.operator.name} exchanges no tokens"
            raise TypeError(message)
        if operator is step.operator:
            leaves = isinstance(operator, Dispatch) == (step.phase != "input")
            exchange = operator.exchange(self.workload)
            way = exchange.leaving if leaves else exchange.returning
            place = len(way.before)
            self._wait(at, way.counts[0])
            at.compute("", kind, step.kernels[:place], allocates=allocates)
            if self.workload.exchanges_tokens:
                self._messages(operator, step, at)
            self._wait(at, way.counts[1])
            at.compute("", kind, step.kernels[place:], frees=frees)
        elif isinstance(step.operator, Departure) == (step.phase != "input"):
            self._wait(at, self._counts(operator, step)[0])
            at.compute("", kind, step.kernels, allocates, frees)
            self.beside = True
            self._messages(operator, step, at)
            self.beside = False
        else:
            at.wait(*self.pending)
            self.pending.clear()
            self._wait(at, self._counts(operator, step)[1])
            at.compute("", kind, step.kernels, allocates, frees)

    def _messages(self, operator: Dispatch | Combine, step: Step, at: Emitter) -> None:
        """All that a dispatch or combine sends in a step."""
        leaves = isinstance(operator, Dispatch) == (step.phase != "input")
        waits = isinstance(operator, Dispatch) and leaves and not self._counts(operator, step)[0]
        if self.workload.dispatcher == "hybridep" and isinstance(operator, Dispatch) and leaves:
            self._send(at, "all_gather", EXPERT_MODEL, self._everyone * operator.experts, f"{operator.name} map")
        if waits and self.workload.dispatcher != "allgather":
            self._wait(at)
        if self.workload.dispatcher == "allgather":
            self._gather(operator, at, leaves=leaves, forward=step.phase != "input")
            if waits:
                self._wait(at)
        elif self.workload.dispatcher in EXCHANGE_SMS:
            rows = round(self.workload.local_tokens * self._most)
            self._send(at, "token_exchange", EXPERT_MODEL, rows * self._row(operator, leaves=leaves), operator.name)
        elif leaves:
            self._all_to_all(operator, at, leaves=True)
            self._over_width("all_gather", operator, at)
        else:
            self._over_width("reduce_scatter", operator, at)
            self._all_to_all(operator, at, leaves=False)

    def _send(self, at: Emitter, kind: str, axis: str, size: int, name: str) -> None:
        """A message that the compute waits for at once, or later where something runs beside it; others may follow it."""
        if self.beside:
            self.pending.append(at.collective(kind, axis, size, name, after=self.pending[-1:] or None))
        else:
            at.collective(kind, axis, size, name, blocking=True)

    def _counts(self, operator: Dispatch | Combine, step: Step) -> tuple[int, int]:
        """Times that the host waits for a number of rows (before, behind) the messages of a forward; backward knows them."""
        exchange = operator.exchange(self.workload)
        if step.phase == "input":
            return 0, 0
        return (exchange.leaving if isinstance(operator, Dispatch) else exchange.returning).counts

    def _wait(self, at: Emitter, times: int = 1) -> None:
        """Nothing is launched that was not launched before the counts were asked for: the device waits for the host from here on."""
        if self.answer > 0 and times:
            at.wait_for_lane(LAUNCHES)
            at.idle(COUNTS, "launch", times * self.answer)

    @property
    def _most(self) -> float:
        """What the busiest rank sends or receives, over the mean."""
        return max(self.workload.expert_imbalance, self.workload.expert_sent)

    @property
    def _everyone(self) -> int:
        """Tokens of all ranks that hold the experts together."""
        return self.workload.local_tokens * self.workload.expert * self.workload.expert_width

    def _row(self, operator: Dispatch | Combine, *, leaves: bool) -> int:
        """Bytes of a token on the wire."""
        return token_bytes(operator.hidden, self.workload, fp8=self.workload.dispatch_fp8 if leaves else self.workload.combine_fp8)

    def _all_to_all(self, operator: Dispatch | Combine, at: Emitter, *, leaves: bool) -> None:
        """Copies of tokens (or their gradients); with dispatch travel the weights, and back their gradients."""
        if self.workload.expert == 1:
            return
        copies = round(self.workload.local_tokens * operator.top_k * self._most)
        self._send(at, "all_to_all", EXPERT, copies * self._row(operator, leaves=leaves), operator.name)
        if isinstance(operator, Dispatch):
            self._send(at, "all_to_all", EXPERT, _WEIGHT * copies, f"{operator.name} weights")

    def _over_width(self, collective: str, operator: Dispatch | Combine, at: Emitter) -> None:
        """The ranks that share the width of an expert all need its tokens, and have a part of each result."""
        if self.workload.expert_width > 1:
            leaves = collective == "all_gather"
            size = dispatched(self.workload, operator.top_k) * self._row(operator, leaves=leaves)
            self._send(at, collective, EXPERT_TENSOR, size, operator.name)

    def _gather(self, operator: Dispatch | Combine, at: Emitter, *, leaves: bool, forward: bool) -> None:
        """All ranks that hold the experts together see all their tokens; dispatch gathers where they go and with which weights, too."""
        tokens = self._everyone
        way = "all_gather" if leaves else "reduce_scatter"
        if isinstance(operator, Dispatch):
            if forward:
                at.collective(way, EXPERT_MODEL, tokens * operator.experts, f"{operator.name} map", blocking=True)
            at.collective(way, EXPERT_MODEL, _WEIGHT * tokens * operator.experts, f"{operator.name} weights", blocking=True)
        at.collective(way, EXPERT_MODEL, tokens * self._row(operator, leaves=leaves), operator.name, blocking=True)


def loaded(workload: Workload, rows: Rows) -> Workload:
    """The workload of a layer with these rows."""
    return replace(workload, expert_imbalance=rows.busiest, expert_sent=rows.sent)


def expert_mesh(split: Parallelism) -> tuple[int, int, int]:
    """(ep, etp, edp): the grid of experts over the ranks of a pipeline stage; edp copies of each.

    >>> from parsim.parallel.settings import DataParallel, TensorParallel
    >>> expert_mesh(Parallelism(tensor=TensorParallel(2), expert=ExpertParallel(4, 1), data=DataParallel(4)))
    (4, 1, 2)
    """
    ep, width = split.expert.size, split.expert_width
    return ep, width, split.stage_ranks // (ep * width)


def expert_load(expert: ExpertParallel, tokens: int) -> ExpertLoad:
    """What the experts of a model get of ranks with `tokens` tokens each."""
    return ExpertLoad(expert.imbalance, expert.size, tokens, expert.capacity_factor, expert.pad_to_capacity)


def _fused_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why the products of experts cannot do what stands around them (Transformer Engine: ops/fused/forward_grouped_mlp.py)."""
    casts, path = training.precision.quantisation, "parallel.expert.fused_mlp"
    reasons = []
    if not any(isinstance(operator, GroupedLinear) for operator in model.distinct_operators):
        reasons.append((f"{model.name} has no experts", "leave it out"))
    if casts is None or (casts.recipe, casts.library) != ("mxfp8", TRANSFORMER_ENGINE):
        text = "only Transformer Engine's mxfp8 products have such kernels"
        reasons.append((text, "leave it out, or use training.precision {preset: fp8, recipe: mxfp8} on Megatron-Core"))
    if parallelism.expert_width > 1:
        text = f"{parallelism.expert_width} ranks share the width of every expert (Megatron-LM fuses whole experts only)"
        reasons.append((text, "use parallel.expert.tensor: 1"))
    if "moe_act" in training.recompute.selective:
        reasons.append(("there is no activation to make again", "leave moe_act out of training.recompute"))
    if training.finetune is not None and training.finetune.method != "freeze":
        reasons.append(("not supported yet: fused_mlp with adapters", "leave it out"))
    return [Finding(text, path, True, hint) for text, hint in reasons]


def permutation_findings(model: Model, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Why PyTorch's operations do not put tokens in order."""
    expert, path = parallelism.expert, "parallel.expert.permute_fusion"
    if expert.permute_fusion:
        return []
    reasons = []
    if not any(isinstance(operator, GroupedLinear) for operator in model.distinct_operators):
        reasons.append((f"{model.name} has no experts", "leave it out"))
    if not runtime.megatron:
        text = f"only Megatron-LM has the choice, not the layers of software.profile {runtime.profile}"
        reasons.append((text, "leave it out, or use software.profile megatron-core"))
    if expert.dispatcher == "hybridep" and parallelism.exchanges_tokens:
        reasons.append(("HybridEP puts tokens in order by kernels of its own", "leave it out, or use dispatcher alltoall"))
    return [Finding(text, path, False, hint) for text, hint in reasons]


def expert_findings(model: Model, training: Training, parallelism: Parallelism, mesh: Mesh) -> list[Finding]:
    """Why the experts of this model cannot be spread so; with the arithmetic."""
    expert = parallelism.expert
    if expert.pad_to_capacity and expert.capacity_factor is None:
        text = "pad_to_capacity pads experts' rows to a capacity, but none is given"
        return [Finding(text, "parallel.expert.pad_to_capacity", True, "write parallel.expert.capacity_factor, such as 1.25")]
    if expert.shared_overlap and (findings := shared_overlap_findings(model, training, parallelism)):
        return findings
    if expert.fused_mlp and (findings := _fused_findings(model, training, parallelism)):
        return findings
    if not parallelism.exchanges_tokens and expert.imbalance == 1.0 and expert.capacity_factor is None and not expert.in_turn:
        return []
    if shared := shared_layers(model):
        return fully_connected_findings(shared, model, training, parallelism, mesh)
    layers = [operator for operator in model.distinct_operators if isinstance(operator, GroupedLinear)]
    if not layers:
        asked = {
            _SIZE: expert.size > 1, _CAPACITY: expert.capacity_factor is not None, _TENSOR: expert.tensor > 0, _ROUTING: expert.in_turn,
        }  # fmt: skip
        path = next((path for path, said in asked.items() if said), "parallel.expert.imbalance")
        return [Finding(f"{model.name} has no experts", path, None, "leave parallel.expert out")]
    if expert.in_turn and (findings := _in_turn_findings(parallelism)):
        return findings
    if not parallelism.exchanges_tokens and expert.imbalance == 1.0:
        return []
    if not parallelism.exchanges_tokens:
        text = "every rank holds all experts, so their load cannot be uneven"
        shown = expert.imbalance if isinstance(expert.imbalance, float) else None
        return [Finding(text, "parallel.expert.imbalance", shown, "leave it out, or use expert parallelism (parallel.expert.size)")]
    findings = [
        *_mesh_findings(parallelism, mesh, gcd(*(layer.experts for layer in layers))),
        *_width_findings(parallelism.expert_width, layers),
    ]
    if mesh.size(TENSOR) > 1 and not parallelism.tensor.sequence_parallel:
        text = "tensor and expert parallelism together need sequence parallelism: every rank dispatches its own tokens"
        findings.append(Finding(text, "parallel.tensor.sequence_parallel", False, "use true"))
    if isinstance(expert.imbalance, Histogram):
        findings += histogram_findings(expert.imbalance, model)
    findings += _strategy_findings(parallelism)
    findings += _dispatcher_findings(expert, expert.size * parallelism.expert_width)
    return findings


def _in_turn_findings(split: Parallelism) -> list[Finding]:
    """Where it does not matter that tokens visit the experts in turn, or contradicts their load."""
    if not split.exchanges_tokens:
        text, hint = "every rank holds all experts, so tokens visit no other ranks", f"leave it out, or use expert parallelism ({_SIZE})"
    elif split.expert.dispatcher not in EXCHANGE_SMS:
        text = f"{split.expert.dispatcher} sends as much wherever the experts of a token are"
        hint = f"leave it out, or use dispatcher {' or '.join(EXCHANGE_SMS)}"
    elif split.expert.imbalance != 1.0:
        text, hint = "experts that are visited in turn get as many tokens each", "leave parallel.expert.imbalance out"
    else:
        return []
    return [Finding(text, _ROUTING, "round-robin", hint)]


def _dispatcher_findings(expert: ExpertParallel, ranks: int) -> list[Finding]:
    """What the dispatcher of `ranks` ranks cannot do."""
    findings = []
    own = expert.dispatcher in EXCHANGE_SMS
    if own and expert.pad_to_capacity:
        text = f"{expert.dispatcher} sends only actual tokens and does not pad (Megatron-LM: token_dispatcher.py)"
        findings.append(Finding(text, "parallel.expert.pad_to_capacity", True, "leave it out, or use dispatcher alltoall"))
    if expert.dispatcher == "deepep" and ranks > _DEEPEP_MACHINE and ranks % _DEEPEP_MACHINE:
        text = (
            f"DeepEP exchanges among at most {_DEEPEP_MACHINE} ranks, or whole machines of {_DEEPEP_MACHINE}: not {ranks} (csrc/config.hpp)"
        )
        findings.append(Finding(text, _SIZE, expert.size, f"use a multiple of {_DEEPEP_MACHINE}, or dispatcher alltoall"))
    if expert.sms and not own:
        text = f"{expert.dispatcher} is a collective of the library, which chooses its multiprocessors itself"
        findings.append(Finding(text, "parallel.expert.sms", expert.sms, f"leave it out, or use dispatcher {' or '.join(EXCHANGE_SMS)}"))
    sums = own or expert.dispatcher == "allgather" or ranks > expert.size
    if expert.combine_dtype == "fp8" and sums:
        who = expert.dispatcher if expert.dispatcher != "alltoall" else "the reduce-scatter over expert tensor ranks"
        text = f"{who} sums results during combine, in 16 bits or more"
        findings.append(
            Finding(text, "parallel.expert.combine_dtype", "fp8", "use bf16, or dispatcher alltoall with parallel.expert.tensor 1")
        )
    return findings


def _mesh_findings(split: Parallelism, mesh: Mesh, experts: int) -> list[Finding]:
    """Sizes that do not divide, and an order of axes in which experts have no place."""
    findings = []
    expert, width, stage = split.expert, split.expert_width, split.stage_ranks
    product = " x ".join(f"{axis} {mesh.size(axis)}" for axis in (TENSOR, *REPLICATING))
    if stage % (expert.size * width):
        over = f"(expert {expert.size} x expert tensor {width})"
        text = f"{product} = {stage} ranks / {over} = {stage / (expert.size * width):.4g} is not whole"
        legal = [str(n) for n in range(1, stage // width + 1) if stage % (n * width) == 0 and experts % n == 0]
        findings.append(Finding(text, _SIZE, expert.size, f"use {' or '.join(legal)}" if legal else f"use a smaller {_TENSOR}"))
    if experts % expert.size:
        whole = [n for n in range(1, experts + 1) if experts % n == 0]
        legal = [str(n) for n in [n for n in whole if stage % (n * width) == 0] or whole]
        text = f"{experts} experts / expert size {expert.size} = {experts / expert.size:.4g} is not whole"
        findings.append(Finding(text, _SIZE, expert.size, f"use {' or '.join(legal)}"))
    inner = [axis for axis in mesh.order if axis != PIPELINE and mesh.size(axis) > 1]
    if inner and TENSOR in inner and inner[0] != TENSOR:
        text = f"experts are distributed along {' x '.join(inner)}, neighbours first, and the ranks that share an expert are tensor ranks"
        findings.append(Finding(text, "parallel.order", list(mesh.order), "put tensor first"))
    return findings


def _strategy_findings(split: Parallelism) -> list[Finding]:
    """Data-parallel strategies that do not keep experts that are spread, and shard groups that hold no whole copy of them."""
    data, path = split.data, "parallel.data.strategy"
    use = f"use {' or '.join(_STRATEGIES[1:])}"
    if data.strategy == "zero3":
        text = "DeepSpeed does not support expert parallelism with ZeRO-3 (runtime/engine.py: MoE not supported with Stage 3)"
        return [Finding(text, path, data.strategy, use)]
    if data.strategy not in _STRATEGIES:
        return [Finding(f"not supported yet: expert parallelism with {data.strategy}", path, data.strategy, use)]
    if data.strategy not in ("fsdp", "hsdp"):
        return []
    findings = []
    if data.fsdp_version == 1:
        text = "not supported yet: expert parallelism with flat parameters"
        findings.append(
            Finding(text, "parallel.data.fsdp_version", 1, "use 2 (fully_shard), where the experts of a layer are a separate unit")
        )
    if data.unit == "model":
        text = "not supported yet: expert parallelism with all layers in one unit"
        findings.append(Finding(text, "parallel.data.unit", data.unit, "use layer or block"))
    ranks, held = (data.shard_size or data.size * split.context.size) * split.tensor.size, split.expert.size * split.expert_width
    if ranks % held:
        where = f"shard group {ranks // split.tensor.size} x tensor {split.tensor.size} = {ranks} ranks"
        text = f"{where} / (expert {split.expert.size} x expert tensor {split.expert_width}) = {ranks / held:.4g} is not whole"
        hint = f"use a shard group of {held // gcd(held, split.tensor.size)} ranks or a multiple of it, or a smaller {_SIZE}"
        findings.append(Finding(text, "parallel.data.shard_size", data.shard_size or "auto", hint))
    return findings


def _width_findings(width: int, layers: Sequence[GroupedLinear]) -> list[Finding]:
    """Widths of experts that the ranks cannot share equally."""
    of_experts = layers[1].in_features if len(layers) > 1 else layers[0].out_features
    if of_experts % width:
        text = f"expert width {of_experts} / expert tensor size {width} = {of_experts / width:.4g} is not whole"
        return [Finding(text, _TENSOR, width, "use a size that divides it")]
    return []


@dataclass(frozen=True)
class SeveralStrategies(Sharding):
    """Strategies that each keep some of the weights of a chunk: every one is asked for its own, in their order."""

    parts: tuple[Replicated, ...]
    _part_of: dict[str, Replicated] = field(init=False, default_factory=dict)

    shares_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._part_of.update({weight.name: part for part in self.parts for weight in part.weights})

    def part_of(self, weight: Weight) -> Replicated:
        """The strategy that keeps a weight."""
        return self._part_of[weight.name]

    def _own(self, weights: Sequence[Weight]) -> Iterator[tuple[Replicated, list[Weight]]]:
        """The strategies that keep some of these weights, with those."""
        for part in self.parts:
            if own := [weight for weight in weights if self.part_of(weight) is part]:
                yield part, own

    def resident(self, at: Emitter) -> list[str]:
        return [name for part in self.parts for name in part.resident(at)]

    def state(self) -> Hashable:
        return tuple(part.state() for part in self.parts)

    def restore(self, state: Hashable) -> None:
        if isinstance(state, tuple):
            for part, own in zip(self.parts, state, strict=True):
                part.restore(own)

    def step_begins(self, at: Emitter) -> None:
        for part in self.parts:
            part.step_begins(at)

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        for part in self.parts:
            part.pass_begins(units, at, backward=backward)

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.before_forward(unit, at)

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.after_forward(unit, at)

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.before_backward(unit, at)

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        for part, own in self._own(weights):
            part.before_gradient(unit, own, at)

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        for part, own in self._own(weights):
            part.gradient(unit, own, at)

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.after_backward(unit, at)

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        for part in self.parts:
            part.pass_ends(at, backward=backward)

    def finish_gradients(self, at: Emitter) -> None:
        for part in self.parts:
            part.finish_gradients(at)

    def step(self, at: Emitter) -> None:
        for part in self.parts:
            part.step(at)

    def distribute(self, at: Emitter) -> None:
        for part in self.parts:
            part.distribute(at)
