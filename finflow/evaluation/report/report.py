"""The report of a run: one page for people, one JSON file for programs, and the figures and returns behind them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from finflow.config import Config
from finflow.cores import forked
from finflow.evaluation.analysis import account, factors, sweeps
from finflow.evaluation.analysis.account import holdings, trades
from finflow.evaluation.analysis.decision_quality import ranking_section
from finflow.evaluation.backtest import CASH, Backtest, ComparisonContext
from finflow.evaluation.page.drawing import Rendered, pyplot_restored
from finflow.evaluation.page.section import Section
from finflow.evaluation.page.whole_page import Page
from finflow.evaluation.report import figures
from finflow.evaluation.report.report_page import build_page
from finflow.evaluation.report.results import ReportData, Results, compute_results
from finflow.evaluation.statistics.backtest_overfitting import overfitting_histogram
from finflow.evaluation.statistics.bootstrap import MINIMUM_BLOCKS
from finflow.files import write_together
from finflow.market.bar_frequency import bar_name
from finflow.market.panel import Split
from finflow.market.sources.shipped_prices import shipped_table
from finflow.strategies.behaviour import FAMILIES
from finflow.strategies.classical import ONLINE


def write_report(folder: Path, data: ReportData) -> Page:
    """Write a report, and return the page: `report.html`, `metrics.json`, `returns.csv`, PNGs and `tearsheet.html`.

    The files take their places together, so that a page always has its numbers beside it, and a full disk leaves an
    earlier report as it was. The tear sheet is left out, and the page says why, where quantstats cannot judge the
    returns.

    Raises OutputError if a file cannot be written.
    """
    length, days, limits = data.resampling.block_length, len(data.agent.returns), data.notes
    if days < (needed := MINIMUM_BLOCKS * length):
        said = f"intervals need {needed} ({MINIMUM_BLOCKS} blocks of {length})."
        limits = (*limits, f"The window has {days} {bar_name(data.agent.bars_per_year)}s; {said}")
    obstacle = tear_sheet_obstacle(data.agent, data.baseline)
    with forked(lambda: "" if data.baseline is None or obstacle else tear_sheet(data.agent, data.baseline)) as sheet:
        results = compute_results(data)  # in less time than quantstats takes
        figures_of_report = draw_figures(results)
    files: dict[str, bytes | str] = {} if obstacle else {"tearsheet.html": sheet()}
    if obstacle:
        limits = (*limits, f"There is no quantstats tear sheet: {obstacle}.")
    kept = (*data.runs, *([] if data.patient is None else [data.patient]))  # all that the verdict compares
    columns = {run.name: run.returns for run in kept}
    columns.setdefault(CASH, data.agent.cash_returns)
    table = pd.DataFrame(columns, index=pd.Index(data.agent.dates.astype(str), name="date"))
    files |= {"returns.csv": table.to_csv(lineterminator="\n"), **data.files}
    page = build_page(results, figures_of_report, limits, list(files))
    write_together({folder / name: content for name, content in (files | page.files()).items()})
    return page


def draw_figures(results: Results) -> list[Rendered]:
    """Draw every figure that the data has something to show for, in the order of the page."""
    # what online selection loses to costs would set the scale of every line; the tables have it
    data, found = results.data, results.overfitting
    agent, others = data.agent, [run for run in data.strategies if run.name not in ONLINE]
    explained, why = [], agent.explanation
    if why is not None and why["gate"].shape[1] > 1:
        mixed = why["gate"][:, : len(FAMILIES)].max() >= 0.0005  # else a reference has all of the aim
        explained = [*([figures.gate(agent, why)] if mixed else []), figures.experts(agent, why["experts"])]
    drawn = [
        figures.answer(agent, data.strategies, results.difference),
        figures.equity(agent, others),
        figures.weights(agent),
        *explained,
        None if found is None else overfitting_histogram(found, len(data.names)),
        figures.training(data.training),
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
        factors.factor_section(process.panel, ends, context.runs, etfs) if config.env.fill == "close" else None,
        ranking_section(process, context.window, context.runs[0]),
    ]
    return tuple(section for section in made if section is not None)


def tables_of(context: ComparisonContext, names: Sequence[str]) -> dict[str, bytes]:
    """Parquet files of trades and holdings of the strategies named, with a column that says whose they are."""
    runs = [run for run in context.runs if run.name in names]
    files = {}
    for file, make in (("trades", trades), ("holdings", holdings)):
        together = pd.concat([make(context.process, context.window, run) for run in runs], ignore_index=True)
        files[f"{file}.parquet"] = together.to_parquet(engine="pyarrow", compression="zstd", index=False)
    return files


def tear_sheet_obstacle(agent: Backtest, baseline: Backtest | None) -> str | None:
    """Reason why quantstats cannot make a tear sheet of these two; None where it can.

    Its regression fails on constant returns, and it takes a series that never loses and gains over 100 % in a day for
    prices.
    """
    if baseline is None:
        return "there is no equal weight to compare with"
    for run in (agent, baseline):
        returns = run.returns
        faults = {
            f"{run.name} has only {len(returns)} return": len(returns) < 2,
            f"the returns of {run.name} have gaps": not np.isfinite(returns).all(),
            f"quantstats would take the returns of {run.name} for prices": returns.min() >= 0.0 and returns.max() > 1.0,
            f"the returns of {run.name} are all the same": run is agent and np.ptp(returns) == 0.0,
        }
        for fault, found in faults.items():
            if found:
                return fault
    return None


def tear_sheet(agent: Backtest, baseline: Backtest) -> str:
    """Let quantstats judge the agent against a baseline, on one self-contained page; see `tear_sheet_obstacle` first.

    The page loads nothing from the network (quantstats asks for an icon; that is taken out), and matplotlib's settings
    are as they were afterwards. Cash is handed over as one annual rate, the mean of its daily returns compounded.
    """
    import matplotlib

    index = pd.DatetimeIndex(agent.dates.astype("datetime64[ns]"))
    rate = float((1.0 + agent.cash_returns.mean()) ** agent.bars_per_year - 1.0)
    with pyplot_restored(), tempfile.TemporaryDirectory() as folder:
        import quantstats.reports

        matplotlib.rcdefaults()  # its import changes them
        matplotlib.rcParams["svg.hashsalt"] = "finflow"  # the same tear sheet twice is the same file
        output = Path(folder) / "tearsheet.html"
        quantstats.reports.html(  # type: ignore[no-untyped-call]
            pd.Series(agent.returns, index),
            pd.Series(baseline.returns, index),
            rf=max(rate, 0.0),
            periods_per_year=agent.bars_per_year,
            title=_plain(f"{agent.name} against {baseline.name}"),
            strategy_title=_plain(agent.name),
            benchmark_title=_plain(baseline.name),
            match_dates=False,
            output=str(output),
        )
        page = output.read_text(encoding="utf-8")
    page = re.sub(r"<link\b[^>]*>", '<link rel="icon" href="data:,">', page)
    page = page.replace('onload="save()"', "")
    return re.sub(r"<dc:date>[^<]*</dc:date>", "", page)


def _plain(name: str) -> str:
    """Leave out what HTML, the template of quantstats or matplotlib would read as markup."""
    return re.sub(r"[<>&\"'{}$\\]", " ", name)
