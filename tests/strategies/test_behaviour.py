"""Behaviour data is real portfolios from the past alone, and the five families are five different things."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.market.panel import MarketPanel
from finflow.strategies.behaviour import FAMILIES, SETTINGS, family_tables

EACH = pytest.mark.parametrize("family", FAMILIES)


def market(seed: int = 0, ragged: bool = True, bars: int = 900) -> MarketPanel:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((bars, 1)) * 0.008
    returns = common * rng.uniform(0.5, 1.5, 6) + rng.standard_normal((bars, 6)) * rng.uniform(0.005, 0.02, 6)
    close = 50.0 * np.exp(np.cumsum(returns, axis=0))
    if ragged:
        close[:130, 0] = np.nan
        close[703:, 1] = np.nan
        close[:500, 2] = np.nan
    return rebuilt(close)


def rebuilt(close: NDArray[np.float64]) -> MarketPanel:
    dates = np.datetime64("2000-01-03") + np.arange(len(close))
    return MarketPanel(dates=dates, assets=tuple(f"A{column}" for column in range(close.shape[1])), close=close)


@EACH
@pytest.mark.parametrize("seed", range(3))
def test_every_row_is_a_portfolio_of_what_is_listed(family: str, seed: int) -> None:
    panel = market(seed)
    tables = family_tables(panel, family)
    assert tables.shape == (len(SETTINGS[family]), panel.n_bars, panel.n_assets + 1)
    assert tables.dtype == np.float64
    assert (tables >= 0.0).all()
    np.testing.assert_allclose(tables.sum(axis=2), 1.0, atol=1e-12)
    assert (tables[:, :, :-1][:, ~panel.listed] == 0.0).all()
    np.testing.assert_allclose(tables[:, 10, :-1], panel.listed[10] / 4 * np.ones((len(tables), 1)))  # no history yet
    assert not tables[:, 10, -1].any()


@EACH
def test_the_future_changes_no_bit_of_a_decision_before_it(family: str) -> None:
    panel = market()
    whole = family_tables(panel, family)
    for bars in (300, 704, 899):
        np.testing.assert_array_equal(whole[:, :bars], family_tables(panel.until(bars), family))
    shocked = np.array(panel.close)
    shocked[800:] *= np.random.default_rng(1).uniform(0.5, 2.0, shocked[800:].shape)
    after = family_tables(rebuilt(shocked), family)
    np.testing.assert_array_equal(whole[:, :800], after[:, :800])
    assert not np.array_equal(whole[:, 860:], after[:, 860:])


@EACH
def test_assets_that_do_not_move_or_are_the_same_break_nothing(family: str) -> None:
    close = np.array(market(ragged=False).close)
    close[:, 0] = 7.0
    close[:, 2] = close[:, 1]
    tables = family_tables(rebuilt(close), family)
    assert np.isfinite(tables).all()
    np.testing.assert_allclose(tables.sum(axis=2), 1.0, atol=1e-12)


def calm_and_wild() -> MarketPanel:
    """Two calm assets, one of them rising, and two wild ones, one of them rising faster, of one common factor."""
    rng = np.random.default_rng(5)
    common = rng.standard_normal((900, 1)) * 0.008
    own = rng.standard_normal((900, 4)) * np.array([0.004, 0.004, 0.02, 0.02])
    drift = np.array([0.0005, -0.0002, 0.003, -0.001])
    return rebuilt(np.exp(np.cumsum(common * np.array([0.5, 0.5, 1.5, 1.5]) + own + drift, axis=0)))


def test_each_family_does_what_its_name_says() -> None:
    panel = calm_and_wild()
    mean = {family: family_tables(panel, family)[:, 780:].mean(axis=1) for family in FAMILIES}
    for family in ("volatility", "defensive"):
        assert (mean[family][:, :2].sum(axis=1) > mean[family][:, 2:4].sum(axis=1)).all()
    assert (mean["momentum"][:, [0, 2]].sum(axis=1) > mean["momentum"][:, [1, 3]].sum(axis=1)).all()
    assert (mean["growth"][:, 2] > mean["growth"][:, [0, 1, 3]].max(axis=1)).all()


def test_the_correlation_family_spreads_over_what_is_not_alike() -> None:
    rng = np.random.default_rng(2)
    crowd = rng.standard_normal((900, 1)) * 0.01 + rng.standard_normal((900, 4)) * 0.003
    loner = rng.standard_normal((900, 1)) * 0.01
    panel = rebuilt(np.exp(np.cumsum(np.hstack([crowd, loner]), axis=0)))
    tables = family_tables(panel, "correlation")[:, 500:, :-1]
    share = tables / tables.sum(axis=2, keepdims=True)
    assert (share[:, :, 4] > 0.3).all()
    assert (share[:, :, :4] < 0.25).all()


def test_volatility_targets_are_kept_by_holding_cash() -> None:
    rng = np.random.default_rng(3)
    wild = np.where(np.arange(900) < 600, 0.005, 0.03)[:, None]
    panel = rebuilt(np.exp(np.cumsum(rng.standard_normal((900, 4)) * wild, axis=0)))
    tables = family_tables(panel, "volatility")
    for setting, table in zip(SETTINGS["volatility"], tables, strict=True):
        if setting.cash == 0.0:
            assert not table[:, -1].any()
        elif setting.horizon <= 126:
            assert table[880, -1] > table[590, -1] + 0.2


def test_defence_and_trends_go_to_cash_when_the_market_falls() -> None:
    rng = np.random.default_rng(4)
    drift = np.where(np.arange(900) < 600, 0.001, -0.003)[:, None]
    panel = rebuilt(np.exp(np.cumsum(rng.standard_normal((900, 4)) * 0.01 + drift, axis=0)))
    for family in ("defensive", "momentum"):
        for setting, table in zip(SETTINGS[family], family_tables(panel, family), strict=True):
            assert table[899, -1] == pytest.approx(setting.cash, abs=0.02)
