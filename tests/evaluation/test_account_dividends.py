"""Trades and holdings of an account whose dividends are paid in cash: in shares, at the prices of the time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.account import holdings, trades
from finflow.evaluation.backtest import run_backtests
from finflow.market.dividends import reinvest
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold
from tests.evaluation.plain_processes import Wandering, process_on

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
