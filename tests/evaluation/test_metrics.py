"""Metrics against hand computations, their properties, and quantstats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from quantstats import stats

from finflow.evaluation.statistics import metrics
from tests.evaluation.made_up import backtest_of

OF_RETURNS = (
    metrics.annual_return,
    metrics.annual_volatility,
    metrics.sharpe,
    metrics.sortino,
    metrics.calmar,
    metrics.max_drawdown,
    metrics.cvar,
    metrics.annual_turnover,
    metrics.annual_cost,
)


YEAR = math.sqrt(252)
RATIO = 0.02 / math.sqrt(2e-4) * YEAR


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (metrics.annual_return([0.1, -0.1]), 0.99**126 - 1),
        (metrics.annual_return([0.1, -1.0, 0.1]), -1.0),  # ruin
        (metrics.annual_volatility([0.01, 0.03]), math.sqrt(2e-4) * YEAR),
        (metrics.sharpe([0.01, 0.03]), RATIO),
        (metrics.sharpe([0.011, 0.032], [0.001, 0.002]), RATIO),
        (metrics.sortino([0.03, -0.01]), 0.01 / math.sqrt(1e-4 / 2) * YEAR),
        (metrics.drawdown_series([-0.1, 0.5, -0.2]), [-0.1, 0.0, -0.2]),
        (metrics.max_drawdown([-0.1, 0.5, -0.2]), -0.2),
        (metrics.max_drawdown([0.1, 0.0]), 0.0),
        (metrics.max_drawdown([0.1, -1.0, 0.1]), -1.0),
        (metrics.calmar([-0.1, 0.2]), (1.08**126 - 1) / 0.1),
        (metrics.calmar([0.1, -1.0, 0.1]), -1.0),
        (metrics.annual_turnover([1.0, 0.0, 0.0, 0.0]), 63.0),
        (metrics.annual_cost([0.0015, 0.0]), 0.189),
    ],
)
def test_metrics_by_hand(found: object, expected: object) -> None:
    assert found == pytest.approx(expected)


def test_cvar_weighs_the_last_day_by_its_fraction() -> None:
    returns = [0.05, -0.04, -0.02, 0.01]
    assert metrics.cvar(returns, 0.25) == pytest.approx(-0.04)
    assert metrics.cvar(returns, 0.5) == pytest.approx(-0.03)
    assert metrics.cvar(returns, 0.375) == pytest.approx((-0.04 + 0.5 * -0.02) / 1.5)
    assert metrics.cvar(returns, 1.0) == pytest.approx(0.0)
    assert metrics.cvar(returns, 0.01) == pytest.approx(-0.04), "less than a day is the worst day"


@pytest.mark.parametrize("metric", OF_RETURNS)
def test_nothing_and_gaps_give_nan(metric: Callable[..., float]) -> None:
    assert math.isnan(metric([]))
    assert math.isnan(metric([0.01, float("nan"), -0.01]))


@pytest.mark.parametrize("value", [0.0, 1e-4, -1e-4])
def test_without_risk_there_is_no_ratio(value: float) -> None:
    flat = np.full(500, value)
    assert math.isnan(metrics.annual_volatility([0.01])), "one day has no deviation"
    assert metrics.annual_volatility(flat) == pytest.approx(0.0, abs=1e-15)
    assert math.isnan(metrics.sharpe(flat))
    assert math.isnan(metrics.sharpe(flat + 1e-3, 1e-3)), "all cash"
    assert math.isnan(metrics.sortino(np.abs(flat)))
    assert math.isnan(metrics.calmar(np.abs(flat)))


@pytest.mark.parametrize("metric", OF_RETURNS)
def test_each_of_several_series_is_worth_what_it_is_alone(metric: Callable[..., np.ndarray]) -> None:
    several = 0.01 * np.random.default_rng(0).standard_normal((3, 2, 40))
    assert np.array_equal(metric(several), [[metric(series) for series in pair] for pair in several])


def test_the_summary_has_every_metric() -> None:
    run = backtest_of("x")
    summary = metrics.summarise(run, 0.1)
    assert summary["sharpe"] == metrics.sharpe(run.returns, run.cash_returns)
    assert summary["cvar"] == metrics.cvar(run.returns, 0.1)
    assert summary["annual_turnover"] == metrics.annual_turnover(run.turnover)
    assert set(summary) == {metric.__name__ for metric in OF_RETURNS}


@pytest.mark.parametrize("drift", [-1e-3, 1e-3])
def test_quantstats_agrees(drift: float) -> None:
    returns = np.random.default_rng(5).standard_t(4, 1000) * 0.01 + drift
    series = pd.Series(returns, index=pd.bdate_range("2016-01-04", periods=1000))
    rate = 0.03
    cash = np.full(1000, (1 + rate) ** (1 / 252) - 1)
    close = {"rel": 1e-10, "abs": 1e-12}
    assert metrics.annual_return(returns) == pytest.approx(stats.cagr(series), **close)
    assert metrics.annual_volatility(returns) == pytest.approx(stats.volatility(series), **close)
    assert metrics.sharpe(returns, cash) == pytest.approx(stats.sharpe(series, rf=rate), **close)
    assert metrics.sortino(returns, cash) == pytest.approx(stats.sortino(series, rf=rate), **close)
    assert metrics.max_drawdown(returns) == pytest.approx(stats.max_drawdown(series), **close)
    assert metrics.calmar(returns) == pytest.approx(stats.calmar(series), **close)
    # a tail of 50 whole days: quantstats gives the last day no fraction
    theirs = stats.conditional_value_at_risk(series, method="historical")
    assert metrics.cvar(returns, 0.05) == pytest.approx(theirs, **close)
    np.testing.assert_allclose(metrics.drawdown_series(returns), stats.to_drawdown_series(series), atol=1e-12)
