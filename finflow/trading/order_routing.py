"""Orders of decisions at a broker elsewhere, placed from the log alone.

The order of the steps makes a stop at any moment harmless. A decision is a line of the log before its first order is
placed; after the last one, another line records that. After a stop the orders of that line are placed, and nothing is
decided anew. An order that is at the broker already is recognised by its client id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finflow.errors import FinflowError
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading.account_state import DECISION, STATE, Fill, Holdings, last_decision
from finflow.trading.brokers.alpaca_broker import AlpacaBroker
from finflow.trading.brokers.broker import BrokerError, BrokerNotReady, MarketOrder, OrderRefused, client_id

PLACED = "placed"


class OrderRouting:
    """Decisions of the log in a folder, carried out at a broker; ``mark`` is the account's in the lines of the log.

    Raises BrokerError if the account may not trade.
    """

    def __init__(self, broker: AlpacaBroker, folder: Path) -> None:
        self.broker, self._path = broker, folder / STATE
        self.mark = broker.account()

    def decided(self, date: str) -> list[dict[str, Any]]:
        """Lines of the decisions of a date for this account."""
        return [one for one in HashedLog.read(self._path).entries if self._is_own(one) and one["date"] == date]

    def place(self, date: str) -> str:
        """Place the orders of the newest decision of a date, sales first, once in all; the outcome in a sentence.

        Raises BrokerNotReady or BrokerError if the broker gives no answer, or has another order under an id.
        """
        log, entry = HashedLog.read(self._path), self.decided(date)[-1]
        refused: dict[str, str] = {}
        for one in log.entries:
            if one["kind"] == PLACED and (one["date"], one["broker"]) == (date, self.mark):
                return self._outcome(entry, one["refused"], "have been with")
        for ticker, shares in sorted(entry["orders"].items(), key=lambda order: (order[1] > 0.0, order[0])):
            try:
                self.broker.submit(MarketOrder(_id(entry, ticker), date, ticker, shares))
            except OrderRefused as error:
                refused[ticker] = str(error)
        log.append({"kind": PLACED, "date": date, "broker": self.mark, "refused": refused})
        return self._outcome(entry, refused, "are with")

    def stated(self, panel: MarketPanel) -> Holdings:
        """The account, and the fills of the orders before.

        Raises BrokerNotReady if one of them is open; BrokerError if the account holds what the agent does not trade.
        """
        fills = self._fills(str(panel.dates[-1]))
        names = {**{name.replace("-", "."): name for name in panel.assets}, **{name: name for name in panel.assets}}
        shares: dict[str, float] = {}
        for symbol, count in self.broker.positions().items():
            if symbol not in names:
                raise BrokerError(
                    f"{self.broker.name} holds {symbol}, which the agent does not trade: sell it there, or give the "
                    "agent an account of its own"
                )
            if count < 0.0:
                raise BrokerError(f"{self.broker.name} is short of {symbol}, and the agent holds no short positions")
            shares[names[symbol]] = count
        return Holdings(shares, self.broker.cash(), fills)

    def _fills(self, date: str) -> list[Fill] | None:
        """Fills of the decision before a date; None where it was not for this account."""
        before = last_decision(HashedLog.read(self._path).entries, date)
        if before is None or not self._is_own(before):
            return None
        fills = []
        for ticker in sorted(before["orders"]):
            status = self.broker.status(_id(before, ticker))
            if status is None:  # refused, or never placed
                continue
            if status.state == "accepted":
                raise BrokerNotReady(
                    f"the order of {status.order.shares:+,g} {ticker} of {before['date']} is open at "
                    f"{self.broker.name}: wait for its end, or cancel it there"
                )
            if status.filled and status.price is not None:
                fills.append(Fill(ticker, status.filled, status.price, status.cost or 0.0))
        return fills

    def _is_own(self, entry: Mapping[str, Any]) -> bool:
        if entry["kind"] != DECISION or "broker" not in entry:
            return False
        if entry["broker"] != self.mark:
            raise FinflowError(
                f"the log belongs to another account than that of {self.broker.name}: use the keys of that one, or "
                "move state.jsonl away"
            )
        return True

    def _outcome(self, entry: Mapping[str, Any], refused: Mapping[str, str], are: str) -> str:
        count = len(entry["orders"]) - len(refused)
        text = f"{count} order{'' if count == 1 else 's'} of {entry['date']} {are} {self.broker.name}"
        return "; ".join([text, *refused.values()])


def _id(entry: Mapping[str, Any], ticker: str) -> str:
    return client_id(entry["agent_sha256"], entry["date"], ticker)
