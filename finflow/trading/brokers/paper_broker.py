"""A broker on paper: orders fill at the prices and costs of the ledger, and every step is a line of a hashed log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import share_prices
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading.brokers.broker import BrokerError, MarketOrder, OrderStatus

BROKER_LOG = "broker.jsonl"
OPENED, ORDER, FILL, LAPSED, DIVIDEND = "opened", "order", "fill", "lapsed", "dividend"
_LATER = "9999-12-31"  # after every day of the log


class PaperBroker:
    """An account whose orders fill at the bar that the configuration names.

    An order in an asset that is halted at that bar lapses: the next decision sees that it was never done.
    An order that was accepted is on the disk before it is acknowledged, and so is a fill. After a stop at any moment
    the same calls lead to the same account. Without ``keep`` nothing is written to the log (a dry run).
    """

    def __init__(self, path: Path, keep: bool = True) -> None:
        self._log, self._keep = HashedLog.read(path), keep
        self._entries: list[dict[str, Any]] = list(self._log.entries)

    @property
    def is_open(self) -> bool:
        return bool(self._entries)

    def open(self, cash: float) -> None:
        self._append({"kind": OPENED, "cash": cash})

    def positions(self) -> dict[str, float]:
        return self._held(_LATER)

    def cash(self) -> float:
        """Cash at hand, in money; interest is not paid."""
        return self._money(_LATER)

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
        placed = next((one for one in self._orders() if one["client_id"] == client_id), None)
        if placed is None:
            return None
        order = MarketOrder(client_id, placed["date"], placed["ticker"], placed["shares"])
        end = self._ends().get(client_id)
        if end is None:
            return OrderStatus(order, "accepted")
        if end["kind"] == LAPSED:
            return OrderStatus(order, "ended")
        return OrderStatus(order, "filled", end["price"], end["cost"], order.shares)

    def fill_due(self, process: DecisionProcess) -> None:
        """Fill the orders whose bar has come, at its prices and the ledger's costs.

        Orders of the newest bar wait for the next one, at an execution lag of 0 as well: the decision that named them
        may be made again until then.

        Raises BrokerError if an order's day or ticker is not in the prices any more.
        """
        panel = process.panel
        ends = self._ends()
        waiting = [one for one in self._orders() if one["client_id"] not in ends]
        for date in sorted({one["date"] for one in waiting if one["date"] < str(panel.dates[-1])}):
            bar = panel.bars_until(date) - (0 if process.lag else 1)
            day, halted = str(panel.dates[bar]), {panel.assets[n] for n in np.flatnonzero(process.halted[bar])}
            for one in waiting:
                if one["date"] == date and one["ticker"] in halted:
                    self._append({"kind": LAPSED, "client_id": one["client_id"], "date": day})
            ends = self._ends()
            lapsed = {name for name, end in ends.items() if end["kind"] == LAPSED}
            together = [one for one in self._orders() if one["date"] == date and one["client_id"] not in lapsed]
            for order, price, cost in self._priced(process, together, bar):
                if order["client_id"] in ends:  # before a stop among them
                    continue
                if not np.isfinite(price):
                    raise BrokerError(f"{order['ticker']} has no price on {day}, where its order fills")
                self._append({"kind": FILL, "client_id": order["client_id"], "date": day, "price": price, "cost": cost})
        self._receive_dividends(panel)

    def _priced(
        self, process: DecisionProcess, due: Sequence[dict[str, Any]], bar: int
    ) -> Iterator[tuple[dict[str, Any], float, float]]:
        """Orders that fill together at a bar, each with its price and its cost in money."""
        assets, before = process.panel.assets, due[0]["date"] if due else ""
        unknown = [one["ticker"] for one in due if one["ticker"] not in assets]
        if unknown:
            raise BrokerError(f"{unknown[0]} is ordered and not in the prices any more: bring it back")
        prices = share_prices(process.panel, process.env.fill)[bar]
        ordered = {one["ticker"]: one["shares"] for one in due}
        shares, held = (np.array([of.get(name, 0.0) for name in assets]) for of in (ordered, self._held(before)))
        wealth = float(held @ np.nan_to_num(prices)) + self._money(before)
        paid = process.costs.by_asset(
            (shares * np.nan_to_num(prices) / wealth)[None],
            np.array([wealth]),
            process.market_known(range(bar, bar + 1)),
        )
        for one in due:
            number = assets.index(one["ticker"])
            yield one, float(prices[number]), float(paid[0][number] * wealth)

    def _receive_dividends(self, panel: MarketPanel) -> None:
        """Pay the dividends of all bars, where they are paid in cash, to who held the asset before the ex-date."""
        if panel.dividends is None or not (filled := self._filled()):
            return
        money = np.nan_to_num(panel.dividends * panel.share_closes)
        known = {(one["date"], one["ticker"]) for one in self._entries if one["kind"] == DIVIDEND}
        for bar in range(panel.bars_until(min(fill["date"] for _, fill in filled)), panel.n_bars):
            day = str(panel.dates[bar])
            for number in np.flatnonzero(money[bar]).tolist():
                ticker = panel.assets[number]
                held = sum(one["shares"] for one, fill in filled if one["ticker"] == ticker and fill["date"] < day)
                if held > 1e-9 and (day, ticker) not in known:
                    paid = float(held * money[bar, number])
                    self._append({"kind": DIVIDEND, "date": day, "ticker": ticker, "cash": paid})

    def _orders(self) -> list[dict[str, Any]]:
        return [entry for entry in self._entries if entry["kind"] == ORDER]

    def _ends(self) -> dict[str, dict[str, Any]]:
        return {entry["client_id"]: entry for entry in self._entries if entry["kind"] in (FILL, LAPSED)}

    def _held(self, until: str) -> dict[str, float]:
        held: dict[str, float] = {}
        for order, _ in self._filled():
            if order["date"] < until:
                held[order["ticker"]] = held.get(order["ticker"], 0.0) + order["shares"]
        return {ticker: shares for ticker, shares in held.items() if abs(shares) > 1e-9}

    def _money(self, until: str) -> float:
        begun = sum(entry["cash"] for entry in self._entries if entry["kind"] == OPENED)
        done = [(order, fill) for order, fill in self._filled() if order["date"] < until]
        paid = sum(order["shares"] * fill["price"] + fill["cost"] for order, fill in done)
        received = sum(one["cash"] for one in self._entries if one["kind"] == DIVIDEND and one["date"] <= until)
        return float(begun - paid + received)

    def _filled(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        fills = {name: end for name, end in self._ends().items() if end["kind"] == FILL}
        return [(order, fills[order["client_id"]]) for order in self._orders() if order["client_id"] in fills]

    def _append(self, entry: dict[str, Any]) -> None:
        if self._keep:
            self._log.append(entry)
        self._entries.append(entry)
