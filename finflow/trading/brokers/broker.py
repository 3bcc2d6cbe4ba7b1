"""Interface of a broker: what is held, and orders that are known by an id of the client's own."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from finflow.errors import FinflowError


class BrokerError(FinflowError):
    """An order or an account that a broker refuses."""


class OrderRefused(BrokerError):
    """An order that a broker refused, and that has had no effect."""


class BrokerNotReady(BrokerError):
    """A broker that gives no answer, or an account that nothing can be decided on at present."""


@dataclass(frozen=True)
class MarketOrder:
    """An order at the next price."""

    client_id: str  # an order of the same id is the same order, however often it is submitted
    date: str  # newest bar that its decision knew
    ticker: str
    shares: float  # negative to sell


@dataclass(frozen=True)
class OrderStatus:
    """Status of an order at a broker."""

    order: MarketOrder
    state: Literal["accepted", "filled", "ended"]  # ended: canceled, rejected or expired before all filled
    price: float | None = None  # of the fill, in money
    cost: float | None = None  # of the whole order, in money
    filled: float = 0.0  # shares that changed hands so far, negative where sold


class MarketClock(NamedTuple):
    """Day at the exchange, and True for ``is_open`` while its session goes on."""

    day: dt.date
    is_open: bool


class Broker(Protocol):
    """An account at a broker, which has a clock, and a name in messages, such as ``Alpaca (paper)``."""

    name: str

    def account(self) -> str:
        """Mark of the account: a hash, the same for the same account; `BrokerError` if it may not trade."""
        ...

    def clock(self) -> MarketClock:
        """Clock of the exchange."""
        ...

    def positions(self) -> dict[str, float]:
        """Shares held, by ticker."""
        ...

    def cash(self) -> float:
        """Cash at hand, in money."""
        ...

    def submit(self, order: MarketOrder) -> OrderStatus:
        """Place an order, unless one of its id is known, whose status is then the answer.

        `BrokerError` if an order of its id says something else.
        """
        ...

    def status(self, client_id: str) -> OrderStatus | None:
        """Status of an order; None where no order has this id."""
        ...


def client_id(agent: str, date: str, ticker: str) -> str:
    """Id of the order of an agent (its hash) on a date in a ticker: one and the same, whenever it is made again."""
    digest = hashlib.sha256(f"{agent} {date} {ticker}".encode()).hexdigest()
    return f"{date}-{ticker}-{digest[:12]}"
