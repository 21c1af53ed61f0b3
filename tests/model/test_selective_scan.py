"""Mamba's selective scan against closed forms and published sizes."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.model.activations import caches
from parsim.model.catalogue import build_model
from parsim.model.flops import operator_flop
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.selective_scan import SelectiveScan
from parsim.model.workload import Workload

M = {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280, "state_size": 16}
FALCON = {
    "model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 64, "vocab_size": 65024,
    "state_size": 16, "time_step_rank": 256, "tie_word_embeddings": False, "expand": 16,
}  # fmt: skip


def built(tree: dict[str, Any]) -> Model:
    return build_model(tree, name="mamba", base_lookup=lambda _: {})


def scan_of(tree: dict[str, Any]) -> SelectiveScan:
    return next(one for one in built(tree).blocks[1].operators if isinstance(one, SelectiveScan))


def test_published_sizes() -> None:
    assert parameter_count(built(M)) == 2_768_345_600  # state-spaces/mamba-2.8b-hf
    assert parameter_count(built(FALCON)) == 7_272_665_088  # tiiuae/falcon-mamba-7b


def test_flop_of_a_token() -> None:
    """Two products and 9 N per channel (2312.00752, appendix D), with 5120 channels, N = 16 and R = 160; twice that backward."""
    passes = operator_flop(scan_of(M), Workload(1, 512))
    products, scan = 2 * 5120 * (160 + 32) + 2 * 160 * 5120, 9 * 5120 * 16
    assert passes.forward == 512 * (products + scan)
    again = 2 * 160 * 5120  # steps are made again
    assert passes.backward_input == 512 * (products + again + 2 * scan)
    assert passes.backward_weight == 512 * products


def test_what_is_kept() -> None:
    at = Workload(2, 4096)
    tokens, states = 2 * 4096, 2 * 2 * 5120 * 2 * 16 * 4
    kept = {save.tensor: save.bytes for save in scan_of(M).work(at).saves}
    assert kept == {"mixer_in": tokens * 2 * 5120 * 2, "mixer_core.chosen": tokens * 192 * 2, "mixer_core.states": states}
    more = {save.tensor: save.bytes for save in scan_of(FALCON).work(at).saves}
    assert more["mixer_core.steps"] == more["mixer_core.convolved"] == tokens * 8192 * 2


def test_decoding_keeps_one_state_for_every_channel() -> None:
    assert {cache.state for cache in caches(built(M))} == {5120 * (16 + 3)}


def test_a_scan_without_its_sizes_is_refused() -> None:
    with pytest.raises(ModelError, match="a convolution and a step_rank"):
        built({"family": "mamba", "hidden": 64, "layers": 2, "vocabulary": 9, "mixer": {"heads": 128}})
