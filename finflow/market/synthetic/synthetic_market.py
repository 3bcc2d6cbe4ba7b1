"""Synthetic markets whose best portfolio is known, markets without an edge, and estimates of their processes.

Five kinds, all with daily business-day dates that end on 2022-12-30, so that the default windows work:

==================  ================================================================================================
``lognormal``       independent log-normal returns (Merton 1969): part of the best asset, none of the worse, the rest
                    in cash. Equal weight holds too much of what is worse, and holding ends up with too much risk
``constant-drift``  the same with an edge so large that the best asset alone is best
``mean-reverting``  the spread between the assets reverts; trading on it costs (Garleanu and Pedersen 2013)
``regime``          two hidden regimes, each of which favours the other end of the assets (Hamilton 1989)
``exchangeable``    assets with one joint distribution: nothing beats equal weight but by luck
==================  ================================================================================================

The parameters are larger than those of stocks: estimation from a sample of n bars costs about 1 / (2 n) of log growth a
bar for every weight that lies inside its bounds, whatever the volatility. Only where the optimum gains a hundred times
that over equal weight can an estimate from the sample come within a hundredth of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import SyntheticConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.price_files import PriceTables
from finflow.market.synthetic.price_processes import (
    IndependentReturns,
    MeanReversion,
    PriceProcess,
    Regimes,
    correlated,
)

__all__ = ["LAST_DATE", "estimate_process", "parameters_of", "permute_labels", "process_of", "synthetic_tables"]

FloatArray = NDArray[np.float64]

LAST_DATE = "2022-12-30"
_FIRST_PRICE = 100.0
_LARGEST_LOG_PRICE = 690.0
_NAMES = ("A", "B", "C", "D")
_ROUNDS = 100
_SETTLED = 1e-4
_SMOOTHED_OVER = 11
"""Estimation of regimes: most rounds, change of `stay` at which they end, bars of the initial smoothing."""

_PARAMETERS: dict[str, dict[str, float]] = {
    "lognormal": {"drift": 0.03125, "edge": 0.025, "volatility": 0.25, "correlation": 0.9},
    "constant-drift": {"drift": 0.004, "edge": 0.004, "volatility": 0.01, "correlation": 0.3},
    "mean-reverting": {"drift": 0.0008, "volatility": 0.015, "correlation": 0.3, "persistence": 0.9},
    "regime": {
        **{"drift": 0.006, "edge": 0.006, "volatility": 0.01, "correlation": 0.3},
        **{"persistence": 0.97, "volatility_ratio": 2.0, "defensive_ratio": 1.0},
    },
    "exchangeable": {"drift": 0.0005, "volatility": 0.01, "correlation": 0.3},
}


def parameters_of(config: SyntheticConfig) -> dict[str, float]:
    """Return the parameters of a process, per bar: those configured, and the defaults of the kind for the others."""
    own = _PARAMETERS[config.kind]
    given = {name: getattr(config, name) for name in own}
    return {name: own[name] if value is None else float(value) for name, value in given.items()}


def process_of(config: SyntheticConfig) -> PriceProcess:
    """Make the process that the configured market is drawn from."""
    values = parameters_of(config)
    drift, volatility, correlation = values["drift"], values["volatility"], values["correlation"]
    falling = drift - values.get("edge", 0.0) * np.linspace(0.0, 1.0, config.assets)
    covariance = correlated(config.assets, volatility, correlation)
    if config.kind == "mean-reverting":
        return MeanReversion(
            mean=drift - 0.5 * volatility**2,
            common=volatility * float(np.sqrt((1.0 + correlation) / 2.0)),
            innovation=volatility * float(np.sqrt(2.0 * (1.0 - correlation))),
            persistence=values["persistence"],
            assets=config.assets,
        )
    if config.kind == "regime":
        ratio = values["volatility_ratio"]
        calmer = np.linspace(1.0, values["defensive_ratio"], config.assets)
        calm = covariance * np.outer(calmer, calmer)
        covariances = np.stack([calm, calm * ratio**2])
        return Regimes(
            means=np.stack([falling, falling[::-1]]) - 0.5 * np.diagonal(covariances, axis1=1, axis2=2),
            covariances=covariances,
            stay=np.full(2, values["persistence"]),
        )
    return IndependentReturns(falling - 0.5 * volatility**2, covariance)


def synthetic_tables(config: SyntheticConfig) -> tuple[PriceTables, dict[str, Any]]:
    """Draw the prices of the configured market from its seed; return them with facts for the provenance."""
    rng = np.random.default_rng(config.seed)
    log_prices = process_of(config).draw(rng, config.bars)
    if np.abs(log_prices).max() > _LARGEST_LOG_PRICE:
        raise MarketError(
            f"prices of the {config.kind} market leave the range of numbers within {config.bars} bars; set fewer "
            "market.synthetic.bars or a smaller drift, edge or volatility"
        )
    dates = pd.bdate_range(end=LAST_DATE, periods=config.bars)
    close = pd.DataFrame(_FIRST_PRICE * np.exp(log_prices), index=dates, columns=list(_NAMES[: config.assets]))
    facts = {
        "source": "synthetic",
        "kind": config.kind,
        "seed": config.seed,
        "parameters": parameters_of(config),
        "parameters_note": "per bar; the market is made up, and its best portfolio is known",
        "adjusted": "no dividends, no splits",
        "survivorship": "none: no asset was chosen with hindsight",
    }
    return {"close": close}, facts


def permute_labels(panel: MarketPanel, seed: int) -> MarketPanel:
    """Make a market without an edge from any market: permute asset labels independently at each date.

    At every bar the returns of the assets that are listed there and at the bar before are permuted at random. So each
    asset has the same distribution, given everything known before, and nothing beats equal weight but by luck; what all
    assets have in common (volatility in time, crises, the mean of all) is unchanged. Shuffling dates would not remove
    low-volatility tilts.

    Parameters
    ----------
    panel : MarketPanel
    seed : int

    Returns
    -------
    MarketPanel
        With closing prices alone: open, high, low and volume belong to assets that can no longer be distinguished.
        Listings, dates, cash and benchmark are unchanged.
    """
    rng = np.random.default_rng(seed)
    returns = np.full(panel.close.shape, np.nan)
    returns[1:] = np.log(panel.close[1:]) - np.log(panel.close[:-1])
    known = np.isfinite(returns)
    # Listed assets first, in random order; the rest stay behind them, and are not read.
    order = np.argsort(np.where(known, rng.random(returns.shape), 2.0), axis=1)
    shuffled = np.take_along_axis(returns, order, axis=1)
    place = np.argsort(~known, axis=1, kind="stable")
    moved = np.zeros_like(returns)
    np.put_along_axis(moved, place, np.nan_to_num(shuffled), axis=1)
    first = panel.close[np.argmax(panel.listed, axis=0), np.arange(panel.n_assets)]
    path = first * np.exp(np.cumsum(np.where(known, moved, 0.0), axis=0))
    return replace(
        panel,
        close=np.where(panel.listed, path, np.nan),
        open=None,
        high=None,
        low=None,
        volume=None,
        provenance={**panel.provenance, "labels": f"permuted independently at each date, seed {seed}"},
    )


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
