"""axolotl, GPT-NeoX, torchtitan, NeMo and Megatron-Bridge: one key is changed, and the scenario follows or the key is refused.

The expected values were worked out by hand from what the tools' configuration classes say (axolotl-ai-cloud/axolotl, utils/schemas and
utils/config; EleutherAI/gpt-neox, megatron/neox_arguments and megatron/model/transformer.py; pytorch/torchtitan, config/job_config.py and
distributed/pipeline_parallel.py; NVIDIA/NeMo; NVIDIA-NeMo/Megatron-Bridge, training/mixed_precision.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_samples import DATA, GIVEN, from_text, of_kind, values, values_of

from parsim import interop as tables
from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given
from parsim.interop.titan_pipeline import split
from parsim.interop.toml_document import read_toml
from parsim.model.catalogue import read_architecture
from parsim.model.parameter_counts import parameter_count
from parsim.model.transformer import TransformerConfig
from parsim.scenario import files, load
from parsim.scenario.build import build
from parsim.scenario.references import lookup, model_tree


def changed(sample: str, key: str, value: str) -> str:
    """The sample with one key said otherwise; a key that is not there is put in front, after `=` or `:` as the sample has it."""
    text = (DATA / sample).read_text(encoding="utf-8")
    name = re.escape(key)
    row = re.compile(rf'^(\s*"?{name}"?\s*[:=]\s*)(?:\[.*\]|\{{.*\}}|[^,#\n]*)', re.MULTILINE)
    if row.search(text):
        return row.sub(lambda match: match[1] + value, text, count=1)
    if sample.startswith("neox"):
        return text.replace("{\n", f'{{\n  "{key}": {value},\n', 1)
    return f"{key}: {value}\n{text}"


def differs(sample: str, key: str, value: str, **given: Any) -> dict[str, Any]:
    """What is other in the scenario once `key` is `value`: new values, None where there is none any more."""
    user = {**GIVEN[sample], **given}
    before = values_of((DATA / sample).read_text(encoding="utf-8"), tuple(user.items()), sample)
    after = values(from_text(changed(sample, key, value), file=sample, **user))
    return {path: after.get(path) for path in {**before, **after} if before.get(path) != after.get(path)}


AXOLOTL, FSDP, NEOX, TITAN = "axolotl-qlora.yaml", "axolotl-fsdp.yaml", "neox-6.9b.yaml", "torchtitan-llama3.toml"
NEMO, BRIDGE = "nemo-gpt.yaml", "nemo-bridge.yaml"
BASE = "training.finetune.base"
FOLLOWS: list[tuple[str, str, str, dict[str, Any]]] = [
    (AXOLOTL, "base_model", "Qwen/Qwen3-4B", {"model": "Qwen/Qwen3-4B"}),
    (AXOLOTL, "sequence_len", "512", {"training.sequence_length": 512}),
    (AXOLOTL, "micro_batch_size", "3", {"training.micro_batch": 3}),
    (AXOLOTL, "gradient_accumulation_steps", "1", {"training.gradient_accumulation": 1, "parallel.data.accumulate": None}),
    (AXOLOTL, "lora_r", "8", {"training.finetune.rank": 8}),
    (AXOLOTL, "lora_target_linear", "false", {"training.finetune.targets": "FILL-IN"}),
    (AXOLOTL, "lora_modules_to_save", "[embed_tokens, lm_head]", {"training.finetune.train_embeddings": True}),
    (AXOLOTL, "bf16", "true", {}),
    (AXOLOTL, "fp16", "true", {"training.precision": "amp-fp16"}),
    (AXOLOTL, "gradient_checkpointing", "false", {"training.recompute": None}),
    (AXOLOTL, "flash_attention", "false", {"training.attention": None}),
    (AXOLOTL, "torch_compile", "true", {"software.fusion": "compiled"}),
    (AXOLOTL, "optimizer", "adamw_torch", {"training.optimizer.name": "adamw", "training.optimizer.implementation": "foreach"}),
    (AXOLOTL, "max_grad_norm", "0", {"training.optimizer.clip_gradients": False}),
    (FSDP, "bf16", "false", {"training.precision": "fp32"}),
    (FSDP, "fp8", "true", {"training.precision": "fp8"}),
    (FSDP, "fsdp_version", "1", {"parallel.data.fsdp_version": 1, "training.precision": "amp-bf16"}),
    (FSDP, "dp_replicate_size", "1", {"parallel.data.strategy": "fsdp", "parallel.data.shard_size": None, "cluster.gpus": 4}),
    (FSDP, "tensor_parallel_size", "2", {"parallel.tensor.size": 2, "cluster.gpus": 16, "cluster.nodes": 2}),
    (
        FSDP, "context_parallel_size", "2",
        {
            "parallel.context.size": 2, "parallel.context.method": "ring", "parallel.data.shard_size": 8, "cluster.gpus": 16,
            "cluster.nodes": 2,
        },
    ),
    (NEOX, "pipe-parallel-size", "4", {"parallel.pipeline.size": 4}),
    (NEOX, "pipe-parallel-size", "0", {"parallel.pipeline.size": None}),
    (NEOX, "model-parallel-size", "1", {"parallel.tensor.size": 1}),
    (NEOX, "num-layers", "16", {"model.layers": 16}),
    (NEOX, "hidden-size", "2048", {"model.hidden": 2048, "model.mlp": 8192}),
    (NEOX, "seq-length", "1024", {"training.sequence_length": 1024}),
    (NEOX, "train_micro_batch_size_per_gpu", "2", {"training.micro_batch": 2}),
    (NEOX, "no-weight-tying", "false", {"model.tied_embeddings": True}),
    (NEOX, "norm", '"rmsnorm"', {"model.normalisation": "rmsnorm"}),
    (NEOX, "pos-emb", '"learned"', {"model.position": "learned", "model.rotary_fraction": None}),
    (NEOX, "attention-config", '[[["global"], 32]]', {"training.attention": "eager"}),
    (NEOX, "checkpoint-num-layers", "4", {"training.recompute": {"every": 4}}),
    (NEOX, "checkpoint-activations", "false", {"training.recompute": None}),
    (NEOX, "fp16", '{"enabled": false}', {"training.precision": "fp32"}),
    (NEOX, "zero_optimization", '{"stage": 2}',
     {"parallel.data.strategy": "zero2", "parallel.data.bucket": None, "parallel.data.overlap_reduce": False}),
    # 2/3 of 11008 x 3, half of that, up to a multiple: 33024 x 2/3 / 2 = 11008 (configs/llama/7B.yml has 32768 and 256: 11008, too)
    (NEOX, "activation", '"swiglu", "mlp_multiple_of": 256, "intermediate_size": 32768',
     {"model.activation": "silu", "model.gated": True, "model.fused_gate_up": True, "model.mlp": 11008}),
    (TITAN, "flavor", '"70B"', {"model": "llama-3-70b", "parallel.pipeline.split": [10, 11, 10, 10, 10, 10, 10, 9]}),
    (TITAN, "seq_len", "4096", {"training.sequence_length": 4096}),
    (TITAN, "local_batch_size", "16", {"training.gradient_accumulation": 8}),
    (TITAN, "pipeline_parallel_microbatch_size", "1", {"training.micro_batch": 1, "training.gradient_accumulation": 8}),
    (TITAN, "tensor_parallel_degree", "1",
     {"parallel.tensor.size": 1, "parallel.tensor.sequence_parallel": None, "parallel.tensor.overlap": None}),
    (TITAN, "enable_async_tensor_parallel", "false", {"parallel.tensor.overlap": None}),
    (TITAN, "pipeline_parallel_schedule", '"1F1B"',
     {"parallel.pipeline.schedule": "1f1b", "parallel.pipeline.split": [8, 9, 8, 7], "parallel.pipeline.virtual_stages": None}),
    (TITAN, "pipeline_parallel_degree", "1",
     {"parallel.pipeline.size": 1, "parallel.pipeline.schedule": None, "parallel.pipeline.split": None, "training.micro_batch": 8,
      "parallel.pipeline.virtual_stages": None, "training.gradient_accumulation": 1, "parallel.data.reshard_after_forward": None}),
    (TITAN, "data_parallel_replicate_degree", "2", {"parallel.data.strategy": "hsdp", "parallel.data.shard_size": 2}),
    (TITAN, "context_parallel_degree", "2", {"parallel.context.size": 2, "parallel.context.method": "all-gather"}),
    (TITAN, "mode", '"full"', {"training.recompute": "full"}),
    (TITAN, "selective_ac_option", '"3"', {"training.recompute": {"one_in": 3}}),
    (TITAN, "converters", "[]", {"training.precision": "amp-bf16"}),
    (TITAN, "recipe_name", '"tensorwise"', {"training.precision": {"preset": "amp-bf16", "matmul": "fp8", "recipe": "tensorwise"}}),
    (TITAN, "filter_fqns", "[]", {"training.precision": {
        "preset": "amp-bf16", "matmul": "fp8", "recipe": "rowwise", "keep": ["embedding", "router", "norm", "attention"]}}),
    (TITAN, "enable", "false", {"software.fusion": None}),
    (TITAN, "max_norm", "0.0", {"training.optimizer.clip_gradients": False}),
    (NEMO, "precision", "32", {"training.precision": "fp32"}),
    (NEMO, "precision", "16-mixed", {"training.precision": "fp16"}),
    (NEMO, "megatron_amp_O2", "false", {"training.precision": "amp-bf16"}),
    (NEMO, "tensor_model_parallel_size", "1",
     {"parallel.tensor.size": 1, "parallel.tensor.sequence_parallel": None, "parallel.tensor.overlap": None}),
    (NEMO, "virtual_pipeline_model_parallel_size", "2", {"parallel.pipeline.virtual_stages": 2}),
    (NEMO, "pipeline_model_parallel_size", "8", {"parallel.pipeline.size": 8}),
    (NEMO, "num_layers", "64", {"model.layers": 64}),
    (NEMO, "encoder_seq_length", "2048",
     {"training.sequence_length": 2048, "model.maximum_sequence": 2048, "training.tokens": 1000 * 128 * 2048}),
    (NEMO, "global_batch_size", "64", {"training.global_batch": 64, "training.tokens": 1000 * 64 * 4096}),
    (NEMO, "activation", "gelu",
     {"model.activation": None, "model.gated": None, "model.fused_gate_up": None}),
    (NEMO, "bias", "true", {"model.mlp_bias": None, "model.output_bias": None, "model.query_key_value_bias": None}),
    (NEMO, "num_nodes", "8", {"cluster.nodes": 8, "cluster.gpus": 64}),
    (NEMO, "name", "megatron_gpt", {}),
    (BRIDGE, "num_layers", "8", {"model.layers": 8}),
    (BRIDGE, "mixed_precision", "bf16_with_fp8_subchannel_scaling_mixed", {"training.precision": {"preset": "fp8", "recipe": "blockwise"}}),
    (BRIDGE, "mixed_precision", "fp16_mixed", {"training.precision": "fp16"}),
    (BRIDGE, "grad_reduce_in_fp32", "false", {"training.precision": "bf16"}),
    (BRIDGE, "micro_batch_size", "2", {"training.micro_batch": 2}),
    (BRIDGE, "use_distributed_optimizer", "false", {"parallel.data.strategy": "ddp"}),
]  # fmt: skip
"""sample, a key and its new value, what is other then"""


@pytest.mark.parametrize(("sample", "key", "value", "expected"), FOLLOWS)
def test_the_scenario_follows_one_key(sample: str, key: str, value: str, expected: dict[str, Any]) -> None:
    assert differs(sample, key, value) == expected


REFUSED = [
    (AXOLOTL, "rl", "ebft", "not supported yet: answers are generated between the updates"),
    (AXOLOTL, "adapter", "llama-adapter", "not supported yet: llama-adapter adapters"),
    (AXOLOTL, "load_in_4bit", "false", "qlora needs load_in_4bit"),
    (AXOLOTL, "adapter", "", "a quantised model is trained with adapters only"),
    (AXOLOTL, "lisa_n_layers", "4", "not supported yet: LISA"),
    (AXOLOTL, "micro_batch_size", "two", "'two' is not a number"),
    (NEOX, "train_impl", '"dpo"', "not supported yet: dpo"),
    (NEOX, "moe_num_experts", "8", "not supported yet: mixtures of experts"),
    (NEOX, "attention-config", '[[["flash"], 16], [["mamba"], 16]]', "not supported yet: layers with flash, mamba"),
    (NEOX, "activation", '"mish"', "not supported yet: an MLP with mish"),
    (NEOX, "fp16", '{"enabled": true, "type": "bfloat16"}', "write bf16: {enabled: true}"),
    (NEOX, "precision", '"int8"', "none of fp16, bfloat16 and fp32"),
    (TITAN, "name", '"flux"', "not supported yet: flux"),
    (TITAN, "pipeline_parallel_schedule", '"ZB1P"', "not supported yet: schedule ZB1P"),
    (TITAN, "pipeline_parallel_microbatch_size", "3", "a local batch of 8 samples is not cut into whole micro-batches"),
    (TITAN, "pipeline_parallel_degree", "1000000000", "1000000000 ranks x 2 stages for 32 layers, embedding and head"),
    (TITAN, "mode", '"memory_budget"', "not supported yet: activation checkpointing by memory_budget"),
    (TITAN, "recipe_name", '"rowwise_with_gw_hp"', "not supported yet: weight gradients in bf16"),
    (TITAN, "data_parallel_shard_degree", "1", "float8 products of fp32 weights"),
    (NEMO, "precision", "64", "64 is no precision"),
    (NEMO, "num_query_groups", "${oc.env:GROUPS}", "${oc.env:GROUPS} is open"),
    (NEMO, "activation", "reglu", "not supported yet: an MLP with reglu"),
    (NEMO, "fsdp", "true", "not supported yet: FSDP of NeMo 1"),
    (
        BRIDGE,
        "seq_length",
        "8192\n  gated_linear_unit: true\n  activation_func: {_target_: torch.nn.functional.gelu}",
        "an MLP gated with gelu",
    ),
    (BRIDGE, "seq_length", "8192\n  hybrid_override_pattern: M-M-", "not supported yet: layers that carry a state"),
    (BRIDGE, "num_layers", "16\n  num_query_groups: 4\n  normalization: LayerNorm", "parsim does not change this of Llama3ModelProvider8B"),
    (BRIDGE, "mixed_precision", "mine", "not supported yet: the recipe mine"),
    (BRIDGE, "seq_length", "4096", "8192 here, model.seq_length: 4096"),
]
"""sample, a key and its new value, what is said"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mamba.mamba_provider.MambaModelProvider", "layers that carry a state"),
        ("qwen_vl.Qwen25VLModelProvider", "a model of images or sounds"),
    ],
)
def test_sizes_of_a_class_that_is_no_gpt_are_not_read_as_one(target: str, said: str) -> None:
    sizes = "\n  hidden_size: 512\n  num_attention_heads: 8\n  ffn_hidden_size: 1024\n  vocab_size: 32000"
    text = (DATA / BRIDGE).read_text(encoding="utf-8")
    with pytest.raises(ScenarioError, match=f"{target.rpartition('.')[2]}, {said}"):
        from_text(text.replace("llama.llama_provider.Llama3ModelProvider8B", f"{target}{sizes}"), file=BRIDGE, **GIVEN[BRIDGE])


