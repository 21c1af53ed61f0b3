"""The tape: conservation laws on random blocks under both orders of weight steps, and exact tapes of small ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parsim.errors import ModelError
from parsim.kernel import Gemm, Memory
from parsim.model.attention import AttentionCore, Rotary
from parsim.model.elementwise import Activation, Dropout, Flatten, GatedActivation, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.mixture import mixture_of_experts
from parsim.model.model import Block, Operator
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.tape import Step, Tape
from parsim.model.workload import Workload

WIDTH = 8
BOUNDARY = {"input", "output", "grad_output", "grad_input"}


def replay(entry: Tape, steps: tuple[Step, ...], alive: dict[str, int]) -> int:
    """Plays steps on the tensors alive, checking every move; returns the peak of all bytes."""
    peak = sum(alive.values())
    for step in steps:
        for name in step.allocates:
            assert name not in alive, f"{step.operator.name} {step.phase} allocates {name} twice"
            alive[name] = entry.tensors[name].bytes
        peak = max(peak, sum(alive.values()))
        for name in step.frees:
            assert name in alive, f"{step.operator.name} {step.phase} frees {name}, which is not alive"
            assert name not in ("input", "output", "grad_input")
            del alive[name]
    return peak


def orders(entry: Tape) -> list[tuple[Step, ...]]:
    """Backward as it stands, and with all weight steps postponed."""
    inputs = tuple(step for step in entry.backward if step.phase != "weight")
    weights = tuple(step for step in entry.backward if step.phase == "weight")
    return [entry.backward, inputs + weights]


def storages(block: Block, at: Workload) -> dict[str, str]:
    """Tensor -> memory behind it, computed here a second time."""
    found = {"input": "input"}
    for operator in block.operators:
        found[operator.output] = operator.output if operator.work(at).output else found[operator.inputs[0]]
    last = found["output"]
    return {name: "output" if root == last else root for name, root in found.items()}


def check(block: Block, at: Workload, drop: tuple[str, ...] = (), input_gradient: bool = True) -> Tape:
    """All laws at once."""
    entry = tape(block, at, drop, input_gradient)
    for order in orders(entry):
        alive = {"input": entry.tensors["input"].bytes}
        replay(entry, entry.forward, alive)
        assert set(alive) == {"input", "output", *entry.saved, *entry.held}
        if "grad_output" in entry.tensors:
            alive["grad_output"] = entry.tensors["grad_output"].bytes
        replay(entry, order, alive)
        rest = set(alive) - BOUNDARY
        assert rest <= set(entry.held), f"left over: {rest}"
        assert "grad_output" not in alive
        assert ("grad_input" in alive) == ("grad_input" in entry.tensors)
    check_uses(entry, block, at, drop)
    alive = {"input": entry.tensors["input"].bytes}
    replay(entry, entry.forward_unsaved, alive)
    assert set(alive) == {"input", "output"}
    assert [step.operator for step in entry.forward] == [step.operator for step in entry.forward_unsaved] == list(block.operators)
    return entry


def check_uses(entry: Tape, block: Block, at: Workload, drop: tuple[str, ...]) -> None:
    """Whatever an operator saves is alive when its backward runs, and boundary uses end where the tape says."""
    memory = storages(block, at)
    for order in orders(entry):
        alive = dict.fromkeys((*entry.saved, *entry.held), 0)
        ends = {"input": entry.input_last_backward, "output": entry.output_last_backward}
        place = {id(step): index for index, step in enumerate(entry.backward)}
        position = {id(step): index for index, step in enumerate(order)}
        for step in order:
            for name in [memory[read] for read in step.operator.inputs] if step.phase == "recompute" else []:
                if name in ends:
                    assert position[id(entry.backward[ends[name]])] > position[id(step)]
                else:
                    assert name in alive, f"{name} is gone when {step.operator.name} runs again"
            alive.update(dict.fromkeys(step.allocates, 0))
            for save in step.operator.work(at).saves:
                phase = save.until if step.operator.work(at).backward_weight else "input"
                if save.until == "pass" or phase != step.phase or not step.kernels:
                    continue
                name = memory.get(save.tensor, save.tensor)
                if name in ends:
                    end = entry.backward[ends[name]]
                    assert ends[name] >= 0
                    assert position[id(end)] >= position[id(step)], f"{name} ends at {place[id(end)]}, used by {step.operator.name}"
                else:
                    assert name in alive, f"{name} is gone at {step.operator.name} {step.phase} (drop {drop})"
            for name in step.frees:
                alive.pop(name, None)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Random straight-line programs over tensors of one width."""
    names, operators = ["input"], []
    for index in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["linear", "norm", "relu", "relu_", "gelu", "dropout", "add", "add_", "view", "frozen", "rms"]))
        source, output, name = draw(st.sampled_from(names[-3:])), f"t{index}", f"{kind}{index}"
        word = draw(st.sampled_from(["", "mlp", "norm", "attention"]))
        made: dict[str, Operator] = {
            "linear": Linear(name, (source,), output, WIDTH, (WIDTH,), selective=word),
            "frozen": Linear(name, (source,), output, WIDTH, (WIDTH,), selective=word, trainable=False),
            "norm": LayerNorm(name, (source,), output, WIDTH, selective=word),
            "rms": RMSNorm(name, (source,), output, WIDTH, selective=word),
            "relu": Activation(name, (source,), output, WIDTH, "relu", selective=word),
            "relu_": Activation(name, (source,), output, WIDTH, "relu", inplace=True),
            "gelu": Activation(name, (source,), output, WIDTH, "gelu-new", selective=word),
            "dropout": Dropout(name, (source,), output, WIDTH, selective=word),
            "view": Flatten(name, (source,), output),
        }
        if kind in ("add", "add_"):
            other = draw(st.sampled_from(names[-4:]))
            operators.append(ResidualAdd(name, (source, other), output, WIDTH, inplace=kind == "add_"))
        else:
            operators.append(made[kind])
        names.append(output)
    return renamed(Block("layer", tuple(operators)))


