"""Universes by name: tickers that `--universe NAME` stands for."""

from __future__ import annotations

from collections.abc import Mapping

# fmt: off
UNIVERSES: Mapping[str, tuple[str, ...]] = {
    "dow30": (
        "AAPL", "AMGN", "AMZN", "AXP", "BA", "CAT", "CRM", "CSCO", "CVX", "DIS",
        "GS", "HD", "HON", "IBM", "JNJ", "JPM", "KO", "MCD", "MMM", "MRK",
        "MSFT", "NKE", "NVDA", "PG", "SHW", "TRV", "UNH", "V", "VZ", "WMT",
    ),
    "sectors": ("XLB", "XLC", "XLE", "XLF", "XLI", "XLK", "XLP", "XLRE", "XLU", "XLV", "XLY"),
}
# fmt: on
"""`dow30`: the Dow Jones Industrial Average as of 8 November 2024. Its members were chosen with hindsight, and some
list late (CRM 2004, V 2008). `sectors`: the Select Sector SPDR funds; XLRE lists in October 2015, XLC in June 2018."""
