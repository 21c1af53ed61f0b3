"""What stands behind the last layer, up to the loss.

BERT's heads follow huggingface/transformers ``models/bert/modeling_bert.py`` (pooler, ``BertLMPredictionHead``,
``BertPreTrainingHeads``, ``BertForSequenceClassification``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from parsim.errors import Finding, ModelError
from parsim.kernel import Memory
from parsim.model.elementwise import Activation, Dropout, PoolPatches, SelectToken
from parsim.model.linear import Linear
from parsim.model.loss import Loss, ScaledLogits, Softcap
from parsim.model.model import Block, Layer, Work
from parsim.model.norms import LayerNorm
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements

Kind = Literal["cross_entropy", "mse", "sum"]
WORD_TABLE = "embedding.word_embeddings.weight"
"""full name of the parameter that a tied head uses"""


@dataclass(frozen=True, slots=True)
class LossSum(Layer):
    """The sum of several scalar losses."""

    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A launch per addition; the gradient is passed on."""
        adds = len(self.inputs) - 1
        return Work((Memory(12.0 * adds, launches=adds),), output=4, input_gradients=(0,) * len(self.inputs))


def head_block(config: TransformerConfig, vocabulary: int, loss: str = "auto") -> Block:
    """Final norm, the task's head and its loss; `vocabulary` is the padded one, `loss` auto or a kind of `Loss`.

    Raises `ModelError` for a loss that the head's outputs do not allow.
    """
    usual = "sum" if config.task == "encoder" else "cross_entropy"
    kind = usual if loss == "auto" else loss
    allowed = ("sum", "mse") if config.task == "encoder" else ("cross_entropy", "mse", "sum")
    if kind not in allowed:
        hint = f"auto | {' | '.join(allowed)}"
        raise ModelError(Finding(f"loss {loss!r} does not go with the task {config.task}", "training.loss", loss, hint))
    row = Row()
    if config.mtp:
        return _predictions(config, vocabulary, row, cast("Kind", kind))
    if config.final_norm:
        row.add(norm(config, "final_norm", row.last))
    if config.final_dropout:
        row.add(Dropout("final_dropout", (row.last,), "final_dropout", config.hidden))
    return _HEADS[config.task](config, vocabulary, row, cast("Kind", kind))


def _causal(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind) -> Block:
    width = config.embedding_width
    if width != config.hidden:
        row.add(Linear("project_out", (row.last,), "project_out", config.hidden, (width,), bias=False))
    if config.head_transform:
        _transform(config, row, row.last)
    _logits(config, vocabulary, row, kind, shifted=config.encoder is None)
    return row.block("head")


@dataclass(frozen=True, slots=True)
class RowsOf(Layer):
    """A view of some of a tensor's rows: of one of `parts` equal ones; its gradient is a zeroed tensor of full size."""

    features: int
    parts: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing forward."""
        size = self.parts * elements(at, self.features) * at.element
        return Work(backward_input=(Memory(size),), input_gradients=(size,))


def _predictions(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind) -> Block:
    """One head for the hidden states of the model and of the modules that predict one token more each, which stand below each other."""
    losses = []
    further = ("_after_next", *(f"_after_next_{number}" for number in range(2, 1 + config.mtp)))
    for number, after in enumerate(("", *further)):
        tied = "head.lm_head.weight" if number else ""
        row.add(RowsOf(f"states{after}", ("input",), f"states{after}", config.hidden, 1 + config.mtp))
        bias = config.head_bias and not number
        row.add(Linear(f"lm_head{after}", (row.last,), f"lm_head{after}", config.hidden, (vocabulary,), bias, "vocab", tied=tied))
        if config.scale_logits:
            row.add(ScaledLogits(f"logit_scale{after}", (row.last,), f"logit_scale{after}", vocabulary))
        if config.softcap_logits:
            row.add(Softcap(f"softcap{after}", (row.last,), f"softcap{after}", vocabulary))
        losses.append(row.add(Loss(f"loss{after}", (row.last,), f"loss{after}", vocabulary, kind, shifted=True, upcast=True)))
    row.add(LossSum("loss_sum", tuple(losses), "loss_sum"))
    return row.block("head")


def _masked(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind) -> Block:
    _masked_words(config, vocabulary, row, kind, row.last)
    return row.block("head", ("lm_head", "transform"))


def _pretraining(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind) -> Block:
    hidden = row.last
    if config.discriminates:
        row.add(Linear("discriminator", (hidden,), "discriminator", config.hidden, (config.hidden,)))
        row.add(Activation("discriminator_activation", (row.last,), "discriminator_activation", config.hidden, config.activation))
        return _per_token(config, "discriminator_output", 1, row, kind)
    pooled = _pool(config, row, hidden)
    _masked_words(config, vocabulary, row, kind, hidden)
    masked = row.last
    row.add(Linear("next_sentence", (pooled,), "next_sentence", config.hidden, (2,), per_sample=True))
    row.add(Loss("next_sentence_loss", (row.last,), "next_sentence_loss", 2, kind, per_sample=True, split="replicated", upcast=False))
    row.add(LossSum("loss_sum", (masked, row.last), "loss_sum"))
    return row.block("head", ("pooler", "lm_head", "transform", "next_sentence"))


def _classification(config: TransformerConfig, _: int, row: Row, kind: Kind) -> Block:
    if config.causal:
        return _scored(config, row, kind)
    _pool(config, row, row.last)
    _classifier(config, row, kind)
    return row.block("head")


def _scored(config: TransformerConfig, row: Row, kind: Kind) -> Block:
    """Scores of all tokens, of which a sample's last one counts (transformers ``modeling_layers.py``, GenericForSequenceClassification)."""
    row.add(Linear("score", (row.last,), "score", config.hidden, (config.labels,), bias=False))
    row.add(SelectToken("last_token", (row.last,), "last_token", config.labels))
    row.add(Loss("loss", (row.last,), "loss", config.labels, kind, per_sample=True, split="replicated", upcast=False))
    return row.block("head")


