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
from finflow.strategies.classical import BuyAndHold
from tests.evaluation.plain_processes import Wandering, process_on

WINDOW = range(5, 40)


def made(lag: int = 1, ends: bool = False, **costs: float) -> DecisionProcess:
    rng = np.random.default_rng(0)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, size=(50, 3)), axis=0))
    if ends:
        close[20:, 1] = np.nan
    panel = MarketPanel(
        dates=np.datetime64("2020-01-01") + np.arange(50),
        assets=("A", "B", "C"),
        close=close,
        cash_returns=np.append(0.0, np.full(49, 1e-4)),
        volume=np.where(np.isfinite(close), 1e5, np.nan),
    )
    return process_on(panel, execution_lag=lag, costs=CostsConfig(window=2, **costs))


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("costs", [{}, {"impact": 0.5, "minimum": 20.0, "slippage_sqrt_bps": 50.0}])
def test_a_bank_account_kept_from_the_trades_alone_ends_with_the_same_wealth(lag: int, costs: dict[str, float]) -> None:
    process = made(lag, **costs)
    (run,) = run_backtests(process, WINDOW, [Wandering()])
    table = trades(process, WINDOW, run)
    cash, units = 1e6, dict.fromkeys("ABC", 0.0)
    for bar in process.decision_bars(WINDOW):
        for row in table[table["date"] == process.panel.dates[bar]].itertuples():
            sign = 1.0 if row.side == "buy" else -1.0
            cash -= sign * row.value + row.cost
            units[row.asset] += sign * row.units
        cash *= 1.0 + 1e-4
    last = process.panel.close[process.decision_bars(WINDOW).stop]
    wealth = cash + sum(held * price for held, price in zip(units.values(), last, strict=True))
    assert wealth == pytest.approx(1e6 * np.prod(1.0 + run.returns), rel=1e-9)
    assert table["cost"].sum() > 0.0


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
