"""Building domain objects: derived sizes, profiles, devices, assumptions, and errors with their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsim.errors import InputError, ModelError, PlanError, ScenarioError, TopologyError
from parsim.parallel.settings import PipelineParallel
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import Built

MODERN = "cluster.set.node.device=modern.yaml"


def built(*arguments: str) -> Built:
    return build(load("base.yaml", *arguments, trust_code=True))


def refusal(kind: type[InputError], *arguments: str) -> str:
    with pytest.raises(kind) as caught:
        built(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)


def value(result: Built, name: str) -> str:
    return next(assumption.value for assumption in result.assumptions if assumption.name == name)


def test_a_short_scenario_becomes_whole(folder: Path) -> None:
    result = built()
    assert result.cluster.gpus == 4
    assert result.gpus == (0, 1, 2, 3)
    assert result.used_gpus == 4
    assert result.parallelism.data.size == 4
    assert (result.training.global_batch, result.training.micro_batch, result.training.micro_batches) == (16, 2, 2)
    assert result.batch_arithmetic == "gradient_accumulation = 16 / (2 x 4) = 2"
    assert result.bytes_per_parameter == "2+2+4+8 = 16 B/parameter"
    assert result.model.layers == 4
    assert result.memory_reserve == 0
    assert result.slow == {}
    assert [assumption.name for assumption in result.assumptions] == [
        "software_profile", "precision", "attention", "dropout", "optimizer_kernels", "loss_kernel", "gradient_reduction", "context_memory",
        "workspace_memory", "communicator_memory", "kernel_fusion", "gradient_accumulation_fusion", "host_per_kernel_forward",
        "host_per_kernel_backward",
    ]  # fmt: skip
    assert all(assumption.source and assumption.origin for assumption in result.assumptions)
    assert next(a.origin for a in result.assumptions if a.name == "context_memory").startswith("catalogue/software/pytorch-2.yaml:")


def test_every_assumption_can_be_stated(folder: Path) -> None:
    stated = {
        "software_profile": "deepspeed", "precision": "fp32", "attention": "eager", "dropout": "0.1", "optimizer_kernels": "loop",
        "loss_kernel": "fused", "gradient_reduction": "no_sync", "context_memory": "1 GiB", "workspace_memory": "1 MiB",
        "communicator_memory": "2 GiB", "kernel_fusion": "fused", "gradient_accumulation_fusion": "true",
        "host_per_kernel_forward": "10 us", "host_per_kernel_backward": "0 s",
    }  # fmt: skip
    assert list(stated) == [assumption.name for assumption in built().assumptions]
    result = built(*(f"assumptions.{name}={text}" for name, text in stated.items()))
    assert [assumption.name for assumption in result.assumptions] == ["norm_kernels"]  # the profile's, where kernels are fused
    assert built(*(f"assumptions.{name}={text}" for name, text in stated.items()), "software.norm=two-pass").assumptions == ()
    assert (result.training.precision.name, result.training.attention, result.training.dropout) == ("fp32", "eager", 0.1)
    assert (result.runtime.context, result.runtime.workspace, result.runtime.communicators) == (2**30, 2**20, 2**31)
    assert (result.runtime.profile, result.runtime.fused, result.runtime.gradient_accumulation_fusion) == ("deepspeed", True, True)
    assert (result.training.optimizer.implementation, result.training.loss_kernel) == ("loop", "fused")
    assert (result.runtime.host.per_kernel_forward, result.runtime.host.per_kernel_backward) == (1e-5, 0.0)


@pytest.mark.parametrize(
    ("arguments", "profile"),
    [
        ((), "pytorch-2"),
        (("parallel.data.strategy=fsdp",), "pytorch-2"),
        (("parallel.data.strategy=none", "cluster.gpus=1"), "pytorch-2"),
        (("parallel.zero=1",), "deepspeed"),
        (("parallel.zero=3",), "deepspeed"),
        (("parallel.tp=2",), "megatron-core"),
        (("parallel.pp=2", "parallel.zero=1"), "megatron-core"),
        (("software.profile=megatron",), "megatron-core"),
    ],
)
def test_automatic_profile(folder: Path, arguments: tuple[str, ...], profile: str) -> None:
    assert built(*arguments).runtime.profile == profile


def test_profiles_choose_what_their_stack_uses(folder: Path) -> None:
    megatron = built("parallel.tp=2", MODERN)
    assert megatron.training.precision.name == "bf16-fp32grad"
    assert megatron.bytes_per_parameter == "2+4+4+8 = 18 B/parameter"
    assert (megatron.training.loss_kernel, megatron.runtime.fused, megatron.training.optimizer.implementation) == (
        "vocab-parallel",
        True,
        "fused",
    )
    assert megatron.runtime.gradient_accumulation_fusion
    plain = built("parallel.tp=2", "software.profile=pytorch-2", MODERN)
    assert plain.training.precision.name == "bf16"
    assert (plain.training.loss_kernel, plain.runtime.fused, plain.training.optimizer.implementation) == (
        "vocab-parallel",
        False,
        "foreach",
    )


def test_own_profile(folder: Path) -> None:
    (folder / "stack.yaml").write_text("name: stack\nprecision: {preset: fp32}\nmemory: {context: 1 GiB, source: measured here}\n")
    result = built("software.profile=stack.yaml")
    assert (result.runtime.profile, result.training.precision.name, result.runtime.context) == ("stack", "fp32", 2**30)
    (folder / "stack.yaml").write_text("name: stack\nprecision: {preset: fp31}\nmemry: {}\nmemory: {contxt: 1 GiB}\n")
    message = refusal(ScenarioError, "software.profile=stack.yaml")
    assert "stack.yaml:2:13  precision.preset  'fp31' is not one of" in message
    assert "stack.yaml:3:1  memry  unknown key; did you mean 'memory'?" in message
    assert "stack.yaml:4:10  memory.contxt  unknown key; did you mean 'context'?" in message
    assert "unknown software profile 'deepsped'; did you mean 'deepspeed' or 'deepspeed-2021' or 'megatron-deepspeed'?" in refusal(
        ScenarioError, "software.profile=deepsped"
    )


def test_old_device(folder: Path) -> None:
    result = built()
    assert result.training.precision.name == "fp16"  # no bf16 before Ampere
    assert result.training.attention == "mem-efficient"
    assert value(result, "precision") == "fp16"
    assert refusal(PlanError, "training.precision=bf16") == (
        "command line: training.precision=bf16  training.precision  "
        "Test GPU has no bf16: bf16 matrix products need Ampere or later; use precision: fp16"
    )
    assert "use precision: amp-fp16" in refusal(PlanError, "training.precision=amp-bf16")
    assert "use precision: fp16" in refusal(PlanError, "training.precision=fp8")
    assert "Test GPU has no attention kernel flash2; it has mem-efficient, eager; use attention: mem-efficient" in refusal(
        PlanError, "training.attention=flash2"
    )


def test_modern_device(folder: Path) -> None:
    result = built(MODERN)
    assert (result.training.precision.name, result.training.attention) == ("bf16", "flash2")
    assert result.runtime.workspace == 32 * 2**20  # Hopper's cuBLAS workspace
    assert built(MODERN, "training.attention=flash3").training.attention == "flash3"
    assert built(MODERN, "training.precision=fp32").training.attention == "mem-efficient"
    assert "flash2 works on fp16 and bf16, but precision fp32 keeps 4-byte activations" in refusal(
        PlanError, MODERN, "training.precision=fp32", "training.attention=flash2"
    )
    assert "Modern GPU has no fp8" in refusal(PlanError, MODERN, "training.precision=fp8")
    assert "use precision: bf16" in refusal(PlanError, MODERN, "training.precision=fp8")
    assert "heads of up to 256" in refusal(PlanError, MODERN, "model.heads=1", "model.head_dim=512", "training.attention=flash2")


def test_sizes(folder: Path) -> None:
    both = built("parallel.tp=2", "parallel.pp=2")
    assert both.parallelism.data.size == 1
    assert both.parallelism.pipeline == PipelineParallel(size=2)
    assert built("cluster.nodes=2", "parallel.tp=4").parallelism.data.size == 2
    assert refusal(PlanError, "parallel.tp=3") == (
        "command line: parallel.tp=3  parallel.tensor.size  tensor 3 x pipeline 1 x context 1 = 3 does not divide the GPUs: "
        "4 GPUs are used (four, 1 node with 4 GPUs), 4 / 3 = 1.333; use cluster.gpus 3, "
        "cluster.nodes 3 (12 GPUs), or sizes whose product divides 4"
    )
    assert "tensor 8 x pipeline 1 x context 1 = 8 does not divide" in refusal(PlanError, "parallel.tp=8")
    assert refusal(PlanError, "parallel.tp=2", "parallel.dp=4") == (
        "command line: parallel.dp=4  parallel.data.size  tensor 2 x pipeline 1 x context 1 x data 4 = 8, "
        "but 4 GPUs are used (four, 1 node with 4 GPUs); use data.size 2"
    )
    assert "use data.size 4 or cluster.gpus 2" in refusal(PlanError, "parallel.dp=2")
    assert "16 / (micro_batch 2 x data 3)" in refusal(PlanError, "cluster.gpus=3")


def test_placement(folder: Path) -> None:
    assert built("cluster.nodes=2", "cluster.placement=scattered").gpus == (0, 4, 1, 5, 2, 6, 3, 7)
    assert built("cluster.placement=[3, 1]").gpus == (3, 1)
    assert built("cluster.gpus=2").gpus == (0, 1)
    assert built("cluster.nodes=2", "cluster.gpus_per_node=2").gpus == (0, 1, 4, 5)
    assert built("cluster.nodes=2", "cluster.gpus_per_node=2", "cluster.placement=scattered").gpus == (0, 4, 1, 5)
    assert built("cluster.nodes=2", "cluster.gpus_per_node=3", "cluster.gpus=4").gpus == (0, 1, 2, 4)
    assert "four has 4 in each; use at most 4" in refusal(TopologyError, "cluster.gpus_per_node=5")
    assert "use cluster.gpus 4, or more nodes" in refusal(TopologyError, "cluster.nodes=2", "cluster.gpus_per_node=2", "cluster.gpus=6")
    assert "leave it out" in refusal(TopologyError, "cluster.placement=[3, 1]", "cluster.gpus_per_node=2")
    assert "names 2 GPUs, but cluster.gpus is 3" in refusal(TopologyError, "cluster.placement=[3, 1]", "cluster.gpus=3")
    assert "cluster.placement" in refusal(TopologyError, "cluster.placement=[3, 9]")
    assert "cluster.placement" in refusal(TopologyError, "cluster.placement=[3, 3]")
    assert "command line: cluster.gpus=9" in refusal(TopologyError, "cluster.gpus=9")


def test_topology_errors_have_places(folder: Path) -> None:
    text = (folder / "four.yaml").read_text().replace("kind: pcie3-x16}\nfabric", "kind: pcie3-x17x}\nfabric")
    (folder / "four.yaml").write_text(text)
    message = refusal(TopologyError)
    assert message.startswith("four.yaml:8:30  cluster.topology.node.edges[1].kind  unknown kind of link 'pcie3-x17x'")
    (folder / "four.yaml").write_text("name: four\nnode: {gpus: 4, device: nowhere.yaml}\n")
    assert "no such file" in refusal(TopologyError)


def test_several_problems_of_several_rooms_at_once(folder: Path) -> None:
    message = refusal(ScenarioError, "model.hiden=3", "parallel.tp=3", "cluster.nodes=1")
    assert "model.hiden" in message
    assert "does not divide" in message


def test_model_errors_have_places(folder: Path) -> None:
    assert refusal(ModelError, "model.heads=3").startswith("command line: model.heads=3  model.heads")
    (folder / "mine.yaml").write_text("family: gpt2\nhidden: 256\nlayers: 4\nheads: 5\nvocabulary: 100\nmaximum_sequence: 512\n")
    (folder / "s.yaml").write_text("extends: base.yaml\nmodel: mine.yaml\n")
    with pytest.raises(ModelError) as caught:
        build(load("s.yaml"))
    assert str(caught.value).startswith("mine.yaml:4:1  model.heads  hidden / heads = 256 / 5 is not whole")


def test_a_measured_host_says_what_launching_takes(folder: Path) -> None:
    card = (folder / "old.yaml").read_text()
    card += "measured:\n  source: parsim calibrate --device cuda\n  launch: {kernel: 2.1 us, issue: 4.8 us}\n"
    (folder / "old.yaml").write_text(card)
    line = card[: card.index("launch: {kernel")].count("\n") + 1
    result = build(load("base.yaml"))
    host = result.runtime.host
    assert (host.per_kernel_forward, host.per_kernel_backward) == pytest.approx(
        (40e-6 * 4.8 / 13.5, 24e-6 * 4.8 / 13.5)
    )  # the profile has 40 and 24 us where 13.5 are issued
    found = {one.name: (one.value, one.source, one.origin) for one in result.assumptions if one.name.startswith("host_")}
    who = "parsim calibrate --device cuda", f"old.yaml:{line}"
    assert found == {"host_per_kernel_forward": ("14.22 us", *who), "host_per_kernel_backward": ("8.533 us", *who)}
    stated = build(load("base.yaml", "software.host.per_kernel_forward=20 us")).runtime.host
    assert (stated.per_kernel_forward, stated.per_kernel_backward) == pytest.approx((20e-6, 24e-6 * 4.8 / 13.5))


def test_sequence_length_is_needed_where_there_are_sequences(folder: Path) -> None:
    assert "base.yaml:2:1  training.sequence_length  required" in refusal(ModelError, "training.sequence_length=null")
    plain = "{input: {shape: [1024]}, layers: [{linear: {out: 1024}}]}"
    (folder / "s.yaml").write_text(f"model: {plain}\ntraining: {{gbs: 8, mbs: 2}}\ncluster: four.yaml\n")
    result = build(load("s.yaml"))
    assert (result.training.sequence_length, result.training.attention, result.training.loss_kernel) == (1, "eager", "eager")
    assert result.training.precision.name == "fp16"
    assert build(load("s.yaml", "model.input.dtype=fp32")).training.precision.name == "fp32"
    assert build(load("s.yaml", "model.input.dtype=fp32", "training.precision=amp-fp16")).training.precision.name == "amp-fp16"
    with pytest.raises(PlanError, match="has no attention"):
        build(load("s.yaml", "training.attention=mem-efficient"))
    with pytest.raises(ModelError, match="samples without sequences"):
        build(load("s.yaml", "training.seq=128"))


def test_huggingface_config(folder: Path) -> None:
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-05}'
    )
    (folder / "s.yaml").write_text("extends: base.yaml\nmodel: null\noverrides: {}\n")
    result = build(load({"extends": "base.yaml", "model": "tiny"}))
    assert (result.model.name, result.model.layers, result.model.hidden) == ("tiny", 2, 64)
    changed = load({"extends": "base.yaml"}, "model=tiny").with_overrides("model.layers=3")
    assert build(changed).model.layers == 3
    assert build(load(changed.document())).model.layers == 3


def test_document_builds_the_same(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load("base.yaml", "parallel.tp=2", "training.recompute=full", "variability.slow=[{rank: 1, speed: 0.8}]")
    first = build(scenario)
    document = scenario.document()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    second = build(load(document))
    assert second.slow == {1: 0.8}
    assert repr(first.model) == repr(second.model)
    for name in ("training", "parallelism", "runtime", "gpus", "batch_arithmetic"):
        assert getattr(first, name) == getattr(second, name)


def test_box_with_an_own_device_is_self_contained(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load("base.yaml", "cluster.topology=2x old.yaml")
    document = scenario.document()
    assert build(scenario).cluster.device(0).name == "Test GPU"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = build(load(document))
    assert (again.cluster.device(0).name, again.cluster.gpus) == ("Test GPU", 2)
    assert load(document).document() == document


def test_settings_reach_the_domain_objects(folder: Path) -> None:
    result = built(
        "training={sequence_length: 512, gas: 2, mbs: 2, optimizer: {name: lion, clip_gradients: false}, dropout: 0.2, iteration: first}",
        "parallel.data={strategy: zero2, bucket: 5e7 elements, overlap_reduce: false, accumulate: every}",
        "parallel.order=[data, tensor, context, pipeline]",
        "cluster.memory_reserve=1 GiB",
        "software={step_constant: 8 ms, boundary: 2.3 s, memory: {overhead: 1 GiB, allocator: exact}}",
        "variability.seed=7",
    )
    assert (result.training.optimizer.name, result.training.optimizer.clip_gradients) == ("lion", False)
    assert (result.training.dropout, result.training.iteration) == (0.2, "first")
    assert result.parallelism.data.bucket == (50_000_000, "elements")
    assert (result.parallelism.data.overlap_reduce, result.parallelism.data.accumulate) == (False, "every")
    assert result.parallelism.order == ("data", "tensor", "context", "pipeline")
    assert (result.memory_reserve, result.seed) == (2**30, 7)
    assert (result.runtime.step_constant, result.runtime.boundary) == (0.008, 2.3)
    assert (result.runtime.overhead, result.runtime.allocator) == (2**30, "exact")


def test_own_schedule(folder: Path) -> None:
    (folder / "order.txt").write_text("F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1 B1.0 B1.1\n")
    result = built("parallel.pp=2", "training.gas=2", "training.gbs=null", "parallel.pipeline.schedule=order.txt")
    assert result.parallelism.pipeline.schedule == "custom"
    assert result.parallelism.pipeline.slots[1] == (("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1))
    text = "F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1 B1.0 B1.1"
    inline = build(
        load({"extends": "base.yaml", "training": {"gas": 2, "gbs": None}, "parallel": {"pp": 2, "pipeline": {"schedule": text}}})
    )
    assert inline.parallelism.pipeline.slots == result.parallelism.pipeline.slots
    (folder / "order.py").write_text("def gpipe(p, m, v):\n    return [[(k, s, i) for k in 'FB' for i in range(m)] for s in range(p)]\n")
    made = built("parallel.pp=2", "training.gas=2", "training.gbs=null", "parallel.pipeline.schedule=order.py:gpipe")
    assert made.parallelism.pipeline.slots == result.parallelism.pipeline.slots
    assert "which function?" in refusal(PlanError, "parallel.pp=2", "parallel.pipeline.schedule=order.py")
    assert "2 rows, but parallel.pipeline.size is 4" in refusal(PlanError, "parallel.pp=4", "parallel.pipeline.schedule=order.txt")
    assert "F0.2 is missing" in refusal(PlanError, "parallel.pp=2", "training.gbs=12", "parallel.pipeline.schedule=order.txt")
    assert "no such schedule file" in refusal(PlanError, "parallel.pp=2", "parallel.pipeline.schedule=ordr.txt")
    assert "did you mean gpipe?" in refusal(PlanError, "parallel.pp=2", "parallel.pipeline.schedule=gpip")
    assert built("parallel.pp=2", "parallel.pipeline.schedule=PipeDream-Flush").parallelism.pipeline.schedule == "1f1b"


def test_warnings_have_places(folder: Path) -> None:
    (warning,) = built("training.gbs=4M").warnings
    assert "are these tokens?" in warning.message
    assert warning.file == "command line: training.gbs=4M"


def test_devices_of_two_kinds_share_what_both_can(folder: Path) -> None:
    arguments = ("cluster.set.node.device=[old.yaml, old.yaml, modern.yaml, modern.yaml]",)
    mixed = built(*arguments)
    assert [device.name for device in mixed.kinds] == ["Test GPU", "Modern GPU"]
    assert mixed.training.attention == "mem-efficient"
    assert built(*arguments, "cluster.gpus=2").training.attention == "mem-efficient"


def test_the_stack_pads_the_vocabulary_on_one_rank_too(folder: Path) -> None:
    odd = "model.vocabulary=1000"
    plain, megatron = built(odd), built(odd, "software.profile=megatron-core")
    assert (plain.model.vocabulary, plain.model.vocabulary_padded) == (1000, 1000)
    assert (megatron.model.vocabulary, megatron.model.vocabulary_padded) == (1000, 1024)
    assert value(megatron, "vocabulary_padding") == "1,000 rows padded to 1,024"
    assert built(odd, "parallel.tp=4").model.vocabulary_padded == 1024
    assert built(odd, "parallel.tp=4", "software.profile=pytorch-2").model.vocabulary_padded == 1000
    assert built(odd, "parallel.tp=2", "software.profile=pytorch-2", "model.vocab_divisible_by=300").model.vocabulary_padded == 1200


def test_an_own_profile_says_how_vocabularies_are_padded(folder: Path) -> None:
    (folder / "stack.yaml").write_text("name: stack\nvocabulary: {divisible_by: 64, source: measured here}\n")
    assert built("model.vocabulary=1000", "software.profile=stack.yaml").model.vocabulary_padded == 1024
    (folder / "stack.yaml").write_text("name: stack\nvocabulary: {divisible_by: 0}\n")
    assert "vocabulary.divisible_by" in refusal(ScenarioError, "software.profile=stack.yaml")
