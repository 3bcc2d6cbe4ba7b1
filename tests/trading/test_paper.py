"""Paper trading: the backtest's numbers evening by evening, and whole after any stop.

Assets without a price for some days are held and their orders lapse; dividends in cash are there on the ex-date, and
shares stay what they were.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.trading.account_state import AccountState
from finflow.trading.decide_mode import Request
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.live_market import load_trading_agents, market_until
from finflow.trading.paper_trading import Clock, PaperAccount, trade_on_paper
from finflow.training.data.training_data import prepare
from tests.commands import refusal
from tests.trading.conftest import DAY, NEXT, Trained

FIRST, UNTIL = "2011-11-10", "2011-12-30"
LIMITED: dict[str, Any] = {"env__no_trade_band": 0.004, "env__costs__minimum": 5.0}
DRAWN: dict[str, Any] = {"acting__temperature": 0.5, "acting__top_p": 0.7}


@pytest.mark.parametrize(("lag", "keys"), [(0, LIMITED | DRAWN), (1, {}), (2, LIMITED | DRAWN)])
def test_the_replay_is_the_backtest(trained: Trained, lag: int, keys: dict[str, Any]) -> None:
    trained.replayed(env__execution_lag=lag, **keys)


def test_no_evening_knows_a_later_bar(trained: Trained) -> None:
    """Lived with the bars of each evening alone, features and all, the account decides the same."""
    agents = load_trading_agents([trained.run], {"market.path": str(trained.prices)})
    panel = prepare(agents.config).panel
    start = panel.bars_until("2011-11-09")
    whole = PaperAccount(market_until(panel, agents).process, agents.strategies()[0], start)
    evenings = list(whole.evenings(start + 3))
    last = None
    for number, evening in enumerate(evenings):
        until = panel.until(start + number)
        account = PaperAccount(market_until(until, agents).process, agents.strategies()[0], start, last)
        (last,) = account.evenings(until.n_bars - 1)
        assert last.date == evening.date
        for name in ("next_target", "filled"):
            np.testing.assert_allclose(getattr(last, name) or 0.0, getattr(evening, name) or 0.0, rtol=0.0, atol=2e-7)


@pytest.mark.parametrize("keys", [(), ("--set", "acting.temperature=1", "--set", "acting.top_p=0.6")])
def test_it_goes_on_where_it_stopped_and_repeats_no_day(
    trained: Trained, capsys: pytest.CaptureFixture[str], keys: tuple[str, ...]
) -> None:
    assert trained.paper("--from", FIRST, "--until", UNTIL, *keys) == 0
    whole = trained.log.read_bytes()
    trained.log.unlink()
    for until in ("2011-11-25", "2011-11-25", UNTIL):
        assert trained.paper("--from", FIRST, "--until", until, *keys) == 0
    assert trained.log.read_bytes() == whole
    assert trained.paper("--until", UNTIL, *keys) == 0  # the account begun last
    assert trained.log.read_bytes() == whole
    given = trained.options("paper", env__commission_bps=0)
    assert "other keys under env" in refusal(capsys, *given, *keys)
    other = ("--set", "acting.temperature=0.5")  # another way of acting is another agent
    assert trained.paper("--from", FIRST, "--until", UNTIL, *other) == 2


@pytest.mark.usefixtures("fast")
def test_a_crash_at_any_byte_of_the_log_loses_and_repeats_nothing(trained: Trained) -> None:
    first, until = dt.date(2011, 11, 10), dt.date(2011, 12, 30)
    request = Request((trained.run,), {"market.path": str(trained.prices)}, first=first, until=until)
    trade_on_paper(request)
    whole = trained.log.read_bytes()
    for cut in np.random.default_rng(0).integers(0, len(whole), size=8).tolist():
        trained.log.write_bytes(whole[:cut])
        trade_on_paper(request)
        assert trained.log.read_bytes() == whole, cut


def test_decisions_and_paper_accounts_share_a_log(trained: Trained) -> None:
    assert trained.paper("--from", FIRST, "--until", "2011-11-25") == 0
    assert trained.decide("--date", "2011-12-14") == 0
    assert trained.paper("--until", "2011-12-02") == 0
    assert trained.paper("--from", "2011-11-21", "--until", "2011-12-02") == 0  # a second account
    entries = trained.entries()
    assert {entry["kind"] for entry in entries} == {"paper", "decision"}
    assert len(
        {(entry["kind"], entry.get("account") and str(entry["account"]), entry["date"]) for entry in entries}
    ) == len(entries)


@pytest.mark.usefixtures("fast")
def test_it_follows_new_bars_and_decides_on_each_once(trained: Trained) -> None:
    """Bars arrive while it waits; a stop in between changes nothing."""
    table = trained.price_table()
    dates = list(table.index)
    now = dates.index("2011-12-01")
    table.iloc[: now + 1].to_csv(trained.prices)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        if len(waits) % 2 == 0:  # every other look finds nothing new
            now += 1
            table.iloc[: now + 1].to_csv(trained.prices)
        if len(waits) in (5, 12):
            raise KeyboardInterrupt

    clock = Clock(lambda: dt.date(2011, 12, 1) + dt.timedelta(days=len(waits)), wait)
    request = Request((trained.run,), {"market.path": str(trained.prices)}, first=dt.date(2011, 11, 10), follow=True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trade_on_paper(request, clock, lambda line: None)
    found = [line["date"] for line in trained.entries()]
    assert found == dates[dates.index("2011-11-09") : dates.index("2011-12-01") + 1 + 5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name its first day with --from"),
        (("--from", "2011-09-01"), "the years that the agent learned from"),
        (("--from", "2030-01-01"), "lies after the prices"),
        (("--from", UNTIL, "--until", FIRST), "lies before --from"),
        (("--from", FIRST, "--until", UNTIL, "--follow"), "leave --until out"),
        (("--from", "soon"), "write it as 2020-03-16"),
        (("--from", FIRST, "--set", "acting.top_p=0"), "acting.top_p = 0"),
        (("--from", FIRST, "--set", "acting.temperature=-1"), "acting.temperature = -1"),
        (("--from", FIRST, "--holdings", "h.csv"), "--holdings belongs to --mode decide"),
        (("--from", FIRST, "--i-know"), "are for a broker elsewhere"),
    ],
)
def test_what_cannot_be_is_one_line(
    trained: Trained, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refusal(capsys, *trained.options("paper"), *options)
    assert not trained.log.exists()


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
    lines = halted.replayed(market__max_gap=3, env__execution_lag=lag)
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
    agents = load_trading_agents([paying.run], keys)
    data = prepare(agents.config)
    evening = data.panel.bars_until("2011-11-22") - 1
    market = market_until(data.panel.until(evening + 1), agents)
    bar = market.next_fill
    process = data.held_out_process()
    weights = np.array([[0.3, 0.3, 0.2, 0.1, 0.1]])
    held = process.observed_portfolio(process.start(np.array([bar]), weights))[0, : process.n_weights]
    assert (held[-1] > 0.1) == (lag == 0)  # the dividend of the evening has come in
    close = table_of(paying, "Close").loc["2011-11-22"].to_numpy()
    state = process.objective.initial(weights)
    account = AccountState(held[:-1] * 1e6 / close, float(held[-1]) * 1e6, state, None)
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
