"""The ledger creates no money and loses none, charges what was agreed, and is the same in NumPy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from finflow.config import EnvConfig
from finflow.ledger.accounting import drift, pay_out, settle
from finflow.ledger.costs import BASIS_POINT, FixedMinimum, Proportional, SumOfCosts, costs_of

FloatArray = NDArray[np.float64]

COSTS = SumOfCosts([Proportional(10.0 * BASIS_POINT), Proportional(5.0 * BASIS_POINT)])
RATE = 0.0015
STEEP = 0.05  # so high that the iteration's own contribution to the gradient, of the order of the rate, would show
CENT = 0.01

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 3, 20, 500])  # risky assets


def portfolios(rng: np.random.Generator, batch: int, assets: int) -> FloatArray:
    """Every kind of portfolio: spread out, concentrated, all in one place, all cash."""
    concentration = rng.choice([0.02, 0.3, 1.0, 50.0], size=(batch, 1))
    drawn = rng.gamma(concentration, size=(batch, assets + 1)) + 1e-300
    weights = drawn / drawn.sum(axis=1, keepdims=True)
    kind = rng.integers(6, size=batch)
    weights[kind == 0] = np.eye(assets + 1)[rng.integers(assets + 1)]
    weights[kind == 1] = np.eye(assets + 1)[-1]
    return weights


def one(values: list[float]) -> FloatArray:
    return np.array([values])


def test_golden_ledger_buy_rebalance_sell_all() -> None:
    """Two assets and cash, 10 bp commission and 5 bp slippage, 1 000 000 in cash to begin with.

    Buy 60 % A, 30 % B: 90 % of what is left is bought, so left = 1 000 000 / (1 + 0.9 * 0.0015) = 998 651.82 and the
    cost is 1 348.18.

    A gains 10 %, B loses 20 %: 0.66 + 0.24 + 0.10 = 1.00, so wealth stays and the weights are 66, 24 and 10 %.

    Back to 60, 30, 10: sold is 0.66 - 0.6 mu of A, bought 0.3 mu - 0.24 of B, together 0.42 - 0.3 mu, so
    mu = 1 - 0.0015 (0.42 - 0.3 mu) = 0.99937 / 0.99955 = 0.999819919, a cost of 179.84; 998 471.98 are left.

    Sell everything at the same prices: 0.0015 * 0.9 = 0.00135 of wealth, 1 347.94; 997 124.04 are left.
    """
    wealth = np.array([1_000_000.0])
    mixed, cash = one([0.6, 0.3, 0.1]), one([0.0, 0.0, 1.0])

    bought = settle(cash, mixed, COSTS, wealth)
    assert wealth[0] * bought.cost[0] == pytest.approx(1348.18, abs=CENT / 2)
    assert bought.turnover[0] == pytest.approx(0.9, abs=1e-15)
    wealth = wealth * bought.wealth_factor
    assert wealth[0] == pytest.approx(998_651.82, abs=CENT / 2)

    moved = drift(bought.weights, one([1.1, 0.8, 1.0]))
    np.testing.assert_allclose(moved, one([0.66, 0.24, 0.10]), rtol=0, atol=1e-15)

    back = settle(moved, mixed, COSTS, wealth)
    assert back.wealth_factor[0] == pytest.approx(0.99937 / 0.99955, abs=1e-15)
    assert wealth[0] * back.cost[0] == pytest.approx(179.84, abs=CENT / 2)
    assert back.turnover[0] == pytest.approx(0.06, abs=1e-15)
    wealth = wealth * back.wealth_factor
    assert wealth[0] == pytest.approx(998_471.98, abs=CENT / 2)

    sold = settle(back.weights, cash, COSTS, wealth)
    assert wealth[0] * sold.cost[0] == pytest.approx(1347.94, abs=CENT / 2)
    assert wealth[0] * sold.wealth_factor[0] == pytest.approx(997_124.04, abs=CENT / 2)
    np.testing.assert_array_equal(sold.weights, cash)


@given(seed=seeds, assets=sizes)
def test_the_wealth_factor_solves_its_equation_and_costs_are_never_negative(seed: int, assets: int) -> None:
    rng = np.random.default_rng(seed)
    before, target = portfolios(rng, 4, assets), portfolios(rng, 4, assets)
    done = settle(before, target, COSTS, np.ones(4))
    trades = np.abs(done.wealth_factor[:, None] * target[:, :-1] - before[:, :-1])
    # a sum of 500 products rounds to a few 1e-16
    np.testing.assert_allclose(done.wealth_factor, 1.0 - RATE * trades.sum(axis=1), rtol=0, atol=1e-14)
    assert (done.cost >= 0.0).all()
    assert (done.turnover >= 0.0).all()
    assert (done.turnover <= 1.0 + 1e-12).all()
    assert (done.cost <= 2.0 * RATE).all()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2])
def test_the_dearest_costs_that_the_configuration_allows_are_solved_too(rate: float) -> None:
    """1000 bp of commission and 1000 bp of slippage: a change from A to B costs 0.2 (1 + mu)."""
    done = settle(one([1.0, 0.0, 0.0]), one([0.0, 1.0, 0.0]), Proportional(rate), np.ones(1))
    assert done.wealth_factor[0] == pytest.approx((1.0 - rate) / (1.0 + rate), abs=1e-15)


def test_a_position_that_ended_is_paid_out_in_full_and_for_nothing() -> None:
    weights = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    listed = np.array([[False, True], [True, True]])
    np.testing.assert_array_equal(pay_out(weights, listed), [[0.0, 0.25, 0.75], [0.5, 0.25, 0.25]])
    assert pay_out(weights, np.ones((2, 2), dtype=bool)) is weights


def test_buying_from_cash_has_the_closed_form() -> None:
    """``mu = 1 - c mu a`` has the root ``1 / (1 + c a)``, whose slope in a is ``- c / (1 + c a)^2``."""
    share = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
    target = torch.stack([share, 1.0 - share], dim=-1)
    before = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    factor = settle(before, target, Proportional(STEEP), torch.ones(2, dtype=torch.float64)).wealth_factor
    (slope,) = torch.autograd.grad(factor.sum(), share)
    known = share.detach()
    torch.testing.assert_close(factor.detach(), 1.0 / (1.0 + STEEP * known), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(slope, -STEEP / (1.0 + STEEP * known) ** 2, rtol=1e-12, atol=0.0)


def test_a_commission_s_minimum_costs_less_the_richer_the_account() -> None:
    """``mu = 1 - m / W``: its slope in wealth is ``m / W^2``."""
    wealth = torch.tensor([100.0], dtype=torch.float64, requires_grad=True)
    before = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
    factor = settle(before, target, FixedMinimum(0.0, 2.0), wealth).wealth_factor
    (slope,) = torch.autograd.grad(factor.sum(), wealth)
    assert float(slope) == pytest.approx(2.0 / 100.0**2, rel=1e-12)


def test_the_root_is_the_accounts_own() -> None:
    """Rounding apart, as NumPy's portfolios are settled."""
    rng = np.random.default_rng(0)
    before, target = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    costs, wealth = costs_of(EnvConfig()), np.full(20, 1e6)
    exact = settle(before, target, costs, wealth)
    tensors = (torch.from_numpy(before), torch.from_numpy(target).requires_grad_())
    found = settle(*tensors, costs, torch.from_numpy(wealth))
    np.testing.assert_allclose(found.wealth_factor.detach().numpy(), exact.wealth_factor, rtol=1e-15)
    np.testing.assert_allclose(found.weights.detach().numpy(), exact.weights, atol=1e-15)


def test_the_gradient_of_a_cost_is_that_of_its_closed_form() -> None:
    """From cash, mu = 1 / (1 + c s) for a purchase of s, so d mu / d s = - c mu^2."""
    bought = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    target = torch.cat([bought, 1.0 - bought], dim=-1)
    cash = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    done = settle(cash, target, COSTS, torch.ones(1, dtype=torch.float64))
    (slope,) = torch.autograd.grad(done.wealth_factor.sum(), bought)
    assert slope.item() == pytest.approx(-RATE / (1.0 + RATE * 0.5) ** 2, abs=1e-15)
