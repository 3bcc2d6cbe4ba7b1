"""Dividends paid in cash: prices with dividends reinvested, and the yields at the ex-dates, from a table of both.

Features and rules read prices with dividends reinvested, on which an ex-date is no fall. What is held drifts with the
same growth, and the yields say how much of it the ledger pays out in cash (`finflow.ledger.accounting.pay_dividends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from finflow.errors import MarketError
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]
DateArray = NDArray[np.datetime64]

_PRICES = ("close", "open", "high", "low")


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
    wrong = np.argwhere((paid < 0.0) | np.isinf(paid))
    if len(wrong):
        row, column = wrong[0]
        raise MarketError(
            f"asset {assets[column]!r} has a dividend of {paid[row, column]:g} on {dates[row]}; correct it"
        )
    lost = np.argwhere((paid > 0.0) & ~listed & np.logical_or.accumulate(listed, axis=0))
    if len(lost):
        row, column = lost[0]
        raise MarketError(
            f"asset {assets[column]!r} has a dividend of {paid[row, column]:g} on {dates[row]} and no price on that "
            "day or after it; enter it on the last day with a price"
        )
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
