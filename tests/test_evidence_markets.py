"""Resampled markets of the presets' evidence, and the rules that its out-of-fold test has to find, or not to."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from finflow.arrays import FloatArray, IntArray
from finflow.config import Config, load_config
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.data.training_data import prepare_from
from scripts.evidence.null_markets import permuted_panel
from scripts.evidence.positive_controls import ENTRY, FREE, Control, controls, rule_table
from scripts.evidence.preset_markets import (
    DEFAULT,
    FIGURES,
    KINDS,
    PRESET,
    daily_returns,
    equal_weight_years,
    preset_table,
    preset_variants,
    resampled_panel,
)

resampled = cache(resampled_panel)
prices = cache(lambda: load_panel(Config().market))


def origin(panel: MarketPanel) -> tuple[IntArray, FloatArray]:
    """The row of the embedded returns that each return is from, by the day's mean, and the returns of all assets."""
    returns, known = daily_returns(panel)[1], daily_returns(prices())[1]
    order = np.argsort(known.mean(axis=1))
    place = np.searchsorted(known.mean(axis=1)[order], returns.mean(axis=1) - 1e-12)
    return order[np.minimum(place, len(order) - 1)], returns


# --- resampled markets


@pytest.mark.parametrize("kind", KINDS)
def test_days_are_whole_and_of_years_of_their_kind(kind: str) -> None:
    """Prices of all assets on one day are of one day; the test window's years are not learned from."""
    rows, returns = origin(resampled(kind, 0))
    year, known = daily_returns(prices())
    np.testing.assert_allclose(returns, known[rows], atol=1e-9)
    assert set(year[rows]) <= set(equal_weight_years(prices(), kind))
    before = split_panel(prices(), Config().market).validation_end - 1
    assert not set(year[rows[:before]]) & set(year[rows[before:]])
    assert np.mean(np.diff(rows) == 1) > 0.99  # years are whole: within one day follows day


def test_thirds_are_apart_in_volatility() -> None:
    year, returns = daily_returns(prices())
    thirds = {kind: equal_weight_years(prices(), kind) for kind in KINDS}
    deviation = {kind: [returns[year == one].mean(axis=1).std() for one in own] for kind, own in thirds.items()}
    assert min(deviation["volatile"]) > max(deviation["calm"])
    assert [len(one) for one in deviation.values()] == [8, 8]  # of the 26 years before the default test window
    assert max(year for own in thirds.values() for year in own) <= 2015  # the test window is not read
    volatile, calm = (daily_returns(resampled(kind, 0))[1].mean(axis=1).std() for kind in KINDS)
    assert volatile > 1.5 * calm


def test_a_seed_is_one_market() -> None:
    assert resampled_panel("calm", 0).sha256 == resampled("calm", 0).sha256
    assert resampled("calm", 1).sha256 != resampled("calm", 0).sha256
    assert resampled("calm", 0).n_bars == prices().n_bars


def test_each_preset_is_beside_the_default_on_its_market() -> None:
    changed = {one.name: one.overrides for one in preset_variants()}
    assert list(changed) == ["volatile-default", "volatile-preset", "calm-default", "calm-preset"]
    assert changed["volatile-preset"]["bcell.cql_alpha"] == 10.0
    assert changed["volatile-default"] == changed["calm-default"]
    assert {keys["out_of_fold.blocks"] for keys in changed.values()} == {1}


def test_a_promise_is_counted_by_the_sign_of_its_difference() -> None:
    """Of two samples, the preset's losses are smaller in one."""
    figures: dict[str, float] = {entry: 0.0 for entry, _ in FIGURES.values()}
    results = [
        {"market": kind, "keys": name, "seed": seed, **figures, "equal_weight": figures}
        for kind in KINDS
        for name in (DEFAULT, PRESET)
        for seed in (0, 1)
    ]
    results[2]["cvar"], results[3]["cvar"] = 0.001, -0.001
    table = preset_table(results)
    assert "| volatile.yaml | losses are smaller (CVaR of a day) | 1 of 2 |" in table
    assert "| volatile.yaml | turnover is lower | 0 of 2 |" in table
    assert "+0.10%, -0.10%" in table


# --- rules with an edge


def momentum_panel(seed: int = 0, years: int = 40, assets: int = 12) -> MarketPanel:
    """Monthly prices whose expected returns last for years: the best of a year are the best of the months after."""
    rng, drift = np.random.default_rng(seed), np.zeros((12 * years, assets))
    for bar in range(1, len(drift)):
        drift[bar] = 0.96 * drift[bar - 1] + rng.normal(0.0, 0.003, assets)
    steps = rng.normal(0.005, 0.03, (len(drift), 1)) + drift + rng.normal(0.0, 0.03, drift.shape)
    dates = pd.bdate_range("1960-01-01", periods=len(drift), freq="BME").to_numpy().astype("datetime64[D]")
    close = 100.0 * np.exp(np.cumsum(steps, axis=0))
    return MarketPanel(dates=dates, assets=tuple(f"A{one}" for one in range(assets)), close=close)


def test_momentum_is_found_where_it_is_planted_and_nowhere_else() -> None:
    (control,) = controls()
    ends = {"market.train_end": "1989-12-31", "market.validation_end": "1994-12-31"}
    config = load_config(None, {**control.keys, **ends}, environ={})
    panel = momentum_panel()
    found = control.measured(prepare_from(panel, config))
    assert found["equal_weight_t"] > 4.0
    assert found["buy_and_hold_t"] > 4.0
    assert found["equal_weight_growth"] > 0.03
    free = load_config(None, {**control.keys, **ends, **FREE}, environ={})
    nothing = [permuted_panel(panel, range(panel.n_bars), seed) for seed in range(6)]
    t = [control.measured(prepare_from(one, free))["equal_weight_t"] for one in nothing]
    assert abs(np.mean(t)) < 1.0
    assert max(t) < found["equal_weight_t"] / 2.0


def test_agents_stand_below_their_rule_with_the_share_of_its_gain_that_they_have() -> None:
    control = Control("momentum", "momentum", {}, ("monthly-growth",))
    gains = {"equal_weight_growth": 0.04, "equal_weight_t": 4.0, "buy_and_hold_growth": -0.01, "buy_and_hold_t": -1.0}
    rule = {**gains, "out_of_fold_turnover": 2.0, "agents": list(control.agents), "code": "a"}
    agent = {"variant": "rollouts-monthly-growth", "out_of_fold_t": 2.4, "code": "b", "buy_and_hold_t": 3.5}
    shown = rule_table({f"{ENTRY}momentum": rule, "one": agent})
    assert "| momentum | +4.00% | 4.0 | -1.00% | -1.0 | - | - | 2.0 | a |" in shown
    assert "| agents of rollouts-monthly-growth | - | - | - | 3.5 | - / - | 2.4 | - | b |" in shown
    grown = {**agent, "equal_weight_growth": 0.01, "buy_and_hold_growth": 0.01}
    assert "| 25% / - | 2.4 |" in rule_table({f"{ENTRY}momentum": rule, "one": grown})
