"""Remarks on the prices of a panel: dividends in cash, gaps, and jumps that look like splits not adjusted for."""

from __future__ import annotations

import numpy as np
import pandas as pd

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


def price_notes(panel: MarketPanel) -> list[str]:
    """Sentences on dividends in cash, on bars without a price of their own, and on jumps that look like splits."""
    notes = [_IN_CASH if panel.dividends is not None else "", describe_halts(panel)]
    if panel.provenance.get("source") in _USER_SOURCES:
        notes.append(describe_splits(panel))
    return [note for note in notes if note]


def describe_halts(panel: MarketPanel, since: int = 0) -> str:
    """One sentence that names the halts that reach the bar `since` or a later one, by date; empty where none does."""
    halts = []
    for column, asset in enumerate(panel.assets if panel.halted is not None else ()):
        bars = np.flatnonzero(np.asarray(panel.halted)[:, column])
        for run in np.split(bars, np.flatnonzero(np.diff(bars) > 1) + 1):
            if len(run) and run[-1] >= since:
                first, last = panel.dates[run[[0, -1]]]
                when = f"on {first}" if len(run) == 1 else f"from {first} to {last} ({len(run)} bars)"
                halts.append((first, f"{asset} {when}"))
    named = first_few([words for _, words in sorted(halts)], _SHOWN)
    return f"no price, held at the last one and not traded (market.max_gap): {named}" if halts else ""


def split_of(move: float, tolerance: float) -> float | None:
    """Split that explains a log return up to a tolerance: new shares for each old one; None where none does."""
    nearest = min(_SPLITS if move < 0.0 else _REVERSE, key=lambda number: abs(abs(move) - np.log(number)))
    if abs(abs(move) - np.log(nearest)) > tolerance:
        return None
    return nearest if move < 0.0 else 1.0 / nearest


def in_words(split: float) -> str:
    """Return a split as it is announced: 2 for 1, 3 for 2, 1 for 10."""
    return f"1 for {1.0 / split:g}" if split < 1.0 else "3 for 2" if split == 1.5 else f"{split:g} for 1"


def describe_splits(panel: MarketPanel) -> str:
    """One sentence that names jumps that look like splits, by date, and says what to do; empty where there are none.

    A jump counts where it is ten times the asset's usual move or more, leaves no more than a usual return once the
    split is taken out, and the rest of the market did not move with it. A stock may also halve on bad news.
    """
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0)
    usual = _NORMAL * pd.DataFrame(np.where(moves == 0.0, np.nan, np.abs(moves))).median().to_numpy()
    market = pd.DataFrame(moves).median(axis=1).to_numpy()
    rare = (np.abs(moves) >= _RARE * usual) & (np.abs(moves) > 0.3) & (np.abs(market) < _MARKET_MOVE)[:, None]
    named, remedy = [], ""
    for row, column in np.argwhere(rare):
        move, asset, day = float(moves[row, column]), panel.assets[column], panel.dates[row + 1]
        split = split_of(move, min(_OWN_MOVE * float(usual[column]), _OWN_MOVE_AT_MOST))
        if split is not None:
            named.append(f"{asset} on {day} (price times {np.exp(move):.3g}, as after a split of {in_words(split)})")
            remedy = remedy or f"divide the prices of {asset} before {day} by {split:g}"
    if not named:
        return ""
    return (
        f"jumps that look like splits the prices are not adjusted for: {first_few(named, _SHOWN)}. If it is a split, "
        f"{remedy} (or give an Adj Close); else the jump counts as a return"
    )
