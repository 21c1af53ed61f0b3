"""Multi-token prediction: its parameters and work by hand, its losses and copies in a step."""

from __future__ import annotations

import copy
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parsim import Report, load, simulate
from parsim.errors import ModelError, ParsimError
from parsim.kernel import Attention, Gemm
from parsim.model.catalogue import build_model
from parsim.model.flops import flop_per_token
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload
from parsim.program.check import check
from parsim.run import execute
from parsim.scenario import files
from parsim.scenario.build import build

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


@pytest.mark.parametrize("changes", [{"tied_embeddings": True}, {"embedding_width": 128}])
def test_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="that are not tied"):
        build_model({**files.read(files.find("models", "deepseek-v3")).tree, "mtp": 1, **changes}, name="x", base_lookup=dict)


@pytest.mark.parametrize("modules", [2, 3])
def test_every_module_adds_as_much_as_the_first(modules: int) -> None:
    """Each norms the states before it but the first, which takes the model's final norm with it."""
    assert parameter_count(deepseek(modules)) == parameter_count(deepseek(0)) + modules * 11_610_067_968
    assert executed(deepseek(modules)) == executed(deepseek(0)) + modules * 3_397_296_128
    assert deepseek(modules).block_names[62:-1] == ("mtp", "mtp 2", "mtp 3")[:modules]
    assert sum(isinstance(operator, Loss) for operator in deepseek(modules).blocks[-1].operators) == 1 + modules
    plan = execute(build(load(scenario(modules)))).plan
    assert plan.ties.across_stages == [(0, 1, 1024 * 256)]  # one copy of the table on the last stage, whatever looks words up
    assert [chunk.blocks for chunk in plan.chunks] == [(0, 1, 2), (3, 4, *range(5, 5 + modules + 1))]


def over_tensor_ranks(mtp: int, size: int, *, sequence_parallel: bool = True, **pipeline: Any) -> dict[str, Any]:
    tree = scenario(mtp, gradient_accumulation=4)
    tree["parallel"]["tensor"] = {"size": size, "sequence_parallel": sequence_parallel and size > 1}
    tree["parallel"]["expert"] = {"size": 2, "tensor": 1} if sequence_parallel else {}
    tree["parallel"]["pipeline"] |= pipeline
    return tree


def test_tensor_ranks_share_a_modules_work() -> None:
    """Of each product 1/t; the projection's columns are gathered."""
    block = deepseek(1).blocks[62]

    def flop(tensor: int) -> float:
        at = Workload(batch=1, sequence=S, tensor=tensor, sequence_parallel=tensor > 1, expert=4, expert_tensor=1)
        works = [operator.work(at) for operator in block.operators if "mixture" not in operator.name]
        return math.fsum(kernel.flop for work in works for kernel in work.forward if isinstance(kernel, Gemm | Attention))

    assert flop(1) == 4 * flop(4)
    split = [(p.name, p.split) for p in block.parameters() if p.name in ("projection.weight", "word_embeddings.weight")]
    assert split == [("word_embeddings.weight", 0), ("projection.weight", 0)]


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_messages_of_a_module_over_tensor_ranks(sequence_parallel: bool) -> None:
    """Of 128 tokens with h = 256, in units of T h: both halves of the projection's input (as wide: the latents, 512), and its columns."""
    rows = []
    for mtp in (0, 1):
        found = simulate(over_tensor_ranks(mtp, 2, sequence_parallel=sequence_parallel)).collectives
        rows.append({(row.kind, row.bytes / (128 * 256 * 2)): row.count for row in found if row.axis == "tensor"})
    more = {key: rows[1][key] - rows[0].get(key, 0) for key in rows[1]}
    passes, both = 4, 2
    if sequence_parallel:  # before the projection, again for its weight, and its input's gradient
        assert (more["all_gather", 2], more["reduce_scatter", 2]) == (2 * passes * both, passes * both)
        columns, table, head, attention, shared = 2, 1, 2, 1, 3  # gathers: forward, saved inputs, gradients of what scatters
        assert more["all_gather", 1] == passes * (columns + table + head + attention + shared)
        assert more["reduce_scatter", 1] == passes * (table + attention + 1 + 1 + 1)  # the shared expert's two, and the head's
    else:
        assert (more["all_reduce", 2], more["all_gather", 1]) == (passes * both, passes)


def test_folded_is_unfolded_over_tensor_ranks() -> None:
    tree = over_tensor_ranks(2, 2)
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.peak_memory == whole.peak_memory
    assert check(execute(build(load(tree))).trace.program) == []


V = {"virtual_stages": 2}


@pytest.mark.parametrize(
    "pipeline",
    [{"schedule": "gpipe"}, {"schedule": "interleaved", **V}, {"schedule": "zb-h1"}, {"schedule": "zb-v", **V}, {"schedule": "v-half", **V},
     {"schedule": "interleaved-zb", **V}, {"schedule": "dualpipev", **V}, {"schedule": "dualpipe"}],
)  # fmt: skip
def test_schedules(pipeline: dict[str, Any]) -> None:
    """Where first and last stage are on one rank the table is one, as DeepSeek-V3 shares it (2412.19437, 3.2.2); else there is a copy."""
    tree = over_tensor_ranks(1, 1, **pipeline)
    result = execute(build(load(tree)), unfolded=True)
    assert check(result.trace.program) == []
    plan, here = result.plan, pipeline["schedule"] in ("zb-v", "v-half", "dualpipev", "dualpipe")
    names = [weight.name for chunk in plan.of_rank(0) for weight in plan.weights(chunk)]
    assert len(names) == len(set(names))
    assert "mtp.word_embeddings.weight" not in names
    assert (plan.ties.across_stages == []) == here
    assert any(op.name == "all_reduce tied embedding" for op in result.trace.program.ops) != here
    assert len(plan.ties.chunks) == (2 if pipeline["schedule"] == "dualpipe" else here)


