"""Linear layers and embeddings: the operators whose weights take part in matrix products or look-ups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from parsim.kernel import WIDENED, Gemm, Kernel, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, rows, shard

_BEHIND_STREAM = ("column", "vocab")
"""splits of products that read the residual stream, mostly through a norm"""


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """Matrix products of one input with one or several weights, executed as one fused product.

    Eager PyTorch launches one product for each of them, and adds up the gradients that they have for their input. torch.compile pads
    the sides of a product to multiples of 16 bytes (torch/_inductor/fx_passes/pad_mm.py; PyTorch 2.11 on an H200 takes cuBLAS' aligned
    kernels for a vocabulary of 50257).
    `out_features` with several entries (query, key, value; gate, up) gives one output tensor of their sum and
    separate parameters. Column and vocab split the outputs over tensor ranks, row splits the inputs. Under sequence
    parallelism column and vocab gather their input, row scatters its output. Of a vocabulary's logits only one of the
    workload's `loss_chunks` parts exists at a time (`parsim.model.linear`). `per_sample`: works on one row per
    sample (pooler, classifier). `tied`: full name of the parameter the weight is tied to. An fp8 product keeps a
    one-byte copy of its input instead of the input (Transformer Engine), or the input (torchao); see `parsim.model.low_precision`.
    `after_norm`: a norm makes its input, and makes it for this product alone. `apart`: its tokens are gathered and scattered by calls of
    their own, behind which it keeps what was gathered. `tokens`: of a sample, where its input's are not the block's (an encoder's output
    in a decoder).
    """

    in_features: int
    out_features: tuple[int, ...]
    bias: bool | tuple[bool, ...] = True
    split: Split = "replicated"
    parameter_names: tuple[str, ...] = ()
    """one per entry of out_features; the parameters are NAME.weight and NAME.bias. () = the operator's name"""
    tied: str = ""
    selective: str = ""
    per_sample: bool = False
    trainable: bool = True
    after_norm: bool = False
    apart: bool = False
    tokens: int = 0

    def work(self, at: Workload) -> Work:
        """As every layer's, on its own tokens."""
        return Layer.work(self, replace(at, sequence=self.tokens) if self.tokens else at)

    def parameters(self) -> tuple[Parameter, ...]:
        """Weights [out, in] and biases [out]."""
        names = self.parameter_names or (
            (self.name,) if len(self.out_features) == 1 else tuple(f"{self.name}.{i}" for i in range(len(self.out_features)))
        )
        biases = self.bias if isinstance(self.bias, tuple) else (self.bias,) * len(self.out_features)
        weight_split, bias_split = {"replicated": (None, None), "row": (1, None)}.get(self.split, (0, 0))
        tensors = []
        for name, out, bias in zip(names, self.out_features, biases, strict=True):
            tensors.append(Parameter(f"{name}.weight", (out, self.in_features), weight_split, self.tied, self.trainable))
            if bias:
                tensors.append(Parameter(f"{name}.bias", (out,), bias_split, trainable=self.trainable))
        return tuple(tensors)

    def training_work(self, at: Workload) -> Work:
        """2 T n k operations forward, and again for each gradient."""
        sharded = self.split not in ("replicated", "row")
        m = rows(at, self.split, self.per_sample)
        n = sum(shard(out, at) if sharded else out for out in self.out_features)
        k = shard(self.in_features, at) if self.split == "row" else self.in_features
        local = at.batch if self.per_sample else at.local_tokens
        rows_in, rows_out = (m if self.split == "row" else local), (m if sharded else local)
        bias = sum(self.out_features) if isinstance(self.bias, bool) and self.bias else 0
        if isinstance(self.bias, tuple):
            bias = sum(out for out, has in zip(self.out_features, self.bias, strict=True) if has)
        bias = shard(bias, at) if sharded else bias
        if self.split == "vocab" and chunked(at):
            return head_work(self.name, at, n, k, bias, trainable=self.trainable)
        operand, again = at.operand, at.gathers_again and not self.apart
        casts = product_casts(at, (rows_in * k, m * k), (rows_out * n, m * n), n * k, trains=self.trainable, after_norm=self.after_norm)
        sent = at.casts.sent() if at.casts is not None else 0.0
        weight: tuple[Kernel, ...] = ()
        saves: tuple[Save, ...] = ()
        products = 1 if at.fused else len(self.out_features)
        product = Gemm(m, n, k, dtype=at.dtype, element=operand, launches=products, padded=at.compiled)
        sums = (Memory(3 * (products - 1) * rows_in * k * at.element, launches=products - 1),) if products > 1 else ()
        if at.wide_stream and not at.narrow:
            made, gradient, widened = self._autocast(rows_in * k, n * k + bias, products, products * (1 + bool(bias)))
            casts = casts._replace(forward=(*made, *casts.forward), weight=(*casts.weight, *widened))
            sums = (*sums, *gradient)
        if self.trainable:
            weight = (*casts.weight, replace(product, m=n, n=k, k=m, weight_gradient=True, layout=casts.layouts[1]))
            saves = (saved_input(self.name, self.inputs[0], rows_in * k, at),)
            if at.wide_stream and not at.narrow and self.split in _BEHIND_STREAM:
                saves = (Save(f"{self.name}.cast", products * rows_in * k * at.element, "weight"),)
            if rows_in != m and not again:
                saves = (Save(f"{self.name}.gathered", round(m * k * (sent or at.element)), "weight"),)
            if bias and not casts.fused_bias:
                weight += (Memory(rows_out * bias * at.element),)
        gathered = round((m * k if rows_in != m else 0) * (sent or at.element))
        scattered = (m * n if rows_out != m else 0) * at.element
        return Work(
            forward=(*casts.forward, product),
            backward_input=(*casts.input, replace(product, n=k, k=n, layout=casts.layouts[0]), *sums),
            backward_weight=weight,
            output=-(-rows_out // (parts(at) if self.split == "vocab" else 1)) * n * at.element,
            input_gradients=(rows_in * k * at.element,),
            saves=saves,
            forward_temporary=gathered * (again or not self.trainable) + scattered,
            # the gathered input for the weight's gradient and the input's gradient before it is scattered
            backward_temporary=gathered * (1 + again) + scattered,
        )

    def _autocast(
        self, inputs: int, weights: int, products: int, tensors: int
    ) -> tuple[tuple[Memory, ...], tuple[Memory, ...], tuple[Memory, ...]]:
        """What autocast adds: casts of weights and biases (`tensors` of `weights` elements in all), of an fp32 input, and of gradients.

        A product behind a norm reads the fp32 stream, one behind attention or an activation what a product has made in 16 bits. Casts of
        weights are kept for the pass, those of inputs are not: each of several products makes its own (PyTorch,
        aten/src/ATen/autocast_mode.cpp, cached_cast).
        """
        made = Memory(6 * weights, launches=tensors)
        gradient: tuple[Memory, ...] = ()
        if self.split in _BEHIND_STREAM:
            made = Memory(6 * (weights + products * inputs), launches=tensors + products)
            gradient = (Memory((6 + 6) * products * inputs, launches=products, vector=WIDENED * products * inputs),)
        return (made,), gradient, (Memory(6 * weights, launches=tensors, vector=WIDENED * weights),) if self.trainable else ()


class ProductCasts(NamedTuple):
    """The kernels that make fp8 operands of one layer, by where they run."""

    forward: tuple[Kernel, ...] = ()
    input: tuple[Kernel, ...] = ()
    weight: tuple[Kernel, ...] = ()
    layouts: tuple[str, str] = ("NN", "NT")
    fused_bias: bool = False

    def one_by_one(self, groups: int) -> ProductCasts:
        """The same work in `groups` times as many kernels."""
        forward, input_, weight = (
            tuple(replace(kernel, launches=groups * kernel.launches) if isinstance(kernel, Memory) else kernel for kernel in kernels)
            for kernels in (self.forward, self.input, self.weight)
        )
        return self._replace(forward=forward, input=input_, weight=weight)


def product_casts(
    at: Workload, inputs: tuple[int, int], outputs: tuple[int, int], weights: int, *, trains: bool, after_norm: bool = False
) -> ProductCasts:
    """The casts of a product: `inputs` and `outputs` are elements that this rank has, and that it multiplies; `weights` elements."""
    casts = at.casts
    if casts is None:
        return ProductCasts()
    input_gathered, gradient_gathered = inputs[0] != inputs[1], outputs[0] != outputs[1]
    return ProductCasts(
        forward=(
            *casts.input(inputs[0], trains=trains, gathers=input_gathered, after_norm=after_norm and at.library),
            *casts.weight_in_pass(weights, backward=False),
        ),
        input=(
            *casts.gradient(outputs[0], trains=trains, gathers=gradient_gathered),
            *casts.weight_in_pass(weights, backward=True),
        ),
        weight=casts.before_weight(inputs[1], outputs[1], input_gathered=input_gathered, gradient_gathered=gradient_gathered),
        layouts=casts.layouts,
        fused_bias=casts.fuses_bias and not gradient_gathered,
    )


def saved_input(name: str, source: str, count: int, at: Workload) -> Save:
    """What a trained product keeps of the `count` elements of its input."""
    if not at.narrow:
        return Save(source, count * at.element, "weight")
    saved = at.casts.saved if at.casts is not None else 1.0
    return Save(f"{name}.input_{at.dtype}", round(count * saved), "weight") if saved else Save(source, count * at.element, "weight")


@dataclass(frozen=True, slots=True)
class Embedding(Layer):
    """Rows of one table per token, plus learned positions and token types where given; saves the ids (8 B each)."""

    vocabulary: int
    width: int
    split: Split = "vocab"
    """vocab | replicated (the position and type tables are always replicated)"""
    positions: int = 0
    """rows of the learned position table; 0 = none"""
    types: int = 0
    """rows of the token-type table; 0 = none"""
    positions_per_sample: bool = False
    """every sample has position ids of its own, made from its padding mask (OPT, RoBERTa in Hugging Face)"""
    parameter_names: tuple[str, ...] = ()
    """of the word, position and type tables that exist"""
    tied: str = ""
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Tables [rows, width]."""
        tables = [("word_embeddings", self.vocabulary), ("position_embeddings", self.positions), ("token_type_embeddings", self.types)]
        tables = [(name, size) for name, size in tables if size]
        names = self.parameter_names or tuple(name for name, _ in tables)
        return tuple(
            Parameter(
                f"{name}.weight",
                (size, self.width),
                0 if index == 0 and self.split == "vocab" else None,
                self.tied if index == 0 else "",
                self.trainable,
            )
            for index, (name, (_, size)) in enumerate(zip(names, tables, strict=True))
        )

    def training_work(self, at: Workload) -> Work:
        """A gather forward; backward zeroes the gradients of the tables and scatters into them."""
        tables = 1 + bool(self.positions) + bool(self.types)
        element = 4 if at.wide_stream else at.element
        full, output = at.tokens * self.width * element, at.local_tokens * self.width * element
        size = shard(self.vocabulary, at) if self.split == "vocab" else self.vocabulary
        table = (size + self.positions + self.types) * self.width * at.element
        saves: tuple[Save, ...] = ()
        weight: tuple[Kernel, ...] = ()
        if self.trainable:
            saves = (Save(self.inputs[0], 8 * at.tokens, "weight"),)
            if tables > 1:
                saves += (Save(f"{self.name}.positions", 8 * (at.tokens if self.positions_per_sample else at.sequence), "weight"),)
            weight = (Memory(table + 2 * full * tables, launches=2 * tables),)
        return Work(
            forward=(Memory(full * (2 * tables + 3 * (tables - 1)), launches=2 * tables - 1),),
            backward_weight=weight,
            output=output,
            input_gradients=(-1,) * len(self.inputs),
            saves=saves,
            forward_temporary=(full if tables > 1 else 0) + (full if output != full else 0),
        )


# the head under a chunked loss
#
# Fused linear cross-entropy (Liger Kernel, 2410.10989, section 3.2; Cut Cross-Entropy, 2411.09009): for each part the
# logits are made, turned into their gradient, and multiplied at once into the gradients of the hidden states and of the
# weight. All three products so run in the forward pass; between forward and backward stay the gradient of the hidden states
# (T h e) and of the weight (V h e), no logits. Backward has nothing left to do but to hand them on.


def parts(at: Workload) -> int:
    """Parts in which the tokens of a micro-batch pass through head and loss."""
    return min(at.loss_chunks, at.tokens)


def chunked(at: Workload) -> bool:
    """Whether head and loss work in parts that make their own gradients; without backward only the logits are split."""
    return at.loss_chunks > 1 and at.backward


def head_work(name: str, at: Workload, classes: int, width: int, bias: int, *, trainable: bool) -> Work:
    """The product of a language model's head under a chunked loss, with both its gradients, on `classes` outputs per token."""
    count = parts(at)
    rows, operand = -(-at.tokens // count), at.operand
    hidden, weight = at.tokens * width * at.element, classes * width * at.element
    kernels: tuple[Kernel, ...] = (
        Gemm(rows, classes, width, dtype=at.dtype, element=operand),
        Gemm(rows, width, classes, dtype=at.dtype, element=operand, layout="NN"),
    )
    saves: tuple[Save, ...] = (Save(f"{name}.hidden_gradient", hidden),)
    if trainable:
        # the product adds to what the parts before have made: one more read of it
        product = Gemm(classes, width, rows, dtype=at.dtype, element=operand, weight_gradient=True, layout="NT")
        kernels += (product, Memory(weight, launches=0))
        saves += (Save(f"{name}.weight_gradient", weight),)
        if bias:
            kernels += (Memory(rows * bias * at.element),)
    return Work(
        forward=kernels * count,
        output=rows * classes * at.element,
        input_gradients=(0,),
        saves=saves,
        ready_gradient=saves[0].tensor,
    )
