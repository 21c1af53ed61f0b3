"""Input and weight gradients in slots of their own (zero-bubble schedules, tables) with sharded states: nothing is freed that is not there.

A unit's gathered weights and whole gradients live from one slot into another, passes that repeat are written once, and a reduction
may still run when the next micro-batch begins: each strategy has to keep these apart, whatever is trained.
"""

from __future__ import annotations

from itertools import cycle, islice, product

import pytest
from jobs import job, tree
from test_ledger_laws import assert_balanced

from parsim.model.catalogue import build_model
from parsim.model.finetune import Finetune, finetuned
from parsim.parallel.schedules import V_SHAPED
from parsim.parallel.schedules.slot import Slot
from parsim.parallel.training import Offload, Recompute
from parsim.program.check import check

MICRO_BATCHES = 6
RECIPES = {
    "everything": None,
    "lora": Finetune(rank=8),
    "whole base": Finetune(rank=8, base_sharded=False),
    "flat gradients": Finetune(rank=8, flat_gradients=True),
    "one target": Finetune(rank=8, targets=("query",)),
    "qlora": Finetune("qlora", rank=8, base="nf4-dq"),
    "freeze": Finetune("freeze"),
}
EVERY = 3
"""of so many turns a recipe takes one: seven recipes take each of them twice"""
WIRES = ({"data": 1e-6, "shard": 1e-6, "replica": 1e-6}, {"data": 1e-3, "shard": 1e-3, "replica": 1e-3})
"""messages that are over before the next slot, and messages that are not"""


def table(order):
    """Two ranks that fill their pipeline and drain it; `order` gives the letters and offsets between, per micro-batch."""
    rows = []
    for stage, warm in ((0, 2), (1, 1)):
        ahead = [Slot("F", stage, m) for m in range(warm)]
        steady = []
        for m in range(MICRO_BATCHES):
            steady += [Slot(letter, stage, m - late) for letter, late in order(m)]
            steady += [Slot("F", stage, m + warm)] if m + warm < MICRO_BATCHES else []
        seen = {(slot.kind, slot.micro_batch) for slot in steady}
        rest = [m for m in range(MICRO_BATCHES) if ("I", m) in seen and ("W", m) not in seen]
        rows.append((*ahead, *(slot for slot in steady if slot.micro_batch >= 0), *(Slot("W", stage, m) for m in rest)))
    return tuple(rows)


SCHEDULES = {
    "zb-h1": {"schedule": "zb-h1"},
    "zb-h2": {"schedule": "zb-h2"},
    "zb-v": {"schedule": "zb-v", "virtual_stages": 2},
    "v-half": {"schedule": "v-half", "virtual_stages": 2},
    "v-min": {"schedule": "v-min", "virtual_stages": 2},
    "interleaved-zb": {"schedule": "interleaved-zb", "virtual_stages": 2},
    "late weights": {"schedule": "custom", "slots": table(lambda m: [("I", 0), ("W", 2)])},
    "both kinds": {"schedule": "custom", "slots": table(lambda m: [("B", 0)] if m % 2 else [("I", 0), ("W", 0)])},
    "1f1b": {"schedule": "1f1b"},
}
HOSTED = Offload("none", "cpu", "cpu", "none")
ALL_HOSTED = Offload("cpu", "cpu", "cpu", "none")
FULL = {"recompute": Recompute("full")}
PLACES = (
    {},
    FULL,
    FULL | {"offload": Offload(activations="cpu")},
    {"recompute": Recompute("selective", selective=("attention",))},
    {"offload": HOSTED},
    FULL | {"offload": ALL_HOSTED},
)


def small(recipe, tied):
    changes = {"hidden": 32, "heads": 2, "layers": 4, "vocabulary": 100, "tied_embeddings": tied}
    model = build_model({"base": "gpt2", **changes}, name="small", base_lookup=tree)
    return model if recipe is None else finetuned(model, recipe)


def fit_together(strategy, accumulate, places):
    """Whether a strategy knows the rule of accumulation and what is offloaded."""
    offload = places.get("offload", Offload())
    if offload.parameters != "none":
        return strategy == "fsdp" and accumulate == "no_sync"
    if offload.optimizer != "none":
        return strategy == "zero1"  # DeepSpeed's pipeline engine refuses the other stages
    return accumulate == "every" or strategy not in ("zero2", "zero3")


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_memory_is_balanced(recipe, strategy):
    """Every schedule; accumulation, recomputation, offloading and speeds of wires are taken in turns, other ones with each recipe."""
    turns = [turn for turn in product(("every", "no_sync"), PLACES, WIRES) if fit_together(strategy, *turn[:2])]
    begin = list(RECIPES).index(recipe)
    for schedule, (accumulate, places, wires) in islice(zip(cycle(SCHEDULES), turns, strict=False), begin % EVERY, None, EVERY):
        chosen = {"strategy": strategy, "accumulate": accumulate} | ({"shard_size": 2} if strategy == "hsdp" else {})
        run = job(
            small(RECIPES[recipe], tied=schedule not in V_SHAPED), finetune=RECIPES[recipe], pipeline=2, data=4,
            micro_batches=MICRO_BATCHES, sequence_length=16, pipeline_settings=SCHEDULES[schedule], data_settings=chosen, wires=wires,
            one_per_stage=True, runtime={"profile": "pytorch-2"}, **places,
        )  # fmt: skip
        assert_balanced(run)
        assert check(run.program) == []