def renamed(block: Block) -> Block:
    last = block.operators[-1]
    return Block(block.kind, (*block.operators[:-1], replace(last, output="output")))  # type: ignore[type-var]


@settings(max_examples=400, deadline=None)
@given(
    blocks(),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
    st.lists(st.sampled_from(["mlp", "norm", "attention"]), unique=True) | st.just(["matmuls"]),
    st.booleans(),
)
def test_laws(block: Block, dropout: float, fused: bool, drop: list[str], input_gradient: bool) -> None:
    at = Workload(2, 4, dropout=dropout, fused=fused)
    assume(storages(block, at)["input"] != "output")  # a view of the input is an error
    check(block, at, tuple(drop), input_gradient)


@settings(max_examples=100, deadline=None)
@given(blocks(), st.booleans())
def test_recomputation_only_adds_steps(block: Block, fused: bool) -> None:
    at = Workload(2, 4, fused=fused)
    assume(storages(block, at)["input"] != "output")
    plain, dropped = tape(block, at), tape(block, at, ("mlp", "norm", "attention"))
    left = [(s.operator.name, s.phase, s.kernels) for s in dropped.backward if s.phase != "recompute" and s.kernels]
    assert left == [(s.operator.name, s.phase, s.kernels) for s in plain.backward if s.kernels]


