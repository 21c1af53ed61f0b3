"""How many tokens a sample has where a model works on two kinds of them."""

from __future__ import annotations

from typing import NamedTuple


class Lengths(NamedTuple):
    """What the scenario says of a sample beside its sequence length; zeros mean "not said"."""

    source: int = 0
    """tokens that an encoder reads; 0 = as many as the decoder's"""
    target: int = 0
    """tokens of the decoder; 0 = as many as the encoder's"""
    images: int = 1
    """images of a sample"""
    image_size: int = 0
    """pixels along one side of an image, where the architecture does not fix them"""
