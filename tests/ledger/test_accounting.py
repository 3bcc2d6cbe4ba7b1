"""The ledger creates no money and loses none, charges what was agreed, and trades no share of a halted asset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from finflow.ledger.accounting import drift, pay_out, settle
from finflow.ledger.constraints import turnover
from finflow.ledger.costs import BASIS_POINT, CostModel, Proportional, SumOfCosts

FloatArray = NDArray[np.float64]

COSTS = SumOfCosts([Proportional(10.0 * BASIS_POINT), Proportional(5.0 * BASIS_POINT)])
RATE = 0.0015
STEEP = 0.05  # so high that the iteration's own contribution to the gradient, of the order of the rate, would show
CENT = 0.01

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 3, 20, 500])  # risky assets


def drawn_with_halts(seed: int, assets: int = 6, batch: int = 40) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Portfolios before and wanted, sparse and spread, and assets that are halted, none to nearly all."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0.1, 1.0, 20.0], size=(2, batch, 1)) * np.ones(assets + 1)
    before, target = (np.stack([rng.dirichlet(row) for row in one]) for one in sizes)
    return before, target, rng.random((batch, assets)) < rng.choice([0.0, 0.2, 0.6], size=(batch, 1))


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
    before, target, _ = drawn_with_halts(seed, assets, batch=4)
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


@pytest.mark.parametrize("costs", [COSTS, Proportional(0.03)])
@given(seed=seeds)
def test_shares_of_halted_assets_stay_and_wealth_is_conserved(costs: CostModel, seed: int) -> None:
    before, target, halted = drawn_with_halts(seed)
    wealth = np.full(len(before), 1e6)
    done = settle(before, target, costs, wealth, None, halted)
    after = done.weights * done.wealth_factor[:, None]
    np.testing.assert_allclose(after[:, :-1][halted], before[:, :-1][halted], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(done.weights.sum(axis=1), 1.0, atol=1e-12)
    assert (done.weights >= 0.0).all()
    paid = costs.share(after[:, :-1] - before[:, :-1], wealth, None)
    np.testing.assert_allclose(done.wealth_factor, 1.0 - paid, atol=1e-12)


@given(seed=seeds)
def test_going_around_a_halt_trades_no_more_than_was_wanted(seed: int) -> None:
    before, target, halted = drawn_with_halts(seed)
    free = Proportional(0.0)
    done = settle(before, target, free, np.full(len(before), 1e6), None, halted)
    assert (done.turnover <= turnover(before, target) + 1e-12).all()
    others = np.where(halted, 0.0, done.weights[:, :-1])
    assert (others <= np.maximum(target[:, :-1], 0.0) + 1e-12).all()


@pytest.mark.parametrize("some", [True, False])
def test_rows_without_a_halt_are_settled_as_always(some: bool) -> None:
    before, target, halted = drawn_with_halts(5)
    halted &= some
    quiet = ~halted.any(axis=1)
    assert quiet.any()
    assert quiet.all() != some
    wealth = np.full(len(before), 1e6)
    around, always = settle(before, target, COSTS, wealth, None, halted), settle(before, target, COSTS, wealth)
    np.testing.assert_array_equal(around.weights[quiet], always.weights[quiet])
    np.testing.assert_array_equal(around.wealth_factor[quiet], always.wealth_factor[quiet])


def test_a_purchase_that_waits_stays_in_cash_and_a_sale_comes_out_of_cash() -> None:
    """By hand, without costs: 20 % A, 30 % B, 50 % cash."""
    before = np.array([[0.2, 0.3, 0.5]])
    halted = np.array([[True, False]])
    free, wealth = Proportional(0.0), np.array([1.0])
    bought = settle(before, np.array([[0.6, 0.3, 0.1]]), free, wealth, None, halted)
    np.testing.assert_allclose(bought.weights, [[0.2, 0.3, 0.5]], atol=1e-15)
    sold = settle(before, np.array([[0.0, 0.7, 0.3]]), free, wealth, None, halted)
    np.testing.assert_allclose(sold.weights, [[0.2, 0.7, 0.1]], atol=1e-15)
    short = settle(before, np.array([[0.0, 1.0, 0.0]]), free, wealth, None, halted)
    np.testing.assert_allclose(short.weights, [[0.2, 0.8, 0.0]], atol=1e-15)


def test_torch_settles_as_numpy_does_and_hands_gradients_through() -> None:
    before, target, halted = drawn_with_halts(8)
    wealth = np.full(len(before), 1e6)
    numpy = settle(before, target, COSTS, wealth, None, halted)
    wanted = torch.tensor(target, requires_grad=True)
    torched = settle(torch.tensor(before), wanted, COSTS, torch.tensor(wealth), None, torch.tensor(halted))
    np.testing.assert_allclose(torched.weights.detach().numpy(), numpy.weights, atol=1e-12)
    np.testing.assert_allclose(torched.wealth_factor.detach().numpy(), numpy.wealth_factor, atol=1e-12)
    (torched.weights * torch.arange(7.0)).sum().backward()
    assert wanted.grad is not None
    assert bool(torch.isfinite(wanted.grad).all())
    assert float(wanted.grad.abs().sum()) > 0.0
