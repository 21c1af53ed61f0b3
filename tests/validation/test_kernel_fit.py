"""validation/gemm/fit.py: the numbers in the device files are those that it finds, and they mean something."""

import runpy
import shutil
import sys
from dataclasses import replace

import pytest

from parsim.errors import ScenarioError
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import gemm_time
from parsim.scenario.files import data_root, find, names, read
from parsim.validation import kernel_fit
from parsim.validation.kernel_fit import mean_error, parameter, refit, with_parameters, write
from parsim.validation.published_kernels import ParameterFit, benchmark_device, kernel_measurements


@pytest.fixture(scope="module")
def measured():
    return kernel_measurements()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "t4-16gb", "h100-sxm-80gb", "h800-sxm-80gb", "h20-sxm-96gb"])
def test_the_device_files_hold_the_fit(measured, name):
    found = refit(measured, name)
    for file in found.entry.files:
        card = benchmark_device(file)
        for key, value in found.fitted.items():
            assert parameter(card, key) == pytest.approx(value, rel=0.01, abs=0.002 if key != "latency" else 0.0), f"{file}: {key}"


@pytest.mark.slow
def test_the_a100_keeps_numbers_that_are_as_good(measured):
    found = refit(measured, "a100-pcie-80gb")
    assert found.entry.keep
    for fitted, written in found.errors.values():
        assert written - fitted < 0.001
    assert found.fitted["efficiency"] == pytest.approx(found.written["efficiency"], rel=0.01)
    for key in found.written:
        if "." in key:
            assert found.written[key] == pytest.approx(found.fitted[key], rel=0.01)


@pytest.mark.slow
def test_the_b200_keeps_numbers_that_are_as_good(measured):
    found = refit(measured, "b200-sxm-180gb")
    assert found.entry.keep
    for file in found.entry.files:
        card = benchmark_device(file)
        for key, value in found.fitted.items():
            if key == "clock":
                assert found.written[key] == pytest.approx(value, abs=0.002)
                continue
            if not key.startswith("cudnn"):
                assert parameter(card, key) == pytest.approx(value, rel=0.01, abs=0.008), f"{file}: {key}"
            assert parameter(card, key) == found.written[key]
    for fitted, written in found.errors.values():
        assert written - fitted < 0.001


@pytest.mark.parametrize("name", names("devices"))
def test_efficiencies_are_physical(name):
    card = device_from_tree(read(find("devices", name)).tree)
    shape = card.gemm
    for value in (shape.efficiency, *shape.by_dtype.values()):
        assert 0.3 < value <= 1.0
    assert 0.75 <= card.memory_efficiency <= 0.92  # what BabelStream reaches: 0.77 on an MI300X, 0.92 on a V100
    assert 0.0 <= shape.wave_quantisation <= 1.0
    assert 0.0 <= shape.k_half <= 400  # 392 on an MI355X, whose tiles are 256 x 256
    for table in card.attention.values():
        assert 0.0 < table.backward <= table.forward <= 1.0


def test_sxm_cards_of_the_a100_are_7_percent_faster():
    # the ratio of the best products of a sweep, 271.2 and 252.9 TFLOP/s, and of what both sustain
    pcie, sxm = benchmark_device("a100-pcie-80gb"), benchmark_device("a100-sxm-80gb")
    assert sxm.gemm.efficiency == pytest.approx(271.2 / 252.9 * pcie.gemm.efficiency, rel=0.002)
    assert replace(sxm.gemm, efficiency=0.0) == replace(pcie.gemm, efficiency=0.0)
    for name in ("flash2", "cudnn"):
        assert sxm.attention[name].forward == pytest.approx(1.07 * pcie.attention[name].forward, rel=1e-3)
        assert sxm.attention[name].backward == pytest.approx(1.07 * pcie.attention[name].backward, rel=1e-3)


@pytest.mark.parametrize("name", names("devices"))
def test_no_device_holds_what_a_training_run_taught(name):
    tree = read(find("devices", name)).tree
    assert "clock_derate" not in tree["compute"]
    for block in ("compute", "gemm", "attention"):
        for word in ("training step", "training run", "llm-foundry"):
            assert word not in tree[block]["source"], f"{name}: {block}"


