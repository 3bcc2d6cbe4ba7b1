"""Climbing a critic: what a policy offers to be pushed uphill, and the step that pushes it.

Weighted cloning can only lean towards the better of what was done. A gradient of the critic with respect to the
action points anywhere, and gets far more out of the same critic; the likelihood of the data's own actions keeps it
where the critic knows something.

References
----------
Park et al. (2024), Is Value Learning Really the Main Bottleneck in Offline RL?, equation 5 (DDPG+BC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.optimisation.precision import exact


class Climb(NamedTuple):
    """A policy's deterministic actions for a batch, and what holds them.

    Attributes
    ----------
    action : Tensor, (batch, K)
        With gradients for the policy.
    cloning : Tensor, ()
        Loss of the likelihood of the data's actions, all weighted alike.
    others : Tensor, ()
        What else the policy learns meanwhile.
    metrics : dict of Tensor, ()
    """

    action: Tensor
    cloning: Tensor
    others: Tensor
    metrics: dict[str, Tensor]


def linear_in(action: Tensor, value_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Value of an action, linear in it: equal to the value, and its gradient to the value's, and none reaches a critic.

    Parameters
    ----------
    action : Tensor, (batch, P, K)
        With a history.
    value_of : callable
        Maps actions to values, (batch, P).

    Returns
    -------
    Tensor, (batch, P)
    """
    chosen = action.detach().requires_grad_(True)
    value = value_of(chosen)
    with exact(action):
        (slope,) = torch.autograd.grad(value.sum(), chosen)
    return value.detach() + (slope * (action - chosen.detach())).sum(dim=-1)


def climbing_loss(value: Tensor, advantage: Tensor, cloning: Tensor, cloning_weight: float) -> Tensor:
    """``- mean Q(s, mu(s)) / mean |A| - alpha * mean log pi(a | s)``.

    The paper divides by the mean of |Q|. The advantages of the data are what actions can change of it, so that alpha
    means the same however much of the value lies in the state.

    Parameters
    ----------
    value : Tensor, (B,)
        Of the policy's own actions; less anything that no action changes.
    advantage : Tensor, (B,)
        Of the data's actions.
    cloning : Tensor, ()
    cloning_weight : float
        alpha.
    """
    return -value.mean() / advantage.abs().mean().clamp(min=1e-6) + cloning_weight * cloning
