"""Evenings of an account at a broker: one decision for each new bar, and the account as the broker has it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finflow.trading.account_state import DECISION, fills_of
from finflow.trading.brokers.order_routing import OrderRouting
from finflow.trading.deciding import Request, decide_with
from finflow.trading.decision_log import STATE, DecisionLog
from finflow.trading.live_market import TRADING, Agents
from finflow.trading.paper.paper_account import Evening


class BrokerAccount:
    """Evenings of an account at a broker, each for the newest bar at its time.

    Bars that passed while nobody was there are not made up for: their prices are gone.

    Parameters
    ----------
    agents : Agents
    routing : OrderRouting
    request : Request
        Options of its decisions.
    last : Evening, optional
        To go on from.
    """

    def __init__(self, agents: Agents, routing: OrderRouting, request: Request, last: Evening | None = None) -> None:
        self.agents, self.routing, self.request, self.last = agents, routing, request, last

    def evenings(self, date: str) -> Iterator[Evening]:
        """The evening of the newest bar, of a date; none where it is there already.

        Raises
        ------
        NotYet
            If orders are open, the session goes on, or the broker gives no answer.
        """
        if self.last is not None and self.last.date >= date:
            return
        decide_with(self.agents, self.request, self.routing, dt.date.today())
        log = DecisionLog.read(self.agents.folder / TRADING / STATE)
        self.last = evening_of(log.entries, self.last)
        yield self.last


def evening_of(entries: Sequence[Mapping[str, Any]], last: Evening | None) -> Evening:
    """Evening of the decision on file that is the newest, by the account that the broker gave for it.

    Parameters
    ----------
    entries : sequence of mapping
        Of the log.
    last : Evening or None
        The evening before.

    Returns
    -------
    Evening
        Turnover and cost are those of the fills since the decision before, as shares of what the account is worth.
    """
    decisions = [one for one in entries if one["kind"] == DECISION and "broker" in one]
    newest = decisions[-1]
    before = [one["date"] for one in decisions if one["date"] < newest["date"]]
    fills = (fills_of(entries, before[-1]) or []) if before else []
    prices, account = newest["prices"], newest["account"]
    held = [prices[name] * account["shares"].get(name, 0.0) for name in sorted(prices)]
    worth = float(sum(held) + account["cash"])
    values = [one.shares * one.price for one in fills]
    return Evening(
        date=newest["date"],
        step=0 if last is None else last.step + 1,
        state=None,
        target=None,
        next_target=None,
        filled=[*(value / worth for value in held), account["cash"] / worth],
        wealth=worth,
        simple_return=None if last is None else worth / last.wealth - 1.0,
        cost=sum(one.cost for one in fills) / worth,
        turnover=0.5 * (sum(abs(value) for value in values) + abs(sum(values))) / worth,
    )
