"""What can be said of one asset at a bar from its past: the inputs of the five experts.

A feature is a function of a `View` that returns (bars, assets); row t is made from bars <= t. NaN means not enough
history. Horizons are in bars and stand in the name. None of them depends on the unit of a price. `ASSET_FEATURES`
lists them with the lenses of the experts that read them.

In the formulas r is the log return of one bar, p the log price, s(n) the standard deviation of r over n bars and m the
mean r of all listed assets ("the market").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.errors import MarketError
from finflow.market.features import rolling_windows as rolling
from finflow.market.panel import BARS_PER_YEAR, MarketPanel

__all__ = ["ASSET_FEATURES", "LENSES", "AssetFeature", "View"]

FloatArray = NDArray[np.float64]

_FLOOR = 1e-4
"""Smallest daily deviation anything is divided by: prices that hardly move carry no signal, only rounding."""
_COLUMNS = 32
"""Assets looked at together: what is made of that many stays in the processor's cache, and in memory already held."""


class View:
    """A panel's returns and the intermediate series that several features share, each made once.

    Parameters
    ----------
    panel : MarketPanel
    columns : slice
        The assets that are looked at: all of them, or a few at a time, which the processor's memory likes better.
    market : float64 (bars, 1), optional
        What `View.market` would be, where `columns` are not all that are listed.
    """

    def __init__(self, panel: MarketPanel, columns: slice = slice(None), market: FloatArray | None = None) -> None:
        self.panel = panel
        self.columns = columns
        self.close: FloatArray = np.ascontiguousarray(panel.close[:, columns])
        self.listed = panel.listed[:, columns]
        ratio = self.close[1:] / self.close[:-1]
        self.returns: FloatArray = np.full(self.close.shape, np.nan)
        """Log return of the bar that ends at t; NaN unless the asset is listed at t - 1 and t."""
        self.returns[1:] = np.log(ratio)
        self._spreads: dict[int, FloatArray] = {}
        self._correlations: dict[int, FloatArray] = {}
        if market is not None:
            self.market = market

    def parts(self) -> Iterator[View]:
        """The same, a few assets at a time."""
        if self.panel.n_assets <= _COLUMNS:
            yield self
            return
        for start in range(0, self.panel.n_assets, _COLUMNS):
            yield View(self.panel, slice(start, start + _COLUMNS), self.market)

    def gather(self, series: Callable[[View], FloatArray]) -> FloatArray:
        """A series of all assets, (bars, assets), made for a few at a time."""
        return np.concatenate([series(part) for part in self.parts()], axis=1)

    def field(self, name: str) -> FloatArray:
        """Open, high, low or volume.

        Raises
        ------
        MarketError
            If the panel has none.
        """
        values: FloatArray | None = getattr(self.panel, name)
        if values is None:
            raise MarketError(f"the market has no {name}")
        return values[:, self.columns]

    @cached_property
    def volume(self) -> rolling.Series:
        """Running sums of the volume."""
        return rolling.Series(self.field("volume"))

    @cached_property
    def overnight(self) -> FloatArray:
        """Log return from the last close to the open; NaN where `returns` is."""
        overnight = np.full(self.close.shape, np.nan)
        overnight[1:] = np.log(self.field("open")[1:] / self.close[:-1])
        return overnight

    @cached_property
    def path(self) -> FloatArray:
        """Log price over its value at the first listed bar; NaN where not listed."""
        path = np.cumsum(np.nan_to_num(self.returns), axis=0)
        path[~self.listed] = np.nan
        return path

    @cached_property
    def market(self) -> FloatArray:
        """Mean log return of the assets that have one, shape (bars, 1); NaN where none has."""
        known = np.isfinite(self.returns)
        count = known.sum(axis=1, keepdims=True)
        mean = np.where(known, self.returns, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
        return np.where(count > 0, mean, np.nan)

    @cached_property
    def market_path(self) -> FloatArray:
        """Running sum of `market`, shape (bars, 1)."""
        return np.cumsum(np.nan_to_num(self.market), axis=0)

    @cached_property
    def path_series(self) -> rolling.Series:
        """Running sums of `path`."""
        return rolling.Series(self.path)

    @cached_property
    def _series(self) -> rolling.Series:
        return rolling.Series(self.returns)

    @cached_property
    def _with_market(self) -> rolling.Pair:
        return rolling.Pair(self.returns, self.market)

    def spread(self, window: int) -> FloatArray:
        """s(window), floored at a hundredth of a percent a day."""
        if window not in self._spreads:
            self._spreads[window] = np.maximum(self._series.std(window), _FLOOR)
        return self._spreads[window]

    def change(self, window: int) -> FloatArray:
        """Log return over `window` bars."""
        return self._series.total(window)

    @cached_property
    def beta(self) -> FloatArray:
        """cov(r, m) / var(m) over 252 bars."""
        return self.beta_over(252)

    def beta_over(self, window: int) -> FloatArray:
        """cov(r, m) / var(m) over `window` bars."""
        spread = np.maximum(rolling.std(self.market, window), _FLOOR)
        beta: FloatArray = self._with_market.covariance(window) / (spread * spread)
        return beta

    def correlation(self, window: int) -> FloatArray:
        """corr(r, m) over `window` bars, in [-1, 1]."""
        if window not in self._correlations:
            spread = np.maximum(rolling.std(self.market, window), _FLOOR)
            together = self._with_market.covariance(window)
            self._correlations[window] = np.clip(together / (self.spread(window) * spread), -1.0, 1.0)
        return self._correlations[window]


@dataclass(frozen=True)
class AssetFeature:
    """A feature, its name and the lenses it belongs to.

    Attributes
    ----------
    name : str
    lenses : tuple of str
    raw : function of a View
        Returns (bars, assets), each column from its own asset and the market alone.
    ranked : bool
        Whether the feature is the rank of `raw` among the assets of a bar.
    needs : tuple of str
        Fields that a panel must have for it, beside the close.
    """

    name: str
    lenses: tuple[str, ...]
    raw: Callable[[View], FloatArray]
    ranked: bool = False
    needs: tuple[str, ...] = ()

    def compute(self, view: View) -> FloatArray:
        """The feature itself, of all assets."""
        raw = self.raw(view)
        return rolling.percentile_rank(raw) if self.ranked else raw


ASSET_FEATURES: list[AssetFeature] = []


def _feature(
    *lenses: str, ranked: bool = False
) -> Callable[[Callable[[View], FloatArray]], Callable[[View], FloatArray]]:
    def register(compute: Callable[[View], FloatArray]) -> Callable[[View], FloatArray]:
        ASSET_FEATURES.append(AssetFeature(compute.__name__, lenses, compute, ranked))
        return compute

    return register


@_feature("momentum")
def return_1(view: View) -> FloatArray:
    """r / s(63): today's move in deviations; short-term reversal (Jegadeesh 1990)."""
    return view.returns / view.spread(63)


@_feature("momentum", "correlation")
def return_5(view: View) -> FloatArray:
    """Sum of r over 5 bars / (s(63) sqrt 5): the week in deviations; reversal (Lehmann 1990)."""
    return view.change(5) / (view.spread(63) * math.sqrt(5.0))


@_feature("momentum", "growth")
def return_21(view: View) -> FloatArray:
    """Sum of r over 21 bars / (s(63) sqrt 21): the month in deviations; trend (Moskowitz et al. 2012)."""
    return view.change(21) / (view.spread(63) * math.sqrt(21.0))


@_feature("momentum", "growth")
def return_63(view: View) -> FloatArray:
    """Sum of r over 63 bars / (s(63) sqrt 63): the quarter in deviations; trend (Moskowitz et al. 2012)."""
    return view.change(63) / (view.spread(63) * math.sqrt(63.0))


@_feature("momentum", "growth")
def momentum_12_1(view: View) -> FloatArray:
    """Sum of r from t - 251 to t - 21 / (s(252) sqrt 231): a year less its last month (Jegadeesh and Titman 1993)."""
    return (view.change(252) - view.change(21)) / (view.spread(252) * math.sqrt(231.0))


@_feature("momentum", "growth", ranked=True)
def momentum_rank(view: View) -> FloatArray:
    """Rank of the raw 12-1 return among the assets, -1 to 1; winners minus losers (Jegadeesh and Titman 1993)."""
    return view.change(252) - view.change(21)


@_feature("momentum")
def macd_12_26(view: View) -> FloatArray:
    """(EMA12(p) - EMA26(p)) / s(63): trend in daily deviations (Appel 1979, normalised as in Baz et al. 2015)."""
    return (rolling.ema(view.path, 12) - rolling.ema(view.path, 26)) / view.spread(63)


@_feature("momentum", "defensive")
def rsi_14(view: View) -> FloatArray:
    """Sum of r / sum of |r| over 14 bars, -1 to 1: RSI (Wilder 1978, with Cutler's plain sums) as 2 RSI / 100 - 1."""
    turbulence = rolling.total(np.abs(view.returns), 14)
    return view.change(14) / np.maximum(turbulence, 14.0 * _FLOOR)


@_feature("momentum", "defensive")
def bollinger_20(view: View) -> FloatArray:
    """(p - mean p) / (2 std p) over 20 bars: position in the bands, +-1 at their edges (Bollinger 1983)."""
    width = np.maximum(view.path_series.std(20), _FLOOR)
    return (view.path - view.path_series.mean(20)) / (2.0 * width)


@_feature("volatility", "defensive")
def volatility_21(view: View) -> FloatArray:
    """ln(s(21) sqrt 252): log of the annual volatility over a month (Andersen et al. 2003)."""
    return np.log(view.spread(21) * math.sqrt(BARS_PER_YEAR))


@_feature("volatility", "correlation", "growth")
def volatility_252(view: View) -> FloatArray:
    """ln(s(252) sqrt 252): log of the annual volatility over a year (Ang et al. 2006)."""
    return np.log(view.spread(252) * math.sqrt(BARS_PER_YEAR))


@_feature("volatility")
def volatility_ratio(view: View) -> FloatArray:
    """ln(s(21) / s(252)), a log ratio: calmer or wilder than in the year; volatility timing (Moreira and Muir 2017)."""
    return np.log(view.spread(21) / view.spread(252))


@_feature("volatility", "defensive", ranked=True)
def volatility_rank(view: View) -> FloatArray:
    """Rank of s(63) among the assets, -1 to 1; the low-volatility effect (Ang et al. 2006)."""
    return view.spread(63)


@_feature("volatility", "defensive")
def downside_share(view: View) -> FloatArray:
    """Sum of min(r, 0)^2 / sum of r^2 over 63 bars, 0 to 1: how much of the risk is loss (Sortino and Price 1994)."""
    square = view.returns * view.returns
    losses = rolling.total(np.where(view.returns < 0.0, square, square * 0.0), 63)
    return np.clip(losses / np.maximum(rolling.total(square, 63), 63.0 * _FLOOR**2), 0.0, 1.0)


@_feature("correlation", "defensive")
def beta_252(view: View) -> FloatArray:
    """cov(r, m) / var(m) over 252 bars, a ratio; low beta (Frazzini and Pedersen 2014)."""
    return view.beta


@_feature("correlation", "volatility")
def correlation_252(view: View) -> FloatArray:
    """corr(r, m) over 252 bars, -1 to 1: how little the asset diversifies (Choueifaty and Coignard 2008)."""
    return view.correlation(252)


@_feature("correlation")
def correlation_change(view: View) -> FloatArray:
    """corr over 63 bars less corr over 252: towards the crowd or away (Longin and Solnik 2001)."""
    return view.correlation(63) - view.correlation(252)


@_feature("correlation", "volatility")
def idiosyncratic(view: View) -> FloatArray:
    """ln of s(252) sqrt(1 - corr(252)^2) sqrt 252: annual volatility not the market's (Ang et al. 2006)."""
    own = np.sqrt(np.maximum(1.0 - view.correlation(252) ** 2, 1e-4))
    return np.log(view.spread(252) * own * math.sqrt(BARS_PER_YEAR))


@_feature("correlation", "momentum")
def residual_21(view: View) -> FloatArray:
    """Sum of (r - beta m) over 21 bars / (s(252) sqrt 21): less the market's, in deviations (Blitz et al. 2011)."""
    residual = view.change(21) - view.beta * rolling.total(view.market, 21)
    return residual / (view.spread(252) * math.sqrt(21.0))


@_feature("defensive", "growth")
def drawdown_252(view: View) -> FloatArray:
    """p - max p over 252 bars, in log units, 0 or less; nearness to the year's high (George and Hwang 2004)."""
    return view.path - rolling.maximum(view.path, 252)


@_feature("defensive", "volatility")
def worst_day_63(view: View) -> FloatArray:
    """min r over 63 bars / s(252): the worst recent day in deviations; tail risk (Bali et al. 2009)."""
    return rolling.minimum(view.returns, 63) / view.spread(252)


@_feature("growth", "defensive")
def sharpe_252(view: View) -> FloatArray:
    """mean r / s(252) sqrt 252: Sharpe ratio of the year, without cash (Sharpe 1966)."""
    return view.change(252) / 252.0 / view.spread(252) * math.sqrt(BARS_PER_YEAR)


@_feature("growth", "momentum")
def relative_strength_126(view: View) -> FloatArray:
    """Sum of (r - m) over 126 bars, in log units: half a year against the market (Levy 1967)."""
    return view.change(126) - rolling.total(view.market, 126)
