"""Objectives: two sequences per sample, forward passes without gradients, and the weights of a reference model."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from jobs import job, model_of, tree

from parsim import simulate
from parsim.errors import InputError
from parsim.kernel import Memory
from parsim.model.catalogue import build_model
from parsim.model.finetune import Finetune, finetuned
from parsim.model.parameter_counts import parameter_count
from parsim.model.reward import scoring
from parsim.parallel.objective import OBJECTIVES
from parsim.scenario.precision import PRESETS

PARAMETERS = 124_439_808
"""of GPT-2"""
LENGTH, PAIRS, MICRO_BATCHES, RANKS = 128, 3, 2, 4
EVERY = ("ddp", "zero1", "zero2", "zero3", "fsdp")
LORA = Finetune("lora", rank=8, base="")


def flop(kernel):
    """A clock that counts products only."""
    return 0.0 if isinstance(kernel, Memory) else getattr(kernel, "flop", 0.0)


def step(name, strategy="ddp", model="gpt2", micro_batch=None, **settings):
    objective = OBJECTIVES[name]
    size = PAIRS * objective.sequences if micro_batch is None else micro_batch
    kept = {"precision": PRESETS["pure-bf16"], "micro_batches": MICRO_BATCHES} | settings
    return job(model, data=RANKS, clock=flop, micro_batch=size, objective=objective, data_settings={"strategy": strategy}, **kept)


def forward_flop(sequences):
    """Of GPT-2 by hand: 12 layers of 12 h^2 weights, scores and values of s (s + 1) / 2 pairs, the head: 2 FLOP per multiply-add."""
    hidden, layers, vocabulary = 768, 12, 50257
    per_token = 2 * layers * 12 * hidden**2 + 2 * layers * (LENGTH + 1) * hidden + 2 * vocabulary * hidden
    return sequences * LENGTH * per_token


def resident(one):
    program = one.program
    return sum(program.tensors[0][row].bytes for row in program.resident[0])


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("dpo", 2),
        ("kto", 3),
        ("orpo", 0),
        ("reward", 0),
        ("grpo", 2),
        ("grpo-without-reference", 1),
        ("grpo-on-policy", 1),
        ("grpo-on-policy-without-reference", 0),
    ],
)
def test_passes_without_gradients_take_a_forward_each(strategy, name, passes):
    """DPO: 2 sequences of one reference forward; KTO: one sequence of three; GRPO: the policy's and the reference's on the answer, or
    only the latter. Together DPO is 2 x (3 F + F) where backward is 2 F."""
    made = step(name, strategy)
    plain = step("language-modelling", strategy, micro_batch=made.plan.training.micro_batch)
    assert made.makespan - plain.makespan == pytest.approx(MICRO_BATCHES * PAIRS * passes * forward_flop(1), rel=1e-9)


def test_a_step_of_dpo_is_eight_forwards_per_pair():
    """Without attention's recomputation: 2 x (3 F + F)."""
    whole = step("dpo", attention="eager").makespan
    eager = (
        MICRO_BATCHES * PAIRS * (forward_flop(1) + 2 * 12 * LENGTH * 768 * (LENGTH - 1))
    )  # eager attention computes all pairs of positions
    assert whole == pytest.approx(2 * (3 + 1) * eager, rel=1e-9)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("name", ["dpo", "kto", "grpo", "grpo-on-policy"])
def test_the_reference_model_is_stored_once(strategy, name):
    made = step(name, strategy)
    plain = step("language-modelling", strategy, micro_batch=made.plan.training.micro_batch)
    more = resident(made) - resident(plain)
    whole = 2 * PARAMETERS  # bf16
    assert more == pytest.approx(whole / RANKS if strategy in ("zero3", "fsdp") else whole, abs=2 * 1000)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("name", ["dpo", "kto", "grpo", "grpo-on-policy"])
def test_a_reference_without_adapters_needs_no_memory(strategy, name):
    model = finetuned(model_of("gpt2"), LORA)
    made = step(name, strategy, model, finetune=LORA)
    plain = step("language-modelling", strategy, model, micro_batch=made.plan.training.micro_batch, finetune=LORA)
    assert resident(made) == resident(plain)
    passes = OBJECTIVES[name].unsaved
    bare, adapted = PAIRS * forward_flop(1), PAIRS * forward_flop(1) + adapters_flop()
    wanted = sum(adapted if whose == "policy" else bare for whose in passes) * OBJECTIVES[name].sequences
    assert made.makespan - plain.makespan == pytest.approx(MICRO_BATCHES * wanted, rel=1e-9)


