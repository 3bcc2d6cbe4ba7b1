"""Audits of bars one by one, on short pieces of the market: what looks ahead on few days must be caught on those days.

A leak of one bar shows at the bar before the change alone. So whole months are probed bar by bar, and days on which
something is going on. A piece holds just the history that the features need, so that a probe takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from finflow.config import Config
from finflow.errors import MarketError
from finflow.evaluation.audit.look_ahead import Probe
from finflow.evaluation.audit.shocked_panels import CUT
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split
from finflow.training.audit.audit_subjects import Subjects

_MONTH = 23
"""Bars in a row: no month has more."""
_HISTORIES = (330, 900)
"""Bars before a piece's first probe; where features need more than the one, the next, and then all there are."""
_AFTER = 30
_LEVEL = 7
"""Every so many bars the level of all prices jumps, for the fills."""


class CloseUp(NamedTuple):
    """A piece of the market, its parts, and the probes to put them to."""

    panel: MarketPanel
    subjects: Subjects
    probes: tuple[Probe, ...]


def close_ups(panel: MarketPanel, config: Config, split: Split, first: int) -> Iterator[CloseUp]:
    """Pieces around the bars of `bars_of`; those for which no piece has history enough are left out."""
    lag = config.env.execution_lag
    for lasts in bars_of(panel, split, first, lag, config.train.seed):
        for history in (*_HISTORIES, panel.n_bars):
            start = max(lasts.start - history, 0)
            rows = slice(start, min(lasts.stop + _AFTER, panel.n_bars))
            fit = lasts.start - start
            try:
                piece = panel.between(rows.start, rows.stop)
                compute_features(piece, fit, config.features.extra)
            except MarketError:
                if start == 0:
                    break
                continue
            subjects = Subjects(piece, config, Split(fit, fit + 1, piece.n_bars), near=True)
            yield CloseUp(piece, subjects, tuple(_probes(range(fit, fit + len(lasts)))))
            break


def _probes(lasts: range) -> Iterator[Probe]:
    for last in lasts:
        yield Probe(last, CUT)
        yield Probe(last, "replaced")
        if (last - lasts.start) % _LEVEL == 0:
            yield Probe(last, "crash")


def bars_of(panel: MarketPanel, split: Split, first: int, lag: int, seed: int) -> list[range]:
    """A month in each window, drawn, and single days that stand out in training and in the test.

    Those days are the calmest and the wildest month's last, those before the largest moves of the market, up and down,
    before the longest break, at a turn of the year, and around listings.
    """
    rng = np.random.default_rng([seed, 23])
    latest = split.test_end - lag - 3
    chosen: list[range] = []
    windows = ((first, split.train_end), (split.train_end, split.validation_end), (split.validation_end, latest + 1))
    for start, stop in windows:
        begin = max(start, first)
        if stop - begin > _MONTH:
            begin = int(rng.integers(begin, stop - _MONTH + 1))
            stop = begin + _MONTH
        if stop > begin:
            chosen.append(range(begin, stop))
    days: set[int] = set()
    for start, stop in (windows[0], windows[2]):
        days |= _telling(panel, max(start, first), stop)
    return chosen + [range(day, day + 1) for day in sorted(days) if not any(day in run for run in chosen)]


def _telling(panel: MarketPanel, start: int, stop: int) -> set[int]:
    """Days between `start` and `stop` on which a leak of few days may show."""
    if stop - start < 2:
        return set()
    bars = np.arange(start, stop)
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    known = np.isfinite(moves)
    market = np.where(known, moves, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    size = np.convolve(market * market, np.ones(21))[: len(market)][bars]
    months = panel.dates.astype("datetime64[Y]")
    ahead = market[np.minimum(bars + 1, panel.n_bars - 1)]
    days = {int(bars[pick]) for pick in (size.argmax(), size.argmin(), ahead.argmax(), ahead.argmin())}
    days.add(int(bars[:-1][np.diff(panel.dates)[bars[:-1]].argmax()]))
    turns = np.flatnonzero(months[bars[:-1] + 1] != months[bars[:-1]])
    days |= {int(bars[turns[-1]])} if turns.size else set()
    changes = np.flatnonzero((panel.listed[bars[:-1] + 1] != panel.listed[bars[:-1]]).any(axis=1))
    return days | {int(bars[change]) for change in changes[:2]}
