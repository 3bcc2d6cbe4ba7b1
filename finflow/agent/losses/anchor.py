"""What holds an online policy back: how far it may go from what the evidence offline has borne out.

A policy that follows its critics wherever they point fits the years that it trains on. An anchor asks a price for
every step away: from the policy as pretrained, from what the behaviour families did, or from equal weight, of all
that there is or of what is held in assets. The first two are in nats per free dimension of the action, so that a weight
means the same for any number of assets; the others are whole divergences between portfolios, which are means over the
assets as they stand. They are cheapest for a gate that follows whoever is nearest to equal weight and nobody else, so a
gate can be held open beside them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finflow.agent.batch import Batch, spread_out
from finflow.agent.losses.losses import weighted_likelihood_loss
from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT, LogisticNormal
from finflow.agent.networks.policy import EXPERTS, Decision, ExpertPolicy
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


def kl_from_equal_sleeve(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim / (1 - cash))``, (batch,): how the assets' part is spread, and nothing of how large it is.

    Parameters
    ----------
    aim : Tensor, (batch, K)
    listed : bool Tensor, (batch, assets)
    """
    return kl_from_equal_weight(aim, listed) + aim[:, :-1].sum(dim=-1).clamp(min=SMALLEST_WEIGHT).log()


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


FROM_EQUAL = {"equal-weight": kl_from_equal_weight, "equal-sleeve": kl_from_equal_sleeve}
"""Anchors that act on the aim, and so on no decision that has none."""


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
    if config.to in FROM_EQUAL:
        return FROM_EQUAL[config.to](decision.aim, spread_out(batch.states.listed, batch.states)).mean()
    if config.to == "behaviour":
        own = (batch.families < len(EXPERTS)).to(batch.actions.dtype)
        density = decision.distribution.log_density(batch.actions)
        return weighted_likelihood_loss(density, own, batch.actions.shape[1] - 1) / own.mean().clamp(min=1e-6)
    with torch.no_grad():
        before = prior(batch.states).distribution
    return kl_per_dimension(decision.distribution, before).mean()
