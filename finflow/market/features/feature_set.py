"""All features of a panel, scaled, as the agent observes them, with the features of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import BoolArray, FloatArray
from finflow.config import LENSES, FeaturesConfig
from finflow.errors import MarketError, refuse, typed_line
from finflow.imports import import_path
from finflow.market.features.asset_features import ASSET_FEATURES, FILTER_FEATURES, features_of
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
from finflow.market.features.rolling_windows import DAILY_WINDOWS, PanelView, windows_of
from finflow.market.panel import MarketPanel

Models = tuple[TurbulenceFit, TwoStates, RegimeFit | None]


_FEWEST_ROWS = 63
"""Rows that the scaling is fitted on, at least."""
_CLIP = 5.0


class Fitted(NamedTuple):
    """Parameters of features, from a training window."""

    turbulence: TurbulenceFit
    crisis: TwoStates
    regimes: RegimeFit | None  # None where the feature is left out, or nothing was fitted
    assets: FloatArray  # (F, 2): mean and deviation of each feature
    market: FloatArray  # (M, 2)


@dataclass(frozen=True, eq=False)
class Features:
    """Features at the close of each bar, in training deviations from the training mean, clipped to +-5.

    They are zero where an asset is not listed or has not enough history.
    """

    assets: NDArray[np.float32]  # (bars, assets, F)
    market: NDArray[np.float32]  # (bars, M)
    asset_names: tuple[str, ...]
    market_names: tuple[str, ...]
    lenses: dict[str, tuple[int, ...]]  # expert -> indices into the F features
    first_bar: int  # first row at which every feature is defined (for two assets at least); all before it are zero
    fitted: Fitted | None = None  # parameters from the training window, to compute the same features of other bars


_PLAIN = FeaturesConfig(filters="none", regimes=False)


def compute_features(panel: MarketPanel, fit_until: int, chosen: FeaturesConfig = _PLAIN) -> Features:
    """Compute every feature of every bar.

    Row t is made from bars <= t. What is fitted (mean and deviation of each feature, pooled over the listed assets, the
    turbulence's covariance, the two states of the crisis probability, the regimes) is fitted on the rows before
    `fit_until`: the training window.

    ``fit_until``: number of bars in the training window. ``chosen``: the bank of filters, then the features of a user,
    after those of every market.

    Raises MarketError if a feature of a user cannot be computed, the panel is shorter than the longest feature, or the
    training window holds too little beyond it.
    """
    return scale_features(*fit_features(panel, fit_until, chosen))


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
    raw = _raw(panel, chosen, fit_until)
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


class FeatureRanges(NamedTuple):
    """Features before clipping, at one bar and in training, in training deviations from the training mean."""

    assets: FloatArray  # (F, assets), at the bar; NaN where one is not defined
    market: FloatArray  # (M,)
    assets_seen: FloatArray  # (F, 2): least and greatest value in training, over all listed assets
    market_seen: FloatArray  # (M, 2)


def compute_features_and_ranges(
    panel: MarketPanel, fit_until: int, chosen: FeaturesConfig, bar: int
) -> tuple[Features, FeatureRanges]:
    """As `compute_features`, bit for bit, and how the features of one bar lie in their range in training."""
    raw, fitted = fit_features(panel, fit_until, chosen)
    seen = [
        np.array([[column[mask].min(), column[mask].max()] for column in values[:, :fit_until]])
        for values, mask in ((raw.assets, raw.defined[:fit_until]), (raw.market, raw.market_defined[:fit_until]))
    ]
    newest = np.where(raw.defined[bar], raw.assets[:, bar], np.nan)
    return scale_features(raw, fitted), FeatureRanges(
        (newest - fitted.assets[:, :1]) / fitted.assets[:, 1:],
        (raw.market[:, bar] - fitted.market[:, 0]) / fitted.market[:, 1],
        (seen[0] - fitted.assets[:, :1]) / fitted.assets[:, 1:],
        (seen[1] - fitted.market[:, :1]) / fitted.market[:, 1:],
    )


def apply_features(panel: MarketPanel, fitted: Fitted, chosen: FeaturesConfig = _PLAIN) -> Features:
    """Compute the features of a panel, of the same assets and fields, with parameters fitted on another."""
    return scale_features(_raw(panel, chosen, fitted[:3]), fitted)


class RawFeatures(NamedTuple):
    """Features before scaling, (F, bars, assets) and (M, bars), with masks of defined cells from `first_bar` on."""

    assets: FloatArray
    market: FloatArray
    defined: BoolArray
    market_defined: BoolArray
    listing: list[tuple[str, tuple[str, ...]]]
    market_names: tuple[str, ...]
    first_bar: int
    models: Models


def _raw(panel: MarketPanel, chosen: FeaturesConfig, fit: int | Models) -> RawFeatures:
    """Compute every feature of every bar, unscaled, with models that are given or fitted on so many bars."""
    view = PanelView(panel)
    named = view.windows.named
    computed = [(one, one.compute(panel)) for one in map(user_feature, chosen.extra)]
    _check_names(one.name for one, _ in computed)
    builtin = features_of(panel, chosen.filters)
    of_assets = [(one, values) for one, values in computed if values.ndim == 2]
    listing = [*((named(one.name), one.lenses) for one in builtin), *((one.name, one.lenses) for one, _ in of_assets)]
    raw = np.stack([*(one.compute(view) for one in builtin), *(values for _, values in of_assets)])
    models = fit
    if isinstance(models, int):
        regimes = fit_regimes(view, models) if chosen.regimes else None
        models = (fit_turbulence(view, models), fit_states(view.market[:models, 0]), regimes)
    market = {named(name): formula(view, view.windows) for name, formula in MARKET_FEATURES.items()}
    market |= {"turbulence": turbulence(view, models[0]), "crisis": crisis(view.market[:, 0], models[1])}
    market |= {"regime": regime(view, models[2])} if chosen.regimes else {}
    market |= {one.name: values for one, values in computed if values.ndim == 1}
    market_raw = np.stack([*market.values()])
    defined: BoolArray = np.isfinite(raw).all(axis=0) & view.listed
    market_defined = np.asarray(np.isfinite(market_raw).all(axis=0))
    ready = np.flatnonzero((defined.sum(axis=1) >= 2) & market_defined)
    first_bar = int(ready[0]) if ready.size else panel.n_bars
    defined[:first_bar], market_defined[:first_bar] = False, False
    return RawFeatures(raw, market_raw, defined, market_defined, listing, tuple(market), first_bar, models)


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


def _check_names(added: Iterable[str]) -> None:
    """Refuse a user's feature with the name of one of finflow's, whether or not this panel has it."""
    ours = {
        *(DAILY_WINDOWS.named(one.name) for one in (*ASSET_FEATURES, *FILTER_FEATURES["all"])),
        *map(DAILY_WINDOWS.named, MARKET_FEATURES),
        "turbulence",
        "crisis",
        "regime",
    }
    taken = ours.intersection(added)
    if taken:
        raise MarketError(f"features.extra has a feature {min(taken)!r}, and so has finflow; give yours another name")


def _scale(raw: FloatArray, defined: BoolArray, fits: FloatArray) -> NDArray[np.float32]:
    """Subtract the training mean, divide by the training deviation, clip; zeros where not defined."""
    result = np.zeros((*defined.shape, len(raw)), dtype=np.float32)
    for index, (values, (center, spread)) in enumerate(zip(raw, fits, strict=True)):
        result[..., index][defined] = np.clip((values[defined] - center) / spread, -_CLIP, _CLIP)
    result.setflags(write=False)
    return result


def _fit(sample: FloatArray) -> tuple[float, float]:
    center, spread = float(sample.mean()), float(sample.std())
    # A feature that is constant in training (up to rounding) keeps its scale.
    return center, spread if spread >= 1e-8 * (1.0 + abs(center)) else 1.0


class UserFeature(NamedTuple):
    """A feature of a user, the lenses that read it, and its function."""

    name: str
    lenses: tuple[str, ...]
    compute: Callable[[MarketPanel], FloatArray]


def user_feature(path: str) -> UserFeature:
    """Import a feature of a user, ``package.module:function``, for every expert, or with ``@lens`` for one.

    The function takes the panel and returns (bars, assets), or (bars,) for a feature of the market, which all experts
    read; row t may use bars up to t. Where a value is not finite, the whole asset, or the whole market, counts as
    unknown at that bar. `MarketError` if it cannot be imported; and, on computing, if it raises or returns anything
    else.
    """
    place, _, lens = path.partition("@")
    name = place.rpartition(":")[2]
    try:
        function = import_path(place)
    except Exception as error:
        raise MarketError(f"the feature {place!r} cannot be imported: {typed_line(error)}") from error
    refuse(not callable(function), f"the feature {place!r} is not a function of the panel", MarketError)

    def compute(panel: MarketPanel) -> FloatArray:
        try:
            values = np.array(function(panel), dtype=np.float64)
        except Exception as error:
            raise MarketError(f"the feature {place!r} failed: {typed_line(error)}") from error
        if values.shape not in (panel.close.shape, (panel.n_bars,)):
            raise MarketError(
                f"the feature {place!r} has the shape {values.shape}, not {panel.close.shape} (bars by assets) or "
                f"{(panel.n_bars,)} (of the market)"
            )
        if lens and values.ndim == 1:
            raise MarketError(f"the feature {place!r} is of the market, which every expert reads; leave @{lens} out")
        refuse(not np.isfinite(values).any(), f"the feature {place!r} has not one finite value", MarketError)
        return values

    return UserFeature(name, (lens,) if lens else LENSES, compute)
