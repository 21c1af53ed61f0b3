"""Which products of an fp8 job are fp8: projections and experts of layers; embedding, head, router and attention cores only if said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import MIB, job, model_of

from parsim.hardware.kernels import kernel_time
from parsim.kernel import Attention, Gemm
from parsim.model.liveness import tape
from parsim.parallel.training import KEPT
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.precision import PRESETS

FP8 = PRESETS["fp8"]


def without(*parts):
    return replace(FP8, keep=tuple(part for part in KEPT if part not in parts))


def types(run):
    """Kind of block -> operator -> types of its products and cores, both ways."""
    found = {}
    for block in run.plan.model.blocks:
        entry = tape(block, run.plan.workload)
        for step in (*entry.forward, *entry.backward):
            for kernel in step.kernels:
                if isinstance(kernel, (Gemm, Attention)):
                    found.setdefault(block.kind, {}).setdefault(step.operator.name, set()).add(
                        (kernel.dtype, getattr(kernel, "element", 0))
                    )
    return found


@pytest.mark.parametrize("implementation", ["flash2", "eager", "cudnn"])
def test_layers_are_fp8_and_what_stacks_keep_is_not(implementation):
    found = types(job("llama-3.2-1b", precision=FP8, attention=implementation))
    cores = {"attention": {("bf16", 2 if implementation == "eager" else 0)}}
    assert found["head"] == {"lm_head": {("bf16", 2)}}
    assert {name: kinds for name, kinds in found["layer"].items() if name == "attention"} == cores
    assert {frozenset(kinds) for name, kinds in found["layer"].items() if name != "attention"} == {frozenset({("fp8", 1)})}


def test_parts_that_are_not_kept():
    assert types(job("llama-3.2-1b", precision=without("head")))["head"] == {"lm_head": {("fp8", 1)}}
    core = types(job("llama-3.2-1b", precision=without("attention"), attention="cudnn"))["layer"]["attention"]
    assert core == {("fp8", 0)}
    routers = [types(job("mixtral-8x7b", precision=one))["layer"]["mixture.router"] for one in (FP8, without("router"))]
    assert routers == [{("bf16", 2)}, {("fp8", 1)}]
    patches = [types(job("vit-base", precision=one))["embedding"] for one in (FP8, without("embedding"))]
    assert [{dtype for kinds in found.values() for dtype, _ in kinds} for found in patches] == [{"bf16"}, {"fp8"}]


def test_other_precisions_do_not_ask():
    for name in ("fp32", "fp16", "bf16"):
        kinds = types(job("llama-3.2-1b", precision=PRESETS[name], attention="eager"))
        assert {dtype for block in kinds.values() for found in block.values() for dtype, _ in found} == {name}


def test_a_head_in_bf16_has_no_fp8_copy():
    """Llama 3.1 8B: head and table have 128,256 x 4096 elements each; the layers' matrices have a byte each beside the weights."""
    sizes = {}
    for one in (FP8, without("head")):
        rows = job("llama-3-8b", precision=one).lowering.passes_of(0).table.rows
        sizes[one.keep] = {row.name: row.bytes for row in rows if row.name.endswith(".cast")}
    kept, whole = sizes[FP8.keep], sizes[without("head").keep]
    assert set(whole) - set(kept) == {"head.lm_head.weight.cast"}
    assert whole["head.lm_head.weight.cast"] == 128_256 * 4096
    assert not any("embed" in name for name in whole)


def test_saved_activations_follow():
    """The head keeps its bf16 input instead of an fp8 copy; an fp8 core keeps Q, K, V and its output in one byte."""
    blocks = {block.kind: block for block in model_of("llama-3.2-1b").blocks}

    def saved(kind, precision):
        entry = tape(blocks[kind], job("llama-3.2-1b", precision=precision, attention="cudnn", sequence_length=1024).plan.workload)
        return {name: entry.tensors[name].bytes for name in entry.saved}

    tokens, hidden = 1024, 2048
    assert saved("head", without("head"))["lm_head.input_fp8"] == tokens * hidden
    assert "lm_head.input_fp8" not in saved("head", FP8)
    both = [sum(saved("layer", one).values()) for one in (FP8, without("attention"))]
    # q and output 2048 wide, k and v 512 each (8 of 32 heads): a byte less for each element
    assert both[0] - both[1] == tokens * (2048 + 2048 + 512 + 512) == 5 * MIB


def scenario(*overrides):
    job_of_8k = {
        "model": "llama-3-8b",
        "training": {"sequence_length": 8192, "micro_batch": 1, "gradient_accumulation": 1, "precision": "fp8", "attention": "cudnn"},
        "parallel": {"data": {"strategy": "zero1"}}, "software": {"profile": "megatron-core"},
        "cluster": {"topology": "hgx-h100"},
    }  # fmt: skip
    return load(job_of_8k, *overrides)


def test_an_attention_core_of_8k_tokens_takes_its_bf16_time():
    """H100, 32 heads of 128, 8,192 tokens, causal: 0.55 TFLOP in 0.87 ms; in fp8 at 0.519 of a peak twice as high."""
    built = build(scenario())
    device = built.cluster.device(0)
    core = Attention(1, 32, 8, 8192, 8192, 128, causal=True, implementation=built.training.attention)
    in_fp8 = replace(core, dtype="fp8")
    assert kernel_time(device, core) == pytest.approx(0.869e-3, rel=0.01)
    ramp = 8192 / (8192 + 2 * 477 + 128)
    assert kernel_time(device, in_fp8) == pytest.approx(core.flop / (1979e12 * 0.549 * ramp) + 2e-6, rel=0.01)
    run = simulate(scenario())
    work = {kernel for kernel in run_kernels(built) if isinstance(kernel, Attention) and not kernel.backward}
    assert work == {core}
    assert {a.name: a.value for a in run.measured.assumptions}["fp8_keep"] == "embedding, head, router, norm, attention"


def run_kernels(built):
    from parsim.scenario.built import clock_of, plan_of

    plan = plan_of(built, clock_of(built))
    for block in plan.model.blocks:
        for step in tape(block, plan.workload).forward:
            yield from step.kernels
