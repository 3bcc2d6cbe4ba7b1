"""What tax leaves of a backtest: the same portfolio, held in an account that pays tax.

No strategy decides by tax, and none sees it. Beside every backtest a second account holds the same weights at every
bar, keeps lots (`ledger.lots`), and pays its tax in cash at the first fill of the next calendar year, and at the end of
the window for the year that it ends in. Paying makes the account smaller, and selling what that takes is a trade like
any other: it costs, and makes gains of the new year. Until then the money that is owed stays invested. Gains not made
by the end of the window are not taxed; what would be left if they were, with everything sold that day and no cost, is
reckoned as well.

Where trades of one bar share a cost that is not proportional, it is shared out in proportion to their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.config import TaxConfig
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.section import Cell, Row, Section, Table, plain
from finflow.evaluation.statistics import metrics
from finflow.ledger.accounting import settle
from finflow.ledger.lots import Gains, Losses, Lots, tax_of_year
from finflow.market.panel import BARS_PER_YEAR

__all__ = ["TaxedAccount", "after_tax", "section"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class TaxedAccount:
    """What an account that pays tax had.

    Attributes
    ----------
    wealth : float64 (steps + 1,)
        In money, at each bar from the first fill on, before that bar's trade and tax; the last after the last tax.
    liquidated : float
        What is left if everything is sold at the end and that is taxed too.
    paid : mapping of int to float
        Year -> tax on its gains and interest, in money.
    gains : Gains
        Of all years.
    interest : float
        Of all years.
    """

    wealth: FloatArray
    liquidated: float
    paid: dict[int, float]
    gains: Gains
    interest: float

    @property
    def returns(self) -> FloatArray:
        """Simple returns after tax, (steps,)."""
        result: FloatArray = self.wealth[1:] / self.wealth[:-1] - 1.0
        return result


def after_tax(process: DecisionProcess, window: range, run: Backtest, tax: TaxConfig) -> TaxedAccount:
    """Hold what a backtest held in an account that pays tax.

    Parameters
    ----------
    process : DecisionProcess
        The one that the backtest was run on.
    window : range
    run : Backtest
    tax : TaxConfig
    """
    bars = process.decision_bars(window)
    days = process.panel.dates.astype("datetime64[D]").astype(np.int64)
    years = process.panel.dates.astype("datetime64[Y]").astype(np.int64) + 1970
    level = np.cumprod(process.growth[bars.start : bars.stop + 1, :-1], axis=0)  # price of a unit, which never is NaN
    account = _Account(process.n_weights - 1, float(process.env.initial_capital), tax)
    wealth = np.empty(len(bars) + 1)
    for step, bar in enumerate(bars):
        wealth[step] = account.worth(level[step])
        account.open(int(years[bar]))
        account.end(~process.listed[bar], int(days[bar]), level[step])
        account.trade(run.weights[step], process, bar, int(days[bar]), level[step])
        account.earn(float(process.growth[bar + 1, -1]) - 1.0)
    last = bars.stop
    account.open(int(years[last]))
    owed_if_sold = account.owed_if_sold(int(days[last]), level[-1])
    before = account.worth(level[-1])
    account.pay()
    wealth[-1] = account.worth(level[-1])
    return TaxedAccount(wealth, before - owed_if_sold, account.paid, account.gains, account.interest)


class _Account:
    """Money, lots, and what is owed of the year so far."""

    def __init__(self, assets: int, capital: float, tax: TaxConfig) -> None:
        self.tax = tax
        self.cash = capital
        self.units = np.zeros(assets)
        self.lots = [Lots(tax) for _ in range(assets)]
        self.gains, self.interest = Gains(), 0.0
        self.paid: dict[int, float] = {}
        self._year, self._gains, self._carried = 0, Gains(), Losses()
        self._interest = self._received = 0.0

    def worth(self, level: FloatArray) -> float:
        return float(self.units @ level) + self.cash

    def open(self, year: int) -> None:
        """Begin a bar: in a new year, pay the tax of the last; interest just received belongs to this one."""
        if self._year and year != self._year:
            self.pay()
        self._year = year
        self._interest += self._received
        self._received = 0.0

    def pay(self) -> None:
        """Settle the tax of the year."""
        owed, self._carried = tax_of_year(self._gains, self._interest, self._carried, self.tax)
        self.cash -= owed
        self.paid[self._year] = owed
        self._gains, self._interest = Gains(), 0.0

    def owed_if_sold(self, day: int, level: FloatArray) -> float:
        """Tax of the year so far, had everything been sold on this day."""
        gains = self._gains
        for asset in np.flatnonzero(self.units):
            gains = gains.plus(self.lots[asset].unrealised(day, self.units[asset] * level[asset]))
        return tax_of_year(gains, self._interest, self._carried, self.tax)[0]

    def end(self, ended: NDArray[np.bool_], day: int, level: FloatArray) -> None:
        """Take the last price of assets that have ended."""
        for asset in np.flatnonzero(ended & (self.units > 0.0)):
            value = float(self.units[asset] * level[asset])
            self._sell(int(asset), day, float(self.units[asset]), value)
            self.cash += value
            self.units[asset] = 0.0

    def trade(self, weights: FloatArray, process: DecisionProcess, bar: int, day: int, level: FloatArray) -> None:
        """Trade to the weights, and pay for it."""
        wealth = self.worth(level)
        held = self.units * level
        before = np.append(held, self.cash) / wealth
        fill = settle(
            before[None], weights[None], process.costs, np.array([wealth]), process.market_known(range(bar, bar + 1))
        )
        left = wealth * float(fill.wealth_factor[0])
        wanted = left * fill.weights[0]
        change = wanted[:-1] - held
        change[np.abs(change) <= 1e-12 * wealth] = 0.0  # rounding
        traded = float(np.abs(change).sum())
        rate = (wealth - left) / traded if traded > 0.0 else 0.0
        for asset in np.flatnonzero(change < 0.0):
            sold = -float(change[asset])
            units = float(self.units[asset]) if wanted[asset] <= 0.0 else sold / float(level[asset])
            self._sell(int(asset), day, units, sold * (1.0 - rate))
        for asset in np.flatnonzero(change > 0.0):
            value = float(change[asset])
            self.lots[asset].buy(day, value / float(level[asset]), value * (1.0 + rate))
        self.units = self.units + change / level
        self.units[wanted[:-1] <= 0.0] = 0.0
        self.cash = left - float(self.units @ level)

    def earn(self, rate: float) -> None:
        """Interest on cash over a bar."""
        interest = self.cash * rate
        self.cash += interest
        self.interest += interest
        self._received = interest

    def _sell(self, asset: int, day: int, units: float, proceeds: float) -> None:
        gains = self.lots[asset].sell(day, units, proceeds)
        self.gains, self._gains = self.gains.plus(gains), self._gains.plus(gains)


def section(process: DecisionProcess, window: range, runs: Sequence[Backtest], tax: TaxConfig) -> Section:
    """What tax leaves of each backtest, the judged one first."""
    found = {run.name: _figures(run, after_tax(process, window, run, tax)) for run in runs}
    numbers: dict[str, object] = {
        "settings": {name: value for name, value in tax.model_dump().items() if name != "enabled"},
        "strategies": found,
    }
    columns = (
        *("Strategy", "Return before tax", "Return after tax", "Return, all sold at the end"),
        *("Sharpe after tax", "Tax, of wealth", "Gains short-term"),
    )
    shown = (("before", "%", 1), ("after", "%", 1), ("liquidated", "%", 1), ("sharpe", "", 2), ("rate", "%", 2))
    rows = tuple(
        Row(
            run.name,
            (
                *(Cell(("strategies", run.name, key), unit, digits) for key, unit, digits in shown),
                Cell(("strategies", run.name, "short_share"), "%", 0),
            ),
            marked=not number,
        )
        for number, run in enumerate(runs)
    )
    words = (
        (
            "Gains of lots held for ",
            Cell(("settings", "days"), "", 0),
            " days or less, and interest, are taxed at ",
            Cell(("settings", "short_rate"), "%", 1),
            ", others at ",
            Cell(("settings", "long_rate"), "%", 1),
            f"; a sale takes {'the oldest lots' if tax.method == 'fifo' else 'the dearest lots'} first. Tax is paid at "
            "the first fill of the next year, and for the last year at the end. No strategy decides by it.",
        ),
    )
    caption = (
        "Returns and tax are a year's; the same weights in an account that pays tax. Gains not yet made at the end go "
        "untaxed, but where all is sold. There are no wash sales, no brackets, and losses are carried forward."
    )
    return Section("tax", "After tax", numbers, (Table("What tax leaves", columns, rows, caption),), words=words)


def _figures(run: Backtest, account: TaxedAccount) -> dict[str, object]:
    returns = account.returns
    years = len(returns) / BARS_PER_YEAR
    gains = [max(gain, 0.0) for gain in account.gains]
    return plain(
        {
            "before": metrics.annual_return(run.returns),
            "after": metrics.annual_return(returns),
            "liquidated": (account.liquidated / float(account.wealth[0])) ** (1.0 / years) - 1.0,
            "sharpe": metrics.sharpe(returns, run.cash_returns),
            "rate": sum(account.paid.values()) / years / float(account.wealth.mean()),
            "short_share": gains[0] / sum(gains) if sum(gains) > 0.0 else float("nan"),
            "tax_paid": sum(account.paid.values()),
            "interest": account.interest,
        }
    )
