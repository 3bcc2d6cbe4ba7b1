"""Figures of several runs over the same kind of days, and how far they lie apart: for windows, paths and agents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.drawing import TIMES
from finflow.evaluation.report.section import Cell, Row, Table, plain
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.seed_statistics import path_distribution

__all__ = ["DIFFERENCE", "HEADS", "cells_of", "distribution", "figures_of", "sharpe_of", "spread_table"]

SHOWN = ("sharpe", "max_drawdown", "annual_turnover", "annual_return")
DIFFERENCE = "sharpe_difference"
HEADS = ("Sharpe", "Max drawdown", "Turnover a year", "Return a year", "Sharpe over equal weight")
_UNITS = {
    **{"sharpe": ("", 2), "max_drawdown": ("%", 1), "annual_turnover": (TIMES, 1), "annual_return": ("%", 1)},
    DIFFERENCE: ("", 2),
}
_NAMES = dict(zip(_UNITS, HEADS, strict=True))


def figures_of(run: Backtest, baseline: Backtest) -> dict[str, object]:
    """A run's metrics, and its Sharpe ratio less that of equal weight on the same days."""
    summary = metrics.summarise(run)
    apart = summary["sharpe"] - metrics.sharpe(baseline.returns, baseline.cash_returns)
    return plain({**{name: summary[name] for name in SHOWN}, DIFFERENCE: apart})


def distribution(
    rows: Mapping[str, Mapping[str, object]], seed: int, confidence: float, name: str, words: list[str], alone: str
) -> dict[str, object]:
    """The spread of every metric over windows, paths or agents.

    Parameters
    ----------
    rows
        Name -> `figures_of`.
    seed, confidence
        Of the bootstrap intervals.
    name
        What the rows are, for words about them.
    words
        Gets the reason where there is no spread, and the answer is empty.
    alone
        That reason where there is one row.
    """
    spread: dict[str, object] = {}
    if len(rows) < 2:
        words.append(alone)
        return spread
    for key in (*SHOWN, DIFFERENCE):
        values = [math.nan if row[key] is None else float(str(row[key])) for row in rows.values()]
        try:
            found = path_distribution(values, seed, confidence, name)
        except EvidenceError as error:
            said = f"{str(error)[:1].upper()}{str(error)[1:]}."
            words += [said] if said not in words else []
            continue
        spread[key] = plain(
            {
                "interquartile_mean": found.centre.value,
                "interval_low": found.centre.interval.low,
                "interval_high": found.centre.interval.high,
                "low": found.low,
                "lower_quartile": found.lower_quartile,
                "median": found.median,
                "upper_quartile": found.upper_quartile,
                "high": found.high,
                "share_positive": found.share_positive,
            }
        ) | {"count": found.count}
    return spread


def sharpe_of(run: Backtest) -> float:
    """Annual Sharpe ratio of a run."""
    return metrics.sharpe(run.returns, run.cash_returns)


def cells_of(*path: str) -> tuple[Cell, ...]:
    """Cells of the figures at a path, in the order of `HEADS`."""
    return tuple(Cell((*path, key), unit, decimals, plus=key == DIFFERENCE) for key, (unit, decimals) in _UNITS.items())


def spread_table(numbers: Mapping[str, object], places: Sequence[str], caption: str) -> Table:
    """The spreads at some places of the numbers, each from `distribution`."""
    ends = ("low", "lower_quartile", "median", "upper_quartile", "high")
    keys = ("interquartile_mean", "interval_low", "interval_high", *ends)
    rows = []
    for over in places:
        spread = numbers[over]
        for key in spread if isinstance(spread, Mapping) else ():
            cells = tuple(Cell((over, key, one), *_UNITS[key]) for one in keys)
            rows.append(Row(f"{_NAMES[key]}, {over.replace('_', ' ')}", cells))
    heads = (
        *("metric", "interquartile mean", "from", "to"),
        *("lowest", "lower quartile", "median", "upper quartile", "highest"),
    )
    return Table("Spread", heads, tuple(rows), caption)
