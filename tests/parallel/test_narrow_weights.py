"""Weights that travel in fp8: bytes on the wire, what is stored, kernels, what is refused; exact numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Memory
from parsim.model.low_precision import TORCHAO, TRANSFORMER_ENGINE, Quantisation
from parsim.report.report import Report
from parsim.scenario.build import build
from parsim.study.search.bounds import Bounder

LAYER = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
"""elements of the matrices of a layer"""
OTHERS = 2 * 1024 * 256 + 256 + 2 * 2 * 256
"""embedding, head and norms"""
SMALL: dict[str, Any] = {
    "model": {"base": "llama-3-8b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024},
    "cluster": {"topology": "dgx-h100", "gpus": 8},
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 1},
}


def job(profile: str, recipe: str, strategy: str, gather: str = "fp8", **changes: Any) -> dict[str, Any]:
    tree = copy.deepcopy(SMALL)
    tree["software"] = {"profile": profile}
    tree["parallel"] = {"data": {"size": 8, "strategy": strategy}}
    tree["training"]["precision"] = {"preset": "fp8", "recipe": recipe, "gather": gather}
    for section, keys in changes.items():
        tree[section] = {**tree[section], **keys}
    return tree


def ran(*of: str, **changes: Any) -> Report:
    return simulate(load(job(*of, **changes)))


def wire(report: Report, kind: str = "all_gather") -> int:
    return sum(row.bytes * row.count for row in report.collectives if row.axis == "data" and row.kind == kind)


def test_fsdp_gathers_matrices_in_one_byte() -> None:
    """Forward and backward gather both layers; the root unit (embedding, head, norm) stays gathered and in bf16."""
    wide, narrow = ran("torchtitan", "tensorwise", "fsdp", "bf16"), ran("torchtitan", "tensorwise", "fsdp")
    assert wire(wide) - wire(narrow) == 2 * 2 * LAYER
    assert wire(wide, "reduce_scatter") == wire(narrow, "reduce_scatter")
    assert wire(narrow, "all_reduce") - wire(wide, "all_reduce") == 4 * 2 * 7  # a largest value of every matrix
    assert ran("torchtitan", "tensorwise", "fsdp", "auto").step_time == wide.step_time


def test_megatron_stores_matrices_in_fp8_alone() -> None:
    """Two bytes less an element, on the wire one; a copy by rows and one by columns stay on Hopper."""
    wide, narrow = ran("megatron-core", "delayed", "zero1", "bf16"), ran("megatron-core", "delayed", "zero1")
    assert wire(wide) == 2 * (2 * LAYER + OTHERS)
    assert wire(wide) - wire(narrow) == 2 * LAYER
    stored = [report.worst_device.at_peak["parameters"] for report in (wide, narrow)]
    assert stored[0] - stored[1] == 2 * 2 * LAYER


def test_megatron_stores_matrices_in_mxfp8_alone_and_gathers_them_in_bf16() -> None:
    """Copies by rows and by columns are made behind the gather, once a step, as where 16-bit weights stay beside them."""
    wide, narrow = (ran("megatron-core", "mxfp8", "zero1", gather, cluster={"topology": "dgx-b200"}) for gather in ("bf16", "fp8"))
    assert wire(wide) == wire(narrow)
    assert wide.step_time == narrow.step_time
    stored = [report.worst_device.at_peak["parameters"] for report in (wide, narrow)]
    assert stored[0] - stored[1] == 2 * 2 * LAYER


def test_layers_that_are_kept_travel_in_bf16() -> None:
    kept = {"precision": {"preset": "fp8", "recipe": "tensorwise", "gather": "fp8", "keep_layers": [1, 0]}}
    wide = ran("torchtitan", "tensorwise", "fsdp", "bf16")
    assert wire(wide) - wire(ran("torchtitan", "tensorwise", "fsdp", training=kept)) == 2 * LAYER


def test_kernels_of_a_pass() -> None:
    """torchao casts a gathered weight in every pass; one that has arrived in fp8 is copied by columns in backward."""
    arrived = Quantisation("tensorwise", TORCHAO, False, caches_weights=False, arrives=True)
    assert arrived.weight_in_pass(100, backward=False) == ()
    assert arrived.weight_in_pass(100, backward=True) == (Memory(200.0),)
    engine = {tn: Quantisation("current", TRANSFORMER_ENGINE, tn, caches_weights=True, arrives=True) for tn in (False, True)}
    assert [one.behind_gather(100) for one in engine.values()] == [(), (Memory(200.0),)]
    assert engine[True].before_gather(100, 4) == (Memory(400.0, launches=2),)


@pytest.mark.parametrize("of", [("torchtitan", "tensorwise", "fsdp"), ("megatron-core", "current", "zero1")])
def test_folded_is_unfolded_and_bounds_hold(of: tuple[str, str, str]) -> None:
    folded, whole = (simulate(load(job(*of)), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    bounder, built = Bounder(), build(load(job(*of)))
    assert bounder.tight(built) <= bounder.chained(built) <= folded.step_time * (1 + 1e-9)


@pytest.mark.parametrize(
    ("of", "changes", "message"),
    [
        (("torchtitan", "rowwise", "fsdp"), {}, "tensorwise scales only, not rowwise"),
        (("torchtitan", "tensorwise", "ddp"), {}, "fsdp and hsdp"),
        (("torchtitan", "tensorwise", "fsdp"), {"parallel": {"data": {"size": 8, "strategy": "fsdp", "fsdp_version": 1}}}, "fsdp and hsdp"),
        (("deepspeed", "delayed", "zero1"), {}, "zero1 of megatron-core and nemo"),
        (("megatron-core", "delayed", "ddp"), {}, "zero1 of megatron-core and nemo"),
        (("megatron-core", "nvfp4", "zero1"), {"cluster": {"topology": "dgx-b200"}}, "stored in nvfp4 alone"),
        (("megatron-core", "delayed", "zero1"), {"training": {"optimizer": "muon"}}, "with Muon, SOAP, Shampoo or an offloaded optimizer"),
        (("megatron-core", "auto", "zero1"), {"training": {"precision": {"preset": "bf16", "gather": "fp8"}}}, "has no fp8 products"),
        (
            ("megatron-core", "auto", "zero1"),
            {"training": {"precision": {"preset": "fp8", "gather": "int8"}}},
            "not one of auto, bf16, fp8",
        ),
    ],
)
def test_refusals(of: tuple[str, str, str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParsimError, match=message):
        build(load(job(*of, **changes)))
