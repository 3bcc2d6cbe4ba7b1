"""Plug-in estimates: the price process of a kind of market, fitted to prices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.market.synthetic.price_processes import IndependentReturns, MeanReversion, PriceProcess, Regimes

FloatArray = NDArray[np.float64]
_ROUNDS = 100
_SETTLED = 1e-4
_SMOOTHED_OVER = 11


def estimate_process(kind: str, close: FloatArray) -> PriceProcess:
    """Estimate the process of a kind of market by maximum likelihood (the autoregression by least squares).

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
    """Iterate by Baum and Welch, started from the bars in which the first asset leads the last, smoothed."""
    lead = np.convolve(returns[:, 0] - returns[:, -1], np.ones(_SMOOTHED_OVER), mode="same")
    second = (lead < 0.0).astype(np.float64)
    process = _weighted(returns, np.stack([1.0 - second, second], axis=1), np.full(2, 0.9))
    for _ in range(_ROUNDS):
        before, process = process, _improved(process, returns)
        if np.abs(process.stay - before.stay).max() < _SETTLED:
            break
    return process


def _weighted(returns: FloatArray, shares: FloatArray, stay: FloatArray) -> Regimes:
    """Compute the moments of each regime from its probability at every bar."""
    means, covariances = [], []
    for share in shares.T:
        mean = share @ returns / share.sum()
        centred = returns - mean
        means.append(mean)
        covariances.append((share[:, None] * centred).T @ centred / share.sum())
    return Regimes(np.stack(means), np.stack(covariances), stay)


def _improved(process: Regimes, returns: FloatArray) -> Regimes:
    """Do one round: probabilities of the regimes given all returns, then the process that fits them."""
    logs = process.log_likelihood(returns)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    (stay0, stay1), rows = process.stay.tolist(), density.tolist()
    first, second = 1.0 - process.share, process.share
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
