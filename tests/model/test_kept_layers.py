"""First and last layers that stay bf16 under a recipe of narrow products: counts by hand, and equality with bf16 where all do."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.load import load

SCENARIO: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "cluster": {"topology": "hgx-b200"},
    "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 16, "precision": {"preset": "fp8", "recipe": "mxfp8"}},
    "parallel": {"data": {"strategy": "zero1"}, "tensor": {"size": 2, "sequence_parallel": True}},
    "software": {"profile": "megatron-core"},
}
MATRICES = 2048 * (2048 + 2 * 512) + 2048 * 2048 + 3 * 2048 * 8192
"""elements of a layer's matrices"""


def run(*changes: str) -> Any:
    return simulate(load(SCENARIO, *changes))


def kept(layers: object) -> str:
    return f"training.precision.keep_layers={layers}"


def parameters(report: Any) -> int:
    return next(one.at_peak["parameters"] for one in report.measured.memory.devices)


def gathered(report: Any) -> float:
    return sum(row.bytes * row.count for row in report.collectives if row.axis == "tensor" and row.kind == "all_gather")


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("extra", ["report.fold=true", "parallel.pp=2", "training.recompute=full"])
def test_all_layers_kept_are_bf16(recipe: str, extra: str) -> None:
    whole = run(f"training.precision.recipe={recipe}", kept(8), extra)
    plain = run("training.precision=bf16-fp32grad", extra)
    assert whole.step_time == pytest.approx(plain.step_time, rel=1e-12)
    assert [one.at_peak for one in whole.measured.memory.devices] == [one.at_peak for one in plain.measured.memory.devices]


def test_each_kept_layer_costs_the_same() -> None:
    """Time, cached copies (2.0625 B an element of a rank's half) and what tensor parallelism gathers are linear in the layers kept."""
    alone = ("cluster.gpus=2", "parallel.data.strategy=none", "software.memory.allocator=exact")
    reports = [run(kept(layers), *alone) for layers in ("0", "1", "[1, 5]")]
    times, copies, wire = ([measure(one) for one in reports] for measure in (lambda one: one.step_time, parameters, gathered))
    assert times[2] - times[0] == pytest.approx(3 * (times[1] - times[0]), rel=1e-9)
    assert copies[0] - copies[1] == 2 * 2.0625 * MATRICES / 2
    assert wire[2] - wire[0] == pytest.approx(3 * (wire[1] - wire[0]))
    bf16 = gathered(run("training.precision=bf16-fp32grad", *alone))
    assert (wire[1] - wire[0]) / (bf16 - wire[0]) == pytest.approx(2 / 16)


def test_an_unfolded_run_is_the_same() -> None:
    assert run(kept("[2, 1]"), "report.fold=false").step_time == pytest.approx(run(kept("[2, 1]")).step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ((kept(9),), "9 first and 9 last layers are 18, but .* has 16"),
        ((kept(1), "training.precision.recipe=delayed"), "delayed scaling reduces the maxima of all layers together"),
        (
            (kept(1), "training.precision.preset=bf16", "training.precision.recipe=auto"),
            "has no fp8 products, so keep_layers has no effect",
        ),
        ((kept("[1, 2, 3]"),), "is not a number of layers"),
        ((kept(-1),), "is not a number of layers"),
    ],
)
def test_layers_that_cannot_be_kept(changes: tuple[str, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        build(load(SCENARIO, *changes))
