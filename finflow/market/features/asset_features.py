"""Features of an asset made from its close: the inputs of the five experts.

A feature is a function of a `PanelView` that returns (bars, assets); row t is made from bars <= t. NaN means not enough
history. Horizons are in bars and stand in the name: here and in the formulas those of daily prices; weekly and monthly
prices have others, and other names (`rolling_windows.TEMPLATES`). No feature depends on the unit of a price.
`ASSET_FEATURES` lists them with the lenses of the experts that read them.

In the formulas r is the log return of one bar, p the log price, s(n) the standard deviation of r over n bars and m the
mean r of all listed assets ("the market").

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
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finflow.compiled_function import compiled_function
from finflow.config import LENSES
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.rolling_windows import FLOOR, PanelView, Series

FloatArray = NDArray[np.float64]
Compute = Callable[[PanelView], FloatArray]


@dataclass(frozen=True)
class AssetFeature:
    name: str
    lenses: tuple[str, ...]
    raw: Compute  # returns (bars, assets), each column from its own asset and the market alone
    ranked: bool = False  # the feature is the rank of `raw` among the assets of a bar
    needs: tuple[str, ...] = ()  # fields that a panel must have, in addition to the close

    def compute(self, view: PanelView) -> FloatArray:
        raw = self.raw(view)
        return rolling.percentile_rank(raw) if self.ranked else raw


ASSET_FEATURES: list[AssetFeature] = []


def registered(
    features: list[AssetFeature], *lenses: str, ranked: bool = False, needs: tuple[str, ...] = ()
) -> Callable[[Compute], Compute]:
    """Append a function to a list of features, under its own name; parameters as of `AssetFeature`."""

    def register(compute: Compute) -> Compute:
        features.append(AssetFeature(compute.__name__, lenses, compute, ranked, needs))
        return compute

    return register


_feature = partial(registered, ASSET_FEATURES)


def _moved(view: PanelView, window: int) -> FloatArray:
    """Sum of r over a window in deviations of such a sum."""
    return view.change(window) / (view.spread(view.windows.medium) * math.sqrt(float(window)))


def _momentum_12_1(view: PanelView) -> FloatArray:
    return view.change(view.windows.year) - view.change(view.windows.skipped)


@_feature("momentum")
def return_1(view: PanelView) -> FloatArray:
    """r / s(63): today's move in deviations; short-term reversal (Jegadeesh 1990)."""
    return view.returns / view.spread(view.windows.medium)


@_feature("momentum", "correlation")
def return_5(view: PanelView) -> FloatArray:
    """Sum of r over 5 bars / (s(63) sqrt 5): the week in deviations; reversal (Lehmann 1990)."""
    return _moved(view, view.windows.week)


@_feature("momentum", "growth")
def return_21(view: PanelView) -> FloatArray:
    """Sum of r over 21 bars / (s(63) sqrt 21): the month in deviations; trend (Moskowitz et al. 2012)."""
    return _moved(view, view.windows.month)


@_feature("momentum", "growth")
def return_63(view: PanelView) -> FloatArray:
    """Sum of r over 63 bars / (s(63) sqrt 63): the quarter in deviations; trend (Moskowitz et al. 2012)."""
    return _moved(view, view.windows.quarter)


@_feature("momentum", "growth")
def momentum_12_1(view: PanelView) -> FloatArray:
    """Sum of r from t - 251 to t - 21 / (s(252) sqrt 231): a year less its last month (Jegadeesh and Titman 1993)."""
    windows = view.windows
    return _momentum_12_1(view) / (view.spread(windows.long) * math.sqrt(float(windows.year - windows.skipped)))


@_feature("momentum", "growth", ranked=True)
def momentum_rank(view: PanelView) -> FloatArray:
    """Rank of the raw 12-1 return among the assets, -1 to 1; winners minus losers (Jegadeesh and Titman 1993)."""
    return _momentum_12_1(view)


@_feature("momentum")
def macd_12_26(view: PanelView) -> FloatArray:
    """(EMA12(p) - EMA26(p)) / s(63): trend in daily deviations (Appel 1979, normalised as in Baz et al. 2015)."""
    windows = view.windows
    return (rolling.ema(view.path, windows.fast) - rolling.ema(view.path, windows.slow)) / view.spread(windows.medium)


@_feature("momentum", "defensive")
def rsi_14(view: PanelView) -> FloatArray:
    """Sum of r / sum of |r| over 14 bars, -1 to 1: RSI (Wilder 1978, with Cutler's plain sums) as 2 RSI / 100 - 1."""
    window = view.windows.strength
    turbulence = rolling.total(np.abs(view.returns), window)
    return view.change(window) / np.maximum(turbulence, window * FLOOR)


@_feature("momentum", "defensive")
def bollinger_20(view: PanelView) -> FloatArray:
    """(p - mean p) / (2 std p) over 20 bars: position in the bands, +-1 at their edges (Bollinger 1983)."""
    window = view.windows.bands
    width = np.maximum(view.path_series.std(window), FLOOR)
    return (view.path - view.path_series.mean(window)) / (2.0 * width)


