"""Published advice comes out of the simulation: `validation/advice`.

`results.csv` holds what `predict.py` predicted; here a sample is predicted again, and the claims are made of the file.
"""

from __future__ import annotations

import csv
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ADVICE = Path(__file__).resolve().parents[2] / "validation" / "advice"
with (ADVICE / "results.csv").open(encoding="utf-8", newline="") as _file:
    ROWS = list(csv.DictReader(_file))
SPEED = {(row["claim"], row["case"], row["variant"], int(row["nics"])): float(row["predicted_tflops"]) for row in ROWS}
MEASURED = {row["case"]: float(row["measured_tflops"]) for row in ROWS if row["measured_tflops"]}
T2 = "megatron-sc21-t2-"
PAIRS = {  # GPUs: (ZeRO-3, tensor x pipeline)
    "175B, 384 GPUs": ("0001", "0007"),
    "175B, 768 GPUs": ("0002", "0008"),
    "175B, 1536 GPUs": ("0003", "0009"),
    "530B, 640 and 560 GPUs": ("0004", "0010"),
    "530B, 1120 GPUs": ("0005", "0011"),
    "530B, 2240 GPUs": ("0006", "0012"),
}
SMALLEST = ("175B, 384 GPUs", "530B, 640 and 560 GPUs")


def advantage(pair: str, variant: str, nics: int) -> float:
    """Throughput per GPU of tensor x pipeline over that of ZeRO-3."""
    zero, three = PAIRS[pair]
    return SPEED["table-2", T2 + three, "3d", nics] / SPEED["table-2", T2 + zero, variant, nics]


def measured(pair: str) -> float:
    zero, three = PAIRS[pair]
    return MEASURED[T2 + three] / MEASURED[T2 + zero]


def test_the_papers_figures_are_what_the_rows_say() -> None:
    assert [MEASURED[f"{T2}{row:04d}"] for row in range(1, 13)] == [144, 88, 44, 138, 98, 48, 153, 149, 141, 171, 167, 159]


@pytest.mark.parametrize("pair", PAIRS)
def test_with_one_adapter_per_node_the_old_zero3_is_as_far_behind_as_published(pair: str) -> None:
    """The paper does not say what its ZeRO-3 rows ran on: one adapter and DeepSpeed 0.3.15 are a reading, labelled as such."""
    assert advantage(pair, "zero3-2021", 1) == pytest.approx(measured(pair), rel=0.30)


@pytest.mark.parametrize("pair", PAIRS)
def test_with_eight_adapters_the_old_zero3_loses(pair: str, request: pytest.FixtureRequest) -> None:
    if pair in SMALLEST:
        reason = "measured 6 and 24 % behind; predicted ahead: DeepSpeed's source explains no more than its idle device (README.md)"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    assert advantage(pair, "zero3-2021", 8) > 1


@pytest.mark.parametrize("pair", PAIRS)
def test_with_eight_adapters_the_profile_of_2021_is_as_far_behind_as_published(pair: str) -> None:
    """A stricter reading of the same source (profile deepspeed-2021), with the adapters that Selene's nodes have."""
    assert advantage(pair, "deepspeed-2021", 8) == pytest.approx(measured(pair), rel=0.21)


@pytest.mark.parametrize("variant", ["zero3", "zero3-2021", "deepspeed-2021"])
@pytest.mark.parametrize("nics", [8, 1])
@pytest.mark.parametrize("model", ["175B", "530B"])
def test_zero3_falls_behind_as_gpus_are_added(model: str, nics: int, variant: str) -> None:
    """The paper's point: at a fixed batch its communication stays while its computation is shared by more GPUs."""
    found = [advantage(pair, variant, nics) for pair in PAIRS if pair.startswith(model)]
    if (variant, nics) == ("zero3", 8):
        assert max(found) < 1  # gathered whole layers ahead over eight adapters it does not fall behind: see README.md
    else:
        assert found == sorted(found)


@pytest.mark.parametrize("batch", [32, 128])
def test_tensor_parallelism_stays_inside_the_node(batch: int) -> None:
    """Figure 13: 162B on 64 GPUs; the best is tensor 8 (a node) x pipeline 8, at both batches."""
    speed = {variant: value for (claim, case, variant, _), value in SPEED.items() if (claim, case) == ("figure-13", f"batch {batch}")}
    assert len(speed) == 5
    assert max(speed, key=lambda variant: speed[variant]) == "8 x 8 x 1"
    assert speed["8 x 8 x 1"] > speed["16 x 4 x 1"] > speed["32 x 2 x 1"]
    assert speed["8 x 8 x 1"] > speed["4 x 16 x 1"] > speed["2 x 32 x 1"]


@pytest.mark.parametrize("batch", [32, 128, 512])
def test_less_tensor_parallelism_is_faster_where_the_model_fits(batch: int) -> None:
    """Figure 15: 5.9B on 64 GPUs as tensor x data; throughput falls with the tensor size, and more with every doubling beyond the node."""
    speed = [SPEED["figure-15", f"batch {batch}", f"{tensor} x 1 x {64 // tensor}", 8] for tensor in (2, 4, 8, 16, 32)]
    assert speed == sorted(speed, reverse=True)
    drops = [after / before for before, after in pairwise(speed)]
    assert max(drops[2:]) < min(drops[:2])  # 8 to 16 and 16 to 32 against 2 to 4 and 4 to 8


SAMPLE = [
    ("table-2", T2 + "0001", "zero3", 8),
    ("table-2", T2 + "0001", "zero3-2021", 8),
    ("table-2", T2 + "0005", "zero3-2021", 1),
    ("table-2", T2 + "0001", "deepspeed-2021", 8),
    ("figure-13", "batch 32", "8 x 8 x 1", 8),
    ("figure-13", "batch 32", "16 x 4 x 1", 8),
    ("figure-15", "batch 32", "16 x 1 x 4", 8),
]


def test_the_file_is_what_is_predicted_today() -> None:
    names: dict[str, Any] = runpy.run_path(str(ADVICE / "predict.py"))
    cases = {(case.claim, case.case, case.variant, case.nics): case for case in names["cases"]()}
    assert set(cases) == set(SPEED)
    for key in SAMPLE:
        assert names["predicted"](cases[key])[1] == pytest.approx(SPEED[key], rel=1e-3), f"{key}: run validation/advice/predict.py"
