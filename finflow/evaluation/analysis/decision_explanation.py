"""Explanation of an agent's decision on a date, for a report and the command line.

Here are plain numbers and words; the networks are taken apart where they are known
(`finflow.training.judging.explainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.section import Cell, Row, Section, Table, show

__all__ = [
    "ChangedDecision",
    "FeatureChange",
    "Influence",
    "Reasons",
    "as_numbers",
    "largest_trades",
    "lines",
    "section",
]

FloatArray = NDArray[np.float64]
SHOWN = 8  # features, assets
SETTLING = 63  # bars in which an account that began in cash is built up


@dataclass(frozen=True)
class FeatureChange:
    """A feature and the value to give it, in training deviations; of one asset, or of all where none is named."""

    feature: str
    value: float
    asset: str | None = None

    @property
    def name(self) -> str:
        """`ASSET:FEATURE`, or the feature alone."""
        return self.feature if self.asset is None else f"{self.asset}:{self.feature}"


@dataclass(frozen=True)
class Influence:
    """A feature's part in a decision.

    Attributes
    ----------
    feature
        Name.
    value
        In training deviations from the training mean; of a feature of assets, the mean over those listed.
    part
        What it added to the trade, as a share of wealth; over all assets.
    by_asset
        Of a feature of assets: asset -> part.
    """

    feature: str
    value: float
    part: float
    by_asset: dict[str, float]


@dataclass(frozen=True)
class Move:
    """Target of a decision, and the way to it. Weights are over K names, the last "cash".

    Attributes
    ----------
    gate : dict
        Expert -> share in the aim.
    trade_rate
        Share of the way to the aim.
    target : dict
        Asset -> weight: part of the way there.
    traded
        Half-sum of |target - held|: what the decision moves, as a share of wealth.
    """

    gate: dict[str, float]
    trade_rate: float
    target: dict[str, float]
    traded: float


@dataclass(frozen=True)
class ChangedDecision(Move):
    """The decision as it would have been with one feature at another value.

    Attributes
    ----------
    asked
        The feature and the value.
    before
        Its value; the mean over listed assets where the feature of all was changed.
    """

    asked: FeatureChange
    before: float


@dataclass(frozen=True)
class Reasons(Move):
    """One decision, taken apart.

    Attributes
    ----------
    date, known
        The bar at which it filled, and the newest that it knew.
    experts : dict
        Expert -> asset -> weight.
    held, aim, filled : dict
        Asset -> weight: as observed, the experts' mixture, and after the fill.
    turnover, cost
        Of the fill; prices moved between, so that turnover is not exactly ``traded``.
    next_return
        Net, over the bar that followed.
    earned : dict
        Asset (and "cash", "costs") -> contribution to it.
    baseline
        What would have been moved, in the same direction, with every feature at its training mean.
    error, steps
        Completeness error of the parts, and steps of the quadrature.
    influences
        By falling size; their parts sum to ``traded - baseline + error``.
    by_trade : dict
        Asset -> feature -> part, for the largest trades: parts of that asset's target.
    altered
        What single features would have changed.
    """

    date: str
    known: str
    experts: dict[str, dict[str, float]]
    held: dict[str, float]
    aim: dict[str, float]
    filled: dict[str, float]
    turnover: float
    cost: float
    next_return: float
    earned: dict[str, float]
    baseline: float
    error: float
    steps: int
    influences: tuple[Influence, ...]
    by_trade: dict[str, dict[str, float]]
    altered: tuple[ChangedDecision, ...]

    @property
    def trades(self) -> list[str]:
        """Names by falling size of the trade."""
        return sorted(self.held, key=lambda name: -abs(self.target[name] - self.held[name]))


def largest_trades(run: Backtest, count: int) -> list[int]:
    """Steps of the largest trades, ascending; the weeks in which the account is built up out of cash left out."""
    skipped = SETTLING if len(run.turnover) > 2 * SETTLING else 0
    order = np.argsort(-run.turnover[skipped:], kind="stable")[:count] + skipped
    return sorted(int(step) for step in order)


def _moved(move: Move) -> dict[str, object]:
    return {"gate": move.gate, "trade_rate": move.trade_rate, "traded": move.traded}


def as_numbers(reasons: Reasons) -> dict[str, object]:
    """The reasons for JSON."""
    return {
        **_moved(reasons),
        "known": reasons.known,
        "turnover": reasons.turnover,
        "cost": reasons.cost,
        "next_return": reasons.next_return,
        "earned": reasons.earned,
        "weights": {
            name: {
                "held": reasons.held[name],
                "experts": {expert: weights[name] for expert, weights in reasons.experts.items()},
                "aim": reasons.aim[name],
                "target": reasons.target[name],
                "filled": reasons.filled[name],
            }
            for name in reasons.held
        },
        "integrated_gradients": {
            "baseline": reasons.baseline,
            "completeness_error": reasons.error,
            "steps": reasons.steps,
            "features": {
                one.feature: {"value": one.value, "part": one.part, "by_asset": one.by_asset}
                for one in reasons.influences
            },
            "by_trade": reasons.by_trade,
        },
        "what_if": {
            one.asked.name: {**_moved(one), "before": one.before, "after": one.asked.value, "target": one.target}
            for one in reasons.altered
        },
    }


def section(dates: Sequence[Reasons]) -> Section:
    """The decisions of a few dates, as the report shows them."""
    numbers: dict[str, object] = {one.date: as_numbers(one) for one in dates}
    experts = list(dates[0].gate)
    overview = Table(
        "The largest trades",
        ("Filled on", "traded", "trade rate", *experts, "cost", "net return next day"),
        tuple(
            Row(
                one.date,
                (
                    Cell((one.date, "traded"), "%", 1),
                    Cell((one.date, "trade_rate"), "%", 1),
                    *(Cell((one.date, "gate", expert), "%", 0) for expert in experts),
                    Cell((one.date, "cost"), "%", 3),
                    Cell((one.date, "next_return"), "%", 2, plus=True),
                ),
            )
            for one in dates
        ),
        "Traded: half the sum of the moves that the decision asks for. The names are the gate's shares in the aim.",
    )
    tables = [overview]
    for one in dates:
        tables += [_weights(one), _features(one)]
    words = (
        "The days on which the agent traded most, after it had built up its portfolio. --mode explain takes any other "
        "date apart.",
        "Parts are integrated gradients: they divide the trade, less what would have been traded with every feature at "
        "its training mean, among the features. Features move together; setting one alone to its mean is a question "
        "about the agent, not a market that could have been.",
    )
    return Section("decisions", "Why it traded", numbers, tuple(tables), (), words)


def _weights(one: Reasons) -> Table:
    experts = list(one.gate)
    rows = tuple(
        Row(
            name,
            tuple(
                Cell((one.date, "weights", name, *path), "%", 1)
                for path in (("held",), *(("experts", expert) for expert in experts), ("aim",), ("target",))
            ),
        )
        for name in one.trades[:SHOWN]
    )
    return Table(f"{one.date}: from what was held to the target", ("Weight", "held", *experts, "aim", "target"), rows)


def _features(one: Reasons) -> Table:
    place, changed = (one.date, "integrated_gradients"), {found.asked.name: found for found in one.altered}
    rows = []
    for found in one.influences[:SHOWN]:
        path = (*place, "features", found.feature)
        altered: Cell | str = "–"
        if found.feature in changed:
            altered = Cell((one.date, "what_if", found.feature, "traded"), "%", 2)
        rows.append(
            Row(found.feature, (Cell((*path, "value"), "", 2), Cell((*path, "part"), "%", 2, plus=True), altered))
        )
    rows.append(Row("every feature at its mean", ("", Cell((*place, "baseline"), "%", 2, plus=True), "")))
    rows.append(Row("completeness error", ("", Cell((*place, "completeness_error"), "%", 4, plus=True), "")))
    rows.append(Row("traded", ("", Cell((one.date, "traded"), "%", 2, plus=True), ""), marked=True))
    caption = "Values in training deviations from the training mean; of features of assets, the mean over assets."
    columns = ("Feature", "value", "part in the trade", "traded with it at its mean")
    return Table(f"{one.date}: the features that moved it", columns, tuple(rows), caption)


def lines(one: Reasons) -> list[str]:
    """The decision as text for a terminal."""

    def percent(value: float, decimals: int = 1, plus: bool = False) -> str:
        return show(value, "%", decimals, plus=plus).replace("\N{NARROW NO-BREAK SPACE}", "").replace("−", "-")

    mix = ", ".join(f"{name} {percent(share, 0)}" for name, share in one.gate.items())
    text = [
        f"{one.date}, with what was known on {one.known}",
        f"  traded {percent(one.traded, 2)} of the portfolio: {percent(one.trade_rate)} of the way to the aim",
        f"  gate: {mix}",
        f"  filled with a turnover of {percent(one.turnover, 2)} at a cost of {percent(one.cost, 3)}; "
        f"the next bar returned {percent(one.next_return, 2, plus=True)}",
        "",
    ]
    experts = list(one.gate)
    table = [("largest trades", "held", *experts, "aim", "target", "next bar")]
    for name in one.trades[:SHOWN]:
        weights = (one.held[name], *(one.experts[expert][name] for expert in experts), one.aim[name], one.target[name])
        table.append((name, *(percent(weight) for weight in weights), percent(one.earned[name], 2, plus=True)))
    text += [f"  {line}" for line in _aligned(table)]
    text.append("")
    table = [("features that moved it", "value", "part in the trade")]
    for found in one.influences[:SHOWN]:
        table.append((found.feature, f"{found.value:+.2f}", percent(found.part, 2, plus=True)))
    rest = sum(found.part for found in one.influences[SHOWN:])
    table += [
        ("all other features", "", percent(rest, 2, plus=True)),
        ("every feature at its mean", "", percent(one.baseline, 2, plus=True)),
        ("traded", "", percent(one.traded + one.error, 2, plus=True)),
    ]
    text += [f"  {line}" for line in _aligned(table)]
    text.append(f"  completeness error {one.error:+.1e} of wealth, {one.steps} steps; values in training deviations")
    text.append("")
    table = [("one feature changed", "from", "to", "traded", "trade rate", "target that changes most")]
    for changed in one.altered:
        most = max(changed.target, key=lambda name: abs(changed.target[name] - one.target[name]))
        told = f"{most} {percent(one.target[most], 2)} -> {percent(changed.target[most], 2)}"
        values = (f"{changed.before:+.2f}", f"{changed.asked.value:+.2f}", percent(changed.traded, 2))
        table.append((changed.asked.name, *values, percent(changed.trade_rate), told))
    return [*text, *(f"  {line}" for line in _aligned(table))]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
