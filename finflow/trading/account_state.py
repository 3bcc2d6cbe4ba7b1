"""Account that a decision begins with: from files of holdings and fills, from the log, or from cash."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from pydantic import FiniteFloat, PositiveFloat, TypeAdapter, ValidationError

from finflow.arrays import FloatArray
from finflow.config.yaml_text import misread, parse_scalar
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import share_prices
from finflow.env.objective import Objective
from finflow.errors import FinflowError, refuse
from finflow.files import read_text_input
from finflow.json_text import parse_json
from finflow.market.panel import MarketPanel
from finflow.market.sources.number_marks import ambiguity, marks_shown, separator_of
from finflow.trading.decision_page import FollowUp, PlanDifference
from finflow.trading.live_market import LiveMarket
from finflow.trading.order_rounding import Account, price_plan
from finflow.trading.price_checks import restatements

CASH = "cash"


class Fill(NamedTuple):
    """One execution: shares (negative where sold), their price, and what the broker took for it, in money."""

    ticker: str
    shares: FiniteFloat
    price: PositiveFloat
    cost: FiniteFloat = 0.0


_FILL = TypeAdapter(Fill)


@dataclass(frozen=True)
class Holdings:
    """Account as a file, a command or a broker states it: shares by ticker, cash in money, fills; None where unsaid."""

    shares: dict[str, float] | None = None
    cash: float | None = None
    fills: Sequence[Fill] | None = None


def read_holdings(path: Path, universe: Sequence[str]) -> Holdings:
    """Read what is held of a universe of tickers; an error names the file, the place and the remedy.

    CSV with the columns ``ticker,shares``, in which ``cash`` in any case may stand for a ticker; or JSON or YAML, a
    mapping of tickers (and ``cash``) to numbers. A CSV may have semicolons or tabs, and decimal commas.
    """
    text, where = read_text_input(path, "--holdings", FinflowError), f"--holdings {path}"
    suffix = path.suffix.lower()
    rows: Iterable[tuple[str, dict[str, Any]]]
    if suffix in (".json", ".yaml", ".yml"):
        try:
            content = parse_json(text) if suffix == ".json" else parse_scalar(text)
        except (ValueError, yaml.YAMLError, RecursionError):
            kind = "JSON" if suffix == ".json" else "YAML"
            raise FinflowError(f"{where} is not {kind}; write a mapping of tickers to shares") from None
        refuse(not isinstance(content, Mapping), f"{where} is not a mapping; write tickers with their shares, and cash")
        refuse(advice := misread(list(content)), f"{where}: tickers must be names{advice}")
        rows = [
            (f"key {str(name)[:40]}", {"ticker": str(name), "shares": str(value)}) for name, value in content.items()
        ]
    elif suffix == ".csv":
        rows = _rows(text, where, "ticker", "shares")
    else:
        raise FinflowError(f"{where} is neither .csv, .json nor .yaml; write ticker,shares lines as .csv")
    shares: dict[str, float] = {}
    priced = ((place, {"price": 1.0, **row}) for place, row in rows)
    for place, (ticker, count, *_) in _checked(priced, (*universe, CASH), where):
        refuse(ticker in shares, f"{place}: {ticker} is there twice; add the two up")
        mistake = "accounts are long only; close the position, or leave it out"
        if ticker == CASH:
            mistake = "accounts hold no debt; pay in, or sell first, and enter what is held then"
        refuse(count < 0.0, f"{place}: {count:g} of {ticker}, but {mistake}")
        shares[ticker] = count
    cash = shares.pop(CASH, None)
    return Holdings({ticker: count for ticker, count in shares.items() if count > 0.0}, cash)


def read_fills(path: Path, universe: Sequence[str]) -> list[Fill]:
    """Read executions: CSV with the columns ``ticker,shares,price`` and, if there is one, ``cost``.

    Shares are negative where they were sold. Several lines of a ticker add up.
    """
    text, where = read_text_input(path, "--fills", FinflowError), f"--fills {path}"
    return [fill for _, fill in _checked(_rows(text, where, "ticker", "shares", "price"), universe, where)]


def _rows(text: str, where: str, *needed: str) -> list[tuple[str, dict[str, Any]]]:
    """Lines of a CSV with their places: the columns that are needed, and a cost; numbers with a decimal point."""
    separator, rows = separator_of(text.lstrip().partition("\n")[0]), []
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, delimiter=separator)
    try:
        columns = reader.fieldnames = [str(name).strip().lower() for name in reader.fieldnames or ()]
        lacking = next((name for name in needed if name not in columns), None)
        refuse(lacking, f"{where} has no column {lacking}; its first line must name the columns {','.join(needed)}")
        for row in reader:
            refuse(None in row, f"{where}, line {reader.line_num}: {len(columns)} values are needed")
            values = {name: row[name].strip() for name in (*needed, "cost") if row.get(name)}
            if any(values.values()):
                rows.append((f"line {reader.line_num}", {name: value for name, value in values.items() if value}))
    except csv.Error as error:
        raise FinflowError(f"{where}, line {max(reader.line_num, 1)}: not CSV ({error})") from None
    for name in ("shares", "price", "cost"):
        own = [(place, row) for place, row in rows if name in row]
        texts = [row[name] for _, row in own]
        marks = marks_shown(texts, separator)
        if not marks.thousands and (found := ambiguity(texts)) is not None:
            raise FinflowError(f"{where}, {own[found[0]][0]}: {name}: {found[1]}")
        for _, row in own:
            row[name] = marks.plain(row[name])
    return rows


def _checked(
    rows: Iterable[tuple[str, dict[str, Any]]], universe: Sequence[str], where: str
) -> Iterator[tuple[str, Fill]]:
    """Lines of a universe of tickers with their places in a file."""
    for position, row in rows:
        place = f"{where}, {position}"
        try:
            fill = _FILL.validate_python(row)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            raise FinflowError(f"{place}: {problem['loc'][-1]}: {problem['msg']}") from None
        ticker = fill.ticker.strip()
        ticker = CASH if ticker.lower() == CASH and ticker not in universe else ticker
        if ticker not in universe:
            near = difflib.get_close_matches(ticker.upper(), universe, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the agent trades {', '.join(universe[:25])}"
            raise FinflowError(
                f"{place}: {ticker[:40] or 'an empty name'} is not in the universe of the run; leave it out; {hint}"
            )
        yield place, fill._replace(ticker=ticker)


STATE = "state.jsonl"  # log of an account: its decisions, fills, placed orders and evenings
DECISION, FILLS = "decision", "fills"
Source = Literal["plan", "fills", "holdings"]
_SAME = 1e-6  # shares that count as none


@dataclass(frozen=True)
class AccountState:
    """An account at the newest bar: shares (assets,), cash in money, and the state of the reward (1, 3)."""

    shares: FloatArray
    cash: float
    reward_state: FloatArray
    follow_up: FollowUp | None


def last_decision(entries: Sequence[Mapping[str, Any]], date: str) -> Mapping[str, Any] | None:
    """The decision on file that one of a date goes on from; None where there is none.

    Raises FinflowError if the log goes on beyond the date.
    """
    decisions = [entry for entry in entries if entry["kind"] == DECISION]
    latest = max((str(entry["date"]) for entry in decisions), default="")
    refuse(
        latest > date, f"the log has a decision of {latest} already: --date {date} is before it; view it with --dry-run"
    )
    before = sorted((entry for entry in decisions if entry["date"] < date), key=lambda entry: str(entry["date"]))
    return before[-1] if before else None


def fills_of(entries: Sequence[Mapping[str, Any]], date: str) -> list[Fill] | None:
    """Fills on file of the decision of a date, those entered last; None where there are none."""
    entered = [entry["fills"] for entry in entries if entry["kind"] == FILLS and entry["date"] == date]
    return [Fill(*fill) for fill in entered[-1]] if entered else None


def paper_fills(process: DecisionProcess, entries: Sequence[Mapping[str, Any]], date: str) -> list[Fill] | None:
    """Fills at the paper broker of the decision before a date; None where there is none, or its fills are on file."""
    before = last_decision(entries, date)
    if before is None or fills_of(entries, before["date"]) is not None:
        return None
    path = _Path(process, before)
    known = process.market_known(range(path.fill_bar, path.fill_bar + 1))
    trades = np.where(process.halted[path.fill_bar], 0.0, path.planned / path.factor)
    account = Account(path.start, path.prices, float(before["account"]["cash"]))
    return path.filled(price_plan(account, trades, trades, process.costs, known).costs)


def account_at(
    market: LiveMarket, entries: Sequence[Mapping[str, Any]], stated: Holdings, capital: float
) -> AccountState:
    """The account at the newest bar of a market, from what the log says up to this decision, else from ``capital``.

    Raises FinflowError if the command contradicts itself or the log.
    """
    panel = market.panel
    before = last_decision(entries, str(panel.dates[-1]))
    # holdings replace an account whose course cannot be followed, since a ticker of it was left out
    if before is None or (stated.shares is not None and _left_out(panel, before)):
        none = before is None and stated.fills is not None
        refuse(none, "--fills belongs to an earlier decision, and the log has none: leave it out")
        refuse(before is not None and stated.cash is None, "the log's cash is of before a ticker left: add --cash")
        capital = capital if stated.shares is None else 0.0
        cash = capital if stated.cash is None else stated.cash
        state = market.process.objective.initial(np.zeros((1, market.process.n_weights)))
        state = state if before is None else np.array([before["reward_state"]])
        return AccountState(_shares(panel, stated.shares or {}), cash, state, None)
    fills = stated.fills if stated.fills is not None else fills_of(entries, before["date"])
    path = _Path(market.process, before, fills)
    source: Source = "fills" if fills is not None else "plan"
    shares, cash = path.shares, float(path.cash[-1])
    if stated.shares is not None:
        shares, source = _shares(panel, stated.shares), "holdings"
    if stated.cash is not None:
        refuse(
            stated.shares is None and bool((shares > 0.0).any()),
            "--cash says nothing of the shares that the log has: name all that is held with --holdings FILE",
        )
        cash, source = stated.cash, "holdings"
    return AccountState(shares, cash, path.reward_state(market.process.objective), path.follow_up(shares, cash, source))


def _shares(panel: MarketPanel, stated: Mapping[str, float]) -> FloatArray:
    shares = np.array([stated.get(asset, 0.0) for asset in panel.assets])
    rows = zip(panel.assets, shares, panel.listed[-1], strict=True)
    name = next((name for name, count, listed in rows if count > 0.0 and not listed), None)
    refuse(name, f"--holdings has {name}, which has no price on {panel.dates[-1]}: sell it, or leave it out")
    return shares


def _left_out(panel: MarketPanel, before: Mapping[str, Any]) -> str | None:
    """The first ticker held or ordered by a decision that the panel does not have."""
    return next((name for name in (*before["account"]["shares"], *before["orders"]) if name not in panel.assets), None)


class _Path:
    """Course of the account since a decision; without fills its orders count as filled as planned."""

    def __init__(
        self, process: DecisionProcess, before: Mapping[str, Any], fills: Sequence[Fill] | None = None
    ) -> None:
        panel = process.panel
        self.panel, self.before = panel, before
        account = before["account"]
        self.bar = panel.bars_until(before["date"]) - 1
        refuse(
            self.bar < 0 or str(panel.dates[self.bar]) != before["date"],
            f"the log has a decision of {before['date']}, a day that the prices do not have",
        )
        unknown = _left_out(panel, before)
        refuse(unknown, f"the log holds {unknown}, which is left out now: name what is held with --holdings")
        restated = restatements(panel, [before])
        self.factor = np.array([restated.get(asset, {}).get(before["date"], 1.0) for asset in panel.assets])
        self.start = self._by_asset(account["shares"]) / self.factor
        self.planned = self._by_asset(before["orders"])
        self.fill_bar = min(self.bar + (1 if process.lag else 0), panel.n_bars - 1)
        self.prices = np.nan_to_num(share_prices(panel, process.env.fill)[self.fill_bar])
        self.halted = process.halted[self.fill_bar]
        if fills is None:
            value = np.abs(self.planned / self.factor) * self.prices
            done = self.filled(float(before["cost"]) * value / max(value.sum(), 1e-300))
        else:
            done = list(fills)
        traded, values = dict.fromkeys(panel.assets, 0.0), dict.fromkeys(panel.assets, 0.0)
        for fill in done:
            traded[fill.ticker] += fill.shares
            values[fill.ticker] += fill.shares * fill.price
        # mean prices of the fills that were entered
        self.paid = {} if fills is None else {name: values[name] / count for name, count in traded.items() if count}
        self.shares = np.maximum(self.start + self._by_asset(traded) / self.factor, 0.0)
        self.interest = np.concatenate([[1.0], np.cumprod(1.0 + panel.cash_returns[self.bar + 1 :])])
        self.cash = self._cash(sum(fill.shares * fill.price + fill.cost for fill in done), self.shares)

    def filled(self, costs: FloatArray) -> list[Fill]:
        """Orders at the prices of the fill, but those in assets that are halted there; costs (assets,) in money."""
        columns = (self.planned, self.prices / self.factor, costs)
        rows = zip(self.panel.assets, *(column.tolist() for column in columns), self.halted.tolist(), strict=True)
        return [Fill(asset, count, price, cost) for asset, count, price, cost, halted in rows if count and not halted]

    def _by_asset(self, numbers: Mapping[str, float]) -> FloatArray:
        return np.array([float(numbers.get(asset, 0.0)) for asset in self.panel.assets])

    def _cash(self, paid: float, shares: FloatArray) -> FloatArray:
        """Cash at each bar since the decision, as if the money paid at the fill had left by then; (bars,).

        It has the interest, and the dividends paid in cash on the shares held, which are ``shares`` after the fill.
        """
        panel, at_fill = self.panel, self.fill_bar - self.bar
        left = float(self.before["account"]["cash"]) * self.interest[at_fill] - paid
        cash = np.asarray(left * self.interest / self.interest[at_fill])
        if panel.dividends is None:
            return cash
        dividends = np.nan_to_num(panel.dividends * panel.share_closes)[self.bar :]
        held = np.where(np.arange(len(dividends))[:, None] <= at_fill, self.start, shares)
        money = (dividends * held).sum(axis=1)
        money[0] = 0.0  # in the account that decided
        return np.asarray(cash + np.cumsum(money / self.interest) * self.interest)

    def planned_cash(self) -> float:
        """Cash at the newest bar if the orders had filled as planned: at the decision's prices and expected cost."""
        paid = float(self.planned @ self._by_asset(self.before["prices"])) + float(self.before["cost"])
        return float(self._cash(paid, self.start + self.planned / self.factor)[-1])

    def reward_state(self, objective: Objective) -> FloatArray:
        """State of the reward through the newest bar."""
        state = np.array([self.before["reward_state"]])
        close = np.nan_to_num(self.panel.share_closes[self.bar :])
        values = close @ self.shares + self.cash
        if self.fill_bar > self.bar:
            values[0] = close[0] @ self.start + float(self.before["account"]["cash"])
        for step in range(1, len(values)):
            gain = np.log(np.maximum(np.array([values[step] / values[step - 1]]), 1e-12))
            cash = np.log(self.interest[step : step + 1] / self.interest[step - 1])
            turnover = np.array([float(self.before["turnover"]) if step == 1 else 0.0])
            _, state = objective.step(state, gain, turnover, cash)
        return np.asarray(state, dtype=np.float64)

    def follow_up(self, shares: FloatArray, cash: float, source: Source) -> FollowUp:
        changed = (shares - self.start) * self.factor
        differences = {}
        for asset, planned, done in zip(self.panel.assets, self.planned.tolist(), changed.tolist(), strict=True):
            shortfall = float("nan")
            if asset in self.paid:
                shortfall = done * (self.paid[asset] - float(self.before["prices"][asset]))
            if abs(planned - done) > _SAME or abs(shortfall) > 0.0:
                differences[asset] = PlanDifference(planned, done, shortfall)
        beside = 0.0 if source == "plan" else cash - self.planned_cash()
        lost = float(np.nansum([one.shortfall for one in differences.values()])) if source == "fills" else float("nan")
        return FollowUp(self.before["date"], source, differences, beside, lost)
