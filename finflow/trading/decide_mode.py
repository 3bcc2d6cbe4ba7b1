"""`--mode decide`: from a trained agent and the newest prices to target weights, orders, reasons and files."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finflow.config import Config
from finflow.errors import ConfigError, MarketError, refuse
from finflow.evaluation.page.page_numbers import json_text, plain
from finflow.files import exclusively, write_together
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading import price_checks
from finflow.trading.account_state import (
    DECISION,
    FILLS,
    STATE,
    AccountState,
    Fill,
    Holdings,
    account_at,
    fills_of,
    last_decision,
    paper_fills,
    read_fills,
    read_holdings,
)
from finflow.trading.alpaca_broker import BrokerNotReady, OrderRouting, open_alpaca
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.decision_page import Check, DailyDecision, decision_page
from finflow.trading.live_market import (
    TRADING,
    LiveMarket,
    load_prices,
    load_trading_agents,
    market_until,
    run_data,
    run_verdict,
)
from finflow.trading.price_checks import TradingCalendar
from finflow.training.checkpoints.packaged_agents import is_packaged
from finflow.training.judging.agent_strategy import Agents

PAPER_BROKER, ALPACA = "paper", "alpaca"
_REMARKS = {
    None: "this agent was never evaluated on its test window: --mode evaluate tells whether it is worth trading",
    "no": "the evaluation found this agent worse than equal weight",
}


@dataclass(frozen=True)
class Request:
    """Options of `--mode decide` and `--mode paper`; days that are left out are today, or as the log has them."""

    runs: tuple[Path, ...]
    overrides: Mapping[str, object] = field(default_factory=dict)
    holdings: Path | None = None
    fills: Path | None = None
    cash: float | None = None
    date: dt.date | None = None
    accept_drift: bool = False
    accept_verdict: bool = False
    dry_run: bool = False
    broker: str | None = None
    live: bool = False
    first: dt.date | None = None
    until: dt.date | None = None
    follow: bool = False


class DecisionOutcome(NamedTuple):
    """A decision, the folder of its files (None after a dry run), and remarks for the terminal.

    The decision is None where a broker's orders of the day were decided on before.
    """

    decision: DailyDecision | None
    folder: Path | None
    remarks: tuple[str, ...]


def decide(request: Request, agents: Agents | None = None, routing: OrderRouting | None = None) -> DecisionOutcome:
    """Decide, and write `decision.json`, `orders.csv`, `decision.html` and a line of `state.jsonl`.

    Agents that were read and an account that was opened are used as they are.

    Raises FinflowError: One line that says what to do, where the prices, the account or the verdict forbid a decision.
    """
    agents = agents or load_trading_agents(request.runs, request.overrides)
    if routing is None and request.broker == ALPACA:
        routing = open_routing(agents, request.live)
    if routing is not None and request.date is not None:
        raise ConfigError(f"--date names a day of the past, and {routing.broker.name} trades today: leave it out")
    verdict, capital = run_verdict(agents), agents.config.env.initial_capital
    packaged = is_packaged(agents.checkpoints[0].path)
    if packaged and request.date is None and agents.config.market.source == "embedded":  # those prices end there
        request = replace(request, date=load_prices(agents.config).dates[-1].astype(dt.date))
    refuse(
        verdict == "no" and not (request.accept_verdict or (packaged and request.broker is None)),
        f"the evaluation of {agents.folder} found the agent worse than equal weight: train another one, or go on "
        "with --i-know",
    )
    refuse(
        request.broker is not None and (request.holdings is not None or request.fills is not None),
        "--broker knows what is held and filled: leave --holdings and --fills out",
    )
    refuse(
        request.broker == ALPACA and request.cash is not None,
        "--broker alpaca knows the cash of its account: leave --cash out",
    )
    today, is_open = (dt.date.today(), False) if routing is None else routing.broker.clock()
    market, checks, log = _checked_market(agents, request, today)
    folder, date, message = agents.folder / TRADING, str(market.panel.dates[-1]), log.message
    if routing is not None:
        before = routing.decided(log, date)
        if before is not None and not request.dry_run:
            return DecisionOutcome(None, folder / date, (routing.place(log, before),))
        refuse(
            is_open and date == str(today),
            f"the session of {date} goes on, and its prices will change: decide after its close",
            BrokerNotReady,
        )
    entries = log.entries
    if request.dry_run:  # it may be of a day before the last decision
        entries = [entry for entry in entries if entry["date"] < date]
    if routing is not None:
        stated = routing.stated(log, market.panel)
    elif request.broker == PAPER_BROKER:
        stated = Holdings(cash=request.cash, fills=paper_fills(market.process, entries, date))
    else:
        stated = _stated(request, market.panel.assets)
    account = account_at(market, entries, stated, capital)
    made = DecisionMaking(agents, market, account).decision(checks)
    remarks = [one for one in (_REMARKS.get(verdict), message) if one is not None]
    if packaged:
        remarks.insert(0, _origin(agents, market.panel))
    if request.dry_run:
        return DecisionOutcome(made, None, tuple(remarks))
    marks: dict[str, Any] = {} if routing is None else {"broker": routing.mark}
    if set(run_data(agents).get("assets", ())).difference(market.panel.assets):
        marks["tickers"] = market.panel.assets  # the next decision leaves the others out too
    log = _write(folder, made, account, stated.fills, market, marks)
    if request.broker == PAPER_BROKER:
        remarks.append(f"{len(made.orders)} orders are with the paper broker")
    if routing is not None:
        remarks.append(routing.place(log, log.entries[-1]))
    return DecisionOutcome(made, folder / date, tuple(remarks))


def _origin(agents: Agents, panel: MarketPanel) -> str:
    """Line about an agent that comes with finflow: what it learned from, and the age of the prices."""
    data, newest = run_data(agents), panel.dates[-1].astype(dt.date)
    age, ends = (dt.date.today() - newest).days, agents.config.market.train_end
    judged = "" if panel.sha256 == data["panel_sha256"] else "; on these prices it was never judged"
    return (
        f"{agents.folder.name} learned from {len(data['assets'])} assets until {ends} and was judged until "
        f"{data['last_date']}; the newest price is {age} days old{judged}"
    )


def open_routing(agents: Agents, live: bool) -> OrderRouting:
    """Open the account at Alpaca that the configuration of some agents names.

    Raises FinflowError if it cannot be opened, or the agents decide on prices that they would have to
    trade at themselves.
    """
    refuse(
        agents.config.env.execution_lag == 0,
        "env.execution_lag = 0 fills at the very prices that it decides on, which no broker does: an agent for a "
        "broker is trained with 1 or more",
    )
    return OrderRouting(open_alpaca(agents.config.trading.alpaca, live))


def _stated(request: Request, assets: Sequence[str]) -> Holdings:
    stated = Holdings() if request.holdings is None else read_holdings(request.holdings, assets)
    refuse(
        request.cash is not None and stated.cash is not None,
        "cash is in --holdings and after --cash: leave one of them out",
    )
    fills = None if request.fills is None else read_fills(request.fills, assets)
    return Holdings(stated.shares, stated.cash if request.cash is None else request.cash, fills)


def _checked_market(agents: Agents, request: Request, today: dt.date) -> tuple[LiveMarket, list[Check], HashedLog]:
    """Market up to the day of the decision, the checks that its prices have passed, and the log."""
    config, data = agents.config, run_data(agents)
    log, named = HashedLog.read(agents.folder / TRADING / STATE), "market.tickers" in request.overrides
    named = named or (is_packaged(agents.checkpoints[0].path) and config.market.source != "embedded")
    if not named and (tickers := _remembered_tickers(log.entries, request.date or today)):
        market_config, named = config.market.model_copy(update={"tickers": tickers}), True
        config = config.model_copy(update={"market": market_config})
    panel, calendar, age = _aged_prices(config, request, request.date or today)
    date = str(panel.dates[-1])
    before = [entry for entry in log.entries if entry["kind"] == DECISION and entry["date"] < date]
    since = panel.bars_until(before[-1]["date"] if before else data.get("last_date", panel.dates[-1])) - 1
    validated = panel.bars_until(config.market.validation_end)
    checks = [
        age,
        price_checks.check_tickers(panel, data.get("assets", ()), validated, named),
        price_checks.check_gaps(panel, since, calendar),
    ]
    market = market_until(panel, agents)
    checks += [
        price_checks.check_jumps(panel, since, market.train_end),
        price_checks.check_plausibility(panel, since),
        price_checks.check_history(panel, before, data),
        price_checks.check_drift(market, config, request.accept_drift),
    ]
    return market, checks, log


def _remembered_tickers(entries: Sequence[Mapping[str, Any]], day: dt.date) -> tuple[str, ...]:
    """Tickers of the newest decision up to a day, where it left some of the run's out; else none."""
    decisions = [entry for entry in entries if entry["kind"] == DECISION and entry["date"] <= str(day)]
    return tuple(decisions[-1].get("tickers", ())) if decisions else ()


