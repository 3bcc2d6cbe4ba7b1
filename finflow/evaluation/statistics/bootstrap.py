"""Confidence intervals by the stationary bootstrap: how far luck alone could move a result.

Days are drawn in blocks of random, geometrically distributed length, with the end joined to the start, so that what
lies within about a block (clustering of volatility, short trends) survives the resampling (Politis and Romano, The
Stationary Bootstrap, JASA 89, 1994; drawn by arch). All strategies share the same draws, so that a difference between
two of them is paired: what hits both on the same day cancels. Intervals are percentile intervals. The same seed gives
the same draws.

Several runs (seeds, windows, paths, agents) are summed up as by Agarwal and others, Deep Reinforcement Learning at the
Edge of the Statistical Precipice, NeurIPS 2021, and their library rliable: the interquartile mean, the probability of
improvement, and percentile intervals from a bootstrap over runs within each task (a market or a window), because it is
runs that chance decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from finflow.arrays import FloatArray, IntArray
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Drawdown, Number, Return, Sharpe, Shown, Turnover, about
from finflow.evaluation.page.section import Row, Table, columns_of
from finflow.evaluation.statistics.metrics import sharpe, sharpe_of, summarise

CONFIDENCE = 0.95  # coverage of every interval
MINIMUM_BLOCKS = 5  # in fewer blocks than this every resample is nearly the window itself, and intervals collapse
_CHUNK = 128  # resamples evaluated at once, more than twice as fast: what a second-level cache holds
Draws = IntArray


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


NOWHERE = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class SharpeDifference:
    """Sharpe ratio of one strategy less another's, its paired interval, and the share of resamples above zero."""

    value: float
    interval: Interval
    share_ahead: float

    @property
    def finding(self) -> str:
        """`ahead` or `behind` where the interval lies on one side of zero, otherwise `not shown`."""
        return "ahead" if self.interval.low > 0.0 else "behind" if self.interval.high < 0.0 else "not shown"


def draw_days(steps: int, resampling: Resampling) -> Draws:
    """Days of every resample: indices, int64 (samples, steps).

    Without rows where the window is shorter than `MINIMUM_BLOCKS` blocks: no intervals then.
    """
    enough = steps >= max(MINIMUM_BLOCKS * resampling.block_length, 2)
    return draw_blocks(steps, resampling) if enough else np.empty((0, steps), dtype=np.int64)


def draw_blocks(steps: int, resampling: Resampling) -> Draws:
    """Days of every resample, (samples, steps), however short the window is."""
    from arch.bootstrap import StationaryBootstrap

    generator = np.random.default_rng(resampling.seed)
    bootstrap = StationaryBootstrap(resampling.block_length, np.arange(steps), seed=generator)
    return np.array([rows[0] for rows, _ in bootstrap.bootstrap(resampling.samples)], dtype=np.int64)


def resample(backtest: Backtest, draws: Draws, alpha: float) -> dict[str, FloatArray]:
    """Metrics of every resample, (samples,) each, under the keys of `metrics.summarise`."""
    starts = range(0, max(len(draws), 1), _CHUNK)
    parts = [summarise(backtest, alpha, draws[start : start + _CHUNK]) for start in starts]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def resample_sharpe(excess: FloatArray, draws: Draws, bars_per_year: int) -> FloatArray:
    """Annual Sharpe ratio of every resample, (samples,), of returns less those of cash."""
    return np.asarray(sharpe(excess[draws], 0.0, bars_per_year))


def interval(values: FloatArray, confidence: float = CONFIDENCE) -> Interval:
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
    ahead = float(np.mean(differences > 0.0)) if bounds.defined else math.nan
    return SharpeDifference(sharpe_of(first) - sharpe_of(second), bounds, ahead)


