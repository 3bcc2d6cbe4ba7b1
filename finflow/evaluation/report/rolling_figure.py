"""How Sharpe ratio, volatility and lead over equal weight moved through the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.drawing import BLACK, BLUE, Rendered, date_axis, legend_of_figure, percent_axis, render
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.metrics import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DAYS = 126  # half a year


def rolling_sharpe(run: Backtest, days: int = DAYS) -> Array:
    """Sharpe ratio of the last ``days`` returns in excess of cash, (steps - days + 1,)."""
    ratios: Array = metrics.sharpe(sliding_window_view(run.returns - run.cash_returns, days))
    return ratios


def rolling_volatility(run: Backtest, days: int = DAYS) -> Array:
    """Volatility of the last ``days`` returns, a year, (steps - days + 1,)."""
    deviations: Array = metrics.annual_volatility(sliding_window_view(run.returns, days))
    return deviations


def rolling(agent: Backtest, baseline: Backtest | None) -> Rendered | None:
    """Draw the agent, and equal weight beside it; None for a window under a year."""
    if len(agent.returns) < 2 * DAYS:
        return None
    runs = [agent] if baseline is None else [agent, baseline]
    sharpes = {run.name: rolling_sharpe(run) for run in runs}
    dates = agent.dates[DAYS - 1 :]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2 + (baseline is not None), 1, sharex=True)
        for run, colour, dash in zip(runs, (BLUE, BLACK), ("-", "--"), strict=False):
            look = {"color": colour, "linestyle": dash, "label": run.name}
            panels[0].plot(dates, sharpes[run.name], **look)
            panels[1].plot(dates, rolling_volatility(run), **look)
        panels[0].axhline(0.0, color="#B0B0B0", linewidth=1.0)
        panels[0].set_title("Sharpe ratio")
        panels[1].set_title("Volatility a year")
        panels[1].set_ylim(bottom=0.0)
        percent_axis(panels[1])
        if baseline is not None:
            ratio = (1.0 + agent.returns) / (1.0 + baseline.returns)
            lead = np.cumsum(np.log(np.where(ratio > 0.0, ratio, np.nan)))  # nothing more is drawn after ruin
            lead = np.expm1(lead[DAYS - 1 :] - np.concatenate([[0.0], lead[:-DAYS]]))
            panels[2].fill_between(dates, lead, 0.0, color=BLUE, alpha=0.3, linewidth=0)
            panels[2].plot(dates, lead, color=BLUE, linewidth=1.0)
            panels[2].set_title("Return over the half year, relative to equal weight")
            percent_axis(panels[2])
        date_axis(panels[-1], dates)
        legend_of_figure(figure, panels[0])

    said = "; ".join(
        f"{name} from {np.nanmin(path):.1f} to {np.nanmax(path):.1f}"
        for name, path in sharpes.items()
        if np.isfinite(path).any()
    )
    return Rendered(
        "rolling",
        "Through time",
        f"Of the last {DAYS} days at each date, after costs. What was earned in one stretch alone is seen here.",
        f"Lines of the Sharpe ratio and the volatility of the last {DAYS} days, and of the return relative to equal "
        f"weight. Sharpe ratios: {said}.",
        render(draw, 2.0 * (2 + (baseline is not None)) + 0.3),
    )