def _aged_prices(config: Config, request: Request, day: dt.date) -> tuple[MarketPanel, TradingCalendar, Check]:
    """Newest prices that are not too old, the calendar, and the check of their age.

    Yahoo is asked for what has come since the stored prices; where it does not answer, those do if they are new enough.
    A past day is answered from the store alone, if that has it.
    """
    past, refusals = request.date is not None, []
    for fresh in (not past, past) if config.market.source == "yfinance" else (False,):
        try:
            panel = load_prices(config, request.date, fresh)
            calendar = price_checks.calendar_of(config.trading.calendar, panel.dates)
            return panel, calendar, price_checks.check_age(panel, day, calendar, config)
        except MarketError as error:
            refusals.append(error)
    raise refusals[0]


def _write(
    folder: Path,
    made: DailyDecision,
    account: AccountState,
    fills: Sequence[Fill] | None,
    market: LiveMarket,
    marks: Mapping[str, Any],
) -> HashedLog:
    """Write the files of a decision, then its line of the log, with marks: of the broker's account, tickers left.

    A line that is there already is not written again.
    """
    content = json_text(plain(made))
    files = {"orders.csv": orders_csv(made), "decision.html": decision_page(made).html(), "decision.json": content}
    folder.mkdir(parents=True, exist_ok=True)
    with exclusively(folder / ".lock"):
        log = HashedLog.read(folder / STATE)
        before = last_decision(log.entries, made.date)
        if fills is not None and before is not None and fills_of(log.entries, before["date"]) != list(fills):
            log.append({"kind": FILLS, "date": before["date"], "fills": [list(fill) for fill in fills]})
        write_together({folder / made.date / name: text for name, text in files.items()})
        entry = plain(_entry(made, account, market, hashlib.sha256(content.encode()).hexdigest(), marks))
        same_day = [one for one in log.entries if one["kind"] == DECISION and one["date"] == made.date]
        if not same_day or same_day[-1] != entry:
            log.append(entry)
        return log


