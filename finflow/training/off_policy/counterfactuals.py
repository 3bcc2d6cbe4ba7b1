"""Further actions of stored states, and what each would have earned: exact, since prices do not react to trades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, Choices, States
from finflow.agent.learners.soft_actor_critic import action_distribution
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.logistic_normal import LogisticNormal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState, Step
from finflow.training.data.mirrored_growth import Mirror
from finflow.training.data.replay import make_batch
from finflow.training.data.rollouts import RolloutMarket, repeated

ACTIONS = 8  # of each state: the logged one, holding, the policy's own, and moves


class Comparison(NamedTuple):
    """Policy and random numbers by which further actions of states are drawn."""

    policy: ExpertPolicy
    rng: np.random.Generator
    noise: Generator
    mirror: Mirror


@torch.no_grad()
def compared_actions(
    own: Tensor | None, states: States, count: int, rng: np.random.Generator, size: float | None = None
) -> Tensor:
    """Actions to compare in each state, (batch, count, n): hold, the policy's own, and moves toward any portfolio.

    ``own`` (batch, n): the policy's own, where it is among them. ``size``: share of the way that every move goes; drawn
    from 0..1 for each when left out.
    """
    held = states.weights
    named = [held] if own is None else [held, own]
    (batch, width), moves = held.shape, count - len(named)
    drawn, _ = draw_coverage(rng, batch * moves, width)
    toward = torch.as_tensor(drawn, dtype=torch.float32, device=held.device).view(batch, moves, width)
    listed = torch.cat([states.listed, torch.ones_like(states.listed[:, :1])], dim=1).unsqueeze(1)
    toward = toward * listed
    toward = toward / toward.sum(dim=-1, keepdim=True)
    shares = rng.random((batch, moves, 1)) if size is None else np.full((batch, moves, 1), size)
    share = torch.as_tensor(shares, dtype=torch.float32, device=held.device)
    return torch.cat([torch.stack(named, dim=1), held.unsqueeze(1).lerp(toward, share)], dim=1)


def logged_batch(
    market: RolloutMarket, rows: Mapping[str, Tensor], noise: Generator, observation_noise: float
) -> Batch:
    return make_batch(dict(rows), market.tensors, market.units, noise, observation_noise)


def counterfactual_batch(
    market: RolloutMarket,
    rows: Mapping[str, Tensor],
    state: PortfolioState,
    compared: Comparison,
    observation_noise: float,
) -> tuple[Batch, LogisticNormal]:
    """Stored states, each with `ACTIONS` actions, the stored one first, and exact outcomes; the policy's own decisions.

    ``market``: with mirrored bars, where there are: rewards are means over both.
    """
    device = market.tensors.market.device
    observed = torch.as_tensor(market.process.observed_portfolio(state), dtype=torch.float32, device=device)
    batch = logged_batch(market, {**rows, "portfolio": observed}, compared.noise, observation_noise)
    own = action_distribution(compared.policy, batch.states)
    others = compared_actions(own.centre(), batch.states, ACTIONS - 1, compared.rng)
    actions = torch.cat([batch.actions.unsqueeze(1), others], dim=1)
    many, bars = repeated(state, ACTIONS), rows["bar"].repeat_interleave(ACTIONS)
    targets = actions.flatten(0, 1).double().cpu().numpy()
    step = market.process.step(many, targets)
    rewards = _rewards(market, step, bars)
    if compared.mirror.weight > 0.0:
        other = market.process.step(replace(many, bar=many.bar + compared.mirror.offset), targets)
        rewards = rewards.lerp(_rewards(market, other, bars), compared.mirror.weight)
    after = torch.as_tensor(market.process.observed_portfolio(step.state), dtype=torch.float32, device=device)
    following = batch.next_states._replace(portfolio=after)
    ended = torch.as_tensor(step.terminated, device=device).float()
    shape = (len(observed), ACTIONS)
    return batch._replace(choices=Choices(actions, rewards.view(shape), ended.view(shape), following)), own


def _rewards(market: RolloutMarket, step: Step, bars: Tensor) -> Tensor:
    """Scaled rewards of a step, (batch * ACTIONS,)."""
    device = bars.device
    return market.units.scaled(torch.as_tensor(step.reward, device=device).float(), bars)


@torch.no_grad()
def exact_bounds(
    market: RolloutMarket, behaviour_value: ValueNetwork, rows: Mapping[str, NDArray[Any]], gamma: float
) -> NDArray[np.float32]:
    """Exact returns of a vector step's decisions to its end with the behaviour's value there, (H, n_envs).

    Cal-QL's bound (Nakamoto et al. 2023) of values that were simulated.
    """
    device = market.tensors.market.device
    bars = torch.as_tensor(rows["bar"], device=device)
    portfolio = torch.as_tensor(rows["next_portfolio"][-1], dtype=torch.float32, device=device)
    value = behaviour_value.of_behaviour(market.tensors.states(bars[-1] + 1, portfolio))
    rewards = torch.as_tensor(rows["reward"], device=device).float().flatten()
    earned = market.units.scaled(rewards, bars.flatten())
    going = torch.as_tensor(gamma * ~rows["terminated"], dtype=torch.float32, device=device)
    bounds = [value]
    for reward, discount in zip(earned.view(len(bars), -1).flip(0), going.flip(0), strict=True):
        bounds.append(reward + discount * bounds[-1])
    exact: NDArray[np.float32] = torch.stack(bounds[:0:-1]).cpu().numpy()
    return exact
