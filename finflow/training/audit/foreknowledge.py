"""Rank correlation of decisions with returns that were not known yet, and of the same decisions with placebos.

A *view* names, for every decision, how much of each asset is wanted. Its score, the placebos and the limit:
docs/reference/audit.md, Foreknowledge. Over several decisions sums are divided by sums, so large positions count for
more. Dates of placebos are shifted in a circle, which leaves the order of the outcomes, or drawn in blocks, which
leaves a month of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, starmap
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray, IntArray

PLACEBOS = 200
"""Half of them shifted dates, half drawn in blocks."""
BLOCK = 21
"""Bars of a block that is drawn."""
BLOCKS, FEWEST = 8, 30
"""Blocks that a window is cut into, and the fewest decisions of one."""
FLOOR, FACTOR = 0.15, 1.5
"""The limit: this at least, and so many times the best score of honest signals of the same market."""
HORIZONS = (1, 5, 21)
"""Bars of the returns that come after what is known."""
LOOKBACKS = (1, 2, 3, 5, 10, 21, 42, 63, 126, 252)
"""Bars of the returns that signals are made of."""
EFFECTIVE = 10.0
"""Effective number of decisions under which no score is given: the sum of sizes squared over the sum of squares."""
CHANCE = 4.0
"""Standard deviations of the placebos that a score may have by chance."""
_NO_VIEW = 1e-4
"""Mean size of a view under which it says nothing: rounding, and dust."""
_STRONG = 0.8
"""Quantile of the dispersion above which a signal is strong."""


class View(NamedTuple):
    """Signal of decisions: a name in words, and signed sizes, float64 (decisions, n), one row a decision.

    By asset, or n = 1 for a size over time; not finite counts as zero.
    """

    name: str
    sizes: FloatArray


class UnknownReturns(NamedTuple):
    """Returns that decisions could not know, float64 (decisions, n), NaN for none; ``name`` says which bars.

    ``ranks`` are among the assets, and over time where there is one column.
    """

    name: str
    returns: FloatArray
    ranks: FloatArray

    @classmethod
    def of(cls, name: str, returns: FloatArray) -> UnknownReturns:
        return cls(name, returns, ranks_of(returns, axis=0 if returns.shape[1] == 1 else 1))


class RankScore(NamedTuple):
    """Score of a view with an outcome, less the mean of its placebos; ``spread`` is their standard deviation.

    Of the decisions ``rows``: a block, or all. In [-2, 2]; positive where the decisions predict the returns, negative
    where they predict the opposite. ``limit`` is what honest rules may reach.
    """

    view: str
    outcome: str
    rows: range
    value: float
    spread: float
    limit: float

    @property
    def share(self) -> float:
        """The part of the score that chance does not explain, in units of the limit: over 1 is foreknowledge."""
        return max(abs(self.value) - CHANCE * self.spread, 0.0) / self.limit


def ranks_of(values: FloatArray, axis: Literal[0, 1] = 1) -> FloatArray:
    """Ranks along an axis, from -1 for the least to 1 for the largest; ties share; zero where not finite or alone."""
    frame = pd.DataFrame(np.where(np.isfinite(values), values, np.nan))
    ranks, count = frame.rank(axis=axis).to_numpy(), np.isfinite(values).sum(axis=axis, keepdims=True)
    found: FloatArray = np.nan_to_num((2.0 * ranks - count - 1.0) / np.maximum(count - 1.0, 1.0))
    return found


def market_return(returns: FloatArray) -> FloatArray:
    """Mean return of the assets that have one, (rows, 1); NaN where none has."""
    known = np.isfinite(returns)
    total, count = (np.where(known, each, 0.0).sum(axis=1, keepdims=True) for each in (returns, 1.0))
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def scores_of(view: View, outcome: UnknownReturns, seed: int, limit: float, every: bool = True) -> list[RankScore]:
    """List the scores over all decisions and in blocks; none where the view says nothing.

    ``seed`` draws the placebos. Unless ``every`` score is asked for, those within the limit are spared theirs.
    """
    sizes, ranks, excess, attainable = _pair(view, outcome)
    count, large = len(sizes), []
    blocks = min(BLOCKS, count // FEWEST)
    edges = [int(edge) for edge in np.linspace(0, count, blocks + 1)]
    for span in (range(count), *(starmap(range, pairwise(edges)) if blocks > 1 else ())):
        weights = attainable[span]
        if weights.any() and weights.sum() ** 2 / (weights**2).sum() >= EFFECTIVE:
            value = float(excess[span].sum() / weights.sum())
            large += [(span, value)] if every or abs(value) > limit else []
    if not large:
        return []
    orders = _orders(count, np.random.default_rng([seed, 61]))
    by_placebo = np.array([np.einsum("ti,ti->t", sizes, ranks[order]) for order in orders])
    spreads = [float(by_placebo[:, span].sum(axis=1).std() / attainable[span].sum()) for span, _ in large]
    return [
        RankScore(view.name, outcome.name, span, value, spread, limit)
        for (span, value), spread in zip(large, spreads, strict=True)
    ]


def _pair(view: View, outcome: UnknownReturns) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sizes, ranks of the outcomes, and for each decision its score beyond a lasting tilt's, and the most possible.

    All scores are zero where the view says nothing.
    """
    ranks = outcome.ranks
    sizes = np.where(np.isfinite(view.sizes) & np.isfinite(outcome.returns), view.sizes, 0.0)
    if sizes.shape[1] == 1:  # over time: against the mean of the window
        sizes = sizes - sizes.mean(axis=0)
        best, share = float(np.sort(sizes[:, 0]) @ np.sort(ranks[:, 0])), np.abs(sizes[:, 0])
        attainable = share * (best / max(float(share.sum()), 1e-300))
    else:
        attainable = (np.sort(sizes, axis=1) * np.sort(ranks, axis=1)).sum(axis=1)
    excess = (sizes * (ranks - ranks.mean(axis=0))).sum(axis=1)
    says_something = len(attainable) >= FEWEST and float(attainable.mean()) > _NO_VIEW
    return sizes, ranks, excess * says_something, attainable * says_something


