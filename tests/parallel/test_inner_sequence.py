"""Where the batch comes before the tokens, collectives along the tokens copy what they gather and what they scatter."""

from __future__ import annotations

import pytest

from parsim.kernel import Kernel, Memory
from parsim.parallel.training import Recompute
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.precision import PRESETS
from tests.jobs import job

WHOLE = 128 * 2048 * 2
"""bytes of the hidden states of all tokens of llama-3.2-1b in these jobs"""


def moved(kernel: Kernel) -> float:
    """A clock in which only moved bytes take time, one second each."""
    return kernel.bytes if isinstance(kernel, Memory) else 0.0


def compute(*, inner: bool, overlap: str = "none", sequence_parallel: bool = True, recompute: str = "none") -> float:
    run = job(
        "llama-3.2-1b", tensor=4, precision=PRESETS["bf16"], clock=moved, step=False, recompute=Recompute(recompute),
        runtime={"inner_sequence": inner, "gathers_again": False},
        tensor_settings={"sequence_parallel": sequence_parallel, "overlap": overlap},
    )  # fmt: skip
    return sum(op.duration for op in run.program.ops if op.kind in ("compute", "recompute")) / 4


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        # 16 layers of two gathers and two scatters either way; embedding scatters and its gradient is gathered, the head the other way
        ({}, 16 * 8 + 4),
        ({"recompute": "full"}, 16 * 12 + 4),
        ({"overlap": "async"}, 16 * 2 + 2),  # products move their own pieces, but not those of summed gradients nor of the embedding
        ({"sequence_parallel": False}, 0),
    ],
)
def test_copies_of_a_step(settings: dict[str, str], copies: int) -> None:
    """Each reads and writes the tokens of all ranks."""
    extra = compute(inner=True, **settings) - compute(inner=False, **settings)  # type: ignore[arg-type]
    assert extra == pytest.approx(copies * 2 * WHOLE, rel=1e-9)


def test_pytorch_keeps_the_batch_first() -> None:
    tree = {
        "model": {"base": "llama-3.2-1b"},
        "cluster": {"topology": "hgx-h100"},
        "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 8},
    }
    inner = {
        name: build(load(tree, f"software.profile={name}")).runtime.inner_sequence
        for name in ("pytorch-2", "torchtitan-2024", "torchtitan", "megatron-core")
    }
    assert inner == {"pytorch-2": True, "torchtitan-2024": True, "torchtitan": False, "megatron-core": False}
