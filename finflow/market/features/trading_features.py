"""Features of an asset made from open, high, low and volume: they are there where a panel has the fields.

In the formulas, further to those of `asset_features`, O, H, L, C and V are the day's open, high, low, close and volume
in shares. Ratios of volume are clipped to a hundredth and 100, and are 1 where nothing was traded.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finflow.market.features import rolling_windows as rolling
from finflow.market.features.asset_features import AssetFeature, registered
from finflow.market.features.rolling_windows import FLOOR, PanelView

FloatArray = NDArray[np.float64]

TRADING_FEATURES: list[AssetFeature] = []
_feature = partial(registered, TRADING_FEATURES)

_LARGEST_RATIO = 100.0
"""Largest ratio of volumes, and the inverse of the smallest."""
_UNTRADED = 1e300
"""Price move per money traded of an asset without trades: larger than any finite one."""


def _annual(variance: FloatArray, bars_per_year: int) -> FloatArray:
    """Log of the annual deviation from a mean variance of a bar."""
    daily = np.maximum(np.sqrt(np.maximum(variance, 0.0)), FLOOR)
    return np.log(daily * math.sqrt(bars_per_year))


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
    return _annual(rolling.mean(square, view.windows.brief) / (4.0 * math.log(2.0)), view.panel.bars_per_year)


@_feature("volatility", needs=("open", "high", "low"))
def garman_klass_5(view: PanelView) -> FloatArray:
    """ln(sqrt(mean of ln(H/L)^2 / 2 - (2 ln 2 - 1) ln(C/O)^2) sqrt 252) over 5 bars: log annual volatility of the
    week's trading hours (Garman and Klass 1980)."""
    ranged = np.log(view.field("high") / view.field("low")) ** 2
    moved = np.log(view.close / view.field("open")) ** 2
    variance = rolling.mean(0.5 * ranged - (2.0 * math.log(2.0) - 1.0) * moved, view.windows.week)
    return _annual(variance, view.panel.bars_per_year)


@_feature("momentum", "defensive", needs=("high", "low"))
def close_location_10(view: PanelView) -> FloatArray:
    """Mean of (2 C - H - L) / (H - L) over 10 bars, -1 to 1: whether days end at their highs (Williams 1972)."""
    return rolling.mean(_location(view), view.windows.fortnight)


@_feature("momentum", "growth", needs=("open",))
def overnight_21(view: PanelView) -> FloatArray:
    """Sum of ln(O / last C) over 21 bars / (s(63) sqrt 21): the month's nights in deviations (Lou et al. 2019)."""
    window = view.windows.month
    return rolling.total(view.overnight, window) / (view.spread(view.windows.medium) * math.sqrt(float(window)))


@_feature("defensive", "correlation", needs=("open",))
def overnight_risk_63(view: PanelView) -> FloatArray:
    """Share of sum ln(O / last C)^2 in it and sum ln(C/O)^2 over 63 bars, 0 to 1: gaps (French and Roll 1986)."""
    window = view.windows.medium
    night = np.maximum(rolling.total(view.overnight**2, window), 0.0)
    day = np.maximum(rolling.total((view.returns - view.overnight) ** 2, window), 0.0)
    share: FloatArray = night / np.maximum(night + day, window * FLOOR**2)
    return share


@_feature("momentum", needs=("volume",))
def abnormal_volume_63(view: PanelView) -> FloatArray:
    """ln(V / mean V over 63 bars), -4.6 to 4.6: attention; the high-volume premium (Gervais et al. 2001)."""
    return _log_ratio(view.field("volume"), view.volume.mean(view.windows.medium))


@_feature("growth", "volatility", needs=("volume",))
def volume_trend(view: PanelView) -> FloatArray:
    """ln(mean V over 21 bars / mean V over 252 bars), -4.6 to 4.6: interest in the asset (Lee and Swaminathan 2000)."""
    return _log_ratio(view.volume.mean(view.windows.brief), view.volume.mean(view.windows.long))


@_feature("defensive", "correlation", ranked=True, needs=("volume",))
def illiquidity_rank(view: PanelView) -> FloatArray:
    """Rank of mean |r| / (C V) over the traded of 63 bars among the assets, -1 to 1: illiquidity (Amihud 2002)."""
    illiquidity = _illiquidity(view, view.windows.medium)
    untraded = view.volume.total(view.windows.medium) <= 0.0
    return np.where(untraded, _UNTRADED, illiquidity)


@_feature("volatility", "correlation", needs=("volume",))
def illiquidity_change(view: PanelView) -> FloatArray:
    """ln of mean |r| / (C V) over 21 bars / over 252 bars, -4.6 to 4.6: liquidity drying up (Amihud 2002)."""
    return _log_ratio(_illiquidity(view, view.windows.brief), _illiquidity(view, view.windows.long))


@_feature("momentum", "growth", needs=("high", "low", "volume"))
def money_flow_21(view: PanelView) -> FloatArray:
    """Sum of V (2 C - H - L) / (H - L) / sum of V over 21 bars, -1 to 1: buying pressure (Chaikin; Williams 1972)."""
    window = view.windows.month
    return _share(rolling.total(_location(view) * view.field("volume"), window), view.volume.total(window))


@_feature("growth", "momentum", needs=("volume",))
def balance_volume_63(view: PanelView) -> FloatArray:
    """Sum of sign(r) V / sum of V over 63 bars, -1 to 1: on-balance volume as a share (Granville 1963)."""
    window = view.windows.medium
    return _share(rolling.total(np.sign(view.returns) * view.field("volume"), window), view.volume.total(window))
