"""Features of one bar with their ranges in training, before clipping: how far a day is from the training data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config import FeaturesConfig
from finflow.market.features.feature_set import Features, fit_features, scale_features
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]


class FeatureRanges(NamedTuple):
    """Features before clipping, at one bar and in training, in training deviations from the training mean.

    Attributes
    ----------
    assets : float64 (F, assets)
        Features of the assets at the bar; NaN where one is not defined.
    market : float64 (M,)
        Features of the market at the bar.
    assets_seen : float64 (F, 2)
        Least and greatest value in training, over all listed assets.
    market_seen : float64 (M, 2)
        The same of the market's features.
    """

    assets: FloatArray
    market: FloatArray
    assets_seen: FloatArray
    market_seen: FloatArray


def compute_features_and_ranges(
    panel: MarketPanel, fit_until: int, chosen: FeaturesConfig, bar: int
) -> tuple[Features, FeatureRanges]:
    """Compute every feature of every bar, and how those of one bar lie in the range of the training window.

    Parameters
    ----------
    chosen : FeaturesConfig
        As in `compute_features`, whose features these are, bit for bit.
    bar : int
        Bar whose features are compared.

    Raises
    ------
    MarketError
        As `compute_features`.
    """
    raw, fitted = fit_features(panel, fit_until, chosen)
    seen = [
        np.array([[column[mask].min(), column[mask].max()] for column in values[:, :fit_until]])
        for values, mask in (
            (raw.assets, raw.defined[:fit_until]),
            (raw.market, raw.market_defined[:fit_until]),
        )
    ]
    newest = np.where(raw.defined[bar], raw.assets[:, bar], np.nan)
    return scale_features(raw, fitted), FeatureRanges(
        (newest - fitted.assets[:, :1]) / fitted.assets[:, 1:],
        (raw.market[:, bar] - fitted.market[:, 0]) / fitted.market[:, 1],
        (seen[0] - fitted.assets[:, :1]) / fitted.assets[:, 1:],
        (seen[1] - fitted.market[:, :1]) / fitted.market[:, 1:],
    )
