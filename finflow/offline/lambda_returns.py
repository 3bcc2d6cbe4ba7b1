"""What the behaviour went on to earn: lambda-returns along its own episodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def lambda_returns(
    rewards: FloatArray,
    next_values: FloatArray,
    terminated: NDArray[np.bool_],
    last: NDArray[np.bool_],
    gamma: float,
    trace: float,
) -> FloatArray:
    """``G_t = r_t + gamma (1 - d_t) ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})``, within each episode.

    Parameters
    ----------
    rewards, next_values : array, (n,)
        ``next_values`` are V of the state after each transition.
    terminated : bool array, (n,)
        d: nothing follows.
    last : bool array, (n,)
        Where an episode's rows end without termination: there G bootstraps from V alone.
    gamma, trace : float
        Discount and lambda.

    Returns
    -------
    array, (n,)

    References
    ----------
    Sutton and Barto (2018), Reinforcement Learning, equation 12.2 in its recursive form.
    """
    returns = np.empty(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        ahead = next_values[t] if last[t] else (1.0 - trace) * next_values[t] + trace * following
        following = rewards[t] + (0.0 if terminated[t] else gamma * ahead)
        returns[t] = following
    return returns


def episode_ends(episode: NDArray[np.int32], terminated: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows after which another episode begins, (n,)."""
    ends = np.ones(len(episode), dtype=np.bool_)
    ends[:-1] = episode[1:] != episode[:-1]
    return ends | terminated
