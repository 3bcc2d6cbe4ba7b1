"""The five families of rules whose decisions the agent learns from before its online training.

Each family is what one expert is meant to become. Its variants differ in horizon, concentration and use of cash, as the
table `SETTINGS` says. A variant's targets are computed for every bar at once, so that thousands of episodes can be
collected by looking rows up. Row b uses bars <= b, lies on the simplex, and holds nothing that is not listed at b;
where there is not enough history it is equal weight over the listed assets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.config import LENSES
from finflow.market.bar_frequency import BARS_PER_YEAR, bars_per_month
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.market_features import market_drawdown, mean_correlation
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel

FAMILIES = LENSES
"""Names of the families, those of the five experts."""


class Setting(NamedTuple):
    """One variant of a family; the family's function says what concentration and cash mean for it.

    ``horizon``: daily bars looked back over; of monthly bars those of the same length in time, and twelve at least.
    """

    horizon: int
    concentration: float
    cash: float


SETTINGS: dict[str, tuple[Setting, ...]] = {
    name: tuple(map(Setting, *columns))
    for name, columns in {
        "volatility": (
            (21, 63, 63, 126, 126, 252),
            (1.0, 1.0, 2.0, 1.0, 3.0, 2.0),
            (0.00, 0.12, 0.00, 0.08, 0.16, 0.10),
        ),
        "correlation": ((63, 126, 126, 252, 252, 252), (0.5, 0.5, 0.8, 0.5, 0.8, 0.9), (0.0, 0.3, 0.0, 0.0, 0.5, 0.0)),
        "momentum": ((252, 252, 252, 126, 126, 63), (2.0, 5.0, 8.0, 4.0, 8.0, 6.0), (0.0, 0.5, 0.0, 0.0, 1.0, 0.0)),
        "defensive": ((126, 126, 252, 252, 252, 63), (1.0, 3.0, 1.0, 2.0, 4.0, 2.0), (0.3, 0.6, 0.8, 0.0, 0.4, 1.0)),
        "growth": ((126, 252, 252, 504, 504, 756), (1.0, 1.0, 2.0, 1.5, 3.0, 2.0), (0.0, 0.0, 1.0, 0.0, 0.5, 0.0)),
    }.items()
}
"""Variants of each family, from their horizons, concentrations and shares of cash."""

_PRIOR_YEARS = 3  # that the prior, the mean of all assets, counts as, against an asset's sample mean (growth)
_DEEP = 0.2  # log drawdown of the market at which a defensive variant is fully in its cash


def family_tables(panel: MarketPanel, family: str) -> FloatArray:
    """Target weights of every variant of one of `FAMILIES` at every bar of the market, float64 (variants, bars, K).

    They lie on the simplex, cash last; variants are in the order of `SETTINGS[family]`.
    """
    view = PanelView(panel)
    listed = view.listed
    count = listed.sum(axis=1, keepdims=True)
    equal_weight = np.hstack([listed / np.maximum(count, 1), (count == 0).astype(np.float64)])
    tables = []
    for setting in SETTINGS[family]:
        bars = max(round(setting.horizon * panel.bars_per_year / BARS_PER_YEAR), min(setting.horizon, 12))
        tables.append(_complete(_RULES[family](view, setting._replace(horizon=bars)), listed, equal_weight))
    return np.stack(tables)


def _volatility(view: PanelView, setting: Setting) -> FloatArray:
    """Weights proportional to volatility ** -concentration, diluted with cash to an annual volatility of `cash`.

    The portfolio's volatility is taken as sqrt((1 - c) sum (w s)^2 + c (sum w s)^2), c the mean pair correlation over
    63 bars. `cash` 0 means no target: fully invested (Moreira and Muir 2017).
    """
    spread = view.spread(setting.horizon)
    weights = _normalised(np.power(spread, -setting.concentration))
    if setting.cash == 0.0:
        return weights
    shared = np.clip(mean_correlation(view), 0.0, 1.0)[:, None]
    risk = np.nan_to_num(weights * spread)
    separate, joint = (risk * risk).sum(axis=1, keepdims=True), risk.sum(axis=1, keepdims=True) ** 2
    annual = np.sqrt(((1.0 - shared) * separate + shared * joint) * view.panel.bars_per_year)
    return np.asarray(weights * np.minimum(1.0, setting.cash / np.maximum(annual, 1e-6)))


def _correlation(view: PanelView, setting: Setting) -> FloatArray:
    """The most diversified portfolio, C^-1 1 / s (Choueifaty and Coignard 2008), re-estimated every month.

    C is the sample correlation over the horizon with weight `concentration`, the rest the identity. Short positions are
    cut to zero. Of the portfolio, up to the share `cash` is held in cash as the mean correlation rises from 0.2 to 0.7.
    """
    returns, window = view.returns, setting.horizon
    bars, n_assets = returns.shape
    every = bars_per_month(view.panel.bars_per_year)
    refits = np.arange(-(-window // every) * every, bars, every)
    estimate = np.full((bars, n_assets), np.nan)
    chunk = max(1, 4_000_000 // (n_assets * max(n_assets, window)))
    for first in range(0, len(refits), chunk):
        rows = refits[first : first + chunk]
        sample = returns[rows[:, None] - np.arange(window)[::-1]]
        known = np.isfinite(sample).all(axis=1) & view.listed[rows]
        sample = np.where(known[:, None, :], sample, 0.0)
        sample = sample - sample.mean(axis=1, keepdims=True)
        spread = np.maximum(np.sqrt((sample * sample).mean(axis=1)), 1e-4)
        standard = sample / spread[:, None, :]
        together = setting.concentration * (np.swapaxes(standard, 1, 2) @ standard) / window
        together[:, np.arange(n_assets), np.arange(n_assets)] = 1.0
        # An unknown asset has no correlations and a zero on the right: it gets no weight and disturbs no other.
        solution = np.linalg.solve(together, known[:, :, None].astype(np.float64))[:, :, 0]
        estimate[rows] = np.where(known, np.maximum(solution, 0.0) / spread, np.nan)
    latest = np.arange(bars) // every * every
    weights = _normalised(np.where(view.listed, estimate[latest], np.nan))
    crowded = np.nan_to_num(np.clip((mean_correlation(view) - 0.2) / 0.5, 0.0, 1.0))
    return weights * (1.0 - setting.cash * crowded[:, None])


def _momentum(view: PanelView, setting: Setting) -> FloatArray:
    """Softmax of concentration times the rank of past return; of a falling asset's weight the share `cash` is in cash.

    Past return over the horizon, its last month left out for half a year and more (Jegadeesh and Titman 1993). The
    filter is time-series momentum (Moskowitz, Ooi and Pedersen 2012).
    """
    past = view.change(setting.horizon)
    year = view.panel.bars_per_year
    if 2 * setting.horizon >= year:
        past = past - view.change(bars_per_month(year))
    weights = _softmax(setting.concentration * rolling.percentile_rank(past))
    return np.where(past < 0.0, weights * (1.0 - setting.cash), weights)


def _defensive(view: PanelView, setting: Setting) -> FloatArray:
    """Softmax of concentration times the mean rank of low beta, low volatility and small drawdown over the horizon.

    Of the portfolio, up to the share `cash` is in cash as the market falls to a fifth (in logs) under its year's high
    (Frazzini and Pedersen 2014 for the low beta).
    """
    beta = rolling.percentile_rank(view.beta(setting.horizon))
    volatility = rolling.percentile_rank(view.spread(setting.horizon))
    depth = rolling.percentile_rank(rolling.maximum(view.path, setting.horizon) - view.path)
    weights = _softmax(-setting.concentration * (beta + volatility + depth) / 3.0)
    stress = np.nan_to_num(np.clip(-market_drawdown(view) / _DEEP, 0.0, 1.0))
    return weights * (1.0 - setting.cash * stress[:, None])


def _growth(view: PanelView, setting: Setting) -> FloatArray:
    """Softmax of concentration times the standardised expected growth: shrunk mean less half the variance.

    The mean is h / (h + 756), 756 being three years, of the sample mean over h bars and the rest that of all assets
    (James and Stein 1961, with a fixed intensity). Of the weight of an asset with negative expected growth the share
    `cash` is in cash.
    """
    variance = view.spread(setting.horizon) ** 2
    mean = rolling.mean(view.returns, setting.horizon) + variance / 2.0
    weight = setting.horizon / (setting.horizon + _PRIOR_YEARS * view.panel.bars_per_year)
    shared, _ = _across(mean)
    growth = weight * mean + (1.0 - weight) * shared - variance / 2.0
    center, spread = _across(growth)
    weights = _softmax(setting.concentration * (growth - center) / np.maximum(spread, 1e-8))
    return np.where(growth < 0.0, weights * (1.0 - setting.cash), weights)


_RULES: dict[str, Callable[[PanelView, Setting], FloatArray]] = {
    "volatility": _volatility,
    "correlation": _correlation,
    "momentum": _momentum,
    "defensive": _defensive,
    "growth": _growth,
}


def _across(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation over the known assets of each row, shapes (bars, 1); 0 where none is known."""
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    center = np.where(known, values, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.where(known, values - center, 0.0)
    return center, np.sqrt((deviation * deviation).sum(axis=1, keepdims=True) / count)


def _normalised(values: FloatArray) -> FloatArray:
    """Each row over its sum, unknown ones as NaN; a row that sums to nothing is all NaN."""
    total = np.nansum(values, axis=1, keepdims=True)
    return values / np.where(total > 0.0, total, np.nan)


def _softmax(scores: FloatArray) -> FloatArray:
    """Softmax over the known assets of each row; unknown ones stay NaN."""
    top = np.where(np.isfinite(scores), scores, -np.inf).max(axis=1, keepdims=True)
    return _normalised(np.exp(scores - np.where(np.isfinite(top), top, 0.0)))


def _complete(weights: FloatArray, listed: BoolArray, fallback: FloatArray) -> FloatArray:
    """Weights (NaN = unknown) with cash appended; the fallback in rows where under two assets are known."""
    known = np.isfinite(weights) & listed
    risky = np.where(known, np.maximum(weights, 0.0), 0.0)
    risky = risky / np.maximum(risky.sum(axis=1, keepdims=True), 1.0)
    cash = 1.0 - risky.sum(axis=1, keepdims=True)
    cash = np.where(cash < 1e-12, 0.0, cash)  # what rounding leaves is not cash
    return np.where(known.sum(axis=1, keepdims=True) >= 2, np.hstack([risky, cash]), fallback)
