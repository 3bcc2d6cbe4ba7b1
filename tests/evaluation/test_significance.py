"""The bootstrap: repeatable, paired, equal to arch's own, and right about as often as it says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap
from scipy import stats

from finflow.errors import EvidenceError
from finflow.evaluation.statistics import bootstrap as significance, metrics
from finflow.evaluation.statistics.bootstrap import Interval, Resampling, SharpeDifference, draw_days
from tests.evaluation.made_up import backtest_of


def test_the_same_seed_draws_the_same_days() -> None:
    first = draw_days(200, Resampling(50, 10, 3))
    np.testing.assert_array_equal(first, draw_days(200, Resampling(50, 10, 3)))
    assert (first != draw_days(200, Resampling(50, 10, 4))).any()
    assert first.shape == (50, 200)
    assert first.min() >= 0
    assert first.max() < 200


def test_days_are_drawn_in_blocks_of_the_length_asked_for() -> None:
    draws = draw_days(1000, Resampling(200, 20, 0))
    follows = (draws[:, 1:] - draws[:, :-1]) % 1000 == 1
    assert 1.0 / (1.0 - follows.mean()) == pytest.approx(20.0, rel=0.05)


def test_every_metric_of_a_resample_is_the_metric_of_those_days() -> None:
    run = backtest_of("x")
    draws = draw_days(len(run.returns), Resampling(300, 21, 0))
    resampled = significance.resample(run, draws, 0.05)
    assert set(resampled) == set(metrics.summarise(run))
    for row in (0, 127, 128, 299):
        names = ("returns", "cash_returns", "costs", "turnover")
        alone = replace(run, **{name: getattr(run, name)[draws[row]] for name in names})
        assert {key: values[row] for key, values in resampled.items()} == pytest.approx(metrics.summarise(alone))


def test_the_interval_is_archs_percentile_interval() -> None:
    run = backtest_of("x")
    excess = run.returns - run.cash_returns
    theirs = StationaryBootstrap(21, excess, seed=np.random.default_rng(5)).conf_int(
        lambda x: float(metrics.sharpe(x)), reps=400, method="percentile", size=0.9
    )
    draws = draw_days(len(excess), Resampling(400, 21, 5))
    ours = significance.interval(significance.resample(run, draws, 0.05)["sharpe"], 0.9)
    np.testing.assert_allclose([ours.low, ours.high], theirs[:, 0], rtol=1e-10)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    mean, deviation, days, worlds = 0.0006, 0.01, 300, 150
    truth = mean / deviation * math.sqrt(252)
    draws = draw_days(days, Resampling(250, 5, 0))
    covered = 0
    for world in range(worlds):
        returns = np.random.default_rng(world).normal(mean, deviation, days)
        bounds = significance.interval(metrics.sharpe(returns[draws]), 0.9)
        covered += bounds.low <= truth <= bounds.high
    assert 0.80 <= covered / worlds <= 0.97


def test_a_window_of_few_blocks_and_an_undefined_resample_have_no_interval() -> None:
    run = backtest_of("x", steps=104)
    draws = draw_days(104, Resampling(100, 21, 0))
    assert draws.shape == (0, 104)
    assert not significance.interval(significance.resample(run, draws, 0.05)["sharpe"], 0.95).defined
    assert len(draw_days(105, Resampling(100, 21, 0))) == 100
    assert not significance.interval(np.array([1.0, 2.0, np.nan]), 0.95).defined


def test_what_both_strategies_share_cancels_in_the_difference() -> None:
    first, second = backtest_of("first", seed=1), backtest_of("second", seed=2)
    draws = draw_days(len(first.returns), Resampling(500, 21, 0))
    one, two = (significance.resample(run, draws, 0.05)["sharpe"] for run in (first, second))
    paired = significance.sharpe_difference(first, second, draws)
    unpaired = significance.interval(one - np.random.default_rng(0).permutation(two), 0.95)
    assert paired.interval.high - paired.interval.low < 0.6 * (unpaired.high - unpaired.low)
    expected = metrics.sharpe(first.returns, first.cash_returns) - metrics.sharpe(second.returns, second.cash_returns)
    assert paired.value == pytest.approx(expected)
    back = significance.sharpe_difference(second, first, draws)
    assert back.value == pytest.approx(-paired.value)
    assert back.share_ahead == pytest.approx(1.0 - paired.share_ahead)


@pytest.mark.parametrize(
    ("low", "high", "finding"),
    [
        (0.1, 0.2, "ahead"),
        (-0.2, -0.1, "behind"),
        (-0.1, 0.2, "not shown"),
        (0.0, 0.2, "not shown"),
        (math.nan, math.nan, "not shown"),
    ],
)
def test_only_an_interval_on_one_side_of_zero_is_a_finding(low: float, high: float, finding: str) -> None:
    assert SharpeDifference(0.15, Interval(low, high), 0.5).finding == finding


# --- several runs: the definitions of rliable, and no interval from one


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    scores = [100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 5.0, 2.0]
    assert significance.interquartile_estimate(scores, seed=0).value == pytest.approx(2.75)
    two_tasks = np.reshape(scores, (4, 2))
    assert significance.interquartile_estimate(two_tasks, seed=0).value == pytest.approx(2.75), "of all tasks together"


def test_the_probability_of_improvement_is_rliables() -> None:
    """Its library: per task Mann-Whitney's U over the number of pairs, then the mean over tasks."""
    rng = np.random.default_rng(1)
    one, two = rng.integers(0, 6, (7, 3)).astype(float), rng.integers(0, 5, (5, 3)).astype(float)
    each = [stats.mannwhitneyu(one[:, task], two[:, task]).statistic / 35.0 for task in range(3)]
    assert significance.improvement_estimate(one, two, seed=0).value == pytest.approx(np.mean(each), abs=1e-12)
    assert significance.improvement_estimate([1.0, 2.0], [2.0, 2.0], seed=0).value == 0.25
    assert significance.improvement_estimate(two, one, seed=0).value == pytest.approx(1.0 - np.mean(each))


