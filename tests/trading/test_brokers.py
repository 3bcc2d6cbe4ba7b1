"""Evenings at the paper broker and at a fake of Alpaca: no crash at any step trades twice or loses an order."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import signal
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import requests

from finflow import line_file
from finflow.cli import main
from finflow.trading import alpaca_broker
from finflow.trading.alpaca_broker import AlpacaBroker, BrokerNotReady
from finflow.trading.decide_mode import Request
from finflow.trading.paper_trading import Clock, trade_on_paper
from scripts.evidence.broker_kills import Market, compare, live
from scripts.evidence.fake_alpaca import BEFORE, FakeAlpaca, Fault
from tests.commands import refusal
from tests.trading.conftest import ENVIRON, Trained

DAYS = ("2011-12-14", "2011-12-15", "2011-12-16", "2011-12-19")


class Killed(BaseException):
    """Stands in for the end of the process."""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_kills_trade_nothing_twice_and_lose_nothing(trained: Trained) -> None:
    """A small version of the evidence: a process that trades at a broker, and another that is killed."""
    run = trained.run.parent / "killed"
    shutil.copytree(trained.run, run)
    whole = live(Market(trained.run, trained.price_table(), DAYS[:3]))
    killed = live(Market(run, trained.price_table(), DAYS[:3]), kills=1, seed=1)
    found = compare(whole, killed)
    assert len(found["kills"]) == 1
    assert found["orders"] > 3
    assert (found["lost"], found["added"], found["changed"], found["money"]) == (0, 0, 0, 0.0)
    assert found["identical"], found


@dataclass
class Desk:
    """An agent that trades at the fake broker, and days whose prices come one by one."""

    trained: Trained
    fake: FakeAlpaca
    table: pd.DataFrame

    def options(self) -> tuple[str, ...]:
        options = self.trained.options("decide", trading__alpaca__address=self.fake.address)
        return (*options, "--broker", "alpaca", "--i-know")

    def publish(self, day: str) -> None:
        self.table.loc[:day].to_csv(self.trained.prices)

    def fill(self, day: str, parts: dict[str, float] | None = None) -> None:
        """Fill the orders of before at a day's close, of some assets a part alone."""
        self.fake.trade(day, self.table.loc[day].to_dict(), parts)

    def request(self, **options: Any) -> Request:
        keys = {"trading.alpaca.address": self.fake.address, "trading.broker": "alpaca"}
        keys["market.path"] = str(self.trained.prices)
        return Request((self.trained.run,), keys, first=dt.date(2011, 12, 14), accept_verdict=True, **options)

    def evening(self, day: str | None = None, parts: dict[str, float] | None = None) -> None:
        """Live through the evening of a new day, or go on with that of the last."""
        if day is not None:
            self.publish(day)
            self.fill(day, parts)
        trade_on_paper(self.request())


@pytest.fixture
def desk(trained: Trained, fake: FakeAlpaca) -> Desk:
    made = Desk(trained, fake, trained.price_table())
    made.publish(DAYS[0])
    return made


@pytest.mark.usefixtures("fast")
def test_evenings_at_alpaca_go_on_from_what_was_filled(desk: Desk) -> None:
    for day in DAYS:
        desk.evening(day)
    decisions = desk.trained.entries("decision")
    assert [one["date"] for one in decisions] == list(DAYS)
    assert len(desk.fake.orders) == sum(len(one["orders"]) for one in decisions) > len(DAYS)
    evenings = desk.trained.entries("paper")
    assert [one["date"] for one in evenings] == list(DAYS)
    assert evenings[0]["wealth"] == 1_000_000.0
    prices = desk.table.loc[DAYS[-1]]
    worth = desk.fake.money + sum(count * prices[name] for name, count in desk.fake.held.items())
    assert evenings[-1]["wealth"] == pytest.approx(worth)
    assert evenings[-1]["simple_return"] == pytest.approx(worth / evenings[-2]["wealth"] - 1.0)
    page = json.loads((desk.trained.run / "trading" / "paper" / DAYS[0] / "paper.json").read_text("utf-8"))
    assert page["value"] == pytest.approx(worth)


def test_decide_places_its_orders_once_and_says_so_the_second_time(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*desk.options(), "--dry-run"]) == 0
    assert desk.fake.orders == {}
    assert not desk.trained.log.exists()
    assert main(desk.options()) == 0
    assert "are with Alpaca (paper)" in capsys.readouterr().out
    placed, content = dict(desk.fake.orders), desk.trained.log.read_bytes()
    assert placed
    assert main(desk.options()) == 0
    assert f"{len(placed)} orders of {DAYS[0]} have been with" in capsys.readouterr().out
    assert (desk.fake.orders, desk.trained.log.read_bytes()) == (placed, content)
    monkeypatch.setattr(AlpacaBroker, "account", lambda broker: "another")
    assert "belongs to another account" in refusal(capsys, *desk.options())


