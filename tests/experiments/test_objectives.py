"""What a search looks for: objectives of a backtest, and several trainings taken together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finflow.config import OBJECTIVES, RANKING_OBJECTIVES
from finflow.evaluation.analysis.decision_quality import rank
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.significance_tests import track_of
from finflow.experiments.tuning.trial_training import cautious_mean, measure_objectives


def backtest(returns: np.ndarray) -> Backtest:
    steps = len(returns)
    dates = np.datetime64("2020-01-01") + np.arange(steps)
    flat = np.zeros(steps)
    weights = np.tile([1.0, 0.0], (steps, 1))
    return Backtest("mine", dates, returns, flat + 1e-4, flat, flat, weights, ("A", "cash"))


def test_objectives_are_the_metrics_of_the_report_in_the_order_asked_for() -> None:
    rng = np.random.default_rng(0)
    run, base = (backtest(rng.normal(5e-4, 0.01, 300)) for _ in range(2))
    found = measure_objectives(OBJECTIVES, run, 0.05, base, 20)
    assert found[:4] == (
        metrics.sharpe(run.returns, run.cash_returns),
        metrics.sortino(run.returns, run.cash_returns),
        metrics.calmar(run.returns),
        metrics.cvar(run.returns, 0.05),
    )
    assert found[4] == track_of(run.returns - base.returns).dsr(20, 1 / 299)
    assert measure_objectives(("cvar", "sharpe"), run, 0.05) == (found[3], found[0])
    with pytest.raises(ValueError, match="over equal weight"):
        measure_objectives(("dsr",), run, 0.05)


def test_weights_are_judged_as_a_ranking() -> None:
    """Weights that foretell every order measure 1; equal weights have no rank correlation; without a ranking none."""
    rng = np.random.default_rng(2)
    forward = rng.normal(0.0, 0.01, (40, 5))
    foretold = rank(forward - forward.min(), forward, 2)
    run = backtest(rng.normal(5e-4, 0.01, 300))
    assert measure_objectives(RANKING_OBJECTIVES, run, 0.05, ranking=foretold) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    alike = measure_objectives(RANKING_OBJECTIVES, run, 0.05, ranking=rank(np.full((40, 5), 0.2), forward, 2))
    assert np.isfinite(alike[:3]).all()
    assert math.isnan(alike[3])
    assert all(math.isnan(value) for value in measure_objectives(RANKING_OBJECTIVES, run, 0.05))


def test_more_tries_deflate_more() -> None:
    rng = np.random.default_rng(1)
    run, base = backtest(rng.normal(2e-3, 0.01, 300)), backtest(rng.normal(0, 0.01, 300))
    few, many = (measure_objectives(("dsr",), run, 0.05, base, tries)[0] for tries in (2, 200))
    assert 0.0 < many < few < 1.0


def test_what_has_no_risk_is_no_number() -> None:
    run = backtest(np.full(300, 1e-4))
    assert all(math.isnan(value) for value in measure_objectives(("sharpe", "calmar", "dsr"), run, 0.05, run, 3))


def test_several_trainings_count_by_their_mean_less_half_a_deviation() -> None:
    assert cautious_mean([1.0, 3.0]) == pytest.approx(2.0 - 0.5 * math.sqrt(2.0))
    assert cautious_mean([1.5]) == 1.5
    assert math.isnan(cautious_mean([1.0, math.nan]))
