"""Assets without a price for some days, and dividends in cash: the live account goes on as the backtest does.

Halted assets are held and their orders lapse; shares stay what they were, and the money is there on the ex-date.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from finflow.trading.account_state import AccountState
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.live_market import load_agents, market_until
from finflow.training.data.training_data import prepare
from tests.trading.conftest import DAY, NEXT, Trained

THEN = "2011-12-16"
HOLD = ("--set", "market.max_gap=3")
CASH = ("--set", "market.dividends=cash")


@pytest.fixture
def halted(trained: Trained) -> Trained:
    """The agent, and prices that B lacks on two days of December."""
    table = trained.price_table()
    table.loc[[NEXT, THEN], "B"] = np.nan
    table.to_csv(trained.prices)
    return trained


@pytest.mark.parametrize("lag", [0, 2])
def test_the_paper_account_is_the_backtest_over_a_halt_too(halted: Trained, lag: int) -> None:
    lines, _ = halted.replayed(market__max_gap=3, env__execution_lag=lag)
    by_date = {one["date"]: one for one in lines}
    wealth = {day: one["state"]["wealth"] * (1.0 - one["cost"]) for day, one in by_date.items()}
    shares = [by_date[day]["filled"][1] * wealth[day] for day in (DAY, NEXT, THEN)]
    assert shares[0] > 0.0
    np.testing.assert_allclose(shares, shares[0], rtol=1e-9)


def test_orders_of_the_plan_in_a_halted_asset_count_as_not_done(halted: Trained) -> None:
    assert halted.decide("--date", DAY, "--cash", "20000", *HOLD) == 0
    assert halted.decide("--date", NEXT, *HOLD) == 0
    first, second = halted.decision(DAY), halted.decision(NEXT)
    planned = {order["ticker"]: order["shares"] for order in first["orders"]}
    assert second["assets"]["B"]["shares"] == 0.0
    assert {name: second["assets"][name]["shares"] for name in "ACD"} == {name: planned[name] for name in "ACD"}
    prices = halted.price_table()
    paid = sum(planned[name] * prices.loc[NEXT, name] for name in "ACD")
    value = {name: planned[name] * prices.loc[DAY if name == "B" else NEXT, name] for name in planned}
    cost = first["cost"] * (1.0 - value["B"] / sum(value.values()))
    assert second["cash"] == pytest.approx(20000.0 - paid - cost)
    assert second["follow_up"]["differences"]["B"]["done"] == 0.0
    (said,) = [check["said"] for check in second["checks"] if check["name"] == "gaps"]
    assert f"B on {NEXT}" in said


def test_a_decision_that_fills_at_once_leaves_what_is_halted_alone(halted: Trained) -> None:
    holdings = halted.run / "holdings.csv"
    holdings.write_text("ticker,shares\nB,37\ncash,20000\n", "utf-8")
    given = ("--date", NEXT, "--holdings", str(holdings), "--set", "env.execution_lag=0")
    assert halted.decide(*given, *HOLD) == 0
    made = halted.decision(NEXT)
    assert made["orders"]
    assert "B" not in {order["ticker"] for order in made["orders"]}
    assert made["assets"]["B"]["planned"] == pytest.approx(made["assets"]["B"]["allowed"], rel=1e-3)


def test_an_order_at_the_paper_broker_lapses(halted: Trained) -> None:
    first = halted.evening(DAY, market__max_gap=3)
    made = halted.evening(NEXT, market__max_gap=3)
    planned = {one.ticker: one.shares for one in first.orders}
    assert planned["B"] > 0.0
    assert {name: made.assets[name].shares for name in planned} == {**planned, "B": 0.0}
    (entered,) = halted.entries("fills")
    assert {ticker for ticker, *_ in entered["fills"]} == planned.keys() - {"B"}


@pytest.fixture
def paying(trained: Trained) -> Trained:
    """The agent, and its prices as unadjusted closes, one row a date and asset, with dividends beside them."""
    close = trained.price_table()
    paid = 0.0 * close
    paid.iloc[25::63, 0] = 0.4
    paid.loc["2011-11-22", "B"], paid.loc[NEXT, "A"] = 3.0, 5.0
    paid.loc[THEN, ["A", "C"]] = 2.0
    table = pd.DataFrame({"Close": close.stack(), "Dividends": paid.stack()})
    table.index.names = ["Date", "Ticker"]
    table.to_csv(trained.prices)
    return trained


def table_of(trained: Trained, field: str) -> pd.DataFrame:
    return pd.read_csv(trained.prices).pivot_table(index="Date", columns="Ticker", values=field)


@pytest.mark.parametrize("lag", [0, 2])
def test_the_paper_account_is_the_backtest(paying: Trained, lag: int) -> None:
    paying.replayed(market__dividends="cash", env__execution_lag=lag)


@pytest.mark.parametrize("lag", [0, 1])
def test_the_target_is_that_of_the_backtest_on_an_ex_date_too(paying: Trained, lag: int) -> None:
    """The account is told in shares at the prices of the time, long before the end of the prices."""
    keys = {"market.path": str(paying.prices), "market.dividends": "cash", "env.execution_lag": lag}
    agents = load_agents([paying.run], keys)
    data = prepare(agents.config)
    evening = data.panel.bars_until("2011-11-22") - 1
    market = market_until(data.panel.until(evening + 1), agents)
    bar = market.next_fill
    process = data.held_out_process()
    weights = np.array([[0.3, 0.3, 0.2, 0.1, 0.1]])
    held = process.observed_portfolio(process.start(np.array([bar]), weights))[0, : process.n_weights]
    assert (held[-1] > 0.1) == (lag == 0)  # the dividend of the evening has come in
    close = table_of(paying, "Close").loc["2011-11-22"].to_numpy()
    account = AccountState(held[:-1] * 1e6 / close, float(held[-1]) * 1e6, None, None)
    made = DecisionMaking(agents, market, account)
    np.testing.assert_allclose(made.observed, held, atol=1e-12)
    seen = process.observe(made.state)["portfolio"][0, : process.n_weights]
    np.testing.assert_allclose(seen, held, atol=1e-12)
    np.testing.assert_array_equal(made.prices, close)


def test_the_log_goes_on_with_the_same_shares_and_the_money(paying: Trained) -> None:
    """Bought at the close of an ex-date, A pays nothing that day, and pays on the next one."""
    assert paying.decide("--date", DAY, "--cash", "20000", *CASH) == 0
    assert paying.decide("--date", THEN, *CASH) == 0
    first, second = paying.decision(DAY), paying.decision(THEN)
    planned = {order["ticker"]: order["shares"] for order in first["orders"]}
    assert planned["A"] > 0.0
    assert planned["C"] > 0.0
    assert {name: second["assets"][name]["shares"] for name in planned} == planned
    close = table_of(paying, "Close")
    spent = sum(count * close.loc[NEXT, name] for name, count in planned.items())
    dividends = 2.0 * (planned["A"] + planned["C"])
    assert second["cash"] == pytest.approx(20000.0 - spent - first["cost"] + dividends, rel=1e-9)
    assert second["assets"]["A"]["price"] == close.loc[THEN, "A"]
    told = {check["name"]: check["said"] for check in second["checks"]}
    assert "restated by a factor" not in told["history"]
    before = paying.entries()[0]
    assert before["prices"]["A"] == close.loc[DAY, "A"]


def test_the_paper_broker_pays_dividends_and_the_ledgers_costs(paying: Trained) -> None:
    bought = {one.ticker: one.shares for one in paying.evening(DAY, market__dividends="cash").orders}
    second = paying.evening(NEXT, market__dividends="cash")
    close = table_of(paying, "Close")
    paid = sum(count * close.loc[NEXT, name] for name, count in bought.items())
    assert second.cash == pytest.approx(20_000.0 - paid * 1.0015)  # 15 basis points by default
    assert second.follow_up.source == "fills"
    third = paying.evening(THEN, market__dividends="cash")
    orders = {one.ticker: one.shares if one.side == "buy" else -one.shares for one in second.orders}
    moved = [count * close.loc[THEN, name] for name, count in orders.items()]
    dividends = 2.0 * (bought["A"] + bought["C"])
    spent = sum(moved) + 0.0015 * sum(map(abs, moved))
    assert third.cash == pytest.approx(second.cash - spent + dividends)
