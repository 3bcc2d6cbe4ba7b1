"""Paths of portfolios that segments are cut from: of strategies simulated on the market."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from finflow.strategies.strategy import Information

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
    returns, turnover, costs : float64 (steps,)
        Simple returns net of costs; of the trade that opened each period, as shares of wealth.
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
        held: FloatArray = np.roll(run.weights, 1, axis=0)
        held[0] = 0.0
        held[0, -1] = 1.0
        return cls(run.dates, run.returns, run.turnover, run.costs, held, run.weights)

    def rows(self, start: int, stop: int) -> PortfolioPath:
        """Some of the holding periods."""
        return PortfolioPath(*(getattr(self, field.name)[start:stop] for field in fields(self)))


def random_seed(name: str) -> int | None:
    """The seed in a name such as ``random-7``; None in any other name."""
    found = re.fullmatch(rf"{RANDOM}(0|[1-9][0-9]{{0,8}})", name)
    return None if found is None else int(found[1])


class RandomPortfolios:
    """Portfolios of the coverage mixture, drawn anew at every 1st, 5th, 21st or 63rd decision, by the seed."""

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
    """Market that segments lie in; ``window`` are the bars that may be learned from, never those of the test window."""

    process: DecisionProcess
    window: range
    evaluation: EvaluationConfig

    @property
    def span(self) -> tuple[np.datetime64, np.datetime64]:
        """First and last day at which a holding period ends."""
        bars = self.process.decision_bars(self.window)
        dates = self.process.panel.dates
        return dates[bars.start + 1], dates[bars.stop]


def simulate_strategies(market: SegmentMarket, names: Sequence[str]) -> dict[str, PortfolioPath]:
    """Backtest strategies over the whole window, each from cash on; name -> path.

    A FinflowError for a name that is neither ``random-N`` nor one that a backtest knows.
    """
    seeds = [random_seed(name) for name in names]
    strategies = [
        named_strategy(name, market.evaluation) if seed is None else RandomPortfolios(seed)
        for name, seed in zip(names, seeds, strict=True)
    ]
    runs = run_backtests(market.process, market.window, strategies)
    return {name: PortfolioPath.of(run) for name, run in zip(names, runs, strict=True)}


def cut(path: PortfolioPath, segment: Segment, market: SegmentMarket) -> PortfolioPath:
    """Cut a segment out of its path; a FinflowError if its dates lie outside the window of the market."""
    start, end = np.datetime64(segment.start), np.datetime64(segment.end)
    first, last = market.span
    if start < first or end > last:
        raise FinflowError(
            f"the dates {segment.start} to {segment.end} of {segment.strategy} lie outside its holding periods in the "
            f"training window ({first} to {last})"
        )
    rows = np.searchsorted(path.dates, [start, end + np.timedelta64(1, "D")])
    found = path.rows(int(rows[0]), int(rows[1]))
    if not len(found):
        raise FinflowError(f"no holding period of {segment.strategy} ends from {segment.start} to {segment.end}")
    return found
