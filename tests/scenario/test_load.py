# ruff: noqa: E501
"""Loading: priorities, short forms, overrides, and errors that say where and what to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parsim.errors import Finding, ScenarioError
from parsim.scenario import Scenario, load
from parsim.scenario.files import parse_text


def refusal(source: object, *arguments: str, named: tuple[str, ...] = ()) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(source, *arguments, named=named)  # type: ignore[arg-type]
    return str(caught.value)


MINIMAL = {"model": "gpt2", "cluster": "4x v100-32gb", "training": {"sequence_length": 1024, "global_batch": 8, "micro_batch": 1}}


def test_priorities(folder: Path) -> None:
    (folder / "s.yaml").write_text(
        "extends: base.yaml\n"
        "training: {micro_batch: 4, dropout: 0.1}\n"
        "overrides:\n"
        "  big: {training: {global_batch: 64, micro_batch: 8}}\n"
        "  other: {training: {micro_batch: 1}, parallel: {tp: 2}}\n"
    )
    plain = load("s.yaml").settings.training
    assert (plain.global_batch, plain.micro_batch, plain.dropout) == (16, 4, 0.1)
    assert plain.sequence_length == 512
    big = load("s.yaml", named=["big"]).settings
    assert (big.training.global_batch, big.training.micro_batch) == (64, 8)
    both = load("s.yaml", named=["big,other"]).settings
    assert (both.training.global_batch, both.training.micro_batch, both.parallel.tensor.size) == (64, 1, 2)
    reverse = load("s.yaml", named=["other", "big"]).settings
    assert reverse.training.micro_batch == 8
    command = load("s.yaml", "training.micro_batch=2", "parallel.tensor.size=4", named=["big", "other"]).settings
    assert (command.training.micro_batch, command.parallel.tensor.size) == (2, 4)
    later = load("s.yaml", "training.mbs=2", "training.micro_batch=1").settings
    assert later.training.micro_batch == 1


def test_extends_list_and_null(folder: Path) -> None:
    (folder / "more.yaml").write_text(
        "training: {dropout: 0.2, recompute: {every: 2}}\nparallel: {pipeline: {size: 2, split: [1, 3]}}\nname: more\n"
    )
    (folder / "s.yaml").write_text(
        "extends: [base.yaml, more.yaml]\ntraining: {dropout: null, recompute: {blocks: 3}}\nparallel: {pipeline: {split: [2, 2]}}\n"
    )
    scenario = load("s.yaml")
    assert scenario.name == "s"  # a base's name is its own
    assert scenario.settings.training.dropout == "auto"
    assert scenario.settings.training.recompute.mode == "blocks"  # alternatives replace each other
    assert scenario.settings.parallel.pipeline.split == (2, 2)
    assert scenario.settings.parallel.pipeline.size == 2
    assert scenario.locate("parallel.pipeline.size") == (str(Path("more.yaml")), 2, 23)
    assert scenario.locate("parallel.pipeline.split")[0] == "s.yaml"


def test_paths_are_relative_to_the_file_that_writes_them(folder: Path) -> None:
    deep = folder / "deep"
    deep.mkdir()
    (deep / "s.yaml").write_text("extends: ../base.yaml\n")
    scenario = load(deep / "s.yaml")
    assert scenario.settings.cluster.topology == "four.yaml"  # beside base.yaml
    assert scenario.document()["cluster"]["topology"]["name"] == "four"


def test_cycle_is_reported_as_a_chain(folder: Path) -> None:
    (folder / "a.yaml").write_text("extends: b.yaml\nmodel: gpt2\n")
    (folder / "b.yaml").write_text("extends: [c.yaml]\n")
    (folder / "c.yaml").write_text("\n\nextends: a.yaml\n")
    message = refusal("a.yaml")
    assert "c.yaml:3:1  extends  extends goes in a circle: a.yaml -> b.yaml -> c.yaml -> a.yaml" in message


def test_missing_base(folder: Path) -> None:
    (folder / "s.yaml").write_text("model: gpt2\nextends: bse.yaml\n")
    assert "s.yaml:2:1  extends  no such file" in refusal("s.yaml")


def test_short_forms_mean_the_same() -> None:
    short = load({**MINIMAL, "training": {"seq": 1024, "gbs": 8, "mbs": 1}, "parallel": {"tp": 2, "pp": 1, "dp": 2, "zero": 1}})
    long = load(
        {
            **MINIMAL,
            "parallel": {"tensor": {"size": 2}, "pipeline": {"size": 1}, "data": {"size": 2, "strategy": "zero1"}},
        }
    )
    assert short.tree == long.tree
    assert short.hash() == long.hash()
    assert load(MINIMAL, "parallel.zero=3").settings.parallel.data.strategy == "zero3"
    assert load(MINIMAL, "parallel.zero=0").settings.parallel.data.strategy == "ddp"
    assert load(MINIMAL, "training.gas=8", "training.gbs=null").settings.training.gradient_accumulation == 8


def test_scalar_forms_merge_with_mappings(folder: Path) -> None:
    scenario = load(
        "base.yaml", "cluster.nodes=2", "training.optimizer=sgd", "training.optimizer.clip_gradients=false", "training.precision=fp32"
    )
    assert scenario.settings.cluster.topology == "four.yaml"
    assert scenario.settings.cluster.nodes == 2
    assert (scenario.settings.training.optimizer.name, scenario.settings.training.optimizer.clip_gradients) == ("sgd", False)
    mixed = load(MINIMAL, "model.layers=6", "training.precision=bf16", "training.precision.gradients=fp32", "cluster.topology.count=2")
    assert mixed.written["model"] == {"base": "gpt2", "layers": 6}
    assert mixed.settings.training.precision.preset == "bf16"
    assert mixed.settings.training.precision.changes == (("gradients", 4),)
    assert mixed.settings.cluster.topology == {"gpu": "v100-32gb", "count": 2}


def test_a_strategy_and_a_profile_by_name() -> None:
    named = load({**MINIMAL, "parallel": "fsdp", "software": "torchtitan"}, "parallel.tp=2")
    assert (named.settings.parallel.data.strategy, named.settings.parallel.tensor.size) == ("fsdp", 2)
    assert named.settings.software.profile == "torchtitan"
    assert load({**MINIMAL, "parallel": "auto"}).settings.parallel.search == "auto"
    assert "did you mean 'zero3'" in refusal({**MINIMAL, "parallel": "zero33"})
    assert "write parallel: {tp: 2}" in refusal({**MINIMAL, "parallel": "tensor"})


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        ("true", "full"),
        ("false", "none"),
        ("gradient_checkpointing", "full"),
        ("selective", "selective"),
        ("{every: 2}", "every"),
        ("none", "none"),
    ],
)
def test_recompute_synonyms(value: str, mode: str) -> None:
    assert load(MINIMAL, f"training.recompute={value}").settings.training.recompute.mode == mode


def test_both_forms_at_once() -> None:
    message = refusal({**MINIMAL, "parallel": {"tp": 2, "tensor": {"size": 4}}})
    assert "short and long form at once: tp = 2 and parallel.tensor.size = 4; keep one of them" in message
    assert "short and long form at once" in refusal({**MINIMAL, "training": {**MINIMAL["training"], "gbs": 4}})  # type: ignore[dict-item]
    assert "short and long form at once" in refusal({**MINIMAL, "assumptions": {"attention": "eager"}, "training": {"attention": "flash2"}})


def test_assumptions_are_overridden_by_name() -> None:
    scenario = load({**MINIMAL, "assumptions": {"context_memory": "1 GiB", "dropout": 0.0}})
    assert scenario.settings.software.memory.context == 2**30
    assert scenario.settings.training.dropout == 0.0
    assert "no assumption has this name; did you mean 'context_memory'?" in refusal({**MINIMAL, "assumptions": {"context_memry": "1 GiB"}})


BAD = """\
modle: gpt2
extends: nowhere.yaml
training:
  micro_batch_size: 4
  global_batch: -8
  sequence_length: .nan
  precision: bf61
  recompute: ful
  optimizer: adamm
  data_loading: 3
  backward: yes
  dropout: 1.5
