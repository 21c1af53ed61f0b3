"""A language model with a score instead of a next token: what reward models are."""

from __future__ import annotations

from dataclasses import replace

from parsim.errors import Finding, ModelError
from parsim.model.elementwise import SelectToken
from parsim.model.linear import Linear
from parsim.model.loss import Loss
from parsim.model.model import Model, Operator


def scoring(model: Model) -> Model:
    """`model` with a linear layer of one output, without a bias, on every token; that of the last token is the sample's score.

    ``LlamaForSequenceClassification`` and its like (huggingface/transformers, modeling_layers.py, GenericForSequenceClassification), of
    which huggingface/trl makes reward models. Raises `ModelError` where there is no language-model head.
    """
    head = model.blocks[-1]
    kept: list[Operator] = []
    for operator in head.operators:
        if isinstance(operator, Linear) and operator.split == "vocab":
            break
        kept.append(operator)
    else:
        raise ModelError(Finding(f"{model.name} has no language-model head", "training.objective", "reward", "leave it out"))
    states = kept[-1].output if kept else "input"
    score = Linear("score", (states,), "score", model.hidden, (1,), bias=False)
    last = SelectToken("last_token", ("score",), "last_token", 1)
    loss = Loss("loss", ("last_token",), "loss", 1, "sum", per_sample=True, split="replicated", upcast=False)
    made = replace(head, operators=(*kept, score, last, replace(loss, output="output")))
    return replace(model, blocks=(*model.blocks[:-1], made))