def test_intervals_cover_about_as_often_as_they_say_and_repeat() -> None:
    hits = 0
    for world in range(120):
        scores = np.random.default_rng(world).normal(0.5, 0.2, 20)
        bounds = significance.interquartile_estimate(scores, seed=0).interval
        hits += bounds.low <= 0.5 <= bounds.high
    assert 0.84 <= hits / 120 <= 0.995
    scores = np.random.default_rng(0).normal(size=(5, 2))
    assert significance.interquartile_estimate(scores, seed=4) == significance.interquartile_estimate(scores, seed=4)
    assert significance.interquartile_estimate(scores, seed=4) != significance.interquartile_estimate(scores, seed=5)


def test_tasks_are_resampled_apart() -> None:
    """Runs of two tasks far apart: drawn within each task, the interquartile mean hardly moves."""
    scores = np.column_stack([np.arange(6.0) * 0.01, 100.0 + np.arange(6.0) * 0.01])
    bounds = significance.interquartile_estimate(scores, seed=0).interval
    assert bounds.high - bounds.low < 0.1


def test_paths_of_a_protocol_are_summed_up() -> None:
    found = significance.path_distribution([-0.2, 0.1, 0.3, 0.4, 0.6], seed=0)
    expected = {"count": 5, "low": -0.2, "median": 0.3, "high": 0.6, "share_positive": 0.8}
    assert {key: found[key] for key in expected} == expected
    assert found["interquartile_mean"] == pytest.approx(np.mean([0.1, 0.3, 0.4]))
    assert found["interval_low"] <= found["interquartile_mean"] <= found["interval_high"]
    level = significance.path_distribution([0.0, 0.0, 0.1, 0.2], seed=0)
    assert level["share_positive"] == 0.5, "a path that is level is not positive"


def test_one_seed_has_no_interval_and_missing_scores_are_told() -> None:
    with pytest.raises(EvidenceError, match="needs 2 runs or more, and the agent has 1"):
        significance.interquartile_estimate([0.4], seed=0, name="the agent")
    assert significance.improvement_estimate([0.4, 0.5], [0.3], seed=0) == significance.Estimate(1.0)
    with pytest.raises(EvidenceError, match="1 of 3 scores of the runs are missing"):
        significance.interquartile_estimate([0.4, np.nan, 0.2], seed=0)
