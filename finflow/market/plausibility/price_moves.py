"""Moves that are no returns: splits that prices are not adjusted for, changes of unit, and mistyped prices."""

from __future__ import annotations

import numpy as np

from finflow.arrays import FloatArray
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.finding import Finding, log_moves, usual_move

#: New shares for each old one. Ratios under 2 are rare among reverse splits and common among rallies.
_SPLITS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0)
_REVERSE = tuple(number for number in _SPLITS if number >= 2.0)
_LEAST_UNIT = 2  # power of ten from which a jump is a change of unit, such as pence for pounds
#: A move that an asset makes about once in a lifetime: in deviations by the median of its absolute moves.
_RARE = 10.0
#: How far the return of the day itself may lie from none, in deviations, and in log return at most.
_OWN_MOVE, _OWN_MOVE_AT_MOST = 2.0, 0.05
_MARKET_MOVE = 0.1  # a day on which the median of the other assets moved by more is a crash or a boom
_LEAST_JUMP = 0.3  # in log return
_LARGE = (np.log(0.5), np.log(1.5))  # a return beyond 50 %
_UNDONE = 0.25  # share of a move that may be left after the next, for the price between them to be a mistake
_ALONE = 3.0  # times the asset's next largest move


def jumps(panel: MarketPanel) -> list[Finding]:
    """Moves of ten times the asset's usual one or more that the others did not make, by what may explain them.

    A change of unit is a jump by 100, 1000 or a higher power of ten. Of returns beyond 50 % those are named that the
    next bar undoes, or that are three times the asset's next largest.
    """
    moves, findings = log_moves(panel), []
    usual, sizes = usual_move(moves), np.abs(np.nan_to_num(moves))
    for row, column in np.argwhere((sizes >= _RARE * usual) & (sizes > _LEAST_JUMP)):
        if _shared(moves[row], column):
            continue
        move, date, close = float(moves[row, column]), str(panel.dates[row + 1]), panel.close[[row, row + 1], column]
        following = float(moves[row + 1, column]) if row + 1 < len(moves) else 0.0
        tolerance = min(_OWN_MOVE * float(usual[column]), _OWN_MOVE_AT_MOST)
        undone, alone = abs(move + following) < _UNDONE * abs(move), np.partition(sizes[:, column], -2)[-2] * _ALONE
        power, split = round(move / np.log(10.0)), split_of(move, tolerance)
        if abs(power) >= _LEAST_UNIT and abs(move - power * np.log(10.0)) <= tolerance:
            kind, value = "unit", f"price times 1e{power:+03d}, from {close[0]:g} to {close[1]:g}"
            remedy = "if the unit changed or a decimal mark was lost, write all prices of the asset in one unit"
        elif split is not None and not undone:
            kind, value = "split", f"price times {np.exp(move):.3g}, as after a split of {in_words(split)}"
            remedy = f"if it is one, divide the prices before {date} by {split:g}, or give an Adj Close; else it counts"
            remedy += " as a return"
        elif not _LARGE[0] <= move <= _LARGE[1] and (undone or abs(move) > alone):
            kind, value = "return", f"{np.expm1(move):+.0%}" + (f", then {np.expm1(following):+.0%}" if undone else "")
            remedy = "correct the price if it is mistyped; else it counts as a return"
        else:
            continue
        findings.append(Finding(kind, panel.assets[column], date, value, remedy))
    return findings


def _shared(moves: FloatArray, column: int) -> bool:
    """True where the median of the other assets, of moves (assets,), moved too, and not as a change of unit would."""
    others = np.delete(moves, column)
    others = others[np.isfinite(others)]
    return len(others) > 0 and _MARKET_MOVE <= abs(float(np.median(others))) < np.log(10.0)


def split_of(move: float, tolerance: float) -> float | None:
    """Split that explains a log return up to a tolerance: new shares for each old one; None where none does."""
    nearest = min(_SPLITS if move < 0.0 else _REVERSE, key=lambda number: abs(abs(move) - np.log(number)))
    if abs(abs(move) - np.log(nearest)) > tolerance:
        return None
    return nearest if move < 0.0 else 1.0 / nearest


def in_words(split: float) -> str:
    """Return a split as it is announced: 2 for 1, 3 for 2, 1 for 10."""
    return f"1 for {1.0 / split:g}" if split < 1.0 else "3 for 2" if split == 1.5 else f"{split:g} for 1"