FEWEST = 2  # runs: one says nothing of how much runs vary
SAMPLES = 2000  # of a bootstrap over runs
QUANTILES = ("low", "lower_quartile", "median", "upper_quartile", "high")
DIFFERENCE = "sharpe_difference"


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval over the runs."""

    value: float
    interval: Interval = NOWHERE

    def numbers(self, *keys: str) -> dict[str, float]:
        """The number and both ends of its interval, under three keys."""
        return dict(zip(keys, (self.value, self.interval.low, self.interval.high), strict=True))


class RunFigures(TypedDict):
    """Figures of one of several runs."""

    sharpe: Sharpe
    max_drawdown: Drawdown
    annual_turnover: Turnover
    annual_return: Return
    sharpe_difference: Annotated[
        Number, about("Sharpe ratio less that of equal weight."), Shown("Sharpe over equal weight", plus=True)
    ]


def interquartile_estimate(scores: ArrayLike, seed: int, name: str = "the runs") -> Estimate:
    """Interquartile mean of the scores (runs,) or (runs, tasks), with the interval of a bootstrap over runs by task.

    A quarter is cut from either end of all scores together, as in rliable: robust as the median, with less noise.

    Raises EvidenceError if there is only one run, or a score is missing.
    """
    table = _table(scores, name, FEWEST)
    drawn = _resample(table, np.random.default_rng(seed)).reshape(SAMPLES, -1)
    mean, means = scipy.stats.trim_mean(table, 0.25, axis=None), scipy.stats.trim_mean(drawn, 0.25, axis=1)
    return Estimate(float(mean), interval(np.asarray(means)))


def improvement_estimate(first: ArrayLike, second: ArrayLike, seed: int) -> Estimate:
    """Probability that a run of ``first`` scores more than a run of ``second`` on a task drawn at random.

    Mean over tasks of the share of pairs (one run of each) in which the first is ahead; a tie counts a half
    (Mann and Whitney's U over the number of pairs). In [0, 1]; a half where they are alike. The interval is of a
    bootstrap over the runs of both, by task; one run of either has none. Scores are (runs,) or (runs, tasks), as many
    tasks for both; raises EvidenceError if one is missing.
    """
    one, two = _table(first, "the first"), _table(second, "the second")
    value, generator = float(_improvement(one[None], two[None])[0]), np.random.default_rng(seed)
    if min(len(one), len(two)) < FEWEST:
        return Estimate(value)
    return Estimate(value, interval(_improvement(_resample(one, generator), _resample(two, generator))))


def path_distribution(values: ArrayLike, seed: int, name: str = "paths") -> dict[str, float]:
    """The distribution of a metric over the paths of a protocol; raises EvidenceError as the estimates do.

    The interval is of the interquartile mean; paths that share days are less uncertain than it takes them to be.
    """
    table = _table(values, name, FEWEST)
    return {
        "count": table.size,
        **interquartile_estimate(table, seed, name).numbers("interquartile_mean", "interval_low", "interval_high"),
        **dict(zip(QUANTILES, np.quantile(table, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist(), strict=True)),
        "share_positive": float(np.mean(table > 0.0)),
    }


def _improvement(one: FloatArray, two: FloatArray) -> FloatArray:
    """Probability of improvement (samples,) from (samples, runs, tasks) of both."""
    ahead = one[:, :, None, :] > two[:, None, :, :]
    level = one[:, :, None, :] == two[:, None, :, :]
    return np.asarray((ahead + 0.5 * level).mean(axis=(1, 2, 3)))


def _resample(table: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Runs drawn with replacement, independently for each task: (samples, runs, tasks)."""
    runs, tasks = table.shape
    drawn = generator.integers(runs, size=(SAMPLES, runs, tasks))
    return np.asarray(table[drawn, np.arange(tasks)])


def _table(scores: ArrayLike, name: str, fewest: int = 1) -> FloatArray:
    table = np.asarray(scores, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if len(table) < fewest:
        raise EvidenceError(f"an interval over seeds needs {fewest} runs or more, and {name} has {len(table)}")
    missing = int(np.count_nonzero(~np.isfinite(table)))
    if missing:
        raise EvidenceError(f"{missing} of {table.size} scores of {name} are missing or undefined; run them again")
    return table


def run_figures(run: Backtest, baseline: Backtest) -> dict[str, Any]:
    """`RunFigures` of a run; ``baseline`` is equal weight on the same days."""
    summary = summarise(run)
    summary[DIFFERENCE] = summary["sharpe"] - sharpe_of(baseline)
    return {name: summary[name] for name in RunFigures.__annotations__}


def distribution(
    rows: Mapping[str, Mapping[str, Any]], seed: int, name: str, words: list[str], alone: str
) -> dict[str, dict[str, float]]:
    """The spread of every metric over ``rows``, by name as `run_figures` has them.

    Empty where there is none; ``words`` gets the reason, ``alone`` where there is one row.
    """
    spread: dict[str, dict[str, float]] = {}
    if len(rows) < FEWEST:
        words.append(alone)
        return spread
    for key in RunFigures.__annotations__:
        try:
            spread[key] = path_distribution([row[key] for row in rows.values()], seed, name)
        except EvidenceError as error:
            reason = f"{str(error)[:1].upper()}{str(error)[1:]}."
            words += [reason] if reason not in words else []
    return spread


def spread_table(numbers: Mapping[str, Any], places: Sequence[str], caption: str) -> Table:
    """The spreads at some places of the numbers, each from `distribution`."""
    keys = ("interquartile_mean", "interval_low", "interval_high", *QUANTILES)
    rows = [
        Row(
            f"{heading}, {over.replace('_', ' ')}",
            tuple(replace(cell, path=(over, *cell.path, key), plus=False) for key in keys),
        )
        for over in places
        for heading, cell in columns_of(RunFigures)
        if cell.path[-1] in numbers[over]
    ]
    heads = (
        *("metric", "interquartile mean", "from", "to"),
        *("lowest", "lower quartile", "median", "upper quartile", "highest"),
    )
    return Table("Spread", heads, tuple(rows), caption)
