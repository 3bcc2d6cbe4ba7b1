"""Other futures: a panel that is the same up to a bar, and something else after it.

Information up to the bar is the same in both, so an answer at or before the bar that differs uses later bars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from finflow.arrays import DateArray, FloatArray
from finflow.market.panel import MarketPanel

Shock = Callable[[MarketPanel, int, np.random.Generator], MarketPanel]

REPEAT, CUT = "repeat", "cut"
UNPRIMED = "unprimed"
"""The future is `replaced`, and nothing else was asked before."""
_VIOLENCE = 0.05
"""Deviation of a daily log return in a synthetic future: every day is a day to react to."""
_JUMP = (0.1, 0.7)
"""Size of the first of those returns."""
_DIVIDEND = 1e-3
"""Dividend yield of every bar of another future, beyond three times the real one."""
_WEEK = 5


def shocked(panel: MarketPanel, kind: str, last: int, seed: int) -> MarketPanel:
    """The panel with another future after the bar `last`; kind (a key of `SHOCKS`), bar and seed decide it."""
    rng = np.random.default_rng([seed, last, sorted(SHOCKS).index(kind)])
    other = SHOCKS[kind](panel, last, rng)
    # words alone: a number may have been made from what came later
    words = {name: value for name, value in panel.provenance.items() if isinstance(value, str)}
    return other if kind == REPEAT else replace(other, provenance=words)


def _rescaled(panel: MarketPanel, last: int, rng: np.random.Generator) -> MarketPanel:
    """Every later price times a factor of its asset, up or down by half or so; volume and cash likewise."""
    factor = np.exp(0.5 * rng.standard_normal(panel.n_assets))
    return _scaled(panel, last, factor, float(np.exp(0.5 * rng.standard_normal())), float(rng.uniform(2.0, 20.0)))


def _nudged(panel: MarketPanel, last: int, rng: np.random.Generator) -> MarketPanel:
    noise = 1.0 + 1e-3 * rng.standard_normal(panel.close[last + 1 :].shape)
    index = 1.0 + 1e-3 * rng.standard_normal(len(noise))
    return _scaled(panel, last, noise, index, 1.0 + 1e-3 * rng.random(noise.shape))


def _replaced(panel: MarketPanel, last: int, rng: np.random.Generator) -> MarketPanel:
    """Wild random walks in place of every later price, range, volume and interest."""
    bars, n_assets = panel.n_bars - last - 1, panel.n_assets
    moves = _VIOLENCE * rng.standard_normal((bars, n_assets))
    # A leak that shows on wild days alone must see one at once, up or down.
    moves[:1] = rng.choice([-1.0, 1.0], n_assets) * rng.uniform(*_JUMP, n_assets)
    close = _walk(panel, last, moves)
    opened, above, below = close * np.exp(0.02 * rng.standard_normal((3, *close.shape)))
    fields = {"close": close, "open": opened, "high": np.fmax(close, opened), "low": np.fmin(close, opened)}
    fields["high"], fields["low"] = np.fmax(fields["high"], above), np.fmin(fields["low"], below)
    fields["volume"] = np.where(np.isfinite(close), np.exp(rng.normal(13.0, 2.0, close.shape)), np.nan)
    index = 1.0 if panel.benchmark is None else panel.benchmark[last]
    fields["benchmark"] = index * np.exp(np.cumsum(_VIOLENCE * rng.standard_normal(bars)))
    other = _with_future(panel, last, cash_returns=1e-3 * rng.random(bars), **fields)
    return replace(other, dates=_other_days(panel, last, rng))


def _shuffled(panel: MarketPanel, last: int, rng: np.random.Generator) -> MarketPanel:
    """The later bars in another order: the same moves, ranges, volumes and interest on other days."""
    start, fields = last + 1, _later(panel, last)
    order = rng.permutation(panel.n_bars - start)
    moves, close = np.log(panel.close[start:] / panel.close[last:-1]), fields.pop("close")
    fields = {name: rows if name == "volume" else rows / close for name, rows in fields.items()}
    arrays = [(moves, np.isfinite(moves)), *((rows, panel.listed[start:]) for rows in fields.values())]
    for column in range(panel.n_assets):
        for array, known in arrays:
            rows = np.flatnonzero(known[:, column])
            array[rows, column] = array[order[np.isin(order, rows)], column]
    close = _walk(panel, last, moves)
    fields = {name: rows if name == "volume" else rows * close for name, rows in fields.items()}
    if panel.benchmark is not None:
        index = np.log(panel.benchmark[start:] / panel.benchmark[last:-1])
        fields["benchmark"] = panel.benchmark[last] * np.exp(np.cumsum(index[order]))
    other = _with_future(panel, last, close=close, cash_returns=panel.cash_returns[start:][order], **fields)
    return replace(other, dates=_other_days(panel, last, rng))


def _relisted(panel: MarketPanel, last: int, rng: np.random.Generator) -> MarketPanel:
    """Other listings: a third of the assets ends at the bar, and every one that never had a price lists after it."""
    listed = np.flatnonzero(panel.listed[last])
    ending = rng.permutation(listed)[: min(-(-len(listed) // 3), max(len(listed) - 2, 0))]
    coming = np.flatnonzero(~panel.listed[: last + 1].any(axis=0))
    walk = 50.0 * np.exp(np.cumsum(0.02 * rng.standard_normal((panel.n_bars - last - 1, len(coming))), axis=0))
    fields = _later(panel, last)
    for name, array in fields.items():
        array[:, coming] = 1e6 if name == "volume" else walk
        array[:, ending] = np.nan
    return _with_future(panel, last, **fields)


SHOCKS: dict[str, Shock] = {
    REPEAT: lambda panel, last, rng: replace(panel),
    CUT: lambda panel, last, rng: panel.until(last + 1),
    "replaced": _replaced,
    "rescaled": _rescaled,
    "relisted": _relisted,
    "shuffled": _shuffled,
    # half of everything is lost in a bar, in twentyfold volume; or everything doubles, and trade dries up
    "crash": lambda panel, last, rng: _scaled(panel, last, np.full(panel.n_assets, 0.5), 0.5, 20.0),
    "boom": lambda panel, last, rng: _scaled(panel, last, np.full(panel.n_assets, 2.0), 2.0, 0.05),
    "nudged": _nudged,
}
"""Kind -> what it does to the bars after `last`."""


def _other_days(panel: MarketPanel, last: int, rng: np.random.Generator) -> DateArray:
    """Dates with the gaps of every five in another order. The first stays, so that no bar enters an earlier window."""
    steps = np.diff(panel.dates)
    for start in range(last + 1, len(steps), _WEEK):
        rng.shuffle(steps[start : start + _WEEK])
    return np.concatenate([panel.dates[:1], panel.dates[0] + np.cumsum(steps)])


def _walk(panel: MarketPanel, last: int, moves: FloatArray) -> FloatArray:
    """Prices from log returns, on the panel's own listings: from the last price, or from the first of a later one."""
    listed = panel.listed[last + 1 :]
    first = np.argmax(listed, axis=0)
    start = panel.close[last + 1 :][first, np.arange(panel.n_assets)]
    start = np.where(panel.listed[last], panel.close[last], start)
    path = np.exp(np.cumsum(np.where(np.isfinite(moves), moves, 0.0), axis=0))
    return np.where(listed, start * path, np.nan)


