"""Explanation of an agent's decision on a date.

Here are plain numbers and words; the networks are taken apart where they are known
(`finflow.training.judging.explainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Gate, Numbers, about
from finflow.evaluation.page.section import ROW, Cell, Row, Section, Table, make_table
from finflow.market.bar_frequency import BARS_PER_YEAR

SHOWN = 8  # features, assets
SETTLING = 63  # daily bars in which an account that began in cash is built up


@dataclass(frozen=True)
class Weights:
    """Weights of one asset, from what was held to what is held."""

    held: Annotated[float, about("As observed.")]
    experts: Annotated[Numbers, about("By expert, its portfolio; in a blend that of the reference too.")]
    aim: Annotated[float, about("These portfolios, mixed by the gate.")]
    target: Annotated[float, about("Part of the way there, before acting.temperature and acting.top_p.")]
    filled: Annotated[float, about("After the fill, at its prices.")]


@dataclass(frozen=True)
class Influence:
    """Part of one feature in a trade."""

    value: Annotated[
        float,
        about("In training deviations from the training mean; of a feature of assets, the mean over those listed."),
    ]
    part: Annotated[float, about("What it added to the trade, as a share of wealth; over all assets.")]
    by_asset: Annotated[Numbers, about("By asset, for features of assets, its part.")]


@dataclass(frozen=True)
class IntegratedGradients:
    """A trade divided among the features; the parts sum to ``traded - baseline + completeness_error``."""

    baseline: Annotated[
        float, about("What would have been traded, in the same direction, with every feature at its training mean.")
    ]
    completeness_error: Annotated[float, about("Sum of the parts less (traded - baseline).")]
    steps: Annotated[int, about("Of the quadrature.")]
    features: Annotated[dict[str, Influence], about("By feature, by falling size of the part.")]
    by_trade: Annotated[
        dict[str, Numbers], about("By asset, for the largest trades: feature -> part of that asset's target.")
    ]


@dataclass(frozen=True)
class Explanation:
    """One decision of an agent, taken apart."""

    gate: Gate
    trade_rate: Annotated[float, about("Share of the way to the aim that it goes.")]
    traded: Annotated[float, about("Half-sum of |target - held|: what it moves, as a share of wealth.")]
    holds: Annotated[str, about("What the agent holds: its own policy's portfolio, or a blend with a reference.")]
    known: Annotated[str, about("Newest bar that it knew.")]
    turnover: Annotated[float, about("Of the fill; prices moved between, so that it is not exactly what was traded.")]
    cost: Annotated[float, about("Of the fill, a fraction of wealth.")]
    next_return: Annotated[float, about("Net, over the bar after the fill.")]
    earned: Annotated[Numbers, about("By asset, cash and costs, its contribution to that return.")]
    weights: Annotated[dict[str, Weights], about("By asset, and cash.")]
    integrated_gradients: Annotated[IntegratedGradients, about("The trade divided among the features.")]

    @property
    def trades(self) -> list[str]:
        """Names by falling size of the trade."""
        return sorted(self.weights, key=lambda name: -abs(self.weights[name].target - self.weights[name].held))

    @property
    def influences(self) -> list[tuple[str, Influence]]:
        """The features that had the largest parts, by falling size."""
        return list(self.integrated_gradients.features.items())[:SHOWN]


Dated = tuple[str, Explanation]
"""The bar at which a decision filled, and its explanation."""


def largest_trades(run: Backtest, count: int) -> list[int]:
    """Steps of the largest trades, ascending; the weeks in which the account is built up out of cash left out."""
    settling = max(SETTLING * run.bars_per_year // BARS_PER_YEAR, 12)
    skipped = settling if len(run.turnover) > 2 * settling else 0
    order = np.argsort(-run.turnover[skipped:], kind="stable")[:count] + skipped
    return sorted(int(step) for step in order)


def section(dates: Sequence[Dated]) -> Section:
    experts = list(dates[0][1].gate)
    columns = (
        ("traded", Cell((ROW, "traded"), "%", 1)),
        ("trade rate", Cell((ROW, "trade_rate"), "%", 1)),
        *((expert, Cell((ROW, "gate", expert), "%", 0)) for expert in experts),
        ("cost", Cell((ROW, "cost"), "%", 3)),
        ("net return next day", Cell((ROW, "next_return"), "%", 2, plus=True)),
    )
    caption = (
        "Traded: half the sum of the moves that the decision asks for. The names are the gate's shares in the aim."
    )
    tables = [make_table("The largest trades", "Filled on", [date for date, _ in dates], columns, caption)]
    for date, one in dates:
        tables += [_weights(date, one), _features(date, one)]
    words = (
        f"The agent {dates[0][1].holds}.",
        "The days on which the agent traded most, after it had built up its portfolio. --mode explain takes any other "
        "date apart.",
        "Parts are integrated gradients: they divide the trade, less what would have been traded with every feature at "
        "its training mean, among the features.",
    )
    return Section("decisions", "Why it traded", dict(dates), tuple(tables), (), words)


def _weights(date: str, one: Explanation) -> Table:
    ways = (("held",), *(("experts", expert) for expert in one.gate), ("aim",), ("target",))
    columns = [(way[-1], Cell((date, "weights", ROW, *way), "%", 1)) for way in ways]
    return make_table(f"{date}: from what was held to the target", "Weight", one.trades[:SHOWN], columns)


def _features(date: str, one: Explanation) -> Table:
    place = (date, "integrated_gradients")
    rows = []
    for feature, _ in one.influences:
        path = (*place, "features", feature)
        rows.append(Row(feature, (Cell((*path, "value")), Cell((*path, "part"), "%", 2, plus=True))))
    rows.append(Row("every feature at its mean", ("", Cell((*place, "baseline"), "%", 2, plus=True))))
    rows.append(Row("completeness error", ("", Cell((*place, "completeness_error"), "%", 4, plus=True))))
    rows.append(Row("traded", ("", Cell((date, "traded"), "%", 2, plus=True)), marked=True))
    caption = "Values in training deviations from the training mean; of features of assets, the mean over assets."
    columns = ("Feature", "value", "part in the trade")
    return Table(f"{date}: the features that moved it", columns, tuple(rows), caption)
