"""Nothing is silently ignored: every value whose feature is not built is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.scenario import load
from parsim.scenario.support import LIMITS, unsupported

MINIMAL = {"model": "gpt2", "cluster": "4x v100-32gb", "training": {"sequence_length": 1024, "global_batch": 8, "micro_batch": 1}}

REFUSED: dict[str, tuple[Any, ...]] = {
    "parallel.pipeline.schedule": ("Hanayo", "hanayo"),
    "parallel.expert.grouped_gemm": (False,),
    "report.ranks": ([0, 1],),
    "cluster.collectives.algorithm": ("collnet_direct", "collnet_chain"),
    "software.profile": ("pytorch-compile",),
}


def tree_of(path: str, value: Any) -> dict[str, Any]:
    tree: Any = value
    for key in reversed(path.split(".")):
        tree = {key: tree}
    return tree


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if key == "cluster" and isinstance(below, str):
            below = {"topology": below}
        result[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


def cases() -> list[Any]:
    return [pytest.param(path, value, id=f"{path}={value}") for path, values in REFUSED.items() for value in values]


@pytest.mark.parametrize(("path", "value"), cases())
def test_refused_as_not_supported_yet(path: str, value: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(merged(MINIMAL, tree_of(path, value)))
    (finding,) = caught.value.findings
    assert finding.message.startswith("not supported yet: ")
    assert (finding.path, finding.value) == (path, value)


def test_every_limit_is_tested() -> None:
    assert sorted(REFUSED) == sorted(limit.path for limit in LIMITS)


def test_every_default_is_supported() -> None:
    tree = load(MINIMAL).tree
    assert unsupported(tree) == []
    for limit in LIMITS:
        holder: Any = tree
        *sections, key = limit.path.split(".")
        for section in sections:
            holder = holder[section]
        assert key not in holder or limit.supported(holder[key]), limit.path  # some keys are shown only where they say something else


def test_the_same_value_in_other_words_is_supported() -> None:
    load(
        merged(
            MINIMAL, {"parallel": {"cp": 1, "ep": 1}, "software": {"host": {"per_layer_forward": "0.0 ms"}}, "variability": {"faults": []}}
        )
    )
    load(merged(MINIMAL, {"economics": {"pue": 1.2}, "training": {"tokens": None, "finetune": None}}))


def test_a_wrong_value_is_said_to_be_wrong_first() -> None:
    with pytest.raises(ScenarioError, match="is not a whole number") as caught:
        load(merged(MINIMAL, {"parallel": {"context": {"size": "many"}}}))
    assert len(caught.value.findings) == 1
