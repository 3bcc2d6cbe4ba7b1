"""Regularisers: the conservative penalty of the critics, and the anchor, which bounds the policy's changes.

A policy that only maximises its critics overfits the years of its training. An anchor penalises distance from the
pretrained policy, in nats per free dimension of the action, or from equal weight, over all assets or over the part
held in assets.

References
----------
Kumar et al. (2020), Conservative Q-Learning, equation 4 and appendix F (the Lagrange version).
Nakamoto et al. (2023), Cal-QL, equation 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import Batch, repeat_groups
from finflow.agent.losses.losses import mean_per_dimension
from finflow.agent.networks.critic import CRITICS
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig

LARGEST_WEIGHT = 1e6  # of a tuned penalty, as in the code of the paper


class CoverageProposals(NamedTuple):
    """Portfolios (batch, P, K) from the coverage mixture, proposed to CQL, with their log densities (batch, P)."""

    portfolios: Tensor
    log_density: Tensor

    def joined(self, portfolios: Sequence[Tensor], log_densities: Sequence[Tensor]) -> CoverageProposals:
        """Append other proposals, without their gradients."""
        return CoverageProposals(
            torch.cat([self.portfolios, *(part.detach() for part in portfolios)], dim=1),
            torch.cat([self.log_density, *(part.detach() for part in log_densities)], dim=1),
        )


def conservative_loss(
    proposals: Tensor,
    log_density: Tensor,
    data: Tensor,
    policy_drawn: Tensor,
    calibration: Tensor,
    n_dimensions: int | Tensor = 1,
) -> Tensor:
    """CQL(H), importance-corrected and calibrated, with entropy per free dimension as in the actor's loss.

    Densities of twenty dimensions differ by tens of nats in all: without the division by D, uniform portfolios alone
    would determine the soft maximum, until their values were that far too low.

    Parameters
    ----------
    proposals, data : Tensor, (E, B, P) and (E, B)
        m at the proposed actions, and at those of the data.
    log_density : Tensor, (B, P)
        Log density that each proposal was drawn with.
    policy_drawn : bool Tensor, (P,)
        True for proposals drawn from the policy: these are not pushed under the calibration.
    calibration : Tensor, (B,)
        Value of the behaviour at the state; minus infinity turns the calibration off.
    n_dimensions : int, or Tensor (B,)
        D = K - 1, or that of each state where assets are not listed; with 1 the published form.

    Returns
    -------
    Tensor, ()
        ``sum_E mean_B [log mean_P exp(D m - log density) / D - m(data)]``.
    """
    calibrated = torch.where(policy_drawn, torch.maximum(proposals, calibration[:, None]), proposals)
    of_each = n_dimensions.unsqueeze(-1) if isinstance(n_dimensions, Tensor) else n_dimensions
    soft_maximum = torch.logsumexp(of_each * calibrated - log_density, dim=-1) - math.log(proposals.shape[-1])
    return (soft_maximum / n_dimensions - data).mean(dim=1).sum()


def lower_bound(calibrations: Tensor, calibration: str) -> Tensor:
    """Values (batch,) below which policy-drawn proposals are not pushed; minus infinity without a calibration."""
    return torch.full_like(calibrations, float("-inf")) if calibration == "none" else calibrations


def tuned_weight(log_weight: Tensor) -> Tensor:
    """Bounded weight of a tuned penalty, (), with a gradient."""
    return log_weight.exp().clamp(max=LARGEST_WEIGHT)


def indifferent_penalty(log_density: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """Penalty, (), that a critic with the same value for every action has for proposals of log densities (B, P).

    ``mean_B log mean_P exp(- log density) / D``. With many proposals it is ``H_max / D``, the entropy of the uniform
    law a dimension; with few it lies below, as the log of a mean of uneven weights does.
    """
    proposals = log_density.shape[-1]
    return mean_per_dimension(torch.logsumexp(-log_density, dim=-1) - math.log(proposals), n_dimensions)


def overestimation(penalty: Tensor, indifferent: Tensor) -> Tensor:
    """Soft maximum of a critic less its value of the data, (): the penalty, a critic, less `indifferent_penalty`."""
    return penalty.detach() / CRITICS - indifferent


def lagrange_loss(log_weight: Tensor, excess: Tensor) -> Tensor:
    """``- alpha' * excess``: its descent raises the weight while there is an excess."""
    return -tuned_weight(log_weight) * excess


