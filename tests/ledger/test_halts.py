"""No share of a halted asset changes hands, whatever the target, and the account pays exactly for the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from finflow.ledger.accounting import settle
from finflow.ledger.constraints import turnover
from finflow.ledger.costs import BASIS_POINT, CostModel, Proportional, SumOfCosts
from finflow.ledger.halts import settle_around_halts

FloatArray = NDArray[np.float64]

COSTS = SumOfCosts([Proportional(10.0 * BASIS_POINT), Proportional(5.0 * BASIS_POINT)])
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, assets: int = 6, batch: int = 40) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Portfolios before and wanted, sparse and spread, and assets that are halted, none to nearly all."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0.1, 1.0, 20.0], size=(2, batch, 1)) * np.ones(assets + 1)
    before, target = (np.stack([rng.dirichlet(row) for row in one]) for one in sizes)
    return before, target, rng.random((batch, assets)) < rng.choice([0.0, 0.2, 0.6], size=(batch, 1))


@pytest.mark.parametrize("costs", [COSTS, Proportional(0.03)])
@given(seed=seeds)
def test_shares_of_halted_assets_stay_and_wealth_is_conserved(costs: CostModel, seed: int) -> None:
    before, target, halted = drawn(seed)
    wealth = np.full(len(before), 1e6)
    done = settle_around_halts(before, target, halted, costs, wealth)
    after = done.weights * done.wealth_factor[:, None]
    np.testing.assert_allclose(after[:, :-1][halted], before[:, :-1][halted], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(done.weights.sum(axis=1), 1.0, atol=1e-12)
    assert (done.weights >= 0.0).all()
    paid = costs.share(after[:, :-1] - before[:, :-1], wealth, None)
    np.testing.assert_allclose(done.wealth_factor, 1.0 - paid, atol=1e-12)


@given(seed=seeds)
def test_going_around_a_halt_trades_no_more_than_was_wanted(seed: int) -> None:
    before, target, halted = drawn(seed)
    free = Proportional(0.0)
    done = settle_around_halts(before, target, halted, free, np.full(len(before), 1e6))
    assert (done.turnover <= turnover(before, target) + 1e-12).all()
    others = np.where(halted, 0.0, done.weights[:, :-1])
    assert (others <= np.maximum(target[:, :-1], 0.0) + 1e-12).all()


@pytest.mark.parametrize("some", [True, False])
def test_rows_without_a_halt_are_settled_as_always(some: bool) -> None:
    before, target, halted = drawn(5)
    halted &= some
    quiet = ~halted.any(axis=1)
    assert quiet.any()
    assert quiet.all() != some
    wealth = np.full(len(before), 1e6)
    around, always = settle_around_halts(before, target, halted, COSTS, wealth), settle(before, target, COSTS, wealth)
    np.testing.assert_array_equal(around.weights[quiet], always.weights[quiet])
    np.testing.assert_array_equal(around.wealth_factor[quiet], always.wealth_factor[quiet])


def test_a_purchase_that_waits_stays_in_cash_and_a_sale_comes_out_of_cash() -> None:
    """By hand, without costs: 20 % A, 30 % B, 50 % cash."""
    before = np.array([[0.2, 0.3, 0.5]])
    halted = np.array([[True, False]])
    free, wealth = Proportional(0.0), np.array([1.0])
    bought = settle_around_halts(before, np.array([[0.6, 0.3, 0.1]]), halted, free, wealth)
    np.testing.assert_allclose(bought.weights, [[0.2, 0.3, 0.5]], atol=1e-15)
    sold = settle_around_halts(before, np.array([[0.0, 0.7, 0.3]]), halted, free, wealth)
    np.testing.assert_allclose(sold.weights, [[0.2, 0.7, 0.1]], atol=1e-15)
    short = settle_around_halts(before, np.array([[0.0, 1.0, 0.0]]), halted, free, wealth)
    np.testing.assert_allclose(short.weights, [[0.2, 0.8, 0.0]], atol=1e-15)


def test_torch_settles_as_numpy_does_and_hands_gradients_through() -> None:
    before, target, halted = drawn(8)
    wealth = np.full(len(before), 1e6)
    numpy = settle_around_halts(before, target, halted, COSTS, wealth)
    wanted = torch.tensor(target, requires_grad=True)
    torched = settle_around_halts(
        torch.tensor(before), wanted, torch.tensor(halted), COSTS, torch.tensor(wealth, dtype=torch.float64)
    )
    np.testing.assert_allclose(torched.weights.detach().numpy(), numpy.weights, atol=1e-12)
    np.testing.assert_allclose(torched.wealth_factor.detach().numpy(), numpy.wealth_factor, atol=1e-12)
    (torched.weights * torch.arange(7.0)).sum().backward()
    assert wanted.grad is not None
    assert bool(torch.isfinite(wanted.grad).all())
    assert float(wanted.grad.abs().sum()) > 0.0
