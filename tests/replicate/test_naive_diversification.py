"""Policies of the 1/N paper: weights against their definitions, and the command beside table 3."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import scipy.optimize

from scripts.replicate.factor_sets import shipped_sets
from scripts.replicate.naive_diversification import POLICIES, WINDOW, hold, in_sample, sharpe
from scripts.replicate.published import NAIVE_DIVERSIFICATION


def months(count: int = WINDOW + 3, assets: int = 4) -> np.ndarray:
    rng = np.random.default_rng(3)
    return 0.005 + 0.03 * rng.standard_normal((count, 1)) + 0.02 * rng.standard_normal((count, assets))


@pytest.mark.parametrize(
    ("name", "linear", "bounded"),
    [
        ("minimum variance", False, False),
        ("minimum variance, long only", False, True),
        ("mean-variance, long only", True, True),
    ],
)
def test_weights_solve_the_policies_problem(name: str, linear: bool, bounded: bool) -> None:
    """Against a general solver; its tolerance bounds the agreement."""
    window = months()[:WINDOW]
    mean, covariance = window.mean(axis=0), np.cov(window.T)

    def loss(weights: np.ndarray) -> float:
        return 1e4 * float(0.5 * weights @ covariance @ weights - linear * (weights @ mean))

    solved = scipy.optimize.minimize(
        loss,
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 4 if bounded else None,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
        options={"ftol": 1e-12},
    ).x
    weights = POLICIES[name](window)
    np.testing.assert_allclose(weights / weights.sum(), solved, atol=2e-3)


def test_mean_variance_is_the_tangency_portfolio_over_the_size_of_its_sum() -> None:
    returns = months()
    window = returns[:WINDOW]
    tangency = np.linalg.inv(np.cov(window.T)) @ window.mean(axis=0)
    assert hold(returns, POLICIES["mean-variance"])[0] == pytest.approx(
        returns[WINDOW] @ tangency / abs(tangency.sum())
    )


def test_a_policy_knows_the_120_months_before_and_no_other() -> None:
    returns = months(WINDOW + 5)
    changed = returns.copy()
    changed[0] = changed[WINDOW + 2 :] = 9.0
    for name in ("minimum variance", "mean-variance"):
        before, after = (hold(one, POLICIES[name]) for one in (returns, changed))
        assert before[1] == after[1]
        assert before[0] != after[0]
        assert before[3] != after[3]


def test_no_portfolio_of_the_same_months_has_a_higher_ratio_than_the_one_in_sample() -> None:
    returns = months(200)
    best = in_sample(returns)
    tangency = np.linalg.solve(np.cov(returns.T), returns.mean(axis=0))
    assert sharpe(returns @ tangency) == pytest.approx(best)
    rng = np.random.default_rng(0)
    assert max(sharpe(returns @ weights) for weights in rng.standard_normal((200, 4))) < best


@pytest.mark.skipif(importlib.util.find_spec("arch") is None, reason="arch is not installed")
@pytest.mark.parametrize("policy", ["1/N", "minimum variance", "mean-variance"])
def test_the_shipped_factors_come_near_table_3(policy: str) -> None:
    """0.012 is what thirteen years of revisions moved the largest figure by; another window or divisor moves more."""
    found = sharpe(hold(shipped_sets()["arch, 2018"].to_numpy(), POLICIES[policy]))
    assert found == pytest.approx(float(NAIVE_DIVERSIFICATION[policy]), abs=0.012)
