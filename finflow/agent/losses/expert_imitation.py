"""Losses of each expert on the family of behaviour of its name: on its decisions, and on portfolios that it names."""

from __future__ import annotations

import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.losses.losses import weighted_likelihood_loss
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT

FAMILIES = 5  # of behaviour that have an expert


def expert_loss(decision: Decision, batch: Batch, weights: Tensor) -> Tensor:
    """Weighted likelihood of part-way moves to each expert's portfolio, on its own family's transitions.

    A single head learns from those of all families.
    """
    of_family = (batch.families < FAMILIES).to(weights.dtype)
    learning = batch.families.clamp(max=decision.experts.shape[1] - 1)
    distribution = decision.expert_distribution(learning, batch.states.weights)
    return weighted_likelihood_loss(
        distribution.log_density(batch.actions), weights * of_family, distribution.dimensions
    )


def expert_cloning_loss(experts: Tensor, named: Tensor) -> Tensor:
    """Mean divergence ``KL(named || expert)`` of the experts' portfolios from those that their families name.

    Parameters
    ----------
    experts, named : Tensor, (groups, 5, K)
    """
    divergence = torch.xlogy(named, named) - named * experts.clamp(min=SMALLEST_WEIGHT).log()
    return divergence.sum(dim=-1).mean()


def expert_penalties(decision: Decision, batch: Batch, cloning: float) -> tuple[Tensor | float, dict[str, Tensor]]:
    """Penalties that hold the experts' portfolios to rules, with a weight, and to rankings; their sizes for the log."""
    experts, metrics = decision.experts[:: batch.states.group_size], {}
    penalty: Tensor | float = 0.0
    if cloning > 0.0 and batch.named is not None:
        loss = expert_cloning_loss(experts, batch.named)
        penalty, metrics["naming_loss"] = cloning * loss, loss.detach()
    if batch.rankings is not None:
        ranking = batch.rankings.penalty(experts)
        penalty, metrics["ranking_loss"] = penalty + ranking, ranking.detach()
    return penalty, metrics
