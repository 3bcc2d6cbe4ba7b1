"""Paths of portfolios, of which segments are cut: what was held and what it brought, a row a holding period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.backtest import Backtest

FloatArray = NDArray[np.float64]


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
        return cls(run.dates, run.returns, run.turnover, run.costs, held_before(run.weights), run.weights)

    def rows(self, start: int, stop: int) -> PortfolioPath:
        """Some of the holding periods."""
        return PortfolioPath(**{name: value[start:stop] for name, value in self._arrays().items()})

    def _arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def held_before(weights: FloatArray) -> FloatArray:
    """Weights held before each trade, (steps, K), of those right after it: all in cash before the first."""
    before: FloatArray = np.roll(weights, 1, axis=0)
    before[0] = 0.0
    before[0, -1] = 1.0
    return before