@pytest.mark.parametrize(("sample", "key", "value", "said"), REFUSED)
def test_what_is_no_such_job_is_refused_by_its_key(sample: str, key: str, value: str, said: str) -> None:
    text = changed(sample, key, value) if key != "fsdp" else changed(sample, "mcore", "x").replace("model:\n", "model:\n  fsdp: true\n", 1)
    with pytest.raises(ScenarioError) as error:
        from_text(text, file=sample, **GIVEN[sample])
    assert said in str(error.value)


def test_a_lora_job_with_eight_bits_is_no_full_training() -> None:
    text = changed(AXOLOTL, "adapter", "lora").replace("load_in_4bit: true", "load_in_8bit: true")
    found = values(from_text(text, on="1x rtx-4090"))
    assert (found["training.finetune.method"], found[BASE], found["training.precision"]) == ("lora", "int8", "amp-bf16")


@pytest.mark.parametrize(("on", "precision"), [("8x v100-32gb", "amp-fp16"), ("1x t4-16gb", "amp-fp16"), ("dgx-a100-80gb", "amp-bf16")])
def test_auto_is_bf16_where_the_gpu_has_it(on: str, precision: str) -> None:
    text = (DATA / AXOLOTL).read_text(encoding="utf-8")
    assert values(from_text(text, on=on))["training.precision"] == precision


