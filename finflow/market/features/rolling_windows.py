"""Trailing windows over columns, and the series of a panel that features are made from.

Every value at row t is made from rows t - window + 1 ... t. Sums are differences of running sums in float64, so that a
row has the same bits whether or not later rows exist. The rounding error is bounded by the size of the sum: at daily
log returns over a century it is under 1e-13, against values of 1e-4 and more. Smaller deviations are noise.

A month of monthly bars is one bar, so the windows of monthly features are their own: momentum is the year less its last
month on either (Jegadeesh and Titman 1993), trends are those of ten months (Faber 2007), volatilities and betas are
estimated over three years of months as over a year of days (Fama and MacBeth 1973 take five to eight years). Weeks lie
between. A feature whose window differs has another name, so that an agent of daily features is refused on other prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.arrays import FloatArray
from finflow.market.bar_frequency import CALENDAR, MONTHLY, WEEKLY, bar_name
from finflow.market.panel import MarketPanel

FLOOR = 1e-4
"""Smallest daily deviation that anything is divided by: smaller ones are rounding."""


@dataclass(frozen=True)
class FeatureWindows:
    """Windows in bars; the defaults are those of daily prices."""

    week: int = 5  # to year: of sums of returns, extremes and averages
    fortnight: int = 10
    month: int = 21
    quarter: int = 63
    half: int = 126
    year: int = 252
    skipped: int = 21  # last bars that 12-1 momentum leaves out
    brief: int = 21  # to long: of deviations, betas and correlations
    medium: int = 63
    long: int = 252
    fast: int = 12  # and slow: spans of the MACD
    slow: int = 26
    strength: int = 14  # of the RSI
    bands: int = 20  # of Bollinger's bands
    trend: int = 200  # of moving averages that show a trend
    bar: str = "day"  # name of a bar

    @property
    def longest(self) -> int:
        """Bars that the longest feature needs: its returns and the first price."""
        return max(self.long, self.year, self.trend) + 1

    def named(self, name: str) -> str:
        """Name of a feature with these windows, from one with their names in braces."""
        return name.format_map(vars(self))


DAILY_WINDOWS = FeatureWindows()
WEEKLY_WINDOWS = FeatureWindows(
    **{"week": 2, "fortnight": 4, "month": 4, "quarter": 13, "half": 26, "year": 52, "skipped": 4},
    **{"brief": 13, "medium": 26, "long": 104, "trend": 40},
    bar="week",
)
CALENDAR_WINDOWS = FeatureWindows(
    **{"week": 7, "fortnight": 14, "month": 30, "quarter": 91, "half": 182, "year": 365, "skipped": 30},
    **{"brief": 30, "medium": 91, "long": 365, "trend": 290},
    bar="day",
)
FORTNIGHTLY_WINDOWS = FeatureWindows(
    **{"week": 2, "fortnight": 2, "month": 3, "quarter": 7, "half": 13, "year": 26, "skipped": 2},
    **{"brief": 7, "medium": 13, "long": 52, "fast": 6, "slow": 13, "strength": 8, "bands": 14, "trend": 20},
    bar="fortnight",
)
MONTHLY_WINDOWS = FeatureWindows(
    **{"week": 2, "fortnight": 3, "month": 3, "quarter": 6, "half": 9, "year": 12, "skipped": 1},
    **{"brief": 6, "medium": 12, "long": 36, "fast": 3, "slow": 9, "strength": 6, "bands": 12, "trend": 10},
    bar="month",
)


def windows_of(bars_per_year: int) -> FeatureWindows:
    """Windows of a spacing; those of bars longer than months differ from each other, and have a few bars each."""
    if bars_per_year < MONTHLY:
        year = max(bars_per_year, 2)
        week, month, quarter, half = [bars for bars in (2, 3, 4, 6, 8) if bars != year][:4]
        return FeatureWindows(
            **{"week": week, "fortnight": 2, "month": month, "quarter": quarter, "half": half, "year": year},
            **{"skipped": 1, "brief": 4, "medium": 6, "long": 12, "fast": 2, "slow": 4, "strength": 4, "bands": 6},
            trend=10,
            bar=bar_name(bars_per_year).replace(" ", "_").replace("-", "_"),
        )
    spacings = {CALENDAR: CALENDAR_WINDOWS, WEEKLY: WEEKLY_WINDOWS, 26: FORTNIGHTLY_WINDOWS, MONTHLY: MONTHLY_WINDOWS}
    return spacings.get(bars_per_year, DAILY_WINDOWS)


class Series:
    """Columns of numbers (rows, columns), NaN where not known, with their running sums, each computed once."""

    def __init__(self, values: FloatArray) -> None:
        self.values = values

    @cached_property
    def _latest_gap(self) -> NDArray[np.int32]:
        """Index of the last NaN up to each row; -1 where there is none."""
        rows = np.arange(len(self.values), dtype=np.int32)[:, None]
        gaps = np.where(np.isnan(self.values), rows, np.int32(-1))
        return np.maximum.accumulate(gaps, axis=0, out=gaps)

    @cached_property
    def _running(self) -> FloatArray:
        return np.nancumsum(self.values, axis=0)

    @cached_property
    def _squares(self) -> FloatArray:
        return np.nancumsum(self.values * self.values, axis=0)

    def _over(self, running: FloatArray, window: int) -> FloatArray:
        """Difference of a running sum over `window` rows; NaN where there are fewer or one of them is NaN."""
        result = np.empty_like(running)
        result[:window] = running[:window]
        np.subtract(running[window:], running[:-window], out=result[window:])
        rows = np.arange(len(running), dtype=np.int32)[:, None]
        np.copyto(result, np.nan, where=self._latest_gap > rows - window)
        result[: window - 1] = np.nan
        return result

    def total(self, window: int) -> FloatArray:
        """Sum of the last `window` rows; NaN where there are fewer or one of them is NaN."""
        return self._over(self._running, window)

    def mean(self, window: int) -> FloatArray:
        return self.total(window) / window

    def std(self, window: int) -> FloatArray:
        """Standard deviation (ddof 1) of the last `window` rows; 0 where it is below 1e-7, which is rounding."""
        first = self.total(window)
        variance = (self._over(self._squares, window) - first * first / window) / (window - 1)
        with np.errstate(invalid="ignore"):
            noise = variance < 1e-14
        variance[noise] = 0.0
        return np.sqrt(variance, out=variance)


def total(values: FloatArray, window: int) -> FloatArray:
    return Series(values).total(window)


def mean(values: FloatArray, window: int) -> FloatArray:
    return Series(values).mean(window)


def maximum(values: FloatArray, window: int) -> FloatArray:
    return np.asarray(pd.DataFrame(values).rolling(window).max(), dtype=np.float64)


def minimum(values: FloatArray, window: int) -> FloatArray:
    return np.asarray(pd.DataFrame(values).rolling(window).min(), dtype=np.float64)


def ema(values: FloatArray, span: int) -> FloatArray:
    """Exponential moving average with weight 2 / (span + 1), started at a column's first value."""
    return np.asarray(pd.DataFrame(values).ewm(span=span, adjust=False).mean(), dtype=np.float64)


