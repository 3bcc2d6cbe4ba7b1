"""Partial trading is what dynamic programming finds, and what our ledger pays best where its limit holds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.ledger.costs import LinearSlippage
from finflow.market.synthetic.price_processes import MeanReversion
from finflow.strategies.optimal.garleanu_pedersen import PartialTrading, SpreadRule, spread_rule
from finflow.strategies.optimal.optimal_policy import CLOSED_FORM, ON_A_GRID, Rule, optimum
from tests.strategies.earned_growth import PATHS, draw_paths, earned_growth

FloatArray = NDArray[np.float64]

COST = 0.2
BARS, SETTLING = 400, 100


def problem(discount: float, n: int = 3) -> PartialTrading:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, n))
    return PartialTrading(
        covariance=root @ root.T + np.eye(n),
        loadings=rng.normal(size=(n, 2)),
        decay=np.array([[0.1, 0.05], [0.0, 0.4]]),
        cost=np.diag([0.5, 2.0, 1.0][:n]) + 0.2,  # not a multiple of the covariance
        aversion=2.0,
        discount=discount,
    )


def bellman(given: PartialTrading, bars: int) -> tuple[FloatArray, FloatArray]:
    """Best holdings as a linear map of (held, signals), by backward induction over so many bars.

    With the value -s' M s / 2 of s = (held, signals) a bar later, x maximises
    b (x' B f - gamma x' Sigma x / 2) - dx' Lambda dx / 2 - b s' M s / 2 at s = (x, (1 - Phi) f), b = 1 - rho.
    """
    n, kept = len(given.covariance), 1.0 - given.discount
    ahead = np.eye(len(given.decay)) - given.decay
    later = np.zeros((n + len(ahead),) * 2)
    for _ in range(bars):
        bend = given.cost + kept * (given.aversion * given.covariance + later[:n, :n])
        pull = np.hstack([given.cost, kept * (given.loadings - later[:n, n:] @ ahead)])
        best = np.linalg.solve(bend, pull)
        start = np.zeros_like(later)
        start[:n, :n], start[n:, n:] = given.cost, kept * ahead.T @ later[n:, n:] @ ahead
        later = start - pull.T @ best
    return best[:, :n], best[:, n:]


@pytest.mark.parametrize("discount", [0.0, 0.002, 0.3])
def test_the_closed_form_is_what_backward_induction_finds(discount: float) -> None:
    given = problem(discount)
    kept, moved = bellman(given, 400)
    np.testing.assert_allclose(given.rate, np.eye(3) - kept, atol=1e-10)
    np.testing.assert_allclose(given.rate @ given.aim, moved, atol=1e-10)
    held, signals = np.random.default_rng(1).normal(size=(2, 5, 3))
    np.testing.assert_allclose(given.trade(held, signals[:, :2]), held @ kept.T + signals[:, :2] @ moved.T, atol=1e-9)


def test_costs_in_proportion_to_risk_give_the_published_formula() -> None:
    """Proposition 2, with lambda = 3, gamma = 2, rho = 0.1, written out."""
    given = problem(0.1)
    given = PartialTrading(given.covariance, given.loadings, given.decay, 3.0 * given.covariance, 2.0, 0.1)
    a = (np.sqrt((2.0 * 0.9 + 3.0 * 0.1) ** 2 + 4.0 * 2.0 * 3.0 * 0.81) - (2.0 * 0.9 + 3.0 * 0.1)) / 1.8
    np.testing.assert_allclose(given.rate, a / 3.0 * np.eye(3), atol=1e-12)
    markowitz = np.linalg.solve(2.0 * given.covariance, given.loadings)
    np.testing.assert_allclose(given.aim, markowitz @ np.linalg.inv(np.eye(2) + given.decay * a / 2.0), atol=1e-12)


@lru_cache
def slow_spread() -> MeanReversion:
    """Weights within 0.15 of one half without costs, persistent enough that a bar says little."""
    persistence = 0.998
    return MeanReversion(0.0005, 0.01, float(np.sqrt((1.0 - persistence) / 2.0) / 0.15), persistence, 2)


@lru_cache
def paths() -> tuple[FloatArray, FloatArray]:
    return draw_paths(slow_spread(), 1, BARS)


def earned(rule: Rule) -> FloatArray:
    return earned_growth(slow_spread(), paths(), rule.targets, LinearSlippage(COST), SETTLING)


def test_no_other_rate_or_aim_earns_more_on_the_ledger() -> None:
    best = optimum(slow_spread(), 0.0, participation_cost=COST)
    assert best.method == CLOSED_FORM
    rule = best.policy.rule
    assert isinstance(rule, SpreadRule)
    own = earned(rule)
    assert own.mean() == pytest.approx(best.utility, rel=0.03)  # the limit's own error, and chance
    for rate, aim in ((0.6, 1.0), (1.5, 1.0), (0.0, 1.0), (1.0, 0.6), (1.0, 1.5), (1.0, 0.0), (1.0, -1.0)):
        gain = earned(SpreadRule(rate * rule.rate, aim * rule.aim)) - own
        assert gain.mean() < -4.0 * gain.std() / np.sqrt(PATHS), (rate, aim)


def test_where_bounds_bind_the_grid_takes_over() -> None:
    fast = MeanReversion(mean=0.0005, common=0.01, innovation=0.02, persistence=0.9, assets=2)
    assert not spread_rule(fast, 0.02).valid
    best = optimum(fast, 0.0, participation_cost=0.02)
    assert best.method == ON_A_GRID
    free = optimum(fast, 0.0)
    assert 0.0 < best.utility < free.utility
