"""What a new axis needs: a row of the table of groups, and hooks of its own. Nothing else knows the axes by name."""

from __future__ import annotations

import pytest

from parsim.model.mixture import GroupedLinear
from parsim.parallel.groups import REPLICATING, Groups, ProcessGroups
from parsim.parallel.hooks import SilentHooks
from parsim.parallel.plan import Plan
from parsim.run import simulate

TREE = {
    "name": "pairs",
    "model": {"base": "mixtral-8x7b", "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "mlp": 512, "vocabulary": 1024},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 8},
    "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 2},
    "parallel": {"tensor": {"size": 2}},
}
SIZE = 2**20


class PairExchange(SilentHooks):
    """Tokens go to their experts before the grouped products of a layer, and come back with the gradients."""

    def before_forward(self, operator, at):
        if isinstance(operator, GroupedLinear) and operator.split == "column":
            at.collective("all_to_all", "pairs", SIZE, "dispatch", blocking=True)

    def after_input(self, operator, at):
        if isinstance(operator, GroupedLinear) and operator.split == "column":
            self.pending.append(at.collective("all_to_all", "pairs", SIZE, "combine"))

    def after_weight(self, operator, at):
        at.wait(*self.pending)
        self.pending.clear()


@pytest.fixture
def pairs_axis(monkeypatch):
    """Two ranks along data exchange tokens; a report counts it with the exchanges of experts."""
    known, asked = Groups.kind, Plan.operator_hooks
    pairs = ProcessGroups(REPLICATING, "expert", ((0, 1), (2, 3)))
    monkeypatch.setattr(Groups, "kind", lambda self, name: pairs if name == "pairs" else known(self, name))
    monkeypatch.setattr(Plan, "operator_hooks", lambda self, **which: [*asked(self, **which), PairExchange()])


def exchanges(report):
    return [row for row in report.collectives if row.axis == "expert"]


@pytest.mark.usefixtures("pairs_axis")
def test_an_axis_of_hooks_and_groups_reaches_the_report():
    report = simulate(TREE)
    assert [(row.kind, row.group_size, row.bytes, row.count) for row in exchanges(report)] == [("all_to_all", 2, SIZE, 2 * 2 * 2)]
    assert report.breakdown["expert_comm"] > 0


@pytest.mark.usefixtures("pairs_axis")
def test_folded_and_unfolded_steps_of_a_new_axis_are_equal():
    folded, unfolded = simulate(TREE), simulate(TREE, unfolded=True)
    assert folded.step_time == pytest.approx(unfolded.step_time, rel=1e-9)


def test_without_it_nobody_speaks():
    assert exchanges(simulate(TREE)) == []
