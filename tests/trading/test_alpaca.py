"""Alpaca as a broker, against a fake of its interface: no fault and no crash at any step trades twice or loses."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import requests

from finflow.cli import main
from finflow.config import AlpacaConfig, load_config
from finflow.errors import ConfigError
from finflow.trading import decision_log
from finflow.trading.brokers import alpaca_broker
from finflow.trading.brokers.alpaca_broker import KEY, SECRET, AlpacaBroker, open_alpaca
from finflow.trading.brokers.broker import BrokerError, BrokerNotReady, MarketOrder, OrderRefused
from finflow.trading.deciding import Request
from finflow.trading.paper.paper_trading import Clock, trade_on_paper
from scripts.evidence import fake_alpaca
from scripts.evidence.fake_alpaca import AFTER, BEFORE, FakeAlpaca, Fault, serving
from tests.commands import refusal
from tests.trading.conftest import Trained

DAYS = ("2011-12-14", "2011-12-15", "2011-12-16", "2011-12-19")
ORDER = MarketOrder("2011-12-14-A-0123", "2011-12-14", "A", 3.0)
ENVIRON = {KEY: fake_alpaca.KEY, SECRET: fake_alpaca.SECRET}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAlpaca]:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with serving(FakeAlpaca()) as account:
        yield account


def broker_of(
    fake: FakeAlpaca, pauses: list[float] | None = None, environ: dict[str, str] = ENVIRON, **changes: Any
) -> AlpacaBroker:
    waited = [] if pauses is None else pauses
    return open_alpaca(AlpacaConfig(address=fake.address, **changes), environ=environ, sleep=waited.append)


# --- the interface


def test_an_order_is_placed_and_read_back(fake: FakeAlpaca) -> None:
    fake.held = {"BRK.B": 2.0}
    broker = broker_of(fake)
    assert broker.cash() == 1_000_000.0
    assert broker.positions() == {"BRK.B": 2.0}
    assert broker.clock() == (dt.date(2011, 12, 14), False)
    assert broker.status(ORDER.client_id) is None
    assert broker.submit(ORDER).state == "accepted"
    assert broker.submit(ORDER) == broker.status(ORDER.client_id)  # once
    assert fake.requests.count("POST /v2/orders") == 1
    fake.trade("2011-12-15", {"A": 10.0})
    done = broker.status(ORDER.client_id)
    assert done is not None
    assert (done.state, done.filled, done.price) == ("filled", 3.0, 10.0)
    assert broker.cash() == pytest.approx(1_000_000.0 - 30.0)
    broker.submit(replace(ORDER, client_id="another"))
    fake.trade("2011-12-16", {"A": 10.0}, {"A": 1.0 / 3.0})
    done = broker.status("another")
    assert done is not None
    assert (done.state, done.filled) == ("ended", pytest.approx(1.0))  # a partial fill is what it is


def test_parts_of_a_share_and_share_classes_are_as_alpaca_takes_them(fake: FakeAlpaca) -> None:
    broker = broker_of(fake, time_in_force="cls")
    broker.submit(MarketOrder("whole", "2011-12-14", "A", -3.0))
    broker.submit(MarketOrder("part", "2011-12-14", "BRK-B", 0.25))
    whole, part = fake.orders["whole"], fake.orders["part"]
    assert (whole["side"], whole["qty"], whole["time_in_force"]) == ("sell", "3.0", "cls")
    assert (part["symbol"], part["qty"], part["time_in_force"]) == ("BRK.B", "0.25", "day")


FAULTS = [
    Fault("500"),
    Fault("503", AFTER),
    Fault("drop"),
    Fault("drop", AFTER),
    Fault("cut", AFTER),
    Fault("slow", BEFORE, seconds=0.5),
    Fault("slow", AFTER, seconds=0.5),
    Fault("429", seconds=7.0),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.when}")
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_fault_of_the_way_trades_twice_or_not_at_all(
    fake: FakeAlpaca, fault: Fault, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alpaca_broker, "TIMEOUT", 0.2)
    fake.faults = [Fault(**{**vars(fault), "method": method})]
    pauses: list[float] = []
    placed = broker_of(fake, pauses).submit(ORDER)
    assert placed.order == ORDER
    assert fake.faults == []
    assert [order["client_order_id"] for order in fake.orders.values()] == [ORDER.client_id]
    assert pauses == [7.0 if fault.kind == "429" else 0.5]


def test_faults_without_end_are_one_line_and_the_next_call_goes_on(fake: FakeAlpaca) -> None:
    fake.faults = [Fault("drop", AFTER, "*") for _ in range(20)]
    pauses: list[float] = []
    with pytest.raises(BrokerNotReady, match=r"in 5 attempts.*nothing is placed twice") as caught:
        broker_of(fake, pauses).submit(ORDER)
    assert "\n" not in str(caught.value)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    fake.faults = []
    assert broker_of(fake).submit(ORDER).order == ORDER
    assert len(fake.orders) == 1


def test_a_refusal_is_said_and_not_tried_again(fake: FakeAlpaca) -> None:
    fake.faults = [Fault("403", message="insufficient buying power")]
    with pytest.raises(OrderRefused, match="insufficient buying power"):
        broker_of(fake).submit(ORDER)
    assert fake.orders == {}
    assert fake.requests.count("POST /v2/orders") == 1


def test_another_order_under_the_id_is_refused(fake: FakeAlpaca) -> None:
    broker = broker_of(fake)
    broker.submit(ORDER)
    with pytest.raises(BrokerError, match=r"has \+3 A under the id"):
        broker.submit(MarketOrder(ORDER.client_id, ORDER.date, "A", 4.0))


def test_an_order_that_arrives_late_is_found_by_its_id(fake: FakeAlpaca) -> None:
    """The look finds nothing, the order of another request arrives, and the second one is refused as a duplicate."""
    broker, other = broker_of(fake), broker_of(fake)

    def watch(when: str) -> None:
        if fake.requests[-1].startswith("POST"):
            fake.watch = None
            other.submit(ORDER)

    fake.watch = watch
    assert broker.submit(ORDER).order == ORDER
    assert len(fake.orders) == 1


# --- keys, addresses, and the live account


@pytest.mark.parametrize(
    ("changes", "environ", "said"),
    [
        ({}, {KEY: "k"}, f"needs the environment variable {SECRET}"),
        ({"address": "http://example.com"}, ENVIRON, "is not a valid address"),
        ({"address": "http://[broken"}, ENVIRON, "is not a valid address"),
        ({"address": "https://api.alpaca.markets"}, ENVIRON, "set trading.alpaca.live = true"),
        ({"live": True}, ENVIRON, "confirm it with --live"),
    ],
)
def test_what_may_not_be_opened_is_one_line(changes: dict[str, Any], environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_alpaca(AlpacaConfig(**changes), environ=environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("answer", "opens"), [("live", True), ("yes", False), ("", False)])
def test_the_live_account_needs_a_word_at_the_terminal(
    monkeypatch: pytest.MonkeyPatch, answer: str, opens: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    if opens:
        assert open_alpaca(AlpacaConfig(live=True), environ=ENVIRON).name == "Alpaca (live)"
    else:
        with pytest.raises(ConfigError, match="was not confirmed"):
            open_alpaca(AlpacaConfig(live=True), environ=ENVIRON)


def test_paper_is_the_default_and_live_has_its_own_address() -> None:
    paper, live = open_alpaca(AlpacaConfig(), environ=ENVIRON), open_alpaca(AlpacaConfig(live=True), True, ENVIRON)
    assert str(paper._client._base_url.value) == "https://paper-api.alpaca.markets"
    assert str(live._client._base_url.value) == "https://api.alpaca.markets"
    assert not load_config(None, {}, {}).trading.alpaca.live


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alpaca.trading.client", None)
    with pytest.raises(ConfigError, match=r"pip install 'finflow\[alpaca\]'"):
        open_alpaca(AlpacaConfig(), environ=ENVIRON)


def test_wrong_keys_and_blocked_accounts_are_one_line(fake: FakeAlpaca) -> None:
    with pytest.raises(BrokerError, match="does not accept the keys in APCA_API_KEY_ID"):
        broker_of(fake, environ={KEY: "k", SECRET: "s"}).cash()
    fake.status = "ACCOUNT_CLOSED"
    with pytest.raises(BrokerError, match="does not let the account trade"):
        broker_of(fake).account()


# --- evenings


def keys_of(trained: Trained, fake: FakeAlpaca) -> dict[str, object]:
    return {
        "market.path": str(trained.prices),
        "trading.alpaca.address": fake.address,
        "trading.broker": "alpaca",
    }


def show_until(trained: Trained, table: pd.DataFrame, day: str) -> None:
    """Publish the prices up to a day."""
    table.loc[:day].to_csv(trained.prices)


def evening(trained: Trained, fake: FakeAlpaca) -> Any:
    return trade_on_paper(
        Request((trained.run,), keys_of(trained, fake), first=dt.date(2011, 12, 14), accept_verdict=True)
    )


def live_through(trained: Trained, fake: FakeAlpaca, one: Callable[[], None], days: tuple[str, ...] = DAYS) -> None:
    """Evenings of some days: prices come, the orders of the day before fill, and the agent decides."""
    table = trained.price_table()
    for day in days:
        show_until(trained, table, day)
        fake.trade(day, table.loc[day].to_dict())
        one()


def decide_options(trained: Trained, fake: FakeAlpaca) -> tuple[str, ...]:
    keys = {key.replace(".", "__"): value for key, value in keys_of(trained, fake).items()}
    return (*trained.options("decide", **keys), "--broker", "alpaca", "--i-know")


@pytest.mark.usefixtures("fast")
def test_evenings_at_alpaca_go_on_from_what_was_filled(trained: Trained, fake: FakeAlpaca) -> None:
    live_through(trained, fake, lambda: evening(trained, fake))
    decisions = trained.entries("decision")
    assert [one["date"] for one in decisions] == list(DAYS)
    assert len(fake.orders) == sum(len(one["orders"]) for one in decisions) > len(DAYS)
    evenings = trained.entries("paper")
    assert [one["date"] for one in evenings] == list(DAYS)
    assert evenings[0]["wealth"] == 1_000_000.0
    prices = trained.price_table().loc[DAYS[-1]]
    worth = fake.money + sum(count * prices[name] for name, count in fake.held.items())
    assert evenings[-1]["wealth"] == pytest.approx(worth)
    assert evenings[-1]["simple_return"] == pytest.approx(worth / evenings[-2]["wealth"] - 1.0)
    page = json.loads((trained.run / "trading" / "paper" / DAYS[0] / "paper.json").read_text("utf-8"))
    assert page["value"] == pytest.approx(worth)


def test_decide_places_its_orders_once_and_says_so_the_second_time(
    trained: Trained, fake: FakeAlpaca, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_until(trained, trained.price_table(), DAYS[0])
    options = decide_options(trained, fake)
    assert main([*options, "--dry-run"]) == 0
    assert fake.orders == {}
    assert not trained.log.exists()
    assert main(options) == 0
    assert "are with Alpaca (paper)" in capsys.readouterr().out
    placed, content = dict(fake.orders), trained.log.read_bytes()
    assert placed
    assert main(options) == 0
    assert f"{len(placed)} orders of {DAYS[0]} have been with" in capsys.readouterr().out
    assert (fake.orders, trained.log.read_bytes()) == (placed, content)
    monkeypatch.setattr(AlpacaBroker, "account", lambda broker: "another")
    assert "belongs to another account" in refusal(capsys, *options)


class Killed(BaseException):
    """Stands in for the end of the process."""


@pytest.mark.usefixtures("fast")
def test_a_crash_at_every_step_neither_trades_twice_nor_loses_an_order(
    trained: Trained, fake: FakeAlpaca, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended before each request, after it was carried out but before its answer is read, and around each line."""
    table = trained.price_table()
    live_through(trained, fake, lambda: evening(trained, fake), DAYS[:1])
    show_until(trained, table, DAYS[1])
    fake.trade(DAYS[1], table.loc[DAYS[1]].to_dict())
    begun, orders = trained.log.read_bytes(), dict(fake.orders)
    evening(trained, fake)
    whole, placed = trained.log.read_bytes(), set(fake.orders)
    assert len(placed) > len(orders) > 0
    ask, write = requests.Session.request, decision_log.append_line
    left = [0]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def asked(*given: Any, **named: Any) -> Any:
        count()
        answer = ask(*given, **named)
        count()
        return answer

    def written(path: Path, line: str) -> None:
        count()
        write(path, line)
        count()

    monkeypatch.setattr(requests.Session, "request", asked)
    monkeypatch.setattr(decision_log, "append_line", written)
    for step in range(1, 1000):
        trained.log.write_bytes(begun)
        fake.orders = dict(orders)
        left[0] = step
        try:
            evening(trained, fake)
        except Killed:
            evening(trained, fake)
        else:
            break
        assert trained.log.read_bytes() == whole, step
        assert set(fake.orders) == placed, step
    assert step > 30


