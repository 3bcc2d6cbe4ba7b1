"""Exposures are those that were planted, and factors use nothing of the day they are of."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from finflow.evaluation.analysis import factors
from finflow.market.sources.shipped_prices import shipped_table
from tests.evaluation.made_up import context_of, process_of


def test_planted_exposures_are_found_within_their_errors() -> None:
    rng = np.random.default_rng(0)
    market, value = rng.normal(0.0, 0.01, (2, 2000))
    excess = 2e-4 + 0.8 * market - 0.3 * value + rng.normal(0.0, 0.002, 2000)
    found = factors.exposures(excess, {"market": market, "value": value})
    assert found is not None
    for name, planted in (("market", 0.8), ("value", -0.3)):
        error = found["error"][name]
        assert abs(found["beta"][name] - planted) < 3.0 * error
        assert 0.002 < error < 0.008  # 0.002 / (0.01 * sqrt(2000)) = 0.0045
    assert abs(found["alpha"] - 252 * 2e-4) < 3.0 * found["alpha_error"]
    assert found["r_squared"] == pytest.approx(0.947, abs=0.01)
    assert found["days"] == 2000


def test_nothing_is_said_of_few_days_or_of_factors_that_are_one() -> None:
    rng = np.random.default_rng(0)
    market, excess = rng.normal(0.0, 0.01, (2, 500))
    assert factors.exposures(excess[:100], {"market": market[:100]}) is None
    assert factors.exposures(excess, {"market": market, "again": market}) is None
    assert factors.exposures(excess, {"market": np.zeros(500)}) is None
    holed = np.where(np.arange(500) < 450, np.nan, market)
    assert factors.exposures(excess, {"market": holed}) is None


def test_factors_of_a_panel_by_their_definition() -> None:
    panel = process_of(assets=6).panel
    bars = range(250, 320)
    found = factors.panel_factors(panel, bars)
    assert np.isnan(found["momentum"][:3]).all()  # a return and a year before it are needed
    assert np.isfinite(found["momentum"][3:]).all()
    bar, row = 300, 50
    returns = panel.close[1:] / panel.close[:-1] - 1.0
    today = returns[bar - 1]
    assert found["market"][row] == pytest.approx(today.mean() - 5e-5)
    rose = np.argsort(panel.close[bar - 22] / panel.close[bar - 253])
    assert found["momentum"][row] == pytest.approx(today[rose[-2:]].mean() - today[rose[:2]].mean())
    moved = np.argsort(returns[bar - 253 : bar - 1].std(axis=0))
    assert found["volatility"][row] == pytest.approx(today[moved[-2:]].mean() - today[moved[:2]].mean())


def test_equal_weight_is_the_market_less_what_it_costs_and_etfs_count_on_the_days_they_have() -> None:
    process, window = process_of(), range(300, 600)
    context = context_of(process, window, "buy-and-hold", "equal-weight")
    bars = process.decision_bars(window)
    dates = pd.DatetimeIndex(process.panel.dates[350:560])
    moves = np.random.default_rng(0).normal(0, 0.01, (210, 2))
    prices = pd.DataFrame(np.exp(np.cumsum(moves, axis=0)), index=dates, columns=["X", "Y"])
    now, early = (
        factors.factor_section(process.panel, range(bars.start + 1, bars.stop + 1), context.runs, etfs)
        for etfs in (prices, shipped_table("factors_dataset"))
    )
    assert now is not None
    assert early is not None
    equal, held = (now.numbers["panel"][name] for name in ("equal-weight", "buy-and-hold"))
    assert equal["beta"]["market"] == pytest.approx(1.0, abs=5e-3)
    assert equal["r_squared"] > 0.999
    assert -0.01 < equal["alpha"] < 0.0
    assert held["r_squared"] < equal["r_squared"]
    assert now.numbers["etfs"]["equal-weight"]["days"] == 209
    assert list(now.numbers["etfs"]["equal-weight"]["beta"]) == ["market", "X", "Y"]
    assert early.numbers["etfs"] == {}
    assert any("no window of this market has enough days" in sentence for sentence in early.words)
