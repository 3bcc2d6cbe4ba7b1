"""Bars at which a listed asset has no price of its own: held at the last price, and not traded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.errors import first_few
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_SHOWN = 5


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
    halted = np.zeros(close.shape, dtype=np.bool_)
    if max_gap <= 0:
        return dict(fields), halted
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
