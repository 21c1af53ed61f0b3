"""Context parallelism as lowered programs: who talks to whom, how much, when, and what it hides.

Ring attention: Liu et al. 2310.01889; the order of messages is Transformer Engine's; ulysses: Jacobs et al. 2309.14509.
"""

from __future__ import annotations

from collections import Counter

import pytest
from jobs import MIB, job, model_of

from parsim import theory
from parsim.errors import PlanError
from parsim.kernel import Attention
from parsim.parallel.training import Recompute
from parsim.program.check import check
from parsim.report.timeline import Timeline, breakdown

METHODS = ("ring", "all-gather", "ulysses")
LAYERS = 12
FLASH = {"attention": "flash2", "step": False}


def blocks_only(kernel):
    """A clock in which every attention kernel takes a second and nothing else any time."""
    return 1.0 if isinstance(kernel, Attention) else 0.0


def moved(run, axis="context", rank=0):
    """How often each (kind, bytes) occurs on a rank."""
    return Counter((op.collective.kind, op.collective.bytes) for op in run.collectives(rank, axis))


def of_method(method, **more):
    return job("gpt2", context=4, context_settings={"method": method}, **{"sequence_length": 1024, **FLASH, **more})


# -- time ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [2, 4, 8])
@pytest.mark.parametrize("message", [0.0, 0.25, 1.0, 1.5, 4.0])
def test_a_ring_hides_messages_that_are_shorter_than_blocks(context, message):
    run = job("gpt2", context=context, clock=blocks_only, wires={"context": message}, sequence_length=1024, **FLASH)
    forward = theory.ring_attention_time(context, 1.0, message)
    backward = theory.ring_attention_time(context, 1.0, message, backward=True)
    assert run.makespan == pytest.approx(LAYERS * (forward + backward), rel=1e-12)
    exposed = LAYERS * (2 * context - 1) * max(0.0, message - 1.0)
    assert breakdown(Timeline(run.trace), 0)["context_comm"] == pytest.approx(exposed, abs=1e-9)
    if message <= 1.0:
        assert forward + backward == 2 * context


@pytest.mark.parametrize(("method", "forward", "backward", "kernels"), [("all-gather", 2, 4, 2), ("ulysses", 4, 4, 1)])
def test_other_methods_wait_for_every_message(method, forward, backward, kernels):
    run = of_method(method, clock=blocks_only, wires={"context": 0.5})
    assert run.makespan == LAYERS * (2 * kernels + 0.5 * (forward + backward))
    assert breakdown(Timeline(run.trace), 0)["context_comm"] == LAYERS * 0.5 * (forward + backward)


def test_the_next_block_waits_for_its_keys():
    """The message of a step begins with the step's block; the block after waits for both."""
    run = job("gpt2", context=4, clock=blocks_only, wires={"context": 3.0}, sequence_length=1024, backward=False, **FLASH)
    begins = [run.trace.start[op.index] for op in run.collectives(axis="context")][:4]
    assert begins == [0.0, 3.0, 6.0, 10.0]
    assert run.makespan == LAYERS * 10.0


