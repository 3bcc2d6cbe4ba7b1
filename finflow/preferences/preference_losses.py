"""Losses of preferences, as pure functions: of a reward model, and of a policy without one.

References
----------
Bradley and Terry (1952), Rank Analysis of Incomplete Block Designs. Christiano et al. (2017), Deep Reinforcement
Learning from Human Preferences, section 2.2.3, for ties. Rafailov et al. (2023), Direct Preference Optimization,
equation 7. Meng et al. (2024), SimPO, equation 6. Wichmann and Hill (2001), The Psychometric Function, for mistakes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def preference_loss(firsts: Tensor, seconds: Tensor, targets: Tensor, mistakes: float = 0.0) -> Tensor:
    """Loss of each pair, ``-log sigmoid(r_w - r_l)``, (..., pairs); of a tie half that of each of the two answers.

    Scores of the two segments, (..., pairs), are log odds; targets, (pairs,), are 1 where the first is better, 0 where
    the second is, 0.5 for a tie. Without ties and mistakes it is the loss of TRL's RewardTrainer before its mean over
    the batch. Where a share of the answers, in 0..0.5, is turned round, the probability is ``mistakes + (1 - 2
    mistakes) sigmoid(...)``: no pair weighs more than the log of that share.
    """
    lead = firsts - seconds
    first, second = (_log_probability(one, mistakes) for one in (lead, -lead))
    return -targets * first - (1.0 - targets) * second


def _log_probability(lead: Tensor, mistakes: float) -> Tensor:
    """Logarithm of the probability of an answer whose lead in log odds is given."""
    straight = logsigmoid(lead)
    if mistakes == 0.0:
        return straight
    return torch.logaddexp(straight + math.log1p(-2.0 * mistakes), torch.full_like(lead, math.log(mistakes)))


def dpo_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Direct preference optimisation: ``-log sigmoid(beta (l_w - l_l))`` of each pair, (pairs,).

    l are log densities of the segments' decisions under the policy less those under the reference, summed over steps.
    """
    return -logsigmoid(beta * (chosen - rejected))


def simpo_loss(
    chosen: Tensor, rejected: Tensor, lengths: tuple[Tensor, Tensor], beta: float, margin: float = 0.0
) -> Tensor:
    """SimPO, which needs no reference: ``-log sigmoid(beta l_w / n_w - beta l_l / n_l - margin)``, (pairs,).

    l are log densities of the segments' decisions under the policy, summed over steps; n their numbers.
    """
    return -logsigmoid(beta * chosen / lengths[0] - beta * rejected / lengths[1] - margin)
