"""Costs are what was agreed, add up, and are zero where nothing is traded."""

from __future__ import annotations

import numpy as np
import pytest

from finflow.ledger.costs import BASIS_POINT, Proportional, SumOfCosts

TRADES = np.array([[0.3, -0.1], [0.0, 0.0], [-0.5, 0.0]])
WEALTH = np.array([1e6, 1e6, 1.0])


def test_a_commission_is_a_share_of_what_is_bought_and_sold() -> None:
    np.testing.assert_allclose(Proportional(0.001).share(TRADES, WEALTH), [0.0004, 0.0, 0.0005], rtol=1e-15)


def test_costs_add_up() -> None:
    both = SumOfCosts([Proportional(10.0 * BASIS_POINT), Proportional(5.0 * BASIS_POINT)])
    np.testing.assert_allclose(both.share(TRADES, WEALTH), Proportional(0.0015).share(TRADES, WEALTH), rtol=1e-14)


@pytest.mark.parametrize(
    "model", [Proportional(0.2), SumOfCosts([Proportional(0.1), Proportional(0.1)]), SumOfCosts([])]
)
def test_no_trade_costs_nothing(model: SumOfCosts) -> None:
    assert model.share(TRADES, WEALTH)[1] == 0.0


def test_no_costs_at_all_are_zero_for_every_account() -> None:
    np.testing.assert_array_equal(SumOfCosts([]).share(TRADES, WEALTH), np.zeros(3))


def test_an_account_that_lost_everything_pays_nothing_for_no_trade() -> None:
    assert SumOfCosts([Proportional(0.001)]).share(np.zeros((1, 2)), np.zeros(1)).tolist() == [0.0]
