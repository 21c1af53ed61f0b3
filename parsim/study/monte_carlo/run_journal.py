"""The runs of a step that were made before, in a file: what ended in the middle goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from parsim.monte_carlo.question import RunQuestion, Sampled
from parsim.scenario.provenance import catalogue_sha256
from parsim.scenario.scenario import Scenario
from parsim.study.journal import Journal
from parsim.version import CONTRACT_VERSION, __version__


class RunJournal(Journal):
    """Runs in ``runs.jsonl``; ``runs.json`` says of which scenario.

    More runs of the same scenario go on with those that are there; those of another one are thrown away, as its report is.
    """

    results: ClassVar[str] = "runs.jsonl"
    question: ClassVar[str] = "runs.json"
    damaged_lines: ClassVar[str] = "runs.damaged.jsonl"
    what: ClassVar[str] = "scenario"
    command: ClassVar[str] = "parsim run"
    fingerprint: ClassVar[tuple[str, ...]] = ("version", "catalogue_sha256", "scenario_sha256", "unfolded")

    def __init__(self, directory: Path, scenario: Scenario, *, unfolded: bool = False) -> None:
        asked = {
            "parsim": CONTRACT_VERSION,
            "version": __version__,
            "catalogue_sha256": catalogue_sha256(),
            "scenario_sha256": scenario.with_overrides("variability.runs=1").hash(),
            "unfolded": unfolded,
        }
        super().__init__(directory, asked, restart=self._foreign(directory, asked))

    def _foreign(self, directory: Path, asked: dict[str, Any]) -> bool:
        """Whether what is there answers something else."""
        before: Any = None
        with suppress(OSError, ValueError):
            before = json.loads((directory / self.question).read_text(encoding="utf-8"))
        return not isinstance(before, dict) or any(before.get(name) != asked[name] for name in self.fingerprint)

    def damage(self, row: Any) -> str:
        if problem := super().damage(row):
            return problem
        whole = type(row.get("slowest")) is int and isinstance(row.get("step_time_s"), float)
        return "" if whole else "has no step_time_s and slowest"

    def known(self, question: RunQuestion) -> Sampled | None:
        """The answer of before."""
        row = self.rows.get(question.key)
        return None if row is None else Sampled(row["step_time_s"], row["slowest"])

    def keep(self, answered: Iterable[tuple[RunQuestion, Sampled]]) -> None:
        """Write answers, and wait until they are on the disk."""
        self.append({"key": one.key, "step_time_s": answer.step_time, "slowest": answer.slowest} for one, answer in answered)
