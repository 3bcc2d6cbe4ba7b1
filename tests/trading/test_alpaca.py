"""Alpaca's interface, against a fake of it: no fault trades twice or loses, and what may not be opened is refused."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import pytest

from finflow.config import AlpacaConfig, load_config
from finflow.errors import ConfigError
from finflow.trading import alpaca_broker
from finflow.trading.alpaca_broker import KEY, SECRET, AlpacaBroker, BrokerError, BrokerNotReady, is_open, open_alpaca
from scripts.evidence.fake_alpaca import AFTER, BEFORE, FakeAlpaca, Fault
from tests.market.conftest import assert_refused
from tests.trading.conftest import ENVIRON

ORDER = ("2011-12-14-A-0123", "A", 3.0)


def broker_of(fake: FakeAlpaca, pauses: list[float] | None = None, **changes: Any) -> AlpacaBroker:
    waited = [] if pauses is None else pauses
    return open_alpaca(AlpacaConfig(address=fake.address, **changes), environ=ENVIRON, sleep=waited.append)


def test_an_order_is_placed_and_read_back_and_another_under_its_id_refused(fake: FakeAlpaca) -> None:
    fake.held = {"BRK.B": 2.0}
    broker = broker_of(fake)
    assert broker.cash() == 1_000_000.0
    assert broker.positions() == {"BRK.B": 2.0}
    assert broker.clock() == (dt.date(2011, 12, 14), False)
    assert broker.status(ORDER[0]) is None
    assert is_open(broker.submit(*ORDER))
    assert broker.submit(*ORDER) == broker.status(ORDER[0])  # once
    assert fake.requests.count("POST /v2/orders") == 1
    with pytest.raises(BrokerError, match=r"has \+3 A under the id"):
        broker.submit(*ORDER[:2], 4.0)
    fake.trade("2011-12-15", {"A": 10.0})
    done = broker.status(ORDER[0])
    assert (is_open(done), float(done.filled_qty or 0), float(done.filled_avg_price or 0)) == (False, 3.0, 10.0)
    assert broker.cash() == pytest.approx(1_000_000.0 - 30.0)
    broker.submit("another", *ORDER[1:])
    fake.trade("2011-12-16", {"A": 10.0}, {"A": 1.0 / 3.0})
    done = broker.status("another")
    assert (is_open(done), float(done.filled_qty or 0)) == (False, pytest.approx(1.0))  # a partial fill is what it is


def test_parts_of_a_share_and_share_classes_are_as_alpaca_takes_them(fake: FakeAlpaca) -> None:
    broker = broker_of(fake, time_in_force="cls")
    broker.submit("whole", "A", -3.0)
    broker.submit("part", "BRK-B", 0.25)
    whole, part = fake.orders["whole"], fake.orders["part"]
    assert (whole["side"], whole["qty"], whole["time_in_force"]) == ("sell", "3.0", "cls")
    assert (part["symbol"], part["qty"], part["time_in_force"]) == ("BRK.B", "0.25", "day")


FAULTS = [Fault("500"), Fault("503", AFTER), Fault("drop"), Fault("drop", AFTER), Fault("cut", AFTER)]
FAULTS += [Fault("slow", when, seconds=2.0) for when in (BEFORE, AFTER)]


@pytest.mark.parametrize("fault", [*FAULTS, Fault("429", seconds=7.0)], ids=lambda fault: f"{fault.kind}-{fault.when}")
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_fault_of_the_way_trades_twice_or_not_at_all(
    fake: FakeAlpaca, fault: Fault, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alpaca_broker, "TIMEOUT", 1.0)  # seconds that an answer has on a busy machine
    fake.faults = [Fault(**{**vars(fault), "method": method})]
    pauses: list[float] = []
    assert broker_of(fake, pauses).submit(*ORDER).client_order_id == ORDER[0]
    assert fake.faults == []
    assert [order["client_order_id"] for order in fake.orders.values()] == [ORDER[0]]
    assert pauses == [7.0 if fault.kind == "429" else 0.5]


def test_faults_without_end_are_one_line_and_the_next_call_goes_on(fake: FakeAlpaca) -> None:
    fake.faults = [Fault("drop", AFTER, "*") for _ in range(20)]
    pauses: list[float] = []
    with pytest.raises(BrokerNotReady, match=r"in 5 attempts.*nothing is placed twice") as caught:
        broker_of(fake, pauses).submit(*ORDER)
    assert "\n" not in str(caught.value)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    fake.faults = []
    assert broker_of(fake).submit(*ORDER).client_order_id == ORDER[0]
    assert len(fake.orders) == 1


def test_an_order_that_arrives_late_is_found_by_its_id(fake: FakeAlpaca) -> None:
    """The look finds nothing, the order of another request arrives, and the second one is refused as a duplicate."""
    broker, other = broker_of(fake), broker_of(fake)

    def watch(when: str) -> None:
        if fake.requests[-1].startswith("POST"):
            fake.watch = None
            other.submit(*ORDER)

    fake.watch = watch
    assert broker.submit(*ORDER).client_order_id == ORDER[0]
    assert len(fake.orders) == 1


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
    assert_refused([said], lambda: open_alpaca(AlpacaConfig(**changes), environ=environ), ConfigError)


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
    wrong = open_alpaca(AlpacaConfig(address=fake.address), environ={KEY: "k", SECRET: "s"})
    with pytest.raises(BrokerError, match="does not accept the keys in APCA_API_KEY_ID"):
        wrong.cash()
    fake.status = "ACCOUNT_CLOSED"
    with pytest.raises(BrokerError, match="does not let the account trade"):
        broker_of(fake).account()
