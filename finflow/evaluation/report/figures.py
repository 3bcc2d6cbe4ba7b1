"""Figures of a report: the answer; equity; weights, gate and experts over time; training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.arrays import DateArray, FloatArray
from finflow.evaluation.backtest import BASELINE, Backtest
from finflow.evaluation.page.drawing import (
    AREA_COLOURS,
    BLACK,
    BLUE,
    GREEN,
    LIGHT_GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Rendered,
    date_axis,
    legend_of_figure,
    line_styles,
    percent_axis,
    plot_wealth,
    render,
    thinned,
    wealth_figure,
)
from finflow.evaluation.statistics.bootstrap import SharpeDifference
from finflow.evaluation.statistics.metrics import drawdown_series
from finflow.strategies.behaviour import FAMILIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPERT_COLOURS = (BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE)  # the sixth is a reference's
OTHER_GREY = "#A6A6A6"
PHASE_COLOURS = {"offline": PURPLE, "online": BLUE}  # any other phase is green
COLUMNS = 3  # loss panels in a row
MOST_POINTS = 600


def answer(agent: Backtest, strategies: Sequence[Backtest], difference: SharpeDifference | None) -> Rendered:
    """Wealth and drawdown of the agent, equal weight and the index, and the interval of the verdict."""
    runs = {run.name: run for run in (agent, *strategies) if run is agent or run.name == BASELINE or run.is_index}
    styles = line_styles(list(runs), BASELINE, agent.name)
    interval = None if difference is None or not difference.interval.defined else difference.interval

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(3 if interval else 2, 1, height_ratios=[3.2, 1.3, 0.35][: 3 if interval else 2])
        wealth, fall = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
        plot_wealth(wealth, agent.dates, {name: run.wealth[1:] for name, run in runs.items()}, agent.name)
        wealth.set_title("Value of 1 invested, after costs (log scale)")
        legend_of_figure(figure, wealth, 3)
        for name, run in runs.items():
            fall.plot(run.dates, drawdown_series(run.returns), **{**styles[name], "linewidth": 1.0})
        fall.set_title("Below the highest value so far")
        date_axis(fall, agent.dates)
        fall.set_ylim(top=0.0)
        percent_axis(fall)
        if difference is not None and interval is not None:
            axes = figure.add_subplot(grid[2])
            axes.plot((interval.low, interval.high), (0, 0), color=BLUE, linewidth=4.0, solid_capstyle="butt")
            axes.plot(difference.value, 0, marker="o", color=BLUE, markersize=8.0)
            axes.axvline(0.0, color=BLACK, linestyle="--", linewidth=1.2)
            axes.set_yticks([])
            axes.set_title(f"Sharpe ratio less that of {BASELINE}, with its 95% interval")

    said = "" if interval is None else f" The interval goes from {interval.low:.2f} to {interval.high:.2f}."
    ends = ", ".join(f"{name} {run.wealth[-1]:.2f}" for name, run in runs.items())
    return Rendered(
        "answer",
        "Value, drawdown and difference",
        "",
        f"Line charts of the value of 1 invested, after costs, and of its drawdown. At the end: {ends}.{said}",
        render(draw, 5.0, 5.6),
    )


def equity(agent: Backtest, strategies: Sequence[Backtest]) -> Rendered:
    """Wealth of 1 invested, log scale, the agent against every strategy."""
    return wealth_figure(
        "equity",
        "Equity",
        "Value of 1 invested, after costs. Equal distances are equal percentages; the legend is in the order of the "
        "last value. Online selection, which loses most to costs, is in the tables alone.",
        agent.dates,
        {run.name: run.wealth[1:] for run in (agent, *strategies)},
        agent.name,
    )


def weights(agent: Backtest) -> Rendered:
    """Weights held over time: the largest assets, the others together, and cash."""
    top = _largest_assets(agent)
    rows = thinned(len(agent.dates), 900)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        stack_assets(axes, agent.dates[rows], agent.weights[rows], agent.assets, top)
        axes.set_ylabel("share of wealth")
        legend_of_figure(figure, axes, 5)

    mean = agent.weights.mean(axis=0)
    summary = ", ".join(f"{agent.assets[column]} {mean[column]:.0%}" for column in top)
    return Rendered(
        "weights",
        "Weights over time",
        "What was held after each trade. Assets beyond the largest are summed as “other”.",
        f"Stacked areas of the weights of {agent.name}. On average: {summary}, cash {mean[-1]:.0%}.",
        render(draw, 4.0),
    )


def gate(agent: Backtest, explanation: Mapping[str, FloatArray]) -> Rendered:
    """Gate weights and trade rate over time."""
    shares, rate = explanation["gate"], explanation["trade_rate"]
    names = _expert_names(shares.shape[1])
    rows = thinned(len(agent.dates), 900)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True, squeeze=False, height_ratios=[3, 1])[:, 0]
        _stack(panels[0], agent.dates[rows], shares[rows], names, EXPERT_COLOURS[: len(names)])
        panels[0].set_title("Share of each expert in the portfolio aimed at")
        panels[1].plot(agent.dates, rate, color="#444444", linewidth=0.9)
        panels[1].set_ylim(0.0, 1.0)
        percent_axis(panels[1])
        panels[1].set_title("Trade rate: how far of the way to the aim each decision moves")
        date_axis(panels[1], agent.dates)
        legend_of_figure(figure, panels[0], len(names))

    summary = ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares.mean(axis=0), strict=True))
    return Rendered(
        "gate",
        "The gate",
        "The gate reads the market and mixes the portfolios of the experts into the portfolio aimed at.",
        f"Stacked areas of the gate's shares. On average: {summary}. The trade rate was {float(np.mean(rate)):.0%} on "
        "average.",
        render(draw, 4.6),
    )


def experts(agent: Backtest, portfolios: FloatArray) -> Rendered:
    """The portfolio (steps, experts, K) that each expert names over time."""
    names = _expert_names(portfolios.shape[1])
    top = _largest_assets(agent)
    rows = thinned(len(agent.dates), 300)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
            stack_assets(axes, agent.dates[rows], portfolios[rows, number], agent.assets, top)
            axes.set_yticks([0.0, 0.5, 1.0])
            axes.set_title(name.capitalize())
        legend_of_figure(figure, panels[0], 5)

    mean = portfolios.mean(axis=0)
    summary = "; ".join(
        f"{name} held most in {agent.assets[column]} ({mean[number, column]:.0%} on average)"
        for number, (name, column) in enumerate(zip(names, mean.argmax(axis=1), strict=True))
    )
    return Rendered(
        "experts",
        "The experts",
        "The portfolio that each expert would hold, each reading the market through its own features. Colours as in "
        "the weights above.",
        f"Stacked areas, one panel an expert: {summary}.",
        render(draw, 1.0 + 1.1 * len(names)),
    )


def training(frame: pd.DataFrame) -> Rendered | None:
    """Draw the validation Sharpe ratio and every loss over the gradient updates; None where the record has neither.

    ``frame`` has rows as training logged them. Every column whose name ends in "loss" gets a panel.
    """
    if frame.empty:
        return None
    phases = frame["phase"].to_numpy(dtype=np.str_)
    positions = frame["update"].to_numpy(dtype=np.float64)
    drawn = [name for name in map(str, frame.columns) if name.endswith("loss") or name == "validation_sharpe"]
    curves = {name: values for name in drawn if np.isfinite(values := _numbers(frame[name])).any()}
    if not curves:
        return None
    sharpe = curves.pop("validation_sharpe", np.empty(0))
    rows = -(-len(curves) // COLUMNS)

    def draw(figure: Figure) -> None:
        ratios = [1.5] * bool(sharpe.size) + [1.0] * rows
        grid = figure.add_gridspec(len(ratios), COLUMNS, height_ratios=ratios)
        if sharpe.size:
            axes = figure.add_subplot(grid[0, :])
            _draw_curve(axes, positions, sharpe, phases, marker="o")
            axes.set_title("Sharpe ratio on the validation window (higher is better)")
            axes.set_xlabel("gradient updates")
            if len(np.unique(phases)) > 1:
                axes.legend(loc="best")
        for number, (name, values) in enumerate(curves.items()):
            axes = figure.add_subplot(grid[number // COLUMNS + bool(sharpe.size), number % COLUMNS])
            _draw_curve(axes, positions, values, phases, marker="")
            axes.set_title(_readable(name))

    best = ""
    if sharpe.size:
        place = int(np.nanargmax(sharpe))
        best = f"The best validation Sharpe ratio was {sharpe[place]:.2f}, after {positions[place]:,.0f} updates. "
    return Rendered(
        "training",
        "Training curves",
        "Sharpe ratio on the validation window, and the losses, over the gradient updates: offline from recorded data, "
        "online from the agent's own trading in the training window.",
        f"Line charts of the training. {best}Losses: {', '.join(map(_readable, curves))}.",
        render(draw, 0.3 + 2.4 * bool(sharpe.size) + 1.6 * rows),
    )


def _expert_names(count: int) -> list[str]:
    """Names of the experts; in a blend the reference has a row of its own after them."""
    return [*FAMILIES, "reference"][:count]


def _largest_assets(agent: Backtest) -> list[int]:
    """Columns of the risky assets that the agent and its experts held most, as many as there are colours."""
    score = agent.weights[:, :-1].mean(axis=0)
    if agent.explanation:
        score = score + agent.explanation["experts"][:, :, :-1].mean(axis=(0, 1))
    return [int(column) for column in np.argsort(-score, kind="stable")[: len(AREA_COLOURS)]]


def stack_assets(axes: Axes, dates: DateArray, held: FloatArray, assets: Sequence[str], top: Sequence[int]) -> None:
    """Stack weights (steps, K): the top assets each, the others together, cash last."""
    layers = [held[:, column] for column in top]
    labels, colours = [assets[column] for column in top], list(AREA_COLOURS[: len(top)])
    others = [column for column in range(held.shape[1] - 1) if column not in top]
    if others:
        layers.append(held[:, others].sum(axis=1))
        labels.append("other")
        colours.append(OTHER_GREY)
    layers.append(held[:, -1])
    _stack(axes, dates, np.column_stack(layers), [*labels, "cash"], [*colours, LIGHT_GREY])


def _stack(axes: Axes, dates: DateArray, layers: FloatArray, labels: Sequence[str], colours: Sequence[str]) -> None:
    axes.stackplot(dates, layers.T, labels=list(labels), colors=list(colours), linewidth=0)
    date_axis(axes, dates)
    axes.set_ylim(0.0, 1.0)
    axes.grid(visible=False)
    percent_axis(axes)


def _draw_curve(axes: Axes, positions: FloatArray, values: FloatArray, phases: NDArray[np.str_], marker: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for phase in dict.fromkeys(phases.tolist()):
        chosen = np.flatnonzero((phases == phase) & np.isfinite(values))
        chosen = chosen[thinned(len(chosen), MOST_POINTS)]
        style: dict[str, Any] = {
            "color": PHASE_COLOURS.get(phase, GREEN),
            "marker": marker or ("o" if len(chosen) == 1 else ""),  # a line of one point is not seen
            "markersize": 3.5,
            "linewidth": 1.1,
        }
        axes.plot(positions[chosen], values[chosen], label=phase, **style)
    axes.xaxis.set_major_locator(MaxNLocator(8 if marker else 4, integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
    )


def _numbers(column: pd.Series) -> FloatArray:
    """The column as floats; what is no finite number becomes NaN."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _readable(name: str) -> str:
    return name.replace("_", " ").replace("/", " ")
