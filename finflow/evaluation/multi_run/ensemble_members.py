"""Section on agents that differ by the seed alone: each agent, their spread, and the ensemble of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.report.section import Cell, Row, Section, Table, plain
from finflow.evaluation.statistics.run_statistics import (
    HEADS,
    cells_of,
    distribution,
    figures_of,
    improvement_estimate,
    probability_of_improvement,
    sharpe_of,
    spread_table,
)

__all__ = ["improvement_numbers", "improvement_table", "section"]

KEY = "seeds"
IMPROVEMENT = ("probability", "interval_low", "interval_high")
ALONE = "One agent has no spread: --seeds 3 gives it one."
SPREAD = "From and to: bootstrap interval of the interquartile mean over agents, all of which lived the same days."
IMPROVEMENT_CAPTION = (
    "By Sharpe ratio over this window, of an agent drawn at random; from and to are a bootstrap interval over the "
    "seeds, which says nothing of other periods."
)


def section(
    ensemble: Backtest,
    agents: Sequence[Backtest],
    baseline: Backtest,
    confidence: float,
    seed: int,
    scores: Mapping[str, float] | None = None,
) -> Section:
    """Each agent alone, their spread, and the ensemble and equal weight beside them.

    Parameters
    ----------
    ensemble, agents, baseline : Backtest
        Over the same days; each agent has a name of its own.
    confidence, seed
        Of the bootstrap intervals.
    scores : mapping, optional
        In a made-up market, nearness to the optimum by agent.
    """
    words = [
        f"{len(agents)} agents, of the same configuration but for the seed, played the window each alone; "
        f"{ensemble.name}, which the rest of this page is about, decides by the mean of their portfolios. None of them "
        "was chosen: the seeds are no tries.",
    ]
    rows = {run.name: figures_of(run, baseline) for run in agents}
    own = sharpe_of(ensemble)
    behind = [float(sharpe_of(run) < own) for run in agents]
    numbers: dict[str, object] = {
        "agents": rows,
        "ensemble": figures_of(ensemble, baseline) | {"agents_behind": float(np.mean(behind))},
        "baseline": figures_of(baseline, baseline),
        "of_agents": distribution(rows, seed, confidence, "the agents", words, ALONE),
        "improvement": improvement_numbers(
            [sharpe_of(run) for run in agents], [sharpe_of(baseline)] * len(agents), seed, confidence, words
        ),
    }
    if scores is not None:
        numbers["optimality"] = plain(scores)
    names = (("ensemble", ensemble.name), ("baseline", baseline.name))
    heads = ("", *HEADS, *(("Of the optimum",) if scores is not None else ()))

    def extra(name: str) -> tuple[Cell | str, ...]:
        return () if scores is None else (Cell(("optimality", name), decimals=3),) if name in scores else ("",)

    lines = [Row(name, (*cells_of(key), *extra(name)), marked=key == "ensemble") for key, name in names]
    lines += [Row(name, (*cells_of("agents", name), *extra(name))) for name in rows]
    behind_row = Row("the ensemble is ahead of an agent", (Cell(("ensemble", "agents_behind"), "%", 1), "", ""))
    tables = (
        Table("Agents", heads, tuple(lines)),
        spread_table(numbers, ("of_agents",), SPREAD),
        improvement_table("", "an agent is ahead of equal weight", IMPROVEMENT_CAPTION, (behind_row,)),
    )
    return Section(KEY, "Agents of several seeds", numbers, tables, words=tuple(words))


def improvement_numbers(
    agents: ArrayLike, baseline: ArrayLike, seed: int, confidence: float, words: list[str]
) -> dict[str, object]:
    """Probability that an agent is ahead of equal weight by Sharpe ratio, with its bootstrap interval.

    Parameters
    ----------
    agents, baseline : float64 (agents,) or (agents, windows)
        Sharpe ratios; a single agent has no interval.
    seed, confidence
        Of the bootstrap.
    words
        Gets the reason where there is no probability.
    """
    value = low = high = math.nan
    try:
        if len(np.asarray(agents)) == 1 and np.ndim(agents) == 2:
            value = probability_of_improvement(agents, baseline)
        else:
            found = improvement_estimate(agents, baseline, seed, confidence)
            value, low, high = found.value, found.interval.low, found.interval.high
    except EvidenceError as error:
        words.append(f"There is no probability of improvement: {error}.")
    return plain(dict(zip(IMPROVEMENT, (value, low, high), strict=True)))


def improvement_table(head: str, name: str, caption: str, more: tuple[Row, ...] = ()) -> Table:
    """Table of `improvement_numbers` at the key ``improvement``; ``name`` heads its row, and further rows follow."""
    row = Row(name, tuple(Cell(("improvement", key), "%", 1) for key in IMPROVEMENT))
    return Table("Probability of improvement", (head, "value", "from", "to"), (row, *more), caption)
