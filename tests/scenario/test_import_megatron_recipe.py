"""Megatron-LM's arguments in YAML: one argument is changed, and the scenario follows or the argument is refused.

Expected values were worked out by hand from NVIDIA/Megatron-LM: megatron/training/arguments.py, megatron/core/parallel_state.py (which
ranks hold experts), and what starts a training of its functional tests (tests/functional_tests/shell_test_utils).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from ruamel.yaml import YAML
from training_samples import DATA, GIVEN, from_text, of_kind, taken, values, values_of

from parsim.errors import ScenarioError
from parsim.interop.import_draft import ImportedScenario
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

SAMPLE = "megatron-recipe.yaml"
TEXT = (DATA / SAMPLE).read_text(encoding="utf-8")
TWO_B200 = GIVEN[SAMPLE]
TEST = """
ENV_VARS:
  NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0
  NCCL_ALGO: Ring
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-file: ${DATA_PATH}/bpe/vocab.json
  --merge-file: ${DATA_PATH}/bpe/merges.txt
  --micro-batch-size: 4
  --global-batch-size: 32
  --train-iters: 100
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --sequence-parallel: true
  --recompute-granularity: selective
  --recompute-modules: "[core_attn layernorm]"
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --no-gradient-accumulation-fusion: true
  --log-num-zeros-in-grad: false
  --data-path: ${DATA_BLEND}
  --bf16: true
METRICS:
  - "iteration-time"
