"""Sequential test of an account against its backtest: valid at every time, however often it is checked.

Under the null hypothesis the log returns of the account have the mean of the backtest, which its ``m`` returns
estimate with a standard error. With ``S`` the sum of the account's log returns less that mean, ``s`` the backtest's
deviation and ``V`` the account's clock, the evidence is the Bayes factor of means that lie further away,

    log E = -1/2 log(1 + q) + S^2 k / (2 (1 + q)),   q = a V / (1 + V / m),   k = a / (s (1 + V / m))^2,

with ``a = SHIFT^2 / bars a year`` the variance of the shifts in units of ``s^2``. The edges of the band in which the
account is as expected are where ``E = 1 / alpha``.

The clock is the account's own sum of squared deviations in units of ``s^2``. It runs faster in turbulent months, so
that a crisis is no evidence against a mean. For increments that are symmetric around their mean given the past,
``exp(x S - x^2 V s^2 / 2)`` is a supermartingale for every ``x``, whatever their tails and however their variance moves
(de la Pena 1999), and so a mixture of them reaches 1 / alpha with a probability of alpha at most (Ville's inequality).
Autocorrelated returns are no such increments: the clock is multiplied by the ratio of long-run to
plain variance in the backtest (Newey and West 1987), where that is above one. What the estimated mean and this ratio
leave to approximation was measured: docs/evidence/nulls.md.

References
----------
Robbins (1970), Statistical Methods Related to the Law of the Iterated Logarithm; de la Pena (1999), A General Class of
Exponential Inequalities for Martingales and Ratios; Howard, Ramdas, McAuliffe and Sekhon (2021), Time-uniform,
Nonparametric, Nonasymptotic Confidence Sequences, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
