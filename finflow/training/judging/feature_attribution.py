"""Attribution of a decision to the features, by integrated gradients (Sundararajan, Taly and Yan 2017; by captum).

They divide the difference between a decision and that at a baseline among the inputs. The baseline is a market whose
every feature is at its training mean (zero, in the units that networks read), met with the same weights held. How far
the sum of the parts misses the difference is the completeness error; steps are doubled until it is small. All runs in
double precision on the CPU, on a copy of the policy.
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
    """Parts that features have in some scalars of a decision."""

    assets: Tensor  # (targets, assets, F)
    market: Tensor  # (targets, M)
    reward_state: Tensor  # (targets, 3)
    value: Tensor  # (targets,): the scalars at the state
    baseline: Tensor  # (targets,): at the baseline
    error: Tensor  # (targets,): sum of the parts less (value - baseline)
    steps: int  # of the quadrature


def in_double(policy: ExpertPolicy) -> ExpertPolicy:
    """A copy on the CPU in double precision."""
    exact = copy.deepcopy(policy).cpu().double()
    for part in exact.modules():
        if isinstance(part, ExpertPolicy):
            part.keeps_slope = True
    return exact


def states_in_double(states: States) -> States:
    assets, market, portfolio = (tensor.cpu().double() for tensor in states[:3])
    return States(assets, market, portfolio, states.complete)


def decide(policy: ExpertPolicy, states: States) -> Decision:
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
    policy, states
        From `in_double`, and one state from `states_in_double`; weights held and listing are the same along the path.
    directions : Tensor, (targets, K)
        Each names a scalar, the centre's product with it.
    tolerance : float
        Steps are doubled until no completeness error is larger, or ``most`` is reached.
    since : States, optional
        The baseline, of which the features alone are taken; features at their training mean when left out.
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

    def features_of(state: States) -> tuple[Tensor, ...]:
        parts = (state.assets[:, :, :-1], state.market, state.reward_state)
        return tuple(part.expand(targets, *part.shape[1:]).contiguous() for part in parts)

    inputs = features_of(states)
    baseline_inputs = tuple(map(torch.zeros_like, inputs)) if since is None else features_of(since)
    with torch.no_grad():
        value, baseline = (scalars(*(*given, directions)) for given in (inputs, baseline_inputs))
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
