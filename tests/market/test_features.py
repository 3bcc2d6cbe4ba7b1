"""Features know the past and nothing else, whatever unit prices are in and whatever order assets stand in."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import LENSES
from finflow.errors import MarketError
from finflow.market.features.asset_features import ASSET_FEATURES
from finflow.market.features.feature_set import Features, apply_features, compute_features
from finflow.market.features.market_features import MARKET_FEATURES, crisis, fit_turbulence, turbulence
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel

BARS, FIT = 700, 450


def market(seed: int = 0, ragged: bool = False, assets: int = 6, bars: int = BARS) -> MarketPanel:
    """Correlated random walks; where ragged, one asset lists late, one ends early and one lists after training."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((bars, 1)) * 0.008
    returns = common * rng.uniform(0.5, 1.5, assets) + rng.standard_normal((bars, assets)) * 0.01 + 0.0003
    close = 50.0 * np.exp(np.cumsum(returns, axis=0))
    if ragged:
        close[:120, 0] = np.nan
        close[560:, 1] = np.nan
        close[:500, 2] = np.nan
    return rebuilt(close)


def rebuilt(close: NDArray[np.float64]) -> MarketPanel:
    dates = np.datetime64("2000-01-03") + np.arange(len(close))
    return MarketPanel(dates=dates, assets=tuple(f"A{column}" for column in range(close.shape[1])), close=close)


def assert_equal(left: Features, right: Features, rows: int) -> None:
    np.testing.assert_array_equal(left.assets[:rows], right.assets[:rows])
    np.testing.assert_array_equal(left.market[:rows], right.market[:rows])


RAGGED = pytest.mark.parametrize("ragged", [False, True])


@RAGGED
@pytest.mark.parametrize("bars", [FIT, 561])
def test_cutting_the_data_short_changes_no_bit_of_what_remains(ragged: bool, bars: int) -> None:
    panel = market(ragged=ragged)
    short = compute_features(panel.until(bars), FIT)
    assert short.assets.shape[0] == bars
    assert_equal(compute_features(panel, FIT), short, bars)


def test_every_single_feature_looks_back_only() -> None:
    panel = market(ragged=True)
    shocked = np.array(panel.close)
    shocked[600:] *= np.random.default_rng(1).uniform(0.1, 10.0, shocked[600:].shape)
    views = PanelView(panel), PanelView(rebuilt(shocked))
    for feature in ASSET_FEATURES:
        values = [feature.compute(view) for view in views]
        np.testing.assert_array_equal(values[0][:600], values[1][:600], err_msg=feature.name)
        assert not np.array_equal(values[0][600:], values[1][600:], equal_nan=True), feature.name
    for name, compute in MARKET_FEATURES.items():
        np.testing.assert_array_equal(compute(views[0])[:600], compute(views[1])[:600], err_msg=name)


def test_what_is_fitted_is_fitted_on_the_training_window() -> None:
    features = compute_features(market(), FIT)
    rows = slice(features.first_bar, FIT)
    unclipped = (np.abs(features.assets[rows]) < 5.0).all(axis=(0, 1))
    assert unclipped.sum() > 10
    np.testing.assert_allclose(features.assets[rows].mean(axis=(0, 1))[unclipped], 0.0, atol=1e-3)
    np.testing.assert_allclose(features.assets[rows].std(axis=(0, 1))[unclipped], 1.0, atol=1e-3)
    earlier = compute_features(market(), FIT - 100)
    assert not np.array_equal(features.market[rows], earlier.market[rows])


