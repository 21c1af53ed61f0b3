"""Multi-token prediction: a module behind the last layer predicts the token after the next (DeepSeek-V3, 2412.19437, section 2.2).

It joins the norms of the last layer's output and of the next token's embedding, projects them to the hidden size and passes them through a
layer of its own. Embedding and head are the model's, and so there are two losses. As in Megatron-LM
(megatron/core/transformer/multi_token_prediction.py) both hidden states leave the block as one tensor, twice as many rows. Further modules
take the states of the one before them and add theirs below.

Under tensor parallelism the projection is split by columns, and its results are gathered to whole rows; under sequence parallelism a rank
goes on with its share of the tokens, as a view of all of them (eh_proj, gather_from_tensor_model_parallel_region and
scatter_to_sequence_parallel_region).
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.elementwise import Concatenate
from parsim.model.heads import WORD_TABLE, RowsOf
from parsim.model.linear import Embedding, Linear
from parsim.model.model import Layer, Work
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements


@dataclass(frozen=True, slots=True)
class Stack(Layer):
    """Tensors of equal width below each other: their rows one after another."""

    times: tuple[int, ...]
    """rows of each, over those of the rank's tokens"""
    features: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A copy forward; gradients are parts of the result's, copied where they go on."""
        size = elements(at, self.features) * at.element
        whole = size * sum(self.times)
        copy = Memory(2 * whole)
        return Work((copy,), (copy,), output=whole, input_gradients=tuple(size * times for times in self.times))


@dataclass(frozen=True, slots=True)
class GatherColumns(Layer):
    """Columns that tensor ranks have of the same rows become whole rows on all of them; one rank has them."""

    features: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """What has arrived rank by rank is put in order; a rank's own columns of the gradient are cut out."""
        if at.tensor == 1:
            return Work(input_gradients=(0,))
        size = at.tokens * self.features * at.element
        own = size // at.tensor
        arriving = size if at.sequence_parallel else 0
        return Work(
            (Memory(2 * size),),
            (Memory(2 * own),),
            output=size,
            input_gradients=(own,),
            forward_temporary=size,
            backward_temporary=arriving,
        )


def begin_prediction(config: TransformerConfig, vocabulary: int, row: Row, number: int = 0) -> str:
    """Everything before the layer of module `number`; `vocabulary` is the padded one. Returns the hidden states before it, normed."""
    if number:
        hidden = row.add(RowsOf("states_before", ("input",), "states_before", config.hidden, 1 + number))
    else:
        hidden = row.add(norm(config, "final_norm", row.last))
    row.add(Embedding("word_embeddings", ("input",), "word_embeddings", vocabulary, config.hidden, tied=WORD_TABLE))
    embedded = row.add(norm(config, "embedding_norm", row.last))
    previous = row.add(norm(config, "hidden_norm", hidden))
    row.add(Concatenate("joined", (embedded, previous), "joined", (config.hidden, config.hidden)))
    row.add(Linear("projection", (row.last,), "projected_columns", 2 * config.hidden, (config.hidden,), bias=False, split="column"))
    row.add(GatherColumns("gather_projected", (row.last,), "projected", config.hidden))
    return hidden


def end_prediction(config: TransformerConfig, hidden: str, row: Row, number: int = 0) -> None:
    """The module's last norm, and its result below those before it: the model's, normed, or all that came in."""
    row.add(norm(config, "prediction_norm", row.last))
    before = "input" if number else hidden
    row.add(Stack("stack", (before, row.last), "stack", (1 + number, 1), config.hidden))
