"""All features of a panel, scaled, as the agent observes them, with the features of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.compiled_function import compiled_function
from finflow.config import LENSES, FeaturesConfig
from finflow.errors import MarketError
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.asset_features import ASSET_FEATURES, AssetFeature
from finflow.market.features.feature_windows import windows_of
from finflow.market.features.filter_features import FILTER_FEATURES, filter_features
from finflow.market.features.market_features import (
    MARKET_FEATURES,
    TurbulenceFit,
    TwoStates,
    crisis,
    fit_states,
    fit_turbulence,
    turbulence,
)
from finflow.market.features.regimes import RegimeFit, fit_regimes, regime
from finflow.market.features.rolling_windows import PanelView
from finflow.market.features.trading_features import TRADING_FEATURES
from finflow.market.features.user_features import user_feature
from finflow.market.panel import MarketPanel

FloatArray = NDArray[np.float64]
Models = tuple[TurbulenceFit, TwoStates, RegimeFit | None]


_FEWEST_ROWS = 63
"""Rows that the scaling is fitted on, at least."""
_CLIP = 5.0


class Fitted(NamedTuple):
    """Parameters of features, from a training window.

    Attributes
    ----------
    regimes : RegimeFit or None
        None where the feature is left out, or nothing was fitted.
    assets : float64 (F, 2)
        Mean and deviation of each asset feature.
    market : float64 (M, 2)
        Of each market feature.
    """

    turbulence: TurbulenceFit
    crisis: TwoStates
    regimes: RegimeFit | None
    assets: FloatArray
    market: FloatArray


@dataclass(frozen=True, eq=False)
class Features:
    """Features at the close of each bar.

    Attributes
    ----------
    assets : float32 of shape (bars, assets, F)
        Per asset, in training deviations from the training mean, clipped to +-5. Zero where an asset is not listed or
        has not enough history.
    market : float32 of shape (bars, M)
        Market-wide, scaled likewise.
    asset_names, market_names : tuple of str
        Names of the F and M features.
    lenses : dict
        Expert -> indices into the F features.
    first_bar : int
        First row at which every feature is defined (for two assets at least); all rows before it are zero.
    fitted : Fitted or None
        Parameters from the training window, to compute the same features of other bars; None if there are none.
    """

    assets: NDArray[np.float32]
    market: NDArray[np.float32]
    asset_names: tuple[str, ...]
    market_names: tuple[str, ...]
    lenses: dict[str, tuple[int, ...]]
    first_bar: int
    fitted: Fitted | None = None


_PLAIN = FeaturesConfig(filters="none", regimes=False)


def compute_features(panel: MarketPanel, fit_until: int, chosen: FeaturesConfig = _PLAIN) -> Features:
    """Compute every feature of every bar.

    Row t is made from bars <= t. What is fitted (mean and deviation of each feature, pooled over the listed assets, the
    turbulence's covariance, the two states of the crisis probability, the regimes) is fitted on the rows before
    `fit_until`: the training window.

    Parameters
    ----------
    panel : MarketPanel
        The market.
    fit_until : int
        Number of bars in the training window.
    chosen : FeaturesConfig
        Features in addition to those of every market: the bank of filters, then those of a user, scaled like the
        others and after them.

    Raises
    ------
    MarketError
        If a feature of a user cannot be computed, the panel is shorter than the longest feature, or the training
        window holds too little beyond it.
    """
    raw, fitted = fit_features(panel, fit_until, chosen)
    return scale_features(raw, fitted)


def fit_features(panel: MarketPanel, fit_until: int, chosen: FeaturesConfig) -> tuple[RawFeatures, Fitted]:
    """Compute the features before scaling, and what is fitted on the training window."""
    longest = windows_of(panel.bars_per_year).longest
    needed = longest - 1 + _FEWEST_ROWS
    if panel.n_bars < longest:
        raise MarketError(f"the data has {panel.n_bars} bars, but the longest feature needs {longest}; use more data")
    if not needed <= fit_until <= panel.n_bars:
        raise MarketError(
            f"the training window has {fit_until} of the {panel.n_bars} bars, but features and their scaling need "
            f"{needed} at least; move market.train_end or use more data"
        )
    raw = _raw(panel, chosen, lambda view: _fit_models(view, fit_until, chosen))
    if raw.first_bar + _FEWEST_ROWS > fit_until:
        raise MarketError(
            f"the training window ends at bar {fit_until}, but features are defined for two assets at the same time "
            f"only from bar {raw.first_bar}, and {_FEWEST_ROWS} more are needed; move market.train_end or use more data"
        )
    scales = [
        np.array([_fit(column[:fit_until][defined[:fit_until]]) for column in values])
        for values, defined in ((raw.assets, raw.defined), (raw.market, raw.market_defined))
    ]
    return raw, Fitted(*raw.models, *scales)


def apply_features(panel: MarketPanel, fitted: Fitted, chosen: FeaturesConfig = _PLAIN) -> Features:
    """Compute the features of a panel with the parameters fitted on another.

    Parameters
    ----------
    panel : MarketPanel
        With the same assets and fields as the one that `fitted` comes from.
    chosen : FeaturesConfig
        As it was there.
    """
    return scale_features(_raw(panel, chosen, lambda view: fitted[:3]), fitted)


class RawFeatures(NamedTuple):
    """Features before scaling, (F, bars, assets) and (M, bars), with masks of defined cells from `first_bar` on."""

    assets: FloatArray
    market: FloatArray
    defined: NDArray[np.bool_]
    market_defined: NDArray[np.bool_]
    listing: list[tuple[str, tuple[str, ...]]]
    market_names: tuple[str, ...]
    first_bar: int
    models: Models


def _raw(panel: MarketPanel, chosen: FeaturesConfig, models_of: Callable[[PanelView], Models]) -> RawFeatures:
    """Compute every feature of every bar, unscaled."""
    view = PanelView(panel)
    added = [user_feature(path) for path in chosen.extra]
    builtin = [*features_of(panel), *filter_features(chosen)]
    computed = [(one, one.compute(panel)) for one in added]
    of_assets = [(one, values) for one, values in computed if values.ndim == 2]
    of_market = [(one, values) for one, values in computed if values.ndim == 1]
    named = view.windows.named
    listing = [*((named(one.name), one.lenses) for one in builtin), *((one.name, one.lenses) for one, _ in of_assets)]
    market_names = (
        *(named(name) for name in MARKET_FEATURES),
        "turbulence",
        "crisis",
        *(("regime",) if chosen.regimes else ()),
        *(one.name for one, _ in of_market),
    )
    _check_names(one.name for one in added)
    raw = np.empty((len(listing), *panel.close.shape))
    _of_assets(view, builtin, raw)
    for column, (_, values) in zip(raw[len(builtin) :], of_assets, strict=True):
        column[:] = values
    models = models_of(view)
    fitted = [turbulence(view, models[0]), crisis(view, models[1])]
    fitted += [regime(view, models[2])] if chosen.regimes else []
    known = [compute(view) for compute in MARKET_FEATURES.values()]
    market_raw = np.stack([*known, *fitted, *(values for _, values in of_market)])
    defined = _all_finite(raw) & view.listed
    market_defined = _all_finite(market_raw)
    ready = np.flatnonzero((defined.sum(axis=1) >= 2) & market_defined)
    first_bar = int(ready[0]) if ready.size else panel.n_bars
    defined[:first_bar], market_defined[:first_bar] = False, False
    return RawFeatures(raw, market_raw, defined, market_defined, listing, market_names, first_bar, models)


def _fit_models(view: PanelView, fit_until: int, chosen: FeaturesConfig) -> Models:
    """Fit the models that features are made with."""
    states = fit_states(view.market[:fit_until, 0])
    return fit_turbulence(view, fit_until), states, fit_regimes(view, fit_until) if chosen.regimes else None


def scale_features(raw: RawFeatures, fitted: Fitted) -> Features:
    """Scale features by what was fitted, and clip them."""
    lenses = {lens: tuple(index for index, (_, lenses) in enumerate(raw.listing) if lens in lenses) for lens in LENSES}
    return Features(
        assets=_scale(raw.assets, raw.defined, fitted.assets),
        market=_scale(raw.market, raw.market_defined, fitted.market),
        asset_names=tuple(name for name, _ in raw.listing),
        market_names=raw.market_names,
        lenses=lenses,
        first_bar=raw.first_bar,
        fitted=fitted,
    )


def features_of(panel: MarketPanel) -> list[AssetFeature]:
    """List finflow's features of an asset for which a panel has the fields."""
    return [
        *ASSET_FEATURES,
        *(one for one in TRADING_FEATURES if all(getattr(panel, field) is not None for field in one.needs)),
    ]


def _check_names(added: Iterable[str]) -> None:
    """Refuse a user's feature with the name of one of finflow's, whether or not this panel has it."""
    ours = {
        *(one.name for one in (*ASSET_FEATURES, *TRADING_FEATURES, *FILTER_FEATURES["all"])),
        *MARKET_FEATURES,
        "turbulence",
        "crisis",
        "regime",
    }
    taken = ours.intersection(added)
    if taken:
        raise MarketError(f"features.extra has a feature {min(taken)!r}, and so has finflow; give yours another name")


def _all_finite(columns: FloatArray) -> NDArray[np.bool_]:
    """Mask of rows in which every column is finite."""
    defined: NDArray[np.bool_] = np.isfinite(columns[0])
    for column in columns[1:]:
        defined &= np.isfinite(column)
    return defined


def _of_assets(view: PanelView, features: Sequence[AssetFeature], raw: FloatArray) -> None:
    """Fill in every feature of every asset, for a few assets at a time."""
    for part in view.parts():
        for feature, column in zip(features, raw, strict=False):
            column[:, part.columns] = feature.raw(part)
    for feature, column in zip(features, raw, strict=False):
        if feature.ranked:
            column[:] = rolling.percentile_rank(column)


def _scale(raw: FloatArray, defined: NDArray[np.bool_], fits: FloatArray) -> NDArray[np.float32]:
    """Subtract the training mean, divide by the training deviation, clip; zeros where not defined."""
    result = np.zeros((*defined.shape, len(raw)), dtype=np.float32)
    bars = len(defined)
    _fill(raw.reshape(len(raw), bars, -1), defined.reshape(bars, -1), fits, result.reshape(bars, -1, len(raw)))
    result.setflags(write=False)
    return result


@compiled_function(error_model="numpy")
def _fill(raw: FloatArray, defined: NDArray[np.bool_], fits: FloatArray, result: NDArray[np.float32]) -> None:
    """Scale bar by bar, in the order of the result in memory."""
    for bar in range(raw.shape[1]):
        for index in range(len(raw)):
            center, spread = fits[index]
            for column in range(raw.shape[2]):
                if defined[bar, column]:
                    scaled = (raw[index, bar, column] - center) / spread
                    result[bar, column, index] = min(max(scaled, -_CLIP), _CLIP)


def _fit(sample: FloatArray) -> tuple[float, float]:
    """Mean and deviation of a feature in training."""
    center, spread = float(sample.mean()), float(sample.std())
    # A feature that is constant in training (up to rounding) keeps its scale.
    return center, spread if spread >= 1e-8 * (1.0 + abs(center)) else 1.0
