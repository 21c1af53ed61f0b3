"""Layers of linear attention among those of a GPT: Megatron-LM's ``--experimental-attention-variant``, read and written.

What the options mean and their defaults: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py (linear attention) and
megatron/core/models/gpt/experimental_attention_variant_module_specs.py (`get_linear_attention_pattern`).
"""

from __future__ import annotations

from itertools import groupby

from parsim.interop.export_draft import ExportDraft
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.megatron.expert_layers import listed
from parsim.model.families.family import shortest
from parsim.model.transformer import TransformerConfig
from parsim.units import is_digits

DEFAULTS = {"heads": 32, "key_heads": 16, "key_dim": 128, "value_dim": 128, "convolution": 4}
"""of Gated DeltaNet, if nothing is said"""
SPARSE = "dsa"
"""attention to keys that an indexer chooses"""
_INSTEAD = "give the model with --model"


def read_linear_attention(draft: ImportDraft, source: Source) -> None:
    """``gated_delta_net``: layers with a state in place of keys and values; other variants are refused by name."""
    kind, row = source.of("model.mixer.kind"), source.table.rows["model.mixer.kind"]
    often = source.of("model.layer_pattern.linear")
    if kind is None or kind.value in ("none", "None", False):
        for idle in (kind, often, *(source.of(f"model.mixer.{name}") for name in DEFAULTS)):
            draft.harmless(idle, "all layers attend: --experimental-attention-variant is not given")
        return
    if kind.text == SPARSE:  # of latent attention, which reads it
        for idle in (often, *(source.of(f"model.mixer.{name}") for name in DEFAULTS)):
            draft.harmless(idle, f"--experimental-attention-variant is {SPARSE}")
        return
    if (mixer := row.ours(kind.text)) is None:
        known = ", ".join((*row.words.values(), SPARSE))
        draft.refuse(kind, f"attention of the kind {kind.text} among Megatron-LM's options", f"{known}, or {_INSTEAD}")
        return
    if "model.layer_pattern" in draft.lines or draft.value("model.attention_window") is not None:
        draft.refuse(kind, "linear attention beside windows or another pattern of layers", _INSTEAD)
        return
    pattern = _pattern(draft, kind, often)
    if pattern is None:
        return
    if "1" not in pattern:
        draft.harmless(kind, f"{often.written if often else 'the pattern'} leaves no layer of it")
        draft.harmless(often, "no layer of linear attention is left")
        return
    draft.write("model.layer_pattern", shortest("".join("*M"[layer == "1"] for layer in pattern)), often)
    draft.write("model.mixer.kind", mixer, kind)
    for name, default in DEFAULTS.items():
        path = f"model.mixer.{name}"
        if draft.take(source, path) is None:
            option = source.table.rows[path].name.replace("_", "-")
            draft.write(path, default, note=f"--{option} is {default} if not given")


def _pattern(draft: ImportDraft, kind: Key, often: Key | None) -> list[str] | None:
    """A one for every layer with a state; None where it is not known, which is an error."""
    count = draft.value("model.layers")
    if often is None:
        text = "it needs --linear-attention-freq, which says which layers have it"
        draft.errors.append(kind.finding(text, "for example --linear-attention-freq 4: three of four layers"))
        return None
    if is_digits(often.text) and int(often.text) > 0:
        every = int(often.text)
        return ["0" if layer % every == 0 else "1" for layer in range(1, (count if isinstance(count, int) else every) + 1)]
    layers = listed(often.text)
    if not layers:
        hint = often.hint or "write a number, or a sum of lists such as ([1]*3+[0])*8"
        draft.errors.append(often.finding("neither a number nor a list of layers", hint))
        return None
    if isinstance(count, int) and len(layers) != count:
        draft.errors.append(often.finding(f"{len(layers)} layers are listed, and --num-layers is {count}", "list every layer"))
        return None
    return layers


def foreign_mixer(config: TransformerConfig) -> str:
    """Why Megatron-LM's GPT has no such layers; empty where it has, or where there are none."""
    mixer = config.mixer
    if mixer is None:
        return ""
    if mixer.kind != "gated-delta" or set(config.layer_pattern) - set("*M") or config.one_sublayer:
        return "layers that carry a state are pretrain_mamba.py's, not pretrain_gpt.py's"
    if not mixer.convolution or mixer.convolution_bias or not mixer.gate:
        return "Gated DeltaNet has a short convolution without bias and an output gate there"
    return ""


def linear_arguments(draft: ExportDraft, config: TransformerConfig) -> list[str]:
    """Which layers carry a state, and its sizes."""
    if config.mixer is None or foreign_mixer(config):
        return []
    mixer = config.mixer.resolved(config.heads, config.head_dim)
    states = [int(config.layer_letter(layer) == "M") for layer in range(config.layers)]
    runs = "+".join(f"[{state}]*{len(list(run))}" for state, run in groupby(states))
    return [
        draft.option("model.mixer.kind", mixer.kind),
        draft.option("model.layer_pattern.linear", f"'({runs})'"),
        *(draft.option(f"model.mixer.{name}", getattr(mixer, name)) for name in DEFAULTS),
    ]