def _orders(count: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Orders of other dates: shifted by a tenth of the window or more, or drawn in blocks."""
    rows, nearest = np.arange(count), max(count // 10, 2)
    for shift in rng.integers(nearest, count - nearest + 1, PLACEBOS // 2):
        yield (rows + shift) % count
    for _ in range(PLACEBOS - PLACEBOS // 2):
        starts = rng.integers(0, count, -(-count // BLOCK))
        yield ((starts[:, None] + np.arange(BLOCK)).ravel() % count)[:count]


class Foreknowledge:
    """The test on one market: its closes (bars, assets), NaN where not listed; ``seed`` draws the placebos."""

    def __init__(self, close: FloatArray, seed: int = 0) -> None:
        self.close = close
        self.seed = seed
        with np.errstate(invalid="ignore"):
            self._logs = np.log(close)
        self.limit = lru_cache(maxsize=None)(self._limit)

    def scores(self, views: Sequence[View], known: IntArray, paid: int = 0, every: bool = False) -> Iterator[RankScore]:
        """Yield scores beyond the limit.

        Parameters
        ----------
        views : sequence of View
            Sizes by asset, (decisions, assets), or of the whole market, (decisions, 1).
        known : int array (decisions,)
            The newest bar that each decision may know.
        paid : int
            Bars between the newest known one and the fill: the bar after the fill is asked about on its own.
        every : bool
            Those within the limit too, which takes longer.
        """
        for view in views:
            for first, last in [(0, bars) for bars in HORIZONS] + ([(paid, paid + 1)] if paid else []):
                whole = view.sizes.shape[1] == 1
                outcome, limit = self.outcome(known, first, last, whole), self.limit(first, last, whole)
                scores = scores_of(view, outcome, self.seed, limit, every)
                yield from (score for score in scores if every or score.share > 1.0)

    def outcome(self, known: IntArray, first: int, last: int, whole: bool) -> UnknownReturns:
        """Log returns from the close of the bar `known` + `first` to that of `known` + `last`; NaN after the end."""
        end = len(self._logs) - 1
        returns = self._logs[np.minimum(known + last, end)] - self._logs[np.minimum(known + first, end)]
        returns[known + last > end] = np.nan
        bars = f"bar {first + 1}" if last == first + 1 else f"{last - first} bars"
        name = f"the return of {bars} after the newest known"
        if whole:
            return UnknownReturns.of(f"{name}, of all assets", market_return(returns))
        return UnknownReturns.of(name, returns)

    def _limit(self, first: int, last: int, whole: bool) -> float:
        """`FLOOR`, or `FACTOR` times the best honest score with the same outcome over all bars."""
        known = np.arange(len(self.close) - last)
        return max(FLOOR, FACTOR * best_honest(self.close, known, self.outcome(known, first, last, whole)))


def views_of_portfolios(targets: FloatArray, held: FloatArray) -> list[View]:
    """Views of a strategy: its weights and trades, by asset and of what is invested; (decisions, K), cash last."""
    trades = targets - held
    return [
        View("weights", targets[:, :-1]),
        View("trades", trades[:, :-1]),
        View("invested share", 1.0 - targets[:, -1:]),
        View("change of the invested share", -trades[:, -1:]),
    ]


def best_honest(close: FloatArray, known: IntArray, outcome: UnknownReturns) -> float:
    """The largest absolute score of honest signals with an outcome; each decision knows bars up to ``known``."""
    logs, best = np.log(close), 0.0
    for lookback in LOOKBACKS:
        past = np.full_like(logs, np.nan)
        past[lookback:] = logs[lookback:] - logs[:-lookback]
        for sizes in _decisions(market_return(past) if outcome.returns.shape[1] == 1 else past):
            *_, excess, attainable = _pair(View("honest", sizes[known]), outcome)
            best = max(best, abs(float(excess.sum())) / max(float(attainable.sum()), 1e-300))
    return best


def _decisions(signal: FloatArray) -> Iterator[FloatArray]:
    """Yield ways from a signal to sizes: in proportion, by rank, the extremes alone, and those when they are strong."""
    filled = np.nan_to_num(signal)
    yield filled
    if signal.shape[1] == 1:
        yield np.sign(filled)
        strength = np.abs(filled[:, 0])
    else:
        ranks = ranks_of(signal)
        yield from (ranks, (ranks == 1.0).astype(np.float64), (ranks == -1.0).astype(np.float64))
        strength = filled.std(axis=1)
    strong = strength > np.quantile(strength, _STRONG)
    yield filled * strong[:, None]
