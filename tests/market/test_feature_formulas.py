"""Features are what their formulas say, by hand or by pandas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from finflow.market.features import rolling_windows as rolling
from finflow.market.features.asset_features import ASSET_FEATURES, HALF_LIVES, relative_average
from finflow.market.features.feature_set import compute_features
from finflow.market.features.market_features import MARKET_FEATURES, fit_turbulence, turbulence
from finflow.market.features.rolling_windows import DAILY_WINDOWS, PanelView
from tests.market.test_features import FIT, fields_of, market


def values_of(view: PanelView, traded: bool = False) -> dict[str, NDArray[np.float64]]:
    """Features by their names, of closes alone or of the other fields."""
    chosen = [feature for feature in ASSET_FEATURES if bool(feature.needs) == traded]
    return {DAILY_WINDOWS.named(feature.name): feature.compute(view) for feature in chosen}


def test_features_are_what_their_formulas_say() -> None:
    panel = market(assets=4)
    view = PanelView(panel)
    values = values_of(view)
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
    wide = {name: formula(view, view.windows)[t] for name, formula in MARKET_FEATURES.items()}
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


def test_features_of_ranges_and_volumes_are_what_their_formulas_say() -> None:
    panel = market()
    c, o, h, low, v = fields_of(panel).values()
    view = PanelView(panel)
    values = values_of(view, traded=True)
    t, a = 640, 2
    r = np.diff(np.log(c), axis=0, prepend=np.nan)
    night = np.vstack([np.full(panel.n_assets, np.nan), np.log(o[1:] / c[:-1])])

    def last(bars: int) -> slice:
        return slice(t - bars + 1, t + 1)

    def amihud(bars: int, asset: int) -> float:
        return float((np.abs(r) / (c * v))[last(bars), asset].mean())

    location = (2 * c - h - low) / (h - low)
    garman = 0.5 * np.log(h / low) ** 2 - (2 * np.log(2) - 1) * np.log(c / o) ** 2
    spread = r[last(63), a].std(ddof=1)
    nights, days = (night[last(63), a] ** 2).sum(), (np.log(c / o)[last(63), a] ** 2).sum()
    order = np.argsort(np.argsort([amihud(63, asset) for asset in range(panel.n_assets)]))
    expected = {
        "parkinson_21": np.log(np.sqrt((np.log(h / low)[last(21), a] ** 2).mean() / (4 * np.log(2)) * 252)),
        "garman_klass_5": np.log(np.sqrt(garman[last(5), a].mean() * 252)),
        "close_location_10": location[last(10), a].mean(),
        "overnight_21": night[last(21), a].sum() / (spread * 21**0.5),
        "overnight_risk_63": nights / (nights + days),
        "abnormal_volume_63": np.log(v[t, a] / v[last(63), a].mean()),
        "volume_trend": np.log(v[last(21), a].mean() / v[last(252), a].mean()),
        "illiquidity_rank": 2 * order[a] / (panel.n_assets - 1) - 1,
        "illiquidity_change": np.log(amihud(21, a) / amihud(252, a)),
        "money_flow_21": (location * v)[last(21), a].sum() / v[last(21), a].sum(),
        "balance_volume_63": (np.sign(r) * v)[last(63), a].sum() / v[last(63), a].sum(),
    }
    assert set(expected) == set(values)
    for name, value in expected.items():
        assert values[name][t, a] == pytest.approx(value, rel=1e-9), name


def test_days_without_trades_or_range_are_small_and_not_infinite() -> None:
    panel = market()
    changed = fields_of(panel)
    changed["volume"][:, 2] = 0.0
    changed["volume"][::2, 3] = 0.0
    changed["volume"][400:, 4] = 0.0
    for name in ("open", "high", "low"):
        changed[name][:, 3] = panel.close[:, 3]
    quiet = replace(panel, **changed)
    values = values_of(PanelView(quiet), traded=True)
    for name, raw in values.items():
        assert np.isfinite(raw[252:, 2:]).all(), name
    assert (values["abnormal_volume_63"][252:, 2] == 0.0).all()
    assert (values["illiquidity_rank"][500:, [2, 4]] > 0.0).all()
    assert (np.abs(values["money_flow_21"][252:]) <= 1.0)[:, 2:].all()
    assert (values["close_location_10"][252:, 3] == 0.0).all()
    features = compute_features(quiet, FIT)
    assert np.isfinite(features.assets).all()
    assert (features.assets[500, 2:] != 0.0).any(axis=1).all()


@pytest.mark.parametrize("half_life", HALF_LIVES)
def test_a_filter_is_what_pandas_says(half_life: float) -> None:
    """An average of market-relative returns, over the deviation that it has for white noise."""
    panel = market(ragged=True)
    returns = pd.DataFrame(np.log(panel.close)).diff()
    relative = returns.sub(returns.mean(axis=1), axis=0)
    average = relative.ewm(halflife=half_life).mean()
    keep = 0.5 ** (1.0 / half_life)
    age = relative.notna().cumsum()
    weights = (1.0 - keep) / (1.0 - keep**age)
    deviation = weights * np.sqrt((1.0 - keep ** (2 * age)) / (1.0 - keep**2))
    expected = (average / deviation / relative.rolling(63).std()).where(relative.notna())
    found = relative_average(PanelView(panel), half_life)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    assert np.isfinite(found[120 + 63 : 560, :2]).all()


Windowed = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


def std(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    return rolling.Series(values).std(window)


NAIVE: dict[Windowed, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    rolling.total: lambda rows: rows.sum(axis=-1),
    rolling.mean: lambda rows: rows.mean(axis=-1),
    std: lambda rows: rows.std(axis=-1, ddof=1),
    rolling.maximum: lambda rows: rows.max(axis=-1),
    rolling.minimum: lambda rows: rows.min(axis=-1),
}


def ragged(seed: int, bars: int = 80, columns: int = 3) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((bars, columns)) * 0.02
    values[: rng.integers(0, 20), 0] = np.nan
    values[bars - rng.integers(0, 20) :, 1] = np.nan
    return values


@pytest.mark.parametrize("function", NAIVE)
@given(seed=st.integers(0, 1000), window=st.integers(2, 30))
def test_windows_equal_numpys(function: Windowed, seed: int, window: int) -> None:
    values = ragged(seed)
    result = function(values, window)
    assert np.isnan(result[: window - 1]).all()
    expected = NAIVE[function](np.lib.stride_tricks.sliding_window_view(values, window, axis=0))
    np.testing.assert_allclose(result[window - 1 :], expected, atol=1e-12)


@pytest.mark.parametrize("function", NAIVE)
def test_a_row_has_the_same_bits_however_much_follows(function: Windowed) -> None:
    values = ragged(1)
    for rows in (30, 55, 79):
        np.testing.assert_array_equal(function(values, 21)[:rows], function(values[:rows], 21))
    np.testing.assert_array_equal(rolling.ema(values, 12)[:50], rolling.ema(values[:50], 12))


def test_a_price_that_stands_still_has_no_deviation() -> None:
    values = np.random.default_rng(0).standard_normal((5000, 1))
    values[4000:] = 0.0
    assert (std(values, 21)[4025:] == 0.0).all()


def test_ranks_by_hand() -> None:
    rows = np.array([[3.0, np.nan, 1.0, 3.0, -2.0], [np.nan, 7.0, np.nan, np.nan, np.nan]])
    expected = [[2 / 3, np.nan, -1 / 3, 2 / 3, -1.0], [np.nan, 0.0, np.nan, np.nan, np.nan]]
    np.testing.assert_allclose(rolling.percentile_rank(rows), expected, rtol=1e-15)
