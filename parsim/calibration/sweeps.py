"""The sweeps: which shapes are run on the device, how PyTorch runs them, and how long they take.

Times are those of a warm, repeated call: the median and its spread. On a GPU the time between two events of a queue that the host has
filled beforehand: while a first kernel sleeps, the calls are issued, so the host's own time does not count. On a CPU the wall clock of
a run of calls.

A linear layer of `tokens` rows from `inputs` to `outputs` features gives three products, in the layouts in which autograd runs
them: forward y = x W^T, the input's gradient dy W, the weight's gradient dy^T x.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from parsim.calibration.measurements import Copy, Core, MeasuredProduct, MeasuredTables, OptimizerStep, Timing, timing
from parsim.errors import Finding, ScenarioError
from parsim.kernel import Attention, Gemm

_TORCH_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ELEMENT = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_MOST_OPERANDS = 8
"""sets of operands that take turns"""

Linear = tuple[int, int, int]
"""tokens, inputs, outputs"""


@dataclass(frozen=True, slots=True)
class Extent:
    """Shapes, sizes and types that the sweeps run."""

    linears: Sequence[Linear]
    dtypes: Sequence[str]
    attention: Sequence[tuple[int, int, int, int, bool]]
    """batch, heads, sequence, head size, causal"""
    copies: Sequence[int]
    """bytes read plus written [B]"""
    parameters: Sequence[int]


def extent(*, cuda: bool, quick: bool, dtypes: Sequence[str], memory: int) -> Extent:
    """The usual sweep of a GPU or a CPU with `memory` bytes."""
    hidden: tuple[int, ...]
    tokens: tuple[int, ...]
    if cuda:
        hidden, tokens = ((4096,), (2048, 8192)) if quick else ((1024, 2048, 4096, 5120, 8192), (512, 2048, 8192))
        skinny, lengths, most = (16, 128), ((1024, 4096) if quick else (512, 1024, 2048, 4096, 8192, 16384)), 2**26 if quick else 2**32
        cores = [(max(1, 16384 // s), 4096 // d // 2, s, d, True) for s in lengths for d in ((128,) if quick else (64, 128))]
        cores += [] if quick else [(max(1, 16384 // s), 16, s, 128, False) for s in (512, 2048, 8192)]
        parameters: tuple[int, ...] = (10**7, 10**8) if quick else (10**6, 10**7, 10**8, 10**9)
    else:
        hidden, tokens = ((256, 512), (128, 512)) if quick else ((256, 512, 768, 1024, 2048), (64, 256, 1024))
        skinny, lengths, most = (1, 16), ((128, 512) if quick else (64, 128, 256, 512, 1024, 2048)), 2**27 if quick else 2**30
        cores = [(max(1, 512 // s), 8, s, d, True) for s in lengths for d in ((64,) if quick else (32, 64, 128))]
        cores += [] if quick else [(max(1, 512 // s), 8, s, 64, False) for s in (128, 512)]
        parameters = (10**6, 4 * 10**6) if quick else (10**5, 10**6, 10**7, 10**8)
    linears: list[Linear] = []
    for h in hidden:
        linears += [shape for t in tokens for shape in ((t, h, h), (t, h, 4 * h), (t, 4 * h, h))]
        linears += [(t, h, 4 * h) for t in skinny]
    if not quick:
        linears += [(tokens[-1], h, 50304 if cuda else 8192) for h in hidden[1:3]]
    smallest = 2**16 if quick else 2**13
    copies = [smallest * 4**power for power in range(int(math.log(most / smallest, 4)) + 1)]
    return Extent(
        linears=[shape for shape in dict.fromkeys(linears) if 12 * max(a * b for a in shape for b in shape) < memory // 4],
        dtypes=dtypes,
        attention=[core for core in cores if 16 * core[0] * core[1] * core[2] * core[3] * 10 < memory // 4],
        copies=[size for size in copies if size < memory // 4],
        parameters=[count for count in parameters if 24 * count < memory // 2],
    )


@dataclass(slots=True)
class Sweeper:
    """Runs the sweeps on one device and fills tables."""

    watch: Stopwatch
    cache: int
    """last-level cache [B]: operands are changed until they do not fit"""
    tables: MeasuredTables = field(default_factory=MeasuredTables)
    say: Callable[[str], None] = lambda _: None

    def run(self, extent: Extent) -> MeasuredTables:
        """Run all sweeps; the tables that they filled."""
        self.launch()
        self.copies(extent.copies)
        for dtype in extent.dtypes:
            self.products(extent.linears, dtype)
        self.attention(extent.attention, extent.dtypes)
        self.steps(extent.parameters)
        return self.tables

    def launch(self) -> None:
        """The smallest kernel on the device, and what the host needs to issue it."""
        self.say("launch")
        one = self._random((1,), "fp32")
        self.tables.kernel = self.watch.time([lambda: one.add_(1.0)])
        square = self._random((64, 64), "fp32")
        self.tables.issue = self.watch.issue_time(lambda: self.watch.torch.nn.functional.linear(square, square))

    def copies(self, sizes: Sequence[int]) -> None:
        """A tensor copied to another one; half of the bytes are read, half written."""
        self.say(f"copy: {len(sizes)} sizes")
        for size in sizes:
            with self._room(f"copy of {size} B"):
                source = self._random((size // 8,), "fp32")
                target = self.watch.torch.empty_like(source)
                self.tables.copy.append(Copy(size, self.watch.time([_copy(target, source)])))

    def products(self, linears: Sequence[Linear], dtype: str) -> None:
        """Forward and both gradients of linear layers."""
        self.say(f"matrix products, {dtype}: {len(linears)} layers")
        torch = self.watch.torch
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for tokens, inputs, outputs in linears:
            with self._room(f"{dtype} product {tokens} x {inputs} x {outputs}"):
                element = _ELEMENT[dtype]
                moved = element * (tokens * inputs + inputs * outputs + tokens * outputs)
                sets = max(1, min(_MOST_OPERANDS, -(-2 * self.cache // moved)))
                x = [self._random((tokens, inputs), dtype) for _ in range(sets)]
                weight = [self._random((outputs, inputs), dtype) for _ in range(sets)]
                gradient = [self._random((tokens, outputs), dtype) for _ in range(sets)]
                runs = (
                    ("forward", Gemm(tokens, outputs, inputs), [_product(torch, a, b.t()) for a, b in zip(x, weight, strict=True)]),
                    (
                        "backward_input",
                        Gemm(tokens, inputs, outputs),
                        [_product(torch, a, b) for a, b in zip(gradient, weight, strict=True)],
                    ),
                    (
                        "backward_weight",
                        Gemm(outputs, inputs, tokens),
                        [_product(torch, a.t(), b) for a, b in zip(gradient, x, strict=True)],
                    ),
                )
                for step, shape, calls in runs:
                    self._product(step, shape, dtype, self.watch.time(calls))

    def _product(self, step: str, shape: Gemm, dtype: str, time: Timing) -> None:
        product = Gemm(shape.m, shape.n, shape.k, 1, dtype, _ELEMENT[dtype], weight_gradient=step == "backward_weight")
        if all((row.shape, row.step) != (product, step) for row in self.tables.gemm):
            self.tables.gemm.append(MeasuredProduct(product, step, time))

    def attention(self, cores: Sequence[tuple[int, int, int, int, bool]], dtypes: Sequence[str]) -> None:
        """Fused attention forward and backward, every kernel that runs here."""
        torch = self.watch.torch
        for name, backend in backends(torch, cuda=self.watch.cuda).items():
            for dtype in dtypes:
                if dtype == "tf32" or (dtype == "fp32" and name != "mem-efficient"):
                    continue
                self.say(f"attention, {name}, {dtype}: {len(cores)} shapes")
                for number, core in enumerate(cores):
                    with warnings.catch_warnings(action="ignore"):  # PyTorch gives a warning for every reason against a kernel
                        runs = self._core(name, backend, dtype, core)
                    if not runs and number == 0:
                        break

    def _core(self, name: str, backend: Any, dtype: str, core: tuple[int, int, int, int, bool]) -> bool:
        """One shape; whether the kernel exists for it."""
        torch = self.watch.torch
        batch, heads, sequence, head_dim, causal = core
        shape = Attention(batch, heads, heads, sequence, sequence, head_dim, causal, implementation=name, dtype=dtype)
        before = len(self.tables.notes)
        with self._room(f"{name} attention, {dtype}, {sequence} tokens"):
            q, k, v, gradient = (self._random((batch, heads, sequence, head_dim), dtype) for _ in range(4))
            for tensor in (q, k, v):
                tensor.requires_grad_()

            def forward() -> Any:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            with torch.nn.attention.sdpa_kernel(backend):
                with torch.no_grad():
                    self.tables.attention.append(Core(shape, self.watch.time([forward])))
                out = forward()

                def backward() -> Any:
                    return torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

                back = Attention(batch, heads, heads, sequence, sequence, head_dim, causal, backward=True, implementation=name, dtype=dtype)
                self.tables.attention.append(Core(back, self.watch.time([backward])))
        return len(self.tables.notes) == before

    def steps(self, counts: Sequence[int]) -> None:
        """Adam steps on fp32 weights, in tensors as large as those of a model."""
        torch = self.watch.torch
        for kernels in ("fused", "foreach"):
            self.say(f"Adam step, {kernels}: {len(counts)} sizes")
            for count in counts:
                with self._room(f"{kernels} Adam step of {count} parameters"):
                    tensors = max(1, min(24, count // 50_000))
                    weights = [torch.nn.Parameter(self._random((count // tensors,), "fp32")) for _ in range(tensors)]
                    for weight in weights:
                        weight.grad = self._random(tuple(weight.shape), "fp32")
                    optimizer = torch.optim.AdamW(weights, **{kernels: True})
                    self.tables.optimizer.append(OptimizerStep(kernels, tensors * (count // tensors), self.watch.time([optimizer.step])))

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Normal numbers: zeros would draw less power and run at a higher clock."""
        torch = self.watch.torch
        return torch.randn(shape, device=self.watch.device, dtype=getattr(torch, _TORCH_DTYPES[dtype]))

    @contextlib.contextmanager
    def _room(self, what: str) -> Iterator[None]:
        """A point that does not run here (no memory, no such kernel) is noted and left out."""
        try:
            yield
        except RuntimeError as error:
            first = next(iter(str(error).splitlines()), "RuntimeError")
            self.tables.notes.append(f"left out: {what}: {first[:160]}")
        finally:
            if self.watch.cuda:
                self.watch.torch.cuda.empty_cache()


def backends(torch: Any, *, cuda: bool) -> dict[str, Any]:
    """parsim's name of a fused attention kernel -> PyTorch's backend.

    The fused kernel of a CPU counts as mem-efficient: like that one it takes fp32 too.
    """
    known = torch.nn.attention.SDPBackend
    if not cuda:
        return {"mem-efficient": known.FLASH_ATTENTION}
    return {"flash2": known.FLASH_ATTENTION, "mem-efficient": known.EFFICIENT_ATTENTION, "cudnn": known.CUDNN_ATTENTION}


def _copy(target: Any, source: Any) -> Call:
    return lambda: target.copy_(source)


def _product(torch: Any, a: Any, b: Any) -> Call:
    return lambda: torch.mm(a, b)


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