def adapters_flop():
    """Of A and B beside the four matrices of 12 layers, rank 8."""
    widths = ((768, 3 * 768), (768, 768), (768, 3072), (3072, 768))
    return PAIRS * LENGTH * 12 * sum(2 * 8 * (into + out) for into, out in widths)


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_a_reference_that_is_sharded_is_gathered_in_every_pass(strategy):
    """Every parameter once per forward, behind the policy's."""
    for name in ("dpo", "kto"):
        made = step(name, strategy)
        plain = step("language-modelling", strategy, micro_batch=made.plan.training.micro_batch)
        more = made.bytes(kind="all_gather") - plain.bytes(kind="all_gather")
        references = OBJECTIVES[name].unsaved.count("reference")
        own = more - MICRO_BATCHES * references * 2 * PARAMETERS
        layers = 2 * 85_054_464  # without tables, final norm, head: the root unit of the policy stays gathered
        assert own == OBJECTIVES[name].unsaved.count("policy") * MICRO_BATCHES * layers


def test_a_reference_runs_while_the_policys_activations_are_there():
    """Peak: DPO lives through both models' logits, ORPO through one's."""
    one, other = (step(name, attention="flash2").memory().peak for name in ("orpo", "dpo"))
    assert other >= one + 2 * PARAMETERS


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("name", ["grpo", "grpo-on-policy"])
def test_passes_before_the_policys_meet_none_of_its_activations(strategy, name):
    """With their own logits they peak where the policy's pass has kept nothing yet, and take as long."""
    settings = {"precision": PRESETS["pure-bf16"], "micro_batches": MICRO_BATCHES, "attention": "flash2", "clock": flop}
    settings |= {"data": RANKS, "micro_batch": PAIRS, "data_settings": {"strategy": strategy}}
    first = OBJECTIVES[name]
    before, behind = (job("gpt2", objective=one, **settings) for one in (first, replace(first, before=False)))
    assert before.makespan == pytest.approx(behind.makespan, rel=1e-12)
    logits = 2 * PAIRS * LENGTH * 50257
    assert behind.memory().peak - before.memory().peak >= 0.9 * logits


@pytest.mark.parametrize("strategy", EVERY)
def test_without_passes_of_its_own_grpo_is_the_plain_step(strategy):
    names = ("grpo-on-policy-without-reference", "language-modelling")
    made, plain = (step(name, strategy, micro_batch=PAIRS, attention="flash2") for name in names)
    assert made.makespan == plain.makespan
    assert made.memory().peak == plain.memory().peak
    assert resident(made) == resident(plain)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("name", ["dpo", "grpo-on-policy"])
def test_one_rank_stands_for_all(strategy, name):
    many, single = (step(name, strategy, one_per_stage=alone).makespan for alone in (False, True))
    assert many == single


def test_a_score_takes_the_place_of_the_head():
    """GPT-2's head is tied: h parameters more. Llama's is not: V x h fewer, h more."""
    assert parameter_count(scoring(model_of("gpt2"))) == PARAMETERS + 768
    assert parameter_count(scoring(model_of("llama-2-7b"))) == 6_738_415_616 - 32000 * 4096 + 4096


SEQUENCE_PARALLEL = "parallel.tensor={size: 2, sequence_parallel: true}"
TWO_LAYERS = "{base: olmoe-1b-7b, layers: 2, experts: {count: 8}}"
BASE = {
    "model": "gpt2",
    "cluster": "2x a100-80gb",
    "training": {"sequence_length": 64, "micro_batch": 2, "gradient_accumulation": 2, "examples": 800},
    "parallel": {"data": {"strategy": "ddp"}},
}


def test_samples_are_pairs_and_tokens_are_those_of_both():
    names = {"auto": (1, 3), "dpo": (2, 4), "kto": (1, 6), "grpo": (1, 5), "grpo-on-policy": (1, 4)}
    reports = {name: simulate(BASE, f"training.objective={name}") for name in names}
    plain = reports["auto"]
    for name, report in reports.items():
        sequences, forwards = names[name]
        facts = report.measured.model
        assert facts.samples_per_step == 8
        assert facts.tokens_per_step == 8 * 64 * sequences
        assert facts.flop_per_step == pytest.approx(plain.measured.model.flop_per_step * sequences * forwards / 3, rel=1e-12)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("profile", ["pytorch-2", "deepspeed", "megatron-core"])
