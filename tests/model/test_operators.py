"""Operators one by one: parameters, operations of the three passes, what is saved, sharding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.kernel import Attention, Gemm, Kernel
from parsim.model.attention import AttentionCore, QKNorm, Rotary
from parsim.model.convolution import BatchNorm, Conv2d, Pool
from parsim.model.elementwise import ACTIVATIONS, Activation, Dropout, GatedActivation
from parsim.model.linear import Embedding, Linear
from parsim.model.loss import Loss
from parsim.model.mixture import GroupedLinear, mixture_of_experts
from parsim.model.model import Operator, Work
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.workload import Workload

SIXTEEN: dict[str, Any] = {"element": 2, "dtype": "bf16"}
SINGLE: dict[str, Any] = {"element": 4, "dtype": "fp32"}


def flop(kernels: tuple[Kernel, ...]) -> float:
    return sum(kernel.flop for kernel in kernels if isinstance(kernel, Gemm | Attention))


def saves(work: Work) -> dict[str, int]:
    return {save.tensor: save.bytes for save in work.saves}


def count(operator: Operator) -> int:
    return sum(parameter.count for parameter in operator.parameters() if not parameter.buffer)


def test_linear_on_rows() -> None:
    """2 T M N operations in each pass; the input is kept until the weight's gradient."""
    linear = Linear("l", ("x",), "y", 1024, (2048,))
    work = linear.work(Workload(10240, **SINGLE))
    once = 2 * 10240 * 1024 * 2048
    assert flop(work.forward) == flop(work.backward_input) == flop(work.backward_weight) == once
    assert [(save.tensor, save.bytes, save.until) for save in work.saves] == [("x", 40 * 2**20, "weight")]
    assert work.output == 80 * 2**20
    assert count(linear) == 1024 * 2048 + 2048
    assert isinstance(work.backward_weight[0], Gemm)
    assert work.backward_weight[0].weight_gradient


