"""Features of an asset: the inputs of the five experts.

A feature is a function of a `PanelView` that returns (bars, assets); row t is made from bars <= t. NaN means not enough
history. Horizons are in bars and stand in the name. No feature depends on the unit of a price. `ASSET_FEATURES` lists
those made from the close with the lenses of the experts that read them; `TRADING_FEATURES` those that need other fields
of a panel, so that the number of features depends on the source.

In the formulas r is the log return of one bar, p the log price, s(n) the standard deviation of r over n bars, m the
mean r of all listed assets ("the market"), and O, H, L, C and V are the day's open, high, low, close and volume in
shares. Ratios of volume are clipped to a hundredth and 100, and are 1 where nothing was traded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.rolling_windows import FLOOR, PanelView
from finflow.market.panel import BARS_PER_YEAR

__all__ = ["ASSET_FEATURES", "LENSES", "TRADING_FEATURES", "AssetFeature"]

FloatArray = NDArray[np.float64]
Compute = Callable[[PanelView], FloatArray]

_LARGEST_RATIO = 100.0
"""Largest ratio of volumes, and the inverse of the smallest."""
_UNTRADED = 1e300
"""Price move per money traded of an asset without trades: larger than any finite one."""


@dataclass(frozen=True)
class AssetFeature:
    """A feature of an asset with its name and lenses.

    Attributes
    ----------
    name : str
    lenses : tuple of str
    raw : function of a PanelView
        Returns (bars, assets), each column from its own asset and the market alone.
    ranked : bool
        True if the feature is the rank of `raw` among the assets of a bar.
    needs : tuple of str
        Fields that a panel must have, beside the close.
    """

    name: str
    lenses: tuple[str, ...]
    raw: Compute
    ranked: bool = False
    needs: tuple[str, ...] = ()

    def compute(self, view: PanelView) -> FloatArray:
        """Compute the feature of all assets."""
        raw = self.raw(view)
        return rolling.percentile_rank(raw) if self.ranked else raw


ASSET_FEATURES: list[AssetFeature] = []
TRADING_FEATURES: list[AssetFeature] = []


def _feature(*lenses: str, ranked: bool = False, needs: tuple[str, ...] = ()) -> Callable[[Compute], Compute]:
    """Register a function as a feature of the lenses, under its own name."""

    def register(compute: Compute) -> Compute:
        table = TRADING_FEATURES if needs else ASSET_FEATURES
        table.append(AssetFeature(compute.__name__, lenses, compute, ranked, needs))
        return compute

    return register


@_feature("momentum")
def return_1(view: PanelView) -> FloatArray:
    """r / s(63): today's move in deviations; short-term reversal (Jegadeesh 1990)."""
    return view.returns / view.spread(63)


@_feature("momentum", "correlation")
def return_5(view: PanelView) -> FloatArray:
    """Sum of r over 5 bars / (s(63) sqrt 5): the week in deviations; reversal (Lehmann 1990)."""
    return view.change(5) / (view.spread(63) * math.sqrt(5.0))


@_feature("momentum", "growth")
def return_21(view: PanelView) -> FloatArray:
    """Sum of r over 21 bars / (s(63) sqrt 21): the month in deviations; trend (Moskowitz et al. 2012)."""
    return view.change(21) / (view.spread(63) * math.sqrt(21.0))


@_feature("momentum", "growth")
def return_63(view: PanelView) -> FloatArray:
    """Sum of r over 63 bars / (s(63) sqrt 63): the quarter in deviations; trend (Moskowitz et al. 2012)."""
    return view.change(63) / (view.spread(63) * math.sqrt(63.0))


@_feature("momentum", "growth")
def momentum_12_1(view: PanelView) -> FloatArray:
    """Sum of r from t - 251 to t - 21 / (s(252) sqrt 231): a year less its last month (Jegadeesh and Titman 1993)."""
    return (view.change(252) - view.change(21)) / (view.spread(252) * math.sqrt(231.0))


