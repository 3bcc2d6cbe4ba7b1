"""Scores that honest signals reach on a market: its predictability from its past alone.

Some markets are predictable (mean reversion, regimes, drifts), so the limit of the test of foreknowledge depends on
the market. Signals of the past (returns over many horizons) are turned into decisions in the ways that strategies do
so, and the best of their scores measures the predictability of the market for an honest rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.audit.foreknowledge import UnknownReturns, View, excess_of, ranks_of

FloatArray = NDArray[np.float64]

LOOKBACKS = (1, 2, 3, 5, 10, 21, 42, 63, 126, 252)
"""Bars of the returns that signals are made of."""
_STRONG = 0.8
"""Quantile of the dispersion above which a signal is strong."""


def best_honest(close: FloatArray, known: NDArray[np.int64], outcome: UnknownReturns) -> float:
    """The largest absolute score of honest signals with an outcome.

    Parameters
    ----------
    close : float64 (bars, assets)
    known : int array (decisions,)
        The newest bar that each decision knows.
    outcome : UnknownReturns
        One column for signals of the whole market; otherwise one for each asset.
    """
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


def market_return(returns: FloatArray) -> FloatArray:
    """Mean return of the assets that have one, (rows, 1); NaN where none has."""
    known = np.isfinite(returns)
    total, count = (np.where(known, each, 0.0).sum(axis=1, keepdims=True) for each in (returns, 1.0))
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
