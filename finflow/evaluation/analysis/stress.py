"""Results in stress periods, each marked by whether the agent had learned from it.

A period inside the evaluation's window is a part of its backtest. Others are run on their own: every strategy starts in
cash `RUN_IN` bars before the first day, so that it holds what it means to hold when the period begins, and only the
days of the period count. An agent that learned from a period's days is no evidence of how it would have done in it:
such a period is marked in-sample.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import numpy as np

from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import Backtest, index_backtest
from finflow.evaluation.comparison_context import ComparisonContext
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.statistics import metrics
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.splits import Split

PERIODS = (
    ("2000-2002", dt.date(2000, 1, 1), dt.date(2002, 12, 31)),
    ("2008-2009", dt.date(2008, 1, 1), dt.date(2009, 12, 31)),
    ("February-March 2020", dt.date(2020, 2, 1), dt.date(2020, 3, 31)),
    ("2022", dt.date(2022, 1, 1), dt.date(2022, 12, 31)),
)
RUN_IN = 63  # daily bars: a quarter of a year; of longer bars twelve at least
SHORTEST = 10  # days that count


@dataclass(frozen=True)
class Period:
    """Days of a panel (bars at which holding periods end), and the windows that they lie in."""

    name: str
    days: range
    sample: str


def periods_of(process: DecisionProcess, split: Split) -> tuple[Period, ...]:
    """The periods that the panel has at least `SHORTEST` days of."""
    dates = process.panel.dates
    found = []
    for name, first, last in PERIODS:
        start = int(np.searchsorted(dates, np.datetime64(first, "D"), side="left"))
        stop = int(np.searchsorted(dates, np.datetime64(last, "D"), side="right"))
        start = max(start, process.first_bar + 1)
        if stop - start >= SHORTEST:
            found.append(Period(name, range(start, stop), _sample(range(start, stop), split)))
    return tuple(found)


def section(context: ComparisonContext, split: Split) -> Section | None:
    """Judge every strategy in every period; None where the panel has none of them."""
    periods = periods_of(context.process, split)
    if not periods:
        return None
    numbers: dict[str, object] = {}
    dates = context.process.panel.dates
    for period in periods:
        runs = _runs(context, period)
        numbers[period.name] = {
            "first": str(dates[period.days.start]),
            "last": str(dates[period.days.stop - 1]),
            "days": len(period.days),
            "sample": period.sample,
            "strategies": {run.name: _figures(run) for run in runs},
        }
        names = [run.name for run in runs]
    words = (
        "In-sample means that the judged agent learned from these days, and validation that its checkpoint was chosen "
        "by them: neither is evidence. The classical strategies are fitted on earlier days alone in every period.",
    )
    columns = (
        ("First day", {period.name: str(dates[period.days.start]) for period in periods}),
        ("Last day", {period.name: str(dates[period.days.stop - 1]) for period in periods}),
        ("Days", Cell((ROW, "days"), decimals=0)),
        ("Sample", {period.name: period.sample for period in periods}),
    )
    head = make_table("Periods", "Period", [period.name for period in periods], columns)
    tables = [
        make_table(
            title,
            "Strategy",
            names,
            [(f"{one.name}, {one.sample}", Cell((one.name, "strategies", ROW, key), "%", 1)) for one in periods],
            marked=context.judged,
        )
        for key, title in (("return", "Return over each period"), ("max_drawdown", "Maximum drawdown in each period"))
    ]
    return Section("stress", "Stress periods", numbers, (head, *tables), words=words)


def _sample(days: range, split: Split) -> str:
    windows = (("in-sample", split.train), ("validation", split.validation), ("out-of-sample", split.test))
    touched = [word for word, bars in windows if days.start < bars.stop and bars.start < days.stop]
    return " and ".join(touched)


def _runs(context: ComparisonContext, period: Period) -> list[Backtest]:
    """Backtests of the period, the index last."""
    process = context.process
    ends = [int(bar) + 1 for bar in process.decision_bars(context.window)]
    inside = bool(ends) and ends[0] <= period.days.start and period.days.stop - 1 <= ends[-1]
    if inside:
        runs, window = list(context.runs), context.window
    else:
        run_in = max(RUN_IN * process.panel.bars_per_year // BARS_PER_YEAR, 12)
        window = range(max(process.first_bar, period.days.start - 1 - run_in), period.days.stop)
        runs = list(context.backtest(process, window).values())
    index = index_backtest(process, window)
    if index is not None and index.name not in context.makers:
        runs.append(index)
    first = process.decision_bars(window).start + 1
    rows = slice(period.days.start - first, period.days.stop - first)
    names = ("dates", "returns", "cash_returns", "costs", "turnover", "weights")
    return [
        replace(run, explanation=None, refused=None, rewards=None, **{name: getattr(run, name)[rows] for name in names})
        for run in runs
    ]


def _figures(run: Backtest) -> dict[str, float]:
    return {
        "return": float(np.prod(1.0 + run.returns) - 1.0),
        "max_drawdown": metrics.max_drawdown(run.returns),
        "sharpe": metrics.sharpe_of(run),
        "annual_volatility": metrics.annual_volatility(run.returns, run.bars_per_year),
        "worst_day": float(run.returns.min()),
        "turnover": float(run.turnover.sum()),
    }
