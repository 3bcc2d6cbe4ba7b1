"""Resampled panels by the stationary bootstrap: blocks of a panel's days in another order.

Blocks have geometric length, so that a resampled history is as stationary as its source. A day is taken whole (every
asset, the index, cash, volume and the prices within the day), which keeps the dependence between assets; dependence
between days is kept within a block and lost between two. Returns are chained to prices, from which features are
computed as usual.

References
----------
Politis and Romano (1994), The Stationary Bootstrap, Journal of the American Statistical Association 89.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]


def draw_days(
    listed: NDArray[np.bool_], eligible: NDArray[np.bool_], mean_block: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the source bar of each bar of a resampled history, (bars,).

    A resampled history lists each asset for as long as the real one does: an asset that is listed at a bar needs a
    return at the source bar. A block that meets a bar without one, or the end, breaks off, and another begins.

    Parameters
    ----------
    listed : bool array, (bars, assets)
    eligible : bool array, (bars,)
        Bars that may be drawn. Where none of them has the returns needed, the bar is its own source.
    mean_block : int
        Mean length of an unbroken block.
    rng : numpy.random.Generator
    """
    bars = len(listed)
    moved = np.zeros_like(listed)
    moved[1:] = listed[1:] & listed[:-1]
    needs = moved.copy()
    fresh = listed & ~moved  # listed here for the first time: a price will do
    patterns: dict[bytes, NDArray[np.bool_]] = {}
    source = np.zeros(bars, dtype=np.int64)
    begins = rng.random(bars) < 1.0 / mean_block
    spots = rng.random(bars)
    last = -1
    for bar in range(1, bars):
        key = needs[bar].tobytes() + fresh[bar].tobytes()
        if key not in patterns:
            fits = (moved | ~needs[bar]).all(axis=1) & (listed | ~fresh[bar]).all(axis=1) & eligible
            fits[0] = False
            patterns[key] = fits
        fits = patterns[key]
        following = last + 1
        if last < 0 or begins[bar] or following >= bars or not fits[following]:
            choices = np.flatnonzero(fits)
            following = int(choices[int(spots[bar] * len(choices))]) if len(choices) else bar
        source[bar] = last = following
    return source


def resampled_panel(panel: MarketPanel, source: NDArray[np.int64]) -> MarketPanel:
    """Make a panel whose bar t moves as ``panel`` moved over the bar ``source[t]``.

    Parameters
    ----------
    panel : MarketPanel
    source : int array, (bars,)
        From `draw_days`; the first bar is the real one.

    Returns
    -------
    MarketPanel
        On the same days. Prices within a day keep their ratio to the close, and volume its value in money.
    """
    before = np.maximum(source - 1, 0)
    with np.errstate(invalid="ignore"):
        ratio = panel.close[source] / panel.close[before]
    close = np.full_like(panel.close, np.nan)
    listed = panel.listed
    for asset in range(panel.n_assets):
        bars = np.flatnonzero(listed[:, asset])
        if len(bars):
            steps = ratio[bars, asset].copy()
            steps[0] = panel.close[bars[0], asset]
            close[bars, asset] = np.cumprod(steps)
    scale = close / panel.close[source]

    def along(field: FloatArray | None, by: FloatArray) -> FloatArray | None:
        if field is None:
            return None
        taken = field[source] * by
        taken[0] = field[0]
        return np.where(listed, taken, np.nan)

    benchmark = panel.benchmark
    if benchmark is not None:
        moves = benchmark[source] / benchmark[before]
        moves[0] = benchmark[0]
        benchmark = np.asarray(np.cumprod(moves), dtype=np.float64)
    cash = panel.cash_returns[source].copy()
    cash[0] = 0.0
    return replace(
        panel,
        close=close,
        cash_returns=cash,
        open=along(panel.open, scale),
        high=along(panel.high, scale),
        low=along(panel.low, scale),
        volume=along(panel.volume, 1.0 / scale),
        dividends=along(panel.dividends, np.ones(1)),
        quoted=along(panel.quoted, scale),
        halted=None if panel.halted is None else panel.halted[source],
        benchmark=benchmark,
        provenance={**panel.provenance, "resampled": True},
    )
