"""The verdict over all judged years of a walk-forward: of every seed, longer than one window, and as strict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.multi_run.joined_verdict import joined_section, judge_joined, mean_of_seeds
from finflow.evaluation.multi_run.repeated_trainings import ProtocolPaths, WindowResult
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import Resampling

DAYS, WINDOWS = 250, 4
RESAMPLING = Resampling(200, 10, 0)


def run_of(window: int, seed: int | None, edge: float = 0.0) -> Backtest:
    """Equal weight in a window for no seed; for one, an agent that strays from it by 0.4 % a day."""
    returns = np.random.default_rng(window).normal(4e-4, 0.01, DAYS)
    if seed is not None:
        returns = returns + np.random.default_rng(100 * seed + window + 50).normal(edge, 0.004, DAYS)
    dates = np.datetime64("2010-01-01") + np.arange(window * DAYS, (window + 1) * DAYS)
    nothing = np.zeros(DAYS)
    name = "equal-weight" if seed is None else "agent"
    return Backtest(name, dates, returns, nothing, nothing, nothing, np.full((DAYS, 2), 0.5), ("A", "cash"))


def paths_of(seeds: int, edge: float) -> ProtocolPaths:
    judged = tuple(
        WindowResult(w + 1, seed, w, 0, run_of(w, seed, edge)) for seed in range(seeds) for w in range(WINDOWS)
    )
    return ProtocolPaths("walk-forward", judged, tuple((run_of(w, None),) for w in range(WINDOWS)), {"folds": WINDOWS})


def numbers_of(found: ProtocolPaths, tries: Tries | None = None) -> Any:
    return joined_section(found, found.compared[0], tries or Tries(), RESAMPLING).numbers


def test_all_windows_show_what_one_alone_cannot() -> None:
    found = paths_of(1, 4e-4)
    numbers = numbers_of(found)
    assert (numbers["windows"], numbers["seeds"]) == (WINDOWS, 1)
    assert numbers["years"] == pytest.approx(WINDOWS * DAYS / found.agents[0].bars_per_year)
    assert numbers["verdict"]["beats_equal_weight"] == "yes"
    alone = [judge_joined(run_of(w, 0, 4e-4), *[run_of(w, None)] * 2, Tries(), RESAMPLING) for w in range(WINDOWS)]
    assert sum(verdict.answer == "yes" for verdict, _ in alone) <= 2
    least = numbers["verdict"]["least_sharpe_difference"]
    assert least is not None
    mean = np.mean([one.of_yes for _, one in alone if one is not None])
    assert least["of_yes"] == pytest.approx(mean / np.sqrt(WINDOWS), rel=0.35), "it falls with the root of the length"


def test_every_seed_has_an_equal_part() -> None:
    found = paths_of(3, 0.0)
    mean = mean_of_seeds(found.agents)
    np.testing.assert_allclose(mean.returns, np.mean([run.returns for run in found.agents], axis=0))
    assert mean_of_seeds(found.agents[:1]) is found.agents[0]
    assert numbers_of(found)["seeds"] == 3


def test_noise_is_not_shown_and_tries_deflate() -> None:
    assert numbers_of(paths_of(2, 0.0))["verdict"]["beats_equal_weight"] == "not shown"
    many = numbers_of(paths_of(1, 4e-4), Tries(configurations=3000))["verdict"]
    assert many["beats_equal_weight"] == "not shown"
    assert many["tries"]["total"] == 3000
    assert many["dsr"] < many["psr"]
