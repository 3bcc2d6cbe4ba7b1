"""Losses of the offline methods as pure functions of tensors: each is one formula of its paper.

A = m - V is the advantage, with a critic's mean m and IQL's value V; of B transitions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ADVANTAGE_WEIGHT_LIMIT = 100.0
TD3BC_ALPHA = 2.5


def expectile_loss(target: Tensor, value: Tensor, expectile: float) -> Tensor:
    """``mean |tau - 1(u < 0)| u^2`` with ``u = target - value``, (); tau is the expectile, and a half the mean.

    Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, equation 5.
    """
    difference = target - value
    above = difference.new_full((), expectile)  # in the type of the inputs: plain numbers are float32
    weight = torch.where(difference < 0.0, difference.new_full((), 1.0 - expectile), above)
    return (weight * difference.square()).mean()


def expectile_of(values: Tensor, expectile: float) -> Tensor:
    """Expectile of each row of values (B, P), (B, 1): where `expectile_loss` is least.

    ``e = (sum_p w_p x_p) / sum_p w_p`` with ``w_p`` tau above e and 1 - tau below: of the k largest values that may lie
    above, the right k gives the largest e for tau over a half, and the smallest under it.

    Newey and Powell (1987), Asymmetric Least Squares Estimation and Testing, section 2.
    """
    ordered = values.sort(dim=-1, descending=True).values
    count = values.shape[-1]
    above = torch.arange(1, count + 1, device=values.device, dtype=values.dtype)
    sums = ordered.cumsum(dim=-1)
    weight = expectile * above + (1.0 - expectile) * (count - above)
    candidates = (expectile * sums + (1.0 - expectile) * (sums[..., -1:] - sums)) / weight
    return candidates.amax(dim=-1, keepdim=True) if expectile >= 0.5 else candidates.amin(dim=-1, keepdim=True)


def advantage_weights(advantage: Tensor, temperature: float) -> Tensor:
    """``min(exp(beta * A), 100)``, (...); equation 7 of IQL's paper, with the clip of its code."""
    limit = math.log(ADVANTAGE_WEIGHT_LIMIT)
    return (temperature * advantage).clamp(max=limit).exp()


def ddpg_bc_loss(value: Tensor, advantage: Tensor, cloning: Tensor, cloning_weight: float) -> Tensor:
    """``- mean Q(s, mu(s)) / mean |A| - alpha * mean log pi(a | s)``.

    The value, (B,), is of the policy's own actions, less a baseline that no action changes; the advantage, (B,), of the
    data's. The paper divides by the mean of |Q|; only the advantages are the part of Q that actions can change, so
    alpha means the same however much of the value lies in the state.

    Park et al. (2024), Is Value Learning Really the Main Bottleneck in Offline RL?, equation 5.
    """
    return -value.mean() / advantage.abs().mean().clamp(min=1e-6) + cloning_weight * cloning


def td3bc_loss(value: Tensor, distance: Tensor) -> Tensor:
    """``mean [distance - lambda * value]`` with ``lambda = 2.5 / mean |value|``, held fixed.

    ``value``, (B,), is of the policy's own action, ``distance``, (B,), its mean squared difference from the data's.

    Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 3 and 5.
    """
    scale = TD3BC_ALPHA / value.detach().abs().mean().clamp(min=1e-6)
    return (distance - scale * value).mean()
