"""What eager PyTorch launches around its products: sums of gradients, casts under autocast, and what of them is kept."""

from __future__ import annotations

from hardware_graphs import device

from parsim.hardware.kernels import alignment
from parsim.kernel import MIXED, WIDENED, Gemm, Memory
from parsim.model.elementwise import Activation, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.workload import Workload

TOKENS, HIDDEN = 8, 64
QKV = Linear("qkv", ("x",), "y", HIDDEN, (64, 32, 32), bias=True, split="column", parameter_names=("q", "k", "v"))


def at(**fields) -> Workload:
    return Workload(1, TOKENS, **fields)


def kept(work) -> dict[str, int]:
    return {save.tensor: save.bytes for save in work.saves}


def test_three_products_add_three_gradients_of_their_input():
    eager, fused = QKV.work(at()), QKV.work(at(fused=True))
    assert eager.forward == (Gemm(TOKENS, 128, HIDDEN, launches=3),)
    assert eager.backward_input == (Gemm(TOKENS, HIDDEN, 128, layout="NN", launches=3), Memory(2 * 3 * TOKENS * HIDDEN * 2, launches=2))
    assert fused.forward == (Gemm(TOKENS, 128, HIDDEN),)
    assert fused.backward_input == (Gemm(TOKENS, HIDDEN, 128, layout="NN"),)


def test_autocast_casts_weights_and_inputs_for_every_product():
    """Three weights, three biases, and the input three times; each product keeps a cast of its own."""
    work = QKV.work(at(autocast=True, wide_stream=True))
    weights, inputs = 128 * HIDDEN + 128, TOKENS * HIDDEN
    assert work.forward[0] == Memory(6 * (weights + 3 * inputs), launches=6 + 3)
    assert work.backward_input[-1] == Memory(12 * 3 * inputs, launches=3, vector=WIDENED * 3 * inputs)
    assert work.backward_weight[0] == Memory(6 * weights, launches=6, vector=WIDENED * weights)
    assert kept(work) == {"qkv.cast": 3 * inputs * 2}
    assert kept(QKV.work(at())) == {"x": inputs * 2}


def test_an_fp32_stream_is_added_to_and_kept_in_fp32():
    count = TOKENS * HIDDEN
    wide = at(autocast=True, wide_stream=True)
    add = ResidualAdd("add", ("y", "x"), "z", HIDDEN).work(wide)
    assert (add.forward, add.output) == ((Memory(10 * count, launches=1, vector=MIXED * count),), 4 * count)
    assert kept(LayerNorm("n", ("x",), "y", HIDDEN).work(wide)) == {"x": 4 * count, "n.statistics": 8 * TOKENS}
    assert kept(RMSNorm("n", ("x",), "y", HIDDEN).work(wide)) == {
        "n.fp32": 4 * count,
        "n.normalised": 4 * count,
        "n.statistics": 4 * TOKENS,
    }


def test_gelu_new_keeps_fp32_under_autocast():
    gelu = Activation("a", ("x",), "y", HIDDEN, "gelu-new")
    count = TOKENS * HIDDEN
    assert sum(kept(gelu.work(at(autocast=True))).values()) == 14 * count
    assert sum(kept(gelu.work(at())).values()) == 8 * count


def test_alignment_of_a_vocabulary_on_hopper():
    """50257 is odd, 50260 a multiple of 8 bytes, 50264 of 16; torch.compile pads."""
    card = device("h200-sxm-141gb")
    rates = [alignment(card, Gemm(16384, words, 768)) for words in (50257, 50260, 50264)]
    assert rates == [0.201, 0.379, 1.0]
    assert alignment(card, Gemm(16384, 50257, 768, padded=True)) == 1.0
