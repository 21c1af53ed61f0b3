"""Context parallelism beside published steps: MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.md, measured columns.

Megatron-LM with Transformer Engine on one node of eight B200; Llama 3 70B cut to 12 layers, 3.1 405B to 4; four micro-batches of one
sample each, distributed optimizer, fused cross-entropy, sequence parallelism where there is tensor parallelism. Nothing is fitted to
these rows: the node's own matrix products, timed alone by the same publication (configs/system/b200_bf16_ceperm.json), run at 0.775 of
those of other B200, and the effects of training are those that are fitted without this publisher (validation/runs/fits.yaml).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parsim.run import simulate
from parsim.scenario import files

GIB = 2**30
LEFT_OUT = files.read(Path(__file__).resolve().parents[2] / "validation/runs/fits.yaml").tree["left_out"]["simumax"]
NODE = {"topology": "hgx-b200", "set": {"device": {"gemm": {"efficiency": {"default": 0.775 * 0.65, "fp8": 0.775 * 0.61}}}}}
ROWS = {
    "70B, 32k, cp 8": ("llama-3-70b", 12, 1, 8, 32768, 1.7681, 104.51),
    "405B, 32k, tp 2, cp 4": ("llama-3.1-405b", 4, 2, 4, 32768, 1.9847, 87.03),
    "405B, 32k, cp 8": ("llama-3.1-405b", 4, 1, 8, 32768, 2.0036, 139.22),
    "70B, 128k, tp 2, cp 4": ("llama-3-70b", 12, 2, 4, 131072, 11.3157, 112.67),
    "405B, 128k, tp 2, cp 4": ("llama-3.1-405b", 4, 2, 4, 131072, 10.5776, 118.13),
}
"""model, layers, tensor, context, tokens per sample, seconds per step, GiB allocated at most (torch)"""


TOO_FAST = pytest.mark.xfail(
    strict=True, reason="5.2 % too fast; 4.6 % before kernels bound by issue and the GB300's own products moved the clock"
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=TOO_FAST if name == "405B, 32k, tp 2, cp 4" else ()) for name in ROWS])
def test_published_steps_with_context_parallelism(name: str) -> None:
    """Time within 5 %; with the effects that a user gets up to 7.1 % less, and within the band of the report.

    Memory within 2.5 % once the fp32 gradient of the head's weight is added, which Megatron makes beside its gradient buffer and which is
    missing with or without context parallelism; activations are those of s / c tokens.
    """
    model, layers, tensor, context, tokens, seconds, gib = ROWS[name]
    parallel = {"tensor": {"size": tensor, "sequence_parallel": tensor > 1}, "context": {"size": context}, "data": {"strategy": "zero1"}}
    training = {
        "sequence_length": tokens, "micro_batch": 1, "global_batch": 4, "attention": "cudnn", "loss": {"kernel": "fused"},
    }  # fmt: skip
    tree = {"model": {"base": model, "layers": layers}, "cluster": NODE, "training": training, "parallel": parallel}
    found = simulate(tree | {"software": {"profile": "megatron-core", "effects": LEFT_OUT}}).document()
    assert found["step_time_s"] == pytest.approx(seconds, rel=0.05)
    head = 4 * 128256 * (8192 if "70b" in model else 16384) / tensor
    assert (found["memory"]["peak_allocated_bytes"] + head) / GIB == pytest.approx(gib, rel=0.025)
    assert found["ranks"]["micro_batches"] == 4
    default = simulate(tree | {"software": {"profile": "megatron-core"}})
    assert -0.075 < default.step_time / seconds - 1 < 0
    low, high = default.estimate.step_time_band_s
    assert low < seconds < high