def layer() -> Block:
    h, heads = 64, 4
    rest: tuple[Operator, ...] = (
        LayerNorm("norm2", ("middle",), "n2", h),
        Linear("up", ("n2",), "gate_up", h, (128, 128), False, "column", selective="mlp"),
        GatedActivation("act", ("gate_up",), "product", 128),
        Linear("down", ("product",), "fed", 128, (h,), False, "row"),
        ResidualAdd("add2", ("fed", "middle"), "output", h),
    )
    return Block(
        "layer",
        (
            LayerNorm("norm1", ("input",), "n1", h),
            Linear("qkv", ("n1",), "qkv", h, (h, h, h), split="column"),
            Rotary("rotary", ("qkv",), "rotated", heads, heads, 16),
            AttentionCore("core", ("rotated",), "context", heads, heads, 16),
            Linear("proj", ("context",), "attended", h, (h,), split="row"),
            ResidualAdd("add1", ("attended", "input"), "middle", h),
            *rest,
        ),
    )


@pytest.mark.parametrize("drop", [(), ("attention",), ("mlp",), ("norm",), ("attention", "mlp", "norm"), ("matmuls",)])
@pytest.mark.parametrize("attention", ["eager", "flash2"])
@pytest.mark.parametrize("fused", [False, True])
def test_laws_of_a_transformer_layer(drop: tuple[str, ...], attention: str, fused: bool) -> None:
    for tensor, sp in ((1, False), (2, False), (2, True)):
        check(layer(), Workload(2, 32, tensor, sp, attention=attention, fused=fused), drop)


def test_laws_of_a_mixture() -> None:
    operators = mixture_of_experts("moe", "input", "output", 64, 32, 8, 2, shared_width=48, shared_gate=True)
    check(Block("layer", operators), Workload(2, 32))
    check(Block("layer", operators), Workload(2, 32, 2, True, expert=4, expert_imbalance=1.5, fused=True), ("mlp",))


def test_residual_gradient_is_not_copied() -> None:
    """A pre-norm branch: the residual add passes the gradient on, the norm's part is added to it in one buffer."""
    block = Block(
        "layer",
        (
            LayerNorm("norm", ("input",), "n", WIDTH),
            Linear("linear", ("n",), "y", WIDTH, (WIDTH,), bias=False),
            ResidualAdd("add", ("y", "input"), "output", WIDTH),
        ),
    )
    at = Workload(1, 4)
    size = 4 * WIDTH * 2
    entry = check(block, at)
    assert [(s.operator.name, s.phase, s.allocates, s.frees) for s in entry.backward] == [
        ("linear", "input", ("grad:n",), ()),
        ("linear", "weight", (), ("n",)),
        ("norm", "input", ("grad_input",), ("grad:n", "norm.statistics")),
        ("norm", "weight", (), ("grad_output",)),
    ]
    assert entry.backward[2].kernels[-1] == Memory(3 * size)
    assert (entry.input_saved, entry.input_last_forward, entry.input_last_backward) == (True, 2, 2)
    assert not entry.output_saved


def test_weight_gradient_may_be_postponed() -> None:
    """What a product keeps for its weight outlives its input step, and the gradient of its output too."""
    block = Block("layer", (Linear("a", ("input",), "x", 8, (8,)), Linear("b", ("x",), "output", 8, (8,))))
    entry = check(block, Workload(1, 4))
    assert [(s.operator.name, s.phase, s.frees) for s in entry.backward] == [
        ("b", "input", ()),
        ("b", "weight", ("grad_output", "x")),
        ("a", "input", ()),
        ("a", "weight", ("grad:x",)),
    ]
    assert entry.input_last_backward == 3


def test_relu_output_is_shared_with_the_next_linear() -> None:
    block = Block(
        "layer",
        (
            Linear("a", ("input",), "x", 8, (8,)),
            Activation("relu", ("x",), "r", 8, "relu"),
            Linear("b", ("r",), "output", 8, (8,)),
        ),
    )
    assert check(block, Workload(1, 4)).saved == ("r",)


def test_first_block_has_no_input_gradient() -> None:
    block = Block("layer", (Linear("a", ("input",), "output", 8, (8,)),))
    entry = check(block, Workload(1, 4), input_gradient=False)
    assert [step.phase for step in entry.backward] == ["weight"]
    assert "grad_input" not in entry.tensors


