"""Test of foreknowledge: views against returns that were unknown, with the limit that their market has.

Some markets are predictable from their past (mean reversion, regimes, drifts), so the limit depends on the market.
Signals of the past (returns over many horizons) are turned into decisions in the ways that strategies do so, and the
best of their scores measures the predictability of the market for an honest rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.audit.foreknowledge import (
    FloatArray,
    RankScore,
    UnknownReturns,
    View,
    excess_of,
    market_return,
    ranks_of,
    scores_of,
)

FLOOR, FACTOR = 0.15, 1.5
"""The limit: this at least, and so many times the best score of honest signals of the same market."""
HORIZONS = (1, 5, 21)
"""Bars of the returns that come after what is known."""
LOOKBACKS = (1, 2, 3, 5, 10, 21, 42, 63, 126, 252)
"""Bars of the returns that signals are made of."""
_STRONG = 0.8
"""Quantile of the dispersion above which a signal is strong."""


class ScoredOutcome(NamedTuple):
    """A score, its limit, and the newest bars that the first and the last of its decisions knew."""

    score: RankScore
    limit: float
    known: tuple[int, int]

    @property
    def share(self) -> float:
        """The part of the score that chance does not explain, in units of the limit: over 1 is foreknowledge."""
        return self.score.certain / self.limit


class Foreknowledge:
    """The test on one market: its closes (bars, assets), NaN where not listed; ``seed`` draws the placebos."""

    def __init__(self, close: FloatArray, seed: int = 0) -> None:
        self.close = close
        self.seed = seed
        with np.errstate(invalid="ignore"):
            self._logs = np.log(close)
        self.limit = lru_cache(maxsize=None)(self._limit)

    def scores(
        self, views: Sequence[View], known: NDArray[np.int64], paid: int = 0, every: bool = False
    ) -> Iterator[ScoredOutcome]:
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
                limit = self.limit(first, last, whole)
                outcome = self.outcome(known, first, last, whole)
                for score in scores_of(view, outcome, self.seed, 0.0 if every else limit):
                    ends = (int(known[score.rows.start]), int(known[score.rows.stop - 1]))
                    if every or score.certain > limit:
                        yield ScoredOutcome(score, limit, ends)

    def outcome(self, known: NDArray[np.int64], first: int, last: int, whole: bool) -> UnknownReturns:
        """Log returns from the close of the bar `known` + `first` to that of `known` + `last`; NaN after the end."""
        end = len(self._logs) - 1
        returns = self._logs[np.minimum(known + last, end)] - self._logs[np.minimum(known + first, end)]
        returns[known + last > end] = np.nan
        bars = f"bar {first + 1}" if last == first + 1 else f"{last - first} bars"
        name = f"the return of {bars} after the newest known"
        return UnknownReturns(f"{name}, of all assets" if whole else name, market_return(returns) if whole else returns)

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


def best_honest(close: FloatArray, known: NDArray[np.int64], outcome: UnknownReturns) -> float:
    """The largest absolute score of honest signals with an outcome; each decision knows bars up to ``known``."""
    whole = outcome.returns.shape[1] == 1
    return max((excess_of(view, outcome) for view in _views(close, known, whole)), default=0.0)


def _views(close: FloatArray, known: NDArray[np.int64], whole: bool) -> Iterator[View]:
    logs = np.log(close)
    for lookback in LOOKBACKS:
        past = np.full_like(logs, np.nan)
        past[lookback:] = logs[lookback:] - logs[:-lookback]
        if whole:
            past = market_return(past)
        for name, sizes in _decisions(past):
            yield View(f"{name} of {lookback} bars", sizes[known])


def _decisions(signal: FloatArray) -> Iterator[tuple[str, FloatArray]]:
    """Yield ways from a signal to sizes: in proportion, by rank, the extremes alone, and those when they are strong."""
    filled = np.nan_to_num(signal)
    yield "return", filled
    if signal.shape[1] == 1:
        yield "sign", np.sign(filled)
        strength = np.abs(filled[:, 0])
    else:
        ranks = ranks_of(signal)
        yield "rank", ranks
        for name, end in (("highest", 1.0), ("lowest", -1.0)):
            yield name, (ranks == end).astype(np.float64)
        strength = filled.std(axis=1)
    strong = strength > np.quantile(strength, _STRONG)
    yield "strong return", filled * strong[:, None]
