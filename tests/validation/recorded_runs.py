"""What validation/runs/predict.py wrote, read once for all tests that look at it; and that script as a module."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from published_runs import published

from parsim.scenario.confidence import known_runs

_SPEC = importlib.util.spec_from_file_location("predict_runs", Path(__file__).parents[2] / "validation" / "runs" / "predict.py")
assert _SPEC is not None
assert _SPEC.loader is not None
predict_runs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(predict_runs)
predict_runs.band_scores = cache(predict_runs.band_scores)  # seconds each time, and always of the same runs
RESULTS = predict_runs.read_results()


@cache
def scores() -> Any:
    return predict_runs.recorded(published(), RESULTS)


def held() -> Any:
    """How the shipped bands held, by source, and over all."""
    return predict_runs.band_scores(known_runs())
