"""What becomes of the strategies where trading is dearer, slower or larger.

Every strategy is run again, fresh, on the same ledger; what it decides may depend on what it holds, so a rerun is not
the same decisions at another price. Costs of the sweep replace commission and slippage by one proportional cost; the
others (`env.costs`) stay as configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from finflow.cores import forked
from finflow.evaluation.analysis.capacity import DEAREST_BPS, break_even_bps, capacity, mean_return
from finflow.evaluation.analysis.comparison_context import Field
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.drawing import BLACK, BLUE, Rendered, legend_of_figure, render
from finflow.evaluation.report.section import Cell, Row, Section, Sentence, Table, plain, show
from finflow.evaluation.statistics import metrics
from finflow.strategies.classical import ONLINE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CAPITALS", "COSTS", "LAGS", "section"]

COSTS = (0.0, 5.0, 10.0, 25.0, 50.0)
LAGS = (0, 1, 2)
CAPITALS = (1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
BASELINE = "equal-weight"
BREAK_EVEN_TOLERANCE = 0.01  # basis points
CAPACITY_TOLERANCE = 0.02  # relative


def section(field: Field) -> Section:
    """Run the sweeps, that over lags in a process of its own, and say what they found."""
    with forked(partial(_over_lags, field)) as slower:
        costs = {f"{bps:g}": _at_cost(field, bps) for bps in COSTS}
        numbers: dict[str, object] = {"costs_bps": {key: _figures(runs) for key, runs in costs.items()}}
        even = _break_even(field, costs, numbers)
    lags, left_out = slower()
    numbers["lags"] = lags
    words: list[Sentence] = [
        "Each strategy run again under other conditions. The first column is as configured; costs are one proportional "
        "cost on every trade, in place of commission and slippage.",
        *even,
        *left_out,
        *_capital(field, numbers),
    ]
    numbers["configured"] = _figures({run.name: run for run in field.runs})
    tables = [
        _table(field, "Sharpe ratio by cost", "costs_bps", [(key, f"{key} bp") for key in costs]),
        _table(field, "Sharpe ratio by lag", "lags", [(key, f"lag {key}") for key in lags]),
    ]
    if numbers["capital"]:
        tables.append(_capital_table(field))
    return Section("sweeps", "Costs, lag and capital", numbers, tuple(tables), (_figure(field, costs),), tuple(words))


def _at_cost(field: Field, bps: float) -> dict[str, Backtest]:
    env = field.process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0})
    return field.play(field.process.repriced(env))


def _over_lags(field: Field) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Figures at each lag, and a sentence where there cannot be any."""
    found: dict[str, dict[str, object]] = {}
    for lag in LAGS:
        if lag == field.process.lag:
            found[str(lag)] = _figures({run.name: run for run in field.runs})
        elif lag or field.process.env.fill != "open":
            found[str(lag)] = _figures(field.play(field.process.delayed(lag)))
    missing = len(found) < len(LAGS)
    return found, ["Fills at the open have no lag of 0: the close would be known before it."] if missing else []


def _break_even(
    field: Field, costs: Mapping[str, Mapping[str, Backtest]], numbers: dict[str, object]
) -> list[Sentence]:
    """The costs at which the judged strategy's return, and its Sharpe ratio, are those of equal weight."""
    found: dict[str, float | None] = {}
    words: list[Sentence] = []
    with forked(partial(_even, field, costs, mean_return)) as by_return:
        by_sharpe = _even(field, costs, _sharpe)
    for key, bps, said in (("return", by_return(), "return"), ("sharpe", by_sharpe, "Sharpe ratio")):
        found |= {f"{key}_bps": None, f"{key}_beyond_bps": None}
        if bps is None:
            continue
        if not np.isfinite(bps):
            found[f"{key}_beyond_bps"] = DEAREST_BPS
            dearest = Cell(("break_even", f"{key}_beyond_bps"), "bp", 0)
            words.append((f"By {said}, {field.judged} is ahead of equal weight at up to ", dearest, " a trade."))
            continue
        found[f"{key}_bps"] = bps
        if bps == 0.0:
            words.append(f"By {said}, {field.judged} is not ahead of equal weight even where trading is free.")
        else:
            even = Cell(("break_even", f"{key}_bps"), "bp", 1)
            words.append((f"By {said}, {field.judged} breaks even with equal weight at ", even, " a trade."))
    numbers["break_even"] = found
    return words


def _even(
    field: Field, costs: Mapping[str, Mapping[str, Backtest]], score: Callable[[Backtest], float]
) -> float | None:
    """The costs at which the judged strategy scores what equal weight does; None where that cannot be asked."""
    if BASELINE not in field.names or field.judged == BASELINE:
        return None
    known = {float(bps): score(runs[field.judged]) - score(runs[BASELINE]) for bps, runs in costs.items()}
    if not np.isfinite(list(known.values())).all():
        return None
    make = field.makers[field.judged]
    return break_even_bps(field.process, field.window, make, known, BREAK_EVEN_TOLERANCE, score)


