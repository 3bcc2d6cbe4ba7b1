"""Orders and their status at a broker: an order is known by an id of the client's own.

A broker has ``positions()`` (shares by ticker), ``cash()``, ``submit(order)``, which answers the status of an order of
the same id that it knows already, and ``status(client_id)``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from finflow.errors import FinflowError


class BrokerError(FinflowError):
    """An order or an account that a broker refuses."""


class OrderRefused(BrokerError):
    """An order that a broker refused, and that has had no effect."""


class BrokerNotReady(BrokerError):
    """A broker that gives no answer, or an account that nothing can be decided on at present."""


@dataclass(frozen=True)
class MarketOrder:
    """An order at the next price; ``date`` is the newest bar that its decision knew, and negative shares are sold.

    An order of the same id, which is of the client's own making, is the same order, however often it is submitted.
    """

    client_id: str
    date: str
    ticker: str
    shares: float


@dataclass(frozen=True)
class OrderStatus:
    """Status of an order at a broker."""

    order: MarketOrder
    state: Literal["accepted", "filled", "ended"]  # ``ended``: canceled, rejected or expired before all of it filled
    price: float | None = None  # of the fill, in money
    cost: float | None = None  # of the whole order
    filled: float = 0.0  # shares that changed hands so far, negative where sold


class MarketClock(NamedTuple):
    """Day at the exchange, and True for ``is_open`` while its session goes on."""

    day: dt.date
    is_open: bool


def client_id(agent: str, date: str, ticker: str) -> str:
    """Id of the order of an agent's decision in a ticker: one and the same, whenever it is made again."""
    digest = hashlib.sha256(f"{agent} {date} {ticker}".encode()).hexdigest()
    return f"{date}-{ticker}-{digest[:12]}"
