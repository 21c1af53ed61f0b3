"""What a rank does to its tokens before and behind the messages that bring them to their experts and back, by dispatcher.

Megatron-LM (megatron/core/transformer/moe/token_dispatcher.py), T tokens of a rank with k experts each:

==========  ===================================================  ==================================================================
dispatcher  towards the experts                                  back
==========  ===================================================  ==================================================================
alltoall    copies in order of their experts | sort by expert    sort by rank | sum of the copies
allgather   | copies of all ranks' tokens for the own experts    sums over the own experts, for all ranks' tokens |
deepep      | copies of what arrived, once per rank              sums over the own experts |
hybridep    | copies of what arrived, once per rank              sums over the own experts |
==========  ===================================================  ==================================================================

The messages stand at the bar. DeepEP's and HybridEP's kernels send a token once to each rank and sum over ranks; copies for the experts of
a rank, and sums over them, are kernels of their own: Megatron-LM's behind DeepEP, HybridEP's own permute and unpermute, which fill up the
rows of experts, too, unless --moe-permute-fusion-into-hybridep (deepseek-ai/DeepEP, branch hybrid-ep, csrc/hybrid_ep/extension/permute.cu;
pull request 588 names the kernels of each call). Tokens that travel in fp8 are cast before, with a scale per 128
values (deepseek-ai/DeepEP README.md), and back to the type of activations behind.

Copies, sorts and sums are one kernel each, or, but for HybridEP's, PyTorch's operations (`parsim.model.permutation`).
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.permutation import Permutation, chunks_sorted
from parsim.model.workload import Workload, dispatched
from parsim.routing import Routing

SCALED = 128
"""values that share a scale in fp32 on the wire"""
PERMUTED = 1.8
"""bytes of a streaming kernel that takes as long as HybridEP's permute and unpermute, over those that they move. Means of both kernels in
profiles: 208 us for 702 MB of DeepSeek-V3 on B200 (togethercomputer/together-dgxc-benchmarking 661e8e1, NeMo 26.02), 231 us for 410 MB of
Nemotron 3 Nano on GH200 (GeodesicResearch/geodesic-megatron, E-036), 1,206 us for 5.2 GB of 36 experts a token on Blackwell
(harryzhou2000/megatron-lm-moe-experiments 945e8fe, before its changes): 2.0, 1.83 and 1.6 times a stream's"""


