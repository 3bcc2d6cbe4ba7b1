"""An asset without a price for some days: the live account and the backtest hold it, and its orders lapse."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from finflow.trading.brokers.broker import MarketOrder, client_id
from finflow.trading.brokers.paper_broker import BROKER_LOG, PaperBroker
from finflow.trading.deciding import Request, decide
from tests.commands import refusal
from tests.trading.conftest import DAY, NEXT, Trained

THEN = "2011-12-16"
HOLD = ("--set", "market.max_gap=3")


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
    overrides = {"market.path": str(halted.prices), "market.max_gap": 3, "env.initial_capital": 20_000.0}
    broker = PaperBroker(halted.run / "trading" / BROKER_LOG)
    broker.open(20_000.0)
    placed = [MarketOrder(client_id("agent", DAY, name), DAY, name, 3.0) for name in "AB"]
    for order in placed:
        broker.submit(order)

    def evening(day: str) -> Any:
        date = dt.date.fromisoformat(day)
        return decide(Request((halted.run,), overrides, date=date, accept_verdict=True, broker="paper")).decision

    made = evening(NEXT)
    assert {name: made.assets[name].shares for name in "AB"} == {"A": 3.0, "B": 0.0}
    read = PaperBroker(halted.run / "trading" / BROKER_LOG)
    assert [read.status(order.client_id).state for order in placed] == ["filled", "ended"]  # type: ignore[union-attr]
    lapsed = [entry for entry in read._entries if entry["kind"] == "lapsed"]
    assert [entry["date"] for entry in lapsed] == [NEXT]
    evening(THEN)
    again = PaperBroker(halted.run / "trading" / BROKER_LOG)
    assert [entry for entry in again._entries if entry["kind"] == "lapsed"][:1] == lapsed
    assert again.status(placed[1].client_id).state == "ended"  # type: ignore[union-attr]


def test_without_the_key_a_gap_is_refused_in_one_line(halted: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, *halted.options("decide"), "--i-know", "--date", "2011-12-20")
    assert f"'B' has no price on {NEXT}" in said
    assert "market.max_gap" in said
