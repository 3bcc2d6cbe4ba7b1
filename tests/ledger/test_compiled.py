"""The compiled ledger is the array version, bit for bit; ``tests/env/test_invariants.py`` plays episodes both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest

from finflow.compiled_function import compiled_function
from finflow.ledger import accounting, compiled
from finflow.ledger.constraints import Limits, apply_limits
from finflow.ledger.costs import Proportional, SumOfCosts

LIMITS = Limits(max_weight=0.4, max_turnover=0.3, no_trade_band=0.02)


def both_ways() -> Iterator[None]:
    for way in (True, False):
        with mock.patch.object(accounting, "is_compiled", lambda _, way=way: way):
            yield


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("limits", [Limits(), LIMITS], ids=["free", "limited"])
@pytest.mark.parametrize("share_listed", [1.0, 0.7, 0.0], ids=["complete", "ragged", "cash"])
@pytest.mark.parametrize("n_weights", [2, 9, 129, 300])
@pytest.mark.parametrize("pays", [False, True], ids=["", "dividends"])
def test_a_trade_has_the_same_bits_both_ways(
    lag: int, limits: Limits, share_listed: float, n_weights: int, pays: bool
) -> None:
    rng, size = np.random.default_rng([lag, n_weights]), 40
    inside, weights = rng.dirichlet(np.full(n_weights, 0.3), size=(2, size))
    single = inside.astype(np.float32).astype(np.float64)
    corner = np.eye(n_weights)[rng.integers(n_weights, size=size)]
    off, large = rng.normal(0.0, 3.0, size=(size, n_weights)), 1e15 * rng.random((size, n_weights))
    leveraged = off + (1.0 - off.sum(axis=-1, keepdims=True)) / n_weights  # sums to one, and goes short
    action = np.stack([inside, weights, single, corner, off, large, 0.0 * inside, leveraged])[
        rng.integers(8, size=size), range(size)
    ]
    weights[::4] = np.eye(n_weights)[-1]
    growth = np.exp(0.1 * rng.normal(size=(size, n_weights)))
    listed = rng.random((size, n_weights - 1)) < share_listed
    dividends = 0.2 * rng.random(listed.shape) * (rng.random(listed.shape) < 0.3) if pays else None
    costs = SumOfCosts([Proportional(0.008), Proportional(0.004)])
    found = []
    for _ in both_ways():
        before, target = accounting.orders(weights, action, growth, listed, limits, lag, dividends)
        found.append((before, target, *accounting.settle(before, target, costs, np.full(size, 1e6))[:3]))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("place", range(3))
def test_a_weight_beyond_which_one_does_not_count_takes_all(place: int) -> None:
    """1e17 + 1 is 1e17: the projection is of what is left after the largest, wherever that stands."""
    action = np.zeros((1, 3))
    action[0, place] = 1e17
    before, growth, listed = np.array([[0.2, 0.3, 0.5]]), np.ones((1, 3)), np.ones((1, 2), dtype=bool)
    for _ in both_ways():
        target = accounting.orders(before, action, growth, listed, Limits(), 0, None)[1]
        np.testing.assert_array_equal(target, np.eye(3)[[place]])


def test_a_target_that_is_no_number_is_never_within_the_band() -> None:
    """It stays what it is, to be refused later, both ways."""
    before, target = np.array([0.3, 0.3, 0.4]), np.array([0.3, np.nan, 0.4])
    kept = apply_limits(before[None], target[None], Limits(no_trade_band=0.02))[0]
    compiled._limit(before, target, (1.0, 1.0, 0.02), np.empty(3))
    np.testing.assert_array_equal(target, kept)
    assert np.isnan(target[1])


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same() -> None:
    """As where the package and the home folder may only be read; numba alone would refuse to import."""
    names: dict[str, Callable[[float], float]] = {}
    exec(compile("def twice(x): return 2.0 * x", "<a file that is not there>", "exec"), names)
    twice = compiled_function(error_model="numpy")(names["twice"])
    assert twice(3.0) == 6.0
    assert twice.signatures
