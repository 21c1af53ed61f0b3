"""Spaces of small candidates for tests of the search: steps that take milliseconds to simulate."""

from __future__ import annotations

from parsim.errors import InputError
from parsim.scenario.load import load
from parsim.study.search.evaluate import Setup

SMALL = {
    "model": {"base": "gpt2", "layers": 4},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 1},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 128},
}


def base(**changes):
    """The small scenario with whole sections changed."""
    return load({**SMALL, **changes})


def setup(**changes):
    """A search setup around it."""
    return Setup(base(**changes))


def legal(tree):
    """The scenario of a tree, or None where it breaks a rule."""
    from parsim.scenario.build import build

    try:
        return build(load(tree))
    except InputError:
        return None
