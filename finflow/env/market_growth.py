"""Prices and growth between fills, and the liquidity that costs depend on, from a panel."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray
from finflow.env.objective import Moments
from finflow.errors import ConfigError
from finflow.ledger.costs import MarketState
from finflow.market.panel import MarketPanel

LIQUIDITY_WINDOW = 21
"""Bars over which volume and volatility are measured for costs."""


def fill_prices(panel: MarketPanel, fill: str) -> FloatArray:
    """Prices at which decisions fill, (bars, assets); ``ConfigError`` where the panel lacks them."""
    if fill == "close":
        return panel.close
    if panel.open is None:
        raise ConfigError("env.fill is open, but this market has no opening prices; set env.fill to close")
    return panel.open


def share_prices(panel: MarketPanel, fill: str) -> FloatArray:
    """Prices of a share at which decisions fill, (bars, assets): without dividends where they are paid in cash."""
    prices = fill_prices(panel, fill)
    if panel.quoted is None:
        return prices
    return panel.quoted if fill == "close" else prices * (panel.quoted / panel.close)


def growth_of(panel: MarketPanel, fill: str) -> FloatArray:
    """Gross growth over the bar that ends at each bar, from fill to fill, cash last, (bars, K).

    One where an asset is not listed at both ends: a position that ended is held at its last price. Dividends count in
    full, also where they are paid in cash.
    """
    prices = fill_prices(panel, fill)
    growth = np.ones((panel.n_bars, panel.n_assets + 1))
    with np.errstate(invalid="ignore"):
        if panel.dividends is not None and fill == "open":
            # (o_t + d_t) / o_{t-1}: opens have dividends reinvested at the ex-date's close; with the yield y,
            # o_{t-1} (1 + y_t) is the earlier open on the scale of the later one
            paid = panel.dividends * panel.close
            ratio = (prices[1:] + paid[1:]) / (prices[:-1] * (1.0 + panel.dividends[1:]))
        else:
            ratio = prices[1:] / prices[:-1]
    growth[1:, :-1] = np.where(np.isfinite(ratio), ratio, 1.0)
    growth[:, -1] = 1.0 + panel.cash_returns
    return growth


def dividends_of(panel: MarketPanel, fill: str) -> FloatArray | None:
    """Share of an asset's value at the end of each bar that is a dividend just paid, (bars, assets).

    ``d / (p + d)``, with p the price at the fill on the ex-date and d the dividend a share. It is paid to accounts that
    held the asset after the previous fill. None where dividends are not paid in cash.
    """
    if panel.dividends is None:
        return None
    prices = fill_prices(panel, fill)
    paid = np.nan_to_num(panel.dividends * panel.close)
    share = np.zeros(prices.shape)
    held = np.isfinite(prices[1:]) & np.isfinite(prices[:-1])
    np.divide(paid[1:], prices[1:] + paid[1:], out=share[1:], where=held)
    return share


def equal_weight_log_returns(panel: MarketPanel, fill: str) -> FloatArray:
    """Log return of equal weight over the bar that ends at each bar, before costs, (bars,); 0 where none is listed."""
    growth, listed = growth_of(panel, fill)[:, :-1], panel.listed
    count = listed.sum(axis=1)
    mean = (growth * listed).sum(axis=1) / np.maximum(count, 1)
    return np.log(np.where(count > 0, mean, 1.0))


def equal_weight_moments(panel: MarketPanel, fill: str, bars: range) -> Moments:
    """Moments of equal weight's log return in excess of cash over ``bars``, before costs."""
    log_returns = (equal_weight_log_returns(panel, fill) - np.log1p(panel.cash_returns))[bars.start : bars.stop]
    log_returns = log_returns[panel.listed[bars.start : bars.stop].any(axis=1)]
    return Moments(float(log_returns.mean()), float((log_returns**2).mean()))


def liquidity_of(panel: MarketPanel) -> MarketState:
    """Measure volume in money and daily volatility over trailing bars, (bars, assets), row t from bars <= t.

    Volume in money is the mean over the window of shares traded times the close; volatility the standard deviation
    (ddof 1) of log returns over the same bars. A younger asset has fewer bars. Where nothing was traded, or nothing is
    known yet, the smallest volume and the highest volatility of that day's other assets are used. The first rows, as
    many as the window has, are zero in both: no trade happens on them.
    """
    if panel.volume is None:
        raise ConfigError(
            "a cost under env.costs depends on the volume traded, but this market has no volume; set the slippage and "
            "impact of env.costs to zero, or use a source with a volume for every price"
        )
    money = pd.DataFrame(panel.share_closes * panel.volume).rolling(LIQUIDITY_WINDOW, min_periods=1).mean()
    returns = pd.DataFrame(np.log(panel.close)).diff().rolling(LIQUIDITY_WINDOW, min_periods=2).std()
    volume = _fill_gaps(np.asarray(money.where(money > 0.0), dtype=np.float64), np.fmin)
    volatility = _fill_gaps(np.asarray(returns, dtype=np.float64), np.fmax)
    volume[:LIQUIDITY_WINDOW], volatility[:LIQUIDITY_WINDOW] = 0.0, 0.0
    return MarketState(volume, volatility)


def _fill_gaps(values: FloatArray, costliest: np.ufunc) -> FloatArray:
    """Fill gaps with the costliest value of their row; zero where a row has none."""
    filled = np.where(np.isnan(values), costliest.reduce(values, axis=1)[:, None], values)
    return np.nan_to_num(filled, nan=0.0)
