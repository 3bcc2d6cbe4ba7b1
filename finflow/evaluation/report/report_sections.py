"""What a report has beyond the comparison: sections and files, each made by the file of its name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from finflow.config import Config
from finflow.cores import forked
from finflow.evaluation.analysis import factors, ranking, stress, sweeps, taxes
from finflow.evaluation.analysis.comparison_context import Field
from finflow.evaluation.analysis.trades import as_parquet, holdings, trades
from finflow.evaluation.report.section import Section
from finflow.market.splits import Split

__all__ = ["sections_of", "tables_of"]


def sections_of(field: Field, split: Split, config: Config, with_sweeps: bool) -> tuple[Section, ...]:
    """Every section that this market and configuration have something to say in, in the order of the page.

    Parameters
    ----------
    field : Field
    split : Split
        Which bars the judged agent learned from.
    config : Config
    with_sweeps : bool
        Whether to run the strategies again: at other costs, lags and capital, and over the stress periods.
    """
    process, settings = field.process, config.evaluation
    bars = process.decision_bars(field.window)
    etfs = None if config.market.source == "synthetic" else factors.etf_prices()
    ends = range(bars.start + 1, bars.stop + 1)
    swept, stressed = None, None
    if with_sweeps:
        with forked(partial(stress.section, field, split, settings.periods)) as found:
            swept = sweeps.section(field)
        stressed = found()
    made = [
        taxes.section(process, field.window, field.runs, settings.tax) if settings.tax.enabled else None,
        swept,
        stressed,
        factors.section(process.panel, ends, field.runs, etfs, by_close=config.env.fill == "close"),
        ranking.section(field.runs[0], process.growth, process.listed, bars, settings.top),
    ]
    return tuple(section for section in made if section is not None)


def tables_of(field: Field, names: Sequence[str]) -> dict[str, bytes]:
    """Parquet files of trades and holdings of the strategies named, with a column that says whose they are."""
    runs = [run for run in field.runs if run.name in names]
    files = {}
    for file, make in (("trades", trades), ("holdings", holdings)):
        tables = [make(field.process, field.window, run) for run in runs]
        for table, run in zip(tables, runs, strict=True):
            table.insert(0, "strategy", run.name)
        files[f"{file}.parquet"] = as_parquet(pd.concat(tables, ignore_index=True))
    return files
