"""`--mode decide`: from a trained agent and the newest prices to target weights, orders, reasons and files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from finflow.config import Config
from finflow.errors import ConfigError, FinflowError, MarketError
from finflow.market.panel import MarketPanel
from finflow.trading import price_checks
from finflow.trading.account_state import DECISION, StatedAccount, account_at, last_decision
from finflow.trading.brokers.alpaca_broker import open_alpaca
from finflow.trading.brokers.broker import MarketOrder, client_id
from finflow.trading.brokers.order_routing import OrderRouting
from finflow.trading.brokers.paper_broker import BROKER_LOG, PaperBroker
from finflow.trading.decision_files import write_decision
from finflow.trading.decision_log import STATE, DecisionLog
from finflow.trading.decision_making import DecisionMaking
from finflow.trading.decision_results import Check, Decision, Drift
from finflow.trading.holdings import Holdings, read_fills, read_holdings
from finflow.trading.live_market import (
    TRADING,
    Agents,
    LiveMarket,
    load_agents,
    load_prices,
    market_until,
)
from finflow.trading.trading_calendar import TradingCalendar, calendar_of

PAPER_BROKER, ALPACA = "paper", "alpaca"


@dataclass(frozen=True)
class Request:
    """Options of a decision.

    Attributes
    ----------
    runs : tuple of Path
        Checkpoint files, run folders or a job.
    overrides : mapping
        Keys on top of the configuration of the run.
    holdings, fills : Path or None
        Files of what is held, and of what was filled of the decision before.
    cash : float or None
        Money at hand.
    date : date or None
        Day to decide on; today when left out.
    accept_drift, accept_verdict : bool
        Go on in spite of features outside their range, or of the verdict.
    dry_run : bool
        Write nothing.
    broker : str or None
        ``paper`` or ``alpaca``: the account is that of this broker, and the orders go to it.
    live : bool
        The account with real money is confirmed.
    """

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


class DecisionOutcome(NamedTuple):
    """A decision, the folder of its files (None after a dry run), and remarks for the terminal.

    The decision is None where a broker's orders of the day were decided on before.
    """

    decision: Decision | None
    folder: Path | None
    remarks: tuple[str, ...]


def decide(request: Request) -> DecisionOutcome:
    """Decide, and write `decision.json`, `orders.csv`, `decision.html` and a line of `state.jsonl`.

    Raises
    ------
    FinflowError
        One line that says what to do, where the prices, the account or the verdict forbid a decision.
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
    files = write_decision(folder, made, account, given, market, None if routing is None else routing.mark)
    if broker is not None:
        remarks = (*remarks, _submit(broker, made))
    if routing is not None:
        remarks = (*remarks, routing.place(made.date))
    return DecisionOutcome(made, files, remarks)


def open_routing(agents: Agents, live: bool) -> OrderRouting:
    """Open the account at Alpaca that the configuration of some agents names.

    Raises
    ------
    ConfigError, BrokerError
        If it cannot be opened, or the agents decide on prices that they would have to trade at themselves.
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
