"""Sign of time-series momentum: twelve months looked back on, one month held (Moskowitz, Ooi and Pedersen 2012).

Every month an asset is held long where its excess return over the last twelve months is positive, and short where it is
not, at a volatility of 40 % a year by its latest 36 months; the strategy is the mean over the assets. Beside it stands
the paper's regression: the next excess return over its deviation on the sign of the last twelve months, all assets
pooled, with errors clustered by month.

The paper trades 58 futures of four classes from 1985 to 2009. Portfolios of one stock market are not those, so that
nothing but the sign is compared: it was positive.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.bar_frequency import MONTHLY
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from scripts.replicate.comparison import Comparison

FloatArray = NDArray[np.float64]

LOOKBACK, DEVIATION, VOLATILITY = 12, 36, 0.4
SOURCE = "Moskowitz et al. 2012 (sign: positive)"


def monthly_panel(path: Path | None) -> MarketPanel:
    """Monthly prices of a CSV file, or the portfolios that linearmodels ships.

    Raises
    ------
    MarketError
        If the prices are not monthly, or too few.
    """
    panel = load_panel(MarketConfig(source="french") if path is None else MarketConfig(source="csv", path=path))
    if panel.bars_per_year != MONTHLY:
        raise MarketError(
            f"{path} has {panel.bars_per_year} bars a year; time-series momentum here needs monthly prices"
        )
    if panel.n_bars < DEVIATION + 2 * LOOKBACK or not panel.listed.all():
        raise MarketError(f"{path}: {DEVIATION + 2 * LOOKBACK} months or more are needed, with a price of every asset")
    return panel


def compare_sign(panel: MarketPanel, name: str) -> list[Comparison]:
    """Mean and t of the strategy, and t of the pooled regression, on monthly prices."""
    returns = panel.close[1:] / panel.close[:-1] - 1.0 - panel.cash_returns[1:, None]
    signs, scaled = signals(returns)
    at_volatility = scaled * VOLATILITY / np.sqrt(MONTHLY)
    strategy = (signs * at_volatility).mean(axis=1)
    mean = float(strategy.mean())
    t = mean / float(strategy.std(ddof=1)) * len(strategy) ** 0.5
    span = f"{len(strategy)} months of {panel.n_assets} assets, before costs"
    found = "positive, as in the paper" if mean > 0.0 else "not positive, other than in the paper"
    return [
        Comparison(name, "mean a year", MONTHLY * mean, None, SOURCE, f"{found}; {span}"),
        Comparison(name, "t of the mean", t, None, SOURCE, "above 2 would be significant at 5 %"),
        Comparison(
            name, "mean a year, always long", MONTHLY * float(at_volatility.mean()), None, "", "at the same volatility"
        ),
        Comparison(name, "t of the pooled regression", clustered_t(signs, scaled), None, SOURCE, "clustered by month"),
    ]


def signals(returns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Signs of the last twelve months, and the next excess returns over their deviation by the 36 months before.

    Parameters
    ----------
    returns : float64 (months, assets)

    Returns
    -------
    signs, scaled : float64 (months - 36, assets)
        Row t is of the month t + 36: its return, and what was known before it.
    """
    windows = np.lib.stride_tricks.sliding_window_view(returns, DEVIATION, axis=0)[:-1]
    past = np.log1p(windows[:, :, -LOOKBACK:]).sum(axis=2)
    signs: FloatArray = np.where(past > 0.0, 1.0, -1.0)
    scaled: FloatArray = returns[DEVIATION:] / windows.std(axis=2, ddof=1)
    return signs, scaled


def clustered_t(signs: FloatArray, scaled: FloatArray) -> float:
    """t of the slope of a pooled regression with an intercept, its errors clustered by month."""
    centred = signs - signs.mean()
    squares = float((centred**2).sum())
    slope = float((centred * scaled).sum()) / squares
    errors = scaled - scaled.mean() - slope * centred
    spread = float(np.sqrt(((centred * errors).sum(axis=1) ** 2).sum()))
    return slope * squares / spread
