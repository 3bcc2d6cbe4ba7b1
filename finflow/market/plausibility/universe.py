"""Assets and dates that do not belong together: doubles, the index itself, other calendars, missing rows."""

from __future__ import annotations

import re

import numpy as np

from finflow.errors import first_few
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.finding import Finding, log_moves

_SAME = 0.9999  # correlation of the returns of one asset under two names
_INDEX = 0.995  # correlation of an index with the mean of the other assets
_NAMED_INDEX = 0.7  # the same for an asset that has the name of one
_INDEX_NAME = re.compile(r"\^.*|.*bench.*|.*index.*|idx|mkt|market|spx|s&?p ?_?500.*|ndx|djia?|msci .+", re.IGNORECASE)
_FEWEST = 30
_STEPS, _DAYS = 3.5, 15  # usual steps, and calendar days, beyond which rows are missing between two dates
_SHOWN = 5


def doubles(panel: MarketPanel) -> list[Finding]:
    """Assets whose returns are those of another one."""
    moves = np.nan_to_num(log_moves(panel))
    norms = np.sqrt((moves**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.triu((moves.T @ moves) / np.outer(norms, norms) > _SAME, 1) & (len(moves) >= _FEWEST)
    last, remedy = str(panel.dates[-1]), "leave one of them out (market.tickers)"
    names = [(panel.assets[one], panel.assets[other]) for one, other in np.argwhere(alike)]
    return [Finding("double", other, last, f"moves as {one} does", remedy) for one, other in names]


def indices(panel: MarketPanel) -> list[Finding]:
    """Assets that move as the mean of all others does: the index that they belong to."""
    findings, moves = [], np.nan_to_num(log_moves(panel))
    if panel.n_assets < 3 or len(moves) < _FEWEST:
        return []
    for column, asset in enumerate(panel.assets):
        own, others = moves[:, column], np.delete(moves, column, axis=1).mean(axis=1)
        spread = float(own.std() * others.std())
        alike = float(((own - own.mean()) * (others - others.mean())).mean()) / spread if spread > 0.0 else 0.0
        if alike > (_NAMED_INDEX if _INDEX_NAME.fullmatch(asset) else _INDEX):
            value = f"correlation {alike:.3f} with the mean of the others"
            remedy = f"compare with it and never hold it: market.benchmark={asset}"
            findings.append(Finding("index", asset, str(panel.dates[-1]), value, remedy))
    return findings


def calendars(panel: MarketPanel) -> list[Finding]:
    """Assets that never move on Saturdays and Sundays, beside assets that do."""
    moves = log_moves(panel)
    weekend = (panel.dates[1:].astype(np.int64) + 3) % 7 >= 5  # 1970-01-01 was a Thursday
    if weekend.sum() < 8:
        return []
    listed = panel.listed[1:][weekend].sum(axis=0)
    shares = ((np.nan_to_num(moves[weekend]) != 0.0).sum(axis=0) / np.maximum(listed, 1)).tolist()
    closed = [name for name, share, bars in zip(panel.assets, shares, listed, strict=True) if bars and share < 0.05]
    if not closed or max(shares) < 0.5:
        return []
    first, value = panel.dates[1:][weekend][0], f"no move at weekends, as {panel.assets[shares.index(max(shares))]} has"
    remedy = f"leave their cells of those days empty, and keep the dates of {closed[0]} by market.align={closed[0]}"
    return [Finding("calendars", first_few(closed, _SHOWN), str(first), value, remedy)]


def gaps(panel: MarketPanel) -> list[Finding]:
    """Steps between dates far beyond the usual one, and half of the assets ending on one date before the last."""
    steps = np.diff(panel.dates.astype(np.int64))
    wide = np.flatnonzero(steps > max(_DAYS, int(_STEPS * float(np.median(steps)))))
    findings, remedy = [], "add the missing rows, or set market.start after them"
    for row in wide[:_SHOWN]:
        value = f"no row for {steps[row]} days, until {panel.dates[row + 1]}"
        findings.append(Finding("gap", "all", str(panel.dates[row]), value, remedy))
    lasts = panel.n_bars - 1 - np.argmax(panel.listed[::-1], axis=0)
    ended, counts = np.unique(lasts[lasts < panel.n_bars - 1], return_counts=True)
    for bar in ended[2 * counts >= panel.n_assets]:
        names = [asset for asset, last in zip(panel.assets, lasts, strict=True) if last == bar]
        remedy = "complete or leave out the rows after it, or they count as delisted"
        findings.append(Finding("end", first_few(names, _SHOWN), str(panel.dates[bar]), "no price after it", remedy))
    return findings


def left_out(panel: MarketPanel) -> list[Finding]:
    """Columns and rows of a file that its reader left out."""
    names, rows = panel.provenance.get("row_numbers", ()), panel.provenance.get("empty_rows", ())
    last = str(panel.dates[-1])
    found = [Finding("row numbers", name, last, "rises by one each row", "left out; nothing to do") for name in names]
    return found + [Finding("empty row", "all", day, "no price", "left out; add its prices later") for day in rows]
