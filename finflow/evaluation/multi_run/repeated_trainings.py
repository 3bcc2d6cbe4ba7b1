"""Sections on trainings repeated: agents of several seeds, and the windows and paths of a protocol.

Nothing here knows how the judged agents were trained. A window of a protocol is judged by one training or by several;
windows that follow one another make a path, one for each way through the trainings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finflow.arrays import FloatArray
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.section import ROW, Cell, Row, Section, Sentence, Table, columns_of, make_table
from finflow.evaluation.report.report_page import verdict_table
from finflow.evaluation.statistics.backtest_overfitting import cscv_of
from finflow.evaluation.statistics.bootstrap import (
    Estimate,
    Resampling,
    RunFigures,
    distribution,
    improvement_estimate,
    run_figures,
    spread_table,
)
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.evaluation.statistics.significance_tests import Tries
from finflow.evaluation.statistics.verdict import judge

IMPROVEMENT = ("probability", "interval_low", "interval_high")
ONE_PATH = "One path, from one seed, has no spread: --seeds 3 gives it one."
PATH_SPREAD = (
    "From and to: bootstrap interval of the interquartile mean over windows or paths. Paths share days, and windows "
    "trainings, so the interval is too narrow."
)
AGENT_IMPROVEMENT = "By Sharpe ratio, of an agent drawn at random; the bootstrap interval is over the seeds."
TRAINING_IMPROVEMENT = (
    "The probability that a training's Sharpe ratio is above that of equal weight in a window drawn at random. A half "
    "is no better than a coin."
)


@dataclass(frozen=True)
class WindowResult:
    """One training's result in one window (from 0, in the order of time), and the path that the two belong to."""

    fold: int
    seed: int
    window: int
    path: int
    run: Backtest


