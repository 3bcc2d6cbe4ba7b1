"""The bank of filters remembers at several lengths, knows the past alone and has no unit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import LENSES, FeaturesConfig, load_config
from finflow.errors import ConfigError
from finflow.market.features.feature_set import compute_features
from finflow.market.features.filter_features import HALF_LIVES, relative_average
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from tests.market.test_features import rebuilt

BARS, FIT = 700, 450
ALL = FeaturesConfig(regimes=False, filters="all")
NAMES = tuple(f"relative_average_{half_life:g}" for half_life in HALF_LIVES)
HALF_LIFE = pytest.mark.parametrize("half_life", HALF_LIVES)


def market(scale: float = 1.0, assets: int = 5) -> MarketPanel:
    """Random walks; one asset lists at bar 120, one ends at bar 560."""
    rng = np.random.default_rng(0)
    returns = scale * (rng.standard_normal((BARS, assets)) * 0.01 + rng.standard_normal((BARS, 1)) * 0.008)
    close = 50.0 * np.exp(np.cumsum(returns, axis=0))
    close[:120, 0] = np.nan
    close[560:, 1] = np.nan
    return rebuilt(close)


def by_pandas(panel: MarketPanel, half_life: float) -> NDArray[np.float64]:
    """The same feature by pandas: an average, over the deviation that it has for white noise."""
    returns = pd.DataFrame(np.log(panel.close)).diff()
    relative = returns.sub(returns.mean(axis=1), axis=0)
    average = relative.ewm(halflife=half_life).mean()
    keep = 0.5 ** (1.0 / half_life)
    age = relative.notna().cumsum()
    weights = (1.0 - keep) / (1.0 - keep**age)
    deviation = weights * np.sqrt((1.0 - keep ** (2 * age)) / (1.0 - keep**2))
    scaled = average / deviation / relative.rolling(63).std()
    return np.asarray(scaled.where(relative.notna()), dtype=np.float64)


@HALF_LIFE
def test_a_filter_is_what_pandas_says(half_life: float) -> None:
    panel = market()
    found = relative_average(PanelView(panel), half_life)
    np.testing.assert_allclose(found, by_pandas(panel, half_life), rtol=1e-8, atol=1e-9)
    assert np.isnan(found[: 120 + 63, 0]).all()
    assert np.isfinite(found[120 + 63 :, 0]).all()
    assert np.isnan(found[560:, 1]).all()


@pytest.mark.parametrize("bar", [FIT, 561])
def test_filters_look_back_only(bar: int) -> None:
    panel = market()
    shocked = np.array(panel.close)
    shocked[bar:] *= np.random.default_rng(1).uniform(0.1, 10.0, shocked[bar:].shape)
    whole = compute_features(panel, FIT, ALL)
    for other in (panel.until(bar), rebuilt(shocked)):
        found = compute_features(other, FIT, ALL)
        np.testing.assert_array_equal(found.assets[:bar], whole.assets[:bar])
        views = PanelView(panel), PanelView(other)
        for half_life in HALF_LIVES:
            before, after = (relative_average(view, half_life)[:bar] for view in views)
            np.testing.assert_array_equal(before, after)


def test_unlisted_assets_are_zero_and_nothing_is_nan() -> None:
    panel = market()
    features = compute_features(panel, FIT, ALL)
    assert np.isfinite(features.assets).all()
    assert (features.assets[~panel.listed] == 0.0).all()
    assert features.first_bar == compute_features(panel, FIT).first_bar == 252


@pytest.mark.parametrize(("filters", "lenses"), [("all", set(LENSES)), ("momentum", {"momentum"}), ("none", set())])
def test_the_bank_follows_the_others_and_is_read_by_whom_the_key_says(filters: str, lenses: set[str]) -> None:
    plain = compute_features(market(), FIT)
    chosen = FeaturesConfig.model_validate({"filters": filters, "regimes": False})
    found = compute_features(market(), FIT, chosen)
    size = len(plain.asset_names)
    assert found.asset_names == (plain.asset_names + NAMES if lenses else plain.asset_names)
    np.testing.assert_array_equal(found.assets[:, :, :size], plain.assets)
    read = {lens for lens, columns in found.lenses.items() if any(column >= size for column in columns)}
    assert read == lenses


def test_a_wrong_value_is_one_line_that_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="one of none, momentum, all"):
        load_config(None, {"features.filters": "some"}, {})


@HALF_LIFE
def test_a_filter_has_the_deviation_of_white_noise_whatever_the_volatility(half_life: float) -> None:
    noise = np.random.default_rng(1).standard_normal((6000, 8))
    for scale in (1e-3, 0.05):
        panel = rebuilt(np.exp(scale * np.cumsum(noise, axis=0)))
        found = relative_average(PanelView(panel), half_life)[100:]
        assert found.std() == pytest.approx(1.0, abs=0.06)