@_feature("momentum", "growth", ranked=True)
def momentum_rank(view: PanelView) -> FloatArray:
    """Rank of the raw 12-1 return among the assets, -1 to 1; winners minus losers (Jegadeesh and Titman 1993)."""
    return view.change(252) - view.change(21)


@_feature("momentum")
def macd_12_26(view: PanelView) -> FloatArray:
    """(EMA12(p) - EMA26(p)) / s(63): trend in daily deviations (Appel 1979, normalised as in Baz et al. 2015)."""
    return (rolling.ema(view.path, 12) - rolling.ema(view.path, 26)) / view.spread(63)


@_feature("momentum", "defensive")
def rsi_14(view: PanelView) -> FloatArray:
    """Sum of r / sum of |r| over 14 bars, -1 to 1: RSI (Wilder 1978, with Cutler's plain sums) as 2 RSI / 100 - 1."""
    turbulence = rolling.total(np.abs(view.returns), 14)
    return view.change(14) / np.maximum(turbulence, 14.0 * FLOOR)


@_feature("momentum", "defensive")
def bollinger_20(view: PanelView) -> FloatArray:
    """(p - mean p) / (2 std p) over 20 bars: position in the bands, +-1 at their edges (Bollinger 1983)."""
    width = np.maximum(view.path_series.std(20), FLOOR)
    return (view.path - view.path_series.mean(20)) / (2.0 * width)


@_feature("volatility", "defensive")
def volatility_21(view: PanelView) -> FloatArray:
    """ln(s(21) sqrt 252): log of the annual volatility over a month (Andersen et al. 2003)."""
    return np.log(view.spread(21) * math.sqrt(BARS_PER_YEAR))


@_feature("volatility", "correlation", "growth")
def volatility_252(view: PanelView) -> FloatArray:
    """ln(s(252) sqrt 252): log of the annual volatility over a year (Ang et al. 2006)."""
    return np.log(view.spread(252) * math.sqrt(BARS_PER_YEAR))


@_feature("volatility")
def volatility_ratio(view: PanelView) -> FloatArray:
    """ln(s(21) / s(252)), a log ratio: this month against the year; volatility timing (Moreira and Muir 2017)."""
    return np.log(view.spread(21) / view.spread(252))


@_feature("volatility", "defensive", ranked=True)
def volatility_rank(view: PanelView) -> FloatArray:
    """Rank of s(63) among the assets, -1 to 1; the low-volatility effect (Ang et al. 2006)."""
    return view.spread(63)


@_feature("volatility", "defensive")
def downside_share(view: PanelView) -> FloatArray:
    """Sum of min(r, 0)^2 / sum of r^2 over 63 bars, 0 to 1: share of losses in the risk (Sortino and Price 1994)."""
    square = view.returns * view.returns
    losses = rolling.total(np.where(view.returns < 0.0, square, square * 0.0), 63)
    return np.clip(losses / np.maximum(rolling.total(square, 63), 63.0 * FLOOR**2), 0.0, 1.0)


@_feature("correlation", "defensive")
def beta_252(view: PanelView) -> FloatArray:
    """cov(r, m) / var(m) over 252 bars, a ratio; low beta (Frazzini and Pedersen 2014)."""
    return view.beta(252)


@_feature("correlation", "volatility")
def correlation_252(view: PanelView) -> FloatArray:
    """corr(r, m) over 252 bars, -1 to 1: low values diversify (Choueifaty and Coignard 2008)."""
    return view.correlation(252)


@_feature("correlation")
def correlation_change(view: PanelView) -> FloatArray:
    """corr over 63 bars less corr over 252: recent change of the correlation (Longin and Solnik 2001)."""
    return view.correlation(63) - view.correlation(252)


@_feature("correlation", "volatility")
def idiosyncratic(view: PanelView) -> FloatArray:
    """ln of s(252) sqrt(1 - corr(252)^2) sqrt 252: annual idiosyncratic volatility (Ang et al. 2006)."""
    own = np.sqrt(np.maximum(1.0 - view.correlation(252) ** 2, 1e-4))
    return np.log(view.spread(252) * own * math.sqrt(BARS_PER_YEAR))


