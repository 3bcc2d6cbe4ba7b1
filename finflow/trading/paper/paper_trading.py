"""`--mode paper`: an agent day by day, on the ledger or at a broker, with a log that survives any stop."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from finflow.errors import ConfigError, FinflowError
from finflow.files import in_use, write_together
from finflow.json_text import parse_json
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.trading.account_state import STATE
from finflow.trading.alpaca_broker import BrokerNotReady
from finflow.trading.decide_mode import ALPACA, Request, decide, open_routing
from finflow.trading.live_market import TRADING, load_agents, load_prices, market_until
from finflow.trading.order_routing import OrderRouting
from finflow.trading.paper.paper_account import DailyAccount, Expectation, PaperAccount, broker_evening
from finflow.trading.paper.paper_page import PaperNumbers, numbers_of, paper_page
from finflow.trading.price_checks import calendar_of
from finflow.training.judging.agent_strategy import Agents

PAPER = "paper"
POLL, IDLE = 300.0, 3_600.0  # seconds between checks for a new bar, once its session is due and before
_SETTINGS = (
    *("execution_lag", "fill", "initial_capital", "commission_bps", "slippage_bps", "max_weight"),
    *("max_turnover", "no_trade_band", "costs"),
)
"""Keys under `env` that an account may not change."""


class PaperOutcome(NamedTuple):
    """Numbers of an account, its page, and the report of an unfinished last line of the log."""

    numbers: PaperNumbers
    page: Path
    message: str | None


@dataclass
class Clock:
    """Present day and waiting, replaced by tests."""

    today: Callable[[], dt.date] = dt.date.today
    wait: Callable[[float], None] = time.sleep


def trade_on_paper(request: Request, clock: Clock | None = None, say: Callable[[str], None] = print) -> PaperOutcome:
    """Trade an account day by day, from where its log ends, and write its page.

    Every evening is one line of `state.jsonl`, flushed to the disk before the next one begins: a stop at any moment
    loses no line and repeats none. ``say`` prints what happens while it follows the market.

    Raises FinflowError: One line, where the account cannot begin or go on.
    """
    agents, clock = load_agents(request.runs, request.overrides), clock or Clock()
    folder = agents.folder / TRADING
    routing = open_routing(agents, request.live) if agents.config.trading.broker == ALPACA else None
    _check_options(request, routing)
    with in_use(folder / PAPER, "trading on paper"):
        trading = _Trading(agents, folder, request, routing)
        panel = load_prices(agents.config, request.until)
        if not request.follow:
            return trading.catch_up(panel)
        trading.catch_up_patiently(panel, clock, say)
        say(f"followed from {trading.newest}; Ctrl-C stops, and the same command goes on")
        while True:
            panel = trading.next_prices(clock)
            outcome = trading.catch_up_patiently(panel, clock, say)
            say(f"{trading.newest}: value {outcome.numbers.value:,.2f}, net {outcome.numbers.total_return:+.2%}")


def _check_options(request: Request, routing: OrderRouting | None) -> None:
    """Refuse a span that ends before it begins, and what only the ledger, or only a broker elsewhere, can do."""
    if request.first is not None and request.until is not None and request.until < request.first:
        raise FinflowError(f"--until {request.until} lies before --from {request.first}")
    if request.follow and request.until is not None:
        raise FinflowError("--follow goes on with every new bar: leave --until out")
    if routing is not None and request.until is not None:
        raise ConfigError(f"{routing.broker.name} trades today, and --until may be a day of the past: leave it out")
    if routing is None and (request.accept_drift or request.accept_verdict or request.live):
        raise ConfigError(
            "--accept-drift, --i-know and --live are for a broker elsewhere (trading.broker): leave them out on the "
            "ledger"
        )


class _Trading:
    def __init__(self, agents: Agents, folder: Path, request: Request, routing: OrderRouting | None) -> None:
        self.agents, self.folder, self.request, self.routing = agents, folder, request, routing
        self.log = HashedLog.read(folder / STATE)
        self.first = self._first()
        self.lines = [one for one in self.log.entries if one["kind"] == PAPER and one["account"] == str(self.first)]
        if self.lines and self.lines[-1]["settings"] != self._mark():
            raise ConfigError(
                f"the paper account of {self.first} was run by another agent, with other keys under env or at another "
                "broker: leave the changes out, or begin another account with --from"
            )

    @property
    def newest(self) -> str:
        return str(self.lines[-1]["date"])

    def _first(self) -> dt.date:
        if self.request.first is not None:
            return self.request.first
        begun = [one["account"] for one in self.log.entries if one["kind"] == PAPER]
        if not begun:
            raise ConfigError("no paper account has begun with this agent: name its first day with --from")
        return dt.date.fromisoformat(begun[-1])

    def _mark(self) -> str:
        """Hash of the agent, and of the settings that decide what an account does."""
        env = self.agents.config.env.model_dump(mode="json")
        settings = {"agent": self.agents.identity, **{name: env[name] for name in _SETTINGS}}
        if self.routing is not None:
            settings["broker"] = self.routing.mark
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def next_prices(self, clock: Clock) -> MarketPanel:
        """Wait until the prices have a bar after the last evening."""
        last, calendar = dt.date.fromisoformat(self.newest), None
        while True:
            panel = load_prices(self.agents.config, fresh=True)
            if panel.dates[-1].astype(dt.date) > last:
                return panel
            calendar = calendar or calendar_of(self.agents.config.trading.calendar, panel.dates)
            due = bool(calendar.sessions(last, clock.today()))
            clock.wait(POLL if due else IDLE)

    def catch_up_patiently(self, panel: MarketPanel, clock: Clock, say: Callable[[str], None]) -> PaperOutcome:
        while True:
            try:
                return self.catch_up(panel)
            except BrokerNotReady as error:
                say(f"waiting: {error}")
                clock.wait(POLL)

    def catch_up(self, panel: MarketPanel) -> PaperOutcome:
        """Trade every evening that the log does not have yet, and write the page."""
        start = int(np.searchsorted(panel.dates, np.datetime64(self.first, "D")))
        if start >= panel.n_bars:
            raise ConfigError(f"--from {self.first} lies after the prices, which end on {panel.dates[-1]}")
        if start < panel.bars_until(self.agents.config.market.validation_end):
            raise ConfigError(
                f"--from {self.first} lies in the years that the agent learned from and was chosen by, up to "
                f"{self.agents.config.market.validation_end} (market.validation_end): name a later day"
            )
        mark = self._mark()
        for evening in self._evenings(panel, start):
            entry = {"kind": PAPER, "account": str(self.first), "settings": mark, **asdict(evening)}
            self.log.append(entry)
            self.lines.append(entry)
        numbers = numbers_of(self.lines, self._expectation(panel.bars_per_year), panel)
        folder = self.folder / PAPER / str(self.first)
        page = paper_page(numbers)
        write_together({folder / "paper.html": page.html(), folder / "paper.json": page.json()})
        return PaperOutcome(numbers, folder / "paper.html", self.log.message)

    def _evenings(self, panel: MarketPanel, start: int) -> Iterator[DailyAccount]:
        """Evenings that the log does not have yet: on the ledger, or at a broker elsewhere.

        At a broker it is that of the newest bar alone: the prices of bars that passed without a decision are gone.
        """
        last = DailyAccount.read(self.lines[-1]) if self.lines else None
        if self.routing is None:
            process = market_until(panel, self.agents).process
            yield from PaperAccount(process, self.agents.strategies()[0], start, last).evenings(panel.n_bars - 1)
        elif last is None or last.date < str(panel.dates[-1]):
            decide(replace(self.request, broker=ALPACA), self.agents, self.routing)
            yield broker_evening(HashedLog.read(self.folder / STATE).entries, last)

    def _expectation(self, bars_per_year: int) -> Expectation | None:
        """By the returns of the run's own backtest, as far as they lie before the account."""
        reports = self.agents.folder / "reports"
        try:
            name = parse_json((reports / "metrics.json").read_text("utf-8"))["agent"]
            table = pd.read_csv(reports / "returns.csv", index_col="date")[name]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        before = table[table.index < str(self.first)]
        return Expectation.of(before.to_numpy(dtype=np.float64), bars_per_year)
