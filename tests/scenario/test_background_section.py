"""`cluster.background`: streams that flow in turns, from the key to the step."""

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.run import simulate

STREAM = {"from": "gpu0", "to": "gpu1", "rate": "50 GB/s"}


def job(*streams: Any) -> dict[str, Any]:
    return {
        "model": "gpt2",
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 1},
        "parallel": {"data": {"strategy": "ddp"}},
        "cluster": {"topology": "hgx-h100", "nodes": 2, "gpus_per_node": 1, "background": list(streams)},
    }


def test_a_stream_in_turns_is_between_none_and_always() -> None:
    crossing = STREAM | {"to": "gpu8"}
    none, turns, always = (
        simulate(job(*streams)).step_time for streams in ((), (crossing | {"every": "100 us", "duty": 0.5},), (crossing,))
    )
    assert none < turns < always
    unfolded = simulate(job(crossing | {"every": "100 us", "duty": 0.5}), unfolded=True).step_time
    assert unfolded == pytest.approx(turns, rel=1e-9)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"duty": 0.5}, "duty goes with rate and every"),
        ({"every": "1 ms"}, "at and every go with bytes, or with rate and duty"),
        ({"every": "1 ms", "duty": 1.0}, "a number in (0, 1)"),
        ({"every": "0.1 us", "duty": 0.5}, "less than 1 us"),
    ],
)
def test_what_does_not_fit_is_named(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(job(STREAM | keys))
    assert words in str(caught.value)
    assert "cluster.background" in str(caught.value)
