"""Jobs of models with linear attention: whole steps, what they hold, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.run import simulate

SMALL = {
    "retnet-1.3b": {"base": "retnet-1.3b", "layers": 2},
    "qwen3-next-80b-a3b": {"base": "qwen3-next-80b-a3b", "layers": 4, "experts": {"count": 16, "top_k": 4}},
    "nemotron-h-8b": {"base": "nemotron-h-8b", "layers": 4, "layer_pattern": "M-*-"},
}


def job(model: Any, parallel: dict[str, Any], gpus: int = 4, **training: Any) -> dict[str, Any]:
    batch = {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": 2, "precision": "bf16", **training}
    return {"model": model, "cluster": {"topology": "hgx-h100", "gpus": gpus}, "training": batch, "parallel": parallel}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("parallel", [{"tensor": {"size": 2, "sequence_parallel": True}}, {"pp": 2, "data": {"strategy": "zero1"}}])
def test_a_folded_step_is_the_unfolded_one(name: str, parallel: dict[str, Any]) -> None:
    tree = job(SMALL[name], parallel)
    folded, whole = simulate(tree).document(), simulate(tree, unfolded=True).document()
    assert folded["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)
    assert folded["memory"]["devices"][0]["peak_bytes"] == whole["memory"]["devices"][0]["peak_bytes"]


def test_a_recurrent_step_costs_the_same_per_token_at_any_length() -> None:
    def time(model: Any, length: int) -> float:
        tree = job(model, {}, 1, sequence_length=length, gradient_accumulation=1, step=False)
        report = simulate(tree | {"software": {"host": {"graphs": True}}}).document()
        return float(report["step_time_s"]) / length

    retnet, llama = SMALL["retnet-1.3b"], {"base": "llama-3.2-1b", "layers": 2}
    assert time(retnet, 32768) == pytest.approx(time(retnet, 16384), rel=0.02)  # fixed times of launches weigh less and less
    assert time(llama, 65536) > 1.3 * time(llama, 8192)


MAMBA = {
    "family": "mamba", "hidden": 512, "layers": 2, "vocabulary": 1000, "maximum_sequence": 2048,
    "mixer": {"heads": 1024, "step_rank": 32},
}  # fmt: skip


def test_mamba_trains_in_time_linear_in_its_tokens_and_not_over_tensor_ranks() -> None:
    def compute(length: int) -> float:
        report = simulate(job(MAMBA, {}, 1, sequence_length=length, gradient_accumulation=1, step=False)).document()
        return float(report["step_time_s"]) / length

    assert compute(131072) == pytest.approx(compute(65536), rel=0.02)
    with pytest.raises(InputError) as caught:
        simulate(job(MAMBA, {"tensor": {"size": 2}}, 2))
    assert "tensor parallelism with Mamba's selective scan" in str(caught.value)


def test_nobody_has_measured_such_runs() -> None:
    report = simulate(job(SMALL["retnet-1.3b"], {})).document()
    assert report["confidence"]["status"] == "unvalidated"
    (share,) = (one for one in report["assumptions"] if one["name"] == "linear_attention")
    assert share["value"] == "Triton kernels as on H100 and B200"


def test_published_runs_have_mamba_2() -> None:
    report = simulate(job({"base": "nemotron-h-8b", "layers": 2, "layer_pattern": "M-"}, {})).document()
    assert report["confidence"]["status"] != "unvalidated"
    scan = simulate(job(MAMBA, {}, 1, gradient_accumulation=1)).document()
    assert next(one["value"] for one in scan["assumptions"] if one["name"] == "linear_attention") == "0.3 of fused attention's rate"


@pytest.mark.parametrize(("model", "left_out"), [("olmo-2-7b", True), ("qwen3-8b", False)])
def test_norms_over_all_heads_are_made_rank_by_rank(model: str, left_out: bool) -> None:
    report = simulate(job({"base": model, "layers": 1}, {"tensor": {"size": 2}}, 2)).document()
    assert ("query_key_norm" in [one["name"] for one in report["assumptions"]]) is left_out


@pytest.mark.parametrize(
    ("name", "parallel", "words"),
    [
        ("retnet-1.3b", {"context": {"size": 2}}, "context parallelism with linear attention (retention)"),
        ("nemotron-h-8b", {"tensor": {"size": 16}}, "8 key heads or groups of linear attention / tensor size 16 = 0.5"),
    ],
)
def test_what_ranks_cannot_share(name: str, parallel: dict[str, Any], words: str) -> None:
    tree = job(SMALL[name], parallel, 4)
    tree["cluster"] = {"topology": "hgx-h100", "nodes": 2}
    with pytest.raises(InputError) as caught:
        simulate(tree)
    assert words in str(caught.value)