def test_fused_projection_has_separate_parameters() -> None:
    linear = Linear("qkv", ("x",), "qkv", 64, (64, 16, 16), (True, False, True), "column", ("q", "k", "v"))
    assert [(p.name, p.shape, p.split) for p in linear.parameters()] == [
        ("q.weight", (64, 64), 0),
        ("q.bias", (64,), 0),
        ("k.weight", (16, 64), 0),
        ("v.weight", (16, 64), 0),
        ("v.bias", (16,), 0),
    ]


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from(["column", "row", "vocab"]), st.integers(1, 3))
def test_sharded_linears_divide_the_work(t: int, sp: bool, split: Any, batch: int) -> None:
    linear = Linear("l", ("x",), "y", 64, (128,), bias=False, split=split)
    whole, part = linear.work(Workload(batch, 16)), linear.work(Workload(batch, 16, t, sp))
    for a, b in zip(whole.forward + whole.backward_input, part.forward + part.backward_input, strict=True):
        assert a.flop == t * b.flop
    rows_in = batch * 16 // (t if sp and split != "row" else 1)
    assert saves(part)["x"] == rows_in * (64 // t if split == "row" else 64) * 2
    rows_out = batch * 16 // (t if sp and split == "row" else 1)
    assert part.output == rows_out * (128 if split == "row" else 128 // t) * 2
    local = sum(parameter.local_count(t) for parameter in linear.parameters())
    assert local * t == count(linear)


def test_row_bias_is_replicated() -> None:
    weight, bias = Linear("l", ("x",), "y", 64, (128,), split="row").parameters()
    assert (weight.split, bias.split) == (1, None)


def test_fp8_keeps_one_byte_of_the_input() -> None:
    work = Linear("l", ("x",), "y", 64, (128,)).work(Workload(1, 16, dtype="fp8"))
    assert saves(work) == {"l.input_fp8": 16 * 64}


def test_frozen_linear() -> None:
    linear = Linear("l", ("x",), "y", 64, (128,), trainable=False)
    work = linear.work(Workload(1, 16))
    assert work.backward_weight == work.saves == ()
    assert not any(parameter.trainable for parameter in linear.parameters())


@pytest.mark.parametrize(("attention", "backward"), [("eager", 2.0), ("flash2", 2.5)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_operations(attention: str, backward: float, causal: bool) -> None:
    """4 b s^2 a d forward, twice backward, fused kernels recompute one product and skip the masked half."""
    b, s, a, d = 2, 64, 4, 16
    work = AttentionCore("c", ("qkv",), "o", a, a, d, causal).work(Workload(b, s, attention=attention))
    full = 4 * b * s * s * a * d
    expected = full * (s + 1) / (2 * s) if causal and attention == "flash2" else full
    assert flop(work.forward) == expected
    assert flop(work.backward_input) == backward * expected
    assert work.backward_weight == ()


@pytest.mark.parametrize(("inputs", "sizes"), [(("qkv",), (96,)), (("q", "kv"), (64, 32)), (("q", "k", "v"), (64, 16, 16))])
def test_attention_operands(inputs: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Whatever the packing, query, key and value are kept once; heads split over ranks."""
    core = AttentionCore("c", inputs, "o", 4, 1, 16)
    work = core.work(Workload(1, 32))
    assert [saves(work)[name] for name in inputs] == [32 * size * 2 for size in sizes]
    assert work.input_gradients == tuple(32 * size * 2 for size in sizes)
    assert core.work(Workload(1, 32, 2)).output * 2 == work.output
    assert core.widths(Workload(1, 32, 4)) == (16, 16, 16)


@pytest.mark.parametrize("inputs", [("qkv",), ("q", "k", "v")])
def test_expanded_keys_and_values(inputs: tuple[str, ...]) -> None:
    """repeat_kv: three tensors of all query heads are kept, shared keys or not."""
    a, d, tokens = 8, 16, 32
    work = AttentionCore("c", inputs, "o", a, 2, d, expand_kv=True).work(Workload(1, tokens))
    kept = sum(size for name, size in saves(work).items() if name in inputs or name == "c.expanded")
    assert kept == 3 * tokens * a * d * 2


@pytest.mark.parametrize(
    ("element", "dropout", "upcast", "per_score"),
    [
        (2, 0.0, False, 2),
        (2, 0.1, False, 5),
        (4, 0.0, False, 4),
        (4, 0.1, False, 9),
        (2, 0.0, True, 6),
        (2, 0.1, True, 7),
        (4, 0.0, True, 4),
    ],
)
def test_scores_kept_by_eager_attention(element: int, dropout: float, upcast: bool, per_score: int) -> None:
    """Softmax's output, with dropout its output and a mask; Llama's fp32 softmax adds 4 B and its 16-bit copy."""
    core = AttentionCore("c", ("qkv",), "o", 4, 4, 16, dropout=True, upcast_softmax=upcast)
    work = core.work(Workload(2, 32, element=element, attention="eager", dropout=dropout))
    kept = sum(size for name, size in saves(work).items() if name.startswith("c."))
    assert kept == per_score * 2 * 4 * 32 * 32


@pytest.mark.parametrize(
    ("kind", "element", "extra"),
    [("relu", 2, 0), ("tanh", 2, 0), ("gelu", 2, 1), ("gelu-tanh", 4, 1), ("silu", 2, 1), ("gelu-new", 4, 4), ("quick-gelu", 2, 2)],
)
def test_activations_keep(kind: str, element: int, extra: int) -> None:
    """Tensors beside the output, which the next linear keeps anyway."""
    work = Activation("a", ("x",), "y", 64, kind).work(Workload(1, 16, element=element))
    assert sum(size for name, size in saves(work).items() if name != "y") == extra * 16 * 64 * element
    fused = Activation("a", ("x",), "y", 64, kind).work(Workload(1, 16, element=element, fused=True))
    assert len(fused.saves) == 1


def test_every_activation_is_memory_bound() -> None:
    for kind in ACTIVATIONS:
        work = Activation("a", ("x",), "y", 64, kind).work(Workload(1, 16))
        assert flop(work.forward + work.backward_input) == 0
        assert work.backward_weight == ()


def test_gated_activation() -> None:
    """SwiGLU in PyTorch keeps gate, up and silu(gate), a fused kernel gate and up."""
    act, size = GatedActivation("a", ("gu",), "y", 96), 16 * 96 * 2
    assert saves(act.work(Workload(1, 16))) == {"gu": 2 * size, "a.activated": size}
    assert saves(act.work(Workload(1, 16, fused=True))) == {"gu": 2 * size}
    two = GatedActivation("a", ("g", "u"), "y", 96).work(Workload(1, 16, fused=True))
    assert saves(two) == {"g": size, "u": size}


def test_norms() -> None:
    tokens, h = 32, 64
    assert saves(LayerNorm("n", ("x",), "y", h).work(Workload(1, tokens))) == {"x": tokens * h * 2, "n.statistics": 8 * tokens}
    rms = RMSNorm("n", ("x",), "y", h)
    assert saves(rms.work(Workload(1, tokens, fused=True))) == {"x": tokens * h * 2, "n.statistics": 4 * tokens}
    assert sum(saves(rms.work(Workload(1, tokens))).values()) == tokens * (6 * h + 4)
    assert sum(saves(rms.work(Workload(1, tokens, **SINGLE))).values()) == tokens * (8 * h + 4)
    heads = QKNorm("n", ("qkv",), "qkv2", 4, 2, 16)
    assert count(heads) == 32
    assert sum(saves(heads.work(Workload(1, tokens))).values()) == tokens * 6 * (6 * 16 + 4)
    assert heads.work(Workload(1, tokens)).output == 0
    assert (count(LayerNorm("n", ("x",), "y", h)), count(LayerNorm("n", ("x",), "y", h, bias=False)), count(rms)) == (128, 64, 64)


def test_dropout() -> None:
    drop = Dropout("d", ("x",), "y", 64)
    off, on, fused = (drop.work(Workload(1, 16, dropout=p, fused=f)) for p, f in ((0.0, False), (0.1, False), (0.1, True)))
    assert (off.output, off.saves, off.forward) == (0, (), ())
    assert (on.output, saves(on)) == (16 * 64 * 2, {"d.mask": 16 * 64})
    assert (fused.output, saves(fused)) == (0, {"d.mask": 16 * 64})


def test_embedding_has_only_a_weight_gradient() -> None:
    table = Embedding("e", ("input",), "x", 1000, 64, positions=128, types=2, parameter_names=("word", "position", "type"))
    work = table.work(Workload(2, 16))
    assert work.backward_input == ()
    assert work.backward_weight
    assert work.input_gradients == (-1,)
    assert saves(work) == {"input": 8 * 32, "e.positions": 8 * 16}
    assert [(p.name, p.shape, p.split) for p in table.parameters()] == [
        ("word.weight", (1000, 64), 0),
        ("position.weight", (128, 64), None),
        ("type.weight", (2, 64), None),
    ]


def test_rotary_works_in_place() -> None:
    work = Rotary("r", ("qkv",), "rotated", 4, 2, 16).work(Workload(1, 32))
    assert (work.output, work.saves, work.forward_temporary) == (0, (), 32 * 6 * 16 * 2)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((3, 64, 7, 224, 2, 3, 1), (112, 9408)), ((64, 64, 3, 56, 1, 1, 1), (56, 36864)), ((32, 32, 3, 28, 2, 1, 32), (14, 288))],
)
def test_convolution(sizes: tuple[int, ...], expected: tuple[int, int]) -> None:
    """Output size and weights as torchvision's; operations 2 b Cout Ho Wo (Cin/g) K^2 in each pass."""
    cin, cout, k, size, stride, padding, groups = sizes
    conv = Conv2d("c", ("x",), "y", cin, cout, (k, k), (size, size), (stride, stride), (padding, padding), groups=groups, bias=False)
    work = conv.work(Workload(8, **SINGLE))
    assert (conv.output_size[0], count(conv)) == expected
    assert flop(work.forward) == 2 * 8 * cout * expected[0] ** 2 * (cin // groups) * k * k
    assert flop(work.forward) == flop(work.backward_input) == flop(work.backward_weight)
    assert saves(work) == {"x": 8 * cin * size * size * 4}


def test_image_operators_keep() -> None:
    at = Workload(4, **SINGLE)
    image = 4 * 16 * 8 * 8 * 4
    norm = BatchNorm("b", ("x",), "y", 16, (8, 8))
    assert sum(saves(norm.work(at)).values()) == image + 2 * 16 * 4
    assert sum(p.count for p in norm.parameters() if p.buffer) == 2 * 16 + 1
    assert saves(Pool("p", ("x",), "y", 16, (8, 8), (4, 4)).work(at)) == {"x": image, "p.indices": 4 * 16 * 16 * 8}
    assert saves(Pool("p", ("x",), "y", 16, (8, 8), (1, 1), "global").work(at)) == {}


def test_losses() -> None:
    at = Workload(2, 16, 4, loss_kernel="vocab-parallel")
    parallel = Loss("l", ("logits",), "output", 1000).work(at)
    assert saves(parallel)["l.exponentials"] == 4 * 32 * 250
    assert sum(kernel.bytes for kernel in parallel.forward + parallel.backward_input) == (38 + 14) * 32 * 250
    fused = Loss("l", ("logits",), "output", 1000).work(Workload(2, 16, loss_kernel="fused"))
    assert saves(fused)["logits"] == 2 * 32 * 1000
    total = Loss("l", ("y",), "output", 2048, "sum", split="replicated").work(Workload(10240, **SINGLE))
    assert total.output == 4
    assert total.input_gradients == (80 * 2**20,)
    assert {save.until for save in total.saves} == {"pass"}
    squared = Loss("l", ("y",), "output", 8, "mse", split="replicated").work(Workload(4, **SINGLE))
    assert saves(squared)["l.targets"] == 4 * 8 * 4


def test_padded_targets_of_a_single_sample() -> None:
    """Shifted by padding one id: a contiguous slice keeps all s + 1 of them (transformers ``loss/loss_utils.py``)."""
    loss = Loss("l", ("logits",), "output", 1000, shifted=True)
    assert saves(loss.work(Workload(1, 16)))["l.targets"] == 8 * 17
    assert saves(loss.work(Workload(2, 16)))["l.targets"] == 8 * 32


def test_mixture_of_experts() -> None:
    """Router 2hE, experts top_k (2 * 3 h f) operations per token; parameters E 3 h f + h E (Mixtral)."""
    h, f, experts, top_k, tokens = 64, 96, 8, 2, 64
    layer = mixture_of_experts("moe", "input", "output", h, f, experts, top_k)
    assert sum(count(operator) for operator in layer) == experts * 3 * h * f + experts * h
    works = [operator.work(Workload(2, 32)) for operator in layer]
    expected = tokens * (2 * h * experts + top_k * 6 * h * f)
    for part in ("forward", "backward_input", "backward_weight"):
        assert sum(flop(getattr(work, part)) for work in works) == expected
    assert layer[0].inputs == ("input",)
    assert layer[-1].output == "output"


def test_shared_experts() -> None:
    h, shared = 64, 128
    plain = mixture_of_experts("moe", "input", "output", h, 96, 8, 2)
    more = mixture_of_experts("moe", "input", "output", h, 96, 8, 2, shared_width=shared, shared_gate=True, router_bias=True)
    assert sum(map(count, more)) - sum(map(count, plain)) == 3 * h * shared + h
    assert [p.count for operator in more for p in operator.parameters() if p.buffer] == [8]
    assert more[-1].output == "output"


def test_expert_parallelism() -> None:
    """Each rank holds its share of the experts and computes as many copies as it sends, times the imbalance."""
    layer = GroupedLinear("up", ("copies",), "y", 64, 192, 8, 2)
    whole, part = layer.work(Workload(4, 32)), layer.work(Workload(4, 32, expert=4))
    assert flop(whole.forward) == flop(part.forward)
    gemm = part.forward[0]
    assert isinstance(gemm, Gemm)
    assert (gemm.batch, gemm.m) == (2, 128)
    assert all(parameter.expert for parameter in layer.parameters())
    assert flop(layer.work(Workload(4, 32, expert=4, expert_imbalance=1.5)).forward) == 1.5 * flop(part.forward)
    assert flop(layer.work(Workload(4, 32, 2)).forward) == flop(whole.forward) / 2


def test_evaluation_turns_by_products_into_temporaries() -> None:
    core = AttentionCore("c", ("qkv",), "o", 4, 4, 16)
    work = core.work(Workload(2, 32, attention="eager", backward=False))
    assert work.saves == work.backward_input == ()
    assert work.forward_temporary == 2 * 2 * 2 * 4 * 32 * 32
