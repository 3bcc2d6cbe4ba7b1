"""What the figures are told to draw, where that is decided by more than matplotlib."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from finflow.evaluation.report import drawing
from finflow.evaluation.report.agent_figures import _phases, _positions, training


def positions(rows: list[dict[str, object]]) -> list[float]:
    frame = pd.DataFrame(rows)
    return list(_positions(frame, _phases(frame)))


def test_updates_are_counted_on_through_the_phases() -> None:
    offline = [{"phase": "offline", "update": u} for u in (0, 50, 100)]
    restarted = [{"phase": "online", "update": u} for u in (0, 10)]
    assert positions([*offline, *restarted]) == [0, 50, 100, 100, 110]
    continued = [{"phase": "online", "update": u} for u in (110, 120)]
    assert positions([*offline, *continued]) == [0, 50, 100, 110, 120]


def test_a_record_without_curves_has_no_figure() -> None:
    assert training(pd.DataFrame()) is None
    assert training(pd.DataFrame({"phase": ["online"], "update": [1]})) is None
    assert training(pd.DataFrame({"v_loss": [math.nan, math.inf], "sharpe": [None, None]})) is None


def test_the_best_validation_is_told_and_losses_are_named() -> None:
    frame = pd.DataFrame({"update": [0, 10, 20], "sharpe": [0.1, 0.9, None], "q_loss": [1.0, math.inf, 0.5]})
    figure = training(frame)
    assert figure is not None
    assert "0.90, after 10 updates" in figure.alt
    assert "q loss" in figure.alt


def test_a_legend_of_long_names_stays_within_the_figure() -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number in range(7):
        axes.plot([0, 1], [0, number], label=f"a strategy whose name is long {number}  1234.56x")
    drawing.legend_of_figure(figure, axes)
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width
    assert len(legend.get_texts()) == 7
