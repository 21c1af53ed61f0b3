"""Nothing is dropped silently: every key of the training and parallel sections, changed, is exported, listed with why not, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from exports import GPT, LLAMA, exported

from parsim.errors import InputError
from parsim.interop.export_draft import leaves
from parsim.interop.formats import TARGETS, export
from parsim.scenario import load
from parsim.scenario.files import names

SHARDED: dict[str, Any] = {**LLAMA, "parallel": {"data": {"strategy": "zero3"}}}
HYBRID: dict[str, Any] = {**LLAMA, "parallel": {"data": {"strategy": "hsdp"}}}
REPLICATED: dict[str, Any] = {**LLAMA, "parallel": {"data": {"strategy": "ddp"}}, "training": {**LLAMA["training"], "precision": "fp16"}}
STAGED: dict[str, Any] = {**GPT, "parallel": {"tensor": {"size": 2}, "pipeline": {"size": 4}, "data": {"strategy": "zero1"}}}
RECIPE = (
    "training.loss.hold_logits=false",
    "training.mean_sequence_length=1024", "training.document_length=512",
    "training.partial_micro_batch=true", "training.tokens=1B", "training.iteration=first",
    "training.precision=fp16", "training.optimizer={name: lion, implementation: foreach, clip_gradients: false}",
    "training.loss={kind: cross_entropy, kernel: fused}", "training.dropout=0.2", "training.attention=flash2", "training.recompute=full",
    "training.data_loading=1 ms",
)  # fmt: skip
DATA = (
    "parallel.data.size=16", "parallel.data.bucket='100 MiB'", "parallel.data.first_bucket='2 MiB'", "parallel.data.bucket_view=true",
    "parallel.data.overlap_reduce=false", "parallel.data.accumulate=every", "parallel.data.unit=block", "parallel.data.prefetch=2",
    "parallel.data.limit_gathers=3", "parallel.data.reshard_after_forward=false", "parallel.data.queues=separate",
    "parallel.data.fsdp_version=1",
)  # fmt: skip
PIPELINE = (
    "parallel.pipeline.split=[13,13,11,11]", "parallel.pipeline.overlap_sends=false", "parallel.pipeline.scatter_sends=false",
    "parallel.tensor.overlap=none", "training.recompute={every: 2}",
)  # fmt: skip
INTERLEAVED = ("parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2")
LONG = ("training.examples=100000", "training.epochs=2")
OFFLOAD = ("training.offload={parameters: cpu, gradients: cpu, optimizer: cpu}",)
QLORA = (
    "method: qlora, rank: 8, targets: [q, v], dropout: 0.1, train_embeddings: true, "
    "base: nf4, tower: false, quantise_head: true, quantised_from: fp16, keeps_inputs: true, base_sharded: false"
)
TUNED = (f"training.finetune={{{QLORA}}}",)
DORA = ("training.finetune={method: lora, dora: true, adapter_dtype: model}",)
LEARNED = ("training.finetune={method: prompt, virtual_tokens: 8, prompt_encoder: mlp, encoder_hidden: 64, encoder_layers: 3}",)
LINEAR = ("training.finetune={method: lora, experts: linear}",)
MIXTURE: dict[str, Any] = {**GPT, "model": "mixtral-8x7b", "parallel": {"data": {"strategy": "zero1"}}}
WITH_SHARED = {**MIXTURE, "model": "qwen2-57b-a14b"}
TITAN_RECIPE = (
    "training.loss.hold_logits=false", "training.loss.kind=cross_entropy", "training.mean_sequence_length=1024",
    "training.document_length=512",
    "training.partial_micro_batch=true", "training.tokens=1B", "training.iteration=first", "training.precision=amp-bf16",
    "training.optimizer={name: adam, implementation: foreach, clip_gradients: false}", "training.dropout=0.2", "training.attention=flash2",
    "training.recompute={one_in: 2}", "training.data_loading=1 ms",
)  # fmt: skip
DEEPEP = (
    "parallel.expert={size: 4, tensor: 1, dispatcher: deepep, sms: 24, dispatch_dtype: fp8, combine_dtype: bf16}",
    "parallel.expert.routing=round-robin",
)
EXPERTS: dict[str, Any] = {**LLAMA, "model": "qwen3-30b-a3b"}
FUSED_EXPERTS = (
    "cluster.topology=hgx-b200", "training.precision={preset: fp8, recipe: mxfp8}",
    "parallel.expert={size: 4, tensor: 1, dispatcher: hybridep, fused_mlp: true, paged_stash: true}",
)  # fmt: skip
ACCEPTED: dict[str, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
    "megatron": [
        (STAGED, (*RECIPE, "parallel.tensor.sequence_parallel=true")),
        (STAGED, ("parallel.tensor={sequence_parallel: true, overlap: full, overlap_splits: 2, overlap_sms: 8}",)),
        (STAGED, (*PIPELINE, *LONG)),
        (STAGED, ("parallel.pipeline.account_for=[embedding]",)),
        (STAGED, (*INTERLEAVED, "parallel.context.size=2", "parallel.context.method=ulysses", "parallel.data.overlap_gather=true")),
        (STAGED, ("parallel.order=[tensor,context,pipeline,data]", "training.gradient_accumulation=16", "parallel.data.size=8")),
        ({**GPT, "parallel": {"data": {"strategy": "ddp"}}}, DATA[1:]),
        (STAGED, ("parallel.data.optimizer_instances=2",)),
        (STAGED, ("training.optimizer={name: muon, newton_schulz_steps: 6, tensor_mode: distributed, split_query_key_value: false}",)),
        (STAGED, ("training.optimizer={name: muon, split_gate_up: true, padded_parts: true}",)),
        (STAGED, ("training.optimizer={name: soap, padded_parts: true}",)),
        (
            MIXTURE,
            ("parallel.expert={size: 4, tensor: 2, imbalance: 1.2, capacity_factor: 1.5, pad_to_capacity: true, batch_overlap: true}",),
        ),
        (MIXTURE, DEEPEP),
        (MIXTURE, FUSED_EXPERTS),
        (MIXTURE, ("parallel.expert={size: 4, tensor: 1, permute_fusion: false}",)),
        (WITH_SHARED, ("parallel.expert={size: 4, tensor: 1, shared_overlap: true}",)),
    ],
    "deepspeed": [
        (WITH_SHARED, ("parallel.expert={size: 4, tensor: 1, shared_overlap: true}",)),
        (MIXTURE, DEEPEP),
        (
            MIXTURE,
            ("parallel.expert={size: 4, tensor: 1, imbalance: 1.2, capacity_factor: 1.5, pad_to_capacity: true, batch_overlap: true}",),
        ),
        (SHARDED, (*RECIPE, *DATA)),
        (SHARDED, (*LONG, *OFFLOAD, "parallel.tensor.size=2", "parallel.tensor.overlap=none")),
        (SHARDED, ("parallel.context={size: 2, method: ulysses}", "training.recompute=full", "training.offload.activations=cpu")),
        (HYBRID, ("parallel.data.shard_size=4",)),
        (SHARDED, ("parallel.data={quantised_weights: true, quantised_gradients: true, secondary_partition: 8}",)),
        (STAGED, (*PIPELINE, "training.precision=fp16")),
        (STAGED, ("parallel.pipeline.account_for=[embedding]", "training.precision=fp16")),
        ({**LLAMA, "parallel": {"data": {"strategy": "zero2"}}}, ("parallel.data.overlap_gather=true",)),
        (SHARDED, ("training.loss={kernel: eager, chunks: 4}",)),
        (SHARDED, TUNED),
        (LLAMA, DORA),
        (LLAMA, LEARNED),
        ({**LLAMA, "model": "mixtral-8x7b"}, LINEAR),
        (LLAMA, ("training.finetune={method: freeze, freeze: [embedding]}",)),
        (LLAMA, ("training.finetune={method: lora, flat_gradients: true}",)),
    ],
    "fsdp": [
        (LLAMA, (*RECIPE, *DATA)),
        (REPLICATED, (*DATA, "training.global_batch=128")),
        (LLAMA, (*LONG, *OFFLOAD, "parallel.tensor={size: 2, overlap: none}")),
        (LLAMA, ("parallel.context={size: 2, method: all-gather}",)),
        (HYBRID, ("parallel.data.shard_size=4",)),
        ({**LLAMA, "parallel": {"data": {"strategy": "zero2"}}}, ("parallel.data.overlap_gather=true",)),
        (LLAMA, ("training.loss={kernel: eager, chunks: 4}",)),
        (LLAMA, TUNED),
        (LLAMA, DORA),
        (LLAMA, LEARNED),
        ({**LLAMA, "model": "mixtral-8x7b"}, LINEAR),
        (LLAMA, ("training.finetune={method: freeze, freeze: [embedding]}",)),
        (LLAMA, ("training.finetune={method: lora, flat_gradients: true}",)),
    ],
    "torchtitan": [
        (LLAMA, (*TITAN_RECIPE, *DATA)),
        (LLAMA, LONG),
        ({**LLAMA, "parallel": {"data": {"strategy": "ddp"}}}, (*DATA, "training.global_batch=128")),
        (
            LLAMA,
            (*OFFLOAD, "parallel.tensor={size: 2, sequence_parallel: true, overlap: none}", "parallel.context={size: 2, method: ring}"),
        ),
        (LLAMA, ("parallel.tensor={size: 2, sequence_parallel: true, overlap: full, overlap_splits: 2, overlap_sms: 8}",)),
        (LLAMA, ("parallel.pipeline={size: 2, split: [17,15], overlap_sends: false, scatter_sends: false}",)),
        (LLAMA, ("parallel.pipeline={size: 2, account_for: [embedding, loss]}",)),
        (LLAMA, ("parallel.pipeline={size: 2, schedule: interleaved, virtual_stages: 2}",)),
        (HYBRID, ("parallel.data.shard_size=4",)),
        ({**LLAMA, "parallel": {"data": {"strategy": "zero2"}}}, ("parallel.data.overlap_gather=true",)),
        (LLAMA, ("training.loss={kernel: eager, chunks: 4}",)),
        (EXPERTS, ("parallel.expert={size: 4, imbalance: 1.2, capacity_factor: 1.5, pad_to_capacity: true, batch_overlap: true}",)),
        (EXPERTS, DEEPEP),
        ({**EXPERTS, "model": "deepseek-v2-lite"}, ("parallel.expert={size: 4, shared_overlap: true}",)),
    ],
}
"""target -> scenarios with changes that it takes"""
PIPELINED = {f"parallel.pipeline.{key}" for key in ("schedule", "virtual_stages", "split", "account_for", "overlap_sends", "scatter_sends")}
BUFFERS = {f"parallel.tensor.{key}" for key in ("sequence_parallel", "overlap_splits", "overlap_sms")}
MUON = {
    f"training.optimizer.{key}" for key in ("newton_schulz_steps", "tensor_mode", "split_query_key_value", "split_gate_up", "padded_parts")
}
FACTORS = {f"training.optimizer.{key}" for key in ("precondition_frequency", "max_preconditioner_dim")}
ACTIVATIONS = {"training.offload.activations"}
PLUS_PLUS = {f"parallel.data.{key}" for key in ("quantised_weights", "quantised_gradients", "secondary_partition")}
SLOW = ("variability.slow=[{rank: 3, speed: 0.5}]", "training.gradient_accumulation=null", "training.global_batch=128")
EVERYWHERE = {
    "parallel.search",
    "training.backward",
    "training.step",
    "training.objective",
    "parallel.pipeline.post_validation",
    "parallel.expert.grouped_gemm",
    "parallel.fully_connected",
    "parallel.data.outer.*",
    "parallel.data.batch_split",
    # of models of several stacks, which are refused as such
    "training.target_sequence_length",
    "training.images",
    "training.image_size",
}
ELSEWHERE = {
    "megatron": {
        "parallel.expert.routing",
        *FACTORS,
        "training.finetune.*",
        "training.loss.chunks",
        "parallel.data.shard_size",
        "training.offload.*",
        *PLUS_PLUS,
    },
    "deepspeed": {
        *MUON,
        *FACTORS,
        "parallel.expert.routing",
        "parallel.expert.fused_mlp",
        "parallel.expert.permute_fusion",
        "parallel.expert.paged_stash",
        "parallel.data.optimizer_instances",
        "parallel.order",
        *BUFFERS,
        "parallel.pipeline.schedule",
        "parallel.pipeline.virtual_stages",
    },
    "fsdp": {
        *PLUS_PLUS,
        *MUON,
        *FACTORS,
        "parallel.data.optimizer_instances",
        "parallel.order",
        *BUFFERS,
        "training.offload.activations",
        "parallel.pipeline.size",
        *PIPELINED,
        "parallel.expert.size",
        "parallel.expert.tensor",
        "parallel.expert.imbalance",
        "parallel.expert.capacity_factor",
        "parallel.expert.pad_to_capacity",
        "parallel.expert.batch_overlap",
        "parallel.expert.shared_overlap",
        "parallel.expert.dispatcher",
        "parallel.expert.dispatch_dtype",
        "parallel.expert.combine_dtype",
        "parallel.expert.sms",
        "parallel.expert.routing",
        "parallel.expert.fused_mlp",
        "parallel.expert.permute_fusion",
        "parallel.expert.paged_stash",
    },
    "torchtitan": {
        *PLUS_PLUS,
        *MUON,
        *FACTORS,
        "training.finetune.*",
        "parallel.expert.routing",
        "parallel.expert.fused_mlp",
        "parallel.expert.permute_fusion",
        "parallel.expert.paged_stash",
        "parallel.data.optimizer_instances",
        "parallel.order",
        *ACTIVATIONS,
    },
}
"""keys that are refused, or taken only where another key is refused, hence tested with the refusals"""


def covered(path: str, names: set[str]) -> bool:
    return path in names or f"{path.rpartition('.')[0]}.*" in names


@pytest.mark.parametrize("target", TARGETS)
def test_every_changed_key_is_exported_or_listed(target: str) -> None:
    seen: set[str] = set()
    for base, overrides in ACCEPTED[target]:
        scenario = load(base, *overrides)
        result = export(scenario, target)
        noted = {note.path for note in result.notes}
        for path in leaves("training", "parallel"):
            value = _value(scenario.written, path)
            if value is None:
                continue
            seen.add(path)
            fate = result.keys[path]
            assert fate.text
            assert "not known to this exporter" not in fate.text
            at_default = _value(scenario.tree, path) == _value(load({**base, "training": MINIMUM}).tree, path)
            assert fate.kind != "no counterpart" or path in noted or at_default, f"{path} = {value} is dropped silently"
    missing = [path for path in leaves("training", "parallel") if path not in seen and not covered(path, EVERYWHERE | ELSEWHERE[target])]
    assert missing == []


MINIMUM = {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": 8}


def _value(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


USER_BUFFERS = "sequence_parallel: true, overlap: full, overlap_splits: 2, overlap_sms: 8"
ALEXNET = {"model": "alexnet", "cluster": {"topology": "hgx-h100"}, "training": {"micro_batch": 8, "gradient_accumulation": 1}}
REFUSED = [
    ("megatron", STAGED, ("training.backward=false", "training.step=false"), {"training.backward", "training.step"}),
    ("megatron", SHARDED, ("training.objective=orpo",), {"training.objective"}),
    ("fsdp", SHARDED, ("training.objective=orpo",), {"training.objective"}),
    ("deepspeed", SHARDED, ("training.objective=orpo",), {"training.objective"}),
    ("megatron", STAGED, ("software.host.graphs=[experts]",), {"software.host.graphs"}),
    ("megatron", SHARDED, OFFLOAD, {"training.offload.parameters", "parallel.data.strategy"}),
    ("megatron", SHARDED, ("training.recompute=full", "training.offload.activations=cpu"), {"training.offload.activations"}),
    ("megatron", SHARDED, ("training.offload.optimizer=nvme",), {"training.offload.optimizer"}),
    ("megatron", SHARDED, TUNED, {"training.finetune.method"}),
    ("megatron", HYBRID, ("training.loss={kernel: eager, chunks: 4}",), {"training.loss.chunks", "parallel.data.strategy"}),
    ("deepspeed", STAGED, ("parallel.order=[pipeline,tensor,context,data]", "training.precision=fp16"), {"parallel.order"}),
    ("fsdp", STAGED, INTERLEAVED, {"parallel.pipeline.size", "parallel.data.strategy"}),
    ("fsdp", LLAMA, ("parallel.tensor={size: 2, sequence_parallel: true}",), {"parallel.tensor.sequence_parallel"}),
    ("fsdp", LLAMA, (f"parallel.tensor={{size: 2, {USER_BUFFERS}}}",), {"parallel.tensor.sequence_parallel"}),
    ("deepspeed", SHARDED, (f"parallel.tensor={{size: 2, {USER_BUFFERS}}}",), {"parallel.tensor.sequence_parallel"}),
    ("megatron", STAGED, ("parallel.tensor={sequence_parallel: true, overlap: async}",), {"parallel.tensor.overlap"}),
    (
        "fsdp",
        MIXTURE,
        ("parallel.data.strategy=ddp", "parallel.expert={size: 4, imbalance: 1.2, capacity_factor: 1.5, pad_to_capacity: true}"),
        {"parallel.expert.size"},
    ),
    ("fsdp", MIXTURE, ("parallel.data.strategy=ddp", "parallel.expert.tensor=2"), {"parallel.expert.tensor"}),
    *[
        (target, SHARDED, ("parallel.data.outer={size: 2, local_steps: 10, fragments: 2, overlap_steps: 1, dtype: int8}",), paths)
        for target, paths in (
            ("fsdp", {"parallel.data.outer.size"}),
            ("torchtitan", {"parallel.data.outer.size"}),
            ("deepspeed", {"parallel.data.outer.size"}),
            ("megatron", {"parallel.data.outer.size", "parallel.data.strategy"}),
        )
    ],
    ("fsdp", ALEXNET, ("parallel.fully_connected=2",), {"parallel.fully_connected"}),
    ("deepspeed", ALEXNET, ("parallel.fully_connected=2",), {"parallel.fully_connected"}),
    ("deepspeed", MIXTURE, ("parallel.expert={size: 4, tensor: 2}",), {"parallel.expert.tensor"}),
    *[
        (target, STAGED, ("parallel.data.optimizer_instances=2",), {"parallel.data.optimizer_instances"})
        for target in ("deepspeed", "fsdp")
    ],
    *[
        (target, SHARDED, ("parallel.data={quantised_weights: true, quantised_gradients: true, secondary_partition: 8}",), paths)
        for target, paths in (("fsdp", PLUS_PLUS), ("megatron", {"parallel.data.strategy"}))
    ],
    *[
        (target, {**LLAMA, "parallel": {"data": {"strategy": "ddp"}}}, (f"training.optimizer={name}",), {"training.optimizer.name"})
        for target in ("deepspeed", "fsdp")
        for name in ("muon", "soap")
    ],
    (
        "deepspeed",
        {**LLAMA, "parallel": {"data": {"strategy": "zero1"}}, "software": {"profile": "deepspeed"}},
        ("training.optimizer={name: muon, newton_schulz_steps: 6, split_gate_up: true}",),
        {"training.optimizer.newton_schulz_steps", "training.optimizer.split_gate_up"},
    ),
    ("megatron", STAGED, ("training.optimizer={name: soap, precondition_frequency: 10, max_preconditioner_dim: 8192}",), FACTORS),
    ("torchtitan", SHARDED, TUNED, {"training.finetune.method"}),
    ("torchtitan", LLAMA, ("training.optimizer=muon",), {"training.optimizer.name"}),
    ("torchtitan", LLAMA, ("training.optimizer=lion",), {"training.optimizer.name"}),
    ("torchtitan", LLAMA, ("training.precision=fp16",), {"training.precision"}),
    ("torchtitan", LLAMA, ("training.recompute={blocks: 2}", "training.offload.activations=cpu"), {"training.recompute"}),
    ("torchtitan", LLAMA, ("training.recompute=full", "training.offload.activations=cpu"), {"training.offload.activations"}),
    ("torchtitan", STAGED, ("parallel.data.optimizer_instances=2",), {"model", "parallel.data.optimizer_instances"}),
    ("torchtitan", LLAMA, ("parallel.tensor.size=2",), {"parallel.tensor.sequence_parallel"}),
    ("torchtitan", {**LLAMA, "model": "gpt3-1.3b"}, ("cluster.topology=hgx-b200", "training.precision=mxfp8"), {"model"}),
    ("torchtitan", LLAMA, ("parallel.context={size: 2, method: ulysses}",), {"parallel.context.method"}),
    ("torchtitan", LLAMA, ("parallel.data.strategy=ddp", "parallel.context.size=2"), {"parallel.data.strategy"}),
    ("torchtitan", LLAMA, ("parallel.data.strategy=zero1",), {"parallel.data.strategy"}),
    ("torchtitan", LLAMA, ("parallel.pipeline={size: 2, schedule: zb-h1}",), {"parallel.pipeline.schedule"}),
    ("torchtitan", LLAMA, ("parallel.tensor={size: 4, sequence_parallel: true}", "parallel.pipeline.size=4"), {"training.precision"}),
    ("torchtitan", SHARDED, ("parallel.data={quantised_weights: true, quantised_gradients: true, secondary_partition: 8}",), PLUS_PLUS),
    ("fsdp", LLAMA, ("parallel.tensor.size=2", "parallel.order=[data,tensor,context,pipeline]"), {"parallel.order"}),
    *[(target, REPLICATED, ("parallel.data.batch_split=balanced", *SLOW), {"parallel.data.batch_split"}) for target in TARGETS],
]


@pytest.mark.parametrize(("target", "base", "overrides", "paths"), REFUSED)
def test_refusals_name_the_key(target: str, base: dict[str, Any], overrides: tuple[str, ...], paths: set[str]) -> None:
    with pytest.raises(InputError) as caught:
        exported(base, target, *overrides)
    found = {finding.path for finding in caught.value.findings}
    assert paths <= found
    assert all(finding.suggestion for finding in caught.value.findings)


def test_expert_parallelism_has_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsim.scenario.support.LIMITS", ())
    text = exported(MIXTURE, "megatron", "parallel.expert={size: 4, tensor: 2, capacity_factor: 1.5}").text
    assert "    --expert-model-parallel-size 4\n" in text
    assert "    --expert-tensor-parallel-size 2\n" in text
    assert "    --moe-token-dispatcher-type alltoall\n" in text
    assert "    --moe-expert-capacity-factor 1.5\n" in text
    assert "--expert-tensor-parallel-size" not in exported(MIXTURE, "megatron", "parallel.expert.size=8").text
    assert "deepspeed.moe.layer.MoE(ep_size=8)" in exported(MIXTURE, "deepspeed", "parallel.expert.size=8").script


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("strategy", ["torch-data-parallel", "parameter-server"])
def test_strategies_of_one_process_are_refused(target: str, strategy: str) -> None:
    with pytest.raises(InputError, match="runs one process per GPU"):
        exported({**REPLICATED, "cluster": {"topology": "dgx-a100-80gb"}}, target, f"parallel.data.strategy={strategy}")


def test_an_optimizer_on_the_cpu_has_its_options_in_megatron() -> None:
    result = exported({**LLAMA, "parallel": {"data": {"strategy": "zero1"}}}, "megatron", "training.offload.optimizer=cpu")
    assert "    --optimizer-cpu-offload\n    --use-precision-aware-optimizer\n" in result.text
    assert "torch.optim" in next(note.message for note in result.notes if note.path == "training.offload.optimizer")


@pytest.mark.parametrize("target", TARGETS)
def test_the_resolved_document_exports_to_the_same_text(target: str) -> None:
    base = STAGED if target == "megatron" else SHARDED
    scenario = load(base)
    assert export(load(scenario.document()), target).text == export(scenario, target).text


def test_unknown_targets_and_versions_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'deepspeed'"):
        export(load(LLAMA), "deepsped")
    with pytest.raises(InputError, match="write 1 or 2"):
        export(load(LLAMA), "fsdp", fsdp_version=3)


def test_strategies_of_ones_own_are_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARSIM_TRUST_CODE", "1")
    monkeypatch.chdir(tmp_path)
    text = "from parsim.parallel.ddp import DistributedDataParallel\n\n\nclass Mine(DistributedDataParallel):\n    pass\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="a strategy of your own runs nowhere but here"):
        exported(REPLICATED, "deepspeed", "parallel.data.strategy=mine.py:Mine")


@pytest.mark.parametrize("name", names("scenarios"))
def test_shipped_scenarios_are_exported_or_refused_with_a_way_out(name: str) -> None:
    scenario = load(name)
    refused = []
    for target in TARGETS:
        try:
            text = export(scenario, target).text
        except InputError as error:
            refused += error.findings
        else:
            kind = {"megatron": "#!/bin/bash\n", "deepspeed": "{\n", "fsdp": "# ", "torchtitan": "# "}[target]
            assert text.startswith(kind)
    assert [finding for finding in refused if not (finding.suggestion and finding.line)] == []
