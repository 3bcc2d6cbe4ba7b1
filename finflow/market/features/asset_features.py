"""Features of an asset, the inputs of the five experts, as one table with the lenses of the experts that read them.

A feature is a formula over a `PanelView` and the windows of its bars, and has the shape (bars, assets); row t is made
from bars <= t. NaN means not enough history. Horizons are in bars and stand in the name: in the comments those of daily
prices; weekly and monthly prices have others, and other names. No feature depends on the unit of a price.

In the comments r is the log return of one bar, p the log price, s(n) the standard deviation of r over n bars and m the
mean r of all listed assets ("the market"); O, H, L, C and V are the day's open, high, low, close and volume in shares.
Features of those are there where a panel has the fields. Ratios of volume are clipped to a hundredth and 100, and are 1
where nothing was traded.

A bank of exponential averages of market-relative returns, the same for every asset, is a memory of several lengths.
Hidden drifts and regimes are followed by averages over the past whose best length is not known beforehand (Muth 1960;
the Kalman filter of a drifting mean is one such average). A bank of them lets a learner choose, or combine two into a
difference. With b = 2^(-1 / h) for a half-life of h bars,

    z_t = sum_k b^k (r - m)_{t-k} / (s(63) sqrt(sum_k b^(2 k))),

summed over the bars since the asset was listed. The sum is divided by the deviation that it has where r - m is white
noise of deviation s(63), so that every member of the bank is about standard normal on a market without memory, whatever
the unit, the volatility and the half-life.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from finflow.arrays import FloatArray
from finflow.compiled_function import compiled_function
from finflow.config import LENSES
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.rolling_windows import FLOOR, FeatureWindows, PanelView, Series
from finflow.market.panel import MarketPanel

Formula = Callable[[PanelView, FeatureWindows], FloatArray]

_LARGEST_RATIO = 100.0
"""Largest ratio of volumes, and the inverse of the smallest."""
_UNTRADED = 1e300
"""Price move per money traded of an asset without trades: larger than any finite one."""


@dataclass(frozen=True)
class AssetFeature:
    name: str  # with its windows in braces, which `FeatureWindows.named` fills in
    lenses: tuple[str, ...]
    formula: Formula  # each column from its own asset and the market alone
    ranked: bool = False  # the feature is the rank of the formula among the assets of a bar
    needs: tuple[str, ...] = ()  # fields that a panel must have, in addition to the close

    def compute(self, view: PanelView) -> FloatArray:
        raw = self.formula(view, view.windows)
        return rolling.percentile_rank(raw) if self.ranked else raw


def _momentum_12_1(v: PanelView, w: FeatureWindows) -> FloatArray:
    return v.change(w.year) - v.change(w.skipped)


def _downside_share(v: PanelView, w: FeatureWindows) -> FloatArray:
    square = v.returns * v.returns
    losses = rolling.total(np.where(v.returns < 0.0, square, square * 0.0), w.medium)
    return np.clip(losses / np.maximum(rolling.total(square, w.medium), w.medium * FLOOR**2), 0.0, 1.0)


def _idiosyncratic(v: PanelView, w: FeatureWindows) -> FloatArray:
    unexplained = np.sqrt(np.maximum(1.0 - v.correlation(w.long) ** 2, 1e-4))
    return np.log(v.spread(w.long) * unexplained * math.sqrt(v.panel.bars_per_year))


def _residual(v: PanelView, w: FeatureWindows) -> FloatArray:
    residual = v.change(w.month) - v.beta(w.long) * v.market_series.total(w.month)
    return residual / (v.spread(w.long) * math.sqrt(float(w.month)))


def _annual(v: PanelView, variance: FloatArray) -> FloatArray:
    """Log of the annual deviation from a mean variance of a bar."""
    daily = np.maximum(np.sqrt(np.maximum(variance, 0.0)), FLOOR)
    return np.log(daily * math.sqrt(v.panel.bars_per_year))


def _range(v: PanelView) -> FloatArray:
    return np.log(v.field("high") / v.field("low")) ** 2


def _garman_klass(v: PanelView, w: FeatureWindows) -> FloatArray:
    moved = np.log(v.close / v.field("open")) ** 2
    return _annual(v, rolling.mean(0.5 * _range(v) - (2.0 * math.log(2.0) - 1.0) * moved, w.week))


def _overnight_risk(v: PanelView, w: FeatureWindows) -> FloatArray:
    night = np.maximum(rolling.total(v.overnight**2, w.medium), 0.0)
    day = np.maximum(rolling.total((v.returns - v.overnight) ** 2, w.medium), 0.0)
    return np.asarray(night / np.maximum(night + day, w.medium * FLOOR**2))


def _log_ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Log of a ratio of amounts, clipped at both ends; 0 where the second is zero for want of trades."""
    ratio = np.full(top.shape, 1.0)
    np.divide(top, bottom, out=ratio, where=bottom > 0.0)
    logs = np.log(np.clip(ratio, 1.0 / _LARGEST_RATIO, _LARGEST_RATIO))
    return np.where(np.isnan(top) | np.isnan(bottom), np.nan, logs)