def percentile_rank(values: FloatArray) -> FloatArray:
    """Rank within each row, from -1 (lowest) to 1 (highest); ties share their mean; NaN stays NaN, alone is 0."""
    known = ~np.isnan(values)
    rank = pd.DataFrame(values).rank(axis=1).to_numpy()  # scipy.stats takes a second to load
    others = known.sum(axis=1, keepdims=True) - 1
    return np.where(known, np.where(others > 0, 2.0 * (rank - 1.0) / np.maximum(others, 1) - 1.0, 0.0), np.nan)


class PanelView:
    """Returns of a panel and the intermediate series that several features share, each computed once.

    ``windows`` are those of the features, by how many bars make a year; ``returns`` the log return of the bar that ends
    at t, NaN unless the asset is listed at t - 1 and t.
    """

    def __init__(self, panel: MarketPanel) -> None:
        self.panel = panel
        self.windows = windows_of(panel.bars_per_year)
        self.close, self.listed = panel.close, panel.listed
        self.returns: FloatArray = np.full(self.close.shape, np.nan)
        self.returns[1:] = np.log(self.close[1:] / self.close[:-1])

    def field(self, name: str) -> FloatArray:
        """Open, high, low or volume of a panel that has it."""
        values: FloatArray = getattr(self.panel, name)
        return values

    @cached_property
    def volume(self) -> Series:
        return Series(self.field("volume"))

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
    def market_series(self) -> Series:
        return Series(self.market)

    @cached_property
    def market_path(self) -> FloatArray:
        """Running sum of `market`, shape (bars, 1)."""
        return np.cumsum(np.nan_to_num(self.market), axis=0)

    @cached_property
    def path_series(self) -> Series:
        return Series(self.path)

    @cached_property
    def _series(self) -> Series:
        return Series(self.returns)

    @cached_property
    def _market_beside(self) -> Series:
        """Series of `market` where the asset has a return, (bars, assets)."""
        return Series(np.where(np.isnan(self.returns), np.nan, self.market))

    @cached_property
    def _crossed(self) -> Series:
        return Series(self.returns * self._market_beside.values)

    def covariance(self, window: int) -> FloatArray:
        """cov(r, m) (ddof 1) over `window` bars."""
        product = self._series.total(window) * self._market_beside.total(window) / window
        return (self._crossed.total(window) - product) / (window - 1)

    def spread(self, window: int) -> FloatArray:
        """s(window), at least a hundredth of a percent a day."""
        return np.maximum(self._series.std(window), FLOOR)

    def market_spread(self, window: int) -> FloatArray:
        """Standard deviation of `market` over `window` bars, (bars, 1); at least a hundredth of a percent a day."""
        return np.maximum(self.market_series.std(window), FLOOR)

    def change(self, window: int) -> FloatArray:
        """Log return over `window` bars."""
        return self._series.total(window)

    def moved(self, window: int) -> FloatArray:
        """Log return over `window` bars in deviations of such a sum."""
        return self.change(window) / (self.spread(self.windows.medium) * math.sqrt(float(window)))

    def beta(self, window: int) -> FloatArray:
        """cov(r, m) / var(m) over `window` bars."""
        spread = self.market_spread(window)
        return self.covariance(window) / (spread * spread)

    def correlation(self, window: int) -> FloatArray:
        """corr(r, m) over `window` bars, in [-1, 1]."""
        return np.clip(self.covariance(window) / (self.spread(window) * self.market_spread(window)), -1.0, 1.0)
