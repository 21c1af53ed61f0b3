"""The device file that a calibration writes: fitted parameters, measured tables, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from parsim.calibration.facts import Facts
from parsim.calibration.fit import Errors, Fit
from parsim.calibration.tables import Tables, Timing, best_rate, streaming_rate
from parsim.hardware.device import Device, device_from_tree
from parsim.kernel import Attention
from parsim.scenario import files
from parsim.units import format_flops, format_rate

_KERNEL_FEATURES = ("flash2", "mem-efficient", "cudnn")


def starting_tree(facts: Facts, tables: Tables, base: Mapping[str, Any] | None) -> dict[str, Any]:
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


def _missing_kernels(tables: Tables, known: Mapping[str, Any]) -> dict[str, Any]:
    """A starting efficiency for every measured attention kernel that has none."""
    names = dict.fromkeys(row.shape.implementation for row in tables.attention)
    return {name: {"forward": 0.4, "backward": 0.3} for name in names if name not in known}


def _size(base: Mapping[str, Any]) -> int:
    return device_from_tree(base, "device").memory


def device_tree(tree: Mapping[str, Any], fitted: Device, tables: Tables) -> dict[str, Any]:
    """The device's tree with fitted numbers and measured tables."""
    gemm = fitted.gemm
    efficiency: Any = {"default": _round(gemm.efficiency), **{name: _round(value) for name, value in gemm.by_dtype.items()}}
    when = f"fitted to the measured tables below, {tables.date}"
    new = dict(tree)
    if tables.copy:
        new["memory"] = {**tree["memory"], "efficiency": _round(fitted.memory_efficiency)}
        new["memory"]["source"] = f"{tree['memory'].get('source', '')}; efficiency: the largest measured copy, {tables.date}".lstrip("; ")
    if tables.gemm:
        fields = ("k_half", "wave_quantisation", "tile_128", "weight_gradient", "unaligned", "unaligned_128")
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


def measured_tree(tables: Tables) -> dict[str, Any]:
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
        return [f"{margin}{key}:", *(f"{margin}  - {_flow(row)}" for row in value)]
    if isinstance(value, Mapping) and any(isinstance(item, (Mapping, list)) or name == "source" for name, item in value.items()):
        return [f"{margin}{key}:", *(line for name, item in value.items() for line in _block(str(name), item, f"{margin}  "))]
    return [f"{margin}{key}: {_flow(value)}"]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    plain = text.replace(".", "").replace("-", "").replace("_", "").replace("/", "").replace(" ", "")
    letters = text[:1].isalpha() and plain.isalnum() and plain.isascii() and text.lower() not in ("true", "false", "null", "yes", "no")
    quantity = text[:1].isdigit() and len(text.split(" ")) == 2 and plain.isalnum()
    return text if letters or quantity else json.dumps(text, ensure_ascii=False)


def checked(text: str, name: str) -> Device:
    """The device that `text` describes; what is written must load."""
    return device_from_tree(files.parse_text(text, name).tree, name)


def summary(fit: Fit, tables: Tables) -> list[str]:
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


def _errors(errors: Errors) -> str:
    return f"median {errors.median:.1%}, 90th percentile {errors.p90:.1%}, worst {errors.worst:.1%} off, {errors.rows} rows"


def _timed(time: Timing) -> dict[str, Any]:
    return {"time": _time(time.seconds), "spread": _round(time.spread, 3)}


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.6g} us"


def _round(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _only(key: str, value: Any, usual: Any = "") -> dict[str, Any]:
    return {} if value == usual else {key: value}
