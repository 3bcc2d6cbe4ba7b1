"""Attribution of a return to assets, cash and costs, and to an agent's experts; and explanation of its decisions.

**One day.** The ledger's net return is ``r = (1 - c) G - 1``, with c the cost, w the weights after the fill, g the
growth of each asset and of cash, and ``G = sum_k w_k g_k``. So, exactly,

    r = sum_k w_k (g_k - 1) - c G

and asset k contributes ``w_k (g_k - 1)``, costs ``-c G``.

Days are linked in money, without a residual, and a holding is divided among the experts whose aims built it:
docs/reference/report.md, Where the return came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from finflow.arrays import FloatArray
from finflow.evaluation.backtest import BASELINE, Backtest, ComparisonContext
from finflow.evaluation.page.page_numbers import Gate, Numbers, Path, about
from finflow.evaluation.page.section import ROW, Cell, Section, Table, make_table
from finflow.market.bar_frequency import BARS_PER_YEAR

SHOWN = 15  # assets at either end, where there are many
NOBODY = "held without an expert"
SHOWN_PARTS = 8  # features and assets of a decision
SETTLING = 63  # daily bars in which an account that began in cash is built up


def attribute(run: Backtest, growth: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Contributions to the net return of each day, which sum to it: of every asset and of cash, and of costs.

    ``growth`` is the gross growth of each asset and of cash, (steps, K), as the first result is; costs (steps,) are
    negative.
    """
    return run.weights * (growth - 1.0), -run.costs * np.sum(run.weights * growth, axis=1)


def linked(run: Backtest, contributions: FloatArray) -> FloatArray:
    """Contributions of all days, in money, of 1 invested: (...) from (steps, ...)."""
    return np.asarray(np.tensordot(run.wealth[:-1], contributions, axes=1))


def expert_shares(run: Backtest) -> FloatArray | None:
    """Share of each expert in each weight held after a fill, (steps, E + 1, K); None for what is no agent.

    The last row is what no expert named: the cash that the account began with, and trades that were refused. Shares
    sum to one over the rows.
    """
    reasons = run.explanation or {}
    if "held" not in reasons:
        return None
    experts, held = reasons["experts"], reasons["held"]
    steps, count, size = experts.shape
    refused = np.zeros(steps, dtype=np.bool_) if run.refused is None else run.refused
    shares = np.zeros((steps, count + 1, size))
    before = np.zeros((count + 1, size))
    before[-1] = 1.0
    for step in range(steps):
        rate = float(reasons["trade_rate"][step])
        parts = (1.0 - rate) * before * held[step]
        parts[:-1] += rate * reasons["gate"][step][:, None] * experts[step]
        total = parts.sum(axis=0)
        known = (total > 0.0) & ~refused[step]
        before = shares[step] = np.where(known, parts / np.where(total > 0.0, total, 1.0), before)
    return shares


def attribution_section(context: ComparisonContext, experts: Sequence[str]) -> Section:
    """Contributions to the returns of the judged strategy, with its experts if it is an agent, and of equal weight."""
    bars = context.process.decision_bars(context.window)
    growth = context.process.growth[bars.start + 1 : bars.stop + 1]
    runs = [run for run in context.runs if run.name in (context.judged, BASELINE)]
    numbers = {run.name: _numbers(run, growth, experts) for run in runs}
    judged = numbers[context.judged]
    order, caption = sorted(judged["assets"], key=lambda asset: -judged["assets"][asset]), ""
    if len(order) > 2 * SHOWN:
        order = [*order[:SHOWN], *order[-SHOWN:]]
        caption = f"The {SHOWN} assets that brought most and the {SHOWN} that brought least; metrics.json has all."
    tables = [_by_source("By asset", [(("assets", asset), asset) for asset in order], list(numbers), caption)]
    words = [
        "What one unit of money, invested at the start, earned from each source; the lines sum to the total, rounded."
    ]
    if judged["experts"] is not None and any(
        round(judged["experts"][name], 3) for name in experts if name != "reference"
    ):
        words.append(
            "An asset's part goes to the experts by their shares in what is held: a holding is built from the aims of "
            "many days."
        )
        rows = [(("experts", key), NOBODY if key == "none" else key) for key in judged["experts"]]
        tables.append(_by_source("By expert", rows, [context.judged]))
    return Section("attribution", "Where the return came from", numbers, tuple(tables), (), tuple(words))


