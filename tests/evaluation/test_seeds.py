"""Seeds together: the definitions of rliable, intervals that cover, and no interval from one seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finflow.errors import EvidenceError
from finflow.evaluation.statistics import run_statistics as seeds


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert seeds.interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 5.0, 2.0]) == pytest.approx(2.75)
    scores = np.random.default_rng(0).normal(size=(9, 4))
    assert seeds.interquartile_mean(scores) == stats.trim_mean(scores, 0.25, axis=None)
    assert seeds.interquartile_mean([0.7]) == 0.7


def test_the_probability_of_improvement_is_rliables() -> None:
    """Its library: per task Mann-Whitney's U over the number of pairs, then the mean over tasks."""
    rng = np.random.default_rng(1)
    one, two = rng.integers(0, 6, (7, 3)).astype(float), rng.integers(0, 5, (5, 3)).astype(float)
    each = [stats.mannwhitneyu(one[:, task], two[:, task]).statistic / 35.0 for task in range(3)]
    assert seeds.probability_of_improvement(one, two) == pytest.approx(np.mean(each), abs=1e-12)
    assert seeds.probability_of_improvement([1.0, 2.0], [2.0, 2.0]) == 0.25
    assert seeds.probability_of_improvement(two, one) == pytest.approx(1.0 - np.mean(each))


def test_intervals_cover_about_as_often_as_they_say_and_repeat() -> None:
    hits = 0
    for world in range(120):
        scores = np.random.default_rng(world).normal(0.5, 0.2, 20)
        bounds = seeds.interquartile_estimate(scores, seed=0).interval
        hits += bounds.low <= 0.5 <= bounds.high
    assert 0.84 <= hits / 120 <= 0.995
    scores = np.random.default_rng(0).normal(size=(5, 2))
    assert seeds.interquartile_estimate(scores, seed=4) == seeds.interquartile_estimate(scores, seed=4)
    assert seeds.interquartile_estimate(scores, seed=4) != seeds.interquartile_estimate(scores, seed=5)


def test_tasks_are_resampled_apart() -> None:
    """Runs of two tasks far apart: drawn within each task, the interquartile mean hardly moves."""
    scores = np.column_stack([np.arange(6.0) * 0.01, 100.0 + np.arange(6.0) * 0.01])
    bounds = seeds.interquartile_estimate(scores, seed=0).interval
    assert bounds.high - bounds.low < 0.1


def test_paths_of_a_protocol_are_summed_up() -> None:
    found = seeds.path_distribution([-0.2, 0.1, 0.3, 0.4, 0.6], seed=0)
    expected = {"count": 5, "low": -0.2, "median": 0.3, "high": 0.6, "share_positive": 0.8}
    assert {key: found[key] for key in expected} == expected
    assert found["interquartile_mean"] == pytest.approx(np.mean([0.1, 0.3, 0.4]))
    assert found["interval_low"] <= found["interquartile_mean"] <= found["interval_high"]
    level = seeds.path_distribution([0.0, 0.0, 0.1, 0.2], seed=0)
    assert level["share_positive"] == 0.5, "a path that is level is not positive"


def test_one_seed_has_no_interval_and_missing_scores_are_told() -> None:
    with pytest.raises(EvidenceError, match="needs 2 runs or more, and the agent has 1"):
        seeds.interquartile_estimate([0.4], seed=0, name="the agent")
    assert seeds.improvement_estimate([0.4, 0.5], [0.3], seed=0) == seeds.Estimate(1.0)
    with pytest.raises(EvidenceError, match="1 of 3 scores of the runs are missing"):
        seeds.interquartile_mean([0.4, np.nan, 0.2])
    with pytest.raises(ValueError, match="2 tasks cannot be compared with 3"):
        seeds.probability_of_improvement(np.ones((2, 2)), np.ones((2, 3)))
