"""Advantages of decisions: generalised advantage estimation, and normalisation.

References
----------
Schulman and others (2016), High-Dimensional Continuous Control Using Generalized Advantage Estimation, equation 16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finflow.errors import ConfigError

SMALLEST_DEVIATION = 1e-8


def generalised_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimation: ``A_t = sum_l (gamma lambda)^l delta_{t+l}`` until the episode ends.

    ``delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)``. A terminated episode has no value beyond its end;
    a truncated one has the value of the observation at which it was cut. With ``lam`` 0 this is the one-step TD error,
    with 1 the Monte Carlo return less the value. Targets of the value function are the advantages plus the values.

    Parameters
    ----------
    rewards, values, next_values : Tensor, (steps, environments)
        The next value is of the observation that followed; where an episode ended, of its own last observation.
    terminated, ended : Tensor, (steps, environments)
        1 where the decision ended the episode for good; where it was the episode's last, by truncation too.
    """
    shapes = {tuple(part.shape) for part in (rewards, values, next_values, terminated, ended)}
    if len(shapes) != 1:  # or they would broadcast
        raise ConfigError(f"advantages need tensors of one shape (steps, environments), not {sorted(shapes)}")
    deltas = rewards + gamma * (1.0 - terminated) * next_values - values
    decay = (gamma * lam) * (1.0 - ended)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for step in range(len(deltas) - 1, -1, -1):
        following = deltas[step] + decay[step] * following
        advantages[step] = following
    return advantages


def normalised(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and sample deviation 1, over all that are given; a single one is left as it is."""
    if advantages.numel() < 2:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + SMALLEST_DEVIATION)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """``1 - var(returns - values) / var(returns)``, (): 1 for a perfect value function, 0 for a constant one."""
    spread = returns.var(correction=0)
    return 1.0 - (returns - values).var(correction=0) / spread.clamp(min=SMALLEST_DEVIATION)
