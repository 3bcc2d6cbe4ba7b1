"""Losses of PPO: the clipped objective, the objective with a KL penalty, and the clipped value loss.

References
----------
Schulman and others (2017), Proximal Policy Optimization Algorithms, equations 7 and 8.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """``-mean min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)``, (), of joint density ratios (batch,).

    Beyond the limit a ratio gains nothing more; a change that is for the worse is charged in full.
    """
    limited = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, limited * advantages).mean()


def penalised_policy_loss(ratio: Tensor, advantages: Tensor, divergence: Tensor, beta: float) -> Tensor:
    """``-mean(ratio A) + beta mean KL(old || new)``, (), with the divergence, (batch,), in nats."""
    return beta * divergence.mean() - (ratio * advantages).mean()


def surrogate_loss(ratio: Tensor, advantages: Tensor) -> Tensor:
    """``-mean(ratio A)``, (): at the old policy its gradient is the policy gradient's."""
    return -(ratio * advantages).mean()


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of values (batch,), ()."""
    return 0.5 * (values - returns).square().mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(old || new) from the old policy's actions, (): the mean of ``ratio - 1 - log ratio``, at least 0.

    Reference: Schulman (2020), Approximating KL Divergence.
    """
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def clip_fraction(ratio: Tensor, clip: float) -> Tensor:
    """Share of ratios beyond the limits, ()."""
    return ((ratio - 1.0).abs() > clip).to(ratio.dtype).mean()