# -- bytes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tensor", "context", "micro_batch"), [(1, 2, 1), (1, 8, 2), (2, 4, 1)])
def test_a_ring_moves_keys_and_values_past_every_rank(tensor, context, micro_batch):
    """Forward 2 (c - 1) b (s / c) k d e per rank and layer; backward twice as much, with the gradients."""
    sequence, layers = 4096, 22
    key_value = 2 * micro_batch * (sequence // context) * (4 // tensor) * 64 * 2
    recipe = {"sequence_length": sequence, "micro_batch": micro_batch, **FLASH}
    run = job("tinyllama-1.1b", tensor=tensor, context=context, **recipe)
    forward = job("tinyllama-1.1b", tensor=tensor, context=context, backward=False, **recipe)
    for rank in (0, run.plan.mesh.ranks - 1):
        assert forward.bytes(rank, "context") == layers * theory.ring_attention_bytes(context, key_value)
        both = theory.ring_attention_bytes(context, key_value) + theory.ring_attention_bytes(context, key_value, backward=True)
        assert run.bytes(rank, "context") == layers * both
    assert moved(forward) == {("sendrecv", key_value): layers * (context - 1)}
    expected = Counter({("sendrecv", key_value): layers * (context - 1 + 2)})
    if context > 2:
        expected["sendrecv", 2 * key_value] = layers * (context - 2)
    assert moved(run) == expected


def test_all_gather_moves_keys_and_values_of_all():
    """gpt2: b s h e = 1.5 MiB of keys, as much of values; gathered again in backward, where their gradients are scattered."""
    size = 1024 * 768 * 2
    assert size == 1.5 * MIB
    assert moved(of_method("all-gather")) == {("all_gather", size): 4 * LAYERS, ("reduce_scatter", size): 2 * LAYERS}
    assert moved(of_method("all-gather", backward=False)) == {("all_gather", size): 2 * LAYERS}


def test_ulysses_exchanges_eight_tensors_per_layer():
    """b s h e / c each, for queries, keys, values and output and for their gradients; grouped keys are smaller."""
    assert moved(of_method("ulysses")) == {("all_to_all", 1024 * 768 * 2 // 4): 8 * LAYERS}
    grouped = job("tinyllama-1.1b", context=4, context_settings={"method": "ulysses"}, sequence_length=4096, **FLASH)
    assert moved(grouped) == {("all_to_all", 1024 * 2048 * 2): 4 * 22, ("all_to_all", 1024 * 4 * 64 * 2): 4 * 22}


@pytest.mark.parametrize(("method", "forward", "backward"), [("ring", 3, 4), ("all-gather", 2, 4), ("ulysses", 4, 4)])
@pytest.mark.parametrize("recompute", [Recompute("full"), Recompute("selective")])
def test_recomputation_communicates_again(method, forward, backward, recompute):
    run = of_method(method, recompute=recompute)
    assert sum(moved(run).values()) == LAYERS * (2 * forward + backward)
    again = [op for op in run.collectives(axis="context") if run.trace.start[op.index] >= run.end("F0")]
    assert len(again) == LAYERS * (forward + backward)


def test_one_rank_communicates_with_nobody():
    alone = job("gpt2", sequence_length=1024, **FLASH)
    assert moved(alone) == {}
    for method in METHODS:
        same = job("gpt2", context=1, context_settings={"method": method}, sequence_length=1024, **FLASH)
        assert [(op.name, op.duration) for op in same.program.ops] == [(op.name, op.duration) for op in alone.program.ops]


# -- everything else ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_programs_are_sound(method):
    run = job(
        "tinyllama-1.1b", tensor=2, context=2, pipeline=2, data=2, sequence_length=1024, micro_batches=4, attention="flash2",
        context_settings={"method": method}, tensor_settings={"sequence_parallel": True}, data_settings={"strategy": "zero1"},
    )  # fmt: skip
    assert check(run.program) == []
    assert run.makespan > 0


def test_gradients_are_reduced_over_data_and_context():
    """Two data x four context ranks hold the same parameters: one group of eight, one copy of the states among them."""
    for strategy, kinds in (
        ("ddp", {"all_reduce"}),
        ("zero1", {"reduce_scatter", "all_gather"}),
        ("fsdp", {"all_gather", "reduce_scatter"}),
    ):
        run = job("gpt2", context=4, data=2, sequence_length=1024, attention="flash2", data_settings={"strategy": strategy})
        alone = job("gpt2", data=8, sequence_length=1024, attention="flash2", data_settings={"strategy": strategy})
        groups = {op.collective.group for op in run.collectives(axis="data") if op.collective.bytes > 4}
        assert groups == {tuple(range(8))}
        assert {kind for kind, size in moved(run, "data") if size > 4} == kinds
        assert moved(run, "data") == moved(alone, "data")
        for category in ("parameters", "gradients", "optimizer"):
            assert run.memory().resident.get(category) == alone.memory().resident.get(category)


def test_the_gradient_norm_of_replicas_is_taken_over_one_copy_of_the_parameters():
    """Megatron's model-parallel group: tensor x pipeline; context ranks hold the same gradients after their reduction."""
    run = job("gpt2", tensor=2, context=2, pipeline=2, sequence_length=1024, attention="flash2")
    groups = {op.collective.group for op in run.collectives(0) if "gradient norm" in op.name}
    assert groups == {(0, 1, 4, 5)}


def test_stages_hand_on_the_tokens_of_their_rank():
    """b (s / c) h e from each rank to the one at the same place of the next stage."""
    run = job("gpt2", context=2, pipeline=2, sequence_length=1024, micro_batches=2, attention="flash2")
    sends = {(op.collective.group, op.collective.bytes) for op in run.program.ops if op.collective and op.collective.kind == "send"}
    size = 512 * 768 * 2
    assert sends == {((0, 2), size), ((1, 3), size), ((2, 0), size), ((3, 1), size)}


def test_tensor_parallel_messages_carry_the_tokens_of_a_rank():
    run = job("gpt2", tensor=2, context=4, sequence_length=1024, attention="flash2")
    alone = job("gpt2", tensor=2, sequence_length=256, attention="flash2")
    assert moved(run, "tensor") == moved(alone, "tensor")


# -- what cannot be split -----------------------------------------------------------------------------------------------


def refusal(model, **settings):
    with pytest.raises(PlanError) as caught:
        job(model, **{"sequence_length": 1024, "attention": "flash2", **settings})
    return [f"{finding.path}: {finding.message}; {finding.suggestion}" for finding in caught.value.findings]


BALANCE = "; with causal attention every rank holds two chunks, so that all have equal work"
ULYSSES = {"method": "ulysses"}
REFUSED = {
    "two chunks per rank": (
        ("gpt2", {"context": 3}),
        (f"parallel.context.size: 1024 tokens / (2 x context 3) = 1024 / 6 = 170.667 is not whole{BALANCE}; "
        "use sequence_length 1020 or 1026, or another context.size"),
    ),
    "a shorter sample than chunks": (
        ("gpt2", {"context": 4, "sequence_length": 4}),
        f"4 tokens / (2 x context 4) = 4 / 8 = 0.5 is not whole{BALANCE}; use sequence_length 8, or another context.size",
    ),
    "one part per rank": (
        ("gpt2", {"context": 3, "context_settings": ULYSSES}),
        ("parallel.context.size: 1024 tokens / context 3 = 341.333 is not whole; "
        "use sequence_length 1023 or 1026, or another context.size"),
    ),
    "tokens of sequence parallelism": (
        ("llama-3-8b", {"context": 2, "tensor": 8, "tensor_settings": {"sequence_parallel": True}, "sequence_length": 1028}),
        ("parallel.context.size: 1028 tokens / (context 2 x tensor 8 (sequence parallel)) = 1028 / 16 = 64.25 is not whole; "
        "use sequence_length 1024 or 1040, or another context.size"),
    ),
    "heads": (
        ("gpt2", {"context": 4, "tensor": 2, "context_settings": ULYSSES}),
        ("parallel.context.size: 12 heads / (context 4 x tensor 2) = 12 / 8 = 1.5 is not whole: ulysses gives every rank whole heads; "
        "use context.size 1 or 2 or 3 or 6, or method ring or all-gather"),
    ),
    "key-value heads": (
        ("llama-3-8b", {"context": 16, "context_settings": ULYSSES}),
        ("parallel.context.size: 8 key-value heads / (context 16 x tensor 1) = 8 / 16 = 0.5 is not whole: ulysses gives every rank whole "
        "heads; use context.size 1 or 2 or 4 or 8, or method ring or all-gather"),
    ),
    "images": (("resnet50", {"context": 2, "sequence_length": 1}), "has no sequences whose tokens 2 ranks could share"),
    "a pooled token": (("vit-base", {"context": 2, "sequence_length": 197}), "whose head needs one token of the whole sample"),
    "eager attention": (
        ("gpt2", {"context": 2, "attention": "eager"}),
        ("not supported yet: ring with eager attention, which stores no log-sum-exp of its rows for merging blocks; "
        "use a fused training.attention such as flash2, or context.method ulysses, where every rank sees whole samples"),
    ),
    "ALiBi": (("mpt-7b", {"context": 2}), "not supported yet: ring with ALiBi"),
    "a window": (
        ("mistral-7b", {"context": 2, "sequence_length": 8192, "context_settings": {"method": "all-gather"}}),
        ("parallel.context.method: not supported yet: all-gather with a sliding window of 4096 of 8192 tokens, whose blocks are uneven; "
        "use context.method ulysses, where every rank sees whole samples"),
    ),
    "no strategy": (
        ("gpt2", {"context": 2, "data_settings": {"strategy": "none"}}),
        "parallel.data.strategy: 2 replicas of the parameters (data 1 x context 2) need a strategy",
    ),
    "one process": (
        ("gpt2", {"context": 2, "data_settings": {"strategy": "torch-data-parallel"}}),
        "torch-data-parallel cannot be combined with tensor, context or pipeline parallelism; use ddp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused_with_the_arithmetic(name):
    (model, settings), text = REFUSED[name]
    found = refusal(model, **settings)
    assert any(text in line for line in found), found


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("mistral-7b", {"sequence_length": 4096}),
        ("mistral-7b", {"sequence_length": 8192, "context_settings": ULYSSES}),
        ("mpt-7b", {"context_settings": ULYSSES}),
        ("gpt2", {"attention": "eager", "context_settings": ULYSSES}),
        ("bert-base", {"sequence_length": 510}),
        ("deepseek-v2-lite", {}),
        ("mixtral-8x7b", {}),
    ],
)
def test_what_can_be_split(model, settings):
    run = job(model_of(model), **{"context": 2, "sequence_length": 1024, "attention": "flash2", **settings})
    assert run.makespan > 0
    assert moved(run)
