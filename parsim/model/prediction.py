"""Multi-token prediction: a module behind the last layer predicts the token after the next (DeepSeek-V3, 2412.19437, section 2.2).

It joins the norms of the last layer's output and of the next token's embedding, projects them to the hidden size and passes them through a
layer of its own. Embedding and head are the model's, and so there are two losses. As in Megatron-LM
(megatron/core/transformer/multi_token_prediction.py) both hidden states leave the block as one tensor, twice as many rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.elementwise import Concatenate
from parsim.model.heads import WORD_TABLE
from parsim.model.linear import Embedding, Linear
from parsim.model.model import Layer, Split, Work, Workload, elements
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig


@dataclass(frozen=True, slots=True)
class Stack(Layer):
    """Tensors of equal shape below each other: their rows one after another."""

    features: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A copy forward; gradients are parts of the result's, copied where they go on."""
        size = elements(at, self.features) * at.element
        whole = size * len(self.inputs)
        copy = Memory(2 * whole)
        return Work((copy,), (copy,), output=whole, input_gradients=(size,) * len(self.inputs))


def begin_prediction(config: TransformerConfig, vocabulary: int, row: Row) -> str:
    """Everything before the module's layer; `vocabulary` is the padded one. Returns the main model's hidden states, normed."""
    hidden = row.add(norm(config, "final_norm", row.last))
    row.add(Embedding("word_embeddings", ("input",), "word_embeddings", vocabulary, config.hidden, tied=WORD_TABLE))
    embedded = row.add(norm(config, "embedding_norm", row.last))
    previous = row.add(norm(config, "hidden_norm", hidden))
    row.add(Concatenate("joined", (embedded, previous), "joined", (config.hidden, config.hidden)))
    row.add(Linear("projection", (row.last,), "projection", 2 * config.hidden, (config.hidden,), bias=False))
    return hidden


def end_prediction(config: TransformerConfig, hidden: str, row: Row) -> None:
    """The module's last norm, and its result below the model's."""
    row.add(norm(config, "prediction_norm", row.last))
    row.add(Stack("stack", (hidden, row.last), "stack", config.hidden))
