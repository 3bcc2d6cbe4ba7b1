"""The choice among candidates by gains out of sample: it takes what is there, and allows for having chosen."""

from __future__ import annotations

import numpy as np
import pytest

from finflow.evaluation.statistics.bootstrap import choose, least_gain, shrunk

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


def test_the_choice_is_the_same_at_every_run() -> None:
    gains = np.random.default_rng(3).standard_normal((5, 1000))
    assert choose(gains, BLOCKS, seed=5) == choose(gains, BLOCKS, seed=5)
