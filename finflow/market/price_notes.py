"""Remarks on the prices of a panel, for the terminal and the report."""

from __future__ import annotations

from finflow.market.panel import MarketPanel
from finflow.market.price_gaps import describe_halts, find_halts
from finflow.market.split_suspects import describe_suspects, find_split_suspects

#: Sources whose prices are a user's; the jumps of the others are known.
_USER_SOURCES = ("csv", "parquet", "yfinance")

_IN_CASH = (
    "dividends are held as cash (market.dividends): paid at the ex-date to who held the asset before it, and invested "
    "again only as far as the strategy does so; features read prices with dividends reinvested"
)


def price_notes(panel: MarketPanel) -> list[str]:
    """Sentences on dividends in cash, on bars without a price of their own, and on jumps that look like splits.

    Returns
    -------
    list of str
        Empty where there is nothing to say.
    """
    notes = [_IN_CASH if panel.dividends is not None else "", describe_halts(find_halts(panel))]
    if panel.provenance.get("source") in _USER_SOURCES:
        notes.append(describe_suspects(find_split_suspects(panel)))
    return [note for note in notes if note]
