"""The report of a run: one page for people, one JSON file for programs, and the figures and returns behind them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from finflow.config import Config
from finflow.cores import forked
from finflow.evaluation.analysis import account, factors, ranking, sweeps
from finflow.evaluation.analysis.account import as_parquet, holdings, trades
from finflow.evaluation.backtest import CASH, ComparisonContext
from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.section import Section
from finflow.evaluation.report import agent_figures, figures, report_page, tearsheet
from finflow.evaluation.report.results import ReportData, Results, as_json, compute_results
from finflow.evaluation.statistics.backtest_overfitting import overfitting_histogram
from finflow.evaluation.statistics.bootstrap import MINIMUM_BLOCKS
from finflow.files import write_together
from finflow.market.bar_frequency import bar_name
from finflow.market.sources.shipped_prices import shipped_table
from finflow.market.splits import Split
from finflow.strategies.classical import ONLINE


def write_report(folder: Path, data: ReportData) -> Path:
    """Write a report, and return the page: `report.html`, `metrics.json`, `returns.csv`, PNGs and `tearsheet.html`.

    The files take their places together, so that a page always has its numbers beside it, and a full disk leaves an
    earlier report as it was. The tear sheet is left out, and the page says why, where quantstats cannot judge the
    returns.

    Raises
    ------
    OutputError
        If a file cannot be written.
    """
    results = compute_results(data)
    limits, days, needed = data.notes, len(data.agent.returns), MINIMUM_BLOCKS * data.block_length
    if days < needed:
        said = f"intervals need {needed} ({MINIMUM_BLOCKS} blocks of {data.block_length})."
        limits = (*limits, f"The window has {days} {bar_name(data.agent.bars_per_year)}s; {said}")
    obstacle = tearsheet.tear_sheet_obstacle(data.agent, data.baseline)
    files: dict[str, bytes | str] = {}
    with forked(partial(draw_figures, data, results)) as figures_of_report:
        if data.baseline is not None and obstacle is None:
            files["tearsheet.html"] = tearsheet.tear_sheet(data.agent, data.baseline)
        else:
            limits = (*limits, f"There is no quantstats tear sheet: {obstacle}.")
    drawn = figures_of_report()
    columns = {run.name: run.returns for run in (data.agent, *data.compared)}
    if data.patient is not None:  # that the verdict compares with
        columns[data.patient.name] = data.patient.returns
    columns.setdefault(CASH, data.agent.cash_returns)
    table = pd.DataFrame(columns, index=pd.Index(data.agent.dates.astype(str), name="date"))
    files |= {"metrics.json": as_json(data, results), "returns.csv": table.to_csv(lineterminator="\n")}
    own = [figure for section in data.sections for figure in section.figures]
    files |= {f"{figure.name}.png": figure.png for figure in (*drawn, *own)}
    files |= data.files
    files["report.html"] = report_page.build_page(data, results, drawn, limits, list(files))
    write_together({folder / name: content for name, content in files.items()})
    return folder / "report.html"


def draw_figures(data: ReportData, results: Results) -> list[Rendered]:
    """Draw every figure that the data has something to show for, in the order of the page."""
    # what online selection loses to costs would set the scale of every line; the tables have it
    agent, others = data.agent, [run for run in data.compared if run.name not in ONLINE]
    sharpes = {name: summary["sharpe"] for name, summary in results.metrics.items()}
    bounds = {name: table["sharpe"] for name, table in results.intervals.items()}
    found = results.evidence.overfitting
    drawn = [
        figures.equity(agent, others),
        figures.sharpe_ratios(sharpes, bounds, data.confidence, agent.name),
        figures.drawdown(agent, others),
        figures.costs_and_turnover(agent, others),
        agent_figures.weights(agent),
        agent_figures.gate(agent),
        agent_figures.experts(agent),
        None if found is None else overfitting_histogram(found, len(results.evidence.choice)),
        agent_figures.training(data.training),
    ]
    return [figure for figure in drawn if figure is not None]


def sections_of(context: ComparisonContext, split: Split, config: Config, with_sweeps: bool) -> tuple[Section, ...]:
    """Every section that this market and configuration have something to say in, in the order of the page.

    ``split`` has the bars that the judged agent learned from. The strategies are run again ``with_sweeps``: at other
    costs, lags and capital, and over the stress periods.
    """
    process, settings = context.process, config.evaluation
    bars = process.decision_bars(context.window)
    etfs = None if config.market.source == "synthetic" else shipped_table("factors_dataset")
    ends = range(bars.start + 1, bars.stop + 1)
    swept, stressed = None, None
    if with_sweeps:
        with forked(partial(sweeps.stress_section, context, split)) as found:
            swept = sweeps.sweep_section(context)
        stressed = found()
    made = [
        account.tax_section(process, context.window, context.runs, settings.tax) if settings.tax.enabled else None,
        swept,
        stressed,
        factors.section(process.panel, ends, context.runs, etfs) if config.env.fill == "close" else None,
        ranking.section(process, context.window, context.runs[0], settings.top),
    ]
    return tuple(section for section in made if section is not None)


def tables_of(context: ComparisonContext, names: Sequence[str]) -> dict[str, bytes]:
    """Parquet files of trades and holdings of the strategies named, with a column that says whose they are."""
    runs = [run for run in context.runs if run.name in names]
    files = {}
    for file, make in (("trades", trades), ("holdings", holdings)):
        tables = [make(context.process, context.window, run) for run in runs]
        for table, run in zip(tables, runs, strict=True):
            table.insert(0, "strategy", run.name)
        files[f"{file}.parquet"] = as_parquet(pd.concat(tables, ignore_index=True))
    return files