@pytest.mark.usefixtures("fast")
def test_a_crash_at_every_step_at_alpaca_neither_trades_twice_nor_loses_an_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended before each request, after it was carried out but before its answer is read, and around each line."""
    desk.evening()
    desk.publish(DAYS[1])
    desk.fill(DAYS[1])
    begun, orders = desk.trained.log.read_bytes(), dict(desk.fake.orders)
    desk.evening()
    whole, placed = desk.trained.log.read_bytes(), set(desk.fake.orders)
    assert len(placed) > len(orders) > 0
    ask, write = requests.Session.request, line_file.append_line
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

    def written(path: Any, line: str) -> None:
        count()
        write(path, line)
        count()

    monkeypatch.setattr(requests.Session, "request", asked)
    monkeypatch.setattr(line_file, "append_line", written)
    for step in range(1, 1000):
        desk.trained.log.write_bytes(begun)
        desk.fake.orders = dict(orders)
        left[0] = step
        try:
            desk.evening()
        except Killed:
            desk.evening()
        else:
            break
        assert desk.trained.log.read_bytes() == whole, step
        assert set(desk.fake.orders) == placed, step
    assert step > 30


@pytest.mark.usefixtures("fast")
def test_a_stop_overnight_places_no_order_a_day_late(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that a stop had left unplaced are not placed with the next bar: the new decision is."""
    monkeypatch.setattr(alpaca_broker, "ATTEMPTS", 1)
    desk.fake.faults = [Fault("drop", BEFORE, "POST") for _ in range(20)]
    with pytest.raises(BrokerNotReady):
        desk.evening()
    assert desk.fake.orders == {}
    desk.fake.faults = []
    desk.evening(DAYS[1])
    assert {name[:10] for name in desk.fake.orders} == {DAYS[1]}
    made = desk.trained.decision(DAYS[1])
    assert {one["done"] for one in made["follow_up"]["differences"].values()} == {0.0}


@pytest.mark.usefixtures("fast")
def test_partial_fills_and_refusals_are_followed_up(desk: Desk) -> None:
    """An order that was refused is not tried again."""
    desk.fake.faults = [Fault("403", message="insufficient buying power")]
    desk.evening()
    (placed,) = desk.trained.entries("placed")
    (refused,) = placed["refused"]
    assert "insufficient buying power" in placed["refused"][refused]
    symbols = sorted(order["symbol"] for order in desk.fake.orders.values())
    assert refused not in symbols
    desk.evening(DAYS[1], {symbols[0]: 0.5})
    differences = desk.trained.decision(DAYS[1])["follow_up"]["differences"]
    assert differences[refused]["done"] == 0.0
    assert differences[symbols[0]]["done"] == pytest.approx(0.5 * differences[symbols[0]]["planned"])


@pytest.mark.usefixtures("fast")
def test_it_follows_new_bars_and_waits_for_open_orders_and_outages(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alpaca_broker, "ATTEMPTS", 1)
    desk.fake.is_open = True  # the session of the first day goes on
    waits, said = [0], []

    def wait(seconds: float) -> None:
        waits[0] += 1
        if waits[0] == 1:
            desk.fake.is_open = False
        elif waits[0] == 2:  # the bar comes before the fills, and the broker is away
            desk.fake.day = DAYS[1]
            desk.publish(DAYS[1])
        elif waits[0] == 3:
            desk.fill(DAYS[1])
            desk.fake.faults = [Fault("503", BEFORE, "*") for _ in range(2)]
        elif waits[0] == 4:
            desk.fake.faults = []
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trade_on_paper(desk.request(follow=True), Clock(lambda: dt.date(2011, 12, 15), wait), said.append)
    waited = [line for line in said if line.startswith("waiting")]
    assert ["goes on" in line for line in waited] == [True, False, False]
    assert "is open at Alpaca (paper)" in waited[1]
    assert "has not answered" in waited[2]
    assert [one["date"] for one in desk.trained.entries("paper")] == list(DAYS[:2])


def test_the_keys_are_written_nowhere(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """Not in a file, not in what is printed: not even where a fault repeats them."""
    desk.fake.faults = [Fault("403", message="not for {keys}"), Fault("500", message="{keys}")]
    assert main([*desk.options(), "--verbose"]) == 0
    desk.fake.faults = [Fault("403", BEFORE, "GET", message="not for {keys}")]
    assert main([*desk.options(), "--verbose"]) == 2
    said = "".join(capfd.readouterr())
    assert "not for [key] [key]" in said
    files = [path for path in desk.trained.run.parent.rglob("*") if path.is_file()]
    assert desk.trained.log in files
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
        ({"A": 1.0, "cash": -50.0}, "in cash, and it holds no debt: pay in, sell"),
    ],
)
def test_what_cannot_be_at_alpaca_is_one_line_and_nothing_is_placed(
    desk: Desk, capsys: pytest.CaptureFixture[str], options: Any, said: str
) -> None:
    """Options that contradict the account, and holdings that the agent cannot have."""
    desk.fake.day = DAYS[1]
    if isinstance(options, dict):
        desk.fake.money = options.pop("cash", 1e6)
        desk.fake.held, options = options, ()
    assert said in refusal(capsys, *desk.options(), *options)
    assert desk.fake.orders == {}
    assert not desk.trained.log.exists()
