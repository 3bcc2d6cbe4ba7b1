"""Windows of the features in bars: of daily, weekly and monthly prices.

A month of monthly bars is one bar, so monthly features have windows of their own: momentum is the year less its last
month on either (Jegadeesh and Titman 1993), trends are those of ten months (Faber 2007), volatilities and betas are
estimated over three years of months as over a year of days (Fama and MacBeth 1973 take five to eight years). Weeks lie
between. A feature whose window differs has another name, so that an agent of daily features is refused on other prices.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from finflow.market.bar_frequency import MONTHLY, WEEKLY


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
        """Name of a feature with these windows, from its name with those of daily prices."""
        return TEMPLATES.get(name, name).format(**asdict(self))


TEMPLATES = {
    "return_5": "return_{week}",
    "return_21": "return_{month}",
    "return_63": "return_{quarter}",
    "macd_12_26": "macd_{fast}_{slow}",
    "rsi_14": "rsi_{strength}",
    "bollinger_20": "bollinger_{bands}",
    "volatility_21": "volatility_{brief}",
    "volatility_252": "volatility_{long}",
    "beta_252": "beta_{long}",
    "correlation_252": "correlation_{long}",
    "residual_21": "residual_{month}",
    "drawdown_252": "drawdown_{year}",
    "worst_day_63": "worst_{bar}_{medium}",
    "sharpe_252": "sharpe_{year}",
    "relative_strength_126": "relative_strength_{half}",
    "parkinson_21": "parkinson_{brief}",
    "garman_klass_5": "garman_klass_{week}",
    "close_location_10": "close_location_{fortnight}",
    "overnight_21": "overnight_{month}",
    "overnight_risk_63": "overnight_risk_{medium}",
    "abnormal_volume_63": "abnormal_volume_{medium}",
    "money_flow_21": "money_flow_{month}",
    "balance_volume_63": "balance_volume_{medium}",
    "market_return_21": "market_return_{month}",
    "market_sharpe_252": "market_sharpe_{year}",
}
"""Name of a feature of daily prices -> its name with any windows."""
DAILY_WINDOWS = FeatureWindows()
WEEKLY_WINDOWS = FeatureWindows(
    **{"week": 2, "fortnight": 4, "month": 4, "quarter": 13, "half": 26, "year": 52, "skipped": 4},
    **{"brief": 13, "medium": 26, "long": 104, "trend": 40},
    bar="week",
)
MONTHLY_WINDOWS = FeatureWindows(
    **{"week": 2, "fortnight": 3, "month": 3, "quarter": 6, "half": 9, "year": 12, "skipped": 1},
    **{"brief": 6, "medium": 12, "long": 36, "fast": 3, "slow": 9, "strength": 6, "bands": 12, "trend": 10},
    bar="month",
)


def windows_of(bars_per_year: int) -> FeatureWindows:
    return {WEEKLY: WEEKLY_WINDOWS, MONTHLY: MONTHLY_WINDOWS}.get(bars_per_year, DAILY_WINDOWS)
