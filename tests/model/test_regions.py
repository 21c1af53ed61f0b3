"""Parts of a layer that are made again in backward: what stays, what runs again, and when it is there."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.kernel import Gemm
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.low_precision import TRANSFORMER_ENGINE, Quantisation
from parsim.model.model import Block
from parsim.model.regions import REGIONS
from parsim.model.tape import Tape
from parsim.model.workload import Workload
from parsim.scenario import files

S = 4096
AT = Workload(batch=1, sequence=S, fused=True, expert=8)
FP8 = Quantisation("blockwise", TRANSFORMER_ENGINE, tn_only=True, caches_weights=True)
SIZES = {"layers": 2, "hidden": 256, "heads": 4, "mlp": 512, "vocabulary": 512}


@cache
def layer(name: str, small: bool = False) -> Block:
    """The last layer of a shipped model, or of one with its structure."""
    tree = dict(files.read(files.find("models", name)).tree)
    if small:
        tree |= SIZES | {
            "experts": {**tree["experts"], "count": 8, "mlp": 128, "top_k": min(2, tree["experts"]["top_k"]), "dense_layers": 0}
        }
        tree |= {"kv_heads": 2, "head_dim": 64} if "latent" not in tree else {}
    blocks = build_model(tree, name=name, base_lookup=dict).blocks
    return next(block for block in reversed(blocks) if block.kind == "layer")


def kept(taped: Tape) -> float:
    """Per token, its input aside [B]."""
    return sum(taped.tensors[name].bytes for name in taped.saved) / S


def dropped(name: str, *words: str, at: Workload = AT) -> float:
    return kept(tape(layer(name), at)) - kept(tape(layer(name), at, words))


def again(taped: Tape) -> float:
    """FLOP of matrix products that backward repeats, per token."""
    steps = [step for step in taped.backward if step.phase == "recompute"]
    return math.fsum(kernel.flop for step in steps for kernel in step.kernels if isinstance(kernel, Gemm)) / S


class TestKept:
    @pytest.mark.parametrize(("name", "width", "top_k"), [("deepseek-v3", 2048, 8), ("qwen3-30b-a3b", 768, 8), ("mixtral-8x7b", 14336, 2)])
    def test_activation_of_experts(self, name: str, width: int, top_k: int) -> None:
        assert dropped(name, "moe_act") == 2 * top_k * width

    def test_norms(self) -> None:
        # both norms' outputs and what they note of each row (4 B)
        assert dropped("deepseek-v3", "layernorm") == 2 * (2 * 7168 + 4)
        assert dropped("qwen3-30b-a3b", "layernorm") == 2 * (2 * 2048 + 4)

    def test_decompressed_queries_keys_and_values(self) -> None:
        # a (2 (d_n + d_r)) of queries and of keys, a d_v of values; the values are a slice of a tensor with the keys' a d_n beside them
        assert dropped("deepseek-v3", "mla_up_proj") == 131_072 + 2 * 128 * 128
        assert 2 * 128 * (2 * (128 + 64) + 128) == 131_072

    def test_a_mixture_keeps_what_it_reads(self) -> None:
        # 240,640 B less the norm's output, and order (8 B) and choice (12 B) of 8 experts
        assert dropped("deepseek-v3", "moe") == 240_640 - 2 * 7168 + 8 * (8 + 12)
        assert dropped("deepseek-v3", "moe", "moe_act", "shared_experts") == dropped("deepseek-v3", "moe")
        assert dropped("deepseek-v3", "moe", "layernorm") == dropped("deepseek-v3", "moe") + dropped("deepseek-v3", "layernorm")

    def test_a_shared_expert(self) -> None:
        assert dropped("deepseek-v3", "shared_experts") == 6 * 2048

    def test_products_keep_no_copy_in_fp8_of_what_is_made_again(self) -> None:
        at = Workload(batch=1, sequence=S, fused=True, expert=8, dtype="fp8", kept=("router", "attention"), quantisation=FP8)
        filled = (S * 8 // 32 + 8) / (S * 8 // 32)  # rows of an expert, of 32 on a rank, with half of what they are a multiple of
        assert dropped("deepseek-v3", "moe_act", at=at) == 8 * 2048 * (1 + 4 / 128) * filled
        # q and kv down read one norm, router, shared and routed experts the other: copies of each, and the norms' own for the router
        products = 3 * 7168 * (1 + 4 / 128)
        assert dropped("deepseek-v3", "layernorm", at=at) == products + 2 * 7168 + 2 * 4


class TestRuns:
    def test_what_runs_again(self) -> None:
        products = {"moe_act": 0, "layernorm": 0, "mla_up_proj": 2 * 128 * (1536 * 192 + 512 * 256), "shared_experts": 6 * 7168 * 2048}
        for word, flop in products.items():
            assert again(tape(layer("deepseek-v3"), AT, (word,))) == flop
        assert again(tape(layer("deepseek-v3"), AT, ("moe",))) == 796_393_472

    def test_messages_of_a_mixture_are_sent_again(self) -> None:
        steps = [step for step in tape(layer("deepseek-v3"), AT, ("moe",)).backward if step.phase == "recompute"]
        names = [step.operator.name for step in steps]
        assert names[:2] == ["mixture.router", "mixture.dispatch"]
        assert "mixture.combine" in names
        assert all(step.communicates for step in steps)

    @pytest.mark.parametrize(
        ("word", "first", "reader"),
        [
            ("moe_act", "mixture.activation", "mixture.experts_down"),
            ("mla_up_proj", "query_up", "attention"),
            ("layernorm", "mlp_norm", "mixture.add_shared"),
            ("moe", "mixture.router", "mixture.add_shared"),
            ("shared_experts", "mixture.shared_up_projection", "mixture.shared_down_projection"),
        ],
    )
    def test_when(self, word: str, first: str, reader: str) -> None:
        """Outputs are there again when the gradient of what follows their readers is, however early their own gradients come."""
        backward = tape(layer("deepseek-v3"), AT, (word,)).backward
        place = next(i for i, step in enumerate(backward) if step.phase == "recompute")
        assert backward[place].operator.name == first
        following = [step.operator.name for step in backward[place:] if step.phase in ("input", "weight")]
        before = [step.operator.name for step in backward[:place]]
        # an add passes its gradient on without a step of its own
        assert reader not in before
        assert following[0] == (reader if reader != "mixture.add_shared" else "mixture.shared_down_projection")

    def test_a_norm_is_there_while_attention_runs_backward(self) -> None:
        backward = tape(layer("deepseek-v3"), AT, ("layernorm",)).backward
        made = next(i for i, step in enumerate(backward) if "attention_norm" in step.allocates)
        assert backward[made + 1].operator.name == "attention_output"
        assert next(i for i, step in enumerate(backward) if step.operator.name == "attention") > made


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "llama-4-scout"]),
    st.sets(st.sampled_from([*REGIONS, "attention", "norm", "mlp"]), min_size=1),
    st.booleans(), st.sampled_from([1, 2]), st.sampled_from(["bf16", "fp8"]),
)  # fmt: skip
def test_every_tensor_comes_and_goes_once_at_a_time(name: str, words: set[str], fused: bool, expert: int, dtype: str) -> None:
    """Nothing is made twice, freed twice or read after it has gone; all is gone in the end; no more is kept than without."""
    eight = {"quantisation": FP8, "kept": ("router", "attention")} if dtype == "fp8" else {}
    at = Workload(batch=1, sequence=256, fused=fused, expert=expert, dtype=dtype, attention="flash2", **eight)  # type: ignore[arg-type]
    block = layer(name, small=True)
    taped = tape(block, at, tuple(words))
    alive = {"input", "grad_output"}
    for step in (*taped.forward, *taped.backward):
        assert not alive & set(step.allocates), step
        alive |= set(step.allocates)
        assert set(step.frees) <= alive, step
        alive -= set(step.frees)
    assert alive <= {"input", "output", "grad_input"}
    assert set(taped.saved) <= {*tape(block, at).saved, *(operator.output for operator in block.operators)}
