"""A bank of exponential averages of market-relative returns, the same for every asset: a memory of several lengths.

Hidden drifts and regimes are followed by averages over the past whose best length is not known beforehand (Muth 1960;
the Kalman filter of a drifting mean is one such average). A bank of them lets a learner choose, or combine two into a
difference. With r the log return of one bar, m the mean r of the listed assets and b = 2^(-1 / h) for a half-life of h
bars,

    z_t = sum_k b^k (r - m)_{t-k} / (s(63) sqrt(sum_k b^(2 k))),

summed over the bars since the asset was listed. The sum is divided by the deviation that it has where r - m is white
noise of deviation s(63), so that every member of the bank is about standard normal on a market without memory, whatever
the unit, the volatility and the half-life. The deviation of weekly prices is that of 26 weeks, of monthly ones that of
twelve months.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.compiled_function import compiled_function
from finflow.config import LENSES
from finflow.market.features.asset_features import AssetFeature
from finflow.market.features.rolling_windows import FLOOR, PanelView, Series

FloatArray = NDArray[np.float64]

HALF_LIVES = (0.7, 1.5, 3.0, 6.0, 12.0, 25.0)
"""Bars after which a return counts half: from about one bar's reversal to a quarter's trend, each twice the last."""


def relative_average(view: PanelView, half_life: float) -> FloatArray:
    """Exponential average of market-relative returns, in deviations of that of white noise, (bars, assets).

    A return counts half after ``half_life`` bars (Muth 1960). NaN where the asset has fewer than 63 returns (weekly:
    26, monthly: 12).
    """
    relative = view.returns - view.market
    spread = np.maximum(Series(relative).std(view.windows.medium), FLOOR)
    return _standardised_sum(relative, 0.5 ** (1.0 / half_life)) / spread


@compiled_function()
def _standardised_sum(values: FloatArray, keep: float) -> FloatArray:
    """Decaying sum of each column over the root of the sum of its squared weights; begins anew after a NaN."""
    result = np.full(values.shape, np.nan)
    for column in range(values.shape[1]):
        total, squares = 0.0, 0.0
        for row in range(values.shape[0]):
            value = values[row, column]
            if np.isnan(value):
                total, squares = 0.0, 0.0
                continue
            total = keep * total + value
            squares = keep * keep * squares + 1.0
            result[row, column] = total / np.sqrt(squares)
    return result


def _member(half_life: float, lenses: tuple[str, ...]) -> AssetFeature:
    return AssetFeature(f"relative_average_{half_life:g}", lenses, lambda view: relative_average(view, half_life))


FILTER_FEATURES: dict[str, tuple[AssetFeature, ...]] = {
    readers: tuple(_member(half_life, lenses) for half_life in HALF_LIVES)
    for readers, lenses in (("momentum", ("momentum",)), ("all", LENSES))
}
"""Value of `features.filters` -> the bank, as the lenses of that value read it."""