def _sharpe(run: Backtest) -> float:
    return float(metrics.sharpe(run.returns, run.cash_returns))


def _capital(field: Field, numbers: dict[str, object]) -> list[Sentence]:
    """The judged strategy and equal weight at other capitals, and the judged one's capacity."""
    process = field.process
    grows = process.costs.needs_market
    numbers |= {"capital": {}, "capacity": None}
    if not grows and process.env.costs.minimum <= 0.0:
        return [
            "Capital plays no part here: no configured cost depends on the size of the account."
            + (
                " The market has volumes: env.costs.impact and its neighbours would make it."
                if process.panel.volume is not None
                else " The market has no volumes to reckon participation and impact from."
            )
        ]
    names = [name for name in dict.fromkeys((field.judged, BASELINE)) if name in field.names]
    numbers["capital"] = {
        f"{capital:.0f}": _figures(
            field.play(process.repriced(process.env.model_copy(update={"initial_capital": capital})), names=names)
        )
        for capital in CAPITALS
    }
    if not grows:
        return ["Capital counts through the least commission of a trade alone; nothing here grows dearer with size."]
    found = capacity(process, field.window, field.makers[field.judged], tolerance=CAPACITY_TOLERANCE)
    numbers["capacity"] = found if np.isfinite(found) else None
    if found == 0.0:
        return [f"{field.judged} has no capacity: it earned no more than equal weight even without costs of size."]
    if not np.isfinite(found):
        return ["The costs of size never take half of what is earned over equal weight, up to a capital of 1e16."]
    half = "half of what it earns over equal weight"
    return [("Capacity: with ", Cell(("capacity",), ",", 0), f" to begin with, costs of size take {half}.")]


def _figures(runs: Mapping[str, Backtest]) -> dict[str, object]:
    return {
        name: {
            **plain(
                {
                    "sharpe": metrics.sharpe(run.returns, run.cash_returns),
                    "annual_return": metrics.annual_return(run.returns),
                    "annual_turnover": metrics.annual_turnover(run.turnover),
                    "annual_cost": metrics.annual_cost(run.costs),
                }
            ),
            "refused": 0 if run.refused is None else int(run.refused.sum()),
        }
        for name, run in runs.items()
    }


def _table(field: Field, title: str, key: str, columns: list[tuple[str, str]]) -> Table:
    rows = tuple(
        Row(
            name,
            (Cell(("configured", name, "sharpe")), *(Cell((key, place, name, "sharpe")) for place, _ in columns)),
            marked=name == field.judged,
        )
        for name in field.names
    )
    return Table(title, ("Strategy", "as configured", *(heading for _, heading in columns)), rows)


def _capital_table(field: Field) -> Table:
    rows = []
    for capital in CAPITALS:
        place, names = f"{capital:.0f}", [name for name in (field.judged, BASELINE) if name in field.names]
        cells = [
            Cell(("capital", place, name, metric), unit, digits)
            for name in dict.fromkeys(names)
            for metric, unit, digits in (("sharpe", "", 2), ("annual_cost", "%", 2), ("refused", "", 0))
        ]
        rows.append(Row(show(capital, ",", 0), tuple(cells)))
    names = [name for name in dict.fromkeys((field.judged, BASELINE)) if name in field.names]
    headings = [f"{name}: {what}" for name in names for what in ("Sharpe", "costs a year", "trades refused")]
    return Table("By initial capital", ("Capital", *headings), tuple(rows))


def _figure(field: Field, costs: Mapping[str, Mapping[str, Backtest]]) -> Rendered:
    """Sharpe ratio over cost: the judged strategy, equal weight, and the others in grey."""
    shown = [name for name in field.names if name not in ONLINE or name == field.judged]
    values = {
        name: [metrics.sharpe(runs[name].returns, runs[name].cash_returns) for runs in costs.values()] for name in shown
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        others = [name for name in shown if name not in (field.judged, BASELINE)]
        for position, name in enumerate(others):
            label = "other strategies" if position == 0 else None
            axes.plot(COSTS, values[name], color="#BDBDBD", linewidth=0.9, label=label)
        if BASELINE in shown:
            axes.plot(COSTS, values[BASELINE], color=BLACK, linestyle="--", label=BASELINE)
        axes.plot(COSTS, values[field.judged], color=BLUE, linewidth=2.0, marker="o", markersize=4, label=field.judged)
        axes.set_xlabel("cost of every trade, basis points")
        axes.set_ylabel("Sharpe ratio")
        legend_of_figure(figure, axes)

    ends = ", ".join(f"{name} {path[0]:.2f} to {path[-1]:.2f}" for name, path in values.items())
    return Rendered(
        "cost_sweep",
        "Sharpe ratio by cost",
        "How fast each strategy's Sharpe ratio falls as trading grows dearer. Online selection, which trades most, is "
        "in the table alone.",
        f"Lines of the Sharpe ratio over costs of 0 to 50 basis points: {ends}.",
        render(draw, 3.6),
    )
