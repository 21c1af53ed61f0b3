"""Tensor parallelism's products in pieces with their collectives beside them: against the closed forms, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import InputError
from parsim.hardware.device import Device
from parsim.hardware.flows import CollectiveCost
from parsim.hardware.kernels import gemm_time, kernel_time
from parsim.kernel import Attention, Gemm, Kernel
from parsim.model.catalogue import build_model
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.theory.communication import gather_and_product_time, product_and_exchange_time, product_and_scatter_time
from tests.jobs import Job, job, tree

RANKS, LAYERS, HIDDEN, MLP, TOKENS = 4, 2, 512, 2048, 256
RATE = 1e12
Form = Callable[[int, float, float], float]


@dataclass(frozen=True)
class Proportional:
    """Collectives at a rate [B/s]; all that is not of the tensor axis takes no time."""

    rate: float

    def cost(self, collective: Any) -> CollectiveCost:
        return CollectiveCost(collective.bytes / self.rate if collective.axis == "tensor" else 0.0, ())

    def capacity(self, link: int) -> float:
        raise AssertionError


def products_only(kernel: Kernel) -> float:
    """A clock in which only matrix products and attention take time."""
    return kernel.flop / RATE if isinstance(kernel, Gemm | Attention) else 0.0


def small() -> Any:
    shape = {"hidden": HIDDEN, "layers": LAYERS, "heads": 8, "mlp": MLP, "vocabulary": 1024, "maximum_sequence": 512}
    return build_model({"base": "gpt2", **shape}, name="small", base_lookup=tree, tensor=RANKS)


def run(overlap: str, wire: float, *, backward: bool = False, **settings: Any) -> Job:
    return job(
        small(),
        tensor=RANKS,
        clock=products_only,
        wires=Proportional(wire),
        sequence_length=TOKENS,
        backward=backward,
        step=False,
        tensor_settings={"sequence_parallel": True, "overlap": overlap, **settings},
    )


def product(n: int, k: int) -> float:
    return 2 * TOKENS * n * k / RANKS / RATE


COLUMNS = (product(3 * HIDDEN, HIDDEN), product(MLP, HIDDEN))
ROWS = (product(HIDDEN, HIDDEN), product(HIDDEN, MLP))
"""seconds of qkv and fc1, of proj and fc2, and of their input gradients"""


def hidden(forms: tuple[Form, Form, int], products: tuple[float, ...], collective: float, which: int) -> float:
    """What the closed form saves over one after the other, for each of `products`."""
    parts = forms[2] if which == 1 else RANKS
    form = forms[which]
    return sum(one + collective - form(parts, one, collective) for one in products)


def test_by_hand() -> None:
    """Eight ranks, products of 100 in all; a gather of 40 or 140, a scatter in four parts of 40 or 140."""
    assert [gather_and_product_time(8, 100, wire) for wire in (40, 140)] == [100, 152.5]
    assert [product_and_scatter_time(4, 100, wire) for wire in (40, 140)] == [110, 165]


@pytest.mark.parametrize(
    ("overlap", "settings", "forms"),
    [
        ("full", {}, (gather_and_product_time, product_and_scatter_time, 4)),
        ("full", {"overlap_splits": 1}, (gather_and_product_time, product_and_scatter_time, 1)),
        ("full", {"overlap_splits": 8}, (gather_and_product_time, product_and_scatter_time, 8)),
        ("async", {}, (gather_and_product_time, product_and_exchange_time, RANKS)),
    ],
)
@pytest.mark.parametrize("wire", [1e8, 1e9, 1e10, 1e12])
def test_engine_takes_as_long_as_the_closed_form(
    overlap: str, settings: dict[str, int], forms: tuple[Form, Form, int], wire: float
) -> None:
    collective = TOKENS * HIDDEN * 2 / wire  # bf16
    saved = LAYERS * (hidden(forms, COLUMNS, collective, 0) + hidden(forms, ROWS, collective, 1))
    if overlap == "async":  # the head's gather runs beside its product too
        saved += hidden(forms, (product(1024, HIDDEN),), collective, 0)
    assert run("none", wire).makespan - run(overlap, wire, **settings).makespan == pytest.approx(saved, rel=1e-9)


@pytest.mark.parametrize("wire", [1e8, 1e9, 1e10, 1e12])
def test_backward_of_user_buffers_gathers_beside_the_rows_input_gradients(wire: float) -> None:
    collective = TOKENS * HIDDEN * 2 / wire
    forms = (gather_and_product_time, product_and_scatter_time, 4)
    forward = hidden(forms, COLUMNS, collective, 0) + hidden(forms, ROWS, collective, 1)
    saved = LAYERS * (forward + hidden(forms, ROWS, collective, 0))
    assert run("backward", wire, backward=True).makespan - run("full", wire, backward=True).makespan == pytest.approx(saved, rel=1e-9)


@given(st.integers(2, 64), st.integers(1, 64), st.floats(1e-6, 1e3), st.floats(0.0, 1e3))
def test_pieces_never_beat_the_longer_one_nor_lose_to_one_after_the_other(ranks: int, parts: int, first: float, second: float) -> None:
    for time in (gather_and_product_time(ranks, first, second), product_and_scatter_time(parts, first, second)):
        assert max(first, second) <= time * (1 + 1e-12)
        assert time <= (first + second) * (1 + 1e-12)


def test_same_bytes_and_same_work_whatever_runs_beside_what() -> None:
    jobs = {overlap: run(overlap, 1e9, backward=True) for overlap in ("none", "backward", "full", "async")}
    sizes = {overlap: one.bytes(axis="tensor") for overlap, one in jobs.items()}
    assert len(set(sizes.values())) == 1
    compute = {round(sum(op.duration for op in one.program.ops if op.kind == "compute"), 12) for one in jobs.values()}
    assert len(compute) == 1


@pytest.fixture(scope="module")
def device() -> Device:
    built = build(
        load({"model": "gpt2", "cluster": "hgx-h100", "training": {"sequence_length": 1024, "micro_batch": 1, "global_batch": 8}})
    )
    return built.cluster.device(0)


def test_a_product_on_fewer_multiprocessors_has_more_waves(device: Device) -> None:
    whole = Gemm(8192, 8192, 8192)
    part = Gemm(8192, 8192, 8192, occupied=device.sms // 2)
    assert kernel_time(device, whole) < kernel_time(device, Gemm(8192, 8192, 8192, occupied=16)) < kernel_time(device, part)
    assert gemm_time(device, part) / gemm_time(device, whole) == pytest.approx(2, rel=0.1)
    tiny = Gemm(128, 128, 256)
    assert kernel_time(device, tiny) == kernel_time(device, Gemm(128, 128, 256, occupied=16)), "fewer tiles than are left"


SCENARIO: dict[str, Any] = {
    "model": "llama-3-8b",
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 2},
    "parallel": {"tensor": {"size": 8, "sequence_parallel": True}},
    "software": {"profile": "megatron-core"},
}


def test_the_stack_says_what_runs_beside_what() -> None:
    def overlap(*changes: str) -> str:
        built = build(load(SCENARIO, *changes))
        assert [one.value for one in built.assumptions if one.name == "tensor_overlap"] == [built.parallelism.tensor.overlap]
        return built.parallelism.tensor.overlap

    assert overlap() == "backward"
    assert overlap("software.profile=pytorch-2") == "none"
    assert overlap("software.profile=megatron-2021") == "none"
    assert overlap("software.profile=nemo") == "full"
    assert overlap("software.profile=nemo", "parallel.tensor.sequence_parallel=false") == "backward"


def test_order_of_the_modes_on_a_real_machine() -> None:
    steps = {mode: simulate(load(SCENARIO, f"parallel.tensor.overlap={mode}")).step_time for mode in ("none", "backward", "full", "async")}
    assert steps["full"] < steps["backward"] < steps["none"]
    assert steps["full"] < steps["async"] < steps["none"]


def test_communication_on_more_multiprocessors_slows_products() -> None:
    few, many = (simulate(load(SCENARIO, "parallel.tensor.overlap=full", f"parallel.tensor.overlap_sms={n}")).step_time for n in (0, 64))
    assert few < many


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (("parallel.tensor.overlap=full", "parallel.tensor.sequence_parallel=false"), "parallel.tensor.overlap"),
        (("parallel.tensor.overlap=async", "parallel.tensor.sequence_parallel=false"), "parallel.tensor.overlap"),
        (("parallel.tensor.overlap=full", "parallel.tensor.size=16", "cluster.nodes=2", "model.kv_heads=16"), "parallel.tensor.overlap"),
        (("parallel.tensor.overlap=async", "parallel.tensor.overlap_splits=8"), "parallel.tensor.overlap_splits"),
        (("parallel.tensor.overlap=backward", "parallel.tensor.overlap_sms=8"), "parallel.tensor.overlap_sms"),
    ],
)
def test_what_cannot_be_overlapped_so_is_refused(changes: tuple[str, ...], path: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(load(SCENARIO, *changes))
    assert path in [finding.path for finding in caught.value.findings]


def test_user_buffers_are_memory_outside_the_allocator() -> None:
    plain, full = (simulate(load(SCENARIO, f"parallel.tensor.overlap={mode}")).measured.memory.devices[0] for mode in ("backward", "full"))
    assert full.at_peak["communicators"] - plain.at_peak["communicators"] == 10 * 4096 * 4096 * 2


def test_pytorch_keeps_the_tokens_that_it_has_gathered() -> None:
    """Two columns a layer and the head: their inputs are not gathered again, but kept whole instead of a rank's quarter."""
    again, kept = (
        job(
            small(),
            tensor=RANKS,
            sequence_length=TOKENS,
            micro_batches=1,
            runtime={"gathers_again": flag},
            tensor_settings={"sequence_parallel": True},
        )
        for flag in (True, False)
    )
    tokens = TOKENS * HIDDEN * 2
    assert again.bytes(kind="all_gather") - kept.bytes(kind="all_gather") == (2 * LAYERS + 1) * tokens
    saved = [sum(row.bytes for row in one.lowering.passes_of(0).table.rows if row.name.endswith(".gathered")) for one in (again, kept)]
    assert saved == [0, (2 * LAYERS + 1) * tokens]
    assert build(load(SCENARIO, "software.profile=pytorch-2")).runtime.gathers_again is False
