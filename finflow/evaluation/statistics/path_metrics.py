"""The arithmetic of the metrics, along the last axis: one path of returns, or thousands of resampled ones at once.

Only mathematics: `finflow.evaluation.statistics.metrics` says what each means, in which units, and from which source.
Every function takes (..., steps) and gives (...); NaN wherever the metric is not defined, and wherever an input is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.market.panel import BARS_PER_YEAR

FLAT = 1e-12  # a deviation of daily returns under this is rounding, not risk

Array = NDArray[np.float64]


def annual_return(returns: Array) -> Array:
    """exp(252 / n * sum log(1 + r)) - 1."""
    if returns.shape[-1] == 0:
        return _undefined(returns)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.expm1(BARS_PER_YEAR * np.log1p(returns).mean(axis=-1)))


def annual_volatility(returns: Array) -> Array:
    """sqrt(252) * s, s the standard deviation with n - 1."""
    return np.asarray(np.sqrt(float(BARS_PER_YEAR)) * _deviation(returns))


def sharpe(excess: Array) -> Array:
    """sqrt(252) * mean / s of returns in excess of cash."""
    return _ratio(excess, _deviation(excess))


def sortino(excess: Array) -> Array:
    """sqrt(252) * mean / sqrt(mean(min(x, 0)^2)) of returns in excess of cash."""
    if excess.shape[-1] == 0:
        return _undefined(excess)
    return _ratio(excess, np.sqrt(np.mean(np.square(np.minimum(excess, 0.0)), axis=-1)))


def drawdowns(returns: Array) -> Array:
    """W_t / max(1, max_{s <= t} W_s) - 1, W the wealth of 1 invested; (..., steps) in and out."""
    wealth = np.cumprod(1.0 + returns, axis=-1)
    peaks = np.maximum(np.maximum.accumulate(wealth, axis=-1), 1.0)
    return np.asarray(wealth / peaks - 1.0)


def max_drawdown(returns: Array) -> Array:
    """The lowest of the drawdowns."""
    if returns.shape[-1] == 0:
        return _undefined(returns)
    return np.asarray(drawdowns(returns).min(axis=-1))


def calmar(returns: Array) -> Array:
    """Annual return over the depth of the maximum drawdown."""
    return calmar_of(annual_return(returns), max_drawdown(returns))


def calmar_of(annual: Array, deepest: Array) -> Array:
    """`calmar` from its two parts, where both are at hand."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(deepest < 0.0, annual / np.abs(deepest), np.nan)


def cvar(returns: Array, alpha: float) -> Array:
    """(sum of the floor(k) worst + (k - floor(k)) * the next) / k, with k = alpha * n."""
    steps = returns.shape[-1]
    if steps == 0:
        return _undefined(returns)
    share = alpha * steps
    whole = min(int(share), steps - 1)
    ordered = np.partition(returns, whole, axis=-1)
    worst = ordered[..., :whole].sum(axis=-1) + (share - whole) * ordered[..., whole]
    if share < 1.0:
        worst, share = ordered[..., 0], 1.0
    return np.where(np.isnan(returns).any(axis=-1), np.nan, worst / share)


def annual_sum(values: Array) -> Array:
    """252 * mean: turnover, or costs, a year."""
    if values.shape[-1] == 0:
        return _undefined(values)
    return np.asarray(BARS_PER_YEAR * values.mean(axis=-1))


def _deviation(values: Array) -> Array:
    if values.shape[-1] < 2:
        return _undefined(values)
    return np.asarray(values.std(axis=-1, ddof=1))


def _ratio(excess: Array, risk: Array) -> Array:
    if excess.shape[-1] == 0:
        return _undefined(excess)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(float(BARS_PER_YEAR)) * excess.mean(axis=-1) / risk
    return np.where(risk > FLAT, ratio, np.nan)


def _undefined(values: Array) -> Array:
    return np.full(values.shape[:-1], np.nan)
