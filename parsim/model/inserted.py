"""Small trained modules between the operators of a frozen model: bottlenecks, learned scales, learned tokens.

bottleneck (Houlsby et al. 2019, 1902.00751): y + U silu(D norm(y)) behind attention and behind the MLP, D [width, h] and U [h, width]
without biases, as NVIDIA/NeMo has it (megatron/adapters/parallel_adapters.py: ParallelLinearAdapter with norm_position pre; its
AdapterName.PRE_ATTN_ADAPTER and POST_ATTN_ADAPTER both stand behind a sublayer).

ia3 (Liu et al. 2022, 2205.05638): a weight per feature of keys, of values and of the MLP's activation (NeMo: InfusedAdapter).

prompt (Lester et al. 2021, 2104.08691; P-tuning, Liu et al. 2021, 2103.10385): rows of a table take the place of the first tokens of each
sample, as they are or through an encoder: Linear layers with ReLU between them, or a bidirectional LSTM and two Linear layers (NeMo:
prompt_encoder.py, PromptEncoder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.elementwise import Activation, Dropout, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.model import Block, Layer, Operator, Parameter, Save, Work
from parsim.model.norms import LayerNorm
from parsim.model.workload import Split, Workload, elements

PromptEncoder = Literal["none", "mlp", "lstm"]
SUBLAYERS = ("attention_output", "mlp_down", "mixture")
"""operators behind which a bottleneck stands"""
_KEYS = {"query_key_value": ("key", "value"), "cross_key_value": ("cross_key", "cross_value")}
_ACTIVATION = "mlp_activation"


@dataclass(frozen=True, slots=True)
class Infused(Layer):
    """Weights for the last features of a tensor, in place where it has others: what they made is kept beside what they read."""

    features: tuple[int, ...]
    """of each weight"""
    width: int
    """of the tensor"""
    parameter_names: tuple[str, ...]
    split: Split = "column"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """One vector each."""
        pairs = zip(self.parameter_names, self.features, strict=True)
        return tuple(Parameter(f"{name}_infused.scalers", (count,), 0, trainable=self.trainable) for name, count in pairs)

    def training_work(self, at: Workload) -> Work:
        """A product forward and one backward; the weights' gradient is a product and a sum over rows."""
        size, kernels = elements(at, sum(self.features), self.split) * at.element, len(self.features)
        whole = sum(self.features) == self.width
        saves = (Save(self.inputs[0], size, "weight"),) if whole else (Save(f"{self.name}.scaled", size),)
        return Work(
            (Memory(2 * size, launches=kernels),),
            (Memory(2 * size, launches=kernels),),
            (Memory(4 * size, launches=2 * kernels),),
            size if whole else 0,
            (size if whole else 0,),
            saves,
            backward_temporary=0 if whole else size,
        )


