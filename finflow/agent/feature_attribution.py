"""Attribution of a decision to the features, by integrated gradients.

Integrated gradients (Sundararajan, Taly and Yan, Axiomatic Attribution for Deep Networks, ICML 2017; by captum) divide
the difference between a decision and the decision at a baseline among the inputs. The baseline is a market whose every
feature is at its training mean (zero, in the units that networks read), met with the same weights held. The parts sum
to the difference: how far they miss it is the completeness error, and steps are doubled until it is small. All of it
runs in double precision on the CPU, on a copy of the policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.policy import ExpertPolicy

FIRST_STEPS, MOST_STEPS = 64, 1024
TOLERANCE = 1e-4  # of wealth: a hundredth of a percent of the portfolio
ROWS_AT_ONCE = 512


class Shares(NamedTuple):
    """Parts that features have in some scalars of a decision.

    Attributes
    ----------
    assets : Tensor, (targets, assets, F)
    market : Tensor, (targets, M)
    reward_state : Tensor, (targets, 3)
    value, baseline : Tensor, (targets,)
        The scalars at the state and at the baseline.
    error : Tensor, (targets,)
        Sum of the parts less (value - baseline).
    steps : int
        Of the quadrature.
    """

    assets: Tensor
    market: Tensor
    reward_state: Tensor
    value: Tensor
    baseline: Tensor
    error: Tensor
    steps: int


def in_double(policy: ExpertPolicy) -> ExpertPolicy:
    """A copy on the CPU in double precision."""
    exact = copy.deepcopy(policy).cpu().double()
    for part in exact.modules():
        if isinstance(part, ExpertPolicy):
            part.keeps_slope = True
    return exact


def states_in_double(states: States) -> States:
    """The same states on the CPU in double precision."""
    assets, market, portfolio = (tensor.cpu().double() for tensor in states[:3])
    return States(assets, market, portfolio, states.complete)


def decide(policy: ExpertPolicy, states: States) -> Decision:
    """Decide without gradients."""
    with torch.no_grad():
        decision: Decision = policy(states)
    return decision


def centre_of(decision: Decision) -> Tensor:
    """Portfolio that a decision names, (batch, K)."""
    centre: Tensor = decision.distribution.centre()
    return centre


def aim_of(decision: Decision) -> Tensor:
    """Portfolio that a decision moves towards, (batch, K)."""
    return decision.aim


def integrated_gradients(
    policy: ExpertPolicy,
    states: States,
    directions: Tensor,
    tolerance: float = TOLERANCE,
    most: int = MOST_STEPS,
    *,
    since: States | None = None,
    read: Callable[[Decision], Tensor] = centre_of,
) -> Shares:
    """Divide ``directions @ centre`` of one decision, less that at a baseline, among the features.

    Parameters
    ----------
    policy : ExpertPolicy
        From `in_double`.
    states : States
        One, from `states_in_double`. Weights held and listing are no features: they are the same along the whole path.
    directions : Tensor, (targets, K)
        Each names a scalar, the centre's product with it.
    tolerance : float
        Steps are doubled until no completeness error is larger, or ``most`` is reached.
    since : States, optional
        The baseline, one state from `states_in_double`, of which the features alone are taken; features at their
        training mean when left out.
    read : callable
        Portfolio of a decision that stands in for the centre.
    """
    from captum.attr import IntegratedGradients

    targets, weights = len(directions), states.weights
    listed, complete = states.assets[:, :, -1:], states.complete

    def scalars(assets: Tensor, market: Tensor, reward_state: Tensor, direction: Tensor) -> Tensor:
        rows = len(market)
        flagged = torch.cat([assets, listed.expand(rows, -1, -1)], dim=-1)
        portfolio = torch.cat([weights.expand(rows, -1), reward_state], dim=-1)
        decision: Decision = policy(States(flagged, market, portfolio, complete))
        unused = 0.0 * reward_state.sum(-1)  # the aim does not depend on it, and captum asks for its gradient
        return (read(decision) * direction).sum(-1) + unused

    assets, market, reward_state = (
        part.expand(targets, *part.shape[1:]).contiguous()
        for part in (states.assets[:, :, :-1], states.market, states.reward_state)
    )
    inputs = (assets, market, reward_state)
    baseline_inputs = (torch.zeros_like(assets), torch.zeros_like(market), torch.zeros_like(reward_state))
    if since is not None:
        baseline_inputs = (
            since.assets[:, :, :-1].expand_as(assets).contiguous(),
            since.market.expand_as(market).contiguous(),
            since.reward_state.expand_as(reward_state).contiguous(),
        )
    with torch.no_grad():
        value, baseline = scalars(*inputs, directions), scalars(*baseline_inputs, directions)
    method, steps = IntegratedGradients(scalars), FIRST_STEPS
    while True:
        of_assets, of_market, of_reward = method.attribute(
            inputs,
            baseline_inputs,
            additional_forward_args=(directions,),
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(ROWS_AT_ONCE, targets),
        )
        whole = of_assets.sum((1, 2)) + of_market.sum(1) + of_reward.sum(1)
        error = (whole - (value - baseline)).detach()
        if steps >= most or float(error.abs().max()) <= tolerance:
            return Shares(of_assets.detach(), of_market.detach(), of_reward.detach(), value, baseline, error, steps)
        steps *= 2
