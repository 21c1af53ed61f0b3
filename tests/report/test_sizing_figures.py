"""The figures of a sizing: axes with units, machines told apart, limits, bands and numbers of GPUs."""

from __future__ import annotations

import numpy as np

from parsim.report.plots import style
from parsim.report.plots.figure import save
from parsim.report.plots.tradeoff import Limits, Option, gpus_time_figure, time_cost_figure

OPTIONS = [
    Option("dgx-a100-80gb", 1024, 57.3, 2.82, (0.97, 1.07), True, False),
    Option("hgx-h100", 512, 46.4, 1.82, None, True, True),
    Option("hgx-h100", 1024, 25.9, 2.04, None, True, True),
    Option("hgx-b200", 128, 90.0, 1.70, None, False, False),
]


def test_time_against_cost() -> None:
    figure = time_cost_figure(OPTIONS, "M USD", Limits(60.0, 2.5))
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time to train [days]", "cost [M USD]")
    assert sorted(text.get_text() for text in ax.texts) == ["1,024", "1,024", "128", "512"]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "dgx-a100-80gb", "hgx-h100", "hgx-b200, not within the limits", "front: nothing is better in both; numbers: GPUs",
        "deadline 60 days", "budget",
    }  # fmt: skip
    assert ax.get_ylim()[0] == ax.get_xlim()[0] == 0.0


def test_gpus_against_time_has_the_band() -> None:
    (ax,) = gpus_time_figure(OPTIONS, Limits(60.0)).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("GPUs", "time to train [days]")
    bands = [np.asarray(line.get_ydata()).tolist() for line in ax.lines if line.get_linewidth() == 2.2]
    assert [ends for ends in bands if ends] == [[57.3 * 0.97, 57.3 * 1.07]]
    assert any(line.get_color() == style.CAPACITY for line in ax.lines)


def test_numbers_cover_nothing() -> None:
    """Nor do they for points that lie close together."""
    crowd = [Option("m", 8 * place, 10.0 + 0.4 * place, 1.0, None, True, False) for place in range(1, 6)]
    figure = time_cost_figure(crowd, "k EUR")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_equal_figures_are_equal_files() -> None:
    assert save(time_cost_figure(OPTIONS, "M USD")) == save(time_cost_figure(OPTIONS, "M USD"))
