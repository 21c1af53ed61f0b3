"""What follows the last layer: tasks, losses, and that every parameter gets a gradient."""

from __future__ import annotations

from typing import Any

import pytest
from structures import STRUCTURES, look_up, shipped

from parsim.errors import ModelError
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Model
from parsim.model.workload import Workload


def built(name: str, loss: str = "auto", **changes: Any) -> Model:
    return build_model({"base": name, **changes}, name=name, loss=loss, base_lookup=look_up)


def losses(model: Model) -> list[tuple[str, bool]]:
    return [(operator.kind, operator.per_sample) for operator in model.blocks[-1].operators if isinstance(operator, Loss)]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("masked-lm", [("cross_entropy", False)]),
        ("pretraining", [("cross_entropy", False), ("cross_entropy", True)]),
        ("sequence-classification", [("cross_entropy", True)]),
        ("encoder", [("sum", False), ("sum", True)]),
    ],
)
def test_losses_of_bert(task: str, expected: list[tuple[str, bool]]) -> None:
    assert losses(built("bert-base", task=task)) == expected


def test_the_scenario_may_choose_the_loss() -> None:
    assert losses(built("gpt2", loss="sum")) == [("sum", False)]
    assert losses(built("resnet50", loss="mse"))[0][0] == "mse"


@pytest.mark.parametrize(("name", "loss"), [("gpt2", "hinge"), ("bert-base", "l1")])
def test_an_unknown_loss_is_refused(name: str, loss: str) -> None:
    with pytest.raises(ModelError, match=loss):
        built(name, loss=loss)


def test_a_bare_encoder_has_no_classes_for_cross_entropy() -> None:
    with pytest.raises(ModelError, match="encoder"):
        built("bert-base", task="encoder", loss="cross_entropy")


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("attention", ["flash2", "eager"])
def test_every_parameter_gets_a_gradient(name: str, attention: str) -> None:
    model = shipped(name)
    at = Workload(2, int(str(model.facts.get("sequence_length", 32))) if model.sequence else 1, attention=attention, dropout=0.1)
    for block in dict.fromkeys(model.blocks):
        ran = {step.operator.name for step in tape(block, at, input_gradient=block is not model.blocks[0]).backward}
        assert {o.name for o in block.operators if any(not p.buffer and p.trainable for p in o.parameters())} <= ran


@pytest.mark.parametrize("task", ["encoder", "pretraining", "sequence-classification"])
def test_the_pooler_is_trained(task: str) -> None:
    steps = tape(built("bert-base", task=task).blocks[-1], Workload(2, 32)).backward
    assert ("pooler", "weight") in [(step.operator.name, step.phase) for step in steps]
