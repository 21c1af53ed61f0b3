"""Multi-token prediction: its parameters and work by hand, its losses and copies in a step."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import pytest

from parsim import simulate
from parsim.errors import ModelError, ParsimError
from parsim.kernel import Attention, Gemm
from parsim.model.catalogue import build_model
from parsim.model.flops import flop_per_token
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Model, Workload, parameter_count
from parsim.scenario import files

S = 4096
SMALL: dict[str, Any] = {
    "model": {
        "base": "deepseek-v3", "layers": 4, "hidden": 256, "heads": 8, "mlp": 512, "vocabulary": 1024,
        "experts": {"count": 8, "groups": 0, "groups_kept": 0, "mlp": 128, "shared": 128, "dense_layers": 1},
    },
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 4, "precision": "bf16-fp32grad"},
    "software": {"profile": "megatron-core"},
    "parallel": {"data": {"strategy": "zero1"}, "pipeline": {"size": 2}, "expert": {"size": 4}},
}  # fmt: skip


def scenario(mtp: int, **changes: Any) -> dict[str, Any]:
    tree = copy.deepcopy(SMALL)
    tree["model"]["mtp"] = mtp
    tree["training"] |= changes
    return tree


@cache
def deepseek(mtp: int) -> Model:
    tree = {**files.read(files.find("models", "deepseek-v3")).tree, "mtp": mtp}
    return build_model(tree, name="deepseek-v3", base_lookup=dict)


def executed(model: Model) -> float:
    works = [operator.work(Workload(batch=1, sequence=S)) for block in model.blocks for operator in block.operators]
    return math.fsum(kernel.flop for work in works for kernel in work.forward if isinstance(kernel, Gemm | Attention)) / S


def test_parameters_and_work_of_deepseeks_module() -> None:
    h, vocabulary = 7168, 129_280
    layer = sum(p.count for p in deepseek(0).blocks[61].parameters() if not p.buffer)
    more = parameter_count(deepseek(1)) - parameter_count(deepseek(0))
    assert more == 2 * h * h + 3 * h + layer == 11_610_067_968  # embedding and head are the model's
    assert executed(deepseek(1)) - executed(deepseek(0)) == 374_210_560 + 167_813_120 + 796_393_472 + 4 * h * h + 2 * h * vocabulary
    assert 3 * executed(deepseek(1)) == 260_649_271_296
    # TFLOP/s over tokens/s of each GPU in NVIDIA-NeMo/Megatron-Bridge's tables
    assert flop_per_token(deepseek(1), S, "megatron-lm") == pytest.approx(260.02e9, rel=1e-3)


def test_two_losses_keep_logits_of_their_own() -> None:
    def held(mtp: int) -> int:
        taped = tape(deepseek(mtp).blocks[-1], Workload(batch=1, sequence=S, fused=True, loss_kernel="fused"))
        return sum(taped.tensors[name].bytes for name in taped.saved if "lm_head" in name)

    assert held(1) == 2 * held(0) > 0
    assert sum(isinstance(operator, Loss) for operator in deepseek(1).blocks[-1].operators) == 2


def test_the_last_stage_has_a_copy_of_the_embedding() -> None:
    without, module = simulate(scenario(0)), simulate(scenario(1))
    assert not [row for row in without.collectives if row.bytes == 4 * 1024 * 256]
    (tied,) = [row for row in module.collectives if row.bytes == 4 * 1024 * 256 and row.kind == "all_reduce"]
    assert tied.count >= 1
    assert module.document()["schedule"]["layers_per_stage"] == [2, 2]
    assert module.step_time > without.step_time
    exchanges = [sum(row.count for row in report.collectives if row.axis == "expert") for report in (without, module)]
    assert exchanges[1] > exchanges[0]


@pytest.mark.parametrize("changes", [{}, {"recompute": "full"}, {"recompute": {"selective": ["moe", "layernorm", "mla_up_proj"]}}])
def test_folded_is_unfolded(changes: dict[str, Any]) -> None:
    folded, whole = simulate(scenario(1, **changes)), simulate(scenario(1, **changes), unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.peak_memory == whole.peak_memory


@pytest.mark.parametrize(
    ("changes", "message"), [({"mtp": 2}, "not supported yet: 2 modules"), ({"mtp": 1, "tied_embeddings": True}, "that are not tied")]
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model({**files.read(files.find("models", "deepseek-v3")).tree, **changes}, name="x", base_lookup=dict)
    tree = scenario(1)
    tree["parallel"]["tensor"] = {"size": 2, "sequence_parallel": True}
    with pytest.raises(ParsimError, match="not supported yet: multi-token prediction"):
        simulate(tree)
