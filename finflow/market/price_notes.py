"""Remarks on the prices of a panel: dividends in cash, gaps, and jumps that look like splits not adjusted for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.errors import first_few
from finflow.market.panel import MarketPanel

#: New shares for each old one. Ratios under 2 are rare among reverse splits and common among rallies.
_SPLITS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0)
_REVERSE = tuple(number for number in _SPLITS if number >= 2.0)
#: A move that an asset makes about once in a lifetime: in deviations by the median of its absolute moves.
_RARE = 10.0
#: How far the return of the day itself may lie from none, in deviations, and in log return at most.
_OWN_MOVE, _OWN_MOVE_AT_MOST = 2.0, 0.05
_MARKET_MOVE = 0.1  # a day on which the median asset moved by more is a crash or a boom
_NORMAL = 1.4826  # deviation of a normal variable over the median of its absolute values
_SHOWN = 5
#: Sources whose prices are a user's; the jumps of the others are known.
_USER_SOURCES = ("csv", "parquet", "yfinance")

_IN_CASH = (
    "dividends are held as cash (market.dividends): paid at the ex-date to who held the asset before it, and invested "
    "again only as far as the strategy does so; features read prices with dividends reinvested"
)


class SplitSuspect(NamedTuple):
    """A jump that looks like a split."""

    asset: str
    date: str  # first bar at the new level
    ratio: float  # price over the last price
    split: float  # new shares for each old one; under 1 for a reverse split

    def __str__(self) -> str:
        return f"{self.asset} on {self.date} (price times {self.ratio:.3g}, as after a split of {in_words(self.split)})"


class Halt(NamedTuple):
    """Consecutive bars, from one date to another, at which an asset was held at its last price."""

    asset: str
    first: str
    last: str
    bars: int

    def __str__(self) -> str:
        when = f"on {self.first}" if self.bars == 1 else f"from {self.first} to {self.last} ({self.bars} bars)"
        return f"{self.asset} {when}"


def find_halts(panel: MarketPanel, since: int = 0) -> list[Halt]:
    """List the halts of a panel that reach the bar `since` or a later one, by date."""
    if panel.halted is None:
        return []
    halts = []
    for column, asset in enumerate(panel.assets):
        bars = np.flatnonzero(panel.halted[:, column])
        for run in np.split(bars, np.flatnonzero(np.diff(bars) > 1) + 1):
            if len(run) and run[-1] >= since:
                halts.append(Halt(asset, str(panel.dates[run[0]]), str(panel.dates[run[-1]]), len(run)))
    return sorted(halts, key=lambda halt: (halt.first, halt.asset))


def describe_halts(halts: Sequence[Halt]) -> str:
    """One sentence that names the halts, the first of them in full; empty where there are none."""
    if not halts:
        return ""
    named = first_few([str(halt) for halt in halts], _SHOWN)
    return f"no price, held at the last one and not traded (market.max_gap): {named}"


def in_words(split: float) -> str:
    """Return a split as it is announced: 2 for 1, 3 for 2, 1 for 10."""
    if split < 1.0:
        return f"1 for {1.0 / split:g}"
    return "3 for 2" if split == 1.5 else f"{split:g} for 1"


def split_of(move: float, tolerance: float) -> float | None:
    """Split that explains a log return up to a tolerance: new shares for each old one; None where none does."""
    known = _SPLITS if move < 0.0 else _REVERSE
    nearest = min(known, key=lambda number: abs(abs(move) - np.log(number)))
    if abs(abs(move) - np.log(nearest)) > tolerance:
        return None
    return nearest if move < 0.0 else 1.0 / nearest


def price_notes(panel: MarketPanel) -> list[str]:
    """Sentences on dividends in cash, on bars without a price of their own, and on jumps that look like splits."""
    notes = [_IN_CASH if panel.dividends is not None else "", describe_halts(find_halts(panel))]
    if panel.provenance.get("source") in _USER_SOURCES:
        notes.append(describe_suspects(find_split_suspects(panel)))
    return [note for note in notes if note]


def find_split_suspects(panel: MarketPanel) -> list[SplitSuspect]:
    """List jumps that look like splits, by date; a stock may also halve on bad news.

    A jump counts where it is ten times the asset's usual move or more, leaves no more than a usual return once the
    split is taken out, and the rest of the market did not move with it.
    """
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0)
    usual = _NORMAL * _median(np.where(moves == 0.0, np.nan, np.abs(moves)).T)
    market = _median(moves)
    with np.errstate(invalid="ignore"):
        rare = (np.abs(moves) >= _RARE * usual) & (np.abs(moves) > 0.3) & (np.abs(market) < _MARKET_MOVE)[:, None]
    found = []
    for row, column in np.argwhere(rare):
        move = float(moves[row, column])
        split = split_of(move, min(_OWN_MOVE * float(usual[column]), _OWN_MOVE_AT_MOST))
        if split is not None:
            day = str(panel.dates[row + 1])
            found.append(SplitSuspect(panel.assets[column], day, float(np.exp(move)), split))
    return found


def describe_suspects(suspects: Sequence[SplitSuspect]) -> str:
    """One sentence that names the jumps and says what to do; empty where there are none."""
    if not suspects:
        return ""
    named = first_few([str(suspect) for suspect in suspects], _SHOWN)
    before = suspects[0]
    return (
        f"jumps that look like splits the prices are not adjusted for: {named}. If it is a split, divide the "
        f"prices of {before.asset} before {before.date} by {before.split:g} (or give an Adj Close); else the jump "
        "counts as a return"
    )


def _median(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([np.median(known) if (known := row[np.isfinite(row)]).size else np.nan for row in rows])
