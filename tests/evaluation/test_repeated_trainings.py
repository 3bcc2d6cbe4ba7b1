"""Windows become paths, and paths a spread, without a day lost or counted twice."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.multi_run.repeated_trainings import ProtocolPaths, WindowResult, joined, protocol_section
from finflow.evaluation.statistics import metrics

DAYS = 120


def run_of(seed: int, window: int, drift: float = 0.0, name: str = "finflow", days: int = DAYS) -> Backtest:
    returns = np.random.default_rng([seed, window]).normal(drift, 0.01, days)
    dates = np.datetime64("2010-01-01") + np.arange(window * DAYS, window * DAYS + days)
    held = np.full((days, 3), 1.0 / 3.0)
    costs = np.full(days, 1e-4)
    return Backtest(name, dates, returns, np.zeros(days), costs, costs, held, ("A", "B", "cash"))


def found_in(seeds: int = 2, windows: int = 3, drift: float = 0.002) -> ProtocolPaths:
    """Walk-forward: one path a seed."""
    judged = tuple(
        WindowResult(window + 1, seed, window, 0, run_of(seed, window, drift))
        for seed in range(seeds)
        for window in range(windows)
    )
    others = tuple(
        (run_of(90, window, name="equal-weight"), run_of(91, window, name="momentum")) for window in range(windows)
    )
    return ProtocolPaths("walk-forward", judged, others, {"folds": windows})


def test_a_path_is_its_windows_one_after_another() -> None:
    found = found_in()
    assert len(found.agents) == 2
    for seed, path in enumerate(found.agents):
        np.testing.assert_array_equal(path.returns, np.concatenate([run_of(seed, w, 0.002).returns for w in range(3)]))
        assert (np.diff(path.dates) == np.timedelta64(1, "D")).all()
    assert [run.name for run in found.compared] == ["equal-weight", "momentum"]
    np.testing.assert_array_equal(found.compared[0].dates, found.agents[0].dates)


def test_windows_come_in_the_order_of_time_whatever_the_order_of_training() -> None:
    found = found_in()
    turned = replace(found, judged=found.judged[::-1])
    for one, other in zip(found.agents, turned.agents, strict=True):
        np.testing.assert_array_equal(one.returns, other.returns)


def test_a_refusal_and_reasons_survive_joining() -> None:
    first, second = run_of(0, 0), run_of(0, 1)
    refused = np.arange(DAYS) == 3
    gate = {"gate": np.ones((DAYS, 5))}
    both = joined([replace(first, explanation=gate), replace(second, refused=refused, explanation=gate)])
    assert both.refused is not None
    assert both.explanation is not None
    assert list(np.flatnonzero(both.refused)) == [DAYS + 3]
    assert both.explanation["gate"].shape == (2 * DAYS, 5)


def test_the_path_that_is_shown_has_the_median_sharpe_ratio() -> None:
    found = found_in(seeds=5)
    sharpes = [metrics.sharpe(run.returns) for run in found.agents]
    assert sharpes[found.middle] == np.median(sharpes)


@pytest.mark.parametrize(("drift", "expected"), [(0.02, 1.0), (-0.02, 0.0)])
def test_the_probability_of_improvement_is_over_equal_weight_in_the_same_window(drift: float, expected: float) -> None:
    numbers = protocol_section(found_in(seeds=3, drift=drift), 0.95, 0).numbers
    told = cast("dict[str, float]", numbers["improvement"])
    assert (told["probability"], told["interval_low"], told["interval_high"]) == (expected, expected, expected)


def test_one_path_says_what_it_cannot_show() -> None:
    made = protocol_section(found_in(seeds=1), 0.95, 0)
    assert made.numbers["of_paths"] == {}
    assert made.numbers["of_windows"] != {}
    told = cast("dict[str, float | None]", made.numbers["improvement"])
    assert told["interval_low"] is None
    said = " ".join(made.words)
    assert "One path, from one seed, has no spread" in said
    assert "the probability of improvement has no interval" in said


def test_an_agent_that_only_holds_cash_has_no_sharpe_ratio_to_spread() -> None:
    found = found_in()
    idle = replace(found.judged[0].run, returns=np.zeros(DAYS))
    still = replace(found, judged=(replace(found.judged[0], run=idle), *found.judged[1:]))
    made = protocol_section(still, 0.95, 0)
    assert "sharpe" not in cast("dict[str, object]", made.numbers["of_windows"])
    assert "annual_return" in cast("dict[str, object]", made.numbers["of_windows"])
    assert "missing or undefined" in " ".join(made.words)
