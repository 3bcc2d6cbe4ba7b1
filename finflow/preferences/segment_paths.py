"""Paths of the portfolios of strategies that are simulated on the market, from which segments are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config import EvaluationConfig
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.preferences.pairs import Segment
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information, Strategy

FloatArray = NDArray[np.float64]
RANDOM = "random-"
PURPOSE = 91  # of the generators of random portfolios
PERIODS = (1, 5, 21, 63)
"""Decisions between two draws, by the seed's remainder."""


@dataclass(frozen=True, eq=False)
class PortfolioPath:
    """Holding periods of one strategy, or a segment of them.

    Attributes
    ----------
    dates : datetime64[D] (steps,)
        Day at which each holding period ends.
    returns : float64 (steps,)
        Simple returns net of costs.
    turnover : float64 (steps,)
        Of the trade that opened each period, as a share of wealth.
    costs : float64 (steps,)
        Share of wealth paid for it.
    held, filled : float64 (steps, K)
        Weights before that trade, as observed, and right after it; cash last.
    """

    dates: NDArray[np.datetime64]
    returns: FloatArray
    turnover: FloatArray
    costs: FloatArray
    held: FloatArray
    filled: FloatArray

    def __len__(self) -> int:
        return len(self.dates)

    @classmethod
    def of(cls, run: Backtest) -> PortfolioPath:
        """The path of a backtest, which starts in cash."""
        held = np.roll(run.weights, 1, axis=0)
        held[0] = np.eye(held.shape[1])[-1]
        return cls(run.dates, run.returns, run.turnover, run.costs, held, run.weights)

    def rows(self, start: int, stop: int) -> PortfolioPath:
        """Some of the holding periods."""
        return PortfolioPath(*(getattr(self, field.name)[start:stop] for field in fields(self)))


class RandomPortfolios:
    """Portfolios of the coverage mixture, drawn anew at every 1st, 5th, 21st or 63rd decision.

    Parameters
    ----------
    seed : int
        Draws the portfolios; its remainder modulo 4 chooses how often.
    """

    def __init__(self, seed: int) -> None:
        self.name = f"{RANDOM}{seed}"
        self._period = PERIODS[seed % len(PERIODS)]
        self._generator = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))

    def decide(self, information: Information) -> FloatArray:
        """A new portfolio of what is listed, or the present one, which trades nothing."""
        if information.step % self._period:
            return information.portfolio
        listed = information.listed[None]
        drawn: FloatArray = draw_coverage(self._generator, 1, len(information.portfolio), listed)[0][0]
        return drawn


class SegmentMarket(NamedTuple):
    """Market that segments lie in.

    Attributes
    ----------
    window : range
        Bars that may be learned from: never those of the test window.
    evaluation : EvaluationConfig
        Settings of named strategies.
    """

    process: DecisionProcess
    window: range
    evaluation: EvaluationConfig


def simulate_strategies(market: SegmentMarket, names: Iterable[str]) -> dict[str, PortfolioPath]:
    """Backtest strategies over the whole window, each from cash on: name -> path.

    Parameters
    ----------
    names : iterable of str
        ``random-N``, or names that a backtest knows.

    Raises
    ------
    FinflowError
        If there is no such strategy.
    """
    strategies: dict[str, Strategy] = {}
    for name in names:
        found = re.fullmatch(rf"{RANDOM}(0|[1-9][0-9]{{0,8}})", name)
        strategies[name] = RandomPortfolios(int(found[1])) if found else named_strategy(name, market.evaluation)
    runs = run_backtests(market.process, market.window, list(strategies.values()))
    return {name: PortfolioPath.of(run) for name, run in zip(strategies, runs, strict=True)}


def cut(path: PortfolioPath, segment: Segment) -> PortfolioPath:
    """Cut a segment out of the path of its strategy.

    Raises
    ------
    FinflowError
        If its dates lie outside the path, or no holding period ends on them.
    """
    start, end = np.datetime64(segment.start), np.datetime64(segment.end)
    dates = f"{segment.start} to {segment.end}"
    if start < path.dates[0] or end > path.dates[-1]:
        raise FinflowError(
            f"the dates {dates} of {segment.strategy} lie outside its holding periods in the training window "
            f"({path.dates[0]} to {path.dates[-1]})"
        )
    first, last = np.searchsorted(path.dates, [start, end + np.timedelta64(1, "D")])
    if first == last:
        raise FinflowError(f"no holding period of {segment.strategy} ends from {dates}")
    return path.rows(int(first), int(last))
