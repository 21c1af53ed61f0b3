"""Measure this machine and describe it as a device file."""

from __future__ import annotations

import datetime as dt
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.calibration.collectives import collectives, measurements_csv, systems_yaml
from parsim.calibration.document import checked, device_tree, measured_tree, starting_tree, summary, to_yaml
from parsim.calibration.facts import Facts, catalogue_name, cpu_facts, cuda_facts
from parsim.calibration.fit import Fit, fit
from parsim.calibration.stopwatch import Stopwatch, torch_module
from parsim.calibration.sweeps import Sweeper, extent
from parsim.calibration.tables import Tables
from parsim.errors import Finding, ScenarioError, TopologyError
from parsim.hardware.device import device_from_tree
from parsim.scenario import files
from parsim.version import __version__

DEVICES = ("cuda", "cpu")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A measured device and the files that say so."""

    name: str
    tree: dict[str, Any]
    yaml: str
    fit: Fit
    tables: Tables
    facts: Facts
    summary: tuple[str, ...]

    def collective_files(self, device: Path) -> dict[str, str]:
        """File name -> text of the folder for `parsim validate nccl --data`; empty if no collective was measured.

        `device` is the device file, which the folder's description of the machine names.
        """
        rows = self.tables.collectives
        if not rows:
            return {}
        system = slug(self.name)
        title = f"{rows[0].ranks} x {self.name}, {self.tables.date}"
        return {
            "measurements.csv": measurements_csv(rows, system, self.tables.source),
            "systems.yaml": systems_yaml(system, title, str(device.resolve()), rows[0].ranks),
        }


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


def described(facts: Facts, tables: Tables, name: str) -> Calibration:
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


def _believable(facts: Facts, tables: Tables, known: str | None) -> Tables:
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
    """Of everything that the times depend on."""
    found = {"parsim": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for key in ("cuda", "hip"):
        if value := getattr(torch.version, key, None):
            found[key] = str(value)
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    found["system"] = f"{platform.system()} {platform.release()}"
    return found


def slug(name: str) -> str:
    """`name` as a file name: ``cpu-amd-epyc``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


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
