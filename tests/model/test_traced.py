"""Models that a trace wrote: against the same networks written by layers, and what is refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import ModelError
from parsim.kernel import Gemm, Memory
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.traced_operators import Product, Size, TracedKernel
from parsim.model.workload import Workload

MLP = {
    "input": {"shape": [64], "dtype": "fp32"},
    "blocks": [
        {"operators": [{"op": "linear", "name": "a", "of": ["input"], "in": 64, "out": 32}, {"op": "activation", "name": "r", "of": ["a"],
                                                                                              "kind": "relu", "features": 32}]},
        {"times": 2, "operators": [{"op": "linear", "name": "b", "of": ["input"], "in": 32, "out": 32}]},
        {"operators": [{"op": "linear", "name": "c", "of": ["input"], "in": 32, "out": 10},
                       {"op": "loss", "name": "loss", "of": ["c"], "kind": "sum", "classes": 10, "upcast": False}]},
    ],
}  # fmt: skip
PLAIN = {"input": {"shape": [64]}, "layers": [{"linear": 32}, "relu", {"repeat": {"times": 2, "layers": [{"linear": 32}]}}, {"linear": 10}]}
AT = Workload(3, element=4, dtype="fp32", weight_element=4)


def built(tree: dict) -> Model:
    return build_model(tree, name="m", base_lookup=lambda _: {})


def test_the_same_network_by_layers_is_the_same_program() -> None:
    traced, plain = built(MLP), built(PLAIN)
    assert parameter_count(traced) == parameter_count(plain) == 64 * 32 + 32 + 2 * (32 * 32 + 32) + 32 * 10 + 10
    assert traced.blocks[1] is traced.blocks[2]
    for index, (mine, theirs) in enumerate(zip(traced.blocks, plain.blocks, strict=True)):
        ours, others = tape(mine, AT, (), index > 0), tape(theirs, AT, (), index > 0)
        assert [step.kernels for step in ours.forward] == [step.kernels for step in others.forward]
        assert [step.kernels for step in ours.backward] == [step.kernels for step in others.backward]
        assert sum(ours.tensors[name].bytes for name in ours.saved) == sum(others.tensors[name].bytes for name in others.saved)


def test_a_product_of_activations() -> None:
    """Scores of 4 heads on 8 positions, heads 16 wide: 2 x 8 x 8 x 16 x 4 FLOP a sample, twice that backward; both inputs are kept."""
    work = Product("s", ("q", "k"), "s", 8, 8, 16, 4).work(AT)
    assert sum(kernel.flop for kernel in work.forward) == 3 * 4 * 2 * 8 * 8 * 16
    assert sum(kernel.flop for kernel in work.backward_input) == 2 * 3 * 4 * 2 * 8 * 8 * 16
    assert [save.bytes for save in work.saves] == [3 * 4 * 8 * 16 * 4] * 2
    alone = Product("s", ("k",), "s", 8, 4, 16, left=False).work(AT)
    assert alone.backward_input == (Gemm(16, 4, 8, 3, "fp32", 4, layout="NT"),)
    assert alone.saves == ()


def test_a_memory_bound_kernel() -> None:
    """x * w + nothing: reads x, writes the result; backward reads the gradient and x, writes the gradients of x and w."""
    kernel = TracedKernel("m", ("x",), "m", (Size(100),), Size(100), ("x",), tensors=(("w", (10,)),))
    work = kernel.work(AT)
    assert work.forward == (Memory(3 * 800 + 40),)
    assert work.backward_input == (Memory(3 * 400 + 3 * 400 + 3 * 400 + 40),)
    assert [parameter.count for parameter in kernel.parameters()] == [10]
    shared = TracedKernel("p", ("x",), "p", (Size(100),), Size(100), passes=True, also=Size(once=50)).work(AT)
    assert (shared.forward, shared.backward_input, shared.input_gradients) == ((Memory(2400 + 200),), (), (0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "lineer"}, "an operator is a mapping with op"),
        ({"of": ["nowhere"]}, "needs a list of tensors"),
        ({"out": 0}, "whole number of at least 1"),
        ({"width": 3}, "unknown setting"),
        ({"name": "output"}, "needs a name"),
        ({"of": ["input", "input"]}, "needs one tensor"),
        ({"rows": True}, "whole number"),
    ],
)
def test_what_does_not_fit_is_said(change: dict, message: str) -> None:
    first = {**MLP["blocks"][0]["operators"][0], **change}
    tree = {**MLP, "blocks": [{"operators": [first]}, *MLP["blocks"][1:]]}
    with pytest.raises(ModelError, match=message):
        built(tree)


def test_other_parameters_than_stated_are_refused() -> None:
    with pytest.raises(ModelError, match=r"have 4,522 parameters, the file states 5"):
        built({**MLP, "parameters": 5})


KERNEL = {"op": "kernel", "name": "k", "of": ["c"], "reads": [10], "writes": "40B", "keeps": ["c"], "also": ["3 once", 2]}
KERNEL["parameters"] = {"k.g": [10]}
JUNK = [None, "", "x", "7B", -1, 0, 1.5, True, 10**20, [], [[]], [1, 2], {}, {"a": 1}, {"a": "b"}, "input", float("nan")]


def places(tree: object, path: tuple = ()) -> list[tuple]:
    """The path of every value."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


WHOLE = deepcopy(MLP)
WHOLE["blocks"][2]["operators"].insert(1, KERNEL)


@given(st.sampled_from(places(WHOLE)), st.sampled_from(JUNK))
def test_whatever_stands_in_a_file_is_a_model_or_an_error_of_the_file(place: tuple, junk: object) -> None:
    tree = deepcopy(WHOLE)
    at = tree
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = junk
    try:
        model = built(tree)
        for block in model.blocks:
            tape(block, AT)
    except ModelError:
        pass
