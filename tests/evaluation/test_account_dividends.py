"""Trades, holdings and taxes of an account whose dividends are paid in cash: in shares, at the prices of the time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import TaxConfig
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.account import after_tax, holdings, trades
from finflow.evaluation.backtest import run_backtests
from finflow.market.dividends import reinvest
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold
from tests.evaluation.plain_processes import Planned, Wandering, process_on

FloatArray = NDArray[np.float64]
WINDOW = range(4, 48)


def process_of(
    dates: NDArray[np.datetime64], close: FloatArray, paid: FloatArray, cash: FloatArray, **env: float
) -> DecisionProcess:
    """A market of these closes and dividends, in money a share."""
    names = tuple("ABC"[: close.shape[1]])
    panel = MarketPanel(dates=dates, assets=names, cash_returns=cash, **reinvest({"close": close}, paid, dates, names))
    return process_on(panel, **env)


@pytest.fixture
def market() -> tuple[FloatArray, FloatArray]:
    """Closes and dividends of three assets."""
    rng = np.random.default_rng(0)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, size=(50, 3)), axis=0))
    paid = np.zeros(close.shape)
    paid[9::11, 0], paid[25, 2] = 0.7, 6.0
    return close, paid


def made(market: tuple[FloatArray, FloatArray], lag: int) -> DecisionProcess:
    dates = np.datetime64("2020-01-01") + np.arange(50)
    return process_of(dates, *market, np.append(0.0, np.full(49, 1e-4)), execution_lag=lag)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_bank_account_kept_from_the_trades_alone_ends_with_the_same_wealth(
    market: tuple[FloatArray, FloatArray], lag: int
) -> None:
    process, (close, paid) = made(market, lag), market
    (run,) = run_backtests(process, WINDOW, [Wandering()])
    table = trades(process, WINDOW, run)
    cash, units, bars = 1e6, np.zeros(3), process.decision_bars(WINDOW)
    for bar in bars:
        cash += float(units @ paid[bar])
        for row in table[table["date"] == process.panel.dates[bar]].itertuples():
            sign = 1.0 if row.side == "buy" else -1.0
            assert row.price == close[bar, "ABC".index(row.asset)]
            cash -= sign * row.value + row.cost
            units["ABC".index(row.asset)] += sign * row.units
        cash *= 1.0 + 1e-4
    wealth = cash + units @ (close + paid)[bars.stop]
    assert wealth == pytest.approx(1e6 * np.prod(1.0 + run.returns), rel=1e-9)


def test_who_holds_keeps_the_number_of_shares(market: tuple[FloatArray, FloatArray]) -> None:
    process = made(market, 1)
    (run,) = run_backtests(process, WINDOW, [BuyAndHold()])
    table = holdings(process, WINDOW, run)
    for asset in "ABC":
        units = table[table["asset"] == asset]["units"].to_numpy()
        np.testing.assert_allclose(units, units[0], rtol=1e-12)
    cash = table[table["asset"] == "cash"]["value"].to_numpy()
    assert cash[-1] > 0.04e6
    assert set(trades(process, WINDOW, run)["date"]) == {process.panel.dates[process.decision_bars(WINDOW)[0]]}


def test_dividends_are_taxed_as_income_in_the_year_in_which_they_are_paid() -> None:
    # Initial capital 1,000, no costs, FIFO, 37 % short, 20 % long, 365 days. Fills from the second bar on.
    #
    # date        A    B   dividend A  trade                            worth
    # 2019-12-30  1    1               (before the first fill)
    # 2019-12-31  1    1   .50         buys 500 A, keeps 500 cash       1,000.00  after the ex-date: nothing is paid
    # 2020-06-30  2    1   .20         holds: 100 in cash               1,600.00
    # 2021-01-04  4    1   .10         50 in cash: 650, and 2,000 in A  2,650.00  in 2021
    #             tax of 2020: 37 % * 100 = 37                          2,613.00
    #             sells 500 A for 2,000: held 370 days, gain 1,500 long; all in cash
    # 2021-02-01  4    1   .90         holds cash                       2,613.00
    # 2021-03-01  4    1               the end: tax of 2021 is 20 % * 1,500 + 37 % * 50 = 318.50  -> 2,294.50
    days = ["2019-12-30", "2019-12-31", "2020-06-30", "2021-01-04", "2021-02-01", "2021-03-01"]
    dates = np.array(days, dtype="datetime64[D]")
    close = np.column_stack([[1.0, 1.0, 2.0, 4.0, 4.0, 4.0], np.ones(6)])
    paid = np.column_stack([[0.0, 0.5, 0.2, 0.1, 0.9, 0.0], np.zeros(6)])
    free = {"commission_bps": 0.0, "slippage_bps": 0.0}
    process = process_of(dates, close, paid, np.zeros(6), execution_lag=0, initial_capital=1000.0, **free)
    plan = Planned([[0.5, 0.0, 0.5], [1000 / 1600, 0.0, 600 / 1600], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    (run,) = run_backtests(process, range(0, 6), [plan])
    account = after_tax(process, range(0, 6), run, TaxConfig())
    np.testing.assert_allclose(account.wealth, [1000.0, 1600.0, 2650.0, 2613.0, 2294.5], rtol=1e-12)
    assert account.paid == pytest.approx({2019: 0.0, 2020: 37.0, 2021: 318.5})
    assert account.gains == pytest.approx((0.0, 1500.0))
    assert account.interest == pytest.approx(150.0)
