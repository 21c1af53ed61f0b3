"""Megatron-DeepSpeed is another tool than Megatron-LM: other names, other defaults, and a DeepSpeed file that decides.

Defaults: deepspeedai/Megatron-DeepSpeed, megatron/arguments.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given
from parsim.model.parameter_counts import parameter_count
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build

SCRIPT = """#!/bin/bash
MICRO=4
GLOBAL=256
ZERO_STAGE=1
config="./ds_config.$SLURM_JOBID.json"
cat <<EOT > $config
{
  "train_micro_batch_size_per_gpu": $MICRO,
  "train_batch_size": $GLOBAL,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "fp16": {"enabled": true, "loss_scale": 0}
}
EOT
DS="--deepspeed --deepspeed_config $config --zero-stage $ZERO_STAGE --deepspeed-activation-checkpointing"
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
    --max-position-embeddings 2048 --vocab-size 50257 --fp16 --micro-batch-size $MICRO --global-batch-size $GLOBAL $DS
"""


def imported(text: str, **given: Any) -> dict[str, Any]:
    return values(from_text(text, on="dgx-a100-80gb", **given))


def test_the_file_that_the_script_writes_decides() -> None:
    found = from_text(SCRIPT, on="dgx-a100-80gb")
    assert found.tool == "Megatron-DeepSpeed"
    expected = {
        "parallel.data.strategy": "zero1", "training.precision": "fp16", "training.global_batch": 256, "cluster.gpus": 16,
        "software.profile": "deepspeed-2021", "training.optimizer.clip_gradients": True, "training.attention": "eager",
    }  # fmt: skip
    assert expected.items() <= values(found).items()
    assert "# zero_optimization.stage: 1 (line 11)" in found.yaml
    build(load(found.tree))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ZERO_STAGE=1", "ZERO_STAGE=2", {"parallel.data.strategy": "zero2"}),
        ("ZERO_STAGE=1", "ZERO_STAGE=3", {"parallel.data.strategy": "zero3"}),
        ("GLOBAL=256", "GLOBAL=512", {"training.global_batch": 512}),
        ("--num_nodes 2", "--num_nodes 4", {"cluster.gpus": 32}),
        ("--num-layers 24", "--num-layers 12", {"model.layers": 12}),
        ('"stage": $ZERO_STAGE}', '"stage": 1, "offload_optimizer": {"device": "cpu"}}', {"training.offload.optimizer": "cpu"}),
        ("--fp16 ", "--fp16 --ds-sequence-parallel-size 4 ", {"parallel.context.size": 4, "parallel.context.method": "ulysses"}),
        (
            "--fp16 ",
            "--fp16 --checkpoint-activations --checkpoint-activations-granularity=selective ",
            {"training.recompute": {"selective": ["attention"]}},
        ),
        ("--fp16 ", "--fp16 --checkpoint-activations --checkpoint-activations-granularity=full ", {"training.recompute": "full"}),
        ("--fp16 ", "--fp16 --normalization rmsnorm ", {"model.normalisation": "rmsnorm", "software.profile": "deepspeed"}),
        ("--fp16 ", "--fp16 --use-flash-attn-v2 ", {"training.attention": "flash2", "model.vocab_divisible_by": 128}),
        ("--fp16 ", "--fp16 --num-key-value-heads 4 ", {"model.kv_heads": 4}),
        ("--fp16 ", "--fp16 --checkpoint-activations ", {"training.recompute": "full"}),
        ("--fp16 ", "--fp16 --glu-activation swiglu ", {"model.activation": "silu", "model.gated": True, "model.mlp": 8192}),
        ("--fp16 ", "--fp16 --position-embedding-type alibi --embed-layernorm ", {"model.position": "alibi", "model.embedding_norm": True}),
        ("--fp16 ", "--fp16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 ", {"parallel.tensor.size": 2}),
        ("--fp16 ", "--fp16 --num-experts 1 ", {"parallel.data.strategy": "zero1"}),
        ("fp16", "bf16", {"training.precision": "bf16"}),
    ],
)  # fmt: skip
def test_one_changed_line_is_followed(old: str, new: str, expected: dict[str, Any]) -> None:
    assert old in SCRIPT
    found = imported(SCRIPT.replace(old, new))
    assert expected.items() <= found.items()
    assert "model.experts.count" not in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--micro-batch-size $MICRO", "--micro-batch-size 2", "train_micro_batch_size_per_gpu: 4 .*--micro-batch-size 2 .*contradict"),
        ('"fp16": {"enabled": true', '"fp16": {"enabled": false', "fp16.enabled: false .*--fp16 .*contradict each other"),
        ('"fp16": {"enabled"', '"bf16": {"enabled"', "bf16.enabled: true .*--fp16 .*contradict each other"),
        ("--fp16 ", "--fp16 --kd ", "a teacher that runs beside the model is not supported yet"),
        ("--fp16 ", "--fp16 --num-experts 1 64 --moe-expert-parallel-size 16 ", "layers of one expert among others"),
        ("--fp16 ", "--fp16 --num-experts 16 32 --moe-expert-parallel-size 32 ", "16 experts over fewer ranks than the 32 of other layers"),
        ("--fp16 ", "--fp16 --ds-sequence-parallel-fpdt ", "FPDT.* not supported yet"),
        ("ZERO_STAGE=1", "ZERO_STAGE=2 TP='--pipeline-model-parallel-size 2'; D=$TP", ""),
    ],
)
def test_one_changed_line_is_refused(old: str, new: str, message: str) -> None:
    text = SCRIPT.replace(old, new)
    if not message:
        text, message = text.replace("--fp16 ", "--fp16 $D "), "ZeRO-2 with 2 pipeline stages"
    with pytest.raises(ScenarioError, match=message):
        imported(text)


def test_bf16_without_zero_has_an_optimizer_of_its_own() -> None:
    """BF16_Optimizer of deepspeed/runtime/bf16_optimizer.py: sharded fp32 states, gradients in fp32."""
    found = imported(SCRIPT.replace("fp16", "bf16").replace("ZERO_STAGE=1", "ZERO_STAGE=0"))
    assert (found["parallel.data.strategy"], found["training.precision"]) == ("zero1", "bf16-fp32grad")


def test_a_mixture_of_1_3_billion_and_128_experts_has_52_billion_parameters() -> None:
    """DeepSpeed-MoE (arXiv 2201.05596, table 1): 1.3B+MoE-128 has 52B parameters: experts in every second layer, one per token."""
    text = SCRIPT.replace("--fp16 ", "--fp16 --num-experts 128 --moe-expert-parallel-size 16 ")
    found = imported(text)
    expected = {
        "model.experts.count": 128, "model.experts.top_k": 1, "model.experts.every": 2, "parallel.expert.size": 16,
        "parallel.expert.capacity_factor": 1.0, "parallel.expert.dispatcher": "alltoall",
    }  # fmt: skip
    assert expected.items() <= found.items()
    scenario = from_text(text, on="dgx-a100-80gb").tree
    hidden, rows = 2048, 50257
    layer = 12 * hidden**2 + 13 * hidden
    expert = 8 * hidden**2 + 5 * hidden
    counted = 24 * layer + 12 * (127 * expert + 128 * hidden + 128) + (rows + 2048) * hidden + 2 * hidden
    assert parameter_count(build(load(scenario)).model) == counted
    assert round(counted / 1e9) == 52


def test_residual_experts_have_a_dense_mlp_beside_them() -> None:
    found = imported(SCRIPT.replace("--fp16 ", "--fp16 --num-experts 8 --topk 2 --expert-interval 1 --mlp-type residual "))
    shown = {"model.experts.shared": 8192, "model.experts.top_k": 2, "model.experts.every": 1, "model.experts.renormalise": True}
    assert shown.items() <= found.items()


def test_embeddings_that_count_as_layers_of_the_pipeline() -> None:
    """BLOOM-176B: 70 layers and 2 embeddings on 12 stages of 6 (bigscience-workshop/bigscience, tr11-176B-ml)."""
    options = "--num-layers 70 --pipeline-model-parallel-size 12 --pp-partition-method 'type:transformer|embedding' --fp16 "
    found = imported(SCRIPT.replace("--num-layers 24", "").replace("--fp16 ", options))
    assert found["parallel.pipeline.split"] == [5, *[6] * 10, 5]


def test_a_file_that_is_not_there_leaves_the_option_or_a_question() -> None:
    text = SCRIPT.replace("> $config", "> other.json")
    found = from_text(text, on="dgx-a100-80gb")
    assert values(found)["parallel.data.strategy"] == "zero1"
    assert "is not there" in "\n".join(map(str, found.warnings))
    assert from_text(text.replace("--zero-stage $ZERO_STAGE", ""), on="dgx-a100-80gb").to_fill == ("parallel.data.strategy",)


def test_a_template_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "template.json").write_text('{"zero_optimization": {"stage": ZERO_STAGE}, "fp16": {"enabled": true}}', encoding="utf-8")
    text = SCRIPT.partition("cat <<EOT")[0] + 'sed "s/ZERO_STAGE/${ZERO_STAGE}/" template.json > $config\n' + SCRIPT.rpartition("EOT\n")[2]
    script = tmp_path / "train.sh"
    found = import_config(text.replace("ZERO_STAGE=1", "ZERO_STAGE=2"), str(script), Given(on="dgx-a100-80gb"))
    assert values(found)["parallel.data.strategy"] == "zero2"


def test_what_a_script_writes_into_a_template_that_is_not_there() -> None:
    parts = ("s/CONFIG_BATCH_SIZE/$GLOBAL/", "s/CONFIG_MBSIZE/$MICRO/", "s/ZERO_STAGE/2/", "s/CONFIG_FP16_ENABLED/true/", "s/MINE/7/")
    filters = " | ".join(f'sed "{part}"' for part in parts[1:])
    text = f'{SCRIPT.partition("cat <<EOT")[0]}sed "{parts[0]}" ds_config_gpt_TEMPLATE.json | {filters} > $config\n'
    imported = from_text(text + SCRIPT.rpartition("EOT\n")[2].replace("--zero-stage $ZERO_STAGE", ""), on="dgx-a100-80gb")
    assert values(imported)["parallel.data.strategy"] == "zero2"
    assert not imported.to_fill
    assert "what the script writes into it is read, nothing else of it" in "\n".join(map(str, imported.warnings))
    other = text.replace("CONFIG_MBSIZE/$MICRO", "CONFIG_MBSIZE/7") + SCRIPT.rpartition("EOT\n")[2]
    with pytest.raises(ScenarioError, match="contradict each other"):
        from_text(other, on="dgx-a100-80gb")


def test_a_script_of_the_one_is_not_read_as_the_other() -> None:
    with pytest.raises(ScenarioError, match="option of Megatron-DeepSpeed, which is another tool"):
        from_text(SCRIPT, "megatron")
    assert from_text(SCRIPT).tool == "Megatron-DeepSpeed"


def test_values_that_a_script_leaves_open_stand_as_names_in_the_file_that_it_writes() -> None:
    """A path in it does not matter; a size that is not known is said by its variable."""
    profiled = SCRIPT.replace(
        '"gradient_clipping": 1.0,', '"gradient_clipping": 1.0, "flops_profiler": {"output_file": "out/$(hostname).txt"},'
    )
    assert imported(profiled) == imported(SCRIPT)
    for value, problem in (("", "it has no value"), ("ZERO_STAGE=$(stage_of 13)\n", "ZERO_STAGE' is not a number")):
        with pytest.raises(ScenarioError, match=f"zero_optimization.stage  .*{problem}"):
            from_text(SCRIPT.replace("ZERO_STAGE=1\n", value).replace("--zero-stage $ZERO_STAGE", ""), on="dgx-a100-80gb")


def test_megatron_tells_deepspeed_its_own_global_batch() -> None:
    """Megatron-DeepSpeed, megatron/training.py, train: set_train_batch_size(ranks x micro-batch x micro-batches) before every step."""
    found = from_text(SCRIPT.replace("--global-batch-size $GLOBAL", "--global-batch-size 512"), on="dgx-a100-80gb")
    assert values(found)["training.global_batch"] == 512
    assert "contradict each other: the latter counts" in found.yaml


@pytest.mark.parametrize("options", ["--train-tokens $TOKENS", "--train-iters $STEPS", "--train-tokens $TOKENS --train-iters $STEPS"])
def test_a_step_does_not_depend_on_how_long_the_training_lasts(options: str) -> None:
    found = from_text(SCRIPT.rstrip("\n") + f" {options}\n", on="dgx-a100-80gb")
    assert values(found) == imported(SCRIPT)
    assert "how long the training lasts, which is not known; set it: --set" in found.yaml


def test_a_command_that_is_printed_is_read_where_none_is_run() -> None:
    printed = SCRIPT.replace("deepspeed --num_nodes", "echo deepspeed --num_nodes")
    found, run = from_text(printed), from_text(SCRIPT)
    assert found.tree == {**run.tree, "name": found.tree["name"]}
    assert "the script prints this command and runs none" in found.yaml
    both = from_text(f"{printed}\n{SCRIPT.replace('--num-layers 24', '--num-layers 12')}")
    assert values(both)["model.layers"] == 12  # what is run counts


def test_a_deepspeed_file_whose_name_follows_from_an_argument_is_no_question_of_its_own() -> None:
    script = SCRIPT.replace("MICRO=4\n", "MICRO=$1\n").replace("ds_config.$SLURM_JOBID.json", "ds_$MICRO.json")
    found = from_text(script)
    assert {"training.micro_batch", "parallel.data.strategy"} <= set(found.to_fill)
    assert found.questions == len({"cluster.topology", "the arguments"})
    said = import_config(script, "run.sh", Given(variables={"1": "4"}))
    assert values(said)["parallel.data.strategy"] == "zero1"


def test_a_pyramid_of_experts() -> None:
    options = "--fp16 --num-experts 8 8 8 8 8 8 8 8 8 8 16 16 --mlp-type residual --moe-expert-parallel-size 8 "
    found = from_text(SCRIPT.replace("--fp16 ", options).replace("ZERO_STAGE=1", "ZERO_STAGE=0"), on="hgx-h100")
    shown = values(found)
    assert (shown["model.experts.count"], shown["model.experts.counts"]) == (16, [8] * 10 + [16] * 2)
    assert (shown["parallel.expert.size"], shown["training.precision"], shown["cluster.nodes"]) == (8, "fp16", 2)
    model = build(load(found.tree)).model
    each = 2 * 2048 * 8192 + 8192 + 2048
    assert sum(p.count for block in model.blocks for p in block.parameters() if p.expert) == (10 * 8 + 2 * 16) * each
    simulate(load(found.tree))  # a plan that spreads both kinds of layers


COUNTED = """
num_node=$(wc -l < hosts)
num_gpus_pernode=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
batch_size=$((64 / (num_node * num_gpus_pernode)))
torchrun --nnodes $num_node --nproc_per_node $num_gpus_pernode pretrain_gpt.py --num-layers 24 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size $batch_size \\
  --global-batch-size 64 --bf16 --deepspeed --zero-stage 1
"""


def test_a_batch_of_gpus_that_the_script_counts_is_asked_for() -> None:
    """Neither number is known, and one is found to be missing only once the other one is said."""
    asked = from_text(COUNTED, file="run.sh")
    assert "training.micro_batch" in asked.to_fill
    assert asked.tree["model"]["layers"] == 24
    assert asked.tree["training"]["global_batch"] == 64
    said = from_text(COUNTED, file="run.sh", on="8x h100-sxm", variables={"num_node": "1", "num_gpus_pernode": "8"})
    assert (said.tree["training"]["micro_batch"], said.to_fill) == (8, ())
