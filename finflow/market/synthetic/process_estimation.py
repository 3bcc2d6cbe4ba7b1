"""Laws estimated from prices: what a researcher who knows the kind of a market, but not its numbers, would plug in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.market.synthetic.price_processes import IndependentReturns, Law, MeanReversion, Regimes

__all__ = ["estimate_law"]

FloatArray = NDArray[np.float64]

_ROUNDS = 100
_SETTLED = 1e-4
_SMOOTHED_OVER = 11


def estimate_law(kind: str, close: FloatArray) -> Law:
    """Maximum likelihood within a kind of market (least squares for the autoregression).

    Parameters
    ----------
    kind : str
        A value of `market.synthetic.kind`.
    close : float64 (bars, assets)
        Prices of the training window.
    """
    log_prices = np.log(close)
    returns = np.diff(log_prices, axis=0)
    if kind == "mean-reverting":
        return _mean_reversion(log_prices, returns)
    if kind == "regime":
        return _regimes(returns)
    return IndependentReturns(returns.mean(axis=0), np.cov(returns.T))


def _mean_reversion(log_prices: FloatArray, returns: FloatArray) -> MeanReversion:
    ratio = log_prices[:, 0] - log_prices[:, -1]
    slope, intercept = np.polyfit(ratio[:-1], ratio[1:], 1)
    persistence = float(np.clip(slope, 0.01, 0.999))
    common = returns.mean(axis=1)  # the spread's shares sum to zero
    return MeanReversion(
        mean=float(common.mean()),
        common=float(common.std()),
        innovation=float((ratio[1:] - slope * ratio[:-1] - intercept).std()),
        persistence=persistence,
        assets=returns.shape[1],
        level=float(intercept / (1.0 - persistence)),
    )


def _regimes(returns: FloatArray) -> Regimes:
    """Baum and Welch's iteration, started from the bars in which the first asset leads the last, smoothed."""
    lead = np.convolve(returns[:, 0] - returns[:, -1], np.ones(_SMOOTHED_OVER), mode="same")
    second = (lead < 0.0).astype(np.float64)
    law = _weighted(returns, np.stack([1.0 - second, second], axis=1), np.full(2, 0.9))
    for _ in range(_ROUNDS):
        before, law = law, _improved(law, returns)
        if np.abs(law.stay - before.stay).max() < _SETTLED:
            break
    return law


def _weighted(returns: FloatArray, shares: FloatArray, stay: FloatArray) -> Regimes:
    """Moments of each regime from the probability of it at every bar."""
    means, covariances = [], []
    for share in shares.T:
        mean = share @ returns / share.sum()
        apart = returns - mean
        means.append(mean)
        covariances.append((share[:, None] * apart).T @ apart / share.sum())
    return Regimes(np.stack(means), np.stack(covariances), stay)


def _improved(law: Regimes, returns: FloatArray) -> Regimes:
    """One round: probabilities of the regimes given all returns, then the law that fits them."""
    logs = law.log_likelihood(returns)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    (stay0, stay1), rows = law.stay.tolist(), density.tolist()
    first, second = 1.0 - law.share, law.share
    forward = []
    for low, high in rows:
        after0 = (first * stay0 + second * (1.0 - stay1)) * low
        after1 = (first * (1.0 - stay0) + second * stay1) * high
        total = after0 + after1
        first, second = after0 / total, after1 / total
        forward.append((first, second))
    later0, later1 = 1.0, 1.0
    backward = [(1.0, 1.0)]
    for low, high in reversed(rows[1:]):
        back0 = stay0 * low * later0 + (1.0 - stay0) * high * later1
        back1 = (1.0 - stay1) * low * later0 + stay1 * high * later1
        total = back0 + back1
        later0, later1 = back0 / total, back1 / total
        backward.append((later0, later1))
    ahead, behind = np.array(forward), np.array(backward[::-1])
    shares = ahead * behind
    shares /= shares.sum(axis=1, keepdims=True)
    moves = np.array([[stay0, 1.0 - stay0], [1.0 - stay1, stay1]])
    pairs = ahead[:-1, :, None] * moves * (density[1:] * behind[1:])[:, None, :]
    pairs /= pairs.sum(axis=(1, 2), keepdims=True)
    counted = pairs.sum(axis=0)
    return _weighted(returns, shares, np.diag(counted) / counted.sum(axis=1))
