"""How many GPUs a script starts, whatever its launcher, and that one changed flag changes the scenario or is refused.

The scripts are small ones in the manner of BigScience's, Megatron-LM's and DeepSpeed's examples.
"""

from __future__ import annotations

from typing import Any

import pytest
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.scenario import load
from parsim.scenario.build import build

OPTIONS = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 50257 --micro-batch-size 4 --global-batch-size 512 --bf16"
)
SLURM = """#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
GPUS_PER_NODE=4
NNODES=16
export LAUNCHER="python -u -m torch.distributed.run \\
    --nproc_per_node $GPUS_PER_NODE \\
    --nnodes $NNODES"
export CMD=" \\
    `pwd`/pretrain_gpt.py \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
    {OPTIONS}"
srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log
""".replace("{OPTIONS}", OPTIONS)


@pytest.mark.parametrize(
    ("command", "nodes", "gpus"),
    [
        ("torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py", 4, 32),
        ("python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 pretrain_gpt.py", 2, 16),
        ("N=2; L='torchrun --nnodes $N --nproc_per_node 4'; C='pretrain_gpt.py'\nbash -c \"$L $C {}\"", 2, 8),
        ("N=2\nL=\"torchrun --nnodes $N --nproc_per_node 4\"\nsrun -N 2 --ntasks-per-node=1 bash -lc '$L pretrain_gpt.py {}'", 2, 8),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=a100:8\nsrun python pretrain_gpt.py", 4, 32),
        ("#SBATCH -N 4\n#SBATCH -n 16\nsrun python pretrain_gpt.py", 4, 16),
        ("mpirun -np 16 -N 8 python pretrain_gpt.py", 2, 16),
        ("mpirun -np 16 --map-by ppr:8:node -x A=1 python pretrain_gpt.py", 2, 16),
        ("jsrun -n 8 -r 2 -a 4 -g 4 -c 7 python pretrain_gpt.py", 4, 32),
        ("jsrun --nrs 4 --rs_per_host 1 --tasks_per_rs 8 --gpu_per_rs 8 --smpiargs=-gpu python pretrain_gpt.py", 4, 32),
        ("deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py", 2, 16),
        ("pdsh -w host[1-2] 'cd x; torchrun --nnodes=2 --nproc_per_node=8 pretrain_gpt.py {}'", 2, 16),
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:4(S:0-1)\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 pretrain_gpt.py",
         2, 8),
        ("run() {\n torchrun --nnodes $1 --nproc_per_node 8 pretrain_gpt.py {}\n}\nrun 4", 4, 32),
    ],
)  # fmt: skip
def test_nodes_and_gpus_of_a_launcher(command: str, nodes: int | None, gpus: int | None) -> None:
    text = command.replace("{}", OPTIONS) if "{}" in command else f"{command} {OPTIONS}"
    found = values(from_text(text, on="dgx-a100-80gb"))
    if nodes is not None:
        assert (found["cluster.nodes"], found["cluster.gpus"]) == (nodes, gpus)
    assert found["model.layers"] == 24