def _token_classification(config: TransformerConfig, _: int, row: Row, kind: Kind) -> Block:
    if config.head_transform:
        _transform(config, row, row.last)
    row.add(Dropout("classifier_dropout", (row.last,), "classifier_dropout", config.hidden))
    return _per_token(config, "classifier", config.labels, row, kind)


def _question_answering(config: TransformerConfig, _: int, row: Row, kind: Kind) -> Block:
    """Two softmaxes over the tokens of a sample: as many elements as one over two classes for each of them."""
    if config.head_transform:
        _transform(config, row, row.last)
    return _per_token(config, "qa_outputs", 2, row, kind)


def _per_token(config: TransformerConfig, name: str, labels: int, row: Row, kind: Kind) -> Block:
    row.add(Linear(name, (row.last,), name, config.hidden, (labels,)))
    upcast = config.causal and name == "classifier"
    row.add(Loss("loss", (row.last,), "loss", labels, kind, split="replicated", upcast=upcast))
    return row.block("head")


def _classifier(config: TransformerConfig, row: Row, kind: Kind) -> None:
    """Over one row per sample."""
    row.add(Dropout("classifier_dropout", (row.last,), "classifier_dropout", config.hidden, per_sample=True))
    row.add(Linear("classifier", (row.last,), "classifier", config.hidden, (config.labels,), per_sample=True))
    row.add(Loss("loss", (row.last,), "loss", config.labels, kind, per_sample=True, split="replicated", upcast=False))


def _image(config: TransformerConfig, _: int, row: Row, kind: Kind) -> Block:
    width = config.hidden
    if config.image is not None and config.image.pools_patches:
        row.add(PoolPatches("pooled", (row.last,), "pooled", config.hidden, config.image.class_tokens))
        width = 2 * config.hidden
    else:
        row.add(SelectToken("first_token", (row.last,), "first_token", config.hidden))
    row.add(Linear("classifier", (row.last,), "classifier", width, (config.labels,), per_sample=True))
    row.add(Loss("loss", (row.last,), "loss", config.labels, kind, per_sample=True, split="replicated", upcast=False))
    return row.block("head")


def _encoder(config: TransformerConfig, _: int, row: Row, kind: Kind) -> Block:
    """No head: all outputs of the bare model are summed, so that every parameter has a gradient. Decoders have one."""
    hidden = row.last
    if config.causal or not config.bare_pooler:
        row.add(Loss("hidden_sum", (hidden,), "hidden_sum", config.hidden, kind, split="replicated"))
        return row.block("head")
    pooled = _pool(config, row, hidden)
    states = row.add(Loss("hidden_sum", (hidden,), "hidden_sum", config.hidden, kind, split="replicated"))
    row.add(Loss("pooled_sum", (pooled,), "pooled_sum", config.hidden, kind, per_sample=True, split="replicated"))
    row.add(LossSum("loss_sum", (states, row.last), "loss_sum"))
    return row.block("head")


def _pool(config: TransformerConfig, row: Row, hidden: str) -> str:
    row.add(SelectToken("first_token", (hidden,), "first_token", config.hidden))
    bias, word = not config.head_transform, config.pooler_activation
    row.add(Linear("pooler", (row.last,), "pooler", config.hidden, (config.hidden,), bias, per_sample=True))
    row.add(Activation("pooler_activation", (row.last,), "pooler_activation", config.hidden, word, per_sample=True))
    if config.head_transform:
        row.add(LayerNorm("pooler_norm", (row.last,), "pooler_norm", config.hidden, config.norm_bias, per_sample=True))
    return row.last


def _masked_words(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind, source: str) -> None:
    _transform(config, row, source)
    _logits(config, vocabulary, row, kind, bias=True)


def _transform(config: TransformerConfig, row: Row, source: str) -> None:
    width = config.embedding_width
    row.add(Linear("transform", (source,), "transform", config.hidden, (width,), not config.head_transform))
    row.add(Activation("transform_activation", (row.last,), "transform_activation", width, config.activation))
    row.add(LayerNorm("transform_norm", (row.last,), "transform_norm", width, config.norm_bias))


def _logits(config: TransformerConfig, vocabulary: int, row: Row, kind: Kind, *, bias: bool = False, shifted: bool = False) -> None:
    tied = WORD_TABLE if config.tied_embeddings else ""
    bias = bias or config.head_bias
    row.add(Linear("lm_head", (row.last,), "lm_head", config.embedding_width, (vocabulary,), bias, "vocab", tied=tied))
    if config.scale_logits:
        row.add(ScaledLogits("logit_scale", (row.last,), "logit_scale", vocabulary))
    if config.softcap_logits:
        row.add(Softcap("softcap", (row.last,), "softcap", vocabulary))
    row.add(Loss("loss", (row.last,), "loss", vocabulary, kind, shifted=shifted, upcast=shifted))


_HEADS: dict[str, Callable[[TransformerConfig, int, Row, Kind], Block]] = {
    "causal-lm": _causal,
    "masked-lm": _masked,
    "pretraining": _pretraining,
    "sequence-classification": _classification,
    "token-classification": _token_classification,
    "question-answering": _question_answering,
    "image-classification": _image,
    "encoder": _encoder,
}
