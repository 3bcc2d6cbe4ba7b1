"""Alpaca as a broker, by the package alpaca-py: the account on paper by default, the live one after a confirmation.

A request whose answer is lost may have been carried out. Nothing is sent again before Alpaca has been asked for an
order of this client id, and Alpaca itself refuses a second order of a client id: an order is placed once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from finflow.config import AlpacaConfig
from finflow.errors import ConfigError, FinflowError, refuse
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading.account_state import DECISION, Fill, Holdings, last_decision

if TYPE_CHECKING:
    from alpaca.common.exceptions import APIError
    from alpaca.trading.client import TradingClient
    from alpaca.trading.models import Order

KEY, SECRET = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
LIVE_HOST = "api.alpaca.markets"
ADDRESS = re.compile(r"(?i)(https://(?P<host>[a-z0-9.-]+)|http://(127\.0\.0\.1|localhost))(:\d+)?(/\S*)?")
EXCHANGE = ZoneInfo("America/New_York")
TIMEOUT = 10.0  # seconds until an answer counts as lost
ATTEMPTS = 5  # of a request until an answer has come
LONGEST_WAIT = 60.0  # seconds between two attempts, at most
_ENDED = frozenset({"filled", "canceled", "rejected", "expired", "replaced", "done_for_day"})
_AGAIN = frozenset({408, 429})


class BrokerError(FinflowError):
    """An order or an account that a broker refuses."""


class OrderRefused(BrokerError):
    """An order that a broker refused, and that has had no effect."""


class BrokerNotReady(BrokerError):
    """A broker that gives no answer, or an account that nothing can be decided on at present."""


def open_alpaca(
    settings: AlpacaConfig,
    confirmed: bool = False,
    environ: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> AlpacaBroker:
    """Open an account at Alpaca with the keys of the environment; a live one is confirmed, or asks at the terminal.

    Raises ConfigError: One line, where the package or a key is missing, the address is not one for keys, or nobody has
    confirmed.
    """
    address = _address(settings)
    variables = os.environ if environ is None else environ
    missing = [name for name in (KEY, SECRET) if not variables.get(name)]
    refuse(
        missing, f"Alpaca needs the environment variable {' and '.join(missing)}; its site has the keys", ConfigError
    )
    try:
        from alpaca.trading.client import TradingClient
    except ImportError:
        raise ConfigError(
            "the broker alpaca needs the package alpaca-py, which is not installed: pip install 'finflow[alpaca]'"
        ) from None
    if settings.live and not confirmed:
        refuse(
            not (sys.stdin is not None and sys.stdin.isatty()),
            "trading.alpaca.live = true trades with real money: confirm it with --live",
            ConfigError,
        )
        answer = input("orders go to the live account at Alpaca, with real money; type live to go on: ")
        refuse(answer.strip().lower() != "live", "the live account was not confirmed: nothing was done", ConfigError)
    keys = variables[KEY], variables[SECRET]
    client = TradingClient(*keys, paper=not settings.live, url_override=address)
    client._retry = 0  # attempts are counted here, where the order is looked up before the next one
    client._session.request = partial(client._session.request, timeout=TIMEOUT)  # type: ignore[method-assign]
    return AlpacaBroker(client, settings, keys, sleep)


def _address(settings: AlpacaConfig) -> str | None:
    """Address to call; None for Alpaca's own. Keys travel encrypted, and to the live account only where it is set."""
    if settings.address is None:
        return None
    parts = ADDRESS.fullmatch(settings.address)
    refuse(
        parts is None,
        f"trading.alpaca.address = {settings.address} is not a valid address: it begins with https://, or with "
        "http:// on this machine (127.0.0.1)",
        ConfigError,
    )
    refuse(
        parts and parts["host"] == LIVE_HOST and not settings.live,
        f"trading.alpaca.address = {settings.address} is the live account: set trading.alpaca.live = true",
        ConfigError,
    )
    return settings.address.rstrip("/")