def test_a_launcher_in_a_variable_that_another_shell_expands() -> None:
    imported = from_text(SLURM, on="dgx-a100-80gb")
    found = values(imported)
    assert (found["cluster.nodes"], found["cluster.gpus"]) == (16, 64)
    assert "# --nproc_per_node 4 (line 8); 16 x 4" in imported.yaml
    assert "# --num-layers 24 (line 13)" in imported.yaml
    assert "has no value in the script" not in imported.yaml


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPUS_PER_NODE=4", "GPUS_PER_NODE=8", r"8 processes on a node .*line 8.*4 GPUs of a node .*line 4.* contradict each other"),
        ("gres=gpu:4", "gres=gpu:8", r"4 processes on a node .*line 8.*8 GPUs of a node .*line 4.* contradict each other"),
        ("NNODES=16", "NNODES=8", r"8 nodes .*line 9.*16 nodes .*line 2.* contradict each other"),
    ],
)
def test_numbers_that_contradict_each_other_are_both_shown(old: str, new: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        from_text(SLURM.replace(old, new), on="dgx-a100-80gb")


def test_a_variable_that_nothing_asks_for_contradicts_nobody() -> None:
    """examples_deepspeed/universal_checkpointing/llama/run_universal_llama_bf16.sh of Megatron-DeepSpeed."""
    text = f"GPUS_PER_NODE=8\nTP=2\nPP=2\nRANKS=$((TP*PP))\ntorchrun --nnodes 1 --nproc_per_node $RANKS pretrain_gpt.py {OPTIONS}"
    assert values(from_text(text, on="dgx-a100-80gb"))["cluster.gpus"] == 4
    with pytest.raises(ScenarioError, match=r"4 processes on a node .*8 GPUs of a node"):
        from_text(text.replace("pretrain_gpt.py", "pretrain_gpt.py --num-workers $GPUS_PER_NODE"), on="dgx-a100-80gb")


def test_tasks_of_slurm_that_are_not_the_gpus() -> None:
    text = f"#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nsrun python pretrain_gpt.py {OPTIONS}"
    with pytest.raises(ScenarioError, match=r"1 processes on a node .*8 GPUs of a node"):
        from_text(text)
    with pytest.raises(ScenarioError, match=r"12 processes .*16 = 2 nodes x 8 processes"):
        from_text(text.replace("per-node=1", "per-node=8\n#SBATCH --ntasks=12"))
    assert values(from_text(text.replace("per-node=1", "per-node=8"), on="dgx-a100-80gb"))["cluster.gpus"] == 16


@pytest.mark.parametrize(
    "line", ["N=$(wc -l < hostfile)", "source env.sh", "read N < hostfile", "while read -r h; do N=$((N+1)); done < h"]
)
def test_a_number_of_nodes_that_cannot_be_known_is_asked_for(line: str) -> None:
    text = f"{line}\ntorchrun --nnodes $N --nproc_per_node 8 pretrain_gpt.py {OPTIONS}"
    imported = from_text(text, on="dgx-a100-80gb")
    assert imported.to_fill == ("cluster.nodes",)
    assert "set it: --set N=VALUE" in imported.yaml
    assert values(from_text(text, on="dgx-a100-80gb", variables={"N": "4"}))["cluster.gpus"] == 32


def test_gpus_that_a_script_counts_are_as_many_machines_as_they_need() -> None:
    text = f"NUM_GPUS=64\ndeepspeed pretrain_gpt.py {OPTIONS} --deepspeed --zero-stage 1"
    asked = from_text(text)
    assert asked.to_fill == ("cluster.topology", "cluster.nodes")  # which machine it is says both
    assert (asked.questions, asked.tree["cluster"]["gpus"]) == (1, 64)
    found = values(from_text(text, on="dgx-a100-80gb"))
    assert (found["cluster.nodes"], found["cluster.gpus"]) == (8, 64)
    boxes = from_text(text, on="4x a100-80gb")
    assert (values(boxes)["cluster.nodes"], boxes.to_fill) == (16, ("cluster.fabric.link",))
    assert "the script counts 64 GPUs" in from_text(text, on="dgx-a100-80gb").yaml
    assert values(from_text(text, on="dgx-a100-80gb", nodes=8))["cluster.nodes"] == 8


def test_options_that_only_the_environment_holds_are_said() -> None:
    text = f"E=$(cat options)\ntorchrun --nproc_per_node 8 pretrain_gpt.py {OPTIONS} $E $EXTRA_ARGS"
    said = "\n".join(map(str, from_text(text).warnings))
    assert "$EXTRA_ARGS has no value in the script: options that it may hold are not read" in said
    assert "$E has no value in the script" in said


DEEPSEEK = """NLAYERS=61
FIRST_K_DENSE_REPLACE=3
arr=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < FIRST_K_DENSE_REPLACE )); then
    arr+=(0)
  else
    arr+=(1)
  fi
done
printf -v MOE_LAYER_FREQ "[%s]" "$(IFS=', '; echo "${arr[*]}")"
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $NLAYERS --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 \\
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --swiglu --normalization RMSNorm --disable-bias-linear \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 129280 --qk-layernorm --bf16 \\
    --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 \\
    --moe-layer-freq $MOE_LAYER_FREQ --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 \\
    --qk-pos-emb-head-dim 64 --v-head-dim 128
"""


def test_dense_layers_that_a_loop_writes_down() -> None:
    """DeepSeek-V3 has 671.0B parameters (arXiv 2412.19437); with experts in all 61 layers it would be 703.8B."""
    from parsim.model.parameter_counts import parameter_count
    from parsim.scenario import load
    from parsim.scenario.build import build

    imported = from_text(DEEPSEEK, on="dgx-a100-80gb", nodes=16)
    assert values(imported)["model.experts.dense_layers"] == 3
    # 61 is a prime: the model is built on one stage, whatever fits there
    assert round(parameter_count(build(load(imported.tree)).model) / 1e9, 1) == 671.0


@pytest.mark.parametrize(
    ("freq", "message"),
    [
        ("$(python make_list.py)", "it has no value"),
        ("'([0]*3+[1]*57)'", "60 layers are listed, and --num-layers is 61"),
        ("'([1]*30+[0]*31)'", "experts are supported in every n-th layer"),
    ],
)
def test_a_list_of_layers_that_is_not_known_is_never_left_out(freq: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        from_text(DEEPSEEK.replace("$MOE_LAYER_FREQ", freq))


def test_a_list_of_layers_in_a_variable_is_a_question() -> None:
    draft = from_text(DEEPSEEK.replace("$MOE_LAYER_FREQ", "$FREQ"))
    assert draft.tree["model"] == "FILL-IN"
    assert "--set FREQ=VALUE" in draft.yaml


FLAGS: list[tuple[str, str, dict[str, Any]]] = [
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4", {"parallel.tensor.size": 4}),
    ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4", {"parallel.pipeline.size": 4}),
    ("--num-layers 24", "--num-layers 12", {"model.layers": 12}),
    ("--bf16", "--fp16", {"training.precision": "fp16"}),
    ("--bf16", "", {"training.precision": "fp32"}),
    ("--bf16", "--bf16 --context-parallel-size 2", {"parallel.context.size": 2}),
    ("--bf16", "--bf16 --num-experts 8", {"model.experts.count": 8, "model.experts.top_k": 2}),
    ("--bf16", "--bf16 --num-experts 8 --expert-model-parallel-size 4", {"parallel.expert.size": 4}),
    ("--bf16", "--bf16 --quick-geglu", {"model.activation": "quick-gelu", "model.gated": True}),
    ("--vocab-size 50257", "--vocab-size 32000", {"model.vocabulary": 32000}),
    ("NNODES=16", "NNODES=8", {}),
    ("--nodes=16", "--nodes=8", {}),
]


@pytest.mark.parametrize(("old", "new", "expected"), FLAGS)
def test_one_changed_flag_is_followed_or_refused(old: str, new: str, expected: dict[str, Any]) -> None:
    assert old in SLURM
    before = values(from_text(SLURM, on="dgx-a100-80gb"))
    try:
        after = values(from_text(SLURM.replace(old, new), on="dgx-a100-80gb"))
    except ScenarioError:
        assert not expected
        return
    assert expected
    assert expected.items() <= after.items()
    assert after != before


@pytest.mark.parametrize(
    ("options", "off"),
    [
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            {"parallel.data.overlap_reduce", "parallel.data.overlap_gather"},
        ),
        ("--pipeline-model-parallel-size 2", {"parallel.data.overlap_reduce", "parallel.pipeline.overlap_sends"}),
        ("--tensor-model-parallel-size 2", {"parallel.data.overlap_reduce", "parallel.tensor.overlap"}),
    ],
)
def test_nothing_overlaps_where_the_host_waits_for_every_kernel(options: str, off: set[str]) -> None:
    text = f"export CUDA_LAUNCH_BLOCKING=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {OPTIONS} {options}"
    imported = from_text(text, on="dgx-a100-80gb")
    found = values(imported)
    assert found["software.host.blocking"] is True
    assert {path for path, value in found.items() if "overlap" in path and value in (False, "none")} == off
    build(load(imported.tree))


ONE_STAGE = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 50257 --micro-batch-size 4 --bf16"
)


