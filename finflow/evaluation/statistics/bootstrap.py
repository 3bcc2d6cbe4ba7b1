"""Confidence intervals by the stationary bootstrap: how far luck alone could move a result.

Days are drawn in blocks of random, geometrically distributed length, with the end joined to the start, so that what
lies within about a block (clustering of volatility, short trends) survives the resampling (Politis and Romano, The
Stationary Bootstrap, JASA 89, 1994; drawn by arch). All strategies share the same draws, so that a difference between
two of them is paired: what hits both on the same day cancels. Intervals are percentile intervals. The same seed gives
the same draws.

An interval says how the window could have come out, not how the future will; it does not count how many strategies
were tried before this one. The intervals of the maximum drawdown and the Calmar ratio describe reshuffled histories
and need not be centred on what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Number, about
from finflow.evaluation.statistics.metrics import Array, sharpe, sharpe_of, summarise

MINIMUM_BLOCKS = 5  # in fewer blocks than this every resample is nearly the window itself, and intervals collapse
_CHUNK = 128  # resamples evaluated at once: what a second-level cache holds

Draws = NDArray[np.int64]
NAN = float("nan")


@dataclass(frozen=True)
class Interval:
    """Low and high end of a confidence interval; undefined where there is none."""

    low: Annotated[Number, about("Low end.")]
    high: Annotated[Number, about("High end.")]

    @property
    def defined(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def bounds(self) -> list[float] | None:
        """Both ends; None where there is no interval."""
        return [self.low, self.high] if self.defined else None


@dataclass(frozen=True)
class SharpeDifference:
    """Sharpe ratio of one strategy less another's, its paired interval, and the share of resamples above zero."""

    value: float
    interval: Interval
    share_ahead: float

    @property
    def finding(self) -> str:
        """`ahead` or `behind` where the interval lies on one side of zero, otherwise `not shown`."""
        if self.interval.defined and self.interval.low > 0.0:
            return "ahead"
        if self.interval.defined and self.interval.high < 0.0:
            return "behind"
        return "not shown"


def draw_days(steps: int, samples: int, block_length: int, seed: int) -> Draws:
    """Days of every resample: indices, int64 (samples, steps), in blocks of a mean length in days.

    Without rows where the window is shorter than `MINIMUM_BLOCKS` blocks: no intervals then.
    """
    if steps < max(MINIMUM_BLOCKS * block_length, 2):
        return np.empty((0, steps), dtype=np.int64)
    from arch.bootstrap import StationaryBootstrap

    bootstrap = StationaryBootstrap(block_length, np.arange(steps), seed=np.random.default_rng(seed))
    draws = np.empty((samples, steps), dtype=np.int64)
    for row, (positional, _) in enumerate(bootstrap.bootstrap(samples)):
        draws[row] = positional[0]
    return draws


def resample(backtest: Backtest, draws: Draws, alpha: float) -> dict[str, Array]:
    """Metrics of every resample, (samples,) each, under the keys of `metrics.summarise`."""
    parts = [summarise(backtest, alpha, rows) for rows in chunks(draws)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def resample_sharpe(backtest: Backtest, draws: Draws) -> Array:
    """Annual Sharpe ratio of every resample alone, (samples,), as `resample` has it."""
    excess = backtest.returns - backtest.cash_returns
    return np.concatenate([sharpe(excess[rows], 0.0, backtest.bars_per_year) for rows in chunks(draws)])


def chunks(draws: Draws) -> Iterator[Draws]:
    """Resamples, some at a time; one empty chunk where there are none."""
    for start in range(0, max(len(draws), 1), _CHUNK):
        yield draws[start : start + _CHUNK]


def interval(values: Array, confidence: float) -> Interval:
    """Percentile interval of resampled values (samples,).

    Without resamples, or where a resample is undefined (NaN), there is no interval: to leave those out would pretend
    to know more than the window tells.
    """
    if values.size == 0 or not np.isfinite(values).all():
        return Interval(NAN, NAN)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def sharpe_difference(
    first: Backtest, second: Backtest, resampled_first: Array, resampled_second: Array, confidence: float
) -> SharpeDifference:
    """Sharpe ratio of `first` less that of `second`, with the interval of the paired resamples.

    The resampled ones are their Sharpe ratios, (samples,), in the same resamples; both are over the same days.
    """
    differences = resampled_first - resampled_second
    bounds = interval(differences, confidence)
    ahead = float(np.mean(differences > 0.0)) if bounds.defined else NAN
    return SharpeDifference(sharpe_of(first) - sharpe_of(second), bounds, ahead)
