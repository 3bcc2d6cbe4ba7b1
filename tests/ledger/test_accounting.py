"""The ledger creates no money and loses none and charges what was agreed; lots and taxes by hand."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from finflow.arrays import BoolArray, FloatArray
from finflow.config import TaxConfig
from finflow.ledger.accounting import drift, pay_out, settle
from finflow.ledger.costs import BASIS_POINT, CostModel, Proportional, SumOfCosts
from finflow.ledger.lots import Gains, Losses, Lots, tax_of_year

COSTS = SumOfCosts([Proportional(10.0 * BASIS_POINT), Proportional(5.0 * BASIS_POINT)])
CENT = 0.01

seeds = st.integers(0, 2**32 - 1)


def drawn_with_halts(seed: int, assets: int = 6, batch: int = 40) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Portfolios before and wanted, sparse and spread, and assets that are halted, none to nearly all."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0.1, 1.0, 20.0], size=(2, batch, 1)) * np.ones(assets + 1)
    before, target = (np.stack([rng.dirichlet(row) for row in one]) for one in sizes)
    return before, target, rng.random((batch, assets)) < rng.choice([0.0, 0.2, 0.6], size=(batch, 1))


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
    mixed, cash = np.array([[0.6, 0.3, 0.1]]), np.array([[0.0, 0.0, 1.0]])

    bought = settle(cash, mixed, COSTS, wealth)
    assert wealth[0] * bought.cost[0] == pytest.approx(1348.18, abs=CENT / 2)
    assert bought.turnover[0] == pytest.approx(0.9, abs=1e-15)
    wealth = wealth * bought.wealth_factor
    assert wealth[0] == pytest.approx(998_651.82, abs=CENT / 2)

    moved = drift(bought.weights, np.array([[1.1, 0.8, 1.0]]))
    np.testing.assert_allclose(moved, np.array([[0.66, 0.24, 0.10]]), rtol=0, atol=1e-15)

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


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2])
def test_the_dearest_costs_that_the_configuration_allows_are_solved_too(rate: float) -> None:
    """1000 bp of commission and 1000 bp of slippage: a change from A to B costs 0.2 (1 + mu)."""
    done = settle(np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.0]]), Proportional(rate), np.ones(1))
    assert done.wealth_factor[0] == pytest.approx((1.0 - rate) / (1.0 + rate), abs=1e-15)


def test_a_position_that_ended_is_paid_out_in_full_and_for_nothing() -> None:
    weights = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    listed = np.array([[False, True], [True, True]])
    np.testing.assert_array_equal(pay_out(weights, listed), [[0.0, 0.25, 0.75], [0.5, 0.25, 0.25]])
    assert pay_out(weights, np.ones((2, 2), dtype=bool)) is weights


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
def test_rows_without_a_halt_are_settled_bit_for_bit_as_if_none_were_halted(seed: int) -> None:
    before, target, halted = drawn_with_halts(seed)
    wealth, free = np.full(len(before), 1e6), ~halted.any(axis=1)
    found, plain = (settle(before, target, COSTS, wealth, None, halts) for halts in (halted, None))
    for mine, theirs in zip(found[:3], plain[:3], strict=True):
        np.testing.assert_array_equal(mine[free], theirs[free])


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
    assert bool(torch.isfinite(wanted.grad).all())
    assert float(wanted.grad.abs().sum()) > 0.0


TAX = TaxConfig()


def day(text: str) -> int:
    return dt.date.fromisoformat(text).toordinal()


def test_first_in_first_out_by_hand() -> None:
    # Three purchases, each with 5.00 of commission: 10.05, 14.05 and 12.05 a unit.
    lots = Lots(TAX)
    lots.buy(day("2020-01-02"), 100.0, 1005.0)
    lots.buy(day("2020-06-01"), 100.0, 1405.0)
    lots.buy(day("2020-09-01"), 100.0, 1205.0)
    # 2021-03-01: 150 sold at 13.00 less 6.00 of commission: 1,944.00, 12.96 a unit.
    # 100 of January 2020, held 424 days:  100 * (12.96 - 10.05) =  291.00 long
    #  50 of June 2020, held 273 days:      50 * (12.96 - 14.05) =  -54.50 short
    assert lots.sell(day("2021-03-01"), 150.0, 1944.0) == pytest.approx(Gains(-54.5, 291.0))
    # left: 50 at 14.05 and 100 at 12.05; at 15.00 on 2021-06-15, 379 and 287 days later:
    #  50 * 0.95 = 47.50 long, 100 * 2.95 = 295.00 short
    assert lots.units == 150.0
    assert lots.sell(day("2021-06-15"), 150.0, 150 * 15.0) == pytest.approx(Gains(295.0, 47.5))


def test_a_year_and_a_day_is_long_and_a_year_is_not() -> None:
    for sold, gains in (("2021-01-01", Gains(1.0, 0.0)), ("2021-01-02", Gains(0.0, 1.0))):
        lots = Lots(TAX)
        lots.buy(day("2020-01-02"), 1.0, 1.0)  # 2020 has 366 days: the first of January is 365 days later
        assert lots.sell(day(sold), 1.0, 2.0) == gains


@pytest.mark.parametrize("beyond", [0.0, 1e-10])
def test_selling_everything_leaves_no_rounding_behind(beyond: float) -> None:
    """0.1 and 0.7 are less than 0.8 as floats: lots closed one by one would leave 1e-16 units of the second."""
    lots = Lots(TAX)
    lots.buy(1, 0.1, 2.0)
    lots.buy(2, 0.7, 7.0)
    assert sum(lots.sell(3, lots.units + beyond, 8.0)) == pytest.approx(-1.0)
    assert lots.units == 0.0
    lots.buy(4, 1.0, 7.0)
    assert lots.sell(5, 1.0, 6.0) == Gains(-1.0, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 100.0), st.floats(0.5, 20.0)), min_size=1, max_size=30))
def test_gains_made_and_not_yet_made_are_all_that_was_earned(trades: list[tuple[bool, float, float]]) -> None:
    lots, gains, spent = Lots(TAX), Gains(), 0.0
    for number, (buys, units, price) in enumerate(trades):
        if buys:
            lots.buy(100 * number, units, units * price)
            spent += units * price
        elif lots.units > 0.0:
            units = min(units, lots.units)
            gains = gains.plus(lots.sell(100 * number, units, units * price))
            spent -= units * price
    held = lots.units * 3.0
    if lots.units > 0.0:
        gains = gains.plus(lots.sell(5000, lots.units, held))
    assert sum(gains) == pytest.approx(held - spent, abs=1e-6)


@pytest.mark.parametrize(
    ("gains", "interest", "carried", "owed", "left"),
    [
        # 1,000 short at 37 %, 500 long at 20 %, 100 of interest at 37 %: 370 + 100 + 37
        (Gains(1000, 500), 100.0, Losses(), 507.0, Losses()),
        # 300 lost short are set against 500 long: 200 at 20 %
        (Gains(-300, 500), 0.0, Losses(), 40.0, Losses()),
        # 800 lost long against 500 short: nothing owed, 300 carried as long; interest is taxed all the same
        (Gains(500, -800), 100.0, Losses(), 37.0, Losses(0.0, 300.0)),
        # 500 lost long are set against 800 short: 300 at 37 %, and nothing long
        (Gains(800, -500), 0.0, Losses(), 111.0, Losses()),
        # 250 short carried in: 1,000 - 250 short at 37 %
        (Gains(1000, 0), 0.0, Losses(250.0, 0.0), 277.5, Losses()),
        # 400 long carried in against 100 long: -300 long, then against 200 short: -100 long carried on
        (Gains(200, 100), 0.0, Losses(0.0, 400.0), 0.0, Losses(0.0, 100.0)),
        # losses of both kinds are carried, each as what it is
        (Gains(-20, -30), -5.0, Losses(1.0, 2.0), 0.0, Losses(21.0, 32.0)),
    ],
)
def test_a_year_by_hand(gains: Gains, interest: float, carried: Losses, owed: float, left: Losses) -> None:
    found, remaining = tax_of_year(gains, interest, carried, TAX)
    assert found == pytest.approx(owed)
    assert remaining == pytest.approx(left)
