"""Memory of lowered steps: nothing is freed twice or leaked, whatever the strategy; and a small MLP to the byte.

The MLP's figures are what `torch.cuda.memory_allocated` shows for three fp32 linear layers under autograd: parameters, saved
inputs, gradients and one cuBLAS workspace per thread (PyTorch CUDA notes), in blocks of 512 B.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import FP32, MIB, job, tree

from parsim.model.catalogue import build_model
from parsim.model.plain import plain_model
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.objective import OBJECTIVES
from parsim.parallel.replicated import Replicated
from parsim.parallel.single_process import DataParallelModule
from parsim.parallel.training import Offload, Optimizer, Recompute
from parsim.parallel.zero import ZeroOptimizer
from parsim.program.check import check
from parsim.scenario.precision import PRESETS
from parsim.simulation.ledger import LedgerError, held_in

WIRES = {"tensor": 1e-5, "data": 1e-4, "pipeline": 1e-5}


def assert_balanced(run):
    """Every rank ends with what it began with (in a first iteration plus the workspaces), and no level is negative."""
    for rank, resident in run.program.resident.items():
        for where in ("device", "host", "nvme"):
            memory = run.memory(rank, where=where)
            names = {number: memory.tensors[number].name for number, _ in memory.final}
            stay = [number for number in resident if held_in(memory.tensors[number].category) == where]
            left = sorted(name for number, name in names.items() if number not in stay and "workspace" not in name)
            lost = sorted(memory.tensors[number].name for number in stay if number not in names)
            assert (left, lost) == ([], [])
            assert all(levels.min() >= 0 for levels in memory.levels.values())


# -- a grid over everything --------------------------------------------------------------------------------------------------

FULL, EVERY, SOME = Recompute("full"), Recompute("every", every=5), Recompute("blocks", blocks=3)
ATTENTION, MLP = Recompute("selective", selective=("attention",)), Recompute("selective", selective=("mlp",))
SCHEDULES = [("naive", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 3), ("pipedream", 1), ("zb-h1", 1)]
OPTIMIZERS = ("sgd", "momentum", "adam", "adam-8bit", "adam-4bit", "adam-mini", "adafactor", "lamb", "lion")
NOT_FUSED = {"gradient_accumulation_fusion": False}
SEQUENCE = {"sequence_parallel": True}


HOSTED = Offload("none", "cpu", "cpu", "none")
CHECKPOINTS = {"offload": Offload(activations="cpu"), "recompute": FULL}


def one_gpu():
    yield {}
    yield {"offload": HOSTED, "micro_batches": 2}
    yield CHECKPOINTS | {"micro_batches": 2}
    yield {"last_micro_batch": 1, "micro_batch": 3, "micro_batches": 3}
    yield {"micro_batches": 1, "iteration": "first"}
    yield {"backward": False}
    yield {"step": False}
    yield {"micro_batches": 3, "runtime": NOT_FUSED}
    for optimizer in OPTIMIZERS:
        yield {"optimizer": Optimizer(optimizer)}
    for precision in PRESETS.values():
        yield {"precision": precision, "runtime": NOT_FUSED}
    for name in ("bert-base", "llama-3.2-1b", "opt-125m", "bloom-560m", "resnet50", "vit-base", "mixtral-8x7b"):
        yield {"model": name}
        yield {"model": name, "iteration": "first", "attention": "eager"}


def replicas():
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp", "torch-data-parallel", "parameter-server"):
        chosen = {"strategy": strategy}
        common = {"data": 2, "data_settings": chosen}
        yield common
        yield common | {"micro_batches": 3, "runtime": NOT_FUSED}
        yield common | {"iteration": "first"}
        yield common | {"backward": False}
        yield common | {"recompute": FULL}
        if strategy != "torch-data-parallel":
            yield common | CHECKPOINTS | {"micro_batches": 3}
            yield common | {"last_micro_batch": 1, "micro_batch": 3, "micro_batches": 3, "mean_sequence_length": 96}
        if strategy.startswith("zero"):
            yield common | {"offload": HOSTED, "micro_batches": 3}
            yield common | {"offload": HOSTED, "iteration": "first"}
            yield common | {"offload": HOSTED, "tensor": 2, "data_settings": chosen | {"overlap_reduce": False}}
        if strategy in ("zero3", "fsdp"):
            yield common | {"offload": Offload("cpu", "cpu", "cpu", "cpu"), "micro_batches": 3, "recompute": FULL}
            yield common | {"offload": Offload("cpu", "cpu", "cpu", "none"), "data": 1}
        if strategy == "zero3":
            yield common | {"offload": Offload("nvme", "nvme", "nvme", "none"), "micro_batches": 3}
        yield common | {"model": "resnet50"}
        yield common | {"data_settings": chosen | {"overlap_reduce": False}}
        yield common | {"data_settings": chosen | {"accumulate": "every"}}
        if strategy.startswith(("zero", "fsdp")):
            yield common | {"tensor": 2, "pipeline": 2, "micro_batches": 4}
            yield common | {"runtime": {"profile": "megatron-core"}}
            yield common | {"data_settings": chosen | {"overlap_gather": True}}
            yield common | {"optimizer": Optimizer("adafactor", "fused")}
            yield common | {"pipeline": 2, "micro_batches": 4, "pipeline_settings": {"schedule": "interleaved", "virtual_stages": 2}}
    for strategy in ("zero3", "fsdp"):
        for recompute in (Recompute(), EVERY):
            for unit in ("block", "model"):
                yield {"data": 2, "data_settings": {"strategy": strategy, "unit": unit}, "recompute": recompute}
        yield {"data": 2, "data_settings": {"strategy": strategy, "unit": "block"}, "model": "llama-3.2-1b"}
        yield {"data": 2, "data_settings": {"strategy": strategy, "reshard_after_forward": False}}
        yield {"data": 2, "data_settings": {"strategy": strategy, "prefetch": 3, "limit_gathers": 1}}
    yield {"data": 2, "data_settings": {"bucket_view": True}}
    yield {"data": 2, "runtime": {"profile": "megatron-core"}}


def recomputations():
    for recompute in (FULL, EVERY, SOME, ATTENTION, MLP):
        yield {"recompute": recompute}
        yield {"recompute": recompute, "tensor": 2, "tensor_settings": SEQUENCE}
        yield {"recompute": recompute, "pipeline": 2, "micro_batches": 4}
    yield {"recompute": FULL, "model": "resnet50", "pipeline": 3, "micro_batches": 3}
    yield {"recompute": FULL, "model": "resnet50", "pipeline": 3, "micro_batches": 3, "pipeline_settings": {"schedule": "zb-h1"}}


def pipelines():
    for schedule, virtual in SCHEDULES:
        chosen = {"pipeline_settings": {"schedule": schedule, "virtual_stages": virtual}}
        yield chosen | {"pipeline": 2, "micro_batches": 4}
        yield chosen | CHECKPOINTS | {"pipeline": 2, "micro_batches": 4}
        if schedule != "pipedream":
            yield chosen | {"pipeline": 2, "micro_batches": 4, "micro_batch": 3, "last_micro_batch": 2, "tensor": 2}
        yield chosen | {"pipeline": 4, "micro_batches": 4, "tensor": 2, "data": 2}
        yield chosen | {"pipeline": 2, "micro_batches": 2, "runtime": {"profile": "megatron-core"}}
        yield {"pipeline": 3, "micro_batches": 3, "pipeline_settings": {"schedule": schedule, "overlap_sends": False}}
        yield {"pipeline": 4, "micro_batches": 4, "model": "resnet50", "pipeline_settings": {"schedule": schedule}}
    yield {"pipeline": 3, "micro_batches": 3, "pipeline_settings": {"split": (2, 3, 7)}}
    yield {"pipeline": 3, "micro_batches": 3, "pipeline_settings": {"split": "balanced"}, "slow": {1: 0.5}}


def stages_in_a_v():
    """Embedding and head share a rank, tied in the end; in the middle of the V a stage hands to another of its rank."""
    chosen = {"schedule": "zb-v", "virtual_stages": 2}
    for model in ("llama", "resnet50"):
        common = {"model": model, "pipeline": 4, "micro_batches": 4, "pipeline_settings": chosen}
        yield common
        yield common | {"recompute": FULL}
        yield common | {"backward": False}
        yield common | {"pipeline_settings": chosen | {"overlap_sends": False}}
        yield common | {"micro_batch": 3, "last_micro_batch": 2}
        for strategy in ("ddp", "zero2", "fsdp"):
            yield common | {"pipeline": 2, "data": 2, "data_settings": {"strategy": strategy}}
    llama = {"model": "llama", "pipeline": 2, "micro_batches": 4, "pipeline_settings": chosen}
    yield llama | {"tensor": 2, "tensor_settings": SEQUENCE}
    yield llama | {"runtime": {"profile": "megatron-core"}, "iteration": "first"}
    tied = {"model": "gpt2", "pipeline": 2, "micro_batches": 4, "pipeline_settings": chosen}
    for fused in (True, False):
        megatron = tied | {"runtime": {"profile": "megatron-core", "gradient_accumulation_fusion": fused}}
        yield megatron
        yield megatron | {"data": 2, "recompute": FULL}
        yield megatron | {"data": 2, "data_settings": {"overlap_reduce": False}, "iteration": "first"}
        yield megatron | {"tensor": 2, "tensor_settings": SEQUENCE}
        yield megatron | {"micro_batch": 3, "last_micro_batch": 2, "pipeline_settings": chosen | {"overlap_sends": False}}
        yield megatron | {"backward": False}
        yield megatron | {"step": False}


def tensors():
    for name in ("gpt2", "bert-base", "llama-3.2-1b", "opt-125m", "bloom-560m", "mixtral-8x7b"):
        yield {"model": name, "tensor": 2}
        yield {"model": name, "tensor": 2, "tensor_settings": SEQUENCE, "loss_kernel": "vocab-parallel"}
    yield {"tensor": 4, "pipeline": 2, "micro_batches": 2, "pipeline_settings": {"scatter_sends": False}}
    yield {"tensor": 2, "tensor_settings": {"overlap": "none"}}


def split_backwards_of_two_chunks():
    for schedule in ("v-half", "v-min", "interleaved-zb"):
        chosen = {"schedule": schedule, "virtual_stages": 2}
        common = {"model": "llama", "pipeline": 4, "micro_batches": 8, "pipeline_settings": chosen}
        yield common
        yield common | {"recompute": FULL, "pipeline_settings": chosen | {"overlap_sends": False}}
        yield common | {"backward": False}
        yield common | {"micro_batch": 3, "last_micro_batch": 2, "pipeline": 3, "micro_batches": 3}
        for strategy in ("ddp", "zero2", "fsdp"):
            yield common | {"pipeline": 2, "data": 2, "data_settings": {"strategy": strategy}}
        tied = {"model": "gpt2", "pipeline": 2, "micro_batches": 4, "pipeline_settings": chosen}
        yield tied | {"runtime": {"profile": "megatron-core"}, "data": 2}


GRID = [*one_gpu(), *replicas(), *recomputations(), *pipelines(), *stages_in_a_v(), *split_backwards_of_two_chunks(), *tensors()]


def describe(case):
    """The case in a line, without quotes and braces."""
    words = []
    for key, value in case.items():
        if isinstance(value, Recompute):
            words.append(f"recompute {value.mode} {'+'.join(value.selective) if value.mode == 'selective' else ''}".strip())
        elif isinstance(value, Offload):
            words.append(f"offload {value.parameters} {value.optimizer} {value.activations}")
        elif isinstance(value, dict):
            words += [f"{name} {setting}" for name, setting in value.items()]
        else:
            words.append(f"{key} {getattr(value, 'name', value)}")
    return ", ".join(words) or "default"


@cache
def shallow(base, layers):
    """A model with few of its equal layers."""
    return build_model({"base": base, "layers": layers}, name="shallow", base_lookup=tree)


@pytest.mark.parametrize("case", GRID, ids=describe)
def test_memory_returns_to_what_it_was(case):
    model = "gpt2" if "pipeline" in case else shallow("gpt2", 6)  # stages of three chunks need all twelve layers
    recipe = {"model": model, "micro_batches": 2, "dropout": 0.1, "wires": WIRES} | case
    if recipe["model"] == "llama":
        recipe["model"] = shallow("llama-2-7b", 10)
    if not str(case.get("model", "")).startswith("resnet"):
        recipe = {"sequence_length": 128} | recipe
    assert_balanced(job(**recipe))


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
@pytest.mark.parametrize("name", [name for name, one in OBJECTIVES.items() if one.unsaved])
def test_of_few_layers_none_is_gathered_for_a_pass_while_the_one_before_has_it(name, strategy):
    """The queue of gathers may be ahead of compute by more layers than there are."""
    settings = {"data": 4, "data_settings": {"strategy": strategy}, "sequence_length": 128, "micro_batches": 2, "wires": WIRES}
    assert_balanced(job(shallow("gpt2", 1), objective=OBJECTIVES[name], **settings))


# -- random small jobs ----------------------------------------------------------------------------------------------------------


def small(layers=4, **changes):
    return build_model(
        {"base": "gpt2", "hidden": 64, "heads": 4, "layers": layers, "vocabulary": 1000, **changes}, name="small", base_lookup=tree
    )


@st.composite
def jobs(draw):
    strategy = draw(st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp"]))
    pipeline = draw(st.integers(1, 3))
    schedule = draw(st.sampled_from(["naive", "gpipe", "1f1b", "interleaved"]))
    virtual = draw(st.integers(1, 2)) if schedule == "interleaved" and pipeline > 1 else 1
    mode = draw(st.sampled_from(["none", "full", "every", "blocks", "selective"]))
    parts = draw(st.lists(st.sampled_from(["attention", "mlp", "norm"]), min_size=1, unique=True))
    recompute = Recompute(mode, every=draw(st.integers(1, 4)), blocks=draw(st.integers(0, 3)), selective=tuple(parts))
    tensor = draw(st.sampled_from([1, 2]))
    model = small(
        draw(st.integers(pipeline * virtual, 6)),
        tied_embeddings=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )
    return job(
        model if tensor == 1 else build_tensor(model, tensor),
        tensor=tensor,
        pipeline=pipeline,
        data=draw(st.integers(1, 3)),
        wires={axis: draw(st.sampled_from([0.0, 1e-5, 1e-2])) for axis in WIRES},
        sequence_length=16,
        micro_batches=draw(st.integers(1, 3)) * pipeline,
        micro_batch=draw(st.integers(1, 2)),
        backward=draw(st.integers(0, 5)) > 0,
        step=draw(st.booleans()),
        iteration=draw(st.sampled_from(["steady", "first"])),
        recompute=recompute,
        precision=draw(st.sampled_from(list(PRESETS.values()))),
        optimizer=Optimizer(draw(st.sampled_from(OPTIMIZERS)), draw(st.sampled_from(["fused", "foreach", "loop"]))),
        attention=draw(st.sampled_from(["flash2", "eager"])),
        dropout=model.facts.get("dropout", 0.0),
        loss_kernel=draw(st.sampled_from(["eager", "fused", "vocab-parallel"])),
        tensor_settings={
            "sequence_parallel": tensor > 1 and draw(st.booleans()),
            "overlap": draw(st.sampled_from(["none", "backward"])),
        },
        pipeline_settings={
            "schedule": schedule,
            "virtual_stages": virtual,
            "overlap_sends": draw(st.booleans()),
            "scatter_sends": draw(st.booleans()),
        },
        data_settings={
            "strategy": strategy,
            "bucket": draw(st.sampled_from([None, (20_000, "bytes"), (1e4, "elements")])),
            "bucket_view": draw(st.booleans()),
            "overlap_reduce": draw(st.booleans()),
            "overlap_gather": draw(st.booleans()),
            "accumulate": draw(st.sampled_from(["no_sync", "every"])),
            "unit": draw(st.sampled_from(["layer", "block", "model"])),
            "prefetch": draw(st.integers(0, 2)),
            "limit_gathers": draw(st.integers(1, 3)),
            "reshard_after_forward": draw(st.booleans()),
            "queues": draw(st.sampled_from(["shared", "separate"])),
        },
        runtime={
            "profile": draw(st.sampled_from(["pytorch-2", "megatron-core"])),
            "gradient_accumulation_fusion": draw(st.booleans()),
            "fused": draw(st.booleans()),
        },
    )


def build_tensor(model, tensor):
    """The same model with a vocabulary padded for `tensor` ranks."""
    facts = {"tied_embeddings": bool(model.blocks[-1].parameters()[-1].tied), "dropout": model.facts.get("dropout", 0.0)}
    description = {"base": "gpt2", "hidden": 64, "heads": 4, "layers": model.layers, "vocabulary": 1000, **facts}
    return build_model(description, name="small", base_lookup=tree, tensor=tensor)


@settings(max_examples=30)
@given(jobs())
def test_random_jobs(run):
    assert_balanced(run)
    assert not check(run.program)


# -- three linear layers, to the byte ----------------------------------------------------------------------------------------------

MLP_TREE = {"input": {"shape": [1024], "dtype": "fp32"}, "layers": [{"linear": {"out": out}} for out in (1024, 1024, 2048)]}


@pytest.fixture
def mlp():
    model = plain_model(MLP_TREE, "mlp", "sum")

    def run(**training):
        return job(model, **({"micro_batch": 10_240, "precision": FP32, "step": False, "iteration": "first"} | training)).memory()

    return run


def level(memory, name, sign):
    """Allocated MiB right after a tensor comes (+1) or goes (-1)."""
    found = [row for row, number in enumerate(memory.tensor.tolist()) if memory.tensors[number].name == name]
    row = found[-1] if sign < 0 else found[0]
    assert memory.delta[row] * sign > 0
    return memory.level[row] / MIB


def test_training_peak_of_the_mlp(mlp):
    """In the last layer's backward: parameters 16.015625, x 40, y1 40, y2 40, y3 80, its gradient 80, dy2 40, two workspaces
    16.25, gradients of the last layer only 8.0078125, loss and its gradient 512 B each."""
    memory = mlp()
    assert memory.peak / MIB == 360.2744140625
    assert {name: size / MIB for name, size in memory.at_peak.items() if size} == {
        "parameters": 16.015625,
        "gradients": 8.0078125,
        "activations": 200 + 512 / MIB,
        "temporaries": 120 + 512 / MIB,
        "workspace": 16.25,
    }


def test_the_allocator_agrees_on_the_mlp(mlp):
    model = plain_model(MLP_TREE, "mlp", "sum")
    run = job(model, micro_batch=10_240, precision=FP32, step=False, iteration="first")
    replayed = run.memory(allocator="segments")
    assert replayed.replay.peak_allocated / MIB == 360.2744140625
    assert replayed.peak_reserved >= replayed.replay.peak_allocated


def test_after_the_backward_of_the_mlp(mlp):
    """Parameters and gradients, x, y3 and the loss, two workspaces."""
    memory = mlp()
    assert level(memory, "dx3", -1) == 168.28173828125 == 2 * 16.015625 + 40 + 80 + 2 * 8.125 + 512 / MIB


def test_after_the_first_adam_step_of_the_mlp(mlp):
    """200.31298828125 MiB: parameters, gradients and Adam's two states, two workspaces, and x, y3 and the loss, which a script that
    still names them keeps; here they go with the pass, before the step."""
    memory = mlp(step=True)
    named = level(memory, "dx3", -1) - level(memory, "x3", -1)
    assert named == 40 + 80 + 512 / MIB
    assert level(memory, "optimizer.temporary", -1) + named == 200.31298828125 == 4 * 16.015625 + 2 * 8.125 + named


def test_the_forward_of_the_mlp(mlp):
    """Three outputs and a workspace."""
    memory = mlp()
    assert level(memory, "layer 2.linear", +1) - 16.015625 - 40 == 168.125


def test_inference_of_the_mlp(mlp):
    """At most one layer's input and output beside x; then x and y3 are left."""
    memory = mlp(backward=False)
    assert memory.peak / MIB == 184.140625 == 16.015625 + 40 + 40 + 80 + 8.125
    assert level(memory, "x2", -1) == 144.140625


