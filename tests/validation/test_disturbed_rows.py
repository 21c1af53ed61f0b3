"""The table in docs/variability.md is that of validation/runs/disturbed.csv, whose rows are those of today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from published_runs import published

from parsim.validation.predicted_runs import inputs

HOME = Path(__file__).resolve().parents[2] / "validation" / "runs"


def test_the_table_is_that_of_the_data() -> None:
    spec = importlib.util.spec_from_file_location("disturb_runs", HOME / "disturb.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = module.read(module.DISTURBED)
    assert module.table(known) in module.PAGE.read_text(encoding="utf-8")
    rows = {row.id: inputs(row) for source in published() for row in source.rows}
    assert {name: one["inputs"] for name, one in known.items()} == {name: rows[name] for name in known}
