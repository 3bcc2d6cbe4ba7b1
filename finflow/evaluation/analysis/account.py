"""Trades, holdings and taxes of a backtest, in money.

**Tax.** No strategy decides by tax. For every backtest, a second account holds the same weights at every bar, keeps
lots (`ledger.lots`), and pays its tax in cash at the first fill of the next calendar year, and at the end of the window
for the year that it ends in. Selling what that takes is a trade like any other. Gains not made by then are not taxed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from finflow.arrays import BoolArray, FloatArray
from finflow.config import TaxConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import share_prices
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.statistics import metrics
from finflow.ledger.accounting import drift, pay_out, settle
from finflow.ledger.costs import NO_TRADE
from finflow.ledger.lots import Gains, Losses, Lots, tax_of_year


def trades(process: DecisionProcess, window: range, run: Backtest) -> pd.DataFrame:
    """Purchases and sales of a backtest on its process, a row for each asset and fill.

    Columns: name of the ``strategy``, ``date`` of the fill, ``asset``, ``side`` (buy, sell, or end where an asset was
    paid out at its last price), ``units`` and ``price`` (adjusted where the prices are), ``value`` (units times price),
    ``cost``, both in money, and the ``weight`` ``before`` and ``after``. Wealth before a fill, less its costs, is
    wealth after.
    """
    bars = process.decision_bars(window)
    rows = slice(bars.start, bars.stop)
    growth, listed = process.growth[rows], process.listed[rows]
    wealth = process.env.initial_capital * run.wealth[:-1]
    held = np.zeros_like(run.weights)
    held[0, -1] = 1.0
    dividends = None if process.dividends is None else process.dividends[rows][1:]
    held[1:] = drift(run.weights[:-1], growth[1:], dividends)
    before = pay_out(held, listed)
    change = (1.0 - run.costs)[:, None] * run.weights[:, :-1] - before[:, :-1]
    change[np.abs(change) <= NO_TRADE] = 0.0
    cost = process.costs.by_asset(change, wealth, process.market_known(bars)) * wealth[:, None]
    ended = np.where(listed, 0.0, -held[:, :-1])
    step, asset = np.nonzero((change != 0.0) | (ended != 0.0))
    moved = np.where(change != 0.0, change, ended)[step, asset] * wealth[step]
    price = _last_prices(process, rows)[step, asset]
    paid_out = ended[step, asset] != 0.0
    return pd.DataFrame(
        {
            "strategy": run.name,
            "date": process.panel.dates[rows][step],
            "asset": pd.Categorical.from_codes(asset, categories=pd.Index(process.panel.assets)),
            "side": np.where(paid_out, "end", np.where(moved > 0.0, "buy", "sell")),
            "units": np.abs(moved) / price,
            "price": price,
            "value": np.abs(moved),
            "cost": cost[step, asset],
            "before": held[step, asset],
            "after": run.weights[step, asset],
        }
    )


def holdings(process: DecisionProcess, window: range, run: Backtest) -> pd.DataFrame:
    """Holdings right after each fill, a row for each asset held, and for cash.

    Columns: ``strategy``, ``date``, ``asset``, ``units``, ``price`` (1 for cash), ``value`` in money, ``weight``.
    """
    bars = process.decision_bars(window)
    rows = slice(bars.start, bars.stop)
    wealth = process.env.initial_capital * run.wealth[:-1] * (1.0 - run.costs)
    step, asset = np.nonzero(run.weights > 0.0)
    value = run.weights[step, asset] * wealth[step]
    price = np.pad(_last_prices(process, rows), ((0, 0), (0, 1)), constant_values=1.0)[step, asset]
    return pd.DataFrame(
        {
            "strategy": run.name,
            "date": process.panel.dates[rows][step],
            "asset": pd.Categorical.from_codes(asset, categories=pd.Index(run.assets)),
            "units": value / price,
            "price": price,
            "value": value,
            "weight": run.weights[step, asset],
        }
    )


def _last_prices(process: DecisionProcess, rows: slice) -> FloatArray:
    """Prices of these bars; of an asset that has ended, its last one."""
    return pd.DataFrame(share_prices(process.panel, process.env.fill)[: rows.stop]).ffill().to_numpy()[rows]


class TaxedAccount(NamedTuple):
    """An account that pays tax.

    ``wealth`` (steps + 1,) is at each bar from the first fill on, before that bar's trade and tax; the last after the
    last tax.
    """

    wealth: FloatArray  # in money
    paid: dict[int, float]  # year -> tax on its gains and interest, in money


def after_tax(process: DecisionProcess, window: range, run: Backtest, tax: TaxConfig) -> TaxedAccount:
    """Hold what a backtest on this process held in an account that pays tax."""
    bars = process.decision_bars(window)
    days = process.panel.dates.astype("datetime64[D]").astype(np.int64)
    years = process.panel.dates.astype("datetime64[Y]").astype(np.int64) + 1970
    rows = slice(bars.start, bars.stop + 1)
    growth = process.growth[rows, :-1]
    shares = np.zeros_like(growth) if process.dividends is None else process.dividends[rows]
    level = np.cumprod(growth * (1.0 - shares), axis=0)  # price of a unit, which never is NaN
    dividends = level * shares / (1.0 - shares)  # of a unit
    account = _Account(process.n_weights - 1, float(process.env.initial_capital), tax)
    wealth, paid = np.empty(len(bars) + 1), {}
    for step, bar in enumerate(range(bars.start, bars.stop + 1)):
        earned = 0.0
        if step:
            earned = account.cash * (float(process.growth[bar, -1]) - 1.0) + float(account.units @ dividends[step])
        account.cash += earned
        wealth[step] = account.value(level[step])
        if step and years[bar] != years[bar - 1]:
            paid[int(years[bar - 1])] = account.pay()
        account.interest += earned  # of this year, in which it was received
        if bar < bars.stop:
            account.end(~process.listed[bar], int(days[bar]), level[step])
            account.trade(run.weights[step], process, bar, int(days[bar]), level[step])
    paid[int(years[bars.stop])] = account.pay()
    wealth[-1] = account.value(level[-1])
    return TaxedAccount(wealth, paid)


class _Account:
    """Money, lots, and what is owed of the year so far."""

    def __init__(self, assets: int, capital: float, tax: TaxConfig) -> None:
        self.tax = tax
        self.cash = capital
        self.units = np.zeros(assets)
        self.lots = [Lots(tax) for _ in range(assets)]
        self.interest, self._gains, self._carried = 0.0, Gains(), Losses()

    def value(self, level: FloatArray) -> float:
        return float(self.units @ level) + self.cash

    def pay(self) -> float:
        """Pay the tax of the year so far, and begin another."""
        owed, self._carried = tax_of_year(self._gains, self.interest, self._carried, self.tax)
        self.cash -= owed
        self._gains, self.interest = Gains(), 0.0
        return owed

    def end(self, ended: BoolArray, day: int, level: FloatArray) -> None:
        for asset in np.flatnonzero(ended & (self.units > 0.0)):
            value = float(self.units[asset] * level[asset])
            self._sell(int(asset), day, float(self.units[asset]), value)
            self.cash += value
            self.units[asset] = 0.0

    def trade(self, weights: FloatArray, process: DecisionProcess, bar: int, day: int, level: FloatArray) -> None:
        wealth = self.value(level)
        held = self.units * level
        before, market = np.append(held, self.cash) / wealth, process.market_known(range(bar, bar + 1))
        halted, capital = process.halted[bar][None], np.array([wealth])
        fill = settle(before[None], weights[None], process.costs, capital, market, halted)
        left = wealth * float(fill.wealth_factor[0])
        wanted = left * fill.weights[0]
        change = wanted[:-1] - held
        change[np.abs(change) <= NO_TRADE * wealth] = 0.0
        cost = wealth * process.costs.by_asset(change[None] / wealth, capital, market)[0]
        for asset in np.flatnonzero(change < 0.0):
            sold = -float(change[asset])
            units = float(self.units[asset]) if wanted[asset] <= 0.0 else sold / float(level[asset])
            self._sell(int(asset), day, units, sold - float(cost[asset]))
        for asset in np.flatnonzero(change > 0.0):
            value = float(change[asset])
            self.lots[asset].buy(day, value / float(level[asset]), value + float(cost[asset]))
        self.units = self.units + change / level
        self.units[wanted[:-1] <= 0.0] = 0.0
        self.cash = left - float(self.units @ level)

    def _sell(self, asset: int, day: int, units: float, proceeds: float) -> None:
        self._gains = self._gains.plus(self.lots[asset].sell(day, units, proceeds))


def tax_section(process: DecisionProcess, window: range, runs: Sequence[Backtest], tax: TaxConfig) -> Section:
    """Returns of each backtest after tax, the judged one first."""
    found = {}
    for run in runs:
        account, year = after_tax(process, window, run, tax), run.bars_per_year
        returns = account.wealth[1:] / account.wealth[:-1] - 1.0
        found[run.name] = {
            "before": metrics.annual_return(run.returns, year),
            "after": metrics.annual_return(returns, year),
            "sharpe": metrics.sharpe(returns, run.cash_returns, year),
            "rate": sum(account.paid.values()) / (len(returns) / year) / float(account.wealth.mean()),
        }
    numbers: dict[str, object] = {
        "settings": {name: value for name, value in tax.model_dump().items() if name != "enabled"},
        "strategies": found,
    }
    income = "interest" if process.dividends is None else "interest and dividends"
    columns = (
        ("Return before tax", Cell(("strategies", ROW, "before"), "%", 1)),
        ("Return after tax", Cell(("strategies", ROW, "after"), "%", 1)),
        ("Sharpe after tax", Cell(("strategies", ROW, "sharpe"))),
        ("Tax, of wealth", Cell(("strategies", ROW, "rate"), "%", 2)),
    )
    words = (
        "Gains of lots held for ",
        Cell(("settings", "days"), "", 0),
        f" days or less, and {income}, are taxed at ",
        Cell(("settings", "short_rate"), "%", 1),
        ", others at ",
        Cell(("settings", "long_rate"), "%", 1),
        "; a sale takes the oldest lots first. Tax is paid at the first fill of the next year, and for the last year "
        "at the end. No strategy decides by it.",
    )
    caption = (
        "Returns and tax are a year's; the same weights in an account that pays tax. Gains not yet made at the end go "
        "untaxed. There are no wash sales, no brackets, and losses are carried forward."
    )
    table = make_table("Returns after tax", "Strategy", list(found), columns, caption, marked=runs[0].name)
    return Section("tax", "After tax", numbers, (table,), words=(words,))