def test_every_stack_runs_every_objective(strategy, profile):
    """More work in this order, and a memory ledger without contradictions."""
    settings = (f"parallel.data.strategy={strategy}", f"software.profile={profile}", "training.objective=")
    times = [simulate(BASE, *settings[:-1], settings[-1] + name).step_time for name in ("auto", "orpo", "dpo")]
    assert all(one < other for one, other in pairwise(times))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (("parallel.pipeline={size: 2, schedule: pipedream}", "parallel.data.strategy=none"), "parallel.pipeline.schedule"),
        (("training.loss.chunks=2",), "training.loss.chunks"),
        (("training.offload.parameters=cpu", "parallel.data.strategy=zero3"), "training.offload.parameters"),
        (("parallel.data.strategy=torch-data-parallel",), "parallel.data.strategy"),
        (("model=bert-large",), "training.objective"),
    ],
)
def test_what_does_not_fall_out_is_refused(changes, path):
    with pytest.raises(InputError) as error:
        simulate(BASE, "training.objective=dpo", *changes)
    assert path in [finding.path for finding in error.value.findings]


def test_pairs_alone_run_on_a_pipeline():
    """ORPO is a batch of twice the sequences, whatever the axes."""
    changes = ("parallel.pipeline.size=2", "parallel.data.strategy=none")
    pairs = simulate(BASE, "training.objective=orpo", *changes)
    double = simulate(BASE, "training.micro_batch=4", *changes)
    assert pairs.step_time == double.step_time


def test_without_passes_grpo_goes_with_every_axis_and_with_a_loss_in_parts():
    """It is the plain step in all but name, and in what it warns of."""
    axes = ("parallel.data.strategy=none",)
    for changes in ((*axes, "parallel.pipeline.size=2"), (*axes, "parallel.tensor.size=2"), ("training.loss.chunks=2",)):
        one, plain = (simulate(BASE, f"training.objective={name}", *changes) for name in ("grpo-on-policy-without-reference", "auto"))
        assert one.step_time == plain.step_time
        assert one.peak_memory == plain.peak_memory
        assert "generating and scoring them is not simulated" in str(one.warnings)


@pytest.mark.parametrize("name", ["dpo", "kto", "grpo-on-policy"])
@pytest.mark.parametrize(
    "changes",
    [
        ("parallel.data.strategy=hsdp", "parallel.data.shard_size=8"),
        ("parallel.data.strategy=zero3", "training.offload.optimizer=cpu", "software.profile=deepspeed"),
        ("parallel.data.strategy=fsdp", "training.recompute=full", "training.finetune={method: qlora, rank: 8, dropout: 0.1}"),
        ("training.global_batch=80", "training.gradient_accumulation=auto", "training.partial_micro_batch=true", "training.examples=800"),
        ("parallel.data.strategy=fsdp", "parallel.tensor.size=2", "parallel.context={size: 2, method: ulysses}"),
        ("parallel.data.strategy=zero1", "parallel.tensor.size=2", "parallel.pipeline={size: 2, schedule: interleaved, virtual_stages: 3}"),
        ("parallel.data.strategy=zero1", "parallel.pipeline={size: 2, schedule: zb-v, virtual_stages: 2}"),
        (f"model={TWO_LAYERS}", "parallel.data.strategy=zero1", "parallel.expert={size: 4, tensor: 1}", SEQUENCE_PARALLEL),
    ],
)
def test_a_folded_step_is_the_unfolded_one(name, changes):
    wide = BASE | {"cluster": {"topology": "dgx-a100-80gb", "nodes": 2}}
    one, other = (simulate(wide, f"training.objective={name}", *changes, unfolded=way) for way in (False, True))
    assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
    assert one.peak_memory == other.peak_memory


