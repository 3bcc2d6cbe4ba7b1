"""Small agents, proposals and generators that the tests of this folder share."""

from __future__ import annotations

import math

import torch

from finflow.agent.batch import Batch, Choices, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.agent.losses.critic_losses import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig

CPU = torch.device("cpu")
SMALL: dict[str, object] = {"hidden_dim": 32, "n_quantiles": 8, "cql_samples": 3}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_agent(shape: NetworkShape, **changes: object) -> BCell:
    """An agent of the same weights whatever the options."""
    return BCell(shape, BCellConfig.model_validate({**SMALL, **changes}), generator(), CPU)


def make_iql(shape: NetworkShape, config: BCellConfig) -> IQL:
    return IQL(portfolio_networks(shape, config, generator()), config, CPU)


def coverage(size: int = 16, n_weights: int = 5, proposals: int = 3, seed: int = 5) -> CoverageProposals:
    """Uniform portfolios: their density is Gamma(K)."""
    drawn = -torch.rand(size, proposals, n_weights, generator=generator(seed)).log()
    return CoverageProposals(drawn / drawn.sum(-1, keepdim=True), torch.full((size, proposals), math.lgamma(n_weights)))


def parameters(*modules: torch.nn.Module) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for module in modules for parameter in module.parameters()])


def with_choices(batch: Batch, count: int = 4, seed: int = 7) -> Batch:
    """The batch with ``count`` actions a state, the stored one first, the others random, and random outcomes."""
    noise, following = generator(seed), batch.next_states
    size, n_weights = batch.actions.shape
    others = torch.softmax(torch.randn(size, count - 1, n_weights, generator=noise), dim=-1)
    rewards = torch.cat([batch.rewards.unsqueeze(1), torch.randn(size, count - 1, generator=noise)], dim=1)
    ended = torch.cat([batch.terminated.unsqueeze(1), torch.zeros(size, count - 1)], dim=1)
    actions = torch.cat([batch.actions.unsqueeze(1), others], dim=1)
    reward_state = following.reward_state.unsqueeze(1).expand(-1, count, -1)
    held = torch.cat([following.weights.unsqueeze(1), others], dim=1)  # a move is what is held then
    portfolio = torch.cat([held, reward_state], dim=-1).flatten(0, 1)
    after = States(following.assets, following.market, portfolio, following.complete)
    return batch._replace(choices=Choices(actions, rewards, ended, after))