def _share(v: PanelView, part: FloatArray, window: int) -> FloatArray:
    """Signed share of a window's volume, -1 to 1; 0 where nothing was traded."""
    part, whole = rolling.total(part * v.field("volume"), window), v.volume.total(window)
    share = np.where(np.isnan(part) | np.isnan(whole), np.nan, 0.0)
    np.divide(part, whole, out=share, where=whole > 0.0)
    return np.clip(share, -1.0, 1.0)


def _location(v: PanelView) -> FloatArray:
    """(2 C - H - L) / (H - L), -1 at the day's low and 1 at its high; 0 where the day has no range."""
    high, low = v.field("high"), v.field("low")
    location = np.where(v.listed, 0.0, np.nan)
    np.divide(2.0 * v.close - high - low, high - low, out=location, where=high > low)
    return np.clip(location, -1.0, 1.0)


def _illiquidity(v: PanelView, window: int) -> FloatArray:
    """Mean of |r| / (C V) over the traded days of a window (Amihud 2002), per unit of money; 0 where there are none."""
    traded = v.field("volume") > 0.0
    known = np.isfinite(v.returns)
    daily = np.where(known, 0.0, np.nan)
    np.divide(np.abs(v.returns), v.close * v.field("volume"), out=daily, where=traded & known)
    days = rolling.total(np.where(known, traded.astype(np.float64), np.nan), window)
    return np.maximum(rolling.total(daily, window), 0.0) / np.maximum(days, 1.0)