def test_a_deepspeed_file_that_axolotl_names(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}')
    text = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\ndeepspeed: zero3.json\n"
    found = values(from_text(text, file=str(tmp_path / "job.yml"), on="dgx-a100-80gb"))
    assert (found["parallel.data.strategy"], found["training.precision"], found["software.profile"]) == ("zero3", "bf16", "deepspeed")
    absent = values(from_text(text.replace("zero3", "zero9"), on="dgx-a100-80gb"))
    assert absent["parallel.data.strategy"] == "FILL-IN"


def test_several_files_of_one_job() -> None:
    """What one file says of the model and another of the training is one job; a key that stands in both is refused, as GPT-NeoX does."""
    rows = (DATA / NEOX).read_text(encoding="utf-8").splitlines()
    rows = [row for row in rows if row.startswith("  ")]
    first, second = ("{\n" + "\n".join(half) + "\n}" for half in (rows[:14], rows[14:]))
    given = Given(**GIVEN[NEOX])
    whole = values(import_config((DATA / NEOX).read_text(encoding="utf-8"), NEOX, given))
    together = import_config(first, "model.yml", given, more=[(second, "training.yml")])
    assert values(together) == whole
    assert "(training.yml:" in together.yaml
    with pytest.raises(ScenarioError, match=r"it stands in model\.yml, too"):
        import_config(first, "model.yml", given, more=[(first, "training.yml")])
    with pytest.raises(ScenarioError, match="axolotl has one file"):
        import_config("base_model: gpt2", "a.yml", given, more=[("sequence_len: 8", "b.yml")])
    part = import_config(first, "model.yml", given)
    assert {"training.precision", "training.micro_batch"} <= set(part.to_fill)


