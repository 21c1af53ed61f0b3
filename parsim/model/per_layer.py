"""What layers read beside the residual stream: per-layer inputs, and keys and values of an earlier layer (Gemma 4's E2B and E4B).

Structure: huggingface/transformers ``models/gemma4/modeling_gemma4.py``, Gemma4TextModel, Gemma4TextDecoderLayer, Gemma4TextAttention.
One block makes such a tensor (`parsim.model.model.Block.shows`), blocks behind it read it from the side (`Block.beside`). Each adds to its
gradient: the sum so far is a tensor that is there throughout the backward pass of every reader, `SumBeside`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.elementwise import Activation, ResidualAdd, Scale
from parsim.model.layer_kinds import LayerKind
from parsim.model.linear import Embedding, Linear
from parsim.model.model import Layer, Save, Work
from parsim.model.norms import RMSNorm
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements, shard

PER_LAYER = "per_layer_inputs"
"""of all layers, side by side"""
_KEYS = "keys_and_values"


def beside(config: TransformerConfig, kind: LayerKind) -> tuple[str, ...]:
    """The tensors that a layer of this kind reads from the side."""
    names = (PER_LAYER,) if config.per_layer_inputs is not None else ()
    return (*names, shown_keys(kind)) if kind.keys == "read" else names


def shown_keys(kind: LayerKind) -> str:
    """Name of the keys and values that layers share which see as much as one of this kind."""
    return f"{_KEYS}_of_{'windows' if kind.window else 'chunks' if kind.chunk else 'all'}"


class PerLayerTable(Embedding):
    """The second table: [vocabulary, layers x width]."""


@dataclass(frozen=True, slots=True)
class ShowPerLayer(Layer):
    """The states that the first layer reads, beside the per-layer inputs, which are kept until here in backward: `inputs` holds both."""

    features: int
    """of all layers"""
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """No work: a view of the states; the gradient of the inputs is the sum of what the layers have added."""
        size = _wide(at, self.features)
        return Work(input_gradients=(0, size), saves=(Save(self.inputs[1], size), Save(self.inputs[1], size, "shown")))


@dataclass(frozen=True, slots=True)
class TakePerLayer(Layer):
    """The part of one layer of the per-layer inputs, a view.

    Its gradient is a tensor of all parts with zeros in all but one (PyTorch, tools/autograd/derivatives.yaml: select, select_backward),
    which is added to that of the layers behind. Fused kernels leave the zeros out of the traffic, not the sum.
    """

    features: int
    width: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing forward; zeros and a copy backward."""
        size, part = _wide(at, self.features), _wide(at, self.width)
        gradient = Memory(2.0 * part) if at.fused else Memory(size + 2.0 * part, launches=2)
        return Work((), (gradient,), input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class TimesPerLayer(Layer):
    """The product of an activated gate and a layer's part of the per-layer inputs; `inputs` is (gate, part). Both are kept."""

    width: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; a product for each gradient."""
        gate, part = elements(at, self.width) * at.element, _wide(at, self.width)
        backward = Memory(4.0 * part + 2.0 * gate, launches=1 if at.fused else 2)
        saves = (Save(self.inputs[0], gate), Save(self.inputs[1], part))
        return Work((Memory(2.0 * part + gate),), (backward,), output=part, input_gradients=(gate, part), saves=saves)


@dataclass(frozen=True, slots=True)
class ShowKeys(Layer):
    """Keys and values that layers behind read as well: `inputs` is what the attention core reads, of which the first is handed on.

    A forward pass that keeps them for this layer's core has them; one that keeps nothing (the layer is made again) keeps them alone. What a
    checkpointed layer makes again replaces them, and stays in transformers until the last checkpoint is done: that is left out.
    """

    kv_heads: int
    head_dim: int
    name_beside: str
    split: Split = "heads"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing forward; the gradients of the layers behind are added to the core's."""
        size = _keys(at, self.kv_heads, self.head_dim)
        shown = (Save(self.name_beside, size, "shown"),)
        return Work((), (Memory(3.0 * size, launches=2),), input_gradients=(0,), saves=shown, backward_temporary=size)


@dataclass(frozen=True, slots=True)
class SumBeside(Layer):
    """The end of a layer that reads tensors from the side: `inputs` is (states, those tensors). Their gradients, as the layers behind have
    summed them up, are there from here to the layer's begin. The last layer finds none; its tensors are counted all the same.
    """

    features: int = 0
    """of the per-layer inputs; 0: the layer reads none"""
    kv_heads: int = 0
    """of the keys and values; 0: the layer has its own"""
    head_dim: int = 0
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """No work: a view of the states."""
        sizes = (_wide(at, self.features), _keys(at, self.kv_heads, self.head_dim))
        return Work(input_gradients=(0, *(size for size in sizes if size)))


def _wide(at: Workload, features: int) -> int:
    """Bytes of a tensor of per-layer inputs, which autocast leaves in fp32 as it does the residual stream."""
    return elements(at, features) * (4 if at.wide_stream else at.element)


def _keys(at: Workload, kv_heads: int, head_dim: int) -> int:
    """Bytes of keys and values on one rank."""
    return 2 * shard(kv_heads, at) * head_dim * at.tokens * at.element


def embed_per_layer(config: TransformerConfig, row: Row, words: str = "input") -> None:
    """The per-layer inputs of the ids called `words` and of the hidden states so far, which stay what the first layer reads.

    A row of the second table, scaled, plus a projection of the hidden states, scaled and normed part by part; the sum is scaled once more.
    """
    second = config.per_layer_inputs
    if second is None:
        return
    states, width = row.last, config.layers * second.width
    table = "per_layer_embeddings"
    row.add(PerLayerTable(table, (words,), table, second.vocabulary, width, parameter_names=("embed_tokens_per_layer",)))
    rows = row.add(Scale("per_layer_scale", (row.last,), "per_layer_scale", width))
    projection = "per_layer_model_projection"
    row.add(Linear(projection, (states,), projection, config.hidden, (width,), bias=False))
    row.add(Scale(f"{projection}_scale", (row.last,), f"{projection}_scale", width))
    normed = "per_layer_projection_norm"
    row.add(
        RMSNorm(
            normed, (row.last,), normed, second.width, config.norm_offset, wide=config.norm_in_fp32, by_power=config.norm_by_power,
            groups=config.layers,
        )
    )  # fmt: skip
    row.add(ResidualAdd("per_layer_sum", (row.last, rows), "per_layer_sum", width))
    row.add(Scale("per_layer_sum_scale", (row.last,), PER_LAYER, width))
    row.add(ShowPerLayer("show_per_layer", (states, row.last), "show_per_layer", width))


def add_per_layer(config: TransformerConfig, row: Row) -> None:
    """The last sublayer of a layer: a gate made of the stream, times the layer's part of the inputs, projected back, normed and added."""
    second = config.per_layer_inputs
    if second is None:
        return
    stream, width = row.last, second.width
    row.add(Linear("per_layer_input_gate", (stream,), "per_layer_input_gate", config.hidden, (width,), bias=False))
    gate = row.add(Activation("per_layer_activation", (row.last,), "per_layer_activation", width, config.activation))
    part = row.add(TakePerLayer("take_per_layer", (PER_LAYER,), "take_per_layer", config.layers * width, width))
    row.add(TimesPerLayer("per_layer_product", (gate, part), "per_layer_product", width))
    row.add(Linear("per_layer_projection", (row.last,), "per_layer_projection", width, (config.hidden,), bias=False))
    row.add(norm(config, "per_layer_norm", row.last))
    row.add(ResidualAdd("per_layer_residual", (row.last, stream), "per_layer_residual", config.hidden))


def sum_beside(config: TransformerConfig, kind: LayerKind, row: Row) -> None:
    """The end of a layer of this kind, where it reads tensors from the side."""
    names = beside(config, kind)
    if not names:
        return
    second = config.per_layer_inputs
    features = config.layers * second.width if second is not None else 0
    kv_heads = config.kv_heads if kind.keys == "read" else 0
    row.add(SumBeside("sum_beside", (row.last, *names), "sum_beside", features, kv_heads, config.head_dim))
