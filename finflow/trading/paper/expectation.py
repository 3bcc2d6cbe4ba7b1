"""Sequential test of an account against its backtest: valid at every look, however often one looks.

Under the null hypothesis the log returns of the account are normal with the deviation of the backtest, around a mean
that the backtest's ``m`` returns estimate with a standard error. Against a mean that lies further away the evidence
after n days is the Bayes factor of their sum ``S``,

    log E_n = 1/2 log(v / (v + t)) + (S - n mu)^2 t / (2 v (v + t)),   v = n s^2 + n^2 s^2 / m,   t = n^2 tau^2.

It is a martingale with mean one under the null, so that it ever reaches 1 / alpha with a probability of alpha at most
(Ville's inequality). The edges of the band in which the account is as expected are where ``E_n = 1 / alpha``.

References
----------
Robbins (1970), Statistical Methods Related to the Law of the Iterated Logarithm; Howard, Ramdas, McAuliffe and Sekhon
(2021), Time-uniform, Nonparametric, Nonasymptotic Confidence Sequences, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

ALPHA = 0.05
FEWEST = 63
"""Returns of the backtest that an expectation needs."""
SHIFT = 2.0
"""Scale of the alternatives: shifts of the annual Sharpe ratio."""


@dataclass(frozen=True)
class Expectation:
    """Distribution of a log return by a backtest.

    Attributes
    ----------
    mean, deviation : float
        Of a bar's log return in the backtest.
    count : int
        Bars of the backtest.
    bars_per_year : int
    """

    mean: float
    deviation: float
    count: int
    bars_per_year: int

    @classmethod
    def of(cls, returns: FloatArray, bars_per_year: int) -> Expectation | None:
        """That of the simple returns of a backtest; None where they are too few, or do not move."""
        logs = np.log1p(returns[np.isfinite(returns) & (returns > -1.0)])
        if len(logs) < FEWEST or not float(logs.std()) > 0.0:
            return None
        return cls(float(logs.mean()), float(logs.std(ddof=1)), len(logs), bars_per_year)

    def _variances(self, days: FloatArray) -> tuple[FloatArray, FloatArray]:
        shift = SHIFT * self.deviation / math.sqrt(self.bars_per_year)
        return self.deviation**2 * (days + days**2 / self.count), (days * shift) ** 2

    def log_evidence(self, returns: FloatArray) -> FloatArray:
        """Logarithm of the evidence against the expectation after each return of an account, (n,)."""
        days = np.arange(1.0, len(returns) + 1.0)
        apart = np.cumsum(np.log1p(returns)) - days * self.mean
        within, beyond = self._variances(days)
        total = within + beyond
        return np.asarray(0.5 * np.log(within / total) + apart**2 * beyond / (2.0 * within * total), dtype=np.float64)

    def band(self, days: int, alpha: float = ALPHA) -> tuple[FloatArray, FloatArray]:
        """Edges of the account's growth, of 1 invested, after each of so many bars: low and high, (days,)."""
        count = np.arange(1.0, days + 1.0)
        within, beyond = self._variances(count)
        total = within + beyond
        width = np.sqrt(2.0 * within * total / beyond * (math.log(1.0 / alpha) + 0.5 * np.log(total / within)))
        middle = count * self.mean
        return np.exp(middle - width), np.exp(middle + width)

    def left_on(self, returns: FloatArray, alpha: float = ALPHA) -> int | None:
        """First return after which the account was outside what was expected; None where it never was."""
        outside = np.flatnonzero(self.log_evidence(returns) >= -math.log(alpha))
        return int(outside[0]) if outside.size else None
