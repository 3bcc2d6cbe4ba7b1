"""Losses of each expert on the family of behaviour of its name: on its decisions, and on portfolios that it names."""

from __future__ import annotations

import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.losses.losses import weighted_likelihood_loss
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT


def expert_loss(decision: Decision, batch: Batch, weights: Tensor) -> Tensor:
    """Weighted likelihood of part-way moves to each expert's portfolio, on its own family's transitions."""
    count = decision.experts.shape[1]
    of_family = (batch.families < count).to(weights.dtype)
    learning = batch.families.clamp(max=count - 1)
    distribution = decision.expert_distribution(learning, batch.states.weights)
    return weighted_likelihood_loss(
        distribution.log_density(batch.actions), weights * of_family, distribution.dimensions
    )


def expert_cloning_loss(experts: Tensor, named: Tensor) -> Tensor:
    """Mean ``KL(named || expert)`` of the experts' portfolios, (groups, 5, K), from those that their families name."""
    divergence = torch.xlogy(named, named) - named * experts.clamp(min=SMALLEST_WEIGHT).log()
    return divergence.sum(dim=-1).mean()


def expert_penalties(decision: Decision, batch: Batch, cloning: float) -> tuple[Tensor | float, dict[str, Tensor]]:
    """Penalty that holds the experts' portfolios to rules, by a weight; its size for the log."""
    if not cloning or batch.named is None:
        return 0.0, {}
    loss = expert_cloning_loss(decision.experts[:: batch.states.group_size], batch.named)
    return cloning * loss, {"naming_loss": loss.detach()}
