"""Work and kept activations of published mixtures of experts, from the operators of their models, against counts made by hand."""

from __future__ import annotations

import math
from functools import cache

import pytest

from parsim.errors import ModelError
from parsim.kernel import Attention, Gemm
from parsim.model.catalogue import build_model
from parsim.model.flops import flop_per_token, forward_flop
from parsim.model.liveness import tape
from parsim.model.model import Block, Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.parts import operators_by_part
from parsim.model.workload import Workload
from parsim.scenario import files

S = 4096


def look_up(name: str) -> dict[str, object]:
    return dict(files.read(files.find("models", name)).tree)


@cache
def model(name: str) -> Model:
    return build_model(look_up(name), name=name, base_lookup=look_up)


def changed(base: str, **changes: object) -> Model:
    return build_model({"base": base, **changes}, name="changed", base_lookup=look_up)


@pytest.mark.parametrize(
    ("sizes", "counts", "published"),
    [
        ({"layers": 24, "hidden": 1024, "heads": 16}, [32] * 10 + [64] * 2, 4.0),
        ({"layers": 24, "hidden": 2048, "heads": 16}, [64] * 10 + [128] * 2, 31.0),
    ],
)
def test_a_pyramid_of_experts_has_the_published_size(sizes: dict[str, int], counts: list[int], published: float) -> None:
    """DeepSpeed-MoE (2201.05596), table 3: 350M+PR-MoE-32/64 has 4B parameters, 1.3B+PR-MoE-64/128 31B."""
    h = sizes["hidden"]
    experts = {"count": max(counts), "counts": counts, "top_k": 1, "every": 2, "bias": True, "shared": 4 * h}
    tree = {"family": "megatron-gpt", "vocabulary": 50257, "maximum_sequence": 2048, **sizes, "experts": experts}
    made = build_model(tree, name="pyramid", base_lookup=look_up)
    assert round(parameter_count(made) / 1e9, 0) == published
    each = 2 * h * 4 * h + 5 * h
    held = [sum(p.count for p in block.parameters() if p.expert) for block in made.blocks if block.kind == "layer"]
    assert held == [n for count in counts for n in (0, count * each)]
    with pytest.raises(ModelError, match="counts are those of 12 layers"):
        build_model({**tree, "experts": {**experts, "counts": counts[1:]}}, name="short", base_lookup=look_up)
    with pytest.raises(ModelError, match="must be a list of whole numbers"):
        build_model({**tree, "experts": {**experts, "counts": "64"}}, name="word", base_lookup=look_up)


def executed(block: Block, part: str = "") -> float:
    """FLOP of the products that a block's forward executes, per token of a sample: a token sees itself and those before it."""
    operators = operators_by_part(block)[part] if part else block.operators
    kernels = [kernel for operator in operators for kernel in operator.work(Workload(batch=1, sequence=S)).forward]
    return math.fsum(kernel.flop for kernel in kernels if isinstance(kernel, Gemm | Attention)) / S


def layer(name: str) -> Block:
    """The last layer."""
    return next(block for block in reversed(model(name).blocks) if block.kind == "layer")