def _numbers(run: Backtest, growth: FloatArray, experts: Sequence[str]) -> dict[str, Any]:
    earned, costs = attribute(run, growth)
    assets, shares, divided = linked(run, earned[:, :-1]), expert_shares(run), None
    if shares is not None:
        parts = linked(run, np.einsum("tek,tk->te", shares[:, :, :-1], earned[:, :-1]))
        divided = dict(zip((*experts, "none"), parts.tolist(), strict=True))
    return {
        "total": float(np.prod(1.0 + run.returns) - 1.0),
        "assets": dict(zip(run.assets[:-1], assets.tolist(), strict=True)),
        "risky": float(assets.sum()),
        "experts": divided,
        "cash": float(linked(run, earned[:, -1])),
        "costs": float(linked(run, costs)),
    }


def _by_source(title: str, sources: Sequence[tuple[Path, str]], names: Sequence[str], caption: str = "") -> Table:
    columns = [(name, Cell((name, ROW), "%", 1, plus=True)) for name in names]
    return make_table(title, "Source", [*sources, "cash", "costs", "total"], columns, caption, marked="total")


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


Dated = tuple[str, Explanation]
"""The bar at which a decision filled, and its explanation."""


def largest_trades(run: Backtest, count: int) -> list[int]:
    """Steps of the largest trades, ascending; the weeks in which the account is built up out of cash left out."""
    settling = max(SETTLING * run.bars_per_year // BARS_PER_YEAR, 12)
    skipped = settling if len(run.turnover) > 2 * settling else 0
    return sorted(int(step) for step in np.argsort(-run.turnover[skipped:], kind="stable")[:count] + skipped)


def decisions_section(dates: Sequence[Dated]) -> Section:
    columns = (
        ("traded", Cell((ROW, "traded"), "%", 1)),
        ("trade rate", Cell((ROW, "trade_rate"), "%", 1)),
        *((expert, Cell((ROW, "gate", expert), "%", 0)) for expert in dates[0][1].gate),
        ("cost", Cell((ROW, "cost"), "%", 3)),
        ("net return next day", Cell((ROW, "next_return"), "%", 2, plus=True)),
    )
    caption = (
        "Traded: half the sum of the moves that the decision asks for. The names are the gate's shares in the aim."
    )
    tables = [make_table("The largest trades", "Filled on", [date for date, _ in dates], columns, caption)]
    for date, one in dates:
        tables += [_weights_table(date, one), _features_table(date, one)]
    words = (
        f"The agent {dates[0][1].holds}.",
        "The days on which the agent traded most, after it had built up its portfolio. --mode explain takes any other "
        "date apart.",
        "Parts are integrated gradients: they divide the trade, less what would have been traded with every feature at "
        "its training mean, among the features.",
    )
    return Section("decisions", "Why it traded", dict(dates), tuple(tables), (), words)


def _weights_table(date: str, one: Explanation) -> Table:
    ways = (("held",), *(("experts", expert) for expert in one.gate), ("aim",), ("target",))
    columns = [(way[-1], Cell((date, "weights", ROW, *way), "%", 1)) for way in ways]
    rows = sorted(one.weights, key=lambda name: -abs(one.weights[name].target - one.weights[name].held))[:SHOWN_PARTS]
    return make_table(f"{date}: from what was held to the target", "Weight", rows, columns)


def _features_table(date: str, one: Explanation) -> Table:
    place = (date, "integrated_gradients")
    shown = list(one.integrated_gradients.features)[:SHOWN_PARTS]  # by falling size
    others = {
        "every feature at its mean": Cell((*place, "baseline"), "%", 2, plus=True),
        "completeness error": Cell((*place, "completeness_error"), "%", 4, plus=True),
        "traded": Cell((date, "traded"), "%", 2, plus=True),
    }
    paths = {feature: (*place, "features", feature) for feature in shown}
    parts = {feature: Cell((*path, "part"), "%", 2, plus=True) for feature, path in paths.items()} | others
    columns = (
        ("value", {feature: Cell((*path, "value")) for feature, path in paths.items()}),
        ("part in the trade", parts),
    )
    caption = "Values in training deviations from the training mean; of features of assets, the mean over assets."
    return make_table(f"{date}: the features that moved it", "Feature", parts, columns, caption, marked="traded")
