"""Tables of prices made ready for a panel: held over short gaps, and with dividends paid in cash reinvested.

Where dividends are paid in cash, features and rules read prices with dividends reinvested, on which an ex-date is no
fall. What is held drifts with the same growth, and the yields at the ex-dates say how much of it the ledger pays out
in cash (`finflow.ledger.accounting.drift`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finflow.arrays import BoolArray, DateArray, FloatArray
from finflow.market.panel import MarketPanel
from finflow.market.panel_checks import PriceTable

PriceTables = dict[str, pd.DataFrame]
"""Field name ("close" always, "open", "high", "low", "volume", "dividends" perhaps) -> frame of dates by assets."""

_PRICES = ("close", "open", "high", "low")


class SourcePrices(NamedTuple):
    """Prices as a source has them."""

    tables: PriceTables
    facts: dict[str, Any]  # origin and adjustments, for the provenance
    names: Sequence[str] = ()  # every asset there is; those of the closes where empty
    benchmark: str | None = None  # column of the index, unless `market.benchmark` names another
    cash: FloatArray | None = None  # (bars,): what cash earned by the source itself, first 0


def hold_over_gaps(fields: Mapping[str, FloatArray], max_gap: int) -> tuple[dict[str, FloatArray], BoolArray]:
    """Carry the last price of each asset forward over bars that lack one.

    Filling goes forward only, and over the bars after an asset's very last price as well: at the time, nobody knows
    whether an asset without a price is halted or has ended. So an asset counts as ended once `max_gap` bars have passed
    without a price, and a table that is cut at a bar is filled as the whole table is up to that bar. A longer gap is
    left from its first bar on.

    Returns
    -------
    fields : dict
        Open, high and low of a filled bar are its close, and its volume is 0; (bars, assets) each.
    halted : bool of shape (bars, assets)
        Bars that were filled.
    """
    close = fields["close"]
    if max_gap <= 0:
        return dict(fields), np.zeros(close.shape, dtype=np.bool_)
    priced = ~np.isnan(close)
    rows = np.arange(len(close))[:, None]
    last = np.maximum.accumulate(np.where(priced, rows, -1), axis=0)
    upcoming = np.minimum.accumulate(np.where(priced, rows, 2 * len(close))[::-1], axis=0)[::-1]
    ended = upcoming > len(close)
    fits = ended | (upcoming - last - 1 <= max_gap)  # a hole that is too long stays one, for the panel to refuse
    halted = ~priced & (last >= 0) & (rows - last <= max_gap) & fits
    carried = np.take_along_axis(close, np.maximum(last, 0), axis=0)
    filled = {name: np.where(halted, 0.0 if name == "volume" else carried, table) for name, table in fields.items()}
    return filled, halted


def reinvest(
    fields: Mapping[str, FloatArray], dividends: FloatArray, dates: DateArray, assets: Sequence[str]
) -> dict[str, FloatArray]:
    """Reinvest dividends at the close of their ex-dates, and return the original closes and the yields with the result.

    With p the close and d the dividend of a bar, the growth over it is ``(p_t + d_t) / p_{t-1}``, the total return of
    CRSP. Prices are scaled forward, from 1 at the first bar, so that no later dividend changes a price or its hash.

    Parameters
    ----------
    fields : mapping of str to float64 of shape (bars, assets)
        ``close`` and perhaps ``open``, ``high``, ``low`` and ``volume``, adjusted for splits and not for dividends.
    dividends : float64 of shape (bars, assets)
        In money a share, in the units of the closes, at the ex-dates; 0 or NaN elsewhere.

    Returns
    -------
    dict
        The fields, their prices with dividends reinvested; ``quoted``, the closes as they were; ``dividends``, the
        yields ``d_t / p_t``.
    """
    close = fields["close"]
    listed = np.isfinite(close)
    paid = np.where(np.isnan(dividends), 0.0, dividends)
    PriceTable(dates, tuple(assets), close).check_dividends(paid)
    with np.errstate(invalid="ignore"):
        yields = np.where(listed, paid / close, 0.0)
    level = np.cumprod(1.0 + yields, axis=0)
    scaled = {name: table * level if name in _PRICES else table for name, table in fields.items()}
    return {**scaled, "quoted": close, "dividends": np.where(listed, yields, np.nan)}


def as_traded(panel: MarketPanel) -> dict[str, FloatArray]:
    """Prices of a panel as shares traded at them, and dividends in money a share: what `reinvest` was given."""
    tables = {name: getattr(panel, name) for name in (*_PRICES, "volume") if getattr(panel, name) is not None}
    if panel.quoted is None or panel.dividends is None:
        return tables
    level = panel.quoted / panel.close
    prices = {name: panel.quoted if name == "close" else table * level for name, table in tables.items()}
    if panel.volume is not None:
        prices["volume"] = panel.volume
    return {**prices, "dividends": panel.dividends * panel.quoted}
