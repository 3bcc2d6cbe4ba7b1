"""What can be said of the market as a whole: its weather, for the gate and for every expert.

A feature is a function of a `View` that returns (bars,); row t is made from bars <= t. Turbulence alone has parameters,
fitted on the rows before `fit_until`. The market is the mean of the listed assets, m in the formulas, not the
benchmark, so that it needs no data beyond the assets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.market.features import rolling_windows as rolling
from finflow.market.features.asset_features import View
from finflow.market.panel import BARS_PER_YEAR

__all__ = ["MARKET_FEATURES", "TurbulenceFit", "fit_turbulence", "turbulence"]

FloatArray = NDArray[np.float64]

MARKET_FEATURES: dict[str, Callable[[View], FloatArray]] = {}
"""Name -> function; `turbulence`, which is fitted, stands apart."""

_FLOOR = 1e-4
_FEWEST = 60
"""Training returns that an asset needs to count in the turbulence."""
_SHRINKAGE = 0.1
"""Weight of the identity in the correlations of the turbulence, so that they can be inverted (Ledoit and Wolf 2004)."""
_BLOCK = 256


def _feature(compute: Callable[[View], FloatArray]) -> Callable[[View], FloatArray]:
    MARKET_FEATURES[compute.__name__] = compute
    return compute


def _spread(view: View, window: int) -> FloatArray:
    return np.maximum(rolling.std(view.market, window)[:, 0], _FLOOR)


@_feature
def market_return_1(view: View) -> FloatArray:
    """m / std(m) over 63 bars: today's move in deviations (Jegadeesh 1990)."""
    return view.market[:, 0] / _spread(view, 63)


@_feature
def market_return_21(view: View) -> FloatArray:
    """Sum of m over 21 bars / (std(m) over 63 bars times sqrt 21): the month in deviations (Moskowitz et al. 2012)."""
    return rolling.total(view.market, 21)[:, 0] / (_spread(view, 63) * math.sqrt(21.0))


@_feature
def market_sharpe_252(view: View) -> FloatArray:
    """mean(m) / std(m) sqrt 252 over 252 bars: Sharpe ratio of the year, without cash (Sharpe 1966)."""
    return rolling.mean(view.market, 252)[:, 0] / _spread(view, 252) * math.sqrt(BARS_PER_YEAR)


@_feature
def market_volatility(view: View) -> FloatArray:
    """ln(std(m) sqrt 252) over 21 bars: log of the annual realised volatility (Andersen et al. 2003)."""
    return np.log(_spread(view, 21) * math.sqrt(BARS_PER_YEAR))


@_feature
def market_volatility_ratio(view: View) -> FloatArray:
    """ln of std(m) over 21 bars / std(m) over 252 bars, a log ratio: against its own year (Moreira and Muir 2017)."""
    return np.log(_spread(view, 21) / _spread(view, 252))


@_feature
def dispersion(view: View) -> FloatArray:
    """ln of the mean over 21 bars of the spread of r over assets, in logs: room to choose (Solnik and Roulet 2000)."""
    known = np.isfinite(view.returns)
    count = known.sum(axis=1, keepdims=True)
    apart = np.where(known, view.returns - view.market, 0.0)
    across = np.sqrt((apart * apart).sum(axis=1, keepdims=True) / np.maximum(count, 1))
    across = np.where(count > 1, across, np.nan)
    return np.log(np.maximum(rolling.mean(across, 21)[:, 0], _FLOOR))


@_feature
def mean_correlation(view: View) -> FloatArray:
    """Mean pair correlation over 63 bars, -1 to 1, weighted by the product of deviations (Pollet and Wilson 2010).

    (n^2 var(m) - sum s^2) / ((sum s)^2 - sum s^2), as an implied correlation is made from an index and its parts. Exact
    while the listed assets are the same through the window, near it when one joins or leaves.
    """
    spreads = view.gather(lambda part: part.spread(63))
    known = np.isfinite(spreads)
    count = known.sum(axis=1)
    spreads = np.where(known, spreads, 0.0)
    squares = (spreads * spreads).sum(axis=1)
    pairs = spreads.sum(axis=1) ** 2 - squares
    value = (count**2 * rolling.std(view.market, 63)[:, 0] ** 2 - squares) / np.maximum(pairs, _FLOOR**2)
    return np.where(count > 1, np.clip(value, -1.0, 1.0), np.nan)