class AlpacaBroker:
    """An account at Alpaca. The secrets are kept out of messages."""

    def __init__(
        self, client: TradingClient, settings: AlpacaConfig, secrets: tuple[str, ...], sleep: Callable[[float], None]
    ) -> None:
        self._client, self._settings, self._secrets, self._sleep = client, settings, secrets, sleep
        self.name = f"Alpaca ({'live' if settings.live else 'paper'})"

    def account(self) -> str:
        """Mark of the account: the first digits of a hash of its id.

        Raises BrokerError if it may not trade.
        """
        account = self._ask(self._client.get_account)
        refuse(
            account.trading_blocked or account.account_blocked or account.status.value != "ACTIVE",
            f"{self.name} does not let the account trade: its site says why",
            BrokerError,
        )
        return hashlib.sha256(str(account.id).encode()).hexdigest()[:12]

    def positions(self) -> dict[str, float]:
        return {str(one.symbol): float(one.qty) for one in self._ask(self._client.get_all_positions)}

    def cash(self) -> float:
        return float(self._ask(self._client.get_account).cash)

    def clock(self) -> tuple[dt.date, bool]:
        """Day at the exchange, in New York, and True while its session goes on."""
        clock = self._ask(self._client.get_clock)
        return clock.timestamp.astimezone(EXCHANGE).date(), bool(clock.is_open)

    def status(self, client_id: str) -> Order | None:
        """The order of an id; None where Alpaca does not know it."""
        found: Order | None = self._ask(partial(self._find, client_id))
        return found

    def submit(self, client_id: str, ticker: str, shares: float) -> Order:
        """Place an order at the next price, once; negative shares are sold, and one of the same id is the same order.

        Raises OrderRefused if Alpaca refuses it; BrokerNotReady if no answer comes; the order may be placed, and the
        same call finds out.
        """
        what = f"the order of {shares:+,g} {ticker}"
        known: Order = self._ask(partial(self._place, client_id, ticker, shares, what), what)
        refuse(
            (known.symbol, signed(known, known.qty)) != (symbol_of(ticker), shares),
            f"{self.name} has {signed(known, known.qty):+,g} {known.symbol} under the id {client_id}, and the "
            f"decision says {shares:+,g} {ticker}: the order that is there stays, and no other",
            BrokerError,
        )
        return known

    def _find(self, client_id: str) -> Any:
        from alpaca.common.exceptions import APIError

        try:
            return self._client.get_order_by_client_id(client_id)
        except APIError as error:
            if error.status_code == 404:
                return None
            raise

    def _place(self, client_id: str, ticker: str, shares: float, what: str) -> Any:
        from alpaca.common.exceptions import APIError
        from alpaca.trading.enums import OrderSide, TimeInForce
        from alpaca.trading.requests import MarketOrderRequest

        known = self._find(client_id)
        if known is not None:
            return known
        whole = float(shares).is_integer()  # a part of a share trades in day orders alone
        request = MarketOrderRequest(
            symbol=symbol_of(ticker),
            qty=abs(shares),
            side=OrderSide.BUY if shares > 0.0 else OrderSide.SELL,
            time_in_force=TimeInForce(self._settings.time_in_force if whole else "day"),
            client_order_id=client_id,
        )
        try:
            return self._client.submit_order(request)
        except APIError as error:
            if error.status_code == 401 or not _is_final(error):
                raise
            raise OrderRefused(f"{self.name} refuses {what}: {self._redacted(error)}") from None

    def _ask(self, call: Callable[[], Any], what: str = "a request") -> Any:
        """Answer to a call that may be repeated, after the pause that the broker asked for, or twice the last one."""
        from alpaca.common.exceptions import APIError
        from requests.exceptions import RequestException

        failure = "no answer"
        for attempt in range(ATTEMPTS):
            asked = ""  # seconds, or a date
            try:
                return call()
            except APIError as error:
                text = self._redacted(error)
                if error.status_code in (401, 403):
                    raise BrokerError(f"{self.name} does not accept the keys in {KEY} and {SECRET}: {text}") from None
                if _is_final(error):
                    raise BrokerError(f"{self.name} refuses: {text}") from None
                failure = f"status {error.status_code}: {text}"
                asked = "" if error.response is None else error.response.headers.get("Retry-After", "")
            except (RequestException, ValueError) as error:  # ValueError: an answer that is not what it should be
                failure = self._redacted(f"{type(error).__name__}: {error}")
            if attempt < ATTEMPTS - 1:
                self._sleep(min(max(0.5 * 2.0**attempt, float(asked) if asked.isdecimal() else 0.0), LONGEST_WAIT))
        raise BrokerNotReady(
            f"{self.name} has not answered {what} in {ATTEMPTS} attempts ({failure}): run the "
            "same command again, and nothing is placed twice"
        )

    def _redacted(self, said: object) -> str:
        text = str(said)
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return " ".join(text.split())[:200]


def symbol_of(ticker: str) -> str:
    """Alpaca's symbol of a ticker: classes of shares have a dot there, and a dash at Yahoo (BRK-B)."""
    return ticker.replace("-", ".")


def signed(order: Order, count: str | float | None) -> float:
    """A number of shares of an order, negative where they are sold."""
    return float(count or 0.0) * (-1.0 if order.side is not None and order.side.value == "sell" else 1.0)