EXPERTS = build_model(
    {"base": "olmoe-1b-7b", "layers": 2, "hidden": 128, "heads": 4, "kv_heads": 4, "vocabulary": 512, "experts": {"count": 8, "mlp": 64}},
    name="small",
    base_lookup=tree,
)
AXES = {
    "tensor": ("gpt2", {"tensor": 2}),
    "sequence": ("gpt2", {"tensor": 2, "tensor_settings": {"sequence_parallel": True}}),
    "ring": ("gpt2", {"context": 2}),
    "ulysses": ("gpt2", {"context": 2, "context_settings": {"method": "ulysses"}}),
    "experts": (EXPERTS, {"expert_settings": {"size": 2}}),
}


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["dpo", "kto", "grpo"])
def test_a_pass_without_gradients_is_divided_as_the_policys(axis, name):
    """It takes what a step without backward takes: products, and messages of the axis, on the same ranks."""
    model, ranks = AXES[axis]
    objective = OBJECTIVES[name]
    settings = {"precision": PRESETS["pure-bf16"], "micro_batches": MICRO_BATCHES, "micro_batch": PAIRS * objective.sequences}
    settings |= {"data": 2, "data_settings": {"strategy": "ddp"}, "clock": flop} | ranks
    made, plain = (job(model, objective=one, **settings) for one in (objective, OBJECTIVES["language-modelling"]))
    forward = job(model, backward=False, step=False, **settings)
    passes = len(objective.unsaved)
    assert made.makespan - plain.makespan == pytest.approx(passes * forward.makespan, rel=1e-9)
    for along in ("tensor", "context", "expert"):
        assert made.bytes(axis=along) - plain.bytes(axis=along) == passes * forward.bytes(axis=along)


@pytest.mark.parametrize("axis", ["tensor", "experts"])
def test_a_reference_lies_where_the_policys_weights_lie(axis):
    """A rank of DDP keeps as much of it as of the policy's weights in the step's type."""
    model, ranks = AXES[axis]
    settings = {"precision": PRESETS["pure-bf16"], "micro_batch": 2, "data": 2, "data_settings": {"strategy": "ddp"}} | ranks
    made, plain = (job(model, objective=OBJECTIVES[name], **settings) for name in ("dpo", "language-modelling"))
    program = plain.program
    weights = sum(program.tensors[0][row].bytes for row in program.resident[0] if program.tensors[0][row].category == "parameters")
    assert resident(made) - resident(plain) == weights


def slot_seconds(made):
    """(kind, stage) -> compute of the first micro-batch's slot."""
    found = {}
    for op in made.program.ops:
        if op.instance == 0 and op.collective is None and (slot := re.match(r"([FB])(\d+) ", op.name)):
            key = slot[1], int(slot[2])
            found[key] = found.get(key, 0.0) + made.trace.duration(op)
    return found


def walked(plan, seconds):
    """The end of a schedule without messages: each slot behind the one before it on its rank, and behind what it waits for."""
    done, clocks, left = {}, [0.0] * len(plan.slots), [list(row) for row in plan.slots]
    while any(left):
        for rank, row in enumerate(left):
            while row:
                kind, stage, number = row[0].kind, row[0].stage, row[0].micro_batch
                source = (kind, stage - 1 if kind == "F" else stage + 1, number)
                if 0 <= source[1] < len(plan.chunks) and source not in done:
                    break
                clocks[rank] = max(clocks[rank], done.get(source, 0.0)) + seconds[kind, stage]
                done[kind, stage, number] = clocks[rank]
                row.pop(0)
    return max(clocks)


@pytest.mark.parametrize("name", ["dpo", "kto", "grpo"])
@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 3)])
def test_on_a_pipeline_the_passes_of_a_micro_batch_are_one_slot(name, schedule, virtual):
    """A forward slot takes as long as all of them, and one message carries what all of them hand on."""
    objective = OBJECTIVES[name]
    settings = {"pipeline": 2, "pipeline_settings": {"schedule": schedule, "virtual_stages": virtual}, "micro_batches": 6, "clock": flop}
    settings |= {"precision": PRESETS["pure-bf16"], "micro_batch": PAIRS * objective.sequences}
    made, plain = (job("gpt2", objective=one, **settings) for one in (objective, OBJECTIVES["language-modelling"]))
    passes, seconds = 1 + len(objective.unsaved), slot_seconds(plain)
    seconds |= {slot: passes * time for slot, time in seconds.items() if slot[0] == "F"}
    assert slot_seconds(made) == pytest.approx(seconds, rel=1e-9)
    assert made.makespan == pytest.approx(walked(made.plan, seconds), rel=1e-9)
    messages = made.bytes(kind="send") / plain.bytes(kind="send")  # as many bytes go forward as backward
    assert messages == (passes + 1) / 2


@pytest.mark.parametrize(("name", "new"), [("dpo", True), ("grpo", True), ("orpo", False)])
def test_of_passes_without_gradients_no_published_run_tells(name, new):
    estimate = simulate(BASE, f"training.objective={name}").measured.confidence
    assert (estimate.status == "unvalidated" and "no published run has forward passes without gradients" in estimate.basis) is new
