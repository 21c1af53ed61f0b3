"""Device memory in a report: what is replayed whole, what only when somebody asks, and what is not replayed at all."""

from __future__ import annotations

import pytest

from parsim.run import simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load

JOB = {
    "model": "gpt2",
    "training": {"global_batch": 32, "micro_batch": 1, "sequence_length": 512, "precision": "bf16"},
    "parallel": {"pipeline": {"size": 4, "schedule": "1f1b"}},
    "cluster": "dgx-a100-80gb",
}
FOUR = "cluster.gpus=4"


def memory(least, monkeypatch, *overrides):
    """The memory section when so many events are replayed at least; ways of replay apart."""
    monkeypatch.setattr("parsim.simulation.replay.LEAST", least)
    found = simulate(JOB, FOUR, *overrides).document()["memory"]
    return found, [device.pop("method") for device in found["devices"]]


def test_the_fullest_class_is_replayed_whole_so_the_figures_of_the_job_are_exact(monkeypatch):
    whole, every = memory(10**9, monkeypatch)
    short, some = memory(0, monkeypatch)
    assert every == ["replayed"] * 4
    peaks = ("allocated_bytes", "reserved_bytes", "device_used_bytes")
    fullest = [any(device[key] == short[f"peak_{key}"] for key in peaks) for device in short["devices"]]
    assert fullest == [True, False, False, True]  # the first stage holds most tensors, the last one, with the head, most segments
    assert some == ["replayed" if full else "shortened" for full in fullest]
    pairs = list(zip(some, short.pop("devices"), whole.pop("devices"), strict=True))
    assert short == whole
    for method, device, exact in pairs:
        if method == "replayed":
            assert device == exact
        else:  # of four periods' segments one is missed
            assert 0 <= exact["reserved_bytes"] - device["reserved_bytes"] <= 20 * 2**20


def test_classes_close_to_the_capacity_are_replayed_whole(monkeypatch):
    """Leave as much memory as the least full class takes: within 5 % of it, above and below."""
    found, some = memory(0, monkeypatch)
    rank, least = min(enumerate(device["device_used_bytes"] for device in found["devices"]), key=lambda pair: pair[1])
    assert some[rank] == "shortened"
    for distance in (-0.04, 0.04):
        reserve = round(found["capacity_bytes"] * (1 - distance)) - least
        _, close = memory(0, monkeypatch, f"cluster.memory_reserve={reserve} B")
        assert close[rank] == "replayed"


def test_curves_are_drawn_when_somebody_asks(monkeypatch):
    def drawn(*_):
        raise AssertionError("a curve was drawn")

    with monkeypatch.context() as patch:
        patch.setattr("parsim.report.memory_facts._thinned", drawn)
        report = simulate(JOB, FOUR)
        report.document()
        device = report.measured.memory.devices[0]
        with pytest.raises(AssertionError, match="drawn"):
            device.curve  # noqa: B018
    levels = device.curve.bytes
    assert max(map(sum, zip(*levels.values(), strict=True))) == device.device_used_bytes - device.at_peak["fragmentation"]


def test_where_the_tensors_alone_are_too_large_no_allocator_is_asked(monkeypatch):
    tight = step_of(build(load(JOB, FOUR, "cluster.memory_reserve=78.5 GiB")))
    roomy = step_of(build(load(JOB, FOUR)))

    def run(*_):
        raise AssertionError("the allocator ran")

    with monkeypatch.context() as patch:
        patch.setattr("parsim.simulation.allocator.Allocator.run", run)
        assert not tight.fits
        with pytest.raises(AssertionError, match="ran"):
            roomy.fits  # noqa: B018
    assert roomy.fits
    assert not simulate(JOB, FOUR, "cluster.memory_reserve=78.5 GiB").fits