def is_open(order: Order) -> bool:
    """True for an order that may change hands yet."""
    return order.status.value not in _ENDED


def _is_final(error: APIError) -> bool:
    """True for a refusal that another attempt would meet again; a second order of an id is looked up instead."""
    status = int(error.status_code or 0)
    return 400 <= status < 500 and status not in _AGAIN and "client_order_id" not in str(error)


PLACED = "placed"


class OrderRouting:
    """Decisions of the log, carried out at a broker; ``mark`` is the account's in the lines of the log.

    A decision is a line of the log before its first order is placed; after the last one, another line records that.
    After a stop at any moment the orders of that line are placed, and nothing is decided anew.

    Raises BrokerError if the account may not trade.
    """

    def __init__(self, broker: AlpacaBroker) -> None:
        self.broker, self.mark = broker, broker.account()

    def decided(self, log: HashedLog, date: str) -> Mapping[str, Any] | None:
        """Newest decision of a date for this account; None where there is none."""
        own = [one for one in log.entries if self._is_own(one) and one["date"] == date]
        return own[-1] if own else None

    def place(self, log: HashedLog, entry: Mapping[str, Any]) -> str:
        """Place the orders of a decision, sales first, once in all; the outcome in a sentence.

        Raises BrokerNotReady or BrokerError if the broker gives no answer, or has another order under an id.
        """
        line = {"kind": PLACED, "date": entry["date"], "broker": self.mark}
        placed = [one for one in log.entries if line.items() <= one.items()]
        refused: dict[str, str] = {}
        if placed:
            refused = placed[0]["refused"]
        else:
            for ticker, shares in sorted(entry["orders"].items(), key=lambda order: (order[1] > 0.0, order[0])):
                try:
                    self.broker.submit(client_id(entry, ticker), ticker, shares)
                except OrderRefused as error:
                    refused[ticker] = str(error)
            log.append({**line, "refused": refused})
        count = len(entry["orders"]) - len(refused)
        orders, are = "order" if count == 1 else "orders", "have been" if placed else "are"
        return "; ".join([f"{count} {orders} of {entry['date']} {are} with {self.broker.name}", *refused.values()])

    def stated(self, log: HashedLog, panel: MarketPanel) -> Holdings:
        """The account, and the fills of the orders before.

        Raises BrokerNotReady if one of them is open; BrokerError if the account holds what the agent does not trade.
        """
        before = last_decision(log.entries, str(panel.dates[-1]))
        fills = None if before is None or not self._is_own(before) else self._fills(before)
        names = {one: name for name in panel.assets for one in (symbol_of(name), name)}
        broker = self.broker.name
        shares: dict[str, float] = {}
        for symbol, count in self.broker.positions().items():
            refuse(
                symbol not in names,
                f"{broker} holds {symbol}, which the agent does not trade: sell it there, or give the agent an account "
                "of its own",
                BrokerError,
            )
            refuse(count < 0.0, f"{broker} is short of {symbol}, and the agent holds no short positions", BrokerError)
            shares[names[symbol]] = count
        return Holdings(shares, self.broker.cash(), fills)

    def _fills(self, before: Mapping[str, Any]) -> list[Fill]:
        """Fills of a decision; Alpaca takes no commission, and fees of the exchanges leave the cash later."""
        fills = []
        for ticker in sorted(before["orders"]):
            order = self.broker.status(client_id(before, ticker))
            if order is None:  # refused, or never placed
                continue
            refuse(
                is_open(order),
                f"the order of {signed(order, order.qty):+,g} {ticker} of {before['date']} is open at "
                f"{self.broker.name}: wait for its end, or cancel it there",
                BrokerNotReady,
            )
            filled = signed(order, order.filled_qty)
            if filled and order.filled_avg_price is not None:
                fills.append(Fill(ticker, filled, float(order.filled_avg_price)))
        return fills

    def _is_own(self, entry: Mapping[str, Any]) -> bool:
        mark = entry.get("broker") if entry["kind"] == DECISION else None
        refuse(
            mark not in (None, self.mark),
            f"the log belongs to another account than that of {self.broker.name}: use the keys of that one, or "
            "move state.jsonl away",
        )
        return mark is not None


def client_id(entry: Mapping[str, Any], ticker: str) -> str:
    """Id of the order of a decision in a ticker: one and the same, whenever it is made again."""
    digest = hashlib.sha256(f"{entry['agent_sha256']} {entry['date']} {ticker}".encode()).hexdigest()
    return f"{entry['date']}-{ticker}-{digest[:12]}"
