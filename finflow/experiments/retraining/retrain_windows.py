"""Bars of a retraining: the folds that compare it with the old agent, and the newest window that it ends with.

All evaluated bars come after the last bar that the old agent was trained on or chosen by, and after the last bar of the
retraining of their fold, `purge` bars apart. Features look back only, so nothing of an evaluated window can be learned.
"""

from __future__ import annotations

from dataclasses import dataclass

from finflow.config import RetrainConfig
from finflow.errors import MarketError
from finflow.experiments.jobs.folds import FEWEST, Fold


@dataclass(frozen=True)
class KnownBars:
    """Sizes that decide the windows, in bars of the newest panel.

    Attributes
    ----------
    seen : int
        Bars up to the last one that the old agent was trained on or chosen by.
    bars : int
        All of them.
    history : int
        Bars before a window that its first feature looks back on.
    window : int
        Bars that a retraining learns from and is chosen by.
    purge : int
        Bars before an evaluated window that are not learned from.
    fewest_evaluated : int
        Evaluated bars, of all folds together, without which there is no interval.
    """

    seen: int
    bars: int
    history: int
    window: int
    purge: int
    fewest_evaluated: int


def retrain_folds(known: KnownBars, settings: RetrainConfig) -> tuple[Fold, ...]:
    """Folds of consecutive evaluated windows up to the newest bar, each with the bars of its retraining.

    Raises
    ------
    MarketError
        If the new bars are too few to learn from and to be evaluated on; the line says how many it takes.
    """
    new = known.bars - known.seen
    evaluated = new - int(settings.first_share * new)
    size = evaluated // settings.folds
    first = known.bars - size * settings.folds - known.purge
    if size < FEWEST or size * settings.folds < known.fewest_evaluated or first - known.seen < FEWEST:
        wanted = max(FEWEST * settings.folds, known.fewest_evaluated) / (1.0 - settings.first_share)
        raise MarketError(
            f"there are {new} new bars, of which {max(first - known.seen, 0)} can be learned from and "
            f"{size * settings.folds} evaluated on: {settings.folds} folds with an interval take about "
            f"{int(wanted) + known.purge + settings.folds} new bars; wait for them, or use fewer trading.retrain.folds "
            "or a smaller trading.retrain.first_share or evaluation.block_length"
        )
    folds = []
    for number in range(1, settings.folds + 1):
        start = known.bars - size * (settings.folds - number + 1)
        piece, validation = newest_window(known, start - known.purge, settings)
        folds.append(Fold(number, (piece,), validation, (range(start, start + size),), (0,)))
    return tuple(folds)


def newest_window(known: KnownBars, stop: int, settings: RetrainConfig) -> tuple[range, int]:
    """Bars of a retraining that ends before a bar, its features' history included, and how many of them validate."""
    piece = range(max(0, stop - known.window - known.history), stop)
    validation = min(int(settings.validation_share * (stop - known.seen)), known.window // 2)
    return piece, max(FEWEST, validation)