@_feature
def market_trend(view: View) -> FloatArray:
    """(M - mean M) / (std(m) sqrt 200) over 200 bars, M the running sum of m: in deviations (Faber 2007)."""
    above = view.market_path - rolling.mean(view.market_path, 200)
    return above[:, 0] / (_spread(view, 200) * math.sqrt(200.0))


@_feature
def market_drawdown(view: View) -> FloatArray:
    """M - max M over 252 bars, in log units, 0 or less: how far under the year's high (George and Hwang 2004)."""
    return (view.market_path - rolling.maximum(view.market_path, 252))[:, 0]


@_feature
def breadth(view: View) -> FloatArray:
    """Share of assets whose log price is above its 200-bar mean, 0 to 1 (Colby and Meyers 1988)."""
    above = view.gather(lambda part: part.path - part.path_series.mean(200))
    known = np.isfinite(above)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore"):
        share = ((above > 0.0) & known).sum(axis=1) / np.maximum(count, 1)
    return np.where(count > 0, share, np.nan)


class TurbulenceFit(NamedTuple):
    """What turbulence takes from the training window.

    Attributes
    ----------
    used : bool (assets,)
        Those with enough returns there.
    center, scale : float64 (assets,)
        Of the returns.
    inverse : float64 (assets, assets)
        Of their shrunk correlations.
    """

    used: NDArray[np.bool_]
    center: FloatArray
    scale: FloatArray
    inverse: FloatArray


def turbulence(view: View, fit: int | TurbulenceFit) -> FloatArray:
    """ln of the mean over 10 bars of z' C^-1 z / n, a log ratio: how unusual moves are (Kritzman and Li 2010).

    z are returns standardised by each asset's training mean and deviation, C their training correlations shrunk a tenth
    towards the identity, n the number of assets that have a return. Mean, deviation and C come from the rows before
    `fit` alone, or are those given. An asset with under 60 training returns is left out; one that is not listed adds
    nothing.
    """
    fitted = fit_turbulence(view, fit) if isinstance(fit, int) else fit
    known = np.isfinite(view.returns) & fitted.used
    padded = _standardised(view, known, fitted.center, fitted.scale)
    distance = np.empty(len(padded))
    for start in range(0, len(padded), _BLOCK):
        block = padded[start : start + _BLOCK]
        distance[start : start + _BLOCK] = ((block @ fitted.inverse) * block).sum(axis=1)
    n_known = known.sum(axis=1)
    per_asset = np.where(n_known > 0, distance[: len(known)] / np.maximum(n_known, 1), np.nan)
    return np.log(np.maximum(rolling.mean(per_asset[:, None], 10)[:, 0], _FLOOR))


def fit_turbulence(view: View, fit_until: int) -> TurbulenceFit:
    """What `turbulence` needs of the rows before `fit_until`."""
    training = view.returns[1:fit_until]
    counts = np.isfinite(training).sum(axis=0)
    used = counts >= _FEWEST
    known = np.isfinite(view.returns) & used
    fitted = np.where(known[1:fit_until], training, 0.0)
    center = fitted.sum(axis=0) / np.maximum(counts, 1)
    apart = np.where(known[1:fit_until], training - center, 0.0)
    scale = np.maximum(np.sqrt((apart * apart).sum(axis=0) / np.maximum(counts - 1, 1)), _FLOOR)
    standard = _standardised(view, known, center, scale)
    together = standard[1:fit_until].T @ standard[1:fit_until] / max(fit_until - 1, 1)
    deviation = np.sqrt(np.maximum(np.diag(together), 1e-12))
    correlation = (1.0 - _SHRINKAGE) * together / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    return TurbulenceFit(used, center, scale, np.linalg.inv(correlation))


def _standardised(view: View, known: NDArray[np.bool_], center: FloatArray, scale: FloatArray) -> FloatArray:
    """Standardised returns, zero where not known, and zeros below up to a whole number of blocks.

    Blocks of one size, so that a row's bits do not depend on how many rows come after it.
    """
    bars, n_assets = known.shape
    padded = np.zeros((-(-bars // _BLOCK) * _BLOCK, n_assets))
    np.divide(view.returns - center, scale, out=padded[:bars], where=known)
    return padded
