"""The tables of trades and holdings are the account, in money."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.account import as_parquet, holdings, trades
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import reinvest
from finflow.strategies.classical import BuyAndHold
from tests.evaluation.made_up import FloatArray, Wandering, process_on

WINDOW = range(4, 48)


def market(ends: bool = False) -> tuple[FloatArray, FloatArray]:
    """Closes of three assets, and dividends in money a share."""
    rng = np.random.default_rng(0)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, size=(50, 3)), axis=0))
    if ends:
        close[20:, 1] = np.nan
    paid = np.zeros(close.shape)
    paid[9::11, 0], paid[25, 2] = 0.7, 6.0
    return close, paid


def made(lag: int = 1, ends: bool = False, dividends: bool = False, **costs: float) -> DecisionProcess:
    close, paid = market(ends)
    dates, names = np.datetime64("2020-01-01") + np.arange(50), ("A", "B", "C")
    fields = reinvest({"close": close}, paid, dates, names) if dividends else {"close": close}
    panel = MarketPanel(
        dates=dates,
        assets=names,
        cash_returns=np.append(0.0, np.full(49, 1e-4)),
        volume=np.where(np.isfinite(close), 1e5, np.nan),
        **fields,
    )
    return process_on(panel, execution_lag=lag, costs=CostsConfig(window=2, **costs))


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("dividends", [False, True])
@pytest.mark.parametrize("costs", [{}, {"impact": 0.5, "minimum": 20.0, "slippage_sqrt_bps": 50.0}])
def test_a_bank_account_kept_from_the_trades_alone_ends_with_the_same_wealth(
    lag: int, dividends: bool, costs: dict[str, float]
) -> None:
    """Dividends are paid in cash to the shares held, at the prices of the time."""
    process, (close, paid) = made(lag, dividends=dividends, **costs), market()
    paid = paid if dividends else 0.0 * paid
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
    assert table["cost"].sum() > 0.0


def test_who_holds_keeps_the_number_of_shares_and_the_dividends_in_cash() -> None:
    process = made(dividends=True)
    (run,) = run_backtests(process, WINDOW, [BuyAndHold()])
    table = holdings(process, WINDOW, run)
    for asset in "ABC":
        units = table[table["asset"] == asset]["units"].to_numpy()
        np.testing.assert_allclose(units, units[0], rtol=1e-12)
    cash = table[table["asset"] == "cash"]["value"].to_numpy()
    assert cash[-1] > 0.04e6
    assert set(trades(process, WINDOW, run)["date"]) == {process.panel.dates[process.decision_bars(WINDOW)[0]]}


def test_holdings_are_all_of_wealth_after_every_fill() -> None:
    process = made()
    (run,) = run_backtests(process, WINDOW, [Wandering()])
    table = holdings(process, WINDOW, run)
    by_day = table.groupby("date")[["value", "weight"]].sum()
    wealth = 1e6 * np.cumprod(np.append(1.0, 1.0 + run.returns))[:-1] * (1.0 - run.costs)
    np.testing.assert_allclose(by_day["value"], wealth, rtol=1e-12)
    np.testing.assert_allclose(by_day["weight"], 1.0, rtol=1e-12)
    np.testing.assert_allclose(table["units"] * table["price"], table["value"], rtol=1e-12)
    assert set(table["asset"]) == {"A", "B", "C", "cash"}


def test_an_asset_that_ends_is_paid_out_at_its_last_price_and_no_cost() -> None:
    process = made(ends=True)
    (run,) = run_backtests(process, WINDOW, [BuyAndHold()])
    table = trades(process, WINDOW, run)
    (end,) = table[table["side"] == "end"].itertuples()
    assert (end.asset, end.cost, end.after) == ("B", 0.0, 0.0)
    assert end.price == process.panel.close[19, 1]
    assert end.date == pd.Timestamp(process.panel.dates[20])
    assert (table["side"] == "buy").sum() == 3


def test_a_file_gives_the_table_back_and_equal_tables_are_equal_bytes() -> None:
    process = made()
    (run,) = run_backtests(process, WINDOW, [BuyAndHold()])
    table = trades(process, WINDOW, run)
    data = as_parquet(table)
    back = pd.read_parquet(io.BytesIO(data))
    pd.testing.assert_frame_equal(back, table, check_dtype=False, check_categorical=False)
    assert as_parquet(trades(process, WINDOW, run)) == data
