"""Lots and taxes against ledgers worked by hand."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from finflow.config import TaxConfig
from finflow.ledger.lots import Gains, Losses, Lots, tax_of_year

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
