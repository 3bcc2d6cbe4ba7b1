"""Confidence intervals by the stationary bootstrap: how far luck alone could move a result.

Days are drawn in blocks of random, geometrically distributed length, with the end joined to the start, so that what
lies within about a block (clustering of volatility, short trends) survives the resampling (Politis and Romano, The
Stationary Bootstrap, JASA 89, 1994; drawn by arch). All strategies share the same draws, so that a difference between
two of them is paired: what hits both on the same day cancels. Intervals are percentile intervals. The same seed gives
the same draws.

An interval says how the window could have come out, not how the future will; it does not count how many strategies
were tried before this one. The intervals of the maximum drawdown and the Calmar ratio describe reshuffled histories
and need not be centred on what happened.

The same bootstrap judges evidence from years that a policy has not seen. Candidates (stages of training, blends with a
reference) were backtested on held-out blocks of bars. The one with the largest mean gain over the reference, less one
standard error over the blocks, is chosen; what remains of its gain once the choice among many is accounted for decides
how much of it is used (Thomas, Theocharous and Ghavamzadeh 2015, High Confidence Policy Improvement: deploy what is
shown to be better; White 2000, A Reality Check for Data Snooping: the choice lies inside the bootstrap; James and Stein
1961: positive-part shrinkage of an estimate by its own size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Number, about
from finflow.evaluation.statistics.metrics import Array, sharpe, sharpe_of, summarise

CONFIDENCE = 0.95  # coverage of every interval
MINIMUM_BLOCKS = 5  # in fewer blocks than this every resample is nearly the window itself, and intervals collapse
_CHUNK = 128  # resamples evaluated at once, more than twice as fast: what a second-level cache holds
RESAMPLES = 500
#: ``1 - SHRINKAGE / t^2`` is zero up to t = 1.73, one half at 2.45 and .88 at 5. A gain of true size d with standard
#: error 1 is best scaled by d^2 / (d^2 + 1), of which ``1 - 1 / t^2`` is the natural estimate; three instead of one
#: keeps the chance of a quarter or more of a policy that gains nothing (t over 2) at 2.3 %.
SHRINKAGE = 3.0

Draws = NDArray[np.int64]
NAN = math.nan


@dataclass(frozen=True)
class Resampling:
    """Settings of a bootstrap: resamples, mean block in days, and the seed."""

    samples: int
    block_length: int
    seed: int


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


NOWHERE = Interval(NAN, NAN)


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


def draw_days(steps: int, resampling: Resampling) -> Draws:
    """Days of every resample: indices, int64 (samples, steps).

    Without rows where the window is shorter than `MINIMUM_BLOCKS` blocks: no intervals then.
    """
    enough = steps >= max(MINIMUM_BLOCKS * resampling.block_length, 2)
    return _drawn(steps, resampling) if enough else np.empty((0, steps), dtype=np.int64)


def _drawn(steps: int, resampling: Resampling) -> Draws:
    from arch.bootstrap import StationaryBootstrap

    generator = np.random.default_rng(resampling.seed)
    bootstrap = StationaryBootstrap(resampling.block_length, np.arange(steps), seed=generator)
    draws = np.empty((resampling.samples, steps), dtype=np.int64)
    for row, (positional, _) in enumerate(bootstrap.bootstrap(resampling.samples)):
        draws[row] = positional[0]
    return draws


def resample(backtest: Backtest, draws: Draws, alpha: float) -> dict[str, Array]:
    """Metrics of every resample, (samples,) each, under the keys of `metrics.summarise`."""
    starts = range(0, max(len(draws), 1), _CHUNK)
    parts = [summarise(backtest, alpha, draws[start : start + _CHUNK]) for start in starts]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def resample_sharpe(excess: Array, draws: Draws, bars_per_year: int) -> Array:
    """Annual Sharpe ratio of every resample, (samples,), of returns less those of cash."""
    ratios: Array = sharpe(excess[draws], 0.0, bars_per_year)
    return ratios


def interval(values: Array, confidence: float = CONFIDENCE) -> Interval:
    """Percentile interval of resampled values (samples,).

    Without resamples, or where a resample is undefined (NaN), there is no interval: to leave those out would pretend
    to know more than the window tells.
    """
    if values.size == 0 or not np.isfinite(values).all():
        return NOWHERE
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def sharpe_difference(
    first: Backtest, second: Backtest, draws: Draws, confidence: float = CONFIDENCE
) -> SharpeDifference:
    """Sharpe ratio of `first` less that of `second`, over the same days, with the interval of the paired resamples."""
    one, two = (resample_sharpe(run.returns - run.cash_returns, draws, run.bars_per_year) for run in (first, second))
    differences = one - two
    bounds = interval(differences, confidence)
    ahead = float(np.mean(differences > 0.0)) if bounds.defined else NAN
    return SharpeDifference(sharpe_of(first) - sharpe_of(second), bounds, ahead)


class BlendChoice(NamedTuple):
    """Choice among candidates by their gains out of sample.

    Attributes
    ----------
    gain : float
        Mean over bars of what is gained over the reference, costs paid.
    t_statistic : float
        Of the gain, its error robust to autocorrelation, less what the best of as many candidates without any gain
        would show on average.
    selection : float
        That allowance, in the same units.
    confidence : float
        Share of the candidate that the evidence justifies, in 0..1.
    """

    candidate: int
    gain: float
    t_statistic: float
    selection: float
    confidence: float


def shrunk(t_statistic: float) -> float:
    """``max(0, 1 - 3 / t^2)`` for positive t, else 0."""
    return max(0.0, 1.0 - SHRINKAGE / t_statistic**2) if t_statistic > 0.0 else 0.0


def least_gain(gains: Array, blocks: NDArray[np.int64]) -> Array:
    """Mean gain of each candidate less one standard error over the blocks, (candidates,).

    Parameters
    ----------
    gains : array, (candidates, bars)
    blocks : int array, (bars,)
        Block of each bar, numbered from 0.
    """
    count = int(blocks.max()) + 1
    means = np.stack([gains[:, blocks == block].mean(axis=1) for block in range(count)], axis=1)
    error = means.std(axis=1, ddof=1) / math.sqrt(count) if count > 1 else 0.0
    bound: Array = gains.mean(axis=1) - error
    return bound


def choose(gains: Array, blocks: NDArray[np.int64], seed: int) -> BlendChoice:
    """Choose the candidate with the best lower bound, and judge it with the choice taken into account.

    Parameters
    ----------
    gains : array, (candidates, bars)
        Rewards (or log growth) less the reference's on the same bars, in their order.
    blocks : int array, (bars,)
    seed : int
        Of the bootstrap.
    """
    chosen = int(np.argmax(least_gain(gains, blocks)))
    length = max(round(gains.shape[1] ** (1.0 / 3.0)), 1)
    # over resampled bars, the same for all candidates: (resamples, candidates)
    means = np.stack(
        [gains.T[bars].mean(axis=0) for bars in _drawn(gains.shape[1], Resampling(RESAMPLES, length, seed))]
    )
    errors = np.maximum(means.std(axis=0, ddof=1), 1e-15)
    mean = float(gains[chosen].mean())
    centred = (means - gains.mean(axis=1)) / errors
    selection = float(centred.max(axis=1).mean())
    t_statistic = mean / float(errors[chosen]) - selection
    return BlendChoice(chosen, mean, t_statistic, selection, shrunk(t_statistic))
