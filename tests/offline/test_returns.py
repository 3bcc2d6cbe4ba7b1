"""Lambda-returns against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.offline.recorder import episode_ends, lambda_returns

GAMMA = 0.9


def direct(
    rewards: NDArray[np.float64],
    values: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    last: NDArray[np.bool_],
    trace: float,
) -> NDArray[np.float64]:
    """The weighted mean of n-step returns, equation 12.3 of Sutton and Barto (2018), written out."""
    result = np.empty(len(rewards))
    for t in range(len(rewards)):
        end = next(k for k in range(t, len(rewards)) if last[k])
        total = 0.0
        for n in range(1, end - t + 2):
            inside = rewards[t : t + n]
            boot = 0.0 if terminated[t + n - 1] else GAMMA**n * values[t + n - 1]
            n_step = float(np.sum(GAMMA ** np.arange(n) * inside)) + boot
            weight = trace ** (end - t) if n == end - t + 1 else (1.0 - trace) * trace ** (n - 1)
            total += weight * n_step
        result[t] = total
    return result


@pytest.mark.parametrize("trace", [0.0, 0.5, 0.95, 1.0])
def test_lambda_returns_are_the_weighted_mean_of_n_step_returns(trace: float) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.standard_normal(30), rng.standard_normal(30)
    terminated = np.zeros(30, dtype=np.bool_)
    terminated[14] = True
    last = episode_ends(np.repeat(np.arange(3, dtype=np.int32), 10), terminated)
    found = lambda_returns(rewards, values, terminated, last, GAMMA, trace)
    np.testing.assert_allclose(found, direct(rewards, values, terminated, last, trace), rtol=1e-12)


def test_an_episode_ends_at_ruin_and_before_the_next() -> None:
    ends = episode_ends(np.array([0, 0, 0, 1, 1], dtype=np.int32), np.array([False, True, False, False, False]))
    assert ends.tolist() == [False, True, True, False, True]
