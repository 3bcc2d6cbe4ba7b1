"""Whole lots: the plan that enumeration finds, affordable to the cent, under every cost model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from finflow.config import EnvConfig
from finflow.ledger.costs import CostModel, MarketState, costs_of
from finflow.trading.order_rounding import Account, Plan, price_plan, round_orders

KINDS: dict[str, dict[str, Any]] = {
    "proportional": {},
    "minimum commission": {"costs": {"minimum": 3.0}},
    "slippage and impact": {"costs": {"slippage_sqrt_bps": 500.0, "impact": 1.0, "minimum": 1.0}},
}
NEAR = 6  # lots on both sides of the target


def enumerated(
    account: Account, wanted: Any, lot: float, reserve: float, costs: CostModel, market: MarketState
) -> float | None:
    """The least distance and cost of all affordable plans near the target."""
    middle = np.round((wanted / account.prices - account.shares) / lot)
    choices = [
        {lots for lots in range(int(at) - NEAR, int(at) + NEAR + 1) if held + lots * lot >= 0.0} | {0}
        for at, held in zip(middle, account.shares, strict=True)
    ]
    plans = (price_plan(account, np.array(lots) * lot, wanted, costs, market) for lots in itertools.product(*choices))
    return min((value_of(plan) for plan in plans if plan.cash >= reserve), default=None)


def value_of(plan: Plan) -> float:
    return plan.distance + plan.cost


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_the_best_of_all(kind: str) -> None:
    rng, costs = np.random.default_rng(0), costs_of(EnvConfig.model_validate(KINDS[kind]))
    market = MarketState(np.full(3, 50_000.0), np.full(3, 0.02))
    for trial in range(8):
        prices = rng.uniform(5.0, 300.0, 3)
        shares = np.floor(rng.uniform(0.0, 20.0, 3)) * (rng.random(3) < 0.7)
        account = Account(shares, prices, rng.uniform(500.0, 5000.0))
        wanted = rng.dirichlet(np.ones(4))[:3] * account.wealth * 0.998
        lot, reserve = 1.0 + trial % 2, 0.02 * account.wealth * (trial % 3 == 0)
        plan = round_orders(account, wanted, lot, reserve, costs, market)
        best = enumerated(account, wanted, lot, reserve, costs, market)
        if best is None:
            assert not plan.trades.any()
            continue
        assert value_of(plan) == pytest.approx(best, abs=1e-6 * account.wealth), trial
        assert plan.cash >= reserve - 1e-6
        np.testing.assert_array_equal(plan.trades % lot, 0.0)


def test_twenty_assets_fully_invested_stay_within_a_share_each() -> None:
    rng = np.random.default_rng(1)
    prices = rng.uniform(5.0, 300.0, 20)
    account = Account(np.zeros(20), prices, 20_000.0)
    wanted = rng.dirichlet(np.ones(20)) * 20_000.0 * 0.9985
    plan = round_orders(account, wanted, 1.0, 0.0, costs_of(EnvConfig()))
    assert plan.cash >= 0.0
    assert (np.abs(plan.trades * prices - wanted) <= prices).all()


def test_any_fraction_of_a_share_reaches_the_target() -> None:
    account = Account(np.array([3.0, 0.0]), np.array([10.0, 40.0]), 100.0)
    wanted = np.array([20.0, 80.0])
    plan = round_orders(account, wanted, 0.0, 0.0, costs_of(EnvConfig()))
    np.testing.assert_allclose(plan.trades, [-1.0, 2.0])
    assert plan.distance == pytest.approx(0.0, abs=1e-9)


def test_fractions_that_would_cost_more_than_there_is_are_cut_to_what_there_is() -> None:
    account = Account(np.zeros(2), np.array([10.0, 40.0]), 100.0)
    plan = round_orders(account, np.array([50.0, 50.0]), 0.0, 0.0, costs_of(EnvConfig()))
    assert plan.cash == pytest.approx(0.0, abs=1e-4)
    assert plan.distance == pytest.approx(0.15, abs=0.01)


def test_an_asset_without_a_price_is_not_traded() -> None:
    account = Account(np.array([0.0, 0.0]), np.array([10.0, np.nan]), 100.0)
    plan = round_orders(account, np.array([90.0, 5.0]), 1.0, 0.0, costs_of(EnvConfig()))
    assert plan.trades.tolist() == [9.0, 0.0]
