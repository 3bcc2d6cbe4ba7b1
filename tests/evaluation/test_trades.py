"""The tables of trades and holdings are the account, in money."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from finflow.arrays import FloatArray
from finflow.config import CostsConfig, TaxConfig
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.account import TaxedAccount, after_tax, holdings, trades
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import reinvest
from finflow.strategies.classical import BuyAndHold, EqualWeight
from tests.evaluation import made_up
from tests.evaluation.made_up import Planned, Wandering, process_on

WINDOW = range(4, 48)


@pytest.fixture(autouse=True)
def _volumes_known_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.env.market_growth.LIQUIDITY_WINDOW", 2)


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
    dates, names = np.busday_offset("2020-01-01", np.arange(50), roll="forward"), ("A", "B", "C")
    fields = reinvest({"close": close}, paid, dates, names) if dividends else {"close": close}
    panel = MarketPanel(
        dates=dates,
        assets=names,
        cash_returns=np.append(0.0, np.full(49, 1e-4)),
        volume=np.where(np.isfinite(close), 1e5, np.nan),
        **fields,
    )
    return process_on(panel, execution_lag=lag, costs=CostsConfig(**costs))


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


# --- an account that pays tax, against a ledger worked by hand, and against the one that does not


FREE = {"commission_bps": 0.0, "slippage_bps": 0.0}


def process_of(
    dates: list[str],
    close: list[list[float]],
    cash: list[float] | None = None,
    halted: list[list[bool]] | None = None,
    paid: list[list[float]] | None = None,
    **env: float,
) -> DecisionProcess:
    """A market of these prices and dividends in money a share, at lag 0."""
    days, names = np.array(dates, dtype="datetime64[D]"), ("A", "B")
    fields = {"close": np.array(close, dtype=np.float64)}
    if paid is not None:
        fields = reinvest(fields, np.array(paid), days, names)
    panel = MarketPanel(
        dates=days,
        assets=names,
        cash_returns=np.array(cash if cash is not None else [0.0] * len(dates)),
        halted=None if halted is None else np.array(halted),
        **fields,
    )
    return process_on(panel, execution_lag=0, **env)


def taxed(process: DecisionProcess, plan: list[list[float]]) -> TaxedAccount:
    """The account after tax of a plan over all bars."""
    window = range(process.panel.n_bars)
    (run,) = run_backtests(process, window, [Planned(plan)])
    return after_tax(process, window, run, TaxConfig())


DATES = ["2019-12-30", "2019-12-31", "2020-06-30", "2021-01-04", "2021-02-01", "2021-03-01"]
CLOSE = [[1.0, 1.0], [1.0, 1.0], [2.0, 1.0], [4.0, 1.0], [4.0, 1.0], [4.0, 1.0]]


def test_a_ledger_by_hand() -> None:
    # Initial capital 1,000, no costs, FIFO, 37 % short, 20 % long, 365 days. Fills from the second bar on.
    #
    # date        A    B   cash earns  trade                            worth
    # 2019-12-30  1    1   -           (before the first fill)
    # 2019-12-31  1    1   -           buys 500 A, keeps 500 cash       1,000.00
    # 2020-06-30  2    1   2 %         sells 250 A for 500              1,510.00  gain 250 short, interest 10
    #             holds 250 A (500.00) and 1,010.00 cash
    # 2021-01-04  4    1   1 %         interest 10.10: 1,020.10 cash    2,020.10  in 2021
    #             tax of 2020: 37 % * (250 + 10) = 96.20                1,923.90
    #             sells 250 A for 1,000: held 370 days, gain 750 long; all in cash
    #             (the interest of 10.10 came to hand in 2021)
    # 2021-02-01  4    1   0 %         holds cash                       1,923.90
    # 2021-03-01  4    1   0 %         the end: tax of 2021 is 20 % * 750 + 37 % * 10.10 = 153.737  -> 1,770.163
    process = process_of(DATES, CLOSE, [0.0, 0.0, 0.02, 0.01, 0.0, 0.0], initial_capital=1000.0, **FREE)
    account = taxed(process, [[0.5, 0.0, 0.5], [500 / 1510, 0.0, 1010 / 1510], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(account.wealth, [1000.0, 1510.0, 2020.1, 1923.9, 1770.163], rtol=1e-12)
    assert account.paid == pytest.approx({2019: 0.0, 2020: 96.2, 2021: 153.737})


def test_costs_are_part_of_the_gains() -> None:
    # 1,000 buys 1,000 / 1.01 = 990.099 of A at 1 % a trade. It doubles: 1,980.198.
    # All sold: cost 19.80198, proceeds 1,960.396; gain 960.396, short.
    dates = ["2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07"]
    process = process_of(
        dates, [[1, 1], [1, 1], [2, 1], [2, 1]], initial_capital=1000.0, commission_bps=100.0, slippage_bps=0.0
    )
    account = taxed(process, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert account.wealth[-1] == pytest.approx(1960.396 - 0.37 * 960.396, abs=1e-3)


def test_without_tax_the_account_is_the_backtest_and_tax_waits_for_the_one_that_holds() -> None:
    process, window = made_up.process_of(execution_lag=0), range(10, 650)
    process.growth[:, -1] = 1.0  # cash without interest: there is nothing to tax but gains
    equal, held = run_backtests(process, window, [EqualWeight(), BuyAndHold()])
    for run in (equal, held):
        wealth = after_tax(process, window, run, TaxConfig(short_rate=0.0, long_rate=0.0)).wealth
        np.testing.assert_allclose(wealth[1:] / wealth[:-1] - 1.0, run.returns, rtol=0, atol=1e-12)
    assert sum(after_tax(process, window, equal, TaxConfig()).paid.values()) > 0.0
    assert after_tax(process, window, held, TaxConfig()).paid == {2007: 0.0, 2008: 0.0, 2009: 0.0}


def test_an_asset_that_ends_is_sold_at_its_last_price() -> None:
    dates = ["2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07", "2020-01-08"]
    process = process_of(dates, [[1, 1], [1, 1], [3, 1], [np.nan, 1], [np.nan, 1]], initial_capital=1000.0, **FREE)
    account = taxed(process, [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert account.wealth[-1] == pytest.approx(3000.0 - 0.37 * 2000.0)


def test_a_halted_asset_is_not_sold_to_keep_its_weight_after_tax() -> None:
    """Tax on the first sale of A makes A weigh more while it is halted: nothing more is sold until it trades again."""
    dates = ["2019-12-30", "2019-12-31", "2020-06-30", "2021-01-04", "2021-02-01"]
    close = [[1.0, 1.0], [1.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]
    halted = [[day == "2021-01-04", False] for day in dates]
    process = process_of(dates, close, halted=halted, initial_capital=1000.0, **FREE)
    account = taxed(process, [[0.5, 0.0, 0.5], [1 / 3, 0.0, 2 / 3], [1 / 3, 0.0, 2 / 3]])
    assert account.paid == pytest.approx({2019: 0.0, 2020: 0.37 * 250.0, 2021: 0.0})


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
    paid = [[0.0, 0.0], [0.5, 0.0], [0.2, 0.0], [0.1, 0.0], [0.9, 0.0], [0.0, 0.0]]
    process = process_of(DATES, CLOSE, paid=paid, initial_capital=1000.0, **FREE)
    account = taxed(process, [[0.5, 0.0, 0.5], [1000 / 1600, 0.0, 600 / 1600], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(account.wealth, [1000.0, 1600.0, 2650.0, 2613.0, 2294.5], rtol=1e-12)
    assert account.paid == pytest.approx({2019: 0.0, 2020: 37.0, 2021: 318.5})