parallel:
  tensor: 4
  tp: 2
  pipline: {size: 2}
  pipeline: {size: 0, schedul: gpipe}
  expert: {capacity_factor: 0}
  data: {strategy: dp, bucket: 25, micro_batch: 2}
cluster:
  topology: four.yaml
  memory_reserve: 400 Gb/s
  interference: strong
micro_batch: 3
zero_optimization: {stage: 2}
"""


def test_all_errors_of_a_file_at_once(folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD)
    expected = """\
bad.yaml  model  required; write for example model: gpt2
bad.yaml:1:1  modle  unknown key; did you mean 'model'?
bad.yaml:2:1  extends  no such file 'nowhere.yaml' beside bad.yaml or in FOLDER
bad.yaml:4:3  training.micro_batch_size  unknown key; the name in Megatron; write training.micro_batch
bad.yaml:5:3  training.global_batch  -8 is not a number of samples from 1 to 1,000,000,000,000, or of tokens such as "4M tokens"
bad.yaml:6:3  training.sequence_length  nan is not a whole number from 1 to 100,000,000
bad.yaml:7:3  training.precision  'bf61' is not a precision; did you mean 'bf16'?
bad.yaml:8:3  training.recompute  'ful' is not none, full, {every: k}, {one_in: k}, {blocks: n}, selective or {selective: [attention, mlp, norm, layernorm, mla_up_proj, moe_act, moe, shared_experts, matmuls]}; did you mean 'full'?
bad.yaml:9:3  training.optimizer.name  'adamm' is not one of sgd, momentum, adam, adamw, adam-8bit, adam-4bit, adam-mini, adafactor, lamb, lion, muon, soap, shampoo; did you mean 'adam'?
bad.yaml:10:3  training.data_loading  3 has no unit, expected a time in s; write the unit, for example '1.5 ms'
bad.yaml:11:3  training.backward  'yes' is not true or false; write true
bad.yaml:12:3  training.dropout  1.5 is not a number in [0, 1) or auto
bad.yaml:14:3  parallel.tensor  4 is not a mapping of size, sequence_parallel, overlap, overlap_splits, overlap_sms; write tensor: {size: 4}
bad.yaml:16:3  parallel.pipline  unknown key; did you mean 'pipeline'?
bad.yaml:17:14  parallel.pipeline.size  0 is not a whole number from 1 to 1,000,000
bad.yaml:17:23  parallel.pipeline.schedul  unknown key; did you mean 'schedule'?
bad.yaml:18:12  parallel.expert.capacity_factor  0 is not a number in (0, 1000]
bad.yaml:19:10  parallel.data.strategy  'dp' is not one of none, torch-data-parallel, parameter-server, ddp, zero1, zero2, zero3, fsdp, hsdp; say which one: ddp (one process per GPU), torch-data-parallel (one process, torch.nn.DataParallel), zero1, zero2, zero3 or fsdp
bad.yaml:19:24  parallel.data.bucket  25 has no unit; write for example "25 MiB" or "25 elements"
bad.yaml:19:36  parallel.data.micro_batch  unknown key; it belongs under training
bad.yaml:22:3  cluster.memory_reserve  "400 Gb/s" is a bandwidth in B/s, expected a size in B; write for example "400 Gb"
bad.yaml:23:3  cluster.interference  'strong' is not one of off, simple, full
bad.yaml:24:1  micro_batch  unknown key; it belongs under training
bad.yaml:25:1  zero_optimization  unknown key; the name in DeepSpeed; write parallel.data.strategy: zero1, zero2 or zero3""".replace(
        "FOLDER", str(folder)
    )
    assert refusal("bad.yaml").splitlines() == expected.splitlines()


def test_findings_are_the_json_contract(folder: Path) -> None:
    (folder / "bad.yaml").write_text("model: gpt2\ntraining: {global_batch: 8, micro_bach: 1}\ncluster: four.yaml\n")
    with pytest.raises(ScenarioError) as caught:
        load("bad.yaml")
    assert [json.loads(json.dumps(finding.as_dict())) for finding in caught.value.findings] == [
        {
            "message": "unknown key", "path": "training.micro_bach", "value": 1, "suggestion": "did you mean 'micro_batch'?",
            "file": "bad.yaml", "line": 2, "column": 29,
        }
    ]  # fmt: skip
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("parallel.tps=4", "command line: parallel.tps=4  parallel.tps  unknown key; did you mean 'tp'?"),
        ("tp=4", "unknown key; it belongs under parallel"),
        ("foo", "is not of the form key.key=value"),
        ("a..b=1", "is not of the form key.key=value"),
        ("training.micro_batch=[1", "not valid YAML"),
        ("training.bf16=true", "the name in DeepSpeed, Megatron and Hugging Face; write training.precision: bf16"),
        ("training.hidden_size=1024", "write model.hidden"),
        ("parallel.tensor_model_parallel_size=2", "write parallel.tensor.size"),
        ("training.per_device_train_batch_size=2", "write training.micro_batch"),
        ("training.gradient_accumulation_steps=2", "write training.gradient_accumulation"),
        ("training.max_seq_len=2", "write training.sequence_length"),
        ("training.parallel={}", "it belongs at the top level"),
        ("training.micro_batch=1e99", "is not a whole number"),
        ("training.micro_batch=2.5", "is not a whole number"),
        ("training.micro_batch='2 GiB'", "is not a whole number"),
        ("cluster.nodes=1e12", "is not a whole number"),
        ("parallel.zero=4", "is not a ZeRO stage"),
        ("parallel.order=[tensor, data]", "each of them once"),
        ("variability.slow=[{rank: 1, speed: 0}]", "variability.slow.0  speed 0 stops the rank: give from and to"),
        ("variability.slow=[{rank: 1, sped: 1}]", "variability.slow.0.sped  unknown key; did you mean 'speed'?"),
        ("training.precision.gradient=fp32", "unknown key 'gradient' in a precision; did you mean 'gradients'?"),
        ("training.precision.gradients=fp8", "gradients: 'fp8' is not a type of 2 or 4 bytes"),
        ("model=lama-7b", "unknown model 'lama-7b'; did you mean 'llama-7b'"),
        ("model.base=lama-7b", "unknown model 'lama-7b'"),
        ("cluster.topology=4", "4 is not a topology name, a path, a box"),
        ("parallel.pipeline.schedule=''", "is not a text"),
        ("name=''", "is not a text"),
    ],
)
def test_command_line_mistakes(argument: str, words: str) -> None:
    assert words in refusal(MINIMAL, argument)


def test_unknown_override_name(folder: Path) -> None:
    (folder / "s.yaml").write_text("extends: base.yaml\noverrides: {large: {training: {gbs: 32}}}\n")
    assert "no override is called 'lrge'; did you mean 'large'?" in refusal("s.yaml", named=("lrge",))


def test_a_typo_in_an_override_nobody_chose_is_found(folder: Path) -> None:
    (folder / "s.yaml").write_text("extends: base.yaml\noverrides:\n  a: {training: {gbs: 32}}\n  b: {training: {gbsx: 32}}\n  c: 3\n")
    message = refusal("s.yaml")
    assert "s.yaml:4:18  training.gbsx  unknown key; did you mean 'gbs'?" in message
    assert "s.yaml:5:3  overrides.c  3 is not a mapping of changes" in message


def test_locate_and_findings_at(folder: Path) -> None:
    scenario = load("base.yaml", "parallel.tp=2")
    assert scenario.locate("training.micro_batch") == ("base.yaml", 2, 52)
    assert scenario.locate("model.layers") == ("base.yaml", 1, 36)
    assert scenario.locate("parallel.tensor.size") == ("command line: parallel.tp=2", None, None)
    assert scenario.locate("software.profile") == ("base.yaml", None, None)
    found = scenario.findings_at([Finding("x", "training.micro_batch.deep"), Finding("y", ""), Finding("z", "a", file="kept", line=3)])
    assert [(finding.file, finding.line) for finding in found] == [("base.yaml", 2), ("base.yaml", None), ("kept", 3)]


def test_findings_point_into_the_users_model_and_topology_files(folder: Path) -> None:
    (folder / "mine.yaml").write_text("family: gpt2\nhidden: 256\nlayers: 4\nheads: 5\n")
    scenario = load("base.yaml", "model=mine.yaml")
    found = scenario.findings_at(
        [Finding("x", "model.heads"), Finding("y", "cluster.topology.node.edges[1].kind"), Finding("z", "model.absent")]
    )
    assert [(finding.file, finding.line) for finding in found] == [
        (str(Path("mine.yaml")), 4),
        (str(Path("four.yaml")), 8),
        (str(Path("mine.yaml")), 1),
    ]


def test_show_names_the_origin_of_every_value_and_can_be_read_back(folder: Path) -> None:
    (folder / "s.yaml").write_text("extends: base.yaml\nname: 'odd: name # x'\nmodel: {heads: 8}\n")
    scenario = load("s.yaml", "parallel.tp=2")
    shown = scenario.show()
    lines = {line.split(":")[0].strip(): line for line in shown.splitlines()}
    assert lines["micro_batch"].endswith("# base.yaml:2")
    assert lines["heads"].endswith("# s.yaml:3")
    assert lines["size"].endswith("# command line: parallel.tp=2")
    assert parse_text(shown, "shown").tree == scenario.written
    everything = scenario.show(defaults=True)
    assert parse_text(everything, "shown").tree == scenario.tree
    assert any(line.strip().startswith("allocator: auto") and line.endswith("# default") for line in everything.splitlines())


def test_document_is_self_contained_and_loads_to_the_same(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.yaml").write_text("base: inner.yaml\nlayers: 6\n")
    (folder / "inner.yaml").write_text("family: gpt2\nhidden: 128\nlayers: 2\nheads: 4\nvocabulary: 512\nmaximum_sequence: 512\n")
    scenario = load(
        "base.yaml", "model.base=mine.yaml", "model.heads=2", "training.data_loading=0 ms", "parallel.tp=2", "model.family=null"
    )
    document = json.loads(json.dumps(scenario.document()))
    assert document["cluster"]["topology"]["devices"]["old.yaml"]["name"] == "Test GPU"
    assert "base" not in document["model"]
    assert document["model"]["layers"] == 4  # written in base.yaml on top of what mine.yaml says
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = load(document)
    assert again.document() == document
    assert again.hash() == load(again.document()).hash()
    assert again.settings == scenario.settings.model_copy(
        update={"model": again.settings.model, "cluster": again.settings.cluster, "name": scenario.name}
    )


def test_document_of_a_shipped_model_keeps_its_name() -> None:
    document = load(MINIMAL).document()
    assert document["model"] == "gpt2"
    assert document["cluster"]["topology"] == "4x v100-32gb"
    assert "extends" not in document
    assert load(document).document() == document


def test_hash_is_of_the_work_not_of_the_writing() -> None:
    assert load(MINIMAL).hash() == load({**MINIMAL, "name": "other", "software": {"profile": "auto"}}).hash()
    assert load(MINIMAL).hash() != load(MINIMAL, "training.micro_batch=2").hash()


def test_with_overrides(folder: Path) -> None:
    scenario = load("base.yaml", "parallel.tp=2")
    changed = scenario.with_overrides("parallel.tensor.size=4", "training.micro_batch=1")
    assert isinstance(changed, Scenario)
    assert changed.settings.parallel.tensor.size == 4
    assert scenario.settings.parallel.tensor.size == 2
    assert changed.hash() == load("base.yaml", "parallel.tp=4", "training.mbs=1").hash()
    with pytest.raises(ScenarioError):
        scenario.with_overrides("nonsense=1")
    assert changed.name == "base (tensor.size=4, micro_batch=1)"


def test_null_in_a_model_is_a_value(folder: Path) -> None:
    scenario = load({**MINIMAL, "model": {"base": "mixtral-8x7b", "experts": None}})
    assert scenario.written["model"] == {"base": "mixtral-8x7b", "experts": None}
    assert load(scenario.document()).document()["model"] == {"base": "mixtral-8x7b", "experts": None}


def test_a_mapping_may_extend_files(folder: Path) -> None:
    scenario = load({"extends": "base.yaml", "training": {"micro_batch": 1}})
    assert scenario.settings.training.micro_batch == 1
    assert scenario.settings.training.global_batch == 16


def test_scenarios_are_immutable() -> None:
    scenario = load(MINIMAL)
    with pytest.raises(Exception, match="frozen"):
        scenario.settings.training.micro_batch = 3  # type: ignore[misc]


def test_a_file_of_another_tool_is_pointed_to_the_import(folder: Path) -> None:
    (folder / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}')
    (folder / "tt.toml").write_text('[model]\nname = "llama3"')
    first, *others = refusal("ds.json").splitlines()
    assert first.startswith("ds.json  no key of a scenario stands in it (model, cluster, training ...); another tool's configuration is")
    assert "parsim import ds.json; a model's config.json goes under model:" in first
    assert any("train_batch_size  unknown key; the name in DeepSpeed" in line for line in others)
    assert refusal("tt.toml") == "tt.toml  is no scenario, which is YAML; another tool's configuration is imported: parsim import tt.toml"
