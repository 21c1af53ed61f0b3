"""``--moe-permute-fusion``, read and written: what is so without it differs from tool to tool."""

from __future__ import annotations

import pytest
from exports import GPT, arguments, exported, notes
from training_samples import DATA, GIVEN, from_text, of_kind, values

from parsim.errors import ScenarioError
from parsim.interop.import_draft import ImportedScenario

PATH = "parallel.expert.permute_fusion"
MIXTRAL = (DATA / "megatron-mixtral.txt").read_text(encoding="utf-8")
GIVEN_THERE = GIVEN["megatron-mixtral.txt"]
PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: {model}.yaml
    overrides: {{micro_batch_size: 2, global_batch_size: 64, seq_length: 4096, expert_model_parallel_size: {ranks}, {more}}}
"""
TURBO_DEEPEP, FORCED = "enable_primus_turbo: true, use_turbo_deepep: true", "moe_router_force_load_balancing: true"
MIXTURE = {**GPT, "model": "mixtral-8x7b", "parallel": {"expert": {"size": 8, "tensor": 1}, "data": {"strategy": "zero1"}}}


def taken(options: str, **given: object) -> ImportedScenario:
    return from_text(f"{MIXTRAL.rstrip()} {options}", **{**GIVEN_THERE, **given})


def primus(model: str = "deepseek_v2_lite", ranks: int = 8, more: str = "mock_data: true") -> ImportedScenario:
    return from_text(PRIMUS.format(model=model, ranks=ranks, more=more), tool="primus", on="mi355x-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", False),
        ("--moe-permute-fusion", True),
        ("--moe-token-dispatcher-type allgather", False),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --moe-permute-fusion", True),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep", False),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", None),
        ("--expert-model-parallel-size 1", False),
    ],
)
def test_a_command_of_megatron(options: str, said: bool | None) -> None:
    assert values(taken(options)).get(PATH) is said


def test_hybridep_has_kernels_of_its_own() -> None:
    found = taken("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-permute-fusion")
    assert PATH not in values(found)
    assert "--moe-permute-fusion" in of_kind(found, "no effect")


@pytest.mark.parametrize(("model", "said"), [("mixtral-8x7b", False), ("llama-3-8b", None)])
def test_a_model_that_is_named(model: str, said: bool | None) -> None:
    """Its own lines or the catalogue say whether it has experts."""
    assert values(taken("--expert-model-parallel-size 1", model=model)).get(PATH) is said


@pytest.mark.parametrize(("more", "said"), [("", None), ("moe_permute_fusion: false", False), ("moe_permute_fusion: true", True)])
def test_a_configuration_of_nemo(more: str, said: bool | None) -> None:
    """Recipes of its mixtures switch fused kernels on, whatever a file leaves out."""
    text = (DATA / "nemo-gpt.yaml").read_text(encoding="utf-8")
    mixture = text.replace("  optim:", f"  num_moe_experts: 8\n  expert_model_parallel_size: 2\n  {more}\n  optim:")
    assert values(from_text(mixture, on="dgx-a100-80gb", vocabulary=50257)).get(PATH) is said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("mock_data: true", True),
        ("moe_permute_fusion: false", False),
        ("moe_permute_fusion: true", True),
        ("moe_permute_fusion: false, enable_primus_turbo: true, turbo_sync_free_moe_stage: 1", True),
        ("moe_permute_fusion: false, enable_primus_turbo: true, turbo_sync_free_moe_stage: 0", False),
    ],
)
def test_an_experiment_of_primus(more: str, said: bool | None) -> None:
    """Its models have defaults of their own; fewer waits of the host need fused kernels."""
    assert values(primus(more=more)).get(PATH) is said


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("deepseek_v2_lite", "mock_data: true", ("alltoall", None, True, None)),
        ("qwen3_30B_A3B", "mock_data: true", ("alltoall", None, None, None)),
        ("deepseek_v2_lite", "moe_token_dispatcher_type: allgather", ("allgather", None, True, None)),
        ("deepseek_v2_lite", "use_turbo_deepep: true", ("alltoall", None, True, None)),
        ("qwen3_30B_A3B", TURBO_DEEPEP, ("deepep", 32, None, None)),
        (
            "deepseek_v2_lite",
            f"{TURBO_DEEPEP}, turbo_deepep_num_cu: 64, moe_shared_expert_overlap: false, {FORCED}",
            ("deepep", 64, False, "round-robin"),
        ),
        (
            "qwen3_30B_A3B",
            f"enable_primus_turbo: true, turbo_sync_free_moe_stage: 2, {FORCED}, moe_router_force_load_balancing_type: uniform",
            ("deepep", 32, None, None),
        ),
        ("qwen3_30B_A3B", FORCED, ("alltoall", None, None, None)),
    ],
)
def test_how_tokens_of_primus_reach_their_experts(model: str, more: str, said: tuple[object, ...]) -> None:
    """Primus-Turbo's DeepEP replaces the dispatcher, and where balance is forced sends tokens to the experts in turn."""
    found = values(primus(model, more=more))
    assert tuple(found.get(f"parallel.expert.{key}") for key in ("dispatcher", "sms", "shared_overlap", "routing")) == said


def test_deepep_of_primus_has_no_shared_expert_beside_it() -> None:
    with pytest.raises(ScenarioError, match=r"write moe_shared_expert_overlap: false"):
        primus(more=TURBO_DEEPEP)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("enable_primus_turbo: true, use_turbo_grouped_gemm: true", "single"),
        ("use_turbo_grouped_gemm: true", None),
        ("enable_primus_turbo: true, use_turbo_grouped_gemm: false", None),
    ],
)
def test_one_kernel_for_all_experts_of_a_rank(more: str, said: str | None) -> None:
    """Primus-Turbo's grouped GEMM; Transformer Engine launches one for every expert."""
    assert values(primus(more=more)).get("parallel.expert.grouped_gemm") == said
    assert "parallel.expert.grouped_gemm" not in values(primus("llama3.1_8B", 1, more))


def test_a_dense_model_of_primus() -> None:
    found = primus("llama3.1_8B", 1, "moe_permute_fusion: false")
    assert PATH not in values(found)


@pytest.mark.parametrize(
    ("override", "written"),
    [
        ("auto", True),
        ("true", True),
        ("false", False),
    ],
)
def test_an_exported_script(override: str, written: bool) -> None:
    found = exported(MIXTURE, "megatron", f"{PATH}={override}")
    assert ("--moe-permute-fusion" in arguments(found.text)) is written
    assert PATH not in notes(found)
    again = values(from_text(found.text, on="dgx-a100-80gb"))
    assert again[PATH] is (override != "false")


def test_an_exported_script_without_need_of_it() -> None:
    assert "--moe-permute-fusion" not in arguments(exported(MIXTURE, "megatron", "parallel.expert.dispatcher=hybridep").text)
    assert "--moe-permute-fusion" not in arguments(exported(GPT, "megatron").text)
