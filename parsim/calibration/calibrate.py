"""Measure this machine and describe it as a device file: fitted parameters, measured tables, and where they come from."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.calibration.collectives import collective_files, collectives
from parsim.calibration.fit import Fit, FitErrors, fit
from parsim.calibration.measurements import (
    DeviceFacts,
    MeasuredTables,
    Timing,
    best_rate,
    catalogue_name,
    cpu_facts,
    cuda_facts,
    streaming_rate,
)
from parsim.calibration.sweeps import Stopwatch, Sweeper, extent, torch_module
from parsim.errors import Finding, ScenarioError, TopologyError
from parsim.hardware.device import Device, device_from_tree
from parsim.kernel import Attention
from parsim.scenario import files
from parsim.scenario.scenario import flow
from parsim.units import format_flops, format_rate
from parsim.version import __version__

DEVICES = ("cuda", "cpu")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A measured device and the files that say so."""

    name: str
    tree: dict[str, Any]
    yaml: str
    fit: Fit
    tables: MeasuredTables
    facts: DeviceFacts
    summary: tuple[str, ...]

    def collective_files(self, device: Path) -> dict[str, str]:
        """The folder of measured collectives beside the device file `device`: see `collectives.collective_files`."""
        rows = self.tables.collectives
        title = f"{rows[0].ranks} x {self.name}, {self.tables.date}" if rows else ""
        return collective_files(rows, self.name, title, self.tables.source, device)


def calibrate(
    device: str | None = None, *, name: str | None = None, quick: bool = False, threads: int | None = None, say: Callable[[str], None]
) -> Calibration:
    """Sweep the device (cuda or cpu; None: cuda if there is one), fit the model, and write down both; `say` hears the progress.

    Raises:
        ScenarioError: PyTorch is not installed, or sees no such device.
    """
    torch = torch_module()
    kind = _device(torch, device)
    if threads is not None:
        torch.set_num_threads(threads)
    facts = cuda_facts(torch) if kind == "cuda" else cpu_facts(torch)
    say(f"{facts.name}, {facts.memory / 2**30:.1f} GiB, {facts.sms} {'multiprocessors' if kind == 'cuda' else 'threads'}")
    torch.manual_seed(0)
    sweeper = Sweeper(Stopwatch(torch, kind, quick=quick), facts.cache, say=say)
    dtypes = facts.dtypes[:2] if quick else facts.dtypes
    tables = sweeper.run(extent(cuda=kind == "cuda", quick=quick, dtypes=dtypes, memory=facts.memory))
    ranks = facts.count if kind == "cuda" else 2
    if ranks > 1:
        say(f"collectives between {ranks} processes")
        tables.collectives = collectives(cuda=kind == "cuda", ranks=ranks, quick=quick, notes=tables.notes)
    tables.date = dt.datetime.now(dt.UTC).date().isoformat()
    tables.versions = versions(torch)
    tables.source = f"parsim calibrate --device {kind}{' --quick' if quick else ''}"
    say("fit")
    return described(facts, tables, name or facts.name)


def described(facts: DeviceFacts, tables: MeasuredTables, name: str) -> Calibration:
    """The device file for what was measured."""
    known = catalogue_name(facts.name, facts.memory, facts.sms)
    tables = _believable(facts, tables, known)
    base = None if known is None else files.read(files.find("devices", known)).tree
    start = starting_tree(facts, tables, base) | {"name": name}
    fitted = fit(device_from_tree(start, "device"), tables)
    tree = device_tree(start, fitted.device, tables)
    lines = summary(fitted, tables)
    head = [
        f"{name}, measured on {tables.date} by {tables.source}",
        f"Datasheet figures from parsim's {known}."
        if known
        else "No datasheet figures: peak and bandwidth are the best that was measured.",
        *lines,
        *tables.notes,
        f"Use it: cluster: {{topology: {{gpu: ./FILE.yaml, count: {facts.count}}}}}",
    ]
    text = to_yaml(tree, head)
    checked(text, "the calibrated device")
    return Calibration(name, tree, text, fitted, tables, facts, tuple(lines))


def _believable(facts: DeviceFacts, tables: MeasuredTables, known: str | None) -> MeasuredTables:
    """The tables without rows that a device file refuses (faster than the datasheet allows, no such peak), which are noted."""
    base = None if known is None else files.read(files.find("devices", known)).tree
    start = starting_tree(facts, tables, base)
    try:
        device_from_tree({**start, "measured": measured_tree(tables)}, "")
    except TopologyError as error:
        refused: dict[str, set[int]] = {}
        for finding in error.findings:
            section, _, rest = finding.path.partition(".")
            table, _, row = rest.partition(".")
            number = row.partition(".")[0]
            if section != "measured" or not number.isdigit():
                raise
            refused.setdefault(table, set()).add(int(number))
            tables.notes.append(f"left out: {finding.path}: {finding.message}")
        kept: dict[str, Any] = {
            name: [row for index, row in enumerate(getattr(tables, name)) if index not in rows] for name, rows in refused.items()
        }
        return replace(tables, **kept)
    return tables


