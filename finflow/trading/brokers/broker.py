"""Orders and their status at a broker, and the broker on paper, where they fill at the ledger's prices and costs.

A broker has ``positions()`` (shares by ticker), ``cash()``, ``submit(order)``, which answers the status of an order of
the same id that it knows already, and ``status(client_id)``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import share_prices
from finflow.errors import FinflowError
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel

BROKER_LOG = "broker.jsonl"
OPENED, ORDER, FILL, LAPSED, DIVIDEND = "opened", "order", "fill", "lapsed", "dividend"
_LATER = "9999-12-31"  # after every day of the log


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


class PaperBroker:
    """An account whose orders fill at the bar that the configuration names; every step is a line of a hashed log.

    An order in an asset that is halted at that bar lapses: the next decision sees that it was never done.
    An order that was accepted is on the disk before it is acknowledged, and so is a fill. After a stop at any moment
    the same calls lead to the same account. Without ``keep`` nothing is written to the log (a dry run).
    """

    def __init__(self, path: Path, keep: bool = True) -> None:
        self._log, self._keep = HashedLog.read(path), keep
        self._capital: float | None = None
        self._orders: dict[str, MarketOrder] = {}
        self._ends: dict[str, Mapping[str, Any]] = {}  # by the order's id, its fill or lapse
        self._dividends: dict[tuple[str, str], float] = {}  # by day and ticker, in money
        for entry in self._log.entries:
            self._read(entry)

    @property
    def is_open(self) -> bool:
        return self._capital is not None

    def open(self, cash: float) -> None:
        self._append({"kind": OPENED, "cash": cash})

    def positions(self, before: str = _LATER) -> dict[str, float]:
        """Shares by ticker from the filled orders of decisions before a date."""
        held: dict[str, float] = {}
        for order, _ in self._filled(before):
            held[order.ticker] = held.get(order.ticker, 0.0) + order.shares
        return {ticker: shares for ticker, shares in held.items() if abs(shares) > 1e-9}

    def cash(self, before: str = _LATER) -> float:
        """Cash at hand, in money, after the filled orders of decisions before a date; interest is not paid."""
        paid = sum(order.shares * fill["price"] + fill["cost"] for order, fill in self._filled(before))
        received = sum(cash for (day, _), cash in self._dividends.items() if day <= before)
        return float((self._capital or 0.0) - paid + received)

    def submit(self, order: MarketOrder) -> OrderStatus:
        known = self.status(order.client_id)
        if known is None:
            self._append({"kind": ORDER, **asdict(order)})
            return OrderStatus(order, "accepted")
        if known.order != order:
            raise BrokerError(
                f"an order of {known.order.shares:+,g} {order.ticker} was submitted on {order.date} already, and the "
                f"decision says {order.shares:+,g} now: decide with the options of the first time, or wait for the fill"
            )
        return known

    def status(self, client_id: str) -> OrderStatus | None:
        order, end = self._orders.get(client_id), self._ends.get(client_id)
        if order is None:
            return None
        if end is None or end["kind"] == LAPSED:
            return OrderStatus(order, "accepted" if end is None else "ended")
        return OrderStatus(order, "filled", end["price"], end["cost"], order.shares)

    def fill_due(self, process: DecisionProcess) -> None:
        """Fill the orders whose bar has come, at its prices and the ledger's costs, and receive dividends.

        Orders of the newest bar wait for the next one, at an execution lag of 0 as well: the decision that named them
        may be made again until then.

        Raises BrokerError if an order's day or ticker is not in the prices any more.
        """
        panel = process.panel
        waiting = [one for name, one in self._orders.items() if name not in self._ends]
        for date in sorted({one.date for one in waiting if one.date < str(panel.dates[-1])}):
            bar = panel.bars_until(date) - (0 if process.lag else 1)
            day, halted = str(panel.dates[bar]), {panel.assets[n] for n in np.flatnonzero(process.halted[bar])}
            for one in waiting:
                if one.date == date and one.ticker in halted:
                    self._append({"kind": LAPSED, "client_id": one.client_id, "date": day})
            self._fill_together(process, date, bar)
        self._receive_dividends(panel)

    def _fill_together(self, process: DecisionProcess, date: str, bar: int) -> None:
        """Fill the orders of a decision at a bar; costs are those of all of them, even after a stop."""
        assets, ends = process.panel.assets, self._ends
        due = [
            one
            for name, one in self._orders.items()
            if one.date == date and (name not in ends or ends[name]["kind"] == FILL)
        ]
        unknown = [one.ticker for one in due if one.ticker not in assets]
        if unknown:
            raise BrokerError(f"{unknown[0]} is ordered and not in the prices any more: bring it back")
        prices, day = share_prices(process.panel, process.env.fill)[bar], str(process.panel.dates[bar])
        ordered = {one.ticker: one.shares for one in due}
        shares, held = (np.array([of.get(name, 0.0) for name in assets]) for of in (ordered, self.positions(date)))
        wealth = float(held @ np.nan_to_num(prices)) + self.cash(date)
        weights, known = shares * np.nan_to_num(prices) / wealth, process.market_known(range(bar, bar + 1))
        paid = process.costs.by_asset(weights[None], np.array([wealth]), known)
        for one in due:
            number = assets.index(one.ticker)
            if one.client_id in ends:
                continue
            if not np.isfinite(prices[number]):
                raise BrokerError(f"{one.ticker} has no price on {day}, where its order fills")
            price, cost = float(prices[number]), float(paid[0][number] * wealth)
            self._append({"kind": FILL, "client_id": one.client_id, "date": day, "price": price, "cost": cost})

    def _receive_dividends(self, panel: MarketPanel) -> None:
        """Pay the dividends of all bars, where they are paid in cash, to who held the asset before the ex-date."""
        if panel.dividends is None or not (filled := self._filled()):
            return
        money = np.nan_to_num(panel.dividends * panel.share_closes)
        for bar in range(panel.bars_until(min(fill["date"] for _, fill in filled)), panel.n_bars):
            day = str(panel.dates[bar])
            for number in np.flatnonzero(money[bar]).tolist():
                ticker = panel.assets[number]
                held = sum(one.shares for one, fill in filled if one.ticker == ticker and fill["date"] < day)
                if held > 1e-9 and (day, ticker) not in self._dividends:
                    paid = float(held * money[bar, number])
                    self._append({"kind": DIVIDEND, "date": day, "ticker": ticker, "cash": paid})

    def _filled(self, before: str = _LATER) -> list[tuple[MarketOrder, Mapping[str, Any]]]:
        """Filled orders of decisions before a date, each with its fill."""
        known = [(order, self._ends.get(name)) for name, order in self._orders.items() if order.date < before]
        return [(order, end) for order, end in known if end is not None and end["kind"] == FILL]

    def _append(self, entry: dict[str, Any]) -> None:
        if self._keep:
            self._log.append(entry)
        self._read(entry)

    def _read(self, entry: Mapping[str, Any]) -> None:
        if entry["kind"] == OPENED:
            self._capital = entry["cash"]
        elif entry["kind"] == ORDER:
            order = MarketOrder(*(entry[name] for name in ("client_id", "date", "ticker", "shares")))
            self._orders[order.client_id] = order
        elif entry["kind"] == DIVIDEND:
            self._dividends[entry["date"], entry["ticker"]] = entry["cash"]
        else:
            self._ends[entry["client_id"]] = entry