def test_older_spellings_of_torchtitan() -> None:
    text = """
[model]
name = "llama2"
flavor = "13B"
[training]
batch_size = 4
seq_len = 4096
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
compile = true
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "interleaved_1f1b"
pipeline_parallel_split_points = ["layers.10", "layers.20", "layers.30"]
pipeline_parallel_microbatches = 4
[optimizer]
fused = true
[float8]
enable_float8_linear = true
enable_fsdp_float8_all_gather = true
"""
    found = values(from_text(text, on="hgx-h100"))
    assert found["model"] == "llama-2-13b"
    assert (found["training.micro_batch"], found["training.gradient_accumulation"]) == (1, 4)
    assert found["parallel.pipeline.split"] == [10, 10, 10, 10]
    assert (found["parallel.pipeline.schedule"], found["parallel.pipeline.virtual_stages"]) == ("interleaved", 2)
    keep = ["embedding", "router", "norm", "attention"]
    narrow = {"preset": "amp-bf16", "matmul": "fp8", "recipe": "tensorwise", "gather": "fp8", "keep": keep}
    assert (found["training.precision"], found["software.fusion"]) == (narrow, "compiled")


def test_tensor_ranks_alone_have_no_mixed_precision_in_torchtitan() -> None:
    text = '[model]\nflavor = "8B"\n[training]\nseq_len = 512\n[parallelism]\ntensor_parallel_degree = 8\ndata_parallel_shard_degree = 1\n'
    assert values(from_text(text))["training.precision"] == "fp32"
    assert values(from_text(text.replace("= 8\n", "= 1\n")))["training.precision"] == "amp-bf16"