class ConservativePenalty(NamedTuple):
    """Conservative penalty of the critics, weighted; ``weight_loss`` is of a tuned weight, and None for a fixed one."""

    loss: Tensor
    weight_loss: Tensor | None
    metrics: dict[str, Tensor]


def conservative_penalty(
    values: Tensor,
    proposals: CoverageProposals,
    batch: Batch,
    config: BCellConfig,
    log_weight: Tensor | None,
    n_dimensions: int | Tensor,
    unit: float = 1.0,
    scale: float = 1.0,
) -> ConservativePenalty:
    """Conservative penalty as configured.

    Parameters
    ----------
    values : Tensor, (E, B, 1 + P)
        m at the action of the data, then at the proposals.
    proposals : CoverageProposals
        The first ``bcell.cql_samples`` are from the coverage mixture, the others from the policy.
    log_weight : Tensor, (), or None
        Log of a tuned weight; None for ``bcell.cql_alpha``.
    n_dimensions : int, or Tensor (batch,)
        Free dimensions of an action.
    unit, scale : float
        Unit of the weight, and of values in the penalty, in scaled rewards.
    """
    data, proposed = values[..., 0] / scale, values[..., 1:] / scale
    policy_drawn = torch.arange(proposed.shape[-1], device=values.device) >= config.cql_samples
    bound = lower_bound(batch.calibrations, config.calibration) / scale
    penalty = conservative_loss(proposed, proposals.log_density, data, policy_drawn, bound, n_dimensions)
    metrics = {"cql_loss": penalty.detach()}
    if log_weight is None:
        effective = unit * config.cql_alpha
        metrics["effective_cql_alpha"] = penalty.new_tensor(effective)
        return ConservativePenalty(effective * penalty, None, metrics)
    weight = tuned_weight(log_weight).detach().clone()
    excess = overestimation(penalty, indifferent_penalty(proposals.log_density, n_dimensions))
    metrics |= {"cql_alpha": weight, "cql_excess": excess, "effective_cql_alpha": unit * weight}
    return ConservativePenalty(unit * weight * penalty, lagrange_loss(log_weight, excess), metrics)


def kl_from_equal_weight(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim)``, (batch,), of aims (batch, K): u is equal weight over the assets that are ``listed``.

    It grows without bound as the aim leaves an asset out.
    """
    count = listed.sum(dim=-1).clamp(min=1).to(aim.dtype)
    missing = -(aim[:, :-1].clamp(min=SMALLEST_WEIGHT).log() + count.log().unsqueeze(-1))
    return torch.where(listed, missing, torch.zeros_like(missing)).sum(dim=-1) / count


def kl_from_equal_sleeve(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim / (1 - cash))``, (batch,): divergence of the assets' shares, whatever the cash."""
    return kl_from_equal_weight(aim, listed) + aim[:, :-1].sum(dim=-1).clamp(min=SMALLEST_WEIGHT).log()


FROM_EQUAL = {"equal-weight": kl_from_equal_weight, "equal-sleeve": kl_from_equal_sleeve}
"""Anchors on the aim of a decision; actions of other kinds have no aim."""


def anchor_weight(config: AnchorConfig, update: int, total: int) -> float:
    """Weight of the anchor after ``update`` of the ``total`` updates of the online phase."""
    final = config.weight if config.final is None else config.final
    return config.weight + (final - config.weight) * min(update / (config.updates or total), 1.0)


def anchor_loss(config: AnchorConfig, decision: Decision, batch: Batch, prior: ExpertPolicy) -> Tensor:
    """Distance, (), of a decision in the states of the batch from its anchor; ``prior`` is the pretrained policy."""
    if config.to in FROM_EQUAL:
        return FROM_EQUAL[config.to](decision.traded_aim, repeat_groups(batch.states.listed, batch.states)).mean()
    with torch.no_grad():
        reference = prior(batch.states).distribution
    return kl_per_dimension(decision.distribution, reference).mean()


def policy_regulariser(
    decision: Decision,
    batch: Batch,
    prior: ExpertPolicy,
    weight: float,
    config: AnchorConfig,
    unit: float = 1.0,
) -> tuple[Tensor | float, dict[str, Tensor]]:
    """Penalty on the policy, the anchor's by its ``weight`` in ``unit``, ``sigma_A``; with figures for the log."""
    if weight <= 0.0:
        return 0.0, {}
    distance = anchor_loss(config, decision, batch, prior)
    metrics = {"anchor_loss": distance.detach(), "effective_anchor": distance.new_tensor(unit * weight)}
    return unit * weight * distance, metrics
