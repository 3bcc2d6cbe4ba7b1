"""The tables of `report.html` whose columns are metrics: everyone's, the experts', and the intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from finflow.evaluation.report.drawing import MINUS, TIMES
from finflow.evaluation.report.results import ReportData, Results
from finflow.evaluation.report.section import DASH, THIN, framed, number, stated
from finflow.evaluation.statistics.bootstrap import Interval

__all__ = ["Column", "columns", "comparison_table", "experts_table", "interval_table"]

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Column:
    """A metric as the page shows it: key in `metrics.json`, heading, unit, decimals, and how it is computed."""

    key: str
    heading: str
    unit: str
    decimals: int
    meaning: str

    def show(self, value: float) -> str:
        """Write a value with its unit; a dash where it is undefined."""
        if not math.isfinite(value):
            return DASH
        digits = f"{value * self.scale:.{self.decimals}f}"
        if float(digits) == 0.0:
            digits = digits.lstrip("-")
        return digits.replace("-", MINUS) + self.suffix

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.unit == "%" else 1.0

    def cell(self, path: Path, value: float, extra: str = "") -> str:
        """A cell of a table."""
        return f"<td{stated(path, value, self.scale)}>{self.show(value)}{extra}</td>"

    def said(self, path: Path, value: float) -> str:
        """The number inside a sentence."""
        return number(path, value, self.show(value), self.scale)

    @property
    def suffix(self) -> str:
        """The unit as it follows a number."""
        return f"{THIN}%" if self.unit == "%" else self.unit


def columns(alpha: float) -> tuple[Column, ...]:
    """Columns of the comparison table, in order."""
    tail = f"{alpha * 100:g}{THIN}%"
    return (
        Column("annual_return", "Return a year", "%", 1, "geometric mean of the net daily returns, 252 days to a year"),
        Column("annual_volatility", "Volatility", "%", 1, "standard deviation of daily returns times √252"),
        Column(
            "sharpe", "Sharpe", "", 2, "mean over standard deviation of daily returns in excess of cash, times √252"
        ),
        Column("sortino", "Sortino", "", 2, "as the Sharpe ratio, but only days that fell short of cash count as risk"),
        Column("calmar", "Calmar", "", 2, "return a year over the depth of the maximum drawdown"),
        Column("max_drawdown", "Maximum drawdown", "%", 1, "deepest fall below the highest value so far"),
        Column("cvar", f"CVaR {tail}", "%", 2, f"mean of the worst {tail} of daily returns"),
        Column("annual_turnover", "Turnover a year", TIMES, 1, "times a year that the whole portfolio is replaced"),
        Column("annual_cost", "Costs a year", "%", 2, "all that trading cost, as a share of wealth"),
    )


def comparison_table(data: ReportData, results: Results) -> str:
    """Every metric of everyone, with the interval of the Sharpe ratio."""
    shown = columns(data.cvar_alpha)
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, summary in results.metrics.items():
        cells = ""
        for column in shown:
            value = summary[column.key]
            bounds = results.intervals[name]["sharpe"]
            below = f"<small>{_interval(column, name, bounds)}</small>" if bounds.defined else ""
            cells += column.cell(("strategies", name, column.key), value, below if column.key == "sharpe" else "")
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    level = f"{data.confidence * 100:g}{THIN}%"
    return (
        framed("Comparison of the strategies", f"<tr><th>Strategy</th>{head}</tr>", rows)
        + f"<p class='caption'>Under each Sharpe ratio: its {level} bootstrap interval. Returns and drawdowns are "
        "after costs; a dash means undefined.</p>"
    )


def experts_table(data: ReportData, results: Results) -> str:
    """The agent, and each of its experts deciding alone."""
    shown = columns(data.cvar_alpha)
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, summary in {data.agent.name: results.metrics[data.agent.name], **results.experts}.items():
        place: Path = ("strategies", name) if name == data.agent.name else ("experts", name)
        cells = "".join(column.cell((*place, column.key), summary[column.key]) for column in shown)
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    caption = "The agent, and each of its experts with the gate set aside: one names the aim, the trade rate is shared."
    return framed("Experts", f"<tr><th>Decides</th>{head}</tr>", rows) + f'<p class="caption">{caption}</p>'


def interval_table(data: ReportData, results: Results) -> str:
    """The intervals of all metrics but the Sharpe ratio."""
    shown = [
        column
        for column in columns(data.cvar_alpha)
        if column.key != "sharpe" and column.key in next(iter(results.intervals.values()))
    ]
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in shown)
    rows = ""
    for name, bounds in results.intervals.items():
        cells = "".join(f'<td class="range">{_interval(column, name, bounds[column.key])}</td>' for column in shown)
        marked = ' class="agent"' if name == data.agent.name else ""
        rows += f'<tr{marked}><th scope="row">{escape(name)}</th>{cells}</tr>'
    caption = (
        f"{data.confidence * 100:g}{THIN}% percentile intervals of {data.bootstrap_samples:,} stationary-bootstrap "
        f"resamples in blocks of {data.block_length} days on average."
    )
    return framed("Intervals", f"<tr><th>Strategy</th>{head}</tr>", rows) + f'<p class="caption">{escape(caption)}</p>'


def _interval(column: Column, strategy: str, bounds: Interval) -> str:
    """Both ends, as HTML; the unit stands at the second."""
    if not bounds.defined:
        return DASH
    place = ("strategies", strategy, "intervals", column.key)
    low = number((*place, 0), bounds.low, column.show(bounds.low).removesuffix(column.suffix), column.scale)
    return f"{low} to {column.said((*place, 1), bounds.high)}"