@_feature("correlation", "momentum")
def residual_21(view: PanelView) -> FloatArray:
    """Sum of (r - beta m) over 21 bars / (s(252) sqrt 21): net of the market, in deviations (Blitz et al. 2011)."""
    residual = view.change(21) - view.beta(252) * view.market_series.total(21)
    return residual / (view.spread(252) * math.sqrt(21.0))


@_feature("defensive", "growth")
def drawdown_252(view: PanelView) -> FloatArray:
    """p - max p over 252 bars, in log units, 0 or less; nearness to the year's high (George and Hwang 2004)."""
    return view.path - rolling.maximum(view.path, 252)


@_feature("defensive", "volatility")
def worst_day_63(view: PanelView) -> FloatArray:
    """min r over 63 bars / s(252): the worst recent day in deviations; tail risk (Bali et al. 2009)."""
    return rolling.minimum(view.returns, 63) / view.spread(252)


@_feature("growth", "defensive")
def sharpe_252(view: PanelView) -> FloatArray:
    """mean r / s(252) sqrt 252: Sharpe ratio of the year, without cash (Sharpe 1966)."""
    return view.change(252) / 252.0 / view.spread(252) * math.sqrt(BARS_PER_YEAR)


@_feature("growth", "momentum")
def relative_strength_126(view: PanelView) -> FloatArray:
    """Sum of (r - m) over 126 bars, in log units: half a year against the market (Levy 1967)."""
    return view.change(126) - view.market_series.total(126)


def _annual(variance: FloatArray) -> FloatArray:
    """Log of the annual deviation from a mean daily variance."""
    daily = np.maximum(np.sqrt(np.maximum(variance, 0.0)), FLOOR)
    return np.log(daily * math.sqrt(BARS_PER_YEAR))


def _log_ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Log of a ratio of amounts, clipped at both ends; 0 where the second is zero for want of trades."""
    ratio = np.full(top.shape, 1.0)
    np.divide(top, bottom, out=ratio, where=bottom > 0.0)
    logs = np.log(np.clip(ratio, 1.0 / _LARGEST_RATIO, _LARGEST_RATIO))
    return np.where(np.isnan(top) | np.isnan(bottom), np.nan, logs)


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Signed share of volume, -1 to 1; 0 where nothing was traded."""
    share = np.where(np.isnan(part) | np.isnan(whole), np.nan, 0.0)
    np.divide(part, whole, out=share, where=whole > 0.0)
    return np.clip(share, -1.0, 1.0)


def _location(view: PanelView) -> FloatArray:
    """(2 C - H - L) / (H - L), -1 at the day's low and 1 at its high; 0 where the day has no range."""
    high, low = view.field("high"), view.field("low")
    location = np.where(view.listed, 0.0, np.nan)
    np.divide(2.0 * view.close - high - low, high - low, out=location, where=high > low)
    return np.clip(location, -1.0, 1.0)


def _illiquidity(view: PanelView, window: int) -> FloatArray:
    """Mean of |r| / (C V) over the traded days of a window (Amihud 2002), per unit of money; 0 where there are none."""
    traded = view.field("volume") > 0.0
    known = np.isfinite(view.returns)
    daily = np.where(known, 0.0, np.nan)
    np.divide(np.abs(view.returns), view.close * view.field("volume"), out=daily, where=traded & known)
    days = rolling.total(np.where(known, traded.astype(np.float64), np.nan), window)
    return np.maximum(rolling.total(daily, window), 0.0) / np.maximum(days, 1.0)


@_feature("volatility", "defensive", needs=("high", "low"))
def parkinson_21(view: PanelView) -> FloatArray:
    """ln(sqrt(mean of ln(H/L)^2 / (4 ln 2)) sqrt 252) over 21 bars: log annual volatility (Parkinson 1980)."""
    square = np.log(view.field("high") / view.field("low")) ** 2
    return _annual(rolling.mean(square, 21) / (4.0 * math.log(2.0)))