def test_frozen_weights_keep_nothing() -> None:
    block = Block("layer", (Linear("a", ("input",), "output", 8, (8,), trainable=False),))
    entry = check(block, Workload(1, 4))
    assert [step.phase for step in entry.backward] == ["input"]
    assert not entry.input_saved


def test_selective_attention_recomputes_the_core() -> None:
    entry = check(layer(), Workload(2, 32, attention="eager"), ("attention",))
    plain = tape(layer(), Workload(2, 32, attention="eager"))
    again = [step for step in entry.backward if step.phase == "recompute"]
    assert [step.operator.name for step in again] == ["core"]
    assert again[0].kernels == entry.forward[3].kernels
    assert set(plain.saved) - set(entry.saved) == {"core.softmax"}
    assert "context" in entry.saved


def test_selective_mlp_recomputes_up_and_activation() -> None:
    entry = check(layer(), Workload(2, 32), ("mlp",))
    again = [step.operator.name for step in entry.backward if step.phase == "recompute"]
    assert again == ["up", "act"]
    assert not {"gate_up", "product", "act.activated"} & set(entry.saved)


def test_selective_norm_keeps_the_stream() -> None:
    entry = check(layer(), Workload(2, 32), ("norm",))
    assert not {"n1", "n2", "norm1.statistics"} & set(entry.saved)
    assert entry.input_saved
    assert "middle" in entry.saved


def test_evaluation_keeps_nothing() -> None:
    at = Workload(2, 32, attention="eager", backward=False)
    entry = tape(layer(), at)
    assert entry.backward == ()
    assert entry.saved == entry.held == ()
    alive = {"input": entry.tensors["input"].bytes}
    replay(entry, entry.forward, alive)
    assert set(alive) == {"input", "output"}


def test_the_script_holds_the_logits_and_the_loss_gradient() -> None:
    head = Block("head", (Linear("lm_head", ("input",), "logits", 8, (100,), False, "vocab"), Loss("loss", ("logits",), "output", 100)))
    entry = check(head, Workload(2, 4))
    assert entry.held == ("logits",)
    assert entry.tensors["output"].bytes == entry.tensors["grad_output"].bytes == 4
    frees = [step.operator.name for step in entry.backward if "grad_output" in step.frees]
    assert frees == ["lm_head"]
    fused = check(head, Workload(2, 4, loss_kernel="fused"))
    assert fused.held == ()
    chunked = check(head, Workload(2, 4, loss_chunks=4))
    assert chunked.tensors["logits"].bytes * 4 == entry.tensors["logits"].bytes


def test_flops_are_those_of_the_operators() -> None:
    at = Workload(2, 32)
    entry = tape(layer(), at)

    def flop(steps: tuple[Step, ...], phase: str) -> float:
        return sum(kernel.flop for step in steps if step.phase == phase for kernel in step.kernels if isinstance(kernel, Gemm))

    tokens, h, f = 64, 64, 128
    linear = 2 * tokens * (4 * h * h + 3 * h * f)
    assert flop(entry.forward, "forward") == flop(entry.backward, "input") == flop(entry.backward, "weight") == linear


def test_tapes_are_cached_by_identity() -> None:
    block, twin = layer(), layer()
    assert tape(block, Workload(1, 8)) is tape(block, Workload(1, 8))
    assert tape(block, Workload(1, 8)) is not tape(twin, Workload(1, 8))


def test_errors() -> None:
    with pytest.raises(ModelError, match="reads nothing, which no operator before it writes"):
        tape(Block("layer", (Flatten("view", ("nothing",), "output"),)), Workload(1))
    with pytest.raises(ModelError, match="is a view of its input"):
        tape(Block("layer", (Flatten("view", ("input",), "output"),)), Workload(1))
    with pytest.raises(ModelError, match="writes the tensor output"):
        tape(Block("layer", (Linear("a", ("input",), "x", 8, (8,)),)), Workload(1))