"""


def changed(text: str, name: str, value: str) -> str:
    """The text with one argument said otherwise, as the last one of its section; an old value may be a list below it."""
    section = "MODEL_ARGS:" if "MODEL_ARGS:" in text else "ARGS:"
    text = re.sub(rf"^  {re.escape(name)}:.*\n(?:  - .*\n)*", "", text, flags=re.MULTILINE)
    return re.sub(rf"^{section}\n", f"{section}\n  {name}: {value}\n", text, flags=re.MULTILINE)


def differs(text: str, name: str, value: str, **given: Any) -> dict[str, Any]:
    before, after = values_of(text, tuple(given.items())), values(from_text(changed(text, name, value), **given))
    return {path: after.get(path) for path in {**before, **after} if before.get(path) != after.get(path)}


def world(imported: ImportedScenario) -> int:
    split = build(load(imported.tree)).parallelism
    return split.stage_ranks * split.pipeline.size


def test_a_recipe_is_built_as_it_says() -> None:
    made = build(load(taken(SAMPLE).tree))
    split, precision = made.parallelism, made.training.precision
    assert (world(taken(SAMPLE)), split.tensor.size, split.pipeline.size, split.data.size) == (16, 2, 2, 4)
    assert (split.expert.size, split.expert_width, split.context.size) == (8, 1, 1)
    assert precision.quantisation is not None
    assert (precision.quantisation.recipe, precision.activations) == ("mxfp8", 2)
    attention = 2 * 1024 * (8 * 64) + 2 * 1024 * (4 * 64) + 2 * 64  # queries and output, keys and values, norms of queries and keys
    dense, mixture = 3 * 1024 * 2048, 8 * 1024 + 8 * 3 * 1024 * 256
    layers = 4 * (attention + 2 * 1024) + dense + 3 * mixture
    assert parameter_count(made.model) == layers + 1024 + 2 * 32000 * 1024


def test_both_forms_are_the_options_of_a_command() -> None:
    """Second way: the same pairs as options of a command, and in the other form."""
    pairs = {name: value for name, value in YAML(typ="safe").load(TEXT)["ARGS"].items() if value is not False}
    inverted = {"overlap_p2p_comm"}
    words = {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in pairs.items()}
    options = [
        f"--{name.replace('_', '-')} {'' if value is True else repr(value)}" for name, value in words.items() if name not in inverted
    ]
    script = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\npretrain.py " + " ".join(options).replace(
        "'moe_act layernorm'", "moe_act layernorm"
    )
    script = script.replace("'attn moe_router moe_preprocess'", "attn moe_router moe_preprocess")
    rows = [f"  --{name.replace('_', '-')}: {'true' if value is True else value!r}" for name, value in words.items()]
    other = TEXT.partition("\nARGS:")[0] + "\nMODEL_ARGS:\n" + "\n".join(rows).replace("--overlap-p2p-comm", "--overlap_p2p_comm")
    assert values(from_text(script, tool="megatron", **TWO_B200)) == values(taken(SAMPLE))
    assert values(from_text(other, **TWO_B200)) == values(taken(SAMPLE))


def test_a_test_of_megatron_is_built_as_it_says() -> None:
    found = from_text(TEST, on="hgx-h100")
    made = build(load(found.tree))
    split = made.parallelism
    assert (world(found), split.tensor.size, split.pipeline.size, split.data.size) == (8, 2, 2, 2)
    assert (made.training.micro_batch, made.training.global_batch) == (4, 32)
    assert found.tree["training"]["precision"] == "bf16-fp32grad"
    assert found.tree["training"]["recompute"] == {"selective": ["attention", "layernorm"]}
    assert found.tree["cluster"]["collectives"] == {"algorithm": "ring"}
    layer = 12 * 512**2 + 13 * 512  # matrices of attention (4) and MLP (8), their biases (9), two norms with biases (4)
    assert parameter_count(made.model) == 12 * layer + 2 * 512 + (50257 + 1024) * 512
    assert {"MODEL_ARGS.__num_layers"} <= set(found.evidence.split(", "))
    assert not of_kind(found, "unknown")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("pipeline_model_parallel_size", "1", {"parallel.pipeline.size": 1, "parallel.pipeline.virtual_stages": 4}),
        ("tensor_model_parallel_size", "1", {"parallel.tensor.size": 1, "parallel.tensor.sequence_parallel": None}),
        ("expert_model_parallel_size", "4", {"parallel.expert.size": 4}),
        ("expert_tensor_parallel_size", "2", {"parallel.expert.tensor": 2, "cluster.nodes": 2}),
        ("context_parallel_size", "2", {"parallel.context.size": 2}),
        ("global_batch_size", "128", {"training.global_batch": 128, "training.tokens": 50 * 128 * 2048}),
        ("micro_batch_size", "2", {"training.micro_batch": 2}),
        ("fp8_recipe", "blockwise", {"training.precision": {"preset": "fp8", "recipe": "blockwise"}}),
        ("fp8_format", "false", {"training.precision": "bf16-fp32grad"}),
        ("main_grads_dtype", "bf16", {"training.precision": {"preset": "fp8", "gradients": "bf16", "recipe": "mxfp8"}}),
        ("recompute_modules", "[mlp]", {"training.recompute": {"selective": ["mlp"]}}),
        ("recompute_modules", '"[moe_act, mlp]"', {"training.recompute": {"selective": ["moe_act", "mlp"]}}),
        (
            "moe_flex_dispatcher_backend",
            "deepep",
            {"parallel.expert.dispatcher": "deepep", "parallel.expert.permute_fusion": False},
        ),
        (
            "moe_token_dispatcher_type",
            "alltoall",
            {"parallel.expert.dispatcher": "alltoall", "parallel.expert.sms": None, "parallel.expert.permute_fusion": False},
        ),
        ("moe_hybridep_num_sms", "16", {"parallel.expert.sms": 16}),
        ("cuda_graph_scope", "full_iteration", {"software.host.graphs": True}),
        ("cuda_graph_scope", "moe_router moe_preprocess", {"software.host.graphs": ["router"]}),
        ("cuda_graph_impl", "none", {"software.host.graphs": None}),
        ("overlap_grad_reduce", "false", {"parallel.data.overlap_reduce": False}),
        ("overlap_p2p_comm", "false", {"parallel.pipeline.overlap_sends": False}),
        ("overlap_moe_expert_parallel_comm", "false", {"parallel.expert.batch_overlap": None}),
        ("use_distributed_optimizer", "false", {"parallel.data.strategy": "ddp"}),
        ("use_transformer_engine_op_fuser", "true", {"parallel.expert.fused_mlp": True}),
        ("untie_embeddings_and_output_weights", "false", {"model.tied_embeddings": None}),
        ("moe_layer_freq", "([0]*2+[1]*2)", {"model.experts.dense_layers": 2}),
        ("moe_layer_freq", "[0, 0, 1, 1]", {"model.experts.dense_layers": 2}),
        ("seq_length", "1024", {"training.sequence_length": 1024, "training.tokens": 50 * 64 * 1024}),
        ("no_save_optim", "true", {}),
        ("lr", "1e-4", {}),
        ("cuda_graph_warmup_steps", "3", {}),
        ("fine_grained_activation_offloading", "false", {}),
    ],
)
def test_the_scenario_follows_one_argument(name: str, value: str, expected: dict[str, Any]) -> None:
    expected = {path: said for path, said in expected.items() if values(taken(SAMPLE)).get(path) != said}
    assert differs(TEXT, name, value, **TWO_B200) == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fine_grained_activation_offloading", "true", "activations of single modules that wait in host memory"),
        ("chunked_optimizer_state_offload", "true", "optimizer states and master weights that wait in host memory"),
        ("enable_hyper_connections", "true", "several residual streams"),
        ("moe_n_hash_layers", "3", "DeepSeek-V4"),
        ("export_kd_teacher_load", "/teacher", "a teacher beside the model"),
        ("pipeline_model_parallel_layout", "Et|t|t|tm|L", "prediction modules"),
        ("num_layers", "four", "is not a number"),
        ("moe_layer_freq", "([0]*1+[1]*4)", "5 layers are listed, and --num-layers is 4"),
        ("train_iters", "0", "does not train"),
    ],
)
def test_what_is_no_such_job_is_refused_by_its_argument(name: str, value: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        from_text(changed(TEXT, name, value), **TWO_B200)
    line = changed(TEXT, name, value).splitlines().index(f"  {name}: {value}") + 1
    assert any((finding.path, finding.line, finding.column) == (name, line, 3) for finding in caught.value.findings)


def test_overlapped_batches_without_late_gradients_are_said() -> None:
    text = "parsim has it with --delay-wgrad-compute, which is not given"
    assert text not in taken(SAMPLE).yaml
    assert text in from_text(changed(TEXT, "delay_wgrad_compute", "false"), **TWO_B200).yaml


def test_the_variables_of_a_library_count_as_in_a_script() -> None:
    text = TEXT.replace("expandable_segments:True", "expandable_segments:True,graph_capture_record_stream_reuse:True")
    found = from_text(text, **TWO_B200)
    assert found.tree["software"]["memory"] == {"allocator": "expandable"}
    assert "not modelled: graph_capture_record_stream_reuse:True" in "\n".join(map(str, found.warnings))
    waiting = from_text(TEXT.replace("ENV_VARS:\n", "ENV_VARS:\n  CUDA_LAUNCH_BLOCKING: 1\n"), **TWO_B200)
    assert values(waiting)["software.host.blocking"] is True


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "pipeline 2 x expert 8 = 16 GPUs"),
        ({"expert_tensor_parallel_size": "2"}, "pipeline 2 x expert 8 x expert tensor 2 = 32 GPUs"),
        ({"tensor_model_parallel_size": "8", "pipeline_model_parallel_size": "4"}, "tensor 8 x pipeline 4 = 32 GPUs"),
        ({"tensor_model_parallel_size": "3"}, "a multiple of tensor 3 x pipeline 2 and of pipeline 2 x expert 8 = 48 GPUs"),
    ],
)
def test_machines_are_asked_for_with_the_smallest_world(changes: dict[str, str], shown: str) -> None:
    """Ranks of a stage hold whole copies of it and of its experts: a multiple of tensor x context and of expert x expert tensor."""
    text = TEXT
    for name, value in changes.items():
        text = changed(text, name, value)
    asked = from_text(text)
    assert asked.to_fill == ("cluster.topology", "cluster.nodes")
    assert asked.questions == 1
    assert f"machines (--nodes): {shown} hold the model once" in asked.yaml


@pytest.mark.parametrize(
    ("on", "nodes", "batch", "gpus"),
    [
        ("hgx-b200", 2, 64, None),  # 16 of 16
        ("gb200-nvl72", None, 64, 64),  # 72 = 4.5 x 16
        ("gb200-nvl72", 2, 64, None),  # 144 = 9 x 16, and 64 samples are no multiple of 36: loading says it
        ("gb200-nvl72", None, 24, 48),  # 64 GPUs are 16 copies of tensor 2 x pipeline 2, 48 are 12, and 24 / 12 is whole
    ],
)
def test_of_machines_that_whole_copies_do_not_fill_as_many_gpus_are_used_as_fit(
    on: str, nodes: int | None, batch: int, gpus: int | None
) -> None:
    found = from_text(changed(TEXT, "global_batch_size", str(batch)), on=on, nodes=nodes)
    assert values(found).get("cluster.gpus") == gpus
    if gpus is not None:
        assert world(found) == gpus


def test_machines_that_are_too_few_for_the_experts_are_said() -> None:
    found = from_text(TEXT, on="hgx-b200", nodes=1)
    assert "pipeline 2 x expert 8 = 16 GPUs hold the model once, and 1 x 8 are fewer; use --nodes 2" in found.yaml
    assert "are fewer" not in taken(SAMPLE).yaml


def test_sizes_of_variables_are_one_question_and_can_be_set() -> None:
    text = changed(changed(TEXT, "tensor_model_parallel_size", "${TP}"), "expert_model_parallel_size", "${EP}")
    asked = from_text(text, on="hgx-b200")
    assert asked.questions == 1
    assert sorted(asked.to_fill) == ["parallel.expert.size", "parallel.tensor.sequence_parallel", "parallel.tensor.size"]
    assert "import it with --set EP=VALUE --set TP=VALUE" in asked.yaml
    said = from_text(text, variables={"TP": "2", "EP": "8", "PP": "3"}, **TWO_B200)
    assert values(said) == values(taken(SAMPLE))
    assert "--set PP has no use" in said.yaml
    dispatched = from_text(changed(text, "expert_tensor_parallel_size", "false"), on="hgx-b200")
    assert {"parallel.expert.dispatcher"} == {*dispatched.to_fill} - {*asked.to_fill}
    model = from_text(changed(TEXT, "hidden_size", "$HIDDEN"), **TWO_B200)
    assert model.to_fill == ("model",)
    assert values(from_text(changed(TEXT, "hidden_size", "$HIDDEN"), model="mixtral-8x7b", **TWO_B200))["model"] == "mixtral-8x7b"


def test_which_program_runs_is_told_by_its_options() -> None:
    assert values(from_text(TEST, on="hgx-h100"))["model.family"] == "megatron-gpt"
    assert "the file does not name its program" in from_text(TEST, on="hgx-h100").yaml
    encoder = from_text(changed(TEST, "--bert-no-binary-head", "true"), on="hgx-h100", vocabulary=30522)
    assert values(encoder)["model.family"] == "bert"
    assert values(encoder)["model.task"] == "masked-lm"


@pytest.mark.parametrize(("mode", "said"), [("inference", "does not train"), ("rl", "not supported yet: the mode rl")])
def test_other_modes_of_the_tests(mode: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        from_text(f"{TEST}MODE: {mode}\n", on="hgx-h100")
    assert values(from_text(f"{TEST}MODE: pretraining\n", on="hgx-h100")) == values(from_text(TEST, on="hgx-h100"))
