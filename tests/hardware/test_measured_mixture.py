"""Products of a mixture in MXFP8 against kernels that torchao measured (pytorch/ao, torchao/prototype/moe_training, B200)."""

from __future__ import annotations

import pytest
from hardware_graphs import device

from parsim.hardware.kernels import kernel_time
from parsim.kernel import Gemm
from parsim.model.low_precision import TORCHAO, Quantisation
from parsim.model.mixture import GroupedLinear
from parsim.model.workload import Workload

ROWS, HIDDEN, WIDTH, EXPERTS = 131_072, 7168, 2048, 8
MEASURED = {  # (casts of both operands, scales put in the order that the product reads, product) [us]
    "forward": ((525.3, 65.4), 43.0, 1671.2),
    "backward_input": ((144.4, 70.7), 32.3, 1683.4),
    "backward_weight": ((141.5, 472.2), 407.7, 2103.3),
}


def test_the_table() -> None:
    total = sum(sum(casts) + order + product for casts, order, product in MEASURED.values())
    products = sum(product for *_, product in MEASURED.values())
    assert total == pytest.approx(7360.4)
    assert 1 - products / total == pytest.approx(0.2585, abs=1e-4)
    flop = 2 * ROWS * HIDDEN * WIDTH
    assert [round(flop / product / 1e6) for *_, product in MEASURED.values()] == [2303, 2286, 1830]


def test_predicted() -> None:
    """Products within 16 %, casts within 16 %; no kernel orders scales here, so that casts are 20 % of the time, not 26."""
    casts = Quantisation("mxfp8", TORCHAO, tn_only=False, caches_weights=False)
    at = Workload(1, ROWS, dtype=casts.products, quantisation=casts, fused=True)
    work = GroupedLinear("experts", ("x",), "y", HIDDEN, WIDTH, EXPERTS, 1).work(at)
    total = 0.0
    for way, (measured, _, product) in MEASURED.items():
        times = {kernel: 1e6 * kernel_time(device("b200-sxm-180gb"), kernel) for kernel in getattr(work, way)}
        gemm = sum(time for kernel, time in times.items() if isinstance(kernel, Gemm))
        assert gemm == pytest.approx(product, rel=0.16)
        assert sum(times.values()) - gemm == pytest.approx(sum(measured), rel=0.16)
        total += sum(times.values())
    assert total == pytest.approx(7360.4, rel=0.13)
