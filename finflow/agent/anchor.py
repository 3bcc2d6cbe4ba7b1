"""What holds an online policy back: how far it may go from what the evidence offline has borne out.

A policy that follows its critics wherever they point fits the years that it trains on. An anchor asks a price for
every step away: from the policy as pretrained, from what the behaviour families did, or from equal weight. The
first two are in nats per free dimension of the action, so that a weight means the same for any number of assets; the
third is a whole divergence between portfolios, which is a mean over the assets as it stands. It is cheapest for a gate
that follows whoever is nearest to equal weight and nobody else, so a gate can be held open beside it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finflow.agent.batch import Batch, spread_out
from finflow.agent.losses import weighted_likelihood_loss
from finflow.agent.policy import EXPERTS, Decision, ExpertPolicy
from finflow.agent.simplex import SMALLEST_WEIGHT, LogisticNormal
from finflow.config import AnchorConfig


def kl_per_dimension(policy: LogisticNormal, prior: LogisticNormal) -> Tensor:
    """``KL(policy || prior) / (K - 1)``, (batch,), in closed form.

    Both are normal in the same log ratios, and a divergence does not change with the coordinates: per dimension
    ``log(s0 / s) + (s^2 + (z - z0)^2) / (2 s0^2) - 1/2``.
    """
    ratio = (policy.log_scale - prior.log_scale).exp()
    apart = (policy.location - prior.location) * (-prior.log_scale).exp()
    return (0.5 * (ratio.square() + apart.square() - 1.0) - ratio.log()).mean(dim=-1)


def kl_from_equal_weight(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim)``, (batch,): u is equal weight over the assets that can be held.

    In this direction no asset may be left out altogether: what equal weight holds and the aim does not is dear.

    Parameters
    ----------
    aim : Tensor, (batch, K)
    listed : bool Tensor, (batch, assets)
    """
    count = listed.sum(dim=-1).clamp(min=1).to(aim.dtype)
    missing = -(aim[:, :-1].clamp(min=SMALLEST_WEIGHT).log() + count.log().unsqueeze(-1))
    return torch.where(listed, missing, torch.zeros_like(missing)).sum(dim=-1) / count


def gate_imbalance(gate: Tensor) -> Tensor:
    """``KL(u || mean gate)``, (): u is equal use of the experts.

    The mean is that over a batch: to follow one expert in some states and another in others costs nothing, and to leave
    one out in all of them is dear (the end that a load-balancing loss has: Shazeer et al. 2017, section 4).

    Parameters
    ----------
    gate : Tensor, (batch, experts)
    """
    used = gate.mean(dim=0).clamp(min=SMALLEST_WEIGHT)
    return -(used.log().mean() + math.log(len(used)))


def anchor_weight(config: AnchorConfig, update: int) -> float:
    """Weight of the anchor after ``update`` updates of the online phase."""
    final = config.weight if config.final is None else config.final
    return config.weight + (final - config.weight) * min(update / config.updates, 1.0)


def anchor_loss(config: AnchorConfig, decision: Decision, batch: Batch, prior: ExpertPolicy) -> Tensor:
    """What the policy pays for being where it is, ().

    Parameters
    ----------
    config : AnchorConfig
    decision : Decision
        The policy's, in the states of the batch, with gradients.
    batch : Batch
    prior : ExpertPolicy
        The policy as it was pretrained.
    """
    if config.to == "equal-weight":
        return kl_from_equal_weight(decision.aim, spread_out(batch.states.listed, batch.states)).mean()
    if config.to == "behaviour":
        own = (batch.families < len(EXPERTS)).to(batch.actions.dtype)
        density = decision.distribution.log_density(batch.actions)
        return weighted_likelihood_loss(density, own, batch.actions.shape[1] - 1) / own.mean().clamp(min=1e-6)
    with torch.no_grad():
        before = prior(batch.states).distribution
    return kl_per_dimension(decision.distribution, before).mean()