@_feature("volatility", needs=("open", "high", "low"))
def garman_klass_5(view: PanelView) -> FloatArray:
    """ln(sqrt(mean of ln(H/L)^2 / 2 - (2 ln 2 - 1) ln(C/O)^2) sqrt 252) over 5 bars: log annual volatility of the
    week's trading hours (Garman and Klass 1980)."""
    ranged = np.log(view.field("high") / view.field("low")) ** 2
    moved = np.log(view.close / view.field("open")) ** 2
    return _annual(rolling.mean(0.5 * ranged - (2.0 * math.log(2.0) - 1.0) * moved, 5))


@_feature("momentum", "defensive", needs=("high", "low"))
def close_location_10(view: PanelView) -> FloatArray:
    """Mean of (2 C - H - L) / (H - L) over 10 bars, -1 to 1: whether days end at their highs (Williams 1972)."""
    return rolling.mean(_location(view), 10)


@_feature("momentum", "growth", needs=("open",))
def overnight_21(view: PanelView) -> FloatArray:
    """Sum of ln(O / last C) over 21 bars / (s(63) sqrt 21): the month's nights in deviations (Lou et al. 2019)."""
    return rolling.total(view.overnight, 21) / (view.spread(63) * math.sqrt(21.0))


@_feature("defensive", "correlation", needs=("open",))
def overnight_risk_63(view: PanelView) -> FloatArray:
    """Share of sum ln(O / last C)^2 in it and sum ln(C/O)^2 over 63 bars, 0 to 1: gaps (French and Roll 1986)."""
    night = np.maximum(rolling.total(view.overnight**2, 63), 0.0)
    day = np.maximum(rolling.total((view.returns - view.overnight) ** 2, 63), 0.0)
    share: FloatArray = night / np.maximum(night + day, 63.0 * FLOOR**2)
    return share


@_feature("momentum", needs=("volume",))
def abnormal_volume_63(view: PanelView) -> FloatArray:
    """ln(V / mean V over 63 bars), -4.6 to 4.6: attention; the high-volume premium (Gervais et al. 2001)."""
    return _log_ratio(view.field("volume"), view.volume.mean(63))


@_feature("growth", "volatility", needs=("volume",))
def volume_trend(view: PanelView) -> FloatArray:
    """ln(mean V over 21 bars / mean V over 252 bars), -4.6 to 4.6: interest in the asset (Lee and Swaminathan 2000)."""
    return _log_ratio(view.volume.mean(21), view.volume.mean(252))


@_feature("defensive", "correlation", ranked=True, needs=("volume",))
def illiquidity_rank(view: PanelView) -> FloatArray:
    """Rank of mean |r| / (C V) over the traded of 63 bars among the assets, -1 to 1: illiquidity (Amihud 2002)."""
    illiquidity = _illiquidity(view, 63)
    untraded = view.volume.total(63) <= 0.0
    return np.where(untraded, _UNTRADED, illiquidity)


@_feature("volatility", "correlation", needs=("volume",))
def illiquidity_change(view: PanelView) -> FloatArray:
    """ln of mean |r| / (C V) over 21 bars / over 252 bars, -4.6 to 4.6: liquidity drying up (Amihud 2002)."""
    return _log_ratio(_illiquidity(view, 21), _illiquidity(view, 252))


@_feature("momentum", "growth", needs=("high", "low", "volume"))
def money_flow_21(view: PanelView) -> FloatArray:
    """Sum of V (2 C - H - L) / (H - L) / sum of V over 21 bars, -1 to 1: buying pressure (Chaikin; Williams 1972)."""
    return _share(rolling.total(_location(view) * view.field("volume"), 21), view.volume.total(21))


@_feature("growth", "momentum", needs=("volume",))
def balance_volume_63(view: PanelView) -> FloatArray:
    """Sum of sign(r) V / sum of V over 63 bars, -1 to 1: on-balance volume as a share (Granville 1963)."""
    return _share(rolling.total(np.sign(view.returns) * view.field("volume"), 63), view.volume.total(63))