def _entry(
    made: DailyDecision, account: AccountState, market: LiveMarket, digest: str, marks: Mapping[str, Any]
) -> dict[str, Any]:
    panel = market.panel
    held = zip(panel.assets, account.shares.tolist(), strict=True)
    prices = zip(panel.assets, panel.share_closes[-1].tolist(), strict=True)
    return {
        "kind": DECISION,
        "date": made.date,
        "agent_sha256": made.agent_sha256,
        "decision_sha256": digest,
        "account": {"shares": {name: count for name, count in held if count}, "cash": account.cash},
        "orders": made.trades,
        "prices": {name: price for name, price in prices if np.isfinite(price)},
        "cost": made.cost,
        "turnover": made.turnover,
        "reward_state": account.reward_state[0].tolist(),
        **marks,
    }


def orders_csv(made: DailyDecision) -> str:
    """Orders as CSV: ticker, side, shares, price, value, cost."""
    stream = io.StringIO()
    rows = [
        [one.ticker, one.side, repr(one.shares).removesuffix(".0"), one.price, round(one.value, 2), round(one.cost, 2)]
        for one in made.orders
    ]
    csv.writer(stream, lineterminator="\n").writerows([["ticker", "side", "shares", "price", "value", "cost"], *rows])
    return stream.getvalue()
