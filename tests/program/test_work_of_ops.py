"""What an op computes and moves: the sums of its kernels, found again by name and duration."""

from __future__ import annotations

from parsim import load, simulate


def test_work_of_a_perceptron_by_hand():
    program = simulate(load("scenarios/mlp-1x-a100.yaml")).timeline.program
    batch, layers = 10240, [(1024, 1024), (1024, 1024), (1024, 2048)]
    products = [2 * batch * a * b for a, b in layers]
    # forward once; backward the weight gradients of all layers, and the input gradients of all but the first
    flop = sum(program.work[op.name, op.duration][0] for op in program.ops if (op.name, op.duration) in program.work)
    assert flop == 2 * sum(products) + sum(products[1:])
    first = program.work[next((op.name, op.duration) for op in program.ops if op.name.startswith("F0"))]
    assert first[0] == products[0]
    assert first[1] == 4 * (batch * 1024 + 1024 * 1024 + batch * 1024)  # operands once, the result once, fp32


def test_a_slow_rank_does_the_same_work():
    program = simulate(load("scenarios/gpt2-ddp-straggler.yaml")).timeline.program
    by_rank = {}
    for op in program.ops:
        if op.collective is None and (work := program.work.get((op.name, op.duration))) is not None:
            rank = op.lanes[0].rank
            by_rank[rank] = by_rank.get(rank, 0.0) + work[0]
    assert len(by_rank) == 2
    assert len(set(by_rank.values())) == 1


def test_adam_moves_what_its_book_says():
    program = simulate(load("scenarios/gpt2-ddp-4x-a100.yaml")).timeline.program
    step = next(op for op in program.ops if op.name == "optimizer")
    parameters = 124_439_808
    # AdamW of `foreach`, element by element: 15 FLOP; gradients widened 6 B, norm and scale 12 B, gradient, master and two moments in its
    # passes 80 B, weights copied from the masters 6 B
    assert program.work[step.name, step.duration] == (15 * parameters, 104 * parameters)
