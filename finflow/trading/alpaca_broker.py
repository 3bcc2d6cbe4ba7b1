"""Alpaca as a broker, by the package alpaca-py: the account on paper by default, the live one after a confirmation.

A request whose answer is lost may have been carried out. Nothing is sent again before Alpaca has been asked for an
order of this client id, and Alpaca itself refuses a second order of a client id: an order is placed once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from finflow.config import AlpacaConfig
from finflow.errors import ConfigError, FinflowError

if TYPE_CHECKING:
    from alpaca.common.exceptions import APIError
    from alpaca.trading.client import TradingClient
    from alpaca.trading.models import Order

KEY, SECRET = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
LIVE_HOST = "api.alpaca.markets"
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


class MarketOrder(NamedTuple):
    """An order at the next price, negative shares are sold; one of the same id is the same order."""

    client_id: str
    ticker: str
    shares: float


class OrderStatus(NamedTuple):
    """Status of an order: shares that changed hands so far, negative where sold, and their mean price in money."""

    order: MarketOrder
    is_open: bool
    filled: float
    price: float | None


class MarketClock(NamedTuple):
    """Day at the exchange, and True for ``is_open`` while its session goes on."""

    day: dt.date
    is_open: bool


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
    if missing:
        raise ConfigError(f"Alpaca needs the environment variable {' and '.join(missing)}; its site has the keys")
    try:
        from alpaca.trading.client import TradingClient
    except ImportError:
        raise ConfigError(
            "the broker alpaca needs the package alpaca-py, which is not installed: pip install 'finflow[alpaca]'"
        ) from None
    if settings.live and not confirmed:
        _confirm()
    keys = variables[KEY], variables[SECRET]
    client = TradingClient(*keys, paper=not settings.live, url_override=address)
    client._retry = 0  # attempts are counted here, where the order is looked up before the next one
    client._session.request = partial(client._session.request, timeout=TIMEOUT)  # type: ignore[method-assign]
    return AlpacaBroker(client, settings, keys, sleep)


def _address(settings: AlpacaConfig) -> str | None:
    """Address to call; None for Alpaca's own. Keys travel encrypted, and to the live account only where it is set."""
    if settings.address is None:
        return None
    try:
        parts = urlsplit(settings.address)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if host is None or not (parts.scheme == "https" or (parts.scheme == "http" and host in ("127.0.0.1", "localhost"))):
        raise ConfigError(
            f"trading.alpaca.address = {settings.address} is not a valid address: it begins with https://, or with "
            "http:// on this machine (127.0.0.1)"
        )
    if host == LIVE_HOST and not settings.live:
        raise ConfigError(
            f"trading.alpaca.address = {settings.address} is the live account: set trading.alpaca.live = true"
        )
    return settings.address.rstrip("/")


def _confirm() -> None:
    """Ask for confirmation at the terminal; a ConfigError where there is none, or it says something else."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigError("trading.alpaca.live = true trades with real money: confirm it with --live")
    answer = input("orders go to the live account at Alpaca, with real money; type live to go on: ")
    if answer.strip().lower() != "live":
        raise ConfigError("the live account was not confirmed: nothing was done")


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
        if account.trading_blocked or account.account_blocked or account.status.value != "ACTIVE":
            raise BrokerError(f"{self.name} does not let the account trade: its site says why")
        return hashlib.sha256(str(account.id).encode()).hexdigest()[:12]

    def positions(self) -> dict[str, float]:
        return {str(one.symbol): float(one.qty) for one in self._ask(self._client.get_all_positions)}

    def cash(self) -> float:
        return float(self._ask(self._client.get_account).cash)

    def clock(self) -> MarketClock:
        """Clock of the exchange, in New York."""
        clock = self._ask(self._client.get_clock)
        return MarketClock(clock.timestamp.astimezone(EXCHANGE).date(), bool(clock.is_open))

    def status(self, client_id: str) -> OrderStatus | None:
        """Status of an order; None for an id that Alpaca does not know."""
        order = self._ask(partial(self._find, client_id))
        return None if order is None else _read(order)

    def submit(self, order: MarketOrder) -> OrderStatus:
        """Place an order, once.

        Raises OrderRefused if Alpaca refuses it; BrokerNotReady if no answer comes; the order may be placed, and the
        same call finds out.
        """
        what = f"the order of {order.shares:+,g} {order.ticker}"
        known = _read(self._ask(partial(self._place, order, what), what))
        if (known.order.ticker, known.order.shares) != (symbol_of(order.ticker), order.shares):
            raise BrokerError(
                f"{self.name} has {known.order.shares:+,g} {known.order.ticker} under the id {order.client_id}, and "
                f"the decision says {order.shares:+,g} {order.ticker}: the order that is there stays, and no other"
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

    def _place(self, order: MarketOrder, what: str) -> Any:
        from alpaca.common.exceptions import APIError
        from alpaca.trading.enums import OrderSide, TimeInForce
        from alpaca.trading.requests import MarketOrderRequest

        known = self._find(order.client_id)
        if known is not None:
            return known
        whole = float(order.shares).is_integer()  # a part of a share trades in day orders alone
        request = MarketOrderRequest(
            symbol=symbol_of(order.ticker),
            qty=abs(order.shares),
            side=OrderSide.BUY if order.shares > 0.0 else OrderSide.SELL,
            time_in_force=TimeInForce(self._settings.time_in_force if whole else "day"),
            client_order_id=order.client_id,
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
            asked = 0.0
            try:
                return call()
            except APIError as error:
                text = self._redacted(error)
                if error.status_code in (401, 403):
                    raise BrokerError(f"{self.name} does not accept the keys in {KEY} and {SECRET}: {text}") from None
                if _is_final(error):
                    raise BrokerError(f"{self.name} refuses: {text}") from None
                failure, asked = f"status {error.status_code}: {text}", _pause(error.response)
            except (RequestException, ValueError) as error:  # ValueError: an answer that is not what it should be
                failure = self._redacted(f"{type(error).__name__}: {error}")
            if attempt < ATTEMPTS - 1:
                self._sleep(min(max(0.5 * 2.0**attempt, asked), LONGEST_WAIT))
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


def _read(answer: Order) -> OrderStatus:
    sign = -1.0 if answer.side is not None and answer.side.value == "sell" else 1.0
    filled = sign * float(answer.filled_qty or 0.0)
    order = MarketOrder(answer.client_order_id, str(answer.symbol), sign * float(answer.qty or 0.0))
    price = float(answer.filled_avg_price) if answer.filled_avg_price is not None and filled else None
    return OrderStatus(order, answer.status.value not in _ENDED, filled, price)


def _is_final(error: APIError) -> bool:
    """True for a refusal that another attempt would meet again; a second order of an id is looked up instead."""
    status = int(error.status_code or 0)
    return 400 <= status < 500 and status not in _AGAIN and "client_order_id" not in str(error)


def _pause(response: Any) -> float:
    """Seconds of the header Retry-After; 0 where it says none."""
    try:
        return max(float(response.headers.get("Retry-After") or 0.0), 0.0)
    except (ValueError, AttributeError):
        return 0.0