@pytest.mark.usefixtures("fast")
def test_a_stop_overnight_places_no_order_a_day_late(
    trained: Trained, fake: FakeAlpaca, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders that a stop had left unplaced are not placed with the next bar: the new decision is."""
    monkeypatch.setattr(alpaca_broker, "ATTEMPTS", 1)
    table = trained.price_table()
    show_until(trained, table, DAYS[0])
    fake.faults = [Fault("drop", BEFORE, "POST") for _ in range(20)]
    with pytest.raises(BrokerNotReady):
        evening(trained, fake)
    assert fake.orders == {}
    fake.faults = []
    show_until(trained, table, DAYS[1])
    fake.trade(DAYS[1], table.loc[DAYS[1]].to_dict())
    evening(trained, fake)
    assert {name[:10] for name in fake.orders} == {DAYS[1]}
    made = trained.decision(DAYS[1])
    assert {one["done"] for one in made["follow_up"]["differences"].values()} == {0.0}


@pytest.mark.usefixtures("fast")
def test_partial_fills_and_refusals_are_followed_up(trained: Trained, fake: FakeAlpaca) -> None:
    table = trained.price_table()
    show_until(trained, table, DAYS[0])
    fake.faults = [Fault("403", message="insufficient buying power")]
    evening(trained, fake)
    (placed,) = trained.entries("placed")
    (refused,) = placed["refused"]
    assert "insufficient buying power" in placed["refused"][refused]
    part = sorted(order["symbol"] for order in fake.orders.values())[0]
    show_until(trained, table, DAYS[1])
    fake.trade(DAYS[1], table.loc[DAYS[1]].to_dict(), {part: 0.5})
    evening(trained, fake)
    made = trained.decision(DAYS[1])
    differences = made["follow_up"]["differences"]
    assert differences[refused]["done"] == 0.0
    assert differences[part]["done"] == pytest.approx(0.5 * differences[part]["planned"])


@pytest.mark.usefixtures("fast")
def test_it_follows_new_bars_and_waits_for_open_orders_and_outages(
    trained: Trained, fake: FakeAlpaca, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alpaca_broker, "ATTEMPTS", 1)
    table = trained.price_table()
    show_until(trained, table, DAYS[0])
    fake.is_open = True  # the session of the first day goes on
    waits, said = [0], []

    def wait(seconds: float) -> None:
        waits[0] += 1
        if waits[0] == 1:
            fake.is_open = False
        elif waits[0] == 2:  # the bar comes before the fills, and the broker is away
            fake.day = DAYS[1]
            show_until(trained, table, DAYS[1])
        elif waits[0] == 3:
            fake.trade(DAYS[1], table.loc[DAYS[1]].to_dict())
            fake.faults = [Fault("503", BEFORE, "*") for _ in range(2)]
        elif waits[0] == 4:
            fake.faults = []
        else:
            raise KeyboardInterrupt

    first = dt.date(2011, 12, 14)
    request = Request((trained.run,), keys_of(trained, fake), first=first, follow=True, accept_verdict=True)
    clock = Clock(lambda: dt.date(2011, 12, 15), wait)
    with pytest.raises(KeyboardInterrupt):
        trade_on_paper(request, clock, said.append)
    waited = [line for line in said if line.startswith("waiting")]
    assert ["goes on" in line for line in waited] == [True, False, False]
    assert "is open at Alpaca (paper)" in waited[1]
    assert "has not answered" in waited[2]
    assert [one["date"] for one in trained.entries("paper")] == list(DAYS[:2])


def test_the_keys_are_written_nowhere(trained: Trained, fake: FakeAlpaca, capfd: pytest.CaptureFixture[str]) -> None:
    """Not in a file, not in what is printed: not even where a fault repeats them."""
    show_until(trained, trained.price_table(), DAYS[0])
    fake.faults = [Fault("403", message="not for {keys}"), Fault("500", message="{keys}")]
    assert main([*decide_options(trained, fake), "--verbose"]) == 0
    fake.faults = [Fault("403", BEFORE, "GET", message="not for {keys}")]
    assert main([*decide_options(trained, fake), "--verbose"]) == 2
    said = "".join(capfd.readouterr())
    assert "not for [key] [key]" in said
    files = [path for path in trained.run.parent.rglob("*") if path.is_file()]
    assert trained.log in files
    for secret in ENVIRON.values():
        assert secret not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--date", DAYS[0]), "trades today: leave it out"),
        (("--cash", "5"), "knows the cash of its account"),
        (("--holdings", "h.csv"), "leave --holdings and --fills out"),
        (("--set", "trading.alpaca.live=true"), "confirm it with --live"),
        (("--set", "env.execution_lag=0"), "which no broker does"),
        (("--set", "trading.max_age=0"), "the newest prices are of"),
        ({"ZZZ": 1.0}, "which the agent does not trade"),
        ({"A": -1.0}, "is short of A"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_placed(
    trained: Trained, fake: FakeAlpaca, capsys: pytest.CaptureFixture[str], options: Any, said: str
) -> None:
    """Options that contradict the account, and holdings that the agent cannot have."""
    show_until(trained, trained.price_table(), DAYS[0])
    fake.day = DAYS[1]
    if isinstance(options, dict):
        fake.held, options = options, ()
    assert said in refusal(capsys, *decide_options(trained, fake), *options)
    assert fake.orders == {}
    assert not trained.log.exists()
