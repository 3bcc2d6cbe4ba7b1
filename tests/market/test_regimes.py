"""The regime feature sees who leads, knows the past alone, and says nothing where there is nothing to fit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import FeaturesConfig
from finflow.market.features.feature_set import apply_features, compute_features
from finflow.market.features.market_features import crisis, fit_states
from finflow.market.features.regimes import fit_regimes, regime
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel

BARS, FIT = 4000, 3000
STAY = 0.97
CHOSEN = FeaturesConfig(filters="none")


def returns_of(seed: int = 0, bars: int = BARS, spread: float = 1.0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Four assets: the first leads in one regime and the last in the other; their mean is the same in both."""
    rng = np.random.default_rng(seed)
    states = np.zeros(bars, dtype=np.int64)
    for bar in range(1, bars):
        states[bar] = states[bar - 1] if rng.random() < STAY else 1 - states[bar - 1]
    lead = np.array([0.006, 0.002, -0.002, -0.006])
    means = np.where(states[:, None] == 0, lead, lead[::-1])
    return means + np.where(states[:, None] == 0, 1.0, spread) * 0.01 * rng.standard_normal((bars, 4)), states


def panel_of(returns: NDArray[np.float64]) -> MarketPanel:
    dates = np.datetime64("1990-01-01") + np.arange(len(returns))
    assets = tuple(f"A{column}" for column in range(returns.shape[1]))
    return MarketPanel(dates=dates, assets=assets, close=50.0 * np.exp(np.cumsum(returns, axis=0)))


def agreement(probability: NDArray[np.float64], states: NDArray[np.int64]) -> float:
    """Share of bars whose likelier regime is the true one, whatever the numbers of the regimes."""
    right = float(((probability > 0.5) == (states == 1)).mean())
    return max(right, 1.0 - right)


def test_it_sees_who_leads_where_the_mean_says_nothing() -> None:
    returns, states = returns_of()
    view = PanelView(panel_of(returns))
    found = regime(view, fit_regimes(view, FIT))
    assert agreement(found[FIT:], states[FIT:]) > 0.9  # bars that it was not fitted to
    assert agreement(crisis(view, fit_states(view.market[:FIT, 0]))[FIT:], states[FIT:]) < 0.65


def test_the_second_regime_is_the_one_that_spreads_more() -> None:
    returns, states = returns_of(spread=2.0)
    for column_order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        view = PanelView(panel_of(returns[:, column_order]))
        found = regime(view, fit_regimes(view, FIT))
        assert ((found > 0.5) == (states == 1)).mean() > 0.95


def test_later_prices_change_nothing_before_them() -> None:
    returns, _ = returns_of()
    fitted = compute_features(panel_of(returns), FIT, CHOSEN).fitted
    assert fitted is not None
    changed = returns.copy()
    changed[3500:] *= -3.0
    tables = [apply_features(panel_of(one), fitted, CHOSEN) for one in (returns, changed, returns[:3500])]
    column = tables[0].market_names.index("regime")
    for other in tables[1:]:
        np.testing.assert_array_equal(other.market[:3500, column], tables[0].market[:3500, column])
    assert not np.array_equal(tables[1].market[3500:, column], tables[0].market[3500:, column])
    after = compute_features(panel_of(np.concatenate([returns[:FIT], changed[FIT:]])), FIT, CHOSEN)
    np.testing.assert_array_equal(after.market[:3500], tables[0].market[:3500])  # nothing is fitted after training


def test_assets_that_list_late_or_end_early_are_no_hindrance() -> None:
    returns, states = returns_of()
    panel = panel_of(returns)
    close = panel.close.copy()
    close[:1500, 1] = np.nan
    close[3200:, 2] = np.nan
    view = PanelView(MarketPanel(dates=panel.dates, assets=panel.assets, close=close))
    found = regime(view, fit_regimes(view, FIT))
    assert np.isfinite(found).all()
    assert agreement(found[FIT:], states[FIT:]) > 0.85


def test_with_few_bars_it_is_constant() -> None:
    returns, _ = returns_of(bars=800)
    view = PanelView(panel_of(returns))
    assert fit_regimes(view, 200) is None
    np.testing.assert_array_equal(regime(view, None), 0.5)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_key_decides_whether_agents_see_it(wanted: bool) -> None:
    returns, _ = returns_of(bars=1200)
    found = compute_features(panel_of(returns), 900, FeaturesConfig(filters="none", regimes=wanted))
    assert ("regime" in found.market_names) == wanted
    assert found.market.shape[1] == len(found.market_names)
