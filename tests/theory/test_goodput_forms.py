"""Closed forms of failures and checkpoints against published figures and against numbers worked out apart from them."""

from __future__ import annotations

from math import exp, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import theory

M = theory.observed_mtbf(54 * 24, 419)
"""Llama 3 on 16,384 GPUs (arXiv 2407.21783)"""
HOUR = 3600.0


def test_the_rate_of_llama_3():
    assert round(M, 2) == 11_135.08
    assert round(M / HOUR, 6) == 3.093079
    assert round(16_384 * M / HOUR, 1) == 50_677.0
    assert round(theory.survival(HOUR, M), 6) == 0.723755
    assert round(30 * 86_400 / M, 2) == 232.78


@pytest.mark.parametrize(("hours", "interval", "goodput"), [(24, 116.690, 0.912606), (6, 56.714, 0.819381), (0.25, 9.1665, 0.199668)])
def test_dalys_own_cases(hours, interval, goodput):
    """Checkpoints of 5 min, restarts of 10 min (Daly 2006; printed there: 117, 57 and 9.1 min)."""
    assert theory.exact_interval(300, hours * HOUR) / 60 == pytest.approx(interval, abs=6e-4)
    assert round(theory.best_goodput(hours * HOUR, 300, 600), 6) == goodput


def test_the_best_interval_and_what_it_gives():
    assert theory.exact_interval(60, M) == pytest.approx(1116.296, abs=1e-3)
    assert round(theory.best_goodput(M, 60, 300), 7) == 0.8758323
    assert round(theory.exact_goodput(M, 3600, 60, 300), 7) == 0.8087106
    assert round(theory.exact_goodput(M, 1138, 60, 300), 7) == 0.8758160
    assert (round(theory.exact_interval(300, M), 3), round(theory.best_goodput(M, 300, 600), 6)) == (2388.763, 0.744270)
    assert (round(theory.exact_interval(5, M), 3), round(theory.best_goodput(M, 5, 120), 6)) == (330.368, 0.959930)


def test_saves_that_go_on_beside_training():
    assert round(theory.exact_goodput(M, 600, 5, 300, lag=120), 7) == 0.9293157
    assert round(theory.exact_goodput(M, 600, 125, 300), 6) == 0.779646


def test_a_job_of_known_length():
    assert round(theory.finite_wall_time(200, 1138, 60, 300, M), 2) == 259_803.47


@pytest.mark.parametrize(
    ("failures", "end", "lost"), [((150,), 380, 40), ((150, 300), 420, 60), ((150, 275), 505, 145), ((150, 160), 390, 40), ((), 320, 0)]
)
def test_failures_at_given_times(failures, end, lost):
    """A failure in a save leaves no checkpoint, one in a restart makes it begin again."""
    assert theory.replayed_wall_time(300, 100, 10, 20, failures) == (end, lost)


def test_checkpoints_in_memory_and_in_storage():
    levels = ((1, 0.9, 120), (30, 0.1, 600))
    assert [round(theory.level_interval(s, share, M), 2) for s, share, _ in levels] == [157.30, 2584.77]
    assert round(100 * theory.levels_waste(levels, M), 4) == 5.1015
    assert round(100 * theory.levels_waste([(30, 1, 600)], M), 4) == 12.7289


def test_effective_training_time_to_first_order():
    """2,048 nodes with 6.5 failures per 1,000 node-days, restarts of 5 min, checkpoints every 60 and 5 min (arXiv 2410.21680)."""
    rate = 2048 * 6.5e-3 / 24
    assert round(theory.first_order_ettr(rate, 5 / 60, 1), 6) == 0.676444
    assert round(theory.first_order_ettr(rate, 5 / 60, 5 / 60), 6) == 0.930667
    assert round(theory.exact_goodput(1 / rate, 1, 0, 5 / 60), 6) == 0.714379


@pytest.mark.parametrize(("repair", "mean", "spares"), [(4, 1.2932, [3, 5, 6]), (48, 15.5185, [22, 25, 29]), (168, 54.3148, [67, 72, 78])])
def test_spares(repair, mean, spares):
    busy = theory.machines_in_repair(2048, M / HOUR * 2048, repair)
    assert round(busy, 4) == mean
    assert [theory.spares_needed(busy, share) for share in (0.95, 0.99, 0.999)] == spares


def test_restarts_of_two_lengths():
    between = theory.mtbf_with_restarts(M, [(0.9, 120), (0.1, 1800)])
    assert round(between, 2) == 11_415.60
    assert round(1138 / (between * (exp(1198 / M) - 1)), 7) == 0.8776236


def test_when_evicting_a_slow_gpu_pays():
    assert round(theory.eviction_pays_after(300, 558.148, 1.1), 1) == 9439.6
    assert round(theory.eviction_pays_after(300, 60, 1.1), 6) == 3960


def test_capacity_of_replicas_that_come_back():
    assert round(theory.replica_capacity(50_677 / 512, 2), 6) == 0.980194


def test_a_hundred_thousand_gpus():
    mtbf = M * 16_384 / 100_000
    assert round(mtbf / 60, 4) == 30.4062
    assert round(theory.exact_interval(10, mtbf), 2) == 184.41
    assert round(theory.best_goodput(mtbf, 10, 600), 6) == 0.646978


def test_bytes_of_published_checkpoints():
    assert round(theory.checkpoint_bytes(176_247_000_000) / 2**40, 6) == 2.244140
    assert theory.checkpoint_bytes(530_000_000_000, with_weights=False) / 2.5e9 == 2544


@pytest.mark.parametrize(("nodes", "percent"), [(8, 3.9307), (64, 27.4434), (128, 47.3553), (1250, 99.8100)])
def test_one_slow_node_among_many(nodes, percent):
    assert round(100 * theory.any_of(nodes, 0.005), 4) == percent


@given(stall=st.floats(1, 1000), mtbf=st.floats(1000, 1e6), other=st.floats(0.2, 5))
def test_no_interval_is_better_than_the_best(stall, mtbf, other):
    best = theory.best_goodput(mtbf, stall, 0)
    assert theory.exact_goodput(mtbf, other * theory.exact_interval(stall, mtbf), stall, 0) <= best * (1 + 1e-12)
    assert theory.exact_interval(stall, mtbf) <= sqrt(2 * stall * mtbf)
