"""Prices as strategies receive them: up to a bar, in memory that has not been given later ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class History:
    """Prices as a strategy receives them: memory that has not been given later ones.

    A slice of the whole market would do for the values, but NumPy keeps the array that a slice was taken from within
    reach, as ``.base``. So rows are copied as they become known, each once, into memory whose size depends on the past
    alone.

    Parameters
    ----------
    prices : float64 (bars, assets)
        Of the whole market.
    """

    def __init__(self, prices: FloatArray) -> None:
        self._source = prices
        self._known: FloatArray = np.empty((0, prices.shape[1]))
        self._count = 0

    def until(self, count: int) -> FloatArray:
        """The first ``count`` rows, read-only; no fewer than before."""
        if count > len(self._known):
            grown = np.full((2 * count, self._known.shape[1]), np.nan)
            grown[: self._count] = self._known[: self._count]
            self._known = grown
        self._known.setflags(write=True)
        self._known[self._count : count] = self._source[self._count : count]
        self._known.setflags(write=False)
        self._count = count
        return self._known[:count]
