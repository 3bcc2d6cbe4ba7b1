"""Portfolios of an agent's experts against their names, and the gate's weights in each state of the market.

Every trait of a decision is an estimate from the bars known to it, so that none of them is luck with what came after.
Over the last year of known returns R (rows are days; of months there are 12 for 252, and 36 for 756): volatility
``sqrt(252) sd(R w)``; diversification ratio
``sum_k w_k sd(R_k) / sd(R w)`` (Choueifaty and Coignard 2008); momentum ``sum_k w_k ln(P[-22] / P[-253])``, the year's
return without its last month (Jegadeesh and Titman 1993); beta ``cov(R w, R m) / var(R m)`` to the equally weighted
market m. Expected growth a year is ``252 (w mu - var(R w) / 2)``, mu being means over three years, shrunk half-way to
their mean over the assets.

Each is taken of the risky sleeve, whose weights sum to one, and of the portfolio with its cash, which has none of
volatility, momentum or beta, and grows by what cash earned in the last known bar.

States of the market are ranges of the crisis score that the agent observes: a filtered probability of the state of
larger variance (Hamilton 1989; `finflow.market.features.market_features`), fitted on the training window and known
at the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from finflow.arrays import FloatArray
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.market.bar_frequency import bars_per_month
from finflow.market.panel import MarketPanel

TRAITS = ("volatility", "diversification", "momentum", "beta", "growth")
LARGEST_CASH = 0.7
#: Expert -> the trait that its name claims, and whether it is to have most of it or least.
CLAIMS: dict[str, tuple[str, Literal["least", "most"]]] = {
    "volatility": ("volatility", "least"),
    "correlation": ("diversification", "most"),
    "momentum": ("momentum", "most"),
    "defensive": ("beta", "least"),
    "growth": ("growth", "most"),
}


Traits = Mapping[str, float]


@dataclass(frozen=True)
class ExpertTraits:
    """Traits of the experts' portfolios, and of equal weight, by what was known at the time; means over ``days``.

    By expert: of the risky sleeve, whose weights sum to one, and in total, with cash; and its share of cash.
    """

    sleeve: Mapping[str, Traits]
    total: Mapping[str, Traits]
    cash: dict[str, float]
    days: int

    @property
    def as_called(self) -> dict[str, dict[str, bool | None]]:
        """By expert: agreement with the trait that its name claims, and whether it is invested."""
        return {
            name: {of: self.holds(name, of) for of in ("sleeve", "total")} | {"invested": cash <= LARGEST_CASH}
            for name, cash in self.cash.items()
            if name != BASELINE
        }

    def holds(self, expert: str, of: str) -> bool | None:
        """True for an expert that has its trait, of the ``sleeve`` or in ``total``; None where its name claims none.

        The volatility expert claims less volatility than equal weight; the others most, or least, of all experts.
        """
        if expert not in CLAIMS:
            return None
        trait, direction = CLAIMS[expert]
        table, sign = (self.sleeve if of == "sleeve" else self.total), 1.0 if direction == "most" else -1.0
        rivals = [BASELINE] if expert == "volatility" else [name for name in CLAIMS if name != expert]
        return all(sign * table[expert][trait] > sign * table[name][trait] for name in rivals if name in table)


def expert_traits(
    panel: MarketPanel, known: Sequence[int], portfolios: FloatArray, names: Sequence[str]
) -> ExpertTraits | None:
    """Measure portfolios by what was known when they were named; None if no decision has three years before it.

    Parameters
    ----------
    known : sequence of int, (steps,)
        The newest bar that each decision knew; those with less than three years before them are left out.
    portfolios : array, (steps, E, K)
        Of the E experts named, cash last.
    """
    year = panel.bars_per_year
    month, long = bars_per_month(year), 3 * year
    returns = np.full(panel.close.shape, np.nan)
    returns[1:] = panel.close[1:] / panel.close[:-1] - 1.0
    rows, every = [(step, bar) for step, bar in enumerate(known) if bar >= long], (*names, BASELINE)
    if not rows:
        return None
    found, cash = np.full((2, len(rows), len(every), len(TRAITS)), np.nan), np.empty((len(rows), len(every)))
    for place, (step, bar) in enumerate(rows):
        window = returns[bar - long + 1 : bar + 1]
        usable = np.isfinite(window).all(axis=0) & panel.listed[bar]
        if not usable.any():
            continue
        weights = np.vstack([portfolios[step], np.append(usable / usable.sum(), 0.0)])
        risky = weights[:, :-1] * usable
        invested = risky.sum(axis=1, keepdims=True)
        sleeve = (risky / np.where(invested > 0.0, invested, np.nan))[:, usable]
        cash[place] = weights[:, -1]
        closes = panel.close[[bar - year, bar - month]][:, usable]
        measured = _measure(window[:, usable], np.log(closes[1] / closes[0]), sleeve, year)
        found[:, place] = measured, _with_cash(measured, invested[:, 0], year * float(panel.cash_returns[bar]))
    sleeve_means, total_means = (
        {name: dict(zip(TRAITS, row.tolist(), strict=True)) for name, row in zip(every, table, strict=True)}
        for table in np.nanmean(found, axis=1)
    )
    shares = dict(zip(every, cash.mean(axis=0).tolist(), strict=True))
    return ExpertTraits(sleeve_means, total_means, shares, len(rows))


def _measure(window: FloatArray, momentum: FloatArray, sleeve: FloatArray, annual: int) -> FloatArray:
    """Traits (rows, 5) of fully invested portfolios (rows, assets), from three years of returns and their momentum."""
    year = window[-(len(window) // 3) :]
    market = year.mean(axis=1)
    returns = year @ sleeve.T
    variance = returns.var(axis=0)
    deviation = np.sqrt(np.maximum(variance, 1e-16))
    covariance = (market - market.mean()) @ (returns - returns.mean(axis=0)) / len(year)
    own = window.mean(axis=0)
    mean = 0.5 * own + 0.5 * own.mean()
    return np.column_stack(
        [
            deviation * np.sqrt(annual),
            sleeve @ year.std(axis=0) / deviation,
            sleeve @ momentum,
            covariance / max(float(market.var()), 1e-16),
            (sleeve @ mean - variance / 2.0) * annual,
        ]
    )


def _with_cash(measured: FloatArray, invested: FloatArray, cash: float) -> FloatArray:
    """The same portfolios with the rest in cash, which earns so much a year; cash changes no diversification ratio."""
    total = measured.copy()
    total[:, [0, 2, 3]] *= invested[:, None]
    variance = measured[:, 0] ** 2
    mean = measured[:, 4] + variance / 2.0
    total[:, 4] = invested * mean + (1.0 - invested) * cash - invested**2 * variance / 2.0
    return total


def expert_section(found: ExpertTraits, window: str) -> Section:
    """The experts' traits for a report: of the sleeve and in total, and whether each has what its name claims."""
    answers = {None: "", True: "yes", False: "no"}
    tables = tuple(
        make_table(
            title,
            "Expert",
            list(table),
            (
                ("Volatility", Cell((of, ROW, "volatility"), "%", 1)),
                ("Diversification", Cell((of, ROW, "diversification"))),
                ("Momentum 12-1", Cell((of, ROW, "momentum"), "%", 1)),
                ("Beta", Cell((of, ROW, "beta"))),
                ("Expected growth", Cell((of, ROW, "growth"), "%", 1)),
                ("Cash", Cell(("cash", ROW), "%", 0)),
                ("Has the trait of its name", {name: answers[found.holds(name, of)] for name in table}),
            ),
            marked=BASELINE,
        )
        for title, of, table in (("Of the risky sleeve", "sleeve", found.sleeve), ("With cash", "total", found.total))
    )
    words = (
        f"Means over {window} of estimates from the bars known at each decision, without hindsight. The name of each "
        "expert implies a trait: volatility below that of equal weight, or most (beta: least) of all experts.",
    )
    numbers = {**vars(found), "as_called": found.as_called}
    return Section("expert_traits", "Traits of the experts", numbers, tables, (), words)