def test_both_ways_every_rank_holds_the_whole_model() -> None:
    """Two stages on two ranks that each have both: parameters once, whichever direction uses them."""
    plan = execute(build(load(over_tensor_ranks(1, 1, schedule="dualpipe")))).plan
    tree = over_tensor_ranks(1, 1, schedule="dualpipe")
    assert simulate(tree).step_time == pytest.approx(simulate(tree, unfolded=True).step_time, rel=1e-9)
    counts = [sum(weight.count for chunk in plan.of_rank(rank) for weight in plan.weights(chunk)) for rank in (0, 1)]
    single = execute(build(load(over_tensor_ranks(1, 1)))).plan
    stages = [sum(weight.count for weight in single.weights(chunk)) for chunk in single.chunks]
    assert counts == [sum(stages) - 1024 * 256] * 2


def test_ranks_that_step_alone() -> None:
    tree = over_tensor_ranks(1, 1, schedule="zb-h2", post_validation=True)
    with pytest.raises(ParsimError, match=r"an embedding tied to further prediction modules; leave model\.mtp out"):
        simulate(tree)


def test_one_module_beside_another_micro_batch() -> None:
    tree = over_tensor_ranks(2, 1, schedule="interleaved", **V)
    tree["parallel"]["expert"]["batch_overlap"] = True
    with pytest.raises(ParsimError, match=r"support at most one prediction module, not 2 \(Megatron-LM"):
        simulate(tree)
    tree["model"]["mtp"] = 1
    assert check(execute(build(load(tree))).trace.program) == []


def test_counted_tokens_of_a_module(tmp_path: Path) -> None:
    """Its experts follow those of the layers: number 4 of four layers, the first of which is dense."""
    counted = tmp_path / "load.csv"
    rows = [f"{layer},{expert},{1 + (layer == 4) * expert}" for layer in (1, 2, 3, 4) for expert in range(8)]
    counted.write_text("\n".join(["layer,expert,tokens", *rows]) + "\n", encoding="utf-8")
    tree = scenario(1)
    tree["parallel"]["expert"]["imbalance"] = {"histogram": str(counted)}
    plan = execute(build(load(tree))).plan
    assert {block: rows.busiest for block, rows in plan.loads.items()} == {2: 1.0, 3: 1.0, 4: 1.0, 5: pytest.approx(4 * 15 / 36)}


def test_modules_of_one_weight_work_twice_and_are_held_once() -> None:
    tree = {**files.read(files.find("models", "deepseek-v3")).tree, "mtp": 2, "mtp_repeated": True}
    repeated = build_model(tree, name="deepseek-v3", base_lookup=dict)
    assert parameter_count(repeated) == parameter_count(deepseek(1))
    assert executed(repeated) == executed(deepseek(2))


def test_modules_of_one_weight_have_one_gradient() -> None:
    """It is reduced and stepped once, as one module's; a micro-batch passes through both, as through two."""

    repeated = scenario(2)
    repeated["model"]["mtp_repeated"] = True
    one, same, two = simulate(scenario(1)), simulate(repeated), simulate(scenario(2))

    def reduced(report: Report) -> int:
        return sum(row.bytes * row.count for row in report.collectives if row.kind == "reduce_scatter")

    assert reduced(one) == reduced(same) < reduced(two)
    assert one.step_time < same.step_time < two.step_time
    assert one.peak_memory < same.peak_memory < two.peak_memory
    assert same.step_time == pytest.approx(simulate(repeated, unfolded=True).step_time, rel=1e-9)


def test_modules_of_one_weight_need_whole_gradients() -> None:
    tree = scenario(2)
    tree["model"]["mtp_repeated"] = True
    tree["parallel"]["data"] = {"strategy": "fsdp"}
    with pytest.raises(ParsimError, match="one gradient of several prediction modules"):
        simulate(tree)


HYBRID: dict[str, Any] = {
    "family": "nemotron-h", "hidden": 64, "mlp": 128, "layers": 4, "heads": 4, "kv_heads": 2, "vocabulary": 256,
    "mixer": {"heads": 8, "value_dim": 16, "key_dim": 16}, "layer_pattern": "MEM*", "experts": {"count": 4, "top_k": 2, "mlp": 64},
}  # fmt: skip


def test_a_module_of_a_hybrid_has_the_sublayers_of_its_pattern() -> None:
    module = build_model({**HYBRID, "mtp": 1, "mtp_pattern": "*E"}, name="hybrid", base_lookup=dict).blocks[-2]
    names = [operator.name for operator in module.operators]
    assert [name for name in names if name.endswith("_residual")] == ["attention_residual", "mlp_residual"]
    assert "mixture.router" in names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mtp": 1}, "nothing says which sublayers a module has"),
        ({"mtp": 1, "mtp_pattern": "*-"}, "-: no layer of layer_pattern"),
        ({"mtp": 1, "mtp_pattern": "*E*"}, "one attention, one mixer and one MLP or mixture at most"),
        ({"one_sublayer": False, "layer_pattern": "M*", "mtp_pattern": "*"}, "a module has a layer like the last one"),
    ],
)
def test_patterns_of_modules_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        build_model({**HYBRID, **changes}, name="hybrid", base_lookup=dict)
