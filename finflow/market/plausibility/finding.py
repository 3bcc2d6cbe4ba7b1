"""Findings about prices, and the moves and levels that the checks read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from finflow.arrays import FloatArray
from finflow.errors import first_few
from finflow.market.panel import MarketPanel

_NORMAL = 1.4826  # deviation of a normal variable over the median of its absolute values


class Finding(NamedTuple):
    """Result of a check: assets, the first date, the value that shows it, and the remedy."""

    check: str
    ticker: str
    date: str
    value: str
    remedy: str


def log_moves(panel: MarketPanel) -> FloatArray:
    """Log returns of the closes, (bars - 1, assets); NaN where an asset is not listed or is held at its last price."""
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0)
    return moves if panel.halted is None else np.where(panel.halted[1:] & panel.listed[:-1], np.nan, moves)


def usual_move(moves: FloatArray) -> FloatArray:
    """Deviation of each asset's moves other than 0, by their median size, (assets,); NaN where it never moves."""
    sizes = np.where(moves == 0.0, np.nan, np.abs(moves))
    rows = [column[np.isfinite(column)] for column in sizes.T]
    return np.array([_NORMAL * np.median(row) if len(row) else np.nan for row in rows])


def in_table(findings: Sequence[Finding], most: int = 12) -> list[str]:
    """Lines of one table with a column for each part of a finding, and the remedies below it."""
    rows = [("prices to look at", "ticker", "date", "value"), *(finding[:4] for finding in findings[:most])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    remedies = dict.fromkeys(f"{finding.check}: {finding.remedy}" for finding in findings[:most])
    more = [f"and {len(findings) - most} more; --mode inspect PATH shows all"] if len(findings) > most else []
    return [*lines, *more, *remedies] if findings else []


def in_sentence(findings: Sequence[Finding], most: int = 5) -> str:
    """One sentence for a list of notes; empty without findings."""
    named = [f"{one.check}: {one.ticker} on {one.date} ({one.value}; {one.remedy})" for one in findings]
    return f"prices to look at: {first_few(named, most)}" if findings else ""