def test_gradients_and_states_of_the_mlp():
    model = plain_model(MLP_TREE, "mlp", "sum")
    memory = job(model, micro_batch=10_240, precision=FP32).memory()
    assert memory.resident["parameters"] / MIB == 16.015625
    assert (memory.resident["parameters"] + memory.levels["gradients"].max()) / MIB == 32.03125
    assert (memory.resident["parameters"] + memory.levels["gradients"].max() + memory.resident["optimizer"]) / MIB == 64.0625


def test_forward_of_bert_in_evaluation_mode():
    """BERT-base 32 x 512, fp32, eager attention, no dropout: 13,931.34375 MiB of saved tensors and workspace."""
    model = build_model({"base": "bert-base", "task": "encoder"}, name="bert-base", base_lookup=tree)
    run = job(model, micro_batch=32, sequence_length=512, precision=FP32, attention="eager", step=False, iteration="first")
    memory = run.memory()
    row = max(i for i, op in enumerate(memory.op.tolist()) if op >= 0 and run.program.ops[op].name.startswith("F"))
    found = memory.composition(row)
    ids = 8 * 32 * 512
    assert (found["activations"] - ids + found["workspace"]) / MIB == pytest.approx(13_931.34375, rel=1e-6)


# -- the laws notice --------------------------------------------------------------------------------------------------------------


