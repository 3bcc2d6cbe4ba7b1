"""Columns that are no prices: gross returns, counters, constants, and prices that stand still."""

from __future__ import annotations

import numpy as np

from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.finding import Finding, log_moves

_FEWEST = 30  # bars, under which nothing is said of an asset's level
_AROUND_ONE = (0.5, 2.0)  # where all but one value in a hundred lie
_LEAST_DEVIATION = 4e-3  # of gross returns; a coin that is held at one moves by less
_PERSISTENT = 0.5  # autocorrelation of the level, which is near one for prices
_UNLIKELY = 1e-6  # chance, over all bars of an asset, of a run of unchanged prices


def with_plausible_levels(panel: MarketPanel) -> MarketPanel:
    """Return the panel; MarketError where every asset has gross returns, as `levels` finds them."""
    found = levels(panel)
    if len(found) == panel.n_assets:
        raise MarketError(f"asset {found[0].ticker!r} has {found[0].value}; {found[0].remedy}")
    return panel


def levels(panel: MarketPanel) -> list[Finding]:
    """Assets with gross returns: values around one, where one says nothing of the next; it may be a stablecoin."""
    findings = []
    for column, asset in enumerate(panel.assets):
        values = panel.close[panel.listed[:, column], column]
        if len(values) < _FEWEST or values.std() < _LEAST_DEVIATION:
            continue
        low, high = np.quantile(values, (0.01, 0.99))
        around = _AROUND_ONE[0] < low <= 1.0 <= high < _AROUND_ONE[1]
        if around and np.corrcoef(values[:-1], values[1:])[0, 1] < _PERSISTENT:
            value = f"gross returns, no prices: {values[0]:g}, {values[1]:g}, {values[2]:g}, ..."
            remedy = "multiply them up to prices, as (100 * table.cumprod()) does with pandas"
            findings.append(Finding("level", asset, str(panel.dates[-1]), value, remedy))
    return findings


def counters(panel: MarketPanel) -> list[Finding]:
    """Assets that never fall, and rise on half of the bars or more."""
    findings, moves = [], log_moves(panel)
    for column, asset in enumerate(panel.assets):
        own = moves[np.isfinite(moves[:, column]), column]
        if len(own) >= 2 * _FEWEST and own.min() >= 0.0 and (own > 0.0).mean() >= 0.5:
            remedy = "leave it out (market.tickers) if it counts, or compounds a rate; cash earns market.cash_rate"
            value = f"never falls in {len(own)} bars"
            findings.append(Finding("counter", asset, str(panel.dates[-1]), value, remedy))
    return findings


def standing_still(panel: MarketPanel) -> list[Finding]:
    """Assets without any move, and runs of unchanged prices that are too long for the asset's other bars."""
    findings, moves = [], log_moves(panel)
    for column, asset in enumerate(panel.assets):
        rows = np.flatnonzero(np.isfinite(moves[:, column]))
        still = moves[rows, column] == 0.0
        if len(rows) < _FEWEST:
            continue
        if still.all():
            remedy = "leave it out (market.tickers)"
            findings.append(Finding("constant", asset, str(panel.dates[-1]), "never moves", remedy))
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8))).reshape(-1, 2)
        if not len(edges):
            continue
        first, stop = edges[np.argmax(edges[:, 1] - edges[:, 0])]
        share = max(float((still.sum() - (stop - first)) / len(rows)), 0.05)
        if len(rows) * share ** (stop - first) < _UNLIKELY:
            value = f"the same price for {stop - first + 1} bars"
            remedy = "bring the prices up to date, or leave the bars without a price empty and set market.max_gap"
            findings.append(Finding("stale", asset, str(panel.dates[rows[first]]), value, remedy))
    return findings