@_feature("volatility", "defensive")
def volatility_21(view: PanelView) -> FloatArray:
    """ln(s(21) sqrt 252): log of the annual volatility over a month (Andersen et al. 2003)."""
    return np.log(view.spread(view.windows.brief) * math.sqrt(view.panel.bars_per_year))


@_feature("volatility", "correlation", "growth")
def volatility_252(view: PanelView) -> FloatArray:
    """ln(s(252) sqrt 252): log of the annual volatility over a year (Ang et al. 2006)."""
    return np.log(view.spread(view.windows.long) * math.sqrt(view.panel.bars_per_year))


@_feature("volatility")
def volatility_ratio(view: PanelView) -> FloatArray:
    """ln(s(21) / s(252)), a log ratio: this month against the year; volatility timing (Moreira and Muir 2017)."""
    return np.log(view.spread(view.windows.brief) / view.spread(view.windows.long))


@_feature("volatility", "defensive", ranked=True)
def volatility_rank(view: PanelView) -> FloatArray:
    """Rank of s(63) among the assets, -1 to 1; the low-volatility effect (Ang et al. 2006)."""
    return view.spread(view.windows.medium)


@_feature("volatility", "defensive")
def downside_share(view: PanelView) -> FloatArray:
    """Sum of min(r, 0)^2 / sum of r^2 over 63 bars, 0 to 1: share of losses in the risk (Sortino and Price 1994)."""
    square, window = view.returns * view.returns, view.windows.medium
    losses = rolling.total(np.where(view.returns < 0.0, square, square * 0.0), window)
    return np.clip(losses / np.maximum(rolling.total(square, window), window * FLOOR**2), 0.0, 1.0)


@_feature("correlation", "defensive")
def beta_252(view: PanelView) -> FloatArray:
    """cov(r, m) / var(m) over 252 bars, a ratio; low beta (Frazzini and Pedersen 2014)."""
    return view.beta(view.windows.long)


@_feature("correlation", "volatility")
def correlation_252(view: PanelView) -> FloatArray:
    """corr(r, m) over 252 bars, -1 to 1: low values diversify (Choueifaty and Coignard 2008)."""
    return view.correlation(view.windows.long)


@_feature("correlation")
def correlation_change(view: PanelView) -> FloatArray:
    """corr over 63 bars less corr over 252: recent change of the correlation (Longin and Solnik 2001)."""
    return view.correlation(view.windows.medium) - view.correlation(view.windows.long)


@_feature("correlation", "volatility")
def idiosyncratic(view: PanelView) -> FloatArray:
    """ln of s(252) sqrt(1 - corr(252)^2) sqrt 252: annual idiosyncratic volatility (Ang et al. 2006)."""
    window = view.windows.long
    unexplained = np.sqrt(np.maximum(1.0 - view.correlation(window) ** 2, 1e-4))
    return np.log(view.spread(window) * unexplained * math.sqrt(view.panel.bars_per_year))


@_feature("correlation", "momentum")
def residual_21(view: PanelView) -> FloatArray:
    """Sum of (r - beta m) over 21 bars / (s(252) sqrt 21): net of the market, in deviations (Blitz et al. 2011)."""
    window, long = view.windows.month, view.windows.long
    residual = view.change(window) - view.beta(long) * view.market_series.total(window)
    return residual / (view.spread(long) * math.sqrt(float(window)))


@_feature("defensive", "growth")
def drawdown_252(view: PanelView) -> FloatArray:
    """p - max p over 252 bars, in log units, 0 or less; nearness to the year's high (George and Hwang 2004)."""
    return view.path - rolling.maximum(view.path, view.windows.year)


@_feature("defensive", "volatility")
def worst_day_63(view: PanelView) -> FloatArray:
    """min r over 63 bars / s(252): the worst recent day in deviations; tail risk (Bali et al. 2009)."""
    return rolling.minimum(view.returns, view.windows.medium) / view.spread(view.windows.long)


@_feature("growth", "defensive")
def sharpe_252(view: PanelView) -> FloatArray:
    """mean r / s(252) sqrt 252: Sharpe ratio of the year, without cash (Sharpe 1966)."""
    mean = view.change(view.windows.year) / float(view.windows.year)
    return mean / view.spread(view.windows.long) * math.sqrt(view.panel.bars_per_year)


@_feature("growth", "momentum")
def relative_strength_126(view: PanelView) -> FloatArray:
    """Sum of (r - m) over 126 bars, in log units: half a year against the market (Levy 1967)."""
    return view.change(view.windows.half) - view.market_series.total(view.windows.half)


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
    return AssetFeature(f"relative_average_{half_life:g}", lenses, lambda view: relative_average(view, half_life))


FILTER_FEATURES: dict[str, tuple[AssetFeature, ...]] = {
    readers: tuple(_member(half_life, lenses) for half_life in HALF_LIVES)
    for readers, lenses in (("momentum", ("momentum",)), ("all", LENSES))
}
"""Value of `features.filters` -> the bank, as the lenses of that value read it."""