def test_what_a_machine_sustains_is_not_written_into_device_files(measured, tmp_path, monkeypatch):
    path = tmp_path / "b200.yaml"
    shutil.copy(find("devices", "b200-sxm-180gb"), path)
    monkeypatch.setattr(kernel_fit, "find", lambda kind, name: path)
    entry = measured.entries["b200-sxm-180gb"]
    write(kernel_fit.Refit(entry, {"clock": 0.5, "exposed": 0.4}, {}, {}), "b200")
    card = device_from_tree(read(path).tree)
    assert (card.clock_derate, card.gemm.exposed) == (1.0, 0.4)
    slower = with_parameters(card, {"clock": 0.5})
    assert parameter(slower, "clock") == slower.clock_derate == 0.5


@pytest.mark.parametrize(("efficiency", "k_half"), [(0.5, 20.0), (0.62, 250.0), (0.9, 90.0)])
def test_the_search_finds_what_made_the_times(measured, efficiency, k_half):
    base = measured.devices["a100-pcie-80gb"]
    truth = with_parameters(base, {"efficiency": efficiency, "k_half": k_half})
    rows = [row for row in measured.products if row.device == "a100-pcie-80gb" and row.kind == "gemm"][::12]
    made = [replace(row, time=gemm_time(truth, row.gemm)) for row in rows]
    fit = ParameterFit("bf16", "all", {"efficiency": (0.3, 1.0, 0.7), "k_half": (0.0, 600.0, 128.0)})
    found = kernel_fit._search(base, made, fit, {"efficiency": 0.7, "k_half": 128.0})
    assert mean_error(with_parameters(base, found), made) < 0.001
    assert found["efficiency"] == pytest.approx(efficiency, rel=0.005)
    assert found["k_half"] == pytest.approx(k_half, abs=5)


def test_simplex_stays_inside_and_finds_a_corner():
    found = kernel_fit._simplex(lambda place: 1 + (place[0] - 0.3) ** 2 + abs(place[1] - 2.0), [0.8, 0.5])
    assert found == pytest.approx([0.3, 1.0], abs=0.02)


def test_only_the_numbers_change(measured, tmp_path, monkeypatch):
    path = tmp_path / "v100.yaml"
    shutil.copy(find("devices", "v100-sxm2-16gb"), path)
    before = path.read_text()
    monkeypatch.setattr(kernel_fit, "find", lambda kind, name: path)
    entry = measured.entries["v100-sxm2-16gb"]
    values = {"efficiency": 0.5, "efficiency.fp32": 0.6, "k_half": 100.0, "latency": 3e-6, "mem-efficient.forward": 0.2}
    assert write(kernel_fit.Refit(entry, values, {}, {}), "v100") == path
    card = device_from_tree(read(path).tree)
    assert {key: parameter(card, key) for key in values} == values
    changed = [pair for pair in zip(before.splitlines(), path.read_text().splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 4
    with pytest.raises(ScenarioError, match=r"triton-fa1\.block does not stand"):
        write(kernel_fit.Refit(entry, {"triton-fa1.block": 1.0}, {}, {}), "v100")


def test_what_cannot_be_fitted(measured):
    with pytest.raises(ScenarioError, match="nothing of 'b300-sxm-288gb' is fitted"):
        refit(measured, "b300-sxm-288gb")
    entry = measured.entries["t4-16gb"]
    wrong = replace(entry, fits=(ParameterFit("fp16", "all", {"eficiency": (0, 1, 0.5)}),))
    with pytest.raises(ScenarioError, match="unknown parameter 'eficiency'"):
        refit(replace(measured, entries={"t4-16gb": wrong}), "t4-16gb")
    empty = replace(entry, fits=(ParameterFit("fp64", "all", {"efficiency": (0, 1, 0.5)}),))
    with pytest.raises(ScenarioError, match="no rows of fp64"):
        refit(replace(measured, entries={"t4-16gb": empty}), "t4-16gb")


def test_the_script_prints(measured, capsys, monkeypatch):
    script = data_root() / "validation" / "gemm" / "fit.py"
    monkeypatch.setattr(sys, "argv", [str(script), "h100-sxm-80gb"])
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert "flash2.forward       fitted 0.385" in out
    assert "mean |error|, flash3" in out