@dataclass(frozen=True)
class ProtocolPaths:
    """Data of a protocol's section."""

    name: str
    judged: tuple[WindowResult, ...]  # every training in every one of its windows
    others: tuple[tuple[Backtest, ...], ...]  # that agents are compared with, equal weight first: by window, in order
    settings: Mapping[str, float]  # that cut the bars, to be printed

    @cached_property
    def agents(self) -> tuple[Backtest, ...]:
        """The agent's paths, over the same days: for each seed, each way through the folds."""
        paths: dict[tuple[int, int], list[Backtest]] = {}
        for one in sorted(self.judged, key=lambda one: (one.seed, one.path, one.window)):
            paths.setdefault((one.seed, one.path), []).append(one.run)
        return tuple(map(joined, paths.values()))

    @cached_property
    def compared(self) -> tuple[Backtest, ...]:
        """The other strategies over the days of the paths, equal weight first."""
        return tuple(joined(runs) for runs in zip(*self.others, strict=True))

    @cached_property
    def middle(self) -> int:
        """The path of median Sharpe ratio (the lower of two), which stands for them all."""
        order = np.argsort([sharpe_of(run) for run in self.agents], kind="stable")
        return int(order[(len(order) - 1) // 2])


def _widened(parts: Sequence[FloatArray]) -> list[FloatArray]:
    """Arrays (steps, sources, ...) with as many sources: an agent in no blend has no reference beside its experts."""
    if parts[0].ndim == 1:
        return list(parts)
    most = max(part.shape[1] for part in parts)
    return [np.pad(part, [(0, 0), (0, most - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]) for part in parts]


def joined(runs: Sequence[Backtest]) -> Backtest:
    """Backtests of one strategy in windows that follow one another, as one; each begins in cash."""
    explained = [run.explanation for run in runs if run.explanation is not None]
    explanation = None
    if len(explained) == len(runs):
        explanation = {name: np.concatenate(_widened([one[name] for one in explained])) for name in explained[0]}
    names = ("dates", "returns", "cash_returns", "costs", "turnover", "weights")
    series: dict[str, Any] = {name: np.concatenate([getattr(run, name) for run in runs]) for name in names}
    if any(run.refused is not None for run in runs):
        refused = [np.zeros(len(run.returns), dtype=np.bool_) if run.refused is None else run.refused for run in runs]
        series["refused"] = np.concatenate(refused)
    return replace(runs[0], explanation=explanation, rewards=None, **series)


def ensemble_section(
    ensemble: Backtest,
    agents: Sequence[Backtest],
    baseline: Backtest,
    seed: int,
    scores: Mapping[str, float] | None = None,
) -> Section:
    """Each agent alone, their spread, and the ensemble and equal weight beside them.

    All over the same days; each agent has a name of its own. ``scores`` are, in a synthetic market, the nearness to the
    optimum by agent.
    """
    words = [
        f"{len(agents)} agents, equal but for the seed, were each backtested alone over the window; "
        f"{ensemble.name}, which the rest of this page is about, decides by the mean of their portfolios. None of them "
        "was selected, so the seeds are not tries."
    ]
    rows = {run.name: run_figures(run, baseline) for run in agents}
    sharpes = [sharpe_of(run) for run in agents]
    behind = float(np.mean(np.array(sharpes) < sharpe_of(ensemble)))
    numbers: dict[str, object] = {
        "agents": rows,
        "ensemble": run_figures(ensemble, baseline) | {"agents_behind": behind},
        "baseline": run_figures(baseline, baseline),
        "of_agents": distribution(rows, seed, "the agents", words, "One agent has no spread."),
        "improvement": _improvement_numbers(sharpes, [sharpe_of(baseline)] * len(agents), seed, words),
    }
    if scores is not None:
        numbers["optimality"] = scores
    lines = [
        (("ensemble",), ensemble.name),
        (("baseline",), baseline.name),
        *((("agents", name), name) for name in rows),
    ]
    columns: list[tuple[str, Cell | Mapping[str, Cell | str]]] = [*columns_of(RunFigures, ROW)]
    if scores is not None:
        columns.append(("Of the optimum", {name: Cell(("optimality", name), decimals=3) for name in scores}))
    behind_row = Row("the ensemble is ahead of an agent", (Cell(("ensemble", "agents_behind"), "%", 1), "", ""))
    tables = (
        make_table("Agents", "", lines, columns, marked=ensemble.name),
        spread_table(
            numbers,
            ("of_agents",),
            "From and to: bootstrap interval of the interquartile mean over agents, all over the same days.",
        ),
        _improvement_table("", "an agent is ahead of equal weight", AGENT_IMPROVEMENT, (behind_row,)),
    )
    return Section("seeds", "Agents of several seeds", numbers, tables, words=tuple(words))


def protocol_section(found: ProtocolPaths, seed: int) -> Section:
    """Windows, paths and their distribution."""
    baseline = found.compared[0]
    windows = {
        f"fold {one.fold}, seed {one.seed}, window {one.window + 1}": _window(one, found.others[one.window][0])
        for one in found.judged
    }
    cscv = [cscv_of((run, *found.compared)) for run in found.agents]
    paths = {
        str(number): run_figures(run, baseline) | {"pbo": None if choice is None else choice.pbo}
        for number, (run, choice) in enumerate(zip(found.agents, cscv, strict=True), start=1)
    }
    words = [
        f"{found.name}: {len({(one.fold, one.seed) for one in found.judged})} trainings, judged on days that none of "
        f"them had seen; the test window was not read. {len(found.agents)} "
        f"path{'s' if len(found.agents) > 1 else ''} over {len(baseline.dates):,} days. The rest of this page shows "
        f"path {found.middle + 1}, that of median Sharpe ratio."
    ]
    numbers: dict[str, object] = {
        "name": found.name,
        "settings": dict(found.settings),
        "windows": windows,
        "paths": paths,
        "shown_path": found.middle + 1,
        "of_windows": distribution(windows, seed, "the windows", words, ONE_PATH),
        "of_paths": distribution(paths, seed, "the paths", words, ONE_PATH),
        "improvement": _improvement(found, seed, words),
    }
    pbo = [one["pbo"] for one in paths.values() if one["pbo"] is not None]
    numbers["pbo"] = {"median": float(np.median(pbo)) if pbo else None, "strategies": 1 + len(found.compared)}
    tables = (
        spread_table(numbers, ("of_windows", "of_paths"), PATH_SPREAD),
        make_table(
            "Paths",
            "path",
            [((name,), f"path {name}") for name in paths],
            [*columns_of(RunFigures, "paths", ROW), ("PBO", Cell(("paths", ROW, "pbo"), "%", 1))],
            "PBO is that of a choice among the path and the strategies, by Sharpe ratio.",
        ),
        make_table("Windows", "window", list(windows), columns_of(RunFigures, "windows", ROW)),
        _improvement_table("Sharpe ratio of a training", "over equal weight", TRAINING_IMPROVEMENT),
    )
    return Section("protocol", f"Trained for every fold: {found.name}", numbers, tables, words=tuple(words))


def _window(one: WindowResult, baseline: Backtest) -> dict[str, Any]:
    return {
        "fold": one.fold,
        "seed": one.seed,
        "window": one.window + 1,
        "path": one.path + 1,
        "start": str(one.run.dates[0]),
        "end": str(one.run.dates[-1]),
        "days": len(one.run.dates),
        **run_figures(one.run, baseline),
    }


def _improvement(found: ProtocolPaths, seed: int, words: list[str]) -> dict[str, object]:
    """Probability that a training is ahead of equal weight, by Sharpe ratio, in a window drawn at random."""
    windows = range(len(found.others))
    agents = np.array([[sharpe_of(one.run) for one in found.judged if one.window == window] for window in windows]).T
    equal = np.array([[sharpe_of(runs[0]) for runs in found.others]] * len(agents))
    if len(agents) == 1:
        words.append(
            "Every window was judged by one training: the probability of improvement has no interval; --seeds 3 gives "
            "it one."
        )
    chance = _improvement_numbers(agents, equal, seed, words)
    return {"windows": len(windows), "trainings_of_a_window": len(agents), **chance}


def _improvement_numbers(agents: ArrayLike, baseline: ArrayLike, seed: int, words: list[str]) -> dict[str, float]:
    """Probability that an agent is ahead of equal weight by Sharpe ratio, with its bootstrap interval.

    The Sharpe ratios are (agents,) or (agents, windows); a single agent has no interval. ``words`` gets the reason
    where there is no probability.
    """
    found = Estimate(math.nan)
    try:
        found = improvement_estimate(agents, baseline, seed)
    except EvidenceError as error:
        words.append(f"There is no probability of improvement: {error}.")
    return found.numbers(*IMPROVEMENT)


def _improvement_table(head: str, name: str, caption: str, more: tuple[Row, ...] = ()) -> Table:
    """Table of `_improvement_numbers` at the key ``improvement``; ``name`` heads its row, and further rows follow."""
    row = Row(name, tuple(Cell(("improvement", key), "%", 1) for key in IMPROVEMENT))
    return Table("Probability of improvement", (head, "value", "from", "to"), (row, *more), caption)


def joined_section(found: ProtocolPaths, patient: Backtest, tries: Tries, resampling: Resampling) -> Section:
    """Section of a walk-forward on the verdict over all judged years, against patient equal weight too.

    Joined windows are longer than the test window. Every seed of every fold has the same weight: the judged return of a
    day is the mean over seeds. No seed is chosen, and seeds are not tries.
    """
    baseline, mean = found.compared[0], np.mean([run.returns for run in found.agents], axis=0)
    agent = replace(found.agents[0], returns=mean)  # an equal part in each, made equal again every day at no cost
    rivals, bars = (baseline.returns, patient.returns), agent.bars_per_year
    verdict = judge(agent.returns, rivals, agent.cash_returns, tries, resampling, bars_per_year=bars)
    seeds, windows = len(found.agents), len(found.others)
    numbers: dict[str, object] = {
        "windows": windows,
        "seeds": seeds,
        "years": len(agent.returns) / bars,
        "sharpe_difference": sharpe_of(agent) - sharpe_of(baseline),
        "verdict": verdict,
    }
    whose = "the agent of one seed" if seeds == 1 else f"the mean of the {seeds} seeds, none of which was chosen"
    words: list[Sentence] = [
        (
            f"Over all {windows} judged windows, joined, ",
            Cell(("years",), "", 1),
            f" years, {whose}, beats equal weight: {verdict.beats_equal_weight}. The difference of Sharpe ratios is ",
            Cell(("sharpe_difference",), plus=True, keep_sign=True),
            ". It supplements the verdict on the test window: it covers more years, but the configuration may have "
            "been chosen with knowledge of them.",
        ),
        *map(str, verdict.reasons),
    ]
    table = verdict_table(verdict, bars)
    return Section("walk_forward", "All judged years together", numbers, (table,), words=tuple(words))