def test_neither_the_unit_of_a_price_nor_the_order_of_assets_matters() -> None:
    panel, order = market(ragged=True), np.array([3, 0, 5, 1, 4, 2])
    other = rebuilt((panel.close * np.array([1e-6, 0.01, 1.0, 3.7, 100.0, 1e6]))[:, order])
    features, same = compute_features(panel, FIT), compute_features(other, FIT)
    np.testing.assert_allclose(features.assets[:, order], same.assets, atol=1e-5)
    np.testing.assert_allclose(features.market, same.market, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_ragged_listings_give_zeros_and_never_nan(seed: int) -> None:
    panel = market(seed, ragged=True)
    features = compute_features(panel, FIT)
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


def test_assets_that_do_not_move_or_go_wild_stay_finite() -> None:
    close = np.array(market().close)
    close[:, 0] = 7.0
    close[:, 1] = np.where(np.arange(BARS) % 2, 1e-3, 1e3)
    close[300:, 2] *= 1e-4
    close[330:, 3] *= 1e4
    equal = np.repeat(np.array(market().close[:, :1]), 4, axis=1)
    for prices in (close, equal):
        features = compute_features(rebuilt(prices), FIT)
        assert np.isfinite(features.assets).all()
        assert np.isfinite(features.market).all()


def test_every_expert_has_a_lens_and_every_feature_is_read() -> None:
    features = compute_features(market(), FIT)
    assert tuple(features.lenses) == LENSES == ("volatility", "correlation", "momentum", "defensive", "growth")
    assert features.assets.shape == (BARS, 6, len(features.asset_names))
    assert features.market.shape == (BARS, len(features.market_names))
    assert len(set(features.asset_names)) == len(features.asset_names) >= 16
    assert len(set(features.market_names)) == len(features.market_names) >= 8
    assert min(len(columns) for columns in features.lenses.values()) >= 5
    assert set().union(*features.lenses.values()) == set(range(len(features.asset_names)))
    for compute in [*(feature.raw for feature in ASSET_FEATURES), *MARKET_FEATURES.values(), turbulence, crisis]:
        first_sentence = str(compute.__doc__).split("\n\n")[0]
        assert re.search(r"[12]\d{3}[,)]", first_sentence), f"{compute.__name__} names no source"
    assert features.market_names[-2:] == ("turbulence", "crisis")


def test_a_wide_market_is_what_its_assets_are_alone() -> None:
    """Features are made for 32 assets at a time; nobody must see the seams."""
    panel = market(assets=70, ragged=True)
    features, view = compute_features(panel, FIT), PanelView(panel)
    whole = np.stack([feature.compute(view) for feature in ASSET_FEATURES], axis=2)
    usable = np.isfinite(whole).all(axis=2) & panel.listed
    usable[: features.first_bar] = False
    sample = whole[:FIT][usable[:FIT]]
    expected = np.clip((whole - sample.mean(axis=0)) / sample.std(axis=0), -5.0, 5.0)
    np.testing.assert_allclose(features.assets, np.where(usable[..., None], expected, 0.0), atol=1e-6)
    for bars in (FIT, 561):
        assert_equal(features, compute_features(panel.until(bars), FIT), bars)


def test_features_are_what_their_formulas_say() -> None:
    panel = market(assets=4)
    view = PanelView(panel)
    values = {feature.name: feature.compute(view) for feature in ASSET_FEATURES}
    r = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    m = r.mean(axis=1)
    t, a = 640, 2
    year, quarter, month = slice(t - 251, t + 1), slice(t - 62, t + 1), slice(t - 20, t + 1)
    s63, s252 = r[quarter, a].std(ddof=1), r[year, a].std(ddof=1)
    path = np.log(panel.close[:, a])
    beta = np.cov(r[year, a], m[year])[0, 1] / m[year].var(ddof=1)
    correlation = np.corrcoef(r[year, a], m[year])[0, 1]
    expected = {
        "return_1": r[t, a] / s63,
        "return_21": (path[t] - path[t - 21]) / (s63 * 21**0.5),
        "momentum_12_1": (path[t - 21] - path[t - 252]) / (s252 * 231**0.5),
        "rsi_14": r[t - 13 : t + 1, a].sum() / np.abs(r[t - 13 : t + 1, a]).sum(),
        "bollinger_20": (path[t] - path[t - 19 : t + 1].mean()) / (2 * path[t - 19 : t + 1].std(ddof=1)),
        "volatility_21": np.log(r[month, a].std(ddof=1) * 252**0.5),
        "downside_share": (np.minimum(r[quarter, a], 0) ** 2).sum() / (r[quarter, a] ** 2).sum(),
        "beta_252": beta,
        "correlation_252": correlation,
        "idiosyncratic": np.log(s252 * (1 - correlation**2) ** 0.5 * 252**0.5),
        "residual_21": (r[month, a] - beta * m[month]).sum() / (s252 * 21**0.5),
        "drawdown_252": path[t] - path[year].max(),
        "worst_day_63": r[quarter, a].min() / s252,
        "sharpe_252": r[year, a].mean() / s252 * 252**0.5,
        "relative_strength_126": (r[t - 125 : t + 1, a] - m[t - 125 : t + 1]).sum(),
    }
    for name, value in expected.items():
        assert values[name][t, a] == pytest.approx(value, rel=1e-9), name
    wide = {name: compute(view)[t] for name, compute in MARKET_FEATURES.items()}
    covariance = np.cov(r[quarter].T)
    scales = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    off = ~np.eye(4, dtype=bool)
    level = np.nancumsum(m)
    assert wide["mean_correlation"] == pytest.approx(covariance[off].sum() / scales[off].sum(), rel=1e-9)
    assert wide["dispersion"] == pytest.approx(np.log(r[month].std(axis=1).mean()), rel=1e-9)
    assert wide["market_volatility"] == pytest.approx(np.log(m[month].std(ddof=1) * 252**0.5), rel=1e-9)
    assert wide["market_drawdown"] == pytest.approx(level[t] - level[year].max(), rel=1e-9)
    above = np.log(panel.close[t]) > np.log(panel.close[t - 199 : t + 1]).mean(axis=0)
    assert wide["breadth"] == pytest.approx(above.mean())


def test_turbulence_is_the_mahalanobis_distance_to_training() -> None:
    panel = market(assets=4)
    r = np.diff(np.log(panel.close), axis=0)
    training = r[: FIT - 1]
    z = (r - training.mean(axis=0)) / training.std(axis=0, ddof=1)
    inverse = np.linalg.inv(0.9 * np.corrcoef(training.T) + 0.1 * np.eye(4))
    distance = np.einsum("ti,ij,tj->t", z, inverse, z) / 4
    expected = np.log(distance[-10:].mean())
    view = PanelView(panel)
    assert turbulence(view, fit_turbulence(view, FIT))[-1] == pytest.approx(expected, rel=1e-9)


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
        compute_features(rebuilt(close), FIT)


@RAGGED
def test_the_fit_of_one_market_makes_the_features_of_another(ragged: bool) -> None:
    """An agent meets bars that it was not fitted on: nothing of them may move the scale."""
    panel = market(ragged=ragged)
    whole = compute_features(panel, FIT)
    short = compute_features(panel.until(FIT), FIT)
    assert whole.fitted is not None
    assert short.fitted is not None
    assert_equal(apply_features(panel, short.fitted), whole, BARS)
    elsewhere = apply_features(market(seed=1), whole.fitted)
    own = compute_features(market(seed=1), FIT)
    assert not np.array_equal(elsewhere.assets, own.assets)
    assert elsewhere.fitted is whole.fitted


def test_turbulence_rises_when_correlations_break() -> None:
    close = np.array(market(assets=4).close)
    returns = np.diff(np.log(close), axis=0)
    returns[600:] = np.abs(returns[600:]) * np.array([1, -1, 1, -1]) * 3
    broken = rebuilt(np.exp(np.vstack([np.zeros(4), np.cumsum(returns, axis=0)])))
    view = PanelView(broken)
    index = turbulence(view, fit_turbulence(view, FIT))
    assert index[620:].min() > np.nanmax(index[:600])


def test_features_cannot_be_changed() -> None:
    features = compute_features(market(), FIT)
    with pytest.raises(ValueError, match="read-only"):
        features.assets[0] = 1.0