@given(layers=st.integers(1, 200), stages=st.integers(1, 40))
def test_law_a_split_holds_every_layer_and_is_even_with_embedding_and_head(layers: int, stages: int) -> None:
    if layers + 2 < 2 * stages:
        return
    counts = split(layers, stages)
    assert sum(counts) == layers
    weights = [count + (stage == 0) + (stage == stages - 1) for stage, count in enumerate(counts)]
    assert max(weights) - min(weights) <= 1


FLAGSCALE = """
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  use_distributed_optimizer: true
  precision: {bf16: true}
  checkpoint: {save_interval: "${experiment.save_steps}"}
model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 1024, max_position_embeddings: 1024, micro_batch_size: 2,
        global_batch_size: 64, hidden_dropout: 0.0, attention_dropout: 0.0, optimizer: {clip_grad: 1.0, lr_scheduler: {lr: 1.0e-4}}}
data: {tokenizer: {tokenizer_type: GPT2BPETokenizer}}
"""


def test_flagscale_is_megatron_in_sections_with_its_launcher_in_another_file() -> None:
    """Second way: the same options as a command of Megatron-LM."""
    runner = "experiment: {exp_name: x, save_steps: 100, runner: {nnodes: 2, nproc_per_node: 8, rdzv_backend: static}}"
    imported = import_config(FLAGSCALE, "train.yaml", Given(on="dgx-a100-80gb"), more=[(runner, "config.yaml")])
    options = """torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
        --use-distributed-optimizer --bf16 --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \\
        --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --hidden-dropout 0 --attention-dropout 0 \\
        --clip-grad 1.0 --lr 1e-4 --tokenizer-type GPT2BPETokenizer"""
    assert values(imported) == values(from_text(options, on="dgx-a100-80gb"))
    assert of_kind(imported, "unknown") == of_kind(imported, "not modelled") == []
    with pytest.raises(ScenarioError, match="not supported yet: FlagScale's jobs on unlike machines"):
        from_text(FLAGSCALE.replace("system:\n", "system:\n  hetero: {enable_hetero: true}\n"))


