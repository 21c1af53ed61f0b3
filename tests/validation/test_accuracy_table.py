"""The table of errors in the READMEs is the one that validation/runs/predict.py writes, and says what it holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from published_runs import PUBLISHED as SOURCES

from parsim.scenario.confidence import confidence_of, known_runs

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("predict_runs", ROOT / "validation" / "runs" / "predict.py")
assert _SPEC is not None
assert _SPEC.loader is not None
predict = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(predict)


@pytest.mark.parametrize("readme", predict.READMES, ids=lambda path: path.name)
def test_the_table_is_the_generated_one(readme: Path) -> None:
    block = predict.MARKERS[0] + predict.table(SOURCES, predict.read_results()) + predict.MARKERS[1]
    assert block in readme.read_text(encoding="utf-8"), "run validation/runs/predict.py"


def test_rows_left_out_are_counted_and_figures_from_training_are_marked() -> None:
    lines = predict.table(SOURCES, predict.read_results()).splitlines()
    bloom = next(line for line in lines if line.startswith("| BLOOM"))
    source = next(source for source in SOURCES if source.name == "bloom")
    left = sum(bool(row.left_out) for row in source.rows)
    assert f"| {len(source.rows) - left} / {left} |" in bloom
    assert bloom.count("\\*") == 2, "step time and memory"
    assert all(
        (r"\*" in line) == any(source.title in line and source.from_training for source in SOURCES) for line in lines if line[:1] == "|"
    )


def test_known_runs_say_whether_they_decided_a_parameter() -> None:
    marked = {source.name for source in SOURCES if "time" in source.from_training}
    assert {run.source for run in known_runs() if run.fitted} == marked


@pytest.mark.parametrize(
    ("source", "words"), [("vtrain-single", "nothing was fitted to them"), ("llm-foundry-h100", "parameters of the prediction were fitted")]
)
def test_the_basis_of_a_band_says_so(source: str, words: str) -> None:
    run = next(run for run in known_runs() if run.source == source and run.features.family != "model")
    assert words in confidence_of(run.features, known_runs())["basis"]
