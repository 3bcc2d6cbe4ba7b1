"""`--mode paper`: an agent day by day, on the ledger or at a broker, with a log that survives any stop.

No evening knows a later bar. On the evening of bar T the trade that was decided before fills at the prices of T, and
the next one is decided. On the ledger the step of the decision process is split: its first half, the fill, needs no
later price; its second half, the growth of the holdings, follows on the next evening. The numbers are the backtest's.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finflow.env.decision_process import DecisionProcess, fill_at
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import ConfigError, first_few, refuse
from finflow.evaluation.backtest import History, targets_of
from finflow.files import in_use, write_together
from finflow.json_text import parse_json
from finflow.line_file import HashedLog
from finflow.market.panel import MarketPanel
from finflow.market.plausibility.checks import find_implausible
from finflow.market.plausibility.finding import in_table
from finflow.strategies.classical import EqualWeight
from finflow.strategies.strategy import Strategy
from finflow.trading.account_state import DECISION, STATE, fills_of
from finflow.trading.alpaca_broker import BrokerNotReady, OrderRouting
from finflow.trading.decide_mode import ALPACA, Request, decide, open_routing
from finflow.trading.live_market import TRADING, load_prices, load_trading_agents, market_until, run_data
from finflow.trading.paper_page import Expectation, PaperNumbers, paper_numbers, paper_page
from finflow.trading.price_checks import calendar_of, check_history
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
    agents, clock = load_trading_agents(request.runs, request.overrides), clock or Clock()
    folder = agents.folder / TRADING
    routing = open_routing(agents, request.live) if agents.config.trading.broker == ALPACA else None
    _check_options(request, routing)
    with in_use(folder / PAPER, "trading on paper in"):
        trading = _Trading(agents, folder, request, routing)
        panel = load_prices(agents.config, request.until)
        for line in in_table(find_implausible(panel)):
            say(line)
        decisions = [one for one in trading.log.entries if one["kind"] == DECISION]
        if not (history := check_history(panel, decisions, run_data(agents))).passed:
            say(f"warning: history: {history.said}")
        if request.follow:
            say("new bars are followed; Ctrl-C stops, and the same command goes on")
        while True:
            try:
                outcome = trading.catch_up(panel)
            except BrokerNotReady as error:
                if not request.follow:
                    raise
                say(f"waiting: {error}")
                clock.wait(POLL)
                continue
            if not request.follow:
                return outcome
            numbers = outcome.numbers
            say(f"{numbers.date}: value {numbers.value:,.2f}, net {numbers.total_return:+.2%}")
            panel = trading.next_prices(clock)


def _check_options(request: Request, routing: OrderRouting | None) -> None:
    """Refuse a span that ends before it begins, and what only the ledger, or only a broker elsewhere, can do."""
    refuse(
        request.first is not None and request.until is not None and request.until < request.first,
        f"--until {request.until} lies before --from {request.first}",
    )
    refuse(request.follow and request.until is not None, "--follow goes on with every new bar: leave --until out")
    if routing is not None and request.until is not None:
        raise ConfigError(f"{routing.broker.name} trades today, and --until may be a day of the past: leave it out")
    refuse(
        routing is None and (request.accept_drift or request.accept_verdict or request.live),
        "--accept-drift, --i-know and --live are for a broker elsewhere (trading.broker): leave them out on the ledger",
    )


class _Trading:
    def __init__(self, agents: Agents, folder: Path, request: Request, routing: OrderRouting | None) -> None:
        self.agents, self.folder, self.request, self.routing = agents, folder, request, routing
        self.log = HashedLog.read(folder / STATE)
        begun = [dt.date.fromisoformat(one["account"]) for one in self.log.entries if one["kind"] == PAPER]
        refuse(
            request.first is None and not begun,
            "no paper account has begun with this agent: name its first day with --from",
        )
        self.first = request.first or begun[-1]
        self.lines = [one for one in self.log.entries if one["kind"] == PAPER and one["account"] == str(self.first)]
        refuse(
            self.lines and self.lines[-1]["settings"] != self._mark(),
            f"the paper account of {self.first} was run by another agent, with other keys under env or at another "
            "broker: leave the changes out, or begin another account with --from",
        )

    def _mark(self) -> str:
        """Hash of the agent, and of the settings that decide what an account does."""
        env = self.agents.config.env.model_dump(mode="json")
        settings = {"agent": self.agents.identity, **{name: env[name] for name in _SETTINGS}}
        if self.routing is not None:
            settings["broker"] = self.routing.mark
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def next_prices(self, clock: Clock) -> MarketPanel:
        """Wait until the prices have a bar after the last evening."""
        last, calendar = dt.date.fromisoformat(self.lines[-1]["date"]), None
        while True:
            panel = load_prices(self.agents.config, fresh=True)
            if panel.dates[-1].astype(dt.date) > last:
                return panel
            calendar = calendar or calendar_of(self.agents.config.trading.calendar, panel.dates)
            clock.wait(POLL if calendar.sessions(last, clock.today()) else IDLE)

    def catch_up(self, panel: MarketPanel) -> PaperOutcome:
        """Trade every evening that the log does not have yet, and write the page."""
        start = int(np.searchsorted(panel.dates, np.datetime64(self.first, "D")))
        refuse(start >= panel.n_bars, f"--from {self.first} lies after the prices, which end on {panel.dates[-1]}")
        refuse(
            start < panel.bars_until(self.agents.config.market.validation_end),
            f"--from {self.first} lies in the years that the agent learned from and was chosen by, up to "
            f"{self.agents.config.market.validation_end} (market.validation_end): name a later day",
        )
        mark = self._mark()
        process = market_until(panel, self.agents).process
        for evening in self._evenings(panel, start, process):
            entry = {"kind": PAPER, "account": str(self.first), "settings": mark, **asdict(evening)}
            entry["tickers"] = panel.assets  # that the weights are of
            self.log.append(entry)
            self.lines.append(entry)
        equal = PaperAccount(process, EqualWeight(), start).evenings(panel.n_bars - 1)
        expected, values = self._expectation(panel.bars_per_year), {one.date: one.wealth for one in equal}
        numbers = paper_numbers(self.lines, expected, panel, values)
        folder = self.folder / PAPER / str(self.first)
        page = paper_page(numbers)
        write_together({folder / "paper.html": page.html(), folder / "paper.json": page.json()})
        return PaperOutcome(numbers, folder / "paper.html", self.log.message)

    def _evenings(self, panel: MarketPanel, start: int, process: DecisionProcess) -> Iterator[DailyAccount]:
        """Evenings that the log does not have yet: on the ledger, or at a broker elsewhere.

        At a broker it is that of the newest bar alone: the prices of bars that passed without a decision are gone.
        """
        last = DailyAccount(*(self.lines[-1][field.name] for field in fields(DailyAccount))) if self.lines else None
        if self.routing is None:
            held = tuple(self.lines[-1].get("tickers", panel.assets)) if self.lines else panel.assets
            others = first_few(sorted(set(held) ^ set(panel.assets)), 5) or "the same in another order"
            refuse(
                held != panel.assets,
                f"the paper account of {self.first} has other tickers than the prices ({others}): bring its own back, "
                "those that ended with their past prices, or begin another account with --from",
            )
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
        return Expectation.of(table[table.index < str(self.first)].to_numpy(dtype=np.float64), bars_per_year)


_STATE = ("weights", "wealth", "objective", "objective_before")


@dataclass(frozen=True)
class DailyAccount:
    """Account on the evening of a bar."""

    date: str
    step: int  # decisions made before, this evening's left out
    state: dict[str, Any] | None  # of the portfolio before the fill, as `PortfolioState` has it; None before the first
    target: list[float] | None  # filled at the bar; None before the first fill
    next_target: list[float] | None  # decided this evening; None at an execution lag of 0, where it has filled
    filled: list[float] | None  # weights right after the fill
    wealth: float  # before the fill, in money
    simple_return: float | None  # net return of the holding period that ended at the bar; None at the first
    cost: float
    turnover: float


def broker_evening(entries: Sequence[Mapping[str, Any]], last: DailyAccount | None) -> DailyAccount:
    """Evening of the newest decision in the log, from the account that the broker reported for it.

    Turnover and cost are those of the fills since the decision before, as shares of the account's value.
    """
    decisions = [one for one in entries if one["kind"] == DECISION and "broker" in one]
    newest = decisions[-1]
    before = [one["date"] for one in decisions if one["date"] < newest["date"]]
    fills = (fills_of(entries, before[-1]) or []) if before else []
    prices, account = newest["prices"], newest["account"]
    held = [prices[name] * account["shares"].get(name, 0.0) for name in sorted(prices)]
    value = float(sum(held) + account["cash"])
    traded = [one.shares * one.price for one in fills]
    return DailyAccount(
        date=newest["date"],
        step=0 if last is None else last.step + 1,
        state=None,
        target=None,
        next_target=None,
        filled=[*(money / value for money in held), account["cash"] / value],
        wealth=value,
        simple_return=None if last is None else value / last.wealth - 1.0,
        cost=sum(one.cost for one in fills) / value,
        turnover=0.5 * (sum(map(abs, traded)) + abs(sum(traded))) / value,
    )


class PaperAccount:
    """Evenings of an account that fills first at the bar ``first``, or that goes on from the evening ``last``.

    Raises FinflowError if the bars do not have the evening to go on from, or there is nothing to decide from before the
    first fill.
    """

    def __init__(
        self, process: DecisionProcess, strategy: Strategy, first: int, last: DailyAccount | None = None
    ) -> None:
        self.process, self.strategy, self.first = process, strategy, first
        self.history = History(process.panel.close)
        self.last = last
        self.bar = first - 1 - (1 if process.lag else 0)
        refuse(
            first < process.first_bar,
            f"nothing can be decided before {process.panel.dates[min(process.first_bar, process.panel.n_bars - 1)]}"
            ", where all features have their history: name a later --from",
        )
        if last is not None:
            self.bar = process.panel.bars_until(last.date) - 1
            refuse(
                self.bar < 0 or str(process.panel.dates[self.bar]) != last.date,
                f"the account is at {last.date}, a day that the prices do not have: bring them back, or begin "
                "another account with --from",
            )

    def evenings(self, until: int) -> Iterator[DailyAccount]:
        """Evenings after the last one, up to and including that of a bar."""
        for bar in range(self.bar + 1, until + 1):
            self.last = self._evening(bar)
            yield self.last

    def _evening(self, bar: int) -> DailyAccount:
        process, date = self.process, str(self.process.panel.dates[bar])
        if bar < self.first:  # the evening before the first fill
            begun = process.start(np.array([bar + 1]))
            decided = self._decide(begun, bar + 1, 0)
            return DailyAccount(date, 0, None, None, decided, None, float(begun.wealth[0]), None, 0.0, 0.0)
        state, simple_return, step = self._opened(bar)
        pending = None if self.last is None else self.last.next_target
        target = self._decide(state, bar, step) if process.lag == 0 else pending
        refuse(target is None, "the log has no decision for this bar: begin another account with --from")
        fill = fill_at(process, state, np.array([target]))
        following = None
        if process.lag:
            wealth = state.wealth * fill.wealth_factor
            ahead = PortfolioState(np.array([bar + 1]), fill.weights, wealth, state.objective, state.objective)
            following = self._decide(ahead, bar + 1, step + 1)
        return DailyAccount(
            date,
            step + (1 if process.lag else 0),
            {name: getattr(state, name)[0].tolist() for name in _STATE},
            target,
            following,
            fill.weights[0].tolist(),
            float(state.wealth[0]),
            simple_return,
            float(fill.cost[0]),
            float(fill.turnover[0]),
        )

    def _opened(self, bar: int) -> tuple[PortfolioState, float | None, int]:
        """State before the fill at a bar, the return of the period that ended there, and the decisions made before."""
        last = self.last
        if last is None or last.state is None:
            return self.process.start(np.array([bar])), None, 0
        before = PortfolioState(np.array([bar - 1]), *(np.array([last.state[name]]) for name in _STATE))
        outcome = self.process.step(before, np.array([last.target]))
        return outcome.state, float(outcome.simple_return[0]), last.step + (0 if self.process.lag else 1)

    def _decide(self, state: PortfolioState, bar: int, step: int) -> list[float]:
        target: list[float] = targets_of(self.process, state, [self.strategy], step, bar, self.history)[0].tolist()
        return target
