"""Encoders, encoder-decoders and models of several kinds of input that are known and not built; see `parsim.model.families.refused`."""

from __future__ import annotations

from collections.abc import Mapping

_DISENTANGLED = "its attention adds products of contents and relative positions to the scores"
_CONTRASTIVE = "two towers whose outputs are compared over the whole batch (a contrastive loss)"
_SPARSE = "attention to windows and chosen global tokens"
_TEXT = "; its text alone can be trained: write its text_config as a config of its own"
_SPEECH = "an encoder of waveforms by convolutions"
_HIERARCHY = "stages of different resolution"

REFUSED_TOWERS: Mapping[str, str] = {
    "albert": "all layers share one set of weights",
    "deberta": _DISENTANGLED,
    "beit": "a bias of relative positions per layer over a grid of patches",
    "data2vec-vision": "a bias of relative positions per layer over a grid of patches",
    "clip": _CONTRASTIVE,
    "siglip": _CONTRASTIVE,
    "siglip2": _CONTRASTIVE,
    "chinese_clip": _CONTRASTIVE,
    "siglip_vision_model": _CONTRASTIVE,
    "clap": _CONTRASTIVE,
    "align": _CONTRASTIVE,
    "longformer": _SPARSE,
    "led": _SPARSE,
    "big_bird": _SPARSE,
    "bigbird_pegasus": _SPARSE,
    "longt5": _SPARSE,
    "switch_transformers": "experts in an encoder-decoder",
    "nllb-moe": "experts in an encoder-decoder",
    "encoder-decoder": "two models of any kinds joined",
    "vision-encoder-decoder": "a vision tower whose output a decoder attends to",
    "speech-encoder-decoder": "a speech encoder whose output a decoder attends to",
    "t5gemma": "an encoder and a decoder of grouped heads, with both attentions in one",
    "mllama": "layers of cross attention to images among those of the text",
    "phi3_v": "images in crops of two resolutions",
    "phi4mm": "images and speech with adapters of their own",
    "idefics": "layers of cross attention to images among those of the text",
    "idefics2": f"a perceiver between images and text{_TEXT}",
    "blip": "a text decoder that attends to images",
    "blip-2": f"a querying transformer between images and text{_TEXT}",
    "instructblip": f"a querying transformer between images and text{_TEXT}",
    "florence2": "a hierarchical tower before an encoder-decoder",
    "qwen2_audio": f"a tower of speech beside the text{_TEXT}",
    "qwen2_5_omni": "towers of images and speech, and a second decoder for speech",
    "qwen3_omni_moe": "towers of images and speech, and a second decoder for speech",
    "minicpmv": "a resampler between images and text",
    "deepseek_vl_v2": "a tower with tiles and a text of experts",
    "wav2vec2": _SPEECH,
    "hubert": _SPEECH,
    "wavlm": _SPEECH,
    "swin": _HIERARCHY,
    "swinv2": _HIERARCHY,
    "convnext": _HIERARCHY,
    "segformer": _HIERARCHY,
}
