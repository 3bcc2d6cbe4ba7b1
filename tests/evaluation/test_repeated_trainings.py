"""Windows become paths, and paths a spread and a verdict of all years, without a day lost or counted twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.multi_run.repeated_trainings import (
    ProtocolPaths,
    WindowResult,
    joined,
    joined_section,
    protocol_section,
)
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.significance_tests import Tries
from finflow.evaluation.statistics.verdict import judge
from tests.evaluation.made_up import returns_of

DAYS, WINDOWS = 250, 4
RESAMPLING = Resampling(200, 10, 0)


def run_of(window: int, seed: int | None, edge: float = 0.0) -> Backtest:
    """Equal weight in a window for no seed; for one, an agent that strays from it by 0.4 % a day."""
    returns = np.random.default_rng(window).normal(4e-4, 0.01, DAYS)
    if seed is not None:
        returns = returns + np.random.default_rng(100 * seed + window + 50).normal(edge, 0.004, DAYS)
    start = np.busday_offset("2010-01-01", window * DAYS, roll="forward")
    return returns_of("equal-weight" if seed is None else "agent", returns, str(start))


def found_in(seeds: int, edge: float = 0.0) -> ProtocolPaths:
    """Walk-forward: one path a seed."""
    judged = tuple(
        WindowResult(w + 1, seed, w, 0, run_of(w, seed, edge)) for seed in range(seeds) for w in range(WINDOWS)
    )
    return ProtocolPaths("walk-forward", judged, tuple((run_of(w, None),) for w in range(WINDOWS)), {"folds": WINDOWS})


def test_a_path_is_its_windows_in_the_order_of_time_whatever_the_order_of_training() -> None:
    found = found_in(2)
    turned = replace(found, judged=found.judged[::-1])
    assert len(found.agents) == 2
    for seed, (path, other) in enumerate(zip(found.agents, turned.agents, strict=True)):
        np.testing.assert_array_equal(path.returns, np.concatenate([run_of(w, seed).returns for w in range(WINDOWS)]))
        np.testing.assert_array_equal(path.returns, other.returns)
        assert (np.busday_count(path.dates[:-1], path.dates[1:]) == 1).all()
    assert [run.name for run in found.compared] == ["equal-weight"]
    np.testing.assert_array_equal(found.compared[0].dates, found.agents[0].dates)


def test_a_refusal_and_reasons_survive_joining() -> None:
    first, second = run_of(0, 0), run_of(1, 0)
    refused = np.arange(DAYS) == 3
    gate = {"gate": np.ones((DAYS, 5))}
    both = joined([replace(first, explanation=gate), replace(second, refused=refused, explanation=gate)])
    assert both.refused is not None
    assert both.explanation is not None
    assert list(np.flatnonzero(both.refused)) == [DAYS + 3]
    assert both.explanation["gate"].shape == (2 * DAYS, 5)


def test_the_path_that_is_shown_has_the_median_sharpe_ratio() -> None:
    found = found_in(5)
    sharpes = [metrics.sharpe(run.returns) for run in found.agents]
    assert sharpes[found.middle] == np.median(sharpes)


@pytest.mark.parametrize(("drift", "expected"), [(0.02, 1.0), (-0.02, 0.0)])
def test_the_probability_of_improvement_is_over_equal_weight_in_the_same_window(drift: float, expected: float) -> None:
    told: Any = protocol_section(found_in(3, drift), 0).numbers["improvement"]
    assert (told["probability"], told["interval_low"], told["interval_high"]) == (expected, expected, expected)


def test_one_path_says_what_it_cannot_show() -> None:
    made = protocol_section(found_in(1), 0)
    assert made.numbers["of_paths"] == {}
    assert made.numbers["of_windows"] != {}
    told: Any = made.numbers["improvement"]
    assert told["interval_low"] is None
    said = " ".join(made.words)
    assert "One path, from one seed, has no spread" in said
    assert "the probability of improvement has no interval" in said


def test_an_agent_that_only_holds_cash_has_no_sharpe_ratio_to_spread() -> None:
    found = found_in(2)
    idle = replace(found.judged[0].run, returns=np.zeros(DAYS))
    still = replace(found, judged=(replace(found.judged[0], run=idle), *found.judged[1:]))
    made = protocol_section(still, 0)
    spread: Any = made.numbers["of_windows"]
    assert "sharpe" not in spread
    assert "annual_return" in spread
    assert "missing or undefined" in " ".join(made.words)


def numbers_of(found: ProtocolPaths, tries: Tries | None = None) -> Any:
    return joined_section(found, found.compared[0], tries or Tries(), RESAMPLING).numbers


def test_all_windows_show_what_one_alone_cannot() -> None:
    found = found_in(1, 4e-4)
    numbers = numbers_of(found)
    assert (numbers["windows"], numbers["seeds"]) == (WINDOWS, 1)
    assert numbers["years"] == pytest.approx(WINDOWS * DAYS / found.agents[0].bars_per_year)
    assert numbers["verdict"]["beats_equal_weight"] == "yes"
    windows = [(run_of(w, 0, 4e-4), run_of(w, None).returns) for w in range(WINDOWS)]
    alone = [judge(one.returns, [equal] * 2, one.cash_returns, Tries(), RESAMPLING) for one, equal in windows]
    assert sum(verdict.beats_equal_weight == "yes" for verdict in alone) <= 2
    least = numbers["verdict"]["least_sharpe_difference"]
    assert least is not None
    mean = np.mean([one.least_sharpe_difference.of_yes for one in alone])
    assert least["of_yes"] == pytest.approx(mean / np.sqrt(WINDOWS), rel=0.35), "it falls with the root of the length"


def test_every_seed_has_an_equal_part() -> None:
    found = found_in(3)
    numbers = numbers_of(found)
    mean, equal = np.mean([run.returns for run in found.agents], axis=0), found.compared[0].returns
    assert numbers["seeds"] == 3
    assert numbers["sharpe_difference"] == pytest.approx(metrics.sharpe(mean) - metrics.sharpe(equal))


def test_noise_is_not_shown_and_tries_deflate() -> None:
    assert numbers_of(found_in(2))["verdict"]["beats_equal_weight"] == "not shown"
    many = numbers_of(found_in(1, 4e-4), Tries(configurations=3000))["verdict"]
    assert many["beats_equal_weight"] == "not shown"
    assert many["tries"]["total"] == 3000
    assert many["dsr"] < many["psr"]
