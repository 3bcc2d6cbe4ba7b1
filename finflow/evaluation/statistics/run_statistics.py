"""Estimates over several runs (seeds, windows, paths, agents): never a mean without its uncertainty.

After Agarwal and others, Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021, and their
library rliable: the interquartile mean, the probability of improvement, and percentile intervals from a bootstrap over
runs within each task (a market or a window), because it is runs that chance decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.drawing import TIMES
from finflow.evaluation.page.section import Cell, Row, Table
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import Interval, interval

FEWEST = 2  # runs: one says nothing of how much runs vary
SAMPLES = 2000
QUANTILES = ("low", "lower_quartile", "median", "upper_quartile", "high")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval over the runs."""

    value: float
    interval: Interval


Spread = dict[str, float]
"""Distribution of a metric over windows, paths or agents; the interval is of the mean of the middle half."""


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores: a quarter is cut from either end (``scipy.stats.trim_mean``, 0.25).

    Of all runs and tasks together, as in rliable. Robust as the median, but with less of its noise.
    """
    return float(scipy.stats.trim_mean(_table(scores, "the runs", fewest=1), 0.25, axis=None))


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """Probability that a run of ``first`` scores more than a run of ``second`` on a task drawn at random.

    Mean over tasks of the share of pairs (one run of each) in which the first is ahead; a tie counts a half
    (Mann and Whitney's U over the number of pairs). In [0, 1]; a half where they are alike.

    Parameters
    ----------
    first, second : (runs,) or (runs, tasks)
        Scores; the numbers of runs may differ, the tasks may not.
    """
    one, two = _pair(first, second, fewest=1)
    return float(_improvement(one[None], two[None])[0])


def interquartile_estimate(scores: ArrayLike, seed: int, confidence: float = 0.95, name: str = "the runs") -> Estimate:
    """Interquartile mean with the interval of a bootstrap over runs, stratified by task.

    Raises
    ------
    EvidenceError
        If there is only one run, or a score is missing.
    """
    table = _table(scores, name, FEWEST)
    drawn = _resample(table, np.random.default_rng(seed))
    values = scipy.stats.trim_mean(drawn.reshape(SAMPLES, -1), 0.25, axis=1)
    return Estimate(interquartile_mean(table), interval(np.asarray(values), confidence))


def improvement_estimate(first: ArrayLike, second: ArrayLike, seed: int, confidence: float = 0.95) -> Estimate:
    """Probability of improvement with the interval of a bootstrap over the runs of both, stratified by task.

    Raises
    ------
    EvidenceError
        If either has only one run, or a score is missing.
    """
    one, two = _pair(first, second, FEWEST)
    generator = np.random.default_rng(seed)
    values = _improvement(_resample(one, generator), _resample(two, generator))
    return Estimate(probability_of_improvement(one, two), interval(values, confidence))


def path_distribution(values: ArrayLike, seed: int, confidence: float = 0.95, name: str = "paths") -> Spread:
    """The distribution of a metric over the paths of a protocol; raises EvidenceError as the estimates do.

    The interval is of the interquartile mean; paths that share days are less uncertain than it takes them to be.
    """
    table = _table(values, name, FEWEST)
    centre = interquartile_estimate(table, seed, confidence, name=name)
    return {
        "count": table.size,
        "interquartile_mean": centre.value,
        "interval_low": centre.interval.low,
        "interval_high": centre.interval.high,
        **dict(zip(QUANTILES, np.quantile(table, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist(), strict=True)),
        "share_positive": float(np.mean(table > 0.0)),
    }


def _improvement(one: Array, two: Array) -> Array:
    """Probability of improvement (samples,) from (samples, runs, tasks) of both."""
    ahead = one[:, :, None, :] > two[:, None, :, :]
    level = one[:, :, None, :] == two[:, None, :, :]
    return np.asarray((ahead + 0.5 * level).mean(axis=(1, 2, 3)))


def _resample(table: Array, generator: np.random.Generator) -> Array:
    """Runs drawn with replacement, independently for each task: (samples, runs, tasks)."""
    runs, tasks = table.shape
    drawn = generator.integers(runs, size=(SAMPLES, runs, tasks))
    return np.asarray(table[drawn, np.arange(tasks)])


def _pair(first: ArrayLike, second: ArrayLike, fewest: int) -> tuple[Array, Array]:
    one, two = _table(first, "the first", fewest), _table(second, "the second", fewest)
    if one.shape[1] != two.shape[1]:
        raise ValueError(f"{one.shape[1]} tasks cannot be compared with {two.shape[1]}")
    return one, two


def _table(scores: ArrayLike, name: str, fewest: int) -> Array:
    table = np.asarray(scores, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"expected scores of shape (runs,) or (runs, tasks), got {np.shape(scores)}")
    if len(table) < fewest:
        raise EvidenceError(f"an interval over seeds needs {fewest} runs or more, and {name} has {len(table)}")
    missing = int(np.count_nonzero(~np.isfinite(table)))
    if missing:
        raise EvidenceError(f"{missing} of {table.size} scores of {name} are missing or undefined; run them again")
    return table


DIFFERENCE = "sharpe_difference"
#: Metric -> heading, unit and decimals.
_SHOWN = {
    "sharpe": ("Sharpe", "", 2),
    "max_drawdown": ("Max drawdown", "%", 1),
    "annual_turnover": ("Turnover a year", TIMES, 1),
    "annual_return": ("Return a year", "%", 1),
    DIFFERENCE: ("Sharpe over equal weight", "", 2),
}


def figures_of(run: Backtest, baseline: Backtest) -> dict[str, Any]:
    """A run's metrics, and its Sharpe ratio less that of equal weight on the same days."""
    summary = metrics.summarise(run)
    difference = summary["sharpe"] - metrics.sharpe_of(baseline)
    return {**{name: summary[name] for name in _SHOWN if name != DIFFERENCE}, DIFFERENCE: difference}


def distribution(
    rows: Mapping[str, Mapping[str, Any]], seed: int, name: str, words: list[str], alone: str
) -> dict[str, Spread]:
    """The spread of every metric over ``rows``, by name as `figures_of` has them.

    Empty where there is none; ``words`` gets the reason, ``alone`` where there is one row.
    """
    spread: dict[str, Spread] = {}
    if len(rows) < 2:
        words.append(alone)
        return spread
    for key in _SHOWN:
        try:
            spread[key] = path_distribution([row[key] for row in rows.values()], seed, name=name)
        except EvidenceError as error:
            reason = f"{str(error)[:1].upper()}{str(error)[1:]}."
            words += [reason] if reason not in words else []
    return spread


def figure_columns(*path: str) -> list[tuple[str, Cell]]:
    """Columns of a table of the figures at a path with `ROW` in it."""
    return [
        (heading, Cell((*path, key), unit, decimals, plus=key == DIFFERENCE))
        for key, (heading, unit, decimals) in _SHOWN.items()
    ]


def spread_table(numbers: Mapping[str, object], places: Sequence[str], caption: str) -> Table:
    """The spreads at some places of the numbers, each from `distribution`."""
    keys = ("interquartile_mean", "interval_low", "interval_high", *QUANTILES)
    rows = []
    for over in places:
        spread = numbers[over]
        for key in spread if isinstance(spread, Mapping) else ():
            heading, unit, decimals = _SHOWN[key]
            cells = tuple(Cell((over, key, one), unit, decimals) for one in keys)
            rows.append(Row(f"{heading}, {over.replace('_', ' ')}", cells))
    heads = (
        *("metric", "interquartile mean", "from", "to"),
        *("lowest", "lower quartile", "median", "upper quartile", "highest"),
    )
    return Table("Spread", heads, tuple(rows), caption)
