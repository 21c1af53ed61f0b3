"""A mixture of experts as operators: router, dispatch, grouped products, combine (Switch 2101.03961, MegaBlocks 2211.15841).

Under expert parallelism (`Workload.exchanges_tokens`) a rank has its share of the experts. It sends its tokens to the ranks of
their experts and gets their outputs back; the messages stand between the kernels of `Dispatch` and `Combine`:
`parsim.model.exchange`, `parsim.parallel.experts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.elementwise import Activation, GatedActivation, ResidualAdd, SharedGate
from parsim.model.exchange import ExpertExchange
from parsim.model.linear import Linear, product_casts, saved_input
from parsim.model.model import Layer, Operator, Parameter, Save, Work
from parsim.model.paged_stash import headroom, kept
from parsim.model.permutation import SortedRows
from parsim.model.workload import Split, Workload, dispatched, expert_shard
from parsim.routing import Routing

BIAS_ISSUES = {True: (577.0, 1049.0), False: (143.0, 578.0)}
"""of the weighted bias of the second product, (forward, backward) for an element of its output [FLOP]: `Memory.vector` of what PyTorch
does element by element and of its sums; keys: weights in fp32, in bf16. 16 experts of 4,096 x 2,880 on an H100 SXM (PyTorch 2.11): 1,624
and 2,956 us, 403 and 1,628 us, 50 to 83 % of the issue slots and 3 to 60 % of the memory busy"""


@dataclass(frozen=True, slots=True)
class Router(Layer):
    """Scores every token for every expert in fp32 and picks `top_k`; output: the chosen weights (fp32) and experts (int64).

    Unfused with `fp32`, the product keeps fp32 copies of the tokens and of its weights (transformers'
    ``DeepseekV3TopkRouter``); `renormalise` keeps the sum of each token's chosen weights.
    """

    hidden: int
    experts: int
    top_k: int
    bias_buffer: bool = False
    """a routing bias per expert that no gradient updates (DeepSeek-V3)"""
    fp32: bool = False
    renormalise: bool = False
    parameter_name: str = ""
    bias: bool = False
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True
    scaled: bool = False
    """the chosen weights are multiplied by a learned number per expert (Gemma 4's ``per_expert_scale``)"""
    bias_counted: bool = False
    """with bias_buffer: it is a parameter without a gradient, not a buffer"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [experts, hidden] (and a bias; before it, a number per expert)."""
        name = self.parameter_name or self.name
        weight = Parameter(f"{name}.weight", (self.experts, self.hidden), trainable=self.trainable)
        bias = Parameter(f"{name}.bias", (self.experts,), trainable=self.trainable)
        correction = f"{name}.e_score_correction_bias"
        buffer = Parameter(correction, (self.experts,), trainable=False, buffer=not self.bias_counted, element=4)
        scale = Parameter(f"{name}.per_expert_scale", (self.experts,), trainable=self.trainable)
        before, behind = ((scale,) if self.scaled else ()), ((bias,) if self.bias else ())
        return (*before, weight, *behind, *((buffer,) if self.bias_buffer else ()))

    def training_work(self, at: Workload) -> Work:
        """2 T h E operations each way and the softmax."""
        upcast = self.fp32 and not at.library and at.element < 4
        m, e = at.local_tokens, 4 if upcast else at.element
        dtype = "fp32" if upcast else at.product_type("router")
        operand = 1 if dtype == "fp8" else e
        scores = m * self.experts
        weight: tuple[Kernel, ...] = (Gemm(self.experts, self.hidden, m, dtype=dtype, element=operand, weight_gradient=True, layout="NT"),)
        source = f"{self.name}.fp32" if upcast else f"{self.name}.input_fp8" if dtype == "fp8" else self.inputs[0]
        saves: tuple[Save, ...] = (Save(source, m * self.hidden * operand, "weight"),) if self.trainable else ()
        saves += (Save(f"{self.name}.scores", 4 * scores),)
        copies: tuple[Kernel, ...] = ()
        if upcast:
            copies = (Memory((at.element + 4) * self.hidden * (m + self.experts), launches=2),)
            saves += (Save(f"{self.name}.weight_fp32", 4 * self.experts * self.hidden),)
        if self.renormalise and not at.library:
            saves += (Save(f"{self.name}.sum", 4 * m),)
        chosen: tuple[tuple[Kernel, ...], tuple[Kernel, ...]] = ((), ())
        if self.scaled:  # gathered, multiplied; backward: the weights' product, and for the numbers a product, zeros and sums by expert
            choice = m * self.top_k
            gathered = at.element * choice
            chosen = (Memory(2 * gathered + 8 * choice + gathered, launches=2),), (Memory(3 * gathered + 24 * choice, launches=4),)
            saves += (Save(f"{self.name}.numbers", gathered),)
            saves += (Save(f"{self.name}.unscaled", 4 * choice),) if self.trainable else ()
        return Work(
            (*copies, Gemm(m, self.experts, self.hidden, dtype=dtype, element=operand), Memory((e + 12) * scores, launches=3), *chosen[0]),
            (
                *chosen[1],
                Memory((e + 12) * scores, launches=3),
                Gemm(m, self.hidden, self.experts, dtype=dtype, element=operand, layout="NN"),
                *copies,
            ),
            weight if self.trainable else (),
            output=12 * m * self.top_k,
            input_gradients=(m * self.hidden * at.element,),
            saves=saves,
            backward_temporary=4 * scores,
        )


@dataclass(frozen=True, slots=True)
class Dispatch(Layer):
    """Copies tokens into the order of their experts; `inputs` is (tokens, router's output).

    A fused kernel keeps the order (8 B per copy); transformers' ``grouped_mm_experts_forward`` three index tensors: of
    the tokens, of their weights, and of the way back. PyTorch's operations in Megatron-LM keep the order and what they choose weights from
    (`parsim.model.permutation`).
    """

    hidden: int
    top_k: int
    experts: int
    groups: tuple[int, int] = (0, 0)
    """groups of experts among which a token chooses first, and how many it chooses; 0: it does not"""
    split: Split = "replicated"
    selective: str = ""

    def exchange(self, at: Workload) -> ExpertExchange:
        """How tokens leave, and how their gradients come back."""
        return ExpertExchange(at, self.hidden, routing(self, at))

    def training_work(self, at: Workload) -> Work:
        """A gather forward, a sum of the copies backward."""
        copies, source = dispatched(at, self.top_k), at.local_tokens * self.hidden * at.element
        output = copies * self.hidden * at.element
        saves: tuple[Save, ...] = (Save(f"{self.name}.order", (8 if at.library else 24) * copies),)
        exchange = self.exchange(at)
        if exchange.by_operations:
            saves = (Save(f"{self.name}.order", exchange.permutation.order),)
            if at.exchanges_tokens:
                saves += (Save(f"{self.name}.chosen_from", exchange.permutation.chosen_from),)
        elif not at.exchanges_tokens:
            if not at.fused:
                ordered = SortedRows(at.local_tokens, copies, self.hidden * at.element)
                return Work(ordered.copied, ordered.added, (), output, (source, -1), saves)
            kernel = Memory(2 * output)
            return Work((kernel,), (kernel,), (), output, (source, -1), saves)
        leaving, returning = exchange.leaving, exchange.returning
        return Work(
            leaving.kernels, returning.kernels, (), output, (source, -1), saves,
            forward_temporary=leaving.buffers, backward_temporary=returning.buffers,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupedLinear(Layer):
    """One product per expert, with weights [experts, out, in]; tokens spread evenly over a rank's experts.

    Narrow products take rows of an expert by 16 or more (`Quantisation.padding`). Transformer Engine copies the tokens into such rows
    before the first product and the results out of them behind the second, and their gradients the other way (NVIDIA/Megatron-LM:
    megatron/core/transformer/moe/experts.py, quantization_padding; not with --moe-router-padding-for-quantization).
    """

    in_features: int
    out_features: int
    experts: int
    top_k: int
    split: Split = "column"
    """column | row: width split over tensor ranks within every expert"""
    parameter_name: str = ""
    bias: bool = False
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """One tensor for all experts (and one of biases)."""
        name = self.parameter_name or self.name
        column = self.split == "column"
        weight = Parameter(
            name, (self.experts, self.out_features, self.in_features), 1 if column else 2, trainable=self.trainable, expert=True
        )
        bias = Parameter(f"{name}_bias", (self.experts, self.out_features), 1 if column else None, trainable=self.trainable, expert=True)
        return (weight, bias) if self.bias else (weight,)

    def filled(self, at: Workload) -> float:
        """Share of the executed rows that are tokens: every expert runs on the same whole number of rows."""
        local, rows = self._rows(at)
        copies = dispatched(at, self.top_k)
        return copies / (rows * local) if copies else 1.0

    def _rows(self, at: Workload) -> tuple[int, int]:
        """(experts of the rank, rows that the product of each of them executes)."""
        local = -(-self.experts // at.expert)
        rows = -(-dispatched(at, self.top_k) // local)
        return local, rows + (at.casts.padding if at.casts is not None and rows else 0)

    def _padding(self, at: Workload, copies: int, n: int, k: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """Copies of `copies` rows into the rows that products take, or out of them: (before, behind) the forward product."""
        in_order = at.fused_experts or (at.exchanges_tokens and at.dispatcher == "hybridep")
        if at.casts is None or not at.casts.pads_by_itself or in_order:
            return (), ()
        column = self.split == "column"
        return ((Memory(2 * copies * k * at.element),), ()) if column else ((), (Memory(2 * copies * n * at.element),))

    def _weighted_bias(self, at: Workload, elements: int, local: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """Megatron's bias of the second product, which the router's weights scale: (behind the forward product, before the backward one).

        It is added expert by expert and the parts are joined, in the type of the weights, which DeepEP and HybridEP hand out in fp32
        (megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias; token_dispatcher.py, "only supports float32 probs").
        Forward: bias x weight written; product and that read, sum written; parts read, whole written; a cast. Backward: a cast; parts
        joined; the gradients of bias and of weight, each a product (read, written) and its sum (read). What PyTorch does element by
        element, or sums over rows, is bound by what the multiprocessors issue (`BIAS_ISSUES`).
        """
        if not (self.bias and at.library and self.split == "row" and elements):
            return (), ()
        if at.fused_experts:
            return (), (Memory(at.element * elements),)
        local = 1 if at.single_grouped else local
        narrow, wide = at.element, 4 if at.dispatcher in ("deepep", "hybridep") else at.element
        casts = wide != narrow
        ahead, back = (issued * elements for issued in BIAS_ISSUES[casts])
        if casts:
            product, joined = wide + (narrow + 2 * wide), 2 * wide + (wide + narrow)
        else:
            product, joined = wide, (narrow + 2 * wide) + 2 * wide
        each = 2 if casts else 1
        forward = (
            Memory(product * elements, launches=each * local, vector=ahead),
            Memory(joined * elements, launches=(2 - each) * local + 1 + casts),
        )
        backward = (
            Memory((casts * (wide + narrow) + 6 * wide) * elements, launches=4 * local + casts, vector=back),
            Memory((casts * (wide + narrow) + 2 * narrow) * elements, launches=casts * local + 1),
        )
        return forward, backward

    def training_work(self, at: Workload) -> Work:
        """As `Linear`, on top_k copies of each token.

        Transformer Engine launches the product of every expert by itself, on streams in turn, and quantises its rows by itself but under
        delayed scaling (nvte_multi_tensor_gemm in gemm/cublaslt_gemm.cu, multi_tensor_quantize_impl in pytorch/csrc/extensions/cast.cpp).
        """
        copies = dispatched(at, self.top_k)
        local, m = self._rows(at)
        padded = copies + (at.casts.padding * local if at.casts is not None and copies else 0)
        n = expert_shard(self.out_features, at) if self.split == "column" else self.out_features
        k = expert_shard(self.in_features, at) if self.split == "row" else self.in_features
        operand = at.operand
        casts = product_casts(at, (padded * k, padded * k), (padded * n, padded * n), local * n * k, trains=self.trainable)
        each = local if at.library and not (at.fused_experts or at.single_grouped) else 1
        if at.casts is not None and not at.casts.takes_lists:
            casts = casts.one_by_one(each)
        if at.fused_experts:  # the product before it has cast what this one reads
            casts = casts._replace(input=()) if self.split == "column" else casts._replace(forward=())
        before, behind = self._padding(at, copies, n, k)
        added, split_again = self._weighted_bias(at, copies * n, local)
        weight: tuple[Kernel, ...] = ()
        saves: tuple[Save, ...] = ()
        if self.trainable:
            product = Gemm(n, k, m, local, at.dtype, operand, weight_gradient=True, layout=casts.layouts[1], grouped=True, launches=each)
            weight = (*casts.weight, product)
            saves = (saved_input(self.name, self.inputs[0], padded * k if at.casts is not None and at.casts.saved else copies * k, at),)
            summed = casts.fused_bias or at.fused_experts or split_again
            weight += (Memory(copies * n * at.element),) if self.bias and not summed else ()
        if self.split == "column" and not at.library:
            saves += (Save(f"{self.name}.offsets", 4 * local),)
        held = 0
        if at.paged_stash:
            held = sum(kept(self, at))
            saves += (Save(f"{self.name}.pages", headroom(self, at)),)
        forward = Gemm(m, n, k, local, at.dtype, operand, grouped=True, launches=each)
        backward = Gemm(m, k, n, local, at.dtype, operand, layout=casts.layouts[0], grouped=True, launches=each)
        return Work(
            (*before, *casts.forward, forward, *added, *behind),
            (*behind, *split_again, *casts.input, backward, *before),
            weight,
            copies * n * at.element,
            (0 if at.fused_experts and self.split == "row" else copies * k * at.element,),
            saves,
            forward_temporary=held,
            backward_temporary=held,
        )


@dataclass(frozen=True, slots=True)
class Combine(Layer):
    """The weighted sum of each token's expert outputs; `inputs` is (expert outputs, router's output), both kept.

    Unfused, the weights are kept a second time, in the order of the experts (transformers' ``grouped_mm_experts_forward``). So they are
    by PyTorch's operations in Megatron-LM, with what they were chosen from (`parsim.model.permutation`).
    Under expert parallelism the weights have travelled with the tokens and are applied inside the experts, so that what comes back is
    only summed and not kept (Megatron-LM: experts.py, permuted_probs).
    """

    hidden: int
    top_k: int
    experts: int
    groups: tuple[int, int] = (0, 0)
    """as of `Dispatch`"""
    split: Split = "replicated"
    selective: str = ""

    def exchange(self, at: Workload) -> ExpertExchange:
        """How outputs come back, and how their gradients leave."""
        return ExpertExchange(at, self.hidden, routing(self, at), summed=True)

    def training_work(self, at: Workload) -> Work:
        """A scatter with weights both ways."""
        source = dispatched(at, self.top_k) * self.hidden * at.element
        output, choice = at.local_tokens * self.hidden * at.element, at.local_tokens * self.top_k
        exchange = self.exchange(at)
        saves: tuple[Save, ...] = (Save(self.inputs[1], 12 * choice),)
        if not at.exchanges_tokens:
            saves = (Save(self.inputs[0], source), *saves)
            if not at.library or exchange.by_operations:
                saves += (Save(f"{self.name}.weights", 4 * dispatched(at, self.top_k)),)
            if exchange.by_operations:
                saves += (Save(f"{self.name}.chosen_from", exchange.permutation.chosen_from),)
        if at.exchanges_tokens or exchange.by_operations:
            leaving, returning = exchange.leaving, exchange.returning
            return Work(
                returning.kernels, leaving.kernels, (), output, (source, 4 * choice), saves,
                forward_temporary=returning.buffers, backward_temporary=leaving.buffers,
            )  # fmt: skip
        if not at.fused:
            ordered = SortedRows(at.local_tokens, dispatched(at, self.top_k), self.hidden * at.element)
            return Work(
                ordered.summed, ordered.spread, (), output, (source, 4 * choice), saves,
                forward_temporary=2 * source, backward_temporary=2 * source,
            )  # fmt: skip
        return Work((Memory(source + output),), (Memory(2 * source + output),), (), output, (source, 4 * choice), saves)


def routing(operator: Dispatch | Combine, at: Workload) -> Routing:
    """Where the tokens of a layer go."""
    return Routing(operator.experts, operator.top_k, at.expert, at.expert_width, *operator.groups, in_turn=at.experts_in_turn)


def mixture_of_experts(  # noqa: PLR0913 - the sizes and options of one layer
    name: str,
    source: str,
    output: str,
    hidden: int,
    width: int,
    experts: int,
    top_k: int,
    *,
    gated: bool = True,
    kind: str = "silu",
    shared_width: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    router_bias_counted: bool = False,
    router_fp32: bool = False,
    renormalise: bool = False,
    groups: tuple[int, int] = (0, 0),
    bias: bool = False,
    clamp: bool = False,
    wide_sum: bool = False,
    bounded: bool = False,
    latent: int = 0,
    router_source: str = "",
    scaled: bool = False,
    parameter_names: Sequence[str] = ("gate", "experts.gate_up_proj", "experts.down_proj"),
    shared_names: Sequence[str] = ("shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj", "shared_expert_gate"),
) -> tuple[Operator, ...]:
    """The operators of one mixture layer from tensor `source` to tensor `output`; their names begin with `name`.

    `width` is one expert's, `shared_width` that of the MLP every token visits; `latent` that of tokens on their way to
    experts, 0 = `hidden`; `router_source` what the router reads where that is not `source`. `parameter_names`: router, first
    and second expert weights; `shared_names`: gate, up and down of the shared MLP (without `gated`: up and down) and its gate.
    """

    def tensor(word: str) -> str:
        return f"{name}.{word}"

    factor, inner = 2 if gated else 1, latent or hidden
    mixed = output if not shared_width else tensor("mixed")
    sent, combined = (tensor("latent"), tensor("latent_mixed")) if latent else (source, mixed)
    up, product = (tensor("up"),), tensor("product")
    activation: Operator = Activation(tensor("activation"), up, product, width, kind, "column", "moe_act", copies=top_k)
    if gated:
        activation = GatedActivation(
            tensor("activation"), up, product, width, kind, selective="moe_act", copies=top_k, clamp=clamp, bounded=bounded
        )
    operators: list[Operator] = [
        Router(
            tensor("router"), (router_source or source,), tensor("choice"), hidden, experts, top_k, router_bias, router_fp32,
            renormalise, parameter_names[0], bias, selective="moe", scaled=scaled, bias_counted=router_bias_counted,
        ),
        Dispatch(tensor("dispatch"), (sent, tensor("choice")), tensor("copies"), inner, top_k, experts, groups, selective="moe"),
        GroupedLinear(
            tensor("experts_up"), (tensor("copies"),), tensor("up"), inner, factor * width, experts, top_k, "column",
            parameter_names[1], bias, selective="moe",
        ),
        activation,
        GroupedLinear(
            tensor("experts_down"), (product,), tensor("down"), width, inner, experts, top_k, "row", parameter_names[2], bias,
            selective="moe",
        ),
        Combine(tensor("combine"), (tensor("down"), tensor("choice")), combined, inner, top_k, experts, groups, selective="moe"),
    ]  # fmt: skip
    if latent:
        down = Linear(
            tensor("latent_down"), (source,), sent, hidden, (latent,), False, parameter_names=("fc1_latent_proj",), selective="moe"
        )
        up_again = Linear(
            tensor("latent_up"), (combined,), mixed, latent, (hidden,), False, parameter_names=("fc2_latent_proj",), selective="moe"
        )
        operators = [operators[0], down, *operators[1:], up_again]
    if not shared_width:
        return tuple(operators)
    widths, again = (shared_width,) * factor, "shared_experts"
    names = tuple(shared_names)
    up, product = (tensor("shared_up"),), tensor("shared_product")
    shared: Operator = Activation(tensor("shared_activation"), up, product, shared_width, kind, "column", again)
    if gated:
        shared = GatedActivation(tensor("shared_activation"), up, product, shared_width, kind, selective=again, bounded=bounded)
    operators += [
        Linear(
            tensor("shared_up_projection"), (source,), tensor("shared_up"), hidden, widths, False, "column",
            names[:factor], selective=again,
        ),
        shared,
        Linear(
            tensor("shared_down_projection"), (product,), tensor("shared"), shared_width, (hidden,), False, "row", (names[factor],),
            selective=again,
        ),
    ]  # fmt: skip
    last = tensor("shared")
    if shared_gate:
        gate = SharedGate(tensor("shared_gate"), (source, last), tensor("shared_gated"), hidden, names[factor + 1], selective=again)
        operators.append(gate)
        last = gate.output
    operators.append(ResidualAdd(tensor("add_shared"), (mixed, last), output, hidden, selective="moe", wide=wide_sum))
    return tuple(operators)
