"""Windows of the features in bars: of daily, weekly and monthly prices.

Features of daily prices look back over days and weeks, and estimate second moments over as little as a month. A month
of monthly bars is one bar, so monthly features have windows of their own: momentum is the year less its last month on
either (Jegadeesh and Titman 1993), trends are those of ten months (Faber 2007), volatilities and betas are estimated
over three years of months as over a year of days (Fama and MacBeth 1973 take five to eight years). Weeks lie between:
the trend is that of 40 weeks, which are 200 days, and second moments are estimated over two years. A feature whose
window differs has another name, so that an agent of daily features is refused on weekly or monthly prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finflow.market.bar_frequency import MONTHLY, WEEKLY


@dataclass(frozen=True)
class FeatureWindows:
    """Windows in bars; the defaults are those of daily prices.

    Attributes
    ----------
    week, fortnight, month, quarter, half, year : int
        Of sums of returns, extremes and averages.
    skipped : int
        Last bars that 12-1 momentum leaves out.
    brief, medium, long : int
        Of deviations, betas and correlations, from the shortest to the longest.
    fast, slow : int
        Spans of the MACD.
    strength, bands, trend : int
        Of the RSI, of Bollinger's bands and of moving averages that show a trend.
    names : mapping
        Name of a feature of daily prices -> its name with these windows, where it has another.
    """

    week: int = 5
    fortnight: int = 10
    month: int = 21
    quarter: int = 63
    half: int = 126
    year: int = 252
    skipped: int = 21
    brief: int = 21
    medium: int = 63
    long: int = 252
    fast: int = 12
    slow: int = 26
    strength: int = 14
    bands: int = 20
    trend: int = 200
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Bars that the longest feature needs: its returns and the first price."""
        return max(self.long, self.year, self.trend) + 1

    def named(self, name: str) -> str:
        """Name of a feature with these windows, from its name with those of daily prices."""
        return self.names.get(name, name)


DAILY_WINDOWS = FeatureWindows()
_WEEKLY_NAMES = {
    "return_5": "return_2",
    "return_21": "return_4",
    "return_63": "return_13",
    "volatility_21": "volatility_13",
    "volatility_252": "volatility_104",
    "beta_252": "beta_104",
    "correlation_252": "correlation_104",
    "residual_21": "residual_4",
    "drawdown_252": "drawdown_52",
    "worst_day_63": "worst_week_26",
    "sharpe_252": "sharpe_52",
    "relative_strength_126": "relative_strength_26",
    "parkinson_21": "parkinson_13",
    "garman_klass_5": "garman_klass_2",
    "close_location_10": "close_location_4",
    "overnight_21": "overnight_4",
    "overnight_risk_63": "overnight_risk_26",
    "abnormal_volume_63": "abnormal_volume_26",
    "money_flow_21": "money_flow_4",
    "balance_volume_63": "balance_volume_26",
    "market_return_21": "market_return_4",
    "market_sharpe_252": "market_sharpe_52",
}
WEEKLY_WINDOWS = FeatureWindows(
    week=2,
    fortnight=4,
    month=4,
    quarter=13,
    half=26,
    year=52,
    skipped=4,
    brief=13,
    medium=26,
    long=104,
    trend=40,
    names=_WEEKLY_NAMES,
)
_MONTHLY_NAMES = {
    "return_5": "return_2",
    "return_21": "return_3",
    "return_63": "return_6",
    "macd_12_26": "macd_3_9",
    "rsi_14": "rsi_6",
    "bollinger_20": "bollinger_12",
    "volatility_21": "volatility_6",
    "volatility_252": "volatility_36",
    "beta_252": "beta_36",
    "correlation_252": "correlation_36",
    "residual_21": "residual_3",
    "drawdown_252": "drawdown_12",
    "worst_day_63": "worst_month_12",
    "sharpe_252": "sharpe_12",
    "relative_strength_126": "relative_strength_9",
    "parkinson_21": "parkinson_6",
    "garman_klass_5": "garman_klass_2",
    "close_location_10": "close_location_3",
    "overnight_21": "overnight_3",
    "overnight_risk_63": "overnight_risk_12",
    "abnormal_volume_63": "abnormal_volume_12",
    "money_flow_21": "money_flow_3",
    "balance_volume_63": "balance_volume_12",
    "market_return_21": "market_return_3",
    "market_sharpe_252": "market_sharpe_12",
}
MONTHLY_WINDOWS = FeatureWindows(
    week=2,
    fortnight=3,
    month=3,
    quarter=6,
    half=9,
    year=12,
    skipped=1,
    brief=6,
    medium=12,
    long=36,
    fast=3,
    slow=9,
    strength=6,
    bands=12,
    trend=10,
    names=_MONTHLY_NAMES,
)


def windows_of(bars_per_year: int) -> FeatureWindows:
    """Windows for prices with so many bars a year: 252, 52 or 12."""
    return {WEEKLY: WEEKLY_WINDOWS, MONTHLY: MONTHLY_WINDOWS}.get(bars_per_year, DAILY_WINDOWS)
