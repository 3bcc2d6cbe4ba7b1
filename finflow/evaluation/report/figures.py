"""Figures of return and risk: equity, Sharpe ratios, drawdown, costs, overfitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.page.drawing import (
    BLACK,
    BLUE,
    Rendered,
    date_axis,
    legend_of_figure,
    line_styles,
    percent_axis,
    render,
    wealth_figure,
)
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import CONFIDENCE, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def equity(agent: Backtest, strategies: Sequence[Backtest]) -> Rendered:
    """Wealth of 1 invested, log scale, the agent against every strategy."""
    paths = {run.name: run.wealth[1:] for run in (agent, *strategies)}
    return wealth_figure(
        "equity",
        "Equity",
        "Value of 1 invested, after costs. Equal distances are equal percentages; the legend is in the order of the "
        "last value. Online selection, which loses most to costs, is in the tables alone.",
        agent.dates,
        dict(sorted(paths.items(), key=lambda item: -item[1][-1])),
        line_styles(list(paths), BASELINE, agent.name),
    )


def sharpe_ratios(values: Mapping[str, float], intervals: Mapping[str, Interval], agent: str) -> Rendered:
    names = sorted(values, key=lambda name: (-np.inf if np.isnan(values[name]) else values[name], name))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, name in enumerate(names):
            colour = BLUE if name == agent else "#555555"
            bounds = intervals[name]
            if bounds.defined:
                axes.plot([bounds.low, bounds.high], [row, row], color=colour, linewidth=2.4, alpha=0.55)
            axes.plot([values[name]], [row], "o", color=colour, markersize=6)
        axes.axvline(0.0, color="#B0B0B0", linewidth=1.0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"Sharpe ratio in excess of cash, annualised, with {CONFIDENCE:.0%} interval")

    summary = "; ".join(f"{name} {_value_and_interval(values[name], intervals[name])}" for name in reversed(names))
    return Rendered(
        "sharpe",
        "Sharpe ratios and their uncertainty",
        "Dots are the window's Sharpe ratios, lines their bootstrap intervals. Lines that overlap widely cannot be "
        "ranked by their dots; the paired difference at the top of the page is the sharper test.",
        f"Dots with horizontal lines: Sharpe ratio and {CONFIDENCE:.0%} interval of each strategy. {summary}.",
        render(draw, 0.9 + 0.3 * len(names)),
    )


def drawdown(agent: Backtest, strategies: Sequence[Backtest]) -> Rendered:
    """Loss from the highest wealth so far: the agent filled, equal weight as a line, the others in grey."""
    falls = {run.name: metrics.drawdown_series(run.returns) for run in (agent, *strategies)}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        others = [run.name for run in strategies if run.name != BASELINE]
        for position, name in enumerate(others):
            label = "other strategies" if position == 0 else None
            axes.plot(agent.dates, falls[name], color="#BDBDBD", linewidth=0.7, label=label)
        axes.fill_between(agent.dates, falls[agent.name], 0.0, color=BLUE, alpha=0.22, linewidth=0)
        axes.plot(agent.dates, falls[agent.name], color=BLUE, linewidth=1.2, label=agent.name)
        if any(run.name == BASELINE for run in strategies):
            axes.plot(agent.dates, falls[BASELINE], color=BLACK, linewidth=1.0, linestyle="--", label=BASELINE)
        date_axis(axes, agent.dates)
        axes.set_ylim(top=0.0)
        percent_axis(axes)
        axes.set_ylabel("below the highest value so far")
        legend_of_figure(figure, axes)

    deepest = {name: float(path.min()) for name, path in falls.items()}
    when = str(agent.dates[int(np.argmin(falls[agent.name]))])
    summary = ", ".join(f"{name} {value:.0%}" for name, value in sorted(deepest.items(), key=lambda item: item[1]))
    return Rendered(
        "drawdown",
        "Drawdown",
        "How far wealth stood below its highest value so far, day by day, after costs.",
        f"Area chart of the drawdown. {agent.name} was lowest on {when}. Deepest falls: {summary}.",
        render(draw, 3.3),
    )


def costs_and_turnover(agent: Backtest, strategies: Sequence[Backtest]) -> Rendered:
    months, first = np.unique(agent.dates.astype("datetime64[M]"), return_index=True)
    base = next((run for run in strategies if run.name == BASELINE), None)

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 1.1])
        middles = months.astype("datetime64[D]") + np.timedelta64(14, "D")
        monthly = np.add.reduceat(agent.turnover, first)
        upper.bar(middles, monthly, width=24, color=BLUE, alpha=0.85, label=agent.name)
        if base is not None:
            upper.step(middles, np.add.reduceat(base.turnover, first), where="mid", color=BLACK, lw=1.0, label=BASELINE)
        upper.set_title("Turnover a month (share of the portfolio replaced)")
        percent_axis(upper)
        styles = line_styles([run.name for run in strategies], BASELINE, agent.name)
        for run in (*strategies, agent):
            lower.plot(agent.dates, np.cumsum(run.costs), label=run.name, **styles[run.name])
        lower.set_title("Costs paid so far (share of wealth)")
        lower.set_ylim(bottom=0.0)
        percent_axis(lower)
        date_axis(lower, agent.dates)
        upper.set_xlim(
            middles[0] - np.timedelta64(16, "D"), max(middles[-1], agent.dates[-1]) + np.timedelta64(14, "D")
        )
        legend_of_figure(figure, lower)

    total = {run.name: float(run.costs.sum()) for run in (agent, *strategies)}
    summary = ", ".join(f"{name} {value:.2%}" for name, value in sorted(total.items(), key=lambda item: -item[1]))
    return Rendered(
        "costs",
        "Turnover and costs",
        "Turnover is the half-sum of absolute trades: 100 % replaces the whole portfolio once. The first purchase out "
        "of cash is in the first month.",
        f"Two charts: bars of the turnover of each month, and lines of the costs paid so far. Costs in all: {summary}.",
        render(draw, 5.0),
    )


def _value_and_interval(value: float, bounds: Interval) -> str:
    if not np.isfinite(value):
        return "undefined"
    return f"{value:.2f} ({bounds.low:.2f} to {bounds.high:.2f})" if bounds.defined else f"{value:.2f}"
