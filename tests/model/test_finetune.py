"""Fine-tuning as a change of the model: what is trained, what is kept for backward, what it costs.

Counts are PEFT's ``print_trainable_parameters`` and litgpt's printed ones; storage is Dettmers et al. 2023 (arXiv 2305.14314),
section 3; what autograd keeps is ``tools/autograd/derivatives.yaml`` of PyTorch (``mm`` keeps its input for the weight only).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import model_of

from parsim.errors import ModelError
from parsim.kernel import Gemm, Memory
from parsim.model.adapters import Adapter, FourBits, FrozenLinear, stored_bytes
from parsim.model.catalogue import build_model
from parsim.model.finetune import Finetune, SpreadLayers, finetuned
from parsim.model.flops import untrained_flop
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.model.norms import RMSNorm
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.model.workload import Workload

LLAMA = 6_738_415_616


@pytest.mark.parametrize(
    ("model", "recipe", "count"),
    [
        ("llama-7b", Finetune(rank=8, targets=("q", "v")), 4_194_304),  # 32 x 2 x 8 x (4096 + 4096)
        ("llama-7b", Finetune(rank=8, targets=("q_proj", "v_proj")), 4_194_304),
        ("llama-7b", Finetune(rank=16), 39_976_960),
        ("llama-13b", Finetune(rank=8, targets=("q", "v")), 6_553_600),
        ("llama-7b", Finetune("qlora", rank=16, base="nf4"), 39_976_960),
        ("gpt2", Finetune(rank=8, targets=("c_attn",)), 294_912),  # 12 x 8 x (768 + 2304): PEFT's GPT-2 example
        ("gpt2", Finetune(rank=8, targets=("q", "v")), 294_912),  # 12 x 2 x 8 x (768 + 768), loralib's
        ("pythia-6.9b", Finetune(rank=8, targets=("q", "v")), 4_194_304),
        ("llama-7b", Finetune("freeze"), 131_076_096),  # head 32000 x 4096 and the final norm
        ("llama-7b", Finetune("freeze", freeze=30), 2 * 202_383_360 + 131_076_096),
        ("llama-7b", Finetune("freeze", freeze=SpreadLayers(8)), 8 * 202_383_360),  # LLaMA Pro: head and last norm are frozen, too
        ("llama-7b", Finetune("freeze", freeze=("attention",)), LLAMA - 32 * 4 * 4096**2),
        ("llama-7b", Finetune(rank=16, train_embeddings=True), 39_976_960 + 2 * 32_000 * 4096),
    ],
)
def test_trainable_parameters(model, recipe, count):
    whole = model_of(model)
    tuned = finetuned(whole, recipe)
    assert trainable_parameter_count(tuned) == count
    adapters = 0 if recipe.method == "freeze" else count - 2 * 32_000 * 4096 * recipe.train_embeddings
    assert parameter_count(tuned) == parameter_count(whole) + adapters


@pytest.mark.parametrize("freeze", [("backbone",), ("embedding", "layer"), ("lm_head", "layer")])
def test_a_tied_table_is_frozen_in_both_places(freeze):
    """Of GPT-2 only the final norm is left (and, where the table is frozen as a head, nothing of the embedding either)."""
    tuned = finetuned(model_of("gpt2"), Finetune("freeze", freeze=freeze))
    assert trainable_parameter_count(tuned) == 2 * 768
    trained = [p.name for block in tuned.blocks for p in block.parameters() if p.trainable and not p.buffer]
    assert not any("embedding" in name or "lm_head" in name for name in trained)


def test_spread_layers_are_the_last_ones_of_equal_runs():
    """LLaMA-Factory, model/adapter.py: range(stride - 1, num_layers + stride - 1, stride)."""
    tuned = finetuned(model_of("llama-7b"), Finetune("freeze", freeze=SpreadLayers(4)))
    trained = [at for at, block in enumerate(tuned.blocks) if any(p.trainable and not p.buffer for p in block.parameters())]
    assert trained == [8, 16, 24, 32]  # the embedding is block 0


def test_equal_layers_stay_one_object():
    tuned = finetuned(model_of("llama-7b"), Finetune())
    assert len({id(block) for block in tuned.blocks}) == 3


def test_bits_per_parameter():
    assert stored_bytes(4096 * 4096, "nf4") * 8 == 4.5 * 4096 * 4096
    assert stored_bytes(4096 * 4096, "nf4-dq") * 8 == 4.126953125 * 4096 * 4096
    assert stored_bytes(1, "nf4") == 1 + 4
    assert stored_bytes(65, "nf4-dq") == 33 + 2 + 4
    assert stored_bytes(96 * 64, "int8", scales=96) == 96 * 64 + 4 * 96


def test_llama_7b_in_four_bits():
    """Linear layers 3.1113 GiB, the rest 0.4888 GiB."""
    tuned = finetuned(model_of("llama-7b"), Finetune("qlora", base="nf4-dq"))
    parameters = [p for block in tuned.blocks for p in block.parameters() if not p.trainable]
    quantised = sum(stored_bytes(p.count, p.storage) for p in parameters if p.storage)
    rest = sum(2 * p.count for p in parameters if not p.storage)
    assert quantised == 3_340_771_328
    assert round(quantised / 2**30, 4) == 3.1113
    assert round(rest / 2**30, 4) == 0.4888


AT = Workload(batch=1, sequence=128)
T, IN, OUT, R = 128, 64, 96, 8


def linear(**changes):
    return FrozenLinear("l", ("x",), "y", IN, (OUT,), bias=False, **changes)


def test_a_frozen_linear_layer_keeps_nothing_and_has_no_weight_gradient():
    plain = Linear("l", ("x",), "y", IN, (OUT,), bias=False).work(AT)
    work = linear().work(AT)
    assert work.saves == work.backward_weight == ()
    assert (work.forward, work.backward_input, work.output) == (plain.forward, plain.backward_input, plain.output)
    assert all(not p.trainable for p in linear().parameters())


def test_an_adapter_adds_six_products_and_keeps_its_input():
    work = linear(adapters=(Adapter("l", OUT, R),)).work(AT)
    shapes = [(k.m, k.n, k.k) for k in work.forward if isinstance(k, Gemm)]
    assert shapes == [(T, OUT, IN), (T, R, IN), (T, OUT, R)]
    assert [(k.m, k.n, k.k) for k in work.backward_input if isinstance(k, Gemm)] == [(T, IN, OUT), (T, R, OUT), (T, IN, R)]
    assert [(k.m, k.n, k.k) for k in work.backward_weight] == [(OUT, R, T), (R, IN, T)]
    assert {save.tensor: save.bytes for save in work.saves} == {"x": 2 * T * IN, "l.l.lora_A": 2 * T * R}
    assert sum(k.flop for k in (*work.forward, *work.backward_input, *work.backward_weight) if isinstance(k, Gemm)) == (
        4 * T * IN * OUT + 6 * T * R * (IN + OUT)
    )


def test_adapter_dropout_keeps_a_mask_and_a_copy():
    saves = {save.tensor: save.bytes for save in linear(adapters=(Adapter("l", OUT, R, dropout=True),)).work(AT).saves}
    assert saves == {"l.l.dropped": 2 * T * IN, "l.l.mask": T * IN, "l.l.lora_A": 2 * T * R}


def test_adapters_beside_slices_share_their_dropped_input():
    pair = tuple(Adapter(f"l.{name}", OUT // 3, R, dropout=True, slice=True) for name in ("query", "value"))
    work = linear(adapters=pair).work(AT)
    kept = {save.tensor: save.bytes for save in work.saves}
    assert kept["l.slices.dropped"] == 2 * T * IN
    assert sum(kept.values()) == 3 * T * IN + 2 * (2 * T * R + 2 * T * OUT // 3)
    assert sum(k.bytes == 5 * T * IN for k in work.forward if isinstance(k, Memory)) == 1


def test_an_fp32_adapter_multiplies_in_fp32_and_keeps_a_copy_of_its_input():
    """PEFT, tuners/lora/layer.py: x.to(fp32), two products, a scaling, a mixed sum, result.to(bf16); backward casts the other way."""
    work = linear(adapters=(Adapter("l", OUT, R, fp32=True),)).work(AT)
    base, *forward = work.forward
    assert base == Gemm(T, OUT, IN)
    assert forward == [
        Memory(6.0 * T * IN, vector=197.0 * T * IN),
        Gemm(T, R, IN, dtype="fp32", element=4),
        Gemm(T, OUT, R, dtype="fp32", element=4),
        Memory(8.0 * T * OUT),
        Memory(10.0 * T * OUT, vector=259.0 * T * OUT),
        Memory(6.0 * T * OUT),
    ]
    assert work.backward_input[1:] == (
        Memory(6.0 * T * OUT, vector=197.0 * T * OUT),
        Memory(6.0 * T * OUT),
        Memory(8.0 * T * OUT),
        Gemm(T, R, OUT, dtype="fp32", element=4),
        Gemm(T, IN, R, dtype="fp32", element=4),
        Memory(6.0 * T * IN),
        Memory(6.0 * T * IN),
    )
    assert {(k.dtype, k.element) for k in work.backward_weight} == {("fp32", 4)}
    assert {save.tensor: save.bytes for save in work.saves} == {"l.l.input": 4 * T * IN, "l.l.lora_A": 4 * T * R}
    assert (work.forward_temporary, work.backward_temporary) == (8 * T * OUT, max(8 * T * OUT, 4 * T * IN))


def test_fp32_adapters_share_no_input():
    """Queries, keys and values: each layer of PEFT casts its own."""
    names = ("q", "k", "v")
    three = FrozenLinear("l", ("x",), "y", IN, (OUT, R, R), False, "replicated", names)
    work = replace(three, adapters=tuple(Adapter(name, out, R, fp32=True) for name, out in zip(names, (OUT, R, R), strict=True))).work(AT)
    assert {save.tensor: save.bytes for save in work.saves if save.bytes == 4 * T * IN} == {f"l.{name}.input": 4 * T * IN for name in names}
    compiled = replace(AT, fused=True, compiled=True)
    work = replace(three, adapters=tuple(Adapter(name, out, R, fp32=True) for name, out in zip(names, (OUT, R, R), strict=True))).work(
        compiled
    )
    assert [save.tensor for save in work.saves if save.bytes == 4 * T * IN] == ["l.input_fp32"]


def test_an_fp32_adapter_under_autocast_casts_back_and_forth():
    """Both products are 16-bit again; what A keeps is a copy of its own, and the layer holds the fp32 input until it returns."""
    work = linear(adapters=(Adapter("l", OUT, R, fp32=True),)).work(replace(AT, autocast=True))
    assert work.forward[1:] == (
        Memory(6.0 * T * IN, vector=197.0 * T * IN),
        Memory(6.0 * T * IN),
        Gemm(T, R, IN),
        Gemm(T, OUT, R),
        Memory(4.0 * T * OUT),
        Memory(6.0 * T * OUT),
    )
    assert {save.tensor: save.bytes for save in work.saves} == {"l.l.input": 2 * T * IN, "l.l.lora_A": 2 * T * R}
    assert work.forward_temporary == 4 * T * IN + 4 * T * OUT


def test_an_fp32_adapter_with_dropout_keeps_what_is_left_of_the_cast_input():
    saves = {save.tensor: save.bytes for save in linear(adapters=(Adapter("l", OUT, R, dropout=True, fp32=True),)).work(AT).saves}
    assert saves == {"l.l.dropped": 4 * T * IN, "l.l.mask": T * IN, "l.l.lora_A": 4 * T * R}


@pytest.mark.parametrize("storage", ["nf4", "nf4-dq", "int8"])
def test_beside_bitsandbytes_only_what_is_not_under_autocast_is_cast(storage):
    """PEFT, tuners/lora/bnb.py: requires_conversion = not torch.is_autocast_enabled(); the sum is in 16 bits."""
    layer, plain = (linear(storage=storage, adapters=(Adapter("l", OUT, R, fp32=fp32),)) for fp32 in (True, False))
    under = replace(AT, autocast=True)
    assert layer.work(under) == plain.work(under)
    assert layer.work(AT).forward[-2:] == (Memory(6.0 * T * OUT), Memory(6.0 * T * OUT))


@pytest.mark.parametrize("storage", ["nf4", "nf4-dq"])
def test_a_quantised_product_writes_its_weight_out_both_ways(storage):
    plain, work = linear().work(AT), linear(storage=storage).work(AT)
    (forward,) = [k for k in work.forward if isinstance(k, Memory)]
    assert forward.bytes == 1.8 * (stored_bytes(IN * OUT, storage) + 2 * IN * OUT)
    assert forward in work.backward_input
    assert work.forward_temporary - plain.forward_temporary == 2 * IN * OUT
    assert work.saves == plain.saves == ()
    before = linear(storage=storage, four_bits=FourBits(keeps_inputs=True)).work(AT)
    assert before._replace(saves=()) == work
    assert [(s.tensor, s.bytes) for s in before.saves] == [("x", 2 * T * IN)]


@pytest.mark.parametrize(("source", "bytes_written"), [("fp16", 2), ("fp32", 4), ("bf16", 0)])
def test_a_weight_that_was_quantised_in_another_type_is_cast_once_more(source, bytes_written):
    """MatMul4Bit: dequantize_4bit(B, state).to(A.dtype); both copies exist until the product is done."""
    plain, work = (linear(storage="nf4", four_bits=FourBits(name)).work(AT) for name in ("", source))
    extra = [k for k in work.forward if isinstance(k, Memory)][1:]
    assert extra == ([Memory((bytes_written + 2.0) * IN * OUT)] if bytes_written else [])
    assert [k for k in work.backward_input if isinstance(k, Memory)][1:] == extra
    assert work.forward_temporary - plain.forward_temporary == bytes_written * IN * OUT
    assert work.backward_temporary - plain.backward_temporary == bytes_written * IN * OUT


@pytest.mark.parametrize(("dtype", "cast"), [("bf16", 4), ("fp16", 0)])
def test_a_product_in_eight_bits_casts_its_input_and_its_result(dtype, cast):
    """Forward 9 + 3 B per element of the input and 6 + 2 of the output, and both to fp16 and back; backward 1 + 2 + 2 + 2 of the weight."""
    at = Workload(batch=1, sequence=T, dtype=dtype)
    plain, work = linear().work(at), linear(storage="int8").work(at)
    before, product, behind = work.forward
    assert (before.bytes, behind.bytes) == ((12 + cast) * T * IN, (8 + cast) * T * OUT)
    assert (before.launches, behind.launches) == ((6, 2) if cast else (5, 1))
    assert (product.m, product.n, product.k, product.dtype, product.element) == (T, OUT, IN, "int8", 1)
    back, after = work.backward_input
    assert (back.bytes, back.launches, (after,)) == (7 * IN * OUT, 2, plain.backward_input)
    assert [(s.tensor, s.bytes) for s in work.saves] == [("x", 2 * T * IN)]  # MatMul8bitLt keeps its input
    held = T * max((6 if cast else 4) * IN, IN + (6 if cast else 4) * OUT)  # fp16, |a|, mask and rows; then rows, integers and fp16
    assert work.forward_temporary - plain.forward_temporary == held
    assert work.backward_temporary - plain.backward_temporary == 2 * IN * OUT


def test_every_weight_in_eight_bits_casts_the_input_for_itself():
    pair = FrozenLinear("l", ("x",), "y", IN, (OUT, IN), bias=False, storage="int8", parameter_names=("a", "b")).work(AT)
    assert [(k.n, k.dtype) for k in pair.forward if isinstance(k, Gemm)] == [(OUT, "int8"), (IN, "int8")]
    assert sum(k.bytes for k in pair.forward if isinstance(k, Memory)) == T * (2 * 16 * IN + 12 * (OUT + IN))


def test_a_frozen_norm_does_not_keep_the_normalised_tensor():
    norm = RMSNorm("n", ("x",), "y", 64)
    frozen = RMSNorm("n", ("x",), "y", 64, trainable=False)
    before, after = ({s.tensor: s.bytes for s in n.work(AT).saves} for n in (norm, frozen))
    assert before.pop("n.normalised") == 2 * T * 64
    assert before == after


def test_gradients_stop_at_the_first_trained_parameter():
    """Nothing before layer 0's adapters is differentiated: no embedding, no first norm, no base products of layer 0's q, k, v."""
    tuned = finetuned(model_of("llama-7b"), Finetune())
    embedding, layer = (tape(tuned.blocks[i], Workload(1, 128), input_gradient=False) for i in (0, 1))
    assert embedding.backward == ()
    assert "grad_input" not in layer.tensors
    first = [step for step in layer.backward if step.operator.name in ("attention_norm", "query_key_value")]
    assert [step.phase for step in first if step.kernels] == ["weight"]
    frozen = finetuned(model_of("llama-7b"), Finetune("freeze"))
    assert tape(frozen.blocks[1], Workload(1, 128), input_gradient=False).backward == ()
    assert not tape(frozen.blocks[1], Workload(1, 128), input_gradient=False).saved


def test_saved_bytes_per_token_of_a_layer():
    """HF Llama eager bf16: of T (24 h + 8 f + 4 a + 8) LoRA on q and v loses the second norm's output and normalised tensor, the
    first's normalised tensor, and the product before the down projection: 18 h + 6 f, plus 2 r for each adapter.
    """
    h, f, a, r = 4096, 11008, 32, 8
    tuned = finetuned(model_of("llama-7b"), Finetune(rank=r, targets=("q", "v")))
    taped = tape(tuned.blocks[2], Workload(1, 128))
    assert sum(taped.tensors[name].bytes for name in taped.saved) == 128 * (18 * h + 6 * f + 4 * a + 8 + 2 * 2 * r) + 24
    everywhere = finetuned(model_of("llama-7b"), Finetune(rank=r))
    taped = tape(everywhere.blocks[2], Workload(1, 128))
    assert sum(taped.tensors[name].bytes for name in taped.saved) == 128 * (20 * h + 8 * f + 4 * a + 8 + 7 * 2 * r) + 24


def test_about_four_operations_per_parameter_and_token():
    model = model_of("llama-7b")
    tuned = finetuned(model, Finetune(rank=8, targets=("q", "v")))
    adapters, embedding, s = 4_194_304, 32_000 * 4096, 2048
    flop = 6 * (LLAMA + adapters) - untrained_flop(tuned, s, "palm") / s
    assert flop == 4 * LLAMA + 6 * adapters - 2 * embedding  # the embedding has no backward pass at all
    # the exact count: forward and backward-input of every product once, adapters three times
    exact = untrained_flop(tuned, s, "exact") / s
    assert exact == pytest.approx(2 * (LLAMA - embedding - 65 * 4096), rel=1e-9)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Finetune(targets=("q", "qq")), "no linear layer called 'qq'"),
        (Finetune("freeze", freeze=("attention", "heads")), "no part called 'heads'"),
        (Finetune("freeze", freeze=40), "40 layers to freeze, but llama-7b has 32"),
        (Finetune("freeze", freeze=SpreadLayers(5)), "32 layers of llama-7b are no 5 equal runs"),
        (Finetune("freeze", freeze=("embedding", "layer", "head")), "nothing is left to train"),
        (Finetune("freeze", freeze=("embedding",), train_embeddings=True), "nothing is frozen"),
    ],
)
def test_what_a_model_does_not_have_is_said(recipe, message):
    with pytest.raises(ModelError, match=message):
        finetuned(model_of("llama-7b"), recipe)


def test_fused_experts_have_no_adapters():
    tuned = finetuned(model_of("mixtral-8x7b"), Finetune(rank=8))
    assert trainable_parameter_count(tuned) == 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))


# -- DoRA, modules between operators, experts as linear layers


@pytest.mark.parametrize(
    ("model", "recipe", "count"),
    [
        # DoRA, 2402.09353, table 1: q, k, v, up, down at rank 32 are 0.83 % (LoRA) and 0.84 % (DoRA) of LLaMA-7B
        ("llama-7b", Finetune(rank=32, targets=("q", "k", "v", "up", "down")), 56_098_816),
        ("llama-7b", Finetune(rank=32, targets=("q", "k", "v", "up", "down"), dora=True), 56_098_816 + 32 * (4 * 4096 + 11008)),
        ("llama-7b", Finetune("qlora", rank=16, base="nf4-dq", dora=True), 39_976_960 + 32 * (5 * 4096 + 2 * 11008)),
        ("llama-7b", Finetune("ia3"), 32 * (2 * 4096 + 11008)),
        ("mistral-7b", Finetune("ia3"), 32 * (2 * 1024 + 14336)),
        ("t5-base", Finetune("ia3"), 12 * (2 * 768 + 3072) + 12 * (4 * 768 + 3072)),  # the decoder scales the encoder's keys, too
        ("llama-7b", Finetune("bottleneck", rank=32), 32 * 2 * (2 * 4096 + 2 * 32 * 4096)),
        ("t5-base", Finetune("bottleneck", rank=50), 24 * 2 * (2 * 768 + 2 * 50 * 768)),
        ("bloom-560m", Finetune("prompt", virtual_tokens=8), 8_192),  # PEFT's example of prompt tuning prints 8192
        # PEFT's P-tuning of RoBERTa-large prints 1,351,938, of which the classifier has 1024 x 1024 + 1024 + 2 x 1024 + 2
        (
            "roberta-large",
            Finetune("prompt", virtual_tokens=20, prompt_encoder="mlp", encoder_hidden=128, encoder_layers=3),
            1_351_938 - 1_051_650,
        ),
        # NeMo's TPMLP: first [2048, h] and second [h, 2048] with biases
        ("llama-7b", Finetune("prompt", virtual_tokens=9, prompt_encoder="mlp", encoder_hidden=2048), 9 * 4096 + 2 * 4096 * 2048 + 6144),
        # torch.nn.LSTM(16, 8, 2, bidirectional): 4 x 8 x (16 + 8 + 2) each way in both layers, then 16 x 16 + 16 twice
        ("tiny", Finetune("prompt", virtual_tokens=3, prompt_encoder="lstm"), 3 * 16 + 4 * 32 * 26 + 2 * (16 * 16 + 16)),
        ("mixtral-8x7b", Finetune(rank=8, targets=("q_proj", "v_proj"), linear_experts=True), 3_407_872),
        # 32 x (attention 2 x 8 x 8192 + 2 x 8 x 5120, experts 8 x 3 x 8 x 18432, router 8 x 4104)
        ("mixtral-8x7b", Finetune("qlora", rank=8, base="nf4-dq", linear_experts=True), 121_112_576),
        ("mixtral-8x7b", Finetune(rank=8, targets=("w1", "w3"), linear_experts=True), 32 * 8 * 2 * 8 * 18432),
        ("mixtral-8x7b", Finetune(rank=8, targets=("gate",), linear_experts=True), 32 * 8 * (4096 + 8)),
        ("qwen1.5-moe-a2.7b", Finetune(rank=8, targets=("shared_expert.gate_proj",)), 24 * 8 * (2048 + 5632)),
    ],
)
def test_trainable_parameters_of_other_modules(model, recipe, count):
    whole = tiny() if model == "tiny" else model_of(model)
    tuned = finetuned(whole, recipe)
    assert trainable_parameter_count(tuned) == count
    assert parameter_count(tuned) == parameter_count(whole) + count


def tiny():
    tree = {"family": "llama", "hidden": 16, "layers": 2, "heads": 2, "vocabulary": 32, "mlp": 24, "maximum_sequence": 64}
    return build_model(tree, name="tiny", base_lookup=lambda _: {})


@pytest.mark.parametrize("recipe", [Finetune("bottleneck", rank=4), Finetune("ia3"), Finetune("prompt", virtual_tokens=3)])
def test_modules_stand_between_operators_and_gradients_reach_them(recipe):
    tuned = finetuned(tiny(), recipe)
    at = Workload(batch=2, sequence=16)
    for block in dict.fromkeys(tuned.blocks):
        if block.kind == "embedding" and recipe.method != "prompt":
            continue
        steps = tape(block, at, input_gradient=block.kind != "embedding").backward
        trained = {operator.name for operator in block.operators if any(p.trainable and not p.buffer for p in operator.parameters())}
        assert trained <= {step.operator.name for step in steps}
        assert len({p.name for p in block.parameters()}) == len(block.parameters())  # nothing is lost in the order of registration
    names = [operator.name for operator in tuned.blocks[1].operators]
    if recipe.method == "bottleneck":
        assert names[names.index("attention_output") + 1] == "attention_output_adapter_norm"
        residual = next(operator for operator in tuned.blocks[1].operators if operator.name == "attention_residual")
        assert "attention_output_adapter_sum" in [*residual.inputs, *(o.output for o in tuned.blocks[1].operators if o.output)]


def test_dora_keeps_both_outputs_and_norms_the_weight_anew():
    adapter = Adapter("l", OUT, R, magnitude=True)
    plain, work = linear(adapters=(Adapter("l", OUT, R),)).work(AT), linear(adapters=(adapter,)).work(AT)
    assert [(p.name, p.shape) for p in linear(adapters=(adapter,)).parameters()][-1] == ("l.lora_magnitude_vector.weight", (OUT,))
    kept = {save.tensor: save.bytes for save in work.saves}
    assert kept.pop("l.l.base") == kept.pop("l.l.lora_result") == 2 * T * OUT
    assert kept == {save.tensor: save.bytes for save in plain.saves}
    shapes = [(k.m, k.n, k.k) for k in work.forward if isinstance(k, Gemm)]
    assert shapes == [(T, OUT, IN), (T, R, IN), (T, OUT, R), (IN, R, IN), (IN, OUT, R)]
    moved = sum(k.bytes for k in work.forward if isinstance(k, Memory)) - sum(k.bytes for k in plain.forward if isinstance(k, Memory))
    assert moved == 2 * IN * IN + 12 * IN * OUT + 14 * T * OUT
    moved = sum(k.bytes for k in work.backward_input if isinstance(k, Memory))
    assert moved - sum(k.bytes for k in plain.backward_input if isinstance(k, Memory)) == 30 * T * OUT


def test_dora_multiplies_the_base_again_where_the_input_is_dropped():
    def products(*, dropout):
        work = linear(storage="nf4", adapters=(Adapter("l", OUT, R, dropout=dropout, magnitude=True),)).work(AT)
        return work, [(k.m, k.n, k.k) for k in (*work.forward, *work.backward_input) if isinstance(k, Gemm)]

    (_, once), (work, twice) = products(dropout=False), products(dropout=True)
    assert sorted(twice) == sorted([*once, (T, OUT, IN), (T, IN, OUT)])
    assert {save.tensor: save.bytes for save in work.saves}["l.l.dequantised"] == 2 * IN * OUT


def test_dora_has_no_slices():
    with pytest.raises(ModelError, match="query is a slice of one"):
        finetuned(model_of("gpt2"), Finetune(targets=("q", "v"), dora=True))


def test_experts_of_linear_layers_are_quantised_and_fused_ones_are_not():
    fused = finetuned(model_of("mixtral-8x7b"), Finetune("qlora", base="nf4-dq"))
    linears = finetuned(model_of("mixtral-8x7b"), Finetune("qlora", base="nf4-dq", linear_experts=True))
    for model, storage in ((fused, ""), (linears, "nf4-dq")):
        experts = [p for p in model.blocks[1].parameters() if p.expert and len(p.shape) == 3 and "lora" not in p.name]
        assert {p.storage for p in experts} == {storage}
        assert sum(p.count for p in experts) == 8 * 3 * 4096 * 14336
    with pytest.raises(ModelError, match="has no experts"):
        finetuned(model_of("gpt2"), Finetune(linear_experts=True))
    with pytest.raises(ModelError, match="experts in eight bits"):
        finetuned(model_of("mixtral-8x7b"), Finetune(base="int8", linear_experts=True))


def test_every_expert_launches_its_own_products():
    operators = finetuned(tiny_mixture(), Finetune("qlora", rank=4, base="nf4", linear_experts=True)).blocks[1].operators
    up = next(operator for operator in operators if operator.name == "mixture.experts_up")
    work = up.work(Workload(batch=1, sequence=64))
    rows = 64 * 2 // 4
    assert [(k.m, k.n, k.k, k.batch, k.launches) for k in work.forward if isinstance(k, Gemm)] == [
        (rows, 48, 16, 4, 4),
        *((rows, 4, 16, 4, 4), (rows, 24, 4, 4, 4)) * 2,
    ]
    assert [(k.m, k.n, k.k, k.batch) for k in work.backward_weight] == [(24, 4, rows, 4), (4, 16, rows, 4)] * 2
    written = 1.8 * (stored_bytes(4 * 48 * 16, "nf4") + 6144)
    (dequantised,) = [k for k in work.backward_input if isinstance(k, Memory) and k.bytes == written]
    assert dequantised.launches == 4
    assert work.forward_temporary >= 2 * 48 * 16


def test_experts_and_routers_have_fp32_adapters_too():
    """Linear layers like others: gate and up of all experts cast their own copies of the tokens, and so does the router."""
    recipe = Finetune(rank=4, linear_experts=True, fp32_adapters=True)
    operators = {operator.name: operator for operator in finetuned(tiny_mixture(), recipe).blocks[1].operators}
    copies, at = 64 * 2, Workload(batch=1, sequence=64)
    up = operators["mixture.experts_up"].work(at)
    assert [s.bytes for s in up.saves if s.tensor.endswith(".input")] == [4 * copies * 16] * 2
    assert Memory(6.0 * copies * 16, launches=4, vector=197.0 * copies * 16) in up.forward
    assert {(k.dtype, k.element) for k in up.backward_weight if isinstance(k, Gemm)} == {("fp32", 4)}
    router = next(operator for operator in operators.values() if type(operator).__name__ == "FrozenRouter").work(at)
    assert [s.bytes for s in router.saves if s.tensor.endswith(".input")] == [4 * 64 * 16]


def tiny_mixture():
    tree = {"family": "mixtral", "hidden": 16, "layers": 2, "heads": 2, "vocabulary": 32, "mlp": 24, "maximum_sequence": 64}
    return build_model({**tree, "experts": {"count": 4, "top_k": 2}}, name="tiny", base_lookup=lambda _: {})


def test_ia3_keeps_what_it_scales():
    block = finetuned(tiny(), Finetune("ia3")).blocks[1]
    works = {operator.name: operator.work(Workload(batch=1, sequence=T)) for operator in block.operators}
    keys, middle = works["query_key_value_infused"], works["mlp_infused"]
    assert [(s.tensor, s.bytes) for s in keys.saves] == [("query_key_value_infused.scaled", 2 * T * 32)]
    assert (keys.output, middle.output) == (0, 2 * T * 24)
    assert [(s.tensor, s.bytes) for s in middle.saves] == [("mlp_activation", 2 * T * 24)]
