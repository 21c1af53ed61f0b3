"""training.loss.chunks in a scenario: what it changes, and where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.run import simulate
from parsim.scenario import load

BASE: dict[str, Any] = {
    "name": "chunks",
    "model": {"family": "llama", "hidden": 1024, "layers": 2, "heads": 8, "vocabulary": 128256, "mlp": 2816},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 1},
    "training": {"sequence_length": 2048, "micro_batch": 2, "gradient_accumulation": 1, "optimizer": "sgd"},
    "software": {"memory": {"allocator": "exact"}},
}
LOGITS = 4096 * 128256


def document(**training: Any) -> dict[str, Any]:
    return simulate(load({**BASE, "training": {**BASE["training"], **training}})).document()


def test_the_peak_falls_by_all_but_one_part_of_the_logits() -> None:
    """From 14 B per logit to 14 B of an eighth, and the two gradients that forward makes (2 B per hidden state and weight)."""
    whole, parts = (document(loss={"chunks": n})["memory"]["peak_allocated_bytes"] for n in (1, 8))
    gradients = 2 * 4096 * 1024 + 2 * 128256 * 1024
    saved = 14 * LOGITS * 7 // 8 - gradients
    assert whole - parts == pytest.approx(saved, rel=0.02)


def test_smaller_products_take_a_little_longer() -> None:
    times = [document(loss={"chunks": n})["step_time_s"] for n in (1, 8, 64)]
    assert times[0] < times[1] < 1.2 * times[0]
    assert times[1] < times[2]


def refusal(**changes: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        simulate(load({**BASE, **changes}))
    assert {finding.path for finding in caught.value.findings} == {"training.loss.chunks"}
    return [str(finding) for finding in caught.value.findings]


def test_more_parts_than_tokens() -> None:
    training = {"sequence_length": 64, "micro_batch": 1, "gradient_accumulation": 1, "loss": {"chunks": 65}}
    (text,) = refusal(training=training)
    assert "64 tokens, which cannot be split into 65 parts" in text
    assert "use at most 64" in text


def test_context_ranks_have_a_share_of_the_tokens() -> None:
    training = {"sequence_length": 64, "micro_batch": 1, "gradient_accumulation": 1, "loss": {"chunks": 33}}
    cluster = {"topology": "dgx-a100-80gb", "gpus": 2}
    (text,) = refusal(cluster=cluster, parallel={"context": {"size": 2}, "data": {"strategy": "ddp"}}, training=training)
    assert "32 tokens on each of 2 context ranks, which cannot be split into 33 parts" in text


def test_no_vocabulary() -> None:
    (text,) = refusal(model="bert-base", training={**BASE["training"], "sequence_length": 512, "loss": {"kind": "mse", "chunks": 4}})
    assert "ends in mse" in text


def test_sharded_logits() -> None:
    cluster = {"topology": "dgx-a100-80gb", "gpus": 2}
    (text,) = refusal(cluster=cluster, parallel={"tensor": {"size": 2}}, training={**BASE["training"], "loss": {"chunks": 4}})
    assert "not supported yet" in text
    assert "vocab-parallel" in text