def test_every_class_of_nemo_that_is_known_is_a_model_of_the_catalogue() -> None:
    """Names of classes as NVIDIA/NeMo, nemo/collections/llm/gpt/model, and NVIDIA-NeMo/Megatron-Bridge have them."""
    classes = files.read(Path(tables.__file__).parent / "tables" / "nemo.yaml").tree["classes"]
    assert set(classes.values()) <= set(files.names("models"))
    text = changed(BRIDGE, "  _target_", "nemo.collections.llm.gpt.model.nemotron.Nemotron4Config340B")
    sizes = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
    imported = from_text(re.sub(rf"(?m)^  ({'|'.join(sizes)}): .*\n", "", text), on="hgx-h100")
    assert not imported.to_fill
    assert {key: value for key, value in values(imported).items() if key.startswith("model")} == {"model": "nemotron-4-340b"}


def test_names_of_classes_are_never_imported_and_unknown_ones_leave_the_model_open() -> None:
    text = changed(BRIDGE, "  _target_", "os.system").replace("  num_layers: 16\n", "")
    imported = from_text(text, on="hgx-h100")
    assert "model" in imported.to_fill
    assert of_kind(imported, "unknown") == []


@pytest.mark.parametrize("text", ["[a", "[a]\nb = 1\nb = 2", "[a]\nb = " + "9" * 5000, "[a]\nb = " + "[" * 3000])
def test_broken_toml_is_a_finding_with_its_place(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"x\.toml.*(not valid TOML|digits)"):
        read_toml(text, "x.toml")


LLAMA4 = 2 * 2048 * 256 + 6 * (4 * 256**2 + 2 * 256) + 3 * 3 * 256 * 768 + 3 * (8 * 256 + 9 * 3 * 256 * 512) + 256
"""every second of 6 layers with 8 experts and a shared one, 512 wide each; the others with an MLP of 768"""


@pytest.mark.parametrize(("family", "parameters"), [("llama3", 6_163_712), ("qwen3", 0), ("deepseek_v3", 0), ("llama4", LLAMA4)])
def test_torchtitans_models_for_debugging(family: str, parameters: int) -> None:
    text = f'[model]\nname = "{family}"\nflavor = "debugmodel"\n[training]\nlocal_batch_size = 8\nseq_len = 2048\n'
    text += "[parallelism]\ndata_parallel_shard_degree = -1\n"
    imported = import_config(text, "job.toml", Given(on="8x h100-sxm"))
    assert imported.to_fill == ()
    count = parameter_count(build(load(imported.tree)).model)
    if parameters:  # 2 x 2048 x 256 + 6 x (4 x 256^2 + 3 x 256 x 768 + 2 x 256) + 256
        assert count == parameters
    smaller = import_config(text, "job.toml", Given(on="8x h100-sxm", vocabulary=2000))
    assert parameter_count(build(load(smaller.tree)).model) == count - 48 * 256 * (1 if family == "qwen3" else 2)
    assert "has no use" not in smaller.yaml


def llama4(flavour: str) -> TransformerConfig:
    text = f'[model]\nname = "llama4"\nflavor = "{flavour}"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    tree = import_config(text, "job.toml", Given(on="8x h100-sxm")).tree["model"]
    return read_architecture(model_tree(tree, None)[0], base_lookup=lookup("models", None))


def test_chunks_of_llama_4_are_those_of_its_flavour() -> None:
    """torchtitan's iRoPE: layers 0, 4, ... see all keys and rotate nothing; without it all layers do both."""
    kinds = [llama4("debugmodel_irope").kind(layer) for layer in range(6)]
    assert [(kind.chunk, kind.rotates) for kind in kinds] == [(0, False), *[(256, True)] * 3, (0, False), (256, True)]
    assert {(llama4("debugmodel").kind(layer).chunk, llama4("debugmodel").kind(layer).rotates) for layer in range(6)} == {(0, True)}
    plain, chunked = llama4("17bx16e"), llama4("17bx16e_irope")
    assert {plain.kind(layer).chunk for layer in range(48)} == {0}
    assert [chunked.kind(layer).chunk for layer in range(48)].count(8192) == 36