@dataclass(frozen=True, slots=True)
class VirtualTokens(Layer):
    """Learned rows in place of the first `tokens` of every sample; made once a micro-batch and copied to its samples."""

    width: int
    tokens: int
    encoder: PromptEncoder = "none"
    hidden: int = 0
    """of the encoder"""
    layers: int = 2
    split: Split = "replicated"
    selective: str = ""

    def parameters(self) -> tuple[Parameter, ...]:
        """The table, then the encoder's weights and biases."""
        found = [Parameter(f"{self.name}.embedding.weight", (self.tokens, self.width))]
        if self.encoder == "lstm":
            for layer in range(self.layers):
                entering = 2 * self.hidden if layer else self.width
                for way in ("", "_reverse"):
                    found += [
                        Parameter(f"{self.name}.lstm_head.weight_ih_l{layer}{way}", (4 * self.hidden, entering)),
                        Parameter(f"{self.name}.lstm_head.weight_hh_l{layer}{way}", (4 * self.hidden, self.hidden)),
                        Parameter(f"{self.name}.lstm_head.bias_ih_l{layer}{way}", (4 * self.hidden,)),
                        Parameter(f"{self.name}.lstm_head.bias_hh_l{layer}{way}", (4 * self.hidden,)),
                    ]
        for number, (out, entering) in enumerate(self._products()):
            found += [Parameter(f"{self.name}.mlp_head.{2 * number}.weight", (out, entering))]
            found += [Parameter(f"{self.name}.mlp_head.{2 * number}.bias", (out,))]
        return tuple(found)

    def _products(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of the Linear layers."""
        match self.encoder:
            case "none":
                return ()
            case "lstm":
                return (2 * self.hidden, 2 * self.hidden), (self.width, 2 * self.hidden)
        widths = (self.width, *(self.hidden,) * (self.layers - 1), self.width)
        return tuple(zip(widths[1:], widths[:-1], strict=True))

    def _recurrent(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of a layer of the LSTM, each way, for all tokens; its products with the last state are one token's each."""
        if self.encoder != "lstm":
            return ()
        return tuple((4 * self.hidden, 2 * self.hidden if layer else self.width) for layer in range(self.layers) for _ in range(2))

    def training_work(self, at: Workload) -> Work:
        """The encoder's products on its few tokens, and the copies."""
        n, e = self.tokens, at.element
        dtype = "bf16" if at.narrow else at.dtype
        products = (*self._recurrent(), *self._products())
        forward: list[Kernel] = [Memory(2.0 * n * self.width * e)]
        weight: list[Kernel] = [Memory(2.0 * n * self.width * e)]
        back: list[Kernel] = []
        saves = []
        for number, (out, entering) in enumerate(products):
            forward += [Gemm(n, out, entering, dtype=dtype, element=e), Memory(2.0 * n * out * e)]
            back += [Memory(3.0 * n * out * e), Gemm(n, entering, out, dtype=dtype, element=e)]
            weight += [Gemm(out, entering, n, dtype=dtype, element=e, weight_gradient=True), Memory(1.0 * n * out * e)]
            saves += [Save(f"{self.name}.{number}", n * out * e, "weight")]
        steps = len(self._recurrent()) * n
        if steps:  # cuDNN walks the tokens one by one: a state's product with its weight, and the gates
            forward.append(Memory(steps * 4.0 * self.hidden**2 * e, flop=steps * 8.0 * self.hidden**2, launches=steps))
            back.append(Memory(steps * 4.0 * self.hidden**2 * e, flop=steps * 8.0 * self.hidden**2, launches=steps))
        copied = at.batch * n * self.width * e
        forward.append(Memory(2.0 * copied))
        # with the encoder's own gradients, as nothing of the words' table is wanted
        weight = [Memory(2.0 * copied), *back, *weight]
        return Work(tuple(forward), (), tuple(weight), 0, (0,), tuple(saves))


def bottlenecks(block: Block, hidden: int, width: int, *, dropout: bool) -> Block:
    """The block with a bottleneck of this width behind each of its sublayers."""

    def make(source: str, name: str) -> Sequence[Operator]:
        def tensor(word: str) -> str:
            return f"{name}_adapter_{word}"

        row: list[Operator] = [
            LayerNorm(tensor("norm"), (source,), tensor("norm"), hidden),
            Linear(tensor("down"), (tensor("norm"),), tensor("down"), hidden, (width,), False, "column", (f"{name}_adapter.linear_in",)),
            Activation(tensor("activation"), (tensor("down"),), tensor("activation"), width, "silu", "column"),
            Linear(tensor("up"), (tensor("activation"),), tensor("up"), width, (hidden,), False, "row", (f"{name}_adapter.linear_out",)),
        ]
        if dropout:
            row.append(Dropout(tensor("dropout"), (tensor("up"),), tensor("dropout"), hidden))
        return (*row, ResidualAdd(tensor("sum"), (row[-1].output, source), tensor("sum"), hidden))

    for name in SUBLAYERS:
        block = _behind(block, name, lambda source, name=name: make(source, name))  # type: ignore[misc]
    return block


def infused(block: Block, widths: tuple[int, int]) -> Block:
    """The block with learned scales of keys, values and of the MLP's activation; `widths`: (all of keys, the MLP's)."""
    for source, names in _KEYS.items():
        product = next((operator for operator in block.operators if operator.name == source), None)
        if isinstance(product, Linear):
            whole = sum(product.out_features)

            def scaled(read: str, source: str = source, names: tuple[str, ...] = names, whole: int = whole) -> Sequence[Operator]:
                return (Infused(f"{source}_infused", (read,), f"{source}_infused", (widths[0],) * 2, whole, names),)

            block = _behind(block, source, scaled)
    return _behind(block, _ACTIVATION, lambda read: (Infused("mlp_infused", (read,), "mlp_infused", (widths[1],), widths[1], ("mlp",)),))


def prompted(block: Block, tokens: VirtualTokens) -> Block:
    """The embedding with learned tokens at the begin of each sample."""
    return _behind(block, "word_embeddings", lambda read: (replace(tokens, inputs=(read,), output=tokens.name),))


def _behind(block: Block, name: str, make: Callable[[str], Sequence[Operator]]) -> Block:
    """The block with what `make` makes of the output of the last operator of this name (or whose name begins with ``NAME.``) behind it."""
    places = [index for index, operator in enumerate(block.operators) if operator.name == name or operator.name.startswith(f"{name}.")]
    if not places:
        return block
    place = places[-1]
    before, source = block.operators[place], block.operators[place].output
    if source == "output":
        source = f"{before.name}.inner"
        before = cast("Operator", replace(cast("Any", before), output=source))
    new = list(make(source))
    last = "output" if block.operators[place].output == "output" else new[-1].output
    new[-1] = cast("Operator", replace(cast("Any", new[-1]), output=last))

    def reads(operator: Operator) -> Operator:
        if source not in operator.inputs:
            return operator
        return cast("Operator", replace(cast("Any", operator), inputs=tuple(last if word == source else word for word in operator.inputs)))

    operators = (*block.operators[:place], before, *new, *map(reads, block.operators[place + 1 :]))
    order = (*block.registration, *(operator.name for operator in new)) if block.registration else ()
    return replace(block, operators=operators, registration=order)
