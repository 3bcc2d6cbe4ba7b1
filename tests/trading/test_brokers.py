"""The paper broker: orders by the client's own id, and no crash at any step trades twice or loses an order."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest

from finflow.cli.trading import decision_lines
from finflow.trading import decision_log
from finflow.trading.brokers.broker import BrokerError, MarketOrder, client_id
from finflow.trading.brokers.paper_broker import BROKER_LOG, PaperBroker
from finflow.trading.deciding import Request, decide
from finflow.trading.decision_log import DecisionLog
from tests.commands import refusal
from tests.trading.conftest import Trained

DAYS = ("2011-12-14", "2011-12-15", "2011-12-16", "2011-12-19")


def evening(trained: Trained, day: str) -> Any:
    """One evening's decision through the paper broker."""
    overrides = {"market.path": str(trained.prices), "env.initial_capital": 20_000.0}
    return decide(
        Request((trained.run,), overrides, date=dt.date.fromisoformat(day), accept_verdict=True, broker="paper")
    )


def broker_of(trained: Trained) -> PaperBroker:
    return PaperBroker(trained.run / "trading" / BROKER_LOG)


def test_orders_fill_at_the_next_close_with_the_ledgers_costs(trained: Trained) -> None:
    first = evening(trained, DAYS[0]).decision
    assert broker_of(trained).positions() == {}  # accepted, not filled yet
    second = evening(trained, DAYS[1]).decision
    prices = trained.price_table().loc[DAYS[1]]
    shares = {one.ticker: one.shares for one in first.orders}
    assert {name: second.assets[name].shares for name in shares} == shares
    paid = sum(count * prices[name] for name, count in shares.items())
    assert second.cash == pytest.approx(20_000.0 - paid * 1.0015)  # 15 basis points by default
    assert decision_lines(second)


def test_a_dry_run_places_nothing(trained: Trained) -> None:
    given = ("--broker", "paper", "--cash", "5000", "--dry-run", "--date", DAYS[0])
    assert trained.decide(*given) == 0
    assert not (trained.run / "trading").exists()


def test_an_order_of_a_known_id_is_not_placed_again(trained: Trained) -> None:
    broker = broker_of(trained)
    broker.open(1000.0)
    order = MarketOrder(client_id("agent", DAYS[0], "A"), DAYS[0], "A", 3.0)
    assert broker.submit(order) == broker.submit(order) == broker.status(order.client_id)
    assert len(broker_of(trained)._orders()) == 1
    with pytest.raises(BrokerError, match="was submitted on"):
        broker.submit(MarketOrder(order.client_id, DAYS[0], "A", 4.0))


class Killed(BaseException):
    """Stands in for the end of the process."""


@pytest.mark.usefixtures("fast")
def test_a_crash_at_every_step_neither_trades_twice_nor_loses_an_order(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each line of the logs, and run again, four evenings end in the account of the others."""
    folder = trained.run / "trading"
    for day in DAYS:
        evening(trained, day)
    whole = {name: (folder / name).read_bytes() for name in (BROKER_LOG, "state.jsonl")}
    lines = sum(content.count(b"\n") for content in whole.values())
    assert lines > 12
    for path in (*folder.glob("*/*"), *folder.glob("*.jsonl")):
        path.unlink()
    write: Callable[..., None] = decision_log.append_line
    kills = 0

    def killed(path: Any, line: str) -> None:
        nonlocal kills
        kills += 1
        if kills % 2 == 0:  # the second try of a line
            write(path, line)
        raise Killed

    monkeypatch.setattr(decision_log, "append_line", killed)
    for day in DAYS:
        for _ in range(2 * lines):
            try:
                evening(trained, day)
            except Killed:
                continue
            break
    assert kills == 2 * lines
    assert {name: (folder / name).read_bytes() for name in whole} == whole
    entries = DecisionLog.read(folder / BROKER_LOG).entries
    orders = [entry["client_id"] for entry in entries if entry["kind"] == "order"]
    assert len(orders) == len(set(orders))


def test_what_contradicts_the_broker_is_one_line(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    given = (*trained.options("decide"), "--i-know")
    said = refusal(capsys, *given, "--date", DAYS[0], "--broker", "paper", "--holdings", "h.csv")
    assert "leave --holdings and --fills out" in said
    assert "did you mean paper" in refusal(capsys, *given, "--broker", "papr")


def test_cash_that_a_fill_left_short_is_made_up_by_orders(trained: Trained) -> None:
    """Prices that rose until the fill leave the account short: the next plan sells."""
    held = trained.run.parent / "held.json"
    held.write_text(json.dumps({"A": 30, "B": 30, "C": 30, "D": 30, "cash": -20.0}), "utf-8")
    assert trained.decide("--date", DAYS[0], "--holdings", str(held), "--set", "env.no_trade_band=0.9") == 0
    made = trained.decision(DAYS[0])
    assert made["cash"] == -20.0
    assert made["cash_after"] >= 0.0
    assert {order["side"] for order in made["orders"]} == {"sell"}
