"""Orders of decisions at a broker elsewhere, placed from the log alone.

The order of the steps makes a stop at any moment harmless. A decision is a line of the log before its first order is
placed; after the last one, another line records that. After a stop the orders of that line are placed, and nothing is
decided anew. An order that is at the broker already is recognised by its client id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from finflow.errors import FinflowError
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading.account_state import DECISION, Fill, Holdings, last_decision
from finflow.trading.alpaca_broker import AlpacaBroker, BrokerError, BrokerNotReady, MarketOrder, OrderRefused

PLACED = "placed"


class OrderRouting:
    """Decisions of the log, carried out at a broker; ``mark`` is the account's in the lines of the log.

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
                    self.broker.submit(MarketOrder(client_id(entry, ticker), ticker, shares))
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

    def _fills(self, before: Mapping[str, Any]) -> list[Fill]:
        """Fills of a decision; Alpaca takes no commission, and fees of the exchanges leave the cash later."""
        fills = []
        for ticker in sorted(before["orders"]):
            status = self.broker.status(client_id(before, ticker))
            if status is None:  # refused, or never placed
                continue
            if status.is_open:
                raise BrokerNotReady(
                    f"the order of {status.order.shares:+,g} {ticker} of {before['date']} is open at "
                    f"{self.broker.name}: wait for its end, or cancel it there"
                )
            if status.filled and status.price is not None:
                fills.append(Fill(ticker, status.filled, status.price))
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


def client_id(entry: Mapping[str, Any], ticker: str) -> str:
    """Id of the order of a decision in a ticker: one and the same, whenever it is made again."""
    digest = hashlib.sha256(f"{entry['agent_sha256']} {entry['date']} {ticker}".encode()).hexdigest()
    return f"{entry['date']}-{ticker}-{digest[:12]}"
