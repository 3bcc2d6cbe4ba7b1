"""An account that an agent trades day by day, on the ledger or at a broker: no evening knows a later bar.

On the evening of bar T the trade that was decided before fills at the prices of T, and the next one is decided. On the
ledger the step of the decision process is split: its first half, the fill, needs no later price; its second half, the
growth of the holdings, follows on the next evening. The numbers are those of the backtest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess, fill_at
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import FinflowError
from finflow.evaluation.backtest import History, targets_of
from finflow.strategies.strategy import Strategy
from finflow.trading.account_state import DECISION, fills_of

FloatArray = NDArray[np.float64]

ALPHA = 0.05
FEWEST = 63  # returns of the backtest that an expectation needs
SHIFT = 2.0  # scale of the alternatives: shifts of the annual Sharpe ratio
LAGS = 10  # bars over which autocorrelation of returns counts


@dataclass(frozen=True)
class Expectation:
    """Distribution of a bar's log return by a backtest of ``count`` bars; ``ratio`` is long-run over plain variance."""

    mean: float
    deviation: float
    count: int
    bars_per_year: int
    ratio: float = 1.0

    @classmethod
    def of(cls, returns: FloatArray, bars_per_year: int) -> Expectation | None:
        """That of the simple returns of a backtest; None where they are too few, or do not move."""
        logs = np.log1p(returns[np.isfinite(returns) & (returns > -1.0)])
        if len(logs) < FEWEST or not float(logs.std()) > 0.0:
            return None
        return cls(float(logs.mean()), float(logs.std(ddof=1)), len(logs), bars_per_year, variance_ratio(logs))

    def _factors(self, returns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``q`` and ``k`` of the evidence after each return, (n,)."""
        deviations = (np.log1p(returns) - self.mean) / self.deviation
        clock = self.ratio * np.cumsum(np.square(deviations))
        known, shift = 1.0 + clock / self.count, SHIFT**2 / self.bars_per_year
        return shift * clock / known, shift / np.square(self.deviation * known)

    def log_evidence(self, returns: FloatArray) -> FloatArray:
        """Logarithm of the evidence against the expectation after each return of an account, (n,)."""
        excess = np.cumsum(np.log1p(returns) - self.mean)
        spread, weight = self._factors(returns)
        return np.asarray(0.5 * (excess**2 * weight / (1.0 + spread) - np.log1p(spread)), dtype=np.float64)

    def band(self, returns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Edges of the account's growth, of 1 invested, after each of its returns: low and high, (n,)."""
        spread, weight = self._factors(returns)
        width = np.sqrt((2.0 * math.log(1.0 / ALPHA) + np.log1p(spread)) * (1.0 + spread) / weight)
        middle = self.mean * np.arange(1.0, len(returns) + 1.0)
        return np.exp(middle - width), np.exp(middle + width)

    def left_on(self, returns: FloatArray) -> int | None:
        """First return after which the account was outside what was expected; None where it never was."""
        outside = np.flatnonzero(self.log_evidence(returns) >= -math.log(ALPHA))
        return int(outside[0]) if outside.size else None


def variance_ratio(returns: FloatArray) -> float:
    """Long-run over plain variance of returns, with Bartlett's weights for `LAGS` lags; 1 where it is less."""
    centred = returns - returns.mean()
    lags = range(1, LAGS + 1)
    shared = sum((1.0 - lag / (LAGS + 1.0)) * float(centred[lag:] @ centred[:-lag]) for lag in lags)
    return max(1.0, 1.0 + 2.0 * shared / float(centred @ centred))


_STATE = ("weights", "wealth", "objective", "objective_before")


@dataclass(frozen=True)
class DailyAccount:
    """Account on the evening of a bar."""

    date: str
    step: int  # decisions made before, this evening's left out
    state: dict[str, Any] | None  # of the portfolio before the fill, as `PortfolioState` has it; None before the first
    target: list[float] | None  # filled at the bar; None before the first fill
    next_target: list[float] | None  # decided this evening; None at an execution lag of 0, where it has filled
    filled: list[float] | None  # weights right after the fill
    wealth: float  # before the fill, in money
    simple_return: float | None  # net return of the holding period that ended at the bar; None at the first
    cost: float
    turnover: float

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        """An evening from its line of the log."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__})


def broker_evening(entries: Sequence[Mapping[str, Any]], last: DailyAccount | None) -> DailyAccount:
    """Evening of the newest decision in the log, from the account that the broker reported for it.

    Turnover and cost are those of the fills since the decision before, as shares of the account's value.
    """
    decisions = [one for one in entries if one["kind"] == DECISION and "broker" in one]
    newest = decisions[-1]
    before = [one["date"] for one in decisions if one["date"] < newest["date"]]
    fills = (fills_of(entries, before[-1]) or []) if before else []
    prices, account = newest["prices"], newest["account"]
    held = [prices[name] * account["shares"].get(name, 0.0) for name in sorted(prices)]
    value = float(sum(held) + account["cash"])
    traded = [one.shares * one.price for one in fills]
    return DailyAccount(
        date=newest["date"],
        step=0 if last is None else last.step + 1,
        state=None,
        target=None,
        next_target=None,
        filled=[*(money / value for money in held), account["cash"] / value],
        wealth=value,
        simple_return=None if last is None else value / last.wealth - 1.0,
        cost=sum(one.cost for one in fills) / value,
        turnover=0.5 * (sum(map(abs, traded)) + abs(sum(traded))) / value,
    )


class PaperAccount:
    """Evenings of an account that fills first at the bar ``first``, or that goes on from the evening ``last``.

    Raises FinflowError if the bars do not have the evening to go on from, or there is nothing to decide from before the
    first fill.
    """

    def __init__(
        self, process: DecisionProcess, strategy: Strategy, first: int, last: DailyAccount | None = None
    ) -> None:
        self.process, self.strategy, self.first = process, strategy, first
        self.history = History(process.panel.close)
        self.last = last
        self.bar = first - 1 - (1 if process.lag else 0)
        if first < process.first_bar:
            raise FinflowError(
                f"nothing can be decided before {process.panel.dates[min(process.first_bar, process.panel.n_bars - 1)]}"
                ", where all features have their history: name a later --from"
            )
        if last is not None:
            self.bar = process.panel.bars_until(last.date) - 1
            if self.bar < 0 or str(process.panel.dates[self.bar]) != last.date:
                raise FinflowError(
                    f"the account is at {last.date}, a day that the prices do not have: bring them back, or begin "
                    "another account with --from"
                )

    def evenings(self, until: int) -> Iterator[DailyAccount]:
        """Evenings after the last one, up to and including that of a bar."""
        while self.bar < until:
            self.bar += 1
            self.last = self._evening(self.bar)
            yield self.last

    def _evening(self, bar: int) -> DailyAccount:
        process, date = self.process, str(self.process.panel.dates[bar])
        if bar < self.first:  # the evening before the first fill
            begun = process.start(np.array([bar + 1]))
            decided = self._decide(begun, bar + 1, 0)
            return DailyAccount(date, 0, None, None, decided, None, float(begun.wealth[0]), None, 0.0, 0.0)
        state, simple_return, step = self._opened(bar)
        pending = None if self.last is None else self.last.next_target
        target = self._decide(state, bar, step) if process.lag == 0 else pending
        if target is None:
            raise FinflowError("the log has no decision for this bar: begin another account with --from")
        fill = fill_at(process, state, np.array([target]))
        following = None
        if process.lag:
            wealth = state.wealth * fill.wealth_factor
            ahead = PortfolioState(np.array([bar + 1]), fill.weights, wealth, state.objective, state.objective)
            following = self._decide(ahead, bar + 1, step + 1)
        return DailyAccount(
            date,
            step + (1 if process.lag else 0),
            {name: getattr(state, name)[0].tolist() for name in _STATE},
            target,
            following,
            fill.weights[0].tolist(),
            float(state.wealth[0]),
            simple_return,
            float(fill.cost[0]),
            float(fill.turnover[0]),
        )

    def _opened(self, bar: int) -> tuple[PortfolioState, float | None, int]:
        """State before the fill at a bar, the return of the period that ended there, and the decisions made before."""
        last = self.last
        if last is None or last.state is None:
            return self.process.start(np.array([bar])), None, 0
        before = PortfolioState(np.array([bar - 1]), *(np.array([last.state[name]]) for name in _STATE))
        outcome = self.process.step(before, np.array([last.target]))
        return outcome.state, float(outcome.simple_return[0]), last.step + (0 if self.process.lag else 1)

    def _decide(self, state: PortfolioState, bar: int, step: int) -> list[float]:
        target: list[float] = targets_of(self.process, state, [self.strategy], step, bar, self.history)[0].tolist()
        return target
