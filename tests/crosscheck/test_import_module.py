"""Modules read by `parsim import module` against PyTorch: parameters, FLOP and bytes that autograd saves."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import modules
import pytest
from torch_side import gpu_kernels, ids, saved_bytes, torch

from parsim.calibration.module_trace import traced_module
from parsim.errors import ScenarioError
from parsim.interop.module import ImportedModule, import_traces, module_flop
from parsim.interop.traced_nodes import ModuleTrace
from parsim.model import activations
from parsim.model.catalogue import build_model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload
from parsim.scenario import load
from parsim.scenario.build import build

FILE = Path(modules.__file__)
WORDS = ["2x32:int64", "labels=2x32:int64"]
CASES = {
    "mlp": ["2x64"],
    "residual": ["2x3x64x64"],
    "encoder": ["2x16x64"],
    "gpt": WORDS,
    "gpt2": ["input_ids=2x32:int64", WORDS[1]],
    "crossed": [],
    "llama": ["input_ids=2x32:int64", WORDS[1]],
}


@cache
def traces(name: str) -> tuple[ModuleTrace, ModuleTrace]:
    return traced_module(f"{FILE}:{name}", CASES[name])


def imported(name: str, inputs: list[str], dtype: str | None = None) -> ImportedModule:
    reference = f"{FILE}:{name}"
    found = traces(name) if dtype is None and name in CASES and inputs == CASES[name] else traced_module(reference, inputs, dtype)
    return import_traces(*found, reference, name=name, on="4x a100-sxm-80gb")


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_flop_are_those_of_torch(name: str, tmp_path: Path) -> None:
    """What import_traces counts is compared inside it with torch.utils.flop_counter; the file that it writes says the same."""
    result = imported(name, CASES[name])
    with torch.device("meta"):
        module = getattr(modules, name)()
    file = tmp_path / "scenario.yaml"
    file.write_text(result.yaml)
    model = build(load(str(file))).model
    assert parameter_count(model) == sum(parameter.numel() for parameter in module.parameters())
    small = traces(name)[0]
    assert module_flop(model, small) == small.flop
    assert small.flop[0] > 0


@pytest.mark.parametrize(("name", "times"), [("residual", 2), ("gpt", 3), ("gpt2", 3), ("llama", 3)])
def test_equal_layers_are_written_once(name: str, times: int) -> None:
    blocks = imported(name, CASES[name]).tree["model"]["blocks"]
    assert max(block.get("times", 1) for block in blocks) == times


@pytest.mark.parametrize(("name", "inputs"), [("mlp", (2, 64)), ("residual", (2, 3, 64, 64)), ("gpt", (2, 32))])
def test_saved_bytes_are_those_of_autograd(name: str, inputs: tuple[int, ...]) -> None:
    result = imported(name, CASES[name])
    model = build_model(result.tree["model"], name=name, base_lookup=lambda _: {})
    with torch.device("meta"):
        module = getattr(modules, name)()
    given = (ids(*inputs), ids(*inputs)) if name == "gpt" else (torch.zeros(*inputs, device="meta"),)
    with gpu_kernels("eager"):
        expected = saved_bytes(lambda: module(*given), module)
    predicted = activations.saved_bytes(model, Workload(2, element=4, dtype="fp32", weight_element=4, attention="eager"))
    assert predicted == expected


def test_a_16_bit_module_keeps_what_it_computes_in_fp32() -> None:
    result = imported("llama", CASES["llama"], "bf16")
    lines = [row for block in result.tree["model"]["blocks"] for row in block["operators"]]
    norm = next(row for row in lines if row["name"].endswith("input_layernorm.pow"))
    assert (norm["reads"], norm["writes"]) == (["8192B"], "8192B")
    assert lines[-1]["upcast"]
    assert result.tree["model"]["input"]["dtype"] == "bf16"


def test_a_mask_is_causal_where_the_module_says_so() -> None:
    rows = [row for block in imported("llama", CASES["llama"]).tree["model"]["blocks"] for row in block["operators"]]
    assert {row["causal"] for row in rows if row["op"] == "attention"} == {True}
    assert not imported("llama", CASES["llama"]).warnings


def test_what_is_not_known_is_listed_or_refused() -> None:
    assert imported("spectral", ["2x32"]).tree["model"]["unmapped"][0].startswith("fft_fft -> [2, 32] x 1 (0.0%")
    with pytest.raises(ScenarioError, match=r"lstm -> .* holds parameters"):
        imported("recurrent", ["2x4x16"])
    with pytest.raises(ScenarioError, match="uses: idle"):
        imported("lone", ["2x8"])
    with pytest.raises(ScenarioError, match="is no input"):
        imported("mlp", ["2 by 3"])