DILOCO = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 4
[fault_tolerance]
enable = true
semi_sync_method = "diloco"
sync_steps = 20
num_fragments = 2
fragment_sync_delay = 3
should_quantize = true
process_group = "nccl"
"""


def test_jobs_of_torchtitan_that_step_alone_are_groups_of_an_outer_loop() -> None:
    asked = from_text(DILOCO, on="hgx-h100")
    assert asked.to_fill == ("parallel.data.outer.size",)
    found = values(from_text(DILOCO + "group_size = 2\n", on="hgx-h100"))
    outer = {key.rpartition(".")[2]: value for key, value in found.items() if ".outer." in key}
    assert outer == {"size": 2, "local_steps": 20, "fragments": 2, "overlap_steps": 3, "dtype": "int8"}
    assert (found["cluster.gpus"], found["training.gradient_accumulation"]) == (8, 1)
    batch = DILOCO.replace("seq_len", "global_batch_size = 16\nseq_len")
    assert values(from_text(batch + "group_size = 2\n", on="hgx-h100"))["training.global_batch"] == 32
    alone = values(from_text(DILOCO + "group_size = 1\n", on="hgx-h100"))
    assert not any(".outer." in key for key in alone)


def test_weights_that_jobs_of_torchtitan_average_are_refused() -> None:
    with pytest.raises(ScenarioError, match="without an outer optimizer"):
        from_text(DILOCO.replace("diloco", "local_sgd"), on="hgx-h100")


T5_STACK = """num_layers: 4
    hidden_size: 512
    ffn_hidden_size: 1024
    num_attention_heads: 8
    hidden_dropout: 0.1
    activation: geglu
    arch: transformer
    activations_checkpoint_granularity: full
    activations_checkpoint_method: block
    activations_checkpoint_num_layers: 0
"""
NEMO_T5 = f"""trainer: {{num_nodes: 1, devices: 8, precision: bf16, max_steps: 10}}
model:
  micro_batch_size: 8
  global_batch_size: 64
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  pipeline_model_parallel_split_rank: ${{divide_floor:${{.pipeline_model_parallel_size}}, 2}}
  megatron_amp_O2: true
  seq_length: ${{multiply:${{training.model.micro_batch_size}}, 64}}
  max_position_embeddings: ${{.seq_length}}
  encoder:
    {T5_STACK}  decoder:
    {T5_STACK}  share_token_embeddings: true
  optim: {{name: distributed_fused_adam}}
  data: {{seq_length: 512, seq_length_dec: 128}}
