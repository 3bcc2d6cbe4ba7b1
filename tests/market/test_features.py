"""Features know the past and nothing else, whatever unit prices are in and whatever order assets stand in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import LENSES, FeaturesConfig
from finflow.errors import MarketError
from finflow.market.features.asset_features import ASSET_FEATURES, FILTER_FEATURES, features_of
from finflow.market.features.feature_set import Features, apply_features, compute_features
from finflow.market.features.market_features import MARKET_FEATURES
from finflow.market.features.rolling_windows import DAILY_WINDOWS, PanelView
from finflow.market.panel import MarketPanel
from tests.env.conftest import panel_of

BARS, FIT = 700, 450
FIELDS = ("open", "high", "low", "volume")
ALL = FeaturesConfig(filters="all", regimes=True)


def fields_of(panel: MarketPanel) -> dict[str, NDArray[np.float64]]:
    """Copies of prices and volumes, to be changed."""
    return {name: np.array(getattr(panel, name)) for name in ("close", *FIELDS)}


def market(seed: int = 0, ragged: bool = False, assets: int = 6) -> MarketPanel:
    """Correlated random walks; where ragged, one asset lists late, one ends early and one lists after training."""
    rng = np.random.default_rng(seed)
    shape = (BARS, assets)
    common = rng.standard_normal((BARS, 1)) * 0.008
    day = common * rng.uniform(0.5, 1.5, assets) + rng.standard_normal(shape) * 0.008 + 0.0003
    night = rng.standard_normal(shape) * 0.006
    close = 50.0 * np.exp(np.cumsum(night + day, axis=0))
    opens = close / np.exp(day)
    high = np.maximum(opens, close) * np.exp(np.abs(rng.standard_normal(shape)) * 0.004)
    low = np.minimum(opens, close) * np.exp(-np.abs(rng.standard_normal(shape)) * 0.004)
    volume = np.round(np.exp(13.0 + rng.standard_normal(shape) * 0.4))
    if ragged:
        for values in (close, opens, high, low, volume):
            values[:120, 0] = np.nan
            values[560:, 1] = np.nan
            values[:500, 2] = np.nan
    return replace(panel_of(close), open=opens, high=high, low=low, volume=volume)


def assert_equal(left: Features, right: Features, rows: int) -> None:
    np.testing.assert_array_equal(left.assets[:rows], right.assets[:rows])
    np.testing.assert_array_equal(left.market[:rows], right.market[:rows])


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("bar", [FIT, 561])
def test_another_future_or_none_changes_no_bit_of_the_past(ragged: bool, bar: int) -> None:
    panel, rng = market(ragged=ragged), np.random.default_rng(1)
    changed = fields_of(panel)
    factor = rng.uniform(0.1, 10.0, (BARS - bar, 6))
    for name, more in (("close", 1.0), ("open", 0.99), ("high", 1.02), ("low", 0.97)):
        changed[name][bar:] *= factor * more
    changed["volume"][bar:] *= rng.uniform(0.1, 10.0, factor.shape)
    whole = compute_features(panel, FIT, ALL)
    other = compute_features(replace(panel, **changed), FIT, ALL)
    assert_equal(other, whole, bar)
    assert (other.assets[bar:] != whole.assets[bar:]).any(axis=(0, 1)).all()
    assert (other.market[bar:] != whole.market[bar:]).any(axis=0).all()
    short = compute_features(panel.until(bar), FIT, ALL)
    assert short.assets.shape[0] == bar
    assert_equal(short, whole, bar)


def test_what_is_fitted_is_fitted_on_the_training_window() -> None:
    features = compute_features(market(), FIT)
    rows = slice(features.first_bar, FIT)
    unclipped = (np.abs(features.assets[rows]) < 5.0).all(axis=(0, 1))
    assert unclipped.sum() > 10
    np.testing.assert_allclose(features.assets[rows].mean(axis=(0, 1))[unclipped], 0.0, atol=1e-3)
    np.testing.assert_allclose(features.assets[rows].std(axis=(0, 1))[unclipped], 1.0, atol=1e-3)
    earlier = compute_features(market(), FIT - 100)
    assert not np.array_equal(features.market[rows], earlier.market[rows])


def test_neither_units_nor_the_order_of_assets_matter() -> None:
    panel, order = market(ragged=True), np.array([3, 0, 5, 1, 4, 2])
    units = np.array([1e-6, 0.01, 1.0, 3.7, 100.0, 1e6])
    moved = {name: (values * units)[:, order] for name, values in fields_of(panel).items()}
    moved["volume"] = (fields_of(panel)["volume"] / units)[:, order]
    features, same = compute_features(panel, FIT, ALL), compute_features(replace(panel, **moved), FIT, ALL)
    np.testing.assert_allclose(features.assets[:, order], same.assets, atol=1e-5)
    np.testing.assert_allclose(features.market, same.market, atol=1e-5)


def test_ragged_listings_give_zeros_and_never_nan() -> None:
    panel = market(ragged=True)
    features = compute_features(panel, FIT, ALL)
    assert np.isfinite(features.assets).all()
    assert np.isfinite(features.market).all()
    assert (np.abs(features.assets) <= 5.0).all()
    assert (features.assets[~panel.listed] == 0.0).all()
    assert (features.assets[: features.first_bar] == 0.0).all()
    assert (features.market[: features.first_bar] == 0.0).all()
    assert (features.market[features.first_bar] != 0.0).all()
    late = features.assets[:, 0]  # listed at bar 120: a year of returns at 372
    assert (late[:372] == 0.0).all()
    assert (late[372] != 0.0).all()
    assert features.first_bar == 252


@pytest.mark.parametrize("missing", [*FIELDS, None])
def test_features_of_a_field_follow_the_others_where_it_is_and_change_none_of_them(missing: str | None) -> None:
    panel = market(ragged=True)
    plain = compute_features(panel_of(panel.close), FIT)
    full = compute_features(replace(panel, **{missing: None}) if missing else panel, FIT)
    size = len(plain.asset_names)
    names = {DAILY_WINDOWS.named(feature.name): feature.needs for feature in ASSET_FEATURES}
    assert plain.asset_names == tuple(name for name, needs in names.items() if not needs)
    expected = [name for name, needs in names.items() if needs and missing not in needs]
    assert full.asset_names[size:] == tuple(expected)
    assert len(expected) > 0
    np.testing.assert_array_equal(full.assets[..., :size], plain.assets)
    np.testing.assert_array_equal(full.market, plain.market)
    assert full.first_bar == plain.first_bar
    assert (full.assets[full.first_bar :, :, size:].std(axis=(0, 1)) > 0.3).all()


@pytest.mark.parametrize(("filters", "readers"), [("all", set(LENSES)), ("momentum", {"momentum"}), ("none", set())])
@pytest.mark.parametrize("regimes", [True, False])
def test_filters_and_regimes_are_there_and_read_as_their_keys_say(
    filters: Any, readers: set[str], regimes: bool
) -> None:
    plain = compute_features(market(), FIT)
    found = compute_features(market(), FIT, FeaturesConfig(filters=filters, regimes=regimes))
    size = len(plain.asset_names)
    assert found.asset_names[size:] == (tuple(one.name for one in FILTER_FEATURES["all"]) if readers else ())
    np.testing.assert_array_equal(found.assets[:, :, :size], plain.assets)
    assert {lens for lens, columns in found.lenses.items() if max(columns) >= size} == readers
    names = map(DAILY_WINDOWS.named, MARKET_FEATURES)
    assert found.market_names == (*names, "turbulence", "crisis", *(("regime",) if regimes else ()))
    assert found.market.shape == (BARS, len(found.market_names))


def test_every_expert_has_a_lens_and_every_feature_is_read() -> None:
    plain, full = compute_features(panel_of(market().close), FIT), compute_features(market(), FIT)
    assert tuple(full.lenses) == LENSES == ("volatility", "correlation", "momentum", "defensive", "growth")
    assert len(set(full.asset_names)) == len(full.asset_names) == full.assets.shape[2]
    for lens in LENSES:
        assert 5 <= len(plain.lenses[lens]) < len(full.lenses[lens])
    for features in (plain, full):
        assert set().union(*features.lenses.values()) == set(range(len(features.asset_names)))


def test_features_are_their_formulas_in_training_deviations() -> None:
    panel = market(assets=70, ragged=True)
    features, view = compute_features(panel, FIT), PanelView(panel)
    whole = np.stack([feature.compute(view) for feature in features_of(panel, "none")], axis=2)
    usable = np.isfinite(whole).all(axis=2) & panel.listed
    usable[: features.first_bar] = False
    sample = whole[:FIT][usable[:FIT]]
    expected = np.clip((whole - sample.mean(axis=0)) / sample.std(axis=0), -5.0, 5.0)
    np.testing.assert_allclose(features.assets, np.where(usable[..., None], expected, 0.0), atol=1e-6)
    for bars in (FIT, 561):
        assert_equal(features, compute_features(panel.until(bars), FIT), bars)


@pytest.mark.parametrize(
    ("bars", "fit_until", "words"),
    [
        (200, 150, "the data has 200 bars, but the longest feature needs 253"),
        (300, 290, "market.train_end"),
        (700, 300, "the training window has 300 of the 700 bars"),
        (700, 701, "the training window has 701 of the 700 bars"),
    ],
)
def test_too_little_data_is_one_clear_line(bars: int, fit_until: int, words: str) -> None:
    with pytest.raises(MarketError, match=words):
        compute_features(market().until(bars), fit_until)


def test_assets_that_list_too_late_for_training_are_an_error() -> None:
    close = np.array(market().close)
    close[:400, 1:] = np.nan
    with pytest.raises(MarketError, match="defined for two assets at the same time only from bar 652"):
        compute_features(panel_of(close), FIT)


def test_the_fit_of_one_market_makes_the_features_of_another() -> None:
    """An agent meets bars that it was not fitted on: nothing of them may move the scale."""
    panel = market(ragged=True)
    whole = compute_features(panel, FIT, ALL)
    short = compute_features(panel.until(FIT), FIT, ALL)
    assert_equal(apply_features(panel, short.fitted, ALL), whole, BARS)
    elsewhere = apply_features(market(seed=1), whole.fitted, ALL)
    own = compute_features(market(seed=1), FIT, ALL)
    assert not np.array_equal(elsewhere.assets, own.assets)
    assert elsewhere.fitted is whole.fitted