def _scaled(
    panel: MarketPanel, last: int, prices: FloatArray, index: float | FloatArray, volume: float | FloatArray
) -> MarketPanel:
    """Later prices, index and volume times factors; cash earns half as much again, and a basis point."""
    factors = {"volume": volume, "benchmark": index}
    fields = {name: rows * factors.get(name, prices) for name, rows in _later(panel, last, "benchmark").items()}
    return _with_future(panel, last, cash_returns=1.5 * panel.cash_returns[last + 1 :] + 1e-4, **fields)


def _later(panel: MarketPanel, last: int, *more: str) -> dict[str, FloatArray]:
    """Copies of the later rows of prices and volumes, and of ``more`` fields, as far as there are any."""
    names = ("close", "open", "high", "low", "volume", *more)
    return {name: array[last + 1 :].copy() for name in names if (array := getattr(panel, name)) is not None}


def _with_future(panel: MarketPanel, last: int, **fields: FloatArray) -> MarketPanel:
    """The panel with later rows of the fields that it has."""
    if panel.dividends is not None:
        close, paid = fields.get("close", panel.close[last + 1 :]), panel.dividends[last + 1 :]
        fields["dividends"] = np.where(np.isfinite(close), 3.0 * np.nan_to_num(paid) + _DIVIDEND, np.nan)
        fields["quoted"] = close
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(panel, name)[: last + 1], future])
        for name, future in fields.items()
        if getattr(panel, name) is not None
    }
    return replace(panel, **arrays)
