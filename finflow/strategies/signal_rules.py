"""Portfolios that follow one figure of the past: what rose, what rose most, what moved least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.strategies.rolling_refit import Rolling

__all__ = ["LowVolatility", "Momentum", "TimeSeriesMomentum"]

FloatArray = NDArray[np.float64]


class Momentum(Rolling):
    """Equal weight in the third of the assets with the best 12-1 return (Jegadeesh and Titman 1993).

    The return over 252 bars without the last 21, whatever `lookback` is; a third is rounded up.
    """

    name = "momentum"

    def __init__(self, rebalance_every: int = 21) -> None:
        super().__init__(rebalance_every, lookback=252)

    def fit(self, returns: FloatArray) -> FloatArray:
        past = np.log1p(returns[:-21]).sum(axis=0)
        return _best_third(past)


class TimeSeriesMomentum(Rolling):
    """The same share for every asset, held while its own 12-1 return is positive, else in cash.

    The long-only form of Moskowitz, Ooi and Pedersen (2012), without their scaling by volatility, which would need
    leverage.
    """

    name = "time-series-momentum"
    leaves_cash = True

    def __init__(self, rebalance_every: int = 21) -> None:
        super().__init__(rebalance_every, lookback=252)

    def fit(self, returns: FloatArray) -> FloatArray:
        rose = np.log1p(returns[:-21]).sum(axis=0) > 0.0
        weights: FloatArray = rose / len(rose)
        return weights


class LowVolatility(Rolling):
    """Equal weight in the third of the assets that moved least (Blitz and van Vliet 2007); a third is rounded up."""

    name = "low-volatility"

    def fit(self, returns: FloatArray) -> FloatArray:
        return _best_third(-returns.std(axis=0, ddof=1))


def _best_third(score: FloatArray) -> FloatArray:
    """Equal weight in the third with the highest score."""
    chosen = np.argsort(-score, kind="stable")[: -(-len(score) // 3)]
    weights = np.zeros(len(score))
    weights[chosen] = 1.0 / len(chosen)
    return weights