def nothing(self, *arguments, **options):
    return None


def without_frees(method):
    """The method, with an emitter that forgets what it should free."""

    def forgetful(self, *arguments, **options):
        at = next(a for a in (*arguments, *options.values()) if hasattr(a, "compute"))
        compute = at.compute
        at.compute = lambda name, kind, kernels, allocates=(), frees=(): compute(name, kind, kernels, allocates)
        try:
            return method(self, *arguments, **options)
        finally:
            at.compute = compute

    return forgetful


@pytest.mark.parametrize(
    ("strategy", "owner", "name"),
    [
        ("fsdp", FullyShardedDataParallel, "after_forward"),
        ("fsdp", FullyShardedDataParallel, "after_backward"),
        ("fsdp", FullyShardedDataParallel, "step"),
        ("ddp", Replicated, "_drop_gradients"),
        ("zero1", ZeroOptimizer, "step"),
        ("zero2", ZeroOptimizer, "gradient"),
        ("zero2", ZeroOptimizer, "step"),
        ("torch-data-parallel", DataParallelModule, "pass_ends"),
    ],
)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_missing_free_is_noticed(monkeypatch, strategy, owner, name, micro_batches):
    monkeypatch.setattr(owner, name, without_frees(getattr(owner, name)))
    run = job(small(), data=2, sequence_length=16, micro_batches=micro_batches, data_settings={"strategy": strategy})
    with pytest.raises((LedgerError, AssertionError)):
        assert_balanced(run)


def test_a_free_too_many_is_noticed(monkeypatch):
    keep = FullyShardedDataParallel.after_forward

    def twice(self, unit, at):
        keep(self, unit, at)
        at.compute("", "compute", (), frees=[self._whole(unit, at)])

    monkeypatch.setattr(FullyShardedDataParallel, "after_forward", twice)
    run = job(small(), data=2, sequence_length=16, data_settings={"strategy": "fsdp"})
    with pytest.raises(LedgerError, match="not live"):
        assert_balanced(run)
