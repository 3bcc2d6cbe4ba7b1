"""Losses of preferences, as pure functions: of a reward model, and of a policy without one.

References
----------
Bradley and Terry (1952), Rank Analysis of Incomplete Block Designs. Christiano et al. (2017), Deep Reinforcement
Learning from Human Preferences, section 2.2.3, for ties. Rafailov et al. (2023), Direct Preference Optimization,
equation 7. Meng et al. (2024), SimPO, equation 6.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def preference_loss(firsts: Tensor, seconds: Tensor, targets: Tensor, margin: float = 0.0) -> Tensor:
    """Loss of each pair, ``-log sigmoid(r_w - r_l - margin)``; of a tie half that of each of the two answers.

    Without ties it is the loss of TRL's RewardTrainer before its mean over the batch.

    Parameters
    ----------
    firsts, seconds : Tensor, (..., pairs)
        Scores of the two segments, in log odds.
    targets : Tensor, (pairs,)
        1 where the first is better, 0 where the second is, 0.5 for a tie.
    margin : float

    Returns
    -------
    Tensor, (..., pairs)
    """
    lead = firsts - seconds
    return -targets * logsigmoid(lead - margin) - (1.0 - targets) * logsigmoid(-lead - margin)


def dpo_loss(chosen: Tensor, rejected: Tensor, beta: float, steps: Tensor | float = 1.0) -> Tensor:
    """Direct preference optimisation: ``-log sigmoid(beta (l_w - l_l))`` of each pair, l the log ratios.

    Parameters
    ----------
    chosen, rejected : Tensor, (pairs,)
        Log densities of the segments' decisions under the policy less those under the reference, summed over steps.
    beta : float
        Weight of the divergence from the reference.
    steps : Tensor or float
        Divides the sums, as the number of decisions or of free dimensions.

    Returns
    -------
    Tensor, (pairs,)
    """
    return -logsigmoid(beta * (chosen - rejected) / steps)


def simpo_loss(
    chosen: Tensor, rejected: Tensor, lengths: tuple[Tensor, Tensor], beta: float, margin: float = 0.0
) -> Tensor:
    """SimPO, which needs no reference: ``-log sigmoid(beta l_w / n_w - beta l_l / n_l - margin)`` of each pair.

    Parameters
    ----------
    chosen, rejected : Tensor, (pairs,)
        Log densities of the segments' decisions under the policy, summed over steps.
    lengths : tuple of Tensor, (pairs,) each
        Decisions, or free dimensions of them, of the two segments.
    beta : float
    margin : float

    Returns
    -------
    Tensor, (pairs,)
    """
    return -logsigmoid(beta * chosen / lengths[0] - beta * rejected / lengths[1] - margin)
