"""`retrain.html`: the answer of a retraining, its evidence fold by fold, and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.drawing import BLUE, GREY, ORANGE, Rendered, date_axis, legend_of_figure, render
from finflow.evaluation.report.report_numbers import plain
from finflow.evaluation.report.section import ROW, Cell, Headline, Row, Section, Table, Tile, make_table, render_page
from finflow.experiments.retraining.retrain_results import COMPARED, NEW, REPLACE, RetrainNumbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREY)


def retrain_page(numbers: RetrainNumbers, runs: Sequence[Backtest]) -> str:
    """The page as HTML."""
    content = plain(asdict(numbers))
    comparison = "the bound is above the margin" if numbers.answer == REPLACE else "the bound is not above the margin"
    summary = (
        "On bars that neither was trained on, the Sharpe ratio of the new agent less that of the old is ",
        Cell(("lead",), plus=True),
        " a year, with a lower bound of ",
        Cell(("bounds", "low"), plus=True),
        f": {comparison}.",
    )
    finding = Headline(
        "",
        "Replace the old agent" if numbers.answer == REPLACE else "Keep the old agent",
        content,
        words=(summary,),
        within=(),
        kind="ahead" if numbers.answer == REPLACE else "not-shown",
        label="Answer",
        tiles=(
            Tile("Lead in the Sharpe ratio", Cell(("lead",), plus=True)),
            Tile("Lower bound", Cell(("bounds", "low"), plus=True), "replace where it exceeds the margin"),
            Tile("Margin", Cell(("margin",))),
            Tile("New bars", Cell(("new_bars",), ",", 0)),
        ),
    )
    sections = [
        Section("wealth", "Evaluated windows", {}, figures=(_figure(runs),)),
        _compared(content),
        _folds(numbers, content),
        Section("rule", "The rule", {}, notes=(*_method(numbers), *numbers.notes)),
    ]
    title = f"Retraining up to {numbers.until}"
    return render_page(title, f"an agent trained up to {numbers.old_until}, and its retraining", finding, sections)


def _compared(content: Any) -> Section:
    columns = [
        ("Sharpe ratio", Cell(("figures", ROW, "sharpe"))),
        ("return a year", Cell(("figures", ROW, "annual_return"), "%", 2, plus=True)),
        ("deepest drawdown", Cell(("figures", ROW, "max_drawdown"), "%", 1)),
        ("turnover a year", Cell(("figures", ROW, "annual_turnover"), "\N{MULTIPLICATION SIGN}", 1)),
    ]
    table = make_table("Compared", "Over all folds, net of costs", COMPARED, columns, marked=NEW, heading=False)
    return Section("compared", "Figures", content, tables=(table,), within=())


def _folds(numbers: RetrainNumbers, content: Any) -> Section:
    rows = tuple(
        Row(
            f"{fold.judged_from} to {fold.judged_until}",
            (
                fold.learned_until,
                Cell(("folds", str(number), "returns"), ",", 0),
                Cell(("folds", str(number), "new_sharpe")),
                Cell(("folds", str(number), "old_sharpe")),
            ),
        )
        for number, fold in enumerate(numbers.folds)
    )
    heads = ("Evaluated", "retrained up to", "returns", "Sharpe ratio, new", "old")
    return Section("folds", "Folds", content, tables=(Table("Folds", heads, rows, heading=False),), within=())


def _method(numbers: RetrainNumbers) -> tuple[str, ...]:
    chance = (1.0 - numbers.coverage) / 2.0
    return (
        f"The old agent was trained on and chosen by bars up to {numbers.old_until}. Each fold has a retraining of its "
        "own, begun with the old agent's networks, that ends before the evaluated window.",
        "Both begin each window in cash and have the same costs. The interval is of the paired difference, by the "
        "stationary bootstrap.",
        f"The new agent replaces the old one where the lower bound exceeds the margin. Without a true lead above the "
        f"margin that happens with a probability of about {chance:.2%} in this comparison, and over all comparisons of "
        "an agent of at most 1 less evaluation.confidence.",
        "An old agent that does worse than before is no reason by itself: a retrained one may do no better.",
    )


def _figure(runs: Sequence[Backtest]) -> Rendered:
    dates = runs[0].dates

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for run, colour in zip(runs, _COLOURS, strict=True):
            axes.plot(dates, np.cumprod(1.0 + run.returns), color=colour, label=run.name.replace("-", " "))
        axes.set_ylabel("growth of 1")
        date_axis(axes, dates)
        legend_of_figure(figure, axes)

    ends = ", ".join(f"{run.name.replace('-', ' ')} {float(np.prod(1.0 + run.returns)):.2f}" for run in runs)
    return Rendered(
        "wealth",
        "Growth of 1 over the evaluated windows",
        "Growth of 1 over the evaluated windows, net of costs; each agent begins every window in cash.",
        f"Line chart of the growth of 1 at the end: {ends}.",
        render(draw, 3.6),
    )
