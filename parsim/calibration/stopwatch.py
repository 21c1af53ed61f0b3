"""How long something takes on a device: warm, repeated, the median and its spread.

On a GPU the time between two events of a queue that the host has filled beforehand: while a first kernel sleeps, the calls
are issued, so the host's own time does not count. On a CPU the wall clock of a run of calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from parsim.calibration.tables import Timing, timing
from parsim.errors import Finding, ScenarioError

_LONGEST_QUEUE = 200
"""calls that are issued ahead; the driver holds about a thousand"""
_CYCLES_PER_SECOND = 2.5e9
"""a clock that no GPU exceeds: sleeping too long costs little, too short spoils the measurement"""

Call = Callable[[], object]


def torch_module() -> Any:
    """PyTorch, which only calibration needs.

    Raises:
        ScenarioError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        repair = "pip install 'parsim[calibrate]', or PyTorch as pytorch.org says for your GPU"
        raise ScenarioError(Finding(f"calibration needs PyTorch: {error}", suggestion=repair)) from None


class Stopwatch:
    """Times calls on one device."""

    def __init__(self, torch: Any, device: str, *, quick: bool) -> None:
        self.torch = torch
        self.device = device
        self.window = 0.004 if quick else 0.02
        """shortest run of calls that one sample times [s]"""
        self.repeats = 5 if quick else 15
        self.budget = 0.25 if quick else 2.0
        """after which a point has enough samples [s]"""

    @property
    def cuda(self) -> bool:
        """Whether times are those of a GPU."""
        return self.device.startswith("cuda")

    def time(self, calls: Sequence[Call]) -> Timing:
        """Time of one call; `calls` do the same on different data and take turns, so that data come from memory."""
        began = perf_counter()
        issue = self._warm(calls)
        count = self._count(calls, issue)
        samples: list[float] = []
        while len(samples) < 2 or (len(samples) < self.repeats and perf_counter() - began < self.budget):
            samples.append(self._sample(calls, count, issue) / count)
        return timing(samples)

    def issue_time(self, call: Call, count: int = 200) -> Timing:
        """Time the host needs for one call [s]; it does not wait for the device."""
        self._warm([call])
        samples = []
        for _ in range(self.repeats):
            began = perf_counter()
            for _ in range(count):
                call()
            samples.append((perf_counter() - began) / count)
            self.synchronize()
        return timing(samples)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def _warm(self, calls: Sequence[Call]) -> float:
        """Every call once (libraries choose their kernels), then the host's time for one."""
        for call in calls:
            call()
        self.synchronize()
        began = perf_counter()
        calls[0]()
        issue = perf_counter() - began
        self.synchronize()
        return issue

    def _count(self, calls: Sequence[Call], issue: float) -> int:
        """How many calls fill the window."""
        one = self._sample(calls, 1, issue)
        count = max(1, min(100_000, round(self.window / max(one, 1e-7))))
        return min(count, _LONGEST_QUEUE) if self.cuda else count

    def _sample(self, calls: Sequence[Call], count: int, issue: float) -> float:
        """Seconds of `count` calls."""
        if not self.cuda:
            began = perf_counter()
            for number in range(count):
                calls[number % len(calls)]()
            return perf_counter() - began
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        cuda._sleep(int(_CYCLES_PER_SECOND * (1.5 * issue * count + 20e-6)))  # noqa: SLF001 - what PyTorch's own benchmarks use
        start.record()
        for number in range(count):
            calls[number % len(calls)]()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