class TestWork:
    @pytest.mark.parametrize(
        ("name", "flop"),
        [
            # 3 x (projections, experts and router that a token visits, head, and (s + 1) / 2 keys per query on average)
            ("deepseek-v3", 250_457_382_912),
            ("qwen3-30b-a3b", 23_082_958_848),
            ("qwen3-235b-a22b", 148_335_132_672),
            ("gpt-oss-120b", 32_710_473_216),
        ],
    )
    def test_training_of_a_token(self, name: str, flop: int) -> None:
        assert 3 * math.fsum(executed(block) for block in model(name).blocks) == flop

    @pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-235b-a22b", "llama-4-scout"])
    def test_exact_leaves_out_half_the_diagonal_of_the_mask(self, name: str) -> None:
        whole = math.fsum(executed(block) for block in model(name).blocks)
        facts = model(name).facts
        cores = model(name).layers * model(name).heads * (model(name).head_dim + int(str(facts["value_dim"])))
        assert whole - forward_flop(model(name), S) == pytest.approx(cores, rel=1e-9)

    @pytest.mark.parametrize(
        ("name", "printed"),
        [
            # TFLOP/s over tokens/s of each GPU in NVIDIA-NeMo/Megatron-Bridge's tables of measured speeds, which two roundings blur
            ("qwen3-30b-a3b", 23.10e9),
            ("qwen3-235b-a22b", 148.14e9),
            ("gpt-oss-120b", 32.61e9),
            ("deepseek-v3", 249.74e9),
        ],
    )
    def test_megatrons_counter_is_what_its_tables_say(self, name: str, printed: float) -> None:
        assert flop_per_token(model(name), S, "megatron-lm") == pytest.approx(printed, rel=5e-3)

    def test_a_layer_of_deepseek(self) -> None:
        mixture = layer("deepseek-v3")
        assert executed(mixture, "attention linears") == 374_210_560
        assert executed(mixture, "attention core") == 167_813_120
        experts = math.fsum(executed(mixture, part) for part in ("router", "experts", "shared expert"))
        assert experts == 796_393_472 == 2 * (9 * 3 * 7168 * 2048 + 7168 * 256)

    def test_chunks_of_llama_4_are_samples_of_their_own(self) -> None:
        def core(sequence: int) -> float:
            at = Workload(batch=1, sequence=sequence)
            operators = next(block for block in model("llama-4-scout").blocks if block.kind == "layer").operators
            work = next(operator for operator in operators if operator.name == "attention").work(at)
            return math.fsum(kernel.flop for kernel in work.forward)

        assert core(8192) == 4 * 40 * 128 * 8192 * 8193 / 2
        assert core(32768) == 4 * core(8192)
        assert core(8192 + 100) == core(8192) + core(100)
        full = model("llama-4-scout").blocks[4]
        assert not any(operator.name in ("rotary", "query_key_norm") for operator in full.operators)
        assert len({id(block) for block in model("llama-4-maverick").blocks}) == 2 + 3  # dense or not, in chunks; full with experts


class TestKept:
    @pytest.mark.parametrize(
        ("name", "hidden", "width", "top_k", "shared", "experts", "total"),
        [
            ("deepseek-v3", 7168, 2048, 8, 2048, 256, 240_640),
            ("qwen3-30b-a3b", 2048, 768, 8, 0, 128, 74_240),
            ("mixtral-8x7b", 4096, 14336, 2, 0, 8, 196_640),
        ],
    )
    def test_activations_of_a_mixture(self, name: str, hidden: int, width: int, top_k: int, shared: int, experts: int, total: int) -> None:
        """Per token, bf16, the router's weights applied inside the experts (Megatron-Core): the norm's output, which router, shared
        expert and dispatch read; of every copy the inputs of both products and the activation's; of the shared expert likewise; scores.
        """
        taped = tape(layer(name), Workload(batch=1, sequence=S, fused=True, expert=8))
        parts = "mlp_norm", "copies", "up", "product", "shared_up", "shared_product", "router.scores"
        names = {part if part == "mlp_norm" else f"mixture.{part}" for part in parts}
        kept = sum(taped.tensors[saved].bytes for saved in taped.saved if saved in names) / S
        assert kept == 2 * hidden + top_k * (2 * hidden + 4 * width + 2 * width) + 6 * shared + 4 * experts == total
        small = {"router.scores", "dispatch.order", "choice"}  # what else begins so: order and choice, 8 B and 12 B per copy
        others = [saved for saved in taped.saved if saved.startswith("mixture.") and saved not in names]
        assert {saved.removeprefix("mixture.") for saved in others} <= small


class TestFields:
    def test_the_router_in_fp32_has_an_older_spelling(self) -> None:
        def router(**experts: object) -> object:
            return next(o for o in changed("mixtral-8x7b", layers=1, experts=experts).blocks[1].operators if o.name == "mixture.router")

        assert router(router_dtype="fp32") == router(router_fp32=True) != router()
        fp32, same = changed("deepseek-v3", experts={"router_fp32": False}), changed("deepseek-v3", experts={"router_dtype": "activations"})
        assert [o for b in fp32.blocks for o in b.operators] == [o for b in same.blocks for o in b.operators]

    def test_biases_and_sinks_of_gpt_oss(self) -> None:
        per_layer = 128 + 128 * (2 * 2880 + 2880) + 64
        with_them, without = model("gpt-oss-120b"), changed("gpt-oss-120b", attention_sinks=False, experts={"bias": False})
        assert parameter_count(with_them) - parameter_count(without) == 36 * per_layer

    def test_windows_and_chunks_exclude_each_other(self) -> None:
        with pytest.raises(ModelError, match="sliding window or chunks"):
            changed("llama-4-scout", attention_window=128)
