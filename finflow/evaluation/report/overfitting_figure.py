"""Where what was best in one half of the days came out in the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from finflow.evaluation.report.drawing import BLUE, VERMILION, Rendered, render
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, logit_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overfitting_histogram(
    found: Overfitting, among: int, what: str = "strategies", name: str = "overfitting"
) -> Rendered:
    """Histogram of the logits of CSCV.

    Parameters
    ----------
    found
    among
        How many were chosen among.
    what
        They are called, in the plural.
    name
        Of the figure.
    """
    table = logit_histogram(found)
    edges, shares = np.array(table["edges"]), 100.0 * np.array(table["shares"])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        below = edges[1:] <= 0.0
        for chosen, colour, label in ((below, VERMILION, "at or below the middle"), (~below, BLUE, "above the middle")):
            axes.bar(
                edges[:-1][chosen], shares[chosen], np.diff(edges)[chosen], align="edge", color=colour, label=label
            )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_xlabel("logit of the rank out of sample")
        axes.set_ylabel("share of the cuts, %")
        axes.legend(frameon=False)

    return Rendered(
        name,
        "Choosing the best of them",
        f"For {len(found.logits):,} cuts of the window into halves: where that one of the {what} with the best Sharpe "
        "ratio in one half came out in the other. Mass at or left of zero is the probability of backtest overfitting.",
        f"Histogram of the logits of the rank out of sample, for a choice among {among} {what}. "
        f"{found.pbo:.1%} of the cuts lie at or below zero, the middle of them.",
        render(draw, 3.2),
    )