ByState = dict[str, dict[str, Any]]
#: State of the market -> the range of the crisis score, up to its upper end.
STATES = {"calm": (0.0, 0.2), "between": (0.2, 0.8), "crisis": (0.8, 1.0)}


def gate_by_state(crisis: FloatArray, gate: FloatArray, cash: FloatArray, names: Sequence[str]) -> ByState:
    """Means in each state of the market: number of decisions, the ``gate`` by expert, and ``cash`` in the aim.

    From the crisis score known to each decision (steps,), in [0, 1], the gate (steps, E) and the share of cash
    (steps,). States that never were are left out.
    """
    found: ByState = {}
    for state, (low, high) in STATES.items():
        here = (crisis >= low) & ((crisis < high) if high < 1.0 else (crisis <= high))
        if here.any():
            shares = dict(zip(names, gate[here].mean(axis=0).tolist(), strict=True))
            found[state] = {"decisions": int(here.sum()), "gate": shares, "cash": float(cash[here].mean())}
    return found


def gate_section(found: ByState, names: Sequence[str], window: str) -> Section:
    """Gate weights by market state for a report; ``window`` says which decisions were measured."""
    rows = [
        ((state,), f"{state} (score {low:g} to {high:g})") for state, (low, high) in STATES.items() if state in found
    ]
    columns = (
        ("Decisions", Cell((ROW, "decisions"), decimals=0)),
        *((name.capitalize(), Cell((ROW, "gate", name), "%", 1)) for name in names),
        ("Cash in the aim", Cell((ROW, "cash"), "%", 1)),
    )
    words = (f"Means over {window}, by the crisis score that the agent observed, fitted on the training window.",)
    if not any(round(one["gate"][name], 3) for one in found.values() for name in names if name != "reference"):
        return Section("gate_states", "", dict(found), short=None)  # no expert has a share
    table = make_table("Share of each expert in the aim", "The market", rows, columns)
    return Section("gate_states", "Gate weights by market state", dict(found), (table,), (), words)
