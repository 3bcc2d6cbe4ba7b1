"""The bootstrap: repeatable, paired, equal to arch's own, and right about as often as it says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap

from finflow.evaluation.statistics import bootstrap as significance, metrics
from finflow.evaluation.statistics.bootstrap import (
    Interval,
    Resampling,
    SharpeDifference,
    choose,
    draw_days,
    least_gain,
    shrunk,
)
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


# --- the choice among candidates by gains out of sample: it takes what is there, and allows for having chosen


BLOCKS = np.repeat(np.arange(4), 250)


def test_shrinkage_is_zero_up_to_the_root_of_three_and_grows_to_one() -> None:
    assert [shrunk(t) for t in (-5.0, 0.0, 1.0, 3.0**0.5)] == [0.0, 0.0, 0.0, pytest.approx(0.0, abs=1e-12)]
    assert shrunk(6.0**0.5) == pytest.approx(0.5)
    assert shrunk(44.0) > 0.99


def test_a_lower_bound_prefers_what_gains_in_every_block() -> None:
    even = np.full(1000, 1e-3)
    lucky = np.where(BLOCKS == 2, 6e-3, 0.0)
    bound = least_gain(np.stack([even, lucky]), BLOCKS)
    assert bound[0] == pytest.approx(1e-3)
    assert bound[1] == pytest.approx(1.5e-3 - 3e-3 / 2.0)  # one block of four: deviation 3e-3, error half of it
    assert choose(np.stack([even, lucky]), BLOCKS, seed=0).candidate == 0


def test_an_edge_is_used_almost_whole() -> None:
    rng = np.random.default_rng(0)
    edge = 1e-3 + 5e-3 * rng.standard_normal((1, 1000))  # t = 6.3
    choice = choose(np.concatenate([0.2 * edge, edge]), BLOCKS, seed=1)
    assert choice.candidate == 1
    assert choice.t_statistic == pytest.approx(1e-3 / 5e-3 * 1000**0.5, abs=2.0)
    assert choice.confidence > 0.8


def test_autocorrelation_widens_the_error() -> None:
    """Every gain lasts for ten bars: a tenth of the observations, and a t statistic of a third of the naive one."""
    rng = np.random.default_rng(1)
    lasting = np.repeat(rng.standard_normal(100), 10)[None, :] + 0.3
    naive = lasting.mean() / (lasting.std(ddof=1) / 1000**0.5)
    assert choose(lasting, BLOCKS, seed=2).t_statistic < 0.55 * naive


def test_luck_among_many_candidates_is_seldom_used() -> None:
    """Twenty candidates that gain nothing: a quarter or more of the best is used at most once in forty (5 % allowed).

    Without the allowance for the choice it would be about every third time: the best of twenty has t over 2 so often.
    """
    used = []
    for sample in range(40):
        rng = np.random.default_rng([7, sample])
        used.append(choose(1e-2 * rng.standard_normal((20, 1000)), BLOCKS, seed=sample).confidence > 0.25)
    assert np.mean(used) <= 0.05
