"""`parsim calibrate` on this machine's CPU, and a scenario on what it wrote."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from parsim.calibration import sweeps
from parsim.calibration.calibrate import checked
from parsim.calibration.measurements import slug
from parsim.calibration.sweeps import Stopwatch, extent
from parsim.cli import execute
from parsim.validation.published_collectives import measurements

SCENARIO = Path(__file__).parent / "gpt-on-this-machine.yaml"


@pytest.fixture(scope="module")
def calibrated(torch, tmp_path_factory) -> Path:
    """A folder with a device file of this machine, and the scenario."""
    folder = tmp_path_factory.mktemp("calibrated")
    out = folder / "this-machine.yaml"
    assert execute(["calibrate", "--device", "cpu", "--quick", "--threads", "1", "--name", "this machine", "--out", str(out)]) == 0
    shutil.copy(SCENARIO, folder)
    return folder


def test_everything_was_measured(calibrated):
    device = checked((calibrated / "this-machine.yaml").read_text(encoding="utf-8"), "this-machine.yaml")
    found = device.measured
    assert (device.name, device.sms) == ("this machine", 1)
    wanted = extent(cuda=False, quick=True, dtypes=("fp32",), memory=device.memory)
    assert {(row.m, row.n, row.k) for row, _ in found.gemm.rows if row.dtype == "fp32" and not row.weight_gradient} == {
        shape for tokens, inputs, outputs in wanted.linears for shape in ((tokens, outputs, inputs), (tokens, inputs, outputs))
    }
    assert {(row.queries, row.backward) for row, _ in found.attention.rows} == {(s, back) for s in (128, 512) for back in (False, True)}
    assert [size for size, _ in found.copy.points] == [2**16 * 4**power for power in range(6)]
    assert set(found.optimizer) == {"fused", "foreach"}
    assert 0 < found.launch.issue < 1e-2
    assert {"parsim", "torch", "python", "system"} <= set(found.versions)
    assert 1e9 < device.peak["fp32"] < 1e14
    assert 1e8 < device.bandwidth < 1e13


def test_a_scenario_runs_on_it(calibrated, capsys):
    assert execute(["run", str(calibrated / "gpt-on-this-machine.yaml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["fits"] is True
    # 6 x parameters x tokens at the best measured rate is the least that it can take
    assert 0 < report["mfu"] < 1.3
    assert report["breakdown_s"]["optimizer"] > 0


def test_its_collectives_can_be_compared(calibrated):
    data = measurements(calibrated / "this-machine-collectives")
    assert {(point.kind, point.gpus) for point in data.points} >= {("all_reduce", 2), ("all_gather", 2)}
    assert execute(["validate", "nccl", "--data", str(calibrated / "this-machine-collectives"), "--json"]) == 0


def test_nothing_is_overwritten_and_nothing_measured_first(calibrated, capsys):
    assert execute(["calibrate", "--out", str(calibrated / "this-machine.yaml")]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert execute(["calibrate", "--out", str(calibrated / "nowhere" / "x.yaml")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_devices_that_are_not_there(torch, capsys):
    assert execute(["calibrate", "--device", "tpu"]) == 2
    assert "no kind of device 'tpu'; choose from cuda, cpu" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert execute(["calibrate", "--device", "cuda"]) == 2
        assert "sees no GPU" in capsys.readouterr().err


def test_without_pytorch_it_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert execute(["calibrate", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "calibration needs PyTorch" in error
    assert "pip install 'parsim[calibrate]'" in error
    assert list(tmp_path.iterdir()) == []


class Events:
    """torch.cuda as far as a stopwatch uses it: a queue in which a call takes 3 ms and the first one sleeps."""

    def __init__(self) -> None:
        self.queue = 0.0
        self.slept = 0
        self.cuda = self

    def synchronize(self) -> None:
        pass

    def _sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.queue += cycles
        self.slept += 1

    def Event(self, enable_timing):
        assert enable_timing
        owner = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = owner.queue

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other) -> float:
                return other.at - self.at

        return Event()


def test_a_gpu_is_timed_by_its_events_and_not_by_the_host():
    events = Events()

    def call() -> None:
        events.queue += 3.0  # ms

    found = Stopwatch(events, "cuda", quick=True).time([call, call])
    assert found.seconds == pytest.approx(3e-3)
    assert found.spread == pytest.approx(0.0, abs=1e-9)
    assert events.slept >= 2


def test_a_cpu_is_timed_by_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(sweeps, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 0.25e-3

    assert Stopwatch(None, "cpu", quick=True).time([call]).seconds == pytest.approx(0.25e-3)


def test_names_of_files():
    assert slug("CPU AMD EPYC 7763 (64 cores)") == "cpu-amd-epyc-7763-64-cores"
    assert slug("???") == "device"
