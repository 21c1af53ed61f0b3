"""Encoder-decoders as blocks in a row: the encoder's embedding and layers, the decoder's embedding and layers, the head.

The encoder works on the samples of the scenario (`training.sequence_length`), everything behind it on their targets. Its output is the
input of the decoder's embedding, which keeps it for the layers behind (`parsim.model.cross_attention`). Structure and order of parameters
are those of huggingface/transformers: ``models/t5/modeling_t5.py``, ``models/bart/modeling_bart.py`` and so on.
"""

from __future__ import annotations

from dataclasses import replace

from parsim.model.architecture_records import Encoder
from parsim.model.blocks import architecture_facts, embed_words, embedding_block, layer_block, padded_vocabulary
from parsim.model.convolution import Conv2d
from parsim.model.cross_attention import MEMORY, BeginDecoder, OwnWords
from parsim.model.elementwise import Activation, Dropout, Prefix
from parsim.model.heads import WORD_TABLE, head_block
from parsim.model.lengths import Lengths
from parsim.model.model import Block, Model
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig


def build_encoder_decoder(
    config: TransformerConfig, encoder: Encoder, *, name: str, lengths: Lengths, tensor: int = 1, loss: str = "auto", divisor: int = 0
) -> Model:
    """The model of `config`, whose encoder is `encoder`; arguments as of `parsim.model.blocks.build_transformer`."""
    encoder = replace(encoder, tokens=encoder.tokens or lengths.source)
    target = lengths.target or (config.maximum_sequence if encoder.audio_channels else 0)
    config = replace(config, encoder=encoder, vocab_divisible_by=config.vocab_divisible_by or divisor)
    first = _encoder(config, encoder)
    config = config.resolved()
    padded = padded_vocabulary(config, tensor)
    source = [_spectrogram(first, encoder) if encoder.audio_channels else embedding_block(first, padded)]
    source += _layers(first, tokens=0)
    audio = encoder.audio_channels > 0
    names = ["spectrogram" if audio else "embedding", *(f"encoder layer {i}" for i in range(encoder.layers))]
    if first.final_norm:
        source.append(_encoder_output(first))
        names.append("encoder output")
    begin = _decoder_embedding(config, encoder, padded)
    begin, head = replace(begin, tokens=target), replace(head_block(config, padded, loss), tokens=target)
    own = [begin, *_layers(config, tokens=target), head]
    # the block that has the word table is the one that a tied head names
    names += ["embedding" if audio else "decoder embedding", *(f"decoder layer {i}" for i in range(config.layers)), "head"]
    facts = architecture_facts(config)
    if encoder.audio_channels:
        facts["sequence_length"], facts["input_elements"] = encoder.tokens, 2 * encoder.tokens * encoder.audio_channels
    facts["target_length"] = target
    return Model(
        name=name,
        blocks=(*source, *own),
        block_names=tuple(names),
        hidden=config.hidden,
        layers=encoder.layers + config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocabulary,
        vocabulary_padded=padded,
        maximum_sequence=encoder.tokens if encoder.audio_channels else config.maximum_sequence,
        facts=facts,
    )


def _encoder(config: TransformerConfig, encoder: Encoder) -> TransformerConfig:
    """The encoder as an architecture of its own."""
    sizes = {"layers": encoder.layers, "heads": encoder.heads or config.heads, "mlp": encoder.mlp or config.mlp, "kv_heads": 0}
    position = "sinusoidal" if encoder.audio_channels else config.position
    config = replace(config, encoder=None, causal=False, position=position, **sizes)  # type: ignore[arg-type]
    return replace(config, positions_per_sample=position == "learned").resolved()  # BART's encoder makes them from its input


def _layers(config: TransformerConfig, tokens: int) -> list[Block]:
    """The layers of a stack, of which the first has the table of relative positions; on samples of `tokens` tokens."""
    beside = (MEMORY,) if config.encoder is not None else ()
    kinds = [config.kind(number) for number in range(config.layers)]
    made = {kind: replace(layer_block(config, kind), beside=beside, tokens=tokens) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def _encoder_output(config: TransformerConfig) -> Block:
    row = Row()
    row.add(norm(config, "final_norm", row.last))
    if config.final_dropout:
        row.add(Dropout("final_dropout", (row.last,), "final_dropout", config.hidden))
    return row.block("embedding")


def _decoder_embedding(config: TransformerConfig, encoder: Encoder, vocabulary: int) -> Block:
    row = Row()
    words = row.add(OwnWords("words", ("input",), "words"))
    embed_words(config, vocabulary, row, words, "" if encoder.audio_channels else WORD_TABLE)
    # the states are a tensor of their own, whatever the embedding ends with; the memory comes in as this block's input
    row.operators.append(BeginDecoder("begin", (row.last, "input"), "begin", config.hidden, encoder.tokens))
    row.last = "begin"
    return row.block("embedding")


def _spectrogram(config: TransformerConfig, encoder: Encoder) -> Block:
    """Two convolutions of width 3, the second with stride 2, over twice as many frames as there are tokens; a frozen table of positions."""
    row, frames, hidden = Row(), 2 * encoder.tokens, config.hidden
    row.add(Conv2d("conv1", ("input",), "conv1", encoder.audio_channels, hidden, (1, 3), (1, frames), (1, 1), (0, 1)))
    # two tokens' worth of features per token
    row.add(Activation("conv1_activation", (row.last,), "conv1_activation", 2 * hidden, "gelu"))
    row.add(Conv2d("conv2", (row.last,), "conv2", hidden, hidden, (1, 3), (1, frames), (1, 2), (0, 1)))
    row.add(Activation("conv2_activation", (row.last,), "conv2_activation", hidden, "gelu"))
    row.add(Prefix("positions", (row.last,), "positions", hidden, encoder.tokens, tokens=0, trainable=False))
    row.add(Dropout("embedding_dropout", (row.last,), "embedding_dropout", hidden))
    return row.block("embedding")
