"""Remarks on the prices of a panel, for the terminal and the report."""

from __future__ import annotations

from finflow.market.panel import MarketPanel
from finflow.market.price_gaps import describe_halts, find_halts
from finflow.market.split_suspects import describe_suspects, find_split_suspects

__all__ = ["price_notes"]

#: Sources whose prices are the user's own; the jumps of the others are known.
_OWN_SOURCES = ("csv", "parquet", "yfinance")


def price_notes(panel: MarketPanel) -> list[str]:
    """Sentences that name the bars without a price of their own, and jumps that look like splits.

    Parameters
    ----------
    panel : MarketPanel

    Returns
    -------
    list of str
        Empty where there is nothing to say.
    """
    notes = [describe_halts(find_halts(panel))]
    if panel.provenance.get("source") in _OWN_SOURCES:
        notes.append(describe_suspects(find_split_suspects(panel)))
    return [note for note in notes if note]