def token_bytes(hidden: int, at: Workload, *, fp8: bool) -> int:
    """Bytes of a token on the wire.

    >>> token_bytes(7168, Workload(1), fp8=False), token_bytes(7168, Workload(1), fp8=True)
    (14336, 7392)
    """
    return hidden + 4 * -(-hidden // SCALED) if fp8 else hidden * at.element


@dataclass(frozen=True, slots=True)
class Way:
    """One way of the tokens of a layer: kernels before and behind its messages, and what they keep meanwhile."""

    before: tuple[Memory, ...] = ()
    behind: tuple[Memory, ...] = ()
    buffers: int = 0
    """beside the tokens that enter and those that leave [B]"""
    counts: tuple[int, int] = (0, 0)
    """times that the host waits for a number of rows in what stands (before, behind) the messages"""

    @property
    def kernels(self) -> tuple[Memory, ...]:
        """All of them, in order."""
        return (*self.before, *self.behind)


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """The tokens of a layer between one rank and the ranks of their experts."""

    at: Workload
    hidden: int
    routing: Routing
    summed: bool = False
    """the rank's own end is the sum of a token's copies and its gradient (combine), not their making (dispatch)"""

    @property
    def _tokens(self) -> int:
        return self.at.local_tokens

    @property
    def _sent(self) -> int:
        """Rows of the rank's own tokens."""
        return round(self._tokens * self.routing.top_k * self.at.expert_sent)

    @property
    def _received(self) -> int:
        """Rows that its experts work on, gathered over the ranks that share an expert's width."""
        return dispatched(self.at, self.routing.top_k)

    @property
    def _arrived(self) -> int:
        """Rows that arrive where each rank gets a token once."""
        return round(self._tokens * self.routing.visited() * self.at.expert_imbalance)

    @property
    def _permuted(self) -> float:
        """Rows read and written where those that arrive are copied for the rank's own experts or summed, at a stream's rate."""
        return (self._arrived + self._received) * (PERMUTED if self.at.dispatcher == "hybridep" else 1)

    @property
    def _gathered(self) -> int:
        """Tokens of all ranks that hold the experts together."""
        return self._tokens * self.at.expert * self.at.expert_width

    @property
    def by_operations(self) -> bool:
        """PyTorch's operations put rows in order."""
        return not (self.at.permute_fusion or (self.at.exchanges_tokens and self.at.dispatcher == "hybridep"))

    @property
    def permutation(self) -> Permutation:
        """What they work on: the rank's own tokens for all experts, or what has arrived for its own experts."""
        if not self.at.exchanges_tokens:
            return Permutation(self.at.tokens, self.routing.experts, self._received, self.hidden)
        if self.at.dispatcher == "alltoall":
            return Permutation(self._tokens, self.routing.experts, self._sent, self.hidden)
        tokens = self._gathered if self.at.dispatcher == "allgather" else self._arrived
        return Permutation(tokens, -(-self.routing.experts // self.at.expert), self._received, self.hidden)

    def _copied(self, fused: float, width: int) -> tuple[Memory, ...]:
        """Copies of tokens, and their weights, or the gradients of sums; one kernel moves `fused` bytes."""
        if not self.by_operations:
            return (Memory(fused),)
        order = self.permutation
        return (order.gathered(width),) if self.summed else (order.choice, order.weights, order.copied(width))

    def _summed(self, fused: float, width: int) -> tuple[Memory, ...]:
        """Sums of copies, or the gradients of tokens and of their weights."""
        if not self.by_operations:
            return (Memory(fused),)
        order = self.permutation
        return order.summed(width) if self.summed else (order.weight_gradients, *order.added(width))

    @property
    def _choices(self) -> int:
        """Times that the host waits for the numbers of chosen rows and of their weights."""
        return 2 if self.by_operations and not self.summed else 0

    def _cast(self, rows: int, *, fp8: bool) -> tuple[Memory, ...]:
        """Rows into fp8, or out of it."""
        return (Memory(rows * (self.hidden * self.at.element + token_bytes(self.hidden, self.at, fp8=True))),) if fp8 else ()

    def _own(self, width: int) -> int:
        """Bytes of the copies of the rank's own tokens, made or summed, in rows of `width` bytes."""
        return self._sent * width + (self._tokens if self.summed else self._sent) * width

    @property
    def leaving(self) -> Way:
        """Towards the experts: dispatch, and the gradient of combine."""
        if not self.at.exchanges_tokens:
            return self._chosen
        fp8 = self.at.dispatch_fp8
        width = token_bytes(self.hidden, self.at, fp8=fp8)
        cast, back = self._cast(self._tokens, fp8=fp8), self._cast(self._received, fp8=fp8)
        casts = (self._tokens + self._received) * width * fp8
        match self.at.dispatcher:
            case "hybridep" | "deepep":  # what arrives lies in HybridEP's own buffer
                ordered = self._copied(self._permuted * width, width)
                buffers = casts + self._arrived * width * (self.at.dispatcher == "deepep")
                return Way(cast, (*ordered, *back), buffers, (0, self._choices))
            case "allgather":
                ordered = self._copied(2 * self._received * width, width)
                return Way(cast, (*ordered, *back), casts + self._gathered * width, (0, self._choices))
        sorting, own = self._sorting(width), self._copied(self._own(width), width)
        buffers = casts + (self._sent + self._received * len(sorting)) * width
        return Way((*cast, *own), (*sorting, *back), buffers, (self._choices, 0))

    @property
    def returning(self) -> Way:
        """Back from them: combine, and the gradient of dispatch."""
        if not self.at.exchanges_tokens:
            return self._restored
        fp8 = self.at.combine_fp8
        width = token_bytes(self.hidden, self.at, fp8=fp8)
        row = self.hidden * self.at.element
        match self.at.dispatcher:
            case "hybridep" | "deepep":
                sums = self._summed(self._permuted * row, row)
                return Way(sums, (), self._arrived * row * (self.at.dispatcher == "deepep"))
            case "allgather":
                return Way(self._summed((self._received + self._gathered) * row, row), (), self._gathered * row)
        sorting, own = self._sorting(width), self._summed(self._own(row), row)
        cast, back = self._cast(self._received, fp8=fp8), self._cast(self._sent, fp8=fp8)
        casts = (self._received + self._sent) * width * fp8
        return Way((*cast, *sorting), (*back, *own), casts + (self._sent + self._received * len(sorting)) * width)

    @property
    def _chosen(self) -> Way:
        """Where every rank holds all experts, and operations put rows in order: sums weight them."""
        order, row = self.permutation, self.hidden * self.at.element
        if not self.summed:
            return Way((order.choice, order.copied(row)), counts=(1, 0))
        return Way((order.gathered(row), *order.weighting_gradients(row), order.weight_gradients), buffers=2 * order.rows * row)

    @property
    def _restored(self) -> Way:
        """And the way back."""
        order, row = self.permutation, self.hidden * self.at.element
        if not self.summed:
            return Way(order.added(row))
        return Way((order.weights, order.weighted(row), *order.summed(row)), buffers=order.rows * row, counts=(1, 0))

    def _sorting(self, width: int) -> tuple[Memory, ...]:
        """What orders the rows of several experts by expert, or back by rank."""
        chunks = self.routing.experts * self.routing.width
        if self.routing.experts <= self.routing.slots:
            return ()
        if self.by_operations:
            return (chunks_sorted(self._received, width, chunks, weights=not self.summed),)
        return (Memory(2 * self._received * width),)
