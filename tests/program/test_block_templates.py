"""What equal blocks add to a pass is written once and repeated: the same items as if every block were written."""

from collections import Counter

import pytest

from parsim.program.stage_passes import StagePasses
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of
from parsim.scenario.load import load

GPT = {"base": "gpt3-1.3b", "layers": 6}
LLAMA = {"base": "llama-3-8b", "layers": 6}
JOBS = {
    "ddp": (GPT, {"data": {"strategy": "ddp"}}, {}),
    "sequence parallel": (GPT, {"tensor": {"size": 4, "sequence_parallel": True, "overlap": "backward"}}, {"recompute": "full"}),
    "selective": (GPT, {"tensor": {"size": 2, "overlap": "none"}}, {"recompute": {"selective": ["attention"]}}),
    "split backward": (
        GPT | {"layers": 12},
        {"tensor": {"size": 2, "sequence_parallel": True}, "pipeline": {"size": 2, "schedule": "zb-h1"}},
        {"recompute": "full"},
    ),
    "interleaved": (GPT | {"layers": 12}, {"pipeline": {"size": 2, "schedule": "interleaved", "virtual_stages": 2}}, {}),
    "zero1": (LLAMA, {"data": {"strategy": "zero1", "overlap_gather": True, "bucket": "20M elements"}}, {}),
    "zero2": (LLAMA, {"data": {"strategy": "zero2", "bucket": "70M elements"}}, {}),
    "zero3": (LLAMA, {"data": {"strategy": "zero3", "prefetch": 2}}, {"recompute": {"every": 2}, "offload": {"activations": "cpu"}}),
    "fsdp": (LLAMA, {"data": {"strategy": "fsdp", "limit_gathers": 3}}, {"recompute": "full"}),
    "context": (LLAMA, {"context": {"size": 4, "method": "ring"}, "data": {"strategy": "fsdp"}}, {}),
    "lora": (LLAMA, {"data": {"strategy": "ddp"}}, {"finetune": {"method": "lora", "rank": 8}, "recompute": "full"}),
    "frozen": (LLAMA, {"data": {"strategy": "fsdp"}}, {"finetune": {"method": "freeze", "freeze": {"layers": 3}}}),
    "experts": ({"base": "mixtral-8x7b", "layers": 4, "experts": {"count": 4}}, {"tensor": {"size": 2}}, {"recompute": "full"}),
    "mean length": (GPT, {"data": {"strategy": "ddp"}}, {"mean_sequence_length": 300}),
    "smaller last": (GPT, {"data": {"strategy": "ddp"}}, {"micro_batch": 3, "partial_micro_batch": True}),
    "convolutions": ("resnet50", {"data": {"strategy": "ddp"}}, {"recompute": {"every": 2}}),
}


class Forgetful(dict):
    """Nothing is repeated."""

    def get(self, _, default=None):
        return default


def planned(model, parallel, training):
    sequences = {} if model == "resnet50" else {"sequence_length": 512}
    training = {"micro_batch": 1, "global_batch": 64, "precision": "bf16"} | sequences | training
    tree = {"model": model, "training": training, "parallel": parallel, "cluster": {"topology": "dgx-a100-80gb"}}
    built = build(load(tree))
    clock = clock_of(built)
    return plan_of(built, clock), clock


def passes_in_order(plan, passes, p):
    """Every pass of one rank's step, as the schedule has them."""
    yield passes.begin()
    counts = Counter()
    for slot in plan.slots[p]:
        counts[of := ("W" if slot.kind in "BW" else slot.kind, slot.stage)] += 1
        last = counts[of] == plan.training.micro_batches
        yield passes.template(slot.kind, slot.stage, counts[of] == 1, last, plan.partial(slot.micro_batch))
    yield passes.end()


@pytest.mark.parametrize("job", JOBS)
def test_repeated_blocks_are_what_writing_them_gives(job):
    """Names, order, durations, work, transfers, needs, effects and the numbers of tensors: to the last bit."""
    plan, clock = planned(*JOBS[job])
    assert job != "smaller last" or plan.training.last_micro_batch
    for p in range(plan.mesh.size("pipeline")):
        templates, forgetful = {}, Forgetful()
        repeated, written = StagePasses(plan, p, "", clock, templates), StagePasses(plan, p, "", clock, forgetful)
        for one, other in zip(passes_in_order(plan, repeated, p), passes_in_order(plan, written, p), strict=True):
            assert one == other
        assert repeated.table.rows == written.table.rows


@pytest.mark.parametrize("job", ["ddp", "sequence parallel", "zero3", "fsdp", "lora"])
def test_more_layers_are_not_written_more_often(job):
    """What is kept for 24 layers is what is kept for 12."""
    model, parallel, training = JOBS[job]
    kept = []
    for layers in (12, 24):
        plan, clock = planned(model | {"layers": layers}, parallel, training)
        templates = {}
        list(passes_in_order(plan, StagePasses(plan, 0, "", clock, templates), 0))
        kept.append(len(templates))
    assert kept[0] == kept[1] < 60