ASSET_FEATURES = (
    # r / s(63): today's move in deviations; short-term reversal (Jegadeesh 1990)
    AssetFeature("return_1", ("momentum",), lambda v, w: v.returns / v.spread(w.medium)),
    # Sum of r over 5 bars / (s(63) sqrt 5): the week in deviations; reversal (Lehmann 1990)
    AssetFeature("return_{week}", ("momentum", "correlation"), lambda v, w: v.moved(w.week)),
    # Sum of r over 21 bars / (s(63) sqrt 21): the month in deviations; trend (Moskowitz et al. 2012)
    AssetFeature("return_{month}", ("momentum", "growth"), lambda v, w: v.moved(w.month)),
    # Sum of r over 63 bars / (s(63) sqrt 63): the quarter in deviations; trend (Moskowitz et al. 2012)
    AssetFeature("return_{quarter}", ("momentum", "growth"), lambda v, w: v.moved(w.quarter)),
    # Sum of r from t - 251 to t - 21 / (s(252) sqrt 231): a year less its last month (Jegadeesh and Titman 1993)
    AssetFeature(
        "momentum_12_1",
        ("momentum", "growth"),
        lambda v, w: _momentum_12_1(v, w) / (v.spread(w.long) * math.sqrt(float(w.year - w.skipped))),
    ),
    # Rank of the raw 12-1 return among the assets, -1 to 1; winners minus losers (Jegadeesh and Titman 1993)
    AssetFeature("momentum_rank", ("momentum", "growth"), _momentum_12_1, ranked=True),
    # (EMA12(p) - EMA26(p)) / s(63): trend in daily deviations (Appel 1979, normalised as in Baz et al. 2015)
    AssetFeature(
        "macd_{fast}_{slow}",
        ("momentum",),
        lambda v, w: (rolling.ema(v.path, w.fast) - rolling.ema(v.path, w.slow)) / v.spread(w.medium),
    ),
    # Sum of r / sum of |r| over 14 bars, -1 to 1: RSI (Wilder 1978, with Cutler's plain sums) as 2 RSI / 100 - 1
    AssetFeature(
        "rsi_{strength}",
        ("momentum", "defensive"),
        lambda v, w: (
            v.change(w.strength) / np.maximum(rolling.total(np.abs(v.returns), w.strength), w.strength * FLOOR)
        ),
    ),
    # (p - mean p) / (2 std p) over 20 bars: position in the bands, +-1 at their edges (Bollinger 1983)
    AssetFeature(
        "bollinger_{bands}",
        ("momentum", "defensive"),
        lambda v, w: (v.path - v.path_series.mean(w.bands)) / (2.0 * np.maximum(v.path_series.std(w.bands), FLOOR)),
    ),
    # ln(s(21) sqrt 252): log of the annual volatility over a month (Andersen et al. 2003)
    AssetFeature(
        "volatility_{brief}",
        ("volatility", "defensive"),
        lambda v, w: np.log(v.spread(w.brief) * math.sqrt(v.panel.bars_per_year)),
    ),
    # ln(s(252) sqrt 252): log of the annual volatility over a year (Ang et al. 2006)
    AssetFeature(
        "volatility_{long}",
        ("volatility", "correlation", "growth"),
        lambda v, w: np.log(v.spread(w.long) * math.sqrt(v.panel.bars_per_year)),
    ),
    # ln(s(21) / s(252)), a log ratio: this month against the year; volatility timing (Moreira and Muir 2017)
    AssetFeature("volatility_ratio", ("volatility",), lambda v, w: np.log(v.spread(w.brief) / v.spread(w.long))),
    # Rank of s(63) among the assets, -1 to 1; the low-volatility effect (Ang et al. 2006)
    AssetFeature("volatility_rank", ("volatility", "defensive"), lambda v, w: v.spread(w.medium), ranked=True),
    # Sum of min(r, 0)^2 / sum of r^2 over 63 bars, 0 to 1: share of losses in the risk (Sortino and Price 1994)
    AssetFeature("downside_share", ("volatility", "defensive"), _downside_share),
    # cov(r, m) / var(m) over 252 bars, a ratio; low beta (Frazzini and Pedersen 2014)
    AssetFeature("beta_{long}", ("correlation", "defensive"), lambda v, w: v.beta(w.long)),
    # corr(r, m) over 252 bars, -1 to 1: low values diversify (Choueifaty and Coignard 2008)
    AssetFeature("correlation_{long}", ("correlation", "volatility"), lambda v, w: v.correlation(w.long)),
    # corr over 63 bars less corr over 252: recent change of the correlation (Longin and Solnik 2001)
    AssetFeature("correlation_change", ("correlation",), lambda v, w: v.correlation(w.medium) - v.correlation(w.long)),
    # ln of s(252) sqrt(1 - corr(252)^2) sqrt 252: annual idiosyncratic volatility (Ang et al. 2006)
    AssetFeature("idiosyncratic", ("correlation", "volatility"), _idiosyncratic),
    # Sum of (r - beta m) over 21 bars / (s(252) sqrt 21): net of the market, in deviations (Blitz et al. 2011)
    AssetFeature("residual_{month}", ("correlation", "momentum"), _residual),
    # p - max p over 252 bars, in log units, 0 or less; nearness to the year's high (George and Hwang 2004)
    AssetFeature("drawdown_{year}", ("defensive", "growth"), lambda v, w: v.path - rolling.maximum(v.path, w.year)),
    # min r over 63 bars / s(252): the worst recent day in deviations; tail risk (Bali et al. 2009)
    AssetFeature(
        "worst_{bar}_{medium}",
        ("defensive", "volatility"),
        lambda v, w: rolling.minimum(v.returns, w.medium) / v.spread(w.long),
    ),
    # mean r / s(252) sqrt 252: Sharpe ratio of the year, without cash (Sharpe 1966)
    AssetFeature(
        "sharpe_{year}",
        ("growth", "defensive"),
        lambda v, w: v.change(w.year) / float(w.year) / v.spread(w.long) * math.sqrt(v.panel.bars_per_year),
    ),
    # Sum of (r - m) over 126 bars, in log units: half a year against the market (Levy 1967)
    AssetFeature(
        "relative_strength_{half}",
        ("growth", "momentum"),
        lambda v, w: v.change(w.half) - v.market_series.total(w.half),
    ),
    # ln(sqrt(mean of ln(H/L)^2 / (4 ln 2)) sqrt 252) over 21 bars: log annual volatility (Parkinson 1980)
    AssetFeature(
        "parkinson_{brief}",
        ("volatility", "defensive"),
        lambda v, w: _annual(v, rolling.mean(_range(v), w.brief) / (4.0 * math.log(2.0))),
        needs=("high", "low"),
    ),
    # ln(sqrt(mean of ln(H/L)^2 / 2 - (2 ln 2 - 1) ln(C/O)^2) sqrt 252) over 5 bars: log annual volatility of the
    # week's trading hours (Garman and Klass 1980)
    AssetFeature("garman_klass_{week}", ("volatility",), _garman_klass, needs=("open", "high", "low")),
    # Mean of (2 C - H - L) / (H - L) over 10 bars, -1 to 1: whether days end at their highs (Williams 1972)
    AssetFeature(
        "close_location_{fortnight}",
        ("momentum", "defensive"),
        lambda v, w: rolling.mean(_location(v), w.fortnight),
        needs=("high", "low"),
    ),
    # Sum of ln(O / last C) over 21 bars / (s(63) sqrt 21): the month's nights in deviations (Lou et al. 2019)
    AssetFeature(
        "overnight_{month}",
        ("momentum", "growth"),
        lambda v, w: rolling.total(v.overnight, w.month) / (v.spread(w.medium) * math.sqrt(float(w.month))),
        needs=("open",),
    ),
    # Share of sum ln(O / last C)^2 in it and sum ln(C/O)^2 over 63 bars, 0 to 1: gaps (French and Roll 1986)
    AssetFeature("overnight_risk_{medium}", ("defensive", "correlation"), _overnight_risk, needs=("open",)),
    # ln(V / mean V over 63 bars), -4.6 to 4.6: attention; the high-volume premium (Gervais et al. 2001)
    AssetFeature(
        "abnormal_volume_{medium}",
        ("momentum",),
        lambda v, w: _log_ratio(v.field("volume"), v.volume.mean(w.medium)),
        needs=("volume",),
    ),
    # ln(mean V over 21 bars / mean V over 252 bars), -4.6 to 4.6: interest in the asset (Lee and Swaminathan 2000)
    AssetFeature(
        "volume_trend",
        ("growth", "volatility"),
        lambda v, w: _log_ratio(v.volume.mean(w.brief), v.volume.mean(w.long)),
        needs=("volume",),
    ),
    # Rank of mean |r| / (C V) over the traded of 63 bars among the assets, -1 to 1: illiquidity (Amihud 2002)
    AssetFeature(
        "illiquidity_rank",
        ("defensive", "correlation"),
        lambda v, w: np.where(v.volume.total(w.medium) <= 0.0, _UNTRADED, _illiquidity(v, w.medium)),
        ranked=True,
        needs=("volume",),
    ),
    # ln of mean |r| / (C V) over 21 bars / over 252 bars, -4.6 to 4.6: liquidity drying up (Amihud 2002)
    AssetFeature(
        "illiquidity_change",
        ("volatility", "correlation"),
        lambda v, w: _log_ratio(_illiquidity(v, w.brief), _illiquidity(v, w.long)),
        needs=("volume",),
    ),
    # Sum of V (2 C - H - L) / (H - L) / sum of V over 21 bars, -1 to 1: buying pressure (Chaikin; Williams 1972)
    AssetFeature(
        "money_flow_{month}",
        ("momentum", "growth"),
        lambda v, w: _share(v, _location(v), w.month),
        needs=("high", "low", "volume"),
    ),
    # Sum of sign(r) V / sum of V over 63 bars, -1 to 1: on-balance volume as a share (Granville 1963)
    AssetFeature(
        "balance_volume_{medium}",
        ("growth", "momentum"),
        lambda v, w: _share(v, np.sign(v.returns), w.medium),
        needs=("volume",),
    ),
)