def versions(torch: Any) -> dict[str, str]:
    """Versions of everything that the measured times depend on."""
    known = {"parsim": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for key in ("cuda", "hip"):
        if value := getattr(torch.version, key, None):
            known[key] = str(value)
    if torch.cuda.is_available():
        known["cudnn"] = str(torch.backends.cudnn.version())
    known["system"] = f"{platform.system()} {platform.release()}"
    return known


def _device(torch: Any, wanted: str | None) -> str:
    present = bool(torch.cuda.is_available())
    if wanted is None:
        return "cuda" if present else "cpu"
    if wanted not in DEVICES:
        raise ScenarioError(Finding(f"no kind of device {wanted!r}", "--device", wanted, f"choose from {', '.join(DEVICES)}"))
    if wanted == "cuda" and not present:
        reason = "it was built without CUDA" if torch.version.cuda is None and getattr(torch.version, "hip", None) is None else "no driver"
        text = f"PyTorch {torch.__version__} sees no GPU ({reason})"
        raise ScenarioError(Finding(text, "--device", wanted, "install a PyTorch for your GPU (pytorch.org), or use --device cpu"))
    return wanted


_KERNEL_FEATURES = ("flash2", "mem-efficient", "cudnn")


def starting_tree(facts: DeviceFacts, tables: MeasuredTables, base: Mapping[str, Any] | None) -> dict[str, Any]:
    """The device before fitting: the catalogue's datasheet figures, or what was measured where the catalogue has none."""
    if base is not None:
        tree = {key: value for key, value in base.items() if key not in ("aliases", "measured")}
        memory = {**tree["memory"], "visible": f"{min(facts.memory, _size(base))} B"}
        kernels = {**(tree.get("attention") or {}), **_missing_kernels(tables, tree.get("attention") or {})}
        features = list(dict.fromkeys([*(tree.get("features") or ()), *(name for name in kernels if name in _KERNEL_FEATURES)]))
        return {**tree, "memory": memory, "attention": kernels, "features": features}
    peak = {dtype: format_flops(best_rate(tables.gemm, dtype), digits=6) for dtype in tables.dtypes}
    peak.setdefault("fp32", next(iter(peak.values()), "1 TFLOP/s"))
    features = [name for name in ("bf16", "tf32") if name in peak]
    rate = streaming_rate(tables.copy)
    return {
        "name": facts.name,
        **({"vendor": facts.vendor} if facts.vendor else {}),
        "memory": {
            "size": f"{facts.memory} B",
            "bandwidth": format_rate(rate, digits=6) if rate else "1 TB/s",
            "l2": f"{facts.cache} B",
            "efficiency": 1.0,
            "source": "size and l2: the operating system or driver; bandwidth: the largest measured copy, so efficiency is 1",
        },
        "compute": {
            "sms": facts.sms,
            **({"compute_capability": facts.capability} if facts.capability else {}),
            "peak": peak,
            "source": "peak: the fastest measured product, no datasheet; utilisation is relative to it",
        },
        "gemm": {"efficiency": 0.8, "tile_128": 1.0, "source": "start of the fit"},
        # a CPU's fused attention computes in fp32 whatever the type of its operands
        "attention": {name: entry | ({} if facts.vendor else {"dtype": "fp32"}) for name, entry in _missing_kernels(tables, {}).items()},
        "features": features + [name for name in _missing_kernels(tables, {}) if name in _KERNEL_FEATURES],
        "assumptions": ["compute.peak", "memory.bandwidth"],
    }


def _missing_kernels(tables: MeasuredTables, known: Mapping[str, Any]) -> dict[str, Any]:
    """A starting efficiency for every measured attention kernel that has none."""
    names = dict.fromkeys(row.shape.implementation for row in tables.attention)
    return {name: {"forward": 0.4, "backward": 0.3} for name in names if name not in known}


def _size(base: Mapping[str, Any]) -> int:
    return device_from_tree(base, "device").memory


def device_tree(tree: Mapping[str, Any], fitted: Device, tables: MeasuredTables) -> dict[str, Any]:
    """The device's tree with fitted numbers and measured tables."""
    gemm = fitted.gemm
    efficiency: Any = {"default": _round(gemm.efficiency), **{name: _round(value) for name, value in gemm.by_dtype.items()}}
    when = f"fitted to the measured tables below, {tables.date}"
    new = dict(tree)
    if tables.copy:
        new["memory"] = {**tree["memory"], "efficiency": _round(fitted.memory_efficiency)}
        new["memory"]["source"] = f"{tree['memory'].get('source', '')}; efficiency: the largest measured copy, {tables.date}".lstrip("; ")
    if tables.gemm:
        fields = ("k_half", "wave_quantisation", "tile_128", "weight_gradient", "exposed", "unaligned", "unaligned_128")
        new["gemm"] = {"efficiency": efficiency, **{name: _round(getattr(gemm, name)) for name in fields}, "source": when}
    if tables.attention:
        kernels = {
            name: {key: _round(getattr(entry, key)) for key in ("forward", "backward", "s_half", "d64")} | _only("dtype", entry.dtype)
            for name, entry in fitted.attention.items()
        }
        new["attention"] = {**kernels, "source": when}
    if tables.kernel is not None:
        new["kernel_latency"] = _time(fitted.kernel_latency)
    guesses = [key for key in tree.get("assumptions", ()) if key != "memory.efficiency"]
    new["assumptions"] = guesses
    if not guesses:
        new.pop("assumptions")
    new["measured"] = measured_tree(tables)
    return new


def measured_tree(tables: MeasuredTables) -> dict[str, Any]:
    """The `measured:` section."""
    section: dict[str, Any] = {"date": tables.date, "versions": tables.versions, "source": tables.source}
    launch = {name: _time(value.seconds) for name, value in (("kernel", tables.kernel), ("issue", tables.issue)) if value is not None}
    if "kernel" in launch:
        section["launch"] = launch
    section["gemm"] = [
        {"m": row.shape.m, "n": row.shape.n, "k": row.shape.k}
        | _only("batch", row.shape.batch, 1)
        | {"dtype": row.shape.dtype, "pass": row.step}
        | _timed(row.time)
        for row in tables.gemm
    ]
    section["attention"] = [_core(row.shape) | _timed(row.time) for row in tables.attention]
    section["copy"] = [{"bytes": f"{row.bytes} B"} | _timed(row.time) for row in tables.copy]
    section["optimizer"] = [
        {"kernels": row.kernels, "parameters": row.parameters, "bytes": f"{row.bytes} B"} | _timed(row.time) for row in tables.optimizer
    ]
    return {key: value for key, value in section.items() if value}


def _core(shape: Attention) -> dict[str, Any]:
    return (
        {"batch": shape.batch, "heads": shape.heads}
        | _only("kv_heads", shape.kv_heads, shape.heads)
        | {"queries": shape.queries}
        | _only("keys", shape.keys, shape.queries)
        | {"head_dim": shape.head_dim}
        | _only("value_dim", shape.value_dim, 0)
        | _only("window", shape.window, 0)
        | {"causal": shape.causal, "pass": "backward" if shape.backward else "forward"}
        | {"implementation": shape.implementation, "dtype": shape.dtype}
    )


def to_yaml(tree: Mapping[str, Any], head: Iterable[str]) -> str:
    """A device file: one line per key, one line per measured row."""
    lines = [f"# {line}".rstrip() for line in head]
    for key, value in tree.items():
        lines += _block(key, value, "")
    return "\n".join(lines) + "\n"


def _block(key: str, value: Any, margin: str) -> list[str]:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [f"{margin}{key}:", *(f"{margin}  - {flow(row)}" for row in value)]
    if isinstance(value, Mapping) and any(isinstance(item, (Mapping, list)) or name == "source" for name, item in value.items()):
        return [f"{margin}{key}:", *(line for name, item in value.items() for line in _block(str(name), item, f"{margin}  "))]
    return [f"{margin}{key}: {flow(value)}"]


def checked(text: str, name: str) -> Device:
    """The device that `text` describes; what is written must load."""
    return device_from_tree(files.parse_text(text, name).tree, name)


def summary(fit: Fit, tables: MeasuredTables) -> list[str]:
    """How well the model describes the rows, in words."""
    lines = [
        f"{what}: {_errors(errors)}"
        for what, errors in (
            ("Products by the fitted formula", fit.gemm),
            ("Products predicted from the other rows", fit.gemm_left_out),
            ("Attention by the fitted formula", fit.attention),
            ("Attention predicted from the other rows", fit.attention_left_out),
        )
        if errors is not None
    ]
    timings = [row.time for row in tables.gemm] + [row.time for row in tables.attention]
    timings += [row.time for row in tables.copy] + [row.time for row in tables.optimizer]
    spreads = sorted(time.spread for time in timings)
    if spreads:
        middle, worst = spreads[len(spreads) // 2], spreads[-1]
        lines.append(f"Spread of repeated measurements (quartile distance over median): median {middle:.1%}, worst {worst:.1%}")
    if fit.at_bounds:
        lines.append(f"On the edge of what is physical: {', '.join(fit.at_bounds)}; shapes far from the measured ones are less certain")
    return lines


def _errors(errors: FitErrors) -> str:
    return f"median {errors.median:.1%}, 90th percentile {errors.p90:.1%}, worst {errors.worst:.1%} off, {errors.rows} rows"


def _timed(time: Timing) -> dict[str, Any]:
    return {"time": _time(time.seconds), "spread": _round(time.spread, 3)}


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.6g} us"


def _round(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _only(key: str, value: Any, usual: Any = "") -> dict[str, Any]:
    return {} if value == usual else {key: value}
