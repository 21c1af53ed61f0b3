"""Samples with two kinds of tokens: what an encoder reads and a decoder writes, or a text and its images."""

from __future__ import annotations

from typing import NamedTuple

from parsim.errors import Finding
from parsim.model.lengths import Lengths
from parsim.model.model import Model
from parsim.scenario.training import TrainingSection

TARGET, IMAGES, IMAGE_SIZE = "training.target_sequence_length", "training.images", "training.image_size"


class Stated(NamedTuple):
    """A value that the scenario left to parsim."""

    key: str
    value: str
    source: str


def lengths_of(section: TrainingSection) -> Lengths:
    """The lengths that the scenario states, or that stand for auto: one image, a target as long as the source."""
    target = 0 if section.target_sequence_length == "auto" else int(section.target_sequence_length)
    size = 0 if section.image_size == "auto" else int(section.image_size)
    return Lengths(
        source=(section.sequence_length or 0) if target else 0,
        target=target,
        images=1 if section.images == "auto" else int(section.images),
        image_size=size,
    )


def length_findings(model: Model, section: TrainingSection) -> list[Finding]:
    """Lengths that the model does not have, or that are fixed."""
    findings = []
    encoder, vision = model.facts.get("encoder"), model.facts.get("vision")
    if not encoder and section.target_sequence_length != "auto":
        text = f"{model.name} has no separate decoder sequence"
        findings.append(Finding(text, TARGET, section.target_sequence_length, "leave it out"))
    if not vision and section.images != "auto":
        findings.append(Finding(f"{model.name} has no image input next to text", IMAGES, section.images, "leave it out"))
    if section.image_size != "auto" and not model.facts.get("image_sizes"):
        text = f"{model.name} has a fixed image size"
        findings.append(Finding(text, IMAGE_SIZE, section.image_size, "leave it out"))
    length, fixed = section.sequence_length, model.facts.get("sequence_length")
    if encoder and fixed is not None and length not in (None, fixed):
        text = f"{length} tokens, but the encoder of {model.name} makes {fixed} of every recording"
        findings.append(Finding(text, "training.sequence_length", length, f"use {fixed}; {TARGET} is the text's"))
    if vision and length is not None and (needed := int(str(model.facts.get("image_tokens", 0)))) > length:
        text = f"{needed} tokens of images do not fit into samples of {length} tokens"
        findings.append(Finding(text, "training.sequence_length", length, f"use at least {needed}, smaller images, or fewer"))
    return findings


def length_assumptions(model: Model, section: TrainingSection) -> list[Stated]:
    """What was taken for granted about the tokens of a sample."""
    stated = []
    if model.facts.get("encoder") and section.target_sequence_length == "auto":
        target = model.facts.get("target_length")
        value = f"{target} tokens" if target else f"{section.sequence_length} tokens, as many as the encoder's"
        stated.append(Stated("target_sequence_length", value, f"not said: {TARGET}"))
    if model.facts.get("vision"):
        tokens = int(str(model.facts["image_tokens"]))
        if section.images == "auto":
            value = f"1 image per sample, {tokens} of its {section.sequence_length} tokens"
            stated.append(Stated("images", value, f"not said: {IMAGES}"))
        if model.facts.get("image_sizes") and section.image_size == "auto":
            stated.append(Stated("image_size", f"{model.facts['image_size']} pixels a side", f"not said: {IMAGE_SIZE}"))
    return stated