HALF_LIVES = (0.7, 1.5, 3.0, 6.0, 12.0, 25.0)
"""Bars after which a return counts half: from about one bar's reversal to a quarter's trend, each twice the last."""


def relative_average(view: PanelView, half_life: float) -> FloatArray:
    """Exponential average of market-relative returns, in deviations of that of white noise, (bars, assets).

    A return counts half after ``half_life`` bars (Muth 1960). NaN where the asset has fewer than 63 returns (weekly:
    26, monthly: 12).
    """
    relative = view.returns - view.market
    spread = np.maximum(Series(relative).std(view.windows.medium), FLOOR)
    return _standardised_sum(relative, 0.5 ** (1.0 / half_life)) / spread


@compiled_function()
def _standardised_sum(values: FloatArray, keep: float) -> FloatArray:
    """Decaying sum of each column over the root of the sum of its squared weights; begins anew after a NaN."""
    result = np.full(values.shape, np.nan)
    for column in range(values.shape[1]):
        total, squares = 0.0, 0.0
        for row in range(values.shape[0]):
            value = values[row, column]
            if np.isnan(value):
                total, squares = 0.0, 0.0
                continue
            total = keep * total + value
            squares = keep * keep * squares + 1.0
            result[row, column] = total / np.sqrt(squares)
    return result


def _member(half_life: float, lenses: tuple[str, ...]) -> AssetFeature:
    return AssetFeature(f"relative_average_{half_life:g}", lenses, lambda v, _: relative_average(v, half_life))


FILTER_FEATURES: dict[str, tuple[AssetFeature, ...]] = {
    "none": (),
    "momentum": tuple(_member(half_life, ("momentum",)) for half_life in HALF_LIVES),
    "all": tuple(_member(half_life, LENSES) for half_life in HALF_LIVES),
}
"""Value of `features.filters` -> the bank, as the lenses of that value read it."""


def features_of(panel: MarketPanel, filters: str) -> tuple[AssetFeature, ...]:
    """Features of which a panel has the fields, and the bank of filters."""
    there = (one for one in ASSET_FEATURES if all(getattr(panel, field) is not None for field in one.needs))
    return (*there, *FILTER_FEATURES[filters])
