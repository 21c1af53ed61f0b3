"""Stages written as Megatron-LM writes them: lists of layers, and what such a list cannot say."""

from __future__ import annotations

import copy

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.scenario.stage_layout import is_layout, stage_layout

# megatron/core/transformer/pipeline_parallel_layer_layout.py, and the comments of parse_str_to_list
LAYOUTS = [
    ("Et|(tt|)*30mL", (1, *[2] * 30, 0), 1),
    ("Et|(tt|)*30L", (1, *[2] * 30, 0), 0),
    ("E t*3|(t|)*5, t | t L", (3, *[1] * 5, 1, 1), 0),
    ("E|(tt|)*2L", (0, 2, 2, 0), 0),
    ("Etttt|tttt|tttmmL", (4, 4, 3), 2),
    ("Et(|tt)*2|L", (1, 2, 2, 0), 0),
]

SCENARIO = {
    "model": "gpt2",
    "cluster": "dgx-a100",
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 8},
    "parallel": {"pipeline": {"size": 4}},
}


def job(model=None, **pipeline):
    tree = copy.deepcopy(SCENARIO)
    tree["parallel"]["pipeline"] |= pipeline
    return tree | ({"model": model} if model else {})


@pytest.mark.parametrize(("text", "layers", "modules"), LAYOUTS)
def test_layers_of_every_stage(text, layers, modules):
    assert is_layout(text)
    assert stage_layout(text) == (layers, modules)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Et|dd|L", "'d' where a layout has"),
        ("tt|tL", "embedding"),
        ("Et|t", "head"),
        ("Et|Et|L", "embedding"),
        ("Lt|tE", "embedding"),
        ("Et|tL|t", "head"),
        ("|Et|L", "before the embedding"),
        ("EtL|", "behind the head"),
        ("Et|ttm|tL", "another stage than the head"),
        ("Et|mtL", "come before"),
        ("Et||tL", "stage 1 holds nothing"),
        ("Et|(tt|)*3", "head"),
        ("E(t|)*99999999L", "letters"),
        ("E((t|)*999|)*999L", "'('"),
    ],
)
def test_what_is_no_list(text, problem):
    with pytest.raises(ValueError, match=r".") as caught:
        stage_layout(text)
    assert problem in str(caught.value)
    with pytest.raises(ParsimError) as refused:
        load(job(split=text))
    assert any(finding.path == "parallel.pipeline.split" and problem in finding.message for finding in refused.value.findings)


def test_the_text_is_its_list():
    text, plain = (simulate(load(job(split=split))) for split in ("Ett|ttt|(t|)*0tttt|tttL", [2, 3, 4, 3]))
    assert text.step_time == plain.step_time
    assert load(job(split="Ett|ttt|tttt|tttL")).settings.parallel.pipeline.split == "Ett|ttt|tttt|tttL"


def test_virtual_stages_stand_in_the_order_of_a_micro_batch():
    interleaved = {"schedule": "interleaved", "virtual_stages": 2}
    text, plain = (simulate(load(job(split=split, **interleaved))) for split in ("Ett|(t|)*3tt|(tt|)*2tL", [2, 1, 1, 1, 2, 2, 2, 1]))
    assert text.step_time == plain.step_time


@pytest.mark.parametrize(("text", "problem"), [("Ett|tt|tL", "3 entries for 4 stages"), ("Ett|tt|t|tL", "the model has 12")])
def test_a_layout_of_another_model(text, problem):
    with pytest.raises(ParsimError) as caught:
        simulate(load(job(split=text)))
    assert problem in str(caught.value)


def test_prediction_modules_are_counted():
    with pytest.raises(ParsimError) as caught:
        simulate(load(job(split="Ettt|ttt|ttt|tttmL")))
    assert "the layout has 1 prediction modules (m), the model 0" in str(caught.value)


@pytest.mark.parametrize(
    ("names", "layers"), [(("embedding", "loss"), [3, 4, 4, 3]), (("embedding",), [3, 4, 4, 3]), (("loss",), [4, 4, 4, 2])]
)
def test_embedding_and_loss_count_as_layers(names, layers):
    """(14 + 2) / 4 = 4 places on every stage (Megatron-LM, get_num_layers_to_build); else the earliest stages hold more."""
    model = {"base": "gpt2", "layers": 14}
    even, plain = (simulate(load(job(model, **one))) for one in ({"account_for": list(names)}, {"split": layers}))
    assert even.step_time == plain.step_time


def test_embedding_and_loss_alone_on_their_stages():
    """Two layers on four stages, as 126 layers of Llama 3.1 405B on 128."""
    model = {"base": "gpt2", "layers": 2}
    even, plain = (simulate(load(job(model, **one))) for one in ({"account_for": ["embedding", "loss"]}, {"split": [0, 1, 1, 0]}))
    assert even.step_time == plain.step_time
    with pytest.raises(ParsimError, match="1 layers and embedding and loss cannot fill"):
        simulate(load(job({"base": "gpt2", "layers": 1}, account_for=["embedding", "loss"])))


@pytest.mark.parametrize(
    ("pipeline", "problem"),
    [
        ({"account_for": ["loss"], "split": "balanced"}, "where layers are split evenly"),
        ({"account_for": ["loss"], "size": 1}, "one stage"),
        ({"account_for": ["loss", "loss"]}, "at most"),
        ({"account_for": ["head"]}, "not one of embedding, loss"),
    ],
)
def test_nothing_counts_where_nothing_is_split_evenly(pipeline, problem):
    with pytest.raises(ParsimError) as caught:
        simulate(load(job(**pipeline)))
    assert problem in str(caught.value)


def test_experts_one_after_the_other_are_refused():
    tree = job() | {"parallel": {"expert": {"grouped_gemm": False}}}
    with pytest.raises(ParsimError) as caught:
        load(tree)
    assert "not supported yet" in str(caught.value)