"""


def test_stacks_of_nemo_are_one_t5() -> None:
    found = values(from_text(NEMO_T5, on="dgx-a100-80gb", vocabulary=29184))
    wanted = {
        "model.family": "t5", "model.encoder.layers": 4, "model.layers": 4, "model.mlp": 1024, "model.gated": True,
        "training.sequence_length": 512, "training.target_sequence_length": 128, "model.maximum_sequence": 512,
    }  # fmt: skip
    assert wanted.items() <= found.items()
    assert "training.recompute" not in found
    deeper = NEMO_T5.replace("decoder:\n    num_layers: 4", "decoder:\n    num_layers: 6")
    assert values(from_text(deeper, on="dgx-a100-80gb", vocabulary=29184))["model.layers"] == 6
    head, tail = NEMO_T5.split("  decoder:")
    for key, wrong in (("hidden_size: 512", "hidden_size: 256"), ("arch: transformer", "arch: perceiver")):
        with pytest.raises(ScenarioError, match=r"not supported yet: (a decoder whose hidden_size|an encoder-decoder with perceiver)"):
            from_text(f"{head}  decoder:{tail.replace(key, wrong)}", on="dgx-a100-80gb", vocabulary=29184)


@pytest.mark.parametrize(
    "loop", ["${.seq_length}", "${model.data.seq_length}", "${multiply:${.seq_length}, 2}", "${unknown:1}", "${divide_floor:4, 0}"]
)
def test_interpolations_that_lead_nowhere_are_open(loop: str) -> None:
    text = NEMO_T5.replace("${multiply:${training.model.micro_batch_size}, 64}", loop).replace(
        "data: {seq_length: 512", "data: {seq_length: '${model.seq_length}'"
    )
    with pytest.raises(ScenarioError, match=r"is open: parsim follows references, and multiply, .*divide_ceil of whole numbers"):
        from_text(text, on="dgx-a100-80gb", vocabulary=29184)


NO_LAYERS = "".join(f"  activations_checkpoint_{word}\n" for word in ("granularity: full", "method: block", "num_layers: 0"))


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("max_steps: 1000", "max_steps: -1", "training.tokens", None),
        ("  optim:", "  activation: fast-geglu\n  optim:", "model.gated", True),
        ("  optim:", f"{NO_LAYERS}  optim:", "training.recompute", None),
        ("${model.encoder_seq_length}", "${fine_tuning.model.encoder_seq_length}", "model.maximum_sequence", 4096),
    ],
)  # fmt: skip
def test_what_nemo_means_by_nothing(old: str, new: str, key: str, value: Any) -> None:
    text = (DATA / NEMO).read_text(encoding="utf-8")
    changed_text = re.sub(r"\n  (activation|activations_checkpoint_\w+): .*", "", text) if old == "  optim:" else text
    assert old in changed_text
    assert values(from_text(changed_text.replace(old, new), on="dgx-a100-80gb", vocabulary=50257)).get(key) == value


def test_layers_of_adapters_by_the_end_of_their_names() -> None:
    text = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 2048\nmicro_batch_size: 1\nadapter: lora\n"
    named = text + "lora_target_modules: [self_attn.q_proj, mlp.down_proj, v_proj]\n"
    assert values(from_text(named, on="1x rtx-4090"))["training.finetune.targets"] == ["q_proj", "down_proj", "v_proj"]


def test_the_data_of_a_fine_tuning_say_batch_and_length() -> None:
    """NeMo's model.data.train_ds counts before what the model's section says, and where that says nothing."""
    text = (DATA / NEMO).read_text(encoding="utf-8")
    data = "  data:\n    train_ds: {micro_batch_size: 2, global_batch_size: 64, max_seq_length: 2048}\n"
    found = values(from_text(text.replace("  data:\n", data), on="dgx-a100-80gb", vocabulary=50257))
    assert (found["training.micro_batch"], found["training.global_batch"], found["training.sequence_length"]) == (2, 64, 2048)
    alone = re.sub(r"  (micro|global)_batch_size: .*\n", "", text.replace("  data:\n", data))
    assert values(from_text(alone, on="dgx-a100-80gb", vocabulary=50257))["training.micro_batch"] == 2
    same = data.replace("micro_batch_size: 2", "micro_batch_size: 1").replace("2048", "4096").replace("64", "128")
    again = values(from_text(text.replace("  data:\n", same), on="dgx-a100-80gb", vocabulary=50257))
    assert (again["training.micro_batch"], again["training.global_batch"], again["training.sequence_length"]) == (1, 128, 4096)


@pytest.mark.parametrize(
    ("parts", "fusion", "kernel"),
    [('["model", "loss"]', "compiled", None), ('["loss"]', None, "compiled"), ('["model"]', "compiled", "eager")],
)
def test_parts_that_torchtitan_compiles(parts: str, fusion: str | None, kernel: str | None) -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    tree = from_text(f"{text}[compile]\nenable = true\ncomponents = {parts}\n", file="a.toml").tree
    assert tree["software"].get("fusion") == fusion
    assert tree["training"].get("loss", {}).get("kernel") == kernel


def test_a_rank_that_overrides_a_recipe_of_megatron_bridge_is_lora() -> None:
    """Its recipes name the class of adapters in Python (tutorials/recipes/llama/conf); the file says ``peft.dim`` alone."""
    text = "train:\n  global_batch_size: 16\n  micro_batch_size: 2\n  train_iters: 10\nmodel:\n  seq_length: 4096\n"
    text += "  tensor_model_parallel_size: 1\n"
    assert "finetune" not in from_text(text, file="a.yaml").tree["training"]
    found = from_text(f"{text}peft:\n  dim: 8\n  alpha: 16\n", file="a.yaml").tree["training"]["finetune"]
    assert (found["method"], found["rank"]) == ("lora", 8)
    assert found["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert "finetune" not in from_text(f"{text}peft: null\n", file="a.yaml").tree["training"]


def test_ranks_by_an_unknown_key_are_refused() -> None:
    """Without them it would be another job: the size of an axis is never left out with a warning."""
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\n'
    assert from_text(f"{text}sequenz_parallel_degree = 1\n", file="a.toml").tree["training"]["sequence_length"] == 8192
    with pytest.raises(ScenarioError, match="ranks by a key that torchtitan does not have") as error:
        from_text(f"{text}tensr_parallel_degree = 4\n", file="a.toml")
    found = error.value.findings[0]
    assert (found.path, found.value, found.line) == ("parallelism.tensr_parallel_degree", 4, 8)
    assert found.suggestion == "did you mean parallelism.tensor_parallel_degree?"
    older = from_text(f"{text.replace('[parallelism]', '')}expert_parallel_degree = 2\n", file="a.toml")
    assert older.tree["parallel"]["expert"]["size"] == 2
