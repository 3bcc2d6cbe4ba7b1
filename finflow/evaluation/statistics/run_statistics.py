"""Estimates over several runs (seeds, windows, paths, agents): never a mean without its uncertainty.

After Agarwal and others, Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021, and their
library rliable: the interquartile mean, the probability of improvement, and percentile intervals from a bootstrap over
runs within each task (a market or a window), because it is runs that chance decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Drawdown, Number, Return, Sharpe, Shown, Turnover, about
from finflow.evaluation.page.section import Row, Table, columns_of
from finflow.evaluation.statistics.bootstrap import NOWHERE, Interval, interval
from finflow.evaluation.statistics.metrics import Array, sharpe_of, summarise

FEWEST = 2  # runs: one says nothing of how much runs vary
SAMPLES = 2000
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


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores: a quarter is cut from either end (``scipy.stats.trim_mean``, 0.25).

    Of all runs and tasks together, as in rliable. Robust as the median, but with less of its noise.
    """
    return float(scipy.stats.trim_mean(_table(scores, "the runs"), 0.25, axis=None))


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """Probability that a run of ``first`` scores more than a run of ``second`` on a task drawn at random.

    Mean over tasks of the share of pairs (one run of each) in which the first is ahead; a tie counts a half
    (Mann and Whitney's U over the number of pairs). In [0, 1]; a half where they are alike.

    Parameters
    ----------
    first, second : (runs,) or (runs, tasks)
        Scores; the numbers of runs may differ, the tasks may not.
    """
    return float(_improvement(_table(first, "the first")[None], _table(second, "the second")[None])[0])


def interquartile_estimate(scores: ArrayLike, seed: int, name: str = "the runs") -> Estimate:
    """Interquartile mean with the interval of a bootstrap over runs, stratified by task.

    Raises
    ------
    EvidenceError
        If there is only one run, or a score is missing.
    """
    table = _table(scores, name, FEWEST)
    drawn = _resample(table, np.random.default_rng(seed))
    values = scipy.stats.trim_mean(drawn.reshape(SAMPLES, -1), 0.25, axis=1)
    return Estimate(interquartile_mean(table), interval(np.asarray(values)))


def improvement_estimate(first: ArrayLike, second: ArrayLike, seed: int) -> Estimate:
    """Probability of improvement with the interval of a bootstrap over the runs of both, stratified by task.

    One run of either has no interval; raises EvidenceError if a score is missing.
    """
    one, two = _table(first, "the first"), _table(second, "the second")
    value, generator = probability_of_improvement(one, two), np.random.default_rng(seed)
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


def _improvement(one: Array, two: Array) -> Array:
    """Probability of improvement (samples,) from (samples, runs, tasks) of both."""
    if one.shape[2] != two.shape[2]:
        raise ValueError(f"{one.shape[2]} tasks cannot be compared with {two.shape[2]}")
    ahead = one[:, :, None, :] > two[:, None, :, :]
    level = one[:, :, None, :] == two[:, None, :, :]
    return np.asarray((ahead + 0.5 * level).mean(axis=(1, 2, 3)))


def _resample(table: Array, generator: np.random.Generator) -> Array:
    """Runs drawn with replacement, independently for each task: (samples, runs, tasks)."""
    runs, tasks = table.shape
    drawn = generator.integers(runs, size=(SAMPLES, runs, tasks))
    return np.asarray(table[drawn, np.arange(tasks)])


def _table(scores: ArrayLike, name: str, fewest: int = 1) -> Array:
    table = np.asarray(scores, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if len(table) < fewest:
        raise EvidenceError(f"an interval over seeds needs {fewest} runs or more, and {name} has {len(table)}")
    missing = int(np.count_nonzero(~np.isfinite(table)))
    if missing:
        raise EvidenceError(f"{missing} of {table.size} scores of {name} are missing or undefined; run them again")
    return table


def figures_of(run: Backtest, baseline: Backtest) -> dict[str, Any]:
    """`RunFigures` of a run; ``baseline`` is equal weight on the same days."""
    summary = summarise(run)
    summary[DIFFERENCE] = summary["sharpe"] - sharpe_of(baseline)
    return {name: summary[name] for name in RunFigures.__annotations__}


def distribution(
    rows: Mapping[str, Mapping[str, Any]], seed: int, name: str, words: list[str], alone: str
) -> dict[str, dict[str, float]]:
    """The spread of every metric over ``rows``, by name as `figures_of` has them.

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
