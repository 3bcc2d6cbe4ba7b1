"""`--mode decide`: from a trained agent and the newest prices to target weights, orders, reasons and files."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finflow.config import Config
from finflow.errors import ConfigError, FinflowError, MarketError
from finflow.evaluation.report.report_numbers import json_text, plain
from finflow.files import exclusively, write_together
from finflow.market.panel import MarketPanel
from finflow.trading import price_checks
from finflow.trading.account_state import (
    DECISION,
    FILLS,
    AccountState,
    StatedAccount,
    account_at,
    fills_of,
    last_decision,
)
from finflow.trading.brokers.alpaca_broker import open_alpaca
from finflow.trading.brokers.broker import MarketOrder, client_id
from finflow.trading.brokers.order_routing import OrderRouting
from finflow.trading.brokers.paper_broker import BROKER_LOG, PaperBroker
from finflow.trading.decision_log import STATE, DecisionLog
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.decision_page import decision_page
from finflow.trading.decision_results import Check, Decision, Drift
from finflow.trading.holdings import Holdings, read_fills, read_holdings
from finflow.trading.live_market import TRADING, Agents, LiveMarket, load_agents, load_prices, market_until
from finflow.trading.trading_calendar import TradingCalendar, calendar_of

PAPER_BROKER, ALPACA = "paper", "alpaca"


@dataclass(frozen=True)
class Request:
    """Options of a decision."""

    runs: tuple[Path, ...]  # checkpoint files, run folders or a job
    overrides: Mapping[str, object] = field(default_factory=dict)  # keys on top of the configuration of the run
    holdings: Path | None = None  # file of what is held
    fills: Path | None = None  # file of what was filled of the decision before
    cash: float | None = None
    date: dt.date | None = None  # day to decide on; today when left out
    accept_drift: bool = False  # go on in spite of features outside their range
    accept_verdict: bool = False  # go on in spite of the verdict
    dry_run: bool = False
    broker: str | None = None  # ``paper`` or ``alpaca``: its account, and the orders go to it
    live: bool = False  # the account with real money is confirmed


class DecisionOutcome(NamedTuple):
    """A decision, the folder of its files (None after a dry run), and remarks for the terminal.

    The decision is None where a broker's orders of the day were decided on before.
    """

    decision: Decision | None
    folder: Path | None
    remarks: tuple[str, ...]


def decide(request: Request) -> DecisionOutcome:
    """Decide, and write `decision.json`, `orders.csv`, `decision.html` and a line of `state.jsonl`.

    `FinflowError` says in one line what to do, where the prices, the account or the verdict forbid a decision.
    """
    agents = load_agents(request.runs, request.overrides)
    routing = open_routing(agents, request.live) if request.broker == ALPACA else None
    if routing is not None and request.date is not None:
        raise ConfigError(f"--date names a day of the past, and {routing.broker.name} trades today: leave it out")
    return decide_with(agents, request, routing)


def decide_with(agents: Agents, request: Request, routing: OrderRouting | None) -> DecisionOutcome:
    """Decide with agents that were read, for the account of a broker that was opened; see `decide`."""
    config, verdict = agents.config, agents.verdict
    if verdict == "no" and not request.accept_verdict:
        raise FinflowError(
            f"the evaluation of {agents.folder} found the agent worse than equal weight: train another one, or go on "
            "with --i-know"
        )
    if request.broker is not None and (request.holdings is not None or request.fills is not None):
        raise ConfigError("--broker knows what is held and filled: leave --holdings and --fills out")
    if request.broker == ALPACA and request.cash is not None:
        raise ConfigError("--broker alpaca knows the cash of its account: leave --cash out")
    clock = None if routing is None else routing.broker.clock()
    market, checks, drift, log = _checked_market(agents, request, dt.date.today() if clock is None else clock.day)
    folder = agents.folder / TRADING
    if routing is not None and clock is not None:
        date = str(market.panel.dates[-1])
        if routing.decided(date) and not request.dry_run:
            return DecisionOutcome(None, folder / date, (routing.place(date),))
        routing.check_clock(market.panel, clock)
    broker = _open_broker(request, folder, market, config) if request.broker == PAPER_BROKER else None
    if broker is not None:
        given = StatedAccount(Holdings(broker.positions(), broker.cash()), None, None, config.env.initial_capital)
    elif routing is not None:
        given = routing.given(market.panel, config.env.initial_capital)
    else:
        assets = market.panel.assets
        holdings = None if request.holdings is None else read_holdings(request.holdings, assets)
        fills = None if request.fills is None else read_fills(request.fills, assets)
        given = StatedAccount(holdings, request.cash, fills, config.env.initial_capital)
    account = account_at(market, _entries(log, market.panel, request, given), given)
    made = DecisionMaking(agents, market, account).decision(verdict, checks, drift)
    remarks = tuple(remark for remark in (_on_verdict(verdict), log.message) if remark)
    if request.dry_run:
        return DecisionOutcome(made, None, remarks)
    files = _write(folder, made, account, given, market, None if routing is None else routing.mark)
    if broker is not None:
        remarks = (*remarks, _submit(broker, made))
    if routing is not None:
        remarks = (*remarks, routing.place(made.date))
    return DecisionOutcome(made, files, remarks)


def open_routing(agents: Agents, live: bool) -> OrderRouting:
    """Open the account at Alpaca that the configuration of some agents names.

    `ConfigError` or `BrokerError` if it cannot be opened, or the agents decide on prices that they would have to trade
    at.
    """
    if agents.config.env.execution_lag == 0:
        raise ConfigError(
            "env.execution_lag = 0 fills at the very prices that it decides on, which no broker does: an agent for a "
            "broker is trained with 1 or more"
        )
    return OrderRouting(open_alpaca(agents.config.trading.alpaca, live), agents.folder / TRADING)


def _open_broker(request: Request, folder: Path, market: LiveMarket, config: Config) -> PaperBroker:
    """The paper broker, with all orders filled whose bar has come."""
    broker = PaperBroker(folder / BROKER_LOG, keep=not request.dry_run)
    if not broker.is_open:
        broker.open(config.env.initial_capital if request.cash is None else request.cash)
    elif request.cash is not None and broker.positions():
        raise ConfigError("--cash opens the paper broker's account, which has begun: leave it out")
    broker.fill_due(market.process)
    return broker


def _submit(broker: PaperBroker, made: Decision) -> str:
    """Place the orders of a decision, each under an id of its own, so that none is placed twice."""
    for one in made.orders:
        shares = one.shares if one.side == "buy" else -one.shares
        broker.submit(MarketOrder(client_id(made.agent_sha256, made.date, one.ticker), made.date, one.ticker, shares))
    return f"{len(made.orders)} orders are with the paper broker"


def _checked_market(
    agents: Agents, request: Request, today: dt.date
) -> tuple[LiveMarket, list[Check], list[Drift], DecisionLog]:
    """Market up to the day of the decision, once its prices have passed, and the log."""
    config, day = agents.config, request.date or today
    panel, calendar, age = _aged_prices(config, request, day)
    data = agents.manifest
    log = DecisionLog.read(agents.folder / TRADING / STATE)
    decisions = [entry for entry in log.entries if entry["kind"] == DECISION]
    before = [entry for entry in decisions if entry["date"] < str(panel.dates[-1])]
    since = panel.bars_until(before[-1]["date"] if before else data.get("last_date", panel.dates[-1])) - 1
    named = bool({"market.tickers", "market.tickers_file"} & set(request.overrides))
    validated = panel.bars_until(config.market.validation_end)
    checks = [
        age,
        price_checks.check_tickers(panel, data.get("assets", ()), validated, named),
        price_checks.check_gaps(panel, since, calendar),
    ]
    market = market_until(panel, agents)
    checks += [
        price_checks.check_jumps(panel, since, market.train_end, config.trading.jump_limit),
        price_checks.check_history(panel, before, data),
    ]
    check, drift = price_checks.check_drift(market, config, request.accept_drift)
    return market, [*checks, check], drift, log


def _aged_prices(config: Config, request: Request, day: dt.date) -> tuple[MarketPanel, TradingCalendar, Check]:
    """Newest prices that are not too old, the calendar, and the check of their age.

    Yahoo is asked for what has come since the stored prices; where it does not answer, those do if they are new enough.
    A past day is answered from the store alone, if that has it.
    """
    asks, past = config.market.source == "yfinance", request.date is not None

    def aged(fresh: bool) -> tuple[MarketPanel, TradingCalendar, Check]:
        panel = load_prices(config, request.date, fresh)
        calendar = calendar_of(config.trading.calendar, panel.dates)
        return panel, calendar, price_checks.check_age(panel, day, calendar, config)

    try:
        return aged(fresh=asks and not past)
    except MarketError as error:
        if not asks:
            raise
        reason = error
    try:
        return aged(fresh=past)
    except MarketError:
        raise reason from None


def _entries(log: DecisionLog, panel: MarketPanel, request: Request, given: StatedAccount) -> list[Mapping[str, Any]]:
    """Lines that the decision goes on from; a dry run may be of a day before the last one."""
    date = str(panel.dates[-1])
    if request.dry_run:
        return [entry for entry in log.entries if entry["date"] < date]
    if given.fills is not None:
        last_decision(log.entries, date)
    return list(log.entries)


def _on_verdict(verdict: str | None) -> str | None:
    if verdict is None:
        return "this agent was never evaluated on its test window: --mode evaluate tells whether it is worth trading"
    return "the evaluation found this agent worse than equal weight" if verdict == "no" else None


def _write(
    folder: Path,
    made: Decision,
    account: AccountState,
    given: StatedAccount,
    market: LiveMarket,
    broker: str | None = None,
) -> Path:
    """Write the files of a decision, then its line of the log; what is there already is left as it is.

    ``broker`` is the mark of the account elsewhere that its orders are for.
    """
    place = folder / made.date
    content = json_text(plain(made))
    files = {"orders.csv": _orders_csv(made), "decision.html": decision_page(made), "decision.json": content}
    folder.mkdir(parents=True, exist_ok=True)
    with exclusively(folder / ".lock"):
        log = DecisionLog.read(folder / STATE)
        before = last_decision(log.entries, made.date)
        fills = given.fills
        if fills is not None and before is not None and fills_of(log.entries, before["date"]) != list(fills):
            log.append({"kind": FILLS, "date": before["date"], "fills": [list(fill) for fill in fills]})
        write_together({place / name: text for name, text in files.items()})
        entry = _entry(made, account, market, hashlib.sha256(content.encode()).hexdigest())
        if broker is not None:
            entry["broker"] = broker
        same_day = [one for one in log.entries if one["kind"] == DECISION and one["date"] == made.date]
        if not same_day or same_day[-1] != plain(entry):
            log.append(plain(entry))
    return place


def _entry(made: Decision, account: AccountState, market: LiveMarket, digest: str) -> dict[str, Any]:
    """Line of the log."""
    state = account.reward_state
    if state is None:
        state = market.process.objective.initial(np.zeros((1, market.process.n_weights)))
    panel = market.panel
    held = zip(panel.assets, account.shares.tolist(), strict=True)
    return {
        "kind": DECISION,
        "date": made.date,
        "agent_sha256": made.agent_sha256,
        "decision_sha256": digest,
        "account": {"shares": {name: count for name, count in held if count}, "cash": account.cash},
        "orders": {one.ticker: one.shares if one.side == "buy" else -one.shares for one in made.orders},
        "prices": {
            name: price
            for name, price in zip(panel.assets, panel.share_closes[-1].tolist(), strict=True)
            if np.isfinite(price)
        },
        "cost": made.cost,
        "turnover": made.turnover,
        "reward_state": state[0].tolist(),
    }


def _orders_csv(made: Decision) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["ticker", "side", "shares", "price", "value", "cost"])
    for one in made.orders:
        shares = int(one.shares) if float(one.shares).is_integer() else one.shares
        writer.writerow([one.ticker, one.side, shares, one.price, round(one.value, 2), round(one.cost, 2)])
    return stream.getvalue()
