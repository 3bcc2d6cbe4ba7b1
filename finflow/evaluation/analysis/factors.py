"""Exposures of the strategies' returns to known factors.

Two regressions of returns in excess of cash, by least squares with the standard errors of Newey and West (1987),
which allow for changing variance and for correlation over a few bars:

- on factors built from the panel: *market* is the mean of the listed assets, in excess of cash, so that what the
  choice of the assets itself brought is no one's alpha; *momentum* the best third of the assets by 12-1 return less the
  worst third; *volatility* the most volatile third, over the year, less the calmest. Thirds are chosen from closes up
  to the day before each return, hold equal weights and pay no costs.
- on the panel's index (the same mean where it has none) in excess of cash, and five factor ETFs that skfolio ships
  (2014 to 2022; MTUM momentum, QUAL quality, SIZE size, USMV minimum volatility, VLUE value), each less the index,
  because all five hold mostly the same stocks.

The intercept is what no factor explains, a year (times the bars of one). Strategies pay costs and factors do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.statistics.significance_tests import newey_west
from finflow.market.bar_frequency import BARS_PER_YEAR, CALENDAR, WEEKLY, bars_per_month
from finflow.market.panel import MarketPanel

FEWEST_DAYS = {CALENDAR: 182, BARS_PER_YEAR: 126, WEEKLY: 52}
"""Returns that a regression needs, by how many make a year; 36 of longer bars."""
SINGULAR = 1e10  # condition number beyond which factors cannot be distinguished


def panel_factors(panel: MarketPanel, bars: range) -> dict[str, FloatArray]:
    """Returns of market, momentum and volatility over the bars that end at each of ``bars``, float64 (bars,) each.

    Not a number where fewer than three assets have the history; the market needs one day of one asset.
    """
    close, lookback = panel.close, panel.bars_per_year
    skipped = bars_per_month(lookback)
    with np.errstate(invalid="ignore"):
        returns = close[1:] / close[:-1] - 1.0
    found: dict[str, FloatArray] = {name: np.full(len(bars), np.nan) for name in ("market", "momentum", "volatility")}
    for row, bar in enumerate(bars):
        today = returns[bar - 1]
        if np.isfinite(today).any():
            found["market"][row] = float(np.nanmean(today)) - panel.cash_returns[bar]
        if bar - 1 < lookback:
            continue
        past = close[bar - 1 - lookback : bar]  # up to the close before
        usable = np.isfinite(past).all(axis=0) & np.isfinite(today)
        if np.count_nonzero(usable) < 3:
            continue
        moved = returns[bar - 1 - lookback : bar - 1, usable].std(axis=0)
        found["momentum"][row] = _spread(past[-1 - skipped, usable] / past[0, usable], today[usable])
        found["volatility"][row] = _spread(moved, today[usable])
    return found


def _spread(score: FloatArray, returns: FloatArray) -> float:
    """Mean return of the third with the highest score less that of the third with the lowest."""
    order, count = np.argsort(score, kind="stable"), -(-len(score) // 3)
    return float(returns[order[-count:]].mean() - returns[order[:count]].mean())


def exposures(
    excess: FloatArray, factors: Mapping[str, FloatArray], year: int = BARS_PER_YEAR
) -> dict[str, Any] | None:
    """Regress returns on factors.

    Parameters
    ----------
    excess : float64 (days,)
        Returns in excess of cash.
    factors : mapping of str to float64 (days,)
        Days on which any of them is not a number are left out.
    year : int
        Returns that make a year.

    Returns
    -------
    dict or None
        The intercept ``alpha`` a year, ``beta`` by factor, their standard errors ``alpha_error`` and ``error``,
        ``r_squared`` and ``days``. None for fewer than `FEWEST_DAYS` returns, and where
        the factors cannot be distinguished.

    References
    ----------
    Newey and West (1987), with floor(4 (T / 100)^(2/9)) lags, as in Newey and West (1994).
    """
    table = np.column_stack(list(factors.values()))
    kept = np.isfinite(table).all(axis=1) & np.isfinite(excess)
    days = int(kept.sum())
    if days < FEWEST_DAYS.get(year, 36):
        return None
    design = np.column_stack([np.ones(days), table[kept]])
    scale = np.sqrt((design**2).mean(axis=0))
    if (scale <= 0.0).any() or np.linalg.cond(design / scale) > SINGULAR:
        return None
    lags = int(4.0 * (days / 100.0) ** (2.0 / 9.0))
    fit = newey_west(excess[kept], design, lags, few=True)
    return {
        "alpha": float(fit.params[0] * year),
        "alpha_error": float(fit.bse[0] * year),
        "beta": dict(zip(factors, fit.params[1:].tolist(), strict=True)),
        "error": dict(zip(factors, fit.bse[1:].tolist(), strict=True)),
        "r_squared": float(fit.rsquared),
        "days": days,
    }


def factor_section(
    panel: MarketPanel, bars: range, runs: Sequence[Backtest], etfs: pd.DataFrame | None
) -> Section | None:
    """Regress every strategy, with holding periods that end at ``bars``, from close to close as the factors have them.

    The judged one comes first. ``etfs`` are prices by date; None in a synthetic market.
    """
    own = panel_factors(panel, bars)
    if not np.isfinite(own["momentum"]).any():
        own = {"market": own["market"]}
    models: dict[str, dict[str, FloatArray]] = {"panel": own}
    if etfs is not None and panel.bars_per_year == BARS_PER_YEAR:
        cash, market = panel.cash_returns[bars.start : bars.stop], own["market"]
        if panel.benchmark is not None:
            level = panel.benchmark[bars.start - 1 : bars.stop]
            market = level[1:] / level[:-1] - 1.0 - cash
        prices = etfs.reindex(pd.DatetimeIndex(panel.dates[bars.start - 1 : bars.stop])).to_numpy(dtype=np.float64)
        returns = prices[1:] / prices[:-1] - 1.0  # not a number where either day has no price
        models["etfs"] = {"market": market} | {
            str(name): returns[:, column] - cash - market for column, name in enumerate(etfs.columns)
        }
    numbers: dict[str, object] = {"panel": {}, "etfs": {}}
    tables = []
    titles = {"panel": "Factors of this market", "etfs": "The index, and factor ETFs less the index"}
    for key, model in models.items():
        found = {run.name: exposures(run.returns - run.cash_returns, model, panel.bars_per_year) for run in runs}
        numbers[key] = fitted = {name: figures for name, figures in found.items() if figures is not None}
        columns = (
            ("Alpha a year", Cell((key, ROW, "alpha"), "%", 1, error=(key, ROW, "alpha_error"))),
            *((one, Cell((key, ROW, "beta", one), error=(key, ROW, "error", one))) for one in model),
            ("Explained", Cell((key, ROW, "r_squared"), "%", 0)),
            ("Days", Cell((key, ROW, "days"), decimals=0)),
        )
        if fitted:
            tables.append(make_table(titles[key], "Strategy", list(fitted), columns, marked=runs[0].name))
    if not tables:
        return None
    words: tuple[str, ...] = (
        "Regressions of net returns in excess of cash; ± is a standard error (Newey and West). The intercept, "
        "alpha, is what the factors do not explain, a year. It is evidence only where it is several errors from zero.",
        "An alpha over the index or the ETFs that equal weight has as well comes from the assets in the data, which "
        "may have been chosen with hindsight, and from dividends that the index omits.",
    )
    if "etfs" in models and not numbers["etfs"]:
        words += ("The ETFs have prices from 2014 to 2022: no window of this market has enough days of them.",)
    return Section("factors", "Exposure to factors", numbers, tuple(tables), words=words)
