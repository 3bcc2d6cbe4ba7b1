"""Sections whose columns are metrics: all strategies, the experts, and the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finflow.evaluation.page.drawing import TIMES
from finflow.evaluation.page.page_numbers import THIN
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.report.results import ReportData, Results
from finflow.market.bar_frequency import bar_name

_INTERVAL = ("strategies", ROW, "intervals", "sharpe")


@dataclass(frozen=True)
class Column:
    """A metric as pages show it: key in `metrics.json`, heading, unit, decimals, and how it is computed."""

    key: str
    heading: str
    unit: str
    decimals: int
    meaning: str

    def cell(self, *place: str, bounds: tuple[str, ...] | None = None) -> Cell:
        return Cell((*place, self.key), self.unit, self.decimals, bounds=bounds)


def columns(alpha: float) -> tuple[Column, ...]:
    """Columns of the comparison table, in order; ``alpha`` is the level of the CVaR."""
    tail = f"{alpha * 100:g}{THIN}%"
    return (
        Column("annual_return", "Return a year", "%", 1, "geometric mean of the net returns of bars, annualised"),
        Column("annual_volatility", "Volatility", "%", 1, "standard deviation of returns, annualised"),
        Column("sharpe", "Sharpe", "", 2, "mean over standard deviation of returns in excess of cash, annualised"),
        Column("sortino", "Sortino", "", 2, "as the Sharpe ratio, but only bars that fell short of cash count as risk"),
        Column("calmar", "Calmar", "", 2, "return a year over the depth of the maximum drawdown"),
        Column("max_drawdown", "Maximum drawdown", "%", 1, "deepest fall below the highest value so far"),
        Column("cvar", f"CVaR {tail}", "%", 2, f"mean of the worst {tail} of returns of a bar"),
        Column("annual_turnover", "Turnover a year", TIMES, 1, "times a year that the whole portfolio is replaced"),
        Column("annual_cost", "Costs a year", "%", 2, "all that trading cost, as a share of wealth"),
    )


def comparison_section(data: ReportData, content: Mapping[str, object]) -> Section:
    """Every metric of every strategy, with the interval of the Sharpe ratio."""
    shown = [
        (column.heading, column.cell("strategies", ROW, bounds=_INTERVAL if column.key == "sharpe" else None))
        for column in columns(data.cvar_alpha)
    ]
    caption = (
        f"Under each Sharpe ratio: its {percent(data.confidence)} bootstrap interval. Returns and drawdowns are after "
        "costs; a dash means undefined."
    )
    judged = data.agent.name
    title, names = "Comparison of the strategies", names_of(data)
    table = make_table(title, "Strategy", names, shown, caption, marked=judged, heading=False)
    return Section("comparison", "Comparison", content, (table,), within=())


def experts_section(data: ReportData, content: Mapping[str, object]) -> Section | None:
    if not data.experts:
        return None
    judged = data.agent.name
    shown = [(column.heading, column.cell(ROW)) for column in columns(data.cvar_alpha)]
    rows = [(("strategies", judged), judged), *((("experts", run.name), run.name) for run in data.experts)]
    caption = "The agent, and each of its experts alone: the expert's portfolio is the aim, at the agent's trade rate."
    table = make_table("Experts", "Decides", rows, shown, caption, marked=judged, heading=False)
    return Section("experts-alone", "Each expert alone", content, (table,), within=())


def intervals_section(data: ReportData, results: Results, content: Mapping[str, object]) -> Section:
    judged = data.agent.name
    shown = [
        (column.heading, Cell((), column.unit, column.decimals, bounds=(*_INTERVAL[:-1], column.key)))
        for column in columns(data.cvar_alpha)
        if column.key != "sharpe" and column.key in results.intervals[judged]
    ]
    caption = (
        f"{percent(data.confidence)} percentile intervals of {data.bootstrap_samples:,} stationary-bootstrap "
        f"resamples in blocks of {data.block_length} {bar_name(data.agent.bars_per_year)}s on average."
    )
    table = make_table("Intervals", "Strategy", names_of(data), shown, caption, marked=judged, heading=False)
    return Section("intervals", "Intervals of the other metrics", content, (table,), within=(), short="Intervals")


def names_of(data: ReportData) -> list[str]:
    """Names of the judged strategy and of the others, in the order of the tables."""
    return [run.name for run in (data.agent, *data.compared)]


def percent(share: float) -> str:
    """A share in percent, with as many digits as it needs."""
    return f"{share * 100:g}{THIN}%"