@pytest.mark.parametrize(
    ("before", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0 deepspeed", 1),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed", 4),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --num_gpus 2", 2),
        ("export CUDA_VISIBLE_DEVICES='4,5'\ndeepspeed", 2),
        ("CUDA_VISIBLE_DEVICES=3 python", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 python", None),  # it starts one process, and says nothing of a job on several GPUs
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc_per_node 4", 4),
        ("CUDA_VISIBLE_DEVICES=$GPUS deepspeed", None),
        ("deepspeed", None),
    ],
)
def test_processes_run_on_the_devices_that_they_see(before: str, gpus: int | None) -> None:
    text = f"#!/bin/bash\n{before} {ONE_STAGE}\nCUDA_VISIBLE_DEVICES=7 python evaluate.py\n"
    found = from_text(text, on="hgx-h100")
    assert found.tree["cluster"].get("gpus") == gpus
    assert not [fate for fate in found.fates if fate.kind == "unknown"]


def test_llama_factory_starts_a_process_on_every_device_that_it_sees() -> None:
    command = "llamafactory-cli train --stage sft --do_train --model_name_or_path Qwen/Qwen2.5-7B --cutoff_len 512 --template qwen --bf16"
    for devices, gpus in (("0", 1), ("0,1,2", 3)):
        found = from_text(f"#!/bin/bash\nCUDA_VISIBLE_DEVICES={devices} {command}\n", on="hgx-h100")
        assert found.tree["cluster"]["gpus"] == gpus


def test_words_of_an_output_are_not_counted() -> None:
    """``${#NODES[@]}`` of a host file that nobody has is no 1."""
    text = f"NODES=($(cat hosts | sort))\ntorchrun --nnodes ${{#NODES[@]}} --nproc_per_node 8 pretrain_gpt.py {OPTIONS}"
    read = from_text(text)
    assert {"cluster.nodes", "cluster.gpus"} <= set(read.to_fill)
    assert read.questions == 1
    assert values(from_text(text, on="8x h100-sxm", nodes=4))["cluster.gpus"] == 32


def test_a_program_that_prepares_data_is_no_training_beside_one() -> None:
    text = "python tools/convert_data.py --input a --output b --ratio 0.5 --seed 1\nllamafactory-cli train nowhere/sft.yaml\n"
    with pytest.raises(ScenarioError, match=r"nowhere/sft\.yaml is not there, and holds the arguments of this command") as error:
        from_text(text, file="run.sh")
    found = error.value.findings[0]
    assert (found.file, found.line) == ("run.sh", 2)
    assert found.suggestion == "put it beside this script, or import it: parsim import nowhere/sft.yaml"
